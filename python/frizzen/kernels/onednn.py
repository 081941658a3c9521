"""Linear layers with weights packed once for oneDNN, through torch's own binding.

Measured on two Zen 5 cores, all 120 linears of SmolLM2-135M and its head, ms per step at 1 / 8 / 32 tokens:
bfloat16 6 / 8 / 14 packed against 11 / 14 / 19 for ``F.linear``; float32 12 / 15 / 27 against 33 / 51 / 78.
One packing serves every number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from frizzen.kernels.facts import Facts
from frizzen.kernels.ops import LINEAR, LINEAR_SILU_MUL, LM_HEAD, LM_HEAD_TIED
from frizzen.kernels.plan import Candidate, Reason
from frizzen.kernels.torch_ops import embedding, silu_mul

__all__ = ["CANDIDATES"]

_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})


class _Packed:
    """The binding is private to torch, so building this runs it once on a tiny problem."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._pack: Any = torch.ops.mkldnn._reorder_linear_weight.default
        self._linear: Any = torch.ops.mkldnn._linear_pointwise.default
        ones = torch.ones(16, 16, dtype=dtype)
        found = self._linear(ones, self._pack(ones), ones[0], "none", [], "")
        if not torch.equal(found, ones * 17):
            raise ValueError(
                f"a product of ones of size 16 plus one gave {found.flatten()[0].item()}, expected 17"
            )

    def prepare(self, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        packed, linear = self._pack(weight.contiguous()), self._linear
        return lambda x: linear(x, packed, bias, "none", [], "")


class _PackedSiluMul(_Packed):
    def prepare(self, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        linear = super().prepare(weight, bias)
        return lambda x: silu_mul(linear(x))


class _PackedHead(_Packed):
    def prepare(self, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        linear = super().prepare(weight, bias)
        return lambda hidden: linear(hidden).float()


class _PackedTiedHead:
    """Keeps the plain weight beside the packed one: rows cannot be read out of oneDNN's layout."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._head = _PackedHead(dtype)

    def extra_bytes(self, weight: Tensor) -> int:
        """The packed copy."""
        return weight.numel() * weight.element_size()

    def prepare(self, weight: Tensor) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        return embedding(weight), self._head.prepare(weight, None)


def _requires(facts: Facts) -> Reason | None:
    if facts.device != "cpu":
        return Reason("device", f"oneDNN packs for the cpu, this layer is on {facts.device}")
    if not torch._C._has_mkldnn:
        return Reason(
            "missing_package", "this torch is built without oneDNN", "install a torch built with oneDNN"
        )
    if facts.dtype not in {torch.float32, torch.bfloat16}:
        return Reason("dtype", f"dtype is {facts.dtype}, expected float32 or bfloat16")
    if facts.dtype == torch.bfloat16 and not facts.capability & _BFLOAT16_FLAGS:
        return Reason("capability", "bfloat16 needs avx512_bf16 or amx_bf16, and the cpu has neither")
    return None


CANDIDATES = (
    Candidate(LINEAR.name, "onednn_packed", 20, _requires, lambda facts: _Packed(facts.dtype)),
    Candidate(
        LINEAR_SILU_MUL.name, "onednn_packed", 20, _requires, lambda facts: _PackedSiluMul(facts.dtype)
    ),
    Candidate(LM_HEAD.name, "onednn_packed", 20, _requires, lambda facts: _PackedHead(facts.dtype)),
    Candidate(LM_HEAD_TIED.name, "onednn_packed", 20, _requires, lambda facts: _PackedTiedHead(facts.dtype)),
)

"""Products and experts by DeepGEMM's functions: what goes into them, its layout, and when they serve."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from frizzen.kernels.deep_gemm import ALIGNMENT, UnusableError, probe
from frizzen.kernels.facts import Facts
from frizzen.kernels.fp8_ops import LINEAR_FP8, MOE_EXPERTS_FP8
from frizzen.kernels.moe_ops import MOE_EXPERTS, Experts
from frizzen.kernels.moe_reference import Activation
from frizzen.kernels.plan import Candidate, Reason
from frizzen.quantize.fp8 import GROUP, Fp8Weight

if TYPE_CHECKING:
    from frizzen.kernels.triton.places import Places, Rows, Sorted

__all__ = ["CANDIDATES", "Fp8Linear", "GroupedExperts"]

_FEW = 256
"""Most tokens whose experts have a part of one capacity each."""


def _requires(facts: Facts, *names: str) -> Reason | None:
    if facts.device != "cuda":
        return Reason("device", f"deep_gemm computes on cuda, this is {facts.device}")
    if "sm_90" not in facts.capability:
        return Reason(
            "capability", f"the layouts here are those of sm_90, this is {', '.join(facts.capability)}"
        )
    if facts.dtype != torch.bfloat16:
        return Reason("dtype", f"the dtype is {facts.dtype}, wanted bfloat16")
    for name in names:
        if isinstance(found := probe(name, facts.device), Reason):
            return found
    return None


def _requires_linear(facts: Facts) -> Reason | None:
    size_in, size_out = facts.size("in_features"), facts.size("out_features")
    if size_in % GROUP or size_out % 64:
        return Reason("shape", f"the weight is {size_out} by {size_in}, wanted multiples of 64 and {GROUP}")
    return _requires_blocks(facts) or _requires(facts, "fp8_gemm_nt")


def _requires_blocks(facts: Facts) -> Reason | None:
    block = facts.size("block_rows"), facts.size("block_columns")
    if block != (GROUP, GROUP):
        return Reason(
            "blocks", f"scales are for blocks of {block[0]} by {block[1]}, wanted {GROUP} by {GROUP}"
        )
    return None


def _requires_experts(facts: Facts) -> Reason | None:
    for name in ("hidden", "intermediate"):
        if facts.size(name) % GROUP:
            return Reason("shape", f"{name} is {facts.size(name)}, wanted a multiple of {GROUP}")
    if facts["bias"]:
        return Reason("bias", "the experts have biases, the grouped products take none")
    return None


def _requires_fp8_experts(facts: Facts, *layouts: str) -> Reason | None:
    names = (f"m_grouped_fp8_gemm_nt_{layout}" for layout in layouts)
    return _requires_experts(facts) or _requires_blocks(facts) or _requires(facts, *names)


def _requires_bf16_experts(facts: Facts, *layouts: str) -> Reason | None:
    names = (f"m_grouped_bf16_gemm_nt_{layout}" for layout in layouts)
    return _requires_experts(facts) or _requires(facts, *names)


def _found(name: str, facts: Facts) -> Callable[..., Any]:
    found = probe(name, facts.device)
    if isinstance(found, Reason):
        raise UnusableError(found)
    return found


@dataclass(frozen=True, slots=True)
class Fp8Linear:
    """See ``linear.fp8``."""

    product: Callable[..., Any]
    round_rows: Callable[[Tensor], tuple[Tensor, Tensor]]
    few: Any
    """The kernel for few tokens, whose product waits for the weight: Triton's."""
    few_tokens: int

    @property
    def folds(self) -> type:
        """Whose norm ``prepare_normed`` is equal to."""
        found: type = self.few.folds
        return found

    @classmethod
    def build(cls, facts: Facts) -> Fp8Linear:
        """The kernel for one shape."""
        from frizzen.kernels.triton import fp8, fp8_linear

        few = fp8_linear.Fp8Linear.build(facts)
        rows = functools.partial(fp8.quantize_rows, target=few.target, by_column=True)
        return cls(_found("fp8_gemm_nt", facts), rows, few, fp8_linear.FEW)

    def prepare(self, weight: Fp8Weight, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Keeps the weight as it is."""
        few = self.few.prepare(weight, bias)

        def linear(x: Tensor) -> Tensor:
            if len(x) <= self.few_tokens:
                out: Tensor = few(x)
                return out
            return self._multiply(self.round_rows(x), weight, bias, x.dtype)

        return linear

    def prepare_normed(
        self, norm: Tensor, eps: float, weight: Fp8Weight, bias: Tensor | None
    ) -> Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]:
        """``norm.rms`` and this product together: see ``linear.SkinnyLinear`` of ``triton``."""
        from frizzen.kernels.triton.fp8 import norm_rows

        few = self.few.prepare_normed(norm, eps, weight, bias)

        def normed(x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
            if len(x) <= self.few_tokens:
                found: tuple[Tensor, Tensor] = few(x, residual)
                return found
            rows = norm_rows(x, residual, norm, eps, self.few.target, by_column=True)
            return self._multiply(rows, weight, bias, x.dtype), x if residual is None else residual

        return normed

    def _multiply(
        self, rows: tuple[Tensor, Tensor], weight: Fp8Weight, bias: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        out = torch.empty(len(rows[0]), weight.data.shape[0], dtype=dtype, device=weight.data.device)
        self.product(rows, (weight.data, weight.scale), out)
        return out if bias is None else out.add_(bias)


@dataclass(frozen=True, slots=True)
class GroupedExperts:
    """``moe.experts`` by two grouped products: masked for few tokens if it is given, else contiguous."""

    places: Places
    contiguous: Callable[..., Any]
    masked: Callable[..., Any] | None
    rounded: bool
    """Whether in FP8."""

    @classmethod
    def build(cls, facts: Facts, *, rounded: bool, masked: bool) -> GroupedExperts:
        """The kernels for one shape; ``rounded``: in FP8."""
        from frizzen.kernels.triton.launch import Target
        from frizzen.kernels.triton.places import Places

        hidden, inner, experts, top_k = (
            facts.size(name) for name in ("hidden", "intermediate", "experts", "top_k")
        )
        places = Places(hidden, inner, experts, top_k, Activation.of(facts), Target.of(facts))
        name = f"m_grouped_{'fp8' if rounded else 'bf16'}_gemm_nt_"
        few = _found(f"{name}masked", facts) if masked else None
        return cls(places, _found(f"{name}contiguous", facts), few, rounded)

    def run(self, x: Tensor, weights: Tensor, ids: Tensor, w13: Any, w2: Any) -> Tensor:
        """Both weights are tensors, or pairs of numbers and scales."""
        places, tokens = self.places, len(x)
        if tokens == 0:
            return torch.empty_like(x)
        if tokens > _FEW or self.masked is None:
            found = places.in_tiles(ids, ALIGNMENT)
        else:
            # A product writes whole tiles: past an expert's last row, but not into the next expert's part.
            found = places.by_capacity(ids, -(-tokens // ALIGNMENT) * ALIGNMENT)
        mean = max(tokens * places.top_k // places.experts, 1)
        gate_up = self._multiply(places.gather(x, found, rounded=self.rounded), w13, found, mean)
        act = places.activate(gate_up, found, rounded=self.rounded)
        return places.add_up(self._multiply(act, w2, found, mean), found.places, weights, ids)

    def _multiply(self, rows: Rows, weight: Any, found: Sorted, mean: int) -> Tensor:
        """``rows [R, K]`` -> ``[R, N]``; ``mean`` is a hint: the rows that an expert has on average."""
        count, size_out = len(rows.data), (weight[0] if self.rounded else weight).shape[1]
        out = torch.empty(count, size_out, dtype=torch.bfloat16, device=rows.data.device)
        left: Any = rows.data if rows.scale is None else (rows.data, rows.scale)
        if found.experts is not None or self.masked is None:
            self.contiguous(left, weight, out, found.experts)
            return out
        experts = self.places.experts
        left = torch.unflatten(rows.data, 0, (experts, -1))
        if rows.scale is not None:
            # Every expert's columns together.
            by_expert = torch.unflatten(rows.scale.T, 1, (experts, -1)).transpose(0, 1).contiguous()
            left = left, by_expert.transpose(1, 2)
        self.masked(left, weight, torch.unflatten(out, 0, (experts, -1)), found.counts, mean)
        return out


@dataclass(frozen=True, slots=True)
class _Experts:
    """Weights are tensors or :class:`Fp8Weight`; ``few`` serves up to ``_FEW`` tokens if it is given."""

    grouped: GroupedExperts
    few: Any = None
    """A kernel of the same op."""

    @classmethod
    def build(cls, facts: Facts, *, rounded: bool, hybrid: bool) -> _Experts:
        from frizzen.kernels.triton.fp8_moe import Fp8Experts

        few = Fp8Experts.build(facts) if hybrid else None
        return cls(GroupedExperts.build(facts, rounded=rounded, masked=not hybrid), few)

    def prepare(self, w13: Any, w2: Any, b13: Tensor | None, b2: Tensor | None) -> Experts:
        pair = [(w.data, w.scale) if isinstance(w, Fp8Weight) else w for w in (w13, w2)]
        few: Experts | None = None if self.few is None else self.few.prepare(w13, w2, b13, b2)

        def run(x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
            if few is not None and len(x) <= _FEW:
                return few(x, weights, ids)
            return self.grouped.run(x, weights, ids, *pair)

        return run


def _experts(op: str, name: str, rank: int, *, rounded: bool, hybrid: bool) -> Candidate:
    layouts = ("contiguous",) if hybrid else ("contiguous", "masked")
    requires = _requires_fp8_experts if rounded else _requires_bf16_experts
    return Candidate(
        op,
        name,
        rank,
        lambda facts: requires(facts, *layouts),
        functools.partial(_Experts.build, rounded=rounded, hybrid=hybrid),
    )


# In FP8, up to 256 tokens are Triton's: on an H200 147 us at 32 tokens and 192 at 256 (128 experts of 2048 by
# 768, 8 per token), where masked products with as many places as tokens took 185 and 283; but 1566 against
# 956 at 8,192. In bfloat16, Triton takes 1360 us there, DeepGEMM 1444.
CANDIDATES = (
    Candidate(LINEAR_FP8.name, "deep_gemm", 60, _requires_linear, Fp8Linear.build),
    _experts(MOE_EXPERTS_FP8.name, "triton_deep_gemm", 60, rounded=True, hybrid=True),
    _experts(MOE_EXPERTS_FP8.name, "deep_gemm", 40, rounded=True, hybrid=False),
    _experts(MOE_EXPERTS.name, "deep_gemm", 40, rounded=False, hybrid=False),
)

"""``moe.experts`` by torch's grouped matrix product: tokens sorted by expert, two products, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from frizzen.kernels.facts import Facts
from frizzen.kernels.moe_ops import MOE_EXPERTS, Experts
from frizzen.kernels.moe_reference import Activation
from frizzen.kernels.plan import Candidate, Reason

__all__ = ["CANDIDATES"]

GroupedMm = Callable[..., Tensor]


def _grouped_mm() -> GroupedMm:
    """The function, by its public name or the one it had before.

    Raises:
        RuntimeError: neither is there.
    """
    for owner, name in ((torch.nn.functional, "grouped_mm"), (torch, "_grouped_mm")):
        if (found := getattr(owner, name, None)) is not None:
            function: GroupedMm = found
            return function
    raise RuntimeError(
        f"torch {torch.__version__} has neither torch.nn.functional.grouped_mm nor torch._grouped_mm"
    )


@dataclass(frozen=True, slots=True)
class _Experts:
    experts: int
    activation: Activation
    grouped_mm: GroupedMm

    @classmethod
    def build(cls, facts: Facts) -> _Experts:
        kernel = cls(facts.size("experts"), Activation.of(facts), _grouped_mm())
        # Devices and types differ in what they can do, by version: a tiny product tells.
        rows = torch.ones(16, 16, dtype=facts.dtype, device=facts.device)
        ends = torch.tensor([16], dtype=torch.int32, device=facts.device)
        if not torch.equal(kernel.grouped_mm(rows, rows.unsqueeze(0), offs=ends), torch.full_like(rows, 16)):
            raise RuntimeError("grouped_mm of ones is wrong")
        return kernel

    def prepare(self, w13: Tensor, w2: Tensor, b13: Tensor | None, b2: Tensor | None) -> Experts:
        w13_t, w2_t = w13.transpose(1, 2), w2.transpose(1, 2)

        def experts(x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
            tokens, k = ids.shape
            # Absent pairs sort behind the last expert, where the products have no group.
            key = torch.where(ids < 0, self.experts, ids).flatten()
            expert, order = torch.sort(key, stable=True)
            ends = torch.searchsorted(
                expert, torch.arange(1, self.experts + 1, device=x.device, dtype=expert.dtype)
            )
            ends = ends.int()
            row_expert = expert.clamp(max=self.experts - 1)
            gate_up = self.grouped_mm(x.index_select(0, order // k), w13_t, offs=ends)
            # Biases are added in float32: the sum would be rounded a second time, and it is larger.
            if b13 is not None:
                gate_up = gate_up.float() + b13.index_select(0, row_expert)
            act = self.activation.apply(gate_up).to(x.dtype)
            y = self.grouped_mm(act, w2_t, offs=ends).float()
            if b2 is not None:
                y += b2.index_select(0, row_expert)
            # Rows without a group were never written.
            y = torch.where((expert < self.experts).unsqueeze(1), y, 0.0)
            y = torch.empty_like(y).index_copy_(0, order, y).view(tokens, k, -1)
            return torch.bmm(weights.unsqueeze(1), y).squeeze(1).to(x.dtype)

        return experts


def _requires(facts: Facts) -> Reason | None:
    for name in ("hidden", "intermediate"):
        if facts.size(name) * facts.dtype.itemsize % 16:
            return Reason("shape", f"{name} is {facts.size(name)}, its rows are no multiple of 16 bytes")
    if facts.device == "cuda" and facts.dtype != torch.bfloat16:
        return Reason("dtype", f"grouped_mm on cuda takes bfloat16, this is {facts.dtype}")
    return None


CANDIDATES = (Candidate(MOE_EXPERTS.name, "torch_grouped_mm", 10, _requires, _Experts.build),)

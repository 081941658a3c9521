"""Norms that the next kernel does on the way, and additions that the last one does: as by themselves.

A norm is folded only where the plan names the kernel whose norm it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from frizzen.kernels import reference
from frizzen.kernels.moe_ops import MOE_ROUTE
from frizzen.kernels.ops import LINEAR, NORM_RMS
from frizzen.kernels.plan import Candidate, Registry, default_registry
from tests.models.driver import Driver, Stream, load
from tests.models.prompts import prompts


def kernel_of(name: str, op: str) -> Callable[..., Any]:
    return next(c for c in default_registry().candidates(op) if c.name == name).build


class Folding:
    """A kernel that can do the reference's norm on the way, and leaves the residual it was given alone."""

    def __init__(self, kernel: Any, folds: type, used: list[str]) -> None:
        self.kernel, self.folds, self.used = kernel, folds, used
        self.prepare = kernel.prepare

    def _norm(self, gain: torch.Tensor, eps: float) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
        def norm(x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
            total = x if residual is None else x + residual
            square = total.float().square().mean(-1, keepdim=True)
            return (total.float() * torch.rsqrt(square + eps) * gain.float()).to(x.dtype), total

        return norm


class FoldingLinear(Folding):
    def prepare_normed(self, gain: torch.Tensor, eps: float, *constants: torch.Tensor | None) -> Any:
        norm, linear = self._norm(gain, eps), self.kernel.prepare(*constants)

        def normed(x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
            self.used.append("linear")
            y, total = norm(x, residual)
            return linear(y), total

        return normed

    def prepare_added(self, *constants: torch.Tensor | None) -> Any:
        linear = self.kernel.prepare(*constants)

        def added(x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, None]:
            self.used.append("added")
            return residual.add_(linear(x)), None

        return added


class FoldingRouter(Folding):
    def prepare_normed(self, gain: torch.Tensor, eps: float, *constants: torch.Tensor | None) -> Any:
        norm, route = self._norm(gain, eps), self.kernel.prepare(*constants)

        def normed(x: torch.Tensor, residual: torch.Tensor | None, valid: torch.Tensor | None) -> Any:
            self.used.append("router")
            y, total = norm(x, residual)
            if residual is not None:
                residual.copy_(total)
            return (y, *route(y, valid))

        return normed


def registry(used: list[str], norm: str) -> Registry:
    """The reference, with kernels in front of it that fold the norm of the reference into what follows."""
    usual = default_registry()
    usual = usual.restricted(dict.fromkeys(usual.ops(), "reference") | {NORM_RMS.name: norm})
    folds = type(reference.CANDIDATES[_place(NORM_RMS.name)].build(None))  # type: ignore[arg-type]
    made = [
        Candidate(
            op, "folding", 99, lambda facts: None,
            lambda facts, op=op, kind=kind: kind(kernel_of("reference", op)(facts), folds, used),
        )
        for op, kind in ((LINEAR.name, FoldingLinear), (MOE_ROUTE.name, FoldingRouter))
    ]  # fmt: skip
    return Registry([*(c for op in usual.ops() for c in usual.candidates(op)), *made])


def _place(op: str) -> int:
    return next(at for at, candidate in enumerate(reference.CANDIDATES) if candidate.op == op)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe", "granite_moe", "deepseek_v3", "phi_moe"])
def test_folded_norms_and_additions_change_no_logit(tiny_checkpoint: Any, family: str) -> None:
    path, used = tiny_checkpoint(family), list[str]()
    wanted = Driver(load(path)).prefill(Stream(prompts()[1]), 5)
    found = Driver(load(path, registry=registry(used, "reference"))).prefill(Stream(prompts()[1]), 5)
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=1e-4)
    expected = {
        "qwen3": {"linear", "added"},
        "phi_moe": {"added"},
        "granite_moe": {"linear", "router"},
        "deepseek_v3": {"linear", "router"},
    }.get(family, {"linear", "router", "added"})
    assert set(used) == expected, "layer norms, which have biases, and outputs that are scaled are not folded"


def test_a_norm_of_another_kernel_is_not_folded(tiny_checkpoint: Any) -> None:
    used: list[str] = []
    Driver(load(tiny_checkpoint("qwen3_moe"), registry=registry(used, "native"))).prefill(Stream([1, 2, 3]))
    assert set(used) == {"added"}

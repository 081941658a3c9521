"""Kernels for many tokens on Hopper, whose warps have different parts.

Each has, for few tokens, the kernels that the candidate ``triton`` has. They are written in Gluon, a language
of triton's package that says where values stand and which warps do what. Its modules are imported when a
kernel is built, so a triton without it is a reason in the plan.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch

from frizzen.kernels.facts import Facts
from frizzen.kernels.kv_layout import needs_plain_cache
from frizzen.kernels.moe_ops import MOE_EXPERTS
from frizzen.kernels.mxfp4_ops import MOE_EXPERTS_MXFP4
from frizzen.kernels.ops import ATTENTION_PAGED
from frizzen.kernels.plan import Candidate, Reason

__all__ = ["CANDIDATES"]


def _requires(facts: Facts) -> Reason | None:
    if facts.device != "cuda":
        return Reason("device", f"long tiles are for cuda, this is {facts.device}")
    if "sm_90" not in facts.capability:
        return Reason("capability", f"long tiles need sm_90, this is {', '.join(facts.capability)}")
    if facts.dtype not in {torch.bfloat16, torch.float16}:
        return Reason("dtype", f"the dtype is {facts.dtype}, wanted bfloat16 or float16")
    if importlib.util.find_spec("triton") is None and facts.machine.version("triton") is None:
        return Reason("missing_package", "triton is not installed", "install triton")
    return None


def _requires_attention(facts: Facts) -> Reason | None:
    head_dim, block_size, window = (facts.size(name) for name in ("head_dim", "block_size", "window"))
    needs = (
        ("shape", head_dim in {64, 128}, f"heads of 64 or 128, head_dim is {head_dim}"),
        ("shape", block_size % 16 == 0, f"blocks of whole 16s, block_size is {block_size}"),
        ("window", window == 0, f"the whole context, the window is {window}"),
    )
    return _requires(facts) or _first_unmet(needs) or needs_plain_cache(facts)


def _requires_experts(facts: Facts) -> Reason | None:
    hidden, inner = facts.size("hidden"), facts.size("intermediate")
    needs = (
        ("shape", hidden % 64 == 0, f"rows of whole 64s, hidden is {hidden}"),
        ("shape", inner % 8 == 0, f"rows of whole 8s, intermediate is {inner}"),
    )
    return _requires(facts) or _first_unmet(needs)


def _requires_mxfp4(facts: Facts) -> Reason | None:
    inner = facts.size("intermediate")
    needs = (
        ("dtype", facts.dtype == torch.bfloat16, f"bfloat16, which holds every number, not {facts.dtype}"),
        ("shape", inner % 64 == 0, f"rows of whole 64s, intermediate is {inner}"),
    )
    return _requires_experts(facts) or _first_unmet(needs)


def _first_unmet(needs: tuple[tuple[str, bool, str], ...]) -> Reason | None:
    return next((Reason(code, f"long tiles need {wanted}") for code, met, wanted in needs if not met), None)


def _built_by(module: str, name: str) -> Callable[[Facts], Any]:
    def build(facts: Facts) -> Any:
        return getattr(importlib.import_module(f"frizzen.kernels.triton.{module}"), name).build(facts)

    return build


CANDIDATES = (
    Candidate(ATTENTION_PAGED.name, "hopper", 55, _requires_attention, _built_by("long_rows", "LongRows")),
    Candidate(MOE_EXPERTS.name, "hopper", 55, _requires_experts, _built_by("long_moe", "LongExperts")),
    Candidate(
        MOE_EXPERTS_MXFP4.name, "hopper", 55, _requires_mxfp4, _built_by("long_moe", "LongMxfp4Experts")
    ),
)

"""Kernels written in Triton, for CUDA; on a CPU they run in its interpreter if ``TRITON_INTERPRET`` is 1.

Only the other modules of this package import triton, and they are imported when a kernel is built.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch

from frizzen.kernels.draft_ops import ATTENTION_DRAFT, ATTENTION_DRAFT_MLA
from frizzen.kernels.facts import Facts
from frizzen.kernels.fp8_ops import LINEAR_FP8, MOE_EXPERTS_FP8
from frizzen.kernels.mla_ops import ATTENTION_MLA, ROPE_MLA
from frizzen.kernels.moe_ops import MOE_EXPERTS, MOE_ROUTE
from frizzen.kernels.moe_reference import Routing
from frizzen.kernels.mxfp4_ops import MOE_EXPERTS_MXFP4
from frizzen.kernels.ops import (
    ATTENTION_PAGED,
    LINEAR,
    LINEAR_SILU_MUL,
    LM_HEAD,
    LM_HEAD_TIED,
    NORM_LAYER,
    NORM_RMS,
    ROPE,
)
from frizzen.kernels.plan import Candidate, Reason
from frizzen.quantize.mxfp4 import BLOCK

__all__ = ["CANDIDATES"]

_RANK = 50
_FP8_CAPABILITIES = frozenset({"sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121"})
_FEWEST_GROUPED = 16
"""Experts of a router with groups: fewer are padded to the narrowest product, which has no whole groups."""

_LARGEST_LATENT = 512
"""Of latent attention: a program keeps the sums of a whole latent vector."""


def _requires(facts: Facts) -> Reason | None:
    if facts.device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return Reason("device", f"triton computes on cuda, this is {facts.device}")
    if importlib.util.find_spec("triton") is None and facts.machine.version("triton") is None:
        return Reason("missing_package", "triton is not installed", "install triton")
    if facts.dtype not in {torch.float32, torch.bfloat16, torch.float16}:
        return Reason("dtype", f"the dtype is {facts.dtype}, wanted float32, bfloat16 or float16")
    return None


def _requires_token_layout(facts: Facts) -> Reason | None:
    if facts["layout"] not in {"token", "token_fp8"}:
        return Reason("layout", f"the cache has layout {facts['layout']}, this writes layout token")
    return _requires_fp8_cache(facts, in_fp8=facts["layout"] == "token_fp8")


def _requires_attention(facts: Facts) -> Reason | None:
    return _requires_fp8_cache(facts, in_fp8=facts["kv_dtype"] == "fp8_e4m3")


def _requires_latents(facts: Facts) -> Reason | None:
    if facts.size("latent_dim") > _LARGEST_LATENT:
        return Reason("shape", f"latent_dim is {facts.size('latent_dim')}, tiles hold {_LARGEST_LATENT}")
    return _requires(facts)


def _requires_fp8_cache(facts: Facts, *, in_fp8: bool) -> Reason | None:
    if in_fp8 and facts.device == "cuda" and facts.capability.isdisjoint(_FP8_CAPABILITIES):
        return Reason("capability", f"FP8 needs sm_89 or later, this is {', '.join(facts.capability)}")
    return _requires(facts)


def _requires_power_of_two_groups(facts: Facts) -> Reason | None:
    groups, experts = Routing.of(facts).groups, facts.size("experts")
    if groups > 1 and (experts & (experts - 1) or groups & (groups - 1)):
        return Reason("shape", f"{groups} groups of {experts} experts: both must be powers of two")
    if groups > 1 and experts < _FEWEST_GROUPED:
        return Reason("shape", f"{groups} groups of {experts} experts, at least {_FEWEST_GROUPED} are needed")
    return _requires(facts)


def _requires_aligned_rows(facts: Facts) -> Reason | None:
    for name in ("hidden", "intermediate"):
        if facts.size(name) * facts.dtype.itemsize % 16:
            return Reason("shape", f"{name} is {facts.size(name)}, its rows are no multiple of 16 bytes")
    return _requires(facts)


def _requires_fp8(facts: Facts) -> Reason | None:
    if facts.device == "cuda":
        if facts.dtype == torch.float32:
            return Reason(
                "dtype", "the dtype is float32, and sums of products of FP8 are less exact than that"
            )
        if facts.capability.isdisjoint(_FP8_CAPABILITIES):
            return Reason("capability", f"FP8 needs sm_89 or later, this is {', '.join(facts.capability)}")
    return _requires(facts)


def _requires_mxfp4(facts: Facts) -> Reason | None:
    for name in ("hidden", "intermediate"):
        if facts.size(name) % BLOCK:
            return Reason("shape", f"{name} is {facts.size(name)}, its rows are no whole blocks of {BLOCK}")
    if facts.dtype == torch.float16:
        return Reason("dtype", "the dtype is float16, which does not hold every number times its scale")
    return _requires(facts)


def _built_by(module: str, name: str) -> Callable[[Facts], Any]:
    def build(facts: Facts) -> Any:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name).build(facts)

    return build


def _candidate(
    op: str, module: str, name: str, requires: Callable[[Facts], Reason | None] = _requires
) -> Candidate:
    return Candidate(op, "triton", _RANK, requires, _built_by(module, name))


CANDIDATES = (
    _candidate(LINEAR.name, "linear", "SkinnyLinear"),
    _candidate(LM_HEAD.name, "linear", "LmHead"),
    _candidate(LM_HEAD_TIED.name, "linear", "TiedHead"),
    _candidate(LINEAR_SILU_MUL.name, "gated", "LinearSiluMul"),
    _candidate(NORM_RMS.name, "norm", "RmsNorm"),
    _candidate(NORM_LAYER.name, "layer_norm", "LayerNorm"),
    _candidate(ROPE.name, "rope", "Rope", _requires_token_layout),
    _candidate(ROPE_MLA.name, "latent_rope", "LatentRope"),
    _candidate(ATTENTION_PAGED.name, "paged_attention", "PagedAttention", _requires_attention),
    _candidate(ATTENTION_DRAFT.name, "paged_attention", "PagedAttention"),
    _candidate(ATTENTION_MLA.name, "latent_attention", "LatentAttention", _requires_latents),
    _candidate(ATTENTION_DRAFT_MLA.name, "latent_attention", "LatentAttention", _requires_latents),
    _candidate(MOE_ROUTE.name, "route", "Router", _requires_power_of_two_groups),
    _candidate(MOE_EXPERTS.name, "moe", "MoeExperts", _requires_aligned_rows),
    _candidate(LINEAR_FP8.name, "fp8_linear", "Fp8Linear", _requires_fp8),
    _candidate(MOE_EXPERTS_FP8.name, "fp8_moe", "Fp8Experts", _requires_fp8),
    _candidate(MOE_EXPERTS_MXFP4.name, "mxfp4_moe", "Mxfp4Experts", _requires_mxfp4),
)

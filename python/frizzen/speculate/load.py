"""Makes the drafter of a target: finds its checkpoint, checks that it fits, builds it into the target's plan.

The target is there before its drafter, with kernels, caches and perhaps streams of its own. A drafter is
therefore built *beside* it: only its parallel configuration is a new value (``parallel.config.for_draft``,
made here and nowhere else, for every kind); the plan, the registry of kernels and the target itself are
shared by reference and never copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from frizzen import catalog
from frizzen.errors import LoadError, UnsupportedModelError
from frizzen.kernels.plan import PlanBuilder
from frizzen.layers.build import BuildContext
from frizzen.loading.checkpoint import Checkpoint, Parameter, Weights
from frizzen.loading.dummy import DummyCheckpoint
from frizzen.loading.hf_config import HfConfig
from frizzen.loading.load import LoadRequest, build_model, open_model
from frizzen.loading.safetensors import SafetensorsCheckpoint
from frizzen.models.base import CausalLM
from frizzen.parallel.config import ParallelConfig, for_draft
from frizzen.speculate import dspark, eagle3, mtp
from frizzen.speculate.checkpoint import IGNORED, flat
from frizzen.speculate.compatibility import way_out
from frizzen.speculate.draft_model import DraftModel
from frizzen.speculate.drafter import Drafter
from frizzen.speculate.dspark_config import DSparkConfig
from frizzen.speculate.fused import FusedDrafter

__all__ = ["DRAFTERS", "DraftRequest", "LoadedDrafter", "draft_context", "load_drafter"]

USUAL_DRAFTS = {"draft_model": 5, "mtp": 3, "eagle3": 5}
"""Most drafts per row where nobody says; DSpark's checkpoints do."""

_OPTIONAL = frozenset({"embed_tokens.weight", "lm_head.weight", "d2t"})
"""What a drafter's checkpoint may leave to its target; dummy weights have it all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRequest:
    """Which drafter."""

    name: str
    """``draft_model``, ``mtp``, ``eagle3`` or ``dspark``."""
    target: LoadRequest
    """What the target was loaded from."""
    model: str | None = None
    """Where its weights are; ``None`` is the target's checkpoint."""
    num_drafts: int | None = None
    """Most drafts per row; ``None`` is what it was made for."""
    tensor_parallel_size: int = 1


@dataclass(frozen=True, slots=True)
class LoadedDrafter:
    """A drafter, before its caches exist."""

    drafter: Drafter
    max_drafts: int
    parallel: ParallelConfig
    """The draft's own."""
    weights: Mapping[str, int]
    """Bytes of its own parameters by owner; the target's, which it shares, are not among them."""


@torch.inference_mode()
def load_drafter(request: DraftRequest, target: CausalLM, plan: PlanBuilder) -> LoadedDrafter:
    """Builds the drafter beside ``target``; ``plan`` is the one that the target was built into.

    Beside a rehearsed target, whose tensors have no data, the drafter has none either: nothing is read.

    Raises:
        UnsupportedModelError: it does not fit the target: the text has both values.
        LoadError: as ``loading.load.load_model``.
        ConfigError: the draft's tensor parallel size is not possible.
    """
    if request.name not in DRAFTERS:
        raise LoadError(f"drafter is {request.name!r}, expected {', '.join(DRAFTERS)}")
    parallel = for_draft(request.target.parallel, request.tensor_parallel_size)
    scoped = plan.scoped("draft_", target.config.num_layers)
    drafter, count, weights = DRAFTERS[request.name](request, target, scoped, parallel)
    where = request.model or "the model's own checkpoint"
    plan.decide("drafter", request.name, f"up to {count} tokens per row and step, from {where}")
    return LoadedDrafter(drafter, count, parallel, dict(weights.bytes_by_owner))


def draft_context(
    weights: Weights, target: CausalLM, plan: PlanBuilder, parallel: ParallelConfig
) -> BuildContext:
    """What the draft's layers are built with: the target's dtype and blocks, its very plan and streams."""
    return BuildContext(
        weights,
        plan,
        target.dtype,
        target.device,
        target.block_size,
        streams=target.streams,
        parallel=parallel,
    )


_Made = tuple[Drafter, int, Weights]


def _draft_model(
    request: DraftRequest, target: CausalLM, plan: PlanBuilder, parallel: ParallelConfig
) -> _Made:
    wanted = replace(
        request.target,
        model=_named(request),
        load_format="dummy" if request.target.load_format == "dummy" else "auto",
        dtype=str(target.dtype).removeprefix("torch."),
        parallel=parallel,
    )
    source = open_model(wanted)
    source.checkpoint.close()
    if (size := source.config.vocab_size) != target.config.vocab_size:
        raise UnsupportedModelError(
            f"the draft model {wanted.model} has a vocabulary of {size} tokens, "
            f"the target's is {target.config.vocab_size}: they must be the same"
            + way_out("draft_model", "draft of another vocabulary")
        )
    count = request.num_drafts or USUAL_DRAFTS["draft_model"]
    model, weights = build_model(wanted, plan, target.device)
    if not isinstance(model, CausalLM):
        raise UnsupportedModelError(f"the draft model {wanted.model} pools, and generates nothing")
    return DraftModel(model, count), count, weights


def _mtp(request: DraftRequest, target: CausalLM, plan: PlanBuilder, parallel: ParallelConfig) -> _Made:
    # The layer's own number comes after the target's already.
    plan = plan.scoped(plan.scope, 0)
    source = open_model(replace(request.target, model=request.model or request.target.model))
    try:
        for key in ("hidden_size", "vocab_size", "num_layers"):
            ours, theirs = getattr(source.config, key), getattr(target.config, key)
            if ours != theirs:
                raise UnsupportedModelError(
                    f"{source.checkpoint.path}: {key} of the mtp layer's checkpoint is {ours}, "
                    f"the target's is {theirs}"
                )
        # First, so that a checkpoint without the layer is refused by its number and not by its tensors.
        mtp.extended(source.config)
        weights = Weights(
            source.checkpoint,
            mtp.parameters(source.family, source.config),
            target.dtype,
            target.device,
            ignored=mtp.ignored(source.config),
        )
        heads = mtp.build(target, draft_context(weights, target, plan, parallel))
    finally:
        source.checkpoint.close()
    count = request.num_drafts or max(USUAL_DRAFTS["mtp"], len(heads))
    return FusedDrafter("mtp", heads, (), count), count, weights


def _eagle3(request: DraftRequest, target: CausalLM, plan: PlanBuilder, parallel: ParallelConfig) -> _Made:
    raw, checkpoint = _open(request)
    try:
        names = _names(checkpoint)
        config = eagle3.Eagle3Config.read(flat(raw), target, names)
        weights = _weights(checkpoint, eagle3.parameters(config, target, names), target)
        head = eagle3.build(config, target, draft_context(weights, target, plan, parallel))
    finally:
        checkpoint.close()
    count = request.num_drafts or USUAL_DRAFTS["eagle3"]
    return FusedDrafter("eagle3", [head], config.taps, count), count, weights


def _dspark(request: DraftRequest, target: CausalLM, plan: PlanBuilder, parallel: ParallelConfig) -> _Made:
    raw, checkpoint = _open(request)
    try:
        names = _names(checkpoint)
        config = DSparkConfig.read(raw, flat(raw), target, names, request.num_drafts)
        weights = _weights(checkpoint, dspark.parameters(config, target, names), target)
        drafter = dspark.build(config, target, draft_context(weights, target, plan, parallel))
    finally:
        checkpoint.close()
    return drafter, config.num_drafts, weights


DRAFTERS: dict[str, Callable[[DraftRequest, CausalLM, PlanBuilder, ParallelConfig], _Made]] = {
    "draft_model": _draft_model,
    "mtp": _mtp,
    "eagle3": _eagle3,
    "dspark": _dspark,
}
"""Every drafter with a model, by its name in the configuration."""


def _named(request: DraftRequest) -> str:
    if request.model is None:
        raise LoadError(
            f"drafter {request.name} needs a model of its own{way_out(request.name, 'weights not given')}"
        )
    return request.model


def _open(request: DraftRequest) -> tuple[HfConfig, Checkpoint]:
    path: Path = catalog.resolve(_named(request))
    raw = HfConfig.read(path / "config.json" if path.is_dir() else path)
    if request.target.load_format == "dummy":
        return raw, DummyCheckpoint(path, request.target.seed)
    return raw, SafetensorsCheckpoint(path)


def _names(checkpoint: Checkpoint) -> frozenset[str]:
    shapes = checkpoint.shapes()
    return _OPTIONAL if shapes is None else frozenset(shapes)


def _weights(checkpoint: Checkpoint, parameters: Iterable[Parameter], target: CausalLM) -> Weights:
    return Weights(checkpoint, parameters, target.dtype, target.device, ignored=IGNORED)

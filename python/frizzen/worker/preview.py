"""What a configuration will be on a machine: kernels, sizes and memory, before a weight is read.

A model that does not fit is refused here, with the ledger and the nearest configuration that fits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from frizzen.config import EngineConfig
from frizzen.errors import ConfigError, DoesNotFitError, FrizzenError
from frizzen.kernels.plan import Plan, PlanBuilder
from frizzen.kernels.stand_ins import Rehearsal
from frizzen.loading.checkpoint import Progress
from frizzen.loading.load import LoadRequest, Rehearsed, rehearse_model
from frizzen.loading.pooling import pools_by_itself
from frizzen.models.base import CausalLM
from frizzen.models.pooling import PoolingModel
from frizzen.sizes_text import show_bytes
from frizzen.speculate.load import LoadedDrafter
from frizzen.worker import drafter as drafters
from frizzen.worker.drafter import DraftMemory
from frizzen.worker.footprint import Footprint, StepLimits, footprint
from frizzen.worker.ledger import Budget, Ledger
from frizzen.worker.sizes import DEFAULT_STEP_TOKENS, Sizes, default_kv_memory, reserve, resolve_sizes

__all__ = ["Preview", "load_drafter", "load_request", "memory_json", "preview"]

LESS_THAN = {"float32": "bfloat16", "auto": "bfloat16"}
"""A dtype of fewer bytes, by the one that was asked for."""


@dataclass(frozen=True, slots=True)
class Preview:
    """A configuration that fits."""

    config: EngineConfig
    model: Rehearsed
    drafts: DraftMemory
    steps: Footprint
    sizes: Sizes
    plan: Plan
    ledger: Ledger

    def to_json(self) -> dict[str, Any]:
        """The plan with its memory, as ``/v1/plan`` has it once the model is loaded."""
        per_token = self.model.kv_bytes_per_token + self.drafts.per_token
        return self.plan.to_json() | {"memory": memory_json(self.ledger, per_token)}


def memory_json(ledger: Ledger, kv_per_token: int) -> dict[str, Any]:
    """The plan's ``memory``: bytes."""
    return {
        "kv_cache": ledger["kv_cache"].predicted,
        "kv_per_token": kv_per_token,
        "weights": ledger.weights,
        **ledger.to_json(),
    }


def preview(config: EngineConfig, builder: PlanBuilder, budget: Callable[[], Budget]) -> Preview:
    """Goes through the start of ``config`` without its weights.

    Args:
        config: What the user asks for.
        builder: Chooses the kernels; it keeps what it resolves and writes down no choices.
        budget: The memory of the builder's machine, asked for once the kernels are built.

    Raises:
        DoesNotFitError: weights, or weights and a KV cache for one request, are more than the memory.
        LoadError, PlanError, ConfigError: as for the start itself.
    """
    rehearsal = Rehearsal()
    rehearsed_builder = builder.again(rehearsal)
    request = load_request(config, builder.machine.device)
    model = rehearse_model(request, rehearsed_builder)
    loaded = load_drafter(config, request, model.model, rehearsed_builder)
    drafts = DraftMemory.of(config, loaded, model.model.config.vocab_size)
    if loaded is not None:
        model = replace(model, weights={**model.weights, "drafter": sum(loaded.weights.values())})
    if extra := rehearsal.extra_bytes():
        model = replace(model, weights={**model.weights, "copies": extra})
    steps = _footprint(config, builder.machine.device, model, loaded)
    memory = budget()
    sizes, ledger = _fit(config, builder, model, drafts, steps, memory)
    rehearsed_builder.decide("max_model_len", str(sizes.max_model_len), sizes.limited_by)
    return Preview(config, model, drafts, steps, sizes, rehearsed_builder.plan(), ledger)


def _footprint(
    config: EngineConfig, device: str, model: Rehearsed, drafter: LoadedDrafter | None
) -> Footprint:
    """What steps will take; nothing on a CPU, where it is not told apart, and of a model that pools."""
    if device == "cpu" or not isinstance(model.model, CausalLM):
        return Footprint()
    limits = StepLimits(
        rows=config.max_num_seqs,
        tokens=config.max_num_batched_tokens or DEFAULT_STEP_TOKENS[device],
        context=config.max_model_len or model.max_model_len,
        drafts=config.max_drafts if drafter is None else drafter.max_drafts,
    )
    width = model.model.dtype.itemsize
    return footprint(model.model.config, limits, width, graphs=not config.enforce_eager)


def load_drafter(
    config: EngineConfig, request: LoadRequest, model: CausalLM | PoolingModel, builder: PlanBuilder
) -> LoadedDrafter | None:
    """The drafter that ``config`` asks for, if any, beside a model that is loaded or rehearsed.

    Raises:
        ConfigError: the model pools.
    """
    if isinstance(model, CausalLM):
        return drafters.load(config, request, model, builder)
    if config.drafter is not None:
        raise ConfigError(f"drafter is {config.drafter}, but {config.model} pools: it has no tokens to draft")
    return None


def load_request(config: EngineConfig, device: str, progress: Progress | None = None) -> LoadRequest:
    """What the loader is asked for, by a start and by its preview alike."""
    return LoadRequest(
        model=config.model,
        load_format=config.load_format,
        dtype=config.dtype,
        device=device,
        block_size=config.block_size,
        kv_cache_dtype=config.kv_cache_dtype,
        seed=config.seed,
        pools=_pools(config),
        pooler_config=config.pooler_config,
        progress=progress,
    )


def _pools(config: EngineConfig) -> bool:
    if config.runner == "auto":
        return config.pooler_config is not None or pools_by_itself(config.model)
    return config.runner == "pooling"


def _fit(
    config: EngineConfig,
    builder: PlanBuilder,
    model: Rehearsed,
    drafts: DraftMemory,
    steps: Footprint,
    budget: Budget,
) -> tuple[Sizes, Ledger]:
    device, per_token = builder.machine.device, model.kv_bytes_per_token + drafts.per_token
    weights = sum(model.weights.values())
    kept = reserve(device, budget.total, steps)
    free = budget.free - weights - drafts.kept

    def ledger(kv_cache: int) -> Ledger:
        return Ledger.of(device, budget, model.weights, kv_cache, kept, drafts=drafts.kept, steps=steps)

    smallest = 2 * per_token * config.block_size + drafts.private
    if free - kept < smallest:
        needs = f"weights and one KV block need {show_bytes(weights + smallest + kept)}"
        fixes = _lighter(config, builder, budget, model, weights, kept)
        raise _refusal(config, device, budget, needs, fixes, ledger(smallest))
    if config.kv_cache_memory is not None and config.kv_cache_memory > free:
        needs = f"weights and kv_cache_memory need {show_bytes(weights + config.kv_cache_memory)}"
        fixes = [f"set kv_cache_memory to at most {free - kept} ({show_bytes(free - kept)})"]
        raise _refusal(config, device, budget, needs, fixes, ledger(config.kv_cache_memory))
    try:
        sizes = resolve_sizes(
            config,
            device_type=device,
            model_len=model.max_model_len,
            bytes_per_token=per_token,
            memory=default_kv_memory(device, free, kept),
            private=drafts.private,
        )
    except DoesNotFitError as error:
        wanted = config.max_model_len or model.max_model_len
        raise DoesNotFitError(f"{error}\n{ledger(wanted * per_token).table()}") from None
    return sizes, ledger(sizes.kv_bytes)


def _lighter(
    config: EngineConfig, builder: PlanBuilder, budget: Budget, model: Rehearsed, weights: int, kept: int
) -> list[str]:
    """What would make the weights fit."""
    fixes = []
    if (dtype := LESS_THAN.get(config.dtype)) is not None:
        smaller = replace(config, dtype=dtype)
        try:
            found = preview(smaller, builder, lambda: budget)
        except FrizzenError:
            found = None
        if found is not None and found.ledger.weights < weights:
            length = found.sizes.max_model_len
            fixes.append(f"set dtype to {dtype}: it leaves room for max_model_len {length}")
    room = budget.free - kept - 2 * model.kv_bytes_per_token * config.block_size
    if room > 0:
        fixes.append(
            f"use a checkpoint whose weights take at most {show_bytes(room)} in memory, "
            f"{room / weights:.0%} of these"
        )
    return fixes


def _refusal(
    config: EngineConfig, device: str, budget: Budget, needs: str, fixes: list[str], ledger: Ledger
) -> ConfigError:
    way_out = "; or ".join(fixes) or "nothing of this model fits: use a machine with more memory"
    return DoesNotFitError(
        f"{config.model} does not fit on {device}: {needs}, "
        f"and {show_bytes(budget.free)} are free; {way_out}\n{ledger.table()}"
    )

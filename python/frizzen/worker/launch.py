"""Builds a worker from a configuration: load, decide sizes, allocate the KV cache, warm up."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch

from frizzen.config import EngineConfig
from frizzen.errors import ConfigError
from frizzen.kernels.facts import Machine, detect_machine
from frizzen.kernels.plan import Plan, PlanBuilder, default_registry
from frizzen.kernels.self_test import SelfTest
from frizzen.kernels.stand_ins import KernelFaultError, Watch
from frizzen.loading.load import load_model, return_free_memory
from frizzen.models.base import CausalLM
from frizzen.models.pooling import PoolingModel
from frizzen.progress import Timeline, phase, process_age
from frizzen.speculate.drafting import Drafting
from frizzen.speculate.load import DRAFTERS, LoadedDrafter
from frizzen.worker import drafter as drafters
from frizzen.worker.ahead import Ahead
from frizzen.worker.buffers import StepBuffers
from frizzen.worker.footprint import Footprint
from frizzen.worker.graphs import CudaCapture, GraphRunner
from frizzen.worker.lattice import Lattice
from frizzen.worker.ledger import LEAST_MEASURED, Budget, Ledger
from frizzen.worker.machine import available_cpus
from frizzen.worker.meter import Meter, budget_of
from frizzen.worker.pooling import PoolingWorker
from frizzen.worker.preview import Preview, load_drafter, load_request, memory_json, preview
from frizzen.worker.sizes import Sizes, default_kv_memory, reserve, resolve_sizes
from frizzen.worker.warmup import compile_ends, compile_steps, run_steps
from frizzen.worker.worker import Worker

__all__ = ["Loaded", "build", "load", "plan_of_start", "preview_described", "preview_here"]

T = TypeVar("T")

SWITCH_INTERVAL = 1e-4
"""Seconds after which a busy Python thread yields; at Python's default of 5 ms it would delay whole steps."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model with everything decided, before its KV cache exists."""

    config: EngineConfig
    model: CausalLM | PoolingModel
    sizes: Sizes
    plan: Plan
    ledger: Ledger
    watch: Watch
    meter: Meter
    graphs: Lattice | None
    """Shapes of the CUDA graphs; ``None`` where every step is launched."""
    distinct_layers: tuple[int, ...]
    """Two of each kind of layer, if there are two."""
    drafter: LoadedDrafter | None = None

    @property
    def max_drafts(self) -> int:
        """Most drafts of a row in a step."""
        return self.config.max_drafts if self.drafter is None else self.drafter.max_drafts

    def kv_bytes_per_token(self) -> int:
        """Of the model and its drafter."""
        own = self.model.kv_bytes_per_token()
        return own if self.drafter is None else own + self.drafter.drafter.bytes_per_token()

    def plan_json(self) -> dict[str, Any]:
        """The plan with the memory it needs, in bytes, and what of it was measured."""
        return self.plan.to_json() | {"memory": memory_json(self.ledger, self.kv_bytes_per_token())}

    def warm(self) -> Loaded:
        """The same once the KV cache is allocated and everything has run."""
        taken, cache = self.ledger["weights"].measured, self.watch.cache_bytes()
        peak = self.meter.peak()
        besides = None
        if peak is not None and taken is not None:
            besides = max(peak - taken - cache - self.ledger.predicted("drafts"), 0)
        return replace(self, ledger=self.ledger.measured(kv_cache=cache, workspaces=besides))


def build(config_json: str, ahead: Ahead | None = None) -> Worker:
    """Builds the worker for an ``EngineConfig`` in JSON, on the thread that will call it.

    The plan, the memory ledger and the timeline go to standard error. ``ahead`` is what ``start.build`` has
    begun.

    Raises:
        ConfigError: a value is wrong, or does not fit the model.
        DoesNotFitError: the model needs more memory than there is; nothing was loaded.
        LoadError: the model cannot be loaded.
        PlanError: no kernel serves a layer, or ``strict`` forbids to start without a better one.
    """
    sys.setswitchinterval(SWITCH_INTERVAL)
    return _start(EngineConfig.from_json(config_json), ahead, show=True)


def load(config: EngineConfig) -> Loaded:
    """Loads the model and decides everything that depends on it; shows the plan on standard error."""
    timeline = Timeline(process_age())
    builder = _builder(config, timeline)
    return _without_faulty_kernels(builder, lambda builder: _load(config, builder, timeline, show=True))


def plan_of_start(config: EngineConfig) -> dict[str, Any]:
    """The plan of a start, as JSON, by starting: with what was measured. Raises as ``build`` does."""
    worker = _start(config, None, show=False)
    plan: dict[str, Any] = worker.info["plan"]
    worker.shutdown()
    return plan


def preview_here(config: EngineConfig) -> dict[str, Any]:
    """The plan of a start on this machine, as JSON, from headers alone; raises as ``build`` does."""
    builder = _builder(config, Timeline(0))
    device = torch.device(_choose_device(config))
    return _strictly(config, preview(config, builder, lambda: budget_of(device)))


def preview_described(config: EngineConfig, capability: str, memory: int) -> dict[str, Any]:
    """The plan of a start on a GPU that is not here, with ``memory`` bytes.

    Its torch is taken to bring triton, as every build for CUDA does. What only a run can tell of a kernel is
    taken for granted.
    """
    packages = {"triton": "with torch", **dict(detect_machine("cpu").packages)}
    machine = Machine("cuda", frozenset({capability}), 1, tuple(packages.items()))
    builder = PlanBuilder(default_registry(), machine, described=True)
    return _strictly(config, preview(config, builder, lambda: Budget(memory, memory)))


def _strictly(config: EngineConfig, found: Preview) -> dict[str, Any]:
    if config.strict:
        found.plan.strict()
    return found.to_json()


def _start(config: EngineConfig, ahead: Ahead | None, *, show: bool) -> Worker:
    if ahead is None:
        with Ahead(config) as begun:
            return _start(config, begun, show=show)
    ahead.hash_compiler()

    def start(builder: PlanBuilder) -> Worker:
        return _worker(_load(config, builder, ahead.timeline, show), ahead, show)

    return _without_faulty_kernels(_builder(config, ahead.timeline), start)


def _without_faulty_kernels(builder: PlanBuilder, start: Callable[[PlanBuilder], T]) -> T:
    """Starts, and starts again without a kernel that raised while it prepared a layer.

    From the beginning, since a kernel may have changed what it was given. Ends, because each time there is a
    candidate less.
    """
    while True:
        try:
            return start(builder)
        except KernelFaultError as fault:
            sys.stderr.write(f"{fault}; the model is loaded again without it\n")
            builder.quarantine(fault.place, fault.reason)
        # What was loaded must be gone before it is loaded again.
        gc.collect()


def _worker(loaded: Loaded, ahead: Ahead, show: bool) -> Worker:
    config, model, sizes = loaded.config, loaded.model, loaded.sizes
    with phase(f"allocate {sizes.num_blocks} KV blocks, {sizes.kv_bytes / 2**20:,.0f} MiB"):
        model.allocate_kv(sizes.num_blocks, config.block_size)
        drafting = None
        if loaded.drafter is not None and isinstance(model, CausalLM):
            drafting = drafters.drafting(config, loaded.drafter, model, sizes.num_blocks)
    loaded.meter.start_peak()
    ahead.timeline.mark("allocate")
    late_compiles = _warm_up(loaded, drafting, ahead)
    loaded = loaded.warm()
    if show:
        sys.stderr.write(loaded.ledger.table() + "\n" + ahead.timeline.table() + "\n")
    info = {
        "model": config.served_model_name or config.model,
        "vocab_size": model.config.vocab_size,
        "max_model_len": sizes.max_model_len,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": sizes.max_num_batched_tokens,
        "num_blocks": sizes.num_blocks,
        "block_size": sizes.block_size,
        "max_logprobs": min(config.max_logprobs, model.config.vocab_size),
        "max_drafts": loaded.max_drafts,
        "eos_token_ids": list(model.config.eos_token_ids),
        "device": str(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
        "plan": loaded.plan_json(),
        "start": ahead.timeline.to_json(),
    }
    if isinstance(model, PoolingModel):
        info |= {"pooling": model.pooling.to_json(), "max_logprobs": 0}
        return PoolingWorker(model, info, model.device, late_compiles)
    if drafting is not None:
        info["drafter"] = drafting.info(loaded.max_drafts)
    if (moe := model.config.moe) is not None:
        info["experts"] = {"num": moe.num_experts, "per_token": moe.top_k, "layers": len(moe.layers)}
    return Worker(
        drafters.stepping(model, loaded.drafter),
        info,
        model.device,
        config.spec_synthetic_acceptance,
        _graphs(loaded),
        late_compiles,
        drafting,
        config.rejection_sample_method,
    )


def _builder(config: EngineConfig, timeline: Timeline) -> PlanBuilder:
    device, threads = _choose_device(config), _set_threads(config)
    check = SelfTest() if config.self_test else None
    builder = PlanBuilder(default_registry(), detect_machine(device), check)
    builder.decide(
        "threads", str(threads), "num_threads" if config.num_threads else "the CPUs of this process"
    )
    timeline.mark("device")
    return builder


def _load(config: EngineConfig, builder: PlanBuilder, timeline: Timeline, show: bool) -> Loaded:
    device = torch.device(_choose_device(config))
    expected = preview(config, builder, lambda: budget_of(device))
    timeline.mark("plan")
    if config.strict:
        expected.plan.strict()
    ledger, watch = expected.ledger, Watch()
    builder = builder.again(watch)
    # What the tests of kernels left on the heap would count against the weights.
    return_free_memory()
    meter = Meter(device)
    with phase(f"load {config.model}") as progress:
        request = load_request(config, str(device), progress)
        model = load_model(request, builder)
    drafted = config.drafter in DRAFTERS
    with phase(f"load drafter {config.drafter}") if drafted else contextlib.nullcontext():
        drafter = load_drafter(config, request, model, builder)
    drafts = drafters.DraftMemory.of(config, drafter, model.config.vocab_size)
    taken = meter.taken()
    sizes = resolve_sizes(
        config,
        device_type=model.device.type,
        model_len=model.max_model_len,
        bytes_per_token=model.kv_bytes_per_token() + drafts.per_token,
        memory=max(_kv_memory(model.device, expected.steps) - drafts.kept, 0),
        private=drafts.private,
    )
    builder.decide("max_model_len", str(sizes.max_model_len), sizes.limited_by)
    graphs = _lattice(config, model, sizes, builder, drafter.max_drafts if drafter else config.max_drafts)
    if isinstance(builder.check, SelfTest):
        builder.decide("self_test", "done", builder.check.summary())
    plan = builder.plan()
    if show:
        sys.stderr.write(plan.table() + "\n")
    ledger = ledger.predicting(kv_cache=sizes.kv_bytes, **({} if graphs else {"graphs": 0}))
    if ledger.weights >= LEAST_MEASURED or device.type != "cpu":
        ledger = ledger.measured(weights=taken)
    layers = builder.distinct_layers(2)
    timeline.mark("load")
    return Loaded(config, model, sizes, plan, ledger, watch, meter, graphs, layers, drafter)


def _lattice(
    config: EngineConfig, model: CausalLM | PoolingModel, sizes: Sizes, builder: PlanBuilder, max_drafts: int
) -> Lattice | None:
    """Which steps are to be graphs; what is decided, and why, goes into the plan."""
    if model.device.type != "cuda":
        return None
    if config.enforce_eager:
        builder.decide("cuda_graphs", "none", "enforce_eager")
        return None
    if isinstance(model, PoolingModel):
        builder.decide("cuda_graphs", "none", "a model that pools has no decode steps")
        return None
    if not model.capturable:
        builder.decide("cuda_graphs", "none", "an attention kernel reads the rows' lengths on the host")
        return None
    lattice = Lattice.of(
        max_rows=config.max_num_seqs,
        max_drafts=max_drafts,
        max_context=sizes.max_model_len,
        max_tokens=sizes.max_num_batched_tokens,
    )
    shapes = lattice.shapes()
    largest = shapes[0]
    builder.decide("cuda_graphs", str(len(shapes)), f"up to {largest.tokens} tokens, captured between steps")
    return lattice


def _graphs(loaded: Loaded) -> Callable[[StepBuffers], GraphRunner] | None:
    if loaded.graphs is None or isinstance(loaded.model, PoolingModel):
        return None
    capture = CudaCapture(loaded.model.streams)
    forward = drafters.stepping(loaded.model, loaded.drafter).forward
    return partial(GraphRunner, forward, loaded.graphs, capture=capture)


@torch.inference_mode()
def _warm_up(loaded: Loaded, drafting: Drafting | None, ahead: Ahead) -> Counter[str]:
    """Compiles and starts everything; what is compiled later is counted in the result, by kernel."""
    model, late_compiles, late = loaded.model, Counter[str](), None
    if model.device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        from frizzen.kernels.triton.compiling import LateCompiles, compile_only

        late = LateCompiles(late_compiles)
        if loaded.graphs is not None and isinstance(model, CausalLM):
            helpers = ahead.helpers()
            with phase("compile kernels"), compile_only(available_cpus(), helpers) as settle:
                few = model.of_layers(loaded.distinct_layers)
                compile_steps(few, loaded.graphs, model.device, loaded.config.block_size, settle)
                _compile_ends(loaded)
                if drafting is not None and loaded.drafter is not None:
                    drafters.compile_drafts(model, loaded.drafter, drafting, loaded.graphs, settle)
            if helpers is not None and (summary := helpers.summary()) is not None:
                sys.stderr.write(summary + "\n")
    ahead.timeline.mark("compile")
    with phase("warm up"):
        run_steps(model, model.device, loaded.config.block_size)
        if drafting is not None and isinstance(model, CausalLM):
            tapped = drafters.stepping(model, loaded.drafter)
            drafters.warm_up(tapped, drafting, loaded.max_drafts, model.device, loaded.config.block_size)
    ahead.timeline.mark("warm up")
    if late is not None:
        late.watch()
    if isinstance(model, CausalLM) and model.expert_load is not None:
        # Nothing of it was real.
        model.expert_load.reset()
    return late_compiles


def _compile_ends(loaded: Loaded) -> None:
    from frizzen._core import ArenaLayout

    drafts = loaded.max_drafts
    layout = ArenaLayout(
        max_rows=1,
        max_tokens=1 + drafts,
        max_drafts=drafts,
        max_logprobs=1,
        max_block_deltas=1,
        max_history=1,
        max_rules=1,
        vocab_size=1,
    )
    compile_ends(layout, loaded.config.spec_synthetic_acceptance, loaded.model.device)


def _choose_device(config: EngineConfig) -> str:
    found = torch.cuda.is_available()
    if config.device == "cuda" and not found:
        raise ConfigError(f"device is cuda, but torch {torch.__version__} finds no CUDA device")
    return "cuda:0" if found and config.device != "cpu" else "cpu"


def _set_threads(config: EngineConfig) -> int:
    # Torch's own default heeds OMP_NUM_THREADS and the physical cores, but not the quota of a container.
    threads = config.num_threads or min(torch.get_num_threads(), available_cpus())
    torch.set_num_threads(threads)
    return threads


def _kv_memory(device: torch.device, steps: Footprint) -> int:
    budget = budget_of(device)
    return default_kv_memory(device.type, budget.free, reserve(device.type, budget.total, steps))

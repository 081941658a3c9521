"""Builds a worker from a configuration: load, decide sizes, allocate the KV cache, warm up."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from frizzen.config import EngineConfig
from frizzen.errors import ConfigError
from frizzen.kernels.facts import detect_machine
from frizzen.kernels.plan import Plan, PlanBuilder, default_registry
from frizzen.loading.load import LoadRequest, load_model
from frizzen.loading.pooling import load_pooling_model, pools_by_itself
from frizzen.models.base import CausalLM
from frizzen.models.pooling import PoolingModel
from frizzen.progress import phase
from frizzen.worker.graphs import CudaCapture, GraphRunner, StepBuffers
from frizzen.worker.lattice import Lattice
from frizzen.worker.machine import available_cpus, available_memory
from frizzen.worker.pooling import PoolingWorker
from frizzen.worker.sizes import Sizes, default_kv_memory, resolve_sizes, sizes_without_cache
from frizzen.worker.warmup import compile_steps, run_steps
from frizzen.worker.worker import Worker

__all__ = ["Loaded", "build", "load"]

SWITCH_INTERVAL = 1e-4
"""Seconds after which a busy Python thread yields; at Python's default of 5 ms it would delay whole steps."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model with everything decided, before its KV cache exists."""

    config: EngineConfig
    model: CausalLM | PoolingModel
    sizes: Sizes
    plan: Plan
    graphs: Lattice | None
    """Shapes of the CUDA graphs; ``None`` where every step is launched."""
    distinct_layers: tuple[int, ...]
    """Two of each kind of layer, if there are two."""

    def plan_json(self) -> dict[str, Any]:
        """The plan with the memory it needs, in bytes."""
        return self.plan.to_json() | {
            "memory": {"kv_cache": self.sizes.kv_bytes, "kv_per_token": self.model.kv_bytes_per_token()}
        }


def build(config_json: str) -> Worker:
    """Builds the worker for an ``EngineConfig`` in JSON, on the thread that will call it.

    Raises:
        ConfigError: a value is wrong, or does not fit the model or the memory.
        LoadError: the model cannot be loaded.
        PlanError: no kernel serves a layer, or ``strict`` forbids to start without a better one.
    """
    sys.setswitchinterval(SWITCH_INTERVAL)
    loaded = load(EngineConfig.from_json(config_json))
    config, model, sizes = loaded.config, loaded.model, loaded.sizes
    with phase(f"allocate {sizes.num_blocks} KV blocks, {sizes.kv_bytes / 2**20:,.0f} MiB"):
        model.allocate_kv(sizes.num_blocks, config.block_size)
    late_compiles = _warm_up(loaded)
    info = {
        "model": config.served_model_name or config.model,
        "vocab_size": model.config.vocab_size,
        "max_model_len": sizes.max_model_len,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": sizes.max_num_batched_tokens,
        "num_blocks": sizes.num_blocks,
        "block_size": sizes.block_size,
        "max_logprobs": min(config.max_logprobs, model.config.vocab_size),
        "max_drafts": config.max_drafts,
        "eos_token_ids": list(model.config.eos_token_ids),
        "device": str(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
        "plan": loaded.plan_json(),
    }
    if isinstance(model, PoolingModel):
        info |= {"pooling": model.pooling.to_json(), "max_logprobs": 0}
        return PoolingWorker(model, info, model.device)
    return Worker(model, info, model.device, config.spec_synthetic_acceptance, _graphs(loaded), late_compiles)


def load(config: EngineConfig) -> Loaded:
    """Loads the model and decides everything that depends on it; shows the plan on standard error."""
    device, threads = _choose_device(config), _set_threads(config)
    builder = PlanBuilder(default_registry(), detect_machine(device))
    builder.decide(
        "threads", str(threads), "num_threads" if config.num_threads else "the CPUs of this process"
    )
    with phase(f"load {config.model}") as progress:
        request = LoadRequest(
            model=config.model,
            load_format=config.load_format,
            dtype=config.dtype,
            device=device,
            block_size=config.block_size,
            seed=config.seed,
            progress=progress,
        )
        model: CausalLM | PoolingModel
        if _pools(config):
            model = load_pooling_model(request, builder, config.pooler_config)
        else:
            model = load_model(request, builder)
    sizes = _sizes(config, model)
    builder.decide("max_model_len", str(sizes.max_model_len), sizes.limited_by)
    graphs = _lattice(config, model, sizes, builder)
    plan = builder.plan()
    sys.stderr.write(plan.table() + "\n")
    if config.strict:
        plan.strict()
    return Loaded(config, model, sizes, plan, graphs, builder.distinct_layers(2))


def _lattice(
    config: EngineConfig, model: CausalLM | PoolingModel, sizes: Sizes, builder: PlanBuilder
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
        max_drafts=config.max_drafts,
        max_context=sizes.max_model_len,
        max_tokens=sizes.max_num_batched_tokens,
    )
    shapes = lattice.shapes()
    largest = shapes[0]
    builder.decide("cuda_graphs", str(len(shapes)), f"up to {largest.tokens} tokens, captured between steps")
    return lattice


def _graphs(loaded: Loaded) -> Callable[[StepBuffers], GraphRunner] | None:
    if loaded.graphs is None:
        return None
    capture = CudaCapture(loaded.model.device)
    return partial(GraphRunner, loaded.model.forward, loaded.graphs, capture=capture)


@torch.inference_mode()
def _warm_up(loaded: Loaded) -> Counter[str]:
    """Compiles and starts everything; what is compiled later is counted in the result, by kernel."""
    model, late_compiles, late = loaded.model, Counter[str](), None
    if (
        loaded.graphs is not None
        and isinstance(model, CausalLM)
        and importlib.util.find_spec("triton") is not None
    ):
        from frizzen.kernels.triton.compiling import LateCompiles, compile_only

        with phase("compile kernels"):
            mode = compile_only(available_cpus())
            few = model.of_layers(loaded.distinct_layers)
            compile_steps(few, loaded.graphs, model.device, loaded.config.block_size, mode)
        late = LateCompiles(late_compiles)
    with phase("warm up"):
        run_steps(model, model.device, loaded.config.block_size)
    if late is not None:
        late.watch()
    if loaded.graphs is not None and isinstance(model, CausalLM) and model.expert_load is not None:
        # Nothing real was computed, and while kernels were compiled not even ids were.
        model.expert_load.reset()
    return late_compiles


def _pools(config: EngineConfig) -> bool:
    if config.runner == "auto":
        return config.pooler_config is not None or pools_by_itself(config.model)
    return config.runner == "pooling"


def _sizes(config: EngineConfig, model: CausalLM | PoolingModel) -> Sizes:
    model_len = model.config.max_model_len
    if isinstance(model, PoolingModel):
        model_len = model.max_model_len
        if model.pooling.whole_prompts:
            return sizes_without_cache(config, device_type=model.device.type, model_len=model_len)
    return resolve_sizes(
        config,
        device_type=model.device.type,
        model_len=model_len,
        bytes_per_token=model.kv_bytes_per_token(),
        memory=_kv_memory(model.device),
    )


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


def _kv_memory(device: torch.device) -> int:
    if device.type == "cpu":
        return default_kv_memory(device.type, available_memory(), 0)
    return default_kv_memory(device.type, *torch.cuda.mem_get_info(device))

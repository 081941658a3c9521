"""``frizzen plan MODEL``: how a model would be served, here or on a machine that is only described."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from frizzen.config import EngineConfig
from frizzen.errors import ConfigError, FrizzenError
from frizzen.plan_report import report
from frizzen.sizes_text import parse_bytes

__all__ = ["run"]

CAPABILITY = "sm_90"
"""Of a described GPU, unless another is named: an H100 or H200."""

_CONFIGURED = (
    "dtype",
    "device",
    "load_format",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_memory",
    "block_size",
    "kv_cache_dtype",
    "num_speculative_tokens",
    "draft_sample_method",
    "num_threads",
    "strict",
    "self_test",
)


def run(arguments: Sequence[str]) -> int:
    """Runs the command; 1 if the model cannot be served so, with the reason on standard error."""
    options = _parser().parse_args(arguments)
    try:
        config = EngineConfig.from_dict(_given(options))
        plan, title = _plan(config, options)
    except FrizzenError as error:
        sys.stderr.write(f"frizzen: {error}\n")
        return 1
    sys.stdout.write((json.dumps(plan, indent=2) if options.json else report(title, plan)) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="frizzen plan",
        description="Show which kernel serves each layer, why not a faster one, and the memory by owner.",
    )
    parser.add_argument("model", metavar="MODEL", help="a catalogue name, a directory, a file, or a hub id")
    parser.add_argument(
        "--dry-run", action="store_true", help="read the headers of the checkpoint only, load no weights"
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON, as /v1/plan serves it")
    machine = parser.add_argument_group("another machine, which implies --dry-run")
    machine.add_argument("--gpu-memory", metavar="BYTES", help="one GPU with this much memory, such as 141GB")
    machine.add_argument(
        "--gpu-capability", metavar="SM", help=f"its compute capability, by default {CAPABILITY}"
    )
    engine = parser.add_argument_group("engine, as for frizzen serve")
    engine.add_argument("--dtype", help="auto, float32, bfloat16 or float16")
    engine.add_argument("--device", help="auto, cpu or cuda")
    engine.add_argument("--load-format", help="auto, safetensors, gguf or dummy")
    engine.add_argument("--max-model-len", type=int, metavar="TOKENS", help="prompt and output together")
    engine.add_argument("--max-num-seqs", type=int, metavar="N", help="requests that run at the same time")
    engine.add_argument("--max-num-batched-tokens", type=int, metavar="TOKENS", help="tokens of one step")
    engine.add_argument("--kv-cache-memory", metavar="BYTES", help="for the KV cache, such as 4G")
    engine.add_argument("--block-size", type=int, metavar="TOKENS", help="tokens per KV block")
    engine.add_argument("--kv-cache-dtype", help="auto or fp8_e4m3")
    engine.add_argument("--drafter", metavar="NAME[=PATH]", help="a drafter, and where its weights are")
    engine.add_argument("--num-speculative-tokens", type=int, metavar="K", help="most drafts per row")
    engine.add_argument("--draft-sample-method", help="greedy or probabilistic")
    engine.add_argument("--num-threads", type=int, metavar="N", help="threads on a CPU")
    engine.add_argument("--strict", action="store_true", help="fail if a faster kernel could be had")
    engine.add_argument("--self-test", action="store_true", help="compare every kernel with the reference")
    return parser


def _given(options: argparse.Namespace) -> dict[str, Any]:
    values = {name: getattr(options, name) for name in _CONFIGURED}
    if values["kv_cache_memory"] is not None:
        values["kv_cache_memory"] = parse_bytes(values["kv_cache_memory"])
    name, _, path = (options.drafter or "").partition("=")
    values |= {"drafter": name or None, "drafter_model": path or None}
    given = {name: value for name, value in values.items() if value not in (None, False)}
    return {"model": options.model, **given}


def _plan(config: EngineConfig, options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from frizzen.worker import launch

    if options.gpu_memory is not None:
        memory, capability = parse_bytes(options.gpu_memory), options.gpu_capability or CAPABILITY
        if config.device == "cpu" or config.self_test:
            raise ConfigError("gpu_memory describes another machine's GPU: neither device cpu nor self_test")
        found = launch.preview_described(config, capability, memory)
        title = f"{config.model} on a GPU with {options.gpu_memory} ({capability}) that is not here: "
        return found, title + "kernels are taken at their word"
    if options.gpu_capability is not None:
        raise ConfigError("gpu_capability describes a GPU that is not here: give gpu_memory too")
    if options.dry_run:
        return launch.preview_here(config), f"{config.model} on this machine, nothing was loaded"
    return launch.plan_of_start(config), f"{config.model} on this machine"

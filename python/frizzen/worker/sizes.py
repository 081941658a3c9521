"""The sizes that follow from the configuration, the model and the memory: context length, step, KV blocks."""

from __future__ import annotations

from dataclasses import dataclass

from frizzen.config import EngineConfig
from frizzen.errors import ConfigError, DoesNotFitError
from frizzen.worker.footprint import Footprint

__all__ = ["Sizes", "default_kv_memory", "reserve", "resolve_sizes"]

GIB = 2**30

LIBRARIES = GIB // 2
"""What kernels' code takes, 230 MiB on an H200, and what torch's allocator rounds up."""

DEFAULT_STEP_TOKENS = {"cpu": 512, "cuda": 8192}
"""Tokens of one step: enough to fill the arithmetic units, few enough that running requests do not wait long.
"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Resolved sizes, all consistent with each other."""

    max_model_len: int
    max_num_batched_tokens: int
    num_blocks: int
    """KV blocks, the null block 0 included."""
    kv_bytes: int
    block_size: int
    """Tokens per block."""
    limited_by: str
    """What ``max_model_len`` follows from, as a phrase."""


def default_kv_memory(device_type: str, free: int, kept: int) -> int:
    """Bytes for the KV cache where the user named none; ``kept`` is what :func:`reserve` says.

    On a CPU a quarter of the free memory, at most 4 GiB: others use the machine too. On a GPU what is free,
    less what is kept.
    """
    if device_type == "cpu":
        return min(4 * GIB, free // 4)
    return max(free - kept, 0)


def reserve(device_type: str, total: int, steps: Footprint) -> int:
    """Bytes of a GPU that are left to steps, their graphs and libraries: a tenth of it, or what they need."""
    if device_type == "cpu":
        return 0
    return max(total // 10, steps.workspaces + steps.graphs + LIBRARIES)


def resolve_sizes(
    config: EngineConfig,
    *,
    device_type: str,
    model_len: int,
    bytes_per_token: int,
    memory: int,
    private: int = 0,
) -> Sizes:
    """The sizes for a model made for ``model_len`` tokens, whose KV takes ``bytes_per_token`` bytes each.

    A model whose KV takes none caches nothing and computes a text at once.

    ``memory`` is in bytes and counts where the configuration names none; of it no more is taken than
    ``max_num_seqs`` full contexts need. Of either, ``private`` bytes go to blocks that hold no context.

    Raises:
        ConfigError: ``max_model_len`` is over the model's.
        DoesNotFitError: the KV cache cannot hold one such request; the text names the nearest value that
            fits.
    """
    wanted = config.max_model_len or model_len
    if wanted > model_len:
        raise ConfigError(
            f"max_model_len must be at most {model_len}, the model's context length, got {wanted}"
        )
    if bytes_per_token == 0:
        return _sizes_without_cache(config, device_type, wanted)
    block_bytes = bytes_per_token * config.block_size
    memory = config.kv_cache_memory or memory
    num_blocks = max(memory - private, 0) // block_bytes
    if config.kv_cache_memory is None:
        num_blocks = min(num_blocks, 1 + config.max_num_seqs * -(-wanted // config.block_size))
    if num_blocks < 2:
        drafts = f", and {private} for drafts" if private else ""
        raise DoesNotFitError(
            f"kv_cache_memory must be at least {2 * block_bytes + private} bytes, for one block and the "
            f"null block{drafts}, got {memory}"
        )
    capacity = (num_blocks - 1) * config.block_size
    if config.max_model_len is not None and wanted > capacity:
        needed = block_bytes * (1 + -(-wanted // config.block_size)) + private
        raise DoesNotFitError(
            f"max_model_len {wanted} does not fit the KV cache: {memory} bytes hold {capacity} tokens; "
            f"set max_model_len to at most {capacity}, or kv_cache_memory to at least {needed}"
        )
    limited_by = "the configuration" if config.max_model_len else "the model's context length"
    if capacity < wanted:
        limited_by = f"the KV cache: {memory} bytes hold {capacity} tokens, the model could take {wanted}"
    return Sizes(
        max_model_len=min(wanted, capacity),
        max_num_batched_tokens=config.max_num_batched_tokens or DEFAULT_STEP_TOKENS[device_type],
        num_blocks=num_blocks,
        kv_bytes=num_blocks * block_bytes + private,
        block_size=config.block_size,
        limited_by=limited_by,
    )


def _sizes_without_cache(config: EngineConfig, device_type: str, longest: int) -> Sizes:
    """The sizes for texts of up to ``longest`` tokens.

    The engine counts one block per running request, as long as the longest text; behind it is no memory.
    """
    step = config.max_num_batched_tokens or max(DEFAULT_STEP_TOKENS[device_type], longest)
    if step < longest:
        raise ConfigError(
            f"max_num_batched_tokens must be at least max_model_len {longest}, since this model computes a "
            f"text in one step, got {step}"
        )
    return Sizes(
        max_model_len=longest,
        max_num_batched_tokens=step,
        num_blocks=1 + config.max_num_seqs,
        kv_bytes=0,
        block_size=longest,
        limited_by="the configuration" if config.max_model_len else "the model's context length",
    )

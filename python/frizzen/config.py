"""The engine's configuration: frozen, checked on construction, changed only by ``dataclasses.replace``."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from os import PathLike, fspath
from typing import Any

from frizzen.errors import ConfigError

__all__ = ["EngineConfig"]

DTYPES = ("auto", "float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "cuda")
DRAFTERS = (None, "ngram", "suffix", "draft_model", "mtp", "eagle3", "dspark")
DRAFT_SAMPLE_METHODS = ("greedy", "probabilistic")
REJECTION_SAMPLE_METHODS = ("standard", "block")
KV_CACHE_DTYPES = ("auto", "fp8_e4m3")
LOAD_FORMATS = ("auto", "safetensors", "gguf", "dummy")
RUNNERS = ("auto", "generate", "pooling")
BLOCK_SIZES = (8, 16, 32, 64, 128)
MAX_THREADS = 1024
"""More end the process in the OpenMP runtime, which cannot make them."""
MAX_SEQS = 65536
"""Rows are allocated at the start, whether they are used or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What the user asks of an engine; the field names are vLLM's flags with underscores.

    ``None`` and ``"auto"`` are resolved once the model and the machine are known (``frizzen.worker.sizes``).
    Construction raises ``ConfigError``, which names the field, the value and the limit.
    """

    model: str
    """A name of the catalogue, a directory, a file, or a Hugging Face id."""
    served_model_name: str | None = None
    """Name under which the model is served; ``None`` is ``model``."""
    tokenizer: str | None = None
    """Where the tokenizer is, if not with the model."""
    dtype: str = "auto"
    """Type of weights and activations; ``auto`` is what suits the checkpoint and the device."""
    device: str = "auto"
    """``auto`` is CUDA where there is a device, else the CPU."""
    load_format: str = "auto"
    """Format of the checkpoint; ``dummy`` makes random weights from a ``config.json``."""
    runner: str = "auto"
    """``generate`` text or return vectors (``pooling``); ``auto`` is what the checkpoint was made for."""
    pooler_config: str | None = None
    """How a model pools, as JSON: ``pooling_type`` (``MEAN``, ``CLS``, ``LAST``) and ``normalize``."""
    reasoning_parser_plugin: str | None = None
    """A module or file that registers reasoning parsers (``frizzen.plugins``)."""
    tool_parser_plugin: str | None = None
    """The same for tool parsers."""
    max_model_len: int | None = None
    """Prompt and output together, in tokens; ``None`` is as much as the model and the KV memory take."""
    max_num_seqs: int = 128
    """Requests that run at the same time."""
    max_num_batched_tokens: int | None = None
    """Tokens of one step; longer prompts are computed in chunks. ``None``: 512 on a CPU, 8192 on a GPU."""
    kv_cache_memory: int | None = None
    """Bytes for the KV cache; ``None`` is chosen from the free memory."""
    kv_cache_dtype: str = "auto"
    """Type of keys and values in the KV cache: ``auto`` is the model's, ``fp8_e4m3`` takes a byte."""
    block_size: int = 16
    """Tokens per KV block."""
    enable_prefix_caching: bool = True
    """Reuse the KV blocks of equal prompt prefixes."""
    overlap: bool | None = None
    """Plan the next step while one runs; ``None`` is where the device computes on its own (CUDA)."""
    enforce_eager: bool = False
    """Launch every kernel of every step, on CUDA too: no graphs, no warm-up of every shape."""
    max_logprobs: int = 20
    """Most alternatives per token that a request may ask for."""
    seed: int = 0
    """Seeds dummy weights, and the draws of requests that bring no seed."""
    num_threads: int | None = None
    """Threads of the torch operators on a CPU; ``None`` is the CPUs that this process may use."""
    drafter: str | None = None
    """Who proposes tokens ahead: ``ngram`` or ``suffix``, which need no model, or ``draft_model``, ``mtp``,
    ``eagle3`` or ``dspark``; ``None`` is nobody."""
    drafter_model: str | None = None
    """Where the drafter's weights are; ``None`` is the checkpoint of the model itself."""
    num_speculative_tokens: int | None = None
    """Most drafts of a row in a step; ``None`` is what the drafter was made for."""
    draft_sample_method: str = "greedy"
    """How a model drafts: its likeliest token, or ``probabilistic``, a draw at the row's temperature."""
    rejection_sample_method: str = "standard"
    """How drafts are accepted: ``standard`` judges one after the other, ``block`` all of a row together."""
    speculation: str | int = "off"
    """Drafts of requests that do not say: ``off``, ``auto`` (as many as pay off), or a number per step."""
    speculative_config: str | None = None
    """The same in vLLM's JSON, in place of ``drafter`` and a number."""
    spec_synthetic_acceptance: float | None = None
    """Force this many tokens per row and step, for studies of speed; the text means nothing."""
    speculation_cache: str | None = None
    """Directory in which measured step times are kept for the next start, or ``off``; ``None`` is the user's
    cache."""
    max_drafts: int = 0
    """Most drafts of a row in a step; the engine derives it from the fields above. A worker with a drafter of
    its own may report another number, if ``num_speculative_tokens`` says nothing."""
    strict: bool = False
    """Refuse to start with a kernel that is not the best one whose absence can be repaired."""
    self_test: bool = False
    """Compare every kernel with the reference on the model's shapes first; one that differs is not used."""

    def __post_init__(self) -> None:
        for name in ("model", "served_model_name", "tokenizer"):
            _check_text(name, getattr(self, name), optional=name != "model")
        _check_choice("dtype", self.dtype, DTYPES)
        _check_choice("device", self.device, DEVICES)
        _check_choice("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        _check_choice("load_format", self.load_format, LOAD_FORMATS)
        _check_choice("runner", self.runner, RUNNERS)
        for name in ("pooler_config", "reasoning_parser_plugin", "tool_parser_plugin"):
            _check_text(name, getattr(self, name), optional=True)
        for name in ("max_model_len", "max_num_batched_tokens", "kv_cache_memory"):
            if getattr(self, name) is not None:
                _check_integer(name, getattr(self, name), 1)
        if self.num_threads is not None:
            _check_integer("num_threads", self.num_threads, 1, MAX_THREADS)
        self._check_speculation()
        _check_integer("max_num_seqs", self.max_num_seqs, 1, MAX_SEQS)
        _check_integer("max_logprobs", self.max_logprobs, 0)
        _check_integer("seed", self.seed, 0, 2**64 - 1)
        _check_integer("block_size", self.block_size, 1)
        _check_choice("block_size", self.block_size, BLOCK_SIZES)
        for name in ("enable_prefix_caching", "overlap", "enforce_eager", "strict", "self_test"):
            if not isinstance(getattr(self, name), bool) and (name, getattr(self, name)) != ("overlap", None):
                raise ConfigError(f"{name} must be true or false, got {getattr(self, name)!r}")

    def _check_speculation(self) -> None:
        _check_choice("drafter", self.drafter, DRAFTERS)
        for name in ("drafter_model", "speculative_config", "speculation_cache"):
            _check_text(name, getattr(self, name), optional=True)
        if self.num_speculative_tokens is not None:
            _check_integer("num_speculative_tokens", self.num_speculative_tokens, 1)
        _check_choice("draft_sample_method", self.draft_sample_method, DRAFT_SAMPLE_METHODS)
        _check_choice("rejection_sample_method", self.rejection_sample_method, REJECTION_SAMPLE_METHODS)
        if self.speculation not in ("off", "auto"):
            if isinstance(self.speculation, str):
                raise ConfigError(f"speculation must be off, auto or a number, got {self.speculation!r}")
            _check_integer("speculation", self.speculation, 1)
        _check_acceptance(self.spec_synthetic_acceptance)
        _check_integer("max_drafts", self.max_drafts, 0)

    @classmethod
    def from_json(cls, text: str) -> EngineConfig:
        """The configuration that ``to_json`` wrote; an unknown field is refused, with the nearest name."""
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"the engine configuration is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise ConfigError(f"the engine configuration must be a JSON object, got {type(values).__name__}")
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EngineConfig:
        """The configuration with these fields, the others at their defaults; a path is its text."""
        names = [field.name for field in fields(cls)]
        for name in values:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ConfigError(f"the engine has no option {name!r}{hint}")
        if "model" not in values:
            raise ConfigError("model must be given")
        texts = {name: fspath(value) for name, value in values.items() if isinstance(value, PathLike)}
        return cls(**{**values, **texts})

    def to_json(self) -> str:
        """The configuration as a JSON object, every field present."""
        return json.dumps(asdict(self))


def _check_text(name: str, value: object, *, optional: bool) -> None:
    if value is None and optional:
        return
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name} must be a non-empty string, got {value!r}")


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}")


def _check_acceptance(value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < math.inf:
        raise ConfigError(f"spec_synthetic_acceptance must be a number of at least 1, got {value!r}")


def _check_integer(name: str, value: object, least: int, most: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, got {value}")
    if most is not None and value > most:
        raise ConfigError(f"{name} must be at most {most}, got {value}")

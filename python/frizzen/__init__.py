"""Frizzen: a Rust-core inference engine for language models, with Python bindings and torch workers.

The library is ``LLM`` and ``SamplingParams``; the server is ``frizzen serve``. Names are imported when first
used, so that ``import frizzen`` costs nothing of torch or of the extension.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from frizzen.config import EngineConfig
    from frizzen.errors import ConfigError, FrizzenError, RequestError
    from frizzen.llm import LLM
    from frizzen.outputs import (
        ClassificationOutput,
        CompletionOutput,
        EmbeddingOutput,
        Logprob,
        PoolingOutput,
        PoolingRequestOutput,
        RequestOutput,
        ScoringOutput,
    )
    from frizzen.sampling import SamplingParams, StructuredOutputsParams

    __version__: str

__all__ = [
    "LLM",
    "ClassificationOutput",
    "CompletionOutput",
    "ConfigError",
    "EmbeddingOutput",
    "EngineConfig",
    "FrizzenError",
    "Logprob",
    "PoolingOutput",
    "PoolingRequestOutput",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "ScoringOutput",
    "StructuredOutputsParams",
    "__version__",
]

_HOMES = {
    "LLM": "llm",
    "ClassificationOutput": "outputs",
    "CompletionOutput": "outputs",
    "ConfigError": "errors",
    "EmbeddingOutput": "outputs",
    "EngineConfig": "config",
    "FrizzenError": "errors",
    "Logprob": "outputs",
    "PoolingOutput": "outputs",
    "PoolingRequestOutput": "outputs",
    "RequestError": "errors",
    "RequestOutput": "outputs",
    "SamplingParams": "sampling",
    "ScoringOutput": "outputs",
    "StructuredOutputsParams": "sampling",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("frizzen")
    if name not in _HOMES:
        raise AttributeError(f"module 'frizzen' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"frizzen.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

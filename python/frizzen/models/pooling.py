"""A model whose result is a vector per text: an embedding, or a number per class."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from frizzen.errors import ConfigError
from frizzen.layers.build import Map
from frizzen.step import StepContext

__all__ = ["KINDS", "Backbone", "PoolingConfig", "PoolingModel"]

KINDS = ("mean", "cls", "last", "all")
"""Which hidden states make the vector: their mean, the first token's, the last token's; or each makes one."""

_SPELLINGS = {
    "mean": "mean",
    "cls": "cls",
    "last": "last",
    "lasttoken": "last",
    "last_token": "last",
    "all": "all",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingConfig:
    """How hidden states become a vector, and what it is; as JSON, the engine's ``PoolingInfo``."""

    kind: str
    task: str
    """``embed`` or ``classify``."""
    size: int
    """Numbers of the vector."""
    normalize: bool = True
    """Embeddings are returned with length 1."""
    dimensions: tuple[int, ...] | None = None
    """Lengths to which embeddings may be cut; none given is any."""
    activation: str = "identity"
    """``identity``, ``sigmoid`` or ``softmax``: how a classifier's probabilities are made."""
    labels: tuple[str, ...] = ()
    whole_prompts: bool = False
    """Attention looks both ways, so that a text is computed in one step."""

    @property
    def every_token(self) -> bool:
        """Whether the vector depends on more than the last token's hidden state."""
        return self.kind != "last" or self.whole_prompts

    def overridden(self, text: str | None) -> PoolingConfig:
        """With vLLM's ``--pooler-config`` on top: ``pooling_type``, and ``normalize`` or ``use_activation``.

        Raises:
            ConfigError: it is not a JSON object of these.
        """
        if text is None:
            return self
        values = parse_pooler_config(text)
        kind = values.get("pooling_type", self.kind)
        return replace(self, kind=kind, normalize=values.get("normalize", self.normalize))

    def to_json(self) -> dict[str, Any]:
        """What the engine is told."""
        values = asdict(self) | {"every_token": self.every_token, "per_token": self.kind == "all"}
        del values["kind"]
        return values


def parse_pooler_config(text: str) -> dict[str, Any]:
    """``pooling_type`` and ``normalize`` of a ``--pooler-config``, in our spelling; ``ConfigError`` else."""
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"pooler_config is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"pooler_config must be a JSON object, got {text}")
    found: dict[str, Any] = {}
    for name, value in raw.items():
        if name in {"pooling_type", "seq_pooling_type", "tok_pooling_type"}:
            kind = _SPELLINGS.get(str(value).lower())
            if kind is None:
                raise ConfigError(f"pooling_type must be one of {', '.join(KINDS)}, got {value!r}")
            found["pooling_type"] = kind
        elif name in {"normalize", "use_activation"}:
            if not isinstance(value, bool):
                raise ConfigError(f"{name} of pooler_config must be true or false, got {value!r}")
            found["normalize"] = value
        else:
            raise ConfigError(f"pooler_config has pooling_type and normalize, not {name!r}")
    return found


class Backbone(Protocol):
    """A model without its output head."""

    dtype: torch.dtype
    device: torch.device

    @property
    def config(self) -> Any:
        """Sizes: ``vocab_size``, ``hidden_size``, ``max_model_len``, ``eos_token_ids``."""

    def forward(self, input_ids: Tensor, step: StepContext) -> Tensor:
        """Hidden states ``[T, H]`` of ids ``[T]``."""

    def kv_bytes_per_token(self) -> int:
        """KV cache bytes per token, all layers; 0 if nothing is cached."""

    def allocate_kv(self, num_blocks: int, block_size: int) -> None:
        """Makes an empty KV cache."""


class PoolingModel:
    """A backbone, and what turns one hidden state per text into its vector."""

    def __init__(
        self, backbone: Backbone, pooling: PoolingConfig, head: Map | None, max_model_len: int
    ) -> None:
        self.pooling = pooling
        self.config = backbone.config
        self.max_model_len = max_model_len
        """Longest text, in tokens: the model's, or what it was trained to embed."""
        self.dtype = backbone.dtype
        self.device = backbone.device
        self.kv_bytes_per_token = backbone.kv_bytes_per_token
        self.allocate_kv = backbone.allocate_kv
        self.forward = backbone.forward
        self._head = head

    @torch.inference_mode()
    def logits(self, pooled: Tensor) -> Tensor:
        """One pooled hidden state per text, ``[S, H]`` -> ``[S, size]`` float32.

        A classifier's logits; of an embedding model the states themselves.
        """
        return pooled.float() if self._head is None else self._head(pooled.to(self.dtype)).float()

"""Reading ``config.json`` of a Hugging Face checkpoint."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from frizzen.errors import LoadError, UnsupportedModelError
from frizzen.models.config import RopeConfig

__all__ = ["HfConfig", "yarn_temperature"]

_ROPE_KEYS = {
    "mscale": "yarn",
    "mscale_all_dim": "yarn",
    "short_factor": "longrope",
    "short_mscale": "longrope",
}
"""Parameters that mean something to one kind of rope only."""


@dataclass(frozen=True, slots=True)
class HfConfig:
    """A parsed ``config.json``; getters name the key and the value that does not fit."""

    path: Path
    values: Mapping[str, Any]
    generation: Mapping[str, Any]
    """``generation_config.json``, or empty."""

    @classmethod
    def read(cls, path: Path) -> HfConfig:
        """Reads ``config.json`` (``path``) and its neighbour ``generation_config.json``.

        Raises:
            LoadError: a file is missing or is not a JSON object.
        """
        generation = path.with_name("generation_config.json")
        return cls(path, _read_object(path), _read_object(generation) if generation.is_file() else {})

    @property
    def architectures(self) -> tuple[str, ...]:
        """Class names that the checkpoint was saved from."""
        return tuple(self.values.get("architectures") or ())

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number; ``null`` counts as absent."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise UnsupportedModelError(f"{self.path}: {key} is {value!r}, expected an integer")
        return value

    def any_integer(self, *keys: str) -> int:
        """A whole number under the first of these keys that is there."""
        return self.integer(next((key for key in keys if self.values.get(key) is not None), keys[0]))

    def number(self, key: str, default: float | None = None) -> float:
        """A real number; ``null`` counts as absent."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UnsupportedModelError(f"{self.path}: {key} is {value!r}, expected a number")
        return float(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of real numbers."""
        value = self._get(key, None)
        if not isinstance(value, list) or not all(isinstance(entry, int | float) for entry in value):
            raise UnsupportedModelError(f"{self.path}: {key} is {value!r}, expected a list of numbers")
        return tuple(float(entry) for entry in value)

    def flag(self, key: str, default: bool) -> bool:
        """A flag; ``null`` counts as absent."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise UnsupportedModelError(f"{self.path}: {key} is {value!r}, expected true or false")
        return value

    def require(self, key: str, supported: Sequence[object], default: object = None) -> None:
        """Refuses any value of ``key`` but those."""
        value = self.values.get(key, default)
        if value not in supported:
            wanted = " or ".join(repr(entry) for entry in supported)
            raise UnsupportedModelError(f"{self.path}: {key} is {value!r}, expected {wanted}")

    def replaced(self, **values: Any) -> HfConfig:
        """A copy with other values."""
        return replace(self, values={**self.values, **values})

    def eos_token_ids(self) -> tuple[int, ...]:
        """End-of-sequence ids of both files, without repetition."""
        found: list[int] = []
        for values in (self.generation, self.values):
            value = values.get("eos_token_id")
            found += value if isinstance(value, list) else [] if value is None else [value]
        return tuple(dict.fromkeys(found))

    def with_rope(self) -> HfConfig:
        """A copy with the rope's parameters on top, as transformers 5 spells them or as it was before."""
        parameters = self.values.get("rope_parameters") or self.values.get("rope_scaling") or {}
        if not isinstance(parameters, dict) or any(isinstance(value, dict) for value in parameters.values()):
            raise UnsupportedModelError(
                f"{self.path}: rope parameters per layer type are not supported: {parameters}"
            )
        kind = parameters.get("rope_type", parameters.get("type", "default"))
        return self.replaced(**{**parameters, "rope_type": str(kind)})

    def rope(self, head_dim: int, default_theta: float) -> RopeConfig:
        """The rotary embedding."""
        nested = self.with_rope()
        kind = nested.values["rope_type"]
        dim = int(head_dim * nested.number("partial_rotary_factor", 1.0))
        for key, owner in _ROPE_KEYS.items():
            if kind != owner:
                nested.require(key, [None])
        return RopeConfig(
            theta=nested.number("rope_theta", default_theta),
            rotary_dim=dim,
            kind=kind,
            factor=nested.number("factor", 1.0),
            original_max_position=nested.integer(
                "original_max_position_embeddings", self.integer("max_position_embeddings")
            ),
            low_freq_factor=nested.number("low_freq_factor", 1.0),
            high_freq_factor=nested.number("high_freq_factor", 4.0),
            beta_fast=nested.number("beta_fast", 32.0),
            beta_slow=nested.number("beta_slow", 1.0),
            truncate=nested.flag("truncate", True),
            attention_factor=_attention_factor(nested),
            divisors=nested.numbers("short_factor") if kind == "longrope" else (),
        )

    def windows(self, num_layers: int, window: int) -> tuple[int, ...]:
        """Each layer's attention window: ``window`` where ``layer_types`` says sliding, or everywhere."""
        kinds = (
            self.values.get("layer_types")
            or ["sliding_attention" if window else "full_attention"] * num_layers
        )
        if len(kinds) != num_layers:
            raise UnsupportedModelError(
                f"{self.path}: layer_types has {len(kinds)} entries for {num_layers} layers"
            )
        for kind in kinds:
            if kind not in {"full_attention", "sliding_attention"}:
                raise UnsupportedModelError(f"{self.path}: layer type {kind!r} is not supported")
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise UnsupportedModelError(f"{self.path}: {key} is missing")
        return value


def yarn_temperature(factor: float, mscale: float) -> float:
    """YaRN's temperature for a stretched context, weighted as DeepSeek's configurations do."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _attention_factor(rope: HfConfig) -> float | None:
    """What multiplies sin and cos, where the parameters say it."""
    if rope.values.get("attention_factor"):
        return rope.number("attention_factor")
    if rope.values.get("short_mscale") is not None:
        return rope.number("short_mscale")
    if rope.values.get("mscale") is None and rope.values.get("mscale_all_dim") is None:
        return None
    # The weight of all dimensions goes into the softmax's scale instead (see models.deepseek).
    factor = rope.number("factor", 1.0)
    above, below = (yarn_temperature(factor, rope.number(key)) for key in ("mscale", "mscale_all_dim"))
    return above / below


def _read_object(path: Path) -> Mapping[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise LoadError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise LoadError(f"{path} holds a {type(values).__name__}, expected a JSON object")
    return values

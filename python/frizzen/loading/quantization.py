"""What ``quantization_config`` of a ``config.json`` says about weights in FP8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from frizzen.errors import UnsupportedModelError
from frizzen.loading.hf_config import HfConfig
from frizzen.quantize.fp8 import Fp8Scheme

__all__ = ["fp8_scheme"]


def fp8_scheme(raw: HfConfig) -> Fp8Scheme | None:
    """How the checkpoint's linear layers are stored; None if they are plain.

    Which tensors are in FP8 is not read here: the checkpoint's own types say so.

    Raises:
        UnsupportedModelError: another method, or numbers of another format.
    """
    values = raw.values.get("quantization_config")
    if values is None:
        return None
    if not isinstance(values, dict):
        raise UnsupportedModelError(f"{raw.path}: quantization_config is {values!r}, expected an object")
    method = values.get("quant_method")
    if method == "fp8":
        _require(raw, values, "fmt", (None, "e4m3"))
        _require(raw, values, "activation_scheme", (None, "dynamic", "static"))
        return Fp8Scheme(_block(raw, values.get("weight_block_size")))
    if method == "compressed-tensors":
        return _compressed(raw, values)
    raise UnsupportedModelError(
        f"{raw.path}: quantization_config is {values!r}, expected quant_method 'fp8' or 'compressed-tensors'"
    )


def _compressed(raw: HfConfig, values: Mapping[str, Any]) -> Fp8Scheme | None:
    """Every group of layers must have the same FP8 weights. None if only the KV cache has scales."""
    groups = [group.get("weights") or {} for group in (values.get("config_groups") or {}).values()]
    if not groups and values.get("kv_cache_scheme"):
        return None
    _require(raw, values, "format", (None, "float-quantized"))
    if not groups:
        raise UnsupportedModelError(f"{raw.path}: config_groups of compressed-tensors is empty")
    blocks = set()
    for weights in groups:
        _require(raw, weights, "num_bits", (8,))
        _require(raw, weights, "type", ("float",))
        _require(raw, weights, "symmetric", (None, True))
        _require(raw, weights, "strategy", ("channel", "tensor", "block"))
        in_blocks = weights["strategy"] == "block"
        blocks.add(_block(raw, weights.get("block_structure")) if in_blocks else None)
    if len(blocks) > 1:
        raise UnsupportedModelError(f"{raw.path}: the groups of compressed-tensors have different blocks")
    return Fp8Scheme(blocks.pop())


def _block(raw: HfConfig, size: object) -> tuple[int, int] | None:
    if size is None:
        return None
    if size != [128, 128]:
        raise UnsupportedModelError(
            f"{raw.path}: blocks of FP8 weights have size {size!r}, expected [128, 128]"
        )
    return 128, 128


def _require(raw: HfConfig, values: Mapping[str, Any], key: str, supported: tuple[object, ...]) -> None:
    if values.get(key) not in supported:
        wanted = " or ".join(repr(entry) for entry in supported if entry is not None)
        raise UnsupportedModelError(
            f"{raw.path}: {key} of the quantization is {values.get(key)!r}, expected {wanted}"
        )

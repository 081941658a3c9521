"""Rotary position embedding: the frequencies of a configuration, and the angles of a step."""

from __future__ import annotations

import math
from importlib.util import find_spec

import torch
from torch import Tensor

from frizzen.models.config import RopeConfig

__all__ = ["Rotary", "angles"]


class Rotary:
    """Makes sine and cosine once per step for all layers.

    Without a table: a step computes ``[T, R / 2]`` angles from its positions, which is cheaper than keeping
    megabytes for positions that nobody reaches.
    """

    def __init__(self, config: RopeConfig, device: torch.device, divisors: Tensor | None = None) -> None:
        """``divisors`` ``[R / 2]`` are what GGUF stores in place of the parameters of a scaling rule."""
        frequencies = _frequencies(config)
        # Without data they cannot be divided by, and nobody will ask for angles.
        if divisors is not None and not divisors.is_meta:
            frequencies = frequencies / divisors.cpu().float()
        self.frequencies = frequencies.to(device)
        """``[R / 2]`` float32, radians per token."""
        self._scale = _scale(config)
        self._angles = angles
        if device.type == "cuda" and find_spec("triton") is not None:
            from frizzen.kernels.triton import steps

            self._angles = steps.angles

    def angles(self, positions: Tensor, behind: int = 0) -> tuple[Tensor, Tensor]:
        """``positions [T]`` -> cosine and sine, ``[T, R / 2]`` float32, scaled where the rule says so.

        Those of the positions ``behind`` tokens before, and of 0 where there is none.
        """
        return self._angles(positions, self.frequencies, self._scale, behind)


def angles(positions: Tensor, frequencies: Tensor, scale: float, behind: int) -> tuple[Tensor, Tensor]:
    """See ``Rotary.angles``; by torch's operators, on any device."""
    if behind:
        positions = (positions - behind).clamp_(min=0)
    turned = positions.float().unsqueeze(1) * frequencies
    if scale == 1.0:
        return turned.cos(), turned.sin()
    return turned.cos().mul_(scale), turned.sin().mul_(scale)


def _frequencies(config: RopeConfig) -> Tensor:
    exponents = torch.arange(0, config.rotary_dim, 2, dtype=torch.int64).float() / config.rotary_dim
    plain = 1.0 / config.theta**exponents
    if config.kind == "linear":
        return plain / config.factor
    if config.kind == "llama3":
        return _llama3(config, plain)
    if config.kind == "yarn":
        return _yarn(config, plain)
    if config.kind == "longrope":
        return plain / torch.tensor(config.divisors)
    return plain


def _llama3(config: RopeConfig, plain: Tensor) -> Tensor:
    """Divides frequencies of long wavelengths, keeps those of short ones, and blends between."""
    turns = config.original_max_position * plain / (2 * math.pi)
    blend = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
    kept = blend.clamp(0, 1)
    return plain / config.factor * (1 - kept) + plain * kept


def _yarn(config: RopeConfig, plain: Tensor) -> Tensor:
    """NTK-by-parts (arXiv 2309.00071, section 3.2): a ramp between the dimensions of two numbers of turns."""

    def dimension(turns: float) -> float:
        wavelength = config.original_max_position / (turns * 2 * math.pi)
        return config.rotary_dim * math.log(wavelength) / (2 * math.log(config.theta))

    low, high = dimension(config.beta_fast), dimension(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.rotary_dim - 1)
    width = high - low if high > low else 0.001
    stretched = ((torch.arange(config.rotary_dim // 2).float() - low) / width).clamp(0, 1)
    return plain / config.factor * stretched + plain * (1 - stretched)


def _scale(config: RopeConfig) -> float:
    """The temperature of YaRN and LongRoPE, spread over q and k."""
    if config.kind not in {"yarn", "longrope"}:
        return 1.0
    return (
        config.attention_factor
        if config.attention_factor is not None
        else 0.1 * math.log(config.factor) + 1.0
    )

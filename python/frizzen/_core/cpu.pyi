"""CPU kernels, called with the addresses of tensors.

An address is that of a tensor of the dtype and shape stated, which lives and is not touched by anybody else
while the call lasts.
"""

from collections.abc import Sequence
from typing import Any, final

__all__ = [
    "Attention",
    "Decoder",
    "GatedLinear",
    "Kernels",
    "Linear",
    "PackedMatrix",
    "RmsNorm",
    "Rope",
    "Tiles",
    "level",
]

def level() -> str:
    """Name of the instruction set that the kernels use on this machine."""

@final
class Kernels:
    """Threads to compute on, and the instruction set to compute with."""

    def __new__(cls, threads: int, open_mp: tuple[int, int, int] | None = None) -> Kernels: ...
    @property
    def executor(self) -> str: ...

@final
class PackedMatrix:
    """A weight ``[n, k]``, packed for this machine."""

    def __new__(
        cls, kernels: Kernels, dtype: str, address: int, n: int, k: int, stride: int
    ) -> PackedMatrix: ...
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    def gather(self, ids: int, count: int, out: int) -> None: ...

@final
class Linear:
    """``x @ weight.T + bias``."""

    def __new__(cls, weight: PackedMatrix, bias: int | None = None, *, float_out: bool = False) -> Linear: ...
    def run(self, x: int, rows: int, stride: int, out: int) -> None: ...

@final
class GatedLinear:
    """``silu(x @ gate.T + gate_bias) * (x @ up.T + up_bias)``."""

    def __new__(
        cls, gate: PackedMatrix, up: PackedMatrix, biases: tuple[int, int] | None = None
    ) -> GatedLinear: ...
    def run(self, x: int, rows: int, stride: int, out: int) -> None: ...

@final
class RmsNorm:
    """``y / sqrt(mean(y^2) + eps) * weight``."""

    def __new__(cls, kernels: Kernels, dtype: str, weight: int, size: int, eps: float) -> RmsNorm: ...
    def run(self, x: int, rows: int, stride: int, residual: int | None, out: int) -> None: ...

@final
class Rope:
    """Norm and rotation of q and k, and the write of k and v to a cache."""

    def __new__(
        cls,
        kernels: Kernels,
        dtype: str,
        cache: int,
        shape: tuple[int, int, int, int],
        *,
        heads: int,
        rotary_dim: int,
        norms: tuple[int, int] | None,
        eps: float,
    ) -> Rope: ...
    def run(self, qkv: int, tokens: int, cos: int, sin: int, slots: int) -> None: ...

@final
class Tiles:
    """How a step's queries are cut, and the block table they look things up in."""

    def __new__(
        cls,
        *,
        query_start: int,
        seq_lens: int,
        rows: int,
        table: int,
        width: int,
        stride: int,
        block_size: int,
        blocks: int,
        group: int,
    ) -> Tiles: ...

@final
class Attention:
    """Attention over one layer's cache."""

    def __new__(
        cls,
        kernels: Kernels,
        dtype: str,
        cache: int,
        shape: tuple[int, int, int, int],
        *,
        heads: int,
        scale: float,
        window: int,
        sinks: int | None,
    ) -> Attention: ...
    def run(self, q: int, stride: int, tiles: Tiles, out: int) -> None: ...

@final
class Decoder:
    """The layers of a model, made of kernels that exist already, and its final norm.

    A layer is ``(RmsNorm, Linear, Rope, Attention, Linear, RmsNorm, GatedLinear, Linear)``.
    """

    def __new__(cls, layers: Sequence[tuple[Any, ...]], final_norm: RmsNorm) -> Decoder: ...
    def run(self, residual: int, cos: int, sin: int, slots: int, tiles: Tiles, hidden: int) -> None: ...

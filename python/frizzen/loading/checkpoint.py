"""A checkpoint's tensors under the model's own names: compared as a whole, then read layer by layer."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from frizzen.errors import CheckpointError, CorruptFileError, ShapeMismatch
from frizzen.quantize.fp8 import FP8, Fp8Weight
from frizzen.quantize.mxfp4 import BLOCK, NO_NUMBER, Mxfp4Weight

__all__ = ["Checkpoint", "Parameter", "Progress", "Source", "Stored", "Weights"]

Progress = Callable[[int, int], None]
"""Called with (parameters read, parameters in total)."""


def _itself(tensor: Tensor) -> Tensor:
    return tensor


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of a checkpoint, and what of it is read."""

    name: str
    shape: tuple[int, ...]
    """Of the whole tensor."""
    part: Callable[[Tensor], Tensor] = _itself
    """A view of it."""
    packed: bool = False
    """Its bytes (uint8) stand for something else, as in MXFP4; otherwise it holds floating-point numbers."""
    integers: bool = False
    """It holds whole numbers."""


@dataclass(frozen=True, slots=True)
class Source:
    """How a checkpoint holds a parameter: as one tensor, as a part of one, or as several."""

    tensors: tuple[Stored, ...]
    value: Callable[..., Tensor] | None = None
    """Makes the parameter of the parts, which were brought to its device; None if it is the only part."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor of a model and what each file format calls it."""

    name: str
    shape: tuple[int, ...]
    hf: str | None
    """Name in a Hugging Face checkpoint; None if it does not exist there."""
    gguf: str | None
    gguf_interleaved_heads: int = 0
    """Above 0: for this many heads, GGUF stores the two rows of a rope pair side by side."""
    required: bool = True
    sources: tuple[Source, ...] = ()
    """Other ways in which Hugging Face checkpoints hold it."""

    def hf_source(self, names: Collection[str]) -> Source | None:
        """The way in which a checkpoint with these tensors holds it; if none is complete, the nearest."""
        own = () if self.hf is None else (Source((Stored(self.hf, self.shape),)),)
        sources = (*own, *self.sources)
        return max(
            sources,
            key=lambda source: sum(stored.name in names for stored in source.tensors) / len(source.tensors),
            default=None,
        )


class Checkpoint(Protocol):
    """An open checkpoint of any format."""

    @property
    def path(self) -> Path:
        """What the user named."""

    def stored(self, parameter: Parameter) -> tuple[Stored, ...]:
        """What a parameter is read from, whether or not it is there; empty if this format never has it."""

    def shapes(self) -> Mapping[str, tuple[int, ...]] | None:
        """Every tensor's shape by its name; None if whatever is asked for exists."""

    def read(self, parameter: Parameter, out: Tensor) -> None:
        """Converts one tensor into ``out``, which has its shape."""

    def fp8_block(self, parameter: Parameter) -> tuple[int, int] | None:
        """Rows and columns that share a scale, as in ``Fp8Weight``; None if it is not stored in FP8."""

    def read_fp8(self, parameter: Parameter, data: Tensor, scale: Tensor) -> None:
        """Copies numbers ``[N, K]`` and scales of one row, or of the rows of :meth:`fp8_block`, each."""

    def in_mxfp4(self, parameter: Parameter) -> bool:
        """Whether it is stored in MXFP4."""

    def read_mxfp4(self, parameter: Parameter, data: Tensor, scale: Tensor) -> None:
        """Copies numbers ``[N, K / 2]`` and scales ``[N, K / 32]`` as ``Mxfp4Weight`` has them."""

    def close(self) -> None:
        """Gives the file mappings back."""


class Weights:
    """Hands a model its parameters, in its dtype and on its device.

    Construction compares all names and shapes with the checkpoint and raises :class:`CheckpointError` with
    every difference, so that a wrong file is refused before time is spent on it.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        parameters: Iterable[Parameter],
        dtype: torch.dtype,
        device: torch.device,
        *,
        ignored: Sequence[str] = (),
        progress: Progress | None = None,
        keep_fp8: bool = False,
        keep_mxfp4: bool = False,
    ) -> None:
        self._checkpoint = checkpoint
        self._keep_fp8 = keep_fp8
        self._keep_mxfp4 = keep_mxfp4
        self._dtype = dtype
        self._device = device
        self._progress = progress
        self._parameters = _matched(checkpoint, parameters, ignored)
        self._total = sum(prod(parameter.shape) for parameter in self._parameters.values())
        self._done = 0
        self.bytes_by_owner: dict[str, int] = {}
        """Bytes handed out so far, by what they are part of: ``attention``, ``experts``, ..."""

    def has(self, name: str) -> bool:
        """Whether an optional parameter is there."""
        return name in self._parameters

    def take(self, *names: str, dtype: torch.dtype | None = None) -> Tensor:
        """These parameters stacked along the first dimension, as one new tensor.

        They are read straight into their places, so that fusing costs no second copy. On torch's device
        ``meta`` nothing is read: the tensor has a shape and no data.
        """
        parts = [self._parameters[name] for name in names]
        rows = [part.shape[0] for part in parts]
        out = torch.empty((sum(rows), *parts[0].shape[1:]), dtype=dtype or self._dtype, device=self._device)
        self._account(names[0], out)
        if out.is_meta:
            return out
        for part, place in zip(parts, torch.split(out, rows), strict=True):
            self._checkpoint.read(part, place)
            self._count(part)
        return out

    def fp8_block(self, *names: str) -> tuple[int, int] | None:
        """Rows and columns that share a scale in :meth:`take_fp8`.

        None if one of these parameters is not stored in FP8, or if FP8 is not to be kept. Where blocks would
        not begin with a parameter, every row gets its own scales.
        """
        parts = [self._parameters[name] for name in names]
        found = [self._checkpoint.fp8_block(part) for part in parts] if self._keep_fp8 else [None]
        blocks = {block for block in found if block is not None}
        if None in found or len({columns for _, columns in blocks}) != 1:
            return None
        rows, columns = min(blocks)
        if len(blocks) > 1 or any(part.shape[0] % rows for part in parts[:-1]):
            rows = 1
        return rows, columns

    def take_fp8(self, *names: str, block: tuple[int, int]) -> Fp8Weight:
        """The same as they are stored, in FP8; ``block`` is that of :meth:`fp8_block`, or one row of it."""
        parts, (rows, width) = [self._parameters[name] for name in names], block
        sizes, size_in = [part.shape[0] for part in parts], parts[0].shape[1]
        groups = [-(-size // rows) for size in sizes]
        data = torch.empty(sum(sizes), size_in, dtype=FP8, device=self._device)
        scale = torch.empty(
            sum(groups), -(-size_in // width) if width else 1, dtype=torch.float32, device=self._device
        )
        self._account(names[0], data, scale)
        if data.is_meta:
            return Fp8Weight(data, scale, rows, width)
        places = zip(parts, torch.split(data, sizes), torch.split(scale, groups), strict=True)
        for part, data_at, scale_at in places:
            self._checkpoint.read_fp8(part, data_at, scale_at)
            self._count(part)
        return Fp8Weight(data, scale, rows, width)

    def in_mxfp4(self, *names: str) -> bool:
        """Whether all of these parameters are stored in MXFP4 and kept so."""
        return self._keep_mxfp4 and all(self._checkpoint.in_mxfp4(self._parameters[name]) for name in names)

    def take_mxfp4(self, *names: str) -> Mxfp4Weight:
        """The same as they are stored, in MXFP4, which :meth:`in_mxfp4` says they are.

        Raises:
            CorruptFileError: a scale is not a number.
        """
        parts = [self._parameters[name] for name in names]
        rows, size = [part.shape[0] for part in parts], parts[0].shape[1]
        data, scale = (
            torch.empty(sum(rows), width, dtype=torch.uint8, device=self._device)
            for width in (size // 2, size // BLOCK)
        )
        self._account(names[0], data, scale)
        if data.is_meta:
            return Mxfp4Weight(data, scale)
        places = zip(parts, torch.split(data, rows), torch.split(scale, rows), strict=True)
        for part, data_at, scale_at in places:
            self._checkpoint.read_mxfp4(part, data_at, scale_at)
            self._count(part)
        if bool((scale == NO_NUMBER).any()):
            raise CorruptFileError(
                self._checkpoint.path,
                f"a scale of {names[0]}, or of what stands with it, is {NO_NUMBER}: not a number in MXFP4",
            )
        return Mxfp4Weight(data, scale)

    def _count(self, part: Parameter) -> None:
        self._done += prod(part.shape)
        if self._progress is not None:
            self._progress(self._done, self._total)

    def _account(self, name: str, *tensors: Tensor) -> None:
        owner = re.sub(r"^layers\.\d+\.", "", name).split(".")[0]
        owner = "norms" if owner.endswith("norm") else owner.removesuffix("_gate")
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        self.bytes_by_owner[owner] = self.bytes_by_owner.get(owner, 0) + size


def _matched(
    checkpoint: Checkpoint, parameters: Iterable[Parameter], ignored: Sequence[str]
) -> dict[str, Parameter]:
    found = checkpoint.shapes()
    if found is None:
        return {parameter.name: parameter for parameter in parameters if parameter.required}
    matched: dict[str, Parameter] = {}
    known: set[str] = set()
    # By name: several parameters may be read from one tensor, which is reported once.
    missing: dict[str, None] = {}
    mismatched: dict[str, ShapeMismatch] = {}
    for parameter in parameters:
        stored = checkpoint.stored(parameter)
        absent = [tensor.name for tensor in stored if tensor.name not in found]
        if absent or not stored:
            if parameter.required:
                missing |= dict.fromkeys(absent or [parameter.name])
            continue
        matched[parameter.name] = parameter
        for tensor in stored:
            known.add(tensor.name)
            shape = found[tensor.name]
            # One number may stand with a dimension or without.
            if shape != tensor.shape and (tensor.shape, shape) != ((1,), ()):
                mismatched[tensor.name] = ShapeMismatch(tensor.name, tensor.shape, shape)
    unexpected = [
        name for name in found if name not in known and not any(re.search(p, name) for p in ignored)
    ]
    if missing or unexpected or mismatched:
        raise CheckpointError(
            checkpoint.path,
            missing=list(missing),
            unexpected=unexpected,
            mismatched=list(mismatched.values()),
        )
    return matched

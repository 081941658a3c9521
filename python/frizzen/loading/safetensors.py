"""Checkpoints in safetensors: one file, or several with an index.

The format is a length, a JSON header and raw little-endian data. It is read here rather than through a
library because every way in which a file can be damaged must be reported with the tensor, the value and the
limit.
"""

from __future__ import annotations

import contextlib
import json
import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from frizzen.errors import CorruptFileError, LoadError, UnsupportedModelError
from frizzen.loading.checkpoint import Parameter, Source, Stored
from frizzen.quantize import mxfp4
from frizzen.quantize.fp8 import FP8, Fp8Scheme, Fp8Weight

__all__ = ["SafetensorsCheckpoint"]

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_PACKED = {"U8": torch.uint8}
_INTEGERS = {"I64": torch.int64, "I32": torch.int32}
_FP8 = "F8_E4M3"
_SIZED = _DTYPES | _PACKED | _INTEGERS | {_FP8: FP8}
_SCALES = ("_scale_inv", "_scale")
"""What the names of scales add to those of their tensors; both are factors."""
_MAX_HEADER = 100 << 20
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class _Entry:
    file: _File
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Bytes from the start of the file."""


class SafetensorsCheckpoint:
    """A directory with ``model.safetensors``, or with shards that ``model.safetensors.index.json`` lists.

    ``fp8`` says how tensors in that format are scaled, and None refuses them; ``rename`` gives the name under
    which a stored tensor is known.
    """

    def __init__(
        self, directory: Path, fp8: Fp8Scheme | None = None, rename: Callable[[str], str] = str
    ) -> None:
        self._path = directory
        self._fp8 = fp8
        self._files: list[_File] = []
        self._entries: dict[str, _Entry] = {}
        try:
            for path in _shards(directory):
                file = _File(path)
                self._files.append(file)
                for stored, entry in file.entries().items():
                    name = rename(stored)
                    if name in self._entries:
                        raise LoadError(
                            f"{path} and {self._entries[name].file.path} both hold the tensor {name}"
                        )
                    self._entries[name] = entry
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> Path:
        """The directory."""
        return self._path

    def stored(self, parameter: Parameter) -> tuple[Stored, ...]:
        """The tensors that hold a parameter, and the scales of those in FP8, by their Hugging Face names."""
        source = parameter.hf_source(self._entries)
        if source is None:
            return ()
        return (*source.tensors, *(self._scale(entry) for entry in source.tensors if self._in_fp8(entry)))

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of all shards."""
        return {name: entry.shape for name, entry in self._entries.items()}

    def read(self, parameter: Parameter, out: Tensor) -> None:
        """Copies with conversion.

        Raises:
            UnsupportedModelError: the tensor is stored in a quantised or integer type.
        """
        source = self._source(parameter)
        parts = [stored.part(self._tensor(stored)) for stored in source.tensors]
        out.copy_(
            parts[0] if source.value is None else source.value(*(part.to(out.device) for part in parts))
        )

    def fp8_block(self, parameter: Parameter) -> tuple[int, int] | None:
        """Rows and columns that share a scale; one row each where the parameter's rows are rearranged."""
        source = parameter.hf_source(self._entries)
        if source is None or len(source.tensors) != 1 or not self._in_fp8(source.tensors[0]):
            return None
        (stored,) = source.tensors
        rows, columns = self._scale_shapes(stored.shape)[self._scale(stored).shape]
        as_stored = source.value is None and parameter.shape == stored.shape
        return rows if as_stored else 1, columns

    def read_fp8(self, parameter: Parameter, data: Tensor, scale: Tensor) -> None:
        """Copies numbers and scales as they are; rearranges the rows of both alike."""
        source = self._source(parameter)
        (stored,) = source.tensors
        weight = self._fp8_weight(stored)
        if len(scale) != len(weight.scale):
            weight = weight.with_rows(1)
        # As bytes: few functions of torch know the type.
        numbers, factors = stored.part(weight.data.view(torch.uint8)), weight.scale
        if len(scale) == len(data):
            factors = stored.part(factors)
        if source.value is not None:
            numbers, factors = source.value(numbers), source.value(factors)
        data.copy_(numbers.view(FP8))
        scale.copy_(factors)

    def in_mxfp4(self, parameter: Parameter) -> bool:
        """What :func:`mxfp4.dequantize` makes of blocks and scales is."""
        source = parameter.hf_source(self._entries)
        return source is not None and source.value is mxfp4.dequantize

    def read_mxfp4(self, parameter: Parameter, data: Tensor, scale: Tensor) -> None:
        """Copies blocks and scales as they are.

        Raises:
            UnsupportedModelError: one of them is not stored as bytes.
        """
        blocks, scales = (stored.part(self._tensor(stored)) for stored in self._source(parameter).tensors)
        data.copy_(blocks.flatten(-2))
        scale.copy_(scales)

    def _source(self, parameter: Parameter) -> Source:
        source = parameter.hf_source(self._entries)
        if source is None:
            raise LoadError(f"{self._path} cannot hold {parameter.name}: it has no name in this format")
        return source

    def _in_fp8(self, stored: Stored) -> bool:
        entry = self._entries.get(stored.name)
        return self._fp8 is not None and entry is not None and entry.dtype == _FP8

    def _scale(self, stored: Stored) -> Stored:
        """The scales of a tensor in FP8, with the shape that is there if it is one that they may have."""
        names = [stored.name + ending for ending in _SCALES]
        name = next((name for name in names if name in self._entries), names[0])
        found = self._entries[name].shape if name in self._entries else None
        shapes = self._scale_shapes(stored.shape)
        return Stored(name, found if found is not None and found in shapes else next(iter(shapes)))

    def _scale_shapes(self, shape: tuple[int, ...]) -> dict[tuple[int, ...], tuple[int, int]]:
        """Shapes that scales may have, and the rows and columns of a block: 0 columns are all."""
        if self._fp8 is not None and self._fp8.block is not None and len(shape) == 2:
            rows, columns = self._fp8.block
            return {(-(-shape[0] // rows), -(-shape[1] // columns)): (rows, columns)}
        return {(shape[0], 1): (1, 0), (shape[0],): (1, 0), (1,): (1, 0), (): (1, 0)}

    def _fp8_weight(self, stored: Stored) -> Fp8Weight:
        entry, scale = self._entries[stored.name], self._scale(stored)
        if len(entry.shape) != 2:
            raise UnsupportedModelError(
                f"{entry.file.path}: {stored.name} has {len(entry.shape)} dimensions in FP8, expected 2"
            )
        rows, columns = self._scale_shapes(stored.shape)[scale.shape]
        factors = self._tensor(scale).float()
        if not columns:
            factors = factors.reshape(-1, 1).expand(entry.shape[0], 1)
        return Fp8Weight(entry.file.tensor(entry, FP8), factors, rows, columns)

    def _tensor(self, stored: Stored) -> Tensor:
        if self._in_fp8(stored):
            return self._fp8_weight(stored).expand(torch.float32)
        entry = self._entries[stored.name]
        dtypes = _PACKED if stored.packed else _INTEGERS if stored.integers else _DTYPES
        if entry.dtype not in dtypes:
            raise UnsupportedModelError(
                f"{entry.file.path}: {stored.name} is stored as {entry.dtype}, "
                f"expected one of {', '.join(dtypes)}"
            )
        return entry.file.tensor(entry, dtypes[entry.dtype])

    def close(self) -> None:
        """Unmaps the files."""
        self._entries.clear()
        for file in self._files:
            file.close()
        self._files.clear()


class _File:
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as stream:
                # A private mapping, since torch refuses to wrap memory that it may not write.
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise LoadError(f"{path} cannot be read: {error}") from error

    def entries(self) -> dict[str, _Entry]:
        """The header's tensors, each checked against the size of the file."""
        size = len(self._map)
        length = int.from_bytes(self._map[:8], "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER):
            raise CorruptFileError(self.path, f"its header claims {length} bytes, the file has {size}")
        try:
            header = json.loads(self._map[8 : 8 + length])
        except ValueError as error:
            raise CorruptFileError(self.path, f"its header is not JSON: {error}") from error
        if not isinstance(header, dict):
            raise CorruptFileError(self.path, "its header is not a JSON object")
        return {
            name: self._entry(name, fields, 8 + length)
            for name, fields in header.items()
            if name != "__metadata__"
        }

    def _entry(self, name: str, fields: Any, data: int) -> _Entry:
        try:
            dtype, shape = str(fields["dtype"]), tuple(int(size) for size in fields["shape"])
            begin, end = (int(offset) for offset in fields["data_offsets"])
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptFileError(self.path, f"the header's entry of {name} is malformed") from error
        if not 0 <= begin <= end or data + end > len(self._map):
            raise CorruptFileError(
                self.path,
                f"{name} ends at byte {data + end}, the file has {len(self._map)}: is the download complete?",
            )
        if dtype in _SIZED and end - begin != (wanted := prod(shape) * _SIZED[dtype].itemsize):
            raise CorruptFileError(
                self.path, f"{name} holds {end - begin} bytes, its shape {list(shape)} needs {wanted}"
            )
        return _Entry(self, dtype, shape, data + begin)

    def tensor(self, entry: _Entry, dtype: torch.dtype) -> Tensor:
        """A view of the mapping."""
        flat = torch.frombuffer(self._map, dtype=dtype, count=prod(entry.shape), offset=entry.offset)
        return flat.view(entry.shape)

    def close(self) -> None:
        # A view that an exception's traceback still holds keeps the mapping; it then goes with the traceback.
        with contextlib.suppress(BufferError):
            self._map.close()


def _shards(directory: Path) -> list[Path]:
    """The files to open: those that the index names, or all there are."""
    index = directory / INDEX
    if not index.is_file():
        return sorted(directory.glob("*.safetensors"))
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LoadError(f"{index} is not an index of shards: {type(error).__name__}: {error}") from error
    if absent := [name for name in names if not (directory / name).is_file()]:
        raise LoadError(f"{directory} lacks {', '.join(absent)}, which {INDEX} names")
    return [directory / name for name in names]

"""Checkpoints in GGUF: metadata that is the configuration, and tensors in block formats.

Read directly: the ``gguf`` package's reader makes a Python object per vocabulary entry and takes seconds.
Arrays are skipped, their lengths kept, since the tokenizer is read elsewhere. Every offset and length is
checked against the size of the file before it is followed.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from frizzen.errors import CorruptFileError, LoadError, UnsupportedModelError
from frizzen.loading.checkpoint import Parameter, Stored
from frizzen.quantize.gguf import block_bytes, dequantize, type_name

__all__ = ["ArrayLength", "GgufCheckpoint", "GgufMetadata"]

Value = int | float | bool | str

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_KEPT_ARRAY = 1024
"""Arrays of numbers up to this length are kept: per-layer settings, several end-of-sequence ids."""
_CHUNK = 1 << 20
"""Elements that are unpacked at a time: small enough for a second-level cache."""


@dataclass(frozen=True, slots=True)
class ArrayLength:
    """Stands for an array that was skipped."""

    length: int


@dataclass(frozen=True, slots=True)
class GgufMetadata:
    """Key-value pairs of a GGUF file; getters add the architecture's prefix and name what does not fit."""

    path: Path
    values: Mapping[str, Value | tuple[Value, ...] | ArrayLength]

    @property
    def architecture(self) -> str:
        """``general.architecture``."""
        value = self.values.get("general.architecture")
        if not isinstance(value, str):
            raise UnsupportedModelError(f"{self.path}: general.architecture is {value!r}, expected a name")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number of this architecture, ``{architecture}.{key}``."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise UnsupportedModelError(
                f"{self.path}: {self.architecture}.{key} is {value!r}, expected an integer"
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A real number of this architecture."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UnsupportedModelError(
                f"{self.path}: {self.architecture}.{key} is {value!r}, expected a number"
            )
        return float(value)

    def text(self, key: str, default: str) -> str:
        """A string of this architecture."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise UnsupportedModelError(
                f"{self.path}: {self.architecture}.{key} is {value!r}, expected a string"
            )
        return value

    def vocab_size(self) -> int:
        """Number of tokens that the tokenizer lists."""
        tokens = self.values.get("tokenizer.ggml.tokens")
        length = tokens.length if isinstance(tokens, ArrayLength) else None
        return self.integer("vocab_size", length)

    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end a sequence or a turn."""
        keys = ("eos_token_id", "eot_token_id", "eom_token_id", "eos_token_ids")
        found: list[int] = []
        for key in keys:
            value = self.values.get(f"tokenizer.ggml.{key}", ())
            found += [
                entry for entry in (value if isinstance(value, tuple) else (value,)) if isinstance(entry, int)
            ]
        return tuple(dict.fromkeys(found))

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(f"{self.architecture}.{key}", default)
        if value is None:
            raise UnsupportedModelError(f"{self.path}: {self.architecture}.{key} is missing")
        return value


@dataclass(frozen=True, slots=True)
class _Tensor:
    kind: int
    shape: tuple[int, ...]
    offset: int
    size: int


class GgufCheckpoint:
    """One GGUF file, version 2 or 3, little-endian."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as stream:
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise LoadError(f"{path} cannot be read: {error}") from error
        try:
            cursor = _Cursor(self._map, path)
            num_tensors, num_values = cursor.preamble()
            self.metadata = GgufMetadata(path, {cursor.string(): cursor.value() for _ in range(num_values)})
            self._tensors = self._directory(cursor, num_tensors)
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def stored(self, parameter: Parameter) -> tuple[Stored, ...]:
        """One tensor, by its GGUF name."""
        return () if parameter.gguf is None else (Stored(parameter.gguf, parameter.shape),)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes in torch's order (GGUF lists the fastest dimension first)."""
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def read(self, parameter: Parameter, out: Tensor) -> None:
        """Unpacks a chunk of rows at a time.

        Raises:
            UnsupportedModelError: no code here unpacks the tensor's type.
        """
        tensor = self._tensors[parameter.gguf or ""]
        raw = torch.frombuffer(self._map, dtype=torch.uint8, count=tensor.size, offset=tensor.offset)
        rows = out.view(1, -1) if out.dim() == 1 else out.flatten(0, -2)
        raw = raw.view(rows.shape[0], -1)
        if parameter.gguf_interleaved_heads:
            shape = (-1, 1) if out.dim() == 1 else rows.shape
            raw, rows = raw.view(shape[0], -1), rows.view(shape)
            raw = raw[_halves_apart(rows.shape[0], parameter.gguf_interleaved_heads)]
        step = max(1, _CHUNK // rows.shape[1])
        try:
            for some_raw, some_rows in zip(torch.split(raw, step), torch.split(rows, step), strict=True):
                dequantize(tensor.kind, some_raw, some_rows)
        except NotImplementedError as error:
            raise UnsupportedModelError(
                f"{self._path}: {parameter.gguf} is stored as {type_name(tensor.kind)}, which nothing unpacks"
            ) from error

    def fp8_block(self, parameter: Parameter) -> tuple[int, int] | None:
        """None: GGUF has no such type."""
        return None

    def read_fp8(self, parameter: Parameter, data: Tensor, scale: Tensor) -> None:
        """Never called, as ``fp8_block`` is None."""
        raise LoadError(f"{self.path}: {parameter.name} is not stored in FP8")

    def in_mxfp4(self, parameter: Parameter) -> bool:
        """No: GGUF's own MXFP4 is unpacked as its other types are."""
        return False

    def read_mxfp4(self, parameter: Parameter, data: Tensor, scale: Tensor) -> None:
        """Never called, as ``in_mxfp4`` is false."""
        raise LoadError(f"{self.path}: {parameter.name} is not kept in MXFP4")

    def close(self) -> None:
        """Unmaps the file."""
        # A view that an exception's traceback still holds keeps the mapping; it then goes with the traceback.
        with contextlib.suppress(BufferError):
            self._map.close()

    def _directory(self, cursor: _Cursor, num_tensors: int) -> dict[str, _Tensor]:
        listed: list[tuple[str, int, tuple[int, ...], int]] = []
        for _ in range(num_tensors):
            name = cursor.string()
            dims = tuple(cursor.number("Q") for _ in range(cursor.number("I")))
            listed.append((name, cursor.number("I"), dims[::-1], cursor.number("Q")))
        alignment = self.metadata.values.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 8 or alignment % 8:
            raise CorruptFileError(
                self._path, f"general.alignment is {alignment!r}, expected a multiple of 8"
            )
        data = -(-cursor.at // alignment) * alignment
        tensors: dict[str, _Tensor] = {}
        for name, kind, shape, offset in listed:
            block = block_bytes(kind)
            if block is None:
                raise UnsupportedModelError(f"{self._path}: {name} has the unknown tensor type {kind}")
            if not shape or shape[-1] % block[0]:
                raise CorruptFileError(
                    self._path, f"{name} has shape {list(shape)}, its type needs rows of n x {block[0]}"
                )
            size = prod(shape) // block[0] * block[1]
            if data + offset + size > len(self._map):
                raise _truncated(self._path, name, data + offset + size, len(self._map))
            if name in tensors:
                raise CorruptFileError(self._path, f"it lists the tensor {name} twice")
            tensors[name] = _Tensor(kind, shape, data + offset, size)
        return tensors


class _Cursor:
    """Reads values one after the other and never past the end."""

    def __init__(self, buffer: mmap.mmap, path: Path) -> None:
        self._buffer = buffer
        self._path = path
        self.at = 0

    def preamble(self) -> tuple[int, int]:
        """Number of tensors and of metadata values."""
        if (magic := self._take(4)) != b"GGUF":
            raise CorruptFileError(self._path, f"it starts with {magic!r}, expected b'GGUF'")
        version = self.number("I")
        if version not in {2, 3}:
            big = " (the file is big-endian)" if version in {2 << 24, 3 << 24} else ""
            raise UnsupportedModelError(f"{self._path}: GGUF version is {version}{big}, expected 2 or 3")
        return self.number("Q"), self.number("Q")

    def number(self, code: str) -> int:
        """One whole number in ``struct``'s notation."""
        return int(self._scalar(code))

    def string(self) -> str:
        """A length and UTF-8."""
        return self._take(self.number("Q")).decode("utf-8", errors="replace")

    def value(self) -> Value | tuple[Value, ...] | ArrayLength:
        """A value with its type in front."""
        kind = self.number("I")
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise CorruptFileError(
                self._path, f"a metadata value at byte {self.at} has the unknown type {kind}"
            )
        return self._scalar(_SCALARS[kind])

    def _array(self) -> tuple[Value, ...] | ArrayLength:
        kind, length = self.number("I"), self.number("Q")
        if kind != _STRING and kind not in _SCALARS:
            raise CorruptFileError(
                self._path, f"a metadata array at byte {self.at} has elements of the unknown type {kind}"
            )
        if kind in _SCALARS:
            code = _SCALARS[kind]
            if length > _KEPT_ARRAY:
                self._skip(length * struct.calcsize(code))
                return ArrayLength(length)
            return tuple(self._scalar(code) for _ in range(length))
        for _ in range(length):
            self._skip(self.number("Q"))
        return ArrayLength(length)

    def _scalar(self, code: str) -> int | float | bool:
        size = struct.calcsize(code)
        value: int | float | bool = struct.unpack("<" + code, self._take(size))[0]
        return value

    def _take(self, size: int) -> bytes:
        begin = self.at
        self._skip(size)
        return self._buffer[begin : self.at]

    def _skip(self, size: int) -> None:
        self.at += size
        if self.at > len(self._buffer):
            raise _truncated(self._path, "its header", self.at, len(self._buffer))


def _truncated(path: Path, what: str, end: int, size: int) -> CorruptFileError:
    return CorruptFileError(
        path, f"{what} ends at byte {end}, the file has {size}: is the download complete?"
    )


def _halves_apart(rows: int, heads: int) -> Tensor:
    """``[rows]``: for each head, first the even rows of GGUF's order, then the odd ones."""
    return torch.arange(rows).view(heads, -1, 2).transpose(1, 2).flatten()

"""Numbers of bytes as people write them."""

from __future__ import annotations

import re

from frizzen.errors import ConfigError

__all__ = ["parse_bytes", "show_bytes"]

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?B)?", re.IGNORECASE)


def show_bytes(size: int) -> str:
    """``18.6 GiB``, ``4.0 MiB``, ``512 B``."""
    for shift, name in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << shift:
            return f"{size / (1 << shift):,.1f} {name}"
    return f"{size} B"


def parse_bytes(text: str) -> int:
    """``141GB`` (powers of ten), ``80GiB`` and ``80G`` (powers of two), or a number of bytes.

    Raises:
        ConfigError: it is none of these.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{text!r} is not a number of bytes such as 141GB, 80GiB, 4G or 4294967296")
    number, unit, suffix = float(found[1]), found[2].upper(), (found[3] or "").lower()
    factor = 10 ** (_UNITS[unit] // 10 * 3) if suffix == "b" else 1 << _UNITS[unit]
    return int(number * factor)

"""The extras as ``frizzen doctor`` sees them: which is there, which would help here, and by how much."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata, resources
from typing import Any

__all__ = ["extras", "version_of"]

Entry = tuple[str, str, str, str | None]
"""Level, topic, text and fix of a finding."""


def version_of(package: str) -> str | None:
    """Version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def extras(
    device: str,
    capability: str | None,
    devices: int,
    version: Callable[[str], str | None] = version_of,
) -> Iterator[Entry]:
    """A finding per extra; nothing about those that are of no use on such a machine.

    Args:
        device: ``cpu`` or ``cuda``.
        capability: Of the GPU, such as ``sm_90``.
        devices: How many GPUs there are.
        version: Looks a package up.
    """
    builds = _table("kernel_packages.toml")
    for extra in _table("extras.toml")["extra"]:
        if extra["package"] == "torch" or not _of_use(extra, device, capability, devices):
            continue
        topic, gains = f"extra {extra['name']}", _gains(extra.get("measured"))
        found = version(extra["package"])
        if found is None:
            fix = f"pip install 'frizzen[{extra['name']}]'"
            yield "hint", topic, f"is not installed; it gives {extra['gives']}{gains}", fix
            continue
        reason = _unfit(builds, extra["package"], found, version("torch"))
        if reason is not None:
            yield (
                "problem",
                topic,
                f"{extra['package']} {found} is installed: {reason}",
                _advice(builds, extra),
            )
        else:
            yield "ok", topic, f"{extra['package']} {found}{gains}", None


def _table(name: str) -> Mapping[str, Any]:
    return tomllib.loads(resources.files("frizzen").joinpath(name).read_text(encoding="utf-8"))


def _of_use(extra: Mapping[str, Any], device: str, capability: str | None, devices: int) -> bool:
    return (
        extra.get("device", device) == device
        and (capability is None or capability in extra.get("capability", [capability]))
        and devices >= extra.get("devices", 0)
    )


def _gains(measured: list[Mapping[str, Any]] | None) -> str:
    """How much faster, where it was measured; nothing of an extra that is not about speed."""
    if measured is None:
        return ""
    if not measured:
        return "; its gain has not been measured"
    return "; " + ", ".join(
        f"{entry['gain']:.3g}x for {entry['what']} ({entry['benchmark']})" for entry in measured
    )


def _unfit(builds: Mapping[str, Any], package: str, found: str, torch: str | None) -> str | None:
    """Why an installed build is known not to work with this torch; None if nothing is known against it."""
    for table in builds.values():
        if table.get("package") != package:
            continue
        for rejected in table.get("rejected", []):
            if rejected["version"] == found and torch is not None and _matches(torch, rejected["torch"]):
                return f"with torch {torch} it is known to fail: {rejected['reason']}"
    return None


def _advice(builds: Mapping[str, Any], extra: Mapping[str, Any]) -> str:
    table = next(table for table in builds.values() if table.get("package") == extra["package"])
    known = "; ".join(f"{build['version']} with torch {build['torch']}" for build in table["builds"])
    return f"builds that are known to work: {known}"


def _matches(version: str, wanted: str) -> bool:
    """Whether a version is in one of the ranges that kernel_packages.toml uses: ``==2.11.*``, ``>=2.13``."""
    numbers = [int(part) for part in version.partition("+")[0].split(".")[:3] if part.isdigit()]
    operator, bound = wanted[:2], wanted[2:].removesuffix(".*")
    limit = [int(part) for part in bound.split(".")]
    if operator == "==":
        return numbers[: len(limit)] == limit
    return numbers >= limit

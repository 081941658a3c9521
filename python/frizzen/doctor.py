"""``frizzen doctor``: what this machine has, what is set up wrongly, and which extra would help.

A finding is ``ok``, a ``hint`` (something could be better) or a ``problem`` (something works badly or not at
all); problems make the exit code 1. Everything is looked up without starting an engine, and torch is only
imported if it is there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import util
from pathlib import Path

from frizzen.doctor_extras import extras, version_of
from frizzen.sizes_text import show_bytes

__all__ = ["Finding", "examine", "run"]

FEWEST_FILES = 4096
"""Open files: one per connection; the default bound of open requests."""

BUSY = 1.5
"""Load average over processors from which other processes are in the way."""

LEVELS = ("problem", "hint", "ok")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: str
    """``ok``, ``hint`` or ``problem``."""
    topic: str
    text: str
    fix: str | None = None


def run(arguments: Sequence[str]) -> int:
    """Runs the command; 1 if there is a problem."""
    parser = argparse.ArgumentParser(prog="frizzen doctor", description="Look at this machine and set-up.")
    parser.add_argument("model", metavar="MODEL", nargs="?", help="also look for this model's files")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    options = parser.parse_args(arguments)
    found = examine(options.model)
    if options.json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in found], indent=2) + "\n")
    else:
        sys.stdout.write(_text(found) + "\n")
    return 1 if any(finding.level == "problem" for finding in found) else 0


def examine(model: str | None = None) -> list[Finding]:
    """Everything, in the order in which it is shown."""
    found = [*_package(), *_torch(), *_processors(os.environ), *_gpu(), *_limits()]
    found += [Finding(*entry) for entry in extras(_device(), _capability(), _gpus())]
    return found + (_model(model) if model else [])


def _text(found: Sequence[Finding]) -> str:
    width = max(len(finding.topic) for finding in found)
    lines = []
    for finding in found:
        lines.append(f"{finding.level:<8}{finding.topic:<{width}}  {finding.text}")
        if finding.fix:
            lines.append(f"{'':<{8 + width}}  -> {finding.fix}")
    counts = {level: sum(finding.level == level for finding in found) for level in LEVELS}
    return "\n".join([*lines, f"{counts['problem']} problems, {counts['hint']} hints, {counts['ok']} fine"])


def _package() -> list[Finding]:
    if util.find_spec("frizzen._core") is None:
        missing = "the extension frizzen._core is not built: neither serving nor LLM works"
        return [Finding("problem", "frizzen", missing, "make build, or pip install frizzen")]
    python = ".".join(str(part) for part in sys.version_info[:3])
    return [Finding("ok", "frizzen", f"{version_of('frizzen') or 'a source tree'} on Python {python}")]


def _torch() -> list[Finding]:
    version = version_of("torch")
    if version is None:
        fix = "pip install 'frizzen[torch]'"
        return [Finding("problem", "torch", "is not installed: no model can be computed", fix)]
    import torch

    built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for CPUs"
    found = [Finding("ok", "torch", f"{version}, built {built}")]
    if torch.version.cuda is None and Path("/proc/driver/nvidia/version").exists():
        text = "there is an NVIDIA driver, but this torch is built for CPUs"
        found.append(Finding("problem", "torch", text, "install a torch built for CUDA"))
    return found


def _processors(environment: Mapping[str, str]) -> list[Finding]:
    from frizzen.worker.machine import available_cpus, available_memory

    usable, all_of_them = available_cpus(), os.cpu_count() or 1
    share = "" if usable == all_of_them else f" (of {all_of_them}, by affinity or a container's quota)"
    text = f"{usable} processors{share}, {show_bytes(available_memory())} of memory free{_instructions()}"
    found = [Finding("ok", "cpu", text)]
    wanted = environment.get("OMP_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted) > usable:
        text = f"OMP_NUM_THREADS is {wanted}, for {usable} processors: threads wait for each other"
        found.append(
            Finding("problem", "threads", text, f"set OMP_NUM_THREADS to at most {usable}, or unset it")
        )
    elif wanted.isdigit() and int(wanted) < usable and _device() == "cpu":
        text = f"OMP_NUM_THREADS is {wanted} and leaves {usable - int(wanted)} of {usable} processors idle"
        found.append(Finding("hint", "threads", text, "unset OMP_NUM_THREADS"))
    load = os.getloadavg()[0] / usable if hasattr(os, "getloadavg") else 0.0
    if load > BUSY:
        text = f"{load:.1f} processes per processor want to run (load average of a minute)"
        found.append(Finding("hint", "load", text, "end what else computes here, or expect slower steps"))
    return found


def _instructions() -> str:
    """The instruction set of the native kernels, where the extension is."""
    if util.find_spec("frizzen._core") is None:
        return ""
    from frizzen._core import cpu

    return f", native kernels use {cpu.level()}"


def _gpu() -> list[Finding]:
    if _device() == "cpu":
        return [Finding("ok", "gpu", "none that torch can use: everything runs on the CPU")]
    import torch

    found = []
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        text = f"{about.name}, {show_bytes(about.total_memory)}, sm_{about.major}{about.minor}"
        found.append(Finding("ok", f"gpu {index}", text))
    if version_of("triton") is None:
        fix = "install triton, which comes with torch builds for CUDA"
        found.append(Finding("problem", "triton", "is not installed: torch's own operators serve", fix))
    return found


def _limits() -> list[Finding]:
    try:
        import resource
    except ImportError:
        return []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FEWEST_FILES:
        text = f"{soft} open files are allowed; {FEWEST_FILES} connections need as many"
        enough = hard == resource.RLIM_INFINITY or hard >= FEWEST_FILES
        fix = f"ulimit -n {FEWEST_FILES}" if enough else f"raise the hard limit, {hard}, as root"
        return [Finding("problem", "files", text, fix)]
    return [Finding("ok", "files", "enough open files are allowed")]


def _model(name: str) -> list[Finding]:
    from frizzen.catalog import resolve
    from frizzen.errors import CatalogError

    try:
        path = resolve(name)
    except CatalogError as error:
        return [Finding("problem", "model", str(error))]
    if path.is_file() or any(path.glob("*.gguf")):
        return [Finding("ok", "model", f"{path}; a GGUF brings its tokenizer")]
    found = []
    if not (path / "config.json").is_file():
        found.append(Finding("problem", "model", f"{path} has no config.json", "fetch the whole repository"))
    if not (path / "tokenizer.json").is_file():
        text = f"{path} has no tokenizer.json: text cannot be served"
        found.append(Finding("problem", "tokenizer", text, "--tokenizer DIRECTORY with one"))
    return found or [Finding("ok", "model", f"{path} has a configuration and a tokenizer")]


def _device() -> str:
    if version_of("torch") is None:
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _gpus() -> int:
    if _device() == "cpu":
        return 0
    import torch

    return torch.cuda.device_count()


def _capability() -> str | None:
    if _device() == "cpu":
        return None
    import torch

    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"

"""Which torch a machine gets: a pure decision over facts, and the gathering of those facts.

Order: a torch that is already there and new enough is kept; a machine with a GPU gets the registry's CUDA
build with all its libraries; a machine without one gets the smallest that imports (a CPU index if one was
named, a wheel folder that pip is configured with, else the registry's CUDA build *without* its CUDA
libraries, which ``cuda_stubs`` stands in for). Each way is an ``Attempt``; set-up runs them in order until
torch imports and computes, and prints which one it was.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ROOT / "python" / "frizzen" / "kernel_packages.toml"

# Prints one JSON line; exit status 0 means that torch computes on this CPU. A missing CUDA library is an
# ImportError, OSError or ValueError, by version of torch.
PROBE = """
import json
try:
    import torch
    a = torch.ones(8, 8, dtype=torch.bfloat16)
    q = torch.ones(1, 2, 8, 16)
    mean = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    right = (a @ a)[0, 0].item() == 8 and mean[0, 0, 0, 0].item() == 1
    print(json.dumps({"version": torch.__version__, "works": right, "cuda": torch.cuda.is_available()}))
except (ImportError, OSError, ValueError) as error:
    print(json.dumps({"works": False, "error": f"{type(error).__name__}: {error}"}))
"""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the choice depends on."""

    version: str  # the version wanted
    pinned: bool  # the user asked for that version (FRIZZEN_TORCH_VERSION), so another is not kept
    minimum: tuple[int, ...]
    installed: str | None  # version of the torch in the environment
    gpu: bool
    cpu_index: str | None  # FRIZZEN_TORCH_INDEX
    wheel_folders: tuple[Path, ...]  # where pip looks for wheels, those that hold a torch of this version
    linux: bool
    full: bool  # FRIZZEN_TORCH=full: every library, GPU or not


@dataclass(frozen=True, slots=True)
class Attempt:
    """One way to get torch: ``pip install`` with ``arguments``, or nothing where it is there already."""

    way: str
    arguments: tuple[str, ...]
    stubs: bool  # missing CUDA libraries may be stood in for


def version_tuple(version: str) -> tuple[int, ...]:
    """``2.13.0+cu130`` -> ``(2, 13, 0)``."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def keeps(installed: str, facts: Facts) -> bool:
    """Whether the torch that is there will do."""
    if facts.full:
        return False  # its libraries may be missing; pip adds them and leaves torch as it is
    if facts.pinned:
        return installed.partition("+")[0] == facts.version
    return version_tuple(installed) >= facts.minimum


def attempts(facts: Facts) -> list[Attempt]:
    """The ways to try, best first. The last one is always the registry's torch with all that it asks for."""
    wanted = f"torch=={facts.version}"
    full = Attempt(
        f"the registry's torch {facts.version} with all its libraries (about 2.7 GB on Linux)",
        (wanted,),
        stubs=False,
    )
    ways: list[Attempt] = []
    if facts.installed and keeps(facts.installed, facts):
        ways.append(Attempt(f"torch {facts.installed}, installed before", (), stubs=not facts.gpu))
    if not facts.gpu and not facts.full:
        if facts.cpu_index:
            index = ("--no-deps", "--timeout", "10", "--retries", "0", "--index-url", facts.cpu_index, wanted)
            ways.append(
                Attempt(
                    f"the CPU build of torch {facts.version} from FRIZZEN_TORCH_INDEX (about 0.2 GB)",
                    index,
                    stubs=False,
                )
            )
        for folder in facts.wheel_folders:
            local = ("--no-deps", "--no-index", "--find-links", str(folder), wanted)
            ways.append(Attempt(f"torch {facts.version} from the wheel folder {folder}", local, stubs=True))
        size = " (about 0.55 GB, no CUDA libraries)" if facts.linux else ""
        ways.append(Attempt(f"the registry's torch {facts.version}{size}", ("--no-deps", wanted), stubs=True))
    return [*ways, full]


def has_gpu() -> bool:
    """Whether an NVIDIA driver and a device answer."""
    if Path("/dev/nvidiactl").exists():
        return True
    smi = shutil.which("nvidia-smi")
    return smi is not None and subprocess.run([smi, "-L"], capture_output=True, check=False).returncode == 0


def wheel_folders(pip_config: str, version: str) -> tuple[Path, ...]:
    """Folders that ``pip config list`` names (``name.find-links='a b'``) and that hold torch ``version``."""
    folders: list[Path] = []
    for line in pip_config.splitlines():
        name, _, value = line.partition("=")
        if name.rpartition(".")[2] == "find-links":
            folders += [
                Path(part) for part in re.split(r"\s+|\\n", value.strip("'\"")) if part and "://" not in part
            ]
    pattern = f"torch-{version}[-+]*.whl"
    return tuple(dict.fromkeys(folder for folder in folders if any(folder.glob(pattern))))


def installed_version(site_packages: Path) -> str | None:
    """Version of the torch in ``site_packages``, read from its metadata folder."""
    found = sorted(site_packages.glob("torch-*.dist-info"))
    return found[-1].name.removesuffix(".dist-info").removeprefix("torch-") if found else None


def wanted_versions() -> tuple[str, tuple[int, ...]]:
    """(default, minimum) from the data file of kernel packages."""
    table = tomllib.loads(PACKAGES.read_text())["torch"]
    return table["default"], version_tuple(table["minimum"])


def probe(python: Path) -> dict[str, object]:
    """Runs ``PROBE`` under ``python``: keys ``works``, and ``version`` and ``cuda``, or ``error``."""
    run = subprocess.run([str(python), "-c", PROBE], capture_output=True, text=True, check=False)
    lines = run.stdout.strip().splitlines()
    if run.returncode or not lines:
        tail = (run.stderr.strip().splitlines() or ["no message"])[-1]
        return {"works": False, "error": f"exit status {run.returncode}: {tail}"}
    answer: dict[str, object] = json.loads(lines[-1])
    return answer

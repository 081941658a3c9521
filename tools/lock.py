"""``make lock``: writes requirements/GROUP.txt, the exact versions and hashes of all that set-up installs.

One file per group of ``pyproject.toml``, plus ``runtime.txt`` for the package's own dependencies. Groups
after the first are constrained by it, so that one environment can hold them all. The resolver (uv) is
installed into a temporary place.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESOLVER = "uv==0.13.9"
GROUPS = ("runtime", "build", "torch-cpu", "model", "test-model", "dev")


def compile_group(uv: Path, group: str) -> None:
    """Resolves one group for every supported Python and platform. Raises ``CalledProcessError``."""
    out = ROOT / "requirements" / f"{group}.txt"
    command = [
        str(uv),
        "pip",
        "compile",
        "--universal",
        "--python-version",
        "3.11",
        "--generate-hashes",
        "--upgrade",
    ]
    command += ["--quiet", "--annotation-style", "line", "--custom-compile-command", "make lock"]
    command += ["--no-emit-index-url", "--no-emit-find-links", "--output-file", str(out)]
    command += ["pyproject.toml"] if group == "runtime" else ["--group", group]
    if group in {"model", "test-model"}:
        command.append("--no-deps")
    elif group != "runtime":
        command += ["--constraint", "requirements/runtime.txt"]
    if group == "dev":
        command += ["--constraint", "requirements/torch-cpu.txt"]
    subprocess.run(command, cwd=ROOT, check=True)
    print(f"{out.relative_to(ROOT)}: {out.read_text().count('==')} packages")


def main() -> int:
    """Locks every group."""
    (ROOT / "requirements").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        venv.create(scratch, with_pip=True)
        binaries = Path(scratch) / "bin"
        subprocess.run([str(binaries / "pip"), "install", "--quiet", RESOLVER], check=True)
        for group in GROUPS:
            compile_group(binaries / "uv", group)
    return 0


if __name__ == "__main__":
    sys.exit(main())

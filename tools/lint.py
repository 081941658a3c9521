"""``make lint``: every lint, all of them run even when one fails, each with its time."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable

LINTS: tuple[tuple[str, list[str]], ...] = (
    ("source rules", [PYTHON, "-m", "tools.source_rules"]),
    ("quarantine list", [PYTHON, "-m", "tools.quarantine", "check"]),
    ("rust format", ["cargo", "fmt", "--all", "--check"]),
    ("clippy", ["cargo", "clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]),
    ("python format", ["ruff", "format", "--check", "--quiet", "--diff"]),
    ("ruff", ["ruff", "check", "--quiet"]),
    ("mypy", ["mypy"]),
    ("stubs of _core", [PYTHON, "-m", "mypy.stubtest", "frizzen._core"]),
)


def main() -> int:
    """Runs the lints; prints the output of those that fail, and returns how many did."""
    failed = 0
    for name, command in LINTS:
        started = time.monotonic()
        run = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        print(
            f"{'ok  ' if run.returncode == 0 else 'FAIL'} {name} ({time.monotonic() - started:.1f} s)",
            flush=True,
        )
        if run.returncode:
            failed += 1
            print(run.stdout, flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())

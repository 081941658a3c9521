"""Counts the instructions of the hot paths, and compares them with ``benches/instructions.toml``.

``python -m tools.instructions`` prints a table; with ``--check`` it fails if a path needs over a tenth more
than recorded, or so much less that the record is stale; with ``--write`` it records what it found. Callgrind
(``valgrind``) counts the same every time, on a busy machine too; where it is not installed, that is said and
nothing is checked.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "benches" / "instructions.toml"
PATHS = (
    "write_chat_chunk",
    "detokenise_and_match",
    "encode_sentence",
    "read_chat_body",
    "plan_and_commit_row",
)
FEW, MANY = 1024, 5120
TOLERANCE = 0.1
STALE = 0.3


def build() -> Path:
    """The release build of the example."""
    command = ["cargo", "build", "--release", "--quiet", "-p", "frizzen-server", "--example", "hot_paths"]
    subprocess.run(command, cwd=ROOT, check=True)
    metadata = ["cargo", "metadata", "--format-version", "1", "--no-deps", "--offline"]
    found = subprocess.run(metadata, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    target = re.search(r'"target_directory":"([^"]+)"', found)
    if target is None:
        raise RuntimeError("cargo metadata names no target directory")
    return Path(target[1]) / "release" / "examples" / "hot_paths"


def count(valgrind: str, program: Path, name: str) -> float:
    """Instructions of one call: the difference between many and few, without what happens once."""

    def total(times: int) -> int:
        with tempfile.TemporaryDirectory() as directory:
            out = f"--callgrind-out-file={directory}/out"
            command = [valgrind, "--tool=callgrind", out, str(program), name, str(times)]
            log = subprocess.run(command, check=True, capture_output=True, text=True).stderr
        found = re.search(r"Collected : (\d+)", log)
        if found is None:
            raise RuntimeError(f"callgrind says nothing of its count:\n{log}")
        return int(found[1])

    return (total(MANY) - total(FEW)) / (MANY - FEW)


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.instructions", description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a path needs more than recorded")
    parser.add_argument("--write", action="store_true", help="record what is counted")
    options = parser.parse_args()
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        print("valgrind is not installed: instructions are not counted")
        return 0
    program = build()
    text = RECORD.read_text()
    recorded = tomllib.loads(text)
    found = {name: count(valgrind, program, name) for name in PATHS}
    failed = False
    for name, instructions in found.items():
        before = recorded.get(name)
        change = "" if before is None else f"{instructions / before - 1:+8.1%} of {before:,}"
        print(f"{name:24} {instructions:10,.0f}  {change}")
        if before is None or not -STALE <= instructions / before - 1 <= TOLERANCE:
            failed = True
    if options.write:
        head = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
        RECORD.write_text(head + "".join(f"{name} = {round(value)}\n" for name, value in found.items()))
        return 0
    if options.check and failed:
        print(
            f"over {TOLERANCE:.0%} more, or {STALE:.0%} less, than {RECORD.relative_to(ROOT)} says",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

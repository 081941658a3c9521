"""Long commands with something to look at: a line that tells what runs, for how long, and what it last said.

On a terminal the line is rewritten four times a second; elsewhere a line is printed every ten seconds. The
full output goes to a log file, whose end is shown when the command fails.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

DOWNLOADED = re.compile(r"Downloading \S+ \(([\d.]+) ([kMG])B\)")
CACHED = re.compile(r"Using cached \S+ \(([\d.]+) ([kMG])B\)")
UNITS = {"k": 1e3, "M": 1e6, "G": 1e9}
TAIL = 40  # lines shown of a command that failed


class StepError(Exception):
    """A command ended with another status than 0."""


def megabytes(pattern: re.Pattern[str], log: str) -> float:
    """Sum, in MB, of the sizes that pip printed in lines fitting ``pattern``."""
    return sum(float(number) * UNITS[unit] for number, unit in pattern.findall(log)) / 1e6


def folder_megabytes(folder: Path) -> float:
    """Space that the files under ``folder`` take, in MB; links are not followed."""
    total = 0
    for parent, _, files in os.walk(folder):
        total += sum(os.lstat(os.path.join(parent, name)).st_blocks * 512 for name in files)
    return total / 1e6


@dataclass(slots=True)
class Steps:
    """Numbers the steps of one set-up and runs their commands. ``logs`` receives one file per step."""

    logs: Path
    environment: Mapping[str, str]
    number: int = 0

    def say(self, title: str, result: str) -> None:
        """A step that needed no command, or the outcome of several."""
        self.number += 1
        print(f"[{self.number}] {title}: {result}", flush=True)

    def run(self, title: str, command: Sequence[str | Path]) -> None:
        """Runs ``command``, shows its progress, and prints its time and what pip fetched.

        Raises ``StepError`` with the end of the output if it fails; ends it on ``KeyboardInterrupt``.
        """
        self.number += 1
        log = self.logs / f"{self.number:02d}-{re.sub('[^a-z]+', '-', title.lower()).strip('-')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        label = f"[{self.number}] {title}"
        started = time.monotonic()
        print(f"{label} ...", flush=True)
        status, tail = _watch(label, [str(part) for part in command], self.environment, log)
        elapsed = time.monotonic() - started
        if status:
            end = "\n".join(f"    {line}" for line in tail)
            raise StepError(
                f"{label} failed with status {status} after {elapsed:.0f} s; the end of {log}:\n{end}"
            )
        text = log.read_text(errors="replace")
        fetched = [
            f"{size:.0f} MB {verb}"
            for verb, size in (
                ("downloaded", megabytes(DOWNLOADED, text)),
                ("from pip's cache", megabytes(CACHED, text)),
            )
            if size >= 0.5
        ]
        print(f"{label}: {', '.join([f'{elapsed:.1f} s', *fetched])}", flush=True)


def _watch(
    label: str, command: list[str], environment: Mapping[str, str], log: Path
) -> tuple[int, list[str]]:
    """Runs the command and shows its last line; returns (exit status, last lines)."""
    tail: deque[str] = deque(maxlen=TAIL)
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env=dict(environment),
        text=True,
        errors="replace",
    )
    stream = process.stdout
    assert stream is not None, "stdout is a pipe"

    def drain() -> None:
        with log.open("w") as file:
            for line in stream:
                file.write(line)
                if line.strip():
                    tail.append(line.rstrip())

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    terminal = sys.stdout.isatty()
    started = time.monotonic()
    try:
        while reader.is_alive():
            reader.join(0.25 if terminal else 10.0)
            if not reader.is_alive():
                break
            last = tail[-1].strip() if tail else ""
            if terminal:
                width = os.get_terminal_size().columns
                print(
                    f"\r\x1b[K{f'{label} {time.monotonic() - started:.0f} s  {last}'[: width - 1]}",
                    end="",
                    flush=True,
                )
            else:
                print(f"{label} {time.monotonic() - started:.0f} s  {last[:100]}", flush=True)
        status = process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise
    finally:
        if terminal:
            print("\r\x1b[K", end="", flush=True)
    return status, list(tail)

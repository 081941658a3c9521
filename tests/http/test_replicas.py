"""Several engines behind one front end, as processes: ``--data-parallel-size`` and ``--headless``."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mock_server import MockServer, binary


def engines(server: MockServer) -> list[dict[str, Any]]:
    """What ``/health`` says of each engine."""
    found: list[dict[str, Any]] = json.loads(server.text("/health")).get("engines", [])
    return found


def processes(server: MockServer) -> dict[int, int]:
    """Process ids of the engines by rank."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
            parent = re.search(r"^PPid:\s+(\d+)", (entry / "status").read_text(), re.MULTILINE)
        except OSError:
            # It ended while we looked.
            continue
        if parent and int(parent[1]) == server.process.pid and "--headless" in words:
            found[int(words[words.index("--data-parallel-rank") + 1])] = int(entry.name)
    return found


@pytest.fixture
def two() -> Iterator[MockServer]:
    """A server over two engines."""
    with MockServer("--data-parallel-size", "2", "--step-ms", "2") as server:
        yield server


def test_both_engines_answer_and_each_has_metrics_of_its_own(two: MockServer) -> None:
    for _ in range(4):
        assert two.complete(5)[1]["usage"]["completion_tokens"] == 5

    def tokens() -> list[float]:
        found = re.findall(
            r'^frizzen:generation_tokens_total\{.*engine="\d"\} (\d+)', two.text("/metrics"), re.M
        )
        return sorted(map(float, found))

    two.wait_until("the metrics show all tokens", lambda: sum(tokens()) == 20)
    assert len(tokens()) == 2
    assert min(tokens()) > 0
    assert [engine["status"] for engine in engines(two)] == ["ready", "ready"]


def test_a_grammar_is_enforced_in_whichever_engine_computes(two: MockServer) -> None:
    body = {"prompt": "x", "max_tokens": 50, "structured_outputs": {"regex": "[ab]{3}c"}}
    for _ in range(3):
        status, text = two.call("/v1/completions", json.dumps(body).encode())
        answer = json.loads(text)
        assert status == 200, text
        assert re.fullmatch("[ab]{3}c", answer["choices"][0]["text"])
        assert answer["grammar_enforced"] is True


def test_an_engine_that_is_killed_comes_back_and_the_other_goes_on(two: MockServer) -> None:
    os.kill(processes(two)[1], signal.SIGKILL)
    two.wait_until("it is missed", lambda: json.loads(two.text("/health"))["status"] == "degraded")
    for _ in range(3):
        assert two.complete(5)[0] == 200
    two.wait_until("it is back", lambda: json.loads(two.text("/health"))["status"] == "ready")
    assert [engine["starts"] for engine in engines(two)] == [1, 2]


def test_a_drain_ends_the_engines_too(two: MockServer) -> None:
    children = processes(two)
    assert sorted(children) == [0, 1]
    two.process.send_signal(signal.SIGTERM)
    assert two.process.wait(timeout=20) == 0
    assert not any(Path(f"/proc/{child}").exists() for child in children.values())


def test_a_front_end_that_is_killed_leaves_no_engine_behind(two: MockServer) -> None:
    children = processes(two)
    two.process.kill()
    two.process.wait()
    for child in children.values():
        two.wait_until("it has ended", lambda child=child: not Path(f"/proc/{child}").exists())


def test_engines_can_be_started_by_hand(tmp_path: Path) -> None:
    socket = str(tmp_path / "engines")
    flags = ["--data-parallel-address", socket]
    server = MockServer("--data-parallel-size", "1", "--data-parallel-size-local", "0", *flags)
    command = [str(binary()), "mock-serve", "--headless", *flags]
    # The socket is there before the server says that it listens for engines, or the engine would not find it.
    server.wait_until("the socket is there", lambda: Path(socket).exists())
    engine = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    with server:
        assert server.complete(3)[0] == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=20) == 0
        assert engine.wait(timeout=20) == 0


def test_a_headless_engine_without_a_front_end_says_so(tmp_path: Path) -> None:
    socket = str(tmp_path / "nobody")
    command = [str(binary()), "mock-serve", "--headless", "--data-parallel-address", socket]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert ended.returncode == 1
    assert f"no front end at {socket}" in ended.stderr

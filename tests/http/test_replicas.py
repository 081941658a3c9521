"""Several engines behind one front end, as processes: ``--data-parallel-size`` and ``--headless``."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
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


def answer(server: MockServer, path: str, body: dict[str, Any] | None = None) -> Any:
    status, text = server.call(path, None if body is None else json.dumps(body).encode())
    assert status == 200, text
    return json.loads(text)


def test_speculation_is_shown_engine_by_engine_and_added_up() -> None:
    flags = ["--drafter", "ngram", "--num-speculative-tokens", "3", "--say", "echo"]
    with MockServer("--data-parallel-size", "2", *flags) as server:
        for prompt in ("abcabcabcabc", "xyzxyzxyzxyz", "defdefdefdef", "uvwuvwuvwuvw"):
            body = {"prompt": prompt, "max_tokens": 40, "speculation": {"max_tokens": 3}, "ignore_eos": True}
            answer(server, "/v1/completions", body)

        def told() -> bool:
            found = answer(server, "/v1/speculation")
            return found["drafter"] == "ngram" and found["totals"]["drafts"] > 0

        server.wait_until("the engines have said how drafts fare", told)
        found = answer(server, "/v1/speculation")
        assert [engine["engine"] for engine in found["engines"]] == [0, 1]
        assert found["max_drafts"] == 3
        told_by_each = [engine["totals"]["drafts"] for engine in found["engines"] if engine["drafter"]]
        assert found["totals"]["drafts"] == sum(told_by_each)


def test_the_plan_and_the_server_are_shown_engine_by_engine(two: MockServer) -> None:
    plan = answer(two, "/v1/plan")
    assert plan["engines"] == [{"engine": 0, "same": True}, {"engine": 1, "same": True}]
    info = answer(two, "/server_info")
    assert [engine["engine"] for engine in info["engines"]] == [0, 1]
    assert all(engine["num_blocks"] > 0 for engine in info["engines"])


def test_pause_sleep_and_abort_reach_every_engine(two: MockServer) -> None:
    assert answer(two, "/pause?mode=wait", {})["is_paused"] is True
    held: list[Any] = []
    threads = [threading.Thread(target=lambda: held.append(two.complete(5))) for _ in range(4)]
    for thread in threads:
        thread.start()
    two.wait_until("they wait", lambda: answer(two, "/load")["waiting"] == 4)
    assert sorted(engine["waiting"] for engine in engines(two)) == [2, 2]
    answer(two, "/resume", {})
    for thread in threads:
        thread.join()
    assert [status for status, _ in held] == [200] * 4
    assert answer(two, "/reset_prefix_cache", {})["reset"] is True
    asleep = answer(two, "/sleep?level=1", {})
    assert (asleep["is_sleeping"], asleep["prefix_cache"]) == (True, "dropped")
    assert two.complete(1)[0] == 503
    answer(two, "/wake_up", {})
    body = json.dumps({"prompt": "x", "max_tokens": 4000, "ignore_eos": True}).encode()
    ended: list[Any] = []
    threads = [
        threading.Thread(target=lambda: ended.append(two.call("/v1/completions", body))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    two.wait_until("one runs in each", lambda: [engine["running"] for engine in engines(two)] == [1, 1])
    assert answer(two, "/abort_requests", {"all": True})["aborted"] == 2
    for thread in threads:
        thread.join()
    assert [json.loads(text)["choices"][0]["finish_reason"] for _, text in ended] == ["abort", "abort"]


def test_a_request_that_is_being_computed_fails_alone_when_its_engine_is_killed(two: MockServer) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 1500, "ignore_eos": True}).encode()
    ended: list[Any] = []
    threads = [
        threading.Thread(target=lambda: ended.append(two.call("/v1/completions", body))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    two.wait_until("one runs in each", lambda: [engine["running"] for engine in engines(two)] == [1, 1])
    os.kill(processes(two)[0], signal.SIGKILL)
    for thread in threads:
        thread.join()
    statuses = sorted(status for status, _ in ended)
    assert statuses == [200, 500], ended
    lost = next(json.loads(text) for status, text in ended if status == 500)
    assert "engine 0" in lost["error"]["message"]


def test_vectors_come_from_every_engine_and_through_the_wire() -> None:
    with (
        MockServer("--data-parallel-size", "2", "--embed-size", "4") as server,
        MockServer("--embed-size", "4") as single,
    ):
        for body in (
            {"input": [f"text {number}" for number in range(8)]},
            {"input": ["ab", "abc"], "task": "token_embed"},
        ):
            path = "/pooling"
            assert answer(server, path, body)["data"] == answer(single, path, body)["data"]

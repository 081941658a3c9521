"""A step that hangs: the log says what the engine was doing, and where the worker's threads are."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import CheckpointMaker
from tests.mock_server import MockServer

HANGING = """
import ctypes
from frizzen.worker.worker import Worker

def {name}(self, *arguments):
    {hang}

Worker.submit = {name}

from frizzen.__main__ import main
main()
"""
"""A server whose first step never ends."""

PATIENCE_S = 60.0


@contextmanager
def serving(program: str, checkpoint: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The server and its address, when it is ready."""
    command = [sys.executable, "-c", program, "serve", str(checkpoint), "--port", "0"]
    command += ["--step-timeout", "1", "--drain-timeout", "0.2", "--num-threads", "1"]
    environment = {**os.environ, "NO_COLOR": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    kill = threading.Timer(PATIENCE_S, process.kill)
    kill.start()
    try:
        found = re.search(r"http://[\d.]+:\d+", process.stdout.readline())
        assert found, process.communicate()
        yield process, found[0]
    finally:
        kill.cancel()
        process.kill()
        process.wait()


def complete(url: str) -> int:
    body = json.dumps({"prompt": "x", "max_tokens": 4}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize(
    ("name", "hang"),
    [
        ("waits_without_the_interpreter", "import time; time.sleep(3600)"),
        # PyDLL keeps the interpreter's lock: no other thread of Python runs again.
        ("keeps_the_interpreter", "ctypes.PyDLL(None).sleep(3600)"),
    ],
)
def test_a_hanging_worker_shows_its_stacks(tiny_checkpoint: CheckpointMaker, name: str, hang: str) -> None:
    program = HANGING.format(name=name, hang=hang)
    with serving(program, tiny_checkpoint("llama")) as (process, url):
        assert complete(url) == 503
        _, log = process.communicate(timeout=PATIENCE_S)
        # Exit handlers that wait for the interpreter are cut short by SIGABRT.
        assert process.returncode in {1, -signal.SIGABRT}
    assert f"in {name}" in log
    assert re.search(r"the engine is stuck.*step 1 of 1 rows and 1 tokens", log)
    # Once as slow, and once as stuck.
    assert log.count(f"in {name}") == 2


def test_a_worker_without_python_shows_the_engines_state_alone() -> None:
    with MockServer("--fault", "hang@3", "--drain-timeout", "2", "--step-timeout", "0.5") as server:
        answered = threading.Thread(target=server.complete, args=(10,))
        answered.start()
        server.wait_until("it is slow", lambda: "slow" in json.loads(server.text("/health")))
        health = json.loads(server.text("/health"))
        assert health["status"] == "degraded"
        assert "a step has been running for" in health["slow"]
        answered.join()
        assert server.status("/health") == 503
        assert server.process.wait(timeout=20) == 1
    log = "".join(server.log)
    assert log.count("the engine is slow") == 1
    assert re.search(r"the engine is stuck.*1 running, 0 waiting", log)

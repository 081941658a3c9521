"""The binary as a process: signals, exit codes, what it says when something is missing."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

from tests.mock_server import MockServer, binary


def run(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs the binary to its end."""
    return subprocess.run([binary(), *arguments], capture_output=True, text=True, check=False, **options)


def completing(server: MockServer, max_tokens: int) -> tuple[threading.Thread, list[dict[str, Any]]]:
    """A completion that runs on a thread of its own; its answer is in the list when the thread has ended."""
    answers: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: answers.append(server.complete(max_tokens)[1]))
    thread.start()
    server.wait_until("it runs", lambda: server.load()["running"] == 1)
    return thread, answers


def test_a_drain_answers_what_is_open_and_exits_with_zero() -> None:
    with MockServer("--step-ms", "5") as server:
        thread, answers = completing(server, 100)
        server.process.send_signal(signal.SIGTERM)
        thread.join()
        assert server.process.wait(timeout=20) == 0
    assert answers[0]["usage"]["completion_tokens"] == 100


def test_a_second_signal_ends_at_once() -> None:
    with MockServer("--step-ms", "5", "--drain-timeout", "3600") as server:
        thread, answers = completing(server, 4000)
        server.process.send_signal(signal.SIGTERM)
        server.wait_until("it drains", lambda: any("draining" in line for line in server.log))
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(timeout=20) == 0
        thread.join()
    assert answers[0]["choices"][0]["finish_reason"] == "abort"


def test_a_worker_that_fails_ends_the_process_with_an_error() -> None:
    with MockServer("--fault", "raise@3", "--drain-timeout", "0.2") as server:
        status, answer = server.complete(10)
        assert (status, answer["error"]["type"]) == (503, "ServiceUnavailableError")
        assert "the mock was told to raise" in answer["error"]["message"]
        assert server.process.wait(timeout=20) == 1


def test_a_worker_that_hangs_ends_the_process_with_an_error() -> None:
    with MockServer("--fault", "hang@3", "--drain-timeout", "0.2", "--step-timeout", "0.3") as server:
        assert server.complete(10)[0] == 503
        assert server.process.wait(timeout=20) == 1


def test_a_port_that_is_taken_is_named() -> None:
    with MockServer() as server:
        port = server.url.rsplit(":", 1)[1]
        second = subprocess.run(
            [binary(), "mock-serve", "--port", port], capture_output=True, text=True, check=False
        )
    assert second.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in second.stderr


def test_serve_becomes_the_python_that_was_named(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$$ $@"\n')
    python.chmod(0o755)
    command = [binary(), "serve", "--python", python, "smollm2-135m", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate(timeout=20)
    # The same process: a supervisor's signals reach Python.
    assert output == f"{process.pid} -m frizzen serve smollm2-135m --port 0\n"


def test_serve_without_a_python_says_where_it_looked(tmp_path: Path) -> None:
    result = run("serve", "smollm2-135m", cwd=tmp_path, env={"PATH": str(tmp_path)})
    assert result.returncode == 1
    virtual = f"{tmp_path}/.venv/bin/python"
    for place in ("$VIRTUAL_ENV", "$CONDA_PREFIX", virtual, "python3 on PATH", "--python"):
        assert place in result.stderr


def test_a_conversation_is_rendered_without_a_model(tmp_path: Path) -> None:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "BPE", "vocab": {chr(97 + index): index for index in range(26)}, "merges": []},
        "decoder": byte_level,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    result = run("render", tmp_path, input=json.dumps({"messages": [{"role": "user", "content": "abc"}]}))
    assert json.loads(result.stdout) == {"prompt": "abc", "count": 3, "tokens": [0, 1, 2]}
    refused = run("render", tmp_path, input="{}")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "messages" in refused.stderr


def test_the_version_is_that_of_the_server() -> None:
    printed = run("--version").stdout.split()
    with MockServer() as server:
        assert json.loads(server.text("/version")) == {"version": printed[1]}

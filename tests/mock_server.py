"""The binary's ``mock-serve`` as a process of its own, for tests of clients and of the process itself."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 20.0


@cache
def binary() -> Path:
    """The ``frizzen`` binary, built if it is not up to date. ``FRIZZEN_BINARY`` names another one."""
    if named := os.environ.get("FRIZZEN_BINARY"):
        return Path(named)
    command = ["cargo", "build", "--quiet", "--package", "frizzen-cli", "--message-format", "json"]
    lines = subprocess.run(
        command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.splitlines()
    built = [json.loads(line) for line in lines]
    paths = [message["executable"] for message in built if message.get("executable")]
    return Path(paths[-1])


class MockServer:
    """A running ``frizzen mock-serve`` on a free port. A context manager; leaving it kills what is left.

    ``tls`` is how it is to be trusted, if its flags say that it serves https.
    """

    def __init__(self, *flags: str, log: str = "info", tls: ssl.SSLContext | None = None) -> None:
        command = [str(binary()), "mock-serve", "--port", "0", *flags]
        environment = {**os.environ, "FRIZZEN_LOG": log, "NO_COLOR": "1"}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self.log: list[str] = []
        self._listening = threading.Event()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self.url = ""
        self.tls = tls

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if "listening" in line:
                self._listening.set()
        self._listening.set()

    def __enter__(self) -> MockServer:
        assert self._listening.wait(PATIENCE_S), self.log
        found = re.search(r"url\W+(https?://[\w.:\[\]]+)", "".join(self.log))
        assert found, self.log
        self.url = found.group(1)
        self.wait_until("it is ready", lambda: self.status("/health") == 200)
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def call(self, path: str, body: bytes | None = None) -> tuple[int, str]:
        """Status and text of an answer; a POST of JSON if there is a body."""
        request = urllib.request.Request(self.url + path, body, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S, context=self.tls) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def complete(self, max_tokens: int) -> tuple[int, dict[str, Any]]:
        """Status and answer of a small completion."""
        status, text = self.call(
            "/v1/completions", json.dumps({"prompt": "x", "max_tokens": max_tokens}).encode()
        )
        answer: dict[str, Any] = json.loads(text)
        return status, answer

    def text(self, path: str) -> str:
        """Text of an answer."""
        return self.call(path)[1]

    def status(self, path: str) -> int:
        """Status of an answer."""
        return self.call(path)[0]

    def load(self) -> dict[str, Any]:
        """What ``/load`` says."""
        load: dict[str, Any] = json.loads(self.text("/load"))
        return load

    def wait_until(self, what: str, condition: Any) -> None:
        """Polls until ``condition()`` holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"never: {what}"
            time.sleep(0.005)

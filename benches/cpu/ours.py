"""This project's server under the workload: started, loaded over HTTP, its memory read, and ended again."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from benches.cpu.http_load import Server, measure
from benches.cpu.workload import Result, add_arguments, from_arguments, note, report, resident_mb

START_LIMIT_S = 300.0
STOP_LIMIT_S = 20.0


def free_port() -> int:
    """A port of the loopback interface that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def get_json(url: str) -> object:
    """The JSON document at ``url``."""
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.load(answer)


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    """Polls ``/health``. Raises ``RuntimeError`` with the end of the log if the server dies or is late."""
    limit = time.monotonic() + START_LIMIT_S
    while time.monotonic() < limit and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.02)
    log.seek(0)
    end = log.read()[-2_000:].decode(errors="replace")
    state = f"ended with status {process.returncode}" if process.poll() is not None else "is not ready"
    raise RuntimeError(f"the server {state} after at most {START_LIMIT_S:.0f} s; it said:\n{end}")


@contextmanager
def served(command: list[str], url: str, threads: int) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a server for the duration of the block; healthy when the block begins, gone when it ends."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            wait_until_healthy(url, process, log)
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def main() -> None:
    """Measures one configuration of ``frizzen serve`` and prints its result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("server_arguments", nargs="*", help="more options of the server, after --")
    add_arguments(parser)
    arguments = parser.parse_args()
    workload = from_arguments(arguments)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    program = Path(sys.executable).parent / "frizzen"
    command = [str(program), "serve", arguments.model, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", arguments.dtype, *arguments.server_arguments]
    result = Result("frizzen", "", arguments.dtype, "http")
    started = time.perf_counter()
    with served(command, url, workload.threads) as process:
        result.start_s = round(time.perf_counter() - started, 2)
        version = get_json(f"{url}/version")
        result.version = str(version["version"]) if isinstance(version, dict) else ""
        models = get_json(f"{url}/v1/models")
        name = models["data"][0]["id"] if isinstance(models, dict) else arguments.model
        note(f"  frizzen {result.version} {arguments.dtype}: healthy after {result.start_s} s")
        asyncio.run(measure(Server.at(url, name), workload, result))
        result.rss_mb = round(resident_mb(process.pid), 1)
    report(result)


if __name__ == "__main__":
    main()

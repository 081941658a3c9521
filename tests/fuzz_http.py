"""Holds mock servers against their own ``/openapi.json`` with schemathesis; by hand, since it takes minutes.

schemathesis is no dependency of the project. Once::

    python3 -m venv target/fuzz && target/fuzz/bin/pip install schemathesis==4.32.5
    python -m tests.fuzz_http target/fuzz/bin/schemathesis --examples 100

Every answer must be one that the document has, of its type and its schema, no answer may be a 5xx, and what a
schema forbids must be refused. The converse is not asked for: a body that its schema allows may break a rule
between two fields, or a limit of the model, and is then a 400.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from tests.mock_server import MockServer

POOLING = "/(v1/embeddings|pooling|classify|(v1/)?score|(v[12]/)?rerank|v2/embed)$"
STATE = "/(pause(_generation)?|resume|continue_generation|sleep|wake_up|re(lease|sume)_memory_occupation)$"
"""Routes after which a server refuses requests, or lets them wait."""

CONFIG = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 501]
"""
"""501 is what a feature gets that this server, or this model, does not have."""

RUNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "text": ((), ("--exclude-path-regex", f"{POOLING}|{STATE}")),
    "state": ((), ("--include-path-regex", f"^{STATE}|^/is_")),
    "embeddings": (
        ("--embed-size", "8"),
        ("--include-path-regex", "/(embeddings|pooling|score|rerank|embed)$"),
    ),
    "classes": (("--classes", "3"), ("--include-path-regex", "/(classify|pooling)$")),
    "pairs": (("--classes", "1"), ("--include-path-regex", "/(score|rerank)$")),
}
"""Name -> flags of the server, and which of its routes are tried."""


def main() -> int:
    """Runs all of them, or those that are named; how many failed."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("schemathesis", type=Path)
    parser.add_argument("--examples", type=int, default=50, help="of each operation and phase (50)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=list(RUNS), default=list(RUNS))
    options = parser.parse_args()
    failed = 0
    for name in options.only:
        flags, routes = RUNS[name]
        print(f"== {name}", flush=True)
        server = MockServer("--max-model-len", "256", *flags)
        with server, tempfile.TemporaryDirectory() as directory:
            config = Path(directory) / "schemathesis.toml"
            config.write_text(CONFIG)
            program, document = options.schemathesis.absolute(), f"{server.url}/openapi.json"
            command = [program, "--config-file", config, "run", document]
            command += ["--checks", "all", "--exclude-checks", "positive_data_acceptance"]
            command += ["--exclude-tag", "not served", *routes]
            command += ["--max-examples", str(options.examples), "--seed", str(options.seed), "--no-color"]
            command += ["--phases", "examples,coverage,fuzzing", "--request-timeout", "20"]
            # Whatever it writes beside its report goes away with the directory.
            failed += subprocess.run(command, cwd=directory, check=False).returncode != 0
            assert server.status("/health") == 200, "the server did not survive"
    return failed


if __name__ == "__main__":
    raise SystemExit(main())

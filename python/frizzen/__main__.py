"""The ``frizzen`` command: serves a model, or shows how it would be served."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

HELP = """\
usage: frizzen COMMAND [ARGUMENT ...]

commands:
  serve MODEL    serve a model over HTTP (frizzen serve --help lists the options)
  plan MODEL     show which kernel serves each layer, why not a faster one, and the memory
  --version      print the version
  --help         print this text

The Rust binary of the same name also has the commands that need no Python: bench, render, mock-serve.
"""

BINARY_COMMANDS = ("bench", "render", "mock-serve")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code; 2 is a wrong command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments.pop(0) if arguments else "--help"
    if command in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if command in ("-V", "--version"):
        from frizzen import __version__

        print(f"frizzen {__version__}")
        return 0
    if command == "serve":
        from frizzen._core import serve
        from frizzen.errors import ConfigError

        try:
            return serve(arguments)
        except ConfigError as error:
            print(f"frizzen serve: {error}", file=sys.stderr)
            return 2
    if command == "plan":
        return _plan(arguments)
    reason = "is a command of the Rust binary" if command in BINARY_COMMANDS else "is not a command"
    print(f"frizzen: {command} {reason}; frizzen --help lists the commands", file=sys.stderr)
    return 2


def _plan(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="frizzen plan", description="Load a model and show its plan.")
    parser.add_argument("model", metavar="MODEL", help="a catalogue name, a directory, a file, or a hub id")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON on standard output")
    options = parser.parse_args(arguments)
    from frizzen.config import EngineConfig
    from frizzen.errors import FrizzenError
    from frizzen.worker.launch import load

    try:
        loaded = load(EngineConfig(model=options.model, dtype=options.dtype, device=options.device))
    except FrizzenError as error:
        print(f"frizzen: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(loaded.plan_json(), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The ``frizzen`` command: serves a model, shows how it would be served, or looks at the machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence

HELP = """\
usage: frizzen COMMAND [ARGUMENT ...]

commands:
  serve MODEL    serve a model over HTTP (frizzen serve --help lists the options)
  plan MODEL     show which kernel serves each layer, why not a faster one, and the memory
                 (--dry-run loads nothing, --gpu-memory 141GB asks for a machine that is not here)
  doctor         show what this machine has, what is set up wrongly, and what would make it faster
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
        return _serve(arguments)
    if command == "plan":
        from frizzen.plan_command import run

        return run(arguments)
    if command == "doctor":
        from frizzen.doctor import run as examine

        return examine(arguments)
    reason = "is a command of the Rust binary" if command in BINARY_COMMANDS else "is not a command"
    print(f"frizzen: {command} {reason}; frizzen --help lists the commands", file=sys.stderr)
    return 2


def _serve(arguments: list[str]) -> int:
    from frizzen._core import serve
    from frizzen.errors import ConfigError

    try:
        return serve(arguments)
    except ConfigError as error:
        print(f"frizzen serve: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

"""Parsers of one's own: how a model writes its reasoning and its tool calls.

A plug-in is a module or a file that registers parsers when it is imported::

    from frizzen.plugins import register_reasoning_parser, register_tool_parser

    register_reasoning_parser("muse", open="<muse>", close="</muse>")

    @register_tool_parser("lines", open="<do>", close="</do>")
    def read(body):
        name, _, arguments = body.partition(": ")
        return [(name, arguments)]

The function gets the whole text between two markers and returns the calls in it, each a name and its
arguments as JSON text, or raises if there is none: the text is then content, as it is after five seconds. It
must be a function of its argument: under ``python -X dev`` it is called twice, and an answer that differs is
an error.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from frizzen.errors import ConfigError

__all__ = [
    "Plugins",
    "ReadCalls",
    "ReasoningParser",
    "ToolParser",
    "prepare_plugins",
    "register_reasoning_parser",
    "register_tool_parser",
]

ReadCalls = Callable[[str], Sequence[tuple[str, str]]]
"""A body to its calls: names, and arguments as JSON text."""


@dataclass(frozen=True, slots=True)
class ReasoningParser:
    """Reasoning between two tags at the beginning of an answer."""

    name: str
    open: str
    close: str
    assumed_open: bool
    """Without knowledge of the prompt, a text begins inside reasoning."""


@dataclass(frozen=True, slots=True)
class ToolParser:
    """Calls between markers."""

    name: str
    opens: tuple[str, ...]
    close: str
    read: ReadCalls


@dataclass(slots=True)
class Plugins:
    """What plug-ins have registered, in order."""

    reasoning: list[ReasoningParser] = field(default_factory=list)
    tools: list[ToolParser] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Parsers of either kind."""
        return len(self.reasoning) + len(self.tools)


_collecting: ContextVar[Plugins | None] = ContextVar("_collecting", default=None)
"""Where registrations go while a plug-in is imported."""


def register_reasoning_parser(name: str, *, open: str, close: str, assumed_open: bool = False) -> None:  # noqa: A002
    """Adds a reasoning parser under ``name``; raises ``ConfigError`` outside of a plug-in's import."""
    _collected(name).reasoning.append(ReasoningParser(name, open, close, assumed_open))


def register_tool_parser(
    name: str,
    *,
    open: str | Sequence[str],  # noqa: A002
    close: str,
) -> Callable[[ReadCalls], ReadCalls]:
    """Decorates the function that reads calls; raises ``ConfigError`` outside of a plug-in's import."""
    plugins = _collected(name)
    opens = (open,) if isinstance(open, str) else tuple(open)

    def register(read: ReadCalls) -> ReadCalls:
        plugins.tools.append(ToolParser(name, opens, close, _twice(read) if sys.flags.dev_mode else read))
        return read

    return register


def prepare_plugins(reasoning: str | None = None, tools: str | None = None) -> Plugins:
    """Imports plug-ins, each a module or a file, and returns what they registered.

    Every entry point calls this before the engine's configuration is built, as the configuration may name a
    plug-in's parser.

    Raises:
        ConfigError: a plug-in cannot be imported, or registers nothing.
    """
    plugins = Plugins()
    # One module may bring both; what it registers counts once.
    for place in dict.fromkeys(place for place in (reasoning, tools) if place is not None):
        token = _collecting.set(plugins)
        try:
            _import(place, plugins)
        # A plug-in is somebody else's code: whatever it raises is the reason why it cannot be used.
        except Exception as error:
            raise ConfigError(
                f"plug-in {place!r} cannot be imported: {type(error).__name__}: {error}"
            ) from error
        finally:
            _collecting.reset(token)
    if reasoning is not None and not plugins.reasoning:
        raise ConfigError(f"reasoning_parser_plugin {reasoning!r} registers no reasoning parser")
    if tools is not None and not plugins.tools:
        raise ConfigError(f"tool_parser_plugin {tools!r} registers no tool parser")
    return plugins


def _import(place: str, plugins: Plugins) -> None:
    path = Path(place)
    if not (path.suffix == ".py" or path.is_file()):
        before = plugins.count
        module = importlib.import_module(place)
        if plugins.count == before:
            # It was imported earlier, so that nothing of it ran now.
            importlib.reload(module)
        return
    name = f"frizzen_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{place} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def _collected(name: str) -> Plugins:
    plugins = _collecting.get()
    if plugins is None:
        raise ConfigError(
            f"parser {name!r} is registered outside of a plug-in: name its module as "
            "--reasoning-parser-plugin or --tool-parser-plugin"
        )
    return plugins


def _twice(read: ReadCalls) -> ReadCalls:
    """``read``, held to its promise."""

    @functools.wraps(read)
    def checked(body: str) -> Sequence[tuple[str, str]]:
        first, second = list(read(body)), list(read(body))
        if first != second:
            raise RuntimeError(f"the parser is no function of its text: {first!r}, then {second!r}")
        return first

    return checked

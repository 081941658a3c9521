"""Plug-ins: imported once, before the configuration is built; their parsers keep the contract of ours."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from frizzen import LLM, EngineConfig
from frizzen.errors import ConfigError
from frizzen.plugins import prepare_plugins, register_tool_parser
from tests.conftest import CheckpointMaker

PLUGIN = """
from frizzen.plugins import register_reasoning_parser, register_tool_parser

register_reasoning_parser("muse", open="<muse>", close="</muse>", assumed_open=True)

@register_tool_parser("lines", open=["<do>", "<use>"], close="</do>")
def read(body):
    name, _, arguments = body.partition(": ")
    return [(name, arguments)]

@register_tool_parser("moody", open="<do>", close="</do>")
def moody(body, calls=[]):
    calls.append(body)
    return [(f"f{len(calls)}", "{}")]
"""

FAULTY = """
import time

from frizzen.plugins import register_tool_parser

@register_tool_parser("stuck", open="<do>", close="</do>")
def stuck(body):
    time.sleep(3600)

@register_tool_parser("broken", open="<do>", close="</do>")
def broken(body):
    raise {"SystemExit": SystemExit, "RecursionError": RecursionError}.get(body, ValueError)(body)

@register_tool_parser("fine", open="<do>", close="</do>")
def fine(body):
    return [(body, "{}")]
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "my_parsers.py"
    path.write_text(PLUGIN, encoding="utf-8")
    return path


class SeenEnoughError(Exception):
    """Raised where a test has seen enough."""


def test_the_library_imports_plugins_once_before_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[tuple[str | None, str | None]] = []

    def configure(values: dict[str, Any]) -> EngineConfig:
        assert imported == [("mine", "other.py")]
        raise SeenEnoughError

    monkeypatch.setattr("frizzen.llm.prepare_plugins", lambda *places: imported.append(places))
    monkeypatch.setattr(EngineConfig, "from_dict", configure)
    with pytest.raises(SeenEnoughError):
        LLM("m", reasoning_parser_plugin="mine", tool_parser_plugin="other.py")


def test_a_module_is_imported_by_its_name_every_time(plugin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(plugin.parent)
    for _ in range(2):
        plugins = prepare_plugins("my_parsers", "my_parsers")
        assert [parser.name for parser in plugins.reasoning] == ["muse"]
        assert [parser.name for parser in plugins.tools] == ["lines", "moody"]


def test_a_file_that_cannot_be_used_is_named_with_the_reason(tmp_path: Path) -> None:
    for content, reason in (("1 / 0", "ZeroDivisionError"), ("x = (", "SyntaxError")):
        (tmp_path / "bad.py").write_text(content, encoding="utf-8")
        with pytest.raises(ConfigError, match=f"bad.py' cannot be imported: {reason}"):
            prepare_plugins(str(tmp_path / "bad.py"))
    with pytest.raises(ConfigError, match="ModuleNotFoundError"):
        prepare_plugins(None, "no.such.module")
    (tmp_path / "idle.py").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="registers no tool parser"):
        prepare_plugins(None, str(tmp_path / "idle.py"))
    with pytest.raises(ConfigError, match="registered outside of a plug-in"):
        register_tool_parser("late", open="<", close=">")


def serve(*arguments: object, dev: bool = False) -> list[str]:
    mode = ["-X", "dev"] if dev else []
    return [sys.executable, *mode, "-m", "frizzen", "serve", *map(str, arguments)]


def test_the_server_knows_a_plugins_parsers_before_it_reads_its_flags(plugin: Path) -> None:
    flags = ["m", f"--tool-parser-plugin={plugin}", "--reasoning-parser-plugin", plugin]
    refused = subprocess.run(
        serve(*flags, "--tool-call-parser", "nobody"), capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert re.search(r"there is no parser 'nobody'; there are auto, .*lines, moody", refused.stderr)
    broken = subprocess.run(
        serve("m", "--tool-parser-plugin", "no.such.module"), capture_output=True, text=True, check=False
    )
    assert broken.returncode == 2
    assert "plug-in 'no.such.module' cannot be imported: ModuleNotFoundError" in broken.stderr
    assert "Traceback" not in broken.stderr


@contextmanager
def serving(model: Path, *flags: object, dev: bool = False) -> Iterator[str]:
    command = serve(model, "--port", 0, "--device", "cpu", *flags, dev=dev)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        found = re.match(r"Ready at (http://\S+):", process.stdout.readline())
        assert found
        yield found[1]
    finally:
        process.terminate()
        assert process.wait(timeout=30) == 0
        process.stdout.close()


def parse(url: str, text: str, **fields: Any) -> dict[str, Any]:
    body = json.dumps({"text": text, **fields}).encode()
    request = urllib.request.Request(f"{url}/v1/parse", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def test_a_plugin_reads_answers_and_is_held_to_be_a_function(
    tiny_checkpoint: CheckpointMaker, plugin: Path
) -> None:
    flags = ["--reasoning-parser-plugin", plugin, "--tool-parser-plugin", plugin]
    flags += ["--reasoning-parser", "muse", "--tool-call-parser", "lines"]
    text = 'Hm.</muse>Now <do>f: {"a": 1}</do><use>g: {}</do><do>h: 1</do>'
    with serving(tiny_checkpoint("llama"), *flags, dev=True) as url:
        answer = parse(url, text)
        assert (answer["reasoning_parser"], answer["tool_call_parser"]) == ("muse", "lines")
        message = answer["message"]
        assert (message["reasoning"], message["content"]) == ("Hm.", "Now<do>h: 1</do>")
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
        assert calls == [("f", '{"a": 1}'), ("g", "{}")]
        moody = parse(url, text, tool_call_parser="moody")
        assert "tool_calls" not in moody["message"], "in development mode it was called twice and disagreed"
        assert moody["notes"]


def test_a_plugin_that_fails_or_never_returns_costs_its_calls_and_nothing_else(
    tiny_checkpoint: CheckpointMaker, tmp_path: Path
) -> None:
    faulty = tmp_path / "faulty.py"
    faulty.write_text(FAULTY, encoding="utf-8")
    flags = ["--tool-parser-plugin", faulty, "--tool-call-parser", "fine"]
    with serving(tiny_checkpoint("llama"), *flags) as url:
        assert parse(url, "<do>f</do>")["message"]["tool_calls"][0]["function"]["name"] == "f"
        for fault in ("SystemExit", "RecursionError", "x"):
            text = f"<do>{fault}</do>"
            assert parse(url, text, tool_call_parser="broken")["message"]["content"] == text
        # More at once than there are threads for what blocks.
        with ThreadPoolExecutor(24) as pool:
            stuck = pool.map(lambda _: parse(url, "<do>f</do>", tool_call_parser="stuck"), range(24))
            assert {answer["message"]["content"] for answer in stuck} == {"<do>f</do>"}
        # The others' parser is on the same thread: their text is content, at once, and the server lives.
        begun = time.monotonic()
        assert parse(url, "<do>f</do>")["message"]["content"] == "<do>f</do>"
        assert time.monotonic() - begun < 4
        with urllib.request.urlopen(f"{url}/health", timeout=30) as answer:
            assert answer.status == 200

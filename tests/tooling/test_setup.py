"""Set-up: what it remembers between runs, what makes it build again, and what it says is missing."""

import os
import subprocess
from pathlib import Path

import pytest

from tools import setup
from tools.setup import State

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "rust" / "core").mkdir(parents=True)
    (tmp_path / "rust" / "core" / "lib.rs").write_text("// one\n")
    (tmp_path / "Cargo.lock").write_text("one\n")
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    monkeypatch.setattr(setup, "STATE", tmp_path / "state.json")
    return tmp_path


def test_a_step_is_done_for_the_inputs_it_was_done_with_and_no_others(tree: Path) -> None:
    State.load().record("packages", "a")
    assert State.load().is_done("packages", "a")
    assert not State.load().is_done("packages", "b")
    assert not State.load().is_done("extension", "a")


@pytest.mark.parametrize("content", ["", "{", "[1, 2]"])
def test_an_unreadable_state_means_that_nothing_is_done(tree: Path, content: str) -> None:
    setup.STATE.write_text(content)
    assert State.load().done == {}


@pytest.mark.parametrize("name", ["rust/core/lib.rs", "rust/core/new.rs", "Cargo.lock", "pyproject.toml"])
def test_a_changed_or_new_source_makes_the_extension_build_again(tree: Path, name: str) -> None:
    before = setup.source_fingerprint()
    assert setup.source_fingerprint() == before
    (tree / name).write_text("a longer text\n")
    assert setup.source_fingerprint() != before


def test_missing_tools_are_named_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert [line.partition(":")[0] for line in setup.missing_tools()] == ["rust", "a c compiler"]


def find_python(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    script = ROOT / "tools" / "find_python.sh"
    return subprocess.run(
        ["/bin/sh", str(script)],
        env={"PATH": f"{folder}:{os.defpath}", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def fake_interpreter(folder: Path, name: str, status: int, said: str = "") -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{said}'\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_an_interpreter_that_will_not_do_is_passed_over(tmp_path: Path) -> None:
    fake_interpreter(tmp_path, "python3", 1, "it is 3.9, 3.11 or later is needed")
    good = fake_interpreter(tmp_path, "python3.14", 0)
    assert find_python(tmp_path).stdout.strip() == str(good)


def test_without_an_interpreter_every_place_is_named(tmp_path: Path) -> None:
    old = fake_interpreter(tmp_path, "old-python", 1, "it is 3.9, 3.11 or later is needed")
    run = find_python(tmp_path, PYTHON="old-python no-python")
    assert run.returncode == 1
    assert f"{old}: it is 3.9, 3.11 or later is needed" in run.stderr
    assert "no-python: not on PATH" in run.stderr

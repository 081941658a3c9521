"""The choice of torch: order of the ways, for every kind of machine."""

import os
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from tools import torch_choice
from tools.torch_choice import Facts, attempts

BARE = Facts(
    version="2.13.0",
    pinned=False,
    minimum=(2, 11),
    installed=None,
    gpu=False,
    cpu_index=None,
    wheel_folders=(),
    linux=True,
    full=False,
)


def arguments(facts: Facts) -> list[tuple[str, ...]]:
    return [attempt.arguments for attempt in attempts(facts)]


def test_without_a_gpu_the_small_registry_way_comes_before_the_full_one() -> None:
    assert arguments(BARE) == [("--no-deps", "torch==2.13.0"), ("torch==2.13.0",)]


def test_a_cpu_index_comes_first_then_wheel_folders_then_the_registry() -> None:
    ways = arguments(replace(BARE, cpu_index="INDEX", wheel_folders=(Path("wheels"),)))
    assert [next(word for word in ("INDEX", "wheels", "torch==2.13.0") if word in way) for way in ways] == [
        "INDEX",
        "wheels",
        "torch==2.13.0",
        "torch==2.13.0",
    ]


def test_a_machine_with_a_gpu_gets_every_library_whatever_else_is_offered() -> None:
    facts = replace(BARE, gpu=True, cpu_index="INDEX", wheel_folders=(Path("wheels"),))
    assert arguments(facts) == [("torch==2.13.0",)]


@pytest.mark.parametrize("installed", ["2.11.0", "2.11.0+cu130", "2.15.0+cu132"])
def test_a_torch_that_is_new_enough_is_kept(installed: str) -> None:
    assert arguments(replace(BARE, installed=installed))[0] == ()


@pytest.mark.parametrize("installed", ["2.10.0", "2.9.1+cpu"])
def test_a_torch_that_is_too_old_is_replaced(installed: str) -> None:
    assert () not in arguments(replace(BARE, installed=installed))


def test_a_version_that_the_user_asks_for_replaces_another_and_keeps_its_own() -> None:
    asked = replace(BARE, version="2.11.0", pinned=True)
    assert () not in arguments(replace(asked, installed="2.13.0+cu130"))
    assert arguments(replace(asked, installed="2.11.0+cpu"))[0] == ()


def test_full_on_request_keeps_no_torch_whose_libraries_may_be_missing() -> None:
    assert arguments(replace(BARE, full=True, installed="2.13.0", cpu_index="INDEX")) == [("torch==2.13.0",)]


def test_stand_ins_are_allowed_only_where_there_is_no_gpu() -> None:
    assert not any(attempt.stubs for attempt in attempts(replace(BARE, gpu=True, installed="2.13.0")))
    assert attempts(replace(BARE, installed="2.13.0"))[0].stubs


def test_wheel_folders_are_those_of_pips_configuration_that_hold_this_torch(tmp_path: Path) -> None:
    for name, wheel in (("a", "torch-2.13.0+cpu-cp311-cp311-linux.whl"), ("b", "torch-2.12.0-cp311.whl")):
        (tmp_path / name).mkdir()
        (tmp_path / name / wheel).touch()
    config = f"global.timeout='60'\n:env:.find-links='{tmp_path / 'a'} {tmp_path / 'b'}'\n"
    config += f"install.find-links='{tmp_path / 'a'}'\nglobal.find-links='scheme://elsewhere/wheels'\n"
    assert torch_choice.wheel_folders(config, "2.13.0") == (tmp_path / "a",)


def test_installed_version_is_read_from_metadata_without_an_import(tmp_path: Path) -> None:
    assert torch_choice.installed_version(tmp_path) is None
    (tmp_path / "torch-2.13.0+cpu.dist-info").mkdir()
    assert torch_choice.installed_version(tmp_path) == "2.13.0+cpu"


def interpreter_with(folder: Path, torch_source: str) -> Path:
    """An interpreter that finds ``torch_source`` as its torch."""
    (folder / "torch.py").write_text(torch_source)
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}" exec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    return script


@pytest.mark.skipif(os.name != "posix", reason="makes a shell script")
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise OSError('libcudnn.so.9: cannot open shared object file')", "libcudnn"),
        ("raise ValueError('libcublasLt.so not found in the system path')", "libcublasLt"),
        ("import os; os._exit(3)", "exit status 3"),
        ("raise RuntimeError('numpy is too new')", "numpy is too new"),
    ],
)
def test_probe_reports_why_torch_does_not_work(tmp_path: Path, source: str, said: str) -> None:
    answer = torch_choice.probe(interpreter_with(tmp_path, source))
    assert answer["works"] is False
    assert said in str(answer["error"])


@pytest.mark.skipif(find_spec("torch") is None, reason="there is no torch in this environment")
def test_probe_accepts_the_torch_of_this_environment() -> None:
    answer = torch_choice.probe(Path(sys.executable))
    assert answer["works"] is True, answer

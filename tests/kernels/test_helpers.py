"""Processes that compile kernels: what they leave in the cache, and what happens without them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from frizzen.kernels.helpers import Helpers
from frizzen.kernels.triton import compiling, steps
from tests.kernels.compile_for_hopper import Device


@pytest.fixture(autouse=True)
def _described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is not here, and nothing compiled yet."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(driver, "_active", Device())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(compiling, "_load", lambda *_, **__: None)
    for kernel in (steps._largest, steps._largest_parts):
        monkeypatch.setattr(kernel, "device_caches", type(kernel.device_caches)(kernel.create_binder))


@pytest.fixture
def helpers() -> Iterator[Helpers]:
    started = Helpers.start(2)
    assert started is not None
    yield started
    started.close()


def compile_two(helpers: Helpers | None) -> None:
    with compiling.compile_only(2, helpers):
        steps.largest(torch.zeros(3, 50))


def binaries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.cubin"))


TWO = ["_largest.cubin", "_largest_parts.cubin"]


def test_what_is_not_in_the_cache_is_compiled_by_helpers(helpers: Helpers, tmp_path: Path) -> None:
    compile_two(helpers)
    assert binaries(tmp_path) == TWO
    assert sorted(name for _, name in helpers.compiled) == ["_largest", "_largest_parts"]
    assert str(helpers.summary()).startswith("2 kernels compiled")


def test_what_is_in_the_cache_is_asked_of_no_helper(helpers: Helpers, tmp_path: Path) -> None:
    compile_two(None)
    assert binaries(tmp_path) == TWO
    for kernel in (steps._largest, steps._largest_parts):
        kernel.device_caches.clear()
    compile_two(helpers)
    assert helpers.compiled == []
    assert helpers.summary() is None


def test_without_a_helper_that_answers_everything_is_compiled_here(tmp_path: Path) -> None:
    ours, theirs = Pipe()
    theirs.close()
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], os.environ)
    compile_two(Helpers([ours], child))
    assert binaries(tmp_path) == TWO


def test_a_kernel_that_has_no_name_to_find_it_by_is_left_to_this_process(helpers: Helpers) -> None:
    class Nameless:
        name = "nameless"

        def __reduce__(self) -> Any:
            raise TypeError("this cannot be sent")

    helpers.compile(Nameless(), GPUTarget("cuda", 90, 32), {})
    assert helpers.compiled == []
    assert helpers.summary() is None


def test_no_process_is_left_once_helpers_are_closed() -> None:
    helpers = Helpers.start(2)
    assert helpers is not None
    helpers.close()
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(30)
    with pytest.raises(ChildProcessError):
        os.waitpid(helpers._first, os.WNOHANG)

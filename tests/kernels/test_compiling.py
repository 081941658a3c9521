"""Compiling ahead on many threads."""

from __future__ import annotations

from types import SimpleNamespace

import pytest


def test_launchers_that_python_loads_into_one_module_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """An extension that is loaded again goes into the module of its name, which may be another's by then."""
    build = pytest.importorskip("triton.runtime.build")
    compiling = pytest.importorskip("frizzen.kernels.triton.compiling")
    shared = SimpleNamespace()

    def load(name: str, path: str) -> SimpleNamespace:
        shared.launch = path
        return shared

    monkeypatch.setattr(build, "_load_module_from_path", load)
    with compiling._modules_apart():
        one, other = (build._load_module_from_path("launcher", path) for path in ("one", "other"))
    assert (one.launch, other.launch) == ("one", "other")
    assert build._load_module_from_path is load

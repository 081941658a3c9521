"""Applies to every test: the quarantine list, and the skipping of ``gpu`` tests where there is no device."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester", "tools.quarantine_pytest"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests marked ``gpu`` where there is no CUDA device; imports torch only for such tests."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="there is no cuda device"))

"""Where a start begins: without torch, so that what takes long begins before torch is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frizzen.collection import without_collection
from frizzen.config import EngineConfig
from frizzen.worker.ahead import Ahead

if TYPE_CHECKING:
    from frizzen.worker.worker import Worker

__all__ = ["build"]


def build(config_json: str) -> Worker:
    """Builds the worker for an ``EngineConfig`` in JSON, on the calling thread; see ``launch.build``."""
    # Python's collector would look at all that is imported again and again.
    with without_collection(), Ahead(EngineConfig.from_json(config_json)) as ahead:
        from frizzen.worker import launch

        ahead.timeline.mark("import")
        return launch.build(config_json, ahead)

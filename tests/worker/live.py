"""The live set of a step on a GPU that is only described: shapes without data, launches of nothing."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from frizzen.kernels.facts import Machine, detect_machine
from frizzen.kernels.plan import PlanBuilder, default_registry
from frizzen.loading.load import LoadRequest, load_model
from frizzen.models.base import CausalLM
from frizzen.worker.warmup import step_of

GRAIN = 512
"""Bytes that torch's allocator on a GPU rounds up to."""


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that are made while it is on, for as long as they live."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def _gone(self, key: int) -> None:
        self.now -= self._sizes.pop(key)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if not isinstance(tensor, torch.Tensor):
                continue
            storage = tensor.untyped_storage()
            if (key := storage._cdata) not in self._sizes:
                self._sizes[key] = -(-storage.nbytes() // GRAIN) * GRAIN
                self.now += self._sizes[key]
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._gone, key)
        return made


def live_bytes(path: Path, tokens: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Most bytes of one prompt of ``tokens`` through the model, its weights and cache aside."""
    from triton.runtime.jit import JITFunction

    from frizzen.kernels.triton.launch import Target

    monkeypatch.setattr(JITFunction, "run", lambda *_, **__: None)
    monkeypatch.setattr(Target, "of", classmethod(lambda *_, **__: Target(dependent=True, processors=132)))
    packages = {"triton": "3.6.0"} | dict(detect_machine("cpu").packages)
    machine = Machine("cuda", frozenset({"sm_90"}), 1, tuple(packages.items()))
    request = LoadRequest(model=str(path), load_format="dummy", device="meta", dtype="bfloat16")
    model = load_model(request, PlanBuilder(default_registry(), machine))
    assert isinstance(model, CausalLM)
    model.allocate_kv(4, 16)
    ids, step = step_of([tokens], tokens, -(-tokens // 16), torch.device("meta"), 16)
    with torch.inference_mode(), LiveBytes() as live:
        model.forward(ids, step)
    return live.peak

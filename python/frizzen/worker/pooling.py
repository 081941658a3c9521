"""Runs the steps of a model whose result is a vector per text."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from frizzen.models.pooling import PoolingModel
from frizzen.worker.arena import Results
from frizzen.worker.inputs import step_inputs
from frizzen.worker.pooler import Pooler
from frizzen.worker.worker import Worker

__all__ = ["PoolingWorker"]


class PoolingWorker(Worker):
    """The torch worker of a model that pools: where another samples, a row has its vector."""

    def __init__(
        self,
        model: PoolingModel,
        info: dict[str, Any],
        device: torch.device,
        late_compiles: Counter[str] | None = None,
    ) -> None:
        super().__init__(model, info, device, late_compiles=late_compiles)
        self._pooler = Pooler(model.pooling.kind, model.config.hidden_size, model.logits, self._batch, device)

    @torch.inference_mode()
    def submit(self, index: int) -> None:
        """Starts the step in arena ``index``; on a CPU it is done on return. Raises as ``Worker.submit``."""
        arena = self._arenas[index]
        header = arena.header()
        arena.upload(admissions=header.num_admits > 0)
        self._batch.update(arena, header)
        ids, step = step_inputs(arena, header, self._batch, self._block_size)
        rows = self._pooler.begin(arena, header, step)
        hidden = self._model.forward(ids, step)
        results = arena.device
        results.num_sampled[: header.num_rows].zero_()
        results.row_status[: header.num_rows].zero_()
        self._pooler.finish(hidden, rows, arena, header, step)
        arena.download(Results(0), header.num_tokens if header.token_vectors else 0)
        self._submitted.append(index)

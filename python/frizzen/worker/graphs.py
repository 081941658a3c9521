"""CUDA graphs of steps: the same call as without them, replayed where a graph serves the step.

``Runner`` is all that the worker knows. A ``GraphRunner`` belongs to one function of (ids, step), the model's
forward pass or a drafter's; it owns the static inputs, and with every graph its static output. A step that
no graph serves, or whose graph is not captured yet, runs the function itself.

What must hold:

* the function neither waits for the device nor depends on anything but its arguments' sizes and addresses;
* steps run in one stream, one after the other: static buffers, and the memory that graphs share, are free
  again when the next step begins;
* padding is inert: its KV goes to the null block, its rows have no context, ``valid`` keeps it from experts.

Graphs are captured between steps: at once the one that a step has just missed (its step is being computed
meanwhile), the others while the engine is idle, or in a small part of its time while it is not.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from frizzen.parallel.streams import CAPTURE, Streams
from frizzen.step import StepContext
from frizzen.worker.arena import Sections, num_tokens
from frizzen.worker.lattice import Lattice, Shape, bucket

__all__ = ["Capture", "CudaCapture", "Graph", "GraphRunner", "Replayed", "Runner", "StepBuffers"]

Forward = Callable[[torch.Tensor, StepContext], torch.Tensor]

_BUSY_SHARE = 20
"""A busy engine spends at most one part of so many on graphs that no step has asked for."""


class Runner(Protocol):
    """Computes steps."""

    def forward(self, input_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        """Hidden states ``[T, H]`` of the ids int64 ``[T]``; valid until the next step."""


class Graph(NamedTuple):
    """Captured work."""

    replay: Callable[[], object]
    output: torch.Tensor
    """Where every replay leaves its result."""


class Capture(Protocol):
    """Makes graphs."""

    @property
    def held_bytes(self) -> int:
        """Device memory that the graphs hold: their pool, and what the driver keeps of them."""

    def __call__(self, work: Callable[[], torch.Tensor]) -> Graph:
        """Captures ``work``, which computes nothing yet. What ``work`` raises, this raises."""


class Replayed(NamedTuple):
    """A step that a graph has computed: its inputs and its result are at fixed addresses."""

    shape: Shape
    output: torch.Tensor
    """``[shape.tokens, ...]``, padding included."""


class CudaCapture:
    """Captures on a stream of its own, without waiting for the device.

    All graphs share one pool of memory, so they must not run at the same time.
    """

    def __init__(self, streams: Streams) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._streams = streams
        self._held = 0

    @property
    def held_bytes(self) -> int:
        """See ``Capture``; by what the device had less of after a capture than before."""
        return self._held

    def __call__(self, work: Callable[[], torch.Tensor]) -> Graph:
        """See ``Capture``."""
        graph = torch.cuda.CUDAGraph()
        free = torch.cuda.mem_get_info()[0]
        with self._streams.switch(CAPTURE):
            # Of this thread alone: others may do to the device what they want.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                output = work()
            except BaseException:
                with contextlib.suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
        self._held += max(free - torch.cuda.mem_get_info()[0], 0)
        return Graph(graph.replay, output)


@dataclass(frozen=True, slots=True)
class StepBuffers:
    """Inputs of steps at fixed addresses, as large as the largest graph needs at least."""

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    query_start: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    """``[rows, blocks]``; the blocks of one row beside those of the next."""
    valid: torch.Tensor

    @classmethod
    def allocate(
        cls,
        *,
        max_rows: int,
        max_tokens: int,
        max_blocks: int,
        device: torch.device,
        plan: Sections | None = None,
    ) -> StepBuffers:
        """Buffers for steps; some of them are ``plan``, if all steps are uploaded to there anyway."""

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            ids=zeros(max_tokens),
            positions=zeros(max_tokens),
            slots=plan.slots if plan else zeros(max_tokens),
            query_start=plan.query_start if plan else zeros(max_rows + 1, dtype=torch.int32),
            seq_lens=plan.seq_lens if plan else zeros(max_rows, dtype=torch.int32),
            block_table=zeros(max_rows, max_blocks, dtype=torch.int32),
            valid=num_tokens(plan) if plan else zeros(1, dtype=torch.int32),
        )

    def step(self, shape: Shape) -> StepContext:
        """The step that a graph of ``shape`` computes."""
        rows, tokens = shape.rows, shape.tokens
        return StepContext(
            positions=self.positions[:tokens],
            slots=self.slots[:tokens],
            query_start=self.query_start[: rows + 1],
            seq_lens=self.seq_lens[:rows],
            block_table=self.block_table[:rows],
            num_rows=rows,
            num_single=rows if shape.width == 1 else 0,
            num_tokens=tokens,
            max_query=shape.width,
            max_context=shape.context,
            valid=self.valid,
        )

    def load(self, ids: torch.Tensor, step: StepContext, shape: Shape) -> None:
        """Brings a step here, unless it is here already, and pads it up to ``shape``."""
        rows, tokens = step.num_rows, step.num_tokens
        for target, source, filled in (
            (self.ids, ids, shape.tokens),
            (self.positions, step.positions, shape.tokens),
            (self.slots, step.slots, shape.tokens),
            (self.seq_lens, step.seq_lens, shape.rows),
        ):
            _bring(source, target)
            if filled > len(source):
                target[len(source) : filled].zero_()
        _bring(step.query_start, self.query_start)
        if shape.rows > rows:
            # Rows of the full width, which have no context: their attention is zero.
            torch.arange(
                tokens + shape.width,
                tokens + shape.width * (shape.rows - rows) + 1,
                shape.width,
                dtype=torch.int32,
                device=ids.device,
                out=self.query_start[rows + 1 : shape.rows + 1],
            )
        if step.block_table.data_ptr() != self.block_table.data_ptr():
            self.block_table[:rows, : step.block_table.shape[1]].copy_(step.block_table)
        if step.valid is None:
            self.valid.fill_(tokens)
        else:
            _bring(step.valid, self.valid)


def _bring(source: torch.Tensor, target: torch.Tensor) -> None:
    if source.data_ptr() != target.data_ptr():
        target[: len(source)].copy_(source)


class GraphRunner:
    """Runs one function of (ids, step) by graphs of the shapes of ``lattice``.

    Args:
        forward: The function; its result's first dimension is the tokens.
        lattice: Which shapes to capture.
        buffers: Static inputs.
        capture: Makes a graph.
        clock: Seconds.

    Attributes:
        buffers: The static inputs; those of the last step and its padding, if a graph computed it.
        replayed: The last step, if a graph computed it.
    """

    def __init__(
        self,
        forward: Forward,
        lattice: Lattice,
        buffers: StepBuffers,
        capture: Capture,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._forward = forward
        self._lattice = lattice
        self.buffers = buffers
        self.replayed: Replayed | None = None
        self.capture = capture
        self._clock = clock
        self._graphs: dict[Shape, Graph] = {}
        self._missing = dict.fromkeys(lattice.shapes())
        self._missed: Shape | None = None
        self._rest_until = clock()
        self._seconds = 0.0
        self.failure: str | None = None
        """Why no more graphs are captured, if one could not be."""
        self.graph_steps = 0
        self.eager_steps: Counter[str] = Counter()
        """Steps without a graph, by ``lattice.bucket``."""

    def forward(self, input_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        """See ``Runner``."""
        shape = self._lattice.fit(step)
        graph = self._graphs.get(shape) if shape is not None else None
        if shape is None or graph is None:
            self._missed, self.replayed = shape, None
            self.eager_steps[bucket(step)] += 1
            return self._forward(input_ids, step)
        self.buffers.load(input_ids, step, shape)
        graph.replay()
        self.graph_steps += 1
        self.replayed = Replayed(shape, graph.output[: shape.tokens])
        return graph.output[: step.num_tokens]

    def after_step(self) -> None:
        """Captures what the last step missed; if it missed nothing, now and then what is next."""
        missed, self._missed = self._missed, None
        if missed is not None:
            self._capture_shape(missed)
        elif self._missing and self._clock() > self._rest_until:
            self.capture_next()

    def capture_next(self) -> bool:
        """Captures the largest shape that is left, if any; whether there are more."""
        if self._missing and self.failure is None:
            self._capture_shape(next(iter(self._missing)))
        return bool(self._missing) and self.failure is None

    @property
    def held_bytes(self) -> int:
        """Device memory of the graphs that are there."""
        return self.capture.held_bytes

    def state(self) -> dict[str, Any]:
        """What there is, for ``Worker.control``."""
        return {
            "captured": [list(shape) for shape in self._graphs],
            "missing": len(self._missing),
            "capture_seconds": round(self._seconds, 3),
            "held_bytes": self.held_bytes,
            "failure": self.failure,
        }

    def _capture_shape(self, shape: Shape) -> None:
        if shape not in self._missing or self.failure is not None:
            return
        started = self._clock()
        tokens, step = self.buffers.ids[: shape.tokens], self.buffers.step(shape)
        try:
            self._graphs[shape] = self.capture(lambda: self._forward(tokens, step))
        # Whatever it is, the step without a graph serves as well, only slower; the reason is kept and shown.
        except Exception as error:  # noqa: BLE001
            self.failure = f"{shape}: {type(error).__name__}: {error}".splitlines()[0]
            sys.stderr.write(f"no more CUDA graphs, steps without one are launched; {self.failure}\n")
            return
        del self._missing[shape]
        took = self._clock() - started
        self._seconds += took
        self._rest_until = started + took * _BUSY_SHARE

"""CUDA graphs of steps: a step that one of them serves is replayed, any other is launched.

A ``GraphRunner`` belongs to one function of (ids, step), the model's forward pass. Its graphs begin with
bringing the plan's step to fixed addresses (``buffers``), and each leaves its result in a static output.

What must hold:

* the function neither waits for the device nor depends on anything but its arguments' sizes and addresses;
* steps run in one stream, one after the other: static buffers, and the memory that graphs share, are free
  again when the next step begins;
* padding is inert, see ``buffers``.

Graphs are captured between steps: at once the one that a step has just missed (its step is being computed
meanwhile), the others while the engine is idle, or in a small part of its time while it is not.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from frizzen.parallel.streams import CAPTURE, Streams
from frizzen.step import StepContext
from frizzen.worker.buffers import StepBuffers
from frizzen.worker.lattice import Lattice, Shape, StepSizes, bucket

__all__ = ["Capture", "CudaCapture", "Graph", "GraphRunner", "Replayed"]

Forward = Callable[[torch.Tensor, StepContext], torch.Tensor]

_BUSY_SHARE = 20
"""A busy engine spends at most one part of so many on graphs that no step has asked for."""


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

    def replay(self, step: StepSizes) -> torch.Tensor | None:
        """Computes the step that the plan holds, if there is a graph for its sizes: its result ``[T, ...]``.

        The result is valid until the next step.
        """
        shape = self._lattice.fit(step)
        graph = self._graphs.get(shape) if shape is not None else None
        if shape is None or graph is None:
            self._missed, self.replayed = shape, None
            self.eager_steps[bucket(step)] += 1
            return None
        graph.replay()
        self.graph_steps += 1
        self.replayed = Replayed(shape, graph.output[: shape.tokens])
        return graph.output[: step.num_tokens]

    def after_step(self) -> bool:
        """Captures what the last step missed; if it missed nothing, now and then what is next.

        Returns whether it did: then the step took longer than the next one like it will.
        """
        captured = len(self._graphs)
        missed, self._missed = self._missed, None
        if missed is not None:
            self._capture_shape(missed)
        elif self._missing and self._clock() > self._rest_until:
            self.capture_next()
        return len(self._graphs) > captured

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
        try:
            self._graphs[shape] = self.capture(lambda: self._compute(shape))
        # Whatever it is, the step without a graph serves as well, only slower; the reason is kept and shown.
        except Exception as error:  # noqa: BLE001
            self.failure = f"{shape}: {type(error).__name__}: {error}".splitlines()[0]
            sys.stderr.write(f"no more CUDA graphs, steps without one are launched; {self.failure}\n")
            return
        del self._missing[shape]
        took = self._clock() - started
        self._seconds += took
        self._rest_until = started + took * _BUSY_SHARE

    def _compute(self, shape: Shape) -> torch.Tensor:
        self.buffers.fill(shape)
        return self._forward(self.buffers.ids[: shape.tokens], self.buffers.step(shape))

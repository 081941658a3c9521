"""The one owner of a device's streams: they are made at the start, and switching waits both ways.

A stream of a pool is ordered with nothing by itself, the default stream included: work on it may read what
the stream before it has not written yet, and the text then comes out plausible and wrong. So:

* streams are made once, by the constructor, while nothing is computed; a look-up makes and changes nothing;
* work beside the current stream starts only after all that the current stream was given before, and what the
  current stream is given afterwards starts only after that work;
* both waits are events of the two streams and not of the host, so that a region may be captured into a graph,
  fork and join inside the same capture;
* nobody else switches streams (a rule of ``tools.source_rules``).

That order is also what keeps memory safe without ``record_stream``. An allocator gives a block out again in
the order of the stream it came from: what the current stream frees after a region, the side has read; what
the side frees, it is given again only after a later fork, when the current stream has read it. What must hold
is that a tensor which the side reads stays referenced until the region ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

import torch

__all__ = ["CAPTURE", "NO_STREAMS", "SHARED_EXPERTS", "Beside", "Stream", "StreamApi", "Streams"]

SHARED_EXPERTS = "shared_experts"
"""The stream of what every token visits, beside the routed experts."""
CAPTURE = "capture"
"""The stream on which graphs are captured."""

T = TypeVar("T")


class Stream(Protocol):
    """As much of ``torch.cuda.Stream`` as is needed."""

    def wait_stream(self, stream: Any) -> None:
        """Everything that comes later starts after all that ``stream`` was given so far."""


class StreamApi(Protocol):
    """As much of ``torch.cuda`` as is needed: a test can stand in for it."""

    def new(self, device: torch.device) -> Stream:
        """A stream of its own."""

    def current(self, device: torch.device) -> Stream:
        """The calling thread's; changes nothing."""

    def using(self, stream: Stream) -> AbstractContextManager[Any]:
        """Makes it the calling thread's for a while. Orders nothing."""


class _Cuda:
    def new(self, device: torch.device) -> Stream:
        return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def current(self, device: torch.device) -> Stream:
        return torch.cuda.current_stream(device)

    def using(self, stream: Any) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)


class Beside(Protocol):
    """Runs work beside the current stream."""

    def __call__(self, work: Callable[[], T], /) -> T:
        """What ``work`` returns; the current stream may use it once the region has ended."""


class Streams:
    """The streams of one device. On a device without streams everything runs where it stands.

    Args:
        device: Where the model computes.
        names: Of the streams to make.
        api: Stands for ``torch.cuda`` in tests.
    """

    def __init__(
        self,
        device: torch.device,
        names: Sequence[str] = (SHARED_EXPERTS, CAPTURE),
        api: StreamApi | None = None,
    ) -> None:
        self.device = device
        self._names = tuple(names)
        self._api = api or (_Cuda() if device.type == "cuda" else None)
        self._streams = {name: self._api.new(device) for name in names} if self._api else {}

    def get(self, name: str) -> Stream | None:
        """A stream by its name; None on a device without streams.

        Raises:
            KeyError: no stream of that name was made.
        """
        if name not in self._names:
            raise KeyError(f"there is no stream {name!r}; there are {', '.join(self._names)}")
        return self._streams.get(name)

    @contextmanager
    def beside(self, name: str) -> Iterator[Beside]:
        """A region in which work can run on a stream of its own, beside what the region's body does.

        The stream waits for the current one at the region's start, and the current one for the stream at its
        end, after an exception too.
        """
        side = self.get(name)
        if side is None or self._api is None:
            yield _here
            return
        api, main = self._api, self._api.current(self.device)
        if main is side:
            raise RuntimeError(f"the stream {name} is the current one already: regions of one do not nest")

        def run(work: Callable[[], T]) -> T:
            with api.using(side):
                return work()

        side.wait_stream(main)
        try:
            yield run
        finally:
            main.wait_stream(side)

    @contextmanager
    def switch(self, name: str) -> Iterator[None]:
        """The body runs on a stream of its own, after all that came before, before all that comes after."""
        side = self.get(name)
        with self.beside(name):
            if side is None or self._api is None:
                yield
                return
            with self._api.using(side):
                yield


NO_STREAMS = Streams(torch.device("cpu"))
"""Everything runs where it stands."""


def _here(work: Callable[[], T], /) -> T:
    return work()

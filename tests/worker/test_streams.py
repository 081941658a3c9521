"""Streams: made once, and never left or entered without a wait; on a GPU, wrong results without one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from frizzen.parallel.streams import SHARED_EXPERTS, Streams

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


class RecordedStream:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self._log = name, log

    def wait_stream(self, stream: RecordedStream) -> None:
        self._log.append(f"{self.name} waits for {stream.name}")


class RecordingApi:
    """Stands in for ``torch.cuda``; the current stream is a thread's own, as there."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.made: list[RecordedStream] = []
        self._local = threading.local()

    def new(self, device: torch.device) -> RecordedStream:
        self.made.append(RecordedStream(f"side{len(self.made)}", self.log))
        return self.made[-1]

    def current(self, device: torch.device) -> RecordedStream:
        if not hasattr(self._local, "stream"):
            self._local.stream = RecordedStream(threading.current_thread().name, self.log)
        return self._local.stream  # type: ignore[no-any-return]

    @contextmanager
    def using(self, stream: RecordedStream) -> Iterator[None]:
        before = self.current(CUDA)
        self._local.stream = stream
        self.log.append(f"on {stream.name}")
        try:
            yield
        finally:
            self._local.stream = before
            self.log.append(f"on {before.name}")


def recorded() -> tuple[Streams, RecordingApi, list[str]]:
    api = RecordingApi()
    return Streams(CUDA, ["a", "b"], api), api, api.log


def test_a_getter_makes_no_stream_and_switches_none() -> None:
    streams, api, log = recorded()
    made = list(api.made)
    assert streams.get("a") is streams.get("a") is made[0]
    assert (api.made, log) == (made, [])
    with pytest.raises(KeyError, match="there is no stream 'c'; there are a, b"):
        streams.get("c")


def test_a_switch_waits_before_it_and_after_it() -> None:
    streams, _, log = recorded()
    main = threading.current_thread().name
    with streams.switch("a"):
        log.append("work")
    assert log == [
        f"side0 waits for {main}",
        "on side0",
        "work",
        f"on {main}",
        f"{main} waits for side0",
    ]


def test_work_beside_starts_after_what_came_before_and_ends_before_what_comes_after() -> None:
    streams, _, log = recorded()
    main = threading.current_thread().name
    log.append("before")
    with streams.beside("b") as run:
        assert run(lambda: log.append("beside")) is None
        log.append("meanwhile")
    log.append("after")
    assert log == [
        "before",
        f"side1 waits for {main}",
        "on side1",
        "beside",
        f"on {main}",
        "meanwhile",
        f"{main} waits for side1",
        "after",
    ]


def test_an_error_in_a_region_still_joins_the_streams() -> None:
    streams, _, log = recorded()
    main = threading.current_thread().name
    with pytest.raises(ValueError, match="wrong"), streams.beside("a") as run:
        run(lambda: int("wrong"))
    assert log[-2:] == [f"on {main}", f"{main} waits for side0"]


def test_a_stream_cannot_be_beside_itself() -> None:
    streams, _, _ = recorded()
    with (
        streams.switch("a"),
        pytest.raises(RuntimeError, match="the stream a is the current one already"),
        streams.beside("a"),
    ):
        pass


def test_each_thread_waits_for_its_own_stream() -> None:
    streams, _, log = recorded()

    def work() -> None:
        with streams.switch("b"):
            pass

    thread = threading.Thread(target=work, name="other")
    with streams.switch("a"):
        thread.start()
        thread.join()
    main = threading.current_thread().name
    assert [line for line in log if "waits" in line] == [
        f"side0 waits for {main}",
        "side1 waits for other",
        "other waits for side1",
        f"{main} waits for side0",
    ]


def test_a_device_without_streams_runs_everything_where_it_stands() -> None:
    streams = Streams(CPU)
    assert streams.get(SHARED_EXPERTS) is None
    with streams.beside(SHARED_EXPERTS) as run, streams.switch(SHARED_EXPERTS):
        assert run(lambda: 5) == 5
    with pytest.raises(KeyError), streams.beside("other"):
        pass


def _stale_reads(streams: Streams) -> int:
    """Zeros that a stream copies from a buffer which the default stream fills with ones after a wait."""
    size = 1 << 20
    # Made first: an allocation would synchronise and hide the fault.
    buffer, copy = torch.zeros(size, device=CUDA), torch.full((size,), 2.0, device=CUDA)
    found = [int((copy != 1).sum().item())]

    def work() -> None:
        torch.cuda._sleep(200_000_000)
        buffer.fill_(1)
        with streams.switch(SHARED_EXPERTS):
            torch.cuda._sleep(100_000_000)
            copy.copy_(buffer)
        # On the default stream: it must wait for the copy.
        found.append(int((copy != 1).sum().item()))

    torch.cuda.synchronize()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found[-1]


@pytest.mark.gpu
def test_a_stream_does_not_read_what_is_not_written_yet() -> None:
    assert _stale_reads(Streams(CUDA)) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("side_waits", [True, False])
def test_without_one_of_the_waits_it_does(side_waits: bool) -> None:
    """The test above means something only if this fault can be seen."""
    streams = Streams(CUDA)
    side: Any = streams.get(SHARED_EXPERTS)

    class Forgetful:
        def __getattr__(self, name: str) -> Any:
            return getattr(side, name)

        def wait_stream(self, stream: torch.cuda.Stream) -> None:
            if side_waits:
                side.wait_stream(stream)

    class ForgetfulApi:
        def current(self, device: torch.device) -> Any:
            main = torch.cuda.current_stream(device)
            return main if not side_waits else _Deaf(main)

        def using(self, stream: Any) -> Any:
            return torch.cuda.stream(side)

    streams._streams[SHARED_EXPERTS] = Forgetful()  # type: ignore[assignment]
    streams._api = ForgetfulApi()  # type: ignore[assignment]
    assert _stale_reads(streams) > 0


class _Deaf:
    """A stream that waits for nobody; others can wait for it."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def wait_stream(self, stream: Any) -> None:
        pass


@pytest.mark.gpu
def test_a_region_can_be_captured_and_replayed() -> None:
    streams = Streams(CUDA)
    x = torch.arange(8, device=CUDA, dtype=torch.float32)

    def both() -> torch.Tensor:
        with streams.beside(SHARED_EXPERTS) as run:
            doubled = run(lambda: x * 2)
            squared = x * x
        return squared.add_(doubled)

    both()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = both()
    x.add_(1)
    graph.replay()
    torch.testing.assert_close(out, x * x + 2 * x)

"""Times work on the GPU as a captured graph runs it, and writes results down."""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch

__all__ = ["DEVICE", "Work", "capture", "graph_seconds", "merge_results", "write_results"]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Where the benchmarks make their tensors; on a CPU nothing is timed, but all of it can be run once."""

Work = Callable[[], object]


def capture(work: Sequence[Work], warm_up: int = 1) -> torch.cuda.CUDAGraph:
    """One graph of all of ``work``, run before so that nothing is compiled during the capture."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm_up):
            for call in work:
                call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in work:
            call()
    return graph


def graph_seconds(work: Sequence[Work], replays: int = 15) -> float:
    """Median time of one replay of all of ``work``, divided by their number.

    Give as many calls as it takes that their data exceeds the L2 cache (60 MB on an H200).
    """
    graph = capture(work)
    graph.replay()
    times: list[float] = []
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    graph.reset()
    return median(times) / len(work)


def write_results(path: Path, module: str, rows: Sequence[dict[str, object]]) -> None:
    """Writes ``rows``, the machine, and the command: ``module`` with this process's arguments.

    But for ``--out``: where the file was put says nothing.
    """
    machine = {"torch": torch.__version__, "python": platform.python_version()}
    if torch.cuda.is_available():
        import triton

        machine |= {"gpu": torch.cuda.get_device_name(), "triton": triton.__version__}
    command = re.sub(r" --out[ =]\S+", "", " ".join(["python", "-m", module, *sys.argv[1:]]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"command": command, "machine": machine, "results": list(rows)}, indent=1) + "\n"
    )


def merge_results(path: Path, parts: Sequence[Path]) -> None:
    """Writes the rows of several runs of one benchmark as those of one, in their order.

    Raises:
        ValueError: the runs were made with different versions or kinds of device.
    """
    read = [json.loads(part.read_text()) for part in parts]
    for part, one in zip(parts, read, strict=True):
        if one["machine"] != read[0]["machine"]:
            raise ValueError(f"{part} is of {one['machine']}, {parts[0]} of {read[0]['machine']}")
    merged = {
        "command": "; ".join(one["command"] for one in read),
        "machine": read[0]["machine"],
        "results": [row for one in read for row in one["results"]],
    }
    path.write_text(json.dumps(merged, indent=1) + "\n")

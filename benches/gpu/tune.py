"""Times tiles of the Triton kernels on the default shape; the tables in ``frizzen.kernels.triton`` come from it.

Every combination is compiled first, by as many processes as there are cores, into Triton's cache on disk; then all are
timed one after the other.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor

from benches.gpu.shape import QWEN3_30B_A3B as SHAPE
from benches.gpu.timing import DEVICE, graph_seconds, write_results
from frizzen.kernels.facts import Facts, detect_machine

__all__ = ["Trial", "trials"]

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Trial:
    """One combination: what it is, and the work, made when it is needed."""

    group: str
    label: str
    make: Callable[[int], list[Work]]
    """Given a number of calls, that many calls on different memory."""
    calls: int


def _normal(*size: int) -> Tensor:
    return torch.empty(size, dtype=torch.bfloat16, device=DEVICE).normal_(std=size[-1] ** -0.5)


def _facts(**shape: int | float | bool | str) -> Facts:
    return Facts.of(detect_machine(DEVICE), torch.bfloat16, shape)


def _linear(name: str, size_out: int, size_in: int, tokens: int) -> Iterator[Trial]:
    from frizzen.kernels.triton.launch import Target
    from frizzen.kernels.triton.linear import Skinny, Tile

    target = Target.of(_facts())
    if tokens == 1:
        tiles = [Tile(*cut, 1) for cut in itertools.product((1, 2, 4), (2048, 4096), (2, 4, 8)) if cut[1] <= size_in]
    else:
        tiles = [Tile(64, 128, 4, *cut) for cut in itertools.product((3, 4, 6), (1, 2, 4, 8)) if cut[1] * 512 <= size_in]
    for tile in tiles:

        def make(calls: int, tile: Tile = tile) -> list[Work]:
            skinny = Skinny.of(size_in, size_out, target, DEVICE)
            x, out = _normal(tokens, size_in), torch.empty(tokens, size_out, dtype=torch.bfloat16, device=DEVICE)
            weights = [_normal(size_out, size_in) for _ in range(calls)]
            if tokens == 1:
                return [lambda weight=weight: skinny.one(x, weight, None, out, tile, None) for weight in weights]
            return [lambda weight=weight: skinny.few(x, weight, None, out, tile) for weight in weights]

        yield Trial(f"{name} T={tokens}", str(tuple(tile)), make, 2 if size_out > 100_000 else 12)
    torch_make = _torch_linear(size_out, size_in, tokens)
    yield Trial(f"{name} T={tokens}", "torch", torch_make, 2 if size_out > 100_000 else 12)


def _torch_linear(size_out: int, size_in: int, tokens: int) -> Callable[[int], list[Work]]:
    def make(calls: int) -> list[Work]:
        x = _normal(tokens, size_in)
        weights = [_normal(size_out, size_in) for _ in range(calls)]
        return [lambda weight=weight: torch.nn.functional.linear(x, weight) for weight in weights]

    return make


def _experts_work(tokens: int, run: Callable[..., object]) -> Callable[[int], list[Work]]:
    """Calls of one way to compute the experts, as a function of (kernel, layer, x, weights, ids)."""
    from frizzen.kernels.triton.moe import Layer, MoeExperts

    def make(calls: int) -> list[Work]:
        kernel = MoeExperts.build(
            _facts(
                hidden=SHAPE.hidden,
                intermediate=SHAPE.intermediate,
                experts=SHAPE.experts,
                top_k=SHAPE.top_k,
                clamp=0.0,
                alpha=1.0,
                beta=0.0,
            )
        )
        w13 = _normal(SHAPE.experts, 2 * SHAPE.intermediate, SHAPE.hidden)
        w2 = _normal(SHAPE.experts, SHAPE.hidden, SHAPE.intermediate)
        layer, x = Layer(w13, w2, None, None), _normal(tokens, SHAPE.hidden)
        works: list[Work] = []
        for call in range(calls):
            generator = torch.Generator(DEVICE).manual_seed(call)
            scores = torch.rand(tokens, SHAPE.experts, generator=generator, device=DEVICE)
            weights, ids = scores.topk(SHAPE.top_k)
            works.append(lambda weights=weights, ids=ids.int(): run(kernel, layer, x, weights, ids))
        return works

    return make


def _experts(tokens: int) -> Iterator[Trial]:
    from frizzen.kernels.triton.moe import ManyTile, OneTile, Tile, few_tiles, many_tiles, one_tiles

    group = f"experts T={tokens}"
    if tokens == 1:
        base = one_tiles(SHAPE.hidden, SHAPE.intermediate, SHAPE.top_k)
        if base is None:
            return
        for rows, steps, warps, stages in itertools.product((1, 2, 4), (2, 4, 6), (4, 8), (2, 3, 4)):
            tile = OneTile(rows, steps, warps, stages)
            places = [("up", (tile, base[1]))]
            if rows == 1:
                places.append(("down", (base[0], tile)))
            for place, pair in places:

                def one(k, layer, x, weights, ids, pair=pair):  # type: ignore[no-untyped-def]
                    return k.one(layer, x, weights, ids, *pair)

                yield Trial(f"{group} {place}", f"one {tuple(tile)}", _experts_work(tokens, one), 8)
        return
    if tokens <= 512:
        few_base = few_tiles(tokens, SHAPE.top_k, SHAPE.experts, torch.bfloat16)
        m = few_base[0].m
        cuts = [(True, 64, 64, 4, s) for s in (3, 4, 5)] + [(True, 64, 128, 4, s) for s in (2, 3, 4)]
        cuts += [(False, rows, columns, 4, s) for rows in (32, 64) for columns in (64, 128) for s in (3, 4)]
        cuts += [(True, 128, 64, 8, 3), (True, 128, 64, 4, 3), (False, 16, 256, 4, 3), (False, 32, 256, 4, 3)]
        for swap, rows, columns, warps, stages in cuts:
            few_tile = Tile(swap, m, rows, columns, warps, stages)
            for place, pair in (("up", (few_tile, few_base[1])), ("down", (few_base[0], few_tile))):

                def few(k, layer, x, weights, ids, pair=pair):  # type: ignore[no-untyped-def]
                    return k.few(layer, x, weights, ids, *pair)

                yield Trial(f"{group} {place}", f"few {tuple(few_tile)}", _experts_work(tokens, few), 4)
        return
    m, *many_base = many_tiles(tokens, SHAPE.top_k, SHAPE.experts, torch.bfloat16)
    heights = {m, 64 if m == 128 else m}
    for height, rows, columns, band, warps, stages in itertools.product(
        heights, (64, 128, 256), (64,), (4, 16), (4, 8), (3, 4)
    ):
        if height * rows > 128 * 256 or height * rows / warps > 4096 or (band == 4 and rows != 128):
            continue
        many_tile = ManyTile(rows, columns, band, warps, stages)
        many_places = [("down", (many_base[0], many_tile))]
        if height * rows / warps <= 2048:
            many_places.append(("up", (many_tile, many_base[1])))
        for place, many_pair in many_places:

            def many(k, layer, x, weights, ids, pair=many_pair, height=height):  # type: ignore[no-untyped-def]
                return k.many(layer, x, weights, ids, height, *pair)

            yield Trial(f"{group} {place}", f"many {height} {tuple(many_tile)}", _experts_work(tokens, many), 2)


def _attention(rows: int, context: int, query: int) -> Iterator[Trial]:
    from benches.gpu.step import BLOCK_SIZE, decode_context, prefill_context
    from frizzen.kernels.triton.attention import PagedAttention, Tile

    if query == 1:
        tiles = [Tile(16, *cut) for cut in itertools.product((32, 64, 128), (2, 4), (2, 3, 4))]
    else:
        tiles = [Tile(*cut) for cut in itertools.product((64, 128), (64, 128), (4, 8), (2, 3))]
    for tile in tiles:

        def make(calls: int, tile: Tile = tile) -> list[Work]:
            facts = _facts(
                heads=SHAPE.heads,
                kv_heads=SHAPE.kv_heads,
                head_dim=SHAPE.head_dim,
                scale=SHAPE.head_dim**-0.5,
                window=0,
                block_size=BLOCK_SIZE,
                sinks=False,
            )
            kernel = PagedAttention.build(facts, lambda *_: tile)
            step = decode_context(rows, context) if query == 1 else prefill_context(context)
            works: list[Work] = []
            for _ in range(calls):
                cache = kernel.allocate(rows * -(-context // BLOCK_SIZE) + 1, torch.device(DEVICE))
                cache.data.normal_()
                attend, qkv = kernel.prepare(cache), _normal(step.num_tokens, SHAPE.qkv_features) * 40
                works.append(lambda attend=attend, qkv=qkv, state=kernel.begin(step): attend(qkv, state))
            return works

        yield Trial(f"attention B={rows} context={context} query={query}", str(tuple(tile)), make, 4 if query == 1 else 1)


def trials(only: str) -> list[Trial]:
    """All combinations whose group contains ``only``."""
    found: list[Trial] = []
    for tokens in (1, 8, 32, 64, 128):
        found += _linear("qkv", SHAPE.qkv_features, SHAPE.hidden, tokens)
        found += _linear("out", SHAPE.hidden, SHAPE.heads * SHAPE.head_dim, tokens)
        found += _linear("head", SHAPE.vocabulary, SHAPE.hidden, tokens)
    for tokens in (1, 8, 32, 128, 256, 1024, 8192):
        found += _experts(tokens)
    found += _attention(1, 8192, 1)
    found += _attention(32, 4096, 1)
    found += _attention(256, 129, 1)
    found += _attention(1, 8192, 8192)
    return [trial for trial in found if only in trial.group]


def _compile(only: str, first: int, step: int) -> int:
    """Runs every ``step``-th combination once, so that its kernels are in the cache."""
    failed = 0
    with torch.inference_mode():
        for trial in trials(only)[first::step]:
            try:
                trial.make(1)[0]()
                torch.cuda.synchronize()
            except Exception as error:  # noqa: BLE001 - a tile may be too large for the device; the timing shows which
                failed += 1
                print(f"{trial.group}: {trial.label}: {str(error).splitlines()[0][:150]}", flush=True)
    return failed


def compile_all(only: str, processes: int) -> None:
    """Fills the cache; prints the combinations that the device cannot run."""
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for job in [pool.submit(_compile, only, first, processes) for first in range(processes)]:
            job.result()


def main() -> None:
    """Prints the fastest tiles of every group, and writes all down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of the names of the groups")
    parser.add_argument("--processes", type=int, default=min(os.cpu_count() or 1, 14), help="0: all is compiled")
    parser.add_argument("--out", type=Path, default=Path("benches/results/gpu/tune.json"))
    arguments = parser.parse_args()
    if arguments.processes:
        compile_all(arguments.only, arguments.processes)
    results: list[dict[str, object]] = []
    with torch.inference_mode():
        for trial in trials(arguments.only):
            try:
                seconds = graph_seconds(trial.make(trial.calls), replays=7)
            except Exception:  # noqa: BLE001 - told above
                torch.cuda.synchronize()
                continue
            results.append({"group": trial.group, "label": trial.label, "us": round(seconds * 1e6, 2)})
    for group in dict.fromkeys(str(row["group"]) for row in results):
        best = sorted((row for row in results if row["group"] == group), key=lambda row: float(str(row["us"])))
        shown = [row for row in best[:4]] + [row for row in best[4:] if row["label"] == "torch"]
        print(f"{group}: " + "; ".join(f"{row['label']} {row['us']}" for row in shown), flush=True)
    write_results(arguments.out, "benches.gpu.tune", results)


if __name__ == "__main__":
    main()

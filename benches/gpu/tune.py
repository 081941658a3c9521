"""Times tiles of the Triton kernels on the default shape, for the tables in ``frizzen.kernels.triton``.

Every combination is compiled first, by many processes, into Triton's cache on disk; then all are timed one
after the other. Tiles of the two products of ``moe.experts`` are tried in turn, the other one at its default.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benches.gpu.shape import QWEN3_30B_A3B as SHAPE
from benches.gpu.step import BLOCK_SIZE, decode_context, prefill_context, random_fp8
from benches.gpu.timing import DEVICE, Work, graph_seconds, write_results
from frizzen.kernels.facts import Facts, detect_machine

__all__ = ["Trial", "compile_all", "trials"]


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

    skinny = Skinny.of(size_in, size_out, Target.of(_facts()), DEVICE)

    def trial(tile: Tile | None) -> Trial:
        def run(x: Tensor, weight: Tensor, out: Tensor) -> None:
            if tile is None:
                torch.mm(x, weight.T, out=out)
            elif tokens == 1:
                skinny.one(x, weight, None, out, tile, None)
            else:
                skinny.few(x, weight, None, out, tile)

        def call(x: Tensor) -> Work:
            weight, out = _normal(size_out, size_in), x.new_empty(tokens, size_out)
            return lambda: run(x, weight, out)

        label = "torch" if tile is None else str(tuple(tile))
        copies = 4 if size_out > 100_000 else 12
        return Trial(
            f"{name} T={tokens}", label, lambda n: [call(_normal(tokens, size_in)) for _ in range(n)], copies
        )

    if tokens == 1:
        tiles = [Tile(*cut, 1) for cut in product((1, 2, 4), (2048, 4096), (2, 4, 8))]
    else:
        tiles = [
            Tile(64, 128, 4, *cut) for cut in product((3, 4, 6), (1, 2, 4, 8)) if cut[1] * 512 <= size_in
        ]
        tiles.append(Tile(64, 256, 4, 1, -(-size_in // 256)))
    yield from (trial(tile) for tile in [None, *tiles])


def _experts_work(tokens: int, run: Callable[..., object]) -> Callable[[int], list[Work]]:
    """Calls of one way to compute the experts: ``run(kernel, layer, x, weights, ids)``."""
    from frizzen.kernels.triton.moe import Layer, MoeExperts

    def make(calls: int) -> list[Work]:
        sizes = {"hidden": SHAPE.hidden, "intermediate": SHAPE.intermediate, "experts": SHAPE.experts}
        kernel = MoeExperts.build(_facts(top_k=SHAPE.top_k, clamp=0.0, alpha=1.0, beta=0.0, **sizes))
        w13 = _normal(SHAPE.experts, 2 * SHAPE.intermediate, SHAPE.hidden)
        layer = Layer(w13, _normal(SHAPE.experts, SHAPE.hidden, SHAPE.intermediate), None, None)
        x = _normal(tokens, SHAPE.hidden)

        def call() -> Work:
            weights, ids = torch.rand(tokens, SHAPE.experts, device=DEVICE).topk(SHAPE.top_k)
            chosen = ids.int()
            return lambda: run(kernel, layer, x, weights, chosen)

        return [call() for _ in range(calls)]

    return make


def _experts(tokens: int) -> Iterator[Trial]:
    from frizzen.kernels.triton import moe

    def trial(place: str, label: object, method: str, *tiles: Any) -> Trial:
        def run(kernel: Any, *inputs: Any) -> object:
            return getattr(kernel, method)(*inputs, *tiles)

        copies = 8 if tokens == 1 else 4
        return Trial(f"experts T={tokens} {place}", str(label), _experts_work(tokens, run), copies)

    sizes = (SHAPE.top_k, SHAPE.experts, torch.bfloat16)
    if tokens == 1 and (ones := moe.one_tiles(SHAPE.hidden, SHAPE.intermediate, SHAPE.top_k)):
        for cut in product((1, 2, 4), (2, 4, 6), (4, 8), (2, 3, 4)):
            one = moe.OneTile(*cut)
            yield trial("up", cut, "one", one, ones[1])
            if one.rows == 1:
                yield trial("down", cut, "one", ones[0], one)
    elif tokens <= moe.FEW:
        few = moe.few_tiles(tokens, *sizes)
        cuts = [*product((True,), (few[0].m,), (64,), (64,), (4,), (3, 4, 5))]
        cuts += [*product((True,), (few[0].m,), (64,), (128,), (4,), (2, 3, 4))]
        cuts += [*product((False,), (few[0].m,), (32, 64), (64, 128), (4,), (3, 4))]
        for tile in (moe.Tile(*cut) for cut in cuts):
            yield trial("up", tuple(tile), "few", tile, few[1])
            yield trial("down", tuple(tile), "few", few[0], tile)
    else:
        height, up, down = moe.many_tiles(tokens, *sizes)
        for many in (moe.ManyTile(*c) for c in product((64, 128, 256), (64,), (4, 16), (4, 8), (3, 4))):
            yield trial("up", tuple(many), "many", height, many, down)
            yield trial("down", tuple(many), "many", height, up, many)


def _attention(rows: int, context: int, *, prefill: bool = False) -> Iterator[Trial]:
    from frizzen.kernels.triton.paged_attention import PagedAttention, Tile

    heads = {"heads": SHAPE.heads, "kv_heads": SHAPE.kv_heads, "head_dim": SHAPE.head_dim}
    others = {"scale": SHAPE.head_dim**-0.5, "window": 0, "block_size": BLOCK_SIZE, "sinks": False}
    others["kv_dtype"] = "auto"

    def trial(tile: Tile) -> Trial:
        def make(calls: int) -> list[Work]:
            kernel = PagedAttention.build(_facts(**heads, **others), lambda *_: tile)
            step = prefill_context(context) if prefill else decode_context(rows, context)

            def call() -> Work:
                cache = kernel.allocate(rows * -(-context // BLOCK_SIZE) + 1, torch.device(DEVICE))
                cache.data.normal_()
                attend, state = kernel.prepare(cache), kernel.begin(step)
                qkv = _normal(step.num_tokens, SHAPE.qkv_features) * SHAPE.hidden**0.5
                return lambda: attend(qkv, state)

            return [call() for _ in range(calls)]

        phase = "prefill" if prefill else f"decode B={rows}"
        return Trial(f"attention {phase} context={context}", str(tuple(tile)), make, 1 if prefill else 4)

    cuts = (
        product((64, 128), (32, 64), (4, 8), (2, 3))
        if prefill
        else product((16,), (32, 64, 128), (2, 4), (2, 3))
    )
    yield from (trial(Tile(*cut)) for cut in cuts)


def _fp8_linear(name: str, size_out: int, size_in: int, tokens: int) -> Iterator[Trial]:
    from frizzen.kernels.triton.fp8 import quantize_rows
    from frizzen.kernels.triton.fp8_linear import FEW, FewTile, Fp8Linear, ManyTile

    def trial(tile: FewTile | ManyTile) -> Trial:
        def make(calls: int) -> list[Work]:
            kernel = Fp8Linear.build(_facts(in_features=size_in, out_features=size_out))
            run = kernel.few if isinstance(tile, FewTile) else kernel.many

            def call() -> Work:
                weight, x = random_fp8(size_out, size_in), _normal(tokens, size_in)
                return lambda: run(*quantize_rows(x, kernel.target), weight, None, tile, x.dtype)  # type: ignore[arg-type]

            return [call() for _ in range(calls)]

        return Trial(f"fp8 {name} T={tokens}", str(tuple(tile)), make, 12 if tokens <= 256 else 2)

    if tokens <= FEW:
        yield from (trial(FewTile(64, 4, *cut)) for cut in product((3, 4, 6), (1, 2, 4, 8)))
        return
    for cut in ((64, 64, 8, 4, 4), (64, 128, 8, 4, 4), (128, 64, 8, 4, 4), (128, 128, 8, 8, 3)):
        yield trial(ManyTile(*cut))
    if tokens > 256:
        yield from (trial(ManyTile(128, 256, 8, 8, 3)), trial(ManyTile(128, 128, 8, 8, 4)))


def _fp8_experts(tokens: int) -> Iterator[Trial]:
    from frizzen.kernels.triton import fp8_moe as moe

    def trial(place: str, method: str, label: object, *tiles: Any) -> Trial:
        def make(calls: int) -> list[Work]:
            sizes = {"hidden": SHAPE.hidden, "intermediate": SHAPE.intermediate, "experts": SHAPE.experts}
            kernel = moe.Fp8Experts.build(_facts(top_k=SHAPE.top_k, clamp=0.0, alpha=1.0, beta=0.0, **sizes))
            w13 = random_fp8(SHAPE.experts, 2 * SHAPE.intermediate, SHAPE.hidden)
            w2 = random_fp8(SHAPE.experts, SHAPE.hidden, SHAPE.intermediate)
            layer, x = moe.Layer(w13, w2, None, None), _normal(tokens, SHAPE.hidden)

            def call() -> Work:
                weights, ids = torch.rand(tokens, SHAPE.experts, device=DEVICE).topk(SHAPE.top_k)
                chosen = ids.int()
                return lambda: getattr(kernel, method)(layer, x, weights, chosen, *tiles)

            return [call() for _ in range(calls)]

        return Trial(f"fp8 experts T={tokens} {place}", str(label), make, 8 if tokens == 1 else 4)

    if tokens == 1:
        for one in (moe.OneTile(*cut) for cut in product((1, 2), (1, 2, 4), (4, 8), (2, 3))):
            yield trial("up", "one", tuple(one), one, moe.ONE_TILES[1])
            if one.rows == 1:
                yield trial("down", "one", tuple(one), moe.ONE_TILES[0], one)
    elif tokens <= moe.FEW:
        up, down = moe.few_tiles(tokens, SHAPE.top_k, SHAPE.experts)
        for few in (moe.FewTile(up.m, *cut) for cut in product((64, 128), (4, 8), (3, 4, 5))):
            yield trial("up", "few", tuple(few), few, down)
        for few in (moe.FewTile(up.m, *cut) for cut in product((64, 128), (4, 8), (3, 4, 5))):
            yield trial("down", "few", tuple(few), up, few)
    else:
        height, first, second = moe.many_tiles(tokens, SHAPE.top_k, SHAPE.experts)
        for many in (moe.ManyTile(*cut) for cut in product((64, 128), (16,), (4, 8), (3, 4))):
            yield trial("up", "many", tuple(many), height, many, second)
            yield trial("down", "many", tuple(many), height, first, many)


def trials(only: str) -> list[Trial]:
    """All combinations whose group contains ``only``."""
    found: list[Trial] = []
    for tokens in (1, 8, 32, 64, 128):
        found += _linear("qkv", SHAPE.qkv_features, SHAPE.hidden, tokens)
        found += _linear("out", SHAPE.hidden, SHAPE.heads * SHAPE.head_dim, tokens)
        found += _linear("head", SHAPE.vocabulary, SHAPE.hidden, tokens)
    for tokens in (1, 8, 32, 128, 256, 1024, 8192):
        found += _experts(tokens)
    for tokens in (32, 256, 8192):
        found += _fp8_linear("qkv", SHAPE.qkv_features, SHAPE.hidden, tokens)
        found += _fp8_linear("out", SHAPE.hidden, SHAPE.heads * SHAPE.head_dim, tokens)
    for tokens in (1, 32, 256, 8192):
        found += _fp8_experts(tokens)
    found += [*_attention(1, 8192), *_attention(32, 4096), *_attention(256, 129)]
    found += _attention(1, 8192, prefill=True)
    return [trial for trial in found if only in trial.group]


def _compile(only: str, first: int, step: int) -> None:
    """Runs every ``step``-th combination once, so that its kernels are in the cache."""
    with torch.inference_mode():
        for trial in trials(only)[first::step]:
            try:
                trial.make(1)[0]()
                torch.cuda.synchronize()
            except Exception as error:  # noqa: BLE001 - a tile may be too large for the device: it is not timed
                print(f"{trial.group}: {trial.label}: {str(error).splitlines()[0][:150]}", flush=True)


def compile_all(only: str, processes: int) -> None:
    """Fills the cache; prints the combinations that the device cannot run."""
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for job in [pool.submit(_compile, only, first, processes) for first in range(processes)]:
            job.result()


def main() -> None:
    """Prints the fastest tiles of every group, and writes all down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of the names of the groups")
    parser.add_argument(
        "--processes", type=int, default=min(os.cpu_count() or 1, 14), help="0: all is compiled"
    )
    parser.add_argument("--out", type=Path, default=Path("benches/results/gpu/tune.json"))
    arguments = parser.parse_args()
    if arguments.processes:
        compile_all(arguments.only, arguments.processes)
    times: dict[str, dict[str, float]] = {}
    with torch.inference_mode():
        for trial in trials(arguments.only):
            try:
                seconds = graph_seconds(trial.make(trial.calls), replays=7)
            except Exception:  # noqa: BLE001 - told when it was compiled
                torch.cuda.synchronize()
                continue
            times.setdefault(trial.group, {})[trial.label] = round(seconds * 1e6, 2)
    for group, by_label in times.items():
        best = sorted(by_label, key=lambda label: by_label[label])
        shown = best[:4] + [label for label in best[4:] if label == "torch"]
        print(f"{group}: " + "; ".join(f"{label} {by_label[label]}" for label in shown), flush=True)
    rows: list[dict[str, object]] = [
        {"group": group, "microseconds": by_label} for group, by_label in times.items()
    ]
    write_results(arguments.out, "benches.gpu.tune", rows)


if __name__ == "__main__":
    main()

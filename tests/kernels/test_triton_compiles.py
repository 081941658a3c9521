"""What the Triton kernels compile to for a GPU, where there is none.

The interpreter, which runs them elsewhere, knows neither types of branches nor limits of a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from frizzen.kernels.facts import Facts, Machine, ShapeValue
from frizzen.kernels.plan import Candidate, Op, default_registry
from frizzen.kernels.problems import OPS, SHAPES, Inputs, runs
from frizzen.speculate.drafter import Asking, DraftBlocks, Seen
from frizzen.worker import tail
from frizzen.worker.arena import Arena
from frizzen.worker.buffers import StepBuffers
from frizzen.worker.lattice import Lattice, Shape
from frizzen.worker.rows import PersistentBatch
from frizzen.worker.warmup import compile_ends, shapes_of, step_of
from tests.worker.arena_layout import layout

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed"),
]

H200 = Machine("cuda", frozenset({"sm_90"}), 1, (("triton", "3.6.0"),))


def candidates() -> Iterator[Any]:
    for op in OPS:
        for candidate in default_registry().candidates(op.name):
            if candidate.name == "triton":
                yield pytest.param(op, candidate, id=op.name)


class _Described:
    """A driver of a device that is described only."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0


class _Nowhere(TorchFunctionMode):
    """What is to be made on the device stands on the CPU, and is zero: no kernel will write it."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if "cuda" in str(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return (torch.zeros if func is torch.empty else func)(*args, **kwargs)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Any]]:
    """The kernels that launches would have started."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    from frizzen.kernels.triton.launch import Target

    met: list[Any] = []
    original = JITFunction.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        met.append(original(self, *args, **(kwargs | {"warmup": True})))

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(JITFunction, "run", run)
    monkeypatch.setattr(Target, "of", classmethod(lambda *_, **__: Target(dependent=True, processors=132)))
    monkeypatch.setattr(driver, "_active", _Described())
    with _Nowhere(), torch.inference_mode():
        yield met


@pytest.mark.parametrize(("op", "candidate"), list(candidates()))
def test_what_a_kernel_launches_compiles_for_an_h200(
    op: Op[Any], candidate: Candidate, compiled: list[Any]
) -> None:
    facts = Facts.of(H200, torch.bfloat16, SHAPES[op.name][0])
    assert candidate.requires(facts) is None
    kernel = candidate.build(facts)
    for _, run in runs(op.name):
        generator = torch.Generator().manual_seed(0)
        run(kernel, facts, Inputs(generator, torch.bfloat16, torch.bfloat16, torch.device("cpu")))
    assert compiled
    assert max(kernel.metadata.shared for kernel in compiled) <= 232_448


LATENT: dict[str, ShapeValue] = {"nope_dim": 24, "rope_dim": 8, "value_dim": 40, "latent_dim": 48}


def run_every_variant(run: Callable[[list[int], int], None], rows: int, compiled: list[Any]) -> None:
    """Runs the warm-up's steps, then others of up to ``rows`` rows: these bring nothing new."""
    lattice = Lattice.of(max_rows=rows, max_drafts=3, max_context=8448, max_tokens=8192)
    for queries, context in shapes_of(lattice):
        run(list(queries), context)
    met = {variant.hash for variant in compiled}
    random = Random(0)
    for _ in range(60):
        batch = random.randint(1, rows)
        single = random.randint(0, batch)
        queries = [random.choice((2, 3, 5, 8, 12, 16, 17, 60, 130, 300, 900)) for _ in range(batch - single)]
        while sum(queries) > 8000:
            queries.pop()
        run([1] * single + queries or [1], random.choice((300, 600, 3000, 8448)))
    assert {variant.hash for variant in compiled} == met


@pytest.mark.parametrize(("heads", "rows"), [(16, 8), (128, 8)])
def test_no_step_needs_a_variant_of_latent_attention_that_the_warm_up_has_not_met(
    heads: int, rows: int, compiled: list[Any]
) -> None:
    from frizzen.kernels.triton.latent_attention import LatentAttention

    facts = Facts.of(H200, torch.bfloat16, {**LATENT, "heads": heads, "scale": 0.1, "block_size": 16})
    kernel = LatentAttention.build(facts)
    cache = kernel.allocate(2, torch.device("cpu"))
    attend = kernel.prepare(cache, torch.zeros(heads * 64, 48, dtype=torch.bfloat16))

    def run(queries: list[int], context: int) -> None:
        _, step = step_of(queries, context, 8448 // 16, torch.device("cpu"), 16)
        attend(torch.zeros(step.num_tokens, heads * 32, dtype=torch.bfloat16), kernel.begin(step))

    run_every_variant(run, rows, compiled)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "rows", "dtype"),
    [
        (4, 2, 8, torch.float32),
        (32, 4, 8, torch.float32),
        (32, 4, 8, torch.bfloat16),
        (32, 4, 300, torch.bfloat16),
    ],
)
def test_no_step_needs_a_variant_of_paged_attention_that_the_warm_up_has_not_met(
    heads: int, kv_heads: int, rows: int, dtype: torch.dtype, compiled: list[Any]
) -> None:
    from frizzen.kernels.triton.paged_attention import PagedAttention

    shape = {
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": 64,
        "scale": 0.1,
        "window": 0,
        "block_size": 16,
    }
    kernel = PagedAttention.build(Facts.of(H200, dtype, shape))
    attend = kernel.prepare(kernel.allocate(2, torch.device("cpu")))

    def run(queries: list[int], context: int) -> None:
        _, step = step_of(queries, context, 8448 // 16, torch.device("cpu"), 16)
        attend(torch.zeros(step.num_tokens, (heads + 2 * kv_heads) * 64, dtype=dtype), kernel.begin(step))

    run_every_variant(run, rows, compiled)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("rows", [8, 96])
def test_no_step_needs_a_variant_of_attention_that_the_warm_up_has_not_met(
    rows: int, drafts: int, dtype: torch.dtype, compiled: list[Any]
) -> None:
    """Several short prompts in one step, or a prompt beside the only decode, have been forgotten before."""
    from frizzen.kernels.triton.paged_attention import PagedAttention

    heads: dict[str, ShapeValue] = {"heads": 16, "kv_heads": 2, "head_dim": 64, "scale": 0.1}
    facts = Facts.of(H200, dtype, {**heads, "window": 0, "block_size": 16, "softcap": 0.0})
    kernel = PagedAttention.build(facts)
    attend = kernel.prepare(kernel.allocate(2, torch.device("cpu")))

    def run(queries: list[int], context: int) -> None:
        _, step = step_of(queries, context, 8448 // 16, torch.device("cpu"), 16)
        attend(torch.zeros(step.num_tokens, 20 * 64, dtype=dtype), kernel.begin(step))

    lattice = Lattice.of(max_rows=rows, max_drafts=drafts, max_context=8448, max_tokens=4096)
    for queries, context in shapes_of(lattice):
        run(list(queries), context)
    met = {variant.hash for variant in compiled}
    random = Random(0)
    for _ in range(300):
        batch = random.randint(1, random.choice((2, 4, rows)))
        single = random.randint(0, batch)
        lengths = random.choice(((2, 3), (4, 5, 8), (9, 13, 16), (2, 9, 17, 30, 60, 100, 130, 300, 900)))
        queries = [1] * single + [random.choice(lengths) for _ in range(batch - single)]
        while sum(queries) > 4096:
            queries.pop()
        run(queries, random.choice((300, 600, 3000, 8448)))
    assert {variant.hash for variant in compiled} == met


@pytest.mark.parametrize("drafts", [0, 3])
def test_what_stands_around_a_step_has_the_same_kernels_whatever_the_sizes(
    drafts: int, compiled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the drafts of a row: so they are compiled before the sizes' memory is allocated."""
    from frizzen.kernels.triton import steps

    allocate = StepBuffers.allocate.__func__  # type: ignore[attr-defined]
    fused = classmethod(lambda cls, *at: replace(allocate(cls, *at), fill_by=steps.fill_step))
    monkeypatch.setattr(StepBuffers, "allocate", fused)
    monkeypatch.setattr(tail, "_end_rows_on", lambda _: steps.end_rows)
    monkeypatch.setattr(tail, "largest", steps.largest)
    cpu, width = torch.device("cpu"), 1 + drafts
    compile_ends(layout(max_rows=1, max_tokens=width, max_drafts=drafts, vocab_size=1), None, cpu)
    met = {variant.hash for variant in compiled}
    assert len(met) == 4
    batch = PersistentBatch(max_rows=24, max_blocks=70, max_model_len=1100, vocab_size=97, device=cpu)
    arena = Arena(layout(max_rows=24, max_tokens=777, max_drafts=drafts), cpu, mirrored=True)
    buffers, shape = StepBuffers.allocate(arena.device, batch), Shape(24, width, 512)
    buffers.fill(shape)
    maximum, tokens = steps.largest(torch.zeros(shape.tokens, 97))
    ids = buffers.ids[: shape.tokens]
    steps.end_rows(tail.Greedy(shape, buffers.plan, batch, ids, maximum, tokens, None))
    assert {variant.hash for variant in compiled} == met


@pytest.mark.parametrize(("heads", "kv_heads", "rows"), [(8, 2, 300), (8, 4, 40), (32, 32, 20)])
def test_no_step_needs_a_variant_of_attention_that_rotates_that_the_warm_up_has_not_met(
    heads: int, kv_heads: int, rows: int, compiled: list[Any]
) -> None:
    from frizzen.kernels.triton.paged_attention import PagedAttention
    from frizzen.kernels.triton.rope import Rope

    shape: dict[str, ShapeValue] = {"heads": heads, "kv_heads": kv_heads, "head_dim": 16}
    others: dict[str, ShapeValue] = {"scale": 0.1, "window": 0, "block_size": 16, "kv_dtype": "auto"}
    facts = Facts.of(H200, torch.bfloat16, {**shape, **others, "sinks": False})
    kernel = PagedAttention.build(facts)
    rope = Rope.build(Facts.of(H200, torch.bfloat16, {**shape, "rotary_dim": 16}))
    gain = torch.ones(16, dtype=torch.bfloat16)
    attend = kernel.prepare_turned(rope, kernel.allocate(2, torch.device("cpu")), (gain, gain, 1e-6))

    def run(queries: list[int], context: int) -> None:
        _, step = step_of(queries, context, 8448 // 16, torch.device("cpu"), 16)
        angles = torch.zeros(2, step.num_tokens, 8)
        qkv = torch.zeros(step.num_tokens, (heads + 2 * kv_heads) * 16, dtype=torch.bfloat16)
        attend(qkv, *angles, step.slots, kernel.begin(step))

    run_every_variant(run, rows, compiled)


def test_a_slot_of_dspark_has_one_kernel_for_one_row_and_one_for_more(compiled: list[Any]) -> None:
    from frizzen.kernels.triton import markov
    from frizzen.speculate.dspark import Heads

    table = torch.zeros(50, 256, dtype=torch.bfloat16)
    heads = Heads(
        table, torch.zeros(97, 256, dtype=torch.bfloat16), 1.0, 0, (torch.zeros(1, 320), table[0, :1])
    )
    for rows, drafts in ((1, 1), (1, 5), (2, 1), (7, 3), (130, 5)):
        logits, states = torch.zeros(rows, drafts, 97), torch.zeros(rows, 5, 64, dtype=torch.bfloat16)
        tokens, chances = torch.zeros(rows, dtype=torch.int64), torch.zeros(rows, drafts)
        for place in range(drafts):
            slot = logits[:, place], states[:, place], tokens, chances[:, place]
            markov.follow(heads, *slot, turned=place % 2 > 0)
    assert len({variant.hash for variant in compiled}) == 2


def test_what_a_step_of_a_fused_drafter_begins_with_has_one_kernel(compiled: list[Any]) -> None:
    """With and without rows to draft for: nothing is compiled when a request turns drafts on or off."""
    from frizzen.kernels.triton import drafts

    cpu, met = torch.device("cpu"), set()
    for rows, tokens, reach in ((1, 1, 1), (1, 3, 5), (3, 7, 2), (8, 64, 5)):
        ids, step = step_of([1] * (rows - 1) + [tokens - rows + 1], 100, 8, cpu, 16)
        states = torch.zeros(tokens, 64, dtype=torch.bfloat16)
        seen = Seen.of(ids, step, states, ())
        numbers = torch.arange(rows)
        spots = drafts.lay_out(Asking(step, seen.ends, numbers, numbers, DraftBlocks.of(9, reach, 16), reach))
        compiled.clear()
        drafts.before(states, states, seen, 16)
        drafts.join(states, states, seen, 16, numbers, spots)
        met |= {variant.hash for variant in compiled}
    assert len(met) == 1

"""Steps as graphs: which shapes there are, which serves a step, and that padding changes no token.

See ``FakeCapture`` for what a graph is on a CPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from frizzen.step import StepContext
from frizzen.worker.arena import Arena, Header
from frizzen.worker.buffers import StepBuffers
from frizzen.worker.graphs import Graph, GraphRunner
from frizzen.worker.lattice import Lattice, Shape, bucket
from frizzen.worker.rows import PersistentBatch
from frizzen.worker.tail import end_nothing
from frizzen.worker.warmup import shapes_of
from tests.worker.arena_layout import layout
from tests.worker.driver import VOCAB, Driver, FakeCapture, Request, fake_driver
from tests.worker.reference import Params
from tests.worker.test_sampler import expected_tokens

LATTICE = Lattice.of(max_rows=100, max_drafts=5, max_context=9000, max_tokens=512)


def sizes(queries: list[int], context: int) -> StepContext:
    """A step of which only the sizes are known."""
    none = torch.zeros(0)
    return StepContext(
        positions=none,
        slots=none,
        query_start=none,
        seq_lens=none,
        block_table=none,
        num_rows=len(queries),
        num_single=queries.count(1),
        num_tokens=sum(queries),
        max_query=max(queries),
        max_context=context,
    )


def requests(count: int) -> list[Request]:
    return [
        Request([(7 * i + place) % VOCAB for i in range(3 + place)], Params(temperature=0.8, seed=place))
        for place in range(count)
    ]


def test_bounds_ascend_and_end_with_the_engines_limits() -> None:
    for bounds, last in ((LATTICE.rows, 100), (LATTICE.widths, 6), (LATTICE.contexts, 9000)):
        assert bounds[-1] == last
        assert all(a < b for a, b in pairwise(bounds))
    assert LATTICE.widths == (1, 2, 3, 4, 5, 6)
    assert Lattice.of(max_rows=1, max_drafts=0, max_context=64, max_tokens=8).shapes() == [Shape(1, 1, 64)]


def test_shapes_come_largest_first_and_fit_into_a_step() -> None:
    shapes = LATTICE.shapes()
    assert len(shapes) == len(set(shapes))
    assert all(a.tokens >= b.tokens for a, b in pairwise(shapes))
    assert max(shape.tokens for shape in shapes) <= LATTICE.max_tokens


@pytest.mark.parametrize(
    ("queries", "context", "shape"),
    [
        ([1], 1, (1, 1, 512)),
        ([1] * 3, 512, (4, 1, 512)),
        ([1] * 33, 513, (40, 1, 4096)),
        ([1] * 100, 9000, (100, 1, 9000)),
        ([1, 4, 2], 20, (4, 4, 512)),
        ([6] * 80, 20, (80, 6, 512)),
        ([1] * 101, 20, None),
        ([7], 20, None),
        ([1], 9001, None),
        # 100 rows of 6 are more than a step's tokens.
        ([6] * 85, 20, None),
        # Mostly padding: 64 rows of 6 for 69 tokens.
        ([1] * 63 + [6], 20, None),
    ],
)
def test_the_smallest_shape_that_is_not_mostly_padding_serves_a_step(
    queries: list[int], context: int, shape: tuple[int, ...] | None
) -> None:
    assert LATTICE.fit(sizes(queries, context)) == shape


def test_a_step_that_keeps_the_device_busy_has_no_graph() -> None:
    wide = Lattice.of(max_rows=256, max_drafts=16, max_context=512, max_tokens=8192)
    assert wide.fit(sizes([17] * 56, 20)) == (56, 17, 512)
    assert wide.fit(sizes([17] * 80, 20)) is None
    assert wide.fit(sizes([1] * 256, 20)) == (256, 1, 512)
    assert max(shape.tokens for shape in wide.shapes()) <= 1024


def test_every_step_has_one_of_few_labels() -> None:
    assert bucket(sizes([1, 1, 1, 500], 900)) == "4x512"
    steps = [sizes([1] * rows + [tokens], 900) for rows in range(60) for tokens in range(1, 600)]
    assert len({bucket(step) for step in steps}) < 100


@pytest.mark.parametrize("count", [1, 3, 5, 8])
def test_padded_replays_give_the_tokens_of_the_reference(count: int) -> None:
    capture = FakeCapture()
    driver, _ = fake_driver(capture=capture)
    batch = requests(count)
    driver.run(batch, 6)
    for request in batch[: count // 2]:
        driver.preempt(request)
    driver.run(batch, 12, chunk=3)
    for request in batch:
        assert request.outputs[:12] == expected_tokens(request, 12)
    assert capture.replayed >= 7


def test_overlapped_replays_read_the_tokens_of_the_step_before() -> None:
    capture = FakeCapture()
    driver, _ = fake_driver(capture=capture)
    batch = requests(5)
    driver.submit({request: len(request.prompt) for request in batch})
    for _ in range(9):
        driver.submit(dict.fromkeys(batch, 1))
        driver.collect()
    driver.collect()
    for request in batch:
        assert request.outputs == expected_tokens(request, 10)
    assert capture.replayed == 8


def test_replays_verify_drafts_of_any_number_and_leave_other_rows_alone() -> None:
    capture = FakeCapture()
    driver, _ = fake_driver(capture=capture, max_drafts=4)
    batch = requests(3)
    driver.run(batch, 1)
    for step in range(12):
        for place, request in enumerate(batch):
            wanted = expected_tokens(request, len(request.outputs) + 4)[len(request.outputs) :]
            # Right ones, wrong ones from some place on, and none.
            request.drafts = [
                token if at < place + step % 2 else (token + 1) % VOCAB
                for at, token in enumerate(wanted[: (step + place) % 5])
            ]
        driver.step(dict.fromkeys(batch, 1))
    for request in batch:
        assert request.outputs == expected_tokens(request, len(request.outputs))
        assert any(accepted for _, accepted in request.accepted)
    assert capture.replayed >= 6


def test_ends_of_greedy_steps_are_replayed_with_drafts_and_without_and_others_are_not() -> None:
    capture = FakeCapture()
    driver, model = fake_driver(capture=capture, max_drafts=4)
    batch = [Request([(7 * i + place) % VOCAB for i in range(3 + place)]) for place in range(3)]
    driver.run(batch, 1)
    for step in range(40):
        for place, request in enumerate(batch):
            wanted = expected_tokens(request, len(request.outputs) + 4)[len(request.outputs) :]
            request.drafts = [
                token if at < (place + step) % 5 else (token + 1) % VOCAB
                for at, token in enumerate(wanted[: (step // 8 + place * (step % 2)) % 5])
            ]
        driver.step(dict.fromkeys(batch, 1))
        for request in [request for request in batch if len(request.outputs) > 40]:
            # Its row and its blocks go to others, which must not be touched by what padding samples.
            driver.release(request)
            batch[batch.index(request)] = Request(request.prompt[::-1])
        for request in batch:
            request.outputs or driver.run([request], 1)
    for request in batch:
        assert request.outputs == expected_tokens(request, len(request.outputs))
    ends = json.loads(driver.worker.control("graphs", ""))["ends"]
    assert ends["steps"] > 15
    assert {entry[1] for entry in ends["captured"]} >= {1, 2, 4}
    others = requests(4)
    driver.run(others, 6)
    assert json.loads(driver.worker.control("graphs", ""))["ends"]["steps"] == ends["steps"]
    model.poisoned.add(batch[0].prompt[0])
    driver.step(dict.fromkeys(batch, 1))
    assert json.loads(driver.worker.control("graphs", ""))["ends"]["steps"] == ends["steps"] + 1
    assert [request.failed for request in batch] == [True, False, False]


def test_an_end_that_cannot_be_captured_is_launched_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    capture = FakeCapture()
    driver, _ = fake_driver(capture=capture)
    batch = [Request([5, 6]), Request([7])]
    driver.run(batch, 2)
    capture.fail_with = RuntimeError("operation not permitted")
    driver.run(batch, 8)
    for request in batch:
        assert request.outputs[:8] == expected_tokens(request, 8)
    assert "operation not permitted" in capsys.readouterr().err


def test_a_step_is_launched_once_and_replayed_from_then_on() -> None:
    capture = FakeCapture()
    driver, _ = fake_driver(capture=capture)
    batch = requests(3)
    driver.run(batch, 1, chunk=64)
    launched = capture.captured
    irregular = Header._fields.index("irregular")
    marks = []
    for tokens in (2, 3, 4):
        driver.run(batch, tokens)
        marks.append(int(driver.arenas[(driver.steps - 1) % 2].header[irregular]))
    assert marks == [1, 0, 0], "the time of a step that captures is no measure of those after it"
    driver, _ = fake_driver(capture=(capture := FakeCapture()))
    batch = requests(3)
    driver.run(batch, 1, chunk=64)
    launched = capture.captured
    driver.run(batch, 2)
    assert (capture.captured, capture.replayed) == (launched + 1, 0)
    driver.run(batch, 5)
    assert (capture.captured, capture.replayed) == (launched + 1, 3)
    counters = json.loads(driver.worker.control("counters", ""))
    memory = counters.pop("memory")
    assert counters == {"graph_steps": 3, "eager_steps": {"4x16": 1, "4x4": 1}, "late_compiles": {}}
    assert memory["graphs"] == 1000 * capture.captured


def test_an_idle_worker_captures_everything_largest_first() -> None:
    capture = FakeCapture()
    driver, model = fake_driver(capture=capture, max_drafts=2)
    assert driver.worker.idle()
    state = json.loads(driver.worker.control("graphs", ""))
    assert state["captured"] == [[8, 3, 64]]
    assert state["held_bytes"] == 1000 * capture.captured
    while driver.worker.idle():
        pass
    state = json.loads(driver.worker.control("graphs", ""))
    assert state["missing"] == 0
    assert not model.cache.any(), "capturing computes nothing"
    batch = requests(2)
    driver.run(batch, 3)
    assert json.loads(driver.worker.control("counters", ""))["graph_steps"] >= 2


def test_a_failed_capture_is_told_and_steps_go_on_without_graphs() -> None:
    capture = FakeCapture()
    driver, _ = fake_driver(capture=capture)
    batch = requests(2)
    driver.run(batch, 3)
    capture.fail_with = RuntimeError("operation not permitted\nwhen the stream is capturing")
    assert not driver.worker.idle()
    more = requests(6)
    driver.run(more, 4)
    for request in more:
        assert request.outputs[:4] == expected_tokens(request, 4)
    state = json.loads(driver.worker.control("graphs", ""))
    assert state["failure"].endswith("RuntimeError: operation not permitted")
    replayed = capture.replayed
    driver.run(batch, 5)
    assert capture.replayed > replayed, "what was captured before still serves"


def test_a_busy_engine_captures_what_nobody_asked_for_in_a_small_part_of_its_time() -> None:
    now = [0.0]

    class Slow(FakeCapture):
        def __call__(self, work: Callable[[], torch.Tensor]) -> Graph:
            now[0] += 1.0
            return Graph(lambda: None, torch.zeros(512, 1))

    lattice = Lattice.of(max_rows=40, max_drafts=0, max_context=64, max_tokens=40)
    runner = GraphRunner(lambda ids, step: ids, lattice, None, Slow(), clock=lambda: now[0])  # type: ignore[arg-type]
    for _ in range(100):
        now[0] += 1.0
        runner.after_step()
    assert 1 <= len(runner.state()["captured"]) <= 1 + now[0] / 20


def test_an_eager_driver_has_no_graphs() -> None:
    driver, _ = fake_driver()
    assert isinstance(driver, Driver)
    assert not driver.worker.idle()
    assert driver.worker.control("graphs", "") == "null"


def test_the_shapes_to_compile_for_have_every_shape_of_the_lattice_and_prompts_of_every_length() -> None:
    shapes = [(tuple(queries), context) for queries, context in shapes_of(LATTICE)]
    for shape in LATTICE.shapes():
        assert ((shape.width,) * shape.rows, shape.context) in shapes
    for length in (2, 16, 64, 256, 512):
        for context in (512, 1024, 4096, 9000):
            assert ((length,), context) in shapes
    assert max(sum(queries) for queries, _ in shapes) == LATTICE.max_tokens


def test_the_warm_up_of_steps_ends_leaves_no_drafts_behind() -> None:
    """With drafts that are not the worker's nothing writes their counts again, and every step sends them."""
    cpu = torch.device("cpu")
    plan = Arena(layout(max_rows=4, max_tokens=16, max_drafts=3), cpu, mirrored=True).device
    plan.num_proposed.fill_(9)
    end_nothing(StepBuffers.allocate(plan, PersistentBatch(4, 8, 128, 50, cpu)), None)
    assert not plan.num_proposed.any()

"""Steps through the worker: order, chunks, preemption, block tables, prompt scores, failures."""

from __future__ import annotations

import random

import pytest
import torch

from frizzen.worker.arena import Arena
from tests.worker import reference
from tests.worker.arena_layout import Layout, layout
from tests.worker.driver import VOCAB, Driver, Request, fake_driver, fake_logits
from tests.worker.reference import Params
from tests.worker.test_sampler import expected_tokens

LONG = [(7 * i) % VOCAB for i in range(23)]


def requests() -> list[Request]:
    return [
        Request(LONG, Params(temperature=0.9, seed=1)),
        Request([3], Params()),
        Request(LONG[:9], Params(repetition=1.4, temperature=1.0, seed=2)),
        Request(LONG[3:7], Params(frequency=0.4, logprobs=2)),
    ]


def assert_as_expected(done: list[Request], count: int) -> None:
    for request in done:
        assert request.outputs[:count] == expected_tokens(request, count)


@pytest.mark.parametrize("chunk", [1, 2, 7, 64])
def test_chunked_prefill_beside_decodes_changes_no_token(chunk: int) -> None:
    driver, _ = fake_driver()
    batch = requests()
    driver.run(batch, 5, chunk)
    assert_as_expected(batch, 5)


def test_requests_that_come_and_go_change_no_token_of_the_others() -> None:
    rng = random.Random(3)
    driver, _ = fake_driver(max_num_seqs=3)
    waiting = [
        Request([rng.randrange(VOCAB) for _ in range(rng.randint(1, 20))], Params(temperature=1.0, seed=i))
        for i in range(9)
    ]
    everything, running = list(waiting), []
    while waiting or running:
        while waiting and len(running) < 3:
            running.append(waiting.pop())
        driver.step({request: min(6, request.total - request.computed) for request in running})
        for request in [request for request in running if len(request.outputs) == 7]:
            running.remove(request)
            driver.release(request)
    assert_as_expected(everything, 7)


def test_preempted_requests_continue_where_they_were() -> None:
    driver, _ = fake_driver()
    batch = requests()
    driver.run(batch, 3)
    for request in batch[:3]:
        driver.preempt(request)
    # Rows are handed out in another order than before.
    driver.free_rows.reverse()
    driver.run(batch, 8, chunk=5)
    assert_as_expected(batch, 8)


def test_a_step_may_be_submitted_before_the_one_that_samples_its_input_is_collected() -> None:
    driver, _ = fake_driver()
    batch = requests()
    late = Request(LONG[:15], Params(temperature=0.5, seed=9))
    driver.submit({request: len(request.prompt) for request in batch})
    for step in range(9):
        plan = dict.fromkeys(batch, 1)
        if step >= 3:
            plan |= {late: min(4, late.total - late.computed)}
        driver.submit(plan)
        driver.collect()
    driver.collect()
    assert_as_expected(batch, 10)
    assert len(late.outputs) >= 3
    assert late.outputs == expected_tokens(late, len(late.outputs))


def test_collecting_out_of_order_is_refused() -> None:
    driver, _ = fake_driver()
    request = Request([1])
    driver.submit({request: 1})
    driver.submit({request: 1})
    with pytest.raises(
        RuntimeError, match=r"arena 1 is not the oldest submitted step; submitted are \[0, 1\]"
    ):
        driver.worker.collect(1)
    driver.worker.collect(0)
    driver.worker.collect(1)
    with pytest.raises(RuntimeError, match="arena 0 is not"):
        driver.worker.collect(0)


def test_an_exception_in_a_step_leaves_nothing_to_collect_and_the_worker_usable() -> None:
    driver, model = fake_driver()
    batch = requests()
    driver.run(batch, 2)
    model.fail_with = torch.OutOfMemoryError("not enough memory")
    with pytest.raises(torch.OutOfMemoryError):
        driver.submit(dict.fromkeys(batch, 1))
    with pytest.raises(RuntimeError, match="submitted are \\[\\]"):
        driver.worker.collect(driver.steps % 2)
    model.fail_with = None
    # What the engine does next: preempt, and compute again.
    for request in batch:
        request.in_flight = 0
        driver.preempt(request)
    driver.run(batch, 5)
    assert_as_expected(batch, 5)


def test_a_step_that_failed_after_sampling_may_be_computed_again() -> None:
    driver, model = fake_driver()
    # With these two tokens, counting one of them twice would change the next choice.
    penalised = Request([3], Params(frequency=1.5, allowed=(5, 6)))
    scored = Request(LONG[:9], Params(prompt_logprobs=0))
    driver.run([penalised], 3)
    head = model.head

    def failing(hidden: torch.Tensor) -> torch.Tensor:
        if len(hidden) > 2:
            raise torch.OutOfMemoryError("no memory to score the prompt")
        return head(hidden)

    model.head = failing  # type: ignore[method-assign]
    index = driver.steps % 2
    with pytest.raises(torch.OutOfMemoryError):
        driver.submit({penalised: 1, scored: 9})
    model.head = head  # type: ignore[method-assign]
    driver.worker.submit(index)
    driver.worker.collect(index)
    penalised.outputs.append(int(driver.arenas[index].sampled[0, 0]))
    penalised.in_flight = 0
    driver.run([penalised], 12)
    assert_as_expected([penalised], 12)


@pytest.mark.parametrize("chunk", [4, 64])
def test_prompt_logprobs_judge_every_prompt_token_but_the_first(chunk: int) -> None:
    driver, _ = fake_driver()
    asking = Request(LONG, Params(prompt_logprobs=3))
    other = Request(LONG[:8], Params(prompt_logprobs=0))
    driver.run([asking, other, Request([5])], 2, chunk)
    for request in (asking, other):
        assert len(request.prompt_logprobs) == len(request.prompt) - 1
        for place, (value, rank, top) in enumerate(request.prompt_logprobs):
            logits = fake_logits(request.prompt[: place + 1])
            expected = reference.logprob(logits, request.prompt[place + 1], request.params.prompt_logprobs)
            assert (rank, [token for token, _ in top]) == (expected[1], [token for token, _ in expected[2]])
            assert value == pytest.approx(expected[0], abs=2e-6)


def test_prompt_positions_beyond_one_batch_of_logits_are_all_scored() -> None:
    driver, _ = fake_driver(max_model_len=200, max_num_batched_tokens=200)
    request = Request([(11 * i) % VOCAB for i in range(150)], Params(prompt_logprobs=1))
    driver.step({request: 150})
    ranks = [
        reference.logprob(fake_logits(request.prompt[: i + 1]), request.prompt[i + 1], 0)[1]
        for i in range(149)
    ]
    assert [rank for _, rank, _ in request.prompt_logprobs] == ranks


def test_prompt_logits_that_are_not_finite_fail_their_row_only() -> None:
    driver, model = fake_driver()
    good, ill = Request([1, 2, 3], Params(prompt_logprobs=1)), Request([60, 1, 1], Params(prompt_logprobs=1))
    model.poisoned = {60}
    driver.step({good: 3, ill: 2})
    assert ill.failed
    assert not good.failed


def test_a_context_may_fill_the_model_to_its_last_token() -> None:
    driver, _ = fake_driver(max_model_len=24)
    request = Request(LONG, Params(repetition=1.2))
    driver.run([request], 1)
    driver.step({request: 1})
    assert_as_expected([request], 2)


def test_an_arena_of_another_engine_version_is_refused() -> None:
    driver, _ = fake_driver()
    driver.arenas[0].header[0] = 2
    with pytest.raises(ValueError, match="layout version is 2, this worker reads 6"):
        driver.worker.submit(0)


def test_sections_that_the_worker_does_not_know_are_refused() -> None:
    good = layout(max_rows=2, max_tokens=4)
    other = Layout(good.nbytes, good.sections[1:])
    with pytest.raises(ValueError, match="not those of this worker"):
        Arena(other, torch.device("cpu"))


def test_unknown_commands_are_refused_by_name() -> None:
    worker = fake_driver()[0].worker
    with pytest.raises(ValueError, match="no command 'dance'; it has memory"):
        worker.control("dance", "")


def test_a_worker_that_was_shut_down_has_no_arenas() -> None:
    driver: Driver = fake_driver()[0]
    driver.worker.shutdown()
    with pytest.raises(IndexError):
        driver.worker.submit(0)

"""The sampler against the reference loops, and what must hold for every request whatever its batch."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from frizzen.worker.sampler import Positions, Sampler
from tests.worker import reference
from tests.worker.driver import VOCAB, Request, fake_driver, fake_logits, uniform
from tests.worker.reference import Params


def expected_tokens(request: Request, count: int) -> list[int]:
    """What ``request`` must generate, by the reference."""
    outputs: list[int] = []
    for _ in range(count):
        tokens = request.prompt + outputs
        draw = uniform(request.params.seed, len(tokens))
        outputs.append(reference.sample(fake_logits(tokens), request.params, request.prompt, outputs, draw))
    return outputs


def random_params(rng: random.Random) -> Params:
    ids = list(range(VOCAB))
    return Params(
        temperature=rng.choice((0.0, 0.0, 0.2, 1.0, 3.0)),
        top_k=rng.choice((0, 0, 1, 5, 90, 1000)),
        top_p=rng.choice((1.0, 1.0, 0.3, 0.9)),
        min_p=rng.choice((0.0, 0.0, 0.1)),
        presence=rng.choice((0.0, 0.0, 1.5, -1.0)),
        frequency=rng.choice((0.0, 0.0, 0.7)),
        repetition=rng.choice((1.0, 1.0, 1.3, 0.8)),
        seed=rng.randrange(1000),
        logprobs=rng.choice((-1, -1, 0, 5)),
        min_tokens=rng.choice((0, 3)),
        bias={token: rng.uniform(-9, 9) for token in rng.sample(ids, rng.choice((0, 0, 4)))},
        allowed=tuple(rng.sample(ids, rng.choice((0, 0, 0, 7)))),
        suppressed=(0, 5),
    )


@pytest.mark.parametrize("seed", range(12))
def test_mixed_batches_sample_what_the_reference_samples(seed: int) -> None:
    rng = random.Random(seed)
    requests = [
        Request([rng.randrange(VOCAB) for _ in range(rng.randint(1, 9))], random_params(rng))
        for _ in range(8)
    ]
    driver, _ = fake_driver()
    driver.run(requests, 6)
    for request in requests:
        assert request.outputs == expected_tokens(request, 6), request.params


@pytest.mark.parametrize("seed", range(6))
def test_a_masked_row_samples_what_the_reference_samples_of_the_allowed_tokens(seed: int) -> None:
    rng = random.Random(seed)

    def allowed(outputs: list[int]) -> set[int]:
        return set(random.Random(f"{seed} {outputs}").sample(range(VOCAB), 9)) | {31, 96}

    params = [replace(random_params(rng), bias={}, allowed=(), min_tokens=0) for _ in range(8)]
    requests = [
        Request([rng.randrange(VOCAB) for _ in range(4)], entry, allowed if place % 2 else None)
        for place, entry in enumerate(params)
    ]
    driver, _ = fake_driver()
    driver.run(requests, 6)
    for request in requests:
        outputs: list[int] = []
        for _ in range(6):
            own = request.params
            if request.allowed is not None:
                own = replace(own, allowed=tuple(request.allowed(outputs)))
            tokens = request.prompt + outputs
            draw = uniform(own.seed, len(tokens))
            outputs.append(reference.sample(fake_logits(tokens), own, request.prompt, outputs, draw))
        assert request.outputs == outputs, request.params


def test_logprobs_of_a_masked_row_are_of_the_raw_logits() -> None:
    masked = Request([1, 2], Params(logprobs=3), lambda outputs: {5})
    driver, _ = fake_driver()
    driver.run([masked], 1)
    assert masked.outputs == [5]
    logprob, rank, top = masked.logprobs[0]
    expected = reference.logprob(fake_logits([1, 2]), 5, 3)
    assert math.isclose(logprob, expected[0], abs_tol=1e-5)
    assert rank == expected[1]
    assert [token for token, _ in top] == [token for token, _ in expected[2]]


def test_a_mask_and_token_rules_without_a_common_token_fail_that_row_only() -> None:
    impossible = Request([1], Params(allowed=(3, 4)), lambda outputs: {5})
    fine = Request([2], Params(), lambda outputs: {6})
    driver, _ = fake_driver()
    driver.step({impossible: 1, fine: 1})
    assert impossible.failed
    assert fine.outputs == [6]


def test_per_request_seeds_give_the_same_tokens_whatever_the_batch() -> None:
    rng = random.Random(5)
    wanted = Params(temperature=1.0, top_p=0.9, seed=7)
    alone = Request([1, 2, 3], wanted)
    fake_driver()[0].run([alone], 10)
    for others in (
        [Params()],
        [Params(temperature=1.0, top_k=3)] * 4,
        [random_params(rng) for _ in range(7)],
    ):
        beside = Request([1, 2, 3], wanted)
        fake_driver()[0].run([*(Request([9, 9], params) for params in others), beside], 10)
        assert beside.outputs == alone.outputs


def sample_logits(logits: torch.Tensor, params: Sequence[Params], draws: Sequence[float]) -> list[int]:
    """Samples from logits of the test's own, with parameters for each row or one for all of them."""
    driver, model = fake_driver(max_num_seqs=len(params), vocab_size=logits.shape[1])
    requests = [Request([1], entry) for entry in params]
    model.head = lambda hidden: torch.zeros(len(hidden), logits.shape[1])  # type: ignore[method-assign]
    driver.step(dict.fromkeys(requests, 1))
    batch = driver.worker._batch
    rows = [request.row for request in requests if request.row is not None] * (len(draws) // len(params))
    positions = Positions(rows, torch.tensor(rows), [1] * len(rows), torch.tensor(draws, dtype=torch.float64))
    sampled = Sampler(batch, torch.device("cpu")).sample(logits.clone(), positions)
    assert sampled.finite.all()
    tokens: list[int] = sampled.tokens.tolist()
    return tokens


def test_the_lowest_id_wins_a_greedy_tie() -> None:
    logits = torch.zeros(3, 5000)
    logits[0, [4000, 70, 71]] = 1.0
    logits[1, 4999] = 1.0
    assert sample_logits(logits, [Params()] * 3, [0.5] * 3) == [70, 4999, 0]


def test_the_sampled_distribution_is_the_processed_one() -> None:
    """Chi-squared at 0.1 %: given evenly spread draws, each token comes as often as its probability says."""
    count = 4000
    logits = fake_logits([3, 1, 4])
    params = Params(temperature=0.8, top_k=20, top_p=0.95, min_p=0.02)
    rng = random.Random(2)
    draws = [rng.random() for _ in range(count)]
    tokens = sample_logits(logits.expand(count, -1), [params], draws)
    weights = reference.weights(logits.tolist(), params)
    total = math.fsum(weights)
    kept = [token for token, weight in enumerate(weights) if weight]
    assert len(kept) > 5
    assert set(tokens) <= set(kept)
    statistic = math.fsum(
        (tokens.count(token) - (mean := count * weights[token] / total)) ** 2 / mean for token in kept
    )
    # Wilson-Hilferty approximation of the 99.9 % quantile.
    freedom = len(kept) - 1
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3


def test_logprobs_are_of_the_raw_logits_whatever_is_done_to_them() -> None:
    params = [
        Params(logprobs=4),
        Params(logprobs=0, temperature=1.0, top_k=2),
        Params(logprobs=20, bias={3: 50.0}, presence=2.0),
        Params(),
    ]
    requests = [Request([2, 7, 1], entry) for entry in params]
    driver, _ = fake_driver()
    driver.run(requests, 5)
    for request in requests:
        if request.params.logprobs < 0:
            assert request.logprobs == []
            continue
        for place, (value, rank, top) in enumerate(request.logprobs):
            logits = fake_logits(request.prompt + request.outputs[:place])
            expected = reference.logprob(logits, request.outputs[place], request.params.logprobs)
            assert (rank, [token for token, _ in top]) == (expected[1], [token for token, _ in expected[2]])
            assert value == pytest.approx(expected[0], abs=2e-6)
            assert [v for _, v in top] == pytest.approx([v for _, v in expected[2]], abs=2e-6)


def test_listed_tokens_are_scored_by_the_raw_logits_alone_in_a_batch_and_after_a_preemption() -> None:
    params = [
        Params(logprobs=0, scored=(9, 2)),
        Params(logprobs=3, scored=(1, 9, 4), temperature=1.0, bias={9: 50.0}),
        Params(logprobs=5),
        Params(logprobs=1, scored=(7,), repetition=1.5),
    ]
    requests = [Request([2, 7, 1], entry) for entry in params]
    driver, _ = fake_driver()
    driver.run(requests, 2)
    driver.preempt(requests[1])
    driver.run(requests, 5)
    for request in requests:
        best, scored = request.params.logprobs, request.params.scored
        for place, (_, _, top) in enumerate(request.logprobs):
            logprobs = fake_logits(request.prompt + request.outputs[:place]).log_softmax(-1)
            tokens = logprobs.topk(best).indices.tolist() + list(scored)
            assert [token for token, _ in top] == tokens
            assert [value for _, value in top] == pytest.approx(logprobs[tokens].tolist(), abs=2e-6)


def test_equal_alternatives_stand_in_order_of_their_ids() -> None:
    from frizzen.worker.logprobs import score

    logits = torch.zeros(1, 6)
    logits[0, 2] = 1.0
    scores = score(logits, torch.tensor([5]), 6)
    assert scores.top_tokens.tolist() == [[2, 0, 1, 3, 4, 5]]
    assert scores.ranks.tolist() == [2]


def test_min_tokens_holds_back_the_suppressed_tokens_also_after_a_preemption() -> None:
    prompt = [4, 4]
    first = int(fake_logits(prompt).argmax())
    request = Request(prompt, Params(min_tokens=3, suppressed=tuple(range(0, VOCAB, 2))))
    driver, _ = fake_driver()
    driver.run([request], 2)
    driver.preempt(request)
    driver.run([request], 6)
    assert all(token % 2 for token in request.outputs[:3])
    assert request.outputs == expected_tokens(request, 6)
    assert first % 2 == 0, "the test needs a first choice that is suppressed"


def test_penalties_know_prompt_and_outputs_after_a_preemption() -> None:
    params = Params(repetition=1.8, frequency=1.0, presence=0.5)
    request, other = Request([5, 6, 5, 6, 5], params), Request([1], params)
    driver, _ = fake_driver()
    driver.run([other, request], 4)
    driver.preempt(request)
    driver.preempt(other)
    driver.run([request, other], 9)
    assert request.outputs == expected_tokens(request, 9)
    assert other.outputs == expected_tokens(other, 9)


def test_a_row_forgets_the_parameters_and_counts_of_its_last_request() -> None:
    driver, _ = fake_driver(max_num_seqs=1)
    best = int(fake_logits([8]).argmax())
    used = Request([8], Params(temperature=1.0, frequency=0.1, bias={1: 99.0}, allowed=(best,), logprobs=3))
    driver.run([used], 20)
    assert used.outputs == [best] * 20
    # One occurrence cannot outweigh this bias, twenty would.
    twice = Params(frequency=2.0, bias={best: 9.0}, allowed=(best, (best + 1) % VOCAB))
    for params in (Params(), twice):
        driver.release(used)
        used = Request([8], params)
        driver.run([used], 2)
        assert used.outputs == expected_tokens(used, 2)
    assert used.outputs == [best, best]


@pytest.mark.parametrize("bad", [math.nan, math.inf, "all -inf"])
@pytest.mark.parametrize("params", [Params(), Params(temperature=1.0, top_p=0.5), Params(logprobs=2)])
def test_logits_that_are_not_finite_fail_their_row_only(bad: float | str, params: Params) -> None:
    driver, model = fake_driver()
    good, ill = Request([1, 2], params), Request([60], params)
    head = model.head

    def poisoned(hidden: torch.Tensor) -> torch.Tensor:
        logits = head(hidden)
        place = 0 if len(hidden) == 2 else None
        if place is not None and isinstance(bad, float):
            logits[place, 50] = bad
        elif place is not None:
            logits[place] = -math.inf
        return logits

    model.head = poisoned  # type: ignore[method-assign]
    driver.step({good: 2, ill: 1})
    assert ill.failed
    assert not good.failed
    driver.run([good], 4)
    assert good.outputs == expected_tokens(good, 4)


def test_a_nan_that_a_rule_hides_still_fails_a_row_whose_logprobs_it_spoils() -> None:
    driver, model = fake_driver()
    head = model.head

    def poisoned(hidden: torch.Tensor) -> torch.Tensor:
        return head(hidden).index_fill(1, torch.tensor([50]), math.nan)

    model.head = poisoned  # type: ignore[method-assign]
    plain, scored = Request([1], Params(allowed=(3, 4))), Request([1], Params(allowed=(3, 4), logprobs=0))
    driver.step({plain: 1, scored: 1})
    assert not plain.failed
    assert scored.failed


def test_rules_that_leave_no_token_fail_their_row_only() -> None:
    driver, _ = fake_driver()
    good = Request([1, 2], Params(temperature=1.0))
    stuck = Request([1, 2], Params(temperature=1.0, allowed=(5,), suppressed=(5,), min_tokens=2))
    driver.run([good, stuck], 3)
    assert stuck.failed
    assert good.outputs == expected_tokens(good, 3)

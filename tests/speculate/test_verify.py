"""Drafts change when tokens come, never which: verification in the worker against the reference loops."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace

import pytest
import torch

from frizzen.speculate.verify import DraftRows, forced, verify
from tests.speculate.chi_squared import assert_chi_squared
from tests.worker import reference
from tests.worker.driver import VOCAB, Driver, Request, fake_driver, fake_logits, uniform
from tests.worker.reference import Params
from tests.worker.test_sampler import expected_tokens, random_params

MAX_DRAFTS = 6


def run_with_drafts(driver: Driver, requests: list[Request], tokens: int, rng: random.Random) -> None:
    """Steps all requests until each has at least ``tokens`` outputs, with drafts of which some are right."""
    wanted = {id(request): expected_tokens(request, tokens + MAX_DRAFTS + 1) for request in requests}
    while pending := [r for r in requests if not r.failed and len(r.outputs) < tokens]:
        for request in pending:
            right = wanted[id(request)][len(request.outputs) :]
            count = rng.randrange(MAX_DRAFTS + 1)
            request.drafts = right[: rng.randrange(count + 1)]
            request.drafts += [rng.randrange(VOCAB) for _ in range(count - len(request.drafts))]
        driver.step({request: request.total - request.computed for request in pending})


def assert_expected(request: Request) -> None:
    assert request.outputs == expected_tokens(request, len(request.outputs)), request.params
    if request.params.logprobs >= 0:
        assert len(request.logprobs) == len(request.outputs)
    for place, (value, rank, top) in enumerate(request.logprobs):
        logits = fake_logits(request.prompt + request.outputs[:place])
        expected = reference.logprob(logits, request.outputs[place], request.params.logprobs)
        assert (rank, [token for token, _ in top]) == (expected[1], [token for token, _ in expected[2]])
        assert value == pytest.approx(expected[0], abs=2e-6)


@pytest.mark.parametrize("seed", range(12))
def test_mixed_batches_with_any_drafts_sample_what_the_reference_samples_vllm_47494(seed: int) -> None:
    """Penalties, min-p, biases, seeds: with drafts or without, each request gets the reference's tokens."""
    rng = random.Random(seed)
    requests = [
        Request([rng.randrange(VOCAB) for _ in range(rng.randint(1, 9))], random_params(rng))
        for _ in range(6)
    ]
    driver, _ = fake_driver(max_drafts=MAX_DRAFTS)
    run_with_drafts(driver, requests, 12, rng)
    for request in requests:
        assert_expected(request)
    pairs = [pair for request in requests for pair in request.accepted]
    assert any(right == drafts for drafts, right in pairs)
    assert any(0 < right < drafts for drafts, right in pairs)


def test_penalties_count_accepted_drafts_within_their_own_step() -> None:
    params = Params(frequency=1.5, presence=1.0, repetition=1.5)
    request = Request([5, 6, 5], params)
    driver, _ = fake_driver(max_drafts=MAX_DRAFTS)
    driver.step({request: 3})
    for _ in range(3):
        request.drafts = expected_tokens(request, 30)[len(request.outputs) :][:MAX_DRAFTS]
        driver.step({request: request.total - request.computed})
        assert request.accepted[-1] == (MAX_DRAFTS, MAX_DRAFTS)
    driver.run([request], 25)
    assert request.outputs == expected_tokens(request, 25)


def test_the_first_draft_is_verified_like_the_others_lattice_243() -> None:
    request = Request([1, 1, 1])
    best = expected_tokens(request, 1)[0]
    driver, _ = fake_driver(max_drafts=5)
    request.drafts = [(best + 1) % VOCAB] * 5
    driver.step({request: 3})
    assert (request.outputs, request.accepted) == ([best], [(5, 0)])


def test_drafts_in_the_step_that_ends_the_prefill_count_too() -> None:
    request = Request([3, 1, 4, 1, 5])
    request.drafts = expected_tokens(request, 3)
    driver, _ = fake_driver(max_drafts=5)
    other = Request([9])
    driver.step({request: 5, other: 1})
    assert request.outputs == expected_tokens(request, 4)
    assert other.outputs == expected_tokens(other, 1)


def test_logits_after_a_rejected_draft_may_be_anything() -> None:
    driver, model = fake_driver(max_drafts=4)
    request, ill = Request([1, 2]), Request([7, 2])
    driver.step({request: 2, ill: 2})
    head = model.head

    def poisoned(hidden: torch.Tensor) -> torch.Tensor:
        logits = head(hidden)
        logits[[2, 3, 6]] = math.nan
        return logits

    model.head = poisoned  # type: ignore[method-assign]
    right = expected_tokens(request, 3)
    request.drafts = [right[1], (right[2] + 1) % VOCAB, 0, 0]
    # The second row reaches its ill position: its drafts before are right.
    ill.drafts = expected_tokens(ill, 4)[1:]
    driver.step({request: 1, ill: 1})
    assert (request.failed, ill.failed) == (False, True)
    assert request.outputs == right


@pytest.mark.parametrize("draft_rank", [0, 2, 30])
def test_the_verified_distribution_is_the_processed_one(draft_rank: int) -> None:
    """Chi-squared at 0.1 % over two tokens in a row, whatever was drafted."""
    params = Params(temperature=0.9, top_k=40, top_p=0.97, min_p=0.005)
    first = reference.weights(fake_logits([3, 1, 4]).tolist(), params)
    order = sorted(range(VOCAB), key=lambda token: -first[token])
    draft = order[draft_rank]
    count, seen = 3000, Counter[tuple[int, int]]()
    for start in range(0, count, 8):
        driver, _ = fake_driver(max_drafts=1)
        requests = [Request([3, 1, 4], replace(params, seed=start + i), drafts=[draft]) for i in range(8)]
        driver.step(dict.fromkeys(requests, 3))
        driver.run(requests, 2)
        seen.update((request.outputs[0], request.outputs[1]) for request in requests)
    counts = Counter(token for token, _ in seen.elements())
    total = math.fsum(first)
    means = {token: count * weight / total for token, weight in enumerate(first) if weight}
    assert set(counts) <= set(means)
    assert_chi_squared(counts, means)
    # What follows the draft is of its own distribution, whether the draft was accepted or sampled.
    second = reference.weights(fake_logits([3, 1, 4, draft]).tolist(), params)
    after = Counter({follower: n for (token, follower), n in seen.items() if token == draft})
    if after.total() > 200:
        total = math.fsum(second)
        assert_chi_squared(after, {t: after.total() * w / total for t, w in enumerate(second) if w})


def test_acceptance_is_the_probability_of_the_draft() -> None:
    """One-hot proposals are accepted with p(x): the rate that the rejection rule has."""
    params = Params(temperature=1.0)
    weights = reference.weights(fake_logits([2, 7]).tolist(), params)
    draft = max(range(VOCAB), key=weights.__getitem__)
    chance = weights[draft] / math.fsum(weights)
    count = 2000
    accepted = 0
    for start in range(0, count, 8):
        driver, _ = fake_driver(max_drafts=1)
        requests = [
            Request([2, 7], Params(temperature=1.0, seed=start + i), drafts=[draft]) for i in range(8)
        ]
        driver.step(dict.fromkeys(requests, 2))
        accepted += sum(request.accepted[0][1] for request in requests)
    assert abs(accepted / count - chance) < 3.3 * math.sqrt(chance * (1 - chance) / count)


@pytest.mark.parametrize("acceptance", [1.0, 1.4, 2.0, 3.25, 5.0, 9.0])
def test_forced_acceptance_gives_its_mean(acceptance: float) -> None:
    rows, drafts = 500, 5
    width = drafts + 1
    ids = torch.randint(0, 1000, (rows * width,))
    batch = DraftRows.of(range(rows), [drafts] * rows, torch.arange(rows * width), ids)
    uniforms = torch.tensor([uniform(1, i) for i in range(rows * width)], dtype=torch.float64)
    tokens = torch.full((rows * width,), 2000)
    verified = verify(
        tokens,
        tokens > 0,
        torch.arange(rows).repeat_interleave(width),
        batch,
        forced(acceptance, uniforms, batch),
    )
    mean = verified.num_sampled.double().mean().item()
    assert mean == pytest.approx(min(acceptance, drafts + 1), abs=0.07)
    for row in range(0, rows, 50):
        count = int(verified.num_sampled[row])
        first = row * width
        assert verified.tokens[row, : count - 1].tolist() == ids[first + 1 : first + count].tolist()
        assert int(verified.last[row]) == 2000


def test_forced_acceptance_reaches_the_worker() -> None:
    driver, _ = fake_driver(max_drafts=4, acceptance=3.0)
    request = Request([1, 2], drafts=[50, 51, 52, 53])
    driver.step({request: 2})
    assert request.outputs[:2] == [50, 51]
    assert len(request.outputs) == 3

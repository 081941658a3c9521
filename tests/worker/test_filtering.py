"""The arithmetic of random sampling, against loops over one row."""

from __future__ import annotations

import math
import random

import pytest
import torch

from frizzen.worker.filtering import (
    draw,
    floor_of_top_k,
    floor_of_top_p,
    largest,
    softmax_weights,
    zero_below,
)
from tests.worker import reference

SIZES = (1, 2, 63, 64, 65, 128, 1000)


def first_beyond(weights: list[float], fraction: float) -> int:
    target = fraction * math.fsum(weights)
    running = 0.0
    for index, weight in enumerate(weights):
        running += weight
        if running > target:
            return index
    raise AssertionError(f"{running} does not exceed {target}")


@pytest.mark.parametrize("size", SIZES)
def test_the_draw_is_the_inverse_cumulative_distribution(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    weights = torch.rand(40, size, generator=generator) ** 6
    draws = torch.rand(40, generator=generator, dtype=torch.float64)
    expected = [first_beyond(row.tolist(), u.item()) for row, u in zip(weights, draws, strict=True)]
    assert draw(weights, draws).tolist() == expected


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_a_token_of_zero_weight_is_never_drawn(size: int, uniform: float) -> None:
    weights = torch.zeros(size, size)
    places = torch.arange(size)
    weights[places, places] = 1e-20
    assert draw(weights, torch.full((size,), uniform, dtype=torch.float64)).tolist() == places.tolist()


def test_a_draw_does_not_depend_on_the_other_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(33, 5000, generator=generator)
    draws = torch.rand(33, generator=generator, dtype=torch.float64)
    together = draw(weights, draws).tolist()
    alone = [draw(weights[i : i + 1], draws[i : i + 1]).item() for i in range(33)]
    assert together == alone


@pytest.mark.parametrize("count", [1, 20, 256, 257, 999, 1000])
def test_largest_is_in_descending_order(count: int) -> None:
    weights = torch.rand(3, 1000, generator=torch.Generator().manual_seed(count))
    expected = [sorted(row, reverse=True)[:count] for row in weights.tolist()]
    assert largest(weights, count).tolist() == expected


def test_every_filter_keeps_what_the_loops_keep() -> None:
    rng = random.Random(1)
    for _ in range(60):
        size = rng.choice((5, 100, 700))
        # Few distinct values, so that borders fall on ties.
        logits = torch.tensor([[rng.choice((0.0, 0.5, 1.0, 2.5, rng.uniform(-3, 3))) for _ in range(size)]])
        params = reference.Params(
            temperature=rng.choice((0.3, 1.0, 2.0)),
            top_k=rng.choice((0, 1, 3, 50, 600)),
            top_p=rng.choice((1.0, 0.05, 0.5, 0.93)),
            min_p=rng.choice((0.0, 0.1, 1.0)),
        )
        weights = softmax_weights(logits.clone(), logits.amax(-1), torch.tensor([params.temperature]))
        zero_below(weights, torch.tensor([params.min_p]))
        if params.top_k:
            zero_below(weights, floor_of_top_k(weights, torch.tensor([params.top_k]), params.top_k))
        zero_below(weights, floor_of_top_p(weights, torch.tensor([params.top_p])))
        assert weights[0].tolist() == reference.weights(logits[0].tolist(), params), params


@pytest.mark.parametrize("top_p", [1e-6, 0.5, 0.9, 0.999, 1 - 2**-24])
@pytest.mark.parametrize("power", [0, 1, 8, 40])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, power: int) -> None:
    weights = torch.rand(5, 700, generator=torch.Generator().manual_seed(power)) ** power
    floors = floor_of_top_p(weights, torch.full((5,), top_p)).tolist()
    for row, floor in zip(weights.tolist(), floors, strict=True):
        wanted = math.fsum(row) * torch.tensor(top_p).item()
        assert math.fsum(value for value in row if value >= floor) >= wanted * (1 - 1e-12)
        assert math.fsum(value for value in row if value > floor) < wanted


def test_a_filter_is_off_for_the_rows_that_do_not_use_it() -> None:
    weights = torch.rand(3, 300, generator=torch.Generator().manual_seed(0))
    top_k = floor_of_top_k(weights, torch.tensor([0, 400, 2]), 400)
    assert top_k.tolist() == [0.0, weights[1].min().item(), sorted(weights[2].tolist())[-2]]
    assert floor_of_top_p(weights, torch.tensor([1.0, 0.5, 1.0])).count_nonzero() == 1


def test_top_p_of_one_keeps_tokens_too_small_to_change_the_sum() -> None:
    assert floor_of_top_p(torch.tensor([[1.0, 1e-30]]), torch.tensor([1.0])).tolist() == [0.0]


def test_the_smallest_temperature_gives_finite_weights() -> None:
    logits = torch.tensor([[3e4, -3e4, 3e4 - 1]])
    weights = softmax_weights(logits, logits.amax(-1), torch.tensor([1.2e-38]))
    assert weights.tolist() == [[1.0, 0.0, 0.0]]

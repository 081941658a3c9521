"""SmolLM2-135M-Instruct against greedy tokens that were recorded with another engine, in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from frizzen import catalog
from frizzen.errors import CatalogError
from tests.models.driver import Driver, Stream, load


@pytest.fixture(scope="module")
def driver() -> Driver:
    try:
        path = catalog.resolve("smollm2-135m")
    except CatalogError as error:
        pytest.skip(str(error))
    return Driver(load(path), num_blocks=512)


@pytest.mark.parametrize("chunk", [None, 7, 64])
def test_batched_greedy_tokens_are_the_recorded_ones(
    driver: Driver, smollm2_references: list[dict[str, Any]], chunk: int | None
) -> None:
    wanted = [entry["output_ids"] for entry in smollm2_references]
    found = driver.greedy([entry["prompt_ids"] for entry in smollm2_references], 64, chunk)
    assert [tokens[: len(want)] for tokens, want in zip(found, wanted, strict=True)] == wanted


def test_greedy_tokens_alone_are_the_recorded_ones(
    driver: Driver, smollm2_references: list[dict[str, Any]]
) -> None:
    for entry in smollm2_references[:3]:
        assert driver.greedy([entry["prompt_ids"]], len(entry["output_ids"])) == [entry["output_ids"]]


def test_first_step_logprobs_are_the_recorded_ones(
    driver: Driver, smollm2_references: list[dict[str, Any]]
) -> None:
    for entry in smollm2_references:
        logprobs = torch.log_softmax(driver.prefill(Stream(list(entry["prompt_ids"])))[-1], dim=-1)
        ids, values = zip(*entry["first_step_top5_logprobs"], strict=True)
        assert logprobs[list(ids)].tolist() == pytest.approx(values, abs=2e-4)

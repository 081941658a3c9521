"""SmolLM2-135M-Instruct against logits that were recorded with another engine, in float32.

Its greedy tokens, through the engine, are in ``tests/library/test_smollm2.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import needs_smollm2
from tests.models.driver import Driver, Stream, load

pytestmark = needs_smollm2


@pytest.fixture(scope="module")
def driver(smollm2: Path) -> Driver:
    return Driver(load(smollm2), num_blocks=512)


def test_first_step_logprobs_are_the_recorded_ones(
    driver: Driver, smollm2_references: list[dict[str, Any]]
) -> None:
    for entry in smollm2_references:
        logprobs = torch.log_softmax(driver.prefill(Stream(list(entry["prompt_ids"])))[-1], dim=-1)
        ids, values = zip(*entry["first_step_top5_logprobs"], strict=True)
        assert logprobs[list(ids)].tolist() == pytest.approx(values, abs=2e-4)

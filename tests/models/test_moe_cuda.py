"""Mixture-of-experts families on a GPU: as on the CPU. Weights are random, so that no oracle is needed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.conftest import COMMON
from tests.models.closeness import assert_as_close, token_errors
from tests.models.driver import Driver, Stream, load
from tests.models.moe_families import MOE_FAMILIES
from tests.models.prompts import prompts

pytestmark = pytest.mark.gpu


@pytest.fixture
def config(tmp_path: Path, family: str) -> Path:
    transformers = pytest.importorskip("transformers")
    prefix, own = MOE_FAMILIES[family]
    values = {"architectures": [f"{prefix}ForCausalLM"], **COMMON, **own}
    # By transformers' class, which knows the defaults that published configurations spell out.
    getattr(transformers, f"{prefix}Config")(**values).save_pretrained(tmp_path)
    return tmp_path / "config.json"


@pytest.mark.parametrize("family", MOE_FAMILIES)
def test_float32_equals_the_cpu(config: Path, family: str) -> None:
    here, there = (
        Driver(load(config, load_format="dummy", device=device, seed=1)) for device in ("cpu", "cuda")
    )
    for prompt in prompts():
        for chunk in (None, 7):
            wanted, found = (driver.prefill(Stream(list(prompt)), chunk) for driver in (here, there))
            torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    assert there.greedy(prompts(), 12, 16) == here.greedy(prompts(), 12, 16)
    loads = [driver.model.expert_load for driver in (here, there)]
    assert all(loads)
    assert torch.equal(*(load.read() for load in loads if load))


@pytest.mark.parametrize("family", MOE_FAMILIES)
def test_bfloat16_is_as_close_to_float32_as_the_cpu(config: Path, family: str) -> None:
    exact = Driver(load(config, load_format="dummy", seed=1)).prefill(Stream(prompts()[2]))
    here, there = (
        token_errors(
            Driver(load(config, load_format="dummy", dtype="bfloat16", device=device, seed=1)).prefill(
                Stream(prompts()[2]), 40
            ),
            exact,
        )
        for device in ("cpu", "cuda")
    )
    assert_as_close(there, here)

"""The bound on bfloat16's error passes what rounding does, and not what a wrong kernel does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from frizzen.layers.moe import MoeLayer
from tests.conftest import COMMON
from tests.models.closeness import assert_as_close, token_errors
from tests.models.driver import Driver, Stream, load
from tests.models.moe_families import MOE_FAMILIES
from tests.models.prompts import prompts

Routed = tuple[Tensor, Tensor]


def too_large(weights: Tensor, ids: Tensor) -> Routed:
    return weights * 1.1, ids


def exchanged(weights: Tensor, ids: Tensor) -> Routed:
    return weights.flip(1), ids


def wrong_expert(weights: Tensor, ids: Tensor) -> Routed:
    """The next expert, for the first choice of every fifth token."""
    wrong = ids.clone()
    wrong[::5, 0] = (wrong[::5, 0] + 1) % 8
    return weights, wrong


def errors_of(config: Path, seed: int, exact: Tensor) -> Tensor:
    model = load(config, load_format="dummy", dtype="bfloat16", seed=seed)
    return token_errors(Driver(model).prefill(Stream(prompts()[2])), exact)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    transformers = pytest.importorskip("transformers")
    prefix, own = MOE_FAMILIES["deepseek_v3"]
    values = {"architectures": [f"{prefix}ForCausalLM"], **COMMON, **own}
    getattr(transformers, f"{prefix}Config")(**values).save_pretrained(tmp_path)
    return tmp_path / "config.json"


def exact_of(config: Path, seed: int) -> Tensor:
    return Driver(load(config, load_format="dummy", seed=seed)).prefill(Stream(prompts()[2]))


@pytest.mark.parametrize("broken", [too_large, exchanged, wrong_expert])
def test_a_wrong_router_is_not_as_close(
    broken: Callable[[Tensor, Tensor], Routed], config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = exact_of(config, 1)
    usual = errors_of(config, 1, exact)
    assert_as_close(usual, usual)
    routed = MoeLayer._routed

    def wrong(self: MoeLayer, x: Tensor, weights: Tensor, ids: Tensor) -> Any:
        return routed(self, x, *broken(weights, ids))

    monkeypatch.setattr(MoeLayer, "_routed", wrong)
    with pytest.raises(AssertionError, match="medians"):
        assert_as_close(errors_of(config, 1, exact), usual)


def test_tokens_whose_experts_rounding_has_chosen_pass_the_bound(config: Path) -> None:
    """With these seeds 5 and 3 of 90 tokens; by the mean they would not."""
    usual = errors_of(config, 1, exact_of(config, 1))
    for seed in (2, 3):
        found = errors_of(config, seed, exact_of(config, seed))
        assert_as_close(found, usual)
        assert found.square().mean() > torch.tensor(1.5).square() * usual.square().mean()

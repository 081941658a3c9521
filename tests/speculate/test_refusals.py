"""A drafter that does not fit its target is refused when it is loaded, with both values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from frizzen.errors import LoadError
from frizzen.kernels.facts import detect_machine
from frizzen.kernels.plan import PlanBuilder, default_registry
from frizzen.loading.load import LoadRequest, load_model
from frizzen.speculate.load import DraftRequest, load_drafter
from tests.conftest import CheckpointMaker
from tests.speculate.checkpoints import VOCAB, write_dspark, write_eagle3

Load = Callable[..., Any]


@pytest.fixture
def load(tiny_checkpoint: CheckpointMaker) -> Load:
    def load(name: str, model: Path | None, **target: Any) -> Any:
        plan = PlanBuilder(default_registry(), detect_machine("cpu"))
        request = LoadRequest(model=str(tiny_checkpoint("llama", **target)), dtype="float32")
        wanted = DraftRequest(name=name, target=request, model=None if model is None else str(model))
        return load_drafter(wanted, load_model(request, plan), plan)

    return load


def test_a_draft_model_with_another_vocabulary_is_refused(
    load: Load, tiny_checkpoint: CheckpointMaker
) -> None:
    with pytest.raises(LoadError, match="a vocabulary of 288 tokens, the target's is 320"):
        load("draft_model", tiny_checkpoint("qwen2", vocab_size=288))


def test_a_target_without_the_layer_has_no_mtp(load: Load) -> None:
    with pytest.raises(LoadError, match="num_nextn_predict_layers of at least 1, LlamaForCausalLM has 0"):
        load("mtp", None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_hidden_size": 128}, "target_hidden_size is 128, the target's hidden size is 64"),
        ({"vocab_size": 300}, "vocab_size is 300, the target's is 320"),
        ({"taps": (0, 1, 3)}, "tapped at layer 3, expected 0 to its number of layers, 2"),
        ({"rope_interleave": True}, "the rotary layout is interleaved pairs, expected halves"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, expected at least 1"),
        ({"target_hidden": 32}, r"fc.weight has shape \[64, 96\], expected \[64, 192\]"),
    ],
)
def test_eagle3_that_does_not_fit_is_refused(
    load: Load, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        load("eagle3", write_eagle3(tmp_path / "draft", **options))


def test_eagle3_taps_three_layers_by_default_and_says_when_the_target_is_too_shallow(
    load: Load, tmp_path: Path
) -> None:
    path = write_eagle3(tmp_path / "draft", eagle_config={})
    with pytest.raises(LoadError, match="tapped at layer -1"):
        load("eagle3", path)
    assert load("eagle3", path, num_hidden_layers=8).drafter.taps == (2, 4, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_hidden_size": 128}, "target_hidden_size is 128, the target's hidden size is 64"),
        ({"num_target_layers": 36}, "num_target_layers is 36, the target has 2 layers"),
        ({"taps": (0, 2)}, "tapped at layer 3, expected 0 to its number of layers, 2"),
        ({"target_layer_ids": None}, "lists the taps"),
        (
            {"mask_token_id": None},
            "the mask token is missing: none of dflash_config.mask_token_id, mask_token_id",
        ),
        ({"mask_token_id": 320}, "the mask token is 320, expected an id below the draft's vocabulary, 320"),
        ({"vocab_size": 400}, "vocab_size is 400, the target's is 320, and there is no embed_tokens"),
        ({"rope_is_neox_style": False}, "the rotary layout is interleaved pairs, expected halves"),
        ({"markov_head_type": "gated"}, "markov_head_type is 'gated', expected 'vanilla'"),
        ({"draft_vocab_size": 200}, "draft_vocab_size is 200, the target's vocabulary 320"),
        ({"markov_rank": 4}, r"markov_w1.weight has shape \[320, 8\], expected \[320, 4\]"),
    ],
)
def test_dspark_that_does_not_fit_is_refused(
    load: Load, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        load("dspark", write_dspark(tmp_path / "draft", **options))


def test_the_mask_token_is_looked_up_in_order(load: Load, tmp_path: Path) -> None:
    keys = {"dspark_noise_token_id": 3, "pard_token": 4, "ptd_token_id": 5}
    for number, (given, wanted) in enumerate(
        (
            ({"dflash_config": {"mask_token_id": 1}, "mask_token_id": 2, **keys}, 1),
            ({"mask_token_id": 2, **keys}, 2),
            ({"mask_token_id": None, **keys}, 3),
            ({"mask_token_id": None, "pard_token": 4, "ptd_token_id": 5}, 4),
            ({"mask_token_id": None, "ptd_token_id": 5}, 5),
        )
    ):
        path = write_dspark(tmp_path / str(number), **given)
        assert load("dspark", path).drafter.config.mask_id == wanted


def test_a_map_that_leads_out_of_the_vocabulary_is_refused(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.speculate.checkpoints.Maker.map_to", far)
    with pytest.raises(LoadError, match="d2t leads to token 320, the target's vocabulary is 320"):
        load("eagle3", write_eagle3(tmp_path / "draft", taps=(0, 1, 2), draft_vocab=200))


def far(maker: Any, rows: int) -> None:
    import torch

    maker.tensors["d2t"] = torch.full((rows,), VOCAB - rows + 1)

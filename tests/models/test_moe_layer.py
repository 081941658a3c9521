"""The mixture-of-experts layer: its seam for expert parallelism, and what it counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from frizzen.kernels.facts import detect_machine
from frizzen.kernels.plan import PlanBuilder, default_registry
from frizzen.layers.build import BuildContext, NormPlace
from frizzen.layers.moe import Dispatched, ExpertLoad, MoeLayer
from frizzen.loading.checkpoint import Weights
from frizzen.loading.hf_config import HfConfig
from frizzen.loading.safetensors import SafetensorsCheckpoint
from frizzen.models.families import family_of_hf
from tests.models.driver import BLOCK_SIZE, Driver, Stream, load
from tests.models.prompts import prompts
from tests.models.test_parity import oracle

CPU = torch.device("cpu")


def count_choices(model: Any, tokens: list[int]) -> torch.Tensor:
    """``[layers, experts]``: what transformers' routers choose."""
    chosen: list[torch.Tensor] = []
    hooks = [
        module.register_forward_hook(lambda _module, _inputs, outputs: chosen.append(outputs[2]))
        for name, module in model.named_modules()
        if name.endswith(("mlp.gate", "mlp.router"))
    ]
    with torch.inference_mode():
        model(torch.tensor([tokens]))
    for hook in hooks:
        hook.remove()
    return torch.stack([ids.flatten().bincount(minlength=8) for ids in chosen])


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3", "gpt_oss"])
def test_tokens_per_expert_are_those_that_transformers_routes(tiny_checkpoint: Any, family: str) -> None:
    path = tiny_checkpoint(family)
    model = load(path)
    load_counter = model.expert_load
    assert load_counter is not None
    prompt = prompts()[2]
    driver = Driver(model)
    driver.prefill(Stream(list(prompt)), 16)
    wanted = count_choices(oracle(path), prompt)
    assert torch.equal(load_counter.read(), wanted)
    # From then on, every step adds to it, the rows of a batch together.
    driver.step([(Stream(list(prompt)), 90), (Stream(list(prompt)), 90)])
    assert torch.equal(load_counter.read(), 3 * wanted)
    assert load_counter.layers == ((1, 2, 3) if family == "deepseek_v3" else (0, 1, 2, 3))


def test_a_dense_model_counts_nothing(tiny_checkpoint: Any) -> None:
    assert load(tiny_checkpoint("qwen3")).expert_load is None


def test_padding_is_not_counted_and_an_abandoned_step_neither() -> None:
    counter = ExpertLoad(frozenset({1, 4}), 3, CPU)
    counter.add(1, torch.tensor([[2, 0]], dtype=torch.int32))
    # The step raised here; the next one begins anew.
    counter.add(1, torch.tensor([[0, 1], [-1, -1]], dtype=torch.int32))
    assert not counter.read().any()
    counter.add(4, torch.tensor([[2, 1], [-1, -1]], dtype=torch.int32))
    assert counter.read().tolist() == [[1, 1, 0], [0, 1, 1]]
    assert counter.read().dtype == torch.int64


class Scattered:
    """Stands for experts on two devices: tokens leave in another order, among those of other senders."""

    def dispatch(self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> Dispatched:
        received = [
            torch.cat([torch.full_like(part[:3], filler), part.flip(0)])
            for part, filler in ((x, torch.nan), (weights, 0), (ids, -1))
        ]
        return Dispatched(*received)

    def combine(self, y: torch.Tensor, dispatched: Dispatched) -> torch.Tensor:
        assert len(y) == len(dispatched.x)
        return y[3:].flip(0)


def moe_layer(path: Path, exchange: Scattered | None, **changes: Any) -> MoeLayer:
    raw = HfConfig.read(path / "config.json")
    family = family_of_hf(raw)
    config = family.from_hf(raw)
    moe = config.moe
    assert moe is not None
    checkpoint = SafetensorsCheckpoint(path)
    weights = Weights(checkpoint, family.parameters(config), torch.float32, CPU, ignored=family.ignored)
    plan = PlanBuilder(default_registry(), detect_machine("cpu"))
    context = BuildContext(weights, plan, torch.float32, CPU, BLOCK_SIZE).at_layer(2)
    load_counter = ExpertLoad(frozenset({2}), moe.num_experts, CPU)
    with torch.inference_mode():
        norm = NormPlace("mlp_norm", config.rms_eps)
        layer = MoeLayer(context, replace(moe, **changes), norm, load_counter, exchange)
    checkpoint.close()
    return layer


@pytest.mark.parametrize("family", ["qwen2_moe", "gpt_oss"])
def test_an_exchange_may_reorder_tokens_and_add_strangers(tiny_checkpoint: Any, family: str) -> None:
    path = tiny_checkpoint(family)
    x = torch.randn(9, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        here, _ = moe_layer(path, None).forward(x, torch.zeros_like(x), None)
        there, _ = moe_layer(path, Scattered()).forward(x, torch.zeros_like(x), None)
    torch.testing.assert_close(there, here, atol=1e-6, rtol=1e-5)


def test_the_scaling_factor_is_applied_once_and_not_to_shared_experts(tiny_checkpoint: Any) -> None:
    path = tiny_checkpoint("deepseek_v2")
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        single, double = (moe_layer(path, None, scaling=scaling) for scaling in (1.0, 2.0))
        assert single.shared is not None
        shared = single.shared.forward(single.route(x, torch.zeros_like(x), None)[0])
        once, twice = (layer.forward(x, torch.zeros_like(x), None)[0] for layer in (single, double))
        torch.testing.assert_close(twice, 2 * (once - shared) + shared, atol=1e-5, rtol=1e-5)

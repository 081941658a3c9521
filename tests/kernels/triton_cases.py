"""What the conformance test does not reach in the Triton kernels, and a part of it for the interpreter.

Not collected by itself: ``test_triton.py`` runs it in a process whose kernels are interpreted on the CPU, and
its cases on a GPU where there is one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path

import pytest
import torch
from torch import Tensor

from frizzen.kernels.draft_ops import ATTENTION_DRAFT, ATTENTION_DRAFT_MLA
from frizzen.kernels.facts import Facts, ShapeValue, detect_machine
from frizzen.kernels.fp8_ops import LINEAR_FP8, MOE_EXPERTS_FP8
from frizzen.kernels.mla_ops import ATTENTION_MLA, ROPE_MLA
from frizzen.kernels.mla_reference import CANDIDATES as MLA_REFERENCE
from frizzen.kernels.moe_ops import MOE_EXPERTS, MOE_ROUTE
from frizzen.kernels.moe_reference import CANDIDATES as MOE_REFERENCE
from frizzen.kernels.mxfp4_ops import MOE_EXPERTS_MXFP4
from frizzen.kernels.ops import (
    ATTENTION_PAGED,
    LINEAR,
    LINEAR_SILU_MUL,
    LM_HEAD,
    LM_HEAD_TIED,
    NORM_LAYER,
    NORM_RMS,
    ROPE,
)
from frizzen.kernels.plan import default_registry
from frizzen.kernels.problems import SHAPES, disagreement, paged_step
from frizzen.kernels.reference import CANDIDATES as REFERENCE
from frizzen.layers.rotary import angles
from frizzen.quantize.fp8 import quantize
from frizzen.speculate.drafter import Asking, DraftBlocks, Proposed, Seen, lay_out
from frizzen.speculate.fused import _Carry
from frizzen.step import StepContext
from frizzen.worker.arena import Arena, Header
from frizzen.worker.buffers import StepBuffers, fill
from frizzen.worker.lattice import Shape
from frizzen.worker.results import write_proposed_by_torch
from frizzen.worker.rows import PersistentBatch
from frizzen.worker.tail import Greedy, end_rows
from tests.kernels import fake_deep_gemm
from tests.models.driver import Driver, Stream, load
from tests.models.test_moe_published import PUBLISHED
from tests.worker.arena_layout import layout

drafts = pytest.importorskip("frizzen.kernels.triton.drafts")
steps = pytest.importorskip("frizzen.kernels.triton.steps")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"

# Two shapes of each op are enough for the interpreter, which takes seconds for what a GPU does at once.
INTERPRETED_SHAPES = {
    NORM_RMS: (2,),
    ROPE: (5, 7, 8),
    LINEAR: (5, 6),
    LINEAR_SILU_MUL: (1,),
    LM_HEAD: (1,),
    LM_HEAD_TIED: (1,),
    ATTENTION_PAGED: (3, 5, 7),
    ATTENTION_DRAFT: (1, 6, 10, 15),
    ROPE_MLA: (0, 1),
    ATTENTION_MLA: (1,),
    ATTENTION_DRAFT_MLA: (1, 2),
    NORM_LAYER: (1,),
    MOE_ROUTE: (1, 3, 4, 6, 7),
    MOE_EXPERTS: (3, 4),
    LINEAR_FP8: (3, 4),
    MOE_EXPERTS_FP8: (2,),
    MOE_EXPERTS_MXFP4: (3,),
}


def facts(dtype: torch.dtype, **shape: ShapeValue) -> Facts:
    return Facts.of(detect_machine(DEVICE), dtype, shape)


def kernel(op: str, of: Facts) -> object:
    return next(entry for entry in default_registry().candidates(op) if entry.name == "triton").build(of)


def reference(op: str, of: Facts) -> object:
    return next(entry for entry in (*REFERENCE, *MOE_REFERENCE, *MLA_REFERENCE) if entry.op == op).build(of)


def close(got: Tensor, want: Tensor, bound: float = 1e-4) -> None:
    torch.testing.assert_close(got.float(), want.float(), rtol=bound, atol=bound, equal_nan=True)


def normal(*size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size))).to(DEVICE)


def attention_facts(**others: ShapeValue) -> Facts:
    shape: dict[str, ShapeValue] = {"heads": 4, "kv_heads": 2, "head_dim": 32, "scale": 0.2, "window": 0}
    shape |= {"block_size": 8, "sinks": False, "kv_dtype": "auto", **others}
    return facts(torch.float32, **shape)


def attention_problem(rows: Sequence[tuple[int, int]], of: Facts) -> tuple[StepContext, object, Tensor]:
    """A step, a filled cache and joint queries, keys and values."""
    step, blocks = paged_step(rows, 8, torch.Generator().manual_seed(0), torch.device(DEVICE))
    cache = kernel(ATTENTION_PAGED.name, of).allocate(blocks, torch.device(DEVICE))
    cache.data.copy_(normal(*cache.data.shape))
    return step, cache, normal(step.num_tokens, 4 * 32 + 2 * 2 * 32)


def attend(
    which: Callable[[str, Facts], object], of: Facts, problem: tuple, sinks: Tensor | None = None
) -> Tensor:
    step, cache, qkv = problem
    chosen = which(ATTENTION_PAGED.name, of)
    return chosen.prepare(cache, sinks)(qkv, chosen.begin(step))


def case_long_contexts_are_split_and_merged() -> None:
    of = attention_facts()
    problem = attention_problem([(700, 1), (3, 1), (560, 1), (513, 40)], of)
    assert any(launch.splits > 1 for launch in kernel(ATTENTION_PAGED.name, of).begin(problem[0]).launches)
    close(attend(kernel, of, problem), attend(reference, of, problem))


def case_a_window_bounds_the_keys_of_a_split_context() -> None:
    of = attention_facts(window=540)
    problem = attention_problem([(700, 1), (560, 1), (650, 5)], of)
    close(attend(kernel, of, problem), attend(reference, of, problem))


def case_sinks_take_weight_and_have_no_value() -> None:
    of, sinks = attention_facts(sinks=True), normal(4) + 1
    problem = attention_problem([(9, 1), (600, 1), (33, 7)], of)
    close(attend(kernel, of, problem, sinks), attend(reference, of, problem, sinks))
    assert not torch.allclose(attend(kernel, of, problem, sinks), attend(kernel, of, problem))


def case_a_soft_cap_bends_the_scores() -> None:
    of = facts(torch.float32, **dict(attention_facts().shape), softcap=1.5)
    step, cache, qkv = attention_problem([(37, 37)], of)
    found = attend(kernel, of, (step, cache, qkv))
    blocks = step.block_table[0].long()
    k, v = (part[blocks].flatten(0, 1)[:37].repeat_interleave(2, 1) for part in (cache.k, cache.v))
    scores = torch.einsum("tnd,jnd->ntj", qkv[:, :128].view(37, 4, 32), k) * 0.2
    scores = 1.5 * torch.tanh(scores / 1.5)
    scores.masked_fill_(torch.ones(37, 37, dtype=torch.bool, device=DEVICE).triu(1), -torch.inf)
    close(found, torch.einsum("ntj,jnd->tnd", torch.softmax(scores, -1), v).flatten(1))


def case_rows_of_one_token_are_turned_and_attended_in_one_launch() -> None:
    shapes = (
        ({}, 32, True, ((1,), (2,), (9,), (40,), (130,), (33, 1, 32, 70), (5, 200) * 9)),
        ({"window": 20}, 16, True, ((1,), (21,), (65,), (90, 7, 21))),
        ({"window": 540}, 32, False, ((700,), (700, 3))),
        ({"sinks": True}, 8, False, ((17,), (600,), (300, 41))),
        ({"kv_dtype": "fp8_e4m3"}, 32, True, ((50,), (50, 9))),
    )
    for others, rotary, normed, contexts in shapes:
        of = attention_facts(**others)
        attention, sinks = kernel(ATTENTION_PAGED.name, of), normal(4) if of["sinks"] else None
        shape = {"heads": 4, "kv_heads": 2, "head_dim": 32, "rotary_dim": rotary, "qk_norm": normed}
        of_rope = facts(torch.float32, layout=attention.layout, **shape)
        norms = (normal(32), normal(32), 1e-5) if normed else (None, None, 1e-5)
        for lengths in contexts:
            step, cache, qkv = attention_problem([(length, 1) for length in lengths], of)
            cos, sin = normal(len(lengths), rotary // 2), normal(len(lengths), rotary // 2).flip(1)
            wanted, written = qkv.clone(), type(cache)(*_copies(cache))
            reference(ROPE.name, of_rope).prepare(written, *norms)(wanted, cos, sin, step.slots)
            want = reference(ATTENTION_PAGED.name, of).prepare(written, sinks)(wanted, step)
            turned = attention.prepare_turned(kernel(ROPE.name, of_rope), cache, norms, sinks)
            found = turned(qkv, cos, sin, step.slots, attention.begin(step))
            close(found, want)
            # Rounding to FP8 is not exact in the interpreter, for the smallest numbers.
            close(cache.data, written.data, 1e-4 if of["kv_dtype"] == "auto" else 3e-3)


def _copies(cache: object) -> tuple[Tensor, Tensor, Tensor]:
    data = cache.data.clone()
    parts = (data.as_strided(part.shape, part.stride(), part.storage_offset()) for part in (cache.k, cache.v))
    return (data, *parts)


def case_a_row_that_is_not_a_number_fails_alone() -> None:
    of = attention_facts()
    step, cache, qkv = attention_problem([(600, 1), (9, 1), (5, 3)], of)
    qkv[0, 0] = torch.nan
    found, want = (attend(which, of, (step, cache, qkv)) for which in (kernel, reference))
    assert found[0, :32].isnan().all()
    close(found[1:], want[1:])


def case_a_row_without_context_gets_zeros() -> None:
    of = attention_facts()
    step, cache, qkv = attention_problem([(9, 1), (5, 1)], of)
    step.seq_lens[1] = 0
    assert not attend(kernel, of, (step, cache, qkv))[1].any()


LATENT: dict[str, ShapeValue] = {"heads": 4, "nope_dim": 24, "rope_dim": 8, "value_dim": 20, "latent_dim": 48}


def latent_facts() -> Facts:
    return facts(torch.float32, **LATENT, scale=0.2, block_size=8)


def latent_problem(rows: Sequence[tuple[int, int]]) -> tuple[StepContext, Tensor, Tensor, Tensor]:
    """A step, a filled cache, an expansion and queries."""
    step, blocks = paged_step(rows, 8, torch.Generator().manual_seed(0), torch.device(DEVICE))
    return step, normal(blocks, 8, 56), normal(4 * 44, 48) * 0.2, normal(step.num_tokens, 4 * 32)


def attend_latents(which: Callable[[str, Facts], object], problem: tuple) -> Tensor:
    step, cache, expansion, q = problem
    chosen = which(ATTENTION_MLA.name, latent_facts())
    return chosen.prepare(cache, expansion)(q, chosen.begin(step))


def case_rows_that_the_workspace_does_not_hold_together_are_expanded_in_turn() -> None:
    from unittest import mock

    from frizzen.kernels.triton import latent_attention

    problem = latent_problem([(7, 1), (190, 130), (130, 130)])
    one_row = 190 * 4 * 44 * 4
    for most, launches in ((one_row - 1, 0), (2 * one_row, 1), (one_row, 2)):
        with mock.patch.object(latent_attention, "_EXPANDED_BYTES", most):
            state = kernel(ATTENTION_MLA.name, latent_facts()).begin(problem[0])
            assert len(state.expanded) == launches
            if launches == 2:
                close(attend_latents(kernel, problem), attend_latents(reference, problem))


def case_a_latent_row_without_context_gets_zeros_and_one_that_is_not_a_number_fails_alone() -> None:
    problem = latent_problem([(300, 1), (5, 1), (9, 1), (7, 3)])
    step, _, _, q = problem
    q[0, 0] = torch.nan
    found, want = attend_latents(kernel, problem), attend_latents(reference, problem)
    assert found[0, :20].isnan().all()
    close(found[1:], want[1:])
    step.seq_lens[1] = 0
    assert not attend_latents(kernel, problem)[1].any()


def case_a_cut_product_adds_its_cuts() -> None:
    from frizzen.kernels.triton.launch import Target
    from frizzen.kernels.triton.linear import Skinny, Tile

    skinny = Skinny.of(700, 100, Target(dependent=False, processors=132), DEVICE)
    weight, bias = normal(100, 700), normal(100)
    for tokens in (2, 17):
        x, out = normal(tokens, 700), torch.full((tokens, 100), torch.nan, device=DEVICE)
        for _ in range(2):  # twice: the counters are back at zero
            skinny.few(x, weight, bias, out, Tile(64, 128, 4, 2, 4))
            close(out, x @ weight.T + bias, 1e-3)


def case_the_norm_before_a_product_may_be_part_of_it() -> None:
    weight, gain, bias = normal(40, 72), normal(72), normal(40)
    of = facts(torch.float32, in_features=72, out_features=40, bias=True)
    for tokens in (1, 3):
        for residual in (normal(tokens, 72) * 2, None):
            x, mine = normal(tokens, 72), None if residual is None else residual.clone()
            y, updated = kernel(LINEAR.name, of).prepare_normed(gain, 1e-5, weight, bias)(x, mine)
            stream = x if residual is None else x + residual
            normed = torch.rms_norm(stream, (72,), gain, 1e-5)
            close(updated, stream)
            close(y, normed @ weight.T + bias)


def case_the_norm_before_a_product_in_fp8_may_be_part_of_it() -> None:
    weight, gain, bias = quantize(normal(64, 272), 128, 128), normal(272), normal(64)
    of = facts(torch.float32, in_features=272, out_features=64, bias=True, block_rows=128, block_columns=128)
    linear = kernel(LINEAR_FP8.name, of)
    for tokens in (1, 3, 70):
        for residual in (normal(tokens, 272) * 2, None):
            x, mine = normal(tokens, 272), None if residual is None else residual.clone()
            y, updated = linear.prepare_normed(gain, 1e-5, weight, bias)(x, mine)
            stream = x if residual is None else x + residual
            close(updated, stream)
            # The last bit of a norm may round to another number of FP8.
            normed = torch.rms_norm(stream, (272,), gain, 1e-5)
            close(y, linear.prepare(weight, bias)(normed), 3e-2)


ROUTING: dict[str, ShapeValue] = {
    "hidden": 192,
    "experts": 16,
    "top_k": 3,
    "scoring": "softmax",
    "renormalize": True,
    "scaling": 1.0,
    "groups": 1,
    "top_groups": 1,
    "bias": False,
    "correction": False,
}


def case_the_norm_before_a_router_may_be_part_of_it() -> None:
    of, weight, gain = facts(torch.float32, **ROUTING), normal(16, 192), normal(192)
    for tokens in (1, 7, 70):
        for residual in (normal(tokens, 192) * 2, None):
            x, mine = normal(tokens, 192), None if residual is None else residual.clone()
            found = kernel(MOE_ROUTE.name, of).prepare_normed(gain, 1e-5, weight, None, None)(x, mine, None)
            stream = x if residual is None else x + residual
            normed = torch.rms_norm(stream, (192,), gain, 1e-5)
            wanted = reference(MOE_ROUTE.name, of).prepare(weight, None, None)(normed, None)
            if mine is not None:
                close(mine, stream)
            for got, want in zip(found, (normed, *wanted), strict=True):
                close(got, want)


def case_one_token_is_routed_as_the_first_of_several() -> None:
    gain, bias, correction = normal(192), normal(16), normal(16) * 0.1
    for scoring, groups in (("softmax", 1), ("sigmoid", 4), ("sqrtsoftplus", 1)):
        limits = {"groups": groups, "top_groups": min(groups, 2), "scoring": scoring}
        of = facts(torch.float32, **{**ROUTING, **limits, "bias": True, "correction": groups > 1})
        route = kernel(MOE_ROUTE.name, of).prepare_normed(
            gain, 1e-5, normal(16, 192), bias, correction if groups > 1 else None
        )
        for count in (2, 0):
            x, residual = normal(2, 192), normal(2, 192) * 2
            valid = torch.tensor([count], dtype=torch.int32, device=DEVICE)
            mine = residual[:1].clone()
            found, want = route(x[:1], mine, valid), route(x, residual, valid)
            close(mine, residual[:1])
            for got, several in zip(found, want, strict=True):
                close(got, several[:1])


def case_a_token_that_is_not_a_number_gets_experts_that_exist() -> None:
    of, weight = facts(torch.float32, **ROUTING), normal(16, 192)
    for tokens in (1, 5, 600):
        x = normal(tokens, 192)
        x[-1] = torch.nan
        weights, ids = kernel(MOE_ROUTE.name, of).prepare(weight, None, None)(x, None)
        want = reference(MOE_ROUTE.name, of).prepare(weight, None, None)(x, None)
        assert 0 <= ids.min() <= ids.max() < 16
        assert len(ids[-1].unique()) == 3
        assert weights[-1].isnan().all()
        close(weights, want[0])
        assert torch.equal(ids, want[1])


def case_equal_scores_go_to_the_lower_expert() -> None:
    of, x = facts(torch.float32, **ROUTING), normal(6, 192)
    weight = normal(1, 192).expand(16, 192).contiguous()
    _, ids = kernel(MOE_ROUTE.name, of).prepare(weight, None, None)(x, None)
    assert ids.tolist() == [[0, 1, 2]] * 6


def case_a_token_without_experts_gets_zeros() -> None:
    shape = {"hidden": 64, "intermediate": 32, "experts": 8, "top_k": 2, "bias": True}
    of = facts(torch.float32, clamp=0.0, alpha=1.0, beta=0.0, **shape)
    weights = normal(8, 64, 64), normal(8, 64, 32), normal(8, 64), normal(8, 64)
    for tokens in (1, 6, 300):
        x, gains = normal(tokens, 64), normal(tokens, 2).abs()
        ids = torch.stack([torch.arange(tokens) % 8, (torch.arange(tokens) + 3) % 8], 1).int().to(DEVICE)
        ids[0] = -1
        found, want = (
            which(MOE_EXPERTS.name, of).prepare(*weights)(x, gains, ids) for which in (kernel, reference)
        )
        assert not found[0].any()
        close(found, want, 1e-3)


def case_products_from_outside_get_sorted_rows_with_scales_by_column() -> None:
    """DeepGEMM's part is played by torch here; the conformance test runs the package itself."""
    from frizzen.kernels.deep_gemm_kernels import GroupedExperts
    from frizzen.kernels.moe_reference import Activation
    from frizzen.kernels.triton.launch import Target
    from frizzen.kernels.triton.places import Places
    from frizzen.quantize.fp8 import quantize

    shape = {"hidden": 256, "intermediate": 128, "experts": 5, "top_k": 2, "bias": False}
    of = facts(torch.float32, clamp=1.0, alpha=1.0, beta=0.0, **shape)
    w13, w2 = normal(5, 256, 256) * 0.1, normal(5, 256, 128) * 0.1
    kept = [quantize(weight, 128, 128) for weight in (w13, w2)]
    places = Places(256, 128, 5, 2, Activation.of(of), Target.of(of))
    for tokens, rounded, bound in ((3, True, 1e-1), (3, False, 2e-2), (257, True, 1e-1)):
        x, gains = normal(tokens, 256), normal(tokens, 2).abs()
        ids = torch.stack([torch.arange(tokens) % 5, (torch.arange(tokens) * 3 + 1) % 5], 1).int().to(DEVICE)
        ids[ids[:, 0] == ids[:, 1], 1] = -1
        weights = [(w.data, w.scale) for w in kept] if rounded else [w13.bfloat16(), w2.bfloat16()]
        grouped = GroupedExperts(places, fake_deep_gemm.contiguous, fake_deep_gemm.masked, rounded)
        found = grouped.run(x.bfloat16(), gains, ids, *weights)
        plain = [w.expand(torch.float32) for w in kept] if rounded else [w.float() for w in weights]
        want = reference(MOE_EXPERTS.name, of).prepare(*plain, None, None)(x.bfloat16().float(), gains, ids)
        assert (found.float() - want).square().mean().sqrt() < bound * want.square().mean().sqrt()


def case_experts_in_mxfp4_keep_their_values_and_their_bytes() -> None:
    from frizzen.kernels.triton.mxfp4 import padding_bytes, rearrange
    from frizzen.quantize.mxfp4 import Mxfp4Weight

    of = torch.Generator().manual_seed(0)
    data = torch.randint(256, (2, 48, 48), generator=of, dtype=torch.uint8).to(DEVICE)
    scale = torch.randint(0, 129, (2, 48, 3), generator=of, dtype=torch.uint8).to(DEVICE)
    padding = padding_bytes(Mxfp4Weight(data, scale))
    for largest, excess in ((128, 0), (129, 1), (254, 126)):
        scale[1, 7, 2] = largest
        found = rearrange(Mxfp4Weight(data.clone(), scale.clone()))
        assert (found.units.nbytes, found.words.nbytes) == (data.nbytes, scale.nbytes + padding)
        assert found.excess == excess
        assert int(found.words.view(torch.uint8).max()) == 254


SMALL_GPT_OSS = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_local_experts": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 160,
    "rms_norm_eps": 1e-5,
}


def case_a_model_with_packed_experts_gives_the_logits_of_the_expanded_ones(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED["gpt-oss-20b"][0] | SMALL_GPT_OSS))
    registry = default_registry()
    plain = dict.fromkeys(registry.ops(), "reference")
    for dtype, bound in (("float32", 1e-5), ("bfloat16", 3e-2)):
        found, wanted = (
            Driver(
                load(
                    tmp_path,
                    registry=registry.restricted(plain | {MOE_EXPERTS_MXFP4.name: name}),
                    dtype=dtype,
                    device=DEVICE,
                    load_format="dummy",
                    mxfp4_weights="kept",
                )
            ).prefill(Stream(list(range(3, 24))))
            for name in ("triton", "reference")
        )
        error = (found - wanted).float().square().mean().sqrt() / wanted.float().square().mean().sqrt()
        assert error < bound, (dtype, error)


def case_pairs_are_sorted_by_expert_in_whole_tiles_and_in_their_order() -> None:
    from frizzen.kernels.triton.launch import Target
    from frizzen.kernels.triton.sorting import sort_pairs

    generator = torch.Generator().manual_seed(0)
    for tokens, experts, top_k, height in (
        (700, 8, 2, 128),
        (2300, 20, 4, 64),
        (900, 12, 3, 192),
        (3, 5, 2, 16),
        (2, 128, 8, 128),
    ):
        ids = torch.rand(tokens, experts, generator=generator).topk(top_k).indices.int()
        ids[torch.rand(ids.shape, generator=generator) < 0.1] = -1
        found = sort_pairs(ids.to(DEVICE), experts, height, Target(dependent=False, processors=16))
        order, places, owners, used = (part.cpu().long() for part in found)
        pairs = ids.flatten().long()
        counts = torch.bincount(pairs[pairs >= 0], minlength=experts)
        tiles = -(-counts // height)
        assert used.tolist() == [tiles.sum(), 0, 0]
        filled = torch.repeat_interleave(torch.arange(experts), tiles)
        assert torch.equal(owners, torch.nn.functional.pad(filled, (0, len(owners) - len(filled)), value=-1))
        want = torch.full_like(order, -1)
        for expert, first in enumerate((tiles.cumsum(0) - tiles) * height):
            want[first : first + counts[expert]] = (pairs == expert).nonzero().squeeze(1)
        assert torch.equal(order, want)
        present = (pairs >= 0).nonzero().squeeze(1)
        assert torch.equal(order[places[present]], present)


def decode_plan(widths: Sequence[int], shape: Shape, seed: int) -> StepBuffers:
    """Buffers whose plan holds rows of so many tokens, with the remains of another step behind them."""
    of = torch.Generator().manual_seed(seed)
    layout_of = layout(max_rows=shape.rows + 2, max_tokens=shape.tokens + 8, max_drafts=shape.width)
    plan = Arena(layout_of, torch.device(DEVICE), mirrored=True).device
    batch = PersistentBatch(shape.rows + 2, 37, 37 * 16, 50, torch.device(DEVICE))

    def random(target: Tensor, low: int, high: int) -> None:
        target.copy_(torch.randint(low, high, target.shape, generator=of, dtype=target.dtype))

    for section in (plan.positions, plan.slots, plan.seq_lens, plan.query_start, batch.block_table):
        random(section, 1, 500)
    random(batch.last_sampled, 0, 50)
    random(plan.input_ids, -1, 50)
    plan.rows.copy_(torch.randperm(len(plan.rows), generator=of))
    plan.uniforms.copy_(torch.rand(len(plan.uniforms), generator=of, dtype=torch.float64))
    ends = torch.tensor([0, *widths]).cumsum(0)
    plan.query_start[: len(ends)] = ends
    plan.header[Header._fields.index("num_rows")] = len(widths)
    plan.header[Header._fields.index("num_tokens")] = sum(widths)
    # Changes of rows in the step and of others, no two of one place.
    places = torch.randperm(len(plan.rows) * 37, generator=of)[: 100 * (seed % 3)]
    plan.block_rows[: len(places)], plan.block_columns[: len(places)] = places // 37, places % 37
    random(plan.block_ids, 500, 900)
    plan.header[Header._fields.index("num_blocks")] = len(places)
    return StepBuffers.allocate(plan, batch)


DECODES = [
    ([1], Shape(1, 1, 512)),
    ([1, 1, 1], Shape(4, 1, 512)),
    ([3, 1, 4, 1, 4], Shape(5, 4, 512)),
    ([2, 6], Shape(8, 6, 512)),
    ([5] * 40 + [1] * 7, Shape(48, 5, 512)),
]


def case_a_step_is_brought_to_the_shape_of_its_graph() -> None:
    for seed, (widths, shape) in enumerate(DECODES):
        ours, wanted = decode_plan(widths, shape, seed), decode_plan(widths, shape, seed)
        steps.fill_step(ours, shape)
        fill(wanted, shape)
        for name in ("positions", "slots", "query_start", "seq_lens"):
            assert getattr(ours.step(shape), name).equal(getattr(wanted.step(shape), name)), (name, widths)
        assert ours.ids[: shape.tokens].equal(wanted.ids[: shape.tokens])
        real = len(widths)
        assert ours.block_table[:real].equal(wanted.block_table[:real])
        assert ours.batch.block_table.equal(wanted.batch.block_table)
        untouched = [ours.plan.seq_lens[shape.rows :], ours.plan.slots[shape.tokens :]]
        assert all(part.bool().all() for part in untouched)


def case_rows_of_a_greedy_step_get_what_torch_gives_them() -> None:
    for seed, (widths, shape) in enumerate(DECODES):
        for acceptance in (None, 1.0, 2.4, 9.0):
            found = []
            for by in (steps.end_rows, end_rows):
                buffers = decode_plan(widths, shape, seed)
                fill(buffers, shape)
                of = torch.Generator().manual_seed(seed)
                ids = buffers.ids[: shape.tokens]
                # Drafts of which two thirds are right, and now and then logits that are no numbers.
                guess = torch.rand(shape.tokens, generator=of).to(DEVICE) < 0.67
                tokens = torch.where(guess, ids.roll(-1), (ids + 1) % 50)
                maximum = torch.randn(shape.tokens, generator=of).to(DEVICE)
                maximum[torch.rand(shape.tokens, generator=of).to(DEVICE) < 0.1] = torch.nan
                forced = None if acceptance is None else torch.tensor(acceptance, dtype=torch.float64)
                forced = None if forced is None else forced.to(DEVICE)
                step = Greedy(shape, buffers.plan, buffers.batch, ids, maximum, tokens, forced)
                ended = by(step)
                plan, real = buffers.plan, len(widths)
                counts = plan.num_sampled[:real]
                counted = torch.arange(plan.sampled.shape[1], device=DEVICE) < counts[:, None]
                found.append([plan.sampled[:real].masked_fill(~counted, 0), counts, plan.row_status[:real]])
                found[-1] += [ended.last[:real], *ended[1:], buffers.batch.last_sampled[:-1]]
            for ours, wanted in zip(*found, strict=True):
                assert ours.equal(wanted), (widths, acceptance)


def case_angles_are_those_of_torch() -> None:
    of = torch.Generator().manual_seed(0)
    frequencies = (1 / 1e4 ** torch.linspace(0, 1, 24)).to(DEVICE)
    for tokens, most in ((1, 3), (7, 40_000), (129, 300_000)):
        positions = torch.randint(0, most, (2 * tokens,), generator=of).to(DEVICE)[tokens:]
        for scale in (1.0, 1.3):
            for behind in (0, 1):
                found = steps.angles(positions, frequencies, scale, behind)
                wanted = angles(positions, frequencies, scale, behind)
                for ours, theirs in zip(found, wanted, strict=True):
                    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)


def case_proposals_are_written_as_torch_writes_them() -> None:
    of = torch.Generator().manual_seed(0)
    for rows, count, known in ((1, 1, False), (3, 4, True), (5, 2, True), (6, 4, False)):
        tokens = torch.randint(0, 50, (rows, count), generator=of).to(DEVICE)
        chances = torch.rand(rows, count, generator=of).to(DEVICE) if known else None
        step_rows = torch.randperm(8, generator=of)[:rows].to(DEVICE)
        found = []
        for by in (drafts.write_proposed, write_proposed_by_torch):
            out = Arena(layout(max_rows=8, max_tokens=40, max_drafts=4), torch.device(DEVICE)).device
            out.num_sampled.copy_(torch.arange(8) % 3)
            by(Proposed(tokens, chances), step_rows, out)
            found.append((out.num_proposed, out.proposed, out.proposed_confidence.nan_to_num(7)))
        for ours, wanted in zip(*found, strict=True):
            assert ours.equal(wanted)


def case_the_largest_logit_is_the_first_of_the_largest() -> None:
    for rows, size in ((1, 3), (3, 1024), (5, 40_007), (2, 16 * 1024)):
        logits = normal(rows, size)
        logits[0, size // 2 :] = logits[0].max() + 1
        if rows > 2:
            logits[1] = -torch.inf
            logits[2, size - 1] = torch.nan
        maximum, tokens = steps.largest(logits)
        wanted, ids = logits.max(-1)
        assert torch.equal(maximum.nan_to_num(7), wanted.nan_to_num(7))
        assert tokens[0] == size // 2
        finite = wanted.isfinite()
        assert tokens[finite].equal(ids[finite])
        assert ((tokens >= 0) & (tokens < size)).all()
        ids = torch.arange(size, device=DEVICE) * 3 + 1
        assert steps.largest(logits, ids)[1].equal(ids[tokens])


def case_drafts_stand_where_torch_puts_them() -> None:
    for seed, (widths, shape) in enumerate(DECODES):
        buffers = decode_plan(widths, shape, seed)
        fill(buffers, shape)
        ends = buffers.plan.seq_lens[: shape.rows].long()
        for chosen in (torch.arange(shape.rows), torch.arange(0, shape.rows, 2)):
            rows, step = chosen.to(DEVICE), buffers.step(shape)
            blocks = DraftBlocks.of(700, 5, 16)
            asking = Asking(step, ends, rows, rows + 1, blocks, 5)
            ours, wanted = drafts.lay_out(asking), lay_out(asking)
            for name in ("ends", "last", "table", "positions", "slots", "lengths"):
                assert getattr(ours, name).equal(getattr(wanted, name)), (name, widths)


def case_states_are_carried_over_blocks_as_torch_does() -> None:
    """Rows that go on within a block, after one, after one that another row fills now, and from nothing."""
    size, hidden = 4, 40
    starts, widths = [5, 8, 0, 4, 3, 0], [3, 2, 4, 1, 2, 7]
    # The fourth row goes on after the block that the third fills.
    table = torch.tensor([[1, 2, 0], [3, 4, 5], [6, 0, 0], [6, 7, 0], [8, 9, 0], [10, 11, 0]])
    owner = torch.arange(6).repeat_interleave(torch.tensor(widths))
    positions = torch.cat([torch.arange(s, s + w) for s, w in zip(starts, widths, strict=True)])
    slots = table[owner, positions // size] * size + positions % size
    borders = torch.tensor([0, *widths]).cumsum(0).int()
    lengths = torch.tensor(starts) + torch.tensor(widths)
    padded = [torch.cat([part, torch.zeros(3, dtype=part.dtype)]).to(DEVICE) for part in (positions, slots)]
    step = StepContext(
        *padded, borders.to(DEVICE), lengths.int().to(DEVICE), table.int().to(DEVICE), 6, 0, 22, 7, 12
    )
    states = normal(22, hidden)
    ends = (lengths - torch.tensor([1, 0, 0, 0, 1, 3])).to(DEVICE)
    seen = Seen(torch.zeros(22), step, states, (), ends)
    carried = [normal(13, hidden), normal(13, hidden)]
    wanted = _Carry(carried[0], size)._before(states, seen)
    ours = torch.empty_like(states)
    drafts.before(states, carried[1], seen, size, ours, filled=False)
    drafts.keep(states, carried[1], seen, size)
    drafts.before(states, carried[1], seen, size, ours, filled=True)
    assert ours[:19].equal(wanted[:19])
    assert carried[1][1:].equal(carried[0][1:]), "but for the null block, which nobody needs"


def run_case(case: Callable[..., None], folder: Path) -> None:
    """With an empty folder, if it wants one."""
    case(*([folder] if signature(case).parameters else []))


CASES = [function for name, function in list(globals().items()) if name.startswith("case_")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__.removeprefix("case_"))
@torch.inference_mode()
def test_case(case: Callable[..., None], tmp_path: Path) -> None:
    run_case(case, tmp_path)


@pytest.mark.skipif(not INTERPRETED, reason="the conformance test itself runs these on a device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("op", INTERPRETED_SHAPES, ids=lambda op: op.name)
@torch.inference_mode()
def test_candidate_agrees_with_the_reference(op, dtype: torch.dtype) -> None:
    candidate = next(entry for entry in default_registry().candidates(op.name) if entry.name == "triton")
    for shape in (SHAPES[op.name][index] for index in INTERPRETED_SHAPES[op]):
        of = facts(dtype, **shape)
        if candidate.requires(of) is None:
            disagrees = disagreement(op, candidate, of, candidate.build(of))
            assert disagrees is None, f"{dict(shape)}: {disagrees.message}"

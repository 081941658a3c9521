"""Torch's attention with shapes that the host knows: the same results, and nothing read back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from frizzen.kernels.facts import Facts, detect_machine
from frizzen.kernels.mla_ops import ATTENTION_MLA
from frizzen.kernels.ops import ATTENTION_PAGED
from frizzen.kernels.plan import default_registry
from frizzen.kernels.problem_inputs import paged_step
from frizzen.kernels.torch_paging import Paging

ROWS = [(5, 1), (130, 1), (1, 1), (64, 64), (33, 7), (150, 40)]
PAGED = {"heads": 8, "kv_heads": 2, "head_dim": 32, "scale": 0.2, "block_size": 16, "kv_dtype": "auto"}
LATENT = {"heads": 3, "nope_dim": 24, "rope_dim": 8, "value_dim": 40, "latent_dim": 48, "scale": 0.18}


def kernel(op: str, shape: dict[str, object]):
    candidate = next(entry for entry in default_registry().candidates(op) if entry.name == "torch_sdpa")
    return candidate.build(Facts.of(detect_machine("cpu"), torch.float32, shape))


def attended(op: str, window: int, sinks: bool, rows: list[tuple[int, int]], longest: int = 0):
    """What both ways make of a step, and the step; a graph serves contexts up to ``longest``."""
    generator, device = torch.Generator().manual_seed(0), torch.device("cpu")
    step, blocks = paged_step(rows, 16, generator, device)
    if longest:
        table = torch.zeros(step.num_rows, longest // 16, dtype=torch.int32)
        table[:, : step.block_table.shape[1]] = step.block_table
        step = replace(step, max_context=longest, block_table=table)
    if op == ATTENTION_PAGED.name:
        found = kernel(op, {**PAGED, "window": window, "sinks": sinks})
        cache = found.allocate(blocks, device)
        cache.data.copy_(torch.randn(cache.data.shape, generator=generator))
        bound = (torch.randn(8, generator=generator),) if sinks else ()
        queries = torch.randn(step.num_tokens, 12 * 32, generator=generator)
    else:
        found = kernel(op, {**LATENT, "block_size": 16})
        cache = found.allocate(blocks, device)
        cache.copy_(torch.randn(cache.shape, generator=generator))
        bound = (torch.randn(3 * 64, 48, generator=generator) / 7,)
        queries = torch.randn(step.num_tokens, 3 * 32, generator=generator)
    attend = found.prepare(cache, *bound)
    paging = Paging(16, window, torch.float32, masked=sinks)
    return [attend(queries, paging.rows(step, padded=padded)) for padded in (False, True)], step


@torch.inference_mode()
@pytest.mark.parametrize(
    ("op", "window", "sinks"),
    [
        (ATTENTION_PAGED.name, 0, False),
        (ATTENTION_PAGED.name, 24, False),
        (ATTENTION_PAGED.name, 24, True),
        (ATTENTION_MLA.name, 0, False),
    ],
)
@pytest.mark.parametrize("longest", [0, 320])
def test_padded_rows_attend_as_rows_of_known_lengths(op: str, window: int, sinks: bool, longest: int) -> None:
    for rows in (ROWS, ROWS[:3], ROWS[3:]):
        (exact, padded), _ = attended(op, window, sinks, rows, longest)
        torch.testing.assert_close(padded, exact, atol=2e-5, rtol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("op", [ATTENTION_PAGED.name, ATTENTION_MLA.name])
def test_a_step_with_shapes_of_the_host_reads_nothing_back(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CUDA device these would wait for it, and fail inside a capture."""

    def waits(*_: object, **__: object) -> Tensor:
        raise AssertionError("a value was read back")

    generator = torch.Generator().manual_seed(0)
    step, _ = paged_step(ROWS, 16, generator, torch.device("cpu"))
    for name in ("item", "tolist", "nonzero", "__bool__", "__int__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, waits)
    rows = Paging(16, 24 if op == ATTENTION_PAGED.name else 0, torch.float32).rows(step, padded=True)
    for row in rows.padded:
        row.gather(torch.zeros(64, 16, 4), torch.float32)
        assert row.mask.shape == (64, 160)

"""Rows of many tokens: which steps get long tiles, which layers can, and that the kernels fit the device.

What the kernels compute is held to the reference by the conformance test, on a GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from frizzen.kernels.facts import Facts, Machine
from frizzen.kernels.moe_ops import MOE_EXPERTS
from frizzen.kernels.mxfp4_ops import MOE_EXPERTS_MXFP4
from frizzen.kernels.ops import ATTENTION_PAGED
from frizzen.kernels.plan import default_registry
from frizzen.step import StepContext

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

ROOT = Path(__file__).resolve().parents[2]
H200 = Machine("cuda", frozenset({"sm_90"}), 1, (("triton", "3.6.0"),))


def step(singles: int, *widths: int, context: int) -> StepContext:
    nothing = torch.zeros(0, dtype=torch.int64)
    return StepContext(
        positions=nothing,
        slots=nothing,
        query_start=nothing,
        seq_lens=nothing,
        block_table=nothing,
        num_rows=singles + len(widths),
        num_single=singles,
        num_tokens=singles + sum(widths),
        max_query=max(widths, default=1),
        max_context=context,
    )


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (step(0, 8192, context=8192), True),
        (step(0, 2048, 2048, 2048, 2048, context=2048), True),
        (step(40, 2048, context=32768), True),
        (step(3, 300, 300, 5, context=300), True),
        (step(256, context=8192), False),
        # Verified drafts beside a prompt: a tile for each of these rows would be nearly empty.
        (step(0, 2048, *[4] * 60, context=2048), False),
        (step(0, 127, context=127), False),
        # 32 programs that each go through 32,768 keys: the other kernel cuts the context.
        (step(0, 128, context=32768), False),
        (step(0, 640, context=32768), True),
    ],
)
def test_long_tiles_serve_rows_that_fill_them(made: StepContext, wanted: bool) -> None:
    from frizzen.kernels.triton.long_rows import worth_long_tiles

    assert worth_long_tiles(made, 32, 132) is wanted


def test_every_token_has_a_tile() -> None:
    from frizzen.kernels.triton.long_rows import long_tiles

    for widths in ((1000,), (128, 128), (129, 2, 300), (127, 511, 130)):
        assert long_tiles(step(5, *widths, context=2000)) >= sum(-(-width // 128) for width in widths)


ATTENTION = {
    "heads": 32,
    "kv_heads": 4,
    "head_dim": 128,
    "scale": 0.1,
    "window": 0,
    "block_size": 16,
    "sinks": False,
    "kv_dtype": "auto",
}
EXPERTS = {
    "hidden": 2048,
    "intermediate": 768,
    "experts": 128,
    "top_k": 8,
    "bias": False,
    "clamp": 0.0,
    "alpha": 1.0,
    "beta": 0.0,
}


@pytest.mark.parametrize(
    ("op", "shape", "code"),
    [
        (ATTENTION_PAGED.name, ATTENTION, None),
        (ATTENTION_PAGED.name, ATTENTION | {"head_dim": 64, "sinks": True}, None),
        (ATTENTION_PAGED.name, ATTENTION | {"head_dim": 96}, "shape"),
        (ATTENTION_PAGED.name, ATTENTION | {"block_size": 8}, "shape"),
        (ATTENTION_PAGED.name, ATTENTION | {"window": 128}, "window"),
        (ATTENTION_PAGED.name, ATTENTION | {"kv_dtype": "fp8_e4m3"}, "kv_dtype"),
        (MOE_EXPERTS.name, EXPERTS, None),
        (MOE_EXPERTS.name, EXPERTS | {"clamp": 7.0, "intermediate": 40}, None),
        (MOE_EXPERTS.name, EXPERTS | {"hidden": 2080}, "shape"),
        (MOE_EXPERTS.name, EXPERTS | {"intermediate": 100}, "shape"),
        (MOE_EXPERTS.name, EXPERTS | {"bias": True}, None),
        (MOE_EXPERTS_MXFP4.name, EXPERTS | {"bias": True}, None),
        (MOE_EXPERTS_MXFP4.name, EXPERTS | {"intermediate": 96}, "shape"),
    ],
)
def test_what_long_tiles_cannot_do_has_a_reason(op: str, shape: dict[str, object], code: str | None) -> None:
    candidate = next(entry for entry in default_registry().candidates(op) if entry.name == "hopper")
    reason = candidate.requires(Facts.of(H200, torch.bfloat16, shape))
    assert (reason and reason.code) == code


@pytest.mark.slow
def test_the_kernels_compile_for_hopper_and_fit_its_shared_memory(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compile_for_hopper"],
        cwd=ROOT,
        env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = [line.split() for line in run.stdout.splitlines()]
    assert {name for name, _, products in found if products == "True"} == {
        "long_attention",
        "gate_up_long",
        "down_long",
        "gate_up_packed",
        "down_packed",
        "_follow",
    }
    assert all(int(shared) <= 232_448 for _, shared, _ in found)

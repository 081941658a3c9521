"""Rows of many tokens: which steps get long tiles, which layers can, and that the kernel fits the device.

What the kernel computes is held to the reference by the conformance test, on a GPU.
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
from frizzen.kernels.ops import ATTENTION_PAGED
from frizzen.kernels.plan import default_registry
from frizzen.step import StepContext

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

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


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({}, None),
        ({"head_dim": 64, "sinks": True}, None),
        ({"head_dim": 96}, "shape"),
        ({"block_size": 8}, "shape"),
        ({"window": 128}, "window"),
        ({"kv_dtype": "fp8_e4m3"}, "kv_dtype"),
    ],
)
def test_what_long_tiles_cannot_do_has_a_reason(changed: dict[str, object], code: str | None) -> None:
    shape = {
        "heads": 32,
        "kv_heads": 4,
        "head_dim": 128,
        "scale": 0.1,
        "window": 0,
        "block_size": 16,
        "sinks": False,
        "kv_dtype": "auto",
    }
    candidate = next(
        entry for entry in default_registry().candidates(ATTENTION_PAGED.name) if entry.name == "triton_long"
    )
    reason = candidate.requires(Facts.of(H200, torch.bfloat16, shape | changed))
    assert (reason and reason.code) == code


_COMPILE = """
import sys
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

class Device:
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_current_device(self): return 0
    def get_current_stream(self, device=None): return 0
    def get_active_torch_device(self): return torch.device("cpu")
    def map_python_to_cpp_type(self, name): return "int"

driver.set_active(Device())
from triton.experimental.gluon import language as gl
from frizzen.kernels.triton.long_attention import long_attention
from frizzen.kernels.triton.long_rows import _REGISTERS, _STAGES, _descriptor

D = int(sys.argv[1])
layout = gl.NVMMASharedLayout(128, 16, 2)
queries = _descriptor(torch.empty(64, 8 * D, dtype=torch.bfloat16), 64, layout)
cache = _descriptor(torch.empty(64, 4 * D, dtype=torch.bfloat16), 16, layout)
numbers = torch.zeros(2, dtype=torch.int32)
out = torch.empty(64, 8 * D, dtype=torch.bfloat16)
kernel = long_attention.warmup(
    queries, cache, out, out, numbers, numbers, numbers, 0, 1, 1, 8 * D, 2, 64, 0.1, GROUP=4, KV_HEADS=2, D=D,
    SINKS=True, BLOCK_SIZE=16, STAGES=_STAGES, num_warps=4, maxnreg=_REGISTERS, grid=(1,),
)
print(kernel.metadata.shared, "wgmma" in kernel.asm["ptx"])
"""


@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_kernel_compiles_for_hopper_and_fits_its_shared_memory(head_dim: int, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _COMPILE, str(head_dim)],
        env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    shared, products = run.stdout.split()
    assert int(shared) <= 232_448
    assert products == "True"

"""The Rust kernels as a whole: what the conformance test cannot see op by op."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from frizzen._core import cpu
from frizzen.kernels.facts import Facts, detect_machine
from frizzen.kernels.kv_layout import allocate
from frizzen.kernels.native import CANDIDATES, LayerKernels, fuse, open_mp
from frizzen.kernels.problems import paged_step

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE, EPS = 64, 80, 4, 2, 16, 16, 1e-5
ATTENTION = {"scale": 0.25, "window": 0, "block_size": BLOCK_SIZE, "sinks": False, "kv_dtype": "auto"}
HEADS_SHAPE = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM}


def kernel(op: str, dtype: torch.dtype, **shape: object):
    candidate = next(entry for entry in CANDIDATES if entry.op == op)
    return candidate.build(Facts.of(detect_machine("cpu"), dtype, shape))


def layer(dtype: torch.dtype, blocks: int) -> LayerKernels:
    def weight(*shape: int) -> torch.Tensor:
        return torch.randn(shape).mul_(shape[-1] ** -0.5).to(dtype)

    def product(op: str, size_in: int, size_out: int, halves: int = 1):
        bound = kernel(op, dtype, in_features=size_in, out_features=size_out, bias=True)
        return bound.prepare(weight(size_out * halves, size_in), weight(size_out * halves))

    norm = kernel("norm.rms", dtype, size=HIDDEN)
    shape = {
        "scale": 0.25,
        "window": 0,
        "block_size": BLOCK_SIZE,
        "sinks": False,
        "kv_dtype": "auto",
        **HEADS_SHAPE,
    }
    attention = kernel("attention.paged", dtype, **shape)
    rope = kernel("rope", dtype, rotary_dim=HEAD_DIM, qk_norm=True, layout="head", **HEADS_SHAPE)
    cache = attention.allocate(blocks, torch.device("cpu"))
    return LayerKernels(
        norm.prepare(weight(HIDDEN), EPS),
        product("linear", HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD_DIM),
        rope.prepare(cache, weight(HEAD_DIM), weight(HEAD_DIM), EPS),
        attention.prepare(cache),
        product("linear", HEADS * HEAD_DIM, HIDDEN),
        norm.prepare(weight(HIDDEN), EPS),
        product("linear.silu_mul", HIDDEN, INTERMEDIATE, halves=2),
        product("linear", INTERMEDIATE, HIDDEN),
    )


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_layers_compute_what_the_same_kernels_do_one_by_one(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    step, blocks = paged_step(
        [(1, 1), (40, 1), (33, 33), (70, 7)],
        BLOCK_SIZE,
        torch.Generator().manual_seed(1),
        torch.device("cpu"),
    )
    layers = [layer(dtype, blocks) for _ in range(2)]
    # A context before this step's tokens: what stands in the cache already.
    for entry in layers:
        entry.attend.cache.data.normal_()
    decoder = fuse(layers, layers[0].input_norm)
    assert decoder is not None
    start = torch.randn(step.num_tokens, HIDDEN).to(dtype)
    cos, sin = torch.rand(2, step.num_tokens, HEAD_DIM // 2).unbind()
    fused_residual = start.clone()
    fused = decoder(fused_residual, cos, sin, step.slots, kernel_state(layers[0], step))
    residual, x = start.clone(), None
    for entry in layers:
        normed = entry.input_norm(residual, None) if x is None else entry.input_norm(x, residual)
        qkv = entry.qkv(normed)
        entry.rope(qkv, cos, sin, step.slots)
        x = entry.mlp_norm(entry.out(entry.attend(qkv, kernel_state(entry, step))), residual)
        x = entry.down(entry.gate_up(x))
    single = layers[0].input_norm(x, residual)
    if dtype == torch.float32:
        assert torch.equal(fused, single)
        assert torch.equal(fused_residual, residual)
    else:  # products are rounded before they are added to the residual only where each has a call of its own
        torch.testing.assert_close(fused, single, atol=5e-2, rtol=5e-2)


def kernel_state(entry: LayerKernels, step):
    shape = {
        "scale": 0.25,
        "window": 0,
        "block_size": BLOCK_SIZE,
        "sinks": False,
        "kv_dtype": "auto",
        **HEADS_SHAPE,
    }
    return kernel("attention.paged", entry.attend.cache.data.dtype, **shape).begin(step)


def test_layers_with_a_kernel_from_elsewhere_are_not_fused() -> None:
    found = layer(torch.float32, 2)
    assert fuse([found._replace(qkv=lambda x: x)], found.input_norm) is None
    assert fuse([found], lambda x, residual: x) is None
    assert fuse([], found.input_norm) is None


def test_layers_of_different_sizes_are_not_fused() -> None:
    found = layer(torch.float32, 2)
    assert fuse([found, found._replace(out=found.down)], found.input_norm) is None


def test_the_team_is_that_of_the_library_torch_has_loaded() -> None:
    if not re.search(r"lib(gomp|iomp5)", Path("/proc/self/maps").read_text(encoding="utf-8")):
        pytest.skip("torch has no OpenMP library with these names here")
    addresses = open_mp()
    assert addresses is not None
    assert cpu.Kernels(2, addresses).executor == "openmp"
    assert cpu.Kernels(2).executor == "threads"
    assert cpu.Kernels(1).executor == "serial"


def test_a_maps_file_without_openmp_gives_no_team(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r-xp 00000000 00:00 0 /usr/lib/libc.so.6\n", encoding="utf-8")
    assert open_mp(maps) is None
    assert open_mp(tmp_path / "missing") is None


def test_what_would_be_out_of_bounds_is_refused_before_it_runs() -> None:
    kernels = cpu.Kernels(1)
    weight = torch.randn(8, 4)
    packed = cpu.PackedMatrix(kernels, "float32", weight.data_ptr(), 8, 4, 4)
    ids, out = torch.tensor([3, 8]), torch.empty(2, 4)
    with pytest.raises(IndexError, match="id is 8, the table has 8 rows"):
        packed.gather(ids.data_ptr(), 2, out.data_ptr())
    cache = allocate("head", 2, 16, 1, 16, torch.float32, torch.device("cpu"))
    shape = (2, 16, 1, 16)
    rope = cpu.Rope(
        kernels, "float32", cache.data.data_ptr(), shape, heads=1, rotary_dim=16, norms=None, eps=EPS
    )
    qkv, angles, slots = torch.zeros(1, 48), torch.zeros(1, 8), torch.tensor([32])
    with pytest.raises(ValueError, match="slot is 32, the cache has 32"):
        rope.run(qkv.data_ptr(), 1, angles.data_ptr(), angles.data_ptr(), slots.data_ptr())
    with pytest.raises(ValueError, match="block_size is 8, expected a multiple of 16"):
        cpu.Attention(kernels, "float32", 0, (2, 8, 1, 16), heads=1, scale=1.0, window=0, sinks=None)
    with pytest.raises(ValueError, match="dtype is float16, expected float32 or bfloat16"):
        cpu.RmsNorm(kernels, "float16", weight.data_ptr(), 4, EPS)

"""Compiles what long rows, experts and decodes launch for a GPU that is not here; see ``test_hopper.py``.

Prints a line per kernel: its name, the bytes of shared memory that it takes, and whether it has products of
groups of warps.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from frizzen.kernels.moe_reference import Activation
from frizzen.kernels.triton.launch import Target
from frizzen.quantize.mxfp4 import Mxfp4Weight
from frizzen.speculate.drafter import Asking, DraftBlocks, Proposed, Seen
from frizzen.speculate.dspark import Heads
from frizzen.step import StepContext
from frizzen.worker.arena import Arena
from frizzen.worker.buffers import StepBuffers
from frizzen.worker.lattice import Shape
from frizzen.worker.rows import PersistentBatch
from frizzen.worker.tail import Greedy
from tests.worker.arena_layout import layout

HALF = torch.bfloat16


class Device:
    """As much of a driver as compiling asks for."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: object = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, name: str) -> str:
        return "int"


def attention(head_dim: int) -> None:
    from frizzen.kernels.triton.long_rows import LongRows
    from frizzen.kernels.triton.paged_attention import PagedAttention, Tile

    tile = Tile(16, 32, 2, 2)
    paged = PagedAttention(8, 2, head_dim, 0.1, 0, 16, 0.0, HALF, HALF, Target(True, 132), lambda *_: tile)
    kernel = LongRows(paged, torch.zeros(1, dtype=torch.int32))
    numbers = torch.zeros(4, dtype=torch.int32)
    step = StepContext(numbers, numbers, numbers, numbers, numbers.view(2, 2), 2, 1, 301, 300, 300)
    attend = kernel.prepare(kernel.allocate(8, torch.device("cpu")), torch.zeros(8, dtype=HALF))
    attend(torch.zeros(301, 12 * head_dim, dtype=HALF), kernel.begin(step))


def experts(bias: Tensor | None) -> None:
    from frizzen.kernels.triton.long_moe import LongExperts, LongMxfp4Experts
    from frizzen.kernels.triton.moe import MoeExperts
    from frizzen.kernels.triton.mxfp4_moe import Mxfp4Experts
    from frizzen.kernels.triton.places import Places

    sizes, activation = (128, 192, 8, 2), Activation(7.0, 1.7, 1.0)
    few = MoeExperts(*sizes, activation, HALF, Target(True, 132))
    long = LongExperts(few, Places(*sizes, activation, Target(True, 132)))
    gates, downs = torch.zeros(8, 384, 128, dtype=HALF), torch.zeros(8, 128, 192, dtype=HALF)
    packed = [
        Mxfp4Weight(
            weight.view(torch.uint8)[..., ::4].contiguous(), torch.zeros_like(weight[..., ::32]).byte()
        )
        for weight in (gates, downs)
    ]
    inputs = torch.zeros(300, 128, dtype=HALF), torch.zeros(300, 2), torch.zeros(300, 2, dtype=torch.int32)
    long.prepare(gates, downs, bias, bias)(*inputs)
    LongMxfp4Experts(Mxfp4Experts(few), long).prepare(*packed, bias, bias)(*inputs)


def around_decodes() -> None:
    from frizzen.kernels.triton import drafts, steps

    cpu, shape = torch.device("cpu"), Shape(4, 3, 512)
    plan = Arena(layout(max_rows=4, max_tokens=16, max_drafts=3), cpu, mirrored=True).device
    buffers = StepBuffers.allocate(plan, PersistentBatch(4, 8, 128, 50, cpu))
    steps.fill_step(buffers, shape)
    steps.angles(buffers.positions[:12], torch.zeros(32), 1.0, 1)
    steps.largest(torch.zeros(12, 50), torch.arange(50))
    maximum, tokens = steps.largest(torch.zeros(12, 50))
    for acceptance in (None, torch.tensor(2.0, dtype=torch.float64)):
        greedy = Greedy(shape, plan, buffers.batch, buffers.ids[:12], maximum, tokens, acceptance)
        steps.end_rows(greedy)
    step, rows = buffers.step(shape), torch.arange(4)
    spots = drafts.lay_out(Asking(step, rows, rows, rows, DraftBlocks.of(8, 3, 16), 3))
    states, seen = torch.zeros(12, 64, dtype=HALF), Seen(tokens, step, maximum, (), rows)
    drafts.keep(states, states, seen, 16)
    drafts.write_proposed(Proposed(tokens[:4, None]), rows, plan)
    drafts.before(states, states, seen, 16)
    drafts.join(states, states, seen, 16, rows, spots)


def drafts_in_one_pass() -> None:
    from frizzen.kernels.triton import markov

    inward, outward = torch.zeros(50, 256, dtype=HALF), torch.zeros(300, 256, dtype=HALF)
    heads = Heads(inward, outward, 1.0, 0, (torch.zeros(1, 320), torch.zeros(1)))
    for rows in (1, 4):
        logits, states = torch.zeros(rows, 3, 300), torch.zeros(rows, 3, 64, dtype=HALF)
        tokens, chances = torch.zeros(rows, dtype=torch.int64), torch.zeros(rows, 3)
        markov.follow(heads, logits[:, 1], states[:, 1], tokens, chances[:, 1], turned=True)


def main() -> None:
    launch = JITFunction.run

    def compile_only(self: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = launch(self, *args, **(kwargs | {"warmup": True}))
        print(self.fn.__name__, kernel.metadata.shared, "wgmma" in kernel.asm["ptx"])
        return kernel

    driver.set_active(Device())
    JITFunction.run = compile_only
    attention(64)
    attention(128)
    experts(None)
    experts(torch.zeros(8 * 384, dtype=HALF))
    around_decodes()
    drafts_in_one_pass()


if __name__ == "__main__":
    sys.exit(main())

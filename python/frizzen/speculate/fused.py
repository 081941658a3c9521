"""Drafters that fuse a token with the hidden state before it: MTP and EAGLE-3.

Their layer takes ``(token p, state p - 1)`` and predicts token ``p + 1``; after the first draft, the layer's
own output takes the place of the target's state. Papers number such an entry by its state, ``p - 1``. Here
its keys stand in the slot of the token, ``p``, for the rotation at ``p - 1``: what stands at p then depends
on the tokens up to p alone, and the blocks of a cached prefix are right as they are, whatever follows them.
The price is slot 0, which belongs to no entry and is hidden from every query.

The state before the first token of a step comes from an earlier step, perhaps another row's, whose blocks the
prefix cache handed over. So the state of the newest token in every block is kept by block (``_Carry``): a row
goes on either within its last block, or after a block that is full.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Protocol

import torch
from torch import Tensor

from frizzen.kernels.ops import StepKernel
from frizzen.layers.rotary import Rotary
from frizzen.speculate.drafter import Asked, Choose, Proposed, Seen
from frizzen.step import StepContext

__all__ = ["FusedDrafter", "FusedHead"]


class FusedHead(Protocol):
    """The layer of such a drafter and what stands around it."""

    @property
    def kernel(self) -> StepKernel:
        """The layer's attention."""

    @property
    def rotary(self) -> Rotary:
        """The layer's rotary embedding."""

    @property
    def state_size(self) -> int:
        """Size of a state."""

    @property
    def ids(self) -> Tensor | None:
        """``[Vd]`` int64, the target's ids of a vocabulary of its own."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the states."""

    @property
    def device(self) -> torch.device:
        """Where the layer is."""

    def allocate_kv(self, num_blocks: int) -> None:
        """Makes the layer's cache."""

    def states(self, hidden: Tensor, taps: tuple[Tensor, ...]) -> Tensor:
        """The target's states ``[T, state_size]`` as the layer takes them."""

    def write(self, ids: Tensor, states: Tensor, cos: Tensor, sin: Tensor, slots: Tensor) -> None:
        """Stores the entries of tokens ``[T]`` and the states before them, and computes nothing else."""

    def forward(
        self, ids: Tensor, states: Tensor, cos: Tensor, sin: Tensor, step: StepContext
    ) -> tuple[Tensor, Tensor]:
        """The states ``[R, state_size]`` that the entries give, and logits ``[R, Vd]`` float32."""


class FusedDrafter:
    """See the module."""

    has_confidence = False

    def __init__(self, name: str, head: FusedHead, taps: tuple[int, ...], max_drafts: int) -> None:
        self.name = name
        self.taps = taps
        self.reach = max_drafts
        self._head = head
        self._carry: _Carry | None = None

    def bytes_per_token(self) -> int:
        """The layer's cache, and the state of each block's newest token."""
        state = self._head.state_size * self._head.dtype.itemsize
        return self._head.kernel.bytes_per_token() + state

    def allocate_kv(self, num_blocks: int, block_size: int) -> None:
        """The layer's cache and the states by block."""
        self._head.allocate_kv(num_blocks)
        states = torch.zeros(
            num_blocks, self._head.state_size, dtype=self._head.dtype, device=self._head.device
        )
        self._carry = _Carry(states, block_size)

    def advance(self, seen: Seen, asked: Asked | None, choose: Choose, count: int) -> Proposed | None:
        """Entries of the step's tokens; then one token after the other."""
        if self._carry is None:
            raise RuntimeError("allocate_kv must be called before the first step")
        head, step = self._head, seen.step
        states = head.states(seen.hidden, seen.taps)
        cos, sin = self._angles(step.positions)
        head.write(seen.ids, self._carry.before(states, seen), cos, sin, step.slots)
        if asked is None:
            return None
        tokens, states, drafts = asked.tokens, states.index_select(0, asked.spots.last), []
        shape = (self.reach, len(tokens), -1)
        cos, sin = (angle.view(shape) for angle in self._angles(asked.spots.positions.flatten()))
        for place in range(count):
            states, logits = head.forward(tokens, states, cos[place], sin[place], asked.step(place, 1))
            tokens = choose(logits, place, head.ids)
            drafts.append(tokens)
        return Proposed(torch.stack(drafts, 1))

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self._head.rotary.angles((positions - 1).clamp(min=0))


class _Carry:
    """The state of the newest token in every block."""

    def __init__(self, states: Tensor, block_size: int) -> None:
        self._states = states
        """``[blocks, state_size]``; the null block's takes what nobody needs."""
        self._block_size = block_size

    def before(self, states: Tensor, seen: Seen) -> Tensor:
        """``[T, state_size]``, the state before each token of a step; keeps what later steps need.

        Zeros before a text's first token.
        """
        size = self._block_size
        if states.device.type == "cuda" and find_spec("triton") is not None:
            from frizzen.kernels.triton import drafts

            out = torch.empty_like(states)
            drafts.before(states, self._states, seen, size, out, filled=False)
            drafts.keep(states, self._states, seen, size)
            drafts.before(states, self._states, seen, size, out, filled=True)
            return out
        return self._before(states, seen)

    def _before(self, states: Tensor, seen: Seen) -> Tensor:
        step, size = seen.step, self._block_size
        starts = step.query_start[:-1].long()
        at = step.positions.index_select(0, starts)
        column = ((at - 1).clamp(min=0) // size)[:, None]
        blocks = step.block_table.gather(1, column).squeeze(1).long()
        # Within its last block a row goes on after its own last step, whose state this step is about to
        # replace; after a full block, perhaps after a row that fills it in this very step.
        own = self._states.index_select(0, blocks)
        self._keep(states, seen)
        filled = self._states.index_select(0, blocks)
        first = torch.where((at % size == 0)[:, None], filled, own)
        before = torch.empty_like(states)
        before[1:] = states[:-1]
        return before.index_copy_(0, starts, first.masked_fill_((at == 0)[:, None], 0))

    def _keep(self, states: Tensor, seen: Seen) -> None:
        step, size = seen.step, self._block_size
        tokens = torch.arange(step.num_tokens, dtype=torch.int32, device=states.device)
        # Padding may come after the last row; its slots are of the null block.
        rows = torch.searchsorted(step.query_start[1:], tokens, right=True).clamp_(max=step.num_rows - 1)
        last = seen.ends.index_select(0, rows) - 1
        newest = (step.positions == last) | ((step.positions < last) & ((step.positions + 1) % size == 0))
        self._states.index_copy_(0, torch.where(newest, step.slots // size, 0), states)

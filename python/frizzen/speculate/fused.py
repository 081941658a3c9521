"""Drafters that fuse a token with the hidden state before it: MTP and EAGLE-3.

Their layer takes ``(token p, state p - 1)`` and predicts token ``p + 1``; after the first draft, the layer's
own output takes the place of the target's state. Papers number such an entry by its state, ``p - 1``. Here
its keys stand in the slot of the token, ``p``, for the rotation at ``p - 1``: what stands at p then depends
on the tokens up to p alone, and the blocks of a cached prefix are right as they are, whatever follows them.
The price is slot 0, which belongs to no entry and is hidden from every query.

Several layers predict one token after the other: layer k takes ``(token p, state k - 1 of p - 1)``, where
state 0 is the target's, and gives state k of p. So it has entries from slot k on, and predicts the k-th
draft. Its context needs the states of the layer before it at every token, so all but the last run in full
over each step, and in the slots of drafts each runs as long as a later draft reads it. More drafts than
layers come from the last layer, whose own states follow each other as those of a single layer do.

The state before the first token of a step comes from an earlier step, perhaps another row's, whose blocks the
prefix cache handed over. So the state of the newest token in every block is kept by block (``_Carry``): a row
goes on either within its last block, or after a block that is full.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from frizzen.layers.rotary import Rotary
from frizzen.speculate.drafter import Asked, Choose, Proposed, Seen, Spots
from frizzen.speculate.singles import known, singles
from frizzen.step import StepContext

__all__ = ["FusedDrafter", "FusedHead", "Joined", "Started"]


class Started(NamedTuple):
    """Entries that are stored, and have not looked at others yet."""

    queries: Tensor
    """``[R, ...]``."""
    stream: Tensor
    """``[R, state_size]``, the residual stream."""


class Joined(NamedTuple):
    """The ``T`` tokens of a step, then the last token of each of ``R`` rows, which is to be drafted after."""

    ids: Tensor
    """``[T + R]`` int64."""
    slots: Tensor
    """``[T + R]`` int64."""
    before: Tensor
    """``[T + R, state_size]``, the states before them."""
    positions: Tensor
    """``[T + reach * R]`` int64, also those of all drafts."""


class FusedHead(Protocol):
    """What predicts one draft: mostly one layer, and what stands around it."""

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

    def bytes_per_token(self) -> int:
        """Of the caches."""

    def write(self, ids: Tensor, states: Tensor, cos: Tensor, sin: Tensor, step: StepContext) -> None:
        """Stores the entries of a step's tokens ``[T]`` and the states before them, for no result."""

    def forward(
        self, ids: Tensor, states: Tensor, cos: Tensor, sin: Tensor, step: StepContext
    ) -> tuple[Tensor, Tensor]:
        """The states ``[R, state_size]`` that the entries give, and logits ``[R, Vd]`` float32.

        Those given may be written over.
        """

    def run(self, ids: Tensor, states: Tensor, cos: Tensor, sin: Tensor, step: StepContext) -> Tensor:
        """The states of ``forward``; for the layer before another one."""

    @property
    def parts(self) -> Parts | None:
        """The two halves of its ``forward``, if they can be had apart."""


class Parts(Protocol):
    """``finish`` of what ``store`` returns is ``FusedHead.forward``, and ``store`` is ``write``."""

    def store(self, ids: Tensor, states: Tensor, cos: Tensor, sin: Tensor, slots: Tensor) -> Started:
        """Stores entries, and returns what there is of each before it looks at any."""

    def finish(self, started: Started, step: StepContext) -> tuple[Tensor, Tensor]:
        """As ``forward``, of entries that are stored; what was started may be written over."""


class FusedDrafter:
    """See the module."""

    has_confidence = False

    def __init__(self, name: str, heads: Sequence[FusedHead], taps: tuple[int, ...], max_drafts: int) -> None:
        self.name = name
        self.taps = taps
        self.reach = max_drafts
        self._heads = tuple(heads)
        self._carries: tuple[_Carry, ...] = ()

    def bytes_per_token(self) -> int:
        """The layers' caches, and the states of each block's newest token."""
        return sum(head.bytes_per_token() + head.state_size * head.dtype.itemsize for head in self._heads)

    def allocate_kv(self, num_blocks: int, block_size: int) -> None:
        """The layers' caches and the states by block."""
        carries = []
        for head in self._heads:
            head.allocate_kv(num_blocks)
            states = torch.zeros(num_blocks, head.state_size, dtype=head.dtype, device=head.device)
            carries.append(_Carry(states, block_size))
        self._carries = tuple(carries)

    def advance(self, seen: Seen, asked: Asked | None, choose: Choose, count: int) -> Proposed | None:
        """Entries of the step's tokens; then one token after the other."""
        if not self._carries:
            raise RuntimeError("allocate_kv must be called before the first step")
        if asked is not None and len(self._heads) == 1 and (parts := self._heads[0].parts) is not None:
            return Proposed(torch.stack(self._at_once(parts, seen, asked, choose, count), 1))
        given = self._take_in(seen)
        if asked is None:
            return None
        ends = [states.index_select(0, asked.spots.last) for states in given]
        angles = self._angles(asked.spots.positions.flatten())
        return Proposed(torch.stack(self._draft(ends, angles, asked, choose, count), 1))

    def _at_once(self, parts: Parts, seen: Seen, asked: Asked, choose: Choose, count: int) -> list[Tensor]:
        """``_take_in`` and ``_draft`` of a single layer, whose weights before attention are read once."""
        tokens, rows = len(seen.ids), len(asked.tokens)
        states = self._heads[0].states(seen.hidden, seen.taps)
        joined = self._carries[0].join(states, seen, asked.tokens, asked.spots)
        cos, sin = self._angles(joined.positions)
        own = slice(0, tokens + rows)
        started = parts.store(joined.ids, joined.before, cos[own], sin[own], joined.slots)
        first = Started(started.queries[tokens:], started.stream[tokens:])
        drafted = parts.finish(first, asked.step(0, 1))
        return self._draft([first.stream], (cos[tokens:], sin[tokens:]), asked, choose, count, drafted)

    def _take_in(self, seen: Seen) -> list[Tensor]:
        """Writes every layer's entries of a step; the states ``[T, state_size]`` that each of them takes."""
        step, last = seen.step, self._heads[-1]
        cos, sin = self._angles(step.positions)
        states = self._heads[0].states(seen.hidden, seen.taps)
        given = [states]
        for layer, head in enumerate(self._heads[:-1], 1):
            before = self._carries[layer - 1].before(states, seen)
            made = [
                head.run(seen.ids[own], before[own], cos[own], sin[own], part) for own, part in singles(step)
            ]
            states = known(torch.cat(made), step.positions, layer)
            given.append(states)
        before = self._carries[-1].before(states, seen)
        last.write(seen.ids, before, cos, sin, step)
        return given

    def _draft(
        self,
        states: list[Tensor],
        angles: tuple[Tensor, Tensor],
        asked: Asked,
        choose: Choose,
        count: int,
        first: tuple[Tensor, Tensor] | None = None,
    ) -> list[Tensor]:
        """``count`` drafts ``[R]``, from the states of the rows' last tokens by the layer that takes them.

        ``angles`` are of the ``[reach * R]`` positions of drafts. What the first pass gives may be known.
        """
        heads, tokens, drafts = self._heads, asked.tokens, []
        cos, sin = (angle.view(self.reach, len(tokens), -1) for angle in angles)
        for place in range(count):
            one, turns = asked.step(place, 1), (cos[place], sin[place])
            drafting = min(place, len(heads) - 1)
            # The states of this place, by the layer that takes them at the next one.
            given = {}
            for layer in range(drafting + 1, min(count, len(heads))):
                if layer + 1 < min(count, len(heads)):
                    own = heads[layer].run(tokens, states[layer], *turns, one)
                    given[layer + 1] = known(own, asked.spots.positions[place], layer + 1)
                else:
                    heads[layer].write(tokens, states[layer], *turns, one)
            state = states[min(place, len(states) - 1)]
            state, logits = first or heads[drafting].forward(tokens, state, *turns, one)
            first = None
            given[drafting + 1] = state
            states = [given.get(layer, state) for layer in range(len(heads) + 1)]
            tokens = choose(logits, place, heads[drafting].ids)
            drafts.append(tokens)
        return drafts

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self._heads[0].rotary.angles(positions, behind=1)


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
        if states.device.type == "cuda" and find_spec("triton") is not None:
            from frizzen.kernels.triton import drafts

            before = drafts.before(states, self._states, seen, self._block_size)
            drafts.keep(states, self._states, seen, self._block_size)
            return before
        return self._before(states, seen)

    def join(self, states: Tensor, seen: Seen, tokens: Tensor, spots: Spots) -> Joined:
        """``before``, and after a step's tokens the ``tokens`` ``[R]`` that its rows sampled."""
        if states.device.type == "cuda" and find_spec("triton") is not None:
            from frizzen.kernels.triton import drafts

            joined = drafts.join(states, self._states, seen, self._block_size, tokens, spots)
            drafts.keep(states, self._states, seen, self._block_size)
            return joined
        return self._join(states, seen, tokens, spots)

    def _join(self, states: Tensor, seen: Seen, tokens: Tensor, spots: Spots) -> Joined:
        step = seen.step
        return Joined(
            torch.cat([seen.ids, tokens]),
            torch.cat([step.slots, spots.slots[0]]),
            torch.cat([self._before(states, seen), states.index_select(0, spots.last)]),
            torch.cat([step.positions, spots.positions.flatten()]),
        )

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

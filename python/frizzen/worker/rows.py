"""The persistent batch: what the worker remembers of each row from one step to the next.

A row keeps its state until it is admitted anew; a finished request is not announced. Everything that decides
*which* work a step does is kept on the host, everything that the work needs on the device, so that a step
never waits for the device to know what to do.
"""

from __future__ import annotations

import torch

from frizzen.worker.arena import Admit, AdmitFloat, Arena, Header
from frizzen.worker.history import TokenHistory
from frizzen.worker.rules import TokenRules

__all__ = ["LOGPROBS", "MIN_P", "PENALTIES", "RANDOM", "RULES", "TOP_K", "TOP_P", "PersistentBatch"]

# What a row needs beyond an argmax; plain integers, because a step ors them once per row.
RANDOM = 1
LOGPROBS = 2
PENALTIES = 4
RULES = 8
TOP_K = 16
TOP_P = 32
MIN_P = 64


class PersistentBatch:
    """Rows ``0 .. max_rows - 1`` and their block table, sampling parameters, rules and histories."""

    def __init__(
        self, max_rows: int, max_blocks: int, max_model_len: int, vocab_size: int, device: torch.device
    ) -> None:
        self._device = device
        self.block_table = torch.zeros(max_rows, max_blocks, dtype=torch.int32, device=device)
        """``[max_rows, max_blocks]`` int32; 0, the null block, past a row's last block."""
        self.last_sampled = torch.zeros(max_rows + 1, dtype=torch.int64, device=device)
        """``[max_rows + 1]``, the token that each row sampled last; the last entry takes those of padding."""
        self.ints = torch.zeros(max_rows, 8, dtype=torch.int32, device=device)
        """``[max_rows, 8]``, columns ``Admit``."""
        self.floats = torch.zeros(max_rows, 8, device=device)
        """``[max_rows, 8]``, columns ``AdmitFloat``."""
        self.history = TokenHistory(vocab_size, max_model_len, device)
        self.flags = [0] * max_rows
        self.top_k = [0] * max_rows
        self.num_logprobs = [-1] * max_rows
        self.num_prompt_logprobs = [-1] * max_rows
        self.rules: dict[int, TokenRules] = {}

    def update(self, arena: Arena, header: Header) -> None:
        """Applies the step's admissions, then its changes of the block table."""
        self.admit(arena, header)
        self.change_blocks(arena, header)

    def admit(self, arena: Arena, header: Header) -> None:
        """Applies the step's admissions."""
        if header.num_admits:
            self._admit(arena, header.num_admits)

    def change_blocks(self, arena: Arena, header: Header) -> None:
        """Applies the step's changes of the block table, which come after its admissions."""
        if header.num_blocks:
            changes = arena.device
            count = header.num_blocks
            places = changes.block_rows[:count].long() * self.block_table.shape[1]
            places += changes.block_columns[:count]
            self.block_table.view(-1).index_copy_(0, places, changes.block_ids[:count])

    def _admit(self, arena: Arena, count: int) -> None:
        host, device = arena.host, arena.device
        index = device.admit_rows[:count].long()
        self.ints.index_copy_(0, index, device.admit_ints[:count])
        self.floats.index_copy_(0, index, device.admit_floats[:count])
        # Entries of the row's last request would otherwise stand past the new one's context.
        self.block_table.index_fill_(0, index, 0)
        rows: list[int] = host.admit_rows[:count].tolist()
        ints: list[list[int]] = host.admit_ints[:count].tolist()
        floats: list[list[float]] = host.admit_floats[:count].tolist()
        rule = history = 0
        for row, row_ints, row_floats in zip(rows, ints, floats, strict=True):
            self.top_k[row] = row_ints[Admit.TOP_K]
            self.num_logprobs[row] = row_ints[Admit.LOGPROBS]
            self.num_prompt_logprobs[row] = row_ints[Admit.PROMPT_LOGPROBS]
            self.rules.pop(row, None)
            self.history.forget(row)
            prompt_len = row_ints[Admit.PROMPT_LEN]
            if num_rules := row_ints[Admit.NUM_RULES]:
                mine = slice(rule, rule + num_rules)
                self.rules[row] = TokenRules.build(
                    host.rule_kinds[mine].tolist(),
                    host.rule_tokens[mine].tolist(),
                    host.rule_values[mine].tolist(),
                    prompt_len + row_ints[Admit.MIN_TOKENS],
                    self._device,
                )
                rule += num_rules
            self.flags[row] = _flags(row_ints, row_floats, self.rules.get(row))
            if self.flags[row] & PENALTIES:
                tokens = device.history[history : history + row_ints[Admit.NUM_HISTORY]]
                self.history.admit(row, tokens, prompt_len)
            history += row_ints[Admit.NUM_HISTORY]


def _flags(ints: list[int], floats: list[float], rules: TokenRules | None) -> int:
    """What a row with these parameters needs; filters count only where something is drawn."""
    flags = 0
    if ints[Admit.LOGPROBS] >= 0:
        flags |= LOGPROBS
    if rules is not None and rules.change_logits:
        flags |= RULES
    penalties = (floats[AdmitFloat.PRESENCE], floats[AdmitFloat.FREQUENCY], floats[AdmitFloat.REPETITION])
    if penalties != (0.0, 0.0, 1.0):
        flags |= PENALTIES
    if floats[AdmitFloat.TEMPERATURE] > 0:
        flags |= RANDOM
        if ints[Admit.TOP_K] > 0:
            flags |= TOP_K
        if floats[AdmitFloat.TOP_P] < 1:
            flags |= TOP_P
        if floats[AdmitFloat.MIN_P] > 0:
            flags |= MIN_P
    return flags

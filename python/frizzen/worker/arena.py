"""The step arena: one flat buffer per step in flight, which the engine writes before and reads after it.

The layout comes from the engine as data (a table of sections), so that the two sides cannot disagree about an
offset. On a CPU the worker computes on views of the buffer itself. On a GPU the buffer is pinned and has a
mirror of the same layout on the device; ``upload`` and ``download`` are the only copies, and this file the
only one that knows of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum, IntFlag
from typing import NamedTuple, Protocol

import torch

__all__ = [
    "DRAFTER_FAILED",
    "Admit",
    "AdmitFloat",
    "Arena",
    "ArenaLayout",
    "Header",
    "Results",
    "RowStatus",
    "Rule",
    "Sections",
    "num_blocks",
    "num_rows",
    "num_tokens",
    "to_device",
]

VERSION = 6
"""Layout version that this worker reads, the header's first word."""


class ArenaLayout(Protocol):
    """Where everything is; made by the engine."""

    @property
    def nbytes(self) -> int:
        """Size of one arena."""

    @property
    def sections(self) -> Sequence[tuple[str, str, Sequence[int], int]]:
        """Name, torch dtype name, shape and byte offset of every section, in order of their offsets."""


class Header(NamedTuple):
    """The words of the ``header`` section that are in use, in their order."""

    version: int
    step: int
    num_rows: int
    num_single: int
    num_tokens: int
    num_samples: int
    num_prompt: int
    num_blocks: int
    num_admits: int
    max_query: int
    max_context: int
    num_masks: int
    propose: int
    irregular: int
    """Written by the worker, see ``Arena.mark_irregular``."""
    token_vectors: int
    """1 if the step's tokens are to have a vector each."""


class Admit(IntEnum):
    """Columns of ``admit_ints``."""

    TOP_K = 0
    LOGPROBS = 1
    PROMPT_LOGPROBS = 2
    PROMPT_LEN = 3
    MIN_TOKENS = 4
    NUM_RULES = 5
    NUM_HISTORY = 6
    SECOND_START = 7
    """Index of the first token of the second text of a pair, 0 = one text."""


class AdmitFloat(IntEnum):
    """Columns of ``admit_floats``."""

    TEMPERATURE = 0
    TOP_P = 1
    MIN_P = 2
    PRESENCE = 3
    FREQUENCY = 4
    REPETITION = 5


class Rule(IntEnum):
    """Values of ``rule_kinds``."""

    BIAS = 0
    ALLOW = 1
    SUPPRESS = 2
    SCORE = 3


class RowStatus(IntEnum):
    """Values of ``row_status``."""

    OK = 0
    NOT_FINITE = 1


DRAFTER_FAILED = -1
"""In ``num_proposed``: the drafter failed; the command ``drafter`` tells why."""


class Results(IntFlag):
    """Parts of the results that a step has written."""

    LOGPROBS = 1
    PROMPT_LOGPROBS = 2


@dataclass(frozen=True, slots=True)
class Sections:
    """A view of every section; the shapes are capacities, of which a step uses the front."""

    header: torch.Tensor
    input_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    rows: torch.Tensor
    query_start: torch.Tensor
    seq_lens: torch.Tensor
    num_drafts: torch.Tensor
    next_tokens: torch.Tensor
    sample_tokens: torch.Tensor
    sample_rows: torch.Tensor
    uniforms: torch.Tensor
    prompt_tokens: torch.Tensor
    prompt_rows: torch.Tensor
    prompt_targets: torch.Tensor
    block_rows: torch.Tensor
    block_columns: torch.Tensor
    block_ids: torch.Tensor
    admit_rows: torch.Tensor
    admit_ints: torch.Tensor
    admit_floats: torch.Tensor
    admit_seeds: torch.Tensor
    rule_kinds: torch.Tensor
    rule_tokens: torch.Tensor
    rule_values: torch.Tensor
    history: torch.Tensor
    num_sampled: torch.Tensor
    sampled: torch.Tensor
    row_status: torch.Tensor
    pooled: torch.Tensor
    num_proposed: torch.Tensor
    proposed: torch.Tensor
    proposed_confidence: torch.Tensor
    logprobs: torch.Tensor
    ranks: torch.Tensor
    top_tokens: torch.Tensor
    top_logprobs: torch.Tensor
    prompt_logprobs: torch.Tensor
    prompt_ranks: torch.Tensor
    prompt_top_tokens: torch.Tensor
    prompt_top_logprobs: torch.Tensor
    mask_rows: torch.Tensor
    masks: torch.Tensor
    token_vectors: torch.Tensor


class Arena:
    """One buffer: ``host`` is what the engine sees, ``device`` what the model computes on.

    An arena may share its device's side with another, ``beside``: steps and their copies run one by one. On a
    CPU both sides are one, unless they are ``mirrored`` as on a GPU.
    """

    def __init__(
        self,
        layout: ArenaLayout,
        device: torch.device,
        beside: Arena | None = None,
        *,
        mirrored: bool = False,
    ) -> None:
        names = [section[0] for section in layout.sections]
        if names != [field.name for field in fields(Sections)]:
            raise ValueError(
                f"the engine's arena has the sections {', '.join(names)}, not those of this worker"
            )
        on_gpu = device.type == "cuda"
        self._host_bytes = torch.zeros(layout.nbytes, dtype=torch.uint8, pin_memory=on_gpu)
        self._device_bytes = self._host_bytes
        self._mirrored = on_gpu or mirrored
        if self._mirrored and beside is not None:
            self._device_bytes = beside._device_bytes
        elif self._mirrored:
            self._device_bytes = torch.zeros(layout.nbytes, dtype=torch.uint8, device=device)
        self.host = _views(self._host_bytes, layout)
        self.device = _views(self._device_bytes, layout)
        # NumPy's is read in a fifth of the time.
        self._words = self.host.header.numpy()
        self._done = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        offsets = {name: offset for name, _, _, offset in layout.sections}
        # The sections lie in the order in which a step needs them: plan, admissions, results,
        # log-probabilities; and, each with a copy of its own, masks and vectors of tokens. What is copied is
        # cut out once, since with drafts the device waits for the host between two steps.
        self._plan = self._both(0, offsets["admit_rows"])
        self._admissions = self._both(0, offsets["num_sampled"])
        start = offsets["num_sampled"]
        self._results = self._both(start, offsets["logprobs"])
        self._logprobs = self._both(start, offsets["prompt_logprobs"])
        self._prompt = self._both(start, offsets["mask_rows"])

    def _both(self, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Some of the bytes, of the host's side and of the device's."""
        return self._host_bytes[start:end], self._device_bytes[start:end]

    @property
    def address(self) -> tuple[int, int]:
        """Pointer and size in bytes of the engine's side; valid as long as the arena lives."""
        return self._host_bytes.data_ptr(), self._host_bytes.numel()

    def header(self) -> Header:
        """The header of the step that the engine has written; ``ValueError`` if its version is not ours."""
        header = Header._make(self._words.tolist()[: len(Header._fields)])
        if header.version != VERSION:
            raise ValueError(f"the arena's layout version is {header.version}, this worker reads {VERSION}")
        return header

    def mark_irregular(self) -> None:
        """Tells the engine that the step's time says nothing about the next one like it."""
        self.host.header[Header._fields.index("irregular")] = 1

    def upload(self, *, admissions: bool) -> None:
        """Brings the plan to the device, in stream order."""
        if self._mirrored:
            host, device = self._admissions if admissions else self._plan
            device.copy_(host, non_blocking=True)

    def upload_masks(self, count: int) -> None:
        """Brings the step's ``count`` masks to the device, in stream order."""
        if self._mirrored:
            self.device.mask_rows[:count].copy_(self.host.mask_rows[:count], non_blocking=True)
            self.device.masks[:count].copy_(self.host.masks[:count], non_blocking=True)

    def download(self, results: Results, token_vectors: int = 0) -> None:
        """Brings the results and ``token_vectors`` of them back, in stream order.

        ``wait`` tells when they are there.
        """
        if not self._mirrored:
            return
        if token_vectors:
            vectors = self.device.token_vectors[:token_vectors]
            self.host.token_vectors[:token_vectors].copy_(vectors, non_blocking=True)
        host, device = self._results
        if results & Results.PROMPT_LOGPROBS:
            host, device = self._prompt
        elif results & Results.LOGPROBS:
            host, device = self._logprobs
        host.copy_(device, non_blocking=True)
        if self._done is not None:
            self._done.record()

    def wait(self) -> None:
        """Waits for the last ``download``; other threads may run meanwhile."""
        if self._done is not None:
            self._done.synchronize()


def to_device(
    values: Sequence[float], device: torch.device, dtype: torch.dtype = torch.int64
) -> torch.Tensor:
    """``values`` as a tensor on ``device``, without waiting for what runs there."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


def num_tokens(plan: Sections) -> torch.Tensor:
    """``[1]`` int32, a view of the header's count of tokens."""
    return _word(plan, "num_tokens")


def num_blocks(plan: Sections) -> torch.Tensor:
    """``[1]`` int32, a view of the header's count of changes of the block table."""
    return _word(plan, "num_blocks")


def num_rows(plan: Sections) -> torch.Tensor:
    """``[1]`` int32, a view of the header's count of rows."""
    return _word(plan, "num_rows")


def _word(plan: Sections, name: str) -> torch.Tensor:
    """The lower half of a word of the header."""
    word = Header._fields.index(name)
    return plan.header.view(torch.int32)[2 * word : 2 * word + 1]


def _views(data: torch.Tensor, layout: ArenaLayout) -> Sections:
    views = {}
    for name, dtype_name, shape, offset in layout.sections:
        dtype = getattr(torch, dtype_name)
        count = 1
        for size in shape:
            count *= size
        views[name] = data[offset : offset + count * dtype.itemsize].view(dtype).view(*shape)
    return Sections(**views)

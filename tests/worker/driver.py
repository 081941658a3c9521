"""A small engine for tests: writes steps into the worker's arenas and reads the results."""

from __future__ import annotations

import ctypes
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from frizzen.step import StepContext
from frizzen.worker.arena import VERSION, Rule, Sections, _views
from frizzen.worker.graphs import Capture, Graph, GraphRunner
from frizzen.worker.lattice import Lattice
from frizzen.worker.worker import Worker
from tests.worker.arena_layout import Layout, layout
from tests.worker.reference import Params

BLOCK_SIZE = 4
VOCAB = 97


def uniform(seed: int, position: int) -> float:
    """The draw for the token at ``position``."""
    return random.Random(f"{seed} {position}").random()


def fake_logits(tokens: Sequence[int]) -> torch.Tensor:
    """Logits ``[VOCAB]`` after ``tokens``: any change of any token or of their order changes them."""
    state = 0
    for position, token in enumerate(tokens):
        state = (state * 31 + (token + 1) * (position + 7)) % 100_003
    return FakeModel.head(torch.tensor([[float(state)]]))[0]


class FakeModel:
    """A model whose hidden state is a hash of the whole context, which it reads from its cache.

    A wrong slot, position, block table or sequence length gives other tokens than ``fake_logits``.
    """

    def __init__(self, num_blocks: int, device: str = "cpu", drafts: bool = False) -> None:
        self.cache = torch.zeros(num_blocks * BLOCK_SIZE, dtype=torch.int64, device=device)
        self.drafts = drafts
        """Rejected drafts leave their blocks to the tokens that come instead."""
        self.fail_with: Exception | None = None
        self.poisoned: set[int] = set()
        """Rows of the step, by their first token id, whose hidden states are not numbers."""

    def forward(self, input_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        if self.fail_with is not None:
            raise self.fail_with
        assert len(input_ids) == step.num_tokens == len(step.positions) == len(step.slots)
        assert step.positions.dtype == step.slots.dtype == input_ids.dtype == torch.int64
        self.cache[step.slots] = input_ids
        hidden = torch.zeros(step.num_tokens, 1, device=input_ids.device)
        starts = step.query_start.tolist()
        for row in range(step.num_rows):
            first, last = starts[row], starts[row + 1]
            assert last - first == 1 or row >= step.num_single
            assert last - first <= step.max_query
            length = int(step.seq_lens[row])
            if length == 0:
                assert not step.slots[first:last].any(), "padding must go to the null block"
                assert step.valid is not None
                assert first >= int(step.valid), "padding must be known as such"
                continue
            assert length <= step.max_context
            blocks = step.block_table[row].tolist()
            past = [block for block in blocks[-(-length // BLOCK_SIZE) :] if block]
            assert not past or self.drafts, "blocks past the context must be the null block"
            slots = [blocks[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE for i in range(length)]
            context = self.cache[slots].tolist()
            for token in range(first, last):
                position = int(step.positions[token])
                assert position == length - (last - token)
                state = 0
                for place, value in enumerate(context[: position + 1]):
                    state = (state * 31 + (value + 1) * (place + 7)) % 100_003
                hidden[token, 0] = float("nan") if context[0] in self.poisoned else float(state)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.head(hidden)

    @staticmethod
    def head(hidden: torch.Tensor) -> torch.Tensor:
        frequencies = torch.arange(1, VOCAB + 1, dtype=torch.float64, device=hidden.device)
        return (torch.sin(hidden.double() * frequencies * 0.37) * 3).float()


class FakeCapture:
    """Captures by remembering; a replay computes, with the inputs as they are then.

    Results, of at most 512 rows of ``width`` numbers, are left where a replay of a graph would leave them.
    """

    def __init__(self, width: int = 1) -> None:
        self.captured = 0
        self.replayed = 0
        self.fail_with: Exception | None = None
        self._width = width

    @property
    def held_bytes(self) -> int:
        return 1000 * self.captured

    def __call__(self, work: Callable[[], torch.Tensor]) -> Graph:
        if self.fail_with is not None:
            raise self.fail_with
        self.captured += 1
        output = torch.full((512, self._width), torch.nan)

        def replay() -> None:
            self.replayed += 1
            found = work()
            output[: len(found)] = found if found.dim() == 2 else found[:, None]

        return Graph(replay, output)


@dataclass(slots=True, eq=False)
class Request:
    """A request of the test's engine."""

    prompt: list[int]
    params: Params = field(default_factory=Params)
    allowed: Callable[[list[int]], set[int]] | None = None
    """Tokens that may follow these outputs; ``None`` allows all."""
    outputs: list[int] = field(default_factory=list)
    logprobs: list[tuple[float, int, list[tuple[int, float]]]] = field(default_factory=list)
    prompt_logprobs: list[tuple[float, int, list[tuple[int, float]]]] = field(default_factory=list)
    row: int | None = None
    computed: int = 0
    in_flight: int = 0
    blocks: list[int] = field(default_factory=list)
    failed: bool = False
    drafts: list[int] = field(default_factory=list)
    """Drafts to verify in the next step."""
    accepted: list[tuple[int, int]] = field(default_factory=list)
    """Per step with drafts, how many there were and how many were right."""
    inherited: list[int] = field(default_factory=list)
    """Blocks of another request's prefix that it starts with; ``computed`` says how far they go."""
    proposed: list[int] = field(default_factory=list)
    """What the worker's drafter proposed after the last step."""
    confidence: list[float] = field(default_factory=list)

    @property
    def known(self) -> list[int]:
        return self.prompt + self.outputs

    def wants_prompt_score(self, position: int) -> bool:
        """Whether the logits at ``position`` judge a prompt token that was not scored before a preemption."""
        follows = len(self.prompt_logprobs) <= position < len(self.prompt) - 1
        return follows and self.params.prompt_logprobs >= 0

    @property
    def total(self) -> int:
        return len(self.prompt) + len(self.outputs) + self.in_flight


def worker_info(**changes: Any) -> dict[str, Any]:
    """A worker's info for tests."""
    info = {
        "model": "fake",
        "vocab_size": VOCAB,
        "max_model_len": 64,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "num_blocks": 128,
        "block_size": BLOCK_SIZE,
        "max_logprobs": 20,
        "max_drafts": 0,
        "eos_token_ids": [0],
        "device": "cpu",
        "dtype": "float32",
        "plan": {},
    }
    return info | changes


class Driver:
    """Plans by hand: the caller says which request computes how many tokens in which step."""

    def __init__(self, worker: Worker, limits: Layout | None = None) -> None:
        self.worker = worker
        info = worker.info
        self.block_size = int(info["block_size"])
        self.layout = limits or layout(
            max_rows=info["max_num_seqs"],
            max_tokens=info["max_num_batched_tokens"],
            max_drafts=info["max_drafts"],
            max_logprobs=info["max_logprobs"],
        )
        self.arenas = [self._map(pointer, size) for pointer, size in worker.bind(self.layout)]
        self.free_rows = list(reversed(range(info["max_num_seqs"])))
        self.free_blocks = deque(range(1, info["num_blocks"]))
        self.steps = 0
        self.propose = 0
        """Drafts that the worker is asked for after each step."""
        self.in_flight: deque[tuple[int, list[tuple[Request, bool]], list[Request]]] = deque()

    def _map(self, pointer: int, size: int) -> Sections:
        buffer = (ctypes.c_uint8 * size).from_address(pointer)
        return _views(torch.frombuffer(buffer, dtype=torch.uint8), self.layout)

    def step(self, plan: Mapping[Request, int]) -> None:
        """Runs one step to its end."""
        self.submit(plan)
        self.collect()

    def run(self, requests: Sequence[Request], tokens: int, chunk: int = 64) -> None:
        """Steps all requests together until each has ``tokens`` outputs."""
        while pending := [r for r in requests if not r.failed and len(r.outputs) < tokens]:
            self.step({request: min(chunk, request.total - request.computed) for request in pending})

    def preempt(self, request: Request) -> None:
        """Takes everything from a request; its next step admits it anew."""
        self.release(request)
        request.computed = 0

    def release(self, request: Request) -> None:
        """Gives back row and blocks."""
        assert request.row is not None
        self.free_rows.append(request.row)
        self.free_blocks.extend(request.blocks)
        request.row, request.blocks = None, []

    def submit(self, plan: Mapping[Request, int]) -> None:
        """Writes the step into the next arena and submits it."""
        index = self.steps % 2
        arena = self.arenas[index]
        order = sorted(plan, key=lambda request: plan[request] + len(request.drafts) > 1)
        admitted = [request for request in order if request.row is None]
        self._admit(arena, admitted)
        rows, changes, tokens, scored, asking, starts, samples = [], [], [], [], [], [0], []
        ends: list[int] = []
        counts: list[int] = []
        masks: list[tuple[int, set[int]]] = []
        for place, request in enumerate(order):
            first, last = request.computed, request.computed + plan[request]
            assert last <= request.total
            drafts = request.drafts if last == request.total else []
            changes += self._extend(request, last + len(drafts))
            rows.append(request.row)
            known = request.known + drafts
            for position in range(first, last + len(drafts)):
                if request.wants_prompt_score(position):
                    scored.append((len(tokens), place, request.prompt[position + 1]))
                    asking.append(request)
                token = known[position] if position < len(known) else -1
                block = request.blocks[position // self.block_size]
                tokens.append((token, position, block * self.block_size + position % self.block_size))
            starts.append(len(tokens))
            if last == request.total:
                if request.allowed is not None:
                    assert not request.in_flight, "the mask depends on a token that is not known"
                    assert not drafts, "a constrained row has no drafts"
                    masks.append((len(samples), request.allowed(request.outputs)))
                for offset in range(len(drafts) + 1):
                    draw = uniform(request.params.seed, last + offset)
                    samples.append((len(tokens) - 1 - len(drafts) + offset, place, draw))
                request.in_flight += 1
            request.computed = last
            ends.append(last + len(drafts))
            counts.append(len(drafts))
        self._fill_rows(arena, rows, starts, ends, counts)
        fill_columns(arena, ("block_rows", "block_columns", "block_ids"), changes)
        fill_columns(arena, ("input_ids", "positions", "slots"), tokens)
        fill_columns(arena, ("sample_tokens", "sample_rows", "uniforms"), samples)
        fill_columns(arena, ("prompt_tokens", "prompt_rows", "prompt_targets"), scored)
        lengths = [end - start for start, end in pairwise(starts)]
        header = [VERSION, self.steps, len(order), lengths.count(1), len(tokens), len(samples)]
        header += [len(scored), len(changes), len(admitted), max(lengths), max(ends), len(masks)]
        header += [self.propose, 0, 0]
        fill(arena.header, header)
        self._run(index, masks)
        sampling = {place for _, place, _ in samples}
        rows_of_step = [(request, place in sampling) for place, request in enumerate(order)]
        self.in_flight.append((index, rows_of_step, asking))
        self.steps += 1

    def _extend(self, request: Request, tokens: int) -> list[tuple[int | None, int, int]]:
        """Blocks for a context of ``tokens``; returns the changes of the block table."""
        changes = []
        for column in range(len(request.blocks), -(-tokens // self.block_size)):
            inherited = column < len(request.inherited)
            block = request.inherited[column] if inherited else self.free_blocks.popleft()
            request.blocks.append(block)
            changes.append((request.row, column, block))
        return changes

    def _run(self, index: int, masks: list[tuple[int, set[int]]]) -> None:
        arena = self.arenas[index]
        fill(arena.mask_rows, [sample for sample, _ in masks])
        self.worker.submit(index)
        if masks:
            for place, (_, allowed) in enumerate(masks):
                fill(arena.masks[place], mask_words(allowed))
            self.worker.sample(index)

    @staticmethod
    def _fill_rows(
        arena: Any, rows: list[Any], starts: list[int], ends: list[int], counts: list[int]
    ) -> None:
        fill(arena.rows, rows)
        fill(arena.query_start, starts)
        fill(arena.seq_lens, ends)
        fill(arena.num_drafts, counts)

    def collect(self) -> None:
        """Waits for the oldest step and hands its results to the requests."""
        index, rows, scored = self.in_flight.popleft()
        self.worker.collect(index)
        arena = self.arenas[index]
        for place, (request, samples) in enumerate(rows):
            request.in_flight -= samples
            offered = max(int(arena.num_proposed[place]), 0)
            request.proposed = arena.proposed[place, :offered].tolist()
            request.confidence = arena.proposed_confidence[place, :offered].tolist()
            if arena.row_status[place]:
                request.failed = True
            count = int(arena.num_sampled[place])
            assert (count > 0) == (samples and not request.failed)
            if not count:
                continue
            drafts, request.drafts = request.drafts, []
            assert count <= len(drafts) + 1
            if drafts:
                request.accepted.append((len(drafts), count - 1))
            # The KV of accepted drafts is there already.
            request.computed += count - 1
            request.outputs += arena.sampled[place, :count].tolist()
            alternatives = request.params.logprobs + len(request.params.scored)
            for at in range(count if request.params.logprobs >= 0 else 0):
                top = zip(
                    arena.top_tokens[place, at, :alternatives].tolist(),
                    arena.top_logprobs[place, at, :alternatives].tolist(),
                    strict=True,
                )
                request.logprobs.append(
                    (float(arena.logprobs[place, at]), int(arena.ranks[place, at]), list(top))
                )
        for place, request in enumerate(scored):
            top = zip(
                arena.prompt_top_tokens[place, : request.params.prompt_logprobs].tolist(),
                arena.prompt_top_logprobs[place, : request.params.prompt_logprobs].tolist(),
                strict=True,
            )
            request.prompt_logprobs.append(
                (float(arena.prompt_logprobs[place]), int(arena.prompt_ranks[place]), list(top))
            )

    def _admit(self, arena: Sections, admitted: Sequence[Request]) -> None:
        rules: list[tuple[int, int, float]] = []
        history: list[int] = []
        for place, request in enumerate(admitted):
            params = request.params
            request.row = self.free_rows.pop()
            own = [(Rule.BIAS, token, value) for token, value in params.bias.items()]
            own += [(Rule.ALLOW, token, 0.0) for token in params.allowed]
            if params.min_tokens:
                own += [(Rule.SUPPRESS, token, 0.0) for token in params.suppressed]
            own += [(Rule.SCORE, token, 0.0) for token in params.scored]
            known = request.known if params.has_penalty else []
            ints = [params.top_k, params.logprobs, params.prompt_logprobs, len(request.prompt)]
            ints += [params.min_tokens, len(own), len(known)]
            floats = [params.temperature, params.top_p, params.min_p]
            floats += [params.presence, params.frequency, params.repetition]
            arena.admit_rows[place] = request.row
            fill(arena.admit_ints[place], ints)
            fill(arena.admit_floats[place], floats)
            rules += own
            history += known
        fill_columns(arena, ("rule_kinds", "rule_tokens", "rule_values"), rules)
        fill(arena.history, history)


def mask_words(allowed: set[int]) -> list[int]:
    """One bit per token of the vocabulary, in signed words of 32."""
    words = [0] * -(-VOCAB // 32)
    for token in allowed:
        words[token // 32] |= 1 << token % 32
    return [word - (1 << 32) if word >> 31 else word for word in words]


def fill(section: torch.Tensor, values: Sequence[float]) -> None:
    """Writes the front of a section."""
    section[: len(values)] = torch.tensor(values, dtype=section.dtype)


def fill_columns(arena: Sections, names: Sequence[str], rows: Sequence[Sequence[float]]) -> None:
    """Writes the front of several sections, given row by row."""
    for name, column in zip(names, zip(*rows, strict=True), strict=False):
        fill(getattr(arena, name), column)


def fake_driver(
    *, acceptance: float | None = None, capture: Capture | None = None, **changes: Any
) -> tuple[Driver, FakeModel]:
    """A driver of a worker with the fake model; ``acceptance`` is forced on its drafts.

    With ``capture``, steps run as graphs that it makes.
    """
    info = worker_info(**changes)
    model = FakeModel(info["num_blocks"], info["device"], drafts=info["max_drafts"] > 0)
    graphs = None
    if capture is not None:
        lattice = Lattice.of(
            max_rows=info["max_num_seqs"],
            max_drafts=info["max_drafts"],
            max_context=info["max_model_len"],
            max_tokens=info["max_num_batched_tokens"],
        )
        graphs = partial(GraphRunner, model.forward, lattice, capture=capture, clock=lambda: 0.0)
    return Driver(Worker(model, info, torch.device(info["device"]), acceptance, graphs)), model

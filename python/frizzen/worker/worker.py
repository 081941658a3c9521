"""Runs the steps of one model on one device, in order."""

from __future__ import annotations

import json
import resource
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from frizzen.speculate.drafter import Proposed, Seen
from frizzen.speculate.drafting import Drafting, Sampling
from frizzen.speculate.proposals import certain
from frizzen.speculate.rejection import Judge
from frizzen.speculate.verify import DraftRows, Verified, forced, verify
from frizzen.step import StepContext
from frizzen.worker.arena import (
    DRAFTER_FAILED,
    AdmitFloat,
    Arena,
    ArenaLayout,
    Header,
    Results,
    RowStatus,
)
from frizzen.worker.buffers import StepBuffers
from frizzen.worker.graphs import GraphRunner
from frizzen.worker.inputs import step_inputs
from frizzen.worker.logprobs import score
from frizzen.worker.masks import TokenMasks
from frizzen.worker.results import write, write_proposed, write_verified
from frizzen.worker.rows import PersistentBatch
from frizzen.worker.sampler import Positions, Sampled, Sampler
from frizzen.worker.tail import Tails

__all__ = ["StepModel", "Worker"]

NUM_ARENAS = 2
"""One step runs while the next is written."""

SCORED_AT_ONCE = 64
"""Prompt positions whose logits exist at the same time: a long prompt's would take gigabytes."""


class StepModel(Protocol):
    """What the worker needs of a model."""

    def forward(self, input_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        """Hidden states ``[T, H]`` of the token ids int64 ``[T]``."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits float32 ``[S, V]`` of hidden states ``[S, H]``."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that the model has computed and that is not sampled yet."""

    index: int
    header: Header
    ids: torch.Tensor
    """``[T]``, its input tokens."""
    context: StepContext
    hidden: torch.Tensor
    """``[T, H]``."""


class Worker:
    """The torch worker; ``submit`` may run ahead of ``collect`` by one step.

    Args:
        model: The model, on ``device`` and with its KV cache allocated.
        info: What the engine must know: the fields of its ``WorkerInfo``.
        device: Where the model computes.
        acceptance: Tokens per row and step that verification is forced to give, for studies of speed.
        graphs: Makes the runner of the model's forward pass as graphs; without it every step is launched.
        late_compiles: Kernels that were compiled although everything was warm, counted by whoever sees it.
        drafting: The drafter that proposes after every step, if there is one.
        rejection: How drafts that are certain are accepted; drawn ones bring it along.
    """

    def __init__(
        self,
        model: StepModel,
        info: dict[str, Any],
        device: torch.device,
        acceptance: float | None = None,
        graphs: Callable[[StepBuffers], GraphRunner] | None = None,
        late_compiles: Counter[str] | None = None,
        drafting: Drafting | None = None,
        rejection: str = "standard",
    ) -> None:
        self.info = info
        self._model = model
        self._make_graphs = graphs
        self._graphs: GraphRunner | None = None
        self._tails: Tails | None = None
        self._late_compiles = Counter() if late_compiles is None else late_compiles
        self._compiled = 0
        """How many of them there were after the last step."""
        self._device = device
        self._block_size = int(info["block_size"])
        self._batch = PersistentBatch(
            max_rows=info["max_num_seqs"],
            max_blocks=-(-info["max_model_len"] // self._block_size),
            max_model_len=info["max_model_len"],
            vocab_size=info["vocab_size"],
            device=device,
        )
        self._sampler = Sampler(self._batch, device)
        self._acceptance = (
            None if acceptance is None else torch.tensor(acceptance, dtype=torch.float64, device=device)
        )
        self._drafting = drafting
        self._rejection = rejection
        self._arenas: list[Arena] = []
        self._submitted: deque[int] = deque()
        self._waiting: _Step | None = None

    def bind(self, layout: ArenaLayout) -> list[tuple[int, int]]:
        """Allocates the arenas, which live as long as the worker; returns pointer and size of each."""
        # Graphs need all plans at one place.
        mirrored = self._make_graphs is not None
        first = Arena(layout, self._device, mirrored=mirrored)
        others = (Arena(layout, self._device, first, mirrored=mirrored) for _ in range(NUM_ARENAS - 1))
        self._arenas = [first, *others]
        if self._make_graphs is not None:
            self._graphs = self._make_graphs(StepBuffers.allocate(first.device, self._batch))
            self._tails = Tails(
                self._model.logits, self._batch, self._graphs, self._drafting, self._acceptance
            )
            self._tails.warm_up()
        elif self._drafting is not None:
            nothing = torch.zeros(1, 1, dtype=torch.int64, device=self._device)
            write_proposed(Proposed(nothing), nothing[0], first.device)
        # The engine is not ready yet.
        self._late_compiles.clear()
        return [arena.address for arena in self._arenas]

    @torch.inference_mode()
    def submit(self, index: int) -> None:
        """Starts the step in arena ``index``; on a CPU it is done on return.

        A step with masks waits for them after the model: ``sample`` goes on with it, before anything else is
        submitted or collected.

        A ``-1`` among the token ids is the token that its row sampled last, so the step may be submitted
        before the one that samples it is collected. An exception means that nothing of the step counts and
        nothing is to be collected; admissions and block changes of the step may be sent again.
        """
        arena = self._arenas[index]
        header = arena.header()
        arena.upload(admissions=header.num_admits > 0)
        self._batch.admit(arena, header)
        if self._drafting is not None and header.num_admits:
            self._drafting.admit(arena.device.admit_rows[: header.num_admits].long())
        computed = self._compute(index, arena, header)
        if header.num_masks:
            self._waiting = computed
        else:
            self._finish(computed, None)

    def _compute(self, index: int, arena: Arena, header: Header) -> _Step:
        """The forward pass."""
        if self._graphs is not None and (hidden := self._graphs.replay(header)) is not None:
            return _Step(index, header, *self._graphs.buffers.inputs(header), hidden)
        # A graph does this by itself.
        self._batch.change_blocks(arena, header)
        ids, step = step_inputs(arena, header, self._batch, self._block_size)
        return _Step(index, header, ids, step, self._model.forward(ids, step))

    @torch.inference_mode()
    def sample(self, index: int) -> None:
        """Goes on with the step in arena ``index``, whose masks are there now. Raises as ``submit`` does."""
        step, self._waiting = self._waiting, None
        if step is None or step.index != index:
            raise RuntimeError(f"arena {index} holds no step that waits for its masks")
        arena, count = self._arenas[index], step.header.num_masks
        arena.upload_masks(count)
        masks = TokenMasks(
            arena.host.mask_rows[:count].tolist(),
            arena.device.mask_rows[:count].long(),
            arena.device.masks[:count],
        )
        self._finish(step, masks)

    def _finish(self, step: _Step, masks: TokenMasks | None) -> None:
        """Samples, scores and brings the results back."""
        arena, header = self._arenas[step.index], step.header
        if masks is None and self._replay_end(arena, header):
            arena.download(Results(0))
            self._done(step)
            return
        hidden, taps = (step.hidden, ()) if self._drafting is None else self._drafting.split(step.hidden)
        results = arena.device
        drafts = _drafts(arena, header, step.ids) if header.num_samples else None
        if drafts is not None or header.num_samples != header.num_rows:
            # Where every row samples once, all of it is written anyway.
            results.num_sampled[: header.num_rows].zero_()
            results.row_status[: header.num_rows].zero_()
        written = Results(0)
        sampled = verified = None
        if header.num_samples:
            sampled, places = self._sample(hidden, arena, header, drafts, masks)
            if drafts is None:
                written |= write(sampled, results, places)
            else:
                verified = self._verify(sampled, arena, drafts)
                written |= write_verified(sampled, verified, results, drafts)
        if header.num_prompt:
            written |= self._score_prompt(hidden, arena, header)
        if self._drafting is not None:
            sampling = None if sampled is None else self._sampling(step, sampled, verified, drafts)
            seen = Seen.of(step.ids, step.context, hidden, taps)
            self._draft(self._drafting, seen, sampling, arena, header)
        arena.download(written)
        # Last, so that a step that raised can be computed again.
        if sampled is not None:
            self._sampler.remember(sampled, verified)
        self._done(step)

    def _done(self, step: _Step) -> None:
        """The step is on its way; there may be time for a graph that it has missed."""
        self._submitted.append(step.index)
        compiled, self._compiled = self._compiled, self._late_compiles.total()
        irregular = self._compiled > compiled
        if self._graphs is not None and self._tails is not None:
            irregular |= self._graphs.after_step()
            irregular |= self._tails.after_step()
        if irregular:
            # A step that is still running is collected later for it.
            for index in self._submitted:
                self._arenas[index].mark_irregular()

    def _replay_end(self, arena: Arena, header: Header) -> bool:
        """Ends a step by a graph, if it is one of greedy decodes that ask for nothing else."""
        if self._tails is None or header.num_samples != header.num_tokens or header.num_prompt:
            return False
        rows: list[int] = arena.host.rows[: header.num_rows].tolist()
        flags = self._batch.flags
        return not any(flags[row] for row in rows) and self._tails.replay(header.propose)

    @torch.inference_mode()
    def idle(self) -> bool:
        """Captures one more graph; whether there is more to do. To be called while no step waits."""
        return self._graphs is not None and self._graphs.capture_next()

    def collect(self, index: int) -> None:
        """Waits for the oldest submitted step, which is in arena ``index``; its results are then complete."""
        if not self._submitted or self._submitted[0] != index:
            raise RuntimeError(
                f"arena {index} is not the oldest submitted step; submitted are {list(self._submitted)}"
            )
        self._submitted.popleft()
        self._arenas[index].wait()

    def control(self, name: str, argument_json: str) -> str:
        """Answers a command outside the steps, JSON in and out; ``ValueError`` if it does not exist."""
        commands = {
            "memory": self._memory,
            "graphs": self._graph_state,
            "counters": self._counters,
            "drafter": self._drafter,
            "experts": self._experts,
            "synthetic_acceptance": self._force,
        }
        if name not in commands:
            raise ValueError(f"the worker has no command {name!r}; it has {', '.join(commands)}")
        return json.dumps(commands[name](json.loads(argument_json or "null")))

    def shutdown(self) -> None:
        """Frees the arenas; the pointers that ``bind`` returned are void from here on."""
        self._submitted.clear()
        self._waiting = None
        self._graphs = self._tails = None
        self._arenas.clear()

    def _sample(
        self,
        hidden: torch.Tensor,
        arena: Arena,
        header: Header,
        drafts: DraftRows | None,
        masks: TokenMasks | None,
    ) -> tuple[Sampled, torch.Tensor | None]:
        """Samples every position that asks for it: one per row, and one more for each of its drafts.

        Returns the tokens and ``[S]`` int64, the rows of the step that they are for; ``None`` is all of them
        in their order.
        """
        plan, host, count = arena.device, arena.host, header.num_samples
        rows: list[int] = host.rows[: header.num_rows].tolist()
        positions: list[int] = host.positions[: header.num_tokens].tolist()
        row_index = plan.rows[: header.num_rows].long()
        places = None
        if count != header.num_rows or drafts is not None:
            places = plan.sample_rows[:count].long()
            row_index = row_index[places]
            rows = [rows[row] for row in host.sample_rows[:count].tolist()]
        if count < header.num_tokens:
            hidden = hidden.index_select(0, plan.sample_tokens[:count])
            positions = [positions[token] for token in host.sample_tokens[:count].tolist()]
        lengths = [position + 1 for position in positions]
        preceding = judge = None
        if drafts is not None:
            preceding = drafts.preceding()
            judge = self._judge(drafts, row_index)
        sampled = self._sampler.sample(
            self._model.logits(hidden),
            Positions(rows, row_index, lengths, plan.uniforms[:count], preceding),
            masks,
            judge,
        )
        return sampled, places

    def _judge(self, drafts: DraftRows, row_index: torch.Tensor) -> Judge | None:
        """Who judges drafts of random rows; ``None`` compares them with the samples, which keeps the text."""
        judge = None if self._drafting is None else self._drafting.judge(drafts, row_index)
        if judge is None and self._rejection == "block":
            judge = certain(drafts, self.info["vocab_size"], self._rejection)
        return judge

    def _verify(self, sampled: Sampled, arena: Arena, drafts: DraftRows) -> Verified:
        """Which of the sampled tokens count."""
        accept = None if sampled.accepted is None else sampled.accepted[drafts.index]
        if self._acceptance is not None:
            accept = forced(self._acceptance, arena.device.uniforms[: len(sampled.tokens)], drafts)
        return verify(sampled.tokens, sampled.finite, sampled.row_index, drafts, accept)

    def _score_prompt(self, hidden: torch.Tensor, arena: Arena, header: Header) -> Results:
        """Scores the prompt tokens that follow the step's prompt positions."""
        out, count = arena.device, header.num_prompt
        host_rows: list[int] = arena.host.rows[: header.num_rows].tolist()
        asking = {host_rows[row] for row in arena.host.prompt_rows[:count].tolist()}
        alternatives = max(self._batch.num_prompt_logprobs[row] for row in asking)
        for start in range(0, count, SCORED_AT_ONCE):
            part = slice(start, min(count, start + SCORED_AT_ONCE))
            logits = self._model.logits(hidden.index_select(0, out.prompt_tokens[part]))
            scores = score(logits, out.prompt_targets[part].long(), alternatives)
            out.prompt_logprobs[part] = scores.chosen
            out.prompt_ranks[part] = scores.ranks
            out.prompt_top_tokens[part, :alternatives] = scores.top_tokens
            out.prompt_top_logprobs[part, :alternatives] = scores.top
            failed = torch.where(scores.finite, RowStatus.OK, RowStatus.NOT_FINITE).int()
            out.row_status.scatter_reduce_(0, out.prompt_rows[part].long(), failed, "amax")
        return Results.PROMPT_LOGPROBS

    @staticmethod
    def _draft(
        drafting: Drafting, seen: Seen, sampling: Sampling | None, arena: Arena, header: Header
    ) -> None:
        """Lets the drafter see the step, and writes what it proposes for the rows that sampled."""
        proposed = drafting.advance(seen, sampling, header.propose)
        rows = arena.device.num_proposed[: header.num_rows]
        rows.fill_(DRAFTER_FAILED if drafting.failed else 0)
        if proposed is not None and sampling is not None:
            write_proposed(proposed, sampling.step_rows, arena.device)

    def _sampling(
        self, step: _Step, sampled: Sampled, verified: Verified | None, drafts: DraftRows | None
    ) -> Sampling:
        """What the rows that sampled got, in the order of the step."""
        header, plan = step.header, self._arenas[step.index].device
        if verified is None or drafts is None:
            step_rows = plan.sample_rows[: header.num_samples].long()
            rows, tokens, last = sampled.row_index, sampled.tokens, None
            rejected = torch.zeros_like(step_rows)
        else:
            step_rows, rows, tokens = drafts.step_rows, verified.row_index, verified.last
            reached = verified.num_sampled.clamp(min=1) - 1
            last = drafts.index.gather(1, reached[:, None]).squeeze(1)
            rejected = drafts.index[:, -1] - last
        uniforms = plan.uniforms[: header.num_samples]
        return Sampling(
            step_rows=step_rows,
            rows=rows,
            tokens=tokens,
            rejected=rejected,
            draws=(
                self._batch.floats.index_select(0, rows)[:, AdmitFloat.TEMPERATURE],
                uniforms if last is None else uniforms.index_select(0, last),
            ),
        )

    def _drafter(self, _: object) -> dict[str, str | None]:
        """Why the drafter is out of service, if it is."""
        return {"failed": None if self._drafting is None else self._drafting.failed}

    def _force(self, acceptance: object) -> float:
        """Changes the tokens per row and step that verification is forced to give."""
        if self._acceptance is None:
            raise ValueError("verification is not forced: spec_synthetic_acceptance was not given")
        if isinstance(acceptance, bool) or not isinstance(acceptance, int | float) or acceptance < 1:
            raise ValueError(f"synthetic acceptance must be a number of at least 1, got {acceptance!r}")
        self._acceptance.fill_(acceptance)
        return float(acceptance)

    def _graph_state(self, _: object) -> dict[str, Any] | None:
        """Which graphs there are; ``None`` where steps are launched."""
        if self._graphs is None or self._tails is None:
            return None
        return self._graphs.state() | {"ends": self._tails.state()}

    def _counters(self, _: object) -> dict[str, Any]:
        """Since the start: steps by graph and, by shape, without; kernels compiled when all were warm.

        ``memory`` is what owners hold now, in bytes: as measured, else as predicted.
        """
        graphs = self._graphs
        owners = self.info["plan"].get("memory", {}).get("owners", ())
        held = {
            owner["owner"]: owner["predicted"] if owner["measured"] is None else owner["measured"]
            for owner in owners
        }
        return {
            "memory": held if graphs is None else held | {"graphs": graphs.held_bytes},
            "graph_steps": 0 if graphs is None else graphs.graph_steps,
            "eager_steps": {} if graphs is None else dict(graphs.eager_steps),
            "late_compiles": dict(self._late_compiles),
        }

    def _experts(self, _: object) -> dict[str, Any] | None:
        """Tokens by layer and expert since the start; None without experts. Waits for submitted steps."""
        load = getattr(self._model, "expert_load", None)
        return None if load is None else {"layers": list(load.layers), "tokens": load.read().tolist()}

    def _memory(self, _: object) -> dict[str, int]:
        """Bytes: of this process at most so far; of torch on a GPU now, at most, and in reserve."""
        on_gpu = self._device.type == "cuda"
        return {
            "peak_resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "device_allocated": torch.cuda.memory_allocated(self._device) if on_gpu else 0,
            "device_peak": torch.cuda.max_memory_allocated(self._device) if on_gpu else 0,
            "device_reserved": torch.cuda.memory_reserved(self._device) if on_gpu else 0,
        }


def _drafts(arena: Arena, header: Header, ids: torch.Tensor) -> DraftRows | None:
    """The rows that sample, if one of them has drafts: known on the host, so other steps cost nothing."""
    counts: list[int] = arena.host.num_drafts[: header.num_rows].tolist()
    if not any(counts):
        return None
    rows = list(dict.fromkeys(arena.host.sample_rows[: header.num_samples].tolist()))
    places = arena.device.sample_tokens[: header.num_samples]
    return DraftRows.of(rows, [counts[row] for row in rows], places, ids)

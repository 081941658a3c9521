"""The drafter that a configuration asks for: loaded, given its memory, warmed up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from frizzen.config import EngineConfig
from frizzen.errors import LoadError
from frizzen.kernels.plan import PlanBuilder
from frizzen.loading.load import LoadRequest
from frizzen.models.base import CausalLM
from frizzen.models.tapped import TappedModel
from frizzen.speculate.drafter import DraftBlocks, Seen
from frizzen.speculate.drafting import Drafting, Sampling
from frizzen.speculate.load import DRAFTERS, DraftRequest, LoadedDrafter, load_drafter
from frizzen.speculate.proposals import Kept
from frizzen.step import StepContext
from frizzen.worker.lattice import Lattice
from frizzen.worker.warmup import Warmed, compile_steps, run_steps

__all__ = ["DraftMemory", "compile_drafts", "drafting", "load", "stepping", "warm_up"]


def load(
    config: EngineConfig, target: LoadRequest, model: CausalLM, builder: PlanBuilder
) -> LoadedDrafter | None:
    """The drafter, if one with a model is asked for; those without one are the engine's."""
    if config.drafter not in DRAFTERS:
        return None
    # A fixed length that requests get by default is a length that was asked for.
    fixed = config.speculation if isinstance(config.speculation, int) else None
    request = DraftRequest(
        name=config.drafter,
        target=target,
        model=config.drafter_model,
        num_drafts=config.num_speculative_tokens or fixed,
    )
    return load_drafter(request, model, builder)


@dataclass(frozen=True, slots=True)
class DraftMemory:
    """Bytes that a drafter takes beside its weights."""

    per_token: int = 0
    """Of the KV cache, per token."""
    private: int = 0
    """Of the KV cache, for blocks that hold drafts."""
    kept: int = 0
    """Outside of it, for the distributions of drawn drafts."""

    @classmethod
    def of(cls, config: EngineConfig, loaded: LoadedDrafter | None, vocab_size: int) -> DraftMemory:
        """Nothing without a drafter."""
        if loaded is None:
            return cls()
        per_token, rows = loaded.drafter.bytes_per_token(), config.max_num_seqs
        blocks = DraftBlocks.of(0, loaded.drafter.reach, config.block_size).total(rows)
        drawn = config.draft_sample_method == "probabilistic"
        return cls(
            per_token=per_token,
            private=blocks * config.block_size * per_token,
            kept=rows * loaded.max_drafts * vocab_size * 4 if drawn else 0,
        )


def drafting(config: EngineConfig, loaded: LoadedDrafter, model: CausalLM, num_blocks: int) -> Drafting:
    """Makes the drafter's caches, of the target's ``num_blocks`` blocks and its own."""
    blocks = DraftBlocks.of(num_blocks, loaded.drafter.reach, config.block_size)
    loaded.drafter.allocate_kv(blocks.total(config.max_num_seqs), config.block_size)
    kept = None
    if config.draft_sample_method == "probabilistic":
        kept = Kept.empty(
            config.max_num_seqs,
            loaded.max_drafts,
            model.config.vocab_size,
            config.rejection_sample_method,
            model.device,
        )
    return Drafting(
        loaded.drafter,
        blocks,
        kept,
        believed=config.spec_synthetic_acceptance is None,
        on_gpu=model.device.type == "cuda",
    )


def stepping(model: CausalLM, loaded: LoadedDrafter | None) -> CausalLM | TappedModel:
    """What computes steps: the model, tapped where its drafter reads it."""
    if loaded is None or not loaded.drafter.taps:
        return model
    return TappedModel(model, loaded.drafter.taps)


@dataclass(frozen=True, slots=True)
class _Drafted:
    """A model whose drafter goes along."""

    model: Warmed
    drafting: Drafting
    count: int

    def forward(self, input_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        hidden, taps = self.drafting.split(self.model.forward(input_ids, step))
        rows = torch.arange(step.num_rows, device=input_ids.device)
        sampling = Sampling(
            step_rows=rows,
            rows=rows,
            tokens=torch.zeros_like(rows),
            rejected=torch.zeros_like(rows),
            draws=(
                torch.ones(len(rows), device=rows.device),
                torch.zeros(len(rows), dtype=torch.float64, device=rows.device),
            ),
        )
        self.drafting.propose(Seen.of(input_ids, step, hidden, taps), sampling, self.count)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.model.logits(hidden)


@dataclass(frozen=True, slots=True)
class _Nothing:
    """A model that has computed nothing, for a drafter with so many taps."""

    model: CausalLM
    taps: int

    def forward(self, input_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        width = self.model.config.hidden_size * (1 + self.taps)
        return torch.zeros(step.num_tokens, width, dtype=self.model.dtype, device=input_ids.device)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


def compile_drafts(
    model: CausalLM,
    loaded: LoadedDrafter,
    drafting: Drafting,
    lattice: Lattice,
    settle: Callable[[], None],
) -> None:
    """See ``warmup.compile_steps``; the second draft is as good as all after it.

    Raises:
        LoadError: the drafter cannot even do this.
    """
    drafted = _Drafted(_Nothing(model, len(loaded.drafter.taps)), drafting, min(2, loaded.max_drafts))
    with _explained():
        compile_steps(drafted, lattice, model.device, model.block_size, settle)


def warm_up(
    model: CausalLM | TappedModel, drafting: Drafting, count: int, device: torch.device, block_size: int
) -> None:
    """Proposes once, so that no request waits for it.

    Raises:
        LoadError: the drafter cannot even do this.
    """
    with _explained():
        run_steps(_Drafted(model, drafting, count), device, block_size)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise LoadError(f"the drafter does not work: {type(error).__name__}: {error}") from error

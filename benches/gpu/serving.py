"""A model of dummy weights in the real engine, whose steps are timed from outside."""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benches.gpu.shape import MoeShape
from frizzen import LLM, SamplingParams

if TYPE_CHECKING:
    from frizzen.worker.worker import Worker

__all__ = ["Steps", "greedy", "observed", "prompt", "write_config"]


def write_config(shape: MoeShape, folder: Path, layers: int | None = None, **changes: Any) -> Path:
    """Writes the ``config.json`` of a Qwen3-MoE model of this shape; returns its folder."""
    values = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": shape.hidden,
        "num_hidden_layers": layers or shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.top_k,
        "moe_intermediate_size": shape.intermediate,
        "intermediate_size": 6144,
        "norm_topk_prob": True,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": 40960,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-6,
        "eos_token_id": 151645,
        "tie_word_embeddings": False,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values | changes), encoding="utf-8")
    return folder


def prompt(length: int, number: int, vocabulary: int) -> list[int]:
    """Token ids; two numbers have no prefix in common."""
    return [(number * 7919 + place * 104_729 + 11) % (vocabulary - 1000) for place in range(length)]


def greedy(tokens: int) -> SamplingParams:
    """So many greedy tokens, whatever they are."""
    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)


class StepEnd(NamedTuple):
    """A step whose results are there."""

    at: float
    """Seconds."""
    rows: int
    tokens: int
    sampled: int
    """0 unless they are counted."""
    proposed: int
    """Drafts per row that the worker was told to propose."""
    irregular: bool
    """Something was captured or compiled in it."""


@dataclass(slots=True)
class Steps:
    """The steps so far, in their order."""

    ends: list[StepEnd] = field(default_factory=list)
    after: Callable[[], None] | None = None
    """Is called after each step: the engine knows the worker's methods since its start, so that none of them
    can be replaced later."""

    def clear(self) -> None:
        """Forgets the steps so far."""
        self.ends.clear()

    def decode_ms(self, rows: int) -> float | None:
        """Median time between two decode steps of so many rows; ``None`` without any."""
        gaps = [
            after.at - before.at
            for before, after in zip(self.ends, self.ends[1:], strict=False)
            if before.rows == after.rows == before.tokens == after.tokens == rows
        ]
        return round(1e3 * statistics.median(gaps), 3) if gaps else None


@contextlib.contextmanager
def observed(
    model: Path | str,
    *,
    counting: bool = False,
    watch: Callable[[Worker], object] | None = None,
    **options: Any,
) -> Iterator[tuple[LLM, Worker, Steps]]:
    """An ``LLM``, by default of dummy weights, its worker and its steps; ``counting`` their tokens.

    ``watch`` gets the worker before the engine has bound its methods.
    """
    # With torch, which the measurement of a start is the first to import.
    from frizzen.worker import launch

    workers: list[Worker] = []
    steps = Steps()
    original = launch.build

    def build(*begun: Any) -> Worker:
        worker = original(*begun)
        collect = worker.collect
        counts: dict[int, Any] = {}

        def timed(index: int) -> None:
            collect(index)
            arena, now = worker._arenas[index], time.perf_counter()
            header, sampled = arena.header(), 0
            if counting:
                # By NumPy: with drafts the device waits meanwhile.
                if index not in counts:
                    counts[index] = arena.host.num_sampled.numpy()
                sampled = int(counts[index][: header.num_rows].sum())
            steps.ends.append(
                StepEnd(
                    now, header.num_rows, header.num_tokens, sampled, header.propose, bool(header.irregular)
                )
            )
            if steps.after is not None:
                steps.after()

        worker.collect = timed  # type: ignore[method-assign]
        if watch is not None:
            watch(worker)
        workers.append(worker)
        return worker

    launch.build = build  # type: ignore[assignment]
    try:
        usual = {"load_format": "dummy", "enable_prefix_caching": False}
        with LLM(str(model), **(usual | options)) as llm:
            yield llm, workers[0], steps
    finally:
        launch.build = original
        # The timed method refers to its worker, whose memory the next engine wants.
        for worker in workers:
            del worker.collect

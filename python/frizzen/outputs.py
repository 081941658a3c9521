"""What ``LLM`` returns, in the shape that users of vLLM know."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from frizzen._core import RequestOutput as CoreOutput
    from frizzen._core import TokenLogprob
    from frizzen.sampling import SamplingParams

__all__ = [
    "ClassificationOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "Logprob",
    "PoolingOutput",
    "PoolingRequestOutput",
    "RequestOutput",
    "ScoringOutput",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log-probability of one token at one position, of the raw logits."""

    logprob: float
    rank: int | None
    """1 = most likely; ``None`` of a listed token that is not among those asked for by rank."""
    decoded_token: str


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """What was generated for one prompt."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None
    """``stop`` or ``length``."""
    stop_reason: int | str | None
    """The stop string or stop token that matched; ``None`` for the model's own end of sequence."""
    logprobs: list[dict[int, Logprob]] | None
    """Per token: the token itself, then the alternatives, best first, then ``logprob_token_ids``."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """One prompt and what was generated for it."""

    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    """Per prompt token; the first has none, as nothing precedes it."""
    outputs: list[CompletionOutput]
    num_cached_tokens: int
    """Prompt tokens taken from the prefix cache."""
    speculation: dict[str, Any] | None = None
    """What drafts did, if the request spoke of them: ``drafts``, ``accepted``, ``saved_ms``, and steps by
    ``lengths`` and ``reasons``."""
    timings: dict[str, Any] = field(default_factory=dict)
    """Where the time went: ``queue_ms``, ``prefill_ms`` and ``decode_ms`` follow one another;
    ``lost_to_prefill_ms`` is a part of the last; ``prefill_tokens``, ``decode_tokens``, ``preemptions``."""

    @classmethod
    def of(
        cls, output: CoreOutput, prompt: str | None, decode: Callable[[int], str], params: SamplingParams
    ) -> RequestOutput:
        """The extension's output in this shape; ``decode`` gives the text of one token."""
        prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        if output.prompt_logprobs is not None:
            scores = output.prompt_logprobs
            prompt_logprobs = [None, *(_alternatives(entry, decode, len(entry.top)) for entry in scores)]
        logprobs = None
        if output.logprobs is not None:
            best = params.logprobs or 0
            logprobs = [_alternatives(entry, decode, best) for entry in output.logprobs]
        return cls(
            prompt=output.prompt if prompt is None else prompt,
            prompt_token_ids=output.prompt_token_ids,
            prompt_logprobs=prompt_logprobs,
            outputs=[
                CompletionOutput(
                    index=0,
                    text=output.text,
                    token_ids=output.token_ids,
                    finish_reason=output.finish_reason,
                    stop_reason=output.stop_reason,
                    logprobs=logprobs,
                )
            ],
            num_cached_tokens=output.cached_tokens,
            speculation=None if output.speculation_json is None else json.loads(output.speculation_json),
            timings=json.loads(output.timings_json),
        )


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """A text as a point in space."""

    embedding: list[float]


@dataclass(frozen=True, slots=True)
class PoolingOutput:
    """What ``LLM.encode`` returns of a text: a vector, or one of each of its tokens."""

    data: list[float] | list[list[float]]


@dataclass(frozen=True, slots=True)
class ClassificationOutput:
    """A probability per class, in the order of the model's labels."""

    probs: list[float]


@dataclass(frozen=True, slots=True)
class ScoringOutput:
    """How well two texts fit: a cross-encoder's judgement, or the cosine of their embeddings."""

    score: float


@dataclass(frozen=True, slots=True)
class PoolingRequestOutput(Generic[T]):
    """One text, or pair of texts, and what the model made of it."""

    outputs: T
    prompt_token_ids: list[int]


def _alternatives(entry: TokenLogprob, decode: Callable[[int], str], best: int) -> dict[int, Logprob]:
    """The token, its ``best`` alternatives, whose places are their ranks, and those that were listed."""
    ranked = {entry.token_id: Logprob(entry.logprob, entry.rank, decode(entry.token_id))}
    for rank, (token, logprob) in enumerate(entry.top, start=1):
        ranked.setdefault(token, Logprob(logprob, rank if rank <= best else None, decode(token)))
    return ranked

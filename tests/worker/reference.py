"""The sampler's contract as plain loops over one row: what the vectorised sampler is compared with."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Sampling parameters of one request, as the engine sends them."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    seed: int = 0
    logprobs: int = -1
    prompt_logprobs: int = -1
    min_tokens: int = 0
    bias: dict[int, float] = field(default_factory=dict)
    allowed: tuple[int, ...] = ()
    suppressed: tuple[int, ...] = ()
    scored: tuple[int, ...] = ()

    @property
    def has_penalty(self) -> bool:
        return (self.presence, self.frequency, self.repetition) != (0.0, 0.0, 1.0)


def adjusted_logits(
    logits: torch.Tensor, params: Params, prompt: Sequence[int], output: Sequence[int]
) -> list[float]:
    """Logits after rules and penalties, in float32."""
    values = [float(value) for value in logits]
    if params.allowed:
        values = [value if token in params.allowed else -math.inf for token, value in enumerate(values)]
    for token, bias in params.bias.items():
        values[token] += bias
    if len(output) < params.min_tokens:
        for token in params.suppressed:
            values[token] = -math.inf
    counts = Counter(output)
    for token in set(prompt) | set(output):
        value = values[token]
        value = value / params.repetition if value > 0 else value * params.repetition
        values[token] = value - params.frequency * counts[token] - params.presence * (counts[token] > 0)
    return torch.tensor(values, dtype=torch.float32).tolist()


def weights(adjusted: Sequence[float], params: Params) -> list[float]:
    """Unnormalised probabilities after temperature and filters; equal weights share their fate."""
    logits = torch.tensor(adjusted, dtype=torch.float32)
    scaled = (logits - logits.max()) / torch.tensor(params.temperature, dtype=torch.float32)
    values: list[float] = scaled.exp().tolist()
    floor = torch.tensor(params.min_p, dtype=torch.float32).item()
    values = [value if value >= floor else 0.0 for value in values]
    if params.top_k:
        last = sorted(values, reverse=True)[: params.top_k][-1]
        values = [value if value >= last else 0.0 for value in values]
    if params.top_p < 1:
        ordered = sorted(values, reverse=True)
        mass = math.fsum(ordered) * torch.tensor(params.top_p, dtype=torch.float32).item()
        reached = 0.0
        for value in ordered:
            reached += value
            if reached >= mass:
                values = [other if other >= value else 0.0 for other in values]
                break
    return values


def sample(
    logits: torch.Tensor, params: Params, prompt: Sequence[int], output: Sequence[int], uniform: float
) -> int:
    """The token for ``logits`` ``[V]`` at the draw ``uniform``."""
    adjusted = adjusted_logits(logits, params, prompt, output)
    if params.temperature == 0:
        return adjusted.index(max(adjusted))
    values = weights(adjusted, params)
    target = uniform * math.fsum(values)
    running = 0.0
    for token, value in enumerate(values):
        running += value
        if running > target:
            return token
    raise AssertionError(f"no token at {uniform} of {running}")


def logprob(
    logits: torch.Tensor, token: int, alternatives: int
) -> tuple[float, int, list[tuple[int, float]]]:
    """Log-probability and rank of ``token``, and the most likely alternatives, all of the raw logits."""
    values = [float(value) for value in logits]
    best = max(values)
    normaliser = best + math.log(math.fsum(math.exp(value - best) for value in values))
    order = sorted(range(len(values)), key=lambda other: (-values[other], other))
    rank = 1 + sum(value > values[token] for value in values)
    return (
        values[token] - normaliser,
        rank,
        [(other, values[other] - normaliser) for other in order[:alternatives]],
    )

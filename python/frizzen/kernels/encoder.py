"""Attention of an encoder: every token of a row sees every other one, and nothing is cached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from frizzen.kernels.facts import Facts, ShapeValue
from frizzen.kernels.plan import Candidate, Op, Reason
from frizzen.kernels.problem_inputs import Inputs, Run, paged_step
from frizzen.step import StepContext

__all__ = ["ATTENTION_ENCODER", "CANDIDATES", "SHAPES", "EncoderAttentionKernel", "runs"]


class EncoderAttentionKernel(Protocol):
    """See :data:`ATTENTION_ENCODER`."""

    def begin(self, step: StepContext) -> Any:
        """What all layers of a step share. Called once per step."""

    def attend(self, qkv: Tensor, state: Any) -> Tensor:
        """``[T, 3 * N * D]`` -> ``[T, N * D]``."""


ATTENTION_ENCODER: Op[EncoderAttentionKernel] = Op(
    "attention.encoder",
    ("heads", "head_dim"),
    """(qkv [T, 3 * N * D], state of this step) -> [T, N * D]. A row's tokens are the whole of its text, and
    each of them attends to all of them, itself included. Softmax in float32 over q.k / sqrt(D).""",
)


@dataclass(frozen=True, slots=True)
class _Reference:
    heads: int
    head_dim: int

    def begin(self, step: StepContext) -> list[int]:
        lengths: list[int] = step.query_start.diff().tolist()
        return lengths

    def attend(self, qkv: Tensor, state: list[int]) -> Tensor:
        parts = []
        for row in torch.split(qkv.float(), state):
            q, k, v = row.view(-1, 3, self.heads, self.head_dim).unbind(1)
            weights = torch.softmax(torch.einsum("tnd,jnd->ntj", q, k) * self.head_dim**-0.5, dim=-1)
            parts.append(torch.einsum("ntj,jnd->tnd", weights, v).flatten(1))
        return torch.cat(parts).to(qkv.dtype)


@dataclass(frozen=True, slots=True)
class _RowByRow:
    """One call per row: no padding, and on a CPU the row bounds cost nothing to read."""

    heads: int
    head_dim: int

    def begin(self, step: StepContext) -> list[int]:
        lengths: list[int] = step.query_start.diff().tolist()
        return lengths

    def attend(self, qkv: Tensor, state: list[int]) -> Tensor:
        out = torch.empty(len(qkv), self.heads * self.head_dim, dtype=qkv.dtype, device=qkv.device)
        for row, place in zip(torch.split(qkv, state), torch.split(out, state), strict=True):
            q, k, v = row.view(-1, 3, self.heads, self.head_dim).permute(1, 2, 0, 3).unsqueeze(1)
            attended = functional.scaled_dot_product_attention(q, k, v)
            place.view(-1, self.heads, self.head_dim).copy_(attended[0].transpose(0, 1))
        return out


@dataclass(frozen=True, slots=True)
class _Padding:
    """Where each token of a step stands in a batch padded to its longest row."""

    tokens: Tensor
    """``[B, L]``, index of each place's token; past a row's end any token."""
    mask: Tensor
    """``[B, 1, 1, L]``, true where a token is."""
    places: Tensor
    """``[T]``, index of each token's place in ``[B * L]``."""


@dataclass(frozen=True, slots=True)
class _Padded:
    """One call for all rows; nothing is read back from the device."""

    heads: int
    head_dim: int

    def begin(self, step: StepContext) -> _Padding:
        starts, length = step.query_start[:-1].long(), step.max_query
        column = torch.arange(length, device=starts.device)
        tokens = (starts.unsqueeze(1) + column).clamp_(max=step.num_tokens - 1)
        mask = column < step.query_start.diff().unsqueeze(1)
        token = torch.arange(step.num_tokens, device=starts.device)
        row = torch.searchsorted(step.query_start[1:], token.int(), right=True)
        return _Padding(tokens, mask[:, None, None, :], row * length + token - starts[row])

    def attend(self, qkv: Tensor, state: _Padding) -> Tensor:
        batch = torch.unflatten(qkv[state.tokens], -1, (3, self.heads, self.head_dim))
        q, k, v = batch.permute(2, 0, 3, 1, 4)
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=state.mask)
        return out.transpose(1, 2).flatten(2).flatten(0, 1).index_select(0, state.places)


def _on_cpu(facts: Facts) -> Reason | None:
    return None if facts.device == "cpu" else Reason("device", f"it is for cpu, this is {facts.device}")


def _anywhere(_: Facts) -> None:
    """Torch's operators serve every device and dtype here."""


def _sizes(facts: Facts) -> tuple[int, int]:
    return facts.size("heads"), facts.size("head_dim")


CANDIDATES = (
    Candidate(ATTENTION_ENCODER.name, "torch_rows", 20, _on_cpu, lambda facts: _RowByRow(*_sizes(facts))),
    Candidate(ATTENTION_ENCODER.name, "torch_padded", 10, _anywhere, lambda facts: _Padded(*_sizes(facts))),
    Candidate(ATTENTION_ENCODER.name, "reference", 0, _anywhere, lambda facts: _Reference(*_sizes(facts))),
)


def _problem(*lengths: int) -> Run:
    def run(kernel: Any, facts: Facts, inputs: Inputs) -> dict[str, Tensor]:
        step, _ = paged_step([(length, length) for length in lengths], 16, inputs.generator, inputs.device)
        qkv = inputs.normal(step.num_tokens, 3 * facts.size("heads") * facts.size("head_dim"))
        return {"out": kernel.attend(qkv, kernel.begin(step))}

    return run


def runs() -> Iterator[tuple[str, Run]]:
    """Labels and problems, for the conformance test."""
    yield "one token", _problem(1)
    yield "one row", _problem(37)
    yield "ragged rows", _problem(1, 1, 130, 2, 17)


SHAPES: tuple[Mapping[str, ShapeValue], ...] = tuple(
    {"heads": heads, "head_dim": dim} for heads, dim in ((12, 32), (3, 64), (5, 20))
)
"""Shapes for the conformance test."""

"""From what was sampled, verified and proposed to the result sections of an arena."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from frizzen.speculate.drafter import Proposed
from frizzen.speculate.verify import DraftRows, Verified
from frizzen.worker.arena import Results, Sections
from frizzen.worker.sampler import Sampled

__all__ = ["write", "write_proposed", "write_proposed_by_torch", "write_verified"]


def write_verified(sampled: Sampled, verified: Verified, out: Sections, drafts: DraftRows) -> Results:
    """Writes what counts for each row of ``drafts``."""
    width, rows = verified.tokens.shape[1], drafts.step_rows
    out.sampled[:, :width].index_copy_(0, rows, verified.tokens.int())
    out.num_sampled.index_copy_(0, rows, verified.num_sampled.int())
    out.row_status.index_copy_(0, rows, (verified.num_sampled == 0).int())
    if sampled.logprobs is None or sampled.scored is None:
        return Results(0)
    logprobs = sampled.logprobs
    # Flat over rows and their places; what does not count is written and never read.
    places = rows[drafts.owners] * out.sampled.shape[1] + drafts.offsets
    places = places[sampled.scored]
    alternatives = logprobs.top.shape[1]
    out.logprobs.view(-1).index_copy_(0, places, logprobs.chosen)
    out.ranks.view(-1).index_copy_(0, places, logprobs.ranks)
    out.top_tokens.flatten(0, 1)[:, :alternatives].index_copy_(0, places, logprobs.top_tokens)
    out.top_logprobs.flatten(0, 1)[:, :alternatives].index_copy_(0, places, logprobs.top)
    return Results.LOGPROBS


def write(sampled: Sampled, out: Sections, places: torch.Tensor | None) -> Results:
    """Writes what was sampled for the rows ``places`` of the step, or for all of them in order."""
    count = len(sampled.tokens)
    if places is None:
        out.sampled[:count, 0] = sampled.tokens
        out.num_sampled[:count] = sampled.finite
        torch.logical_not(sampled.finite, out=out.row_status[:count])
    else:
        num_sampled = sampled.finite.int()
        status = 1 - num_sampled
        out.sampled[:, 0].index_copy_(0, places, sampled.tokens.int())
        out.num_sampled.index_copy_(0, places, num_sampled)
        out.row_status.index_copy_(0, places, status)
    if sampled.logprobs is None or sampled.scored is None:
        return Results(0)
    scored = sampled.scored if places is None else places[sampled.scored]
    logprobs = sampled.logprobs
    alternatives = logprobs.top.shape[1]
    out.logprobs[:, 0].index_copy_(0, scored, logprobs.chosen)
    out.ranks[:, 0].index_copy_(0, scored, logprobs.ranks)
    out.top_tokens[:, 0, :alternatives].index_copy_(0, scored, logprobs.top_tokens)
    out.top_logprobs[:, 0, :alternatives].index_copy_(0, scored, logprobs.top)
    return Results.LOGPROBS


def write_proposed(proposed: Proposed, step_rows: torch.Tensor, out: Sections) -> None:
    """Writes the proposals for the step's rows ``step_rows`` ``[R]``, whose samples are written already."""
    if out.proposed.device.type == "cuda" and find_spec("triton") is not None:
        from frizzen.kernels.triton import drafts

        drafts.write_proposed(proposed, step_rows, out)
        return
    write_proposed_by_torch(proposed, step_rows, out)


def write_proposed_by_torch(proposed: Proposed, step_rows: torch.Tensor, out: Sections) -> None:
    """The same by torch's operators, on any device."""
    count = proposed.tokens.shape[1]
    # A row that failed has no next token to draft after.
    fine = out.num_sampled.index_select(0, step_rows) > 0
    out.num_proposed.index_copy_(0, step_rows, fine.int() * count)
    out.proposed[:, :count].index_copy_(0, step_rows, proposed.tokens.int())
    confidence = proposed.confidence
    if confidence is None:
        confidence = torch.full_like(proposed.tokens, torch.nan, dtype=torch.float32)
    out.proposed_confidence[:, :count].index_copy_(0, step_rows, confidence)

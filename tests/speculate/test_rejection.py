"""Verification of drawn drafts: the worked example, and the target's distribution whatever was drafted."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from frizzen.speculate.draws import Draw, derived
from frizzen.speculate.rejection import METHODS, Judged, one_hot, reject
from tests.speculate.chi_squared import assert_chi_squared

VOCAB = 6
TRIALS = 40_000


def uniforms(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def rows_of(rows: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(rows).repeat_interleave(width), torch.arange(width).repeat(rows)


def judge(p: torch.Tensor, q: torch.Tensor, drafts: torch.Tensor, method: str, seed: int = 0) -> Judged:
    """``p [R, W, V]``, ``q [R, W, V]``, ``drafts [R, W]``."""
    rows, width, vocab = p.shape
    draws = uniforms(rows * width, seed)
    owners, offsets = rows_of(rows, width)
    weights = p.reshape(-1, vocab).float() * 3
    tokens = torch.multinomial(weights, 1, generator=torch.Generator().manual_seed(seed + 1)).squeeze(1)
    judged = reject(
        weights,
        q.reshape(-1, vocab).float(),
        drafts.reshape(-1),
        tokens,
        draws,
        owners,
        offsets,
        shape=(rows, width),
        method=method,
    )
    return Judged(judged.tokens.view(rows, width), judged.accepted.view(rows, width))


def test_block_verification_of_the_worked_example() -> None:
    """Spec 1.6: pi[1] = .6, R[1] = .16, h[1] = .286, h[2] = 1: both drafts are always accepted."""
    p = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.1, 0.1, 0.8]])
    q = torch.tensor([[0.2, 0.5, 0.3], [0.3, 0.5, 0.2], [0.0, 0.0, 0.0]])
    drafts = torch.tensor([1, 2, -1])
    rows = 2000
    judged = judge(p.expand(rows, -1, -1), q.expand(rows, -1, -1), drafts.expand(rows, -1), "block")
    assert judged.accepted[:, :2].all()
    assert not judged.accepted[:, 2].any()
    # With the second draft taken away, the first is accepted with probability pi[1].
    alone = judge(
        p.expand(rows, -1, -1)[:, :2],
        q.expand(rows, -1, -1)[:, :2] * torch.tensor([[1.0], [0.0]]),
        torch.tensor([1, -1]).expand(rows, -1),
        "block",
    )
    assert abs(alone.accepted[:, 0].float().mean().item() - 0.6) < 3.3 * math.sqrt(0.24 / rows)
    # With a second draft that p dislikes, h[1] decides: (.6 * .6 - .2) / (.16 + 1 - .6).
    worse = judge(
        torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.0, 0.8], [0.1, 0.1, 0.8]]).expand(rows, -1, -1),
        q.expand(rows, -1, -1),
        torch.tensor([1, 1, -1]).expand(rows, -1),
        "block",
    )
    mass = 0.6 * 0.8 - 0.2
    wanted = mass / (mass + 0.4)
    assert abs(worse.accepted[:, 0].float().mean().item() - wanted) < 3.3 * math.sqrt(0.25 / rows)


def test_standard_rejection_accepts_with_the_ratio_of_the_probabilities() -> None:
    p, q = torch.tensor([[0.2, 0.8], [0.5, 0.5]]), torch.tensor([[0.6, 0.4], [0.0, 0.0]])
    for draft, chance in ((0, 1 / 3), (1, 1.0)):
        drafts = torch.tensor([draft, -1]).expand(6000, -1)
        judged = judge(p.expand(6000, -1, -1), q.expand(6000, -1, -1), drafts, "standard")
        assert abs(judged.accepted[:, 0].float().mean().item() - chance) < 0.02
        # Rejected, a draft is replaced by what q has too little of.
        assert (judged.tokens[:, 0][~judged.accepted[:, 0]] == 1).all()


def test_a_placeholder_is_never_accepted_and_its_replacement_is_of_p() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    rows = 6000
    q = torch.zeros(rows, 2, 3)
    for method in METHODS:
        judged = judge(p.expand(rows, -1, -1), q, torch.full((rows, 2), -1), method)
        assert not judged.accepted.any()
        counts = Counter(judged.tokens[:, 0].tolist())
        assert_chi_squared(counts, {0: rows * 0.5, 1: rows * 0.3, 2: rows * 0.2}, least_freedom=2)


def tables(depth: int, seed: int) -> list[torch.Tensor]:
    """Distributions after every prefix of up to ``depth`` tokens: ``[V ** i, V]`` each."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.softmax(torch.randn(VOCAB**length, VOCAB, generator=generator, dtype=torch.float64), -1)
        for length in range(depth + 1)
    ]


def walk(target: list[torch.Tensor], proposal: list[torch.Tensor], method: str, kind: str) -> Counter[tuple]:
    """Drafts two tokens in each of many rows, verifies, and fills up to three tokens from the target."""
    depth = len(target) - 1
    prefix = torch.zeros(TRIALS, dtype=torch.int64)
    ps, qs, drafts = [], [], []
    for place in range(depth):
        ps.append(target[place][prefix])
        q = proposal[place][prefix]
        if kind == "full":
            draws = derived(uniforms(TRIALS, seed=77), Draw.DRAFT, place)
            draft = (q.cumsum(1) < draws[:, None]).sum(1).clamp(max=VOCAB - 1)
            qs.append(q)
        else:
            draft = q.argmax(1)
            qs.append(one_hot(draft, VOCAB).double())
        drafts.append(draft)
        prefix = prefix * VOCAB + draft
    ps.append(target[depth][prefix])
    qs.append(torch.zeros(TRIALS, VOCAB, dtype=torch.float64))
    drafts.append(torch.full((TRIALS,), -1))
    judged = judge(torch.stack(ps, 1), torch.stack(qs, 1), torch.stack(drafts, 1), method, seed=5)
    accepted = judged.accepted.int().cumprod(1).sum(1)
    generator = torch.Generator().manual_seed(11)
    text = torch.zeros(TRIALS, dtype=torch.int64)
    for place in range(depth + 1):
        fresh = torch.multinomial(target[place][text], 1, generator=generator).squeeze(1)
        token = torch.where(place <= accepted, judged.tokens[:, place], fresh)
        text = text * VOCAB + token
    return Counter(text.tolist())


@pytest.mark.parametrize("kind", ["full", "one-hot"])
@pytest.mark.parametrize("method", METHODS)
def test_verified_text_has_the_distribution_of_direct_sampling(method: str, kind: str) -> None:
    """Chi-squared at 0.1 % over whole texts of three tokens, so that dependence between tokens shows too."""
    target, proposal = tables(2, seed=1), tables(2, seed=2)
    joint = target[0].flatten()
    for table in target[1:]:
        joint = (joint[:, None] * table).flatten()
    counts = walk(target, proposal, method, kind)
    assert_chi_squared(counts, {text: TRIALS * chance for text, chance in enumerate(joint.tolist())})


def test_block_verification_accepts_no_fewer_drafts_than_standard_rejection() -> None:
    rows = 20_000
    p = torch.softmax(torch.randn(1, 4, VOCAB, generator=torch.Generator().manual_seed(3)), -1)
    q = torch.softmax(torch.randn(1, 4, VOCAB, generator=torch.Generator().manual_seed(4)), -1)
    q[:, -1] = 0
    p, q = p.expand(rows, -1, -1), q.expand(rows, -1, -1)
    drafts = torch.stack(
        [
            torch.multinomial(q[:, i], 1, generator=torch.Generator().manual_seed(i)).squeeze(1)
            for i in range(3)
        ]
        + [torch.full((rows,), -1)],
        1,
    )
    lengths = {
        method: judge(p, q, drafts, method).accepted.int().cumprod(1).sum(1).double().mean().item()
        for method in METHODS
    }
    assert lengths["block"] > lengths["standard"] + 0.02


def test_derived_draws_are_uniform_and_independent_of_each_other() -> None:
    draws = uniforms(30_000)
    streams = [draws, *(derived(draws, purpose) for purpose in Draw), derived(draws, Draw.DRAFT, 1)]
    for stream in streams:
        assert stream.min() >= 0
        assert stream.max() < 1
        cells = torch.bincount((stream * 20).long(), minlength=20)
        assert_chi_squared(Counter(dict(enumerate(cells.tolist()))), dict.fromkeys(range(20), 1500.0))
    for i, one in enumerate(streams):
        for other in streams[i + 1 :]:
            assert abs(torch.corrcoef(torch.stack([one, other]))[0, 1]) < 0.02
            cells = torch.bincount((one * 5).long() * 5 + (other * 5).long(), minlength=25)
            assert_chi_squared(Counter(dict(enumerate(cells.tolist()))), dict.fromkeys(range(25), 1200.0))

"""How drafts are drawn, and that each is judged by the distribution that it was drawn from, or as certain."""

from __future__ import annotations

from collections import Counter

import torch

from frizzen.speculate.proposals import Chooser, Kept, greedy
from frizzen.speculate.rejection import one_hot
from frizzen.speculate.verify import DraftRows
from tests.speculate.chi_squared import assert_chi_squared

VOCAB = 12
CPU = torch.device("cpu")


def logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(seed)).expand(rows, -1).clone()


def chooser(rows: int, temperature: float, count: int = 2) -> Chooser:
    draws = torch.rand(rows, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    kept = Kept.empty(rows, count, VOCAB, "standard", CPU)
    return Chooser(kept, torch.arange(rows), torch.full((rows,), temperature), draws)


def test_drafts_are_drawn_at_the_rows_temperature_and_independently_by_place() -> None:
    rows, choose = 20_000, chooser(20_000, 0.7)
    first, second = choose(logits(rows), 0), choose(logits(rows, seed=1), 1)
    chances = [torch.softmax(logits(1, seed=seed)[0] / 0.7, 0).double() for seed in (0, 1)]
    joint = {(a, b): rows * float(chances[0][a] * chances[1][b]) for a in range(VOCAB) for b in range(VOCAB)}
    assert_chi_squared(Counter(zip(first.tolist(), second.tolist(), strict=True)), joint)
    torch.testing.assert_close(choose.kept.q[5, 1].double(), chances[1], atol=1e-6, rtol=1e-5)
    assert choose.kept.tokens[:, 0].equal(first)


def test_a_row_at_temperature_0_drafts_its_likeliest_token() -> None:
    choose = chooser(3, 0.0)
    assert choose(logits(3), 0).equal(greedy(logits(3), 0))


def test_a_vocabulary_of_its_own_is_mapped_and_nothing_else_is_drawn() -> None:
    ids = torch.tensor([3, 7, 8])
    choose = chooser(500, 1.0)
    own = logits(500)[:, :3]
    assert set(choose(own, 0, ids).tolist()) == {3, 7, 8}
    assert choose.kept.q[:, 0].nonzero()[:, 1].unique().tolist() == [3, 7, 8]
    assert greedy(own, 0, ids).tolist() == [int(ids[int(own[0].argmax())])] * 500


def test_drafts_are_judged_by_what_they_were_drawn_from_and_others_as_certain() -> None:
    kept = Kept.empty(3, 3, VOCAB, "standard", CPU)
    kept.tokens[:] = torch.tensor([4, 5, 6])
    kept.q.uniform_(generator=torch.Generator().manual_seed(1))
    # Row 0 has its own drafts, row 1 another one in the middle, row 2 fewer.
    drafts = [[4, 5, 6], [4, 9, 6], [4]]
    ids = torch.tensor([1, *drafts[0], 1, *drafts[1], 1, *drafts[2]])
    counts = [len(row) for row in drafts]
    rows = DraftRows.of(range(3), counts, torch.arange(len(ids)), ids)
    row_index = torch.tensor([0] * 4 + [1] * 4 + [2] * 2)
    q = kept.judge(rows, row_index).q
    assert q[0:3].equal(kept.q[0])
    assert q[4].equal(kept.q[1, 0])
    assert q[5:7].equal(one_hot(torch.tensor([9, 6]), VOCAB))
    assert q[8].equal(kept.q[2, 0])
    assert not q[[3, 7, 9]].any()
    kept.forget(torch.tensor([0]))
    assert kept.judge(rows, row_index).q[0:3].equal(one_hot(torch.tensor(drafts[0]), VOCAB))

"""Pearson's test, as the tests of sampling use it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping


def assert_chi_squared(
    counts: Counter[Hashable], means: Mapping[Hashable, float], least_freedom: int = 4
) -> None:
    """Fails if ``counts`` have a chance below 0.1 % under the expected ``means``."""
    # Rare outcomes are pooled, since the statistic needs a few of each.
    rare = [outcome for outcome, mean in means.items() if mean < 5]
    cells = [(counts[outcome], mean) for outcome, mean in means.items() if mean >= 5]
    if rare:
        cells.append((sum(counts[o] for o in rare), math.fsum(means[o] for o in rare)))
    statistic = math.fsum((n - mean) ** 2 / mean for n, mean in cells)
    freedom = len(cells) - 1
    assert freedom >= least_freedom
    # Wilson-Hilferty approximation of the 99.9 % quantile.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit

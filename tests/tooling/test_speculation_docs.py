"""The documentation's table of drafters is the one that refuses combinations."""

from __future__ import annotations

import json
from itertools import product

import pytest

from frizzen import ConfigError
from frizzen.config import DRAFTERS
from frizzen.speculate.compatibility import compatibility, require
from tools.speculation_docs import PAGE, TABLE, page


def test_the_page_is_what_the_table_says() -> None:
    text = PAGE.read_text()
    assert page(text, json.loads(TABLE.read_text())) == text, "python -m tools.speculation_docs"


def test_a_change_of_the_table_makes_the_page_stale() -> None:
    data = json.loads(TABLE.read_text())
    data["rules"][0]["why"] = "it was changed"
    assert page(PAGE.read_text(), data) != PAGE.read_text()


def test_rules_are_about_drafters_and_features_that_exist_and_do_not_contradict_each_other() -> None:
    table = compatibility()
    assert tuple(table.drafters) == tuple(drafter for drafter in DRAFTERS if drafter)
    seen = set()
    for rule in table.rules:
        assert rule.verdict in ("refused", "limited")
        assert (rule.verdict == "refused") == (rule.instead is not None)
        pairs = set(product(rule.drafters, [rule.feature]))
        assert not pairs & seen
        assert set(rule.drafters) <= set(table.drafters)
        assert rule.feature in table.features
        seen |= pairs


def test_what_is_refused_is_refused_with_a_way_out_and_everything_else_passes() -> None:
    with pytest.raises(ConfigError, match=r"eagle3 with target without taps: .*; possible is drafter suffix"):
        require("eagle3", "target without taps")
    require("dspark", "prefix caching")
    require("mtp", "prefix caching")
    with pytest.raises(KeyError, match="knows no 'medusa'"):
        require("medusa", "prefix caching")

"""Which drafter goes with what: one table, which the options of both languages and the documentation read.

What the table does not name is supported without reservation. A combination is ``refused`` with the nearest
legal configuration, or ``limited`` with what to expect of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from frizzen.errors import ConfigError

__all__ = ["Compatibility", "Rule", "compatibility", "require", "way_out"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A reservation about some drafters with one feature."""

    drafters: tuple[str, ...]
    feature: str
    verdict: str
    """``refused`` or ``limited``."""
    why: str
    instead: str | None = None
    """The nearest legal configuration of what is refused."""


@dataclass(frozen=True, slots=True)
class Compatibility:
    """The table."""

    features: MappingProxyType[str, str]
    """Name of each feature and what it is, in the order of the documentation."""
    drafters: MappingProxyType[str, str]
    """The same for drafters."""
    rules: tuple[Rule, ...]

    def rule(self, drafter: str, feature: str) -> Rule | None:
        """What there is to say about the two together; ``KeyError`` if one of them is unknown."""
        if drafter not in self.drafters or feature not in self.features:
            raise KeyError(f"the table of drafters knows no {drafter!r} with {feature!r}")
        matching = (rule for rule in self.rules if rule.feature == feature and drafter in rule.drafters)
        return next(matching, None)


@cache
def compatibility() -> Compatibility:
    """The table as it is shipped."""
    data = json.loads(files("frizzen.speculate").joinpath("compatibility.json").read_text())
    rules = (Rule(**(rule | {"drafters": tuple(rule["drafters"])})) for rule in data["rules"])
    return Compatibility(MappingProxyType(data["features"]), MappingProxyType(data["drafters"]), tuple(rules))


def way_out(drafter: str, feature: str) -> str:
    """The nearest legal configuration of what is refused, as the end of a sentence."""
    rule = compatibility().rule(drafter, feature)
    return "" if rule is None or rule.instead is None else f"; possible is {rule.instead}"


def require(drafter: str, feature: str) -> None:
    """Raises ``ConfigError``, which names the nearest legal configuration, if the two do not go together."""
    rule = compatibility().rule(drafter, feature)
    if rule is not None and rule.verdict == "refused":
        raise ConfigError(f"drafter {drafter} with {feature}: {rule.why}; possible is {rule.instead}")

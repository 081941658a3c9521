"""How tokens are chosen and when to stop: the library's view of one request's parameters."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

__all__ = ["SamplingParams", "StructuredOutputsParams"]

MAX_SEED = 2**64 - 1
MAX_COUNT = 2**32 - 1
"""What the engine counts tokens in."""


STRUCTURED_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """What the text of one request must satisfy: exactly one of the first six fields.

    It is enforced on every token, or the request fails with a reason; the text ends where it is complete.
    """

    json: str | Mapping[str, Any] | bool | None = None
    """A JSON schema, as an object or as text; keys come in the schema's order."""
    json_object: bool = False
    """Any JSON object."""
    regex: str | None = None
    """A regular expression that matches the whole text, in the dialect of Rust's ``regex`` crate."""
    choice: Iterable[str] | None = None
    """Texts of which the output is one; kept as a tuple."""
    grammar: str | None = None
    """A grammar in Lark's notation, with the rule ``start``, or in EBNF, with ``root ::=``."""
    structural_tag: str | Mapping[str, Any] | None = None
    """Free text with constrained parts, in the form that vLLM and xgrammar take."""
    whitespace_pattern: str | None = None
    """What may stand between the tokens of JSON, as a regular expression; by default one space, or a line
    break and a bounded indentation."""
    disable_any_whitespace: bool = False
    """Compact JSON."""
    lenient: bool = False
    """Drop the keywords of a schema that cannot be enforced instead of refusing them."""

    def __post_init__(self) -> None:
        if self.choice is not None:
            if isinstance(self.choice, str):
                raise TypeError(f"choice must be a list of strings, got {self.choice!r}")
            object.__setattr__(self, "choice", tuple(self.choice))
        kinds = [
            name
            for name in STRUCTURED_KINDS
            if (value := getattr(self, name)) is not None and (name == "json" or value is not False)
        ]
        if len(kinds) != 1:
            found = " and ".join(kinds) or "none"
            raise ValueError(f"exactly one of {', '.join(STRUCTURED_KINDS)} must be given, got {found}")

    def to_dict(self) -> dict[str, Any]:
        """The fields that are set, as the engine reads them."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: value
            for name, value in values.items()
            if value is not None and (name == "json" or value is not False)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling and stopping of one request, under the names that vLLM uses.

    Values are checked on construction: a ``TypeError`` or ``ValueError`` names the field, the value and the
    limit. What depends on the model (token ids, number of alternatives, context length) is checked when a
    request is made.
    """

    n: int = 1
    """Completions per prompt; only 1 is supported."""
    max_tokens: int | None = 16
    """Most tokens to generate; ``None`` is as many as fit the context."""
    min_tokens: int = 0
    """No stop token and no end-of-sequence token is sampled before this many tokens."""
    temperature: float = 1.0
    """0 is greedy; then ``top_p``, ``top_k``, ``min_p`` and ``seed`` have no effect."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this; in ``(0, 1]``."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 or -1 is off."""
    min_p: float = 0.0
    """Keep tokens at least this fraction as likely as the best; in ``[0, 1]``."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens that occur in the output; in ``[-2, 2]``."""
    frequency_penalty: float = 0.0
    """Subtracted per occurrence in the output; in ``[-2, 2]``."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output; above 0, 1 is off."""
    seed: int | None = None
    """Same seed, same text, whatever else is in the batch; ``None`` draws one."""
    stop: str | Iterable[str] | None = None
    """Strings that end the request; kept as a tuple."""
    stop_token_ids: Iterable[int] | None = None
    """Tokens that end the request besides the model's end-of-sequence tokens; kept as a tuple."""
    bad_words: Iterable[str] | None = None
    """Texts that the output may not hold, at the beginning of a text or after a space; kept as a tuple."""
    include_stop_str_in_output: bool = False
    """Keep the stop string that matched at the end of the text."""
    ignore_eos: bool = False
    """Do not stop at the model's end-of-sequence tokens."""
    logprobs: int | None = None
    """Return log-probabilities with this many alternatives per generated token; 0 is the token's own alone.
    """
    logprob_token_ids: Iterable[int] | None = None
    """Tokens whose log-probabilities are returned at every generated token too; kept as a tuple."""
    prompt_logprobs: int | None = None
    """The same for prompt tokens."""
    logit_bias: Mapping[int, float] | None = None
    """Added to the logit of a token; in ``[-100, 100]``."""
    allowed_token_ids: Iterable[int] | None = None
    """Only these tokens may be generated; kept as a tuple."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    speculation: str | Mapping[str, int] | None = None
    """Drafts: ``"off"``, ``"auto"`` or ``{"max_tokens": k}``; ``None`` is the engine's default. Never changes
    which tokens come."""
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = None
    """What the text must satisfy; a mapping has the fields of ``StructuredOutputsParams``."""

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_lengths()
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise TypeError(f"{name} must be a bool, got {value!r}")
        if isinstance(self.structured_outputs, Mapping):
            self._set("structured_outputs", StructuredOutputsParams(**self.structured_outputs))
        elif not isinstance(self.structured_outputs, StructuredOutputsParams | None):
            raise TypeError(
                f"structured_outputs must be StructuredOutputsParams, got {self.structured_outputs!r}"
            )
        self._set("stop", _strings("stop", self.stop))
        self._set("bad_words", _strings("bad_words", self.bad_words))
        self._set("stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids or ()))
        scored = _token_ids("logprob_token_ids", self.logprob_token_ids or ())
        self._set("logprob_token_ids", tuple(dict.fromkeys(scored)))
        if self.allowed_token_ids is not None:
            allowed = _token_ids("allowed_token_ids", self.allowed_token_ids)
            if not allowed:
                raise ValueError("allowed_token_ids must not be empty")
            self._set("allowed_token_ids", allowed)
        if self.speculation is not None:
            self._set("speculation", _speculation(self.speculation))
        if self.logit_bias is not None:
            self._set("logit_bias", _logit_bias(self.logit_bias))

    def to_json(self) -> str:
        """The parameters as the engine reads them."""
        structured = self.structured_outputs
        values = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": max(self.top_k, 0),
            "min_p": self.min_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
            "seed": self.seed,
            "max_tokens": self.max_tokens,
            "min_tokens": self.min_tokens,
            "stop_token_ids": self.stop_token_ids,
            "ignore_eos": self.ignore_eos,
            "logprobs": self.logprobs,
            "logprob_token_ids": self.logprob_token_ids,
            "prompt_logprobs": self.prompt_logprobs,
            "logit_bias": list((self.logit_bias or {}).items()),
            "allowed_token_ids": self.allowed_token_ids,
            "stop": self.stop,
            "bad_words": self.bad_words,
            "include_stop_str_in_output": self.include_stop_str_in_output,
            "skip_special_tokens": self.skip_special_tokens,
            "speculation": self.speculation,
            "structured_outputs": (
                structured.to_dict() if isinstance(structured, StructuredOutputsParams) else None
            ),
        }
        return json.dumps(values)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_numbers(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            self._set(name, _number(name, getattr(self, name), -2.0, 2.0))
        self._set("min_p", _number("min_p", self.min_p, 0.0, 1.0))
        for name, most, wanted in (
            ("temperature", math.inf, "0 or greater and finite"),
            ("top_p", 1.0, "in (0, 1]"),
            ("repetition_penalty", math.inf, "greater than 0 and finite"),
        ):
            value = _number(name, getattr(self, name))
            least = value >= 0 if name == "temperature" else value > 0
            if not (least and value <= most and math.isfinite(value)):
                raise ValueError(f"{name} must be {wanted}, got {value}")
            self._set(name, value)

    def _check_lengths(self) -> None:
        for name, least, most in (
            ("n", 1, None),
            ("min_tokens", 0, MAX_COUNT),
            ("top_k", -1, MAX_COUNT),
            ("max_tokens", 1, MAX_COUNT),
            ("seed", 0, MAX_SEED),
            ("logprobs", 0, MAX_COUNT),
            ("prompt_logprobs", 0, MAX_COUNT),
        ):
            value = getattr(self, name)
            optional = name in ("max_tokens", "seed", "logprobs", "prompt_logprobs")
            if value is not None or not optional:
                self._set(name, _integer(name, value, least, most))
        if self.n != 1:
            raise ValueError(f"n must be 1, got {self.n}: give the prompt as often as completions are wanted")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens must not exceed max_tokens, got {self.min_tokens} over {self.max_tokens}"
            )


def _number(name: str, value: object, least: float = -math.inf, most: float = math.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    number = float(value)
    # A NaN fails both comparisons.
    if math.isfinite(least) and not least <= number <= most:
        raise ValueError(f"{name} must be in [{least:g}, {most:g}], got {number}")
    return number


def _integer(name: str, value: object, least: int, most: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    number = int(value)
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    if most is not None and number > most:
        raise ValueError(f"{name} must be at most {most}, got {number}")
    return number


def _token_ids(name: str, ids: object) -> tuple[int, ...]:
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise TypeError(f"{name} must be a list of token ids, got {ids!r}")
    return tuple(_integer(f"{name}[{index}]", token, 0) for index, token in enumerate(ids))


def _strings(name: str, value: object) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else () if value is None else value
    if not isinstance(strings, Iterable):
        raise TypeError(f"{name} must be a string or a list of strings, got {value!r}")
    strings = tuple(strings)
    for index, string in enumerate(strings):
        if not isinstance(string, str):
            raise TypeError(f"{name}[{index}] must be a string, got {string!r}")
        # An empty string would match before the first token.
        if not string:
            raise ValueError(f"{name}[{index}] must not be an empty string")
    return strings


def _speculation(wish: object) -> str | dict[str, int]:
    if wish == "off" or wish == "auto":  # noqa: PLR1714 - a tuple of strings would not narrow the type
        return str(wish)
    if isinstance(wish, Mapping) and set(wish) == {"max_tokens"}:
        return {"max_tokens": _integer("speculation.max_tokens", wish["max_tokens"], 1)}
    raise ValueError(f'speculation must be "off", "auto" or {{"max_tokens": k}}, got {wish!r}')


def _logit_bias(bias: object) -> dict[int, float]:
    if not isinstance(bias, Mapping):
        raise TypeError(f"logit_bias must map token ids to numbers, got {bias!r}")
    return {
        _integer("logit_bias", token, 0): _number(f"logit_bias[{token}]", value, -100.0, 100.0)
        for token, value in bias.items()
    }

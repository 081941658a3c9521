"""SamplingParams: what is refused and how, and what the engine is told."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest

from frizzen import SamplingParams


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", -0.1, "temperature must be 0 or greater and finite, got -0.1"),
        ("temperature", math.nan, "temperature must be 0 or greater and finite, got nan"),
        ("temperature", math.inf, "temperature must be 0 or greater and finite, got inf"),
        ("top_p", 0.0, r"top_p must be in \(0, 1\], got 0.0"),
        ("top_p", 1.01, r"top_p must be in \(0, 1\], got 1.01"),
        ("top_p", math.nan, r"top_p must be in \(0, 1\], got nan"),
        ("top_k", -2, "top_k must be at least -1, got -2"),
        ("min_p", 1.5, r"min_p must be in \[0, 1\], got 1.5"),
        ("presence_penalty", 2.1, r"presence_penalty must be in \[-2, 2\], got 2.1"),
        ("frequency_penalty", math.nan, r"frequency_penalty must be in \[-2, 2\], got nan"),
        ("repetition_penalty", 0.0, "repetition_penalty must be greater than 0 and finite, got 0.0"),
        ("max_tokens", 0, "max_tokens must be at least 1, got 0"),
        ("max_tokens", -3, "max_tokens must be at least 1, got -3"),
        ("max_tokens", 2**32, "max_tokens must be at most 4294967295, got 4294967296"),
        ("top_k", 2**40, "top_k must be at most 4294967295, got 1099511627776"),
        ("min_tokens", 17, "min_tokens must not exceed max_tokens, got 17 over 16"),
        ("n", 4, "n must be 1, got 4"),
        ("seed", -1, "seed must be at least 0, got -1"),
        ("seed", 2**64, "seed must be at most 18446744073709551615"),
        ("logprobs", -1, "logprobs must be at least 0, got -1"),
        ("stop_token_ids", [3, -1], r"stop_token_ids\[1\] must be at least 0, got -1"),
        ("logit_bias", {5: 101.0}, r"logit_bias\[5\] must be in \[-100, 100\], got 101.0"),
        ("allowed_token_ids", [], "allowed_token_ids must not be empty"),
    ],
)
def test_a_value_out_of_range_is_refused_with_field_value_and_limit(
    field: str, value: object, message: str
) -> None:
    changes: dict[str, Any] = {field: value}
    with pytest.raises(ValueError, match=message):
        SamplingParams(**changes)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "0.7"),
        ("max_tokens", 3.0),
        ("max_tokens", True),
        ("top_k", None),
        ("ignore_eos", 1),
        ("stop", 7),
        ("stop", ["a", 7]),
        ("bad_words", ["a", 7]),
        ("stop_token_ids", "12"),
        ("logit_bias", [(1, 2.0)]),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_name(field: str, value: object) -> None:
    changes: dict[str, Any] = {field: value}
    with pytest.raises(TypeError, match=field):
        SamplingParams(**changes)


@pytest.mark.parametrize("stop", ["", [""], ["ok", ""]])
def test_an_empty_stop_string_is_refused_sglang_38712(stop: str | list[str]) -> None:
    with pytest.raises(ValueError, match=r"stop\[\d\] must not be an empty string"):
        SamplingParams(stop=stop)
    with pytest.raises(ValueError, match=r"bad_words\[\d\] must not be an empty string"):
        SamplingParams(bad_words=stop)


def test_defaults_are_those_of_vllm() -> None:
    params = SamplingParams()
    assert (params.temperature, params.max_tokens, params.top_k, params.top_p) == (1.0, 16, 0, 1.0)
    assert params.stop == params.stop_token_ids == ()


def test_the_engine_is_told_every_field_in_its_own_form() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5),
        top_k=-1,
        max_tokens=None,
        seed=np.int64(3),
        stop="end",
        bad_words=["bad", " worse"],
        stop_token_ids=range(2),
        logit_bias={7: 1},
        logprob_token_ids=[9, 2, 9],
        include_stop_str_in_output=True,
    )
    assert json.loads(params.to_json()) == {
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "seed": 3,
        "max_tokens": None,
        "min_tokens": 0,
        "stop_token_ids": [0, 1],
        "ignore_eos": False,
        "logprobs": None,
        "logprob_token_ids": [9, 2],
        "prompt_logprobs": None,
        "logit_bias": [[7, 1.0]],
        "allowed_token_ids": None,
        "stop": ["end"],
        "bad_words": ["bad", " worse"],
        "include_stop_str_in_output": True,
        "skip_special_tokens": True,
        "structured_outputs": None,
        "speculation": None,
    }


def test_parameters_are_frozen_and_replaced_with_the_same_checks() -> None:
    params = SamplingParams(stop=["a"])
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.top_k = 3  # type: ignore[misc]
    assert dataclasses.replace(params, top_k=3).stop == ("a",)
    with pytest.raises(ValueError, match="top_p"):
        dataclasses.replace(params, top_p=2.0)

"""Speculation in the library: the same tokens with every drafter and length, and what requests are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from frizzen import LLM, ConfigError, RequestError, RequestOutput, SamplingParams
from tests.conftest import CheckpointMaker, needs_smollm2

SMALL = {"dtype": "float32", "device": "cpu", "kv_cache_memory": 2**26, "num_threads": 1}
NO_CACHE = {"speculation_cache": "off"}
SPECULATIONS: list[dict[str, Any]] = [
    {"drafter": drafter, "speculation": speculation, **NO_CACHE}
    for drafter in ("ngram", "suffix")
    for speculation in (1, 3, 16, "auto")
]


def mixed_params(count: int) -> list[SamplingParams]:
    """Greedy and random requests, with every feature that looks at logits."""
    base: dict[str, Any] = {"max_tokens": 48, "ignore_eos": True}
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0, "logprobs": 3},
        {"temperature": 0, "frequency_penalty": 0.7, "repetition_penalty": 1.2},
        {"temperature": 0.7, "seed": 3},
        {"temperature": 1.2, "seed": 4, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
        {"temperature": 0.3, "seed": 5, "presence_penalty": 0.5, "logit_bias": {7: 3.0}},
        {"temperature": 0, "min_tokens": 40},
        {"temperature": 0, "speculation": "off"},
    ]
    return [SamplingParams(**{**base, **kinds[index % len(kinds)]}) for index in range(count)]


def assert_same(outputs: list[RequestOutput], wanted: list[RequestOutput], about: object) -> None:
    """Equal tokens; equal log-probabilities but for the rounding of another batch shape."""
    for output, other in zip(outputs, wanted, strict=True):
        one, two = output.outputs[0], other.outputs[0]
        assert (one.token_ids, one.finish_reason) == (two.token_ids, two.finish_reason), about
        assert (one.logprobs is None) == (two.logprobs is None)
        for place, expected in zip(one.logprobs or [], two.logprobs or [], strict=True):
            values = {token: entry.logprob for token, entry in expected.items()}
            assert {token: entry.logprob for token, entry in place.items()} == pytest.approx(values, abs=1e-4)


def test_logprobs_are_those_of_no_speculation_llama_cpp_27972(tiny_checkpoint: CheckpointMaker) -> None:
    path = str(tiny_checkpoint("llama"))
    params = SamplingParams(
        temperature=0, max_tokens=32, logprobs=3, logprob_token_ids=[40, 90], ignore_eos=True
    )
    prompts = [[(7 * i) % 5 + 40 for i in range(40)]]
    with LLM(path, **SMALL) as llm:
        wanted = llm.generate(prompts, params)
    with LLM(path, **SMALL, drafter="ngram", speculation=4) as llm:
        outputs = llm.generate(prompts, params)
    assert_same(outputs, wanted, "ngram")
    values = [entry.logprob for place in outputs[0].outputs[0].logprobs or [] for entry in place.values()]
    assert len(values) >= 32 * 3
    assert len(set(values)) > 32


def test_every_drafter_and_length_gives_the_tokens_of_no_speculation(
    tiny_checkpoint: CheckpointMaker,
) -> None:
    path = str(tiny_checkpoint("llama"))
    prompts = [[(5 * i + j * j) % 11 + 30 for j in range(12 + 3 * i)] for i in range(8)]
    params = mixed_params(8)
    with LLM(path, **SMALL) as llm:
        wanted = llm.generate(prompts, params)
    for options in SPECULATIONS:
        with LLM(path, **SMALL, **options) as llm:
            assert_same(llm.generate(prompts, params), wanted, options)
            alone = [llm.generate([prompt], p)[0] for prompt, p in zip(prompts, params, strict=True)]
            assert_same(alone, wanted, (options, "alone"))


@needs_smollm2
@pytest.mark.parametrize("options", SPECULATIONS[1::2])
def test_recorded_greedy_tokens_come_with_drafts_too(
    options: dict[str, Any], smollm2: Path, smollm2_references: list[dict[str, Any]]
) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=64, speculation={"max_tokens": 4})
    with LLM(str(smollm2), **{**SMALL, "kv_cache_memory": 2**28}, **options) as llm:
        outputs = llm.generate([reference["prompt_ids"] for reference in smollm2_references], greedy)
    for reference, output in zip(smollm2_references, outputs, strict=True):
        assert output.outputs[0].token_ids == reference["output_ids"], reference["name"]
    assert any(output.speculation and output.speculation["drafts"] for output in outputs)


def test_a_request_that_speaks_of_speculation_is_told_what_came_of_it(
    tiny_checkpoint: CheckpointMaker,
) -> None:
    with LLM(str(tiny_checkpoint("llama")), **SMALL, **NO_CACHE, drafter="ngram") as llm:
        wish = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, speculation={"max_tokens": 4})
        (output,) = llm.generate([[40, 41] * 10], wish)
        usage = output.speculation
        assert usage is not None
        assert 0 <= usage["accepted"] <= usage["drafts"]
        assert sum(usage["lengths"].values()) == sum(usage["reasons"].values()) <= 20
        assert usage["drafts"] == sum(int(length) * steps for length, steps in usage["lengths"].items())


def test_forced_acceptance_gives_its_tokens_per_step(tiny_checkpoint: CheckpointMaker) -> None:
    options = {"drafter": "ngram", "speculation": 4, "spec_synthetic_acceptance": 3.0, **NO_CACHE}
    with LLM(str(tiny_checkpoint("llama")), **SMALL, **options) as llm:
        wish = SamplingParams(temperature=0, max_tokens=31, ignore_eos=True, speculation={"max_tokens": 4})
        (output,) = llm.generate([[40]], wish)
    assert output.speculation is not None
    # The prefill gives one token, ten steps three each.
    assert output.speculation["accepted"] == 20
    assert sum(output.speculation["lengths"].values()) == 11


def test_what_cannot_be_is_refused(tiny_checkpoint: CheckpointMaker) -> None:
    path = str(tiny_checkpoint("llama"))
    for options, message in (
        ({"speculation": "auto"}, "speculation needs a drafter"),
        (
            {"speculative_config": '{"method": "eagle3", "num_speculative_tokens": 2}'},
            "eagle3=PATH, or drafter suffix",
        ),
        ({"drafter": "medusa"}, "drafter must be one of"),
    ):
        with pytest.raises(ConfigError, match=message):
            LLM(path, **SMALL, **options)
    with LLM(path, **SMALL) as llm, pytest.raises(RequestError, match="needs a drafter"):
        llm.generate([[1]], SamplingParams(speculation="auto"))
    with pytest.raises(ValueError, match='speculation must be "off", "auto" or'):
        SamplingParams(speculation="on")


@pytest.mark.parametrize("drafter", ["ngram", "suffix"])
def test_forced_drafts_are_there_where_nothing_repeats_and_differ_as_text_does(
    tiny_checkpoint: CheckpointMaker, drafter: str
) -> None:
    """A model of experts would read fewer weights for one token again and again."""
    options: dict[str, Any] = {**SMALL, **NO_CACHE, "drafter": drafter, "spec_synthetic_acceptance": 4.0}
    with LLM(str(tiny_checkpoint("llama")), **options) as llm:
        assert (llm.speculation["drafter"], llm.speculation["synthetic"]) == (drafter, True)
        params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True, speculation={"max_tokens": 3})
        (output,) = llm.generate([list(range(40, 60))], params)
        totals = llm.speculation["totals"]
    assert totals["accepted"] == totals["drafts"] >= 45
    assert len(set(output.outputs[0].token_ids)) > 24

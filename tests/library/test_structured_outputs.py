"""Constrained outputs of real models: valid by the ``jsonschema`` package, or refused with a reason."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from frizzen import LLM, RequestError, RequestOutput, SamplingParams, StructuredOutputsParams
from tests.conftest import CheckpointMaker, needs_smollm2

SCHEMAS: dict[str, Any] = {
    "boolean": {"type": "boolean"},
    "enum": {"enum": ["red", "green", 7, None, {"a": [1, 2]}]},
    "number": {"type": "number", "minimum": -1, "exclusiveMaximum": 2.5},
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 700},
    "pattern": {"type": "string", "pattern": "^[A-Z][a-z]{2,6}$"},
    "date": {"type": "string", "format": "date"},
    "lengths": {"type": "string", "minLength": 3, "maxLength": 6, "pattern": "^[a-z]+$"},
    "object": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "height": {"type": ["integer", "null"], "minimum": 20, "maximum": 300},
        },
        "required": ["name", "age", "height"],
        "additionalProperties": False,
    },
    "array": {
        "type": "array",
        "items": {"anyOf": [{"type": "boolean"}, {"enum": ["x", "y"]}]},
        "minItems": 2,
        "maxItems": 4,
    },
    "tuple": {"type": "array", "prefixItems": [{"type": "null"}, {"type": "boolean"}], "items": False},
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9, "minimum": 0}}},
            {"required": ["a"], "additionalProperties": True, "properties": {"b": {"enum": [1]}}},
            {"properties": {"a": True, "b": True}, "additionalProperties": False},
        ]
    },
    "tree": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "v": {"type": "integer", "minimum": 0, "maximum": 9},
                    "next": {"anyOf": [{"type": "null"}, {"enum": ["end"]}]},
                },
                "required": ["v", "next"],
                "additionalProperties": False,
            }
        },
        "type": "array",
        "items": {"$ref": "#/$defs/node"},
        "minItems": 1,
        "maxItems": 2,
    },
}


def constrained(schema: Any, **changes: Any) -> SamplingParams:
    options = {"temperature": 1.0, "max_tokens": 500, "seed": 1} | changes
    return SamplingParams(structured_outputs=StructuredOutputsParams(json=schema), **options)


def assert_valid(schema: Any, output: RequestOutput) -> None:
    completion = output.outputs[0]
    # Digits after a decimal point have no bound, and are a number wherever they end.
    assert completion.finish_reason == "stop" or schema is SCHEMAS["number"], completion
    Draft202012Validator(schema).validate(json.loads(completion.text))


def tiny_llm(path: Path, **options: Any) -> LLM:
    defaults = {"dtype": "float32", "device": "cpu", "kv_cache_memory": 2**22, "num_threads": 1}
    return LLM(str(path), **(defaults | options))


@pytest.fixture(scope="module")
def llm(tiny_checkpoint: CheckpointMaker) -> Iterator[LLM]:
    with tiny_llm(tiny_checkpoint("llama")) as made:
        yield made


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_whatever_a_random_model_says_is_valid(llm: LLM, temperature: float) -> None:
    schemas = [schema for schema in SCHEMAS.values() for _ in range(3)]
    params = [constrained(schema, seed=seed, temperature=temperature) for seed, schema in enumerate(schemas)]
    for schema, output in zip(schemas, llm.generate([[65]] * len(schemas), params), strict=True):
        assert_valid(schema, output)


def test_a_constrained_text_is_the_same_alone_and_overlapped(tiny_checkpoint: CheckpointMaker) -> None:
    params = [constrained(schema, seed=seed) for seed, schema in enumerate(SCHEMAS.values())]
    plain = SamplingParams(temperature=1.0, seed=5, max_tokens=40, ignore_eos=True)
    texts = []
    for overlap in (False, True):
        with tiny_llm(tiny_checkpoint("llama"), overlap=overlap) as llm:
            together = llm.generate([[70]] * (len(params) + 1), [*params, plain])
            alone = [llm.generate([[70]], entry)[0] for entry in (params[0], params[7], plain)]
        texts.append([output.outputs[0].token_ids for output in together])
        assert [output.outputs[0].token_ids for output in alone] == [texts[0][0], texts[0][7], texts[0][-1]]
    assert texts[0] == texts[1]


def test_regex_choice_grammar_and_object(llm: LLM) -> None:
    params: list[Any] = [
        {"regex": "[0-9]{3}-[0-9]{4}"},
        {"choice": ["yes", "no", "ünsure"]},
        {"grammar": 'start: "(" NUMBER ("+" NUMBER)? ")"\nNUMBER: /[0-9]{1,3}/'},
        {"json_object": True, "disable_any_whitespace": True},
        {"grammar": 'root ::= "<" [a-c]{2,3} ">"'},
        {"structural_tag": {"format": {"type": "regex", "pattern": "#[0-9]{2}"}}},
    ]
    options: dict[str, Any] = {"temperature": 1.0, "max_tokens": 60, "seed": 2}
    outputs = llm.generate(
        [[80]] * len(params), [SamplingParams(structured_outputs=entry, **options) for entry in params]
    )
    texts = [output.outputs[0].text for output in outputs]
    assert re.fullmatch("[0-9]{3}-[0-9]{4}", texts[0])
    assert texts[1] in ("yes", "no", "ünsure")
    assert re.fullmatch(r"\([0-9]{1,3}(\+[0-9]{1,3})?\)", texts[2])
    assert texts[3].startswith("{")
    assert re.fullmatch("<[a-c]{2,3}>", texts[4])
    assert re.fullmatch("#[0-9]{2}", texts[5])


def test_end_tokens_are_forbidden_until_the_text_may_end_vllm_49227(llm: LLM) -> None:
    params = constrained(SCHEMAS["object"], logit_bias={256: 100.0, 257: 100.0})
    assert_valid(SCHEMAS["object"], llm.generate([[65]], params)[0])


def test_a_complete_text_ends_whatever_is_said_of_end_tokens_vllm_29632(llm: LLM) -> None:
    for changes in ({"ignore_eos": True}, {"min_tokens": 30}, {"logit_bias": {257: -100.0}}):
        output = llm.generate([[65]], constrained({"type": "boolean"}, **changes))[0].outputs[0]
        assert output.text in ("true", "false")
        assert output.finish_reason == "stop"
        assert output.stop_reason is None


def test_a_complete_text_ends_with_drafts_too_vllm_53665(
    tiny_checkpoint: CheckpointMaker,
) -> None:
    with tiny_llm(tiny_checkpoint("llama"), drafter="suffix", speculation=8) as llm:
        for changes in ({"ignore_eos": True}, {"min_tokens": 30}, {"logit_bias": {257: -100.0}}):
            # The second request drafts the whole text of the first one, and would draft past its end.
            for _ in range(3):
                params = constrained({"const": "the only text"}, seed=3, **changes)
                output = llm.generate([[65]], params)[0].outputs[0]
                assert (output.text, output.finish_reason) == ('"the only text"', "stop")


def test_blank_space_ends_however_much_it_is_wanted_vllm_38696(llm: LLM) -> None:
    schema = {
        "type": "object",
        "properties": {"q": {"type": "string", "enum": ["a", "b"]}},
        "required": ["q"],
        "additionalProperties": False,
    }
    bias = {llm._open().encode(blank, False)[0]: 20.0 for blank in (" ", "\n", "\t")}
    assert_valid(schema, llm.generate([[65]], constrained(schema, logit_bias=bias, max_tokens=200))[0])


def test_a_limit_of_tokens_keeps_the_partial_text(llm: LLM) -> None:
    schema = {"type": "string", "minLength": 50, "pattern": "^[a-z]+$"}
    output = llm.generate([[65]], constrained(schema, max_tokens=9))[0].outputs[0]
    assert output.finish_reason == "length"
    assert re.fullmatch('"[a-z]{8}', output.text)


def test_logprobs_of_a_constrained_text_are_of_the_raw_logits(llm: LLM) -> None:
    constrained_output = llm.generate([[65]], constrained({"const": "ab"}, logprobs=2))[0].outputs[0]
    assert constrained_output.text == '"ab"'
    assert constrained_output.logprobs is not None
    free = llm.generate([[65]], SamplingParams(temperature=0, max_tokens=1, logprobs=2))[0].outputs[0]
    assert free.logprobs is not None
    best = max(free.logprobs[0].values(), key=lambda entry: entry.logprob)
    assert any(
        entry.rank == 1 and entry.logprob == pytest.approx(best.logprob, abs=1e-5)
        for entry in constrained_output.logprobs[0].values()
    )


@pytest.mark.parametrize(
    ("structured", "reason"),
    [
        ({"json": {"items": {"not": {"pattern": "a"}}}}, '#/items: the keyword "not"'),
        ({"json": {"type": "foo"}}, "Invalid type: foo"),
        ({"json": {"$ref": "#"}}, "no finite instance"),
        ({"regex": "("}, "unclosed group"),
        ({"regex": ""}, "regex is empty"),
        ({"grammar": "start: nothing"}, "unknown name"),
        ({"choice": []}, "choice is empty"),
    ],
)
def test_what_cannot_be_enforced_is_refused(llm: LLM, structured: Any, reason: str) -> None:
    with pytest.raises(RequestError, match=re.escape(reason)):
        llm.generate([[65]], SamplingParams(structured_outputs=structured))
    assert llm.generate([[65]], SamplingParams(max_tokens=2, ignore_eos=True))[0].outputs[0].token_ids


def test_exactly_one_kind_is_given() -> None:
    with pytest.raises(ValueError, match="got none"):
        StructuredOutputsParams()
    with pytest.raises(ValueError, match="got json and regex"):
        StructuredOutputsParams(json={}, regex="a")
    with pytest.raises(TypeError, match="structured_outputs"):
        SamplingParams(structured_outputs="json")  # type: ignore[arg-type]


@needs_smollm2
def test_smollm2_answers_in_every_schema(smollm2: Path) -> None:
    with LLM(str(smollm2), dtype="float32", device="cpu", kv_cache_memory=2**28, num_threads=1) as llm:
        chats: list[list[dict[str, str]]] = [
            [{"role": "user", "content": f"Answer as JSON ({name})."}] for name in SCHEMAS
        ]
        params = [constrained(schema, seed=seed) for seed, schema in enumerate(SCHEMAS.values())]
        for schema, output in zip(SCHEMAS.values(), llm.chat(chats, params), strict=True):
            assert_valid(schema, output)

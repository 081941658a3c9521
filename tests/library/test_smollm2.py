"""Greedy tokens of SmolLM2 are the recorded ones, however the engine schedules them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from frizzen import LLM, RequestOutput, SamplingParams
from tests.conftest import needs_smollm2

GREEDY = SamplingParams(temperature=0, max_tokens=64)
Reference = dict[str, Any]

pytestmark = needs_smollm2


def load(path: Path, **options: Any) -> LLM:
    """The model in the recordings' type, on one thread: others may be at work on the machine."""
    defaults = {"dtype": "float32", "device": "cpu", "kv_cache_memory": 2**28, "num_threads": 1}
    return LLM(str(path), **(defaults | options))


def assert_recorded(references: list[Reference], outputs: list[RequestOutput]) -> None:
    for reference, output in zip(references, outputs, strict=True):
        completion = output.outputs[0]
        assert completion.token_ids == reference["output_ids"], reference["name"]
        assert completion.text == reference["output_text"], reference["name"]
        assert completion.finish_reason == reference["finish_reason"]


def prompt_ids(references: list[Reference]) -> list[list[int]]:
    return [reference["prompt_ids"] for reference in references]


def test_alone_together_and_from_the_prefix_cache(smollm2: Path, smollm2_references: list[Reference]) -> None:
    prompts = prompt_ids(smollm2_references)
    with load(smollm2) as llm:
        assert_recorded(smollm2_references, llm.generate(prompts, GREEDY))
        again = llm.generate(prompts, GREEDY)
        assert_recorded(smollm2_references, again)
        # Every full block of a prompt is found again, except that the last token is always computed.
        assert [output.num_cached_tokens for output in again] == [
            (len(ids) - 1) // 16 * 16 for ids in prompts
        ]
    with load(smollm2, enable_prefix_caching=False) as llm:
        alone = [llm.generate([ids], GREEDY)[0] for ids in prompts]
        assert_recorded(smollm2_references, alone)


@pytest.mark.parametrize(
    "options", [{"max_num_batched_tokens": 7}, {"max_num_batched_tokens": 64}, {"overlap": True}]
)
def test_in_chunks_and_overlapped(
    options: dict[str, Any], smollm2: Path, smollm2_references: list[Reference]
) -> None:
    with load(smollm2, **options) as llm:
        assert_recorded(smollm2_references, llm.generate(prompt_ids(smollm2_references), GREEDY))


@pytest.mark.parametrize("overlap", [False, True])
def test_after_preemption(overlap: bool, smollm2: Path, smollm2_references: list[Reference]) -> None:
    with load(smollm2) as llm:
        bytes_per_block = 16 * llm.plan["memory"]["kv_per_token"]
    # The longest request comes first and needs 38 blocks; beside it the others have to give way.
    references = smollm2_references[::-1]
    with load(smollm2, kv_cache_memory=48 * bytes_per_block, overlap=overlap) as llm:
        assert llm.plan["memory"]["kv_cache"] == 48 * bytes_per_block
        assert_recorded(references, llm.generate(prompt_ids(references), GREEDY))
        assert llm._engine is not None
        preemptions, _, _ = llm._engine.counters
        assert preemptions > 0


def test_chat_renders_what_was_recorded(smollm2: Path, smollm2_references: list[Reference]) -> None:
    chats = [reference for reference in smollm2_references if reference["kind"] == "chat"]
    with load(smollm2) as llm:
        outputs = llm.chat([reference["messages"] for reference in chats], GREEDY)
    assert [output.prompt for output in outputs] == [reference["prompt_text"] for reference in chats]
    assert [output.prompt_token_ids for output in outputs] == prompt_ids(chats)
    assert_recorded(chats, outputs)

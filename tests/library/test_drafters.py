"""Drafters with a model, through the whole engine: the tokens of no speculation, whatever they propose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from frizzen import LLM
from tests.conftest import CheckpointMaker
from tests.library.test_speculation import SMALL, assert_same, mixed_params
from tests.speculate.checkpoints import with_mtp, write_dspark, write_eagle3

PROMPTS = [[(5 * i + j * j) % 11 + 30 for j in range(12 + 3 * i)] for i in range(8)]
DRAFTERS = ("draft_model", "itself", "mtp", "mtp glm", "eagle3", "dspark", "dspark fill-in")


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
            path = with_mtp(self._tiny(family), self._path / name)
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

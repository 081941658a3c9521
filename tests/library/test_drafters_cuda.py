"""Drafters with a model on a GPU: whole steps are graphs, and greedy text is that of no speculation."""

from __future__ import annotations

import json

import pytest

from frizzen import LLM, SamplingParams
from frizzen.worker import launch
from frizzen.worker.worker import Worker
from tests.conftest import CheckpointMaker
from tests.library.test_drafters import PROMPTS, Pairs

pytestmark = pytest.mark.gpu

OPTIONS = {
    "dtype": "float32",
    "device": "cuda",
    "kv_cache_memory": 2**26,
    "max_num_seqs": 8,
    "max_model_len": 192,
    "num_speculative_tokens": 3,
}


@pytest.mark.parametrize("name", ["ngram", "suffix", "draft_model", "mtp glm", "eagle3", "dspark"])
def test_greedy_text_is_that_of_no_speculation(
    tiny_checkpoint: CheckpointMaker,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """Float32, every length, one row and eight; no kernel is compiled when requests are served."""
    workers: list[Worker] = []
    build = launch.build
    monkeypatch.setattr(launch, "build", lambda *begun: workers.append(build(*begun)) or workers[-1])
    if name in ("ngram", "suffix"):
        path, options = str(tiny_checkpoint("llama")), {"drafter": name}
    else:
        path, options = Pairs(tiny_checkpoint, tmp_path_factory.mktemp("cuda"))(name)
    if name == "dspark":
        options = options | {"num_speculative_tokens": 6}
    with LLM(path, **(OPTIONS | options)) as llm:

        def streams(batch: int, speculation: object) -> list[list[int]]:
            params = SamplingParams(
                temperature=0,
                max_tokens=40,
                ignore_eos=True,
                speculation=speculation,  # type: ignore[arg-type]
            )
            return [output.outputs[0].token_ids for output in llm.generate(PROMPTS[:batch], params)]

        wanted = streams(8, "off")
        for batch in (1, 8):
            for speculation in ({"max_tokens": 1}, {"max_tokens": 3}, "auto"):
                assert streams(batch, speculation) == wanted[:batch], (batch, speculation)
        assert llm.speculation["failure"] is None
        graphs = json.loads(workers[0].control("graphs", ""))
        counters = json.loads(workers[0].control("counters", ""))
    assert (graphs["failure"], graphs["ends"]["failure"]) == (None, None)
    assert graphs["ends"]["steps"] > 100
    assert counters["late_compiles"] == {}

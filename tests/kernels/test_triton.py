"""The Triton kernels: interpreted on the CPU everywhere, and on a GPU where there is one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.kernels import triton_cases
from tests.kernels.triton_cases import (
    CASES,
    attend,
    attend_latents,
    attention_facts,
    attention_problem,
    kernel,
    latent_facts,
    latent_problem,
    reference,
    run_case,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_kernels_are_right_in_the_interpreter() -> None:
    # Triton decides once per process, when a kernel is defined, whether it is compiled or interpreted.
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", triton_cases.__file__],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert run.returncode == 0, run.stdout[-4000:]


ENGINE = """
import sys
from pathlib import Path
from benches.gpu.serving import greedy, write_config
from benches.gpu.shape import MoeShape
from frizzen import LLM

model = write_config(MoeShape("small", 64, 4, 2, 32, 16, 4, 32, 2, 160), Path(sys.argv[1]), eos_token_id=1)
options = {"load_format": "dummy", "device": "cpu", "dtype": "float32", "max_model_len": 64}
with LLM(str(model), max_num_seqs=2, **options) as llm:
    prompts = [[3, 4, 5, 6, 7], [9]]
    for batch in (prompts[:1], prompts):
        print([list(output.outputs[0].token_ids) for output in llm.generate(batch, greedy(3))])
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_an_engine_of_interpreted_kernels_gives_the_same_tokens(tmp_path: Path) -> None:
    def tokens(interpreted: str) -> list[str]:
        run = subprocess.run(
            [sys.executable, "-c", ENGINE, str(tmp_path)],
            cwd=ROOT,
            env={**os.environ, "TRITON_INTERPRET": interpreted, "OMP_NUM_THREADS": "2"},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert run.returncode == 0, run.stderr[-4000:]
        assert bool(re.search(r"attention +0-1 +triton", run.stderr)) == (interpreted == "1"), run.stderr
        return run.stdout.splitlines()

    assert tokens("1") == tokens("0")


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__.removeprefix("case_"))
@torch.inference_mode()
def test_case_on_a_gpu(case: Callable[..., None], tmp_path: Path) -> None:
    run_case(case, tmp_path)


def captured(work: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work()
    return graph, out


@pytest.mark.gpu
@torch.inference_mode()
def test_a_captured_attention_is_right_for_any_lengths_within_its_bound() -> None:
    of = attention_facts()
    step, cache, qkv = attention_problem([(900, 1), (900, 1), (900, 4), (900, 4)], of)
    attention = kernel("attention.paged", of)
    attend_captured = attention.prepare(cache)
    graph, out = captured(lambda: attend_captured(qkv, attention.begin(step)))
    for lengths in ((900, 1, 900, 4), (17, 530, 4, 899), (1, 1, 5, 6)):
        step.seq_lens.copy_(torch.tensor(lengths, dtype=torch.int32))
        graph.replay()
        want = attend(reference, of, (step, cache, qkv))
        torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@torch.inference_mode()
def test_a_captured_latent_attention_is_right_for_any_lengths_within_its_bound() -> None:
    problem = latent_problem([(900, 1), (900, 1), (900, 4), (900, 4)])
    step, cache, expansion, q = problem
    attention = kernel("attention.mla", latent_facts())
    attend_captured = attention.prepare(cache, expansion)
    graph, out = captured(lambda: attend_captured(q, attention.begin(step)))
    for lengths in ((900, 1, 900, 4), (17, 530, 4, 899), (1, 1, 5, 6)):
        step.seq_lens.copy_(torch.tensor(lengths, dtype=torch.int32))
        graph.replay()
        torch.testing.assert_close(out, attend_latents(reference, problem), rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@torch.inference_mode()
def test_a_captured_mixture_is_right_for_any_routing() -> None:
    shape = {"hidden": 64, "intermediate": 32, "experts": 8, "top_k": 2, "bias": False}
    of = triton_cases.facts(torch.float32, clamp=0.0, alpha=1.0, beta=0.0, **shape)
    weights = triton_cases.normal(8, 64, 64), triton_cases.normal(8, 64, 32), None, None
    for tokens in (1, 3, 40, 300):
        x, gains = triton_cases.normal(tokens, 64), triton_cases.normal(tokens, 2).abs()
        ids = torch.zeros(tokens, 2, dtype=torch.int32, device="cuda")
        ids[:, 1] = 1
        experts = kernel("moe.experts", of).prepare(*weights)
        graph, out = captured(lambda run=experts, x=x, gains=gains, ids=ids: run(x, gains, ids))
        for seed in range(3):
            scores = torch.rand(tokens, 8, generator=torch.Generator().manual_seed(seed))
            ids.copy_(scores.topk(2).indices.int())
            graph.replay()
            want = reference("moe.experts", of).prepare(*weights)(x, gains, ids)
            torch.testing.assert_close(out, want, rtol=1e-3, atol=1e-3)

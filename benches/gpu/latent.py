"""Latent attention in the real engine, on dummy DeepSeek models: steps by Triton as graphs, and by torch.

Decode steps and prefill of V2-Lite, and of as many of V3's layers as one GPU holds, beside what the device
could do at best. ``--torch`` measures the same with torch's attention, launched kernel by kernel: what served
these models before.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benches.gpu.serving import Steps, greedy, observed, prompt
from benches.gpu.shape import MATRIX_RATE, READ_RATE
from benches.gpu.timing import write_results
from frizzen import LLM
from frizzen.kernels.plan import default_registry
from frizzen.worker import launch

__all__ = ["V2_LITE", "V3", "LatentShape"]

DECODES = ("1@128", "8@128", "32@128", "128@128", "256@128", "1@8192", "8@8192", "32@8192")
_LONG = 65_536
"""Tokens of prompts that are computed once only."""
BY_TORCH = {"attention.mla": "torch_sdpa", "rope.mla": "reference"}


@dataclass(frozen=True, slots=True)
class LatentShape:
    """A decoder of latent attention and experts, whose first layer is dense."""

    name: str
    architecture: str
    hidden: int
    heads: int
    query_rank: int
    layers: int
    experts: int
    top_k: int
    shared: int
    intermediate: int
    dense: int
    vocabulary: int
    routing: dict[str, Any]
    latent: int = 512
    nope: int = 128
    rotary: int = 64
    value: int = 128

    def write(self, folder: Path, **changes: Any) -> Path:
        """Writes a ``config.json``; returns its folder."""
        values = {
            "architectures": [self.architecture],
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "q_lora_rank": self.query_rank or None,
            "kv_lora_rank": self.latent,
            "qk_nope_head_dim": self.nope,
            "qk_rope_head_dim": self.rotary,
            "v_head_dim": self.value,
            "n_routed_experts": self.experts,
            "num_experts_per_tok": self.top_k,
            "n_shared_experts": self.shared,
            "moe_intermediate_size": self.intermediate,
            "intermediate_size": self.dense,
            "first_k_dense_replace": 1,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": 32768,
            "rope_theta": 10000.0,
            "rms_norm_eps": 1e-6,
            "hidden_act": "silu",
            "attention_bias": False,
            "eos_token_id": 0,
            "bos_token_id": 0,
            "tie_word_embeddings": False,
            **self.routing,
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(values | changes), encoding="utf-8")
        return folder

    @property
    def attention_weights(self) -> int:
        """Weights of one layer's attention, each used once per token."""
        query = self.heads * (self.nope + self.rotary)
        up = self.query_rank * (self.hidden + query) if self.query_rank else self.hidden * query
        down = self.hidden * (self.latent + self.rotary)
        return up + down + self.heads * (self.nope + self.value) * self.latent + self._out

    @property
    def _out(self) -> int:
        return self.heads * self.value * self.hidden

    def decode_seconds(self, rows: int, context: int) -> float:
        """Least time of a decode step: every weight and latent vector that it needs is read once."""
        hit = self.experts * (1 - (1 - self.top_k / self.experts) ** rows)
        expert = 3 * self.hidden * self.intermediate
        sparse = (hit + self.shared) * expert + self.experts * self.hidden
        weights = self.layers * self.attention_weights + (self.layers - 1) * sparse
        weights += 3 * self.hidden * self.dense + self.vocabulary * self.hidden
        keys = self.layers * (self.latent + self.rotary) * rows * context
        return 2 * (weights + keys) / READ_RATE

    def prefill_seconds(self, tokens: int) -> float:
        """Least time of the prefill of one prompt: its multiplications and additions, keys expanded."""
        expert = 3 * self.hidden * self.intermediate
        sparse = (self.top_k + self.shared) * expert + self.experts * self.hidden
        weights = self.layers * self.attention_weights + (self.layers - 1) * sparse
        weights += 3 * self.hidden * self.dense
        # Two products, half of the keys masked.
        attention = self.layers * self.heads * tokens * (self.nope + self.rotary + self.value) / 2
        return 2 * tokens * (weights + attention) / MATRIX_RATE


_V2_ROUTING = {"topk_method": "greedy", "norm_topk_prob": False, "routed_scaling_factor": 1.0}
_V3_ROUTING = {
    "n_group": 8,
    "topk_group": 4,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}
V2_LITE = LatentShape(
    "deepseek-v2-lite", "DeepseekV2ForCausalLM", 2048, 16, 0, 27, 64, 6, 2, 1408, 10944, 102_400, _V2_ROUTING
)
V3 = LatentShape(
    "deepseek-v3", "DeepseekV3ForCausalLM", 7168, 128, 1536, 4, 256, 8, 1, 2048, 18432, 129_280, _V3_ROUTING
)
"""Four of its layers: one dense and three of 256 experts."""


@contextlib.contextmanager
def served_by(kernels: dict[str, str]) -> Iterator[None]:
    """Within, the plan has only these candidates for these ops."""
    registry = default_registry().restricted(kernels)
    with mock.patch.object(launch, "default_registry", return_value=registry):
        yield


def _decode(
    llm: LLM, steps: Steps, shape: LatentShape, rows: int, context: int, tokens: int
) -> dict[str, Any]:
    """Steady steps of ``rows`` rows.

    The first of two runs captures what it needs; after long prompts, whose one run takes seconds, the second
    step does.
    """
    prompts = [prompt(context, row, shape.vocabulary) for row in range(rows)]
    # Rows whose prompts are computed first are ahead of the others; all must be running for a while.
    tokens += rows * context // 8192
    for _ in range(2 if rows * context <= _LONG else 1):
        steps.clear()
        llm.generate(prompts, greedy(tokens))
    limit = shape.decode_seconds(rows, context) * 1e3
    return {
        "what": "decode",
        "rows": rows,
        "context": context,
        "ms": steps.decode_ms(rows),
        "limit_ms": round(limit, 3),
    }


def _prefill(llm: LLM, shape: LatentShape, tokens: int) -> dict[str, Any]:
    """One prompt in one step, from the call to its first token."""
    times = []
    for number in range(4):
        began = time.perf_counter()
        llm.generate([prompt(tokens, number, shape.vocabulary)], greedy(1))
        times.append(time.perf_counter() - began)
    measured = round(statistics.median(times[1:]) * 1e3, 2)
    return {
        "what": "prefill",
        "tokens": tokens,
        "ms": measured,
        "limit_ms": round(shape.prefill_seconds(tokens) * 1e3, 2),
    }


def main() -> None:
    """Prints the table and writes it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", choices=("v2-lite", "v3"), default=["v2-lite", "v3"])
    parser.add_argument("--layers", type=int, help="fewer layers than the model has")
    parser.add_argument("--decode", nargs="*", default=DECODES, metavar="ROWS@CONTEXT")
    parser.add_argument("--prefill", type=int, nargs="*", default=[4096])
    parser.add_argument("--tokens", type=int, default=24, help="steps per decode measurement")
    parser.add_argument("--torch", action="store_true", help="torch's attention, no graphs")
    parser.add_argument("--both", action="store_true", help="first by torch, then by Triton")
    parser.add_argument("--out", type=Path, default=Path("benches/results/gpu/latent.json"))
    arguments = parser.parse_args()
    results: list[dict[str, object]] = []
    for name in arguments.models:
        whole = V2_LITE if name == "v2-lite" else V3
        shape = replace(whole, layers=arguments.layers or whole.layers)
        for by_torch in (True, False) if arguments.both else (arguments.torch,):
            for row in _measure(shape, arguments, by_torch=by_torch):
                results.append({"model": shape.name, "layers": shape.layers, **row})
                results[-1]["by"] = "torch" if by_torch else "triton"
                print("  ".join(f"{key}={value}" for key, value in results[-1].items()), flush=True)
                write_results(arguments.out, "benches.gpu.latent", results)


def _measure(
    shape: LatentShape, arguments: argparse.Namespace, *, by_torch: bool
) -> Iterator[dict[str, Any]]:
    options: dict[str, Any] = {"device": "cuda", "dtype": "bfloat16", "max_num_seqs": 256}
    with tempfile.TemporaryDirectory() as folder, served_by(BY_TORCH if by_torch else {}):
        model = shape.write(Path(folder))
        began = time.perf_counter()
        with observed(model, max_model_len=8448, enforce_eager=by_torch, **options) as (llm, worker, steps):
            yield {"what": "start", "s": round(time.perf_counter() - began, 1)}
            for tokens in arguments.prefill:
                yield _prefill(llm, shape, tokens)
            for case in arguments.decode:
                rows, context = map(int, case.split("@"))
                yield _decode(llm, steps, shape, rows, context, arguments.tokens)
            counters = json.loads(worker.control("counters", ""))
            yield {
                "what": "worker",
                "late_compiles": counters["late_compiles"],
                "graph_steps": counters["graph_steps"],
            }
    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

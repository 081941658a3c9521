"""A mixture-of-experts layer with shared experts, beside each other on two streams and one after the other.

The shape is DeepSeek-V2-Lite's (hidden 2,048; 64 experts of 1,408, 6 per token; shared experts of 2,816),
bfloat16, as the layer runs it: the plan's kernels, all launches of some layers in one CUDA graph. The gain
decides up to how many tokens ``frizzen.layers.moe`` uses a second stream.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch

from frizzen.kernels.facts import detect_machine
from frizzen.kernels.plan import PlanBuilder, default_registry
from frizzen.layers import moe
from frizzen.layers.build import BuildContext, NormPlace
from frizzen.layers.moe import ExpertLoad, MoeLayer
from frizzen.loading.checkpoint import Parameter, Weights
from frizzen.loading.dummy import DummyCheckpoint
from frizzen.models.config import MoeConfig
from frizzen.parallel.streams import Streams

HIDDEN, EXPERTS, TOP_K, INNER, SHARED = 2048, 64, 6, 1408, 2816
LAYERS = 8
"""In one graph, each with weights of its own, so that none is found in the cache."""
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
REPEATS = 20


def _parameters() -> list[Parameter]:
    found = []
    for layer in range(LAYERS):
        prefix = f"layers.{layer}."
        found.append(Parameter(f"{prefix}mlp_norm", (HIDDEN,), None, None))
        found.append(Parameter(f"{prefix}router.weight", (EXPERTS, HIDDEN), None, None))
        for expert in range(EXPERTS):
            for name, shape in (
                ("gate", (INNER, HIDDEN)),
                ("up", (INNER, HIDDEN)),
                ("down", (HIDDEN, INNER)),
            ):
                found.append(Parameter(f"{prefix}experts.{expert}.{name}.weight", shape, None, None))
        for name, shape in (("gate", (SHARED, HIDDEN)), ("up", (SHARED, HIDDEN)), ("down", (HIDDEN, SHARED))):
            found.append(Parameter(f"{prefix}shared.{name}.weight", shape, None, None))
    return found


class OnDevice(DummyCheckpoint):
    """Draws on the device: the values do not matter."""

    def read(self, parameter: Parameter, out: torch.Tensor) -> None:
        """Fills ``out``."""
        out.normal_(0, 0.02)


def _layers(device: torch.device) -> list[MoeLayer]:
    config = MoeConfig(
        layers=frozenset(range(LAYERS)),
        num_experts=EXPERTS,
        top_k=TOP_K,
        intermediate_size=INNER,
        shared_size=SHARED,
    )
    weights = Weights(OnDevice(Path("."), 0), _parameters(), torch.bfloat16, device)
    plan = PlanBuilder(default_registry(), detect_machine("cuda"))
    context = BuildContext(weights, plan, torch.bfloat16, device, 16, streams=Streams(device))
    load = ExpertLoad(config.layers, EXPERTS, device)
    return [
        MoeLayer(context.at_layer(layer), config, NormPlace("mlp_norm", 1e-6), load)
        for layer in range(LAYERS)
    ]


def _milliseconds(run: Callable[[], object]) -> float:
    """Of one replay of ``run``, the fastest of three rounds."""
    for _ in range(2):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    best = float("inf")
    for _ in range(3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        graph.replay()
        start.record()
        for _ in range(REPEATS):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) / REPEATS)
    return best


@torch.inference_mode()
def main() -> None:
    """Prints a line per number of tokens, and writes all as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="file for the results")
    options = parser.parse_args()
    device, results = torch.device("cuda", 0), []
    layers = _layers(device)
    for tokens in TOKENS:
        x = torch.randn(tokens, HIDDEN, device=device, dtype=torch.bfloat16)

        residual = torch.zeros_like(x)

        def run(x: torch.Tensor = x, residual: torch.Tensor = residual) -> None:
            for layer in layers:
                layer.forward(x, residual, None)

        times = {}
        for name, few in (("one_stream", 0), ("two_streams", 1 << 30)):
            moe.FEW_TOKENS = few
            times[name] = _milliseconds(run) / LAYERS * 1e3
        gain = times["one_stream"] / times["two_streams"]
        results.append(
            {
                "tokens": tokens,
                **{f"{name}_us": round(t, 2) for name, t in times.items()},
                "gain": round(gain, 3),
            }
        )
        print(results[-1], flush=True)
    if options.out:
        about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
        text = {"command": "python -m benches.gpu.shared_experts", "machine": about, "results": results}
        options.out.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

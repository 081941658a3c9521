"""What a step costs besides the operators: `python -m benches.cpu.overhead`.

Runs SmolLM2 through the whole engine with 32 rows and times the calls that compute (all layers, the head);
the rest of the wall time is Rust's loop, the arena, the bindings and the worker's Python.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from frizzen import LLM, SamplingParams
from frizzen.kernels.native import fuse
from frizzen.models import base
from frizzen.worker.worker import Worker


class Stopwatch:
    """Adds up the time spent in wrapped callables."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """``call``, timed."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


def main() -> None:
    """Prints one JSON object, and writes it if a file is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    operators, submits = Stopwatch(), Stopwatch()

    def timed_fuse(layers: Any, norm: Any) -> Any:
        decoder = fuse(layers, norm)
        if decoder is None:
            raise SystemExit("the layers are not one call here, so this does not measure them")
        return operators.wrap(decoder)

    # The name under which the model finds it.
    vars(base)["fuse"] = timed_fuse
    base.CausalLM.logits = operators.wrap(base.CausalLM.logits)  # type: ignore[method-assign]
    Worker.submit = submits.wrap(Worker.submit)  # type: ignore[method-assign]
    with LLM("smollm2-135m", enable_prefix_caching=False) as llm:
        prompts = [[1000 + 37 * row + token for token in range(128)] for row in range(args.rows)]
        params = SamplingParams(temperature=0, max_tokens=args.tokens, ignore_eos=True)
        llm.generate(prompts, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
        began, operators.seconds, submits.seconds = time.perf_counter(), 0.0, 0.0
        llm.generate(prompts, params)
        wall = time.perf_counter() - began
    # Prefill is a handful of steps among the decodes; it counts as steps of this size.
    steps = args.tokens - 1 + -(-args.rows * 128 // 512)
    result = {
        "rows": args.rows,
        "steps": steps,
        "step_ms": round(1e3 * wall / steps, 3),
        "operators_ms": round(1e3 * operators.seconds / steps, 3),
        "worker_python_ms": round(1e3 * (submits.seconds - operators.seconds) / steps, 3),
        "engine_ms": round(1e3 * (wall - submits.seconds) / steps, 3),
        "overhead_ms": round(1e3 * (wall - operators.seconds) / steps, 3),
    }
    text = json.dumps(result)
    print(text)
    if args.output:
        args.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""``openvino-genai`` under the workload, in process: continuous batching, no prefix caching.

    python -m venv target/bench-openvino && target/bench-openvino/bin/pip install openvino-genai==2026.4.1.0
    target/bench-openvino/bin/python -m benches.cpu.peer_openvino --gguf FILE.gguf

Runs in an environment of its own, in which nothing else of the project is installed.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai as og

from benches.cpu.workload import Result, Workload, add_arguments, from_arguments, note, report, resident_mb

CACHE_GB = 1


def generate(pipeline: og.LLMPipeline, prompts: list[list[int]], output_tokens: int) -> float:
    """Greedy generation of one batch; its time in s. Raises ``RuntimeError`` if an answer is too short."""
    config = og.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = output_tokens
    config.ignore_eos, config.do_sample, config.apply_chat_template = True, False, False
    ids = np.array(prompts, dtype=np.int64)  # [B, T]
    inputs = og.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
    started = time.perf_counter()
    answer = pipeline.generate(inputs, config)
    elapsed = time.perf_counter() - started
    lengths = {len(tokens) for tokens in answer.tokens}
    if lengths != {output_tokens}:
        raise RuntimeError(f"{output_tokens} tokens were asked for, the answers have {sorted(lengths)}")
    return elapsed


def measure(pipeline: og.LLMPipeline, workload: Workload, result: Result) -> None:
    """Runs the workload and fills ``result``."""
    generate(pipeline, workload.prompts(1, workload.prompt_tokens), 8)
    for count in workload.concurrency:
        prompts = workload.prompts(count, workload.prompt_tokens)
        first = generate(pipeline, prompts, 1)
        whole = generate(pipeline, prompts, workload.output_tokens)
        rate = count * (workload.output_tokens - 1) / (whole - first)
        result.decode_tok_s[str(count)], result.ttft_ms[str(count)] = round(rate, 1), round(1e3 * first, 1)
        note(f"  {result.engine}: {count} streams {rate:.1f} tok/s, prefill {1e3 * first:.0f} ms")
    prompts = workload.prompts(workload.prefill_repeats, workload.prefill_tokens)
    best = min(generate(pipeline, [prompt], 1) for prompt in prompts)
    result.prefill_tok_s = round(workload.prefill_tokens / best, 1)


def main() -> None:
    """Measures one precision and prints its result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--precision", default="bf16", choices=["bf16", "f32"], help="of activations")
    add_arguments(parser)
    arguments = parser.parse_args()
    workload = from_arguments(arguments)
    scheduler = og.SchedulerConfig()
    scheduler.cache_size = CACHE_GB
    scheduler.max_num_seqs = max(workload.concurrency)
    scheduler.max_num_batched_tokens = max(1_024, workload.prefill_tokens)
    scheduler.enable_prefix_caching = False
    result = Result(
        "openvino-genai", og.__version__.split("-")[0], f"gguf, {arguments.precision}", "in process"
    )
    started = time.perf_counter()
    pipeline = og.LLMPipeline(
        str(arguments.gguf),
        "CPU",
        scheduler_config=scheduler,
        INFERENCE_PRECISION_HINT=arguments.precision,
        INFERENCE_NUM_THREADS=workload.threads,
    )
    result.start_s = round(time.perf_counter() - started, 2)
    measure(pipeline, workload, result)
    result.rss_mb = round(resident_mb(), 1)
    report(result)


if __name__ == "__main__":
    main()

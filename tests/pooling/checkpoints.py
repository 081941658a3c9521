"""Tiny random checkpoints that return vectors, and what transformers makes of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.conftest import COMMON, write_tokenizer

ENCODER = {
    "vocab_size": 320,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 130,
    "pad_token_id": 1,
}


def save(path: Path, kind: str, role: str, **changes: Any) -> Path:
    """A checkpoint of ``transformers``' class ``kind + role`` at ``path``."""
    import transformers

    is_encoder = kind in {"Bert", "Roberta", "XLMRoberta"}
    config = getattr(transformers, f"{kind}Config")(**((ENCODER if is_encoder else COMMON) | changes))
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = getattr(transformers, f"{kind}{role}")(config).eval()
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.3 if "embed" in name else 0.15)
            else:
                torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name.lower() else 0.0, std=0.2)
    path.mkdir(exist_ok=True)
    model.save_pretrained(path)
    write_tokenizer(path)
    return path


def sentence_transformer(
    path: Path, mode: str, *, normalize: bool, max_seq_length: int | None = None
) -> None:
    """The small files of sentence-transformers beside a checkpoint."""
    modules = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    entries = [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{name}" if index else "",
            "type": f"sentence_transformers.models.{name}",
        }
        for index, name in enumerate(modules)
    ]
    (path / "modules.json").write_text(json.dumps(entries), encoding="utf-8")
    (path / "1_Pooling").mkdir(exist_ok=True)
    (path / "1_Pooling" / "config.json").write_text(
        json.dumps({f"pooling_mode_{mode}": True}), encoding="utf-8"
    )
    if max_seq_length is not None:
        values = {"max_seq_length": max_seq_length}
        (path / "sentence_bert_config.json").write_text(json.dumps(values), encoding="utf-8")


@torch.inference_mode()
def hidden_states(path: Path, tokens: Sequence[int], segments: Sequence[int] | None = None) -> torch.Tensor:
    """``[T, H]`` of transformers in float32."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    more = {} if segments is None else {"token_type_ids": torch.tensor([list(segments)])}
    return model(input_ids=torch.tensor([list(tokens)]), **more).last_hidden_state[0]


@torch.inference_mode()
def class_logits(path: Path, tokens: Sequence[int], segments: Sequence[int] | None = None) -> torch.Tensor:
    """``[classes]`` of transformers in float32."""
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    more = {} if segments is None else {"token_type_ids": torch.tensor([list(segments)])}
    return model(input_ids=torch.tensor([list(tokens)]), **more).logits[0]


def pooled(states: torch.Tensor, kind: str) -> torch.Tensor:
    """One vector of the hidden states ``[T, H]``."""
    return {"mean": states.mean(0), "cls": states[0], "last": states[-1]}[kind]

"""Drafters in plain torch, without a cache: every draft from the whole text again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from tests.speculate.checkpoints import VOCAB

transformers = __import__("pytest").importorskip("transformers")

__all__ = ["DSparkOracle", "Eagle3Oracle", "MtpOracle", "Target"]


class Target:
    """A target as transformers computes it."""

    def __init__(self, path: Path, **changes: Any) -> None:
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager", **changes
        ).eval()

    @torch.inference_mode()
    def streams(self, tokens: Sequence[int]) -> tuple[Tensor, ...]:
        """What enters each layer, ``[T, H]``; the last is what leaves the final norm."""
        out = self.model.model(torch.tensor([list(tokens)]), output_hidden_states=True)
        return tuple(stream[0] for stream in out.hidden_states)

    @torch.inference_mode()
    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        text = list(tokens)
        for _ in range(count):
            text.append(int(self.model(torch.tensor([text])).logits[0, -1].argmax()))
        return text[len(tokens) :]


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """``x [T, heads, D]``, halves."""
    dim = x.shape[-1]
    angles = positions[:, None].float() / theta ** (torch.arange(0, dim, 2).float() / dim)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x[..., : dim // 2], x[..., dim // 2 :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """``q [T, N, D]``, ``k`` and ``v [J, M, D]``, ``seen [T, J]``."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("tnd,jnd->ntj", q, k) * q.shape[-1] ** -0.5
    weights = torch.softmax(scores.masked_fill(~seen, -torch.inf), -1)
    return torch.einsum("ntj,jnd->tnd", weights, v).flatten(1)


class Checkpoint:
    def __init__(self, path: Path) -> None:
        self.config: dict[str, Any] = json.loads((path / "config.json").read_text(encoding="utf-8"))
        self.config = {**self.config.get("transformer_layer_config", {}), **self.config}
        self.tensors = load_file(path / "model.safetensors")
        self.eps, self.theta = self.config["rms_norm_eps"], self.config["rope_theta"]

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def linear(self, name: str, x: Tensor) -> Tensor:
        return functional.linear(x, self.tensors[f"{name}.weight"])

    def norm(self, name: str, x: Tensor) -> Tensor:
        return rms(x, self.tensors[f"{name}.weight"], self.eps)

    def heads(self, name: str, x: Tensor) -> Tensor:
        """A projection by heads, normed if the checkpoint has a norm for it."""
        y = self.linear(f"{name}_proj", x).unflatten(1, (-1, self.config["head_dim"]))
        return self.norm(f"{name}_norm", y) if f"{name}_norm.weight" in self.tensors else y

    def mlp(self, prefix: str, x: Tensor) -> Tensor:
        gate, up = self.linear(f"{prefix}mlp.gate_proj", x), self.linear(f"{prefix}mlp.up_proj", x)
        return self.linear(f"{prefix}mlp.down_proj", functional.silu(gate) * up)

    def mapped(self, token: int) -> int:
        return token + int(self["d2t"][token]) if "d2t" in self.tensors else token


class Eagle3Oracle:
    def __init__(self, path: Path, target: Target, taps: Sequence[int]) -> None:
        self.own, self.target, self.taps = Checkpoint(path), target, taps
        self.prefix = "midlayer." if "midlayer.hidden_norm.weight" in self.own.tensors else "layers.0."

    def embed(self, tokens: Tensor) -> Tensor:
        own = self.own.tensors.get("embed_tokens.weight")
        return self.target.model.model.embed_tokens.weight[tokens] if own is None else own[tokens]

    @torch.inference_mode()
    def __call__(self, text: Sequence[int], count: int) -> list[int]:
        streams = self.target.streams(text[:-1])
        states = self.own.linear("fc", torch.cat([streams[tap] for tap in self.taps], -1))
        tokens, drafts = list(text[1:]), []
        for _ in range(count):
            stream = self.layer(torch.tensor(tokens), states)
            token = self.own.mapped(
                int(self.own.linear("lm_head", self.own.norm("norm", stream[-1:])).argmax())
            )
            drafts.append(token)
            tokens.append(token)
            states = torch.cat([states, stream[-1:]])
        return drafts

    def layer(self, tokens: Tensor, states: Tensor) -> Tensor:
        own, prefix, positions = self.own, self.prefix, torch.arange(len(tokens))
        normed = own.norm(f"{prefix}hidden_norm", states)
        x = torch.cat([own.norm(f"{prefix}input_layernorm", self.embed(tokens)), normed], -1)
        q, k, v = (own.heads(f"{prefix}self_attn.{name}", x) for name in "qkv")
        seen = positions[:, None] >= positions
        q, k = rotate(q, positions, own.theta), rotate(k, positions, own.theta)
        stream = normed if own.config.get("norm_before_residual") else states
        stream = stream + own.linear(f"{prefix}self_attn.o_proj", attend(q, k, v, seen))
        stream = stream + own.mlp(prefix, own.norm(f"{prefix}post_attention_layernorm", stream))
        for index in range(1, own.config["num_hidden_layers"]):
            prefix = f"layers.{index}."
            x = own.norm(f"{prefix}input_layernorm", stream)
            q, k, v = (own.heads(f"{prefix}self_attn.{name}", x) for name in "qkv")
            q, k = rotate(q, positions, own.theta), rotate(k, positions, own.theta)
            stream = stream + own.linear(f"{prefix}self_attn.o_proj", attend(q, k, v, seen))
            stream = stream + own.mlp(prefix, own.norm(f"{prefix}post_attention_layernorm", stream))
        return stream


class MtpOracle:
    """The layers are transformers' own, loaded as if the target had more of them.

    Layer ``k`` (from 1) takes token ``i + k`` and state ``i`` of the layer before it; after the last layer
    comes the last layer.
    """

    def __init__(self, path: Path, target: Target, depth: int = 1) -> None:
        self.target, self.tensors = target, load_file(path / "model.safetensors")
        self.first, self.depth = target.model.config.num_hidden_layers, depth
        deeper = Target(path, num_hidden_layers=self.first + depth)
        self.layers, self.rotary = deeper.model.model.layers, deeper.model.model.rotary_emb
        self.eps = target.model.config.rms_norm_eps

    @torch.inference_mode()
    def __call__(self, text: Sequence[int], count: int) -> list[int]:
        states, tokens, drafts = self.target.streams(text[:-1])[-1], list(text), []
        for place in range(count):
            index = min(place, self.depth - 1)
            stream = self.stream(self.first + index, torch.tensor(tokens[index + 1 :]), states)
            norm = self.tensors[f"model.layers.{self.first + index}.shared_head.norm.weight"]
            drafts.append(int(self.target.model.lm_head(rms(stream[-1:], norm, self.eps)).argmax()))
            tokens.append(drafts[-1])
            states = stream if place + 1 < self.depth else torch.cat([states, stream[-1:]])
        return drafts

    def stream(self, layer: int, tokens: Tensor, states: Tensor) -> Tensor:
        name = f"model.layers.{layer}."
        embedded = self.target.model.model.embed_tokens(tokens)
        both = [
            rms(x, self.tensors[f"{name}{norm}.weight"], self.eps)
            for norm, x in (("enorm", embedded), ("hnorm", states))
        ]
        x = functional.linear(torch.cat(both, -1), self.tensors[f"{name}eh_proj.weight"])[None]
        positions = torch.arange(len(tokens))[None]
        mask = torch.full((len(tokens),) * 2, -torch.inf).triu(1)[None, None]
        embeddings = self.rotary(x, positions)
        out = self.layers[layer](
            x, attention_mask=mask, position_ids=positions, position_embeddings=embeddings
        )
        return (out[0] if isinstance(out, tuple) else out)[0]


class DSparkOracle:
    def __init__(self, path: Path, target: Target, *, entered: Sequence[int], from_anchor: bool) -> None:
        self.own, self.target, self.entered, self.from_anchor = Checkpoint(path), target, entered, from_anchor
        config = self.own.config
        self.block = config["block_size"]
        kinds = config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]
        rule = config.get("is_causal")
        self.causal = [kind == "sliding_attention" if rule is None else rule for kind in kinds]
        self.windows = [config["sliding_window"] if kind == "sliding_attention" else 0 for kind in kinds]

    def embed(self, tokens: Tensor) -> Tensor:
        own = self.own.tensors.get("embed_tokens.weight")
        return self.target.model.model.embed_tokens.weight[tokens] if own is None else own[tokens]

    def head(self, x: Tensor) -> Tensor:
        own = self.own.tensors.get("lm_head.weight")
        return self.target.model.lm_head(x) if own is None else functional.linear(x, own)

    @torch.inference_mode()
    def hidden(self, text: Sequence[int]) -> Tensor:
        own, streams, past = self.own, self.target.streams(text[:-1]), len(text) - 1
        context = own.norm(
            "hidden_norm", own.linear("fc", torch.cat([streams[tap] for tap in self.entered], -1))
        )
        width = self.block + (not self.from_anchor)
        tokens = torch.tensor([text[-1]] + [own.config["mask_token_id"]] * (width - 1))
        positions, stream = torch.arange(past + width), self.embed(tokens)
        for layer, (causal, window) in enumerate(zip(self.causal, self.windows, strict=True)):
            prefix = f"layers.{layer}."
            x = own.norm(f"{prefix}input_layernorm", stream)
            q = rotate(own.heads(f"{prefix}self_attn.q", x), positions[past:], own.theta)
            k, v = (
                torch.cat([own.heads(f"{prefix}self_attn.{name}", y) for y in (context, x)]) for name in "kv"
            )
            if causal:
                seen = positions <= positions[past:, None]
                seen &= (positions > positions[past:, None] - window) if window else True
            else:
                seen = (positions >= past - window if window else positions >= 0).expand(width, -1)
            stream = stream + own.linear(
                f"{prefix}self_attn.o_proj", attend(q, rotate(k, positions, own.theta), v, seen)
            )
            stream = stream + own.mlp(prefix, own.norm(f"{prefix}post_attention_layernorm", stream))
        return own.norm("norm", stream)[0 if self.from_anchor else 1 :]

    @torch.inference_mode()
    def __call__(self, text: Sequence[int], count: int) -> tuple[list[int], list[float]]:
        own, hidden, token = self.own, self.hidden(text), text[-1]
        drafts, chances = [], []
        for place in range(count):
            factors = own["markov_head.markov_w1.weight"][token]
            logits = self.head(hidden[place])
            bias = own["markov_head.markov_w2.weight"] @ factors * own.config.get("logit_scale", 1.0)
            if top_k := own.config.get("dspark_draft_topk"):
                kept = torch.zeros_like(logits, dtype=torch.bool).scatter(0, logits.topk(top_k).indices, True)
                logits = logits.masked_fill(~kept, -torch.inf)
            if "confidence_head.proj.weight" in own.tensors:
                weight = own["confidence_head.proj.weight"][0]
                seen = torch.cat([hidden[place], factors])[: len(weight)]
                chances.append(float(torch.sigmoid(weight @ seen + own["confidence_head.proj.bias"][0])))
            biased = logits + bias
            known = len(biased) if "d2t" in own.tensors else VOCAB
            token = own.mapped(int(biased[:known].argmax()))
            drafts.append(token)
        return drafts, chances


Oracle = Callable[[Sequence[int], int], Any]

"""DSpark: one pass for all drafts of a row, then a small recursion over their tokens (specs/serving.md 1).

* **Context.** A combination of the target's taps at position p gives, by each draft layer's own projections,
  the keys and values at p: no query, no network. They depend on the target's states at p alone, so the blocks
  of a cached prefix are right as they are.
* **Block.** The last token (the anchor) and masks pass through the draft layers at the positions after the
  row's end, and see the context and, unless a layer is causal, the whole block.
* **Recursion.** Slot by slot, the logits get a bias of low rank by the token chosen before. The confidence of
  a slot is made of its hidden state and that token, so of its prefix alone: trimming by it loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn import functional

from frizzen.layers.attention import Attention
from frizzen.layers.build import BuildContext, Map, Norm, NormPlace, Sight
from frizzen.layers.decoder import DecoderLayer
from frizzen.layers.mlp import Mlp
from frizzen.layers.rotary import Rotary
from frizzen.loading.checkpoint import Parameter
from frizzen.models import dense
from frizzen.models.base import CausalLM
from frizzen.speculate.checkpoint import Vocabulary, head_parameters, spelled
from frizzen.speculate.drafter import Asked, Choose, Proposed, Seen
from frizzen.speculate.dspark_config import DSparkConfig

__all__ = ["DSpark", "Heads", "build", "parameters"]


@dataclass(frozen=True, slots=True)
class Heads:
    """What turns the hidden states of a block into drafts."""

    markov_in: Tensor
    """``W1 [V, r]``."""
    markov_out: Tensor
    """``W2 [Vd, r]``."""
    scale: float
    top_k: int
    confidence: tuple[Tensor, Tensor] | None
    """Weight ``[1, H + r]`` or ``[1, H]`` and bias ``[1]``, float32."""

    def follow(
        self, logits: Tensor, hidden: Tensor, tokens: Tensor, chances: Tensor | None, place: int
    ) -> Tensor:
        """What ``biased`` says, perhaps written over ``logits``; ``chance`` goes to ``chances [R]``."""
        if logits.device.type == "cuda" and not self._chooses(logits) and find_spec("triton") is not None:
            from frizzen.kernels.triton import markov

            markov.follow(self, logits, hidden, tokens, chances, turned=place % 2 > 0)
            return logits
        known = self.chance(hidden, tokens)
        if chances is not None and known is not None:
            chances.copy_(known)
        return self.biased(logits, tokens)

    def _chooses(self, logits: Tensor) -> bool:
        return 0 < self.top_k < logits.shape[1]

    def biased(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """``logits [R, Vd]`` of one slot after ``tokens [R]``; without top-k all of them may be chosen."""
        factors = self.markov_in.index_select(0, tokens)
        if not self._chooses(logits):
            return logits + functional.linear(factors, self.markov_out).float() * self.scale
        best = logits.topk(self.top_k, dim=1)
        bias = torch.einsum("rkd,rd->rk", self.markov_out[best.indices], factors).float() * self.scale
        return torch.full_like(logits, -torch.inf).scatter_(1, best.indices, best.values + bias)

    def chance(self, hidden: Tensor, tokens: Tensor) -> Tensor | None:
        """``[R]`` float32, that a slot's draft is accepted after ``tokens [R]``."""
        if self.confidence is None:
            return None
        weight, bias = self.confidence
        seen = hidden.float()
        if weight.shape[1] > hidden.shape[1]:
            seen = torch.cat([seen, self.markov_in.index_select(0, tokens).float()], dim=1)
        return torch.sigmoid(functional.linear(seen, weight, bias)).squeeze(1)


class DSpark:
    """See the module."""

    name = "dspark"

    def __init__(
        self,
        config: DSparkConfig,
        *,
        vocabulary: Vocabulary,
        rotary: Rotary,
        combine: Map,
        combined_norm: Norm,
        layers: Sequence[tuple[Attention, DecoderLayer]],
        norm: Norm,
        heads: Heads,
    ) -> None:
        self.config = config
        self.taps = config.taps
        self.reach = config.width
        self.has_confidence = heads.confidence is not None
        self._vocabulary = vocabulary
        self._rotary = rotary
        self._combine = combine
        self._combined_norm = combined_norm
        self._attentions = tuple(attention for attention, _ in layers)
        self._layers = tuple(layer for _, layer in layers)
        self._norm = norm
        self._heads = heads
        self._masks = torch.full((config.width,), config.mask_id, device=heads.markov_in.device)
        self._is_anchor = torch.arange(config.width, device=heads.markov_in.device) == 0

    def bytes_per_token(self) -> int:
        """All draft layers."""
        return sum(layer.attention.kernel.bytes_per_token() for layer in self._layers)

    def allocate_kv(self, num_blocks: int, block_size: int) -> None:
        """The draft layers' caches."""
        for layer in self._layers:
            layer.attention.allocate_kv(num_blocks)

    def advance(self, seen: Seen, asked: Asked | None, choose: Choose, count: int) -> Proposed | None:
        """Context of the step's tokens; then one block, and the recursion over its first ``count`` slots."""
        x = self._combined_norm(self._combine(torch.cat(seen.taps, dim=1)), None)
        cos, sin = self._rotary.angles(seen.step.positions)
        for attention in self._attentions:
            attention.write_normed(x, cos, sin, seen.step.slots)
        if asked is None:
            return None
        first = 0 if self.config.from_anchor else 1
        hidden = self._block(asked)[:, first : first + count]
        logits = torch.unflatten(self._vocabulary.head(hidden.flatten(0, 1)), 0, hidden.shape[:2])
        tokens, drafts, chances = asked.tokens, [], None
        if self.has_confidence:
            chances = torch.empty(logits.shape[:2], dtype=torch.float32, device=logits.device)
        for place in range(count):
            chance = None if chances is None else chances[:, place]
            biased = self._heads.follow(logits[:, place], hidden[:, place], tokens, chance, place)
            tokens = choose(biased, place, self._vocabulary.ids)
            drafts.append(tokens)
        return Proposed(torch.stack(drafts, 1), chances)

    def _block(self, asked: Asked) -> Tensor:
        """Hidden states ``[R, width, H]`` of the anchor and the masks, after the final norm."""
        step = asked.step(0, self.config.width)
        ids = torch.where(self._is_anchor, asked.tokens[:, None], self._masks)
        x, residual = self._vocabulary.embed(ids.flatten()), None
        cos, sin = self._rotary.angles(step.positions)
        kernels = {id(layer.attention.kernel): layer.attention.kernel for layer in self._layers}
        states = {key: kernel.begin(step) for key, kernel in kernels.items()}
        for layer in self._layers:
            x, residual = layer.forward(x, residual, cos, sin, step, states[id(layer.attention.kernel)])
        return self._norm(x, residual).view(len(asked.tokens), self.config.width, -1)


def parameters(config: DSparkConfig, target: CausalLM, names: frozenset[str]) -> list[Parameter]:
    """Every tensor of the checkpoint that is read."""
    decoder = config.decoder
    hidden, rank = decoder.hidden_size, config.markov_rank
    found = [
        Parameter(
            parameter.name,
            parameter.shape,
            parameter.hf.removeprefix("model."),
            None,
            required=parameter.required,
        )
        for parameter in dense.parameters(decoder)
        if parameter.hf is not None and parameter.name not in {"embedding", "lm_head"}
    ]
    found += [
        spelled("fc.weight", (hidden, len(config.taps) * target.config.hidden_size), "fc.weight"),
        spelled("hidden_norm", (hidden,), "hidden_norm.weight"),
        spelled("markov_in", (decoder.vocab_size, rank), *_markov("markov_w1", "embed")),
        spelled("markov_out", (config.draft_vocab_size, rank), *_markov("markov_w2", "head")),
        *head_parameters(hidden, decoder.vocab_size, config.draft_vocab_size, sorted(names)),
    ]
    if config.confidence:
        width = hidden + (rank if config.confidence_with_markov else 0)
        found += [
            spelled("confidence.weight", (1, width), "confidence_head.proj.weight"),
            spelled("confidence.bias", (1,), "confidence_head.proj.bias", required=False),
        ]
    return found


def _markov(*names: str) -> tuple[str, ...]:
    return tuple(f"markov_head.{name}.weight" for name in names)


def build(config: DSparkConfig, target: CausalLM, context: BuildContext) -> DSpark:
    """The drafter beside ``target``."""
    decoder = config.decoder
    confidence = None
    if config.confidence:
        weight = context.take("confidence.weight", dtype=torch.float32)
        bias = torch.zeros(1, device=context.device)
        if context.weights.has("confidence.bias"):
            bias = context.take("confidence.bias", dtype=torch.float32)
        confidence = weight, bias
    vocabulary = Vocabulary.build(config.raw, context, target, decoder, config.draft_vocab_size)
    return DSpark(
        config,
        vocabulary=vocabulary,
        rotary=Rotary(decoder.rope, context.device),
        combine=context.linear("combine", "fc", bias=False),
        combined_norm=context.norm("combined_norm", "hidden_norm", decoder.rms_eps),
        layers=[_layer(config, context, index) for index in range(decoder.num_layers)],
        norm=context.norm("final_norm", "norm", decoder.rms_eps),
        heads=Heads(
            markov_in=context.take("markov_in"),
            markov_out=context.take("markov_out")[: vocabulary.size],
            scale=config.logit_scale,
            top_k=config.top_k,
            confidence=confidence,
        ),
    )


def _layer(config: DSparkConfig, context: BuildContext, index: int) -> tuple[Attention, DecoderLayer]:
    at_layer, causal = context.at_layer(index), config.causal[index]
    window = config.decoder.windows[index]
    if window and not causal:
        # Every token of a block looks back equally far: the window before the block, and the block.
        window += config.width
    attention = Attention(at_layer, config.decoder, window, Sight(causal=causal))
    norm = NormPlace("mlp_norm", config.decoder.rms_eps)
    mlp = Mlp(at_layer, norm, bias=config.decoder.mlp_bias)
    return attention, DecoderLayer(config.decoder, attention, mlp)

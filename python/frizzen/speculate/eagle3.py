"""EAGLE-3 (arXiv 2503.01840): a wide decoder layer over three taps of the target, and plain ones if any.

The layer's state is a combination (``fc``) of the streams that enter three of the target's layers. Its
attention takes ``[RMS(embedding of the token), RMS(state before it)]``, twice the hidden size. After the
first draft the layer's own stream, before the last norm, takes the place of the combination. The head may
know fewer tokens than the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from frizzen.errors import UnsupportedModelError
from frizzen.kernels.ops import StepKernel
from frizzen.layers.attention import Attention
from frizzen.layers.build import BuildContext, Map, Norm, NormPlace, Sight, beside
from frizzen.layers.decoder import DecoderLayer
from frizzen.layers.mlp import Mlp
from frizzen.layers.rotary import Rotary
from frizzen.loading.checkpoint import Parameter
from frizzen.loading.hf_config import HfConfig
from frizzen.models import dense
from frizzen.models.base import CausalLM
from frizzen.models.config import DecoderConfig
from frizzen.speculate.checkpoint import (
    Vocabulary,
    check_fit,
    check_head,
    check_taps,
    head_parameters,
    spelled,
)
from frizzen.speculate.fused import Parts, Started
from frizzen.speculate.singles import known, singles
from frizzen.step import StepContext

__all__ = ["Eagle3Config", "Eagle3Head", "build", "parameters"]


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """A checked configuration."""

    raw: HfConfig
    decoder: DecoderConfig
    taps: tuple[int, ...]
    draft_vocab_size: int
    norm_before_residual: bool
    """Whether the residual stream starts with the normed state, or with the state as it is."""

    @classmethod
    def read(cls, raw: HfConfig, target: CausalLM, names: frozenset[str]) -> Eagle3Config:
        """Of a ``checkpoint.flat`` configuration, for a checkpoint that holds the tensors ``names``.

        Raises:
            UnsupportedModelError: it does not fit the target.
        """
        check_fit(raw, target, own_embedding="embed_tokens.weight" in names)
        if (layers := raw.integer("num_hidden_layers", 1)) < 1:
            raise UnsupportedModelError(f"{raw.path}: num_hidden_layers is {layers}, expected at least 1")
        count = target.config.num_layers
        taps = raw.values.get("eagle_aux_hidden_state_layer_ids") or (2, count // 2, count - 3)
        decoder = dense.from_hf(
            raw.replaced(num_hidden_layers=layers, layer_types=None),
            qkv_bias=raw.flag("attention_bias", False),
            mlp_bias=raw.flag("mlp_bias", False),
        )
        return cls(
            raw=raw,
            decoder=decoder,
            taps=check_taps(raw, taps, target),
            draft_vocab_size=check_head(
                raw, raw.integer("draft_vocab_size", decoder.vocab_size), target, names
            ),
            norm_before_residual=raw.flag("norm_before_residual", False),
        )


@dataclass(frozen=True, slots=True)
class Eagle3Head:
    """A ``fused.FusedHead``."""

    vocabulary: Vocabulary
    rotary: Rotary
    combine: Map
    state_norm: Norm
    attention: Attention
    mlp: Mlp
    deeper: tuple[tuple[Attention, DecoderLayer], ...]
    """The layers after the wide one."""
    last_norm: Norm
    norm_before_residual: bool
    state_size: int
    dtype: torch.dtype
    device: torch.device

    @property
    def kernel(self) -> StepKernel:
        """The layer's attention."""
        return self.attention.kernel

    @property
    def ids(self) -> Tensor | None:
        """See ``fused.FusedHead``."""
        return self.vocabulary.ids

    def bytes_per_token(self) -> int:
        """Of the layers' caches."""
        return sum(layer.kernel.bytes_per_token() for layer in self._attentions())

    def allocate_kv(self, num_blocks: int) -> None:
        """The layers' caches."""
        for attention in self._attentions():
            attention.allocate_kv(num_blocks)

    def _attentions(self) -> list[Attention]:
        return [self.attention, *(attention for attention, _ in self.deeper)]

    def states(self, hidden: Tensor, taps: tuple[Tensor, ...]) -> Tensor:
        """One state of the three taps."""
        return self.combine(torch.cat(taps, dim=1))

    def write(self, ids: Tensor, states: Tensor, cos: Tensor, sin: Tensor, step: StepContext) -> None:
        """See ``fused.FusedHead``."""
        if not self.deeper:
            self.store(ids, states, cos, sin, step.slots)
            return
        for own, part in singles(step):
            angles, state = (cos[own], sin[own]), self.kernel.begin(part)
            made = self._wide(ids[own], states[own], *angles, part, state)
            *between, (last, _) = self.deeper
            for _, layer in between:
                x, stream = (known(tensor, part.positions, 1) for tensor in made)
                made = layer.forward(x, stream, *angles, part, state)
            x, stream = (known(tensor, part.positions, 1) for tensor in made)
            last.write(x, stream, *angles, part.slots)

    @property
    def parts(self) -> Parts | None:
        """See ``fused.FusedHead``."""
        return None if self.deeper else self

    def store(self, ids: Tensor, states: Tensor, cos: Tensor, sin: Tensor, slots: Tensor) -> Started:
        """See ``fused.Parts``; of the wide layer."""
        entered = self._enter(ids, states)
        queries = self.attention.write_normed(entered, cos, sin, slots)
        # The given states have been read: the stream may be written over them.
        stream = entered[:, self.state_size :].contiguous() if self.norm_before_residual else states
        return Started(queries, stream)

    def finish(self, started: Started, step: StepContext) -> tuple[Tensor, Tensor]:
        """See ``fused.Parts``."""
        x, stream = self._attend(started, step, self.kernel.begin(step))
        return stream, self.vocabulary.head(self.last_norm(x, stream))

    def forward(
        self, ids: Tensor, states: Tensor, cos: Tensor, sin: Tensor, step: StepContext
    ) -> tuple[Tensor, Tensor]:
        """See ``fused.FusedHead``."""
        state = self.kernel.begin(step)
        x, stream = self._wide(ids, states, cos, sin, step, state)
        for _, layer in self.deeper:
            x, stream = layer.forward(x, stream, cos, sin, step, state)
        return stream, self.vocabulary.head(self.last_norm(x, stream))

    def _wide(
        self, ids: Tensor, states: Tensor, cos: Tensor, sin: Tensor, step: StepContext, state: Any
    ) -> tuple[Tensor, Tensor]:
        return self._attend(self.store(ids, states, cos, sin, step.slots), step, state)

    def _attend(self, started: Started, step: StepContext, state: Any) -> tuple[Tensor, Tensor]:
        return self.mlp.forward(self.attention.read(started.queries, state), started.stream, step.valid)

    def run(self, ids: Tensor, states: Tensor, cos: Tensor, sin: Tensor, step: StepContext) -> Tensor:
        """See ``fused.FusedHead``."""
        return self.forward(ids, states, cos, sin, step)[0]

    def _enter(self, ids: Tensor, states: Tensor) -> Tensor:
        # The layer's own input norm is the embedding's: the state has one more.
        return beside(self.attention.norm, self.vocabulary.embed(ids), self.state_norm, states)


def parameters(config: Eagle3Config, target: CausalLM, names: frozenset[str]) -> list[Parameter]:
    """Every tensor of the checkpoint that is read; the layer is called ``midlayer`` or ``layers.0``."""
    decoder = config.decoder
    hidden = decoder.hidden_size
    return [
        spelled("fc.weight", (hidden, len(config.taps) * target.config.hidden_size), "fc.weight"),
        spelled(
            "layers.0.state_norm", (hidden,), "midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight"
        ),
        *(parameter for index in range(decoder.num_layers) for parameter in _layer(decoder, index)),
        spelled("norm", (hidden,), "norm.weight"),
        *head_parameters(hidden, decoder.vocab_size, config.draft_vocab_size, sorted(names)),
    ]


def _layer(decoder: DecoderConfig, index: int) -> list[Parameter]:
    """The first takes embedding and state beside each other, the others take the stream."""
    hidden, inner = decoder.hidden_size, decoder.intermediate_size
    entering = hidden if index else 2 * hidden
    query, key = decoder.num_heads * decoder.head_dim, decoder.num_kv_heads * decoder.head_dim

    def layer(name: str, shape: tuple[int, ...], hf: str) -> Parameter:
        names = [f"layers.{index}.{hf}"] if index else [f"midlayer.{hf}", f"layers.0.{hf}"]
        return spelled(f"layers.{index}.{name}", shape, *names)

    def linear(name: str, rows: int, columns: int, hf: str, bias: bool) -> list[Parameter]:
        found = [layer(f"{name}.weight", (rows, columns), f"{hf}.weight")]
        return [*found, layer(f"{name}.bias", (rows,), f"{hf}.bias")] if bias else found

    bias = decoder.qkv_bias
    return [
        layer("input_norm", (hidden,), "input_layernorm.weight"),
        layer("mlp_norm", (hidden,), "post_attention_layernorm.weight"),
        *linear("attention.q", query, entering, "self_attn.q_proj", bias),
        *linear("attention.k", key, entering, "self_attn.k_proj", bias),
        *linear("attention.v", key, entering, "self_attn.v_proj", bias),
        *linear("attention.out", hidden, query, "self_attn.o_proj", False),
        *linear("mlp.gate", inner, hidden, "mlp.gate_proj", decoder.mlp_bias),
        *linear("mlp.up", inner, hidden, "mlp.up_proj", decoder.mlp_bias),
        *linear("mlp.down", hidden, inner, "mlp.down_proj", decoder.mlp_bias),
    ]


def build(config: Eagle3Config, target: CausalLM, context: BuildContext) -> Eagle3Head:
    """The layer and what stands around it."""
    decoder, at_layer = config.decoder, context.at_layer(0)

    def halves(index: int) -> tuple[Attention, Mlp]:
        at = context.at_layer(index)
        mlp = Mlp(at, NormPlace("mlp_norm", decoder.rms_eps), bias=decoder.mlp_bias)
        return Attention(at, decoder, 0, Sight(first=1)), mlp

    (attention, mlp), *deeper = (halves(index) for index in range(decoder.num_layers))
    return Eagle3Head(
        vocabulary=Vocabulary.build(config.raw, context, target, decoder, config.draft_vocab_size),
        rotary=Rotary(decoder.rope, context.device),
        combine=context.linear("combine", "fc", bias=False),
        state_norm=at_layer.norm("state_norm", "state_norm", decoder.rms_eps),
        attention=attention,
        mlp=mlp,
        deeper=tuple((attends, DecoderLayer(decoder, attends, feeds)) for attends, feeds in deeper),
        last_norm=context.norm("final_norm", "norm", decoder.rms_eps),
        norm_before_residual=config.norm_before_residual,
        state_size=decoder.hidden_size,
        dtype=context.dtype,
        device=context.device,
    )

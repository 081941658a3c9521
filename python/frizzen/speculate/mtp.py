"""Multi-token prediction as in DeepSeek-V3 and GLM-4.5: more decoder layers in the target's checkpoint.

A layer's input is ``eh_proj [RMS(embedding of the token), RMS(state before it)]``, its head the target's
(DeepSeek-V3, arXiv 2412.19437, section 2.2). The first state is the target's hidden state after its final
norm; afterwards it is the stream of the layer before, or the last layer's own, before the head's norm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from frizzen.errors import UnsupportedModelError
from frizzen.kernels.ops import StepKernel
from frizzen.layers.build import BuildContext, Map, Norm, Sight, beside
from frizzen.layers.decoder import DecoderLayer
from frizzen.layers.moe import ExpertLoad
from frizzen.layers.rotary import Rotary
from frizzen.loading.checkpoint import Parameter
from frizzen.models import dense
from frizzen.models.base import CausalLM, Family
from frizzen.models.config import DecoderConfig
from frizzen.speculate.compatibility import way_out
from frizzen.speculate.fused import Parts
from frizzen.step import StepContext

__all__ = ["MtpHead", "build", "extended", "ignored", "parameters"]


@dataclass(frozen=True, slots=True)
class MtpHead:
    """A ``fused.FusedHead``: norms, projection and decoder layer; embedding and head are the target's."""

    target: CausalLM
    layer: DecoderLayer
    rotary: Rotary
    embedding_norm: Norm
    state_norm: Norm
    project: Map
    head_norm: Norm
    state_size: int
    ids: Tensor | None = None

    @property
    def kernel(self) -> StepKernel:
        """The layer's attention."""
        return self.layer.attention.kernel

    @property
    def dtype(self) -> torch.dtype:
        """The target's."""
        return self.target.dtype

    @property
    def device(self) -> torch.device:
        """The target's."""
        return self.target.device

    def allocate_kv(self, num_blocks: int) -> None:
        """The layer's cache."""
        self.layer.attention.allocate_kv(num_blocks)

    def states(self, hidden: Tensor, taps: tuple[Tensor, ...]) -> Tensor:
        """The target's hidden states as they are."""
        return hidden

    def bytes_per_token(self) -> int:
        """Of the layer's cache."""
        return self.kernel.bytes_per_token()

    def write(self, ids: Tensor, states: Tensor, cos: Tensor, sin: Tensor, step: StepContext) -> None:
        """See ``fused.FusedHead``."""
        self.layer.attention.write(self._enter(ids, states), None, cos, sin, step.slots)

    def forward(
        self, ids: Tensor, states: Tensor, cos: Tensor, sin: Tensor, step: StepContext
    ) -> tuple[Tensor, Tensor]:
        """See ``fused.FusedHead``."""
        stream, normed = self._pass(ids, states, cos, sin, step)
        return stream, self.target.logits(normed)

    @property
    def parts(self) -> Parts | None:
        """None: its layer is of any kind, and goes on by itself."""
        return None

    def run(self, ids: Tensor, states: Tensor, cos: Tensor, sin: Tensor, step: StepContext) -> Tensor:
        """See ``fused.FusedHead``."""
        return self._pass(ids, states, cos, sin, step)[0]

    def _pass(
        self, ids: Tensor, states: Tensor, cos: Tensor, sin: Tensor, step: StepContext
    ) -> tuple[Tensor, Tensor]:
        entered = self._enter(ids, states)
        x, stream = self.layer.forward(entered, None, cos, sin, step, self.kernel.begin(step))
        # The norm of the head also adds what the layer's last half made to the stream.
        normed = self.head_norm(x, stream)
        return stream, normed

    def _enter(self, ids: Tensor, states: Tensor) -> Tensor:
        return self.project(beside(self.embedding_norm, self.target.embed(ids), self.state_norm, states))


def extended(config: DecoderConfig) -> DecoderConfig:
    """The target's configuration with the layers counted in.

    Raises:
        UnsupportedModelError: the checkpoint has no such layer.
    """
    if config.extra_layers < 1:
        raise UnsupportedModelError(
            f"drafter mtp needs num_nextn_predict_layers of at least 1, {config.architecture} has 0"
            + way_out("mtp", "target without prediction layers")
        )
    moe = config.moe
    return replace(
        config,
        windows=(*config.windows, *config.windows[-1:] * config.extra_layers),
        moe=None if moe is None else replace(moe, layers=moe.layers | set(_layers(config))),
    )


def _layers(config: DecoderConfig) -> range:
    """The layers' numbers in the checkpoint."""
    return range(config.num_layers, config.num_layers + config.extra_layers)


def parameters(family: Family, config: DecoderConfig) -> list[Parameter]:
    """The layers' own tensors; ``config`` is the target's."""
    hidden, layers = config.hidden_size, _layers(config)
    inside = [
        parameter
        for parameter in family.parameters(extended(config))
        if parameter.name.startswith(tuple(f"layers.{layer}." for layer in layers))
    ]
    around = [
        ("embedding_norm", (hidden,), "enorm"),
        ("state_norm", (hidden,), "hnorm"),
        ("project.weight", (hidden, 2 * hidden), "eh_proj"),
        ("head_norm", (hidden,), "shared_head.norm"),
    ]
    return inside + [
        Parameter(f"layers.{layer}.{name}", shape, f"model.layers.{layer}.{hf}.weight", None)
        for layer in layers
        for name, shape, hf in around
    ]


def ignored(config: DecoderConfig) -> tuple[str, ...]:
    """Patterns of the checkpoint's other tensors: the target's, and copies of what both share."""
    layer = rf"model\.layers\.({'|'.join(str(layer) for layer in _layers(config))})\."
    return (rf"^(?!{layer})", rf"^{layer}(embed_tokens|shared_head\.head)\.weight$", r"rotary_emb\.inv_freq$")


def build(target: CausalLM, context: BuildContext) -> list[MtpHead]:
    """The layers behind ``target``, that of the first draft first."""
    config = extended(target.config)
    rotary = Rotary(config.rope, context.device)
    return [
        _head(target, config, context, rotary, index, place)
        for place, index in enumerate(_layers(target.config), 1)
    ]


def _head(
    target: CausalLM, config: DecoderConfig, context: BuildContext, rotary: Rotary, index: int, place: int
) -> MtpHead:
    moe, at_layer = config.moe, context.at_layer(index)
    load = ExpertLoad(frozenset({index}), moe.num_experts, context.device) if moe else None
    norm: Callable[[str], Norm] = lambda name: at_layer.norm(name, name, config.rms_eps)  # noqa: E731
    return MtpHead(
        target=target,
        layer=dense.decoder_layer(config, context, index, load, Sight(first=place)),
        rotary=rotary,
        embedding_norm=norm("embedding_norm"),
        state_norm=norm("state_norm"),
        project=at_layer.linear("project", "project", bias=False),
        head_norm=norm("head_norm"),
        state_size=config.hidden_size,
    )

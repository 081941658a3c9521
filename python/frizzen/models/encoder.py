"""A BERT-like encoder: post-norm layers over whole texts, without a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from frizzen.errors import UnsupportedModelError
from frizzen.kernels.encoder import ATTENTION_ENCODER
from frizzen.kernels.torch_ops import embedding
from frizzen.layers.build import BuildContext, Map, Norm
from frizzen.loading.checkpoint import Parameter, Source, Stored
from frizzen.models.config import check_layers
from frizzen.step import StepContext

__all__ = ["ACTIVATIONS", "Encoder", "EncoderConfig", "build", "dense", "parameters"]

ACTIVATIONS: dict[str, Map] = {
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """What an encoder is, whatever its checkpoint calls it."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    norm_eps: float
    activation: str
    positions: int
    """Rows of the table of positions."""
    position_offset: int
    """Row of the first token's position: RoBERTa keeps the rows up to its padding token's id free."""
    segments: int
    """Rows of the table that tells the two texts of a pair apart."""
    eos_token_ids: tuple[int, ...] = ()

    @property
    def max_model_len(self) -> int:
        """Longest text, in tokens."""
        return self.positions - self.position_offset

    @property
    def head_dim(self) -> int:
        """Size of one attention head."""
        return self.hidden_size // self.num_heads

    def __post_init__(self) -> None:
        check_layers(self.num_layers)
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_heads", "segments"):
            if (value := getattr(self, name)) < 1:
                raise UnsupportedModelError(f"{name} is {value}, expected at least 1")
        if self.hidden_size % self.num_heads:
            raise UnsupportedModelError(
                f"hidden_size {self.hidden_size} is not a multiple of the {self.num_heads} attention heads"
            )
        if self.activation not in ACTIVATIONS:
            raise UnsupportedModelError(
                f"hidden_act is {self.activation!r}, expected one of {', '.join(ACTIVATIONS)}"
            )
        if self.position_offset < 0 or self.max_model_len < 1:
            raise UnsupportedModelError(
                f"{self.positions} positions, {self.position_offset} of them reserved: no text fits"
            )


class Encoder:
    """Embeddings and layers; what the worker sees of a model without a cache."""

    def __init__(
        self,
        config: EncoderConfig,
        context: BuildContext,
        *,
        words: Map,
        positions: Tensor,
        segments: Tensor,
        norm: Norm,
        layers: Sequence[_Layer],
    ) -> None:
        self.config = config
        self.dtype = context.dtype
        self.device = context.device
        self._words = words
        self._positions = positions
        self._segments = segments
        self._norm = norm
        self._layers = tuple(layers)

    def kv_bytes_per_token(self) -> int:
        """None: nothing is cached."""
        return 0

    def allocate_kv(self, num_blocks: int, block_size: int) -> None:
        """Does nothing: nothing is cached."""

    @torch.inference_mode()
    def forward(self, input_ids: Tensor, step: StepContext) -> Tensor:
        """Computes whole texts.

        Args:
            input_ids: ``[T]`` int64, each at least 0 and below the vocabulary size.
            step: where the tokens stand; each row is a text from its first token to its last.

        Returns:
            ``[T, H]`` hidden states.
        """
        x = self._words(input_ids)
        x.add_(self._positions.index_select(0, step.positions + self.config.position_offset))
        if step.segments is None or self.config.segments == 1:
            x.add_(self._segments[0])
        else:
            x.add_(self._segments.index_select(0, step.segments))
        x = self._norm(x, None)
        state = self._layers[0].attention.begin(step)
        for layer in self._layers:
            x = layer.forward(x, state)
        return x


class _Layer:
    """Attention and feed-forward, each followed by a norm of its sum with what went in."""

    def __init__(self, context: BuildContext, config: EncoderConfig) -> None:
        self.attention = context.plan.resolve(
            ATTENTION_ENCODER,
            context.dtype,
            site="attention",
            layer=context.layer,
            heads=config.num_heads,
            head_dim=config.head_dim,
        )
        self._qkv = context.linear("qkv", "attention.q", "attention.k", "attention.v", bias=True)
        self._out = context.linear("attention_out", "attention.out", bias=True)
        self._attention_norm = context.norm("attention_norm", "attention_norm", config.norm_eps, centred=True)
        self._up = context.linear("mlp_up", "mlp.up", bias=True)
        self._down = context.linear("mlp_down", "mlp.down", bias=True)
        self._mlp_norm = context.norm("mlp_norm", "mlp_norm", config.norm_eps, centred=True)
        self._activation: Map = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor, state: object) -> Tensor:
        """``x [T, H]``, which is overwritten -> ``[T, H]``."""
        attended = self._out(self.attention.attend(self._qkv(x), state))
        x = self._attention_norm(attended, x)
        return self._mlp_norm(self._down(self._activation(self._up(x))), x)


def build(config: EncoderConfig, context: BuildContext) -> Encoder:
    """Puts the encoder together."""
    return Encoder(
        config,
        context,
        words=embedding(context.take("words")),
        positions=context.take("positions"),
        segments=context.take("segments"),
        norm=context.norm("embedding_norm", "norm", config.norm_eps, centred=True),
        layers=[_Layer(context.at_layer(layer), config) for layer in range(config.num_layers)],
    )


def parameters(config: EncoderConfig) -> list[Parameter]:
    """Every tensor of an encoder, without the prefix that heads put before its name."""
    hidden, inner = config.hidden_size, config.intermediate_size
    table = "embeddings.{}_embeddings.weight"
    found = [
        Parameter("words", (config.vocab_size, hidden), table.format("word"), None),
        Parameter("positions", (config.positions, hidden), table.format("position"), None),
        Parameter("segments", (config.segments, hidden), table.format("token_type"), None),
        *_norm("norm", hidden, "embeddings.LayerNorm"),
    ]
    for layer in range(config.num_layers):
        own, theirs = f"layers.{layer}", f"encoder.layer.{layer}"
        for name, module in (("q", "query"), ("k", "key"), ("v", "value")):
            found += dense(f"{own}.attention.{name}", hidden, hidden, f"{theirs}.attention.self.{module}")
        found += dense(f"{own}.attention.out", hidden, hidden, f"{theirs}.attention.output.dense")
        found += _norm(f"{own}.attention_norm", hidden, f"{theirs}.attention.output.LayerNorm")
        found += dense(f"{own}.mlp.up", inner, hidden, f"{theirs}.intermediate.dense")
        found += dense(f"{own}.mlp.down", hidden, inner, f"{theirs}.output.dense")
        found += _norm(f"{own}.mlp_norm", hidden, f"{theirs}.output.LayerNorm")
    return found


def dense(name: str, rows: int, columns: int, hf: str) -> list[Parameter]:
    """Weight and bias of a linear map."""
    return [
        Parameter(f"{name}.weight", (rows, columns), f"{hf}.weight", None),
        Parameter(f"{name}.bias", (rows,), f"{hf}.bias", None),
    ]


def _norm(name: str, size: int, hf: str) -> list[Parameter]:
    """Weight and bias of a layer norm, which the oldest checkpoints call gamma and beta."""

    def of(own: str, new: str, old: str) -> Parameter:
        source = Source((Stored(f"{hf}.{old}", (size,)),))
        return Parameter(own, (size,), f"{hf}.{new}", None, sources=(source,))

    return [of(name, "weight", "gamma"), of(f"{name}.bias", "bias", "beta")]

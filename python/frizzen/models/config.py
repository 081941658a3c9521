"""What a dense decoder is, whatever file format said so: frozen, and checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass

from frizzen.errors import UnsupportedModelError

__all__ = ["DenseConfig", "RopeConfig", "check_layers"]

ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn")
MAX_LAYERS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary embedding and how it is stretched to longer contexts.

    ``linear`` divides every frequency by ``factor``. ``llama3`` (Llama 3.1) and ``yarn`` (arXiv 2309.00071)
    do so for long wavelengths only, relative to ``original_max_position``. ``dynamic`` changes its base
    beyond ``original_max_position`` with the length of each sequence, which cached keys cannot follow, so a
    model is served up to that length only.
    """

    theta: float
    rotary_dim: int
    kind: str = "default"
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """Whether YaRN rounds the borders of its ramp to whole dimensions."""
    attention_factor: float | None = None
    """Multiplies sin and cos under YaRN; None is ``0.1 ln(factor) + 1``."""

    def __post_init__(self) -> None:
        if self.kind not in ROPE_KINDS:
            raise UnsupportedModelError(
                f"rope type {self.kind!r} is not supported, only {', '.join(ROPE_KINDS)}"
            )
        if self.rotary_dim <= 0 or self.rotary_dim % 2:
            raise UnsupportedModelError(
                f"rotary dimension is {self.rotary_dim}, expected an even number above 0"
            )
        if not self.theta > 0:
            raise UnsupportedModelError(f"rope theta is {self.theta}, expected a number above 0")
        if not self.factor >= 1:
            raise UnsupportedModelError(f"rope factor is {self.factor}, expected at least 1")
        if self.kind in {"llama3", "yarn"} and self.original_max_position <= 0:
            raise UnsupportedModelError(f"rope type {self.kind} needs original_max_position_embeddings")
        if self.kind == "llama3" and self.low_freq_factor >= self.high_freq_factor:
            raise UnsupportedModelError(
                f"rope low_freq_factor is {self.low_freq_factor}, "
                f"expected less than high_freq_factor {self.high_freq_factor}"
            )


def check_layers(count: int) -> int:
    """Refuses a number of layers that no model has, before anything of that length is made."""
    if not 1 <= count <= MAX_LAYERS:
        raise UnsupportedModelError(f"the model has {count} layers, expected 1 to {MAX_LAYERS}")
    return count


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseConfig:
    """A pre-norm decoder with grouped-query attention and a gated SiLU feed-forward network."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_eps: float
    rope: RopeConfig
    max_model_len: int
    """Longest context, in tokens, that the checkpoint claims to serve."""
    windows: tuple[int, ...]
    """Per layer: tokens that attention looks back on, itself included; 0 is all."""
    tied: bool
    """The output head is the embedding."""
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMS norm of each head of q and k before the rotation."""
    eos_token_ids: tuple[int, ...] = ()

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.windows)

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_heads",
            "num_kv_heads",
            "head_dim",
        ):
            if (value := getattr(self, name)) < 1:
                raise UnsupportedModelError(f"{name} is {value}, expected at least 1")
        if not 0 < self.rms_eps < 1:
            raise UnsupportedModelError(
                f"the norms' epsilon is {self.rms_eps}, expected a number between 0 and 1"
            )
        if self.max_model_len < 1:
            raise UnsupportedModelError(
                f"the longest context is {self.max_model_len} tokens, expected at least 1"
            )
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModelError(
                f"{self.num_heads} attention heads cannot share {self.num_kv_heads} key-value heads evenly"
            )
        if self.rope.rotary_dim > self.head_dim:
            raise UnsupportedModelError(
                f"rotary dimension is {self.rope.rotary_dim}, expected at most the head size {self.head_dim}"
            )

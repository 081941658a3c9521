"""What a decoder is, whatever file format said so: frozen, and checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass

from frizzen.errors import UnsupportedModelError
from frizzen.quantize.fp8 import Fp8Scheme

__all__ = ["DecoderConfig", "MlaConfig", "MoeConfig", "RopeConfig", "check_layers"]

ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
MAX_LAYERS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary embedding and how it is stretched to longer contexts.

    ``linear`` divides every frequency by ``factor``. ``llama3`` (Llama 3.1) and ``yarn`` (arXiv 2309.00071)
    do so for long wavelengths only, relative to ``original_max_position``. ``dynamic`` changes its base
    beyond ``original_max_position`` with the length of each sequence, which cached keys cannot follow, so a
    model is served up to that length only. So does ``longrope`` (arXiv 2402.13753), which divides each
    frequency by a number of its own.
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
    """Multiplies sin and cos under YaRN and LongRoPE; None is ``0.1 ln(factor) + 1``."""
    divisors: tuple[float, ...] = ()
    """LongRoPE's, one per frequency."""

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
        if self.kind == "longrope" and len(self.divisors) != self.rotary_dim // 2:
            raise UnsupportedModelError(
                f"rope short_factor has {len(self.divisors)} numbers, expected {self.rotary_dim // 2}"
            )
        if not all(divisor > 0 for divisor in self.divisors):
            raise UnsupportedModelError("rope short_factor has numbers that are not above 0")


def check_layers(count: int) -> int:
    """Refuses a number of layers that no model has, before anything of that length is made."""
    if not 1 <= count <= MAX_LAYERS:
        raise UnsupportedModelError(f"the model has {count} layers, expected 1 to {MAX_LAYERS}")
    return count


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """A mixture of experts: which layers have one, how it routes, what one expert computes.

    Routing is that of the op ``moe.route``, the experts' activation that of ``moe.experts``.
    """

    layers: frozenset[int]
    """The other layers have a dense network."""
    num_experts: int
    top_k: int
    intermediate_size: int
    """Of one expert."""
    scoring: str = "softmax"
    renormalize: bool = False
    scaling: float = 1.0
    """Of the routed experts' sum; the router applies it."""
    groups: int = 1
    top_groups: int = 1
    correction: bool = False
    """A bias per expert that is added to the scores for the choice only."""
    jitter: float | None = None
    """If given, the router is the op ``moe.route.sparsemixer``, to which nothing above applies."""
    router_bias: bool = False
    router_float32: bool = False
    """Checkpoints keep the router's weight in float32."""
    expert_bias: bool = False
    clamp: float = 0.0
    alpha: float = 1.0
    beta: float = 0.0
    shared_size: int = 0
    """Intermediate size of the shared experts together; 0 if there are none."""
    shared_gate: bool = False
    """The shared experts' output is multiplied by the sigmoid of one more linear map."""

    def __post_init__(self) -> None:
        if not self.layers:
            raise UnsupportedModelError("no layer has experts, expected at least one")
        if self.num_experts < 1 or self.intermediate_size < 1 or self.shared_size < 0:
            raise UnsupportedModelError(
                f"{self.num_experts} experts of size {self.intermediate_size}, shared {self.shared_size}: "
                "expected at least 1, 1 and 0"
            )
        if not 1 <= self.top_k <= self.num_experts:
            raise UnsupportedModelError(
                f"{self.top_k} experts per token, expected 1 to the number of experts, {self.num_experts}"
            )
        if not 1 <= self.top_groups <= self.groups:
            raise UnsupportedModelError(
                f"{self.top_groups} groups of experts per token, expected 1 to their number, {self.groups}"
            )
        if self.groups > 1 and (reach := self.num_experts // self.groups * self.top_groups) < self.top_k:
            raise UnsupportedModelError(
                f"{self.top_k} experts per token, but {self.top_groups} of {self.groups} groups hold {reach}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaConfig:
    """Multi-head latent attention (arXiv 2405.04434): keys and values are made of one short vector per token.

    Each head's query and key have a part without position (``nope_dim``) and a rotated one (``rope_dim``)
    whose key all heads share.
    """

    query_rank: int
    """Size of the queries' own latent vector; 0 if they are projected directly."""
    latent_dim: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    scale: float
    """Multiplies the products of queries and keys."""

    def __post_init__(self) -> None:
        for name in ("latent_dim", "nope_dim", "rope_dim", "value_dim"):
            if (value := getattr(self, name)) < 1:
                raise UnsupportedModelError(f"{name} of latent attention is {value}, expected at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """A pre-norm decoder: grouped-query attention and a gated SiLU network, or ``mla`` and ``moe``."""

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
    full_qk_norm: bool = False
    """RMS norm of all heads of q together, and of k."""
    clip_qkv: float = 0.0
    """Bound of the absolute values of q, k and v after the norms; 0 is none."""
    attention_scale: float | None = None
    """Multiplies the products of queries and keys; None is ``head_dim ** -0.5``."""
    sinks: bool = False
    """A logit per query head that takes part in the softmax and has no value."""
    interleaved_rope: bool = False
    """Checkpoints store the two rows of a rope pair side by side."""
    layer_norm: bool = False
    """Norms subtract the mean and have a bias."""
    head_bias: bool = False
    """The output head has a bias."""
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    """Multiplies what each half of a layer adds to the residual stream."""
    logits_divisor: float = 1.0
    moe: MoeConfig | None = None
    mla: MlaConfig | None = None
    extra_layers: int = 0
    """Layers that checkpoints hold after the last one, for predicting further tokens; they are not read."""
    fp8: Fp8Scheme | None = None
    """How the checkpoint stores linear layers; None if they are plain numbers."""
    mxfp4: bool = False
    """Whether the checkpoint may store the experts' matrices in MXFP4."""
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
        if self.head_bias and self.tied:
            raise UnsupportedModelError("the output head has a bias, expected none where it is the embedding")
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModelError(
                f"{self.num_heads} attention heads cannot share {self.num_kv_heads} key-value heads evenly"
            )
        if self.rope.rotary_dim > self.head_dim:
            raise UnsupportedModelError(
                f"rotary dimension is {self.rope.rotary_dim}, expected at most the head size {self.head_dim}"
            )

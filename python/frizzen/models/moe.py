"""What the mixture-of-experts families have in common: the parameters of such a layer and their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter

from torch import Tensor

from frizzen.errors import UnsupportedModelError
from frizzen.loading.checkpoint import Parameter, Source, Stored
from frizzen.loading.hf_config import HfConfig
from frizzen.models import dense
from frizzen.models.base import Family
from frizzen.models.config import DecoderConfig, MoeConfig

__all__ = [
    "GATE_UP_DOWN",
    "W1_W3_W2",
    "ExpertPart",
    "ExpertSource",
    "Names",
    "family",
    "feed_forward_parameters",
    "fused",
    "parameters",
    "per_expert",
    "sparse_layers",
]


@dataclass(frozen=True, slots=True)
class ExpertPart:
    """One matrix of one expert, or its bias."""

    prefix: str
    """``model.layers.N.``"""
    expert: int
    matrix: str
    """``gate``, ``up`` or ``down``."""
    kind: str
    """``weight`` or ``bias``."""
    experts: int
    hidden: int
    inner: int

    @property
    def shape(self) -> tuple[int, ...]:
        """``[out, in]``, or ``[out]`` of a bias."""
        shape = (self.hidden, self.inner) if self.matrix == "down" else (self.inner, self.hidden)
        return shape if self.kind == "weight" else shape[:1]


ExpertSource = Callable[[ExpertPart], Source]
"""One way in which checkpoints hold experts."""


@dataclass(frozen=True, slots=True)
class Names:
    """What a family's checkpoints call a layer's parameters, after ``model.layers.N.``."""

    router: tuple[str, ...]
    """Spellings without ``.weight``, the published one first."""
    experts: tuple[ExpertSource, ...]
    correction: tuple[str, ...] = ()
    correction_dim: int = 1
    """2 where the correction is stored as one row."""
    shared: str = ""
    shared_gate: str = ""


def per_expert(pattern: str, gate: str, up: str, down: str) -> ExpertSource:
    """A tensor per matrix: ``pattern`` has a place for the expert's number, then come the matrices' names."""
    leaves = {"gate": gate, "up": up, "down": down}

    def source(part: ExpertPart) -> Source:
        name = f"{part.prefix}{pattern.format(part.expert)}.{leaves[part.matrix]}.{part.kind}"
        return Source((Stored(name, part.shape),))

    return source


def fused(gate_up: str, down: str) -> ExpertSource:
    """A tensor for all experts: ``gate_up [E, 2 * I, H]``, the gate's rows first, and ``down [E, H, I]``."""

    def source(part: ExpertPart) -> Source:
        count, hidden, inner = part.experts, part.hidden, part.inner
        if part.matrix == "down":
            stored = Stored(part.prefix + down, (count, hidden, inner), itemgetter(part.expert))
            return Source((stored,))
        rows = slice(0, inner) if part.matrix == "gate" else slice(inner, 2 * inner)
        return Source(
            (Stored(part.prefix + gate_up, (count, 2 * inner, hidden), itemgetter((part.expert, rows))),)
        )

    return source


GATE_UP_DOWN = (
    per_expert("mlp.experts.{}", "gate_proj", "up_proj", "down_proj"),
    fused("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
)
"""Most families' experts: as they are published, and as newer versions of transformers can save them."""

W1_W3_W2 = (
    per_expert("block_sparse_moe.experts.{}", "w1", "w3", "w2"),
    fused("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
)
"""Mixtral's and Phi's."""


def family(
    *architectures: str,
    from_hf: Callable[[HfConfig], DecoderConfig],
    parameters: Callable[[DecoderConfig], list[Parameter]],
    ignored: tuple[str, ...] = (),
) -> Family:
    """A family that is read from Hugging Face checkpoints only."""
    return Family(
        architectures=architectures,
        gguf_architectures=(),
        from_hf=from_hf,
        from_gguf=dense.from_gguf,
        parameters=parameters,
        build=dense.build,
        ignored=(*dense.IGNORED, *ignored),
    )


def parameters(names: Names, config: DecoderConfig) -> list[Parameter]:
    """Every tensor of a model whose attention is that of the dense families."""
    return [*dense.parameters(config), *feed_forward_parameters(names, config)]


def feed_forward_parameters(names: Names, config: DecoderConfig) -> Iterator[Parameter]:
    """The tensors of all mixtures of experts in a model."""
    moe = config.moe
    if moe is None:
        return
    for layer in sorted(moe.layers):
        hf = f"model.layers.{layer}."
        add = partial(_parameter, f"layers.{layer}.", hf)
        yield from _router_parameters(add, names, config.hidden_size, moe)
        for expert in range(moe.num_experts):
            for matrix in ("gate", "up", "down"):
                for kind in ("weight", "bias") if moe.expert_bias else ("weight",):
                    part = ExpertPart(
                        hf, expert, matrix, kind, moe.num_experts, config.hidden_size, moe.intermediate_size
                    )
                    sources = tuple(source(part) for source in names.experts)
                    name = f"layers.{layer}.experts.{expert}.{matrix}.{kind}"
                    yield Parameter(name, part.shape, None, None, sources=sources)
        yield from _shared_parameters(add, names, config.hidden_size, moe)


def _router_parameters(
    add: Callable[..., Parameter], names: Names, hidden: int, moe: MoeConfig
) -> Iterator[Parameter]:
    experts = moe.num_experts
    yield add("router.weight", (experts, hidden), *(f"{name}.weight" for name in names.router))
    if moe.router_bias:
        yield add("router.bias", (experts,), *(f"{name}.bias" for name in names.router))
    if moe.correction:
        yield add("router.correction", (experts,), *names.correction, stored_dim=names.correction_dim)


def _shared_parameters(
    add: Callable[..., Parameter], names: Names, hidden: int, moe: MoeConfig
) -> Iterator[Parameter]:
    size, name = moe.shared_size, names.shared
    if size:
        yield add("shared.gate.weight", (size, hidden), f"{name}.gate_proj.weight")
        yield add("shared.up.weight", (size, hidden), f"{name}.up_proj.weight")
        yield add("shared.down.weight", (hidden, size), f"{name}.down_proj.weight")
    if moe.shared_gate:
        yield add("shared_gate.weight", (1, hidden), f"{names.shared_gate}.weight")


def _parameter(
    prefix: str, hf: str, name: str, shape: tuple[int, ...], *spellings: str, stored_dim: int = 0
) -> Parameter:
    """With one of ``spellings``; stored with leading dimensions of 1 up to ``stored_dim``."""
    stored_shape = (1,) * (stored_dim - len(shape)) + shape
    plain = [Stored(hf + spelling, stored_shape) for spelling in spellings]
    if stored_shape != shape:
        plain = [replace(stored, part=partial(_viewed, shape)) for stored in plain]
    sources = tuple(Source((stored,)) for stored in plain)
    return Parameter(prefix + name, shape, None, None, sources=sources)


def _viewed(shape: tuple[int, ...], tensor: Tensor) -> Tensor:
    return tensor.view(shape)


def sparse_layers(raw: HfConfig) -> frozenset[int]:
    """The layers that ``decoder_sparse_step`` and ``mlp_only_layers`` leave to experts."""
    step, dense_layers = raw.integer("decoder_sparse_step", 1), raw.values.get("mlp_only_layers") or []
    if step < 1:
        raise UnsupportedModelError(f"{raw.path}: decoder_sparse_step is {step}, expected at least 1")
    count = raw.integer("num_hidden_layers")
    return frozenset(layer for layer in range(count) if (layer + 1) % step == 0) - frozenset(dense_layers)

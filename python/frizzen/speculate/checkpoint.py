"""What checkpoints of drafters that were trained for one target have in common: their names and their checks.

Both ways in which they are published are read: a flat ``config.json``, and that of the ``speculators``
library, which nests the layers' configuration in ``transformer_layer_config``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from frizzen.errors import UnsupportedModelError
from frizzen.kernels.torch_ops import embedding
from frizzen.layers.build import BuildContext, Map
from frizzen.loading.checkpoint import Parameter, Source, Stored
from frizzen.loading.hf_config import HfConfig
from frizzen.models.base import CausalLM
from frizzen.models.config import DecoderConfig

__all__ = [
    "IGNORED",
    "Vocabulary",
    "check_fit",
    "check_head",
    "check_taps",
    "flat",
    "head_parameters",
    "spelled",
]

IGNORED = (r"^t2d$", r"rotary_emb\.inv_freq$", r"^verifier_(norm|lm_head)\.")
"""Tensors that follow from others, or are copies of the target's."""


def flat(raw: HfConfig) -> HfConfig:
    """The configuration with ``transformer_layer_config``, ``dflash_config`` and ``eagle_config`` on top."""
    values: dict[str, object] = {}
    for key in ("transformer_layer_config", "dflash_config", "eagle_config"):
        nested = raw.values.get(key) or {}
        if not isinstance(nested, dict):
            raise UnsupportedModelError(f"{raw.path}: {key} is {nested!r}, expected an object")
        values |= nested
    values |= {key: value for key, value in raw.values.items() if value is not None}
    kind = values.get("speculators_model_type")
    values["architectures"] = raw.values.get("architectures") or [str(kind or "drafter")]
    return HfConfig(raw.path, values, {})


def check_fit(raw: HfConfig, target: CausalLM, *, own_embedding: bool) -> None:
    """Refuses a drafter that was trained for another target, with both values.

    Raises:
        UnsupportedModelError: hidden size, layers, vocabulary or rotary layout do not fit.
    """
    config = target.config
    hidden = raw.integer("target_hidden_size", config.hidden_size)
    if hidden != config.hidden_size:
        raise UnsupportedModelError(
            f"{raw.path}: target_hidden_size is {hidden}, the target's hidden size is {config.hidden_size}"
        )
    if not own_embedding and (size := raw.integer("hidden_size")) != config.hidden_size:
        raise UnsupportedModelError(
            f"{raw.path}: hidden_size is {size} and there is no embed_tokens, "
            f"the target's embedding has {config.hidden_size}"
        )
    layers = raw.integer("num_target_layers", config.num_layers)
    if layers != config.num_layers:
        raise UnsupportedModelError(
            f"{raw.path}: num_target_layers is {layers}, the target has {config.num_layers} layers"
        )
    vocabulary = raw.integer("vocab_size")
    if vocabulary < config.vocab_size or (vocabulary > config.vocab_size and not own_embedding):
        raise UnsupportedModelError(
            f"{raw.path}: vocab_size is {vocabulary}, the target's is {config.vocab_size}"
            + ("" if vocabulary < config.vocab_size else ", and there is no embed_tokens for the rest")
        )
    interleaved = raw.flag("rope_interleave", False) or not raw.flag("rope_is_neox_style", True)
    if interleaved:
        raise UnsupportedModelError(
            f"{raw.path}: the rotary layout is interleaved pairs, expected halves (rope_interleave false)"
        )


def check_head(raw: HfConfig, size: int, target: CausalLM, names: frozenset[str]) -> int:
    """The size of the drafter's vocabulary; a smaller one than the target's needs a head and a map.

    Raises:
        UnsupportedModelError: it has none.
    """
    if size < target.config.vocab_size and not names.issuperset({"lm_head.weight", "d2t"}):
        raise UnsupportedModelError(
            f"{raw.path}: draft_vocab_size is {size}, the target's vocabulary {target.config.vocab_size}: "
            "the checkpoint must hold lm_head.weight and d2t"
        )
    return size


def check_taps(raw: HfConfig, taps: Iterable[object], target: CausalLM) -> tuple[int, ...]:
    """The tapped layers, each within the target.

    Raises:
        UnsupportedModelError: one is not.
    """
    found: list[int] = []
    for tap in taps:
        if isinstance(tap, bool) or not isinstance(tap, int) or not 0 <= tap <= target.config.num_layers:
            raise UnsupportedModelError(
                f"{raw.path}: the target is tapped at layer {tap!r}, "
                f"expected 0 to its number of layers, {target.config.num_layers}"
            )
        found.append(tap)
    if not found:
        raise UnsupportedModelError(f"{raw.path}: no layer of the target is tapped, expected at least one")
    return tuple(found)


def spelled(name: str, shape: tuple[int, ...], *names: str, required: bool = True) -> Parameter:
    """A parameter with one of ``names`` in the checkpoint."""
    sources = tuple(Source((Stored(other, shape),)) for other in names[1:])
    return Parameter(name, shape, names[0], None, required=required, sources=sources)


def head_parameters(
    hidden: int, vocab_size: int, draft_vocab_size: int, names: Sequence[str]
) -> list[Parameter]:
    """Embedding, head and map of a vocabulary of its own, as far as the checkpoint has them in ``names``."""
    stored = Stored("d2t", (draft_vocab_size,), integers=True)
    found = {
        "embed_tokens.weight": spelled("embedding", (vocab_size, hidden), "embed_tokens.weight"),
        "lm_head.weight": spelled("lm_head", (draft_vocab_size, hidden), "lm_head.weight"),
        "d2t": Parameter("d2t", (draft_vocab_size,), None, None, sources=(Source((stored,)),)),
    }
    return [parameter for name, parameter in found.items() if name in names]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The drafter's two ends: its own, or the target's where it ships none."""

    embed: Map
    head: Map
    ids: Tensor | None
    """``[Vd]`` int64, the target's ids of the drafter's."""
    size: int
    """Logits of the head: without a map, tokens that the target does not know are left out."""

    @classmethod
    def build(
        cls, raw: HfConfig, context: BuildContext, target: CausalLM, config: DecoderConfig, draft_size: int
    ) -> Vocabulary:
        """Reads what ``head_parameters`` named.

        Raises:
            UnsupportedModelError: a map that leads nowhere, or a target's head that does not fit.
        """
        size, weights = target.config.vocab_size, context.weights
        ids = None
        if weights.has("d2t"):
            steps = context.take("d2t", dtype=torch.int64)
            ids = torch.arange(draft_size).to(steps.device) + steps
            for worst in () if ids.is_meta else (int(ids.min()), int(ids.max())):
                if not 0 <= worst < size:
                    raise UnsupportedModelError(
                        f"{raw.path}: d2t leads to token {worst}, the target's vocabulary is {size}"
                    )
        embed: Map = target.embed
        head: Map = target.logits
        if weights.has("embedding"):
            embed = embedding(context.take("embedding"))
        if weights.has("lm_head"):
            own = context.head("lm_head")
            head = own if ids is not None or draft_size <= size else lambda hidden: own(hidden)[:, :size]
        elif config.hidden_size != target.config.hidden_size:
            raise UnsupportedModelError(
                f"{raw.path}: hidden_size is {config.hidden_size} and there is no lm_head, "
                f"the target's head takes {target.config.hidden_size}"
            )
        return cls(embed, head, ids, size if ids is None else draft_size)

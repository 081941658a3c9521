"""The configuration of a DSpark drafter (specs/serving.md 1.2 to 1.4, 1.8), checked against its target."""

from __future__ import annotations

from dataclasses import dataclass, replace

from frizzen.errors import UnsupportedModelError
from frizzen.loading.hf_config import HfConfig
from frizzen.models import dense
from frizzen.models.base import CausalLM
from frizzen.models.config import DecoderConfig
from frizzen.speculate.checkpoint import check_fit, check_head, check_taps

__all__ = ["DSparkConfig"]

_MASK_KEYS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
"""Where the mask's id may stand, in order; ``dflash_config`` comes before all of them."""

_AS_THEY_ARE = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")
"""Keys whose numbers say which layer the tapped stream enters."""

_AFTER = ("dspark_target_layer_ids", "target_layer_ids")
"""Keys whose numbers say which layer the tapped stream leaves: the capture is one layer on."""

_NORMED = {"qwen3": True, "qwen3_moe": True, "llama": False, "mistral": False}
"""Structures of the draft layers, and whether each head of q and k has a norm."""


@dataclass(frozen=True, slots=True)
class DSparkConfig:
    """What the drafter is."""

    raw: HfConfig
    decoder: DecoderConfig
    """The draft layers; the vocabulary is that of its embedding."""
    taps: tuple[int, ...]
    mask_id: int
    num_drafts: int
    """Drafts of one pass."""
    from_anchor: bool
    """Whether the query of the last token is sampled from: then slot i predicts the token after it, otherwise
    mask i predicts its own position."""
    causal: tuple[bool, ...]
    """Per layer, whether a token of the block sees only those before it."""
    markov_rank: int
    logit_scale: float
    confidence: bool
    confidence_with_markov: bool
    draft_vocab_size: int
    top_k: int
    """Tokens per slot that the Markov recursion chooses from; 0 is all."""

    @property
    def width(self) -> int:
        """Tokens of a row's block."""
        return self.num_drafts + (0 if self.from_anchor else 1)

    @classmethod
    def read(
        cls, raw: HfConfig, nested: HfConfig, target: CausalLM, names: frozenset[str], num_drafts: int | None
    ) -> DSparkConfig:
        """Of ``raw`` as it stands in the file and ``nested`` as ``checkpoint.flat`` makes it.

        Raises:
            UnsupportedModelError: it does not fit the target, or a value is not computed here.
        """
        check_fit(nested, target, own_embedding="embed_tokens.weight" in names)
        nested.require("markov_head_type", ["vanilla"], "vanilla")
        kind = nested.values.get("model_type", "qwen3")
        kind = (nested.values.get("transformer_layer_config") or {}).get("model_type", kind)
        if kind not in _NORMED:
            raise UnsupportedModelError(
                f"{raw.path}: model_type of the draft is {kind!r}, expected one of {', '.join(_NORMED)}"
            )
        decoder = dense.from_hf(
            nested,
            window=nested.integer("sliding_window", 0) if nested.values.get("layer_types") else 0,
            qkv_bias=nested.flag("attention_bias", False),
            output_bias=nested.flag("attention_bias", False),
            qk_norm=_NORMED[kind],
        )
        speculators = bool(raw.values.get("speculators_model_type"))
        block = nested.integer("block_size", nested.integer("dspark_block_size", num_drafts or 0))
        if block < 1:
            raise UnsupportedModelError(
                f"{raw.path}: block_size is missing, and no number of drafts is given"
            )
        enabled = nested.flag("enable_confidence_head", any(name.startswith("confidence") for name in names))
        return cls(
            raw=nested,
            decoder=replace(decoder, tied=False),
            taps=_taps(nested, target),
            mask_id=_mask_id(nested, decoder.vocab_size),
            num_drafts=num_drafts or block,
            from_anchor=nested.flag("sample_from_anchor", not speculators),
            causal=_causal(nested, decoder),
            markov_rank=nested.integer("markov_rank", nested.integer("dspark_markov_rank", 256)),
            logit_scale=nested.number("logit_scale", 1.0),
            confidence=enabled,
            confidence_with_markov=nested.flag("confidence_head_with_markov", True),
            draft_vocab_size=check_head(
                nested, nested.integer("draft_vocab_size", decoder.vocab_size), target, names
            ),
            top_k=nested.integer("dspark_draft_topk", 0),
        )


def _taps(raw: HfConfig, target: CausalLM) -> tuple[int, ...]:
    for keys, offset in ((_AS_THEY_ARE, 0), (_AFTER, 1)):
        for key in keys:
            found = raw.values.get(key)
            if isinstance(found, list) and all(isinstance(layer, int) for layer in found):
                return check_taps(raw, [layer + offset for layer in found], target)
    raise UnsupportedModelError(f"{raw.path}: none of {', '.join((*_AS_THEY_ARE, *_AFTER))} lists the taps")


def _mask_id(raw: HfConfig, vocab_size: int) -> int:
    nested = raw.values.get("dflash_config")
    places = [nested.get("mask_token_id")] if isinstance(nested, dict) else []
    places += [raw.values.get(key) for key in _MASK_KEYS]
    found = next((value for value in places if value is not None), None)
    if found is None:
        raise UnsupportedModelError(
            f"{raw.path}: the mask token is missing: none of dflash_config.mask_token_id, "
            f"{', '.join(_MASK_KEYS)} is given"
        )
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < vocab_size:
        raise UnsupportedModelError(
            f"{raw.path}: the mask token is {found!r}, "
            f"expected an id below the draft's vocabulary, {vocab_size}"
        )
    return found


def _causal(raw: HfConfig, decoder: DecoderConfig) -> tuple[bool, ...]:
    """One rule for all layers if there is one, else a layer with a window is causal and another is not."""
    nested = raw.values.get("dflash_config")
    rules = [raw.values.get("is_causal"), nested.get("causal") if isinstance(nested, dict) else None]
    rule = next((value for value in rules if value is not None), None)
    kinds = raw.values.get("layer_types") or ["full_attention"] * decoder.num_layers
    return tuple(kind == "sliding_attention" if rule is None else bool(rule) for kind in kinds)

"""BERT and RoBERTa, and what shares their structure (MiniLM, XLM-RoBERTa, CamemBERT)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from frizzen.layers.build import BuildContext, Map
from frizzen.loading.checkpoint import Parameter
from frizzen.loading.hf_config import HfConfig
from frizzen.models import encoder
from frizzen.models.encoder import EncoderConfig

__all__ = ["BERT", "FAMILIES", "ROBERTA", "EncoderFamily", "classifier"]


@dataclass(frozen=True, slots=True)
class EncoderFamily:
    """Encoders that share the names in their checkpoints."""

    stems: tuple[str, ...]
    """Class names in ``config.json`` up to ``Model`` or ``ForSequenceClassification``."""
    prefix: str
    """Before the encoder's tensors where a head is saved with it."""
    head: tuple[str, str]
    """Names of a classifier's two linear maps, behind the prefix if they have it."""
    reserved_positions: bool
    """Whether positions begin behind the padding token's id."""
    ignored: tuple[str, ...] = (
        r"embeddings\.position_ids$",
        r"^pooler\.",
        r"^cls\.",
        r"^lm_head\.",
        r"^classifier\.",
    )
    """Patterns of tensors, without the prefix, that an encoder without a head does not use."""

    def from_hf(self, raw: HfConfig) -> EncoderConfig:
        """The encoder of a ``config.json``.

        Raises:
            UnsupportedModelError: a value that this structure does not compute.
        """
        raw.require("position_embedding_type", [None, "absolute"])
        raw.require("is_decoder", [None, False])
        raw.require("quantization_config", [None])
        return EncoderConfig(
            architecture=raw.architectures[0],
            vocab_size=raw.integer("vocab_size"),
            hidden_size=raw.integer("hidden_size"),
            intermediate_size=raw.integer("intermediate_size"),
            num_layers=raw.integer("num_hidden_layers"),
            num_heads=raw.integer("num_attention_heads"),
            norm_eps=raw.number("layer_norm_eps", 1e-12),
            activation=str(raw.values.get("hidden_act", "gelu")),
            positions=raw.integer("max_position_embeddings"),
            position_offset=raw.integer("pad_token_id", 1) + 1 if self.reserved_positions else 0,
            segments=raw.integer("type_vocab_size", 2),
        )

    def rename(self, name: str) -> str:
        """A checkpoint's tensor name without the prefix."""
        return name.removeprefix(self.prefix)

    def head_parameters(self, config: EncoderConfig, classes: int) -> list[Parameter]:
        """The classifier over the first token: two linear maps with a tanh between them."""
        hidden = config.hidden_size
        return [
            *encoder.dense("head.dense", hidden, hidden, self.head[0]),
            *encoder.dense("head.out", classes, hidden, self.head[1]),
        ]


def classifier(context: BuildContext) -> Map:
    """``[S, H]`` -> ``[S, classes]``."""
    dense = context.linear("classifier_dense", "head.dense", bias=True)
    out = context.linear("classifier_out", "head.out", bias=True)

    def head(hidden: Tensor) -> Tensor:
        return out(dense(hidden).tanh())

    return head


BERT = EncoderFamily(
    stems=("Bert",), prefix="bert.", head=("pooler.dense", "classifier"), reserved_positions=False
)
ROBERTA = EncoderFamily(
    stems=("Roberta", "XLMRoberta", "Camembert"),
    prefix="roberta.",
    head=("classifier.dense", "classifier.out_proj"),
    reserved_positions=True,
)
FAMILIES = (BERT, ROBERTA)

"""Opens a checkpoint that is to return vectors: an encoder, or a decoder without its output head.

What a checkpoint says about pooling stands in up to four small files: the architecture in ``config.json``,
and sentence-transformers' ``modules.json``, ``*_Pooling/config.json`` and ``sentence_bert_config.json``.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import torch

from frizzen import catalog
from frizzen.errors import LoadError, UnsupportedModelError
from frizzen.kernels.plan import PlanBuilder
from frizzen.layers.build import BuildContext, Map
from frizzen.loading.checkpoint import Checkpoint, Parameter, Weights
from frizzen.loading.dummy import DummyCheckpoint
from frizzen.loading.hf_config import HfConfig
from frizzen.loading.load import LoadRequest, choose_dtype, ignored_tensors
from frizzen.loading.safetensors import SafetensorsCheckpoint
from frizzen.models import bert, encoder
from frizzen.models.base import Family
from frizzen.models.families import FAMILIES
from frizzen.models.pooling import KINDS, Backbone, PoolingConfig, PoolingModel
from frizzen.parallel.streams import Streams

__all__ = ["build_pooling_model", "pools_by_itself"]

_ARCHITECTURE = re.compile(r"(?P<stem>.+?)(?P<role>Model|ForCausalLM|ForSequenceClassification|ForMaskedLM)")
_MODULES = ("Transformer", "Pooling", "Normalize")
_FLAGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}


def pools_by_itself(model: str) -> bool:
    """Whether the model at a name or path says that it returns vectors, not text."""
    path = catalog.resolve(model)
    if not (path / "config.json").is_file():
        return False
    stem, role = _architecture(HfConfig.read(path / "config.json"))
    is_encoder = any(stem in family.stems for family in bert.FAMILIES)
    return is_encoder or role in {"Model", "ForSequenceClassification"} or (path / "modules.json").is_file()


def build_pooling_model(
    request: LoadRequest, plan: PlanBuilder, device: torch.device
) -> tuple[PoolingModel, Weights]:
    """Builds the model on ``device``; ``plan`` chooses its kernels and keeps the record.

    Raises:
        ConfigError: ``pooler_config`` is wrong.
        LoadError: as :func:`frizzen.loading.load.load_model` does.
    """
    dtype = choose_dtype(request.dtype, plan)
    path = catalog.resolve(request.model)
    if not (path / "config.json").is_file():
        raise LoadError(f"{path} has no config.json: models that return vectors are read from a directory")
    raw = HfConfig.read(path / "config.json")
    parts = _parts(raw)
    pooling = _pooling(path, raw, parts).overridden(request.pooler_config)
    plan.decide("pooling", pooling.kind, f"the task is {pooling.task}")
    checkpoint: Checkpoint = (
        DummyCheckpoint(path, request.seed)
        if request.load_format == "dummy"
        else SafetensorsCheckpoint(path, parts.fp8, parts.rename)
    )
    try:
        weights = Weights(
            checkpoint,
            parts.parameters(pooling.size),
            dtype,
            device,
            ignored=parts.ignored,
            progress=request.progress,
        )
        context = BuildContext(
            weights, plan, dtype, device, request.block_size, request.kv_cache_dtype, Streams(device)
        )
        backbone, head = parts.build(context)
    finally:
        checkpoint.close()
    return PoolingModel(backbone, pooling, head, _longest(path, parts.config.max_model_len)), weights


class _Encoder:
    """How an encoder is loaded."""

    kind, whole_prompts = "cls", True

    def __init__(self, raw: HfConfig, family: bert.EncoderFamily, classifies: bool) -> None:
        self._family = family
        self._classifies = classifies
        self.config = family.from_hf(raw)
        self.fp8 = None
        self.rename = family.rename
        # A head's own tensors are compared like all others; in its absence they mean nothing.
        self.ignored = family.ignored[:2] if classifies else family.ignored

    def parameters(self, size: int) -> list[Parameter]:
        """Every tensor, with a classifier for ``size`` classes if there is one."""
        head = self._family.head_parameters(self.config, size) if self._classifies else []
        return [*encoder.parameters(self.config), *head]

    def build(self, context: BuildContext) -> tuple[Backbone, Map | None]:
        """The encoder and its classifier."""
        backbone = encoder.build(self.config, context)
        return backbone, bert.classifier(context) if self._classifies else None


class _Decoder:
    """How a decoder is loaded: with its embedding in place of an output head, which is never used."""

    kind, whole_prompts = "last", False

    def __init__(self, raw: HfConfig, family: Family, classifies: bool) -> None:
        self._family = family
        self._classifies = classifies
        self.config = replace(family.from_hf(raw), tied=True, head_bias=False)
        self.fp8 = self.config.fp8
        self.ignored = ignored_tensors(family, self.config)

    @staticmethod
    def rename(name: str) -> str:
        """A model saved without any head has no prefix either."""
        return name if name.startswith(("model.", "lm_head.", "score.")) else f"model.{name}"

    def parameters(self, size: int) -> list[Parameter]:
        """Every tensor, with a classifier for ``size`` classes if there is one."""
        found = self._family.parameters(self.config)
        if self._classifies:
            found.append(Parameter("score.weight", (size, self.config.hidden_size), "score.weight", None))
        return found

    def build(self, context: BuildContext) -> tuple[Backbone, Map | None]:
        """The decoder and its classifier."""
        backbone = self._family.build(self.config, context)
        return backbone, context.linear("score", "score", bias=False) if self._classifies else None


def _architecture(raw: HfConfig) -> tuple[str, str]:
    """Stem and role of the class that the checkpoint was saved from; empty if it has no such name."""
    found = _ARCHITECTURE.fullmatch(raw.architectures[0]) if raw.architectures else None
    return (found["stem"], found["role"]) if found else ("", "")


def _parts(raw: HfConfig) -> _Encoder | _Decoder:
    stem, role = _architecture(raw)
    classifies = role == "ForSequenceClassification"
    for family in bert.FAMILIES:
        if stem in family.stems:
            return _Encoder(raw, family, classifies)
    for decoder in FAMILIES:
        if f"{stem}ForCausalLM" in decoder.architectures and role != "ForMaskedLM":
            return _Decoder(raw, decoder, classifies)
    known = [stem for family in bert.FAMILIES for stem in family.stems]
    known += [name.removesuffix("ForCausalLM") for family in FAMILIES for name in family.architectures]
    found = ", ".join(raw.architectures) or "none"
    raise UnsupportedModelError(
        f"{raw.path}: architectures is {found}, expected Model or ForSequenceClassification of "
        f"{', '.join(known)}"
    )


def _pooling(path: Path, raw: HfConfig, parts: _Encoder | _Decoder) -> PoolingConfig:
    """What the files say; where they are silent, encoders pool their first token and decoders their last."""
    if _architecture(raw)[1] == "ForSequenceClassification":
        labels = _labels(raw)
        return PoolingConfig(
            kind=parts.kind,
            task="classify",
            size=len(labels),
            normalize=False,
            activation=_activation(raw, len(labels)),
            labels=labels,
            whole_prompts=parts.whole_prompts,
        )
    kind, normalize = _modules(path) or (parts.kind, True)
    lengths = raw.values.get("matryoshka_dimensions")
    if lengths is not None:
        lengths = tuple(sorted(int(length) for length in lengths))
    elif raw.flag("is_matryoshka", False):
        lengths = ()
    return PoolingConfig(
        kind=kind,
        task="embed",
        size=parts.config.hidden_size,
        normalize=normalize,
        dimensions=lengths,
        whole_prompts=parts.whole_prompts,
    )


def _modules(path: Path) -> tuple[str, bool] | None:
    """Kind of pooling, and whether it is followed by a normalisation, by sentence-transformers' files."""
    if not (path / "modules.json").is_file():
        return None
    modules = json.loads((path / "modules.json").read_text(encoding="utf-8"))
    names = [str(module["type"]).rpartition(".")[2] for module in modules]
    for name in names:
        if name not in _MODULES:
            raise UnsupportedModelError(
                f"{path / 'modules.json'}: module {name} is not supported, only {', '.join(_MODULES)}"
            )
    for name, module in zip(names, modules, strict=True):
        if name == "Pooling":
            return _kind(path / str(module["path"]) / "config.json"), "Normalize" in names
    return None


def _kind(file: Path) -> str:
    values = json.loads(file.read_text(encoding="utf-8"))
    modes = [kind for flag, kind in _FLAGS.items() if values.get(flag)]
    modes += [
        flag for flag in values if flag.startswith("pooling_mode_") and values[flag] and flag not in _FLAGS
    ]
    if not modes and isinstance(mode := values.get("pooling_mode"), str):
        modes = [{"lasttoken": "last"}.get(mode, mode)]
    if len(modes) != 1 or modes[0] not in KINDS:
        raise UnsupportedModelError(f"{file}: the pooling is {modes}, expected one of {', '.join(KINDS)}")
    return modes[0]


def _labels(raw: HfConfig) -> tuple[str, ...]:
    names = raw.values.get("id2label")
    if isinstance(names, dict) and names:
        return tuple(str(names[key]) for key in sorted(names, key=int))
    return tuple(f"LABEL_{index}" for index in range(raw.integer("num_labels", 2)))


def _activation(raw: HfConfig, classes: int) -> str:
    """How transformers, or sentence-transformers for a cross-encoder, makes probabilities of the logits."""
    own = raw.values.get("sentence_transformers")
    name = own.get("activation_fn") if isinstance(own, dict) else None
    name = str(name or raw.values.get("sbert_ce_default_activation_function") or "")
    for spelling in ("Identity", "Sigmoid"):
        if name.endswith(spelling):
            return spelling.lower()
    problem = raw.values.get("problem_type")
    if problem == "regression":
        return "identity"
    return "sigmoid" if problem == "multi_label_classification" or classes == 1 else "softmax"


def _longest(path: Path, length: int) -> int:
    """The longest text: sentence-transformers' models are trained on shorter ones than they could take."""
    file = path / "sentence_bert_config.json"
    if not file.is_file():
        return length
    trained = json.loads(file.read_text(encoding="utf-8")).get("max_seq_length")
    return min(length, trained) if isinstance(trained, int) and trained > 0 else length

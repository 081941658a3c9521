"""All families, by the names that checkpoints give them."""

from __future__ import annotations

from frizzen.errors import UnsupportedModelError
from frizzen.loading.gguf import GgufMetadata
from frizzen.loading.hf_config import HfConfig
from frizzen.models import (
    deepseek_v2,
    deepseek_v3,
    ernie4_5_moe,
    glm4_moe,
    gpt_oss,
    granite_moe,
    llama,
    mistral,
    mixtral,
    olmoe,
    phi_moe,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
)
from frizzen.models.base import Family

__all__ = ["FAMILIES", "family_of_gguf", "family_of_hf"]

FAMILIES: tuple[Family, ...] = (
    llama.FAMILY,
    mistral.FAMILY,
    qwen2.FAMILY,
    qwen3.FAMILY,
    qwen2_moe.FAMILY,
    qwen3_moe.FAMILY,
    mixtral.FAMILY,
    olmoe.FAMILY,
    granite_moe.FAMILY,
    phi_moe.FAMILY,
    ernie4_5_moe.FAMILY,
    glm4_moe.FAMILY,
    deepseek_v2.FAMILY,
    deepseek_v3.FAMILY,
    gpt_oss.FAMILY,
)


def family_of_hf(raw: HfConfig) -> Family:
    """The family of a ``config.json``.

    Raises:
        UnsupportedModelError: no family, with the list of those there are.
    """
    for family in FAMILIES:
        if any(name in family.architectures for name in raw.architectures):
            return family
    known = sorted(name for family in FAMILIES for name in family.architectures)
    found = ", ".join(raw.architectures) or "none"
    raise UnsupportedModelError(f"{raw.path}: architectures is {found}, expected one of {', '.join(known)}")


def family_of_gguf(meta: GgufMetadata) -> Family:
    """The family of a GGUF file.

    Raises:
        UnsupportedModelError: no family, with the list of those there are.
    """
    for family in FAMILIES:
        if meta.architecture in family.gguf_architectures:
            return family
    known = sorted(name for family in FAMILIES for name in family.gguf_architectures)
    raise UnsupportedModelError(
        f"{meta.path}: general.architecture is {meta.architecture}, expected one of {', '.join(known)}"
    )

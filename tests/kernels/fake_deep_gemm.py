"""What DeepGEMM's functions compute, in plain torch on any device, for tests of the adapter."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from frizzen.quantize.fp8 import GROUP, Fp8Weight


def inputs(pair: Any) -> Tensor:
    """Rows with a scale per 128 columns, or plain ones; scales must stand by column, each on 16 bytes."""
    if isinstance(pair, Tensor):
        return pair.float()
    data, scale = pair
    assert scale.stride(-2) == 1
    assert scale.shape[-1] == 1 or scale.stride(-1) == -(-scale.shape[-2] // 4) * 4
    return Fp8Weight(data, scale, 1, GROUP).expand(torch.float32)


def weight(pair: Any) -> Tensor:
    return pair.float() if isinstance(pair, Tensor) else Fp8Weight(*pair, GROUP, GROUP).expand(torch.float32)


def dense(a: Any, b: Any, d: Tensor) -> None:
    d.copy_(inputs(a) @ weight(b).T)


def contiguous(a: Any, b: Any, d: Tensor, layout: Tensor) -> None:
    """One expert per 128 rows; rows of none are left as they are."""
    x, w = inputs(a), weight(b)
    assert len(layout) == len(x) == len(d)
    assert len(x) % GROUP == 0
    for first in range(0, len(x), GROUP):
        rows = slice(first, first + GROUP)
        assert (layout[rows] == layout[first]).all()
        if layout[first] >= 0:
            d[rows] = (x[rows] @ w[layout[first]].T).to(d.dtype)


def masked(a: Any, b: Any, d: Tensor, counts: Tensor, expected: int) -> None:
    """The first rows of every expert; the others are left as they are."""
    x, w = inputs(a), weight(b)
    assert expected >= 1
    for expert, count in enumerate(counts.tolist()):
        d[expert, :count] = (x[expert, :count] @ w[expert].T).to(d.dtype)


def module(**changes: Any) -> SimpleNamespace:
    """The package with its canonical names; ``None`` removes one."""
    names = {
        "__version__": "0.1.5",
        "fp8_gemm_nt": dense,
        "m_grouped_fp8_gemm_nt_contiguous": contiguous,
        "m_grouped_fp8_gemm_nt_masked": masked,
        "m_grouped_bf16_gemm_nt_contiguous": contiguous,
        "m_grouped_bf16_gemm_nt_masked": masked,
        **changes,
    }
    return SimpleNamespace(**{name: value for name, value in names.items() if value is not None})

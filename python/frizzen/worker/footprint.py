"""What steps take on a GPU beside weights and KV cache, from a model's sizes alone.

That is their largest live set, the inputs and results of a step, and CUDA graphs. Formulas of what the layers
keep at the same time, and constants of the libraries that were measured on an H200 (``benches/gpu/ledger.py``
measures them again). They are estimates: the reserve covers what they miss, a drafter's passes among it.
"""

from __future__ import annotations

from dataclasses import dataclass

from frizzen.models.config import DecoderConfig
from frizzen.worker.lattice import Lattice

__all__ = ["Footprint", "StepLimits", "footprint"]

MIB = 1 << 20

BLAS_WORKSPACE = 32 * MIB
"""Of cuBLAS on Hopper, per stream; graphs are captured on one of their own."""
NODE_BYTES = 3 << 10
"""Of the driver, per kernel of a graph: 60 MiB for 45 graphs of 48 layers, 21,100 kernels."""
_AROUND_LAYERS = 8
"""Kernels of a step before its first layer and behind its last."""
_PADDED = 127
"""Places that sorted tokens of an expert may leave empty."""
_UNSORTED = 256
"""Most tokens that are not sorted by expert."""
_SPLIT_KEYS = 4096
"""Keys of a part of a long context."""
_LEAST_TILE = 16
"""Fewest rows of a tile of attention."""
_MASKS = 4
"""Masks of the vocabulary that a step has room for, per row."""
_SMALL = 2 * MIB
"""Sections of the step's inputs and results whose sizes nobody sets."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The largest step."""

    rows: int
    tokens: int
    context: int
    drafts: int
    """Of a row."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes."""

    workspaces: int = 0
    """The live set of the largest step, and what steps are read from and written to."""
    graphs: int = 0
    """All graphs of the lattice: the memory they share, their results, and what the driver keeps."""


def footprint(model: DecoderConfig, limits: StepLimits, width: int, *, graphs: bool) -> Footprint:
    """The estimate for one model.

    Args:
        model: Its sizes.
        limits: The largest step.
        width: Bytes of a number of its activations.
        graphs: Whether steps become graphs.
    """
    pages = 2 * 4 * limits.rows * limits.context // 16
    masks = _MASKS * limits.rows * model.vocab_size // 8
    fixed = BLAS_WORKSPACE + masks + pages + _SMALL
    workspaces = fixed + live_set(model, limits.tokens) * width
    return Footprint(workspaces, _graphs(model, limits, width) if graphs else 0)


def live_set(model: DecoderConfig, tokens: int) -> int:
    """Numbers that exist at the same time in the widest part of a layer, for a step of ``tokens``."""
    hidden, moe = model.hidden_size, model.moe
    found = [tokens * (_attention(model) + 2 * hidden)]
    if moe is None or len(moe.layers) < model.num_layers:
        # The gate and what it multiplies in one product, then the result.
        found.append(tokens * (3 * model.intermediate_size + 2 * hidden))
    if moe is not None:
        pairs = tokens * moe.top_k
        places = pairs if tokens <= _UNSORTED else pairs + min(pairs, moe.num_experts) * _PADDED
        # The residual, the layer's input, its norm, the sum over experts, and what the next layer gets.
        routed = places * moe.intermediate_size + pairs * hidden + 5 * tokens * hidden
        found.append(routed + (3 * tokens * moe.shared_size if tokens <= _UNSORTED else 0))
    return max(found)


def _attention(model: DecoderConfig) -> int:
    """Numbers of a token's queries, keys and values, and of what attention makes of them."""
    if (mla := model.mla) is not None:
        latent = mla.latent_dim + mla.rope_dim + mla.query_rank
        return model.num_heads * (mla.nope_dim + mla.rope_dim + mla.value_dim) + latent
    return 2 * (model.num_heads + model.num_kv_heads) * model.head_dim


def _graphs(model: DecoderConfig, limits: StepLimits, width: int) -> int:
    lattice = Lattice.of(
        max_rows=limits.rows,
        max_drafts=limits.drafts,
        max_context=limits.context,
        max_tokens=limits.tokens,
    )
    tokens = [shape.tokens for shape in lattice.shapes()]
    results = sum(tokens) * model.hidden_size * width
    # Each graph's own: the others' intermediates lie in the same memory, the largest first.
    shared = live_set(model, max(tokens)) * width + _partial_sums(model, limits)
    logits = max(tokens) * model.vocab_size * 4
    driver = len(tokens) * nodes(model) * NODE_BYTES
    return BLAS_WORKSPACE + results + shared + logits + driver


def nodes(model: DecoderConfig) -> int:
    """Kernels of a decode step, on average over the lattice."""
    moe, layers = model.moe, model.num_layers
    sparse = 0 if moe is None else len(moe.layers)
    attention = 5 if model.mla is None else 9
    experts = 4 if moe is None or not moe.shared_size else 7
    return _AROUND_LAYERS + layers * attention + (layers - sparse) * 4 + sparse * experts


def _partial_sums(model: DecoderConfig, limits: StepLimits) -> int:
    """Bytes of what attention keeps of the parts of long contexts, in float32, where all rows have one."""
    parts = limits.context // _SPLIT_KEYS if 0 in model.windows else 1
    if parts <= 1:
        return 0
    if (mla := model.mla) is not None:
        rows_of_tiles, size = max(model.num_heads, _LEAST_TILE), mla.latent_dim
    else:
        group = model.num_heads // model.num_kv_heads
        rows_of_tiles, size = model.num_kv_heads * max(group, _LEAST_TILE), model.head_dim
    return limits.rows * rows_of_tiles * parts * (size + 2) * 4

"""The Rust CPU kernels: weights packed once for streaming, sums in float32.

A row's result has the same bits alone, in any batch and however its prefill is cut. Every kernel runs on the
threads that torch computes with. A model all of whose layers are served from here can run them in one call,
see :func:`fuse`: between two kernels then stands a barrier of less than a microsecond, in place of a call
through Python and a new parallel region.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from frizzen._core import cpu
from frizzen.kernels.facts import Facts
from frizzen.kernels.kv_layout import allocate, needs_plain_cache
from frizzen.kernels.ops import (
    ATTENTION_PAGED,
    LINEAR,
    LINEAR_SILU_MUL,
    LM_HEAD,
    LM_HEAD_TIED,
    NORM_RMS,
    ROPE,
    KVCache,
)
from frizzen.kernels.plan import Candidate, Reason
from frizzen.step import StepContext

__all__ = ["CANDIDATES", "LayerKernels", "fuse", "open_mp"]

GRANULE = 16
"""Head sizes and block sizes are multiples of it."""

MAX_HEAD_DIM = 256


@lru_cache
def open_mp(maps: Path = Path("/proc/self/maps")) -> tuple[int, int, int] | None:
    """Addresses of ``GOMP_parallel``, ``omp_get_thread_num`` and ``omp_get_num_threads``.

    In the OpenMP library that torch has loaded; None if it has none, or one without these names.
    """
    try:
        loaded = set(re.findall(r"/\S*lib(?:gomp|iomp5|omp)[-.]\S*", maps.read_text(encoding="utf-8")))
    except OSError:
        return None
    # Other packages may bring copies of their own; torch's team is the one that is awake.
    for path in sorted(loaded, key=lambda path: "torch" not in path):
        try:
            library = ctypes.CDLL(path)
            names = (library.GOMP_parallel, library.omp_get_thread_num, library.omp_get_num_threads)
        except (OSError, AttributeError):
            continue
        parallel, number, count = (ctypes.cast(name, ctypes.c_void_p).value or 0 for name in names)
        return parallel, number, count
    return None


@lru_cache
def _kernels(threads: int, shared: bool) -> cpu.Kernels:
    return cpu.Kernels(threads, open_mp() if shared else None)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _pack(kernels: cpu.Kernels, weight: Tensor) -> cpu.PackedMatrix:
    if weight.stride(1) != 1:
        weight = weight.contiguous()
    n, k = weight.shape
    return cpu.PackedMatrix(kernels, _dtype_name(weight.dtype), weight.data_ptr(), n, k, weight.stride(0))


def _address(constant: Tensor | None) -> int | None:
    """Of a constant that is copied before the caller lets it go."""
    return None if constant is None else constant.data_ptr()


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 else x.contiguous()


@dataclass(frozen=True, slots=True)
class Product:
    """A bound linear layer, gated or not."""

    native: cpu.Linear | cpu.GatedLinear
    out_features: int
    dtype: torch.dtype

    def __call__(self, x: Tensor) -> Tensor:
        x = _rows(x)
        out = torch.empty((x.shape[0], self.out_features), dtype=self.dtype)
        self.native.run(x.data_ptr(), x.shape[0], x.stride(0), out.data_ptr())
        return out


@dataclass(frozen=True, slots=True)
class _Linear:
    kernels: cpu.Kernels

    def prepare(self, weight: Tensor, bias: Tensor | None) -> Product:
        bias = None if bias is None else bias.contiguous()
        native = cpu.Linear(_pack(self.kernels, weight), _address(bias))
        return Product(native, weight.shape[0], weight.dtype)


@dataclass(frozen=True, slots=True)
class _LinearSiluMul:
    kernels: cpu.Kernels

    def prepare(self, weight: Tensor, bias: Tensor | None) -> Product:
        gate, up = (_pack(self.kernels, half) for half in weight.chunk(2))
        biases = None
        if bias is not None:
            halves = [half.contiguous() for half in bias.chunk(2)]
            biases = (halves[0].data_ptr(), halves[1].data_ptr())
        return Product(cpu.GatedLinear(gate, up, biases), weight.shape[0] // 2, weight.dtype)


@dataclass(frozen=True, slots=True)
class _LmHead:
    kernels: cpu.Kernels

    def prepare(self, weight: Tensor, bias: Tensor | None) -> Product:
        bias = None if bias is None else bias.contiguous()
        native = cpu.Linear(_pack(self.kernels, weight), _address(bias), float_out=True)
        return Product(native, weight.shape[0], torch.float32)


@dataclass(frozen=True, slots=True)
class _TiedHead:
    """One packed copy serves both: a row of a packed matrix can be read back."""

    kernels: cpu.Kernels

    def prepare(self, weight: Tensor) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        packed = _pack(self.kernels, weight)
        dtype, (vocabulary, size) = weight.dtype, weight.shape

        def embed(ids: Tensor) -> Tensor:
            ids = ids.contiguous()
            out = torch.empty((len(ids), size), dtype=dtype)
            packed.gather(ids.data_ptr(), len(ids), out.data_ptr())
            return out

        return embed, Product(cpu.Linear(packed, float_out=True), vocabulary, torch.float32)


@dataclass(frozen=True, slots=True)
class Norm:
    """A bound RMS norm."""

    native: cpu.RmsNorm

    def __call__(self, x: Tensor, residual: Tensor | None) -> Tensor:
        x = _rows(x)
        out = torch.empty(x.shape, dtype=x.dtype)
        self.native.run(x.data_ptr(), x.shape[0], x.stride(0), _address(residual), out.data_ptr())
        return out


@dataclass(frozen=True, slots=True)
class _RmsNorm:
    kernels: cpu.Kernels

    def prepare(self, weight: Tensor, eps: float) -> Norm:
        weight = weight.contiguous()
        native = cpu.RmsNorm(self.kernels, _dtype_name(weight.dtype), weight.data_ptr(), weight.shape[0], eps)
        return Norm(native)


@dataclass(frozen=True, slots=True)
class Rope:
    """A bound rotation with cache write."""

    native: cpu.Rope
    cache: KVCache
    """Kept alive: the kernel has its address."""

    def __call__(self, qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor) -> None:
        self.native.run(qkv.data_ptr(), qkv.shape[0], cos.data_ptr(), sin.data_ptr(), slots.data_ptr())


@dataclass(frozen=True, slots=True)
class _Rope:
    kernels: cpu.Kernels
    heads: int
    rotary_dim: int

    def prepare(self, cache: KVCache, q_norm: Tensor | None, k_norm: Tensor | None, eps: float) -> Rope:
        norms = None
        if q_norm is not None and k_norm is not None:
            q_norm, k_norm = q_norm.contiguous(), k_norm.contiguous()
            norms = (q_norm.data_ptr(), k_norm.data_ptr())
        native = cpu.Rope(
            self.kernels,
            _dtype_name(cache.data.dtype),
            cache.data.data_ptr(),
            _cache_shape(cache),
            heads=self.heads,
            rotary_dim=self.rotary_dim,
            norms=norms,
            eps=eps,
        )
        return Rope(native, cache)


def _cache_shape(cache: KVCache) -> tuple[int, int, int, int]:
    blocks, block_size, heads, head_dim = cache.k.shape
    return blocks, block_size, heads, head_dim


@dataclass(frozen=True, slots=True)
class State:
    """What the layers of a step share."""

    step: StepContext
    """Kept alive: the tiles have the address of its block table."""
    by_blocks: dict[int, cpu.Tiles]
    """Made at the first layer, which knows how many blocks its cache has."""


@dataclass(frozen=True, slots=True)
class Attend:
    """Attention bound to a layer's cache."""

    native: cpu.Attention
    cache: KVCache
    heads: int

    def __call__(self, qkv: Tensor, state: State) -> Tensor:
        size = self.heads * self.cache.k.shape[3]
        out = torch.empty((qkv.shape[0], size), dtype=qkv.dtype)
        self.native.run(qkv.data_ptr(), qkv.stride(0), self.tiles(state), out.data_ptr())
        return out

    def tiles(self, state: State) -> cpu.Tiles:
        """The step's queries, cut for this cache."""
        blocks, block_size, kv_heads, _ = self.cache.k.shape
        found = state.by_blocks.get(blocks)
        if found is None:
            step = state.step
            found = state.by_blocks[blocks] = cpu.Tiles(
                query_start=step.query_start.data_ptr(),
                seq_lens=step.seq_lens.data_ptr(),
                rows=step.num_rows,
                table=step.block_table.data_ptr(),
                width=step.block_table.shape[1],
                stride=step.block_table.stride(0),
                block_size=block_size,
                blocks=blocks,
                group=self.heads // kv_heads,
            )
        return found


@dataclass(frozen=True, slots=True)
class _Attention:
    kernels: cpu.Kernels
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int
    block_size: int
    dtype: torch.dtype
    layout: str = "head"

    def bytes_per_token(self) -> int:
        return 2 * self.kv_heads * self.head_dim * self.dtype.itemsize

    def allocate(self, num_blocks: int, device: torch.device) -> KVCache:
        return allocate(
            self.layout, num_blocks, self.block_size, self.kv_heads, self.head_dim, self.dtype, device
        )

    def begin(self, step: StepContext) -> State:
        return State(step, {})

    def prepare(self, cache: KVCache, sinks: Tensor | None = None) -> Attend:
        sinks = None if sinks is None else sinks.to(self.dtype).contiguous()
        native = cpu.Attention(
            self.kernels,
            _dtype_name(self.dtype),
            cache.data.data_ptr(),
            _cache_shape(cache),
            heads=self.heads,
            scale=self.scale,
            window=self.window,
            sinks=_address(sinks),
        )
        return Attend(native, cache, self.heads)


class LayerKernels(NamedTuple):
    """The bound kernels of one pre-norm layer, in the order in which they run, whoever made them."""

    input_norm: object
    qkv: object
    rope: object
    attend: object
    out: object
    mlp_norm: object
    gate_up: object
    down: object


Decoder = Callable[[Tensor, Tensor, Tensor, Tensor, State], Tensor]
"""``(residual [T, H], cos, sin, slots, state) -> hidden [T, H]``; the residual is changed."""


def fuse(layers: Sequence[LayerKernels], final_norm: object) -> Decoder | None:
    """All layers and the final norm as one call, made of kernels that are bound to their caches.

    None unless all of them are from here and the layers have the same sizes.
    """
    parts = [_natives(layer) for layer in layers]
    attend = layers[0].attend if layers else None
    if not isinstance(attend, Attend) or not isinstance(final_norm, Norm) or None in parts:
        return None
    try:
        decoder = cpu.Decoder([part for part in parts if part is not None], final_norm.native)
    except ValueError:
        return None

    def run(residual: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, state: State) -> Tensor:
        hidden = torch.empty_like(residual)
        decoder.run(
            residual.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            slots.data_ptr(),
            attend.tiles(state),
            hidden.data_ptr(),
        )
        return hidden

    return run


_KINDS: tuple[type[Norm | Product | Rope | Attend], ...] = (
    Norm,
    Product,
    Rope,
    Attend,
    Product,
    Norm,
    Product,
    Product,
)


def _natives(layer: LayerKernels) -> tuple[Any, ...] | None:
    """The layer's kernels if they are all from here."""
    natives = []
    for kernel, kind in zip(layer, _KINDS, strict=True):
        if not isinstance(kernel, kind):
            return None
        natives.append(kernel.native)
    return tuple(natives)


def _requires(facts: Facts) -> Reason | None:
    if facts.device != "cpu":
        return Reason("device", f"this computes on the cpu, the layer is on {facts.device}")
    if facts.dtype not in {torch.float32, torch.bfloat16}:
        return Reason("dtype", f"dtype is {facts.dtype}, expected float32 or bfloat16")
    return None


def _requires_product(facts: Facts) -> Reason | None:
    if facts.dtype == torch.bfloat16 and facts.size("in_features") % 2:
        return Reason("shape", f"in_features is {facts['in_features']}, bfloat16 takes even numbers")
    if facts.device == "cpu" and cpu.level() not in {"avx2", "avx512", "avx512_bf16"}:
        return Reason("capability", f"products are tuned for avx2 and avx512, this cpu has {cpu.level()}")
    return _requires(facts)


def _requires_heads(facts: Facts) -> Reason | None:
    head_dim = facts.size("head_dim")
    if head_dim % GRANULE or head_dim > MAX_HEAD_DIM:
        return Reason(
            "shape", f"head_dim is {head_dim}, expected a multiple of {GRANULE} up to {MAX_HEAD_DIM}"
        )
    return _requires(facts)


def _requires_layout(facts: Facts) -> Reason | None:
    if facts["layout"] != "head":
        return Reason(
            "layout", f"the attention kernel's cache has layout {facts['layout']}, this writes layout head"
        )
    return _requires_heads(facts)


def _requires_blocks(facts: Facts) -> Reason | None:
    if facts.size("block_size") % GRANULE:
        return Reason("shape", f"block_size is {facts['block_size']}, expected a multiple of {GRANULE}")
    return needs_plain_cache(facts) or _requires_heads(facts)


def _rope(kernels: cpu.Kernels, facts: Facts) -> _Rope:
    return _Rope(kernels, facts.size("heads"), facts.size("rotary_dim"))


def _attention(kernels: cpu.Kernels, facts: Facts) -> _Attention:
    return _Attention(
        kernels,
        facts.size("heads"),
        facts.size("kv_heads"),
        facts.size("head_dim"),
        facts.number("scale"),
        facts.size("window"),
        facts.size("block_size"),
        facts.dtype,
    )


_MAKERS: tuple[tuple[str, Callable[[Facts], Reason | None], Callable[[cpu.Kernels, Facts], Any]], ...] = (
    (LINEAR.name, _requires_product, lambda kernels, _: _Linear(kernels)),
    (LINEAR_SILU_MUL.name, _requires_product, lambda kernels, _: _LinearSiluMul(kernels)),
    (LM_HEAD.name, _requires_product, lambda kernels, _: _LmHead(kernels)),
    (LM_HEAD_TIED.name, _requires_product, lambda kernels, _: _TiedHead(kernels)),
    (NORM_RMS.name, _requires, lambda kernels, _: _RmsNorm(kernels)),
    (ROPE.name, _requires_layout, _rope),
    (ATTENTION_PAGED.name, _requires_blocks, _attention),
)


def _candidates(name: str, rank: int, *, shared: bool) -> Iterator[Candidate]:
    """One candidate per op, on torch's threads or on threads of our own."""

    def requires(facts: Facts, of_op: Callable[[Facts], Reason | None]) -> Reason | None:
        reason = of_op(facts)
        if reason is None and shared and open_mp() is None:
            return Reason("missing_symbol", "torch has loaded no OpenMP library with GOMP_parallel")
        return reason

    def build(facts: Facts, make: Callable[[cpu.Kernels, Facts], Any]) -> Any:
        return make(_kernels(facts.machine.threads, shared), facts)

    for op, of_op, make in _MAKERS:
        yield Candidate(op, name, rank, partial(requires, of_op=of_op), partial(build, make=make))


CANDIDATES = (
    *_candidates("native", 30, shared=True),
    # Between two of its calls torch's threads may still be spinning on the same cores.
    *_candidates("native_threads", 29, shared=False),
)

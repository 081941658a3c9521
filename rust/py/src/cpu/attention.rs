//! Rotary embedding and attention over one layer's cache.

use std::sync::Arc;

use frizzen_kernels::{self as kernels, CacheShape, GRANULE, MAX_HEAD_DIM, QueryTile, Rows};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::{
    Dtype, Kernels, Machine, Numbers, Stored, at, at_mut, expect, pair, rows, rows_mut, slice, typed,
};

/// One layer's cache: a tensor `[blocks, kv_heads, 2, head_dim * block_size]`.
#[derive(Clone, Copy)]
pub(crate) struct LayerCache {
    pub(crate) address: usize,
    pub(crate) shape: CacheShape,
}

impl LayerCache {
    fn new(address: usize, shape: (usize, usize, usize, usize)) -> PyResult<Self> {
        let (blocks, block_size, heads, head_dim) = shape;
        if block_size == 0 || !block_size.is_multiple_of(GRANULE) {
            return Err(PyValueError::new_err(format!(
                "block_size is {block_size}, expected a multiple of {GRANULE}"
            )));
        }
        if head_dim == 0 || !head_dim.is_multiple_of(GRANULE) || head_dim > MAX_HEAD_DIM || heads == 0 {
            let wanted = format!("expected a multiple of {GRANULE} up to {MAX_HEAD_DIM}");
            return Err(PyValueError::new_err(format!("head_dim is {head_dim}, {wanted}")));
        }
        Ok(Self { address, shape: CacheShape { blocks, block_size, heads, head_dim } })
    }

    /// # Safety
    /// See the module's contract.
    pub(crate) unsafe fn view<'a, E: Stored>(&self) -> kernels::Cache<'a, E> {
        // SAFETY: the caller's promise.
        unsafe { kernels::Cache::from_raw(self.shape, at_mut(self.address)) }
    }

    /// An error if a slot is not in the cache.
    pub(crate) fn check_slots(&self, slots: &[i64]) -> PyResult<()> {
        let capacity = self.shape.blocks * self.shape.block_size;
        match slots.iter().find(|slot| usize::try_from(**slot).map_or(true, |slot| slot >= capacity)) {
            Some(slot) => Err(PyValueError::new_err(format!("slot is {slot}, the cache has {capacity}"))),
            None => Ok(()),
        }
    }
}

/// Norm and rotation of q and k, and the write of k and v to a cache.
#[pyclass(module = "frizzen._core.cpu", frozen)]
pub(crate) struct Rope {
    machine: Arc<Machine>,
    pub(crate) dtype: Dtype,
    pub(crate) cache: LayerCache,
    pub(crate) heads: usize,
    pub(crate) half: usize,
    pub(crate) norms: Option<(Numbers, Numbers)>,
    pub(crate) eps: f32,
}

#[pymethods]
impl Rope {
    /// `shape` is that of the cache: blocks, block size, key-value heads, head size. `rotary_dim` elements of a head
    /// are turned; `norms` are the weights of q and k, `[head_dim]`, copied.
    #[new]
    #[pyo3(signature = (kernels, dtype, cache, shape, *, heads, rotary_dim, norms, eps))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn new(
        kernels: &Kernels,
        dtype: &str,
        cache: usize,
        shape: (usize, usize, usize, usize),
        heads: usize,
        rotary_dim: usize,
        norms: Option<(usize, usize)>,
        eps: f32,
    ) -> PyResult<Self> {
        let dtype: Dtype = dtype.parse()?;
        let cache = LayerCache::new(cache, shape)?;
        if rotary_dim > cache.shape.head_dim || !rotary_dim.is_multiple_of(2) {
            return Err(PyValueError::new_err(format!(
                "rotary_dim is {rotary_dim}, expected even and at most head_dim"
            )));
        }
        let copy = |address| {
            // SAFETY: see the module's contract.
            unsafe { Numbers::copy(dtype, address, cache.shape.head_dim) }
        };
        let norms = norms.map(|(q, k)| (copy(q), copy(k)));
        Ok(Self { machine: Arc::clone(&kernels.0), dtype, cache, heads, half: rotary_dim / 2, norms, eps })
    }

    /// `qkv [tokens, (heads + 2 * kv_heads) * head_dim]`, `cos` and `sin` `[tokens, rotary_dim / 2]` float32,
    /// `slots [tokens]` int64.
    fn run(&self, qkv: usize, tokens: usize, cos: usize, sin: usize, slots: usize) -> PyResult<()> {
        // SAFETY: see the module's contract.
        let slots = unsafe { slice(slots, tokens) };
        self.cache.check_slots(slots)?;
        typed!(self.dtype, E => self.typed::<E>(qkv, slots, cos, sin));
        Ok(())
    }
}

impl Rope {
    fn typed<E: Stored>(&self, qkv: usize, slots: &[i64], cos: usize, sin: usize) {
        let (shape, tokens) = (self.cache.shape, slots.len());
        // SAFETY: see the module's contract.
        let job = unsafe {
            kernels::Rope {
                qkv: rows_mut::<E>(qkv, tokens, (self.heads + 2 * shape.heads) * shape.head_dim),
                cos: rows(cos, tokens, self.half),
                sin: rows(sin, tokens, self.half),
                slots,
                norms: self.norms.as_ref().map(pair::<E>),
                eps: self.eps,
                cache: self.cache.view(),
            }
        };
        self.machine.executor.run(|team| kernels::rope(self.machine.level, team, &job));
    }
}

/// How a step's queries are cut, and the block table they look things up in.
#[pyclass(module = "frizzen._core.cpu", frozen)]
pub(crate) struct Tiles {
    pub(crate) cuts: Vec<QueryTile>,
    pub(crate) tokens: usize,
    table: (usize, usize, usize, usize),
    blocks: usize,
}

#[pymethods]
impl Tiles {
    /// `query_start [rows + 1]` and `seq_lens [rows]` int32; `table [rows, width]` int32, its rows `stride` elements
    /// apart, read until the last layer is done. `group` is the number of query heads per key-value head.
    #[new]
    #[pyo3(signature = (*, query_start, seq_lens, rows, table, width, stride, block_size, blocks, group))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn new(
        query_start: usize,
        seq_lens: usize,
        rows: usize,
        table: usize,
        width: usize,
        stride: usize,
        block_size: usize,
        blocks: usize,
        group: usize,
    ) -> PyResult<Self> {
        // SAFETY: see the module's contract.
        let (starts, lengths): (&[i32], &[i32]) =
            unsafe { (slice(query_start, rows + 1), slice(seq_lens, rows)) };
        let mut this = Self { cuts: Vec::new(), tokens: 0, table: (table, rows, width, stride), blocks };
        if block_size == 0 {
            return Err(PyValueError::new_err("block_size is 0"));
        }
        this.cuts = kernels::tiles(starts, lengths, this.table(), block_size, blocks, group)
            .map_err(PyValueError::new_err)?;
        this.tokens = starts.last().map_or(0, |tokens| *tokens as usize);
        Ok(this)
    }
}

impl Tiles {
    /// The block table, while the tensor lives.
    pub(crate) fn table<'a>(&self) -> Rows<'a, i32> {
        let (address, rows, width, stride) = self.table;
        // SAFETY: see the module's contract.
        unsafe { Rows::from_raw(at(address), rows, width, stride) }
    }

    /// An error if the cache has other blocks than the tiles were checked against.
    pub(crate) fn check(&self, shape: CacheShape) -> PyResult<()> {
        expect("number of cache blocks", shape.blocks, self.blocks)
    }
}

/// Attention over one layer's cache.
#[pyclass(module = "frizzen._core.cpu", frozen)]
pub(crate) struct Attention {
    machine: Arc<Machine>,
    pub(crate) dtype: Dtype,
    pub(crate) cache: LayerCache,
    pub(crate) heads: usize,
    pub(crate) scale: f32,
    pub(crate) window: usize,
    pub(crate) sinks: Option<Numbers>,
}

#[pymethods]
impl Attention {
    /// `shape` is that of the cache: blocks, block size, key-value heads, head size. `window` 0 is none; `sinks
    /// [heads]`, copied.
    #[new]
    #[pyo3(signature = (kernels, dtype, cache, shape, *, heads, scale, window, sinks))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn new(
        kernels: &Kernels,
        dtype: &str,
        cache: usize,
        shape: (usize, usize, usize, usize),
        heads: usize,
        scale: f32,
        window: usize,
        sinks: Option<usize>,
    ) -> PyResult<Self> {
        let dtype: Dtype = dtype.parse()?;
        let cache = LayerCache::new(cache, shape)?;
        if heads == 0 || !heads.is_multiple_of(cache.shape.heads) {
            let text = format!("heads is {heads}, expected a multiple of {}", cache.shape.heads);
            return Err(PyValueError::new_err(text));
        }
        // SAFETY: see the module's contract.
        let sinks = sinks.map(|address| unsafe { Numbers::copy(dtype, address, heads) });
        Ok(Self { machine: Arc::clone(&kernels.0), dtype, cache, heads, scale, window, sinks })
    }

    /// `q [tokens, heads * head_dim]`, its rows `stride` elements apart; `out [tokens, heads * head_dim]`.
    fn run(&self, q: usize, stride: usize, tiles: &Tiles, out: usize) -> PyResult<()> {
        tiles.check(self.cache.shape)?;
        typed!(self.dtype, E => self.typed::<E>(q, stride, tiles, out));
        Ok(())
    }
}

impl Attention {
    fn typed<E: Stored>(&self, q: usize, stride: usize, tiles: &Tiles, out: usize) {
        let cols = self.heads * self.cache.shape.head_dim;
        // SAFETY: see the module's contract.
        let (q, cache, out) = unsafe {
            (
                Rows::from_raw(at(q), tiles.tokens, cols, stride),
                self.cache.view(),
                rows_mut(out, tiles.tokens, cols),
            )
        };
        let job = kernels::Attention::<E> {
            q,
            cache,
            block_table: tiles.table(),
            tiles: &tiles.cuts,
            scale: self.scale,
            window: self.window,
            sinks: self.sinks.as_ref().map(E::of),
            out,
        };
        self.machine.executor.run(|team| kernels::attention(self.machine.level, team, &job));
    }
}

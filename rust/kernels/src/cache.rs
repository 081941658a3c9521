//! Keys and values of one layer, in blocks.
//!
//! A block of one key-value head holds its keys transposed, `[D, block_size]`, so that a vector is one dimension of
//! many positions and a score needs no sum over lanes, and its values as they are, `[block_size, D]`. The whole is
//! `[blocks, heads, 2, D * block_size]`: what a task reads of a block is one piece.

use std::marker::PhantomData;

use crate::element::Element;
use crate::simd::GRANULE;

/// Largest head.
pub const MAX_HEAD_DIM: usize = 256;

/// How a cache is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Blocks, the null block included.
    pub blocks: usize,
    /// Positions per block, a multiple of 16.
    pub block_size: usize,
    /// Key-value heads.
    pub heads: usize,
    /// Elements per head, a multiple of 16 and at most [`MAX_HEAD_DIM`].
    pub head_dim: usize,
}

impl CacheShape {
    /// Elements of one head's keys (or values) in one block.
    const fn head_len(&self) -> usize {
        self.head_dim * self.block_size
    }

    /// Elements of the whole cache.
    pub const fn len(&self) -> usize {
        self.blocks * 2 * self.heads * self.head_len()
    }

    /// True if there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn check(&self) {
        assert!(
            self.block_size > 0 && self.block_size.is_multiple_of(GRANULE),
            "block size {}",
            self.block_size
        );
        let dim = self.head_dim;
        assert!(dim > 0 && dim.is_multiple_of(GRANULE) && dim <= MAX_HEAD_DIM, "head size {dim}");
    }
}

/// A cache that many threads read and write, each position by one of them.
#[derive(Clone, Copy)]
pub struct Cache<'a, E> {
    data: *mut E,
    shape: CacheShape,
    life: PhantomData<&'a mut [E]>,
}

// SAFETY: kernels write positions that belong to one task each, and read only what was written before a barrier.
unsafe impl<E: Send> Send for Cache<'_, E> {}
// SAFETY: as above.
unsafe impl<E: Send> Sync for Cache<'_, E> {}

impl<'a, E: Element> Cache<'a, E> {
    /// A cache in a slice.
    ///
    /// # Panics
    /// If the length or the sizes do not fit.
    pub fn new(shape: CacheShape, data: &'a mut [E]) -> Self {
        shape.check();
        assert_eq!(data.len(), shape.len());
        Self { data: data.as_mut_ptr(), shape, life: PhantomData }
    }

    /// A cache in memory of somebody else's.
    ///
    /// # Safety
    /// For `'a`, `shape.len()` elements are valid at `data`, and nobody else reads or writes them.
    ///
    /// # Panics
    /// If the sizes do not fit.
    pub unsafe fn from_raw(shape: CacheShape, data: *mut E) -> Self {
        shape.check();
        Self { data, shape, life: PhantomData }
    }

    /// Its shape.
    pub const fn shape(&self) -> CacheShape {
        self.shape
    }

    /// The keys of a head in a block, `[D, block_size]`.
    #[inline(always)]
    pub(crate) fn keys(&self, block: usize, head: usize) -> *mut E {
        self.at(block, 0, head)
    }

    /// The values of a head in a block, `[block_size, D]`.
    #[inline(always)]
    pub(crate) fn values(&self, block: usize, head: usize) -> *mut E {
        self.at(block, 1, head)
    }

    #[inline(always)]
    fn at(&self, block: usize, part: usize, head: usize) -> *mut E {
        assert!(block < self.shape.blocks && head < self.shape.heads);
        // Within the cache by the assertion.
        self.data.wrapping_add(((block * self.shape.heads + head) * 2 + part) * self.shape.head_len())
    }

    /// Writes key and value of one head at a slot.
    ///
    /// # Safety
    /// Nobody else reads or writes that slot and head now.
    ///
    /// # Panics
    /// If the slot or a length is out of range.
    #[inline(always)]
    pub(crate) unsafe fn write(&self, slot: usize, head: usize, key: &[E], value: &[E]) {
        let CacheShape { block_size, head_dim, .. } = self.shape;
        assert!(key.len() == head_dim && value.len() == head_dim);
        let (block, offset) = (slot / block_size, slot % block_size);
        let keys = self.keys(block, head).wrapping_add(offset);
        // SAFETY: element `d` of the key is at `d * block_size + offset` of the block, the value is one row of it.
        unsafe {
            for (d, key) in key.iter().enumerate() {
                *keys.add(d * block_size) = *key;
            }
            let values = self.values(block, head).add(offset * head_dim);
            std::ptr::copy_nonoverlapping(value.as_ptr(), values, head_dim);
        }
    }
}

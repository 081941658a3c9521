//! Memory of our own that starts on a cache line.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::element::Element;

/// A slice of numbers, zero at first and aligned to 64 bytes: a vector never straddles two cache lines.
#[derive(Debug)]
pub struct Buffer<E> {
    data: NonNull<E>,
    len: usize,
}

// SAFETY: it owns its memory, like a `Vec`.
unsafe impl<E: Send> Send for Buffer<E> {}
// SAFETY: as above.
unsafe impl<E: Sync> Sync for Buffer<E> {}

impl<E: Element> Buffer<E> {
    /// `len` zeros. The system provides the pages of a large buffer as they are touched.
    pub fn new(len: usize) -> Self {
        let layout = Self::layout(len);
        if layout.size() == 0 {
            return Self { data: NonNull::dangling(), len };
        }
        // SAFETY: the size is not zero.
        let data = unsafe { alloc_zeroed(layout) };
        let Some(data) = NonNull::new(data.cast()) else { handle_alloc_error(layout) };
        Self { data, len }
    }
}

impl<E> Buffer<E> {
    fn layout(len: usize) -> Layout {
        let bytes = len.checked_mul(size_of::<E>()).expect("a tensor that exists fits in memory");
        Layout::from_size_align(bytes, 64).expect("a tensor that exists fits in memory")
    }
}

impl<E> Drop for Buffer<E> {
    fn drop(&mut self) {
        let layout = Self::layout(self.len);
        if layout.size() > 0 {
            // SAFETY: allocated with this layout; elements have no destructor.
            unsafe { dealloc(self.data.as_ptr().cast(), layout) }
        }
    }
}

impl<E> Deref for Buffer<E> {
    type Target = [E];
    #[inline(always)]
    fn deref(&self) -> &[E] {
        // SAFETY: `new` made room for `len` elements, of which every bit pattern is one.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl<E> DerefMut for Buffer<E> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [E] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
    }
}

//! Views of row-major tensors whose rows are shared out between threads.

use std::marker::PhantomData;
use std::ops::Range;

/// `[rows, cols]`, read by any thread.
#[derive(Clone, Copy)]
pub struct Rows<'a, E> {
    data: *const E,
    stride: usize,
    count: usize,
    cols: usize,
    life: PhantomData<&'a [E]>,
}

/// `[rows, cols]`, written by many threads, each its own part.
#[derive(Clone, Copy)]
pub struct RowsMut<'a, E> {
    data: *mut E,
    stride: usize,
    count: usize,
    cols: usize,
    life: PhantomData<&'a mut [E]>,
}

// SAFETY: a shared slice of numbers.
unsafe impl<E: Sync> Send for Rows<'_, E> {}
// SAFETY: as above.
unsafe impl<E: Sync> Sync for Rows<'_, E> {}
// SAFETY: access is through `part`, whose caller promises that parts do not overlap.
unsafe impl<E: Send> Send for RowsMut<'_, E> {}
// SAFETY: as above.
unsafe impl<E: Send> Sync for RowsMut<'_, E> {}

impl<'a, E> Rows<'a, E> {
    /// All rows of a dense slice.
    ///
    /// # Panics
    /// If the slice is not a whole number of rows.
    pub fn new(data: &'a [E], cols: usize) -> Self {
        assert!(cols > 0 && data.len().is_multiple_of(cols), "{} is not rows of {cols}", data.len());
        Self { data: data.as_ptr(), stride: cols, count: data.len() / cols, cols, life: PhantomData }
    }

    /// Rows `stride` elements apart.
    ///
    /// # Safety
    /// For `'a`, `cols` elements are readable at each of the `rows` starts, and nobody writes them.
    pub unsafe fn from_raw(data: *const E, rows: usize, cols: usize, stride: usize) -> Self {
        Self { data, stride, count: rows, cols, life: PhantomData }
    }

    /// Number of rows.
    pub const fn rows(&self) -> usize {
        self.count
    }

    /// Elements per row.
    pub const fn cols(&self) -> usize {
        self.cols
    }

    /// Elements from one row's start to the next one's.
    pub const fn stride(&self) -> usize {
        self.stride
    }

    /// The same rows, without the other columns.
    ///
    /// # Panics
    /// If there are no such columns.
    #[must_use]
    pub fn columns(&self, cols: Range<usize>) -> Self {
        assert!(cols.start <= cols.end && cols.end <= self.cols);
        Self { data: self.data.wrapping_add(cols.start), cols: cols.len(), ..*self }
    }

    /// Row `i`.
    #[inline(always)]
    pub fn row(&self, i: usize) -> &'a [E] {
        assert!(i < self.count);
        // SAFETY: the constructors' promise.
        unsafe { std::slice::from_raw_parts(self.data.add(i * self.stride), self.cols) }
    }
}

impl<'a, E> RowsMut<'a, E> {
    /// All rows of a dense slice.
    ///
    /// # Panics
    /// If the slice is not a whole number of rows.
    pub fn new(data: &'a mut [E], cols: usize) -> Self {
        assert!(cols > 0 && data.len().is_multiple_of(cols), "{} is not rows of {cols}", data.len());
        Self { data: data.as_mut_ptr(), stride: cols, count: data.len() / cols, cols, life: PhantomData }
    }

    /// Rows `stride` elements apart.
    ///
    /// # Safety
    /// For `'a`, `cols` elements are valid at each of the `rows` starts, and nobody else reads or writes them.
    pub unsafe fn from_raw(data: *mut E, rows: usize, cols: usize, stride: usize) -> Self {
        Self { data, stride, count: rows, cols, life: PhantomData }
    }

    /// Number of rows.
    pub const fn rows(&self) -> usize {
        self.count
    }

    /// Elements per row.
    pub const fn cols(&self) -> usize {
        self.cols
    }

    /// Columns `cols` of row `i`.
    ///
    /// # Safety
    /// No overlapping part is alive, on this thread or another.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the caller promises what the borrow checker cannot see")]
    pub unsafe fn part(&self, i: usize, cols: Range<usize>) -> &mut [E] {
        assert!(i < self.count && cols.start <= cols.end && cols.end <= self.cols);
        // SAFETY: in bounds by the constructors' promise, exclusive by the caller's.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(i * self.stride + cols.start), cols.len()) }
    }

    /// Row `i`.
    ///
    /// # Safety
    /// As for [`Self::part`].
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "as for `part`")]
    pub unsafe fn row(&self, i: usize) -> &mut [E] {
        // SAFETY: the caller's promise.
        unsafe { self.part(i, 0..self.cols) }
    }

    /// The rows to read, once a barrier has ended the writing.
    ///
    /// # Safety
    /// Nobody writes them while the view is used.
    pub unsafe fn read(&self) -> Rows<'a, E> {
        // SAFETY: the caller's promise and the constructors'.
        unsafe { Rows::from_raw(self.data, self.count, self.cols, self.stride) }
    }
}

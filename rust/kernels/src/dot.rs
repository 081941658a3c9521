//! The one inner loop: a few rows times a few vectors of columns.
//!
//! Invariant that everything above relies on: each element of the result is one chain of multiply-adds along the
//! summed dimension, in order, so its value does not depend on how many rows or columns are computed together.

use crate::element::Element;
use crate::simd::Simd;

/// Accumulators of `R` rows and `V` vectors.
pub(crate) type Tile<F, const R: usize, const V: usize> = [[F; V]; R];

/// Where the left factor is: rows of words, `stride` elements apart.
#[derive(Clone, Copy)]
pub(crate) struct Left<E> {
    pub(crate) at: *const E,
    pub(crate) stride: usize,
}

/// Where the right factor is: `V` vectors of columns, each a sequence of words.
pub(crate) trait Right<E: Element, const V: usize>: Copy {
    /// Word `i` of vector `v`.
    ///
    /// # Safety
    /// That word is readable.
    unsafe fn word<S: Simd>(&self, s: S, i: usize, v: usize) -> E::Words<S>;
}

/// A panel of a packed matrix.
#[derive(Clone, Copy)]
pub(crate) struct Panel<E> {
    pub(crate) at: *const E,
    /// Elements from one word to the next of the same column.
    pub(crate) stride: usize,
}

impl<E: Element, const V: usize> Right<E, V> for Panel<E> {
    #[inline(always)]
    unsafe fn word<S: Simd>(&self, s: S, i: usize, v: usize) -> E::Words<S> {
        // SAFETY: the caller's promise.
        unsafe { E::words(s, self.at.add(i * self.stride + v * S::LANES * E::STEP)) }
    }
}

/// Rows of a plain matrix, `stride` elements apart; the vectors may be anywhere.
#[derive(Clone, Copy)]
pub(crate) struct Plain<E, const V: usize> {
    pub(crate) at: [*const E; V],
    pub(crate) stride: usize,
    /// Rows that are to be read; zeros stand for the rest of the last word.
    pub(crate) rows: usize,
}

impl<E: Element, const V: usize> Right<E, V> for Plain<E, V> {
    #[inline(always)]
    unsafe fn word<S: Simd>(&self, s: S, i: usize, v: usize) -> E::Words<S> {
        let row = i * E::STEP;
        // SAFETY: the caller's promise.
        unsafe { E::words_of_rows(s, self.at[v].add(row * self.stride), self.stride, self.rows - row) }
    }
}

/// What is needed next and should be on its way meanwhile: a cache line per word, from each of these places.
#[derive(Clone, Copy)]
pub(crate) struct Next<const V: usize> {
    pub(crate) at: [*const u8; V],
    pub(crate) places: Places,
}

/// How many of the places of [`Next`] count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Places {
    None,
    First,
    All,
}

impl<const V: usize> Next<V> {
    /// Nothing.
    pub(crate) const NONE: Self = Self { at: [std::ptr::null(); V], places: Places::None };

    #[inline(always)]
    fn prefetch<S: Simd>(&self, s: S, i: usize) {
        if self.places == Places::None {
            return;
        }
        s.prefetch(self.at[0].wrapping_add(i * LINE));
        if self.places == Places::All {
            for at in &self.at[1..] {
                s.prefetch(at.wrapping_add(i * LINE));
            }
        }
    }
}

/// Bytes of a cache line, or half of one: asking twice costs little.
pub(crate) const LINE: usize = 64;

/// `acc[r][v] += sum over words i of left[r][i] . right[v][i]`.
///
/// # Safety
/// `words` words are readable in each row of `left` and in each vector of `right`.
#[inline(always)]
#[expect(
    clippy::needless_range_loop,
    reason = "constant bounds, which iterators hide from the register allocator"
)]
pub(crate) unsafe fn dot<S: Simd, E: Element, const R: usize, const V: usize>(
    s: S,
    words: usize,
    left: Left<E>,
    right: impl Right<E, V>,
    next: Next<V>,
    acc: &mut Tile<S::F32, R, V>,
) {
    for i in 0..words {
        next.prefetch(s, i);
        // SAFETY: the caller's promise, word `i` of each vector and row.
        unsafe {
            let mut columns = [right.word(s, i, 0); V];
            for v in 1..V {
                columns[v] = right.word(s, i, v);
            }
            for r in 0..R {
                let x = E::splat_word(s, left.at.add(r * left.stride + i * E::STEP));
                for v in 0..V {
                    acc[r][v] = E::dot(s, x, columns[v], acc[r][v]);
                }
            }
        }
    }
}

/// Calls `$body` with the constant `$rows` equal to `$value`, which is from 1 to `$most`, itself at most 8.
///
/// The guards are constants, so that no code is made for more than `$most` rows.
macro_rules! with_rows {
    ($value:expr, $rows:ident <= $most:ident => $body:expr) => {
        match $value {
            1 => with_rows!(1, $rows, $body),
            2 => with_rows!(2, $rows, $body),
            3 => with_rows!(3, $rows, $body),
            4 => with_rows!(4, $rows, $body),
            5 if const { $most >= 5 } => with_rows!(5, $rows, $body),
            6 if const { $most >= 6 } => with_rows!(6, $rows, $body),
            7 if const { $most >= 7 } => with_rows!(7, $rows, $body),
            8 if const { $most >= 8 } => with_rows!(8, $rows, $body),
            other => unreachable!("{other} rows in one tile"),
        }
    };
    ($constant:literal, $rows:ident, $body:expr) => {{
        const $rows: usize = $constant;
        $body
    }};
}
pub(crate) use with_rows;

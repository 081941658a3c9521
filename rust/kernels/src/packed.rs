//! Weight matrices laid out for streaming.
//!
//! A packed matrix is a sequence of *panels*, each the [`Level::panel`] consecutive output columns of `W^T` that one
//! pass computes: `[panels, K / STEP, panel, STEP]`. A product with one row reads it from front to back exactly once.
//! The last panel is filled up with zeros. The layout is private to the level that packed it.

use crate::element::Element;
use crate::parallel::Team;
use crate::rows::{Rows, RowsMut};
use crate::simd::Level;

/// How a matrix `[n, k]` (`n` outputs, `k` inputs) is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedShape {
    /// Outputs.
    pub n: usize,
    /// Inputs.
    pub k: usize,
    /// Columns per panel.
    pub panel: usize,
}

impl PackedShape {
    /// The shape at `level`.
    ///
    /// # Panics
    /// If `k` is not a whole number of words of `E`.
    pub fn new<E: Element>(level: Level, n: usize, k: usize) -> Self {
        assert!(k.is_multiple_of(E::STEP), "{k} inputs are not whole words of {}", E::STEP);
        Self { n, k, panel: level.panel() }
    }

    /// Number of panels.
    pub const fn panels(&self) -> usize {
        self.n.div_ceil(self.panel)
    }

    /// Elements of one panel.
    pub const fn panel_len(&self) -> usize {
        self.panel * self.k
    }

    /// Elements of the whole.
    pub const fn len(&self) -> usize {
        self.panels() * self.panel_len()
    }

    /// True if there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where word 0 of output `column` starts, and the distance to its next word.
    const fn column<E: Element>(&self, column: usize) -> (usize, usize) {
        let start = column / self.panel * self.panel_len() + column % self.panel * E::STEP;
        (start, self.panel * E::STEP)
    }
}

/// A packed matrix, read by any thread.
#[derive(Clone, Copy)]
pub struct Packed<'a, E> {
    shape: PackedShape,
    data: &'a [E],
}

impl<'a, E: Element> Packed<'a, E> {
    /// Data that [`pack`] wrote for this shape.
    ///
    /// # Panics
    /// If the length differs from the shape's.
    pub fn new(shape: PackedShape, data: &'a [E]) -> Self {
        assert_eq!(data.len(), shape.len(), "packed data of another shape than {shape:?}");
        Self { shape, data }
    }

    /// Its shape.
    pub const fn shape(&self) -> PackedShape {
        self.shape
    }

    /// The elements of panel `p`.
    #[inline(always)]
    pub(crate) fn panel(&self, p: usize) -> &'a [E] {
        let len = self.shape.panel_len();
        &self.data[p * len..(p + 1) * len]
    }

    /// Row `n` of the matrix that was packed.
    ///
    /// # Panics
    /// If `n` is out of range, or `out` is not `k` long.
    pub fn unpack_row(&self, n: usize, out: &mut [E]) {
        assert!(n < self.shape.n && out.len() == self.shape.k);
        let (start, stride) = self.shape.column::<E>(n);
        for (i, word) in out.chunks_exact_mut(E::STEP).enumerate() {
            let at = start + i * stride;
            word.copy_from_slice(&self.data[at..at + E::STEP]);
        }
    }
}

/// Packs `source`, `[n, k]`, into `out`, one row per panel.
///
/// # Panics
/// If the shapes differ.
pub fn pack<E: Element>(team: Team<'_>, shape: PackedShape, source: Rows<'_, E>, out: RowsMut<'_, E>) {
    assert_eq!((source.rows(), source.cols()), (shape.n, shape.k));
    assert_eq!((out.rows(), out.cols()), (shape.panels(), shape.panel_len()));
    team.for_each(shape.panels(), |p| {
        // SAFETY: one task per panel.
        let panel = unsafe { out.row(p) };
        panel.fill(E::default());
        for lane in 0..shape.panel.min(shape.n - p * shape.panel) {
            let row = source.row(p * shape.panel + lane);
            for (i, word) in row.chunks_exact(E::STEP).enumerate() {
                let at = (i * shape.panel + lane) * E::STEP;
                panel[at..at + E::STEP].copy_from_slice(word);
            }
        }
    });
}

/// `out[t] = row ids[t]` of a packed matrix: the embedding of a model whose head shares its weights.
///
/// # Panics
/// If an id is out of range, or the shapes differ.
pub fn embed<E: Element>(team: Team<'_>, ids: &[i64], table: Packed<'_, E>, out: RowsMut<'_, E>) {
    assert_eq!((out.rows(), out.cols()), (ids.len(), table.shape.k));
    team.for_each(ids.len(), |t| {
        // SAFETY: one task per row.
        table.unpack_row(ids[t] as usize, unsafe { out.row(t) });
    });
}

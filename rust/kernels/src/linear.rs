//! `y = x W^T + b` for one row up to a whole prefill, on packed weights.
//!
//! Each output is one chain of multiply-adds over the inputs in order, in single precision, so a row's result is the
//! same to the bit alone, in a batch and in a chunk of any size.

use std::ops::Range;

use crate::dot::{LINE, Left, Next, Panel, Places, Tile, dot, with_rows};
use crate::element::{Element, load_part, store_part};
use crate::math::silu;
use crate::packed::Packed;
use crate::parallel::Team;
use crate::rows::{Rows, RowsMut};
use crate::simd::{Kernel, Level, Simd};

/// Inputs of the rows that a core keeps in its cache while the panels stream past them, in bytes.
const CHUNK_BYTES: usize = 256 << 10;
/// Fewest rows of a chunk, whatever their size: the weights are read from memory once per chunk.
const CHUNK_ROWS: usize = 64;

/// What happens to a result.
#[derive(Clone, Copy)]
pub enum Output<'a, E> {
    /// Stored in the model's type.
    Store(RowsMut<'a, E>),
    /// Added to what is there: the residual stream.
    Add(RowsMut<'a, E>),
    /// Stored in single precision: logits.
    Float(RowsMut<'a, f32>),
}

impl<E: Element> Output<'_, E> {
    /// # Safety
    /// As for [`RowsMut::part`].
    #[inline(always)]
    unsafe fn put<S: Simd>(&self, s: S, value: S::F32, row: usize, cols: Range<usize>) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Store(out) => store_part(s, value, out.part(row, cols)),
                Self::Float(out) => store_part(s, value, out.part(row, cols)),
                Self::Add(out) => {
                    let out = out.part(row, cols);
                    store_part(s, s.add(load_part(s, out), value), out);
                }
            }
        }
    }
}

/// One product.
#[derive(Clone, Copy)]
pub struct Linear<'a, E> {
    /// `[M, K]`.
    pub x: Rows<'a, E>,
    /// `[N, K]`.
    pub weight: Packed<'a, E>,
    /// `[N]`.
    pub bias: Option<&'a [E]>,
    /// `[M, N]`.
    pub out: Output<'a, E>,
}

/// The two products of a gated network: `out = silu(x G^T + g) * (x U^T + u)`, not rounded in between.
#[derive(Clone, Copy)]
pub struct GatedLinear<'a, E> {
    /// `[M, K]`.
    pub x: Rows<'a, E>,
    /// `[N, K]`.
    pub gate: Packed<'a, E>,
    /// `[N, K]`.
    pub up: Packed<'a, E>,
    /// `[N]` each, of the gate and of the other.
    pub bias: Option<(&'a [E], &'a [E])>,
    /// `[M, N]`.
    pub out: RowsMut<'a, E>,
}

/// Computes the product on a team.
///
/// # Panics
/// If the shapes differ.
pub fn linear<E: Element>(level: Level, team: Team<'_>, job: &Linear<'_, E>) {
    let shape = job.weight.shape();
    let (rows, cols) = match &job.out {
        Output::Store(out) | Output::Add(out) => (out.rows(), out.cols()),
        Output::Float(out) => (out.rows(), out.cols()),
    };
    assert_eq!((job.x.rows(), job.x.cols()), (rows, shape.k));
    assert_eq!((cols, level.panel()), (shape.n, shape.panel));
    assert!(job.bias.is_none_or(|bias| bias.len() == shape.n));
    level.dispatch(Run { team, x: job.x, work: *job });
}

/// Computes both products on a team.
///
/// # Panics
/// If the shapes differ.
pub fn gated_linear<E: Element>(level: Level, team: Team<'_>, job: &GatedLinear<'_, E>) {
    let shape = job.gate.shape();
    assert_eq!((job.x.rows(), job.x.cols()), (job.out.rows(), shape.k));
    assert_eq!((job.up.shape(), job.out.cols(), level.panel()), (shape, shape.n, shape.panel));
    assert!(job.bias.is_none_or(|(gate, up)| gate.len() == shape.n && up.len() == shape.n));
    level.dispatch(Run { team, x: job.x, work: *job });
}

/// What is done with a few rows and one panel. All `#[inline(always)]`.
trait Work: Copy {
    type E: Element;
    fn panels(&self) -> usize;
    /// Computes rows `first..first + R` and the columns of one panel.
    fn tile<S: Simd, const R: usize, const V: usize>(&self, s: S, first: usize, panel: usize, share: Share);
}

/// Which pass over a panel this is, of how many.
#[derive(Clone, Copy)]
struct Share {
    index: usize,
    of: usize,
}

struct Run<'a, W: Work> {
    team: Team<'a>,
    x: Rows<'a, W::E>,
    work: W,
}

impl<W: Work> Kernel for Run<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // As many accumulators as the registers hold beside one word of each column vector.
        if const { S::LANES == 16 } { self.go::<S, 8, 3>(s) } else { self.go::<S, 4, 2>(s) }
    }
}

impl<W: Work> Run<'_, W> {
    #[inline(always)]
    fn go<S: Simd, const MAX: usize, const V: usize>(self, s: S) {
        let rows = self.x.rows();
        let most = (CHUNK_BYTES / (self.x.cols() * size_of::<W::E>())).max(CHUNK_ROWS) / MAX * MAX;
        let chunks = rows.div_ceil(most);
        let panels = self.work.panels();
        for task in self.team.tasks(chunks * panels) {
            let (chunk, panel) = (task / panels, task % panels);
            let first = chunk * most;
            let count = most.min(rows - first);
            let blocks = count.div_ceil(MAX);
            for block in 0..blocks {
                let start = first + count * block / blocks;
                let end = first + count * (block + 1) / blocks;
                let share = Share { index: block, of: blocks };
                with_rows!(end - start, R <= MAX => self.work.tile::<S, R, V>(s, start, panel, share));
            }
        }
        self.team.barrier();
    }
}

/// The accumulators of `R` rows and one panel.
#[inline(always)]
fn product<S: Simd, E: Element, const R: usize, const V: usize>(
    s: S,
    x: Rows<'_, E>,
    first: usize,
    weight: Packed<'_, E>,
    panel: usize,
    share: Share,
) -> Tile<S::F32, R, V> {
    let shape = weight.shape();
    let words = shape.k / E::STEP;
    let left = Left { at: x.row(first).as_ptr(), stride: x.stride() };
    let right = Panel { at: weight.panel(panel).as_ptr(), stride: shape.panel * E::STEP };
    let _bounds = x.row(first + R - 1);
    let mut acc = [[s.splat(0.0); V]; R];
    // SAFETY: `words` words are in each row (the shapes were compared) and in each of the panel's V vectors.
    unsafe { dot(s, words, left, right, next_panel(weight, panel, share), &mut acc) };
    acc
}

/// A first pass over a panel waits for memory, further ones do not touch it: let each pass fetch its share of the
/// next panel, a third of it or all.
#[inline(always)]
fn next_panel<E: Element, const V: usize>(weight: Packed<'_, E>, panel: usize, share: Share) -> Next<V> {
    let shape = weight.shape();
    if panel + 1 >= shape.panels() || share.index >= V {
        return Next::NONE;
    }
    let start = weight.panel(panel + 1).as_ptr().cast::<u8>();
    let places = if share.of < V { Places::All } else { Places::First };
    let mut at = [start; V];
    for (v, at) in at.iter_mut().enumerate() {
        *at = start.wrapping_add((share.index + v) * (shape.k / E::STEP) * LINE);
    }
    Next { at, places }
}

impl<E: Element> Work for Linear<'_, E> {
    type E = E;

    #[inline(always)]
    fn panels(&self) -> usize {
        self.weight.shape().panels()
    }

    #[inline(always)]
    fn tile<S: Simd, const R: usize, const V: usize>(&self, s: S, first: usize, panel: usize, share: Share) {
        let acc = product::<S, E, R, V>(s, self.x, first, self.weight, panel, share);
        let column = panel * V * S::LANES;
        let shape = self.weight.shape();
        for (r, acc) in acc.into_iter().enumerate() {
            for (v, mut value) in acc.into_iter().enumerate() {
                let start = column + v * S::LANES;
                if start >= shape.n {
                    break;
                }
                let part = start..shape.n.min(start + S::LANES);
                if let Some(bias) = self.bias {
                    value = s.add(value, load_part(s, &bias[part.clone()]));
                }
                // SAFETY: one task per rows and panel.
                unsafe { self.out.put(s, value, first + r, part) };
            }
        }
    }
}

impl<E: Element> Work for GatedLinear<'_, E> {
    type E = E;

    #[inline(always)]
    fn panels(&self) -> usize {
        self.gate.shape().panels()
    }

    #[inline(always)]
    fn tile<S: Simd, const R: usize, const V: usize>(&self, s: S, first: usize, panel: usize, share: Share) {
        let gate = product::<S, E, R, V>(s, self.x, first, self.gate, panel, share);
        let up = product::<S, E, R, V>(s, self.x, first, self.up, panel, share);
        let n = self.gate.shape().n;
        for (r, (gate, up)) in gate.into_iter().zip(up).enumerate() {
            for (v, (mut gate, mut up)) in gate.into_iter().zip(up).enumerate() {
                let start = (panel * V + v) * S::LANES;
                if start >= n {
                    break;
                }
                let part = start..n.min(start + S::LANES);
                if let Some((gate_bias, up_bias)) = self.bias {
                    gate = s.add(gate, load_part(s, &gate_bias[part.clone()]));
                    up = s.add(up, load_part(s, &up_bias[part.clone()]));
                }
                // SAFETY: one task per rows and panel.
                let out = unsafe { self.out.part(first + r, part) };
                store_part(s, s.mul(silu(s, gate), up), out);
            }
        }
    }
}

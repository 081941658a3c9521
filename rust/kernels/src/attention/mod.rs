//! Causal attention over a paged cache, for decode rows and prefill chunks alike.
//!
//! A task is a *tile*: the query heads that share a key-value head, of a few consecutive tokens of one row. It walks
//! the row's context in chunks of [`CHUNK`] positions with an online softmax. Chunk borders are multiples of `CHUNK`
//! in the row's own positions, and a chunk that is masked for one query of the tile leaves that query's state as it
//! was, to the bit: so a query's result does not depend on which others are in its tile.

mod tile;

use crate::cache::Cache;
use crate::element::Element;
use crate::parallel::Team;
use crate::rows::{Rows, RowsMut};
use crate::simd::{Kernel, Level, Simd};

/// Positions between two updates of the running maximum.
const CHUNK: usize = 64;
/// Queries of a tile; more reuse each key further, fewer stay in the innermost cache.
const TILE_ROWS: usize = 48;

/// One attention layer of a step. Query head `n` reads key-value head `n / (N / M)`.
#[derive(Clone, Copy)]
pub struct Attention<'a, E> {
    /// `[T, N * D]`.
    pub q: Rows<'a, E>,
    /// Keys and values, those of the step's tokens included.
    pub cache: Cache<'a, E>,
    /// `[B, blocks]`, the blocks of each row's context in order.
    pub block_table: Rows<'a, i32>,
    /// The queries of the step, from [`tiles`].
    pub tiles: &'a [QueryTile],
    /// Factor of `q . k`.
    pub scale: f32,
    /// Most recent positions that a token sees, itself included; 0 = all.
    pub window: usize,
    /// `[N]`: one more logit per query head, which has no value and so only takes weight from the others.
    pub sinks: Option<&'a [E]>,
    /// `[T, N * D]`.
    pub out: RowsMut<'a, E>,
}

/// Consecutive tokens of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryTile {
    /// Row of the block table.
    row: usize,
    /// First token in the step.
    token: usize,
    /// Number of tokens.
    count: usize,
    /// Position of the first token in its row.
    position: usize,
}

/// Cuts the rows of a step into tiles. `query_start` is `[B + 1]`, `seq_lens` and `block_table` have `B` rows; `group`
/// is the number of query heads per key-value head.
///
/// # Errors
/// A sentence, if a row has more tokens than context, or a context more blocks than the table or a block that does
/// not exist: kernels run where they cannot report it.
pub fn tiles(
    query_start: &[i32],
    seq_lens: &[i32],
    block_table: Rows<'_, i32>,
    block_size: usize,
    blocks: usize,
    group: usize,
) -> Result<Vec<QueryTile>, String> {
    let rows = seq_lens.len();
    if query_start.len() != rows + 1 || block_table.rows() < rows {
        return Err(format!(
            "{rows} rows with {} starts and {} block lists",
            query_start.len(),
            block_table.rows()
        ));
    }
    let per_tile = (TILE_ROWS / group.max(1)).max(1);
    let mut tiles = Vec::with_capacity(rows);
    for (row, (bounds, length)) in query_start.windows(2).zip(seq_lens).enumerate() {
        let tokens = usize::try_from(bounds[1] - bounds[0]).unwrap_or(0);
        let length = usize::try_from(*length).unwrap_or(0);
        if tokens > length || bounds[0] < 0 {
            return Err(format!("row {row} has tokens {bounds:?} in a context of {length}"));
        }
        let used = length.div_ceil(block_size);
        let known = |block: &i32| usize::try_from(*block).is_ok_and(|block| block < blocks);
        if used > block_table.cols() || !block_table.row(row)[..used].iter().all(known) {
            return Err(format!("row {row} of context {length} has a block that is not one of {blocks}"));
        }
        let first = bounds[0] as usize;
        for start in (0..tokens).step_by(per_tile) {
            tiles.push(QueryTile {
                row,
                token: first + start,
                count: per_tile.min(tokens - start),
                position: length - tokens + start,
            });
        }
    }
    Ok(tiles)
}

/// Attends on a team.
///
/// # Panics
/// If the shapes differ.
pub fn attention<E: Element>(level: Level, team: Team<'_>, job: &Attention<'_, E>) {
    let shape = job.cache.shape();
    assert_eq!((job.q.rows(), job.q.cols()), (job.out.rows(), job.out.cols()));
    assert!(job.q.cols().is_multiple_of(shape.heads * shape.head_dim), "{} columns of queries", job.q.cols());
    let heads = job.q.cols() / shape.head_dim;
    assert!(job.sinks.is_none_or(|sinks| sinks.len() == heads), "{heads} heads");
    level.dispatch(AttentionKernel { team, job: *job });
}

struct AttentionKernel<'a, E> {
    team: Team<'a>,
    job: Attention<'a, E>,
}

impl<E: Element> Kernel for AttentionKernel<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let heads = self.job.cache.shape().heads;
        let group = self.job.q.cols() / self.job.cache.shape().head_dim / heads;
        let most = self.job.tiles.iter().map(|tile| tile.count * group).max().unwrap_or(0);
        let mut state = None;
        for task in self.team.tasks(self.job.tiles.len() * heads) {
            let state = state.get_or_insert_with(|| tile::State::new(most, self.job.cache.shape().head_dim));
            let (tile, head) = (self.job.tiles[task / heads], task % heads);
            // As many accumulators as the registers hold beside one word of each column vector.
            if const { S::LANES == 16 } {
                tile::attend::<S, E, 5, 4>(s, &self.job, tile, head, state);
            } else {
                tile::attend::<S, E, 4, 2>(s, &self.job, tile, head, state);
            }
        }
        self.team.barrier();
    }
}

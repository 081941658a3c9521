use super::{Numbers, Tolerance, assert_close, bits, everywhere, wide};
use crate::{
    Attention, Bf16, Cache, CacheShape, Element, Executor, Level, Rows, RowsMut, attention, reference, tiles,
};

/// A layer with a few requests in its cache; unused slots hold NaN.
struct Scene<E> {
    heads: usize,
    shape: CacheShape,
    window: usize,
    sinks: Option<Vec<E>>,
    data: Vec<E>,
    /// Per row: blocks, and per position and head the queries, keys and values.
    rows: Vec<SceneRow<E>>,
}

struct SceneRow<E> {
    blocks: Vec<i32>,
    /// `[positions, heads * dim]`.
    q: Vec<E>,
    /// `[kv heads][positions]`, each a vector.
    keys: Vec<Vec<Vec<f64>>>,
    values: Vec<Vec<Vec<f64>>>,
}

impl<E: Element> Scene<E> {
    fn new(heads: usize, kv_heads: usize, head_dim: usize, block_size: usize, lengths: &[usize]) -> Self {
        let mut numbers = Numbers::new((heads + head_dim) as u64);
        let blocks = 2 + lengths.iter().map(|n| n.div_ceil(block_size)).sum::<usize>();
        let shape = CacheShape { blocks, block_size, heads: kv_heads, head_dim };
        let mut scene = Self {
            heads,
            shape,
            window: 0,
            sinks: None,
            data: vec![E::from_f32(f32::NAN); shape.len()],
            rows: Vec::new(),
        };
        let mut free: Vec<i32> = (1..blocks as i32).collect();
        for length in lengths {
            let mut take = || free.swap_remove(numbers.below(free.len()));
            let row_blocks = (0..length.div_ceil(block_size)).map(|_| take()).collect();
            scene.add_row(row_blocks, *length, &mut numbers);
        }
        scene
    }

    fn add_row(&mut self, blocks: Vec<i32>, length: usize, numbers: &mut Numbers) {
        let CacheShape { block_size, heads, head_dim, .. } = self.shape;
        let (mut keys, mut values) = (vec![Vec::new(); heads], vec![Vec::new(); heads]);
        for position in 0..length {
            let slot = blocks[position / block_size] as usize * block_size + position % block_size;
            for head in 0..heads {
                let (key, value): (Vec<E>, Vec<E>) = (numbers.tensor(head_dim), numbers.tensor(head_dim));
                let cache = Cache::new(self.shape, &mut self.data);
                // SAFETY: nobody else has the cache.
                unsafe { cache.write(slot, head, &key, &value) };
                keys[head].push(wide(&key));
                values[head].push(wide(&value));
            }
        }
        let q = numbers.tensor(length * self.heads * head_dim);
        self.rows.push(SceneRow { blocks, q, keys, values });
    }

    /// Computes `(row, first position, count)` in one step; the results, one after the other.
    fn step(&mut self, level: Level, executor: &Executor, parts: &[(usize, usize, usize)]) -> Vec<E> {
        let (shape, window) = (self.shape, self.window);
        let cols = self.heads * shape.head_dim;
        let width = self.rows.iter().map(|row| row.blocks.len()).max().unwrap() + 1;
        let (mut table, mut starts, mut lengths, mut q) = (Vec::new(), vec![0], Vec::new(), Vec::new());
        for (row, first, count) in parts {
            let row = &self.rows[*row];
            table.extend(&row.blocks);
            table.resize(table.len().next_multiple_of(width), 0);
            starts.push(starts.last().unwrap() + *count as i32);
            lengths.push((first + count) as i32);
            q.extend(&row.q[first * cols..(first + count) * cols]);
        }
        let mut out = vec![E::default(); q.len()];
        let table = Rows::new(&table, width);
        let group = self.heads / shape.heads;
        let tiles = tiles(&starts, &lengths, table, shape.block_size, shape.blocks, group).unwrap();
        let job = Attention {
            q: Rows::new(&q, cols),
            cache: Cache::new(shape, &mut self.data),
            block_table: table,
            tiles: &tiles,
            scale: (shape.head_dim as f32).sqrt().recip() * 4.0,
            window,
            sinks: self.sinks.as_deref(),
            out: RowsMut::new(&mut out, cols),
        };
        executor.run(|team| attention(level, team, &job));
        out
    }

    fn wanted(&self, (row, first, count): (usize, usize, usize)) -> Vec<f64> {
        let dim = self.shape.head_dim;
        let scale = f64::from((dim as f32).sqrt().recip() * 4.0);
        let row = &self.rows[row];
        let mut out = Vec::new();
        for position in first..first + count {
            let start = if self.window == 0 { 0 } else { (position + 1).saturating_sub(self.window) };
            for head in 0..self.heads {
                let q = wide(&row.q[(position * self.heads + head) * dim..][..dim]);
                let kv = head / (self.heads / self.shape.heads);
                let seen = start..=position;
                let sink = self.sinks.as_ref().map(|sinks| f64::from(sinks[head].to_f32()));
                out.extend(reference::attend(
                    &q,
                    &row.keys[kv][seen.clone()],
                    &row.values[kv][seen],
                    scale,
                    sink,
                ));
            }
        }
        out
    }
}

fn matches_reference<E: Tolerance>(mut scene: Scene<E>) {
    let lengths: Vec<usize> =
        scene.rows.iter().map(|row| row.q.len() / scene.heads / scene.shape.head_dim).collect();
    for (window, sinks) in [(0, None), (24, None), (0, Some(0.5)), (24, Some(3.0))] {
        scene.window = window;
        scene.sinks = sinks.map(|sink| (0..scene.heads).map(|n| E::from_f32(sink * n as f32)).collect());
        // The last token of each row, then everything, then the end of each row.
        let decode: Vec<_> = lengths.iter().enumerate().map(|(row, n)| (row, n - 1, 1)).collect();
        let whole: Vec<_> = lengths.iter().enumerate().map(|(row, n)| (row, 0, *n)).collect();
        let ends: Vec<_> = lengths.iter().enumerate().map(|(row, n)| (row, n / 2, n - n / 2)).collect();
        let executor = Executor::threads(3).unwrap();
        for parts in [decode, whole, ends] {
            let wanted: Vec<f64> = parts.iter().flat_map(|part| scene.wanted(*part)).collect();
            for level in Level::available() {
                let found = scene.step(*level, &executor, &parts);
                assert_close(&found, &wanted, &format!("{level:?} window {window} {parts:?}"));
            }
        }
    }
}

/// One token, block and chunk borders, and beyond them.
const LENGTHS: [usize; 7] = [1, 15, 16, 17, 64, 65, 150];

#[test]
fn attention_matches_reference_f32_and_ignores_slots_of_others() {
    matches_reference(Scene::<f32>::new(9, 3, 64, 16, &LENGTHS));
    matches_reference(Scene::<f32>::new(4, 4, 16, 32, &[50, 3]));
    matches_reference(Scene::<f32>::new(8, 1, 80, 16, &[33, 70]));
    matches_reference(Scene::<f32>::new(2, 1, 256, 48, &[97]));
}

#[test]
fn attention_matches_reference_bf16_and_ignores_slots_of_others() {
    matches_reference(Scene::<Bf16>::new(9, 3, 64, 16, &LENGTHS));
    matches_reference(Scene::<Bf16>::new(4, 4, 16, 32, &[50, 3]));
    matches_reference(Scene::<Bf16>::new(8, 1, 80, 16, &[33, 70]));
    matches_reference(Scene::<Bf16>::new(64, 1, 32, 16, &[20]));
}

fn same_bits_however_it_is_cut<E: Element>(window: usize) {
    everywhere(|level, executor| {
        let mut scene = Scene::<E>::new(6, 2, 32, 16, &[150, 40]);
        scene.window = window;
        let whole = bits(&scene.step(level, executor, &[(0, 0, 150)]));
        for size in [1, 7, 64] {
            let mut chunked = Vec::new();
            for first in (0..150).step_by(size) {
                // Beside another row, which must not matter either.
                let count = size.min(150 - first);
                let found = scene.step(level, executor, &[(1, 39, 1), (0, first, count)]);
                chunked.extend(bits(&found[6 * 32..]));
            }
            assert_eq!(chunked, whole, "{level:?} window {window} in chunks of {size}");
        }
    });
}

#[test]
fn attention_has_the_same_bits_alone_batched_and_chunked_f32() {
    same_bits_however_it_is_cut::<f32>(0);
    same_bits_however_it_is_cut::<f32>(30);
}

#[test]
fn attention_has_the_same_bits_alone_batched_and_chunked_bf16() {
    same_bits_however_it_is_cut::<Bf16>(0);
    same_bits_however_it_is_cut::<Bf16>(30);
}

#[test]
fn tiles_refuse_rows_that_do_not_fit() {
    let table = [1, 2, 3, 9];
    let refuse = |starts: &[i32], lengths: &[i32]| {
        tiles(starts, lengths, Rows::new(&table, 2), 16, 4, 1).expect_err("should be refused")
    };
    assert!(refuse(&[0, 5], &[4]).contains("context of 4"));
    assert!(refuse(&[0, 1], &[33]).contains("block"), "more blocks than the table has");
    assert!(refuse(&[0, 1, 2], &[1, 20]).contains("row 1"), "block 9 of 4");
    assert!(refuse(&[0, 1], &[1, 1]).contains("2 rows"));
    let one = tiles(&[0, 0, 1], &[5, 16], Rows::new(&table, 2), 16, 4, 1).unwrap();
    assert_eq!(one.len(), 1, "a row without tokens has no tile");
}

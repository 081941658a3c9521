use super::{Numbers, bits, everywhere};
use crate::{
    Bf16, Cache, CacheShape, DecoderStep, Element, Executor, Layer, Level, Packed, PackedShape, Rows,
    RowsMut, decode, pack, tiles,
};

const HIDDEN: usize = 32;
const HEADS: usize = 4;
const INNER: usize = 48;
const BLOCK: usize = 16;
const CACHE: CacheShape = CacheShape { blocks: 8, block_size: BLOCK, heads: 2, head_dim: 16 };
const QUERY: usize = HEADS * CACHE.head_dim;
const QKV: usize = QUERY + 2 * CACHE.heads * CACHE.head_dim;

type Matrix<E> = (PackedShape, Vec<E>);

struct Weights<E> {
    norms: Vec<E>,
    qkv: Matrix<E>,
    out: Matrix<E>,
    gate: Matrix<E>,
    up: Matrix<E>,
    down: Matrix<E>,
}

/// Two layers, and the caches of one run.
struct Model<E> {
    weights: Vec<Weights<E>>,
    caches: Vec<Vec<E>>,
    level: Level,
}

/// Consecutive tokens of a request: its blocks, the first position, and the embeddings.
struct Part<'a, E> {
    blocks: &'a [i32],
    first: usize,
    embeddings: &'a [E],
}

impl<E: Element> Model<E> {
    fn new(level: Level, executor: &Executor) -> Self {
        let mut numbers = Numbers::new(5);
        let mut matrix = |n: usize, k: usize| -> Matrix<E> {
            let scale = (k as f32).sqrt().recip() * 2.0;
            let plain: Vec<E> = numbers.tensor::<f32>(n * k).iter().map(|w| E::from_f32(w * scale)).collect();
            let shape = PackedShape::new::<E>(level, n, k);
            let mut data = vec![E::default(); shape.len()];
            let out = RowsMut::new(&mut data, shape.panel_len());
            executor.run(|team| pack(team, shape, Rows::new(&plain, k), out));
            (shape, data)
        };
        let layer = |_| Weights {
            norms: vec![E::from_f32(1.5); HIDDEN],
            qkv: matrix(QKV, HIDDEN),
            out: matrix(HIDDEN, QUERY),
            gate: matrix(INNER, HIDDEN),
            up: matrix(INNER, HIDDEN),
            down: matrix(HIDDEN, INNER),
        };
        Self { weights: (0..2).map(layer).collect(), caches: vec![vec![E::default(); CACHE.len()]; 2], level }
    }

    /// One step; the hidden states of all tokens.
    fn step(&mut self, executor: &Executor, parts: &[Part<'_, E>]) -> Vec<u32> {
        let (mut table, mut starts, mut lengths) = (Vec::new(), vec![0], Vec::new());
        let (mut slots, mut angles, mut residual) = (Vec::new(), Vec::new(), Vec::new());
        for part in parts {
            let count = part.embeddings.len() / HIDDEN;
            table.extend(part.blocks);
            starts.push(starts.last().unwrap() + count as i32);
            lengths.push((part.first + count) as i32);
            residual.extend(part.embeddings);
            for position in part.first..part.first + count {
                slots.push(
                    i64::from(part.blocks[position / BLOCK]) * BLOCK as i64 + (position % BLOCK) as i64,
                );
                angles.extend((0..8).map(|i| position as f32 * 0.7_f32.powi(i)));
            }
        }
        let tokens = slots.len();
        let (cos, sin): (Vec<f32>, Vec<f32>) = angles.iter().map(|x| (x.cos(), x.sin())).unzip();
        let room = |cols: usize| vec![E::default(); tokens * cols];
        let (mut hidden, mut qkv, mut attended, mut gated) =
            (room(HIDDEN), room(QKV), room(QUERY), room(INNER));
        let block_table = Rows::new(&table, table.len() / parts.len());
        let tiles = tiles(&starts, &lengths, block_table, BLOCK, CACHE.blocks, HEADS / CACHE.heads).unwrap();
        let step = DecoderStep {
            cos: Rows::new(&cos, 8),
            sin: Rows::new(&sin, 8),
            slots: &slots,
            block_table,
            tiles: &tiles,
            eps: 1e-5,
            final_norm: &self.weights[0].norms,
            residual: RowsMut::new(&mut residual, HIDDEN),
            hidden: RowsMut::new(&mut hidden, HIDDEN),
            qkv: RowsMut::new(&mut qkv, QKV),
            attended: RowsMut::new(&mut attended, QUERY),
            gated: RowsMut::new(&mut gated, INNER),
        };
        let caches = self.caches.iter_mut().map(|data| Cache::new(CACHE, data));
        let layers: Vec<_> =
            self.weights.iter().zip(caches).map(|(weights, cache)| weights.layer(cache)).collect();
        executor.run(|team| decode(self.level, team, layers.iter().copied(), &step));
        bits(&hidden)
    }
}

impl<E: Element> Weights<E> {
    fn layer<'a>(&'a self, cache: Cache<'a, E>) -> Layer<'a, E> {
        let packed = |matrix: &'a Matrix<E>| Packed::new(matrix.0, &matrix.1);
        Layer {
            input_norm: &self.norms,
            qkv: packed(&self.qkv),
            qkv_bias: None,
            head_norms: None,
            out: packed(&self.out),
            out_bias: None,
            mlp_norm: &self.norms,
            gate: packed(&self.gate),
            up: packed(&self.up),
            gate_up_bias: None,
            down: packed(&self.down),
            down_bias: None,
            cache,
            scale: 0.25,
            window: 0,
            sinks: None,
        }
    }
}

fn a_request_has_the_same_bits_however_it_is_computed<E: Element>() {
    let mut numbers = Numbers::new(9);
    let (long, other): (Vec<E>, Vec<E>) = (numbers.tensor(40 * HIDDEN), numbers.tensor(HIDDEN));
    let rows = |from: usize, to: usize| &long[from * HIDDEN..to * HIDDEN];
    everywhere(|level, executor| {
        let alone = Part { blocks: &[3, 1, 5], first: 0, embeddings: &long };
        let whole = Model::new(level, executor).step(executor, &[alone]);
        for size in [1, 7] {
            let mut model = Model::new(level, executor);
            let mut chunked = Vec::new();
            for first in (0..40).step_by(size) {
                let embeddings = rows(first, 40.min(first + size));
                // Beside another request, and in other blocks.
                let beside = Part { blocks: &[7, 0, 0], first: 0, embeddings: &other };
                let part = Part { blocks: &[2, 6, 4], first, embeddings };
                chunked.extend_from_slice(&model.step(executor, &[beside, part])[HIDDEN..]);
            }
            assert_eq!(chunked, whole, "{level:?} in chunks of {size}");
        }
    });
}

#[test]
fn decoder_gives_a_request_the_same_bits_alone_batched_and_chunked() {
    a_request_has_the_same_bits_however_it_is_computed::<f32>();
    a_request_has_the_same_bits_however_it_is_computed::<Bf16>();
}

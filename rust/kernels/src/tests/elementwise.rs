use super::{Numbers, Tolerance, assert_close, bits, everywhere, wide};
use crate::{Bf16, Cache, CacheShape, Element, RmsNorm, Rope, Rows, RowsMut, reference, rms_norm, rope};

fn norm_matches_reference<E: Tolerance>() {
    everywhere(|level, executor| {
        for (rows, cols) in [(1, 576), (3, 37), (40, 64), (2, 1)] {
            let mut numbers = Numbers::new(cols as u64);
            let (x, old): (Vec<E>, Vec<E>) = (numbers.tensor(rows * cols), numbers.tensor(rows * cols));
            let weight: Vec<E> = numbers.tensor(cols);
            let run = |x: Option<&[E]>, residual: Option<&mut [E]>| {
                let mut out = vec![E::default(); rows * cols];
                let job = RmsNorm {
                    x: x.map(|x| Rows::new(x, cols)),
                    residual: residual.map(|residual| RowsMut::new(residual, cols)),
                    weight: &weight,
                    eps: 1e-5,
                    out: RowsMut::new(&mut out, cols),
                };
                executor.run(|team| rms_norm(level, team, &job));
                out
            };
            let norm_of = |y: &[E]| -> Vec<f64> {
                wide(y).chunks(cols).flat_map(|y| reference::rms_norm(y, &wide(&weight), 1e-5)).collect()
            };
            let what = format!("{level:?} {rows}x{cols}");
            assert_close(&run(Some(&x), None), &norm_of(&x), &what);
            let mut residual = old.clone();
            let added = run(Some(&x), Some(&mut residual));
            let sums: Vec<E> =
                x.iter().zip(&old).map(|(x, old)| E::from_f32(x.to_f32() + old.to_f32())).collect();
            assert_eq!(bits(&residual), bits(&sums), "{what}");
            assert_close(&added, &norm_of(&sums), &what);
            assert_eq!(bits(&run(None, Some(&mut residual))), bits(&added), "{what}");
            assert_eq!(bits(&residual), bits(&sums), "{what}: a norm without x changed the residual");
        }
    });
}

#[test]
fn rms_norm_matches_reference_and_updates_the_residual() {
    norm_matches_reference::<f32>();
    norm_matches_reference::<Bf16>();
}

/// Reads a slot back by the layout that `cache` documents.
fn slot<E: Element>(shape: CacheShape, data: &[E], slot: usize, head: usize) -> (Vec<f64>, Vec<f64>) {
    let (block, offset) = (slot / shape.block_size, slot % shape.block_size);
    let start = |part| (block * shape.heads + head) * 2 + part;
    let len = shape.head_dim * shape.block_size;
    let (keys, values) = (wide(&data[start(0) * len..][..len]), wide(&data[start(1) * len..][..len]));
    let key = (0..shape.head_dim).map(|d| keys[d * shape.block_size + offset]).collect();
    (key, values[offset * shape.head_dim..][..shape.head_dim].to_vec())
}

fn rope_matches_reference<E: Tolerance>(heads: usize, shape: CacheShape, half: usize, normed: bool) {
    let dim = shape.head_dim;
    everywhere(|level, executor| {
        let mut numbers = Numbers::new(dim as u64);
        let tokens = 21;
        let cols = (heads + 2 * shape.heads) * dim;
        let before: Vec<E> = numbers.tensor(tokens * cols);
        let angles: Vec<f32> = numbers.tensor::<f32>(tokens * half).iter().map(|x| x * 3.2).collect();
        let (cos, sin): (Vec<f32>, Vec<f32>) = angles.iter().map(|x| (x.cos(), x.sin())).unzip();
        let weights: Vec<Vec<E>> = (0..2).map(|_| numbers.tensor(dim)).collect();
        // An odd factor visits every slot once.
        let capacity = shape.blocks * shape.block_size;
        let slots: Vec<i64> = (0..tokens).map(|t| ((t * 5 + 3) % capacity) as i64).collect();
        let mut qkv = before.clone();
        let mut data = vec![E::default(); shape.len()];
        let job = Rope {
            qkv: RowsMut::new(&mut qkv, cols),
            cos: Rows::new(&cos, half),
            sin: Rows::new(&sin, half),
            slots: &slots,
            norms: normed.then(|| (&*weights[0], &*weights[1])),
            eps: 1e-5,
            cache: Cache::new(shape, &mut data),
        };
        executor.run(|team| rope(level, team, &job));
        for t in 0..tokens {
            let (cos, sin) = (wide(&cos[t * half..][..half]), wide(&sin[t * half..][..half]));
            let turned = |head: usize, weight: &[E]| {
                let x = wide(&before[t * cols + head * dim..][..dim]);
                let x = if normed { reference::rms_norm(&x, &wide(weight), 1e-5) } else { x };
                reference::rotate(&x, &cos, &sin)
            };
            let what = format!("{level:?} token {t}");
            for head in 0..heads {
                assert_close(&qkv[t * cols + head * dim..][..dim], &turned(head, &weights[0]), &what);
            }
            for head in 0..shape.heads {
                let (key, value) = slot(shape, &data, slots[t] as usize, head);
                let key: Vec<E> = key.iter().map(|x| E::from_f32(*x as f32)).collect();
                assert_close(&key, &turned(heads + head, &weights[1]), &what);
                let at = t * cols + (heads + shape.heads + head) * dim;
                assert_eq!(value, wide(&before[at..at + dim]), "{what}");
            }
        }
    });
}

#[test]
fn rope_rotates_and_writes_the_cache() {
    let shape = |heads, head_dim, block_size| CacheShape { blocks: 4, block_size, heads, head_dim };
    rope_matches_reference::<f32>(9, shape(3, 64, 16), 32, false);
    rope_matches_reference::<Bf16>(9, shape(3, 64, 16), 32, true);
    rope_matches_reference::<f32>(4, shape(4, 16, 32), 4, true);
    rope_matches_reference::<Bf16>(2, shape(1, 80, 16), 40, false);
    rope_matches_reference::<f32>(2, shape(1, 256, 16), 128, true);
}

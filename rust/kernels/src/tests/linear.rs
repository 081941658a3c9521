use super::{Numbers, Tolerance, assert_close, bits, everywhere, wide};
use crate::{
    Bf16, Element, Executor, GatedLinear, Level, Linear, Output, Packed, PackedShape, Rows, RowsMut, embed,
    gated_linear, linear, pack, reference,
};

/// `(m, n, k)`: one row and several, one panel and several, whole and ragged.
const SHAPES: [(usize, usize, usize); 7] =
    [(1, 48, 64), (1, 1, 2), (3, 17, 34), (8, 100, 66), (9, 96, 32), (33, 49, 130), (70, 33, 4096)];

fn packed<E: Element>(level: Level, executor: &Executor, weight: &[E], k: usize) -> (PackedShape, Vec<E>) {
    let shape = PackedShape::new::<E>(level, weight.len() / k, k);
    let mut data = vec![E::default(); shape.len()];
    let out = RowsMut::new(&mut data, shape.panel_len());
    executor.run(|team| pack(team, shape, Rows::new(weight, k), out));
    (shape, data)
}

fn product<E: Element>(level: Level, executor: &Executor, x: &[E], weight: &[E], k: usize) -> Vec<E> {
    let (shape, data) = packed(level, executor, weight, k);
    let mut out = vec![E::default(); x.len() / k * shape.n];
    let job = Linear {
        x: Rows::new(x, k),
        weight: Packed::new(shape, &data),
        bias: None,
        out: Output::Store(RowsMut::new(&mut out, shape.n)),
    };
    executor.run(|team| linear(level, team, &job));
    out
}

fn matches_reference<E: Tolerance>() {
    everywhere(|level, executor| {
        for (case, (m, n, k)) in SHAPES.into_iter().enumerate() {
            let mut numbers = Numbers::new(case as u64);
            let scale = (k as f32).sqrt().recip();
            let x: Vec<E> = numbers.tensor(m * k);
            let weight: Vec<E> =
                numbers.tensor::<f32>(n * k).iter().map(|w| E::from_f32(w * scale)).collect();
            let (bias, base): (Vec<E>, Vec<E>) = (numbers.tensor(n), numbers.tensor(m * n));
            let wanted = reference::linear(&wide(&x), &wide(&weight), Some(&wide(&bias)), k);
            let (shape, data) = packed(level, executor, &weight, k);
            let (mut stored, mut added, mut logits) =
                (vec![E::default(); m * n], base.clone(), vec![0_f32; m * n]);
            let outputs = [
                Output::Store(RowsMut::new(&mut stored, n)),
                Output::Add(RowsMut::new(&mut added, n)),
                Output::Float(RowsMut::new(&mut logits, n)),
            ];
            for out in outputs {
                let job =
                    Linear { x: Rows::new(&x, k), weight: Packed::new(shape, &data), bias: Some(&bias), out };
                executor.run(|team| linear(level, team, &job));
            }
            let what = format!("{level:?} {m}x{n}x{k}");
            assert_close(&stored, &wanted, &what);
            let rounded: Vec<E> = logits.iter().map(|x| E::from_f32(*x)).collect();
            assert_eq!(bits(&rounded), bits(&stored), "{what}");
            let sums: Vec<f64> = wanted.iter().zip(wide(&base)).map(|(wanted, base)| wanted + base).collect();
            assert_close(&added, &sums, &what);
        }
    });
}

#[test]
fn linear_matches_reference_f32() {
    matches_reference::<f32>();
}

#[test]
fn linear_matches_reference_bf16() {
    matches_reference::<Bf16>();
}

fn row_is_the_same_in_any_batch<E: Element>() {
    let (n, k) = (101, 226);
    let mut numbers = Numbers::new(7);
    let (x, weight): (Vec<E>, Vec<E>) = (numbers.tensor(300 * k), numbers.tensor(n * k));
    let serial = Executor::serial();
    for level in Level::available() {
        let whole = product(*level, &serial, &x, &weight, k);
        for m in [1, 2, 7, 8, 9, 64] {
            for start in [0, 5, 236] {
                let part = product(*level, &serial, &x[start * k..(start + m) * k], &weight, k);
                assert_eq!(
                    bits(&part),
                    bits(&whole[start * n..(start + m) * n]),
                    "{level:?} {m} rows at {start}"
                );
            }
        }
    }
}

#[test]
fn linear_row_has_the_same_bits_in_any_batch_f32() {
    row_is_the_same_in_any_batch::<f32>();
}

#[test]
fn linear_row_has_the_same_bits_in_any_batch_bf16() {
    row_is_the_same_in_any_batch::<Bf16>();
}

fn gated_matches_reference<E: Tolerance>() {
    everywhere(|level, executor| {
        for (m, n, k) in SHAPES {
            let mut numbers = Numbers::new(n as u64);
            let scale = (k as f32).sqrt().recip();
            let mut weight = || -> Vec<E> {
                numbers.tensor::<f32>(n * k).iter().map(|w| E::from_f32(w * scale)).collect()
            };
            let (gate, up) = (weight(), weight());
            let (x, biases): (Vec<E>, Vec<E>) = (numbers.tensor(m * k), numbers.tensor(2 * n));
            let bias = biases.split_at(n);
            let (gates, ups) = [(&gate, bias.0), (&up, bias.1)]
                .map(|(w, bias)| reference::linear(&wide(&x), &wide(w), Some(&wide(bias)), k))
                .into();
            let wanted: Vec<f64> = std::iter::zip::<Vec<f64>, Vec<f64>>(gates, ups)
                .map(|(gate, up)| reference::silu(gate) * up)
                .collect();
            let (shape, gate) = packed(level, executor, &gate, k);
            let (_, up) = packed(level, executor, &up, k);
            let mut out = vec![E::default(); m * n];
            let job = GatedLinear {
                x: Rows::new(&x, k),
                gate: Packed::new(shape, &gate),
                up: Packed::new(shape, &up),
                bias: Some(bias),
                out: RowsMut::new(&mut out, n),
            };
            executor.run(|team| gated_linear(level, team, &job));
            assert_close(&out, &wanted, &format!("{level:?} {m}x{n}x{k}"));
        }
    });
}

#[test]
fn gated_linear_matches_reference_in_both_types() {
    gated_matches_reference::<f32>();
    gated_matches_reference::<Bf16>();
}

#[test]
fn packing_keeps_every_row() {
    everywhere(|level, executor| {
        for (n, k) in [(1, 2), (16, 8), (49, 6), (100, 10)] {
            let weight: Vec<Bf16> = Numbers::new(3).tensor(n * k);
            let (shape, data) = packed(level, executor, &weight, k);
            let ids: Vec<i64> = (0..n as i64).rev().collect();
            let mut rows = vec![Bf16::default(); n * k];
            let out = RowsMut::new(&mut rows, k);
            executor.run(|team| embed(team, &ids, Packed::new(shape, &data), out));
            let reversed: Vec<Bf16> = weight.chunks(k).rev().flatten().copied().collect();
            assert_eq!(rows, reversed, "{level:?} {n}x{k}");
        }
    });
}

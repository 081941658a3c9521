//! The kernels once more, one number at a time in double precision: what the tests compare with.

/// `x W^T + b`, `[m, k]` and `[n, k]` to `[m, n]`.
pub(crate) fn linear(x: &[f64], weight: &[f64], bias: Option<&[f64]>, k: usize) -> Vec<f64> {
    let n = weight.len() / k;
    let mut out = Vec::new();
    for x in x.chunks(k) {
        for (column, weight) in weight.chunks(k).enumerate() {
            let sum: f64 = x.iter().zip(weight).map(|(x, w)| x * w).sum();
            out.push(sum + bias.map_or(0.0, |bias| bias[column % n]));
        }
    }
    out
}

pub(crate) fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// One row.
pub(crate) fn rms_norm(y: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let mean = y.iter().map(|y| y * y).sum::<f64>() / y.len() as f64;
    y.iter().zip(weight).map(|(y, w)| y / (mean + eps).sqrt() * w).collect()
}

/// Rotates one head.
pub(crate) fn rotate(x: &[f64], cos: &[f64], sin: &[f64]) -> Vec<f64> {
    let (half, mut out) = (cos.len(), x.to_vec());
    for i in 0..half {
        out[i] = x[i] * cos[i] - x[i + half] * sin[i];
        out[i + half] = x[i + half] * cos[i] + x[i] * sin[i];
    }
    out
}

/// One query over the keys and values of the positions that it sees, `[positions, dim]`, beside a sink.
pub(crate) fn attend(
    q: &[f64],
    keys: &[Vec<f64>],
    values: &[Vec<f64>],
    scale: f64,
    sink: Option<f64>,
) -> Vec<f64> {
    let scores: Vec<f64> =
        keys.iter().map(|key| scale * q.iter().zip(key).map(|(q, k)| q * k).sum::<f64>()).collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let sum = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - largest).exp());
    (0..q.len()).map(|d| weights.iter().zip(values).map(|(w, v)| w / sum * v[d]).sum()).collect()
}

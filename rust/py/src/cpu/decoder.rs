//! All layers of a dense decoder in one call.

use std::sync::{Arc, Mutex, PoisonError};

use frizzen_kernels::{self as kernels, Buffer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::attention::{Attention, Rope, Tiles};
use super::linear::{GatedLinear, Linear, check};
use super::norm::RmsNorm;
use super::{Dtype, Machine, Numbers, Stored, expect, pair, rows, rows_mut, slice, typed};

/// The kernels of one layer, in the order in which they run.
type Parts =
    (Py<RmsNorm>, Py<Linear>, Py<Rope>, Py<Attention>, Py<Linear>, Py<RmsNorm>, Py<GatedLinear>, Py<Linear>);

/// The layers of a model, made of kernels that exist already, and its final norm.
#[pyclass(module = "frizzen._core.cpu", frozen)]
pub(crate) struct Decoder {
    machine: Arc<Machine>,
    dtype: Dtype,
    layers: Vec<Parts>,
    final_norm: Py<RmsNorm>,
    sizes: Sizes,
    /// Working memory, as much as the largest step so far needed.
    room: Mutex<Option<Numbers>>,
}

#[derive(Clone, Copy, PartialEq)]
struct Sizes {
    hidden: usize,
    qkv: usize,
    attended: usize,
    gated: usize,
    half: usize,
    eps: f32,
}

#[pymethods]
impl Decoder {
    /// `layers` holds one tuple per layer: input norm, qkv, rope, attention, out, MLP norm, gate and up, down.
    #[new]
    fn new(layers: Vec<Parts>, final_norm: Py<RmsNorm>) -> PyResult<Self> {
        let Some(first) = layers.first() else {
            return Err(PyValueError::new_err("a decoder has at least one layer"));
        };
        let (sizes, norm) = (Sizes::of(first), final_norm.get());
        let (machine, dtype) = (Arc::clone(&norm.machine), norm.dtype);
        expect("size of the final norm", norm.size, sizes.hidden)?;
        for layer in &layers {
            sizes.check(layer, dtype)?;
        }
        Ok(Self { machine, dtype, layers, final_norm, sizes, room: Mutex::new(None) })
    }

    /// `residual [tokens, H]`, changed; `cos` and `sin` `[tokens, R / 2]` float32; `slots [tokens]` int64; `hidden
    /// [tokens, H]` receives the normed result.
    fn run(
        &self,
        residual: usize,
        cos: usize,
        sin: usize,
        slots: usize,
        tiles: &Tiles,
        hidden: usize,
    ) -> PyResult<()> {
        // SAFETY: see the module's contract.
        let slots = unsafe { slice(slots, tiles.tokens) };
        for (_, _, rope, ..) in &self.layers {
            let cache = rope.get().cache;
            tiles.check(cache.shape)?;
            cache.check_slots(slots)?;
        }
        typed!(self.dtype, E => self.typed::<E>(residual, (cos, sin), slots, tiles, hidden));
        Ok(())
    }
}

impl Decoder {
    fn typed<E: Stored>(
        &self,
        residual: usize,
        (cos, sin): (usize, usize),
        slots: &[i64],
        tiles: &Tiles,
        hidden: usize,
    ) {
        let Sizes { hidden: size, qkv, attended, gated, half, eps } = self.sizes;
        let tokens = tiles.tokens;
        // Nothing is left half-done in working memory.
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let needed = tokens * (qkv + attended + gated);
        if room.as_ref().is_none_or(|room| E::of(room).len() < needed) {
            *room = Some(E::wrap(Buffer::new(needed)));
        }
        let room = room.as_mut().map_or(&mut [][..], E::of_mut);
        let (qkv_room, room) = room.split_at_mut(tokens * qkv);
        let (attended_room, room) = room.split_at_mut(tokens * attended);
        let layers: Vec<kernels::Layer<'_, E>> = self.layers.iter().map(layer).collect();
        let step = kernels::DecoderStep {
            // SAFETY: see the module's contract. The same below.
            cos: unsafe { rows(cos, tokens, half) },
            // SAFETY: as above.
            sin: unsafe { rows(sin, tokens, half) },
            slots,
            block_table: tiles.table(),
            tiles: &tiles.cuts,
            eps,
            final_norm: E::of(&self.final_norm.get().weight),
            // SAFETY: as above.
            residual: unsafe { rows_mut(residual, tokens, size) },
            // SAFETY: as above.
            hidden: unsafe { rows_mut(hidden, tokens, size) },
            qkv: kernels::RowsMut::new(qkv_room, qkv),
            attended: kernels::RowsMut::new(attended_room, attended),
            gated: kernels::RowsMut::new(&mut room[..tokens * gated], gated),
        };
        let level = self.machine.level;
        self.machine.executor.run(|team| kernels::decode(level, team, layers.iter().copied(), &step));
    }
}

/// A layer as the kernels take it.
fn layer<E: Stored>(parts: &Parts) -> kernels::Layer<'_, E> {
    let (input_norm, qkv, rope, attention, out, mlp_norm, gate_up, down) = parts;
    let (qkv, rope, attention, out) = (qkv.get(), rope.get(), attention.get(), out.get());
    let (gate_up, down) = (gate_up.get(), down.get());
    kernels::Layer {
        input_norm: E::of(&input_norm.get().weight),
        qkv: qkv.matrix.packed(),
        qkv_bias: qkv.bias.as_ref().map(E::of),
        head_norms: rope.norms.as_ref().map(pair::<E>),
        out: out.matrix.packed(),
        out_bias: out.bias.as_ref().map(E::of),
        mlp_norm: E::of(&mlp_norm.get().weight),
        gate: gate_up.gate.packed(),
        up: gate_up.up.packed(),
        gate_up_bias: gate_up.bias.as_ref().map(pair::<E>),
        down: down.matrix.packed(),
        down_bias: down.bias.as_ref().map(E::of),
        // SAFETY: see the module's contract.
        cache: unsafe { attention.cache.view() },
        scale: attention.scale,
        window: attention.window,
        sinks: attention.sinks.as_ref().map(E::of),
    }
}

impl Sizes {
    fn of((input_norm, _, rope, attention, _, _, gate_up, _): &Parts) -> Self {
        let (norm, rope, attention) = (input_norm.get(), rope.get(), attention.get());
        let shape = attention.cache.shape;
        Self {
            hidden: norm.size,
            qkv: (attention.heads + 2 * shape.heads) * shape.head_dim,
            attended: attention.heads * shape.head_dim,
            gated: gate_up.get().gate.shape.n,
            half: rope.half,
            eps: norm.eps,
        }
    }

    /// An error unless the layer has these sizes throughout.
    fn check(&self, layer: &Parts, dtype: Dtype) -> PyResult<()> {
        let (input_norm, qkv, rope, attention, out, mlp_norm, gate_up, down) = layer;
        let (rope, attention, gate_up) = (rope.get(), attention.get(), gate_up.get());
        let norms = [input_norm.get(), mlp_norm.get()];
        let eps =
            norms.iter().all(|norm| norm.eps == self.eps) && (rope.norms.is_none() || rope.eps == self.eps);
        let types =
            norms.iter().all(|norm| norm.dtype == dtype) && rope.dtype == dtype && attention.dtype == dtype;
        let cache =
            rope.cache.address == attention.cache.address && rope.cache.shape == attention.cache.shape;
        if Self::of(layer) != *self || !eps || !types || !cache {
            return Err(PyValueError::new_err(
                "the layers differ in size, dtype or epsilon, or rope and attention in cache",
            ));
        }
        expect("size of a norm", norms[1].size, self.hidden)?;
        expect("heads of rope", rope.heads, attention.heads)?;
        check("qkv", &qkv.get().matrix, dtype, self.qkv, self.hidden)?;
        check("out", &out.get().matrix, dtype, self.hidden, self.attended)?;
        check("gate and up", &gate_up.gate, dtype, self.gated, self.hidden)?;
        check("down", &down.get().matrix, dtype, self.hidden, self.gated)
    }
}

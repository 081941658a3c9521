//! Products with packed matrices.

use std::sync::Arc;

use frizzen_kernels::{self as kernels, Buffer, Element, Output, Packed, PackedShape, Rows, RowsMut};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;

use super::{Dtype, Kernels, Machine, Numbers, Stored, at, expect, pair, rows_mut, slice, typed};

/// A weight `[n, k]`, packed for this machine. Owns its memory; may serve several products.
#[pyclass(module = "frizzen._core.cpu", frozen)]
pub(crate) struct PackedMatrix(pub(crate) Arc<Matrix>);

pub(crate) struct Matrix {
    pub(crate) machine: Arc<Machine>,
    pub(crate) dtype: Dtype,
    pub(crate) shape: PackedShape,
    data: Numbers,
}

impl Matrix {
    /// The matrix as the kernels take it; `E` is its type.
    pub(crate) fn packed<E: Stored>(&self) -> Packed<'_, E> {
        Packed::new(self.shape, E::of(&self.data))
    }
}

#[pymethods]
impl PackedMatrix {
    /// Packs the tensor `[n, k]` at `address`, whose rows are `stride` elements apart.
    #[new]
    fn new(
        kernels: &Kernels,
        dtype: &str,
        address: usize,
        n: usize,
        k: usize,
        stride: usize,
    ) -> PyResult<Self> {
        let dtype: Dtype = dtype.parse()?;
        let machine = Arc::clone(&kernels.0);
        let (shape, data) = typed!(dtype, E => {
            if n == 0 || k == 0 || !k.is_multiple_of(E::STEP) || stride < k {
                let text = format!("weight is {n} x {k} with stride {stride}, expected k in steps of {}", E::STEP);
                return Err(PyValueError::new_err(text));
            }
            let shape = PackedShape::new::<E>(machine.level, n, k);
            let mut data = Buffer::<E>::new(shape.len());
            let out = RowsMut::new(&mut data, shape.panel_len());
            // SAFETY: see the module's contract.
            let source = unsafe { Rows::from_raw(at::<E>(address), n, k, stride) };
            machine.executor.run(|team| kernels::pack(team, shape, source, out));
            (shape, E::wrap(data))
        });
        Ok(Self(Arc::new(Matrix { machine, dtype, shape, data })))
    }

    /// Copies rows: `ids [count]` int64, `out [count, k]`.
    fn gather(&self, ids: usize, count: usize, out: usize) -> PyResult<()> {
        let matrix = &*self.0;
        // SAFETY: see the module's contract.
        let ids: &[i64] = unsafe { slice(ids, count) };
        if let Some(id) = ids.iter().find(|id| usize::try_from(**id).map_or(true, |id| id >= matrix.shape.n))
        {
            return Err(PyIndexError::new_err(format!("id is {id}, the table has {} rows", matrix.shape.n)));
        }
        typed!(matrix.dtype, E => {
            // SAFETY: see the module's contract.
            let out = unsafe { rows_mut::<E>(out, count, matrix.shape.k) };
            matrix.machine.executor.run(|team| kernels::embed(team, ids, matrix.packed(), out));
        });
        Ok(())
    }

    /// Outputs.
    #[getter]
    fn n(&self) -> usize {
        self.0.shape.n
    }

    /// Inputs.
    #[getter]
    fn k(&self) -> usize {
        self.0.shape.k
    }
}

/// A bias `[n]` in a matrix's type, copied.
///
/// # Safety
/// See the module's contract.
pub(crate) unsafe fn bias(matrix: &Matrix, address: Option<usize>) -> Option<Numbers> {
    // SAFETY: the caller's promise.
    address.map(|address| unsafe { Numbers::copy(matrix.dtype, address, matrix.shape.n) })
}

/// `x @ weight.T + bias`.
#[pyclass(module = "frizzen._core.cpu", frozen)]
pub(crate) struct Linear {
    pub(crate) matrix: Arc<Matrix>,
    pub(crate) bias: Option<Numbers>,
    float_out: bool,
}

#[pymethods]
impl Linear {
    /// `bias [n]`, copied. With `float_out`, results are float32 whatever the weight's type.
    #[new]
    #[pyo3(signature = (weight, bias = None, *, float_out = false))]
    fn new(weight: &PackedMatrix, bias: Option<usize>, float_out: bool) -> Self {
        let matrix = Arc::clone(&weight.0);
        // SAFETY: see the module's contract.
        let bias = unsafe { self::bias(&matrix, bias) };
        Self { matrix, bias, float_out }
    }

    /// `x [rows, k]`, its rows `stride` elements apart; `out [rows, n]`.
    fn run(&self, x: usize, rows: usize, stride: usize, out: usize) {
        typed!(self.matrix.dtype, E => self.typed::<E>(x, rows, stride, out));
    }
}

impl Linear {
    fn typed<E: Stored>(&self, x: usize, rows: usize, stride: usize, out: usize) {
        let Matrix { machine, shape, .. } = &*self.matrix;
        // SAFETY: see the module's contract.
        let (x, out) = unsafe {
            let out = if self.float_out {
                Output::Float(rows_mut(out, rows, shape.n))
            } else {
                Output::Store(rows_mut(out, rows, shape.n))
            };
            (Rows::<E>::from_raw(at(x), rows, shape.k, stride), out)
        };
        let job =
            kernels::Linear { x, weight: self.matrix.packed(), bias: self.bias.as_ref().map(E::of), out };
        machine.executor.run(|team| kernels::linear(machine.level, team, &job));
    }
}

/// `silu(x @ gate.T + gate_bias) * (x @ up.T + up_bias)`.
#[pyclass(module = "frizzen._core.cpu", frozen)]
pub(crate) struct GatedLinear {
    pub(crate) gate: Arc<Matrix>,
    pub(crate) up: Arc<Matrix>,
    pub(crate) bias: Option<(Numbers, Numbers)>,
}

#[pymethods]
impl GatedLinear {
    /// `gate` and `up` have one shape; `biases` are two `[n]`, copied.
    #[new]
    #[pyo3(signature = (gate, up, biases = None))]
    fn new(gate: &PackedMatrix, up: &PackedMatrix, biases: Option<(usize, usize)>) -> PyResult<Self> {
        let (gate, up) = (Arc::clone(&gate.0), Arc::clone(&up.0));
        if gate.shape != up.shape || gate.dtype != up.dtype {
            let text = format!("gate is {:?}, up is {:?}, expected one shape", gate.shape, up.shape);
            return Err(PyValueError::new_err(text));
        }
        let copy = |address| {
            // SAFETY: see the module's contract.
            unsafe { Numbers::copy(gate.dtype, address, gate.shape.n) }
        };
        let bias = biases.map(|(gate, up)| (copy(gate), copy(up)));
        Ok(Self { gate, up, bias })
    }

    /// `x [rows, k]`, its rows `stride` elements apart; `out [rows, n]`.
    fn run(&self, x: usize, rows: usize, stride: usize, out: usize) {
        typed!(self.gate.dtype, E => self.typed::<E>(x, rows, stride, out));
    }
}

impl GatedLinear {
    fn typed<E: Stored>(&self, x: usize, rows: usize, stride: usize, out: usize) {
        let Matrix { machine, shape, .. } = &*self.gate;
        let job = kernels::GatedLinear {
            // SAFETY: see the module's contract.
            x: unsafe { Rows::<E>::from_raw(at(x), rows, shape.k, stride) },
            gate: self.gate.packed(),
            up: self.up.packed(),
            bias: self.bias.as_ref().map(pair::<E>),
            // SAFETY: as above.
            out: unsafe { rows_mut(out, rows, shape.n) },
        };
        machine.executor.run(|team| kernels::gated_linear(machine.level, team, &job));
    }
}

/// An error unless the matrix maps `k` inputs of `dtype` to `n` outputs.
pub(crate) fn check(what: &str, matrix: &Matrix, dtype: Dtype, n: usize, k: usize) -> PyResult<()> {
    expect(&format!("outputs of {what}"), matrix.shape.n, n)?;
    expect(&format!("inputs of {what}"), matrix.shape.k, k)?;
    if matrix.dtype == dtype {
        return Ok(());
    }
    Err(PyValueError::new_err(format!("{what} is {:?}, expected {dtype:?}", matrix.dtype)))
}

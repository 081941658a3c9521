//! The RMS norm.

use std::sync::Arc;

use frizzen_kernels::{self as kernels, Rows};
use pyo3::prelude::*;

use super::{Dtype, Kernels, Machine, Numbers, Stored, at, rows_mut, typed};

/// `y / sqrt(mean(y^2) + eps) * weight`.
#[pyclass(module = "frizzen._core.cpu", frozen)]
pub(crate) struct RmsNorm {
    pub(crate) machine: Arc<Machine>,
    pub(crate) dtype: Dtype,
    pub(crate) weight: Numbers,
    pub(crate) size: usize,
    pub(crate) eps: f32,
}

#[pymethods]
impl RmsNorm {
    /// `weight [size]`, copied.
    #[new]
    fn new(kernels: &Kernels, dtype: &str, weight: usize, size: usize, eps: f32) -> PyResult<Self> {
        let dtype: Dtype = dtype.parse()?;
        // SAFETY: see the module's contract.
        let weight = unsafe { Numbers::copy(dtype, weight, size) };
        Ok(Self { machine: Arc::clone(&kernels.0), dtype, weight, size, eps })
    }

    /// `x [rows, size]`, its rows `stride` elements apart; `residual [rows, size]`: if given, `x` is added to it and
    /// the norm is taken of it; `out [rows, size]`.
    #[pyo3(signature = (x, rows, stride, residual, out))]
    fn run(&self, x: usize, rows: usize, stride: usize, residual: Option<usize>, out: usize) {
        typed!(self.dtype, E => self.typed::<E>(x, rows, stride, residual, out));
    }
}

impl RmsNorm {
    fn typed<E: Stored>(&self, x: usize, rows: usize, stride: usize, residual: Option<usize>, out: usize) {
        let job = kernels::RmsNorm {
            // SAFETY: see the module's contract. The same below.
            x: Some(unsafe { Rows::from_raw(at(x), rows, self.size, stride) }),
            // SAFETY: as above.
            residual: residual.map(|residual| unsafe { rows_mut(residual, rows, self.size) }),
            weight: E::of(&self.weight),
            eps: self.eps,
            // SAFETY: as above.
            out: unsafe { rows_mut(out, rows, self.size) },
        };
        self.machine.executor.run(|team| kernels::rms_norm(self.machine.level, team, &job));
    }
}

//! `frizzen._core.cpu`: the CPU kernels, called with the addresses of tensors.
//!
//! Constants (weights, biases) are copied and packed once, at load; a step passes addresses of activations and of the
//! cache. Contract of every address: it is that of a tensor of the dtype and shape that the docstring states, which
//! lives and is not touched by anybody else while the call lasts. Sizes are checked against each other here, on the
//! caller's thread, because an error inside a parallel region could only abort the process.

#![expect(unsafe_code, reason = "addresses of tensors become slices here")]

mod attention;
mod decoder;
mod linear;
mod norm;

use std::sync::Arc;

use frizzen_kernels::{Bf16, Buffer, Element, Executor, Level, Rows, RowsMut};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Adds the module.
pub(crate) fn register(parent: &Bound<'_, PyModule>) -> PyResult<()> {
    let module = PyModule::new(parent.py(), "frizzen._core.cpu")?;
    module.add_function(wrap_pyfunction!(level, &module)?)?;
    module.add_class::<Kernels>()?;
    module.add_class::<linear::PackedMatrix>()?;
    module.add_class::<linear::Linear>()?;
    module.add_class::<linear::GatedLinear>()?;
    module.add_class::<norm::RmsNorm>()?;
    module.add_class::<attention::Rope>()?;
    module.add_class::<attention::Attention>()?;
    module.add_class::<attention::Tiles>()?;
    module.add_class::<decoder::Decoder>()?;
    parent.add("cpu", &module)?;
    // `import frizzen._core.cpu` looks there: an extension module is no package.
    parent.py().import("sys")?.getattr("modules")?.set_item("frizzen._core.cpu", module)
}

/// Name of the instruction set that the kernels use on this machine.
#[pyfunction]
fn level() -> &'static str {
    Level::detect().name()
}

/// Threads to compute on, and the instruction set to compute with.
#[pyclass(module = "frizzen._core.cpu", frozen)]
pub(crate) struct Kernels(pub(crate) Arc<Machine>);

pub(crate) struct Machine {
    pub(crate) executor: Executor,
    pub(crate) level: Level,
}

#[pymethods]
impl Kernels {
    /// `open_mp` holds the addresses of `GOMP_parallel`, `omp_get_thread_num` and `omp_get_num_threads` of the library
    /// whose team is to be used; without it, the threads are our own.
    #[new]
    #[pyo3(signature = (threads, open_mp = None))]
    fn new(threads: usize, open_mp: Option<(usize, usize, usize)>) -> PyResult<Self> {
        let executor = match open_mp {
            // SAFETY: the caller got the addresses by name from a library that torch keeps loaded.
            Some((parallel, thread, count)) => unsafe { Executor::open_mp(parallel, thread, count, threads) },
            None => Executor::threads(threads)?,
        };
        Ok(Self(Arc::new(Machine { executor, level: Level::detect() })))
    }

    /// Whose threads: `openmp`, `threads`, or `serial` for the caller alone.
    #[getter]
    fn executor(&self) -> &'static str {
        self.0.executor.name()
    }
}

/// Element type of a tensor, by torch's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dtype {
    F32,
    Bf16,
}

impl std::str::FromStr for Dtype {
    type Err = PyErr;

    fn from_str(name: &str) -> PyResult<Self> {
        match name {
            "float32" => Ok(Self::F32),
            "bfloat16" => Ok(Self::Bf16),
            other => Err(PyValueError::new_err(format!("dtype is {other}, expected float32 or bfloat16"))),
        }
    }
}

/// Calls `$body` with the element type `$e` that stands for a [`Dtype`].
macro_rules! typed {
    ($dtype:expr, $e:ident => $body:expr) => {
        match $dtype {
            $crate::cpu::Dtype::F32 => {
                type $e = f32;
                $body
            }
            $crate::cpu::Dtype::Bf16 => {
                type $e = frizzen_kernels::Bf16;
                $body
            }
        }
    };
}
pub(crate) use typed;

/// Constants of either type.
pub(crate) enum Numbers {
    F32(Buffer<f32>),
    Bf16(Buffer<Bf16>),
}

/// The types that [`Numbers`] holds.
pub(crate) trait Stored: Element {
    fn wrap(data: Buffer<Self>) -> Numbers;
    /// Empty if the numbers are of the other type, which constructors rule out.
    fn of(numbers: &Numbers) -> &[Self];
    /// As [`Self::of`].
    fn of_mut(numbers: &mut Numbers) -> &mut [Self];
}

impl Stored for f32 {
    fn wrap(data: Buffer<Self>) -> Numbers {
        Numbers::F32(data)
    }
    fn of(numbers: &Numbers) -> &[Self] {
        if let Numbers::F32(data) = numbers { data } else { &[] }
    }
    fn of_mut(numbers: &mut Numbers) -> &mut [Self] {
        if let Numbers::F32(data) = numbers { data } else { &mut [] }
    }
}

impl Stored for Bf16 {
    fn wrap(data: Buffer<Self>) -> Numbers {
        Numbers::Bf16(data)
    }
    fn of(numbers: &Numbers) -> &[Self] {
        if let Numbers::Bf16(data) = numbers { data } else { &[] }
    }
    fn of_mut(numbers: &mut Numbers) -> &mut [Self] {
        if let Numbers::Bf16(data) = numbers { data } else { &mut [] }
    }
}

impl Numbers {
    /// Copies a dense tensor.
    ///
    /// # Safety
    /// `len` elements of `dtype` are readable at `address`.
    pub(crate) unsafe fn copy(dtype: Dtype, address: usize, len: usize) -> Self {
        typed!(dtype, E => {
            let mut data = Buffer::<E>::new(len);
            // SAFETY: the caller's promise; the buffer is that long.
            unsafe { std::ptr::copy_nonoverlapping(at::<E>(address), data.as_mut_ptr(), len) };
            E::wrap(data)
        })
    }
}

/// Both slices of a pair.
pub(crate) fn pair<E: Stored>((first, second): &(Numbers, Numbers)) -> (&[E], &[E]) {
    (E::of(first), E::of(second))
}

pub(crate) fn at<E>(address: usize) -> *const E {
    std::ptr::with_exposed_provenance(address)
}

pub(crate) fn at_mut<E>(address: usize) -> *mut E {
    std::ptr::with_exposed_provenance_mut(address)
}

/// `len` elements at an address.
///
/// # Safety
/// As for `std::slice::from_raw_parts`, for as long as the result is used.
pub(crate) unsafe fn slice<'a, E>(address: usize, len: usize) -> &'a [E] {
    // An empty tensor has no address.
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(at(address), len) }
}

/// Dense rows at an address.
///
/// # Safety
/// As for [`Rows::from_raw`].
pub(crate) unsafe fn rows<'a, E>(address: usize, rows: usize, cols: usize) -> Rows<'a, E> {
    // SAFETY: the caller's promise.
    unsafe { Rows::from_raw(at(address), rows, cols, cols) }
}

/// Dense rows at an address, to write.
///
/// # Safety
/// As for [`RowsMut::from_raw`].
pub(crate) unsafe fn rows_mut<'a, E>(address: usize, rows: usize, cols: usize) -> RowsMut<'a, E> {
    // SAFETY: the caller's promise.
    unsafe { RowsMut::from_raw(at_mut(address), rows, cols, cols) }
}

/// An error unless `what` has the value wanted.
pub(crate) fn expect(what: &str, found: usize, wanted: usize) -> PyResult<()> {
    if found == wanted {
        return Ok(());
    }
    Err(PyValueError::new_err(format!("{what} is {found}, expected {wanted}")))
}

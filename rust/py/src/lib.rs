//! `frizzen._core`: the only crate that talks to Python. Conversions, and the one door through the GIL.

mod arena;
mod cpu;
mod engine;
mod error;
mod gil;
mod output;
mod plugins;
mod pooling;
mod serve;
mod stacks;
mod worker;

use pyo3::prelude::*;

/// The Rust core of Frizzen.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<arena::PyArenaLayout>()?;
    module.add_class::<engine::PyEngine>()?;
    module.add_class::<output::RequestOutput>()?;
    module.add_class::<output::TokenLogprob>()?;
    module.add_function(wrap_pyfunction!(serve::serve, module)?)?;
    module.add_function(wrap_pyfunction!(pooling::py_late_interaction, module)?)?;
    cpu::register(module)
}

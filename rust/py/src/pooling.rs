//! `Engine.pool`: prompts in, vectors out.

use std::sync::Arc;

use frizzen_core::pooling::late_interaction;
use frizzen_core::{Pooling, PoolingInfo, Request, SamplingParams, TokenId};
use frizzen_engine::Worker;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use serde::Deserialize;

use crate::engine::{Pending, PyEngine};
use crate::error::{refused, to_py};
use crate::output::Collected;

/// What `LLM.embed` and its siblings pass along.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PoolOptions {
    /// Cut embeddings to this many numbers.
    dimensions: Option<u32>,
    /// Normalise embeddings, or make probabilities; by default what the model was made for.
    activate: Option<bool>,
    /// A vector of every token, one after the other.
    per_token: bool,
}

/// How well a document fits a query, each a normalised vector of `size` numbers per token.
#[expect(clippy::needless_pass_by_value, reason = "a Python list becomes a vector of ours")]
#[pyfunction]
#[pyo3(name = "late_interaction")]
pub(crate) fn py_late_interaction(query: Vec<f32>, document: Vec<f32>, size: usize) -> f32 {
    late_interaction(&query, &document, size.max(1))
}

impl PyEngine {
    /// The vectors of prompts, each its ids and the index of its second text.
    pub(crate) fn vectors(
        &mut self,
        py: Python<'_>,
        prompts: &[(Vec<TokenId>, Option<u32>)],
        options_json: &str,
        progress: Option<&Py<PyAny>>,
    ) -> PyResult<Vec<Vec<f32>>> {
        let options: PoolOptions =
            serde_json::from_str(options_json).map_err(|error| refused(py, &format!("options: {error}")))?;
        let info = self.pooling_info(py)?;
        if let Some(dimensions) = options.dimensions {
            info.check_dimensions(dimensions).map_err(|error| to_py(py, &error))?;
        }
        let mut pending = Vec::with_capacity(prompts.len());
        for (ids, second_start) in prompts {
            let stream = self.handle.submit(Request {
                prompt: ids.as_slice().into(),
                params: SamplingParams::default(),
                pooling: Some(Pooling { second_start: *second_start, per_token: options.per_token }),
                constraint: None,
                priority: 0,
                cache_salt: None,
                external_id: Arc::from("pool"),
            });
            // What was submitted already is dropped here, and so aborted.
            let stream = Some(stream.map_err(|error| to_py(py, &error))?);
            pending.push(Pending {
                stream,
                text: None,
                include_stop: false,
                collected: Collected::default(),
                done: false,
            });
        }
        self.drive(py, &mut pending, progress)?;
        let vectors = pending.into_iter().map(|request| request.collected.all.pooled);
        Ok(vectors.map(|vector| info.finish(vector, options.dimensions, options.activate)).collect())
    }

    fn pooling_info(&self, py: Python<'_>) -> PyResult<PoolingInfo> {
        let engine = self.engine.as_ref();
        let engine = engine.ok_or_else(|| PyRuntimeError::new_err("this engine is closed"))?;
        engine.worker().info().pooling.clone().ok_or_else(|| {
            refused(py, "this model generates text; it returns no vectors unless it is loaded with runner=\"pooling\"")
        })
    }
}

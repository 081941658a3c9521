//! What a model's makers recommend for sampling: `generation_config.json`, for requests that do not say.

use std::path::{Path, PathBuf};

use frizzen_core::{ParamLimits, SamplingParams};
use serde::{Deserialize, Serialize};

/// The file, in a model's directory.
const FILE: &str = "generation_config.json";

/// The recommendations that are followed. An explicit field of a request wins; `null` is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SamplingDefaults {
    /// As in a request.
    pub temperature: Option<f32>,
    /// As in a request.
    pub top_p: Option<f32>,
    /// As in a request.
    pub top_k: Option<u32>,
    /// As in a request.
    pub min_p: Option<f32>,
    /// As in a request.
    pub repetition_penalty: Option<f32>,
}

impl SamplingDefaults {
    /// Those of `--generation-config`: `auto` is the model's own file, `vllm` and `none` are no file, anything else is a
    /// directory with one.
    ///
    /// # Errors
    /// Names the file, and the value that no request could ask for.
    pub fn load(choice: &str, model: &Path) -> Result<Self, String> {
        let file: PathBuf = match choice {
            "vllm" | "none" => return Ok(Self::default()),
            "auto" => model.join(FILE),
            directory => Path::new(directory).join(FILE),
        };
        match std::fs::read_to_string(&file) {
            Ok(text) => {
                let defaults = Self::parse(&text).map_err(|error| format!("{}: {error}", file.display()))?;
                if defaults != Self::default() {
                    let values = serde_json::to_string(&defaults).unwrap_or_default();
                    tracing::info!(%values, "defaults of requests, by {FILE} (--generation-config none ignores it)");
                }
                Ok(defaults)
            }
            // Most models have none; a directory that was named must have one.
            Err(_) if choice == "auto" => Ok(Self::default()),
            Err(error) => Err(format!("{}: {error}", file.display())),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let defaults: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let limits = ParamLimits { vocab_size: u32::MAX, max_model_len: u32::MAX, max_logprobs: 0 };
        defaults.apply(SamplingParams::default()).validate(&limits).map_err(|error| error.to_string())?;
        Ok(defaults)
    }

    /// `params` with these values in place of its own.
    #[must_use]
    pub fn apply(&self, params: SamplingParams) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature.unwrap_or(params.temperature),
            top_p: self.top_p.unwrap_or(params.top_p),
            top_k: self.top_k.unwrap_or(params.top_k),
            min_p: self.min_p.unwrap_or(params.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(params.repetition_penalty),
            ..params
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recommendations_are_read_and_the_rest_of_the_file_is_not() {
        let text =
            r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": null, "eos_token_id": [1, 2]}"#;
        let defaults = SamplingDefaults::parse(text).unwrap();
        assert_eq!((defaults.temperature, defaults.top_k, defaults.top_p), (Some(0.6), Some(20), None));
        let params = defaults.apply(SamplingParams::default());
        assert_eq!((params.temperature, params.top_k), (0.6, 20));
        assert_eq!(params.top_p, SamplingParams::default().top_p);
    }

    #[test]
    fn what_no_request_could_ask_for_is_refused_at_start() {
        for bad in [r#"{"temperature": -1}"#, r#"{"top_p": 0}"#, r#"{"top_k": "many"}"#, "[]", "{"] {
            assert!(SamplingDefaults::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_directory_that_is_named_must_have_the_file_and_the_models_own_need_not() {
        let nowhere = Path::new("/no/such/model");
        for choice in ["auto", "none", "vllm"] {
            assert_eq!(SamplingDefaults::load(choice, nowhere), Ok(SamplingDefaults::default()));
        }
        assert!(SamplingDefaults::load("/no/such/directory", nowhere).unwrap_err().contains(FILE));
    }
}

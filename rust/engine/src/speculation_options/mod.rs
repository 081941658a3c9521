//! What flags and library options say about speculation, in one place for both.

mod vllm;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::str::FromStr;

use frizzen_core::Speculation;
use frizzen_sched::draft::{NgramConfig, SuffixConfig};
use frizzen_sched::speculation::{DrafterConfig, ModelDrafter, SpeculationConfig};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::compatibility::{self, Feature};
use crate::cost_cache;

/// Most drafts per row where nobody asks for more.
const USUAL_DRAFTS: u32 = 16;
/// Most drafts per row that may be asked for.
const MOST_DRAFTS: u32 = 64;

/// Options as they were given.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SpeculationOptions {
    /// `ngram` or `suffix`; or `draft_model`, `mtp`, `eagle3` or `dspark`, with `=` and a path if `drafter_model` has none.
    pub drafter: Option<String>,
    /// Where the drafter's weights are, if not in the checkpoint of the model itself.
    pub drafter_model: Option<String>,
    /// Most drafts per row.
    pub num_speculative_tokens: Option<u64>,
    /// How a model drafts.
    pub draft_sample_method: DraftSampling,
    /// How drafts are accepted.
    pub rejection_sample_method: RejectionSampling,
    /// `off`, `auto` or a number of drafts; as JSON, text or number.
    pub speculation: Option<Value>,
    /// vLLM's JSON object, as text.
    pub speculative_config: Option<String>,
    /// Tokens per row and step that verification is forced to give.
    pub spec_synthetic_acceptance: Option<f64>,
    /// Directory of measured step times, or `off`; nothing is the user's cache.
    pub speculation_cache: Option<String>,
}

/// How a model drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DraftSampling {
    /// Its likeliest token.
    #[default]
    Greedy,
    /// A draw at the row's temperature.
    Probabilistic,
}

/// How drafts are accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RejectionSampling {
    /// One after the other.
    #[default]
    Standard,
    /// All of a row together.
    Block,
}

impl FromStr for DraftSampling {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        by_text(text, "greedy or probabilistic")
    }
}

impl FromStr for RejectionSampling {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        by_text(text, "standard or block")
    }
}

/// The variant that serde knows by this name.
fn by_text<T: DeserializeOwned>(text: &str, choices: &str) -> Result<T, String> {
    serde_json::from_value(text.into()).map_err(|_| format!("must be {choices}, got {text:?}"))
}

/// What they amount to.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedSpeculation {
    /// For the engine's loop.
    pub config: SpeculationConfig,
    /// For the worker.
    pub worker: WorkerSpeculation,
    /// Where measured step times are kept.
    pub cache: Option<PathBuf>,
}

/// What a worker is told: fields of its configuration, of which these replace what the user gave.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkerSpeculation {
    /// Name of the drafter.
    pub drafter: &'static str,
    /// Where its weights are.
    pub drafter_model: Option<String>,
    /// Drafts per row that were asked for.
    pub num_speculative_tokens: Option<u32>,
    /// Drafts per row that the worker must be able to verify.
    pub max_drafts: u32,
    /// How a model drafts.
    pub draft_sample_method: DraftSampling,
    /// How drafts are accepted.
    pub rejection_sample_method: RejectionSampling,
    /// Tokens per row and step that verification is forced to give.
    pub spec_synthetic_acceptance: Option<f64>,
    /// Nothing: it has been read.
    pub speculative_config: Option<String>,
}

/// What either way of asking says about the drafter.
#[derive(Clone, Debug, PartialEq)]
struct Asked {
    drafter: DrafterConfig,
    model: Option<String>,
    length: Option<u32>,
    draft_sampling: DraftSampling,
    rejection_sampling: RejectionSampling,
    /// Devices that the drafter is spread over.
    ranks: u64,
}

impl SpeculationOptions {
    /// `None` if there is no drafter.
    ///
    /// # Errors
    /// A sentence that names the option, the value and what is possible.
    pub fn resolve(&self) -> Result<Option<ResolvedSpeculation>, String> {
        let default = self.default_length()?;
        let asked = match (&self.drafter, &self.speculative_config) {
            (Some(_), Some(_)) => {
                return Err("drafter and speculative_config say the same thing: give one of them".to_owned());
            }
            (Some(name), None) => self.by_flags(name).and_then(Asked::checked)?,
            (None, Some(json)) => {
                let asked = vllm::read(json).and_then(Asked::checked);
                asked.map_err(|refusal| format!("speculative_config: {refusal}"))?
            }
            (None, None) => return self.without_drafter(default),
        };
        let length = asked.length;
        // vLLM's object speculates with its length; flags only say what requests may ask for.
        let implied = length.filter(|_| self.speculative_config.is_some()).map(Speculation::MaxTokens);
        let default = default.or(implied).unwrap_or(Speculation::Off);
        let fixed = if let Speculation::MaxTokens(k) = default { k } else { 0 };
        let max_drafts = match length {
            Some(length) if fixed > length => {
                return Err(format!(
                    "speculation must be at most num_speculative_tokens, {length}, got {fixed}"
                ));
            }
            Some(length) => length,
            None => fixed.max(USUAL_DRAFTS),
        };
        let config = SpeculationConfig {
            drafter: asked.drafter,
            default,
            fill: self.spec_synthetic_acceptance.is_some(),
            sampled_drafts: asked.draft_sampling == DraftSampling::Probabilistic,
        };
        let worker = WorkerSpeculation {
            drafter: name_of(&asked.drafter),
            drafter_model: asked.model,
            num_speculative_tokens: length,
            max_drafts,
            draft_sample_method: asked.draft_sampling,
            rejection_sample_method: asked.rejection_sampling,
            spec_synthetic_acceptance: self.spec_synthetic_acceptance,
            speculative_config: None,
        };
        let cache = cost_cache::directory(self.speculation_cache.as_deref());
        Ok(Some(ResolvedSpeculation { config, worker, cache }))
    }

    fn by_flags(&self, name: &str) -> Result<Asked, String> {
        let (name, path) = name.split_once('=').map_or((name, None), |(name, path)| (name, Some(path)));
        if path.is_some() && self.drafter_model.is_some() {
            return Err(
                "the drafter's model is given twice: after drafter's = and as drafter_model".to_owned()
            );
        }
        let length = self.num_speculative_tokens.map(|k| drafts("num_speculative_tokens", k)).transpose()?;
        Ok(Asked {
            drafter: by_name("drafter", name)?,
            model: path.map(str::to_owned).or_else(|| self.drafter_model.clone()),
            length,
            draft_sampling: self.draft_sample_method,
            rejection_sampling: self.rejection_sample_method,
            ranks: 1,
        })
    }

    fn without_drafter(&self, default: Option<Speculation>) -> Result<Option<ResolvedSpeculation>, String> {
        let given = [
            ("spec_synthetic_acceptance", self.spec_synthetic_acceptance.is_some()),
            ("drafter_model", self.drafter_model.is_some()),
            ("num_speculative_tokens", self.num_speculative_tokens.is_some()),
            ("speculation", !matches!(default, None | Some(Speculation::Off))),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((name, _)) => Err(format!("{name} needs a drafter: {}", names())),
            None => Ok(None),
        }
    }

    fn default_length(&self) -> Result<Option<Speculation>, String> {
        let value = match &self.speculation {
            None | Some(Value::Null) => return Ok(None),
            Some(value) => value,
        };
        let number = value.as_u64().or_else(|| value.as_str()?.parse().ok());
        match (value.as_str(), number) {
            (Some("off"), _) => Ok(Some(Speculation::Off)),
            (Some("auto"), _) => Ok(Some(Speculation::Auto)),
            (_, Some(k)) => drafts("speculation", k).map(|k| Some(Speculation::MaxTokens(k))),
            _ => Err(format!("speculation must be off, auto or a number of drafts, got {value}")),
        }
    }
}

impl Asked {
    /// Refuses what does not go with the drafter.
    fn checked(self) -> Result<Self, String> {
        let weights = if self.model.is_some() { Feature::WeightsGiven } else { Feature::WeightsNotGiven };
        let is_random = self.draft_sampling == DraftSampling::Probabilistic;
        let asked = [
            Some(weights),
            is_random.then_some(Feature::ProbabilisticDrafts),
            (self.ranks > 1).then_some(Feature::ParallelDrafter),
        ];
        compatibility::require(name_of(&self.drafter), asked.into_iter().flatten())?;
        Ok(self)
    }
}

fn drafts(option: &str, k: u64) -> Result<u32, String> {
    let fits = u32::try_from(k).ok().filter(|k| (1..=MOST_DRAFTS).contains(k));
    fits.ok_or_else(|| format!("{option} must be from 1 to {MOST_DRAFTS} drafts, got {k}"))
}

const fn name_of(drafter: &DrafterConfig) -> &'static str {
    match drafter {
        DrafterConfig::Ngram(_) => "ngram",
        DrafterConfig::Suffix(_) => "suffix",
        DrafterConfig::Worker(model) => model.name(),
    }
}

fn names() -> String {
    let models = ModelDrafter::ALL.map(ModelDrafter::name).join(", ");
    format!("ngram, suffix, {models}")
}

fn by_name(option: &str, name: &str) -> Result<DrafterConfig, String> {
    match name {
        "ngram" => Ok(DrafterConfig::Ngram(NgramConfig::default())),
        "suffix" => Ok(DrafterConfig::Suffix(SuffixConfig::default())),
        other => {
            let model = ModelDrafter::ALL.into_iter().find(|model| model.name() == other);
            let refusal = || format!("{option} {other:?} is not supported; there are {}", names());
            model.map(DrafterConfig::Worker).ok_or_else(refusal)
        }
    }
}

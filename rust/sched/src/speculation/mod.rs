//! Drafts between commit and plan: who gets how many, what they cost, what they gained.
//!
//! * [`Speculator`]: follows requests, proposes, labels, keeps each request's account.
//! * [`guard`]: decides about drafts of requests that leave it to the server, by measured time.
//! * [`cost`]: the time of a step over rows and drafts, fitted online; [`law`]: what it is made of.
//! * [`acceptance`]: the chance of each draft, from match lengths, from what drafters say and from outcomes.
//! * [`choose`]: the lengths that give the most tokens per second.
//!
//! Pure: no threads, and time comes in with each step. Nothing in here can change a text: drafts are verified.

pub mod acceptance;
pub mod choose;
pub mod cost;
mod curve;
mod decision;
mod followed;
pub mod guard;
pub mod law;
mod speculator;
mod status;
mod trust;

pub use cost::Costs;
pub use guard::{Guard, ModeChange};
pub use law::Experts;
pub use speculator::Speculator;
pub use status::{SpeculationStatus, SpeculationTotals};

use frizzen_core::Speculation;

use crate::draft::{Drafter, Ngram, NgramConfig, Proposed, Suffix, SuffixConfig};

/// Which drafter, and how it looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DrafterConfig {
    /// Prompt lookup.
    Ngram(NgramConfig),
    /// Suffix matches in the request's own text and in recent outputs.
    Suffix(SuffixConfig),
    /// A model in the worker, whose proposals come with the results of each step.
    Worker(ModelDrafter),
}

/// Drafters that are models; the worker carries them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelDrafter {
    /// A smaller model of the same vocabulary.
    DraftModel,
    /// Multi-token prediction layers of the target's checkpoint.
    Mtp,
    /// EAGLE-3 heads.
    Eagle3,
    /// A semi-autoregressive block drafter.
    Dspark,
}

impl ModelDrafter {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::DraftModel, Self::Mtp, Self::Eagle3, Self::Dspark];

    /// The name that selects it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DraftModel => "draft_model",
            Self::Mtp => "mtp",
            Self::Eagle3 => "eagle3",
            Self::Dspark => "dspark",
        }
    }
}

impl SpeculationConfig {
    /// Whether the text tells only of verified drafts whether they were right.
    pub(crate) const fn only_verified(&self) -> bool {
        self.fill || self.sampled_drafts
    }

    /// Whether drafts come from the worker.
    pub const fn is_worker(&self) -> bool {
        matches!(self.drafter, DrafterConfig::Worker(_))
    }
}

impl DrafterConfig {
    /// The drafter.
    ///
    /// # Errors
    /// A sentence that names the value and its limit.
    pub fn build(&self) -> Result<Box<dyn Drafter>, String> {
        Ok(match self {
            Self::Ngram(config) => Box::new(Ngram::new(*config)?),
            Self::Suffix(config) => Box::new(Suffix::new(*config)?),
            Self::Worker(model) => Box::new(Proposed::new(model.name())),
        })
    }
}

/// How an engine speculates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeculationConfig {
    /// Who proposes.
    pub drafter: DrafterConfig,
    /// What a request gets that says nothing.
    pub default: Speculation,
    /// Fill proposals up to their length, so that forced acceptance can be studied at every length.
    pub fill: bool,
    /// A model draws its drafts at random: whether one that was not verified would have been right cannot be told from the
    /// text.
    pub sampled_drafts: bool,
}

impl Default for SpeculationConfig {
    fn default() -> Self {
        Self {
            drafter: DrafterConfig::Suffix(SuffixConfig::default()),
            default: Speculation::Off,
            fill: false,
            sampled_drafts: false,
        }
    }
}

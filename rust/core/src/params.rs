//! Sampling parameters and their one validation.

use serde::{Deserialize, Serialize};

use crate::{Error, Result, Speculation, TokenId};

/// Below this a temperature is greedy: dividing by it would leave nothing but the best token.
const GREEDY_BELOW: f32 = 1e-5;
/// The least temperature that logits are divided by: less could overflow single precision.
const LEAST_TEMPERATURE: f32 = 1e-2;

/// How tokens are chosen and when to stop. Defaults are OpenAI's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplingParams {
    /// 0 is greedy (and then `top_p`, `top_k`, `min_p` and `seed` have no effect).
    pub temperature: f32,
    /// Keep the smallest set of tokens whose probability reaches this; in `(0, 1]`.
    pub top_p: f32,
    /// Keep the k most likely tokens; 0 is off.
    pub top_k: u32,
    /// Keep tokens at least this fraction as likely as the best; in `[0, 1]`.
    pub min_p: f32,
    /// Subtracted from the logits of tokens that occur in the output; in `[-2, 2]`.
    pub presence_penalty: f32,
    /// Subtracted per occurrence in the output; in `[-2, 2]`.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt or output; greater than 0, 1 is off.
    pub repetition_penalty: f32,
    /// Same seed, same text, whatever else is in the batch. `None`: the front end draws one.
    pub seed: Option<u64>,
    /// Most tokens to generate. `None`: as many as fit the context.
    pub max_tokens: Option<u32>,
    /// No stop token or end-of-sequence token is sampled before this many tokens.
    pub min_tokens: u32,
    /// Tokens that end the request, besides the model's end-of-sequence tokens.
    pub stop_token_ids: Vec<TokenId>,
    /// Whoever reads the text looks for stop strings in it: what ended by its length may have ended by one of them.
    pub stop_strings: bool,
    /// Do not stop at the model's end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Return log-probabilities with this many alternatives per generated token.
    pub logprobs: Option<u32>,
    /// Return the log-probabilities of these tokens too, after the alternatives of each generated token.
    pub logprob_token_ids: Vec<TokenId>,
    /// Return log-probabilities with this many alternatives per prompt token.
    pub prompt_logprobs: Option<u32>,
    /// Added to the logit of a token; in `[-100, 100]`.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Only these tokens may be generated.
    pub allowed_token_ids: Option<Vec<TokenId>>,
    /// Sequences of tokens that the output may not hold (`bad_words`, every spelling): the last token of one is masked
    /// where the output ends in the others. Each has at least one token.
    pub banned_sequences: Vec<Vec<TokenId>>,
    /// Drafts; `None` is the server's default. A request that says it gets [`crate::SpeculationUsage`] back.
    pub speculation: Option<Speculation>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            seed: None,
            max_tokens: None,
            min_tokens: 0,
            stop_token_ids: Vec::new(),
            stop_strings: false,
            ignore_eos: false,
            logprobs: None,
            logprob_token_ids: Vec::new(),
            prompt_logprobs: None,
            logit_bias: Vec::new(),
            allowed_token_ids: None,
            banned_sequences: Vec::new(),
            speculation: None,
        }
    }
}

/// What the model and the server allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamLimits {
    /// Token ids must be below this.
    pub vocab_size: u32,
    /// Prompt and output together.
    pub max_model_len: u32,
    /// Most alternatives per token (`--max-logprobs`).
    pub max_logprobs: u32,
}

fn in_range(param: &'static str, value: f32, ok: bool, range: &str) -> Result<()> {
    // A NaN fails every comparison, so `ok` is false for it; infinities are refused by name.
    if ok && value.is_finite() {
        Ok(())
    } else {
        Err(Error::invalid(param, format!("{param} must be {range}, got {value}")))
    }
}

impl SamplingParams {
    /// True if the most likely token is always taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// True if the worker must know which tokens occurred (any penalty is on).
    pub fn needs_history(&self) -> bool {
        self.presence_penalty != 0.0 || self.frequency_penalty != 0.0 || self.repetition_penalty != 1.0
    }

    /// Log-probabilities per generated token beside its own: the most likely tokens, and those of `logprob_token_ids`.
    /// `None`: no log-probabilities at all.
    pub fn num_alternatives(&self) -> Option<u32> {
        let listed = self.logprob_token_ids.len() as u32;
        self.logprobs.or((listed > 0).then_some(0)).map(|best| best + listed)
    }

    /// The same wishes in the one form that the engine is given: a temperature that would overflow single precision is
    /// raised, one that leaves nothing but the best token is greedy, and lists of ids hold each id once.
    #[must_use]
    pub fn canonical(mut self) -> Self {
        self.temperature =
            if self.temperature < GREEDY_BELOW { 0.0 } else { self.temperature.max(LEAST_TEMPERATURE) };
        for ids in [Some(&mut self.stop_token_ids), self.allowed_token_ids.as_mut()].into_iter().flatten() {
            ids.sort_unstable();
            ids.dedup();
        }
        if !self.logprob_token_ids.is_empty() {
            self.logprobs = Some(self.logprobs.unwrap_or(0));
        }
        // In the order of the request, which is that of the answer.
        let mut seen = Vec::new();
        self.logprob_token_ids.retain(|id| {
            let new = !seen.contains(id);
            seen.push(*id);
            new
        });
        self
    }

    /// Checks every value against the model's limits; the error names field, value and limit.
    pub fn validate(&self, limits: &ParamLimits) -> Result<()> {
        in_range("temperature", self.temperature, self.temperature >= 0.0, "0 or greater and finite")?;
        in_range("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "in (0, 1]")?;
        in_range("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "in [0, 1]")?;
        for (param, value) in
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)]
        {
            in_range(param, value, (-2.0..=2.0).contains(&value), "in [-2, 2]")?;
        }
        let repetition = self.repetition_penalty;
        in_range("repetition_penalty", repetition, repetition > 0.0, "greater than 0 and finite")?;
        if self.max_tokens == Some(0) {
            return Err(Error::invalid("max_tokens", "max_tokens must be at least 1, got 0"));
        }
        if let Some(max) = self.max_tokens.filter(|max| self.min_tokens > *max) {
            let min = self.min_tokens;
            return Err(Error::invalid(
                "min_tokens",
                format!("min_tokens must not exceed max_tokens, got {min} over {max}"),
            ));
        }
        for (param, asked) in [("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)] {
            if let Some(asked) = asked.filter(|asked| *asked > limits.max_logprobs) {
                let limit = limits.max_logprobs;
                return Err(Error::invalid(param, format!("{param} must be at most {limit}, got {asked}")));
            }
        }
        if let Some(asked) = self.num_alternatives().filter(|asked| *asked > limits.max_logprobs) {
            let (limit, listed) = (limits.max_logprobs, self.logprob_token_ids.len());
            return Err(Error::invalid(
                "logprob_token_ids",
                format!(
                    "logprob_token_ids and the most likely tokens must be at most {limit} together, got {asked}, \
                     {listed} of them listed"
                ),
            ));
        }
        self.validate_tokens(limits)
    }

    fn validate_tokens(&self, limits: &ParamLimits) -> Result<()> {
        let vocab = limits.vocab_size;
        let known = |param: &'static str, id: TokenId| {
            if id < vocab {
                Ok(())
            } else {
                Err(Error::invalid(
                    param,
                    format!("{param}: token id {id} is not below the vocabulary size {vocab}"),
                ))
            }
        };
        // Longer lists can only repeat themselves, and the step arena has room for one entry per token.
        for (param, length) in [
            ("stop_token_ids", self.stop_token_ids.len()),
            ("logit_bias", self.logit_bias.len()),
            ("allowed_token_ids", self.allowed_token_ids.as_ref().map_or(0, Vec::len)),
        ] {
            if length > vocab as usize {
                let message =
                    format!("{param} has {length} entries, more than the vocabulary's {vocab} tokens");
                return Err(Error::invalid(param, message));
            }
        }
        for id in &self.stop_token_ids {
            known("stop_token_ids", *id)?;
        }
        for id in &self.logprob_token_ids {
            known("logprob_token_ids", *id)?;
        }
        for (id, bias) in &self.logit_bias {
            known("logit_bias", *id)?;
            in_range("logit_bias", *bias, (-100.0..=100.0).contains(bias), "in [-100, 100]")?;
        }
        for sequence in &self.banned_sequences {
            if sequence.is_empty() {
                return Err(Error::invalid("bad_words", "bad_words: a word without tokens cannot be banned"));
            }
            for id in sequence {
                known("bad_words", *id)?;
            }
        }
        if let Some(allowed) = &self.allowed_token_ids {
            if allowed.is_empty() {
                return Err(Error::invalid("allowed_token_ids", "allowed_token_ids must not be empty"));
            }
            for id in allowed {
                known("allowed_token_ids", *id)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ParamLimits = ParamLimits { vocab_size: 100, max_model_len: 64, max_logprobs: 20 };

    fn refused(params: &SamplingParams) -> &'static str {
        match params.validate(&LIMITS) {
            Err(Error::Invalid { param, .. }) => param,
            other => panic!("expected a refusal, got {other:?}"),
        }
    }

    #[test]
    fn defaults_are_valid() {
        assert_eq!(SamplingParams::default().validate(&LIMITS), Ok(()));
    }

    #[test]
    fn nan_and_infinity_are_refused_in_every_float_field() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let base = SamplingParams::default;
            assert_eq!(refused(&SamplingParams { temperature: bad, ..base() }), "temperature");
            assert_eq!(refused(&SamplingParams { top_p: bad, ..base() }), "top_p");
            assert_eq!(refused(&SamplingParams { min_p: bad, ..base() }), "min_p");
            assert_eq!(refused(&SamplingParams { presence_penalty: bad, ..base() }), "presence_penalty");
            assert_eq!(refused(&SamplingParams { frequency_penalty: bad, ..base() }), "frequency_penalty");
            assert_eq!(refused(&SamplingParams { repetition_penalty: bad, ..base() }), "repetition_penalty");
            assert_eq!(refused(&SamplingParams { logit_bias: vec![(1, bad)], ..base() }), "logit_bias");
        }
    }

    #[test]
    fn token_ids_are_range_checked_wherever_they_enter() {
        let base = SamplingParams::default;
        assert_eq!(refused(&SamplingParams { stop_token_ids: vec![100], ..base() }), "stop_token_ids");
        assert_eq!(refused(&SamplingParams { logit_bias: vec![(100, 1.0)], ..base() }), "logit_bias");
        assert_eq!(
            refused(&SamplingParams { allowed_token_ids: Some(vec![7, 100]), ..base() }),
            "allowed_token_ids"
        );
        for sequence in [vec![], vec![7, 100]] {
            assert_eq!(refused(&SamplingParams { banned_sequences: vec![sequence], ..base() }), "bad_words");
        }
        assert_eq!(
            refused(&SamplingParams { allowed_token_ids: Some(vec![]), ..base() }),
            "allowed_token_ids"
        );
    }

    #[test]
    fn listed_tokens_share_the_limit_of_alternatives() {
        let listed = |best, ids: &[TokenId]| SamplingParams {
            logprobs: best,
            logprob_token_ids: ids.to_vec(),
            ..SamplingParams::default()
        };
        let ids: Vec<TokenId> = (0..20).collect();
        assert_eq!(listed(None, &ids).validate(&LIMITS), Ok(()));
        assert_eq!(listed(None, &ids).num_alternatives(), Some(20));
        assert_eq!(listed(Some(3), &[7, 8]).num_alternatives(), Some(5));
        assert_eq!(listed(None, &[]).num_alternatives(), None);
        assert_eq!(listed(None, &[7]).canonical().logprobs, Some(0));
        assert_eq!(listed(None, &[8, 7, 8]).canonical().logprob_token_ids, [8, 7]);
        for wrong in [listed(Some(1), &ids), listed(None, &[7, 100])] {
            assert_eq!(refused(&wrong), "logprob_token_ids");
        }
    }

    #[test]
    fn a_refusal_names_the_value_and_the_limit() {
        let params = SamplingParams { logprobs: Some(21), ..SamplingParams::default() };
        let error = params.validate(&LIMITS).expect_err("21 is over the limit of 20");
        assert_eq!(error.to_string(), "logprobs must be at most 20, got 21");
    }

    #[test]
    fn tiny_temperatures_are_greedy_and_small_ones_cannot_overflow() {
        let canonical =
            |temperature| SamplingParams { temperature, ..SamplingParams::default() }.canonical().temperature;
        assert_eq!([0.0, 1e-40, 9e-6].map(canonical), [0.0; 3]);
        assert_eq!([1e-5, 1e-3, 0.01].map(canonical), [0.01; 3]);
        assert_eq!([0.02, 1.0, 5.0].map(canonical), [0.02, 1.0, 5.0]);
    }

    #[test]
    fn canonical_lists_hold_each_id_once() {
        let params = SamplingParams {
            stop_token_ids: vec![3, 1, 3],
            allowed_token_ids: Some(vec![7, 7, 7]),
            ..SamplingParams::default()
        };
        let params = params.canonical();
        assert_eq!((params.stop_token_ids, params.allowed_token_ids), (vec![1, 3], Some(vec![7])));
    }

    #[test]
    fn zero_max_tokens_is_refused() {
        assert_eq!(
            refused(&SamplingParams { max_tokens: Some(0), ..SamplingParams::default() }),
            "max_tokens"
        );
    }
}

//! What flags and library options say about speculation, in one place for both.

use frizzen_core::Speculation;
use frizzen_sched::draft::{NgramConfig, SuffixConfig};
use frizzen_sched::speculation::{DrafterConfig, SpeculationConfig};
use serde::Deserialize;
use serde_json::{Map, Value};

/// Most drafts per row where nobody asks for more.
const USUAL_DRAFTS: u32 = 16;
/// Most drafts per row that may be asked for.
const MOST_DRAFTS: u32 = 64;
/// Tokens that an output of the shared tree of the peers is taken to have: they count requests, we count tokens.
const TOKENS_PER_OUTPUT: u64 = 512;

/// Options as they were given.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SpeculationOptions {
    /// `ngram` or `suffix`.
    pub drafter: Option<String>,
    /// `off`, `auto` or a number of drafts; as JSON, text or number.
    pub speculation: Option<Value>,
    /// vLLM's JSON object, as text.
    pub speculative_config: Option<String>,
    /// Tokens per row and step that verification is forced to give.
    pub spec_synthetic_acceptance: Option<f64>,
}

/// What they amount to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResolvedSpeculation {
    /// For the engine's loop.
    pub config: SpeculationConfig,
    /// For the worker: drafts per row that it must be able to verify.
    pub max_drafts: u32,
}

impl SpeculationOptions {
    /// `None` if there is no drafter.
    ///
    /// # Errors
    /// A sentence that names the option, the value and what is possible.
    pub fn resolve(&self) -> Result<Option<ResolvedSpeculation>, String> {
        let asked = self.asked()?;
        let (drafter, length) = match (&self.drafter, &self.speculative_config) {
            (Some(_), Some(_)) => {
                return Err("drafter and speculative_config say the same thing: give one of them".to_owned());
            }
            (Some(name), None) => (by_name("drafter", name)?, None),
            (None, Some(json)) => {
                let (drafter, length) = from_vllm(json)?;
                (drafter, Some(length))
            }
            (None, None) => {
                return match (asked, self.spec_synthetic_acceptance) {
                    (None | Some(Speculation::Off), None) => Ok(None),
                    (_, Some(_)) => Err("spec_synthetic_acceptance needs a drafter".to_owned()),
                    (Some(_), None) => Err("speculation needs a drafter: ngram or suffix".to_owned()),
                };
            }
        };
        let default = asked.unwrap_or_else(|| length.map_or(Speculation::Off, Speculation::MaxTokens));
        let fixed = if let Speculation::MaxTokens(k) = default { k } else { 0 };
        let config = SpeculationConfig { drafter, default, fill: self.spec_synthetic_acceptance.is_some() };
        Ok(Some(ResolvedSpeculation { config, max_drafts: fixed.max(length.unwrap_or(USUAL_DRAFTS)) }))
    }

    fn asked(&self) -> Result<Option<Speculation>, String> {
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

fn drafts(option: &str, k: u64) -> Result<u32, String> {
    let fits = u32::try_from(k).ok().filter(|k| (1..=MOST_DRAFTS).contains(k));
    fits.ok_or_else(|| format!("{option} must be from 1 to {MOST_DRAFTS} drafts, got {k}"))
}

fn by_name(option: &str, name: &str) -> Result<DrafterConfig, String> {
    match name {
        "ngram" => Ok(DrafterConfig::Ngram(NgramConfig::default())),
        "suffix" => Ok(DrafterConfig::Suffix(SuffixConfig::default())),
        other => Err(format!("{option} {other:?} is not supported; ngram and suffix are")),
    }
}

/// Reads vLLM's JSON; returns the drafter and its draft length.
fn from_vllm(json: &str) -> Result<(DrafterConfig, u32), String> {
    let refused = |why: String| format!("speculative_config: {why}");
    let mut fields: Map<String, Value> =
        serde_json::from_str(json).map_err(|error| refused(error.to_string()))?;
    fields.retain(|_, value| !value.is_null());
    let method = fields.swap_remove("method");
    let method = method.as_ref().and_then(Value::as_str);
    let method = method.ok_or_else(|| refused("method must be given: ngram or suffix".to_owned()))?;
    let mut drafter = by_name("method", method).map_err(refused)?;
    let length = integer(&mut fields, "num_speculative_tokens").map_err(refused)?;
    let length = length.ok_or_else(|| refused("num_speculative_tokens must be given".to_owned()))?;
    let length = drafts("num_speculative_tokens", length).map_err(refused)?;
    match &mut drafter {
        DrafterConfig::Ngram(config) => {
            let min = integer(&mut fields, "prompt_lookup_min").map_err(refused)?;
            let max = integer(&mut fields, "prompt_lookup_max").map_err(refused)?;
            if let Some(one) = min.or(max) {
                config.min = min.unwrap_or(one) as usize;
                config.max = max.unwrap_or(one) as usize;
            }
            config.validate().map_err(refused)?;
        }
        DrafterConfig::Suffix(config) => {
            if let Some(depth) = integer(&mut fields, "suffix_decoding_max_tree_depth").map_err(refused)? {
                config.depth = depth as usize;
            }
            if let Some(requests) =
                integer(&mut fields, "suffix_decoding_max_cached_requests").map_err(refused)?
            {
                let tokens = requests.saturating_mul(TOKENS_PER_OUTPUT).clamp(256, 1 << 26);
                config.shared_tokens = tokens.next_power_of_two() as usize;
            }
            let numbers = [
                ("suffix_decoding_max_spec_factor", &mut config.factor),
                ("suffix_decoding_min_token_prob", &mut config.min_probability),
            ];
            for (name, target) in numbers {
                if let Some(value) = fields.swap_remove(name) {
                    *target = value
                        .as_f64()
                        .ok_or_else(|| refused(format!("{name} must be a number, got {value}")))?;
                }
            }
            config.validate().map_err(refused)?;
        }
    }
    match fields.keys().next() {
        Some(unknown) => Err(refused(format!("{unknown:?} is not supported for {method}"))),
        None => Ok((drafter, length)),
    }
}

fn integer(fields: &mut Map<String, Value>, name: &str) -> Result<Option<u64>, String> {
    let Some(value) = fields.swap_remove(name) else { return Ok(None) };
    value.as_u64().map(Some).ok_or_else(|| format!("{name} must be an integer of at least 0, got {value}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn resolve(options: Value) -> Result<Option<ResolvedSpeculation>, String> {
        serde_json::from_value::<SpeculationOptions>(options).expect("the test's options").resolve()
    }

    fn vllm(config: &Value) -> Result<Option<ResolvedSpeculation>, String> {
        resolve(json!({"speculative_config": config.to_string()}))
    }

    #[test]
    fn flags_say_who_drafts_and_for_whom() {
        assert_eq!(resolve(json!({})), Ok(None));
        assert_eq!(resolve(json!({"speculation": "off"})), Ok(None));
        for (speculation, default, max_drafts) in [
            (json!(null), Speculation::Off, 16),
            (json!("auto"), Speculation::Auto, 16),
            (json!(4), Speculation::MaxTokens(4), 16),
            (json!("20"), Speculation::MaxTokens(20), 20),
        ] {
            let resolved = resolve(json!({"drafter": "ngram", "speculation": speculation}));
            let resolved = resolved.expect("valid").expect("there is a drafter");
            assert_eq!((resolved.config.default, resolved.max_drafts), (default, max_drafts));
            assert_eq!(resolved.config.drafter, DrafterConfig::Ngram(NgramConfig::default()));
        }
    }

    #[test]
    fn vllm_json_is_understood_for_ngram_and_suffix() {
        let ngram = json!({"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2});
        let resolved = vllm(&ngram).expect("valid").expect("there is a drafter");
        assert_eq!((resolved.config.default, resolved.max_drafts), (Speculation::MaxTokens(5), 5));
        assert_eq!(resolved.config.drafter, DrafterConfig::Ngram(NgramConfig { min: 2, max: 4 }));
        let suffix = json!({"method": "suffix", "num_speculative_tokens": 32, "suffix_decoding_max_tree_depth": 16,
            "suffix_decoding_max_cached_requests": 1000, "suffix_decoding_max_spec_factor": 2.0,
            "suffix_decoding_min_token_prob": 0.2});
        let resolved = vllm(&suffix).expect("valid").expect("there is a drafter");
        let expected = SuffixConfig { depth: 16, factor: 2.0, min_probability: 0.2, shared_tokens: 1 << 19 };
        assert_eq!(resolved.config.drafter, DrafterConfig::Suffix(expected));
    }

    #[test]
    fn what_is_not_supported_or_contradicts_itself_is_refused_by_name_vllm_50708() {
        let base = json!({"method": "ngram", "num_speculative_tokens": 3});
        let with = |name: &str, value: Value| {
            let mut config = base.clone();
            config[name] = value;
            config
        };
        for (config, part) in [
            (
                json!({"method": "eagle3", "num_speculative_tokens": 3, "model": "m"}),
                "\"eagle3\" is not supported",
            ),
            (json!({"model": "m", "num_speculative_tokens": 3}), "method must be given"),
            (json!({"method": "ngram"}), "num_speculative_tokens must be given"),
            (with("num_speculative_tokens", json!(0)), "from 1 to 64 drafts, got 0"),
            (with("num_speculative_tokens", json!(10_000)), "got 10000"),
            (with("num_speculative_tokens", json!(-1)), "got -1"),
            (with("num_speculative_tokens", json!("3")), "got \"3\""),
            (with("num_speculative_tokens", json!(2.5)), "got 2.5"),
            (with("prompt_lookup_max", json!(40)), "max 40"),
            (with("draft_tensor_parallel_size", json!(2)), "\"draft_tensor_parallel_size\" is not supported"),
            (json!([1]), "invalid type"),
        ] {
            let refusal = vllm(&config).expect_err("refused");
            assert!(refusal.starts_with("speculative_config: ") && refusal.contains(part), "{refusal}");
        }
        for (options, part) in [
            (json!({"speculation": "auto"}), "needs a drafter"),
            (json!({"spec_synthetic_acceptance": 2.0}), "needs a drafter"),
            (json!({"drafter": "medusa"}), "\"medusa\" is not supported; ngram and suffix are"),
            (json!({"drafter": "ngram", "speculation": "on"}), "got \"on\""),
            (json!({"drafter": "ngram", "speculation": 65}), "got 65"),
            (json!({"drafter": "ngram", "speculative_config": "{}"}), "give one of them"),
        ] {
            let refusal = resolve(options).expect_err("refused");
            assert!(refusal.contains(part), "{refusal}");
        }
    }
}

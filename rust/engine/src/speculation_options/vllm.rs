//! vLLM's JSON object.

use frizzen_sched::speculation::DrafterConfig;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{Asked, by_name, by_text, drafts};

/// Tokens that an output of the shared tree of the peers is taken to have: they count requests, we count tokens.
const TOKENS_PER_OUTPUT: u64 = 512;

/// Reads the object; it must give a draft length.
pub(super) fn read(json: &str) -> Result<Asked, String> {
    let mut fields: Map<String, Value> = serde_json::from_str(json).map_err(|error| error.to_string())?;
    fields.retain(|_, value| !value.is_null());
    let method = fields.swap_remove("method");
    let method = method.as_ref().and_then(Value::as_str);
    let method = method.ok_or_else(|| "method must be given, say ngram or mtp".to_owned())?;
    // deepseek_mtp, glm4_moe_mtp, ...: older names of one method.
    let name = if method.ends_with("_mtp") { "mtp" } else { method };
    let mut drafter = by_name("method", name)?;
    let length = integer(&mut fields, "num_speculative_tokens")?;
    let length = length.ok_or_else(|| "num_speculative_tokens must be given".to_owned())?;
    let length = drafts("num_speculative_tokens", length)?;
    let model = match fields.swap_remove("model") {
        None => None,
        Some(Value::String(model)) => Some(model),
        Some(other) => return Err(format!("model must be a name or a path, got {other}")),
    };
    match &mut drafter {
        DrafterConfig::Ngram(config) => {
            let min = integer(&mut fields, "prompt_lookup_min")?;
            let max = integer(&mut fields, "prompt_lookup_max")?;
            if let Some(one) = min.or(max) {
                config.min = min.unwrap_or(one) as usize;
                config.max = max.unwrap_or(one) as usize;
            }
            config.validate()?;
        }
        DrafterConfig::Suffix(config) => {
            if let Some(depth) = integer(&mut fields, "suffix_decoding_max_tree_depth")? {
                config.depth = depth as usize;
            }
            if let Some(requests) = integer(&mut fields, "suffix_decoding_max_cached_requests")? {
                let tokens = requests.saturating_mul(TOKENS_PER_OUTPUT).clamp(256, 1 << 26);
                config.shared_tokens = tokens.next_power_of_two() as usize;
            }
            let numbers = [
                ("suffix_decoding_max_spec_factor", &mut config.factor),
                ("suffix_decoding_min_token_prob", &mut config.min_probability),
            ];
            for (name, target) in numbers {
                if let Some(value) = fields.swap_remove(name) {
                    *target =
                        value.as_f64().ok_or_else(|| format!("{name} must be a number, got {value}"))?;
                }
            }
            config.validate()?;
        }
        DrafterConfig::Worker(_) => {}
    }
    let ranks = integer(&mut fields, "draft_tensor_parallel_size")?.unwrap_or(1);
    let asked = Asked {
        drafter,
        model,
        length: Some(length),
        draft_sampling: choice(&mut fields, "draft_sample_method", "greedy or probabilistic")?,
        rejection_sampling: choice(&mut fields, "rejection_sample_method", "standard or block")?,
        ranks,
    };
    match fields.keys().next() {
        Some(unknown) => Err(format!("{unknown:?} is not supported for {method}")),
        None => Ok(asked),
    }
}

fn integer(fields: &mut Map<String, Value>, name: &str) -> Result<Option<u64>, String> {
    let Some(value) = fields.swap_remove(name) else { return Ok(None) };
    value.as_u64().map(Some).ok_or_else(|| format!("{name} must be an integer of at least 0, got {value}"))
}

fn choice<T: DeserializeOwned + Default>(
    fields: &mut Map<String, Value>,
    name: &str,
    choices: &str,
) -> Result<T, String> {
    let Some(value) = fields.swap_remove(name) else { return Ok(T::default()) };
    let text = value.as_str().ok_or_else(|| format!("{name} must be {choices}, got {value}"))?;
    by_text(text, choices).map_err(|refusal| format!("{name} {refusal}"))
}

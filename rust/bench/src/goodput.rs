//! Service levels: which requests were good enough.

use std::str::FromStr;

use crate::sample::Sample;
use crate::summary::millis;

/// What a request must stay within.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    quantity: Quantity,
    limit_ms: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity {
    FirstToken,
    PerToken,
    EndToEnd,
}

impl FromStr for Objective {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refusal = || format!("'{text}' is not ttft:MS, tpot:MS or e2e:MS");
        let (name, limit) = text.split_once(':').ok_or_else(refusal)?;
        let quantity = match name {
            "ttft" => Quantity::FirstToken,
            "tpot" => Quantity::PerToken,
            "e2e" | "e2el" => Quantity::EndToEnd,
            _ => return Err(refusal()),
        };
        let limit_ms = limit.parse().ok().filter(|limit: &f64| limit.is_finite() && *limit >= 0.0);
        Ok(Self { quantity, limit_ms: limit_ms.ok_or_else(refusal)? })
    }
}

impl Objective {
    /// Whether `sample` stayed within it. One that has no such quantity (one token has no time per token) did.
    pub fn met_by(&self, sample: &Sample) -> bool {
        let measured = match self.quantity {
            Quantity::FirstToken => sample.time_to_first_token(),
            Quantity::PerToken => sample.time_per_token(),
            Quantity::EndToEnd => Some(sample.latency()),
        };
        measured.is_none_or(|measured| millis(measured) <= self.limit_ms)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sample::Tokens;

    #[test]
    fn a_request_is_good_if_it_meets_every_objective_it_can_be_held_to() {
        let at = Duration::from_millis;
        let sample = Sample {
            sent: at(100),
            ended: at(900),
            late: Duration::ZERO,
            output: vec![Tokens { at: at(300), count: 1 }, Tokens { at: at(800), count: 10 }],
            streamed: true,
            prompt_tokens: 1,
            output_tokens: 11,
            counted_by_server: true,
            inputs: 1,
        };
        let met = |objective: &str| objective.parse::<Objective>().unwrap().met_by(&sample);
        assert!(met("ttft:200") && met("tpot:50") && met("e2e:800"));
        assert!(!met("ttft:199") && !met("tpot:49.9") && !met("e2el:799"));
        let one =
            Sample { output: vec![Tokens { at: at(300), count: 1 }], output_tokens: 1, ..sample.clone() };
        assert!("tpot:0".parse::<Objective>().unwrap().met_by(&one));
    }

    #[test]
    fn what_is_not_an_objective_is_refused() {
        for bad in ["ttft", "ttft:", "ttft:-1", "itl:5", "ttft:inf"] {
            bad.parse::<Objective>().unwrap_err();
        }
    }
}

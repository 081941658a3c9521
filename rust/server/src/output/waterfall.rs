//! Where the time of a choice went, for a request that asks (`timings`).
//!
//! `queue_ms`, `prefill_ms` and `decode_ms` follow one another and add up to the time in the engine.
//! `lost_to_prefill_ms` is a part of `decode_ms`. `detokenize_ms` and `backpressure_ms` are the front end's, and pass
//! while the engine works.

use std::time::Duration;

use frizzen_core::{PrefillStats, Timing};
use serde_json::{Value, json};

/// One choice's times.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Waterfall {
    /// The engine's, as of the last token that came; `None` before the first.
    pub timing: Option<Timing>,
    /// How the prompt was computed.
    pub prefill: PrefillStats,
    /// Tokens that came, those that are not shown included.
    pub tokens: u64,
    /// Making text of them and looking for stop strings.
    pub detokenize: Duration,
    /// From handing a chunk to the connection until the connection asked for the next one, over the whole request so far:
    /// long if the client does not read. Zero without a stream.
    pub backpressure: Duration,
}

impl Waterfall {
    /// Milliseconds, and counts of tokens.
    pub fn json(&self) -> Value {
        let timing = self.timing.unwrap_or_default();
        let between = |from: Duration, to: Duration| milliseconds(to.saturating_sub(from));
        json!({
            "queue_ms": between(timing.queued, timing.scheduled),
            "prefill_ms": between(timing.scheduled, timing.first_token),
            "prefill_tokens": {"cached": self.prefill.cached_tokens, "computed": self.prefill.computed_tokens},
            "decode_ms": between(timing.first_token, timing.last_token),
            "decode_tokens": self.tokens,
            "lost_to_prefill_ms": milliseconds(timing.lost_to_prefill),
            "preemptions": timing.preemptions,
            "detokenize_ms": milliseconds(self.detokenize),
            "backpressure_ms": milliseconds(self.backpressure),
        })
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engines_parts_follow_one_another() {
        let ms = Duration::from_millis;
        let timing = Timing {
            queued: ms(100),
            scheduled: ms(103),
            first_token: ms(110),
            last_token: ms(150),
            preemptions: 1,
            lost_to_prefill: ms(7),
        };
        let prefill = PrefillStats { cached_tokens: 16, computed_tokens: 5 };
        let waterfall = Waterfall {
            timing: Some(timing),
            prefill,
            tokens: 9,
            detokenize: Duration::from_micros(250),
            backpressure: ms(2),
        };
        let expected = json!({
            "queue_ms": 3.0, "prefill_ms": 7.0, "prefill_tokens": {"cached": 16, "computed": 5},
            "decode_ms": 40.0, "decode_tokens": 9, "lost_to_prefill_ms": 7.0, "preemptions": 1,
            "detokenize_ms": 0.25, "backpressure_ms": 2.0,
        });
        assert_eq!(waterfall.json(), expected);
    }
}

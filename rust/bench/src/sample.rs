//! What one request showed. Everything that is reported is computed from these.

use std::time::Duration;

/// Tokens that became visible together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// When, from the start of the run.
    pub at: Duration,
    /// How many; 0 for text that came without a new token.
    pub count: u64,
}

/// A request that succeeded.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// When it was sent, from the start of the run.
    pub sent: Duration,
    /// When its whole body was there, from the start of the run.
    pub ended: Duration,
    /// How long after it was due it was sent: time that it waited for `--max-concurrency`, or for this client.
    pub late: Duration,
    /// Its output, in order. Not streamed: one entry, at the end.
    pub output: Vec<Tokens>,
    /// Whether the output came as a stream: only then does it have a first token and gaps.
    pub streamed: bool,
    /// Prompt tokens, by the server's count.
    pub prompt_tokens: u64,
    /// Output tokens, by the server's count.
    pub output_tokens: u64,
    /// Whether the server counted; if it did not, the counts are this client's.
    pub counted_by_server: bool,
    /// Inputs in the request: more than one for a batch of embeddings.
    pub inputs: u64,
}

impl Sample {
    /// From sending to the end of the body.
    pub fn latency(&self) -> Duration {
        self.ended.saturating_sub(self.sent)
    }

    /// From sending to the first generated text, if it was streamed and there was any.
    pub fn time_to_first_token(&self) -> Option<Duration> {
        let first = self.output.first().filter(|_| self.streamed)?;
        Some(first.at.saturating_sub(self.sent))
    }

    /// Time per token after the first, from the first text to the last, if there was a second token.
    pub fn time_per_token(&self) -> Option<Duration> {
        let (first, last) = (self.output.first()?, self.output.last()?);
        let after_first = self.output_tokens.checked_sub(1).filter(|count| *count > 0 && self.streamed)?;
        Some(last.at.saturating_sub(first.at).div_f64(after_first as f64))
    }

    /// Time between pieces of text, whatever they carried.
    pub fn chunk_gaps(&self) -> impl Iterator<Item = Duration> {
        let pairs = if self.streamed { self.output.windows(2) } else { [].windows(2) };
        pairs.map(|pair| pair[1].at.saturating_sub(pair[0].at))
    }

    /// Time between tokens: a gap is shared by the tokens that end it, and one that brought no token is part of the
    /// next that did. Each with the number of tokens that it stands for.
    pub fn token_gaps(&self) -> impl Iterator<Item = (Duration, u64)> {
        let mut with_tokens = self.output.iter().filter(|tokens| tokens.count > 0 && self.streamed);
        let mut last = with_tokens.next().map(|first| first.at);
        with_tokens.map(move |tokens| {
            let gap = last.replace(tokens.at).map_or(Duration::ZERO, |last| tokens.at.saturating_sub(last));
            (gap.div_f64(tokens.count as f64), tokens.count)
        })
    }
}

/// Shares `total` tokens out among pieces of text. `counted` are the server's running totals with each piece, if it sent
/// them; otherwise the shares are even. They always add up to `total`.
pub fn share_out(total: u64, counted: &[Option<u64>]) -> Vec<u64> {
    let pieces = counted.len() as u64;
    let even = |piece: u64| u128::from(total) * u128::from(piece) / u128::from(pieces);
    let running = counted.iter().enumerate().map(|(index, known)| {
        let last = index as u64 + 1 == pieces;
        known.filter(|_| !last).unwrap_or_else(|| even(index as u64 + 1) as u64).min(total)
    });
    let mut so_far = 0;
    let shares = running.map(|running| {
        let share = running.saturating_sub(so_far);
        so_far += share;
        share
    });
    shares.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_always_add_up() {
        for (total, pieces) in [(50, 10), (7, 3), (3, 7), (0, 4), (1, 1), (128, 127)] {
            let shares = share_out(total, &vec![None; pieces]);
            assert_eq!(shares.len(), pieces);
            assert_eq!(shares.iter().sum::<u64>(), total, "{total} in {pieces}: {shares:?}");
        }
        assert_eq!(share_out(50, &[None; 10]), [5; 10]);
        assert_eq!(share_out(9, &[]), [0; 0]);
    }

    #[test]
    fn the_server_s_running_totals_win() {
        assert_eq!(share_out(9, &[Some(1), Some(4), Some(4), Some(8)]), [1, 3, 0, 5]);
        assert_eq!(share_out(4, &[Some(3), Some(2), Some(99), None]), [3, 0, 1, 0]);
    }
}

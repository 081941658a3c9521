//! A record of arrivals: JSON lines with `timestamp` in milliseconds, `input_length` and `output_length` in tokens, and
//! optionally `hash_ids`, one per block of the prompt: equal ids are equal blocks.

use std::time::Duration;

use serde::Deserialize;

use crate::data::Query;
use crate::draw::Draw;
use crate::prompt::{Maker, Part, Prompt};

/// Odd, so that it tells any two names apart.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
/// Milliseconds: some thirty thousand years, which is a unit mistaken.
const MAX_TIME: f64 = 1e15;

/// The record.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    rows: Vec<Row>,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
struct Row {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

/// How a record is played.
#[derive(Clone, Copy, Debug)]
pub struct Playing {
    /// Tokens of a block that a hash id names.
    pub block: u32,
    /// How many times as fast as it was recorded.
    pub speed: f64,
    /// What the text of the blocks depends on.
    pub seed: u64,
}

impl Trace {
    /// Reads the file's text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let rows: Result<Vec<Row>, String> = lines
            .map(|(index, line)| {
                serde_json::from_str(line).map_err(|error| format!("line {}: {error}", index + 1))
            })
            .collect();
        let mut rows = rows?;
        if let Some(row) = rows.iter().find(|row| row.timestamp.abs() > MAX_TIME) {
            return Err(format!("timestamp {} ms is beyond {MAX_TIME} ms", row.timestamp));
        }
        if rows.is_empty() {
            return Err("no lines".to_owned());
        }
        rows.sort_by(|a, b| a.timestamp.total_cmp(&b.timestamp));
        Ok(Self { rows })
    }

    /// The first `count` requests, the first of them due at once.
    pub fn queries(&self, count: usize, playing: Playing, maker: &Maker) -> Vec<Query> {
        let start = self.rows[0].timestamp;
        let queries = self.rows.iter().take(count).enumerate().map(|(index, row)| Query {
            prompt: row.prompt(playing, index as u64, maker),
            output_tokens: row.output_length.max(1),
            due: Some(Duration::from_secs_f64((row.timestamp - start) / 1e3 / playing.speed)),
        });
        queries.collect()
    }
}

impl Row {
    /// Blocks by their ids, and random tokens of its own for what no id names.
    fn prompt(&self, playing: Playing, index: u64, maker: &Maker) -> Prompt {
        let length = maker.own(self.input_length.max(1));
        let seed = |salt: u64, name: u64| Draw::new(playing.seed ^ salt).bits() ^ name.wrapping_mul(MIX);
        let named = (0..length)
            .step_by(playing.block as usize)
            .zip(&self.hash_ids)
            .map(|(start, id)| Part { tokens: playing.block.min(length - start), seed: seed(0, *id) });
        let mut parts: Vec<Part> = named.collect();
        let covered: u32 = parts.iter().map(|part| part.tokens).sum();
        parts.push(Part { tokens: length - covered, seed: seed(1, index) });
        maker.make(&parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAYING: Playing = Playing { block: 4, speed: 2.0, seed: 1 };

    fn ids(query: &Query) -> &[u32] {
        match &query.prompt {
            Prompt::Ids(ids) => ids,
            Prompt::Text(_) => panic!("not ids"),
        }
    }

    #[test]
    fn times_lengths_and_shared_blocks_are_those_of_the_record() {
        let text = "{\"timestamp\": 3000, \"input_length\": 10, \"output_length\": 2, \"hash_ids\": [7, 9]}\n\n\
                    {\"timestamp\": 1000, \"input_length\": 7, \"output_length\": 0, \"hash_ids\": [7, 8]}\n\
                    {\"timestamp\": 2000, \"input_length\": 5, \"output_length\": 3}\n";
        let queries = Trace::parse(text).unwrap().queries(10, PLAYING, &Maker::Ids(100..200));
        let due: Vec<u128> = queries.iter().map(|query| query.due.unwrap().as_millis()).collect();
        assert_eq!(due, [0, 500, 1000], "played twice as fast");
        assert_eq!(queries.iter().map(|query| ids(query).len()).collect::<Vec<_>>(), [7, 5, 10]);
        assert_eq!(queries.iter().map(|query| query.output_tokens).collect::<Vec<_>>(), [1, 3, 2]);
        assert_eq!(ids(&queries[0])[..4], ids(&queries[2])[..4], "both begin with block 7");
        assert_ne!(ids(&queries[0])[4..7], ids(&queries[2])[4..7]);
    }

    #[test]
    fn a_broken_line_is_named() {
        assert!(Trace::parse("{\"timestamp\": 1}").unwrap_err().starts_with("line 1: missing field"));
        assert_eq!(Trace::parse("\n").unwrap_err(), "no lines");
        let far = "{\"timestamp\": 1e300, \"input_length\": 1, \"output_length\": 1}";
        assert!(Trace::parse(far).unwrap_err().contains("beyond"));
    }
}

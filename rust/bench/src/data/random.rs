//! Random prompts, behind a prefix that several of them share.

use crate::data::Query;
use crate::draw::Draw;
use crate::prompt::{Maker, Part};

/// Lengths of random requests in tokens. With `prefix` 0 nothing is shared.
#[derive(Clone, Copy, Debug)]
pub struct Random {
    /// Of the part of a prompt that is its own.
    pub input: u32,
    /// Of the answer.
    pub output: u32,
    /// Lengths are uniform within `1 - spread ..= 1 + spread` of what is asked for; from 0 to below 1.
    pub spread: f64,
    /// Of the shared part.
    pub prefix: u32,
    /// Different prefixes, each used equally often, in turns.
    pub prefixes: u32,
}

impl Random {
    /// `count` requests.
    pub fn queries(&self, count: usize, maker: &Maker, draw: &mut Draw) -> Vec<Query> {
        let prefixes: Vec<Part> =
            (0..self.prefixes.max(1)).map(|_| Part { tokens: self.prefix, seed: draw.bits() }).collect();
        let queries = prefixes.iter().cycle().take(count).map(|prefix| {
            let (input, output_tokens) = (self.around(self.input, draw), self.around(self.output, draw));
            let own = Part { tokens: maker.own(input), seed: draw.bits() };
            Query { prompt: maker.make(&[*prefix, own]), output_tokens, due: None }
        });
        queries.collect()
    }

    fn around(&self, length: u32, draw: &mut Draw) -> u32 {
        let low = (f64::from(length) * (1.0 - self.spread)).round().max(1.0) as u32;
        let high = (f64::from(length) * (1.0 + self.spread)).round().max(1.0) as u32;
        draw.within(&(low..high + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::Prompt;

    const MAKER: Maker = Maker::Ids(100..200);

    fn ids(query: &Query) -> &[u32] {
        match &query.prompt {
            Prompt::Ids(ids) => ids,
            Prompt::Text(_) => panic!("not ids"),
        }
    }

    #[test]
    fn without_a_spread_every_length_is_exact() {
        let random = Random { input: 32, output: 16, spread: 0.0, prefix: 0, prefixes: 1 };
        let queries = random.queries(20, &MAKER, &mut Draw::new(1));
        assert_eq!(queries.len(), 20);
        assert!(queries.iter().all(|query| ids(query).len() == 32 && query.output_tokens == 16));
        assert_ne!(queries[0].prompt, queries[1].prompt);
    }

    #[test]
    fn a_spread_reaches_both_ends_and_no_further() {
        let random = Random { input: 10, output: 10, spread: 0.5, prefix: 0, prefixes: 1 };
        let queries = random.queries(500, &MAKER, &mut Draw::new(2));
        let lengths: Vec<usize> = queries.iter().map(|query| ids(query).len()).collect();
        assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&5), Some(&15)));
    }

    #[test]
    fn prefixes_are_shared_in_turns() {
        let random = Random { input: 8, output: 1, spread: 0.0, prefix: 64, prefixes: 3 };
        let queries = random.queries(9, &MAKER, &mut Draw::new(3));
        let prefix = |index: usize| &ids(&queries[index])[..64];
        assert_eq!(prefix(0), prefix(3));
        assert_eq!(prefix(2), prefix(8));
        assert_ne!(prefix(0), prefix(1));
        assert_ne!(ids(&queries[0])[64..], ids(&queries[3])[64..]);
        assert_eq!(ids(&queries[0]).len(), 72);
    }
}

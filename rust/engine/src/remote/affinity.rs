//! Which replica a prompt goes to: the least loaded one, unless another has its prefix and is hardly busier.

use std::collections::VecDeque;
use std::hash::Hasher;

use frizzen_core::TokenId;
use rustc_hash::{FxHashMap, FxHasher};

/// Tokens that are remembered together. Long enough that what chat templates share does not tie everybody to one
/// replica, short enough for system prompts.
const CHUNK: usize = 64;
/// Chunks that are remembered, all replicas together.
const REMEMBERED: usize = 1 << 16;
/// How much busier the replica with the prefix may be: this many requests, or a quarter more.
const SLACK: usize = 4;

/// What is remembered of past prompts.
#[derive(Debug, Default)]
pub struct Affinity {
    /// Replica by the hash of everything up to the end of a chunk.
    home: FxHashMap<u64, usize>,
    /// The hashes, oldest first.
    order: VecDeque<u64>,
    /// Where the search for the least loaded begins, so that equals take turns.
    turn: usize,
}

/// The hashes of a prompt's whole chunks, each of everything before it too.
fn chunks<'a>(prompt: &'a [TokenId], salt: Option<&str>) -> impl Iterator<Item = u64> + 'a {
    let mut hasher = FxHasher::default();
    hasher.write(salt.unwrap_or_default().as_bytes());
    prompt.chunks_exact(CHUNK).map(move |chunk| {
        for token in chunk {
            hasher.write_u32(*token);
        }
        hasher.finish()
    })
}

impl Affinity {
    /// Chooses among replicas by their open requests (`None`: not there), and remembers the choice.
    pub fn choose(
        &mut self,
        prompt: &[TokenId],
        salt: Option<&str>,
        loads: &[Option<usize>],
    ) -> Option<usize> {
        self.turn = (self.turn + 1) % loads.len().max(1);
        let rotated = (self.turn..loads.len()).chain(0..self.turn);
        let (load, least) =
            rotated.filter_map(|rank| Some((loads[rank]?, rank))).min_by_key(|(load, _)| *load)?;
        let hashes: Vec<u64> = chunks(prompt, salt).collect();
        let home = hashes.iter().rev().find_map(|hash| self.home.get(hash)).copied();
        let near = |rank: &usize| {
            loads.get(*rank).copied().flatten().is_some_and(|busy| busy <= load + SLACK.max(load / 4))
        };
        let rank = home.filter(near).unwrap_or(least);
        for hash in hashes {
            if self.home.insert(hash, rank).is_none() {
                self.order.push_back(hash);
            }
        }
        while self.order.len() > REMEMBERED {
            if let Some(oldest) = self.order.pop_front() {
                self.home.remove(&oldest);
            }
        }
        Some(rank)
    }

    /// A replica has lost its cache.
    pub fn forget(&mut self, rank: usize) {
        let home = &mut self.home;
        home.retain(|_, owner| *owner != rank);
        self.order.retain(|hash| home.contains_key(hash));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(seed: u32, length: u32) -> Vec<TokenId> {
        (0..length).map(|index| seed * 1000 + index).collect()
    }

    #[test]
    fn strangers_go_to_the_least_loaded_and_equals_take_turns() {
        let mut affinity = Affinity::default();
        assert_eq!(affinity.choose(&prompt(1, 10), None, &[Some(3), Some(1), Some(2)]), Some(1));
        let mut seen: Vec<_> =
            (0..3).map(|seed| affinity.choose(&prompt(seed, 10), None, &[Some(0); 3]).unwrap()).collect();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2]);
        assert_eq!(affinity.choose(&prompt(1, 10), None, &[None, None]), None);
    }

    #[test]
    fn a_known_prefix_goes_home_unless_home_is_much_busier() {
        let mut affinity = Affinity::default();
        let mut long = prompt(7, 130);
        assert_eq!(affinity.choose(&long, None, &[Some(1), Some(0)]), Some(1));
        long.extend([1, 2, 3]);
        assert_eq!(affinity.choose(&long, None, &[Some(0), Some(4)]), Some(1));
        assert_eq!(affinity.choose(&long, Some("salt"), &[Some(0), Some(4)]), Some(0), "shares no blocks");
        assert_eq!(affinity.choose(&long, None, &[Some(0), Some(5)]), Some(0));
        assert_eq!(affinity.choose(&long, None, &[Some(4), Some(0)]), Some(0), "it has moved");
        affinity.forget(0);
        assert_eq!(affinity.choose(&long, None, &[Some(4), Some(0)]), Some(1));
        assert_eq!(affinity.choose(&long, None, &[Some(0), None]), Some(0));
    }

    #[test]
    fn memory_is_bounded() {
        let mut affinity = Affinity::default();
        for seed in 0..70 {
            affinity.choose(&prompt(seed, 64_000), None, &[Some(0)]);
        }
        assert!(affinity.home.len() <= REMEMBERED && affinity.order.len() == affinity.home.len());
    }
}

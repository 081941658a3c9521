//! How long KV blocks live, lie idle before they are lost, and wait between two uses.
//!
//! One block in [`SAMPLED`] is followed, so that the others cost one comparison. A block *lives* from the moment it is
//! handed out until its content is given up for another's; it is *used* when it is handed out, found by its prefix, or
//! given back.

use std::time::Duration;

use frizzen_core::BlockId;

/// Of how many blocks one is followed.
const SAMPLED: u32 = 16;

/// What was seen of a followed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    /// Its content was given up, this long after the block was handed out and this long after it was last used.
    Evicted {
        /// Since it was handed out.
        lifetime: Duration,
        /// Since it was last used.
        idle: Duration,
    },
    /// Its content was found again, this long after it was last used.
    Reused {
        /// Since it was last used.
        gap: Duration,
    },
}

#[derive(Clone, Copy, Debug)]
struct Followed {
    born: Duration,
    used: Duration,
}

/// Times of the followed blocks, and what was seen since somebody asked.
#[derive(Debug)]
pub(crate) struct BlockResidency {
    now: Duration,
    /// Entry `i` is about block `i` times [`SAMPLED`].
    followed: Vec<Option<Followed>>,
    seen: Vec<Residency>,
}

impl BlockResidency {
    /// For a pool of this many blocks, the null block included.
    pub fn new(num_blocks: u32) -> Self {
        let followed = vec![None; num_blocks.div_ceil(SAMPLED) as usize];
        Self { now: Duration::ZERO, followed, seen: Vec::new() }
    }

    /// What happens from now on happens at this time.
    pub const fn set_now(&mut self, now: Duration) {
        self.now = now;
    }

    /// The entry of a block, if it is followed.
    fn entry(&mut self, block: BlockId) -> Option<&mut Option<Followed>> {
        if block.0.is_multiple_of(SAMPLED) {
            self.followed.get_mut((block.0 / SAMPLED) as usize)
        } else {
            None
        }
    }

    /// A block is handed out; what it held is lost.
    pub fn allocated(&mut self, block: BlockId, was_cached: bool) {
        let now = self.now;
        let Some(entry) = self.entry(block) else { return };
        if let Some(before) = entry.replace(Followed { born: now, used: now })
            && was_cached
        {
            let since = |time: Duration| now.saturating_sub(time);
            self.seen.push(Residency::Evicted { lifetime: since(before.born), idle: since(before.used) });
        }
    }

    /// A block was found by its prefix.
    pub fn reused(&mut self, block: BlockId) {
        let now = self.now;
        if let Some(Some(followed)) = self.entry(block) {
            let gap = now.saturating_sub(followed.used);
            followed.used = now;
            self.seen.push(Residency::Reused { gap });
        }
    }

    /// A block was given back by one of those who hold it.
    pub fn released(&mut self, block: BlockId) {
        let now = self.now;
        if let Some(Some(followed)) = self.entry(block) {
            followed.used = now;
        }
    }

    /// Takes what was seen.
    pub fn drain(&mut self) -> impl Iterator<Item = Residency> + '_ {
        self.seen.drain(..)
    }
}

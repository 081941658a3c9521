//! KV blocks: allocation, reference counts, and the prefix cache.
//!
//! * Block 0 is the null block: never handed out, never hashed.
//! * A block is *free* iff nobody refers to it. A free block may still be *hashed*: its content is a known prefix,
//!   found by [`BlockPool::find`] and revived by [`BlockPool::acquire`].
//! * The free list is in order of reuse: unhashed blocks first (they are worth nothing), then hashed ones, least
//!   recently used first. A request's blocks are released tail first, so the head of a prefix outlives its tail.
//! * A hash names at most one block. A second block with the same content stays unhashed: block tables only grow, so
//!   it cannot be replaced in place.

use frizzen_core::{BlockId, TokenId};
use rustc_hash::FxHashMap;
use xxhash_rust::xxh3::Xxh3;

use crate::residency::BlockResidency;

/// Identifies the content of a full block and everything before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockHash(u128);

/// The hash of a full block: its parent's hash (or the salt, for the first block) and its tokens.
pub fn hash_block(seed: u64, parent: Option<BlockHash>, salt: Option<&str>, tokens: &[TokenId]) -> BlockHash {
    let mut hasher = Xxh3::with_seed(seed);
    match (parent, salt) {
        (Some(parent), _) => hasher.update(&parent.0.to_le_bytes()),
        // A length prefix and a marker keep a salted root apart from any parent and from an unsalted root.
        (None, Some(salt)) => {
            hasher.update(b"salt");
            hasher.update(&(salt.len() as u64).to_le_bytes());
            hasher.update(salt.as_bytes());
        }
        (None, None) => hasher.update(b"root"),
    }
    for token in tokens {
        hasher.update(&token.to_le_bytes());
    }
    BlockHash(hasher.digest128())
}

#[derive(Clone, Copy, Debug)]
struct Meta {
    refs: u32,
    hash: Option<BlockHash>,
    prev: u32,
    next: u32,
}

/// All KV blocks of an engine.
#[derive(Debug)]
pub struct BlockPool {
    /// One entry per block; the null block's links are the ends of the free list.
    meta: Vec<Meta>,
    free: usize,
    cached: FxHashMap<BlockHash, BlockId>,
    pub(crate) residency: BlockResidency,
}

/// The null block is never free, so its links serve as the list's two ends.
const ENDS: usize = 0;

impl BlockPool {
    /// A pool of `num_blocks` blocks, the null block included.
    pub fn new(num_blocks: u32) -> Self {
        let n = num_blocks.max(1);
        let meta =
            (0..n).map(|i| Meta { refs: 0, hash: None, prev: (i + n - 1) % n, next: (i + 1) % n }).collect();
        let cached = FxHashMap::with_capacity_and_hasher(n as usize, rustc_hash::FxBuildHasher);
        Self { meta, free: n as usize - 1, cached, residency: BlockResidency::new(n) }
    }

    /// Blocks that can be allocated now.
    pub const fn free(&self) -> usize {
        self.free
    }

    /// Blocks that somebody refers to.
    pub fn used(&self) -> usize {
        self.total() - self.free
    }

    /// Blocks in all, the null block not counted.
    pub fn total(&self) -> usize {
        self.meta.len() - 1
    }

    fn unlink(&mut self, block: BlockId) {
        let Meta { prev, next, .. } = self.meta[block.index()];
        self.meta[prev as usize].next = next;
        self.meta[next as usize].prev = prev;
        self.free -= 1;
    }

    fn link_between(&mut self, block: BlockId, prev: u32, next: u32) {
        self.meta[prev as usize].next = block.0;
        self.meta[next as usize].prev = block.0;
        let meta = &mut self.meta[block.index()];
        (meta.prev, meta.next) = (prev, next);
        self.free += 1;
    }

    /// Takes the block that is cheapest to lose, forgetting its hash. `None` if none is free.
    pub fn allocate(&mut self) -> Option<BlockId> {
        let block = BlockId(self.meta[ENDS].next);
        if block == BlockId::NULL {
            return None;
        }
        self.unlink(block);
        self.residency.allocated(block, self.meta[block.index()].hash.is_some());
        self.forget(block);
        self.meta[block.index()].refs = 1;
        Some(block)
    }

    /// The block that holds this content, if it is still there.
    pub fn find(&self, hash: BlockHash) -> Option<BlockId> {
        self.cached.get(&hash).copied()
    }

    /// True if nobody refers to the block, so that acquiring it costs a free block.
    pub fn is_free(&self, block: BlockId) -> bool {
        self.meta[block.index()].refs == 0
    }

    /// Adds a reference to a block found by its hash.
    pub fn acquire(&mut self, block: BlockId) {
        if self.is_free(block) {
            self.unlink(block);
        }
        self.residency.reused(block);
        self.meta[block.index()].refs += 1;
    }

    /// Names the content of a block that is in use. Keeps the first block of a name.
    pub fn publish(&mut self, block: BlockId, hash: BlockHash) {
        if self.meta[block.index()].hash.is_none() && !self.cached.contains_key(&hash) {
            self.cached.insert(hash, block);
            self.meta[block.index()].hash = Some(hash);
        }
    }

    /// Takes the name of a block away: its content is not what the name says.
    pub fn forget(&mut self, block: BlockId) {
        if let Some(hash) = self.meta[block.index()].hash.take() {
            self.cached.remove(&hash);
        }
    }

    /// Gives up one reference to each block, last block first.
    pub fn release(&mut self, blocks: &[BlockId]) {
        for block in blocks.iter().rev() {
            self.residency.released(*block);
            let meta = &mut self.meta[block.index()];
            meta.refs -= 1;
            if meta.refs > 0 {
                continue;
            }
            if meta.hash.is_some() {
                let last = self.meta[ENDS].prev;
                self.link_between(*block, last, ENDS as u32);
            } else {
                let first = self.meta[ENDS].next;
                self.link_between(*block, ENDS as u32, first);
            }
        }
    }

    /// Forgets every prefix. Returns false, and does nothing, while a block is in use.
    pub fn reset(&mut self) -> bool {
        if self.used() > 0 {
            return false;
        }
        self.cached.clear();
        for meta in &mut self.meta {
            meta.hash = None;
        }
        true
    }

    /// Panics if an invariant of this module does not hold. For tests and idle moments: walks everything.
    pub fn check(&self) {
        let mut seen = 0;
        let mut at = self.meta[ENDS].next as usize;
        let mut previous = ENDS;
        while at != ENDS {
            assert_eq!(self.meta[at].prev as usize, previous, "the free list's links disagree at block {at}");
            assert_eq!(self.meta[at].refs, 0, "block {at} is on the free list and in use");
            seen += 1;
            previous = at;
            at = self.meta[at].next as usize;
        }
        assert_eq!(seen, self.free, "the free count is wrong");
        let unused = self.meta.iter().skip(1).filter(|meta| meta.refs == 0).count();
        assert_eq!(unused, self.free, "a block without references is not on the free list");
        let hashed = self.meta.iter().filter(|meta| meta.hash.is_some()).count();
        assert_eq!(hashed, self.cached.len(), "a name without its block, or a block without its name");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::residency::Residency;

    fn hash(n: u32) -> BlockHash {
        hash_block(0, None, None, &[n])
    }

    fn take(pool: &mut BlockPool, n: usize) -> Vec<BlockId> {
        (0..n).map(|_| pool.allocate().expect("a free block")).collect()
    }

    #[test]
    fn the_null_block_is_never_allocated() {
        let mut pool = BlockPool::new(4);
        assert_eq!(pool.total(), 3);
        let blocks = take(&mut pool, 3);
        assert!(!blocks.contains(&BlockId::NULL));
        assert_eq!(pool.allocate(), None);
        pool.release(&blocks);
        pool.check();
    }

    #[test]
    fn unhashed_blocks_are_reused_before_cached_prefixes() {
        let mut pool = BlockPool::new(4);
        let blocks = take(&mut pool, 3);
        pool.publish(blocks[1], hash(1));
        pool.release(&blocks);
        assert_eq!(take(&mut pool, 3).last(), Some(&blocks[1]));
        assert_eq!(pool.find(hash(1)), None, "reuse forgets the prefix");
        pool.check();
    }

    #[test]
    fn a_prefix_loses_its_tail_first() {
        let mut pool = BlockPool::new(4);
        let blocks = take(&mut pool, 3);
        for (n, block) in blocks.iter().enumerate() {
            pool.publish(*block, hash(n as u32));
        }
        pool.release(&blocks);
        take(&mut pool, 2);
        assert_eq!(pool.find(hash(0)), Some(blocks[0]));
        assert_eq!((pool.find(hash(1)), pool.find(hash(2))), (None, None));
    }

    #[test]
    fn a_hit_on_a_free_block_revives_it_and_references_are_counted() {
        let mut pool = BlockPool::new(3);
        let blocks = take(&mut pool, 1);
        pool.publish(blocks[0], hash(9));
        pool.release(&blocks);
        let found = pool.find(hash(9)).expect("cached");
        pool.acquire(found);
        pool.acquire(found);
        assert_eq!(pool.free(), 1);
        pool.release(&[found]);
        assert_eq!(pool.used(), 1);
        pool.release(&[found]);
        assert_eq!(pool.used(), 0);
        pool.check();
    }

    #[test]
    fn a_second_block_with_the_same_content_stays_unnamed() {
        let mut pool = BlockPool::new(3);
        let blocks = take(&mut pool, 2);
        pool.publish(blocks[0], hash(5));
        pool.publish(blocks[1], hash(5));
        assert_eq!(pool.find(hash(5)), Some(blocks[0]));
        pool.release(&blocks);
        pool.check();
        assert_eq!(pool.allocate(), Some(blocks[1]));
    }

    #[test]
    fn the_life_of_a_followed_block_is_told_once_it_is_lost() {
        let at = Duration::from_secs;
        // Block 16 is the one that is followed.
        let mut pool = BlockPool::new(17);
        let blocks = take(&mut pool, 16);
        let followed = *blocks.iter().find(|block| block.0 == 16).expect("all were taken");
        pool.publish(followed, hash(1));
        pool.residency.set_now(at(3));
        pool.release(&blocks);
        pool.residency.set_now(at(10));
        pool.acquire(followed);
        assert_eq!(pool.residency.drain().collect::<Vec<_>>(), [Residency::Reused { gap: at(7) }]);
        pool.release(&[followed]);
        pool.residency.set_now(at(30));
        take(&mut pool, 16);
        let lost = Residency::Evicted { lifetime: at(30), idle: at(20) };
        assert_eq!(pool.residency.drain().collect::<Vec<_>>(), [lost]);
    }

    #[test]
    fn reset_is_refused_while_a_block_is_in_use() {
        let mut pool = BlockPool::new(3);
        let blocks = take(&mut pool, 1);
        pool.publish(blocks[0], hash(5));
        assert!(!pool.reset());
        pool.release(&blocks);
        assert!(pool.reset());
        assert_eq!(pool.find(hash(5)), None);
        pool.check();
    }

    #[test]
    fn salts_and_parents_separate_equal_tokens() {
        let plain = hash_block(0, None, None, &[1, 2]);
        assert_ne!(plain, hash_block(0, None, Some(""), &[1, 2]));
        assert_ne!(plain, hash_block(0, None, Some("a"), &[1, 2]));
        assert_ne!(plain, hash_block(0, Some(plain), None, &[1, 2]));
        assert_ne!(plain, hash_block(1, None, None, &[1, 2]));
        // A salt whose bytes look like tokens does not make two different prefixes collide.
        assert_ne!(hash_block(0, None, Some("ab\0\0"), &[7]), hash_block(0, None, Some("ab"), &[0, 7]));
    }
}

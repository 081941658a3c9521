//! A large binary body passes through: counted, not assumed.

#![expect(unsafe_code, reason = "a counting allocator has to implement an unsafe trait")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Server, Step, head};
use frizzen_bench::answer::Reading;

/// Bytes that are allocated now, and the most there were.
struct Counting {
    live: AtomicUsize,
    peak: AtomicUsize,
}

// SAFETY: forwards every call to the system allocator unchanged; the counters are plain atomics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = self.live.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        self.peak.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's contract is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.live.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting { live: AtomicUsize::new(0), peak: AtomicUsize::new(0) };

static PIECE: [u8; 64 << 10] = [7; 64 << 10];

#[test]
fn the_memory_of_a_binary_body_does_not_grow_with_it() {
    let pieces = 512;
    let length = pieces * PIECE.len();
    let server = Server::answering(vec![vec![Step::Write(head(length, "")), Step::Repeat(&PIECE, pieces)]]);
    let before = ALLOCATOR.live.load(Ordering::Relaxed);
    ALLOCATOR.peak.store(before, Ordering::Relaxed);
    let outcome = server.ask(Reading::BytesOnly, 2);
    let grown = ALLOCATOR.peak.load(Ordering::Relaxed) - before;
    assert_eq!(outcome.samples.len(), 2, "{:?}", outcome.failures);
    assert!(grown < 1 << 20, "{grown} bytes for a body of {length}");
}

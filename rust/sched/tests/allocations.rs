//! A steady decode allocates nothing: counted, not assumed.

#![expect(unsafe_code, reason = "a counting allocator has to implement an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use frizzen_core::{Request, RequestId, SamplingParams};
use frizzen_sched::sim::ChainModel;
use frizzen_sched::{AdmissionLimits, Policy, Scheduler, SchedulerConfig, StepOutput, StepPlan};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: forwards every call to the system allocator unchanged; the counter is a plain thread-local cell.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's contract is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_steady_decode_allocates_nothing_in_plan_and_commit() {
    let rows = 64;
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_num_seqs: rows,
        max_num_batched_tokens: 4096,
        max_model_len: 512,
        block_size: 16,
        num_blocks: 64 * 32 + 1,
        prefix_caching: true,
        whole_prompts: false,
        long_prefill_threshold: 0,
        policy: Policy::Fcfs,
        hash_seed: 1,
        admissions: AdmissionLimits::for_engine(rows, 4096, 512, 16, 1000),
    });
    let mut model = ChainModel::new(64 * 32 + 1, 16, rows, 1000);
    for id in 0..u64::from(rows) {
        let prompt: Vec<u32> = (0..40).map(|i| (i * 7 + id as u32) % 1000).collect();
        let params = SamplingParams { temperature: 0.0, max_tokens: Some(400), ..SamplingParams::default() };
        let request = Request {
            prompt: prompt.into(),
            params,
            priority: 0,
            constraint: None,
            pooling: None,
            cache_salt: None,
            external_id: "".into(),
        };
        scheduler.add(RequestId(id), Arc::new(request), &[], 0, Duration::ZERO);
    }
    let (mut plan, mut output, mut events) = (StepPlan::default(), StepOutput::default(), Vec::new());
    let mut allocations = 0;
    for step in 0..200 {
        let before = COUNT.get();
        assert!(scheduler.plan(&mut plan, Duration::ZERO));
        let planned = COUNT.get() - before;
        model.run(&plan, &mut output, ChainModel::token_after);
        let before = COUNT.get();
        scheduler.commit(&plan, &output, Duration::ZERO, &mut events);
        if step >= 20 {
            // Blocks are opened and hashed in here too: 180 steps cross eleven block borders per row.
            allocations += planned + COUNT.get() - before;
        }
    }
    assert_eq!(allocations, 0);
}

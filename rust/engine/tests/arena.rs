//! What Python will read is what the plan says, and what Python writes is what the engine gets.

use std::sync::Arc;
use std::time::Duration;

use frizzen_core::{Activation, PoolingInfo, PoolingTask, Request, RequestId, SamplingParams};
use frizzen_engine::arena::{Arena, ArenaLayout, ArenaLimits, Section, header};
use frizzen_engine::mock::mock_info;
use frizzen_engine::{WorkerError, WorkerInfo};
use frizzen_sched::{LAST_SAMPLED, Policy, Proposals, Scheduler, SchedulerConfig, StepOutput, StepPlan};

#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line(#[expect(dead_code, reason = "only its size and alignment matter")] [u8; 64]);

/// Zeroed memory aligned like a torch allocation, found inside a larger buffer.
fn aligned(memory: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    memory.resize(bytes + size_of::<Line>(), 0);
    let skip = memory.as_ptr().align_offset(align_of::<Line>());
    &mut memory[skip..skip + bytes]
}

fn section<'a>(layout: &'a ArenaLayout, name: &str) -> &'a Section {
    layout.sections().iter().find(|section| section.name == name).expect("a known section")
}

fn ints(layout: &ArenaLayout, bytes: &[u8], name: &str, len: usize) -> Vec<i32> {
    let from = section(layout, name).offset;
    bytes[from..from + len * 4]
        .chunks(4)
        .map(|four| i32::from_ne_bytes(four.try_into().expect("four")))
        .collect()
}

fn put(layout: &ArenaLayout, bytes: &mut [u8], name: &str, at: usize, value: [u8; 4]) {
    let from = section(layout, name).offset + at * 4;
    bytes[from..from + 4].copy_from_slice(&value);
}

fn info() -> WorkerInfo {
    WorkerInfo {
        max_num_seqs: 4,
        max_num_batched_tokens: 64,
        max_model_len: 128,
        num_blocks: 33,
        ..mock_info()
    }
}

fn planned() -> StepPlan {
    let info = info();
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_num_seqs: info.max_num_seqs,
        max_num_batched_tokens: info.max_num_batched_tokens,
        max_model_len: info.max_model_len,
        block_size: info.block_size,
        num_blocks: info.num_blocks,
        prefix_caching: true,
        whole_prompts: false,
        long_prefill_threshold: 0,
        policy: Policy::Fcfs,
        hash_seed: 1,
        admissions: info.admission_limits(),
    });
    let params = SamplingParams {
        temperature: 0.5,
        top_k: 7,
        min_tokens: 2,
        stop_token_ids: vec![9],
        logit_bias: vec![(3, -1.5)],
        allowed_token_ids: Some(vec![3, 4]),
        frequency_penalty: 0.25,
        logprobs: Some(2),
        prompt_logprobs: Some(1),
        ..SamplingParams::default()
    };
    let requests = [params, SamplingParams { temperature: 0.0, ..SamplingParams::default() }];
    for (id, params) in requests.into_iter().enumerate() {
        let prompt = (0..20 - 19 * id as u32).collect();
        let request = Request {
            prompt,
            params,
            priority: 0,
            constraint: None,
            pooling: None,
            cache_salt: None,
            external_id: "".into(),
        };
        scheduler.add(RequestId(id as u64), Arc::new(request), &[0], 77, Duration::ZERO);
    }
    let mut plan = StepPlan::default();
    assert!(scheduler.plan(&mut plan, Duration::ZERO));
    plan
}

#[test]
fn sections_are_aligned_and_do_not_overlap() {
    let layout = ArenaLayout::new(ArenaLimits::for_worker(&info()));
    let mut end = 0;
    for section in layout.sections() {
        assert_eq!(section.offset % 64, 0);
        assert!(section.offset >= end, "{} overlaps its predecessor", section.name);
        end = section.offset + section.len() * section.dtype.size();
    }
    assert!(end <= layout.bytes());
}

#[test]
fn the_arena_holds_what_the_plan_says() {
    let layout = ArenaLayout::new(ArenaLimits::for_worker(&info()));
    let mut memory = Vec::new();
    let bytes = aligned(&mut memory, layout.bytes());
    let plan = planned();
    Arena::new(&layout, bytes).expect("large enough").encode(&plan).expect("fits");
    let read = |name, len| ints(&layout, bytes, name, len);
    assert_eq!(read("input_ids", 21), plan.input_ids);
    assert_eq!(read("positions", 21), plan.positions);
    assert_eq!(read("query_start", 3), [0, 1, 21], "the row of one token comes first");
    assert_eq!(read("seq_lens", 2), [1, 20]);
    assert_eq!(read("sample_tokens", 2), [0, 20]);
    assert_eq!(read("prompt_targets", 19), (1..20).collect::<Vec<_>>());
    assert_eq!(read("block_columns", 3), [0, 1, 0]);
    // The request that arrived first was admitted first: top-k, alternatives, prompt length, min_tokens, rules, history.
    assert_eq!(read("admit_ints", 8), [7, 2, 1, 20, 2, 1 + 2 + 2, 20, 0]);
    assert_eq!(read("rule_kinds", 5), [0, 1, 1, 2, 2]);
    assert_eq!(read("rule_tokens", 5), [3, 3, 4, 0, 9]);
    assert_eq!(read("history", 20), (0..20).collect::<Vec<_>>());
    assert_eq!(LAST_SAMPLED, -1, "the worker compares with this value");
}

#[test]
fn masks_follow_the_plan_once_they_are_filled() {
    let layout = ArenaLayout::new(ArenaLimits::for_worker(&info()));
    let mut memory = Vec::new();
    let bytes = aligned(&mut memory, layout.bytes());
    let mut plan = planned();
    plan.mask_rows = vec![1];
    let mut arena = Arena::new(&layout, bytes).expect("large enough");
    arena.encode(&plan).expect("fits");
    assert!(arena.encode_masks(&plan).is_err(), "a plan whose masks are not filled is a defect");
    plan.masks = (0..8).map(|word| 1 << word).collect();
    arena.encode_masks(&plan).expect("one mask of 256 bits");
    assert_eq!(ints(&layout, bytes, "mask_rows", 1), [1]);
    assert_eq!(ints(&layout, bytes, "masks", 8), [1, 2, 4, 8, 16, 32, 64, 128]);
    put(&layout, bytes, "row_status", 0, 1i32.to_ne_bytes());
    put(&layout, bytes, "row_status", 1, 1i32.to_ne_bytes());
    let mut output = StepOutput::default();
    Arena::new(&layout, bytes).expect("large enough").decode(&plan, 256, &mut output).expect("in range");
    assert!(output.failed[0].1.contains("not finite") && !output.failed[0].1.contains("grammar"));
    assert!(
        output.failed[1].1.contains("grammar"),
        "the row that was masked may have no token for that reason"
    );
}

#[test]
fn results_come_back_and_results_out_of_range_are_refused() {
    let layout = ArenaLayout::new(ArenaLimits::for_worker(&info()));
    let mut memory = Vec::new();
    let bytes = aligned(&mut memory, layout.bytes());
    let plan = planned();
    let decode = |bytes: &mut [u8]| {
        let mut output = StepOutput::default();
        Arena::new(&layout, bytes).and_then(|arena| arena.decode(&plan, 256, &mut output)).map(|()| output)
    };
    for row in 0..2 {
        put(&layout, bytes, "num_sampled", row, 1i32.to_ne_bytes());
        put(&layout, bytes, "sampled", row, (40 + row as i32).to_ne_bytes());
    }
    put(&layout, bytes, "logprobs", 1, (-0.5f32).to_ne_bytes());
    put(&layout, bytes, "top_tokens", 20, 41i32.to_ne_bytes());
    put(&layout, bytes, "prompt_ranks", 18, 3i32.to_ne_bytes());
    let output = decode(bytes).expect("in range");
    assert_eq!((&output.tokens[..], &output.num_sampled[..]), (&[40, 41][..], &[1, 1][..]));
    assert_eq!(output.logprobs_of(&output.logprobs[1]).top.len(), 2);
    assert_eq!(output.logprobs_of(&output.logprobs[1]).top[0].0, 41);
    assert_eq!(output.logprobs[1].logprob, -0.5);
    assert_eq!(output.prompt_logprobs.len(), 19);
    assert_eq!(output.prompt_logprobs[18].rank, 3);
    assert!(!output.irregular);
    // The lower half of the word.
    put(&layout, bytes, "header", 2 * header::IRREGULAR, 1i32.to_ne_bytes());
    assert!(decode(bytes).expect("in range").irregular);
    Arena::new(&layout, bytes).and_then(|mut arena| arena.encode(&plan)).expect("fits");
    assert!(!decode(bytes).expect("in range").irregular, "each step is called so for itself");
    put(&layout, bytes, "row_status", 0, 1i32.to_ne_bytes());
    let output = decode(bytes).expect("a failed row is a result");
    assert_eq!(
        (output.failed.len(), &output.num_sampled[..], &output.tokens[..]),
        (1, &[0, 1][..], &[41][..])
    );
    for (name, value) in [("sampled", 256i32), ("sampled", -1), ("num_sampled", 2), ("num_sampled", 0)] {
        put(&layout, bytes, "num_sampled", 1, 1i32.to_ne_bytes());
        put(&layout, bytes, name, 1, value.to_ne_bytes());
        assert!(matches!(decode(bytes), Err(WorkerError::Fatal { .. })), "{name} = {value}");
    }
}

#[test]
fn a_vector_comes_back_for_each_row_at_its_end_and_no_token() {
    let pooling = PoolingInfo {
        task: PoolingTask::Embed,
        size: 3,
        normalize: true,
        dimensions: None,
        activation: Activation::Identity,
        labels: Vec::new(),
        every_token: false,
        whole_prompts: false,
        per_token: false,
    };
    let layout = ArenaLayout::new(ArenaLimits::for_worker(&WorkerInfo { pooling: Some(pooling), ..info() }));
    let mut memory = Vec::new();
    let bytes = aligned(&mut memory, layout.bytes());
    let mut plan = planned();
    plan.rows[0].samples = false;
    for at in 0..6 {
        put(&layout, bytes, "pooled", at, (at as f32 / 2.0).to_ne_bytes());
    }
    let decode = |bytes: &mut [u8]| {
        let mut output = StepOutput::default();
        Arena::new(&layout, bytes).and_then(|arena| arena.decode(&plan, 256, &mut output)).map(|()| output)
    };
    let output = decode(bytes).expect("in range");
    assert_eq!((output.pooled_size, &output.pooled[..]), (3, &[1.5, 2.0, 2.5][..]));
    assert!(output.token_vectors.is_empty());
    assert_eq!(output.num_sampled, [0, 0]);
    put(&layout, bytes, "num_sampled", 1, 1i32.to_ne_bytes());
    assert!(matches!(decode(bytes), Err(WorkerError::Fatal { .. })), "such a model has no tokens");
}

#[test]
fn memory_that_is_too_small_is_refused() {
    let layout = ArenaLayout::new(ArenaLimits::for_worker(&info()));
    let mut memory = Vec::new();
    let bytes = aligned(&mut memory, layout.bytes() - 1);
    assert!(Arena::new(&layout, bytes).is_err());
}

#[test]
fn proposals_come_back_and_those_out_of_range_are_the_drafters_failure() {
    let layout = ArenaLayout::new(ArenaLimits::for_worker(&WorkerInfo { max_drafts: 3, ..info() }));
    let mut memory = Vec::new();
    let bytes = aligned(&mut memory, layout.bytes());
    let plan = StepPlan { propose: 2, ..planned() };
    Arena::new(&layout, bytes).expect("large enough").encode(&plan).expect("fits");
    assert_eq!(i64::from_ne_bytes(bytes[96..104].try_into().expect("eight")), 2, "the header's word 12");
    assert_eq!(ints(&layout, bytes, "next_tokens", 2), [-1, -1], "both rows sample");
    let decode = |bytes: &mut [u8]| {
        let mut output = StepOutput::default();
        let arena = Arena::new(&layout, bytes).expect("large enough");
        arena.decode(&plan, 256, &mut output).expect("no drafter can fail the engine");
        output.proposals
    };
    for row in 0..2 {
        put(&layout, bytes, "num_sampled", row, 1i32.to_ne_bytes());
        put(&layout, bytes, "proposed", 3 * row, (50 + row as i32).to_ne_bytes());
    }
    assert_eq!(decode(bytes), Proposals::default(), "a worker without a drafter writes nothing");
    put(&layout, bytes, "num_proposed", 1, 2i32.to_ne_bytes());
    put(&layout, bytes, "proposed", 4, 52i32.to_ne_bytes());
    put(&layout, bytes, "proposed_confidence", 4, 0.5f32.to_ne_bytes());
    let proposals = decode(bytes);
    assert_eq!((&proposals.counts[..], &proposals.tokens[..]), (&[0, 2][..], &[51, 52][..]));
    assert_eq!(proposals.confidences, [0.0, 0.5]);
    for (name, at, value, reason) in [
        ("num_proposed", 0, -1i32, "the drafter failed"),
        ("num_proposed", 0, 3, "proposed 3 tokens for a row that was to get at most 2"),
        ("proposed", 4, 256, "proposed token 256, the vocabulary has 256"),
    ] {
        put(&layout, bytes, "num_proposed", 0, 0i32.to_ne_bytes());
        put(&layout, bytes, name, at, value.to_ne_bytes());
        let failed = decode(bytes).failed.expect("refused");
        assert!(failed.contains(reason), "{failed}");
    }
}

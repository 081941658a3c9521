//! Whatever the schedule, the text is the same: random arrivals, aborts, budgets, pools, drafts and pipelining
//! against a model whose text is wrong as soon as a block or a token is.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Rig, VOCAB, config, request};
use frizzen_core::{Error, FinishReason, Request, RequestId, StopReason, TokenId};
use frizzen_sched::sim::{ChainModel, OneOf};
use frizzen_sched::{AdmissionLimits, Policy, SchedulerConfig, StepOutput, StepPlan};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Add { prompt: Vec<TokenId>, max_tokens: u32, priority: i32 },
    Abort(usize),
    Draft { who: usize, right: usize, wrong: bool },
    Turns(usize),
}

fn op() -> impl Strategy<Value = Op> {
    // A tiny alphabet of prompts, so that prefixes are often shared.
    let prompt = prop::collection::vec(0..2u32, 1..40);
    prop_oneof![
        4 => (prompt, 1..30u32, -1..2i32).prop_map(|(prompt, max_tokens, priority)| Op::Add { prompt, max_tokens, priority }),
        1 => any::<usize>().prop_map(Op::Abort),
        2 => (any::<usize>(), 0..4usize, any::<bool>()).prop_map(|(who, right, wrong)| Op::Draft { who, right, wrong }),
        4 => (1..6usize).prop_map(Op::Turns),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_schedule_gives_the_same_text(
        ops in prop::collection::vec(op(), 1..40),
        depth in 0..2usize,
        max_num_batched_tokens in 1..40u32,
        num_blocks in 17..40u32,
        max_num_seqs in 1..5u32,
        prefix_caching: bool,
        long_prefill_threshold in 0..8u32,
        by_priority: bool,
    ) {
        let policy = if by_priority { Policy::Priority } else { Policy::Fcfs };
        let admissions = AdmissionLimits::for_engine(max_num_seqs, max_num_batched_tokens, 64, 4, VOCAB);
        let mut rig = Rig::new(
            SchedulerConfig {
                max_num_batched_tokens, num_blocks, max_num_seqs, prefix_caching, long_prefill_threshold, policy,
                admissions, ..config()
            },
            depth,
        );
        let mut requests: Vec<(Arc<Request>, bool)> = Vec::new();
        for op in ops {
            match op {
                Op::Add { prompt, max_tokens, priority } => {
                    let mut new = Arc::unwrap_or_clone(request(&prompt, max_tokens));
                    new.priority = priority;
                    let new = Arc::new(new);
                    rig.add(requests.len() as u64, &new);
                    requests.push((new, false));
                }
                Op::Abort(who) if !requests.is_empty() => {
                    let who = who % requests.len();
                    rig.scheduler.abort(RequestId(who as u64));
                    rig.scheduler.check();
                    requests[who].1 = true;
                }
                Op::Draft { who, right, wrong } if !requests.is_empty() => {
                    let who = who % requests.len();
                    let done = rig.texts.get(&RequestId(who as u64)).map_or(0, Vec::len);
                    let text = rig.model.text(&requests[who].0, done + right);
                    let mut drafts = text[done..].to_vec();
                    if wrong { drafts.push(VOCAB - 1); drafts.push(0); }
                    rig.scheduler.set_drafts(RequestId(who as u64), &drafts);
                }
                Op::Turns(n) => { for _ in 0..n { rig.turn(); } }
                Op::Abort(_) | Op::Draft { .. } => {}
            }
        }
        rig.drain();
        for (id, (request, aborted)) in requests.iter().enumerate() {
            if !aborted { rig.expect_text(id as u64, request); }
        }
    }
}

/// Texts over a small alphabet, so that many share a prefix and some are the beginning of others.
fn texts() -> impl Strategy<Value = Vec<Vec<TokenId>>> {
    prop::collection::vec(prop::collection::vec(1..4 as TokenId, 1..12), 1..6)
}

fn constrained(prompt: &[TokenId], max_tokens: u32, texts: &[Vec<TokenId>]) -> Arc<Request> {
    let mut request = Arc::unwrap_or_clone(request(prompt, max_tokens));
    request.constraint = Some(Arc::new(OneOf(texts.into())));
    Arc::new(request)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Constrained requests beside plain ones, in any schedule and with any drafts, say what each of them says alone
    /// and without drafts; and that is one of its texts.
    #[test]
    fn any_schedule_and_any_drafts_give_the_same_constrained_text(
        requests in prop::collection::vec((prop::collection::vec(0..VOCAB, 1..10), 1..14_u32, prop::option::of(texts())), 1..6),
        drafts in prop::collection::vec((0..6_usize, 0..6_usize, prop::collection::vec(0..5 as TokenId, 0..4)), 0..40),
        depth in 0..2_usize,
        max_num_batched_tokens in 4..40_u32,
        num_blocks in 17..40_u32,
    ) {
        let admissions = AdmissionLimits::for_engine(4, max_num_batched_tokens, 64, 4, VOCAB);
        let mut rig = Rig::new(SchedulerConfig { max_num_batched_tokens, num_blocks, admissions, ..config() }, depth);
        let requests: Vec<Arc<Request>> = requests
            .iter()
            .map(|(prompt, max_tokens, texts)| match texts {
                Some(texts) => constrained(prompt, *max_tokens, texts),
                None => request(prompt, *max_tokens),
            })
            .collect();
        for (id, request) in requests.iter().enumerate() {
            rig.add(id as u64, request);
        }
        for (who, right, wrong) in drafts {
            let who = who % requests.len();
            let alone = alone(&requests[who]).0;
            let done = rig.texts.get(&RequestId(who as u64)).map_or(0, Vec::len);
            let mut draft: Vec<TokenId> = alone[done.min(alone.len())..].iter().copied().take(right).collect();
            draft.extend(wrong);
            rig.scheduler.set_drafts(RequestId(who as u64), &draft);
            rig.turn();
        }
        rig.drain();
        for (id, request) in requests.iter().enumerate() {
            let id = RequestId(id as u64);
            let (text, reason) = alone(request);
            prop_assert_eq!(&rig.texts[&id], &text);
            prop_assert_eq!(&rig.finished[&id], &reason);
        }
    }
}

/// What a request says on its own, one token per step; a constrained text is checked against its constraint.
fn alone(request: &Arc<Request>) -> (Vec<TokenId>, FinishReason) {
    let mut rig = Rig::new(config(), 0);
    rig.add(0, request);
    rig.drain();
    let (text, reason) =
        (rig.texts.remove(&RequestId(0)).unwrap_or_default(), rig.finished[&RequestId(0)].clone());
    if let Some(constraint) = &request.constraint {
        let mut matcher = constraint.matcher();
        assert_eq!(matcher.validate(&text), text.len(), "a text that the constraint forbids");
        for token in &text {
            matcher.accept(*token).expect("validated a line above");
        }
        let complete = reason == FinishReason::Stop(StopReason::Complete);
        assert_eq!(complete, matcher.is_complete(), "{text:?} ended with {reason:?}");
        assert!(complete || reason == FinishReason::Length);
    }
    (text, reason)
}

#[test]
fn an_end_of_sequence_is_sampled_only_where_a_constrained_text_may_end_vllm_49227() {
    let eos = 7;
    for ignore_eos in [false, true] {
        let texts = [vec![1, 2], vec![1, 2, 3, 3]];
        let mut only = Arc::unwrap_or_clone(constrained(&[5], 20, &texts));
        // Whatever the model would say, it may say only these.
        only.params.ignore_eos = ignore_eos;
        let mut rig = Rig::new(config(), 1);
        rig.scheduler.add(RequestId(0), Arc::new(only), &[eos, 6], 0, Duration::ZERO);
        rig.drain();
        let text = &rig.texts[&RequestId(0)];
        let (body, end): (Vec<_>, Vec<_>) = text.iter().partition(|token| ![eos, 6].contains(token));
        assert!(texts.contains(&body), "{text:?}");
        assert!(end.len() <= usize::from(!ignore_eos), "{text:?}");
    }
}

#[test]
fn equal_prefixes_are_computed_once_even_within_one_step() {
    let mut rig = Rig::new(config(), 0);
    let prompt: Vec<TokenId> = (0..13).collect();
    for id in 0..2 {
        rig.add(id, &request(&prompt, 4));
    }
    let mut plan = StepPlan::default();
    assert!(rig.scheduler.plan(&mut plan, Duration::ZERO));
    let tokens: Vec<u32> = plan.rows.iter().map(|row| row.num_tokens).collect();
    assert_eq!(
        tokens,
        [1, 13],
        "the second request finds 12 of its 13 tokens (rows of one token come first)"
    );
}

#[test]
fn no_row_of_a_step_of_single_tokens_reads_what_another_writes() {
    let mut rig = Rig::new(config(), 0);
    let first = request(&(0..11).collect::<Vec<_>>(), 8);
    rig.add(0, &first);
    rig.turn();
    // The next token fills the third block of four; who starts with it and one token more has that one to compute.
    let known: Vec<TokenId> = (0..11).chain(rig.texts[&RequestId(0)].iter().copied()).chain([1]).collect();
    assert_eq!(known.len(), 13);
    let again = request(&known, 4);
    rig.add(1, &again);
    let mut plan = StepPlan::default();
    rig.scheduler.plan(&mut plan, Duration::ZERO);
    let tokens: Vec<u32> = plan.rows.iter().map(|row| row.num_tokens).collect();
    assert_eq!(tokens, [1, 5], "it finds two blocks, not the one that this step fills");
}

#[test]
fn the_last_prompt_token_is_never_cached_because_its_logits_are_needed() {
    let mut rig = Rig::new(config(), 0);
    let prompt: Vec<TokenId> = (0..16).collect();
    let first = request(&prompt, 4);
    rig.add(0, &first);
    rig.drain();
    rig.add(1, &first);
    let mut plan = StepPlan::default();
    rig.scheduler.plan(&mut plan, Duration::ZERO);
    assert_eq!((plan.rows[0].start, plan.rows[0].num_tokens), (12, 4));
}

#[test]
fn salts_keep_equal_prompts_apart() {
    let mut rig = Rig::new(config(), 0);
    for (id, salt) in [(0, Some("a")), (1, Some("b")), (2, None)] {
        let mut new = Arc::unwrap_or_clone(request(&(0..13).collect::<Vec<_>>(), 1));
        new.cache_salt = salt.map(Into::into);
        rig.add(id, &Arc::new(new));
        rig.drain();
    }
    assert_eq!(rig.scheduler.counters().prefix_hits, 0);
}

#[test]
fn a_request_is_never_scheduled_past_max_tokens_while_its_last_token_is_in_flight_vllm_27922() {
    let mut rig = Rig::new(config(), 1);
    let new = request(&[1, 2, 3], 2);
    rig.add(0, &new);
    let mut steps = 0;
    while rig.turn() {
        steps += 1;
    }
    // Prefill, one decode, and the turn that commits it: no third step was planned.
    assert_eq!(steps, 3);
    rig.expect_text(0, &new);
}

#[test]
fn a_preempted_request_returns_before_later_arrivals() {
    // 8 usable blocks of 4: two requests of 12 + 12 tokens cannot both finish.
    let mut rig = Rig::new(SchedulerConfig { num_blocks: 9, max_model_len: 32, ..config() }, 0);
    let requests: Vec<_> = (0..3).map(|id| request(&[id; 12], 12)).collect();
    for (id, new) in requests.iter().enumerate() {
        rig.add(id as u64, new);
    }
    let mut order = Vec::new();
    while rig.turn() {
        order.extend(rig.finished.keys().filter(|id| !order.contains(*id)).copied().collect::<Vec<_>>());
    }
    assert!(rig.scheduler.counters().preemptions > 0);
    assert_eq!(order, [RequestId(0), RequestId(1), RequestId(2)]);
    for (id, new) in requests.iter().enumerate() {
        rig.expect_text(id as u64, new);
    }
}

#[test]
fn the_least_important_request_is_preempted_under_the_priority_policy() {
    let limits = SchedulerConfig { num_blocks: 9, max_model_len: 32, policy: Policy::Priority, ..config() };
    let mut rig = Rig::new(limits, 0);
    for (id, priority) in [(0, 5), (1, -5)] {
        let mut new = Arc::unwrap_or_clone(request(&[id as u32; 12], 12));
        new.priority = priority;
        rig.add(id, &Arc::new(new));
    }
    while rig.scheduler.counters().preemptions == 0 && rig.turn() {}
    let mut plan = StepPlan::default();
    rig.scheduler.plan(&mut plan, Duration::ZERO);
    let running: Vec<_> = plan.rows.iter().map(|row| row.request).collect();
    assert_eq!(running, [RequestId(1)]);
}

#[test]
fn blocks_of_a_request_that_is_preempted_out_of_the_step_are_not_found_later() {
    // 7 usable blocks of 4, prompts in chunks of 8. In step 3 the first request fills its 5th and 6th block, the last
    // free ones; then the second, more important, needs a block and gets the 6th: the first leaves the very step that
    // would have computed what its 5th block is named for.
    let limits = SchedulerConfig {
        num_blocks: 8,
        max_model_len: 28,
        policy: Policy::Priority,
        long_prefill_threshold: 8,
        ..config()
    };
    let mut rig = Rig::new(limits, 0);
    let [first, second] = [(25, 3, 5), (4, 2, -5)].map(|(len, max_tokens, priority)| {
        let mut new = Arc::unwrap_or_clone(request(&vec![len; len as usize], max_tokens));
        new.priority = priority;
        Arc::new(new)
    });
    rig.add(0, &first);
    // Company, so that the chunk limit holds in the first step too.
    rig.add(2, &request(&[1], 1));
    rig.turn();
    rig.add(1, &second);
    rig.drain();
    assert_eq!(rig.scheduler.counters().preemptions, 1);
    rig.expect_text(0, &first);
    rig.expect_text(1, &second);
}

#[test]
fn a_lone_long_prompt_ignores_the_long_prefill_threshold() {
    let limits = SchedulerConfig { long_prefill_threshold: 5, ..config() };
    let mut rig = Rig::new(limits, 0);
    rig.add(0, &request(&[1; 20], 1));
    let mut plan = StepPlan::default();
    rig.scheduler.plan(&mut plan, Duration::ZERO);
    assert_eq!(plan.rows[0].num_tokens, 20);
    let mut rig = Rig::new(limits, 0);
    rig.add(0, &request(&[1; 20], 1));
    rig.add(1, &request(&[2; 3], 1));
    rig.scheduler.plan(&mut plan, Duration::ZERO);
    let tokens: Vec<u32> = plan.rows.iter().map(|row| row.num_tokens).collect();
    assert_eq!(tokens, [5, 3]);
}

#[test]
fn stop_tokens_are_shielded_by_min_tokens_and_named_by_kind() {
    for (min_tokens, stop_at) in [(0, 1), (3, 3)] {
        let mut rig = Rig::new(config(), 0);
        let mut new = Arc::unwrap_or_clone(request(&[1, 2, 3], 10));
        let text = rig.model.text(&new, 10);
        new.params.stop_token_ids = vec![text[0], text[2]];
        new.params.min_tokens = min_tokens;
        rig.add(0, &Arc::new(new));
        rig.drain();
        assert_eq!(rig.texts[&RequestId(0)].len(), stop_at);
        assert_eq!(rig.finished[&RequestId(0)].label(), "stop");
    }
}

#[test]
fn prompt_scores_cover_every_position_once_under_chunking_and_skip_the_cache() {
    let mut rig = Rig::new(SchedulerConfig { max_num_batched_tokens: 5, ..config() }, 0);
    let mut new = Arc::unwrap_or_clone(request(&(0..13).collect::<Vec<_>>(), 1));
    rig.add(0, &Arc::new(new.clone()));
    rig.drain();
    new.params.prompt_logprobs = Some(0);
    rig.add(1, &Arc::new(new));
    let mut targets = Vec::new();
    let mut plan = StepPlan::default();
    let mut output = StepOutput::default();
    let mut events = Vec::new();
    while rig.scheduler.plan(&mut plan, Duration::ZERO) {
        targets.extend(plan.prompt_positions.iter().map(|p| p.target));
        rig.model.run(&plan, &mut output, ChainModel::token_after);
        rig.scheduler.commit(&plan, &output, Duration::ZERO, &mut events);
    }
    assert_eq!(targets, (1..13).collect::<Vec<TokenId>>());
}

#[test]
fn a_row_with_bad_logits_fails_alone_and_its_prefix_is_not_trusted() {
    let mut rig = Rig::new(config(), 0);
    let bad = request(&(0..13).collect::<Vec<_>>(), 5);
    let good = request(&(20..33).collect::<Vec<_>>(), 5);
    rig.add(0, &bad);
    rig.add(1, &good);
    let mut plan = StepPlan::default();
    let mut output = StepOutput::default();
    rig.scheduler.plan(&mut plan, Duration::ZERO);
    rig.model.run(&plan, &mut output, ChainModel::token_after);
    output.failed.push((plan.rows[0].row, "logits are not finite".to_owned()));
    let mut events = Vec::new();
    rig.scheduler.commit(&plan, &output, Duration::ZERO, &mut events);
    assert_eq!(events[0].finish.as_ref().map(|finish| finish.reason.label()), Some("error"));
    rig.texts.entry(RequestId(1)).or_default().extend(&output.tokens[events[1].tokens.clone()]);
    rig.scheduler.check();
    rig.drain();
    rig.expect_text(1, &good);
    rig.add(2, &bad);
    rig.scheduler.plan(&mut plan, Duration::ZERO);
    assert_eq!(plan.rows[0].start, 0, "nothing of the failed row is found");
}

#[test]
fn a_request_that_allows_nothing_is_wrong_and_no_sign_of_bad_logits_vllm_54218() {
    let mut rig = Rig::new(config(), 0);
    let mut new = (*request(&[1, 2, 3], 5)).clone();
    new.params.allowed_token_ids = Some(vec![7, 8]);
    new.params.stop_token_ids = vec![7, 8];
    for (min_tokens, wrong) in [(2, true), (0, false)] {
        new.params.min_tokens = min_tokens;
        rig.add(u64::from(min_tokens), &Arc::new(new.clone()));
        let (mut plan, mut output, mut events) = (StepPlan::default(), StepOutput::default(), Vec::new());
        rig.scheduler.plan(&mut plan, Duration::ZERO);
        rig.model.run(&plan, &mut output, ChainModel::token_after);
        output.failed.push((plan.rows[0].row, "logits are not finite".to_owned()));
        rig.scheduler.commit(&plan, &output, Duration::ZERO, &mut events);
        let reason = events[0].finish.as_ref().map(|finish| &finish.reason);
        let invalid = matches!(reason, Some(FinishReason::Error(Error::Invalid { .. })));
        assert_eq!((invalid, events[0].corrupted), (wrong, !wrong), "{reason:?}");
    }
}

#[test]
fn after_a_step_that_did_not_happen_everything_is_computed_again() {
    let mut rig = Rig::new(config(), 0);
    let new = request(&(0..13).collect::<Vec<_>>(), 6);
    rig.add(0, &new);
    rig.turn();
    rig.turn();
    let mut plan = StepPlan::default();
    rig.scheduler.plan(&mut plan, Duration::ZERO);
    rig.scheduler.recompute_all();
    rig.scheduler.check();
    rig.drain();
    rig.expect_text(0, &new);
}

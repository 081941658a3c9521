//! Drafts that a worker proposes, under any schedule: the text is that of no drafts, and what is verified is what was
//! proposed.

mod common;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use common::{VOCAB, check_plan, config, request};
use frizzen_core::{Request, RequestId, Speculation, TokenId};
use frizzen_sched::sim::{ChainModel, SimDrafter};
use frizzen_sched::speculation::{DrafterConfig, ModelDrafter, SpeculationConfig, Speculator};
use frizzen_sched::{AdmissionLimits, Scheduler, SchedulerConfig, StepOutput, StepPlan};
use proptest::prelude::*;

const MAX_DRAFTS: u32 = 5;

/// The engine's loop without an engine.
struct Loop {
    scheduler: Scheduler,
    speculator: Speculator,
    model: ChainModel,
    flight: VecDeque<(StepPlan, StepOutput)>,
    depth: usize,
    lookahead: u32,
    /// What the worker proposed when a request sampled last.
    proposed: BTreeMap<RequestId, Vec<TokenId>>,
    texts: BTreeMap<RequestId, Vec<TokenId>>,
    accepted: u64,
    /// The worker calls every step irregular.
    irregular: bool,
}

impl Loop {
    fn new(config: SchedulerConfig, depth: usize, lookahead: u32, drafter: SimDrafter) -> Self {
        let mut model = ChainModel::new(config.num_blocks, config.block_size, config.max_num_seqs, VOCAB);
        model.set_drafter(drafter);
        let speculation = SpeculationConfig {
            drafter: DrafterConfig::Worker(ModelDrafter::Eagle3),
            default: Speculation::Off,
            ..SpeculationConfig::default()
        };
        Self {
            scheduler: Scheduler::new(config),
            speculator: Speculator::new(speculation, MAX_DRAFTS, None).expect("valid"),
            model,
            flight: VecDeque::new(),
            depth,
            lookahead,
            proposed: BTreeMap::new(),
            texts: BTreeMap::new(),
            accepted: 0,
            irregular: false,
        }
    }

    fn turn(&mut self) -> bool {
        // Drafts follow what the step in flight proposes, so there is no planning ahead of it.
        while self.flight.iter().any(|(plan, _)| plan.propose > 0) {
            self.collect();
        }
        let mut plan = StepPlan::default();
        self.scheduler.set_lookahead(if self.speculator.may_draft() { self.lookahead } else { 0 });
        let planned = self.scheduler.plan(&mut plan, Duration::ZERO);
        plan.propose = self.speculator.wanted(&plan);
        if planned {
            self.check(&plan);
            let mut output = StepOutput::default();
            self.model.run(&plan, &mut output, ChainModel::token_after);
            output.irregular = self.irregular;
            self.speculator.follow(&plan);
            self.flight.push_back((plan, output));
        }
        let depth = if planned { self.depth } else { 0 };
        let pending = !self.flight.is_empty();
        while self.flight.len() > depth {
            self.collect();
        }
        self.scheduler.check();
        planned || pending
    }

    fn check(&mut self, plan: &StepPlan) {
        check_plan(plan, self.scheduler.config());
        assert!(plan.propose <= MAX_DRAFTS);
        for admission in &plan.admissions {
            let row =
                plan.rows.iter().find(|row| row.row == admission.row).expect("admitted rows are planned");
            assert_eq!(row.num_drafts, 0, "the worker has proposed nothing for a row that it does not know");
            self.proposed.remove(&row.request);
        }
        let mut end = 0;
        for row in &plan.rows {
            end += row.num_tokens as usize;
            let drafts: Vec<TokenId> =
                plan.input_ids[end - row.num_drafts as usize..end].iter().map(|id| *id as TokenId).collect();
            let proposed = self.proposed.get(&row.request).map_or(&[][..], Vec::as_slice);
            assert!(proposed.starts_with(&drafts), "{drafts:?} is no prefix of {proposed:?}");
            assert_eq!(row.next_token == -1, row.samples, "a chunk of a prompt knows what follows it");
        }
    }

    fn collect(&mut self) {
        let Some((plan, output)) = self.flight.pop_front() else { return };
        let mut events = Vec::new();
        self.scheduler.commit(&plan, &output, Duration::ZERO, &mut events);
        let micros = 1000 + 10 * plan.num_tokens() as u64 + 100 * u64::from(plan.propose);
        self.speculator.learn(&plan, &output, &events, Duration::from_micros(micros), false);
        for event in &events {
            let text = self.texts.entry(event.request).or_default();
            text.extend(&output.tokens[event.tokens.clone()]);
            text.extend(&event.forced);
        }
        let mut first = 0;
        for (row, count) in plan.rows.iter().zip(&output.proposals.counts) {
            let drafts = output.proposals.tokens[first..first + *count as usize].to_vec();
            first += *count as usize;
            if row.samples {
                self.proposed.insert(row.request, drafts);
            }
        }
        self.accepted +=
            output.num_sampled.iter().map(|count| u64::from(count.saturating_sub(1))).sum::<u64>();
        self.speculator.receive(&plan, &output);
        self.speculator.propose(&mut self.scheduler, &events);
        for event in events.iter().filter(|event| event.finish.is_some()) {
            self.speculator.forget(event.request);
        }
    }

    fn abort(&mut self, id: RequestId) {
        self.scheduler.abort(id);
        self.speculator.forget(id);
    }

    fn drain(&mut self) {
        for turn in 0.. {
            if !self.turn() {
                break;
            }
            assert!(turn < 10_000, "the schedule does not end");
        }
        assert!(self.scheduler.is_idle());
        assert_eq!(self.scheduler.pool().used(), 0, "blocks leak");
    }
}

fn asking(prompt: &[TokenId], max_tokens: u32, speculation: Option<Speculation>) -> Arc<Request> {
    let mut new = Arc::unwrap_or_clone(request(prompt, max_tokens));
    new.params.speculation = speculation;
    Arc::new(new)
}

fn wish() -> impl Strategy<Value = Option<Speculation>> {
    prop_oneof![
        Just(None),
        Just(Some(Speculation::Auto)),
        (1..=MAX_DRAFTS).prop_map(|most| Some(Speculation::MaxTokens(most))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_schedule_with_proposals_gives_the_text_of_no_drafts(
        arrivals in prop::collection::vec(
            (prop::collection::vec(0..2u32, 1..40), 1..30u32, wish(), 0..6usize, prop::bool::weighted(0.1)),
            1..16,
        ),
        depth in 0..2usize,
        accuracy in 0.0..1.0f64,
        confident: bool,
        lookahead in 0..6u32,
        max_num_batched_tokens in 1..40u32,
        num_blocks in 17..40u32,
        max_num_seqs in 1..5u32,
        prefix_caching: bool,
    ) {
        let admissions = AdmissionLimits::for_engine(max_num_seqs, max_num_batched_tokens, 64, 4, VOCAB);
        let limits = SchedulerConfig {
            max_num_batched_tokens, num_blocks, max_num_seqs, prefix_caching, admissions, ..config()
        };
        let mut run = Loop::new(limits, depth, lookahead, SimDrafter { accuracy, confident });
        let mut requests = Vec::new();
        for (id, (prompt, max_tokens, wish, turns, gives_up)) in arrivals.into_iter().enumerate() {
            let new = asking(&prompt, max_tokens, wish);
            let id = RequestId(id as u64);
            run.scheduler.add(id, Arc::clone(&new), &[], 0, Duration::ZERO);
            for _ in 0..turns { run.turn(); }
            if gives_up { run.abort(id); }
            requests.push((id, new, gives_up));
        }
        run.drain();
        for (id, request, gave_up) in requests {
            if !gave_up {
                let len = (request.params.max_tokens.expect("set") as usize).min(64 - request.prompt.len());
                prop_assert_eq!(&run.texts[&id], &run.model.text(&request, len));
            }
        }
    }
}

#[test]
fn rows_of_different_lengths_share_a_step_and_each_takes_what_it_asked_for() {
    let mut run = Loop::new(config(), 0, 4, SimDrafter { accuracy: 1.0, confident: true });
    let wishes = [None, Some(Speculation::MaxTokens(1)), Some(Speculation::MaxTokens(4))];
    for (id, wish) in wishes.into_iter().enumerate() {
        let new = asking(&[id as TokenId + 1; 3], 20, wish);
        run.scheduler.add(RequestId(id as u64), new, &[], 0, Duration::ZERO);
    }
    run.turn();
    let mut plan = StepPlan::default();
    assert!(run.scheduler.plan(&mut plan, Duration::ZERO));
    let mut drafts: Vec<u32> = plan.rows.iter().map(|row| row.num_drafts).collect();
    drafts.sort_unstable();
    assert_eq!(drafts, [0, 1, 4], "the prefill proposed already, for those who had asked");
}

#[test]
fn a_step_that_its_worker_calls_irregular_is_no_measure_of_others() {
    for irregular in [true, false] {
        let mut run = Loop::new(config(), 0, 4, SimDrafter { accuracy: 1.0, confident: true });
        run.irregular = irregular;
        for id in 0..3 {
            let new = asking(&[id as TokenId + 1; 3], 20, Some(Speculation::MaxTokens(2)));
            run.scheduler.add(RequestId(id), new, &[], 0, Duration::ZERO);
        }
        run.drain();
        assert_eq!(run.speculator.num_measured() == 0, irregular);
        assert!(run.accepted > 0);
    }
}

#[test]
fn lookahead_blocks_are_given_where_blocks_are_free_and_never_taken_from_anybody() {
    for (num_blocks, max_model_len, columns) in [(33, 64, 4), (33, 12, 3), (4, 64, 3)] {
        let limits = SchedulerConfig { num_blocks, max_model_len, prefix_caching: false, ..config() };
        let mut run = Loop::new(limits, 0, 8, SimDrafter { accuracy: 1.0, confident: false });
        let new = asking(&[1; 6], 5, Some(Speculation::MaxTokens(2)));
        run.scheduler.add(RequestId(0), Arc::clone(&new), &[], 0, Duration::ZERO);
        run.scheduler.set_lookahead(8);
        let mut plan = StepPlan::default();
        assert!(run.scheduler.plan(&mut plan, Duration::ZERO));
        // Six tokens need two blocks of four; eight positions more need two others, or as many as there are.
        assert_eq!(plan.blocks.len(), columns);
        run.scheduler.check();
    }
}

//! Queues and their invariants. Planning is in [`crate::planner`], outputs in [`crate::commit`].
//!
//! There are no prefill and decode phases: each step moves a request's computed tokens towards its known ones.
//! Running requests come first, in order of admission; then waiting ones, in order of (priority, arrival). A request
//! that loses its blocks goes back to waiting with its arrival unchanged and computes everything again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use frizzen_core::{Request, RequestId, RowId, StepId, TokenId};
use rustc_hash::FxHashMap;

use crate::config::{Policy, SchedulerConfig};
use crate::constrained::Constrained;
use crate::pace::DecodePace;
use crate::plan::StepPlan;
use crate::planner::Selected;
use crate::pool::BlockPool;
use crate::residency::Residency;
use crate::state::{State, Times};

/// Counters since the engine started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerCounters {
    /// Tokens looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Tokens found there.
    pub prefix_hits: u64,
    /// Requests that lost their blocks.
    pub preemptions: u64,
}

/// The masks of one row of a plan, to be filled on any thread.
#[derive(Debug)]
pub struct MaskJob<'a> {
    constrained: &'a mut Constrained,
    window: &'a [i32],
    stops: &'a [TokenId],
    words: usize,
    masks: &'a mut [u32],
}

impl MaskJob<'_> {
    /// Fills them.
    pub fn run(self) {
        self.constrained.fill(self.window, self.stops, self.words, self.masks);
    }
}

/// Decides what each step computes.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) config: SchedulerConfig,
    pub(crate) pool: BlockPool,
    pub(crate) states: Vec<Option<State>>,
    vacant: Vec<usize>,
    pub(crate) index: FxHashMap<RequestId, usize>,
    pub(crate) running: Vec<usize>,
    pub(crate) waiting: BTreeMap<(i32, u64), usize>,
    pub(crate) rows: Vec<RowId>,
    pub(crate) selected: Vec<Selected>,
    /// Positions past a row's last one that get blocks where some are free.
    pub(crate) lookahead: u32,
    /// Scratch of the planner.
    pub(crate) queue: Vec<usize>,
    arrivals: u64,
    pub(crate) step: StepId,
    pub(crate) counters: SchedulerCounters,
    pub(crate) pace: DecodePace,
}

impl Scheduler {
    /// A scheduler with nothing to do.
    pub fn new(config: SchedulerConfig) -> Self {
        let rows = (0..config.max_num_seqs).rev().map(RowId).collect();
        Self {
            config,
            pool: BlockPool::new(config.num_blocks),
            states: Vec::new(),
            vacant: Vec::new(),
            index: FxHashMap::default(),
            running: Vec::with_capacity(config.max_num_seqs as usize),
            waiting: BTreeMap::new(),
            rows,
            selected: Vec::with_capacity(config.max_num_seqs as usize),
            lookahead: 0,
            queue: Vec::with_capacity(config.max_num_seqs as usize),
            arrivals: 0,
            step: StepId(0),
            counters: SchedulerCounters::default(),
            pace: DecodePace::default(),
        }
    }

    /// The limits.
    pub const fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// Takes a request. The caller has checked its prompt and parameters against the model.
    ///
    /// `eos` are the model's end-of-sequence ids; `seed` is used if the request has none of its own.
    pub fn add(&mut self, id: RequestId, request: Arc<Request>, eos: &[TokenId], seed: u64, now: Duration) {
        let params = &request.params;
        let eos = if params.ignore_eos { &[][..] } else { eos };
        let stops = eos.iter().chain(&params.stop_token_ids).copied().collect();
        let prompt_len = request.prompt.len() as u32;
        let max_tokens = params.max_tokens.unwrap_or(u32::MAX);
        let max_total = match request.pooling {
            // One result, which takes no place in the context.
            Some(_) => prompt_len + 1,
            None => prompt_len.saturating_add(max_tokens).min(self.config.max_model_len),
        };
        let state = State {
            id,
            seed: params.seed.unwrap_or(seed),
            stops,
            num_eos: eos.len(),
            arrival: self.arrivals,
            tokens: request.prompt.to_vec(),
            constrained: Constrained::of(&request),
            drafts: Vec::new(),
            max_total,
            computed: 0,
            placeholders: 0,
            drafts_in_flight: 0,
            row: None,
            epoch: 0,
            blocks: Vec::new(),
            hashes: Vec::new(),
            published: 0,
            cached: None,
            prefills: true,
            prompt_scored: 0,
            vectors_sent: 0,
            timing: Times { queued: now, ..Times::default() },
            request,
        };
        self.arrivals += 1;
        let key = self.order(&state);
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.states.push(None);
            self.states.len() - 1
        });
        self.states[slot] = Some(state);
        self.index.insert(id, slot);
        self.waiting.insert(key, slot);
    }

    /// Forgets a request in any state. Returns false if it is not there (it has ended).
    ///
    /// Its row and blocks are free at once: a step in flight that still writes to them runs before any step that is
    /// planned from now on, and its output finds no request.
    pub fn abort(&mut self, id: RequestId) -> bool {
        let Some(slot) = self.index.get(&id).copied() else { return false };
        self.remove(slot);
        true
    }

    /// Drafts for the next step of a running request; replaces earlier ones. Those that the request's constraint forbids
    /// are left out.
    pub fn set_drafts(&mut self, id: RequestId, drafts: &[TokenId]) {
        if let Some(slot) = self.index.get(&id).copied() {
            let state = self.state_mut(slot);
            let kept =
                state.constrained.as_mut().map_or(drafts.len(), |own| own.validate(drafts, &state.stops));
            state.drafts.clear();
            state.drafts.extend_from_slice(&drafts[..kept]);
        }
    }

    /// Fills the masks of a plan, for a model with `vocab_size` logits.
    ///
    /// Apart from [`Self::plan`] so that the model can start meanwhile. To be called before the plan's results are
    /// committed and before another plan is made.
    pub fn fill_masks(&mut self, plan: &mut StepPlan, vocab_size: u32) {
        self.mask_jobs(plan, vocab_size).into_iter().for_each(MaskJob::run);
    }

    /// The work of [`Self::fill_masks`], by row: the caller may run it on several threads.
    pub fn mask_jobs<'a>(&'a mut self, plan: &'a mut StepPlan, vocab_size: u32) -> Vec<MaskJob<'a>> {
        let words = vocab_size.div_ceil(32) as usize;
        plan.masks.clear();
        if plan.mask_rows.is_empty() {
            return Vec::new();
        }
        plan.masks.resize(plan.mask_rows.len() * words, u32::MAX);
        let StepPlan { rows, input_ids, masks, .. } = plan;
        let (mut rest, mut end) = (&mut masks[..], 0);
        let mut shares: FxHashMap<usize, (&[i32], &mut [u32])> = FxHashMap::default();
        for row in &*rows {
            end += row.num_tokens as usize;
            let Some(slot) = self.index.get(&row.request).copied().filter(|_| row.samples) else { continue };
            if self.state(slot).constrained.is_some() {
                let window = &input_ids[end - row.num_drafts as usize..end];
                let (own, others) = rest.split_at_mut((window.len() + 1) * words);
                rest = others;
                shares.insert(slot, (window, own));
            }
        }
        let states = self.states.iter_mut().enumerate();
        let jobs = states.filter_map(|(slot, state)| {
            let (window, masks) = shares.remove(&slot)?;
            let State { constrained, stops, .. } = state.as_mut()?;
            Some(MaskJob { constrained: constrained.as_mut()?, window, stops, words, masks })
        });
        jobs.collect()
    }

    /// Drafts that could be verified after the tokens known now without passing the request's end; 0 if it has no row.
    pub fn draft_room(&self, id: RequestId) -> u32 {
        let state = self.index.get(&id).map(|slot| self.state(*slot)).filter(|state| state.row.is_some());
        state.map_or(0, |state| state.max_total.saturating_sub(state.known() + 1))
    }

    /// Forgets every cached prefix; false while a block is in use.
    pub fn reset_prefix_cache(&mut self) -> bool {
        self.pool.reset()
    }

    /// After a step that did not happen (out of memory): every request computes again, and no prefix is trusted.
    pub fn recompute_all(&mut self) {
        while let Some(slot) = self.running.last().copied() {
            self.preempt(slot);
        }
        let reset = self.pool.reset();
        debug_assert!(reset, "no block is in use after every request was preempted");
    }

    /// Positions past the last one of a row that samples, for which the next plans allocate blocks where some are free.
    pub const fn set_lookahead(&mut self, positions: u32) {
        self.lookahead = positions;
    }

    /// Most tokens of a step from now on.
    pub const fn set_token_budget(&mut self, tokens: u32) {
        self.config.max_num_batched_tokens = tokens;
    }

    /// Requests in the batch.
    pub fn num_running(&self) -> usize {
        self.running.len()
    }

    /// Requests waiting for a row or for blocks.
    pub fn num_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// True if there is no request at all.
    pub fn is_idle(&self) -> bool {
        self.index.is_empty()
    }

    /// The block pool, for its gauges.
    pub const fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// What was seen of the blocks that are followed, since the last call.
    pub fn residency(&mut self) -> impl Iterator<Item = Residency> + '_ {
        self.pool.residency.drain()
    }

    /// Counters since the start.
    pub const fn counters(&self) -> &SchedulerCounters {
        &self.counters
    }

    pub(crate) fn state(&self, slot: usize) -> &State {
        self.states[slot].as_ref().expect("a queue refers only to live requests")
    }

    pub(crate) fn state_mut(&mut self, slot: usize) -> &mut State {
        self.states[slot].as_mut().expect("a queue refers only to live requests")
    }

    pub(crate) fn order(&self, state: &State) -> (i32, u64) {
        state.order(self.config.policy == Policy::Priority)
    }

    /// Gives up a running request's row and blocks; what is in flight for it becomes stale.
    fn vacate(&mut self, slot: usize) {
        let state = self.states[slot].as_mut().expect("a queue refers only to live requests");
        if let Some(row) = state.row.take() {
            self.rows.push(row);
            self.running.retain(|other| *other != slot);
        }
        self.pool.release(&state.blocks);
        state.blocks.clear();
        state.published = 0;
        state.epoch += 1;
        state.computed = 0;
        state.placeholders = 0;
        state.drafts_in_flight = 0;
        state.prefills = true;
        state.drafts.clear();
    }

    /// Sends a running request back to the queue, to compute everything again.
    pub(crate) fn preempt(&mut self, slot: usize) {
        self.vacate(slot);
        let state = self.state_mut(slot);
        state.timing.preemptions += 1;
        let key = self.order(self.state(slot));
        self.waiting.insert(key, slot);
        self.counters.preemptions += 1;
    }

    /// Ends a request.
    pub(crate) fn remove(&mut self, slot: usize) {
        let key = self.order(self.state(slot));
        self.waiting.remove(&key);
        self.vacate(slot);
        let id = self.state(slot).id;
        self.index.remove(&id);
        self.states[slot] = None;
        self.vacant.push(slot);
    }

    /// Panics if an invariant of the scheduler does not hold. For tests and idle moments: walks everything.
    pub fn check(&self) {
        self.pool.check();
        assert!(self.running.len() <= self.config.max_num_seqs as usize, "more running requests than rows");
        assert_eq!(self.running.len() + self.rows.len(), self.config.max_num_seqs as usize, "a row is lost");
        assert_eq!(self.running.len() + self.waiting.len(), self.index.len(), "a request is in no queue");
        let mut refs = 0;
        for state in self.states.iter().flatten() {
            refs += state.blocks.len();
            let held = state.blocks.len() as u32 * self.config.block_size;
            assert!(state.computed <= held, "computed tokens without blocks");
            assert!(
                state.computed <= state.known() + state.drafts_in_flight,
                "computed tokens that are not known"
            );
            assert!(state.published <= state.blocks.len(), "a published block that is not held");
            assert!(state.row.is_some() || state.blocks.is_empty(), "a waiting request holds blocks");
            assert!(state.tokens.len() as u32 <= state.max_total, "a request went past its end");
        }
        assert!(refs >= self.pool.used(), "a used block that no request holds");
    }
}

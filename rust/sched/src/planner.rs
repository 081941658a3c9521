//! One step: who computes how many tokens, in which blocks.

use std::time::Duration;

use frizzen_core::{BlockId, StepId};

use crate::draw::{as_input, uniform};
use crate::plan::{Admission, BlockDelta, LAST_SAMPLED, PlannedRow, PromptPosition, ScoredRow, StepPlan};
use crate::pool::hash_block;
use crate::scheduler::Scheduler;

/// A running request's share of the step that is being planned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selected {
    slot: usize,
    num_tokens: u32,
}

/// The tokens of a share that no row of the same step may read.
///
/// Where every row has one token, attention may write a row's key while it reads those of others.
const fn unread(num_tokens: u32) -> u32 {
    if num_tokens == 1 { 1 } else { 0 }
}

impl Scheduler {
    /// Plans the next step into `plan`. Returns false, with an empty plan, if there is nothing to compute.
    ///
    /// May be called while earlier steps are in flight: tokens that those will return are [`LAST_SAMPLED`].
    pub fn plan(&mut self, plan: &mut StepPlan, now: Duration) -> bool {
        plan.clear();
        self.pool.residency.set_now(now);
        self.selected.clear();
        let mut budget = self.config.max_num_batched_tokens;
        let preemptions = self.counters.preemptions;
        self.select_running(plan, &mut budget);
        // Only now: until here a preemption could still take a request out of the step, and its blocks would be named
        // for tokens that nobody computes.
        for at in 0..self.selected.len() {
            let share = self.selected[at];
            self.publish_full_blocks(share.slot, unread(share.num_tokens));
        }
        // Blocks were short a moment ago: admitting somebody now would take them from those who were preempted.
        if self.counters.preemptions == preemptions {
            self.admit_waiting(plan, &mut budget, now);
        }
        if self.selected.is_empty() {
            return false;
        }
        self.allocate_lookahead(plan);
        self.step = StepId(self.step.0 + 1);
        plan.step = self.step;
        plan.planned = now;
        // Rows of one token first: the layout that decode kernels want.
        let selected = std::mem::take(&mut self.selected);
        for single in [true, false] {
            for share in selected.iter().filter(|share| (share.num_tokens == 1) == single) {
                self.write_row(plan, *share);
            }
            if single {
                plan.num_single = plan.rows.len();
            }
        }
        self.selected = selected;
        true
    }

    /// What a request may compute within the budget.
    fn share_of(&self, slot: usize, budget: u32) -> u32 {
        let state = self.state(slot);
        let wanted = state.wanted();
        if self.config.whole_prompts {
            // One that is over the budget has a step to itself.
            return if wanted <= budget || self.selected.is_empty() { wanted } else { 0 };
        }
        let mut n = wanted.min(budget);
        let threshold = self.config.long_prefill_threshold;
        // A lone prompt has nobody to make room for.
        if threshold > 0 && !state.is_decoding() && self.index.len() > 1 {
            n = n.min(threshold);
        }
        n
    }

    fn select_running(&mut self, plan: &mut StepPlan, budget: &mut u32) {
        // A copy, because preemption takes requests off the list while it is walked.
        let mut queue = std::mem::take(&mut self.queue);
        queue.clear();
        queue.extend_from_slice(&self.running);
        for slot in queue.iter().copied() {
            if *budget == 0 {
                break;
            }
            // Preempted for a request before it in the list.
            if self.state(slot).row.is_none() {
                continue;
            }
            let num_tokens = self.without_costly_drafts(slot, self.share_of(slot, *budget));
            if num_tokens > 0 && self.make_room(slot, num_tokens, budget) {
                self.extend_blocks(plan, slot, num_tokens);
                self.take_share(slot, num_tokens, budget);
            }
        }
        self.queue = queue;
    }

    /// The share without its drafts if these would take blocks from somebody: a guess is not worth a preemption.
    fn without_costly_drafts(&mut self, slot: usize, num_tokens: u32) -> u32 {
        if self.missing_blocks(slot, num_tokens) <= self.pool.free() {
            return num_tokens;
        }
        let state = self.state_mut(slot);
        state.drafts.clear();
        num_tokens.min(state.wanted())
    }

    /// Preempts until the request's next tokens have blocks. False if the request itself had to go.
    fn make_room(&mut self, slot: usize, num_tokens: u32, budget: &mut u32) -> bool {
        while self.missing_blocks(slot, num_tokens) > self.pool.free() {
            let victim = *self
                .running
                .iter()
                .max_by_key(|slot| self.order(self.state(**slot)))
                .expect("the request itself is running");
            if let Some(at) = self.selected.iter().position(|share| share.slot == victim) {
                *budget += self.selected.swap_remove(at).num_tokens;
            }
            self.preempt(victim);
            if victim == slot {
                return false;
            }
        }
        true
    }

    fn missing_blocks(&self, slot: usize, num_tokens: u32) -> usize {
        let state = self.state(slot);
        let needed = (state.computed + num_tokens).div_ceil(self.config.block_size) as usize;
        needed.saturating_sub(state.blocks.len())
    }

    /// Allocates the blocks that [`Self::missing_blocks`] counted.
    fn extend_blocks(&mut self, plan: &mut StepPlan, slot: usize, num_tokens: u32) {
        for _ in 0..self.missing_blocks(slot, num_tokens) {
            let block = self.pool.allocate().expect("the caller made room");
            self.append_block(plan, slot, block);
        }
    }

    /// Blocks past the end of the rows that sample, for drafters that write there: only what is free, once everybody who
    /// needs a block has it.
    fn allocate_lookahead(&mut self, plan: &mut StepPlan) {
        if self.lookahead == 0 {
            return;
        }
        let (size, most) = (self.config.block_size, self.config.admissions.block_deltas as usize);
        for at in 0..self.selected.len() {
            let slot = self.selected[at].slot;
            let state = self.state(slot);
            if state.computed < state.known() {
                continue;
            }
            let end = (state.computed + self.lookahead).min(self.config.max_model_len);
            let missing = (end.div_ceil(size) as usize).saturating_sub(state.blocks.len());
            for _ in 0..missing.min(most.saturating_sub(plan.blocks.len())) {
                let Some(block) = self.pool.allocate() else { return };
                self.append_block(plan, slot, block);
            }
        }
    }

    fn append_block(&mut self, plan: &mut StepPlan, slot: usize, block: BlockId) {
        let state = self.state_mut(slot);
        let row = state.row.expect("only requests with a row get blocks");
        plan.blocks.push(BlockDelta { row, column: state.blocks.len() as u32, block });
        state.blocks.push(block);
    }

    /// Counts the tokens as computed, so that the next step can be planned at once.
    fn take_share(&mut self, slot: usize, num_tokens: u32, budget: &mut u32) {
        // Only a whole prompt is over the budget.
        *budget = budget.saturating_sub(num_tokens);
        self.state_mut(slot).computed += num_tokens;
        self.selected.push(Selected { slot, num_tokens });
    }

    /// Tells the pool what the request's full blocks hold, so that others find them.
    ///
    /// Legal before the step has run: whoever finds them is planned into this step or a later one, and within a step
    /// every layer writes its KV before any row reads it, unless all rows have one token. Of the last tokens, `unread`
    /// are not named yet for that reason. Unverified drafts are beyond `tokens` and never named.
    pub(crate) fn publish_full_blocks(&mut self, slot: usize, unread: u32) {
        if !self.config.prefix_caching {
            return;
        }
        let state = self.state(slot);
        let full =
            ((state.computed - unread).min(state.tokens.len() as u32) / self.config.block_size) as usize;
        if full > state.published {
            self.hash_blocks(slot, full);
            let state = self.states[slot].as_mut().expect("checked above");
            for at in state.published..full {
                self.pool.publish(state.blocks[at], state.hashes[at]);
            }
            state.published = full;
        }
    }

    /// Extends the request's chain of hashes to `count` blocks.
    fn hash_blocks(&mut self, slot: usize, count: usize) {
        let (size, seed) = (self.config.block_size as usize, self.config.hash_seed);
        let state = self.state_mut(slot);
        for at in state.hashes.len()..count {
            let salt = state.request.cache_salt.as_deref();
            let tokens = &state.tokens[at * size..(at + 1) * size];
            let hash = hash_block(seed, state.hashes.last().copied(), salt, tokens);
            state.hashes.push(hash);
        }
    }

    fn admit_waiting(&mut self, plan: &mut StepPlan, budget: &mut u32, now: Duration) {
        let limits = self.config.admissions;
        let (mut history, mut rules) = (limits.history, limits.rules);
        while *budget > 0 {
            let Some(slot) = self.waiting.values().next().copied() else { break };
            let Some(row) = self.rows.last().copied() else { break };
            let hits = self.find_prefix(slot);
            let cached = hits as u32 * self.config.block_size;
            self.state_mut(slot).computed = cached;
            let num_tokens = self.share_of(slot, *budget);
            if num_tokens == 0 {
                self.state_mut(slot).computed = 0;
                break;
            }
            let needed = self.missing_blocks(slot, num_tokens);
            // A hit on a block that nobody holds takes it off the free list too.
            let revived = self.hit_blocks(slot, hits).filter(|block| self.pool.is_free(*block)).count();
            let admission = self.admission(slot, row);
            let deltas = plan.blocks.len() + needed;
            let fits = needed - hits + revived <= self.pool.free()
                && deltas <= limits.block_deltas as usize
                && admission.num_history() <= history as usize
                && admission.num_rules() <= rules as usize;
            if !fits {
                self.state_mut(slot).computed = 0;
                break;
            }
            history -= admission.num_history() as u32;
            rules -= admission.num_rules() as u32;
            plan.admissions.push(admission);
            self.enter(slot, now, cached);
            for at in 0..hits {
                let block = self
                    .pool
                    .find(self.state(slot).hashes[at])
                    .expect("found a moment ago, and nothing was allocated since");
                self.pool.acquire(block);
                self.append_block(plan, slot, block);
            }
            self.state_mut(slot).published = hits;
            self.extend_blocks(plan, slot, num_tokens);
            self.take_share(slot, num_tokens, budget);
            self.publish_full_blocks(slot, unread(num_tokens));
        }
    }

    /// Moves a request from waiting to running.
    fn enter(&mut self, slot: usize, now: Duration, cached: u32) {
        self.waiting.pop_first();
        let blocks_per_request = self.config.blocks_per_request() as usize;
        let row = self.rows.pop().expect("checked by the caller");
        let state = self.state_mut(slot);
        let queried = state.tokens.len() as u64;
        state.row = Some(row);
        state.timing.scheduled.get_or_insert(now);
        state.cached.get_or_insert(cached);
        // Growing later would allocate in the middle of a steady decode.
        state.tokens.reserve((state.max_total as usize).saturating_sub(state.tokens.len()));
        state.blocks.reserve(blocks_per_request);
        state.hashes.reserve(blocks_per_request.saturating_sub(state.hashes.len()));
        self.running.push(slot);
        if self.config.prefix_caching {
            self.counters.prefix_queries += queried;
            self.counters.prefix_hits += u64::from(cached);
        }
    }

    fn admission(&self, slot: usize, row: frizzen_core::RowId) -> Admission {
        let state = self.state(slot);
        let outputs = state.tokens[state.request.prompt.len()..].to_vec();
        Admission {
            row,
            request: std::sync::Arc::clone(&state.request),
            seed: state.seed,
            suppressed: std::sync::Arc::clone(&state.stops),
            outputs,
        }
    }

    /// Leading blocks of a waiting request that the pool still holds. At least one token is left to compute.
    fn find_prefix(&mut self, slot: usize) -> usize {
        let state = self.state(slot);
        // Scores of prompt tokens need their logits, so nothing of that prompt may be skipped.
        let unscored =
            state.request.params.prompt_logprobs.is_some() && state.prompt_scored + 1 < state.prompt_len();
        // The same goes for vectors of tokens and their hidden states.
        let unseen = state.pools_tokens() && state.vectors_sent < state.prompt_len();
        if !self.config.prefix_caching || unscored || unseen {
            return 0;
        }
        let most = (state.tokens.len() - 1) / self.config.block_size as usize;
        self.hash_blocks(slot, most);
        self.hit_blocks(slot, most).count()
    }

    fn hit_blocks(&self, slot: usize, most: usize) -> impl Iterator<Item = BlockId> {
        self.state(slot).hashes[..most].iter().map_while(|hash| self.pool.find(*hash))
    }

    fn write_row(&mut self, plan: &mut StepPlan, share: Selected) {
        let block_size = self.config.block_size;
        let state = self.states[share.slot].as_mut().expect("a selected request is running");
        let start = state.computed - share.num_tokens;
        let known = state.known();
        let num_drafts = state.computed.saturating_sub(known);
        let samples = state.computed >= known;
        let first_token = plan.input_ids.len() as u32;
        let row_index = plan.rows.len() as u32;
        for position in start..state.computed {
            let token = match position.checked_sub(state.tokens.len() as u32) {
                None => as_input(state.tokens[position as usize]),
                Some(_) if state.placeholders > 0 => LAST_SAMPLED,
                Some(draft) => as_input(state.drafts[draft as usize]),
            };
            let block = state.blocks[(position / block_size) as usize];
            plan.input_ids.push(token);
            plan.positions.push(position as i32);
            plan.slots.push(i64::from(block.0) * i64::from(block_size) + i64::from(position % block_size));
        }
        if samples {
            if state.constrained.is_some() {
                let first = plan.sample_tokens.len() as u32;
                plan.mask_rows.extend(first..=first + num_drafts);
            }
            for position in (state.computed - num_drafts - 1)..state.computed {
                plan.sample_tokens.push((first_token + position - start) as i32);
                plan.sample_rows.push(row_index as i32);
                plan.uniforms.push(uniform(state.seed, position + 1));
            }
            let params = &state.request.params;
            if let Some(best) = params.logprobs {
                let listed = params.logprob_token_ids.len() as u32;
                plan.logprob_rows.push(ScoredRow { row: row_index, best, listed });
            }
            state.placeholders += 1;
            state.drafts_in_flight += num_drafts;
        }
        if let Some(alternatives) = state.request.params.prompt_logprobs {
            for position in start.max(state.prompt_scored)..state.computed.min(state.prompt_len() - 1) {
                let target = state.tokens[position as usize + 1];
                let token = first_token + position - start;
                plan.prompt_positions.push(PromptPosition { token, row: row_index, target, alternatives });
            }
        }
        plan.rows.push(PlannedRow {
            request: state.id,
            row: state.row.expect("a selected request has a row"),
            epoch: state.epoch,
            start,
            num_tokens: share.num_tokens,
            num_drafts,
            samples,
            next_token: if samples { -1 } else { as_input(state.tokens[state.computed as usize]) },
            prefills: state.prefills,
            num_vectors: if state.pools_tokens() {
                state.computed - start.max(state.vectors_sent)
            } else {
                0
            },
        });
        state.prefills &= !samples;
    }
}

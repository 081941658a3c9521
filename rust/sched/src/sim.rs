//! A stand-in for a model that computes on hashes instead of vectors.
//!
//! The "KV" of a position is a hash of all tokens up to it, chained through the very slots that the plan names. So a
//! wrong block, a shared block that should not be, a token computed twice or a stale write changes the text, and the
//! text that a correct schedule must give is known without a schedule: [`ChainModel::text`].
//!
//! [`OneOf`] stands in for a grammar: a list of texts, of which an output must be one.

use std::sync::Arc;

use frizzen_core::{Constraint, Error, Request, Result, TokenId, TokenMatcher};

use crate::draw::{mix, uniform};
use crate::plan::{LAST_SAMPLED, PlannedRow, PositionLogprobs, StepOutput, StepPlan};

/// What a token choice may depend on.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// The request, as it was admitted to the row.
    pub request: &'a Request,
    /// Ordinal of the token among the request's outputs, from 0.
    pub ordinal: u32,
    /// Hash of all tokens before it.
    pub chain: u64,
    /// The uniform draw; 0 for greedy requests.
    pub uniform: f64,
}

/// A persistent batch over hashed "KV".
#[derive(Clone, Debug)]
pub struct ChainModel {
    block_size: usize,
    vocab_size: u32,
    kv: Vec<u64>,
    rows: Vec<Row>,
    run: u32,
    drafting: Option<SimDrafter>,
}

/// A drafter that knows the text, but for some mistakes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimDrafter {
    /// Share of its drafts that are right.
    pub accuracy: f64,
    /// Whether it says so.
    pub confident: bool,
}

#[derive(Clone, Debug, Default)]
struct Row {
    request: Option<Arc<Request>>,
    seed: u64,
    table: Vec<u32>,
    last: TokenId,
}

const fn link(chain: u64, token: TokenId) -> u64 {
    let z = (chain ^ (token as u64 + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z ^ (z >> 29)
}

/// Numbers from -1 to 1, exact in single precision.
fn vector_of(chain: u64, size: usize) -> impl Iterator<Item = f32> {
    (0..size as u32).map(move |at| {
        let bits = link(chain, at).wrapping_mul(0xd134_2543_de82_ef95) >> 48;
        bits as f32 / 32768.0 - 1.0
    })
}

/// `token`, or the next one that the position's mask allows.
fn allowed(plan: &StepPlan, sample: usize, token: TokenId) -> TokenId {
    let Ok(row) = plan.mask_rows.binary_search(&(sample as u32)) else { return token };
    let words = plan.masks.len() / plan.mask_rows.len();
    let mask = &plan.masks[row * words..(row + 1) * words];
    let ids = words as TokenId * 32;
    let mut after = (0..ids).map(|step| (token + step) % ids);
    after.find(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).expect("a mask allows some token")
}

impl ChainModel {
    /// A model for a pool of this shape.
    pub fn new(num_blocks: u32, block_size: u32, max_num_seqs: u32, vocab_size: u32) -> Self {
        Self {
            block_size: block_size as usize,
            vocab_size,
            kv: vec![0; num_blocks as usize * block_size as usize],
            rows: vec![Row::default(); max_num_seqs as usize],
            run: 1,
            drafting: None,
        }
    }

    /// Returns `run` tokens per step instead of one, as accepted drafts would. Not for overlapped loops: those count
    /// on one token per step.
    pub const fn set_run(&mut self, run: u32) {
        self.run = run;
    }

    /// Lets the model propose drafts as well, wherever a plan asks for them.
    pub const fn set_drafter(&mut self, drafter: SimDrafter) {
        self.drafting = Some(drafter);
    }

    /// The token that follows, if nothing scripts it.
    pub fn token_after(&self, choice: &Choice<'_>) -> TokenId {
        let draw = choice.uniform.to_bits();
        let z = (choice.chain ^ draw).wrapping_mul(0xd134_2543_de82_ef95);
        ((z >> 33) % u64::from(self.vocab_size)) as TokenId
    }

    /// Runs a step of a model that pools: the vector of a row is made of the hash of all its tokens.
    pub fn pool(&mut self, plan: &StepPlan, size: usize, output: &mut StepOutput) {
        let mut chains = Vec::new();
        self.run(plan, output, |_, choice| {
            chains.push(choice.chain);
            0
        });
        output.tokens.clear();
        output.num_sampled.fill(0);
        output.pooled_size = size;
        output.pooled.extend(chains.iter().flat_map(|chain| vector_of(*chain, size)));
        for row in &plan.rows {
            let wanted = row.start + row.num_tokens - row.num_vectors..row.start + row.num_tokens;
            for position in wanted {
                let chain = self.chain_at(row, position);
                output.token_vectors.extend(vector_of(chain, size));
            }
        }
    }

    /// The hash of a row's tokens up to and with a position, from its slot.
    fn chain_at(&self, row: &PlannedRow, position: u32) -> u64 {
        let (table, position) = (&self.rows[row.row.index()].table, position as usize);
        self.kv[table[position / self.block_size] as usize * self.block_size + position % self.block_size]
    }

    /// The vectors of a prompt's tokens: what any schedule must produce.
    pub fn token_vectors(prompt: &[TokenId], size: usize) -> Vec<f32> {
        (1..=prompt.len()).flat_map(|end| Self::vector(&prompt[..end], size)).collect()
    }

    /// The vector of a prompt: what any schedule must produce.
    pub fn vector(prompt: &[TokenId], size: usize) -> Vec<f32> {
        vector_of(prompt.iter().fold(0, |chain, token| link(chain, *token)), size).collect()
    }

    /// The greedy text after `prompt`: what any schedule must produce.
    pub fn text(&self, request: &Request, len: usize) -> Vec<TokenId> {
        let mut chain = request.prompt.iter().fold(0, |chain, token| link(chain, *token));
        let mut text = Vec::with_capacity(len);
        for ordinal in 0..len as u32 {
            let token = self.token_after(&Choice { request, ordinal, chain, uniform: 0.0 });
            text.push(token);
            chain = link(chain, token);
        }
        text
    }

    /// Runs a step. `choose` picks each sampled token.
    pub fn run(
        &mut self,
        plan: &StepPlan,
        output: &mut StepOutput,
        mut choose: impl FnMut(&Self, &Choice<'_>) -> TokenId,
    ) {
        output.clear();
        for admission in &plan.admissions {
            let row = &mut self.rows[admission.row.index()];
            row.request = Some(Arc::clone(&admission.request));
            row.seed = admission.seed;
        }
        for delta in &plan.blocks {
            let table = &mut self.rows[delta.row.index()].table;
            table.resize(table.len().max(delta.column as usize + 1), 0);
            table[delta.column as usize] = delta.block.0;
        }
        let chains = self.write_all_kv(plan);
        let mut first = 0;
        let mut sample = 0;
        let mut reports = Vec::new();
        for row in &plan.rows {
            let chains = &chains[first..first + row.num_tokens as usize];
            let count = if row.samples { row.num_drafts as usize + 1 } else { 0 };
            let before = output.tokens.len();
            for at in 0..count {
                let offset = plan.sample_tokens[sample + at] as usize - first;
                let state = &self.rows[row.row.index()];
                let request = state.request.as_deref().expect("a scheduled row was admitted");
                let greedy = request.params.is_greedy();
                let position = plan.positions[first + offset] as u32;
                let choice = Choice {
                    request,
                    ordinal: position + 1 - request.prompt.len() as u32,
                    chain: chains[offset],
                    uniform: if greedy { 0.0 } else { plan.uniforms[sample + at] },
                };
                let mut token = allowed(plan, sample + at, choose(self, &choice));
                self.report(output, row, token);
                if at + 1 == count {
                    let mut choice = choice;
                    for _ in 1..self.run {
                        choice.ordinal += 1;
                        choice.chain = link(choice.chain, token);
                        token = choose(self, &choice);
                        reports.push(token);
                    }
                }
                // The next sampled position holds a draft; it counts only if it is what would have been sampled.
                let draft = plan.input_ids.get(first + offset + 1).copied();
                if at + 1 < count && draft != Some(token as i32) {
                    break;
                }
            }
            for token in reports.drain(..) {
                self.report(output, row, token);
            }
            if let Some(last) = output.tokens[before..].last() {
                self.rows[row.row.index()].last = *last;
            }
            output.num_sampled.push((output.tokens.len() - before) as u32);
            if let Some(drafter) = self.drafting {
                let sampled = output.tokens.len() - before;
                let chain = sampled.checked_sub(1).map(|at| chains[chains.len() - count + at]);
                self.draft(drafter, plan.propose, row, chain, output, &mut choose);
            }
            sample += count;
            first += row.num_tokens as usize;
        }
        for position in &plan.prompt_positions {
            let scored = Self::score(self.vocab_size, output, position.target, position.alternatives);
            output.prompt_logprobs.push(scored);
        }
    }

    /// Proposes what follows the row's last token, which `chain` precedes.
    fn draft(
        &self,
        drafter: SimDrafter,
        most: u32,
        row: &PlannedRow,
        chain: Option<u64>,
        output: &mut StepOutput,
        choose: &mut impl FnMut(&Self, &Choice<'_>) -> TokenId,
    ) {
        let state = &self.rows[row.row.index()];
        let request = state.request.as_deref().expect("a scheduled row was admitted");
        let Some(mut chain) = chain.filter(|_| most > 0) else {
            output.proposals.counts.push(0);
            return;
        };
        let (mut token, sampled) = (state.last, output.num_sampled.last().copied().unwrap_or(0));
        // Position of the row's last token.
        let last = row.start + row.num_tokens - row.num_drafts - 1 + sampled;
        for ahead in 1..=most {
            chain = link(chain, token);
            let position = last + ahead;
            let choice = Choice {
                request,
                ordinal: position - request.prompt.len() as u32,
                chain,
                uniform: if request.params.is_greedy() { 0.0 } else { uniform(state.seed, position) },
            };
            token = choose(self, &choice);
            if mix(chain) as f64 >= drafter.accuracy * u64::MAX as f64 {
                token = (token + 1) % self.vocab_size;
            }
            output.proposals.tokens.push(token);
            let confidence = if drafter.confident { drafter.accuracy as f32 } else { f32::NAN };
            output.proposals.confidences.push(confidence);
        }
        output.proposals.counts.push(most);
    }

    /// Writes the KV of every row; returns the chain after each of the plan's tokens.
    ///
    /// Like a layer of a real model, all rows write before any row is sampled. A row may build on a block that another
    /// row fills in this very step; that one starts earlier in the text.
    fn write_all_kv(&mut self, plan: &StepPlan) -> Vec<u64> {
        let mut first = 0;
        let mut order: Vec<(u32, usize, usize)> = Vec::with_capacity(plan.rows.len());
        for (at, row) in plan.rows.iter().enumerate() {
            order.push((row.start, at, first));
            first += row.num_tokens as usize;
        }
        order.sort_unstable();
        let mut chains = vec![0; first];
        for (_, at, first) in order {
            let row = &plan.rows[at];
            self.write_kv(plan, row, first, &mut chains[first..first + row.num_tokens as usize]);
        }
        chains
    }

    /// Chains the row's tokens, the first of which is the plan's token `first`, through its slots.
    fn write_kv(&mut self, plan: &StepPlan, row: &PlannedRow, first: usize, chains: &mut [u64]) {
        let state = &self.rows[row.row.index()];
        let slot_of = |position: usize| {
            state.table[position / self.block_size] as usize * self.block_size + position % self.block_size
        };
        let mut chain = if row.start == 0 { 0 } else { self.kv[slot_of(row.start as usize - 1)] };
        for (at, after) in (first..).zip(chains) {
            let token =
                if plan.input_ids[at] == LAST_SAMPLED { state.last } else { plan.input_ids[at] as TokenId };
            chain = link(chain, token);
            let slot = plan.slots[at] as usize;
            assert_eq!(slot, slot_of(plan.positions[at] as usize), "slot and block table disagree");
            *after = chain;
            self.kv[slot] = chain;
        }
    }

    fn report(&self, output: &mut StepOutput, row: &PlannedRow, token: TokenId) {
        output.tokens.push(token);
        let request = self.rows[row.row.index()].request.as_deref();
        if let Some((params, best)) =
            request.and_then(|request| Some((&request.params, request.params.logprobs?)))
        {
            let mut scored = Self::score(self.vocab_size, output, token, best);
            let listed =
                params.logprob_token_ids.iter().filter(|id| (token..token + best).all(|top| top != **id));
            let listed: Vec<_> = listed.map(|id| (*id, -1.0 - *id as f32)).collect();
            scored.top_len += listed.len() as u32;
            output.top.extend(listed);
            output.logprobs.resize(output.tokens.len() - 1, PositionLogprobs::default());
            output.logprobs.push(scored);
        }
    }

    fn score(vocab_size: u32, output: &mut StepOutput, token: TokenId, asked: u32) -> PositionLogprobs {
        let top_start = output.top.len() as u32;
        output.top.extend((0..asked).map(|i| ((token + i) % vocab_size, -0.5 - i as f32)));
        PositionLogprobs { logprob: -0.5, rank: 1, top_start, top_len: asked }
    }
}

/// A constraint to one of these texts, each a list of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneOf(pub Arc<[Vec<TokenId>]>);

#[derive(Clone, Debug)]
struct OneOfMatcher {
    texts: Arc<[Vec<TokenId>]>,
    taken: Vec<TokenId>,
}

impl Constraint for OneOf {
    fn matcher(&self) -> Box<dyn TokenMatcher> {
        Box::new(OneOfMatcher { texts: Arc::clone(&self.0), taken: Vec::new() })
    }
}

impl OneOfMatcher {
    /// The tokens that may follow, once per text.
    fn next(&self) -> impl Iterator<Item = TokenId> {
        let taken = &self.taken;
        self.texts
            .iter()
            .filter(|text| text.starts_with(taken))
            .filter_map(|text| text.get(taken.len()).copied())
    }
}

impl TokenMatcher for OneOfMatcher {
    fn fill(&mut self, mask: &mut [u32]) -> Result<()> {
        mask.fill(0);
        for token in self.next() {
            mask[token as usize / 32] |= 1 << (token % 32);
        }
        Ok(())
    }

    fn accept(&mut self, token: TokenId) -> Result<()> {
        if !self.next().any(|next| next == token) {
            return Err(Error::Request { message: format!("token {token} is in none of the texts") });
        }
        self.taken.push(token);
        Ok(())
    }

    fn validate(&mut self, tokens: &[TokenId]) -> usize {
        let mut ahead = self.clone();
        tokens.iter().take_while(|token| ahead.accept(**token).is_ok()).count()
    }

    fn rollback(&mut self, count: usize) -> Result<()> {
        let left = self.taken.len().checked_sub(count).ok_or_else(|| Error::Request {
            message: format!("{count} tokens cannot be taken back, {} were accepted", self.taken.len()),
        })?;
        self.taken.truncate(left);
        Ok(())
    }

    fn can_end(&mut self) -> bool {
        self.texts.contains(&self.taken)
    }

    fn is_complete(&self) -> bool {
        self.texts.contains(&self.taken) && self.next().next().is_none()
    }

    fn fork(&self) -> Box<dyn TokenMatcher> {
        Box::new(self.clone())
    }
}

//! A worker without a model: real scheduling, real blocks, hashed "KV" ([`frizzen_sched::sim`]), a law for its time.
//!
//! What it says is one of [`Content`]; how long a step takes is a [`TimingLaw`], slept through or added to a virtual
//! clock; what goes wrong, and when, is a list of [`Fault`]s.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use frizzen_core::{Clock, ManualClock, TokenId};
use frizzen_sched::sim::{ChainModel, Choice, SimDrafter};
use frizzen_sched::{StepOutput, StepPlan};

use crate::worker::{Worker, WorkerDrafter, WorkerError, WorkerInfo};

/// What the mock says.
#[derive(Clone, Debug, Default)]
pub enum Content {
    /// Tokens of the whole vocabulary, a function of everything before them (and of the draw, unless greedy).
    #[default]
    Chain,
    /// The same function, over these tokens only.
    Alphabet(Arc<[TokenId]>),
    /// The prompt again, over and over.
    Echo,
    /// These tokens, then the first end-of-sequence token.
    Script(Arc<[TokenId]>),
}

/// How long a step takes, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingLaw {
    /// Every step.
    pub base: u64,
    /// Each row of one token.
    pub per_decode_row: u64,
    /// Each token of a longer row.
    pub per_prefill_token: u64,
    /// Each token of context, over all rows.
    pub per_context_token: u64,
    /// Each step that drafts.
    pub drafting: u64,
    /// Each draft that a row is proposed.
    pub per_proposed_draft: u64,
}

impl TimingLaw {
    /// The same time for every step.
    pub const fn constant(step: Duration) -> Self {
        Self {
            base: step.as_nanos() as u64,
            per_decode_row: 0,
            per_prefill_token: 0,
            per_context_token: 0,
            drafting: 0,
            per_proposed_draft: 0,
        }
    }

    /// The time of a step.
    pub fn of(&self, plan: &StepPlan) -> Duration {
        let decode = plan.num_single as u64;
        let prefill = plan.num_tokens() as u64 - decode;
        let context: u64 = plan.rows.iter().map(|row| u64::from(row.start + row.num_tokens)).sum();
        let nanos = self.base
            + self.per_decode_row * decode
            + self.per_prefill_token * prefill
            + self.per_context_token * context
            + self.drafting * u64::from(plan.propose > 0)
            + self.per_proposed_draft * u64::from(plan.propose) * plan.rows.len() as u64;
        Duration::from_nanos(nanos)
    }
}

/// What goes wrong, at the step with this number (counted from 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `submit` fails for good.
    Raise(u64),
    /// `submit` panics.
    Panic(u64),
    /// `submit` runs out of memory.
    OutOfMemory(u64),
    /// `collect` does not return until the mock's [`HangGuard`] is dropped.
    Hang(u64),
    /// The first row's logits are not finite.
    BadRow(u64),
    /// The drafter fails.
    Drafter(u64),
}

/// Keeps a hanging mock hanging; dropping it lets the step end with an error, so that a test can join its threads.
#[derive(Debug)]
pub struct HangGuard {
    _release: Sender<()>,
}

/// A worker without a model.
#[derive(Debug)]
pub struct MockWorker {
    info: WorkerInfo,
    model: ChainModel,
    content: Content,
    law: TimingLaw,
    clock: Option<ManualClock>,
    faults: Vec<Fault>,
    hang: Option<Receiver<()>>,
    flight: VecDeque<(StepOutput, Instant, Duration)>,
    virtual_end: Duration,
    step: u64,
    chores: Option<(u32, Sender<()>)>,
    answers: Vec<(String, String)>,
}

/// A drafter of the mock, of the name that selects it.
pub fn mock_drafter(name: &str, max_drafts: u32) -> WorkerDrafter {
    WorkerDrafter {
        name: name.to_owned(),
        max_drafts,
        has_confidence: false,
        needs_context: true,
        lookahead: max_drafts,
    }
}

/// A small model's shape, to be adjusted with struct update syntax.
pub fn mock_info() -> WorkerInfo {
    WorkerInfo {
        model: "mock".to_owned(),
        vocab_size: 256,
        max_model_len: 4096,
        max_num_seqs: 64,
        max_num_batched_tokens: 2048,
        num_blocks: 4097,
        block_size: 16,
        max_logprobs: 20,
        max_drafts: 0,
        drafter: None,
        experts: None,
        eos_token_ids: vec![0],
        pooling: None,
        device: "mock".to_owned(),
        dtype: "mock".to_owned(),
        plan: serde_json::Value::Null,
        start: serde_json::Value::Null,
    }
}

impl MockWorker {
    /// A mock of this shape that takes no time and says [`Content::Chain`].
    pub fn new(info: WorkerInfo) -> Self {
        let mut model = ChainModel::new(info.num_blocks, info.block_size, info.max_num_seqs, info.vocab_size);
        if let Some(drafter) = &info.drafter {
            model.set_drafter(SimDrafter { accuracy: 0.8, confident: drafter.has_confidence });
        }
        Self {
            info,
            model,
            content: Content::default(),
            law: TimingLaw::default(),
            clock: None,
            faults: Vec::new(),
            hang: None,
            flight: VecDeque::new(),
            virtual_end: Duration::ZERO,
            step: 0,
            chores: None,
            answers: Vec::new(),
        }
    }

    /// What it says.
    #[must_use]
    pub fn saying(mut self, content: Content) -> Self {
        self.content = content;
        self
    }

    /// How many tokens a step returns per row; not for overlapped loops (see [`ChainModel::set_run`]).
    #[must_use]
    pub const fn in_runs_of(mut self, tokens: u32) -> Self {
        self.model.set_run(tokens);
        self
    }

    /// What its drafter proposes, if it carries one: its own text, but for some mistakes.
    #[must_use]
    pub const fn drafting(mut self, drafter: SimDrafter) -> Self {
        self.model.set_drafter(drafter);
        self
    }

    /// So many pieces of work for idle times, each of which tells `done`.
    #[must_use]
    pub fn with_chores(mut self, count: u32, done: Sender<()>) -> Self {
        self.chores = Some((count, done));
        self
    }

    /// How long its steps take, in real time.
    #[must_use]
    pub const fn taking(mut self, law: TimingLaw) -> Self {
        self.law = law;
        self
    }

    /// Its steps take their time on this clock instead of in reality.
    #[must_use]
    pub fn on(mut self, clock: ManualClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// What goes wrong.
    #[must_use]
    pub fn failing(mut self, fault: Fault) -> Self {
        self.faults.push(fault);
        self
    }

    /// What it answers to a question.
    #[must_use]
    pub fn answering(mut self, name: &str, json: &str) -> Self {
        self.answers.push((name.to_owned(), json.to_owned()));
        self
    }

    /// Prepares for [`Fault::Hang`].
    pub fn hang_guard(&mut self) -> HangGuard {
        let (release, hang) = channel();
        self.hang = Some(hang);
        HangGuard { _release: release }
    }

    /// The greedy text of a request under [`Content::Chain`].
    pub fn text(&self, request: &frizzen_core::Request, len: usize) -> Vec<TokenId> {
        self.model.text(request, len)
    }

    fn compute(&mut self, plan: &StepPlan) -> StepOutput {
        let mut output = StepOutput::default();
        let eos = self.info.eos_token_ids.first().copied().unwrap_or(0);
        let content = &self.content;
        match &self.info.pooling {
            Some(pooling) => self.model.pool(plan, pooling.size as usize, &mut output),
            None => self.model.run(plan, &mut output, |model, choice| choose(content, eos, model, choice)),
        }
        if self.has(Fault::Drafter(self.step)) {
            output.proposals.clear();
            output.proposals.failed = Some("the mock was told to fail its drafter".to_owned());
        }
        if self.has(Fault::BadRow(self.step)) {
            output.failed.push((plan.rows[0].row, "logits are not finite".to_owned()));
        }
        output
    }

    fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }
}

fn choose(content: &Content, eos: TokenId, model: &ChainModel, choice: &Choice<'_>) -> TokenId {
    match content {
        Content::Chain => model.token_after(choice),
        Content::Alphabet(tokens) => tokens[model.token_after(choice) as usize % tokens.len()],
        Content::Echo => choice.request.prompt[choice.ordinal as usize % choice.request.prompt.len()],
        Content::Script(tokens) => tokens.get(choice.ordinal as usize).copied().unwrap_or(eos),
    }
}

fn fatal(message: &str) -> WorkerError {
    WorkerError::Fatal { message: message.to_owned(), detail: String::new() }
}

impl Worker for MockWorker {
    fn info(&self) -> &WorkerInfo {
        &self.info
    }

    fn idle(&mut self) -> Result<bool, WorkerError> {
        let Some((left, done)) = self.chores.as_mut().filter(|(left, _)| *left > 0) else { return Ok(false) };
        *left -= 1;
        done.send(()).map_err(|_| fatal("nobody waits for the mock's work in idle times"))?;
        Ok(*left > 0)
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<(), WorkerError> {
        self.step += 1;
        if self.has(Fault::Raise(self.step)) {
            return Err(fatal("RuntimeError: the mock was told to raise"));
        }
        assert!(!self.has(Fault::Panic(self.step)), "the mock was told to panic");
        if self.has(Fault::OutOfMemory(self.step)) {
            let message = "the mock was told to run out of memory".to_owned();
            return Err(WorkerError::OutOfMemory { message, detail: String::new() });
        }
        let output = if plan.mask_rows.is_empty() { self.compute(plan) } else { StepOutput::default() };
        // Steps run one after the other, however early they were submitted.
        let time = self.law.of(plan);
        let start = self.flight.back().map_or_else(Instant::now, |(_, end, _)| *end);
        let virtual_start =
            self.clock.as_ref().map_or(Duration::ZERO, |clock| clock.now().max(self.virtual_end));
        self.virtual_end = virtual_start + time;
        self.flight.push_back((output, start + time, self.virtual_end));
        Ok(())
    }

    fn sample(&mut self, plan: &StepPlan) -> Result<(), WorkerError> {
        let output = self.compute(plan);
        let (step, _, _) = self.flight.back_mut().ok_or_else(|| fatal("nothing was submitted"))?;
        *step = output;
        Ok(())
    }

    fn collect(&mut self, _plan: &StepPlan, output: &mut StepOutput) -> Result<(), WorkerError> {
        let (result, end, virtual_end) =
            self.flight.pop_front().ok_or_else(|| fatal("nothing was submitted"))?;
        let number = self.step - self.flight.len() as u64;
        if self.has(Fault::Hang(number)) {
            let hang = self.hang.take().ok_or_else(|| fatal("a hang without a guard"))?;
            // The guard never sends: this returns when it is dropped.
            let _ = hang.recv();
            return Err(fatal("the hang was released"));
        }
        match &self.clock {
            Some(clock) => clock.advance(virtual_end.saturating_sub(clock.now())),
            None => std::thread::sleep(end.saturating_duration_since(Instant::now())),
        }
        *output = result;
        Ok(())
    }

    fn control(&mut self, name: &str, _argument: &str) -> Result<String, String> {
        let answer = self.answers.iter().find(|(known, _)| known == name).map(|(_, json)| json.clone());
        answer.ok_or_else(|| format!("the mock has no answer to {name:?}"))
    }
}

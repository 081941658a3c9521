//! The loop: plan, submit, collect, commit, publish.
//!
//! One [`Engine`] lives on one thread, with its worker. [`Engine::run`] serves commands until shutdown;
//! [`Engine::step`] is the same loop's body for a caller that drives it itself (`LLM.generate`). With `overlap`, step
//! n + 1 is planned and submitted before step n is collected; the text is the same either way.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::task::Waker;
use std::time::Duration;

use frizzen_core::{Clock, Error, FinishReason, Request, RequestId, Result};
use frizzen_metrics::{CacheConfig, EngineMetrics};
use frizzen_sched::draw::sibling_seed;
use frizzen_sched::{
    Finish, Residency, RowEvent, Scheduler, SchedulerConfig, SchedulerCounters, StepOutput, StepPlan,
};
use rustc_hash::FxHashMap;

use crate::cost_cache::CostCache;
use crate::handle::{Command, EngineHandle, Health, Shared};
use crate::masks;
use crate::options::EngineOptions;
use crate::pause::Pause;
use crate::publish::{count_finish, extend, observe};
use crate::speculation::Speculating;
use crate::watchdog::Doing;
use crate::worker::{Worker, WorkerError, WorkerInfo};

/// New measurements of step times that are worth a write while nothing runs.
const NEWS: u64 = 256;

/// The engine's side of a handle, before there is a worker.
#[derive(Debug)]
pub struct EngineSeat {
    pub(crate) shared: Arc<Shared>,
    pub(crate) commands: Receiver<Command>,
}

/// A handle, and the seat that an [`Engine`] takes once its worker is built. `max_open` bounds the open requests.
pub fn seat(clock: Arc<dyn Clock>, max_open: usize) -> (EngineHandle, EngineSeat) {
    let (sender, commands) = channel();
    let shared = Arc::new(Shared::new(clock, max_open));
    (EngineHandle { shared: Arc::clone(&shared), commands: sender }, EngineSeat { shared, commands })
}

/// What a call of [`Engine::step`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// A step was submitted or collected.
    Worked,
    /// There is no request.
    Idle,
}

/// A worker, a scheduler and the requests between them.
pub struct Engine<W> {
    worker: W,
    scheduler: Scheduler,
    shared: Arc<Shared>,
    commands: Receiver<Command>,
    metrics: EngineMetrics,
    options: EngineOptions,
    overlap: bool,
    seed: u64,
    /// Plans of submitted steps, oldest first.
    flight: VecDeque<StepPlan>,
    spare: Vec<StepPlan>,
    output: StepOutput,
    events: Vec<RowEvent>,
    waiting: Vec<Waker>,
    /// Requests that ended after the front end had given them up, or whose text the front end still reads for a stop string:
    /// the command that is on the way says how they count.
    crossed: FxHashMap<RequestId, Finish>,
    counted: SchedulerCounters,
    out_of_memory: bool,
    speculating: Option<Speculating>,
    pause: Pause,
    /// Positions past its rows for which the worker's drafter writes KV.
    lookahead: u32,
    /// When the last step ended, while there was always another one after it.
    last_end: Option<Duration>,
}

impl<W> std::fmt::Debug for Engine<W> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Engine").field("options", &self.options).finish_non_exhaustive()
    }
}

/// A number that differs from process to process.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn scheduler_config(info: &WorkerInfo, options: &EngineOptions) -> SchedulerConfig {
    let pooling = info.pooling.as_ref();
    SchedulerConfig {
        max_num_seqs: info.max_num_seqs,
        max_num_batched_tokens: info.max_num_batched_tokens,
        max_model_len: info.max_model_len,
        block_size: info.block_size,
        num_blocks: info.num_blocks,
        prefix_caching: options.prefix_caching && !pooling.is_some_and(|pooling| pooling.every_token),
        whole_prompts: pooling.is_some_and(|pooling| pooling.whole_prompts),
        long_prefill_threshold: options.long_prefill_threshold,
        policy: options.policy,
        hash_seed: random(),
        admissions: info.admission_limits(),
    }
}

impl<W: Worker> Engine<W> {
    /// Seats a worker: from now on the handle takes requests.
    ///
    /// # Errors
    /// `Engine` if the worker's sizes contradict each other.
    pub fn new(seat: EngineSeat, worker: W, options: EngineOptions, metrics: EngineMetrics) -> Result<Self> {
        let info = worker.info().clone();
        let checked = info.validate().and_then(|()| {
            let config = options.speculation;
            config.map(|config| Speculating::new(config, &info, &metrics, &seat.shared)).transpose()
        });
        let speculating = checked.map_err(|message| {
            let error = Error::Engine { message };
            seat.shared.fail(error.clone());
            error
        })?;
        let scheduler = Scheduler::new(scheduler_config(&info, &options));
        let overlap = options.overlap.unwrap_or_else(|| info.computes_on_its_own());
        let rows = info.max_num_seqs as usize;
        seat.shared.total_blocks.store(u64::from(info.num_blocks.saturating_sub(1)), Ordering::Relaxed);
        let lookahead = info.drafter.as_ref().map_or(0, |drafter| drafter.lookahead);
        // The seat is fresh, so nobody has set the info before.
        let _ = seat.shared.info.set(info);
        seat.shared.set_phase(Health::Ready);
        Ok(Self {
            worker,
            scheduler,
            shared: seat.shared,
            commands: seat.commands,
            metrics,
            options,
            overlap,
            seed: options.seed.unwrap_or_else(random),
            flight: VecDeque::with_capacity(2),
            spare: vec![StepPlan::default(), StepPlan::default()],
            output: StepOutput::default(),
            events: Vec::with_capacity(rows),
            waiting: Vec::with_capacity(rows),
            crossed: FxHashMap::default(),
            counted: SchedulerCounters::default(),
            out_of_memory: false,
            speculating,
            pause: Pause::default(),
            lookahead,
            last_end: None,
        })
    }

    /// Keeps measured step times in this directory for the next start, and takes over those of the last one.
    pub fn remember_costs(&mut self, directory: &Path) {
        if let Some(speculating) = &mut self.speculating {
            speculating.remember(CostCache::new(directory, self.worker.info()));
        }
    }

    fn keep_costs(&mut self) {
        if let Some(speculating) = &mut self.speculating {
            speculating.save(1);
        }
    }

    /// The shape of the KV cache, for metrics.
    pub fn cache_config(&self) -> CacheConfig {
        let info = self.worker.info();
        CacheConfig {
            block_size: info.block_size,
            num_blocks: info.num_blocks,
            cache_dtype: info.dtype.clone(),
            enable_prefix_caching: self.options.prefix_caching,
        }
    }

    /// The worker.
    pub const fn worker(&self) -> &W {
        &self.worker
    }

    /// The worker, for what only its owner may do.
    pub const fn worker_mut(&mut self) -> &mut W {
        &mut self.worker
    }

    /// Ends the worker of a loop that the caller drove with [`Self::step`]. [`Self::run`] does this itself.
    pub fn shutdown(&mut self) {
        self.shared.finish_all(&FinishReason::Abort);
        self.keep_costs();
        self.worker.shutdown();
    }

    /// The scheduler, for tests and idle checks.
    pub const fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Serves until shutdown or the first fatal error. Every stream has ended when this returns.
    pub fn run(&mut self) -> Result<()> {
        // A panic in here is a bug of ours; it must end the streams, not leave them hanging.
        let result = catch_unwind(AssertUnwindSafe(|| self.serve())).unwrap_or_else(|panic| {
            Err(Error::Engine { message: format!("the engine panicked: {}", text_of(&*panic)) })
        });
        if let Err(error) = &result {
            tracing::error!(%error, step = self.scheduler_summary(), "the engine failed");
            self.shared.fail(error.clone());
        }
        self.keep_costs();
        // A worker that has just failed may fail again here; the first error is what counts.
        let _ = catch_unwind(AssertUnwindSafe(|| self.worker.shutdown()));
        result
    }

    fn serve(&mut self) -> Result<()> {
        while !self.is_stopping() {
            // A step takes commands too: the one that would end the wait may be among them.
            if self.step()? == Turn::Idle && !self.is_stopping() {
                match self.next_command()? {
                    Some(command) => self.obey(command),
                    // Every handle is gone, so nobody can ask for anything.
                    None => break,
                }
            }
        }
        self.shared.finish_all(&FinishReason::Abort);
        Ok(())
    }

    fn is_stopping(&self) -> bool {
        self.shared.stopping.load(Ordering::Acquire)
    }

    /// Waits for a command; the worker works ahead meanwhile, as long as it has something to do.
    fn next_command(&mut self) -> Result<Option<Command>> {
        loop {
            match self.commands.try_recv() {
                Ok(command) => return Ok(Some(command)),
                Err(TryRecvError::Disconnected) => return Ok(None),
                Err(TryRecvError::Empty) => {}
            }
            self.shared.begin(Doing::Idle);
            let more = self.worker.idle();
            self.shared.end();
            let more = more.map_err(|error| Error::Engine { message: error.to_string() })?;
            if !more {
                return Ok(self.commands.recv().ok());
            }
        }
    }

    /// Takes waiting commands and turns the crank once.
    ///
    /// # Errors
    /// `Engine` when the worker failed. The caller then ends the streams: [`Self::run`] does, others call
    /// [`EngineHandle::fail`].
    pub fn step(&mut self) -> Result<Turn> {
        while let Ok(command) = self.commands.try_recv() {
            self.obey(command);
        }
        let frozen = self.pause.freezes();
        if (frozen || self.scheduler.is_idle()) && self.flight.is_empty() {
            self.pause.settle();
            self.last_end = None;
            if let Some(speculating) = &mut self.speculating {
                speculating.report(&self.shared);
                speculating.save(NEWS);
            }
            self.report_load();
            return Ok(Turn::Idle);
        }
        let now = self.shared.clock.now();
        self.last_end.get_or_insert(now);
        self.shared.begin(self.flight.back().map_or(Doing::Step(0, 0, 0), shape));
        let result = if frozen { self.land() } else { self.turn() };
        self.shared.end();
        self.report_load();
        match result {
            Ok(()) => Ok(Turn::Worked),
            Err(WorkerError::OutOfMemory { message, detail }) => {
                self.survive_out_of_memory(&message, &detail)
            }
            Err(WorkerError::Fatal { message, detail }) => {
                if !detail.is_empty() {
                    tracing::error!("{detail}");
                }
                Err(Error::Engine { message })
            }
        }
    }

    /// Collects what is in flight, and plans nothing.
    fn land(&mut self) -> std::result::Result<(), WorkerError> {
        while !self.flight.is_empty() {
            self.collect_oldest()?;
        }
        Ok(())
    }

    fn turn(&mut self) -> std::result::Result<(), WorkerError> {
        let proposing = self.flight.iter().any(|plan| plan.propose > 0);
        if proposing || self.speculating.as_ref().is_some_and(Speculating::is_engaged) {
            // Drafts follow what the step in flight will return, so there is no planning ahead of it.
            self.land()?;
        }
        let mut plan = self.spare.pop().unwrap_or_default();
        let drafts = self.speculating.as_ref().is_some_and(Speculating::may_draft);
        self.scheduler.set_lookahead(if drafts { self.lookahead } else { 0 });
        let planned = self.scheduler.plan(&mut plan, self.shared.clock.now());
        plan.propose = self.speculating.as_ref().map_or(0, |speculating| speculating.wanted(&plan));
        if planned {
            self.shared.go_on(shape(&plan));
            let submitted = self.submit(&mut plan);
            if submitted.is_ok() {
                if let Some(speculating) = &mut self.speculating {
                    speculating.follow(&plan);
                }
                self.flight.push_back(plan);
            } else {
                self.spare.push(plan);
            }
            submitted?;
        } else {
            self.spare.push(plan);
            if self.flight.is_empty() && !self.scheduler.is_idle() {
                let message = format!("no request can be scheduled: {}", self.scheduler_summary());
                return Err(WorkerError::Fatal { message, detail: String::new() });
            }
        }
        let depth = usize::from(planned && self.overlap);
        while self.flight.len() > depth {
            self.collect_oldest()?;
        }
        // A step went through, so the next shortage starts a new count.
        self.out_of_memory = false;
        Ok(())
    }

    /// Starts a step. Its masks are filled while the model runs, wherever the worker computes on its own.
    fn submit(&mut self, plan: &mut StepPlan) -> std::result::Result<(), WorkerError> {
        self.worker.submit(plan)?;
        if plan.mask_rows.is_empty() {
            return Ok(());
        }
        masks::fill(self.scheduler.mask_jobs(plan, self.worker.info().vocab_size));
        self.worker.sample(plan)
    }

    fn collect_oldest(&mut self) -> std::result::Result<(), WorkerError> {
        let Some(plan) = self.flight.pop_front() else { return Ok(()) };
        self.output.clear();
        let collected = self.worker.collect(&plan, &mut self.output);
        if collected.is_ok() {
            let now = self.shared.clock.now();
            self.scheduler.commit(&plan, &self.output, now, &mut self.events);
            let began = self.last_end.replace(now).unwrap_or(now);
            if let Some(speculating) = &mut self.speculating {
                let elapsed = now.saturating_sub(began);
                speculating.learn(&plan, &self.output, &self.events, began, elapsed);
            }
            self.publish();
            if let Some(speculating) = &mut self.speculating {
                let Self { scheduler, output, events, shared, .. } = self;
                speculating.propose(scheduler, &plan, output, events, shared);
            }
        }
        self.spare.push(plan);
        collected
    }

    /// Once, everything is computed again with half the tokens per step; the second time in a row is fatal.
    fn survive_out_of_memory(&mut self, message: &str, detail: &str) -> Result<Turn> {
        if self.out_of_memory || self.scheduler.config().max_num_batched_tokens == 1 {
            // What the memory holds is what helps now; the kernels are in the log of the start.
            let memory = &self.worker.info().plan["memory"];
            tracing::error!(%memory, step = self.scheduler_summary(), "out of memory twice in a row: {message}");
            tracing::error!("{detail}");
            return Err(Error::Engine {
                message: format!("out of memory twice in a row: {message}{}", shares(memory)),
            });
        }
        self.out_of_memory = true;
        while !self.flight.is_empty() {
            if let Err(error) = self.collect_oldest() {
                return Err(Error::Engine { message: error.to_string() });
            }
        }
        let budget = self.scheduler.config().max_num_batched_tokens / 2;
        tracing::warn!(%message, budget, "out of memory in a step: everything is computed again, in smaller steps");
        tracing::debug!("{detail}");
        self.scheduler.recompute_all();
        self.scheduler.set_token_budget(budget);
        Ok(Turn::Worked)
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Add(id, request) => {
                if let Some(request) = self.pause.hold(id, request) {
                    self.add(id, request);
                }
            }
            Command::Pause(mode, answer) => self.pause.begin(mode, answer),
            Command::Resume => {
                for (id, request) in self.pause.end() {
                    self.add(id, request);
                }
            }
            Command::End(id, reason) => {
                self.pause.forget(id);
                let crossed =
                    self.crossed.remove(&id).map(|finish| Finish { reason: reason.clone(), ..finish });
                if let Some(finish) = self.scheduler.finish_of(id, reason).or(crossed) {
                    count_finish(&self.metrics, &finish);
                    self.scheduler.abort(id);
                    if let Some(speculating) = &mut self.speculating {
                        speculating.forget(id);
                    }
                }
            }
            Command::ResetPrefixCache(answer) => {
                // Nobody waits for the answer any more if this fails.
                let _ = answer.send(self.scheduler.reset_prefix_cache());
            }
            Command::Control(name, argument, answer) => {
                self.shared.begin(Doing::Control(name.clone()));
                let answered = self.worker.control(&name, &argument);
                self.shared.end();
                let _ = answer.send(answered);
            }
            Command::Shutdown => self.shared.stopping.store(true, Ordering::Release),
        }
    }

    fn add(&mut self, id: RequestId, request: Arc<Request>) {
        // Ended between submission and here: nobody would read its output.
        if self.shared.registry().contains_key(&id) {
            let eos = &self.worker.info().eos_token_ids;
            let seed = sibling_seed(self.seed, id.0 as u32);
            self.scheduler.add(id, request, eos, seed, self.shared.clock.now());
        }
    }

    /// Appends to every mailbox of the step, then wakes their readers: one sampling point for the step's metrics.
    fn publish(&mut self) {
        let mut iteration_tokens = 0;
        {
            let mut registry = self.shared.registry();
            for event in &self.events {
                // The front end gave the request up; its command is on the way.
                let Some(mailbox) = registry.get(&event.request) else {
                    if let Some(finish) = &event.finish {
                        self.crossed.insert(event.request, finish.clone());
                    }
                    continue;
                };
                if let Some(Finish { reason: FinishReason::Error(error), .. }) = &event.finish {
                    tracing::warn!(request = event.request.0, %error, "a request failed; the others go on");
                }
                let speculation = self.speculating.as_ref().and_then(|all| all.usage(event.request));
                self.waiting.extend(mailbox.append(|delta| {
                    extend(delta, event, &self.output);
                    delta.speculation = speculation.or_else(|| delta.speculation.take());
                }));
                if let Some(finish) = &event.finish {
                    registry.remove(&event.request);
                    if finish.is_open {
                        self.crossed.insert(event.request, finish.clone());
                    }
                }
                iteration_tokens += observe(&self.metrics, event);
            }
        }
        self.metrics.step(iteration_tokens);
        self.waiting.drain(..).for_each(Waker::wake);
    }

    fn report_load(&mut self) {
        let (waiting, deferred) = (self.scheduler.num_waiting() as u64, self.pause.held() as u64);
        let running = self.scheduler.num_running() as u64;
        let pool = self.scheduler.pool();
        self.shared.running.store(running, Ordering::Relaxed);
        self.shared.waiting.store(waiting + deferred, Ordering::Relaxed);
        self.shared.used_blocks.store(pool.used() as u64, Ordering::Relaxed);
        self.metrics.queues(running, waiting, deferred, pool.used() as f64 / pool.total().max(1) as f64);
        for seen in self.scheduler.residency() {
            match seen {
                Residency::Evicted { lifetime, idle } => self.metrics.block_evicted(lifetime, idle),
                Residency::Reused { gap } => self.metrics.block_reused(gap),
            }
        }
        let now = *self.scheduler.counters();
        let before = std::mem::replace(&mut self.counted, now);
        self.metrics
            .prefix_cache(now.prefix_queries - before.prefix_queries, now.prefix_hits - before.prefix_hits);
        self.metrics.preempted(now.preemptions - before.preemptions);
    }

    fn scheduler_summary(&self) -> String {
        let (running, waiting) = (self.scheduler.num_running(), self.scheduler.num_waiting());
        let last = self.flight.back().or(self.spare.last());
        let (step, rows, tokens) =
            last.map_or((0, 0, 0), |plan| (plan.step.0, plan.rows.len(), plan.num_tokens()));
        let free = self.scheduler.pool().free();
        format!(
            "step {step}: {rows} rows, {tokens} tokens; {running} running, {waiting} waiting, {free} free blocks"
        )
    }
}

/// What is in flight, for whoever waits for it.
fn shape(plan: &StepPlan) -> Doing {
    Doing::Step(plan.step.0, plan.rows.len(), plan.num_tokens())
}

/// Who holds how much, as a phrase; nothing of a worker that does not say.
fn shares(memory: &serde_json::Value) -> String {
    let owners = memory["owners"].as_array().into_iter().flatten();
    let share = |owner: &serde_json::Value| {
        let bytes = owner["measured"].as_u64().or_else(|| owner["predicted"].as_u64())?;
        Some(format!("{} {} MiB", owner["owner"].as_str()?, bytes >> 20))
    };
    let shares: Vec<String> = owners.filter_map(share).collect();
    if shares.is_empty() { String::new() } else { format!(" (the memory holds {})", shares.join(", ")) }
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

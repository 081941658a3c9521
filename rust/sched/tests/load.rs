//! The guard under loads as servers see them: short answers, requests that come and go, texts of which some are easy to
//! draft and some are not. The real scheduler and speculator on a virtual clock, against no drafts and every constant length.

mod machines;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use frizzen_core::{Request, RequestId, SamplingParams, Speculation, TokenId};
use frizzen_sched::draft::{Drafter, Evidence, SuffixConfig};
use frizzen_sched::speculation::{DrafterConfig, Experts, ModelDrafter, SpeculationConfig, Speculator};
use frizzen_sched::{AdmissionLimits, Policy, Scheduler, SchedulerConfig, StepOutput, StepPlan};
use machines::{InWorker, Machine, Random};
use rustc_hash::FxHashMap;

const PROMPT: u32 = 24;
const MAX_DRAFTS: u32 = 8;
const ROWS: u32 = 16;
/// What a token of a prompt takes, in milliseconds.
const PREFILL: f64 = 0.02;

/// How many requests are open, as those before them end.
#[derive(Clone, Copy, Debug)]
enum Arrivals {
    /// Always as many.
    Steady(usize),
    /// So many at once, and the next ones when three quarters of them have ended.
    Bursts(usize),
    /// From one to so many and back.
    Ramp(usize),
}

impl Arrivals {
    /// How many requests may be open when `ended` of `total` have ended and `open` are open.
    fn wanted(self, ended: usize, total: usize, open: usize) -> usize {
        match self {
            Self::Steady(rows) => rows,
            Self::Bursts(rows) => {
                if open <= rows / 4 {
                    rows
                } else {
                    0
                }
            }
            Self::Ramp(most) => {
                let half = total as f64 / 2.0;
                let height = 1.0 - (ended as f64 - half).abs() / half;
                1 + (height * (most - 1) as f64).round() as usize
            }
        }
    }
}

/// How the text of a request is drafted: the chance of each draft, given those before it.
#[derive(Clone, Copy, Debug)]
struct Texts {
    seed: u64,
    /// Chances of even and odd requests.
    chances: [f64; 2],
}

fn uniform(seed: u64, request: u64, position: u64) -> f64 {
    let mut random = Random(
        seed ^ request.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ position.wrapping_mul(0xd134_2543_de82_ef95),
    );
    random.next();
    random.next()
}

impl Texts {
    fn token(request: u64, position: u64) -> TokenId {
        1 + ((request * 31 + position * 7) % 1000) as TokenId
    }

    fn draft(self, request: u64, position: u64) -> TokenId {
        let right = uniform(self.seed, request, position) < self.chances[(request % 2) as usize];
        if right { Self::token(request, position) } else { 0 }
    }
}

/// A drafter on the host that knows the text but for its mistakes; the length of its matches says nothing about them.
#[derive(Debug)]
struct Knowing {
    texts: Texts,
    lengths: FxHashMap<RequestId, u64>,
}

impl Drafter for Knowing {
    fn name(&self) -> &'static str {
        "knowing"
    }

    fn start(&mut self, request: RequestId, prompt: &[TokenId], _shared: bool) {
        self.lengths.insert(request, prompt.len() as u64);
    }

    fn observe(&mut self, request: RequestId, tokens: &[TokenId]) {
        if let Some(length) = self.lengths.get_mut(&request) {
            *length += tokens.len() as u64;
        }
    }

    fn propose(&mut self, request: RequestId, k: usize, drafts: &mut Vec<TokenId>) -> Evidence {
        drafts.clear();
        let length = self.lengths[&request];
        drafts.extend((length..length + k as u64).map(|position| self.texts.draft(request.0, position)));
        Evidence::Match(8)
    }

    fn finish(&mut self, request: RequestId) {
        self.lengths.remove(&request);
    }
}

#[derive(Clone, Copy, Debug)]
struct Load {
    arrivals: Arrivals,
    answer: u32,
    requests: usize,
    chances: [f64; 2],
    machine: Machine,
    worker: Option<InWorker>,
    /// What the host does between two steps, in milliseconds; if anything, steps are planned ahead where they can be.
    host: f64,
    seed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Gain {
    all: f64,
    settled: f64,
}

/// A step that runs.
struct Step {
    plan: StepPlan,
    output: StepOutput,
    planned: f64,
    end: f64,
}

struct Server {
    load: Load,
    flight: VecDeque<Step>,
    /// When the device has done all its steps, and when the last step was collected.
    free: f64,
    last_end: f64,
    texts: Texts,
    scheduler: Scheduler,
    speculator: Speculator,
    noise: Random,
    now: f64,
    /// What the steps would have taken that bring the same tokens to the same rows without drafts.
    plain: f64,
}

impl Server {
    fn new(load: Load, speculation: Speculation) -> Self {
        let config = SchedulerConfig {
            max_num_seqs: ROWS,
            max_num_batched_tokens: 512,
            max_model_len: 512,
            block_size: 16,
            num_blocks: 1 + ROWS * 32,
            prefix_caching: false,
            whole_prompts: false,
            long_prefill_threshold: 0,
            policy: Policy::Fcfs,
            hash_seed: 1,
            admissions: AdmissionLimits::for_engine(ROWS, 512, 512, 16, 1001),
        };
        let texts = Texts { seed: load.seed, chances: load.chances };
        let drafter = match load.worker {
            Some(_) => DrafterConfig::Worker(ModelDrafter::Eagle3),
            None => DrafterConfig::Suffix(SuffixConfig::default()),
        };
        let config_of = SpeculationConfig { drafter, default: speculation, ..SpeculationConfig::default() };
        let experts = Some(Experts { num: 128, per_token: 8, layers: 48 });
        let speculator = if load.worker.is_some() {
            Speculator::new(config_of, MAX_DRAFTS, experts).expect("valid")
        } else {
            let knowing = Knowing { texts, lengths: FxHashMap::default() };
            Speculator::with_drafter(config_of, Box::new(knowing), MAX_DRAFTS, experts)
        };
        Self {
            load,
            flight: VecDeque::new(),
            free: 0.0,
            last_end: 0.0,
            texts,
            scheduler: Scheduler::new(config),
            speculator,
            noise: Random(load.seed),
            now: 0.0,
            plain: 0.0,
        }
    }

    /// Serves the load. How many times as fast as without drafts, for each step against what as many tokens of as many
    /// rows take: of all steps, and of those after a third of the requests.
    fn run(&mut self) -> Gain {
        let (mut added, mut ended) = (0, 0);
        let mut settled = None;
        while ended < self.load.requests {
            if ended >= self.load.requests / 3 {
                settled.get_or_insert((self.plain, self.now));
            }
            let open = added - ended;
            let wanted = self.load.arrivals.wanted(ended, self.load.requests, open);
            for _ in open..wanted {
                if added < self.load.requests {
                    self.add(added as u64);
                    added += 1;
                }
            }
            ended += self.turn();
        }
        let (plain, now) = settled.unwrap_or_default();
        Gain { all: self.plain / self.now, settled: (self.plain - plain) / (self.now - now) }
    }

    /// One round of the engine's loop; how many requests ended.
    fn turn(&mut self) -> usize {
        let mut ended = 0;
        if self.flight.iter().any(|step| step.plan.propose > 0) || self.speculator.is_engaged() {
            while !self.flight.is_empty() {
                ended += self.collect();
            }
        }
        let mut plan = StepPlan::default();
        let planned = self.scheduler.plan(&mut plan, Duration::from_secs_f64(self.now / 1e3));
        if planned {
            plan.propose = self.speculator.wanted(&plan);
            self.speculator.follow(&plan);
            let mut output = StepOutput::default();
            self.compute(&plan, &mut output);
            // Planning takes the host a while; the device waits for it unless it is busy.
            let start = (self.now + self.load.host).max(self.free);
            self.free = start + self.ms(&plan);
            self.flight.push_back(Step { plan, output, planned: self.now, end: self.free });
        }
        let depth = usize::from(planned && self.load.host > 0.0);
        while self.flight.len() > depth {
            ended += self.collect();
        }
        ended
    }

    fn collect(&mut self) -> usize {
        let Some(Step { plan, output, planned, end }) = self.flight.pop_front() else { return 0 };
        let began = self.last_end;
        self.now = self.now.max(end);
        self.last_end = self.now;
        self.plain += self.plain_ms(&plan, &output);
        let mut events = Vec::new();
        self.scheduler.commit(&plan, &output, Duration::from_secs_f64(self.now / 1e3), &mut events);
        let elapsed = Duration::from_secs_f64((self.now - began) / 1e3);
        self.speculator.learn(&plan, &output, &events, elapsed, planned < began);
        self.speculator.receive(&plan, &output);
        self.speculator.propose(&mut self.scheduler, &events);
        let ended = events.iter().filter(|event| event.finish.is_some());
        ended.map(|event| self.speculator.forget(event.request)).count()
    }

    fn plain_ms(&self, plan: &StepPlan, output: &StepOutput) -> f64 {
        let decoding = || plan.rows.iter().zip(&output.num_sampled).filter(|(row, _)| !row.prefills);
        let (rows, tokens) = (decoding().count(), decoding().map(|(_, sampled)| sampled).sum::<u32>());
        let prefill = plan.prefill_tokens() as f64 * PREFILL;
        if rows == 0 {
            return prefill + self.load.machine.ms(1.0);
        }
        prefill + self.load.machine.ms(rows as f64) * f64::from(tokens) / rows as f64
    }

    fn add(&mut self, id: u64) {
        let prompt: Vec<TokenId> = (0..u64::from(PROMPT)).map(|at| Texts::token(id, at)).collect();
        let params = SamplingParams {
            temperature: 0.0,
            // Answers of one length would end together without drafts and not with them.
            max_tokens: Some(
                (f64::from(self.load.answer) * (0.75 + 0.5 * uniform(self.load.seed, id, 0))) as u32,
            ),
            speculation: Some(self.speculator.status().default),
            ..SamplingParams::default()
        };
        let request = Request {
            prompt: prompt.into(),
            params,
            priority: 0,
            constraint: None,
            pooling: None,
            cache_salt: None,
            external_id: "".into(),
        };
        let now = Duration::from_secs_f64(self.now / 1e3);
        self.scheduler.add(RequestId(id), Arc::new(request), &[], 0, now);
    }

    fn ms(&mut self, plan: &StepPlan) -> f64 {
        let prefill = plan.prefill_tokens();
        let tokens = (plan.num_tokens() - prefill).max(1);
        let drafting = self.load.worker.map_or(0.0, |worker| worker.ms(plan.propose as usize));
        let ms = self.load.machine.ms(tokens as f64) + PREFILL * prefill as f64 + drafting;
        ms * (0.95 + 0.1 * self.noise.next())
    }

    fn compute(&self, plan: &StepPlan, output: &mut StepOutput) {
        output.clear();
        let mut first = 0;
        for row in &plan.rows {
            let before = output.tokens.len();
            // Position of the first token that the row samples.
            let start = u64::from(row.start + row.num_tokens - row.num_drafts);
            let end = first + row.num_tokens as usize;
            let drafts = &plan.input_ids[end - row.num_drafts as usize..end];
            if row.samples {
                for at in 0..=drafts.len() {
                    let token = Texts::token(row.request.0, start + at as u64);
                    output.tokens.push(token);
                    if drafts.get(at).is_none_or(|draft| *draft != token as i32) {
                        break;
                    }
                }
            }
            first = end;
            let sampled = output.tokens.len() - before;
            output.num_sampled.push(sampled as u32);
            let count = if row.samples && self.load.worker.is_some() { plan.propose } else { 0 };
            let next = start + sampled as u64;
            output.proposals.counts.push(count);
            for at in 0..u64::from(count) {
                output.proposals.tokens.push(self.texts.draft(row.request.0, next + at));
                output.proposals.confidences.push(f32::NAN);
            }
        }
    }
}

fn gain(load: Load, speculation: Speculation) -> Gain {
    Server::new(load, speculation).run()
}

/// No constant of the guard was chosen by what it does with these, but one: what drafts cost by ending planning ahead was
/// looked into because the third test failed with them.
const SEEDS: [u64; 24] = [
    3, 14, 159, 2653, 58979, 32, 384, 6264, 33832, 795, 288, 41971, 693, 99375, 1058, 20974, 9445, 92307,
    81640, 6286, 20899, 86280, 34825, 34211,
];
const MACHINES: [Machine; 3] = [Machine::Dense { knee: 64.0 }, Machine::Moe, Machine::Linear];
const WORKERS: [Option<InWorker>; 2] = [None, Some(InWorker { base: 0.3, per_draft: 0.2 })];
/// Tokens of an answer, and requests.
const ANSWERS: [(u32, usize); 3] = [(16, 300), (64, 120), (256, 48)];

/// Every load of these arrivals and chances, each with a seed of its own.
fn loads(arrivals: &[Arrivals], chances: &[[f64; 2]], seeds: &[u64]) -> Vec<Load> {
    let mut loads = Vec::new();
    for (worker, machine) in WORKERS.into_iter().flat_map(|worker| MACHINES.map(|machine| (worker, machine)))
    {
        for (arrivals, (answer, requests)) in arrivals.iter().flat_map(|a| ANSWERS.map(|answer| (*a, answer)))
        {
            for chances in chances.iter().copied() {
                let seed = seeds[loads.len() % seeds.len()];
                loads.push(Load { arrivals, answer, requests, chances, machine, worker, host: 0.0, seed });
            }
        }
    }
    loads
}

#[test]
fn no_load_is_served_slower_than_without_drafts_from_the_first_request_on() {
    let arrivals = [Arrivals::Steady(1), Arrivals::Steady(8), Arrivals::Bursts(12), Arrivals::Ramp(16)];
    for load in loads(&arrivals, &[[0.9, 0.9], [0.9, 0.1], [0.6, 0.6], [0.3, 0.3], [0.1, 0.1]], &SEEDS) {
        let gain = gain(load, Speculation::Auto);
        assert!(gain.all >= 0.98, "{load:?}: {:.3} of off", gain.all);
    }
}

#[test]
fn a_steady_load_of_short_answers_is_served_about_as_well_as_with_the_best_constant_length() {
    for load in
        loads(&[Arrivals::Steady(1), Arrivals::Steady(8)], &[[0.9, 0.9], [0.9, 0.1], [0.5, 0.5]], &SEEDS)
    {
        let auto = gain(load, Speculation::Auto).settled;
        let constant = |k| gain(load, Speculation::MaxTokens(k)).settled;
        let best = [1, 2, 4, 8].map(constant).into_iter().fold(1.0, f64::max);
        assert!(auto >= 0.95 * best, "{load:?}: {auto:.3} times off, the best constant length {best:.3}");
    }
}

#[test]
fn an_engine_that_plans_ahead_is_never_slower_for_the_waiting_that_drafts_bring() {
    let arrivals = [Arrivals::Steady(8), Arrivals::Ramp(16)];
    for mut load in loads(&arrivals, &[[0.9, 0.9], [0.5, 0.1], [0.05, 0.05]], &SEEDS) {
        load.host = 0.08 * load.machine.ms(4.0);
        let off = gain(load, Speculation::Off).all;
        let auto = gain(load, Speculation::Auto).all;
        assert!(auto >= 0.98 * off, "{load:?}: {:.3} of off", auto / off);
    }
}

//! Speculation changes when tokens come, never which: every drafter, length and loop on the mock.

use std::sync::Arc;
use std::time::Duration;

use frizzen_core::{
    Error, ManualClock, OutputDelta, Request, SamplingParams, Speculation, SpeculationReason, SystemClock,
    TokenId,
};
use frizzen_engine::mock::{Content, Fault, MockWorker, TimingLaw, mock_drafter, mock_info};
use frizzen_engine::{Engine, EngineHandle, EngineOptions, OutputStream, Turn, WorkerInfo, seat};
use frizzen_metrics::{Metrics, MetricsOptions, TextFormat};
use frizzen_sched::draft::{NgramConfig, SuffixConfig};
use frizzen_sched::speculation::{DrafterConfig, ModelDrafter, SpeculationConfig};

const MAX_DRAFTS: u32 = 8;

fn request(prompt: &[TokenId], max_tokens: u32) -> Request {
    Request {
        prompt: prompt.into(),
        params: SamplingParams {
            temperature: 0.0,
            max_tokens: Some(max_tokens),
            ..SamplingParams::default()
        },
        priority: 0,
        cache_salt: None,
        constraint: None,
        pooling: None,
        external_id: "test".into(),
    }
}

fn options(drafter: DrafterConfig, default: Speculation) -> EngineOptions {
    EngineOptions {
        speculation: Some(SpeculationConfig { drafter, default, ..SpeculationConfig::default() }),
        ..EngineOptions::default()
    }
}

fn ngram() -> DrafterConfig {
    DrafterConfig::Ngram(NgramConfig { min: 1, max: 3 })
}

fn suffix() -> DrafterConfig {
    DrafterConfig::Suffix(SuffixConfig::default())
}

struct Rig {
    engine: Engine<MockWorker>,
    handle: EngineHandle,
    metrics: Metrics,
}

fn mtp() -> DrafterConfig {
    DrafterConfig::Worker(ModelDrafter::Mtp)
}

fn info() -> WorkerInfo {
    WorkerInfo { max_drafts: MAX_DRAFTS, drafter: Some(mock_drafter("mtp", MAX_DRAFTS)), ..mock_info() }
}

fn rig(worker: MockWorker, options: EngineOptions, clock: Option<&ManualClock>) -> Rig {
    let (handle, seat) = match clock {
        Some(clock) => seat(Arc::new(clock.clone()), 10_000),
        None => seat(Arc::new(SystemClock::new()), 10_000),
    };
    let metrics = Metrics::new(&MetricsOptions { model_name: "m".to_owned(), vllm_names: true });
    let engine = Engine::new(seat, worker, options, metrics.engine(0)).expect("a consistent set-up");
    Rig { engine, handle, metrics }
}

impl Rig {
    fn run_to_idle(&mut self) -> usize {
        for turn in 0.. {
            assert!(turn < 100_000, "the loop does not come to rest");
            if self.engine.step().expect("no fault was planned") == Turn::Idle {
                self.engine.scheduler().check();
                return turn;
            }
        }
        0
    }

    fn metric(&self, name: &str) -> f64 {
        let text = self.metrics.encode(TextFormat::Prometheus);
        let line = text.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("no metric {name} in\n{text}"));
        line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
    }
}

fn all(mut stream: OutputStream) -> OutputDelta {
    let mut all = OutputDelta::default();
    while let Some(delta) = stream.try_next() {
        all.merge(delta);
    }
    all
}

/// Texts of a busy hour: random and greedy rows, log-probabilities, a short pool that preempts, a few tokens only.
fn texts(options: EngineOptions) -> (Vec<OutputDelta>, Rig) {
    let tight = WorkerInfo {
        num_blocks: 20,
        max_model_len: 256,
        max_num_seqs: 6,
        max_num_batched_tokens: 48,
        ..info()
    };
    let letters: Arc<[TokenId]> = [5, 6].into();
    let worker = MockWorker::new(tight).saying(Content::Alphabet(letters));
    let mut rig = rig(worker, options, None);
    let streams: Vec<_> = (0..24u32)
        .map(|i| {
            let prompt: Vec<TokenId> = (0..=i * 7 % 60).map(|t| 5 + (t * t / 3 + i) % 2).collect();
            let mut new = request(&prompt, 1 + i * 5 % 50);
            if i % 4 == 0 {
                (new.params.temperature, new.params.seed) = (1.0, Some(u64::from(i)));
            }
            new.params.logprobs = (i % 5 == 0).then_some(2);
            new.params.speculation = match i % 6 {
                4 if options.speculation.is_some() => Some(Speculation::MaxTokens(2)),
                5 => Some(Speculation::Off),
                _ => None,
            };
            rig.handle.submit(new).expect("the mock takes it")
        })
        .collect();
    rig.run_to_idle();
    (streams.into_iter().map(all).collect(), rig)
}

#[test]
fn every_drafter_length_and_loop_gives_the_text_of_no_speculation_vllm_41758() {
    let (plain, _) = texts(EngineOptions::default());
    for drafter in [ngram(), suffix(), mtp()] {
        for default in [1, 2, 3, 8].map(Speculation::MaxTokens).into_iter().chain([Speculation::Auto]) {
            for overlap in [false, true] {
                let options = EngineOptions { overlap: Some(overlap), ..options(drafter, default) };
                let (drafted, rig) = texts(options);
                for (at, (plain, drafted)) in plain.iter().zip(&drafted).enumerate() {
                    let about = format!("request {at}, {options:?}");
                    assert_eq!(plain.tokens, drafted.tokens, "{about}");
                    assert_eq!(
                        (&plain.logprobs, &plain.finish),
                        (&drafted.logprobs, &drafted.finish),
                        "{about}"
                    );
                }
                if default != Speculation::Auto {
                    assert!(rig.metric("frizzen:spec_decode_num_accepted_tokens_total") > 0.0);
                    let drafts = rig.metric("frizzen:spec_decode_num_draft_tokens_total");
                    assert!(drafts > rig.metric("vllm:spec_decode_num_accepted_tokens_total"));
                }
            }
        }
    }
}

#[test]
fn an_echo_takes_a_step_per_run_of_drafts_and_the_usage_says_so() {
    for overlap in [false, true] {
        let worker = MockWorker::new(info()).saying(Content::Echo);
        let options = EngineOptions { overlap: Some(overlap), ..options(ngram(), Speculation::Off) };
        let mut rig = rig(worker, options, None);
        let mut new = request(&(1..=40).collect::<Vec<_>>(), 91);
        new.params.speculation = Some(Speculation::MaxTokens(8));
        let stream = rig.handle.submit(new).expect("fits");
        let turns = rig.run_to_idle();
        let delta = all(stream);
        assert_eq!(delta.tokens, (1..=40).cycle().take(91).collect::<Vec<_>>());
        // The prefill gives one token, and each of ten steps nine; overlapped, a plain step is in flight meanwhile.
        assert!(turns <= 14, "{turns}");
        let (drafts, full) = if overlap { (79, 9) } else { (80, 10) };
        let usage = delta.speculation.expect("the request spoke of speculation");
        assert_eq!((usage.drafts, usage.accepted), (drafts, drafts));
        assert_eq!(usage.lengths[8], full);
        assert_eq!(usage.reasons[SpeculationReason::Fixed as usize], 10, "{usage:?}");
        assert_eq!(rig.metric("frizzen:spec_decode_num_drafts_total"), 10.0);
        assert_eq!(rig.metric("frizzen:spec_decode_num_draft_tokens_total"), f64::from(drafts));
        assert_eq!(rig.metric("frizzen:generation_tokens_total"), 91.0, "shown tokens are counted apart");
        let last = "frizzen:spec_decode_num_accepted_tokens_per_pos_total{model_name=\"m\",engine=\"0\",position=\"7\"}";
        assert_eq!(rig.metric(last), f64::from(full));
    }
}

#[test]
fn accepted_drafts_never_pass_max_tokens_or_the_context_lattice_245() {
    for max_tokens in 1..=12 {
        for limit in [1000, 45] {
            let worker = MockWorker::new(WorkerInfo { max_model_len: limit, ..info() }).saying(Content::Echo);
            let mut rig = rig(worker, options(ngram(), Speculation::MaxTokens(4)), None);
            let stream = rig.handle.submit(request(&(1..=40).collect::<Vec<_>>(), max_tokens)).expect("fits");
            rig.run_to_idle();
            let delta = all(stream);
            assert_eq!(delta.tokens.len() as u32, max_tokens.min(limit - 40));
            assert_eq!(delta.finish.map(|finish| finish.label()), Some("length"));
        }
    }
}

#[test]
fn nothing_is_drafted_or_reported_for_requests_that_say_off() {
    let worker = MockWorker::new(info()).saying(Content::Echo);
    let mut rig = rig(worker, options(ngram(), Speculation::MaxTokens(4)), None);
    let mut new = request(&[1, 2, 3, 1, 2, 3], 30);
    new.params.speculation = Some(Speculation::Off);
    let stream = rig.handle.submit(new).expect("fits");
    rig.run_to_idle();
    assert_eq!(all(stream).speculation, None);
    assert_eq!(rig.metric("frizzen:spec_decode_num_draft_tokens_total"), 0.0);
}

#[test]
fn wishes_that_cannot_be_granted_are_refused_with_the_limit() {
    let with = rig(MockWorker::new(info()), options(ngram(), Speculation::Off), None);
    let without = rig(MockWorker::new(mock_info()), EngineOptions::default(), None);
    let refusal = |rig: &Rig, asked| {
        let mut new = request(&[1], 4);
        new.params.speculation = Some(asked);
        match rig.handle.submit(new) {
            Err(Error::Invalid { param: "speculation", message }) => message,
            other => panic!("{asked:?}: {other:?}"),
        }
    };
    assert!(refusal(&with, Speculation::MaxTokens(9)).contains("from 1 to 8, got 9"));
    assert!(refusal(&with, Speculation::MaxTokens(0)).contains("got 0"));
    assert!(refusal(&without, Speculation::Auto).contains("--drafter"));
    assert!(
        Engine::new(
            seat(Arc::new(SystemClock::new()), 1).1,
            MockWorker::new(mock_info()),
            options(ngram(), Speculation::Auto),
            with.metrics.engine(0)
        )
        .is_err_and(|error| error.to_string().contains("verifies no drafts"))
    );
}

/// Time on a virtual clock of 8 requests under a law, and what became of the first of them.
fn timed(law: TimingLaw, content: Content, default: Option<Speculation>) -> (Duration, OutputDelta, Rig) {
    let clock = ManualClock::new();
    let worker = MockWorker::new(info()).saying(content).taking(law).on(clock.clone());
    let options = default.map_or_else(EngineOptions::default, |default| options(suffix(), default));
    let mut rig = rig(worker, options, Some(&clock));
    let streams: Vec<_> = (0..8)
        .map(|i| {
            let mut new = request(&(1..=50).map(|t| (t * 7 + i) % 200 + 1).collect::<Vec<_>>(), 800);
            new.params.speculation = default;
            rig.handle.submit(new).expect("fits")
        })
        .collect();
    rig.run_to_idle();
    let ended = frizzen_core::Clock::now(&clock);
    let first = streams.into_iter().map(all).next().expect("there were eight");
    (ended, first, rig)
}

#[test]
fn auto_gains_where_drafts_are_cheap_and_never_loses_where_they_are_dear() {
    let law = |per_prefill_token| TimingLaw {
        base: 10_000_000,
        per_decode_row: 100_000,
        per_prefill_token,
        per_context_token: 0,
        drafting: 0,
        per_proposed_draft: 0,
    };
    let noise: Arc<[TokenId]> = (1..=4).collect();
    for (law, content, least_gain) in [
        (law(100_000), Content::Echo, 3.0),
        (law(20_000_000), Content::Echo, 0.98),
        (law(2_000_000), Content::Alphabet(Arc::clone(&noise)), 0.98),
        (law(100_000), Content::Alphabet(noise), 0.98),
    ] {
        let (off, plain, _) = timed(law, content.clone(), None);
        let (auto, governed, rig) = timed(law, content.clone(), Some(Speculation::Auto));
        assert_eq!(plain.tokens, governed.tokens);
        let gain = off.as_secs_f64() / auto.as_secs_f64();
        assert!(gain >= least_gain, "{content:?}: {gain:.3}");
        let usage = governed.speculation.expect("asked for");
        let status = rig.handle.speculation().expect("there is a drafter");
        assert_eq!(usage.lengths.iter().sum::<u32>(), usage.reasons.iter().sum::<u32>());
        assert!(least_gain < 1.0 || usage.saved > 1.0, "{usage:?}");
        // What the ledger says was saved is what the clock says, but for rows that end sooner than others.
        let clock = off.as_secs_f64() - auto.as_secs_f64();
        assert!(
            (status.totals.saved - clock).abs() < 0.05 * off.as_secs_f64(),
            "{} {clock}",
            status.totals.saved
        );
    }
}

#[test]
fn a_drafter_that_fails_is_given_up_with_a_reason_and_serving_goes_on() {
    let worker = MockWorker::new(info()).saying(Content::Echo).failing(Fault::Drafter(5));
    let mut rig = rig(worker, options(mtp(), Speculation::MaxTokens(3)), None);
    let mut new = request(&(1..=40).collect::<Vec<_>>(), 60);
    new.params.speculation = Some(Speculation::MaxTokens(3));
    let stream = rig.handle.submit(new).expect("fits");
    rig.run_to_idle();
    let delta = all(stream);
    assert_eq!(delta.tokens, (1..=40).cycle().take(60).collect::<Vec<_>>());
    let usage = delta.speculation.expect("asked for");
    assert!(usage.accepted > 0, "it drafted until it failed");
    assert!(usage.reasons[SpeculationReason::DrafterFailed as usize] > 30, "{usage:?}");
    let status = rig.handle.speculation().expect("there is a drafter");
    assert!(!status.on && status.reason == SpeculationReason::DrafterFailed);
    assert_eq!(status.failure.as_deref(), Some("the mock was told to fail its drafter"));
}

#[test]
fn a_worker_proposes_as_many_drafts_as_the_rows_of_the_step_may_use() {
    let worker = MockWorker::new(WorkerInfo { max_num_seqs: 2, ..info() }).saying(Content::Echo);
    let mut rig = rig(worker, options(mtp(), Speculation::Off), None);
    let mut new = request(&[1, 2, 3], 6);
    new.params.speculation = Some(Speculation::MaxTokens(3));
    let stream = rig.handle.submit(new).expect("fits");
    // Prefill and first proposal; then one step verifies three drafts and the last one what is left.
    let turns = rig.run_to_idle();
    assert_eq!(all(stream).tokens, [1, 2, 3, 1, 2, 3]);
    assert!((3..=6).contains(&turns), "{turns}");
}

#[test]
fn a_drafter_that_the_worker_does_not_carry_is_refused() {
    let bare = WorkerInfo { drafter: None, ..info() };
    let (_, seat) = seat(Arc::new(SystemClock::new()), 10);
    let metrics = Metrics::new(&MetricsOptions { model_name: "m".to_owned(), vllm_names: true });
    let engine =
        Engine::new(seat, MockWorker::new(bare), options(mtp(), Speculation::Off), metrics.engine(0));
    assert!(
        engine.expect_err("refused").to_string().contains("mtp was asked for, and the worker carries none")
    );
}

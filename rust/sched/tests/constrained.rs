//! Constraints under a whole scheduler: reasoning or not, a budget or not, whatever is drafted and however prompts are
//! cut, the text is that of no drafts, and it is what an obvious reading of the rules says.

use std::sync::Arc;
use std::time::Duration;

use frizzen_core::{
    Constraint, FinishReason, FreeText, Reasoning, ReasoningMarkers, Request, RequestId, SamplingParams,
    StopReason, TokenId, TokenMatcher,
};
use frizzen_sched::draft::{Drafter, Ngram, NgramConfig};
use frizzen_sched::sim::{ChainModel, OneOf};
use frizzen_sched::{AdmissionLimits, Policy, Scheduler, SchedulerConfig, StepOutput, StepPlan};
use proptest::prelude::*;

const VOCAB: u32 = 32;
const EOS: TokenId = 31;
const ID: RequestId = RequestId(1);
const MAX_TOKENS: usize = 60;

#[derive(Debug)]
struct Bound {
    /// Any text, if there are none.
    texts: Option<OneOf>,
    reasoning: Option<Reasoning>,
    banned: Vec<Vec<TokenId>>,
}

impl Constraint for Bound {
    fn matcher(&self) -> Box<dyn TokenMatcher> {
        self.texts.as_ref().map_or_else(|| Box::new(FreeText) as Box<dyn TokenMatcher>, OneOf::matcher)
    }

    fn reasoning(&self) -> Option<&Reasoning> {
        self.reasoning.as_ref()
    }
}

/// Who proposes drafts.
#[derive(Clone, Debug)]
enum Guess {
    None,
    /// Prompt lookup.
    Ngram(usize),
    /// The right tokens, each of them wrong where the pattern says so.
    Nearly(usize, Vec<bool>),
}

fn config(budget: u32) -> SchedulerConfig {
    SchedulerConfig {
        max_num_seqs: 2,
        max_num_batched_tokens: budget,
        max_model_len: 128,
        block_size: 4,
        num_blocks: 40,
        prefix_caching: true,
        long_prefill_threshold: 0,
        policy: Policy::Fcfs,
        hash_seed: 1,
        whole_prompts: false,
        admissions: AdmissionLimits::for_engine(2, 32, 128, 4, VOCAB),
    }
}

/// Runs a request to its end; `truth` is what a drafter that knows the future knows.
fn run(
    constraint: Arc<Bound>,
    prompt: &[TokenId],
    budget: u32,
    guess: &Guess,
    truth: &[TokenId],
) -> (Vec<TokenId>, FinishReason) {
    let (text, reason, _) = run_with(constraint, prompt, budget, guess, truth, None);
    (text, reason)
}

/// Also returns the number of steps. Requests with log-probabilities get no token without a step that sampled it.
fn run_with(
    constraint: Arc<Bound>,
    prompt: &[TokenId],
    budget: u32,
    guess: &Guess,
    truth: &[TokenId],
    logprobs: Option<u32>,
) -> (Vec<TokenId>, FinishReason, usize) {
    let config = config(budget);
    let mut scheduler = Scheduler::new(config);
    let mut model = ChainModel::new(config.num_blocks, config.block_size, config.max_num_seqs, VOCAB);
    let mut ngram = Ngram::new(NgramConfig { min: 1, max: 3 }).expect("valid lengths");
    ngram.start(ID, prompt, false);
    let params = SamplingParams {
        temperature: 0.0,
        max_tokens: Some(MAX_TOKENS as u32),
        logprobs,
        banned_sequences: constraint.banned.clone(),
        ..SamplingParams::default()
    };
    let is_bound = constraint.texts.is_some() || constraint.reasoning.is_some();
    let request = Request {
        prompt: prompt.into(),
        params,
        priority: 0,
        constraint: is_bound.then_some(constraint as Arc<dyn Constraint>),
        pooling: None,
        cache_salt: None,
        external_id: "".into(),
    };
    scheduler.add(ID, Arc::new(request), &[EOS], 0, Duration::ZERO);
    let mut text = Vec::new();
    let (mut plan, mut output, mut events) = (StepPlan::default(), StepOutput::default(), Vec::new());
    let mut steps = 0;
    while scheduler.plan(&mut plan, Duration::ZERO) {
        steps += 1;
        scheduler.fill_masks(&mut plan, VOCAB);
        model.run(&plan, &mut output, ChainModel::token_after);
        scheduler.commit(&plan, &output, Duration::ZERO, &mut events);
        scheduler.check();
        for event in &events {
            let tokens = &output.tokens[event.tokens.clone()];
            for tokens in [tokens, &event.forced] {
                text.extend_from_slice(tokens);
                ngram.observe(ID, tokens);
            }
            if let Some(finish) = &event.finish {
                assert_eq!(finish.generation_tokens as usize, text.len());
                return (text, finish.reason.clone(), steps);
            }
        }
        let mut drafts = Vec::new();
        match guess {
            Guess::None => {}
            Guess::Ngram(length) => {
                ngram.propose(ID, *length, &mut drafts);
            }
            Guess::Nearly(length, wrong) => {
                let next = truth.iter().zip(wrong.iter().cycle()).skip(text.len()).take(*length);
                drafts.extend(next.map(|(token, wrong)| if *wrong { (token + 1) % VOCAB } else { *token }));
            }
        }
        scheduler.set_drafts(ID, &drafts);
    }
    panic!("the request was lost after {text:?}");
}

/// What of `text` is reasoning and what is bound, by looking for the markers.
fn split<'a>(text: &'a [TokenId], reasoning: Option<&Reasoning>) -> (&'a [TokenId], Option<&'a [TokenId]>) {
    let Some(Reasoning { markers, open, budget }) = reasoning else { return (&[], Some(text)) };
    let begin = markers.begin.as_deref().unwrap_or_default();
    let skip = match (open, text.starts_with(begin) && !begin.is_empty() && *budget != Some(0)) {
        (true, _) => 0,
        (false, true) => begin.len(),
        // The marker has begun, and the text was cut in it.
        (false, false) if !text.is_empty() && begin.starts_with(text) => return (&[], None),
        (false, false) => return (&[], Some(text)),
    };
    let text = &text[skip..];
    let end = &*markers.close;
    match (0..text.len()).find(|at| text[*at..].starts_with(end)) {
        Some(at) => (&text[..at], Some(&text[at + end.len()..])),
        None => (text, None),
    }
}

fn guesses() -> impl Strategy<Value = Guess> {
    prop_oneof![
        (1..7_usize).prop_map(Guess::Ngram),
        (1..9_usize, prop::collection::vec(prop::bool::weighted(0.2), 1..9))
            .prop_map(|(length, wrong)| Guess::Nearly(length, wrong)),
    ]
}

fn reasonings() -> impl Strategy<Value = Option<Reasoning>> {
    let markers = (prop::option::of(1..3_usize), 1..3_usize).prop_map(|(begin, end)| {
        let begin = begin.map(|len| &[22, 23][..len]);
        Arc::new(ReasoningMarkers::of_tokens(begin, &[20, 21][..end]))
    });
    let reasoning = (markers, any::<bool>(), prop::option::of(0..20_u32))
        .prop_map(|(markers, open, budget)| Reasoning { markers, open, budget });
    prop::option::of(reasoning)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_drafts_at_any_length_give_the_text_of_none_vllm_44993_vllm_55313(
        texts in prop::collection::vec(prop::collection::vec(0..20_u32, 1..12), 1..4),
        reasoning in reasonings(),
        prompt in prop::collection::vec(0..30_u32, 1..20),
        guess in guesses(),
        budget in 4..32_u32,
    ) {
        let bound = Arc::new(Bound {
            texts: Some(OneOf(texts.clone().into())),
            reasoning: reasoning.clone(),
            banned: Vec::new(),
        });
        let (plain, reason) = run(Arc::clone(&bound), &prompt, 32, &Guess::None, &[]);
        let (drafted, drafted_reason) = run(Arc::clone(&bound), &prompt, budget, &guess, &plain);
        let (sampled, sampled_reason, _) = run_with(bound, &prompt, 32, &Guess::None, &[], Some(0));
        prop_assert_eq!((&sampled, &sampled_reason), (&plain, &reason), "forced tokens change nothing");
        prop_assert_eq!(&drafted, &plain);
        prop_assert_eq!(&drafted_reason, &reason);
        let (thought, answer) = split(&plain, reasoning.as_ref());
        if let Some(limit) = reasoning.as_ref().and_then(|reasoning| reasoning.budget) {
            prop_assert!(thought.len() <= limit as usize + 1, "{thought:?} of {limit}");
        }
        prop_assert!(!thought.contains(&EOS), "it cannot end in the middle of its reasoning");
        match reason {
            FinishReason::Stop(StopReason::Complete) => {
                prop_assert!(texts.contains(&answer.expect("it is complete").to_vec()));
            }
            FinishReason::Stop(StopReason::Eos(EOS)) => {
                let (end, answer) = answer.expect("there is an answer").split_last().expect("and an end");
                prop_assert_eq!(*end, EOS);
                prop_assert!(texts.contains(&answer.to_vec()));
            }
            FinishReason::Length => {
                prop_assert_eq!(plain.len(), MAX_TOKENS);
                let answer = answer.unwrap_or_default();
                prop_assert!(texts.iter().any(|text| text.starts_with(answer)));
            }
            other => prop_assert!(false, "{other:?}"),
        }
    }
}

/// True if a sequence that may not come is in the text.
fn holds_any(text: &[TokenId], banned: &[Vec<TokenId>]) -> bool {
    banned.iter().any(|sequence| text.windows(sequence.len()).any(|window| window == sequence))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Parts of the very text that would come are banned, beside a grammar, reasoning and a budget or without any.
    #[test]
    fn banned_sequences_never_come_and_drafts_change_nothing(
        texts in prop::option::of(prop::collection::vec(prop::collection::vec(0..20_u32, 1..12), 1..4)),
        reasoning in reasonings(),
        prompt in prop::collection::vec(0..30_u32, 1..20),
        parts in prop::collection::vec((0..MAX_TOKENS, 1..4_usize), 1..6),
        guess in guesses(),
        budget in 4..32_u32,
    ) {
        let bound = |banned| {
            let texts = texts.clone().map(|texts| OneOf(texts.into()));
            Arc::new(Bound { texts, reasoning: reasoning.clone(), banned })
        };
        let (free, _) = run(bound(Vec::new()), &prompt, 32, &Guess::None, &[]);
        // Markers and the end of the request may be forced, and what is forced comes.
        let part = |(at, len): &(usize, usize)| free.get(*at..at + len).filter(|part| part.iter().all(|id| *id < 20));
        let banned: Vec<Vec<TokenId>> = parts.iter().filter_map(part).map(<[TokenId]>::to_vec).collect();
        let (plain, reason) = run(bound(banned.clone()), &prompt, 32, &Guess::None, &[]);
        prop_assert!(!holds_any(&plain, &banned), "{plain:?} holds one of {banned:?}");
        for truth in [&plain, &free] {
            let drafted = run(bound(banned.clone()), &prompt, budget, &guess, truth);
            prop_assert_eq!(&drafted, &(plain.clone(), reason.clone()));
        }
    }
}

/// What can be foreseen costs no step: here everything after the first token, and the marker that a budget forces.
#[test]
fn tokens_without_a_choice_need_no_step_of_their_own() {
    let texts = OneOf([vec![1, 2, 3, 4, 5, 6, 7, 8]].into());
    let steps = |reasoning: Option<Reasoning>, logprobs: Option<u32>| {
        let bound = Arc::new(Bound { texts: Some(texts.clone()), reasoning, banned: Vec::new() });
        let (text, reason, steps) = run_with(bound, &[9, 9], 32, &Guess::None, &[], logprobs);
        assert_eq!(reason, FinishReason::Stop(StopReason::Complete));
        assert!(text.ends_with(&[1, 2, 3, 4, 5, 6, 7, 8]));
        steps
    };
    assert_eq!(steps(None, Some(0)), 8);
    assert_eq!(steps(None, None), 1, "the first token has no choice either, so one step brings them all");
    let markers = Arc::new(ReasoningMarkers::of_tokens(None, &[20, 21]));
    let reasoning = Reasoning { markers, open: true, budget: Some(2) };
    assert_eq!(steps(Some(reasoning.clone()), Some(0)), 12);
    assert_eq!(steps(Some(reasoning), None), 3, "two thoughts, then the marker and all that follows");
}

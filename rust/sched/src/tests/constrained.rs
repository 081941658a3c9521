//! Masks and acceptance over a constraint to a list of texts.

use frizzen_core::{BannedSequences, FinishReason, ReasoningMarkers, StopReason, TokenId};

use super::Constrained;
use crate::plan::LAST_SAMPLED;
use crate::sim::OneOf;
use crate::window::ConstraintScope;

const WORDS: usize = 2;
/// Reasoning: anything but the end of the request.
const FREE: [u32; WORDS] = [!1, u32::MAX];
const ALL: [u32; WORDS] = [u32::MAX; WORDS];
const EOS: TokenId = 0;
// Tokens of free text, the marker that ends reasoning, and tokens of the texts.
const A: TokenId = 1;
const B: TokenId = 2;
const C: TokenId = 3;
const E: TokenId = 4;
const OPEN: TokenId = 10;
const QUOTE: TokenId = 11;
const LETTER: TokenId = 12;
const COLON: TokenId = 13;
const CLOSE: TokenId = 14;

/// `{"b":"b"}`, where the last quote and the bracket are one token.
const TEXT: [TokenId; 8] = [OPEN, QUOTE, LETTER, QUOTE, COLON, QUOTE, LETTER, CLOSE];

fn constrained(reasoning: bool) -> Constrained {
    let markers = ReasoningMarkers::of_tokens(None, &[E]);
    let scope =
        if reasoning { ConstraintScope::after_reasoning(markers, &[A]) } else { ConstraintScope::default() };
    Constrained::with_scope(&OneOf([TEXT.to_vec()].into()), scope)
}

fn rows(constrained: &mut Constrained, window: &[i32]) -> Vec<[u32; WORDS]> {
    let mut masks = vec![7; WORDS * (window.len() + 1)];
    constrained.fill(window, &[EOS], WORDS, &mut masks);
    masks.chunks(WORDS).map(|mask| mask.try_into().expect("chunks of this length")).collect()
}

fn pattern(rows: &[[u32; WORDS]]) -> String {
    rows.iter().map(|row| if *row == FREE || *row == ALL { 'U' } else { 'C' }).collect()
}

fn only(token: TokenId) -> [u32; WORDS] {
    let mut mask = [0; WORDS];
    mask[token as usize / 32] |= 1 << (token % 32);
    mask
}

/// Every row of the table of mask rows: constrained (C) or free (U).
#[test]
fn the_rows_of_every_window_of_the_table() {
    let ids = |tokens: &[TokenId]| tokens.iter().map(|token| *token as i32).collect::<Vec<_>>();
    let padded = |tokens: &[TokenId], len: usize| {
        let mut window = ids(tokens);
        window.resize(len, LAST_SAMPLED);
        window
    };
    for (window, expected) in [
        (ids(&[A, B, C]), "UUUU"),
        (ids(&[A, B, E]), "UUUC"),
        (ids(&[E, OPEN, QUOTE, LETTER]), "UCCCC"),
        (ids(&[A, E, OPEN, QUOTE]), "UUCCC"),
        (padded(&[A, E], 4), "UUCUU"),
        (padded(&[A, B], 4), "UUUUU"),
    ] {
        let mut reasoning = constrained(true);
        let first = rows(&mut reasoning, &window);
        assert_eq!(pattern(&first), expected, "reasoning, {window:?}");
        assert_eq!(rows(&mut reasoning, &window), first, "everything was taken back");
    }
    for (taken, window, expected) in [
        (4, ids(&[COLON, QUOTE, LETTER, CLOSE]), "CCCCC"),
        (8, padded(&[EOS], 3), "CUUU"),
        (0, padded(&[], 3), "CUUU"),
        (0, vec![], "C"),
    ] {
        let mut ended = constrained(false);
        let (_, _) = ended.accept(&TEXT[..taken], false);
        let first = rows(&mut ended, &window);
        assert_eq!(pattern(&first), expected, "ended, {window:?}");
        assert_eq!(rows(&mut ended, &window), first, "everything was taken back");
    }
}

#[test]
fn a_row_allows_what_follows_its_prefix_and_the_end_only_where_it_may_end() {
    let mut ended = constrained(false);
    let window: Vec<i32> = TEXT.iter().map(|token| *token as i32).collect();
    let masks = rows(&mut ended, &window);
    for (row, token) in TEXT.iter().enumerate() {
        assert_eq!(masks[row], only(*token));
    }
    assert_eq!(masks[TEXT.len()], only(EOS));
}

/// The marker that ends reasoning at every position of the window, and as the token after it.
#[test]
fn the_first_token_after_reasoning_is_bound_wherever_the_marker_falls_vllm_44993() {
    for at in 0..5 {
        let mut drafts = vec![A; at];
        drafts.extend([E, B, B, B]);
        drafts.truncate(5);
        let mut reasoning = constrained(true);
        let kept = reasoning.validate(&drafts, &[EOS]);
        assert_eq!(kept, (at + 1).min(5), "drafts after the marker are against the grammar");
        let window: Vec<i32> = drafts.iter().map(|token| *token as i32).collect();
        let masks = rows(&mut reasoning, &window);
        assert!(masks[..=at].iter().all(|row| *row == FREE));
        assert!(masks[at + 1..].iter().all(|row| *row == only(OPEN)), "refused drafts repeat the last row");
    }
}

#[test]
fn a_forbidden_draft_is_no_error_vllm_27969() {
    let mut ended = constrained(false);
    assert_eq!(ended.validate(&[OPEN, A, QUOTE], &[EOS]), 1);
    let masks = rows(&mut ended, &[OPEN as i32, A as i32, QUOTE as i32]);
    assert_eq!(masks, [only(OPEN), only(QUOTE), only(QUOTE), only(QUOTE)]);
    assert_eq!(ended.accept(&[OPEN, QUOTE], false), (2, None), "and the request goes on");
}

#[test]
fn a_forbidden_token_ends_the_request_with_an_error() {
    let mut ended = constrained(false);
    let (kept, reason) = ended.accept(&[OPEN, A], false);
    assert_eq!(kept, 1);
    assert!(matches!(reason, Some(FinishReason::Error(_))));
    let (kept, reason) = constrained(false).accept(&[OPEN, EOS], true);
    assert_eq!(kept, 1, "an end in the middle is no end");
    assert!(matches!(reason, Some(FinishReason::Error(_))));
}

#[test]
fn the_request_ends_where_its_text_does_vllm_29632() {
    let (kept, reason) = constrained(false).accept(&[&TEXT[..], &[A, B]].concat(), false);
    assert_eq!((kept, reason), (TEXT.len(), Some(FinishReason::Stop(StopReason::Complete))));
}

/// The row behind it allows stop tokens only, which other rules of the request may forbid.
#[test]
fn the_token_that_completes_the_text_is_no_draft() {
    assert_eq!(constrained(false).validate(&TEXT, &[EOS]), TEXT.len() - 1);
    let may_go_on = OneOf([vec![A], vec![A, B]].into());
    let mut may_go_on = Constrained::new(&may_go_on, BannedSequences::default());
    assert_eq!(may_go_on.validate(&[A, B], &[EOS]), 1);
    assert_eq!(may_go_on.validate(&[A, EOS], &[EOS]), 2);
}

/// Validate, pad, mask, accept: the mask that was foretold for a row is the one that the accepted tokens lead to.
#[test]
fn the_foretold_mask_is_the_next_one() {
    for split in 0..TEXT.len() {
        let mut drafted = constrained(true);
        let window = [&[A, E], &TEXT[..split]].concat();
        assert_eq!(drafted.validate(&window, &[EOS]), window.len());
        let mut padded: Vec<i32> = window.iter().map(|token| *token as i32).collect();
        padded.extend([LAST_SAMPLED; 2]);
        let foretold = rows(&mut drafted, &padded)[window.len()];
        assert_eq!(drafted.validate(&window, &[EOS]), window.len(), "filling changes nothing");
        let (kept, _) = drafted.accept(&window, false);
        assert_eq!(kept, window.len());
        assert_eq!(rows(&mut drafted, &[])[0], foretold);
    }
}

#[test]
fn a_dead_end_that_only_drafts_reach_ends_nothing() {
    let texts = OneOf([vec![A, B], vec![A, C, A]].into());
    let banned = BannedSequences::new([&[A, B][..], &[C, A]]);
    let dead_end = || Constrained::new(&texts, banned.clone());
    let mut drafted = dead_end();
    let masks = rows(&mut drafted, &[A as i32, C as i32]);
    assert_eq!(masks[..2], [only(A), only(C)]);
    assert_eq!(drafted.accept(&[A], false), (1, None), "the row of the dead end is not reached");
    let mut reached = dead_end();
    rows(&mut reached, &[A as i32, C as i32]);
    assert_eq!(reached.accept(&[], false), (0, None), "with overlap, a chunk of the prompt comes in between");
    let (kept, reason) = reached.accept(&[A, C, B], false);
    assert_eq!(kept, 2);
    let Some(FinishReason::Error(error)) = reason else { panic!("{reason:?}") };
    assert!(error.to_string().contains("bad_words"), "{error}");
}

#[test]
fn a_dead_end_of_a_step_that_did_not_happen_is_forgotten_vllm_31955() {
    let texts = OneOf([vec![A, B, B], vec![A, C, A]].into());
    let mut preempted = Constrained::new(&texts, BannedSequences::new([&[C, A][..]]));
    rows(&mut preempted, &[A as i32, C as i32]);
    rows(&mut preempted, &[A as i32, B as i32]);
    let done = Some(FinishReason::Stop(StopReason::Complete));
    assert_eq!(preempted.accept(&[A, B, B], false), (3, done));
}

#[test]
fn a_stop_that_is_also_content_is_masked_until_the_text_can_end() {
    let mut ended = constrained(false);
    let mut masks = vec![0; WORDS];
    ended.fill(&[], &[EOS, QUOTE], WORDS, &mut masks);
    assert_eq!(masks, only(OPEN));
    ended.accept(&[OPEN], false);
    ended.fill(&[], &[EOS, QUOTE], WORDS, &mut masks);
    assert_eq!(masks, ALL, "nothing is left to choose, so the choice does not count");
    assert!(matches!(ended.accept(&[A], false), (0, Some(FinishReason::Error(_)))));
}

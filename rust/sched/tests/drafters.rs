//! What the drafters propose is what a plain search of the whole text finds, within bounds of time and memory.

use frizzen_core::{RequestId, TokenId};
use frizzen_sched::draft::{Drafter, Evidence, Ngram, NgramConfig, Suffix, SuffixConfig};
use proptest::prelude::*;

const ID: RequestId = RequestId(1);

fn ngram(min: usize, max: usize) -> Ngram {
    Ngram::new(NgramConfig { min, max }).expect("valid lengths")
}

fn suffix(config: SuffixConfig) -> Suffix {
    Suffix::new(config).expect("a valid configuration")
}

fn proposal(drafter: &mut dyn Drafter, request: RequestId, k: usize) -> (Vec<TokenId>, u32) {
    let mut drafts = vec![99];
    let Evidence::Match(length) = drafter.propose(request, k, &mut drafts) else { panic!("a match drafter") };
    (drafts, length)
}

/// Prompt lookup by definition: of the lengths above 5 only 8, 16 and the greatest.
fn lookup(text: &[TokenId], min: usize, max: usize, k: usize) -> (Vec<TokenId>, u32) {
    let lengths = (min..=max.min(text.len())).rev();
    for length in lengths.filter(|length| *length <= 5 || [8, 16, max].contains(length)) {
        let suffix = &text[text.len() - length..];
        let first = (0..text.len() - length).find(|start| &text[*start..start + length] == suffix);
        if let Some(start) = first {
            return (text[start + length..].iter().copied().take(k).collect(), length as u32);
        }
    }
    (Vec::new(), 0)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn ngram_is_prompt_lookup_however_the_text_arrives(
        text in prop::collection::vec(0..3u32, 1..160),
        cut in 0..160usize,
        (min, max) in (1..4usize, 0..14usize).prop_map(|(min, more)| (min, min + more)),
        k in 0..6usize,
    ) {
        let cut = cut.min(text.len());
        let mut drafter = ngram(min, max);
        drafter.start(ID, &text[..cut], true);
        for token in &text[cut..] {
            drafter.observe(ID, &[*token]);
        }
        prop_assert_eq!(proposal(&mut drafter, ID, k), lookup(&text, min, max, k));
    }

    #[test]
    fn suffix_follows_the_longest_match_of_the_text(text in prop::collection::vec(0..3u32, 1..200), k in 0..6usize) {
        let mut drafter = suffix(SuffixConfig::default());
        drafter.start(ID, &text[..text.len() / 2], false);
        drafter.observe(ID, &text[text.len() / 2..]);
        let (drafts, length) = proposal(&mut drafter, ID, k);
        let text = &text[..];
        // The 32 latest places of a short text may not be all of them, so a longer match may exist; never a shorter one.
        let places = |length: usize| {
            let suffix = &text[text.len() - length..];
            (length..text.len()).filter(move |end| &text[end - length..*end] == suffix)
        };
        let known = (2..=text.len().min(24)).rev().find(|length| places(*length).next().is_some());
        prop_assert!(length as usize <= known.unwrap_or(0));
        prop_assert!(drafts.len() <= k.min(length as usize));
        if length > 0 {
            let ends: Vec<usize> = places(length as usize).collect();
            prop_assert!(drafts.is_empty() || ends.iter().any(|end| text[*end..].starts_with(&drafts)));
        }
    }
}

#[test]
fn suffix_stops_where_the_votes_scatter() {
    // After "7 8" came 1, 1, 2, 3: the first draft has probability 1/2, what follows it differs each time.
    let text = [7, 8, 1, 4, 0, 7, 8, 1, 5, 0, 7, 8, 2, 0, 7, 8, 3, 0, 7, 8];
    for (min_probability, drafts) in [(0.6, vec![]), (0.5, vec![1]), (0.2, vec![1, 5])] {
        let mut drafter = suffix(SuffixConfig { depth: 2, min_probability, ..SuffixConfig::default() });
        drafter.start(ID, &text, false);
        assert_eq!(proposal(&mut drafter, ID, 8), (drafts, 2), "{min_probability}");
    }
}

#[test]
fn outputs_of_finished_requests_serve_later_ones_unless_salted() {
    let mut drafter = suffix(SuffixConfig::default());
    drafter.start(ID, &[1, 2, 3], true);
    drafter.observe(ID, &[10, 11, 12, 13, 14]);
    drafter.finish(ID);
    for (shared, expected) in [(true, (vec![12, 13], 2)), (false, (vec![], 0))] {
        let other = RequestId(2);
        drafter.start(other, &[9, 10, 11], shared);
        assert_eq!(proposal(&mut drafter, other, 8), expected);
        drafter.finish(other);
    }
    // The secret of a salted request is found by nobody.
    drafter.start(ID, &[5], false);
    drafter.observe(ID, &[40, 41, 42]);
    drafter.finish(ID);
    drafter.start(ID, &[40, 41], true);
    assert_eq!(proposal(&mut drafter, ID, 8), (vec![], 0));
}

#[test]
fn the_shared_outputs_are_forgotten_first_in_first_out_within_the_stated_bytes() {
    let limit = 1024;
    let mut drafter = suffix(SuffixConfig { shared_tokens: limit, ..SuffixConfig::default() });
    for round in 0..200u32 {
        let id = RequestId(u64::from(round));
        drafter.start(id, &[1], true);
        drafter.observe(id, &(0..50).map(|i| round * 100 + i).collect::<Vec<_>>());
        drafter.finish(id);
        assert!(drafter.shared_bytes() <= 16 * limit, "{} bytes", drafter.shared_bytes());
    }
    let mut known = Vec::new();
    for round in 0..200u32 {
        drafter.start(ID, &[round * 100 + 20, round * 100 + 21], true);
        known.push(proposal(&mut drafter, ID, 1) == (vec![round * 100 + 22], 2));
        drafter.finish(ID);
    }
    let first = known.iter().position(|known| *known).expect("the latest output is kept");
    assert!(known[first..].iter().all(|known| *known), "what is kept is what came last");
    assert!((200 - first) * 51 > limit - 2 * 51, "{} outputs are kept", 200 - first);
}

#[test]
fn a_request_that_was_never_started_gets_no_drafts() {
    let mut drafters: [Box<dyn Drafter>; 2] =
        [Box::new(ngram(1, 3)), Box::new(suffix(SuffixConfig::default()))];
    for drafter in &mut drafters {
        drafter.observe(ID, &[1, 1, 1, 1]);
        assert_eq!(proposal(drafter.as_mut(), ID, 4), (vec![], 0));
        drafter.finish(ID);
    }
}

#[test]
fn impossible_configurations_are_refused_with_the_value() {
    for (min, max) in [(0, 3), (4, 3), (1, 17)] {
        let refusal = Ngram::new(NgramConfig { min, max }).expect_err("refused");
        assert!(refusal.contains(&format!("got min {min} and max {max}")), "{refusal}");
    }
    let base = SuffixConfig::default();
    for bad in [
        SuffixConfig { depth: 1, ..base },
        SuffixConfig { factor: f64::NAN, ..base },
        SuffixConfig { min_probability: 1.5, ..base },
        SuffixConfig { shared_tokens: 1000, ..base },
    ] {
        assert!(Suffix::new(bad).is_err(), "{bad:?}");
    }
}

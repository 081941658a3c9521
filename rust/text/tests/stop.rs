//! Stop strings: found wherever the token borders are, with tokens and text in step.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::{Arc, LazyLock};

use common::byte_tokenizer;
use frizzen_core::{Error, TokenId};
use frizzen_text::parse::{Format, ReasoningFormat, Setup, Start};
use frizzen_text::{StopMatcher, StreamOptions, TextDelta, TextStream, Tokenizer};
use proptest::prelude::*;

static BYTES: LazyLock<Arc<Tokenizer>> = LazyLock::new(byte_tokenizer);

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|s| (*s).to_owned()).collect()
}

fn stopping(stop: &[&str]) -> StreamOptions {
    StreamOptions { stop: strings(stop), ..StreamOptions::default() }
}

/// Pushes `pieces` one by one and ends the text.
fn run(stops: &[String], include: bool, pieces: &[&str]) -> TextDelta {
    let mut matcher = StopMatcher::new(stops, include).unwrap();
    let mut all = TextDelta::default();
    for piece in pieces {
        matcher.push(piece, &mut all);
    }
    matcher.finish(&mut all);
    all
}

/// The rule, stated without any streaming: the first end of any stop string, the longest that ends there.
fn expected(stops: &[String], include: bool, text: &str) -> (String, Option<String>) {
    for end in (1..=text.len()).filter(|end| text.is_char_boundary(*end)) {
        let found =
            stops.iter().filter(|stop| text[..end].ends_with(stop.as_str())).max_by_key(|stop| stop.len());
        if let Some(stop) = found {
            let cut = if include { end } else { end - stop.len() };
            return (text[..cut].to_owned(), Some(stop.clone()));
        }
    }
    (text.to_owned(), None)
}

/// `text` cut at the given places, moved to character borders; some pieces are empty.
fn pieces_of<'t>(text: &'t str, cuts: &[prop::sample::Index]) -> Vec<&'t str> {
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
    places.sort_unstable();
    let mut pieces = Vec::new();
    let mut from = 0;
    for place in places {
        let place = (place..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap();
        pieces.push(&text[from..place.max(from)]);
        from = place.max(from);
    }
    pieces.push(&text[from..]);
    pieces
}

fn cuts() -> impl Strategy<Value = Vec<prop::sample::Index>> {
    prop::collection::vec(any::<prop::sample::Index>(), 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_match_does_not_depend_on_the_token_borders(
        stops in prop::collection::vec("[abé]{1,4}", 0..4),
        text in "[abé]{0,24}",
        cuts in cuts(),
        include in any::<bool>(),
    ) {
        let pieces = pieces_of(&text, &cuts);
        let got = run(&stops, include, &pieces);
        prop_assert_eq!((got.text, got.stop), expected(&stops, include, &text));
    }

    /// At each moment the text given out is that of exactly the tokens given out, and what is held could still become a
    /// match.
    #[test]
    fn text_and_tokens_are_released_together(
        stops in prop::collection::vec("[ab]{1,5}", 0..3),
        text in "[ab]{0,24}",
        cuts in cuts(),
    ) {
        let pieces = pieces_of(&text, &cuts);
        let mut matcher = StopMatcher::new(&stops, false).unwrap();
        let mut all = TextDelta::default();
        for (n, piece) in pieces.iter().enumerate() {
            matcher.push(piece, &mut all);
            if all.stop.is_some() {
                prop_assert_eq!(all.tokens_released, n + 1);
                break;
            }
            prop_assert_eq!(&all.text, &pieces[..all.tokens_released].concat());
            // The next token to be released would end inside a possible match.
            let so_far = pieces[..=n].concat();
            let possible = (0..=so_far.len()).find(|from| stops.iter().any(|s| s.starts_with(&so_far[*from..])));
            let released_next = pieces[..=n.min(all.tokens_released)].concat().len();
            prop_assert!(all.tokens_released == n + 1 || possible.is_some_and(|from| from < released_next));
        }
        if all.stop.is_none() {
            matcher.finish(&mut all);
            prop_assert_eq!((all.text, all.tokens_released), (text.clone(), pieces.len()));
        }
    }

    /// The composed stream: any bytes, any runs of tokens per step, the same text and the same last token.
    #[test]
    fn a_stream_stops_alike_for_every_run_length(
        ids in prop::collection::vec(prop_oneof![Just(0x61u32), Just(0x62), Just(0xC3), Just(0xA9), Just(257)], 0..24),
        stops in prop::collection::vec("[abé\u{FFFD}]{1,3}", 0..3),
        lengths in prop::collection::vec(1..5usize, 24),
    ) {
        let options = StreamOptions { stop: stops, ..StreamOptions::default() };
        let mut single = TextStream::new(BYTES.clone(), &options).unwrap();
        let mut one_by_one = TextDelta::default();
        for id in &ids {
            one_by_one.append(single.push(&[*id]));
        }
        one_by_one.append(single.finish());

        let mut runs = TextStream::new(BYTES.clone(), &options).unwrap();
        let mut in_runs = TextDelta::default();
        let mut rest = &ids[..];
        for length in lengths {
            let (run, after) = rest.split_at(length.min(rest.len()));
            in_runs.append(runs.push(run));
            rest = after;
            let stopped = runs.is_stopped();
            prop_assert_eq!(stopped, in_runs.stop.is_some());
            if !stopped {
                prop_assert_eq!(&in_runs.text, &BYTES.decode(&ids[..in_runs.tokens_released], true));
            }
        }
        in_runs.append(runs.finish());
        prop_assert_eq!(&one_by_one, &in_runs);
        let (text, stop) = expected(&options.stop, false, &BYTES.decode(&ids[..in_runs.tokens_released], true));
        prop_assert_eq!((in_runs.text, in_runs.stop), (text, stop));
    }
}

#[test]
fn the_start_of_a_stop_string_is_never_shown_sglang_11446() {
    let text = "ABCDEFGHIJKL";
    let near_miss = "ABCDEFGHIXKL";
    for at in 0..=text.len() {
        let stops = strings(&["DEFGHIJ"]);
        let hit = run(&stops, false, &[&text[..at], &text[at..]]);
        assert_eq!((hit.text.as_str(), hit.stop.as_deref()), ("ABC", Some("DEFGHIJ")));
        let miss = run(&stops, false, &[&near_miss[..at], &near_miss[at..]]);
        assert_eq!((miss.text.as_str(), miss.stop), (near_miss, None));
    }
}

#[test]
fn text_before_a_match_and_at_the_end_is_not_lost_llamacpp_9867() {
    for pieces in [&["?", "\n"][..], &["?\n"]] {
        assert_eq!(run(&strings(&["\n"]), false, pieces).text, "?");
    }
    assert_eq!(run(&strings(&["cd"]), false, &["ab", "c"]).text, "abc");
}

#[test]
fn empty_stop_strings_are_refused_sglang_38712() {
    for list in [&[""][..], &["ok", ""]] {
        let error = StopMatcher::new(&strings(list), false).unwrap_err();
        assert!(matches!(&error, Error::Invalid { param: "stop", .. }), "{error:?}");
    }
    assert!(StopMatcher::new(&[], false).is_ok());
    let many = vec!["x".to_owned(); 65];
    assert_eq!(
        StopMatcher::new(&many, false).unwrap_err().to_string(),
        "stop must have at most 64 strings, got 65"
    );
    let long = vec!["x".repeat(5000)];
    assert!(StopMatcher::new(&long, false).unwrap_err().to_string().contains("at most 4096 bytes, got 5000"));
}

/// A run of accepted drafts: what follows the match inside the run is dropped, text, ids and counts alike.
#[test]
fn ids_and_text_stop_at_the_same_token_of_a_run_vllm_47616() {
    let ids: Vec<TokenId> = " ha ha ha ho hi".bytes().map(TokenId::from).collect();
    for include in [false, true] {
        let options = StreamOptions { include_stop_in_output: include, ..stopping(&[" ha ha ha"]) };
        let mut stream = TextStream::new(BYTES.clone(), &options).unwrap();
        let delta = stream.push(&ids);
        assert_eq!((delta.tokens_released, delta.stop.as_deref()), (9, Some(" ha ha ha")));
        assert_eq!(delta.text, if include { " ha ha ha" } else { "" });
        assert_eq!(stream.push(&ids), TextDelta::default());
        assert_eq!(stream.finish(), TextDelta::default());
    }
}

/// Whole tokens are held, not characters: the text of a token is never cut in two by the hold-back.
#[test]
fn hold_back_does_not_split_tokens_vllm_45636() {
    let mut matcher = StopMatcher::new(&strings(&["!!"]), false).unwrap();
    let mut delta = TextDelta::default();
    matcher.push("wow!", &mut delta);
    assert_eq!(delta, TextDelta::default());
    matcher.push(" yes", &mut delta);
    assert_eq!((delta.text.as_str(), delta.tokens_released), ("wow! yes", 2));
}

/// The cut before a stop string falls on a character border, whatever bytes the tokens hold.
#[test]
fn stop_string_split_utf8_vllm_44620() {
    for stop in ["é", "\u{1f642}", "né"] {
        let text = format!("un caf{stop} noir");
        let ids: Vec<TokenId> = text.bytes().map(TokenId::from).collect();
        for step in 1..=5 {
            let mut stream = TextStream::new(BYTES.clone(), &stopping(&[stop])).unwrap();
            let mut all = TextDelta::default();
            for run in ids.chunks(step) {
                all.append(stream.push(run));
            }
            assert_eq!((all.text.as_str(), all.stop.as_deref()), ("un caf", Some(stop)));
            assert_eq!(all.tokens_released, "un caf".len() + stop.len());
        }
    }
}

/// A token whose last character is incomplete is released with the token that completes it.
#[test]
fn tokens_are_released_with_their_whole_text() {
    let mut stream = TextStream::new(BYTES.clone(), &stopping(&[])).unwrap();
    assert_eq!(stream.push(&[0xC3]), TextDelta::default());
    let delta = stream.push(&[0xA9]);
    assert_eq!((delta.text.as_str(), delta.tokens_released), ("é", 2));
    assert_eq!(stream.push(&[0xF0, 0x9F]), TextDelta::default());
    let end = stream.finish();
    assert_eq!((end.text.as_str(), end.tokens_released), ("\u{FFFD}", 2));
}

/// The token that ended the request is counted and not shown; a tail held for a stop string is shown.
#[test]
fn a_hidden_stop_token_flushes_what_is_held() {
    let mut stream = TextStream::new(BYTES.clone(), &stopping(&["xyz"])).unwrap();
    let mut all = stream.push(&[0x61, 0x78]);
    assert_eq!((all.text.as_str(), all.tokens_released), ("a", 1));
    all.append(stream.push_hidden());
    all.append(stream.finish());
    assert_eq!((all.text.as_str(), all.tokens_released, all.stop), ("ax", 3, None));
}

#[test]
fn stop_strings_are_ignored_in_the_first_min_tokens() {
    let options = StreamOptions { min_tokens: 3, ..stopping(&["b"]) };
    let mut stream = TextStream::new(BYTES.clone(), &options).unwrap();
    let delta = stream.push(&[0x61, 0x62, 0x62, 0x61, 0x62, 0x61]);
    assert_eq!((delta.text.as_str(), delta.tokens_released, delta.stop.as_deref()), ("abba", 5, Some("b")));
    // A match cannot begin in the ignored text either.
    let options = StreamOptions { min_tokens: 1, ..stopping(&["ab"]) };
    let mut stream = TextStream::new(BYTES.clone(), &options).unwrap();
    assert_eq!(stream.push(&[0x61, 0x62]).text, "ab");
}

/// What the model thinks does not end its answer, and no half of the marker or of the stop string is seen.
#[test]
fn stop_strings_in_reasoning_are_ignored_vllm_14399() {
    let text = "<think>first a song then</think>Answer: song here";
    let think = Format { reasoning: ReasoningFormat::named("qwen3"), tools: None };
    for include in [false, true] {
        for step in [1, 2, 7, 100] {
            let options = StreamOptions {
                stop_outside: Some((think, Setup { start: Start::Answer, ..Setup::default() })),
                include_stop_in_output: include,
                ..stopping(&["song"])
            };
            let mut stream = TextStream::new(BYTES.clone(), &options).unwrap();
            let ids: Vec<TokenId> = text.bytes().map(TokenId::from).collect();
            let mut all = TextDelta::default();
            for run in ids.chunks(step) {
                all.append(stream.push(run));
            }
            let end = if include { "Answer: song" } else { "Answer: " };
            assert_eq!(all.text, format!("<think>first a song then</think>{end}"));
        }
    }
}

/// Of several stop strings that end at the same place the longest counts, so nothing of it is left in the text.
#[test]
fn the_longest_of_the_strings_that_end_together_wins() {
    let got = run(&strings(&["b", "ab"]), false, &["x", "ab"]);
    assert_eq!((got.text.as_str(), got.stop.as_deref()), ("x", Some("ab")));
}

/// Markers are special tokens in many vocabularies: hidden from clients, and yet the parser must see them.
#[test]
fn marker_tokens_are_shown_although_special_tokens_are_hidden() {
    let special = |id: TokenId| BYTES.is_special(id);
    let hidden = (0..BYTES.vocab_size()).find(|id| special(*id)).unwrap();
    let options = StreamOptions { shown_special: [hidden].into(), ..StreamOptions::default() };
    let mut stream = TextStream::new(BYTES.clone(), &options).unwrap();
    assert_eq!(stream.push(&[hidden]).text, BYTES.token_str(hidden));
    let mut stream = TextStream::new(BYTES.clone(), &StreamOptions::default()).unwrap();
    assert_eq!(stream.push(&[hidden]).text, "");
}

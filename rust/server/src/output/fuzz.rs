//! Whatever a model says, streams are events whose data is JSON, and add up to the whole answer.

use std::sync::Arc;

use frizzen_text::parse::{Format, ReasoningFormat, Setup, Start, ToolFormat};
use proptest::prelude::*;
use serde_json::{Map, Value};

use super::delta::{ChoiceDelta, Finish, StopDetail};
use super::message::{Reader, Shape};
use super::messages::Messages;
use super::responses::Responses;
use super::{Usage, Writer};

fn writer(is_responses: bool) -> Box<dyn Writer> {
    let format = Format { reasoning: ReasoningFormat::named("qwen3"), tools: ToolFormat::named("hermes") };
    let shape = Shape { reasoning: true, reasoning_content: false, parallel: true };
    let reader = Reader::new(format, &Setup { start: Start::Unknown, ..Setup::default() }, shape);
    let name: Arc<str> = "r".into();
    if is_responses {
        let tokenizer = Arc::new(crate::mock::tokenizer().unwrap());
        Box::new(Responses::new((&name, "m"), Map::new(), reader, tokenizer, None))
    } else {
        Box::new(Messages::new(&name, "m", None, reader))
    }
}

/// Pieces of text that a parser cares about, and others.
fn piece() -> impl Strategy<Value = String> {
    let marks = [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "{\"name\": \"f\", \"arguments\": {}}",
        "\n",
        "{",
        "\"",
    ];
    prop_oneof![".{0,8}", prop::sample::select(marks.to_vec()).prop_map(str::to_owned)]
}

fn deltas(pieces: &[String], reason: &'static str) -> Vec<ChoiceDelta> {
    let mut all: Vec<ChoiceDelta> =
        pieces.iter().map(|text| ChoiceDelta { text: text.clone(), ..ChoiceDelta::default() }).collect();
    let finish = Some(Finish { reason, stop: StopDetail::None });
    all.push(ChoiceDelta { finish, ..ChoiceDelta::default() });
    all
}

/// The data of every event; each has the name that its data says.
fn events(bytes: Vec<u8>) -> Vec<Value> {
    let text = String::from_utf8(bytes).unwrap();
    let blocks = text.strip_suffix("\n\n").unwrap().split("\n\n");
    let event = |block: &str| {
        let (name, data) = block.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        data
    };
    blocks.map(event).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn streams_add_up_to_the_whole_answer(
        pieces in prop::collection::vec(piece(), 0..12),
        reason in prop::sample::select(vec!["stop", "length"]),
        is_responses: bool,
    ) {
        let deltas = deltas(&pieces, reason);
        let usage = Usage::default();
        let mut streaming = writer(is_responses);
        let mut out = Vec::new();
        for delta in &deltas {
            streaming.events(delta, &usage, &mut out);
        }
        streaming.end(&usage, &mut out);
        let events = events(out);

        let mut merged = ChoiceDelta::default();
        for delta in deltas {
            merged.merge(delta);
        }
        let mut whole = Vec::new();
        writer(is_responses).answer(&[merged], &usage, &mut whole);
        let whole: Value = serde_json::from_slice(&whole).unwrap();
        if is_responses {
            for (index, event) in events.iter().enumerate() {
                assert_eq!(event["sequence_number"], index);
            }
            assert_eq!(events.last().unwrap()["response"]["output"], whole["output"]);
        } else {
            let starts = events.iter().filter(|event| event["type"] == "content_block_start").count();
            assert_eq!(starts, whole["content"].as_array().unwrap().len());
            let end = &events[events.len() - 2];
            assert_eq!(end["delta"]["stop_reason"], whole["stop_reason"]);
        }
    }
}

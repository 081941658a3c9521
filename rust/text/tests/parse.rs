//! Stream parsers: every fixture, cut in every way, gives one message.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::{Arc, LazyLock};

use frizzen_text::parse::{
    Delta, Format, Message, MessageParser, ReasoningFormat, Setup, Start, StopScope, ToolFormat, ToolSchemas,
    parse, registry,
};
use proptest::prelude::*;
use serde_json::{Value, json};

struct Case {
    /// File and name.
    name: String,
    format: Format,
    setup: Setup,
    input: String,
    /// As the fixture has it.
    message: Value,
}

fn cases_of(file: &Path) -> Vec<Case> {
    let fixture: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let name = |key: &str| fixture[key].as_str();
    let format = Format {
        reasoning: name("reasoning").map(|name| ReasoningFormat::named(name).unwrap()),
        tools: name("tools").map(|name| ToolFormat::named(name).unwrap()),
    };
    let declared = fixture["declared"].as_array().cloned().unwrap_or_default();
    let tools = Arc::new(ToolSchemas::new(&declared));
    let cases = fixture["cases"].as_array().unwrap().iter();
    cases
        .map(|case| {
            let start = match case["start"].as_str() {
                None => Start::Unknown,
                Some("reasoning") => Start::Reasoning,
                Some("answer") => Start::Answer,
                Some(other) => panic!("{other}"),
            };
            Case {
                name: format!("{}: {}", file.file_stem().unwrap().display(), case["name"].as_str().unwrap()),
                format,
                setup: Setup { start, tools: Arc::clone(&tools), id_seed: 7, ..Setup::default() },
                input: case["input"].as_str().unwrap().to_owned(),
                message: case["message"].clone(),
            }
        })
        .collect()
}

static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/parse");
    let mut files: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().flat_map(|file| cases_of(file)).collect()
});

/// The deltas of the pieces, and then those of the end.
fn deltas<'t>(case: &Case, pieces: impl IntoIterator<Item = &'t str>) -> Vec<Delta> {
    let mut parser = MessageParser::new(case.format, &case.setup);
    let mut all: Vec<Delta> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    all.extend(parser.finish());
    all
}

fn message(deltas: Vec<Delta>) -> Message {
    let mut message = Message::default();
    for delta in deltas {
        message.apply(delta);
    }
    message
}

/// `text` cut at these places, moved to character borders.
fn cut<'t>(text: &'t str, places: &[usize]) -> Vec<&'t str> {
    let mut pieces = Vec::new();
    let mut from = 0;
    for place in places {
        let place = (*place..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
        pieces.push(&text[from..place.max(from)]);
        from = place.max(from);
    }
    pieces.push(&text[from..]);
    pieces
}

fn characters(text: &str) -> Vec<&str> {
    text.split("").collect()
}

/// Cut as a tokenizer might: words with their space, runs of digits, punctuation, whole special tokens.
fn like_tokens(text: &str) -> Vec<&str> {
    let kind = |c: char| match c {
        _ if c.is_alphanumeric() => 0,
        '<' | '[' | '{' => 1,
        '>' | '|' => 2,
        _ if c.is_whitespace() => 3,
        _ => 4,
    };
    let mut places = Vec::new();
    let mut last = None;
    for (at, c) in text.char_indices() {
        if last.is_some_and(|last| last != kind(c) && last != 3) {
            places.push(at);
        }
        last = Some(kind(c));
    }
    cut(text, &places)
}

/// A message in the fixtures' form.
fn shown(message: &Message, expected: &Value) -> Value {
    let mut value = json!({});
    if !message.reasoning.is_empty() {
        value["reasoning"] = json!(message.reasoning);
    }
    if !message.content.is_empty() {
        value["content"] = json!(message.content);
    }
    let calls: Vec<Value> = (message.calls.iter().enumerate())
        .map(|(i, call)| {
            let mut value = json!({"name": call.name, "arguments": call.arguments});
            if !call.complete {
                value["complete"] = json!(false);
            }
            if !expected["tool_calls"][i]["id"].is_null() {
                value["id"] = json!(call.id);
            }
            value
        })
        .collect();
    if !calls.is_empty() {
        value["tool_calls"] = json!(calls);
    }
    value
}

#[test]
fn every_fixture_gives_its_message() {
    let mut wrong = Vec::new();
    for case in CASES.iter() {
        let got = shown(&parse(&case.input, case.format, &case.setup), &case.message);
        if got != case.message {
            wrong.push(format!("{}\n  got {got}\n  not {}", case.name, case.message));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn characters_tokens_and_the_whole_give_the_same_message_vllm_19056_vllm_21544() {
    for case in CASES.iter() {
        let whole = parse(&case.input, case.format, &case.setup);
        assert_eq!(message(deltas(case, characters(&case.input))), whole, "{}", case.name);
        assert_eq!(message(deltas(case, like_tokens(&case.input))), whole, "{}", case.name);
        for place in 0..=case.input.len() {
            assert_eq!(message(deltas(case, cut(&case.input, &[place]))), whole, "{} at {place}", case.name);
        }
    }
}

#[test]
fn every_format_has_fixtures() {
    for tools in registry::TOOLS {
        let has = |case: &Case| case.format.tools.is_some_and(|format| format.name == tools.name);
        assert!(CASES.iter().filter(|case| has(case)).count() > 3, "{}", tools.name);
    }
    for reasoning in registry::REASONING {
        let has = |case: &Case| case.format.reasoning.is_some_and(|format| format.name == reasoning.name);
        assert!(CASES.iter().any(has), "{}", reasoning.name);
    }
}

#[test]
fn a_call_is_complete_only_if_its_arguments_parse_vllm_53269() {
    // Cutting every fixture everywhere is what a sweep of `max_tokens` does.
    for case in CASES.iter() {
        for place in 0..=case.input.len() {
            let text = cut(&case.input, &[place])[0];
            for call in parse(text, case.format, &case.setup).calls {
                let arguments = serde_json::from_str::<Value>(&call.arguments);
                let parses = arguments.is_ok_and(|arguments| arguments.is_object());
                assert!(parses || !call.complete, "{} at {place}: {call:?}", case.name);
            }
        }
    }
}

#[test]
fn what_a_limit_cuts_off_behind_a_marker_is_no_content_vllm_47903() {
    let shown = |case: &Case, text: &str, setup: &Setup| {
        let mut parser = MessageParser::new(case.format, setup);
        message(parser.push(text).into_iter().chain(parser.cut_off()).collect())
    };
    for case in CASES.iter() {
        let whole = parse(&case.input, case.format, &case.setup);
        for place in 0..=case.input.len() {
            let text = cut(&case.input, &[place])[0];
            let cut_off = shown(case, text, &case.setup);
            let ended = parse(text, case.format, &case.setup);
            for opens in case.format.tools.map_or(&[][..], ToolFormat::opens) {
                let count = |message: &Message| message.content.matches(opens).count();
                assert!(count(&cut_off) <= count(&whole), "{} at {place}: {:?}", case.name, cut_off.content);
            }
            // What was a call stays one, and what the model thought is shown.
            assert_eq!(
                (&cut_off.calls, &cut_off.reasoning),
                (&ended.calls, &ended.reasoning),
                "{}",
                case.name
            );
            assert!(ended.content.starts_with(&cut_off.content), "{} at {place}", case.name);
        }
    }
}

#[test]
fn a_forced_call_that_is_cut_off_is_never_content() {
    for (name, text) in [
        ("llama3_json", r#"{"name": "weather", "parameters": {"city": "a"}}"#),
        ("hermes", "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>"),
    ] {
        let format = Format { tools: ToolFormat::named(name), reasoning: None };
        let declared = [json!({"type": "function", "function": {"name": "weather"}})];
        let tools = Arc::new(ToolSchemas::new(&declared));
        let setup = Setup { start: Start::Answer, tools, forced: true, ..Setup::default() };
        for place in 0..=text.len() {
            let mut parser = MessageParser::new(format, &setup);
            let all = parser.push(&text[..place]).into_iter().chain(parser.cut_off()).collect();
            assert_eq!(message(all).content, "", "{name} at {place}");
        }
    }
}

#[test]
fn the_head_of_a_bare_call_that_is_cut_off_is_no_content_and_other_text_is() {
    let declared = [json!({"type": "function", "function": {"name": "weather"}})];
    let read = |name: &str, text: &str| {
        let format = Format { tools: ToolFormat::named(name), reasoning: None };
        let tools = Arc::new(ToolSchemas::new(&declared));
        let setup = Setup { start: Start::Answer, tools, ..Setup::default() };
        let mut parser = MessageParser::new(format, &setup);
        message(parser.push(text).into_iter().chain(parser.cut_off()).collect())
    };
    for (name, call) in [
        ("llama3_json", r#"{"name": "weather", "parameters": {"city": "a"}}"#),
        ("pythonic", r#"[weather(city="a")]"#),
    ] {
        for place in 0..=call.len() {
            assert_eq!(read(name, &call[..place]).content, "", "{name} at {place}");
        }
        for prose in [r#"{"answer": 4"#, r#"{"name": "nobody", "parameters": {"x"#, "[1, 2", "It is {4"] {
            assert_eq!(read(name, prose).content, prose, "{name}");
        }
    }
}

#[test]
fn a_call_has_one_start_one_end_and_its_own_index_hermes_agent_3468() {
    for case in CASES.iter() {
        let mut open = None;
        let mut next = 0;
        let mut ids = Vec::new();
        for delta in deltas(case, characters(&case.input)) {
            match delta {
                Delta::CallStart { index, id, name } => {
                    assert_eq!((open, index), (None, next), "{}", case.name);
                    assert!(!name.is_empty() && !id.is_empty() && !ids.contains(&id), "{}: {id}", case.name);
                    ids.push(id);
                    open = Some(index);
                    next += 1;
                }
                Delta::CallArguments { index, text } => {
                    assert_eq!(open, Some(index), "{}", case.name);
                    assert!(!text.is_empty(), "{}", case.name);
                }
                Delta::CallEnd { index, .. } => assert_eq!(open.take(), Some(index), "{}", case.name),
                Delta::Reasoning(text) | Delta::Content(text) => {
                    assert!(open.is_none() && !text.is_empty(), "{}", case.name);
                }
            }
        }
        assert_eq!(open, None, "{}", case.name);
    }
}

/// Texts that are shown while the case is fed by characters, in order.
fn shown_texts(case: &Case) -> Vec<String> {
    let mut parser = MessageParser::new(case.format, &case.setup);
    let mut message = Message::default();
    let mut texts = Vec::new();
    for piece in characters(&case.input) {
        parser.push(piece).into_iter().for_each(|delta| message.apply(delta));
        texts.push(format!("{}\u{0}{}", message.reasoning, message.content));
    }
    texts
}

#[test]
fn no_part_of_a_marker_is_shown_before_the_end_vllm_14399() {
    for case in CASES.iter() {
        let whole = parse(&case.input, case.format, &case.setup);
        for text in shown_texts(case) {
            // What was shown stays: a marker's part would have to be taken back.
            let (reasoning, content) = text.split_once('\u{0}').unwrap();
            assert!(whole.reasoning.starts_with(reasoning), "{}: {text:?}", case.name);
            assert!(whole.content.starts_with(content), "{}: {text:?}", case.name);
        }
    }
}

#[test]
fn arguments_stream_while_they_come() {
    let format = Format { reasoning: None, tools: ToolFormat::named("hermes") };
    let mut parser = MessageParser::new(format, &Setup::default());
    parser.push("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"");
    let long = "abc ".repeat(1000);
    assert_eq!(parser.push(&long), [Delta::CallArguments { index: 0, text: long.clone() }]);
}

#[test]
fn ids_are_a_function_of_seed_and_position() {
    let call = "[TOOL_CALLS]f[ARGS]{}";
    let text = call.repeat(3);
    let ids = |name: &str, seed: u64, text: &str| -> Vec<String> {
        let format = Format { reasoning: None, tools: ToolFormat::named(name) };
        let setup = Setup { id_seed: seed, ..Setup::default() };
        parse(text, format, &setup).calls.into_iter().map(|call| call.id).collect()
    };
    let first = ids("mistral", 1, &text);
    assert_eq!(first, ids("mistral", 1, &text));
    assert!(first.iter().all(|id| id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric())));
    let other = ids("mistral", 2, &text);
    assert!(first.iter().all(|id| !other.contains(id)), "{first:?} {other:?}");
    let hermes = ids("hermes", 1, "<tool_call>{\"name\": \"f\"}</tool_call>");
    assert!(hermes[0].starts_with("call_") && hermes[0].len() == 29, "{hermes:?}");
}

#[test]
fn a_head_that_never_ends_is_content_and_memory_is_bounded() {
    let long = "x".repeat(600_000);
    for (name, open) in [
        ("hermes", "<tool_call>{\"name\": \""),
        ("qwen3_coder", "<tool_call><function="),
        ("glm45", "<tool_call>"),
    ] {
        let format = Format { reasoning: None, tools: ToolFormat::named(name) };
        let mut parser = MessageParser::new(format, &Setup::default());
        let mut early = message(parser.push(&format!("{open}{long}")));
        assert!(early.content.len() > 500_000, "{name} holds everything back");
        assert!(!parser.notes().is_empty());
        parser.finish().into_iter().for_each(|delta| early.apply(delta));
        assert_eq!(early.content, format!("{open}{long}"));
    }
}

#[test]
fn a_malformed_call_is_noted_and_what_follows_is_still_parsed() {
    let format = Format { reasoning: None, tools: ToolFormat::named("hermes") };
    let mut parser = MessageParser::new(format, &Setup::default());
    let text = "<tool_call>oops</tool_call> <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let mut all = parser.push(text);
    all.extend(parser.finish());
    let message = message(all);
    assert_eq!((message.content.as_str(), message.calls.len()), ("<tool_call>oops</tool_call>", 1));
    assert_eq!(parser.notes().len(), 1);
}

#[test]
fn a_plain_format_changes_nothing() {
    let text = " <think>a</think>\n<tool_call>{}</tool_call> \n\n";
    assert!(Format::default().is_plain());
    assert_eq!(parse(text, Format::default(), &Setup::default()).content, text);
}

#[test]
fn stop_strings_belong_to_the_answer_alone_vllm_14399() {
    let admitted = |name: &str, start: Start, text: &str| -> String {
        let format = Format { reasoning: ReasoningFormat::named(name), tools: None };
        let mut scope = StopScope::new(format, &Setup { start, ..Setup::default() }).unwrap();
        text.chars().filter(|c| scope.admits(*c)).collect()
    };
    assert_eq!(admitted("qwen3", Start::Answer, "<think>a song</think>A song."), "A song.");
    assert_eq!(admitted("qwen3", Start::Reasoning, "a song</think>A song."), "A song.");
    assert_eq!(admitted("qwen3", Start::Answer, "A song."), "A song.");
    let harmony =
        "<|channel|>analysis<|message|>a song<|end|><|start|>assistant<|channel|>final<|message|>A song.";
    assert_eq!(admitted("openai_gptoss", Start::Unknown, harmony), "A song.");
    assert!(
        StopScope::new(Format { reasoning: None, tools: ToolFormat::named("hermes") }, &Setup::default())
            .is_none()
    );
}

#[test]
fn stop_strings_and_the_message_see_the_same_reasoning() {
    // What may stop is content or a call, by the very parser of the message, whatever ends and begins reasoning there.
    let text = "hm <tool_call>\nstop</think>Now stop.<think>stop</think>Well, stop.";
    let format =
        |name: &str| Format { reasoning: ReasoningFormat::named(name), tools: ToolFormat::named("hermes") };
    for (name, closed_by_tag, admitted, content) in [
        (
            "glm45",
            false,
            "\nstop</think>Now stop.<thinkWell, stop.",
            "<tool_call>\nstop</think>Now stop.Well, stop.",
        ),
        ("glm45", true, "Now stop.<think>stop</think>Well, stop.", "Now stop.<think>stop</think>Well, stop."),
        ("qwen3", true, "Now stop.<think>stop</think>Well, stop.", "Now stop.<think>stop</think>Well, stop."),
    ] {
        let setup = Setup { start: Start::Reasoning, closed_by_tag, ..Setup::default() };
        let mut scope = StopScope::new(format(name), &setup).unwrap();
        assert_eq!(text.chars().filter(|c| scope.admits(*c)).collect::<String>(), admitted, "{name}");
        assert_eq!(parse(text, format(name), &setup).content, content, "{name}");
    }
}

/// Pieces of every format, in any order: what no model should write and some model will.
fn rubble() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        prop::sample::select(vec![
            "<think>",
            "</think>",
            "<tool_call>",
            "</tool_call>",
            "{\"name\": \"run\", \"arguments\": ",
            "{\"cmd\": \"",
            "\"}",
            "}",
            "{",
            "[",
            "]",
            "<function=run>",
            "<parameter=cmd>",
            "</parameter>",
            "</function>",
            "run",
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
            "[TOOL_CALLS]",
            "[ARGS]",
            "<|python_tag|>",
            "run(cmd='",
            "')",
            "<|tool_calls_section_begin|>",
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
            "<|tool_calls_section_end|>",
            "functions.run:0",
            "<|channel|>",
            "analysis",
            "final",
            "<|message|>",
            "<|end|>",
            "<|start|>",
            "to=functions.run",
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "```json",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>",
            "\n",
            " ",
            ";",
            ",",
            "é😀",
            "\\",
            "null",
            "\u{1}",
        ])
        .prop_map(str::to_owned),
        "[a-z<>{}\\[\\]\" \n]{0,4}",
    ];
    prop::collection::vec(piece, 0..14).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn fixtures_cut_at_random_give_the_same_message(
        index in any::<prop::sample::Index>(),
        places in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let case = &CASES[index.index(CASES.len())];
        let mut places: Vec<usize> = places.iter().map(|place| place.index(case.input.len() + 1)).collect();
        places.sort_unstable();
        let whole = parse(&case.input, case.format, &case.setup);
        prop_assert_eq!(message(deltas(case, cut(&case.input, &places))), whole);
    }

    #[test]
    fn any_text_in_any_format_gives_one_message_and_no_panic(
        text in rubble(),
        tools in 0..registry::TOOLS.len() + 1,
        reasoning in 0..registry::REASONING.len() + 1,
        open in any::<bool>(),
    ) {
        let format = Format { reasoning: registry::REASONING.get(reasoning), tools: registry::TOOLS.get(tools) };
        let start = if open { Start::Reasoning } else { Start::Answer };
        let case = Case {
            name: String::new(),
            format,
            setup: Setup { start, ..Setup::default() },
            input: text,
            message: Value::Null,
        };
        let whole = parse(&case.input, case.format, &case.setup);
        prop_assert_eq!(&message(deltas(&case, characters(&case.input))), &whole);
        for call in &whole.calls {
            let parses = serde_json::from_str::<Value>(&call.arguments).is_ok_and(|value| value.is_object());
            prop_assert!(parses || !call.complete, "{:?}", call);
        }
        if format.is_plain() {
            prop_assert_eq!(&whole.content, &case.input);
        }
    }
}

/// The time that a text takes, one piece of `size` bytes after the other.
fn time_of(format: Format, text: &str, size: usize) -> std::time::Duration {
    let started = std::time::Instant::now();
    let mut parser = MessageParser::new(format, &Setup { start: Start::Unknown, ..Setup::default() });
    let bytes = text.as_bytes();
    for piece in bytes.chunks(size) {
        parser.push(std::str::from_utf8(piece).unwrap());
    }
    parser.finish();
    started.elapsed()
}

#[test]
fn unclosed_tags_take_linear_time_odysseus_4703() {
    let texts = [
        "<think>",
        "<tool_call>{\"name\":",
        "<",
        "```json\n",
        "{\"a\":[",
        "<function=",
        "[f(a=\"",
        "<|channel|>",
    ];
    let reasoning = registry::REASONING.iter().map(|format| Format { reasoning: Some(format), tools: None });
    let tools = registry::TOOLS.iter().map(|format| Format { reasoning: None, tools: Some(format) });
    for format in reasoning.chain(tools) {
        for text in texts {
            let long = text.repeat((16 << 10) / text.len());
            for size in [1, long.len()] {
                // Quadratic time would be many seconds; what is allowed leaves room for a debug build on a busy machine.
                let time = time_of(format, &long, size);
                assert!(time.as_secs_f64() < 2.0, "{text:?} by {size} in {format:?}: {time:?}");
            }
        }
    }
}

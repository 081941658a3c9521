//! Grammars of tool calls: whatever a model writes under one, the format's own parser reads calls out of it.

mod common;

use std::sync::Arc;

use common::{EOS, VOCAB_SIZE, tokenizer};
use frizzen_core::{TokenId, TokenMatcher};
use frizzen_grammar::part::Part;
use frizzen_grammar::tools::{Tool, calls, text_with_calls};
use frizzen_grammar::{GrammarCompiler, GrammarKind, GrammarLimits, GrammarSpec};
use frizzen_text::Tokenizer;
use frizzen_text::parse::{
    ArgumentSyntax, Format, Message, Setup, Start, ToolFormat, ToolSchemas, parse, registry,
};
use serde_json::{Value, json};

const MASK_WORDS: usize = (VOCAB_SIZE as usize).div_ceil(32);
/// Tokens after which a text that has not ended is given up.
const LONG: usize = 4000;

fn tools() -> Vec<Value> {
    vec![
        json!({"type": "function", "function": {"name": "get", "strict": true, "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer", "minimum": 1, "maximum": 7},
                "unit": {"enum": ["C", "F"]}
            },
            "required": ["city", "days"],
            "additionalProperties": false
        }}}),
        json!({"type": "function", "function": {"name": "get_all", "strict": true, "parameters": {
            "type": "object",
            "properties": {"deep": {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": false}},
            "required": ["deep"],
            "additionalProperties": false
        }}}),
        json!({"type": "function", "function": {"name": "now"}}),
    ]
}

/// True if a call of one of the tools has arguments that its schema allows.
fn is_legal(name: &str, arguments: &str) -> bool {
    let Ok(Value::Object(arguments)) = serde_json::from_str(arguments) else { return false };
    let only = |keys: &[&str]| arguments.keys().all(|key| keys.contains(&key.as_str()));
    match name {
        "get" => {
            only(&["city", "days", "unit"])
                && arguments["city"].is_string()
                && arguments["days"].as_u64().is_some_and(|days| (1..=7).contains(&days))
                && arguments.get("unit").is_none_or(|unit| *unit == "C" || *unit == "F")
        }
        "get_all" => {
            let deep = arguments["deep"].as_object();
            only(&["deep"]) && deep.is_some_and(|deep| deep.len() == 1 && deep["on"].is_boolean())
        }
        "now" => arguments.is_empty(),
        _ => false,
    }
}

struct Model {
    tokenizer: Tokenizer,
    compiler: GrammarCompiler,
    format: &'static ToolFormat,
}

impl Model {
    /// A model with this format, whose markers are special tokens or plain text.
    fn new(format: &'static ToolFormat, special: bool) -> Self {
        let all = Format { reasoning: None, tools: Some(format) };
        let markers: Vec<&str> = if special { all.markers() } else { Vec::new() };
        let markers: Vec<&str> = markers.into_iter().filter(|marker| *marker != "<|end|>").collect();
        let tokenizer = tokenizer(&markers);
        let compiler = GrammarCompiler::new(&tokenizer, VOCAB_SIZE, &EOS, GrammarLimits::default());
        Self { tokenizer, compiler: compiler.expect("a valid vocabulary"), format }
    }

    /// A text under the grammar: at each step some allowed token, chosen by a hash; towards the end if it gets long.
    fn write(&self, part: &Part, seed: u64) -> String {
        let mut seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let spec = GrammarSpec::from(GrammarKind::Parts(part.clone()));
        let grammar =
            self.compiler.compile(&spec).unwrap_or_else(|error| panic!("{}: {error}", self.format.name));
        let mut matcher = grammar.start();
        let mut tokens: Vec<TokenId> = Vec::new();
        let hints = self.hints();
        while !matcher.is_complete() && !(matcher.can_end() && (tokens.len() > 60 || seed >> 60 == 0)) {
            assert!(
                tokens.len() < LONG,
                "{}: no end of {:?}",
                self.format.name,
                self.tokenizer.decode(&tokens[..300], false)
            );
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // No chance would ever spell a marker in the middle of free text.
            let hint = &hints[(seed >> 35) as usize % hints.len()];
            if (tokens.len() > 60 || (seed >> 50).is_multiple_of(8)) && matcher.validate(hint) == hint.len() {
                for token in hint {
                    matcher.accept(*token).expect("it was validated");
                }
                tokens.extend_from_slice(hint);
                continue;
            }
            let mut mask = [0; MASK_WORDS];
            matcher.fill(&mut mask).expect("the grammar is simple enough");
            let allowed: Vec<TokenId> =
                (0..VOCAB_SIZE).filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).collect();
            // Letters are everywhere in free text: what ends it is preferred now and then.
            let marks: Vec<TokenId> = allowed
                .iter()
                .copied()
                .filter(|id| b"<}>\"])/\n".iter().any(|mark| TokenId::from(*mark) == *id) || *id >= 262)
                .collect();
            let printable: Vec<TokenId> =
                allowed.iter().copied().filter(|id| *id >= 32 && *id < 127 || *id >= 256).collect();
            let among = if !marks.is_empty() && (seed >> 40).is_multiple_of(2) {
                &marks
            } else if printable.is_empty() {
                &allowed
            } else {
                &printable
            };
            let token = among[(seed >> 33) as usize % among.len()];
            matcher.accept(token).expect("the mask allows it");
            tokens.push(token);
        }
        self.tokenizer.decode(&tokens, false)
    }

    /// Markers of the format, in tokens.
    fn hints(&self) -> Vec<Vec<TokenId>> {
        let syntax = self.format.syntax(&self.tokenizer);
        let mut hints = vec![syntax.trigger.unwrap_or("\"").to_owned(), "\"".to_owned()];
        if let ArgumentSyntax::Each(each) = syntax.arguments
            && each.before_text.is_some()
        {
            hints.push(format!("{}{}", each.frame, each.value_end));
        }
        hints.iter().map(|hint| self.tokenizer.encode(hint, false).expect("any text has tokens")).collect()
    }

    fn read(&self, text: &str, tools: &[Value]) -> Message {
        let format = Format { reasoning: None, tools: Some(self.format) };
        let setup = Setup {
            start: Start::Answer,
            tools: Arc::new(ToolSchemas::new(tools)),
            id_seed: 1,
            ..Setup::default()
        };
        parse(text, format, &setup)
    }

    fn calls(&self, tools: &[Value], parallel: bool) -> Part {
        let read: Vec<Tool<'_>> = tools.iter().filter_map(Tool::of).collect();
        calls(&self.format.syntax(&self.tokenizer), &read, parallel).expect("the format can express them")
    }
}

fn models() -> impl Iterator<Item = Model> {
    registry::TOOLS.iter().flat_map(|format| [false, true].map(|special| Model::new(format, special)))
}

#[test]
fn every_format_reads_the_calls_that_its_grammar_allows() {
    let tools = tools();
    for model in models() {
        let part = model.calls(&tools, true);
        let mut counts = [0; 3];
        for seed in 1..40 {
            let text = model.write(&part, seed << 40 | seed);
            let message = model.read(&text, &tools);
            let name = model.format.name;
            assert!(!message.calls.is_empty(), "{name}: {text:?}");
            assert_eq!(message.content.trim(), "", "{name}: {text:?}");
            for call in &message.calls {
                assert!(call.complete && is_legal(&call.name, &call.arguments), "{name}: {text:?}: {call:?}");
                counts[tools
                    .iter()
                    .position(|tool| tool["function"]["name"] == *call.name)
                    .expect("a tool")] += 1;
            }
        }
        assert!(counts.iter().all(|count| *count > 0), "{}: {counts:?}", model.format.name);
    }
}

#[test]
fn one_named_call_is_that_call_and_no_other() {
    let tools = tools();
    for model in models() {
        let part = model.calls(&tools[1..2], false);
        for seed in 1..8 {
            let text = model.write(&part, seed << 50 | seed);
            let calls = model.read(&text, &tools).calls;
            assert_eq!(calls.iter().map(|call| &*call.name).collect::<Vec<_>>(), ["get_all"], "{text:?}");
        }
    }
}

#[test]
fn text_may_stand_around_calls_and_what_begins_like_one_is_one() {
    let tools = tools();
    let read: Vec<Tool<'_>> = tools.iter().filter_map(Tool::of).collect();
    for model in models() {
        let name = model.format.name;
        let syntax = model.format.syntax(&model.tokenizer);
        let Some(trigger) = syntax.trigger else {
            let error = text_with_calls(&syntax, &read, true).expect_err("nothing marks a call");
            assert!(error.0.contains("tool_choice \"required\""), "{error}");
            continue;
        };
        let part = text_with_calls(&syntax, &read, true).expect("a trigger");
        let spec = GrammarSpec::from(GrammarKind::Parts(part.clone()));
        let grammar = model.compiler.compile(&spec).expect("it compiles");
        let mut start = grammar.start();
        let takes = |matcher: &mut dyn TokenMatcher, text: &str| {
            let tokens = model.tokenizer.encode(text, false).expect("any text has tokens");
            tokens.iter().take_while(|token| matcher.accept(**token).is_ok()).count() == tokens.len()
        };
        assert!(start.can_end(), "{name}: an empty text has no call");
        assert!(takes(&mut *start.fork(), "a < b and <tool, [x] {\"name\": 1}"), "{name}");
        let one = model.write(&model.calls(&tools[2..], false), 5);
        let mut called = start.fork();
        assert!(takes(&mut *called, &format!("I look: {one}")), "{name}: {one:?}");
        assert!(called.can_end(), "{name}");
        let garbage = format!("{trigger}garbage");
        assert!(!takes(&mut *start.fork(), &garbage), "{name}");
        for seed in 1..12 {
            let text = model.write(&part, seed << 58 | seed << 20 | seed);
            for call in model.read(&text, &tools).calls {
                assert!(call.complete && is_legal(&call.name, &call.arguments), "{name}: {text:?}: {call:?}");
            }
        }
    }
}

#[test]
fn what_a_format_cannot_express_is_refused_by_name() {
    let refused = |format: &str, function: Value| {
        let model = Model::new(ToolFormat::named(format).expect("a format"), false);
        let tool = json!({"function": function});
        let tools: Vec<Tool<'_>> = Tool::of(&tool).into_iter().collect();
        let part = calls(&model.format.syntax(&model.tokenizer), &tools, true);
        let error = match part {
            Err(error) => error,
            Ok(part) => {
                model.compiler.compile(&GrammarKind::Parts(part).into()).expect_err("this must be refused")
            }
        };
        error.0
    };
    let with = |schema: Value| json!({"name": "f", "strict": true, "parameters": {"type": "object", "properties": {"x": schema}, "required": ["x"]}});
    assert!(
        refused("hermes", with(json!({"not": {"pattern": "a"}})))
            .contains("#/properties/x: the keyword \"not\"")
    );
    assert!(refused("glm45", with(json!({"not": {"pattern": "a"}}))).contains("the keyword \"not\""));
    assert!(
        refused("glm45", with(json!({"type": "string", "pattern": "a"}))).contains("\"pattern\" of a string")
    );
    assert!(
        refused(
            "qwen3_coder",
            json!({"name": "f", "strict": true, "parameters": {"type": "object", "minProperties": 1}})
        )
        .contains("\"minProperties\"")
    );
    assert!(refused("hermes", json!({"name": "a b"})).contains("function name \"a b\""));
    assert!(refused("hermes", json!({"name": "f", "parameters": {"type": "array"}})).contains("type object"));
    assert!(
        refused("glm45", json!({"name": "f", "parameters": {"required": ["y"]}}))
            .contains("\"y\" has no schema")
    );
}

#[test]
fn a_tool_that_is_not_strict_drops_what_cannot_be_enforced_and_says_so() {
    let model = Model::new(ToolFormat::named("hermes").expect("a format"), false);
    let tool = json!({"function": {"name": "f", "parameters": {"properties": {"x": {"type": "array", "items": {"type": "integer"}, "uniqueItems": true}}}}});
    let tools: Vec<Tool<'_>> = Tool::of(&tool).into_iter().collect();
    let part = calls(&model.format.syntax(&model.tokenizer), &tools, true).expect("it can be expressed");
    let grammar = model.compiler.compile(&GrammarKind::Parts(part).into()).expect("it compiles");
    assert_eq!(grammar.dropped(), ["#/properties/x/uniqueItems"]);
}

/// The parser's limit is hit where the names begin, behind text that every call begins with: a request that fails there
/// has failed at its first choice, and must not be taken.
#[test]
fn more_functions_than_the_parser_holds_are_refused_before_the_first_token() {
    let model = Model::new(ToolFormat::named("hermes").expect("a format"), false);
    let tools: Vec<Value> = (0..2100)
        .map(|i| json!({"function": {"name": format!("f{i}"), "parameters": {"type": "object", "properties": {}}}}))
        .collect();
    let tools: Vec<Tool<'_>> = tools.iter().filter_map(Tool::of).collect();
    let part = calls(&model.format.syntax(&model.tokenizer), &tools, true).expect("hermes writes any");
    let error = model.compiler.compile(&GrammarKind::Parts(part).into()).expect_err("too many");
    assert!(error.0.contains("max is 2000"), "{error}");
}

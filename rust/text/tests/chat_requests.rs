//! What a chat request may contain, and what a template may do.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use frizzen_core::{Error, Result};
use frizzen_text::{ChatTemplate, RenderRequest};
use serde_json::{Value, json};

const CHATML: &str = "{% for m in messages %}<|{{ m.role }}|>{{ m['content'] + '' }}\
    {% for call in m.tool_calls or [] %}<call>{{ call.function.name }}\
    {% for k, v in call.function.arguments.items() %} {{ k }}={{ v }}{% endfor %}</call>{% endfor %}{{ '\\n' }}{% endfor %}\
    {% if add_generation_prompt %}<|assistant|>{% endif %}";

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned())])).unwrap()
}

fn render(source: &str, messages: &Value) -> Result<String> {
    let messages = messages.as_array().unwrap();
    template(source).render(&RenderRequest { messages, ..RenderRequest::default() })
}

/// The refusal, which must name the field.
fn refusal(source: &str, messages: &Value) -> String {
    match render(source, messages) {
        Err(Error::Invalid { param: "messages", message }) => message,
        other => panic!("{other:?}"),
    }
}

fn history(arguments: &Value, content: Option<Value>) -> Value {
    let mut assistant = json!({"role": "assistant", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "run", "arguments": arguments}}]});
    if let Some(content) = content {
        assistant["content"] = content;
    }
    json!([{"role": "user", "content": "date?"}, assistant,
           {"role": "tool", "tool_call_id": "c1", "content": "Mon"}, {"role": "user", "content": "again"}])
}

#[test]
fn tool_arguments_are_objects_for_the_template_localai_10256() {
    let expected =
        |call: &str| format!("<|user|>date?\n<|assistant|><call>{call}</call>\n<|tool|>Mon\n<|user|>again\n");
    for content in [None, Some(Value::Null), Some(json!(""))] {
        let got = render(CHATML, &history(&json!("{\"cmd\":\"date\"}"), content.clone())).unwrap();
        assert_eq!(got, expected("run cmd=date"));
        for empty in [json!(""), json!("{}"), json!({})] {
            assert_eq!(render(CHATML, &history(&empty, content.clone())).unwrap(), expected("run"));
        }
    }
    let bad = refusal(CHATML, &history(&json!("not json"), None));
    assert!(bad.starts_with("messages[1].tool_calls[0].function.arguments is not JSON"), "{bad}");
    assert!(refusal(CHATML, &history(&json!("[1]"), None)).contains("must be a JSON object, got a list"));
}

#[test]
fn an_empty_assistant_message_is_a_message_vllm_21089() {
    for content in [json!(""), json!([]), json!([{"type": "text", "text": ""}])] {
        let messages = json!([{"role": "user", "content": "A"}, {"role": "assistant", "content": content},
                              {"role": "user", "content": "B"}]);
        assert_eq!(render(CHATML, &messages).unwrap(), "<|user|>A\n<|assistant|>\n<|user|>B\n");
    }
}

#[test]
fn an_answer_may_come_back_in_the_parts_it_was_given_in_hebo_gateway_35_vllm_55479() {
    let parts = "{% for m in messages %}{% for part in m.content %}[{{ part.type }}:{{ part.text }}]{% endfor %}{% endfor %}";
    let answer =
        |part: Value| json!([{"role": "user", "content": "A"}, {"role": "assistant", "content": [part]}]);
    for part in [
        json!({"type": "text", "text": "B"}),
        json!({"type": "output_text", "text": "B", "annotations": []}),
        json!({"type": "input_text", "text": "B"}),
        json!({"type": "refusal", "refusal": "B"}),
        json!("B"),
    ] {
        assert_eq!(render(CHATML, &answer(part.clone())).unwrap(), "<|user|>A\n<|assistant|>B\n", "{part}");
        assert_eq!(render(parts, &answer(part.clone())).unwrap(), "[text:A][text:B]", "{part}");
    }
    assert!(
        refusal(CHATML, &answer(json!({"type": "refusal", "text": "B"})))
            .contains("no string in \"refusal\"")
    );
}

#[test]
fn malformed_messages_are_refused_by_field_dynamo_2067() {
    let cases = [
        (json!([]), "at least 1 item"),
        (json!([{}]), "messages[0].role is required"),
        (json!(["hi"]), "messages[0] must be an object, got a string"),
        (json!([{"role": 5, "content": "x"}]), "messages[0].role must be a string, got 5"),
        (json!([{"role": "wizard", "content": "x"}]), "got \"wizard\""),
        (json!([{"role": "user"}]), "messages[0].content is required for the role user"),
        (json!([{"role": "user", "content": 5}]), "string or a list of parts, got a number"),
        (
            json!([{"role": "user", "content": [{"type": "hologram"}]}]),
            "messages[0].content[0] has the type \"hologram\"",
        ),
        (json!([{"role": "user", "content": [{"text": "x"}]}]), "must be an object with a \"type\""),
        (json!([{"role": "user", "content": [{"type": "text", "text": 1}]}]), "has no string in \"text\""),
        (
            json!([{"role": "user", "name": {"a": 1}, "content": "x"}]),
            "[0].name must be a string, got an object",
        ),
        (json!([{"role": "assistant", "content": "x", "reasoning": ["y"]}]), "reasoning must be a string"),
        (
            json!([{"role": "assistant", "tool_calls": [{"id": 5, "function": {"name": "f"}}]}]),
            "tool_calls[0].id must be a string, got a number",
        ),
        (
            json!([{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": ["f"]}}]}]),
            "tool_calls[0].function.name must be a string, got a list",
        ),
        (json!([{"role": "tool", "tool_call_id": 9, "content": "x"}]), "tool_call_id must be a string"),
        (json!([{"role": "assistant", "tool_calls": 7}]), "tool_calls must be a list"),
        (json!([{"role": "assistant", "tool_calls": [7]}]), "tool_calls[0] must be an object"),
        (
            json!([{"role": "tool", "tool_call_id": "c9", "content": "x"}]),
            "\"c9\" is not the id of an earlier tool call",
        ),
    ];
    for (messages, expected) in cases {
        let message = refusal(CHATML, &messages);
        assert!(message.contains(expected), "{messages}: {message}");
    }
}

#[test]
fn ten_thousand_messages_are_rendered() {
    let messages: Vec<Value> =
        (0..10_000).map(|i| json!({"role": "user", "content": format!("message {i}")})).collect();
    let prompt = render(CHATML, &Value::Array(messages)).unwrap();
    assert!(prompt.ends_with("<|user|>message 9999\n"));
}

/// A template can neither loop for ever nor fill the memory with its output, whoever wrote it.
#[test]
fn hostile_templates_end_quickly_vllm_52025() {
    let loops = "{% for a in range(999) %}{% for b in range(999) %}{% for c in range(999) %}{% endfor %}{% endfor %}{% endfor %}ok";
    let cases = [
        (loops, "work limit"),
        ("{{ 'x' * 10**9 }}", "too large"),
        ("{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}", "output limit"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% for i in range(10**9) %}{% endfor %}", "range"),
        ("{{ 'a'.ljust(10**9) }}", "width"),
        (
            "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|tojson }}",
            "more than",
        ),
    ];
    for (source, reason) in cases {
        let start = Instant::now();
        let message = refusal(source, &json!([{"role": "user", "content": "x"}]));
        assert!(message.contains(reason), "{source}: {message}");
        // Generous for an unoptimised build on a busy machine; unlimited, the first takes a minute.
        assert!(start.elapsed() < Duration::from_secs(8), "{source} took {:?}", start.elapsed());
    }
    let counted = render("{{ 'aaa'.count('') }}", &json!([{"role": "user", "content": "x"}]));
    assert_eq!(counted.unwrap(), "4");
}

#[test]
fn a_template_that_does_not_parse_is_refused_when_it_is_loaded() {
    for source in ["{% if %}", "{{ (", "{% for x in y %}", "{% endif %}"] {
        let error = ChatTemplate::new(source, BTreeMap::new()).expect_err(source);
        assert!(error.to_string().contains("does not parse"), "{error}");
    }
}

#[test]
fn what_a_template_refuses_is_told_in_its_own_words() {
    let source = "{% if messages|length > 1 %}{{ raise_exception('One message only!') }}{% endif %}ok";
    let two = json!([{"role": "user", "content": "x"}, {"role": "user", "content": "y"}]);
    let message = refusal(source, &two);
    assert!(message.starts_with("chat template refused the messages: One message only!"), "{message}");
}

#[test]
fn text_parts_become_what_the_template_reads() {
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]);
    let string = json!([{"role": "user", "content": "one"}]);
    // Reads strings only: parts are joined by a newline.
    let strings = "{% for m in messages %}{{ m.content + '.' }}{% endfor %}";
    assert_eq!(render(strings, &parts).unwrap(), "one\ntwo.");
    // Would print a list: the same.
    assert_eq!(render("{{ messages[0].content }}", &parts).unwrap(), "one\ntwo");
    // Reads parts only: strings are wrapped.
    let only_parts = "{% for p in messages[-1].content %}[{{ p.text }}]{% endfor %}";
    assert_eq!(render(only_parts, &string).unwrap(), "[one]");
    // Reads both: nothing is changed.
    let both = "{% set c = messages[-1].content %}{% if c is string %}{{ c }}{% else %}{{ c|map(attribute='text')|join('+') }}{% endif %}";
    assert_eq!(
        (render(both, &string).unwrap(), render(both, &parts).unwrap()),
        ("one".into(), "one+two".into())
    );
}

#[test]
fn roles_are_those_the_template_knows() {
    let developer = json!([{"role": "developer", "content": "x"}]);
    assert_eq!(render("{{ messages[0].role }}", &developer).unwrap(), "system");
    let knows = "{% if messages[0].role == 'developer' %}D{% endif %}";
    assert_eq!(render(knows, &developer).unwrap(), "D");
    let custom = json!([{"role": "ipython", "content": "x"}]);
    assert_eq!(render("{% if messages[0]['role'] == \"ipython\" %}I{% endif %}", &custom).unwrap(), "I");
    assert!(refusal("{{ messages[0].role }}", &custom).contains("ipython"));
}

#[test]
fn reasoning_is_found_under_each_of_its_names() {
    for name in ["reasoning", "reasoning_content", "thinking"] {
        let messages = json!([{"role": "assistant", "content": "4", name: "2+2"}]);
        let source = "{{ messages[0].reasoning_content }}|{{ messages[0].thinking }}";
        assert_eq!(render(source, &messages).unwrap(), "2+2|2+2");
    }
}

#[test]
fn variables_and_variants() {
    let messages = [json!({"role": "user", "content": "x"})];
    let source = "{{ bos_token }}{{ flag }}{{ tools is none }}{{ strftime_now('%Y') }}";
    let kwargs = json!({"flag": true});
    let request = RenderRequest {
        messages: &messages,
        kwargs: kwargs.as_object(),
        local_time: 1_709_251_199,
        ..RenderRequest::default()
    };
    assert_eq!(template(source).render(&request).unwrap(), "<s>TrueTrue2024");
    let reserved = json!({"messages": []});
    let error =
        template(source).render(&RenderRequest { kwargs: reserved.as_object(), ..request }).unwrap_err();
    assert!(matches!(&error, Error::Invalid { param: "chat_template_kwargs", .. }), "{error:?}");
}

#[test]
fn a_template_without_tools_says_so() {
    assert!(!template("{{ messages[0].content }}").reads_tools());
    assert!(template("{% for t in tools %}{{ t }}{% endfor %}").reads_tools());
}

#[test]
fn a_message_can_be_continued() {
    let messages =
        [json!({"role": "user", "content": "x"}), json!({"role": "assistant", "content": "The answer "})];
    let request =
        RenderRequest { messages: &messages, continue_final_message: true, ..RenderRequest::default() };
    assert_eq!(template(CHATML).render(&request).unwrap(), "<|user|>x\n<|assistant|>The answer ");
    let both = RenderRequest { add_generation_prompt: true, ..request };
    let error = template(CHATML).render(&both).unwrap_err();
    assert!(matches!(&error, Error::Invalid { param: "continue_final_message", .. }), "{error:?}");
    let calls = [
        json!({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}),
    ];
    let error = template(CHATML).render(&RenderRequest { messages: &calls, ..request }).unwrap_err();
    assert!(matches!(&error, Error::Invalid { param: "continue_final_message", .. }), "{error:?}");
}

/// The second turn's prompt begins with the first one's, so the prefix cache can serve it.
#[test]
fn the_next_turn_extends_the_prompt() {
    let first = json!([{"role": "user", "content": "x"}]);
    let second = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}, {"role": "user", "content": "z"}]);
    let (first, second) = (render(CHATML, &first).unwrap(), render(CHATML, &second).unwrap());
    assert!(second.starts_with(&first));
}

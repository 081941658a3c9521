//! The golden corpus: what `transformers` renders, we render. See `data/make_chat_templates.py`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use frizzen_text::{ChatTemplate, RenderRequest};
use serde_json::Value;

fn corpus() -> Value {
    // A corpus over other templates can be made with the script's `--templates` and checked by the same test.
    let text = match std::env::var("FRIZZEN_TEST_TEMPLATES") {
        Ok(path) => std::fs::read_to_string(path).unwrap(),
        Err(_) => include_str!("data/chat_templates.json").to_owned(),
    };
    serde_json::from_str(&text).unwrap()
}

fn list(case: &Value, field: &str) -> Option<Vec<Value>> {
    case[field].as_array().cloned()
}

fn render(
    corpus: &Value,
    templates: &BTreeMap<String, ChatTemplate>,
    case: &Value,
) -> frizzen_core::Result<String> {
    let messages = list(case, "messages").unwrap();
    let (tools, documents) = (list(case, "tools"), list(case, "documents"));
    templates[case["template"].as_str().unwrap()].render(&RenderRequest {
        messages: &messages,
        tools: tools.as_deref(),
        documents: documents.as_deref(),
        add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
        continue_final_message: case["continue_final_message"].as_bool().unwrap_or(false),
        kwargs: case["kwargs"].as_object(),
        local_time: corpus["local_time"].as_i64().unwrap(),
    })
}

#[test]
fn prompts_are_those_of_transformers() {
    let corpus = corpus();
    let special: BTreeMap<String, String> = serde_json::from_value(corpus["special_tokens"].clone()).unwrap();
    let templates = corpus["templates"].as_object().unwrap().iter().map(|(name, source)| {
        let template = ChatTemplate::new(source.as_str().unwrap(), special.clone());
        (name.clone(), template.unwrap_or_else(|e| panic!("{name}: {e}")))
    });
    let templates: BTreeMap<String, ChatTemplate> = templates.collect();

    let cases = corpus["cases"].as_array().unwrap();
    let mut wrong = Vec::new();
    let mut equal = 0;
    for case in cases {
        let ours = render(&corpus, &templates, case);
        match (&ours, case["expected"].as_str()) {
            (Ok(ours), Some(expected)) if ours == expected => equal += 1,
            // Where transformers refuses a message for its missing content, an empty one is tried.
            (Ok(_), None) if case["error"].as_str().unwrap().contains("'content'") => {}
            (Err(_), None) => {}
            _ => wrong.push(format!(
                "{}\n--- transformers\n{}{}\n--- ours\n{ours:?}",
                case["name"],
                case["expected"],
                case["error"].as_str().unwrap_or_default()
            )),
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases differ:\n{}", wrong.len(), cases.len(), wrong.join("\n\n"));
    assert!(equal >= 40, "only {equal} cases were compared");
}

//! Whole bodies, and prompts of completions.

use serde_json::json;

use super::{LIMITS, chat_bytes, completion_bytes, read};
use crate::request::completion::{CompletionRequest, Prompt};
use crate::request::fields::Fields;
use crate::request::parity::Dialect;

#[test]
fn prompts_are_text_or_ids_or_lists_of_them() {
    let prompts = |value| {
        let (fields, _) =
            Fields::parse(json!({"prompt": value}).to_string().as_bytes(), Dialect::Completions)?;
        CompletionRequest::read(fields, &LIMITS).map(|request| request.prompts)
    };
    let text = |text: &str| Prompt::Text(text.to_owned());
    assert_eq!(prompts(json!("a")).unwrap(), [text("a")]);
    assert_eq!(prompts(json!(["a", "b"])).unwrap(), [text("a"), text("b")]);
    assert_eq!(prompts(json!([1, 2])).unwrap(), [Prompt::Ids(vec![1, 2])]);
    assert_eq!(prompts(json!([[1], [2, 3]])).unwrap(), [Prompt::Ids(vec![1]), Prompt::Ids(vec![2, 3])]);
    assert_eq!(prompts(json!(["a", [1]])).unwrap(), [text("a"), Prompt::Ids(vec![1])]);
}

#[test]
fn one_bad_prompt_refuses_the_whole_body_vllm_45035() {
    for bad in
        [json!([]), json!(""), json!([[]]), json!([[1], []]), json!([""]), json!(["a", ""]), json!(["a", 1])]
    {
        let error = read(Dialect::Completions, "prompt", bad.clone()).expect_err(&bad.to_string());
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("prompt")));
    }
    assert_eq!(completion_bytes(b"{}").unwrap_err().param.as_deref(), Some("prompt"));
}

#[test]
fn prompt_ids_are_of_the_vocabulary_vllm_51795() {
    for bad in
        ["[-1]", "[1000]", "[4294967295]", "[5279552648203111001]", "[1.5]", "[true]", "[[0,1000]]", "[1e99]"]
    {
        let body = format!("{{\"prompt\":{bad}}}");
        let error = completion_bytes(body.as_bytes()).expect_err(bad);
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("prompt")), "{bad}");
    }
}

#[test]
fn unpaired_surrogates_are_refused_without_internals_rapid_mlx_730() {
    for text in ["a\\ud83db", "\\ud800", "\\udc00"] {
        for body in [
            format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}]}}"),
            format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"q\"}}],\"stop\":\"{text}\"}}"),
        ] {
            let error = chat_bytes(body.as_bytes()).expect_err(text);
            assert_eq!(error.status, 400);
            assert!(error.message.starts_with("the body is not valid JSON"), "{error:?}");
        }
    }
    for text in ["\\ud83d\\ude00", "\\u0000"] {
        let body = format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}]}}");
        assert!(chat_bytes(body.as_bytes()).is_ok(), "{text}");
    }
}

#[test]
fn a_deep_body_is_refused_and_overflows_nothing_llama_cpp_26600() {
    let deep = format!("{{\"prompt\":{}", "[".repeat(100_000));
    assert_eq!(completion_bytes(deep.as_bytes()).unwrap_err().status, 400);
}

#[test]
fn a_body_that_is_no_object_is_refused() {
    for body in ["", " ", "[]", "null", "3", "\"x\"", "{", "{\"prompt\":\"a\"}x", "\u{feff}{}"] {
        assert_eq!(completion_bytes(body.as_bytes()).expect_err(body).status, 400);
    }
    assert_eq!(completion_bytes(b"{\"prompt\":\"\xff\"}").unwrap_err().status, 400);
}

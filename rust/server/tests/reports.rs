//! Public bug reports that belong to no other file, each as the kind of thing that it is.

mod common;

use std::net::TcpListener;

use common::{Server, letters, script, streamed};
use frizzen_engine::WorkerInfo;
use frizzen_engine::mock::{Content, MockWorker};
use frizzen_server::mock;
use serde_json::{Value, json};

const TOOL_FLAGS: [&str; 3] = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"];
const CALL: &str = "<tool_call>\n{\"name\": \"w\", \"arguments\": {\"c\": \"x\"}}\n</tool_call>";

/// A small body of every route that generates.
fn bodies() -> [(&'static str, Value); 5] {
    let messages = json!([{"role": "user", "content": "q"}]);
    [
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 4})),
        ("/v1/completions", json!({"prompt": "q", "max_tokens": 4})),
        ("/v1/responses", json!({"input": "q", "max_output_tokens": 4})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 4})),
        ("/inference/v1/generate", json!({"token_ids": [113], "sampling_params": {"max_tokens": 4}})),
    ]
}

#[test]
fn logprobs_go_with_tools_and_streams_llama_cpp_28504() {
    let server = Server::with(&TOOL_FLAGS, script(CALL));
    let tool = json!({"type": "function", "function": {"name": "w",
        "parameters": {"type": "object", "properties": {"c": {"type": "string"}}}}});
    let fields = json!({"tools": [tool], "logprobs": true, "top_logprobs": 2});
    let whole = server.client().chat(&fields).ok()["choices"][0].clone();
    assert_eq!(whole["finish_reason"], "tool_calls");
    let events = server.client().chat(&streamed(&fields)).events();
    let entries =
        events.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array()).flatten();
    let entries: Vec<&Value> = entries.collect();
    assert_eq!(json!(entries), whole["logprobs"]["content"]);
    assert_eq!(entries.len(), CALL.len() + 1);
}

#[test]
fn unpaired_surrogates_are_refused_on_every_route_rapid_mlx_730() {
    let server = Server::start(letters());
    for path in
        bodies().map(|(path, _)| path).into_iter().chain(["/tokenize", "/v1/parse", "/abort_requests"])
    {
        let body = br#"{"prompt": "a\ud83db", "messages": [{"role": "user", "content": "\ud800"}], "max_tokens": 1}"#;
        let answer = server.client().call("POST", path, Some(body));
        assert_eq!(answer.status, 400, "{path}");
        assert!(!answer.text().contains(".rs"), "{path}: {}", answer.text());
    }
}

#[test]
fn every_dialect_renders_the_same_prompt_vllm_55288() {
    let server = Server::start(letters());
    let client = server.client();
    let messages = json!([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}]);
    let user = json!([{"role": "user", "content": "hi"}]);
    let chat = client.post("/v1/chat/completions", &json!({"messages": messages, "max_tokens": 1})).ok();
    let length = &chat["usage"]["prompt_tokens"];
    let tokenized = client.post("/tokenize", &json!({"messages": messages})).ok();
    assert_eq!(&tokenized["count"], length);
    for input in [
        json!("hi"),
        user.clone(),
        json!([{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]),
    ] {
        let body = json!({"input": input, "instructions": "Be kind.", "max_output_tokens": 1});
        let response = client.post("/v1/responses", &body).ok();
        assert_eq!(&response["usage"]["input_tokens"], length, "{body}");
        // Everything but the last tokens came from the cache, and so was the same.
        assert!(response["usage"]["input_tokens_details"]["cached_tokens"].as_u64() > Some(0));
    }
    let body = json!({"system": "Be kind.", "messages": user, "max_tokens": 1});
    assert_eq!(&client.post("/v1/messages/count_tokens", &body).ok()["input_tokens"], length);
}

#[test]
fn n_is_obeyed_or_refused_on_every_route_vllm_52843() {
    let server = Server::start(letters());
    for (path, mut body) in bodies() {
        let params =
            if body["sampling_params"].is_object() { &mut body["sampling_params"] } else { &mut body };
        params["n"] = json!(4);
        let answer = server.client().post(path, &body);
        match path {
            "/v1/responses" => assert_eq!(answer.error().0, 400),
            // Unknown there, as in the original, and counted as such.
            "/v1/messages" => assert_eq!(answer.ok()["type"], "message"),
            _ => {
                let indexes: Vec<u64> = answer.ok()["choices"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|c| c["index"].as_u64().unwrap())
                    .collect();
                assert_eq!(indexes, [0, 1, 2, 3], "{path}");
            }
        }
    }
}

#[test]
fn drafts_leave_the_prefix_cache_its_hits_vllm_54360() {
    let cached = |flags: &[&str]| {
        let worker = MockWorker::new(WorkerInfo { max_drafts: 8, ..mock::info() }).saying(Content::Echo);
        let server = Server::with(flags, worker);
        let body = json!({"prompt": "abcdefgh".repeat(250), "max_tokens": 9});
        [(); 2].map(|()| {
            server.client().completion(&body).ok()["usage"]["prompt_tokens_details"]["cached_tokens"]
                .as_u64()
                .unwrap()
        })
    };
    let plain = cached(&[]);
    assert!(plain[0] == 0 && plain[1] > 1900, "{plain:?}");
    assert_eq!(cached(&["--drafter", "ngram", "--speculation", "4"]), plain);
}

#[test]
fn a_finished_grammar_ends_whatever_min_tokens_says_vllm_53665() {
    let server = Server::start(letters());
    let schema = json!({"type": "boolean"});
    let body =
        json!({"prompt": "q", "structured_outputs": {"json": schema}, "min_tokens": 64, "max_tokens": 96});
    let answer = server.client().completion(&body);
    let text = answer.text();
    match answer.status {
        200 => {
            let said = answer.ok()["choices"][0]["text"].as_str().unwrap().trim().to_owned();
            assert!(said == "true" || said == "false", "{text}");
        }
        status => assert_eq!(status, 400, "{text}"),
    }
    assert_eq!(server.client().completion(&json!({"prompt": "q", "max_tokens": 1})).status, 200);
}

#[test]
fn no_url_and_no_path_of_a_request_is_opened_vllm_57157_vllm_mlx_320() {
    let inner = TcpListener::bind("127.0.0.1:0").unwrap();
    inner.set_nonblocking(true).unwrap();
    let port = inner.local_addr().unwrap().port();
    let server = Server::start(letters());
    let places = [
        format!("http://127.0.0.1:{port}/x"),
        format!("http://0x7f000001:{port}/"),
        format!("http://[::1]:{port}/"),
        "file:///etc/hostname".to_owned(),
        "/etc/hostname".to_owned(),
        "/etc/no-such-file".to_owned(),
        "data:image/png;base64,AAAA".to_owned(),
    ];
    let mut answers = Vec::new();
    for place in &places {
        let chat = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": place}}]}]);
        let input = json!([{"role": "user", "content": [{"type": "input_image", "image_url": place}]}]);
        let image = json!({"type": "image", "source": {"type": "url", "url": place}});
        let blocks = json!([{"role": "user", "content": [image]}]);
        for (path, body) in [
            ("/v1/chat/completions", json!({"messages": chat})),
            ("/v1/responses", json!({"input": input})),
            ("/v1/messages", json!({"messages": blocks, "max_tokens": 1})),
            ("/tokenize", json!({"messages": chat})),
        ] {
            let answer = server.client().post(path, &body);
            assert_eq!(answer.status, 501, "{path} {place}: {}", answer.text());
            let error = answer.json()["error"]["message"].clone();
            answers.push((path, error));
        }
        let model = server.client().completion(&json!({"prompt": "q", "model": place}));
        assert_eq!(model.status, 404, "{place}");
    }
    // The same for every place, whether it exists or not.
    for path in ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/tokenize"] {
        let mut of_path = answers.iter().filter(|(other, _)| *other == path).map(|(_, error)| error);
        let first = of_path.next().unwrap();
        assert!(of_path.all(|error| error == first));
    }
    assert!(inner.accept().is_err(), "somebody called");
}

#[test]
fn prompt_embeddings_are_refused_unread_vllm_54632() {
    let server = Server::start(letters());
    for embeds in [json!("gASVAAAA"), json!([[0.0]]), json!({"shape": [1_u64 << 40, 1_u64 << 40]})] {
        let answer = server.client().completion(&json!({"prompt": "q", "prompt_embeds": embeds}));
        assert_eq!((answer.error().0, answer.error().2.as_deref()), (501, Some("prompt_embeds")));
    }
}

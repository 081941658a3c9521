//! What bad requests get: a status, OpenAI's error form, and a server that lives on.

mod common;

use std::io::Write as _;

use common::{Server, chat_body, letters, read_answer, saying, script, slow_letters, wait_until};
use frizzen_engine::WorkerInfo;
use frizzen_engine::mock::{Content, MockWorker};
use frizzen_server::mock;
use frizzen_server::routes::{Auth, Endpoint, Method, ROUTES};
use serde_json::json;

fn at(route: &frizzen_server::routes::Route) -> (&'static str, String) {
    let path = route.path.replace("{*id}", "mock").replace("{id}", "x");
    let method = match route.method {
        Method::Get => "GET",
        Method::Post => "POST",
        Method::Delete => "DELETE",
    };
    (method, path)
}

#[test]
fn unknown_paths_are_a_json_404() {
    let server = Server::start(script("x"));
    for path in ["/", "/v1", "/v2/chat/completions", "/v1/chat/completions/", "/metrics/x", "/%2e%2e/etc"] {
        assert_eq!(server.client().get(path).error(), (404, "NotFoundError".to_owned(), None));
    }
}

#[test]
fn a_wrong_method_is_a_json_405_that_names_the_right_one() {
    let server = Server::start(script("x"));
    for route in ROUTES {
        let (method, path) = at(route);
        let answer = server.client().call("PATCH", &path, Some(b"{}"));
        if route.is_anthropic() {
            assert_eq!(
                (answer.status, &answer.json()["error"]["type"]),
                (405, &"invalid_request_error".into())
            );
        } else {
            assert_eq!(answer.error().0, 405, "{path}");
        }
        let allow = answer.header("allow").unwrap_or_default();
        assert!(allow.split(", ").any(|allowed| allowed == method), "{path}: {allow}");
        let options = server.client().call("OPTIONS", &path, None);
        assert_eq!((options.status, options.header("allow")), (204, Some(allow)), "{path}");
    }
}

#[test]
fn known_endpoints_that_are_not_served_are_a_typed_501() {
    let server = Server::start(script("x"));
    for route in ROUTES.iter().filter(|route| route.endpoint == Endpoint::Unsupported) {
        let (method, path) = at(route);
        let answer = server.client().call(method, &path, Some(b"{}"));
        assert_eq!(answer.error(), (501, "NotImplementedError".to_owned(), None), "{path}");
        assert_eq!(answer.header("x-should-retry"), Some("false"));
    }
}

#[test]
fn bodies_are_limited_rapid_mlx_706() {
    let server = Server::with(&["--body-limit", "1000"], script("x"));
    let padded = |size: usize| {
        let body = json!({"prompt": "x"}).to_string();
        format!("{body}{}", " ".repeat(size - body.len())).into_bytes()
    };
    let post = |body: &[u8]| server.client().call("POST", "/v1/completions", Some(body)).status;
    assert_eq!(post(&padded(999)), 200);
    assert_eq!(post(&padded(1000)), 200);
    let over = server.client().call("POST", "/v1/completions", Some(&padded(1001)));
    assert_eq!(over.error(), (413, "BadRequestError".to_owned(), None));
    assert!(over.json()["error"]["message"].as_str().unwrap().contains("1000"));
    // Refused by what it says, before it is sent.
    let head = "POST /v1/completions HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-length: 99999999999\r\n\r\n";
    assert_eq!(read_answer(server.client().raw(head.as_bytes())).error().0, 413);
    // Said nothing, and sent too much.
    let mut chunked = b"POST /v1/completions HTTP/1.1\r\nhost: t\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..20 {
        chunked.extend_from_slice(b"64\r\n");
        chunked.extend_from_slice(&[b' '; 100]);
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    assert_eq!(read_answer(server.client().raw(&chunked)).error().0, 413);
}

#[test]
fn only_json_is_taken() {
    let server = Server::start(script("x"));
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"] {
        let answer =
            server.client().header("content-type", kind).call("POST", "/v1/completions", Some(b"{}"));
        assert_eq!(answer.error(), (415, "BadRequestError".to_owned(), None));
    }
    let gzip =
        server.client().header("content-encoding", "gzip").call("POST", "/v1/completions", Some(b"\x1f\x8b"));
    assert_eq!(gzip.error().0, 415);
    for body in [&b""[..], b"{", b"[]", b"\xff\xfe", b"{\"prompt\": \"x\"} trailing"] {
        assert_eq!(server.client().call("POST", "/v1/completions", Some(body)).error().0, 400, "{body:?}");
        assert_eq!(server.client().call("POST", "/tokenize", Some(body)).error().0, 400, "{body:?}");
    }
}

#[test]
fn a_body_that_breaks_off_hurts_nobody() {
    let server = Server::start(script("x"));
    let head = "POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 100\r\n\r\n{\"prompt\":";
    drop(server.client().raw(head.as_bytes()));
    assert_eq!(server.client().completion(&json!({"prompt": "x"})).status, 200);
}

#[test]
fn every_route_but_the_open_ones_needs_the_key_vllm_58144() {
    let server = Server::with(&["--api-key", "first", "second"], script("x"));
    for route in ROUTES {
        let (method, path) = at(route);
        let call = |key: Option<&str>| {
            let client = server.client();
            let client = key
                .iter()
                .fold(client, |client, key| client.header("authorization", &format!("Bearer {key}")));
            client.call(method, &path, Some(b"{}")).status
        };
        if route.auth == Auth::Open {
            assert_ne!(call(None), 401, "{path}");
            continue;
        }
        assert_eq!(call(None), 401, "{path}");
        assert_eq!(call(Some("wrong")), 401, "{path}");
        assert_ne!(call(Some("first")), 401, "{path}");
        assert_ne!(call(Some("second")), 401, "{path}");
    }
}

#[test]
fn no_spelling_of_a_path_gets_around_the_key_vllm_58144() {
    let server = Server::with(&["--api-key", "k"], script("x"));
    let body = chat_body(&json!({})).to_string();
    for path in [
        "//v1/chat/completions",
        "/v1/../v1/chat/completions",
        "/V1/chat/completions",
        "/v1/chat/completions/",
        "/v1/chat%2fcompletions",
        "/health/../v1/chat/completions",
        "/health%2f..%2fv1/chat/completions",
        "/metrics?x=/v1/chat/completions/../..",
        "/nothing",
    ] {
        let answer = server.client().call("POST", path, Some(body.as_bytes()));
        assert!(matches!(answer.status, 401 | 405), "{path}: {}", answer.status);
    }
    for method in ["OPTIONS", "HEAD", "DELETE", "PUT"] {
        assert_eq!(server.client().call(method, "/v1/models", None).status, 401, "{method}");
    }
    let twice = server.client().header("authorization", "Bearer k").header("authorization", "Bearer k");
    assert_eq!(twice.get("/v1/models").error().1, "AuthenticationError");
}

#[test]
fn a_missing_key_is_noticed_before_the_body_is_read() {
    let server = Server::with(&["--api-key", "k"], script("x"));
    let head =
        "POST /v1/completions HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-length: 1000\r\n\r\n";
    let stream = server.client().raw(head.as_bytes());
    assert_eq!(read_answer(stream).error().0, 401);
}

#[test]
fn a_request_keeps_its_callers_name() {
    let server = Server::start(script("x"));
    let answer = server.client().header("x-request-id", "job-7").chat(&json!({}));
    assert_eq!(answer.header("x-request-id"), Some("job-7"));
    assert_eq!(answer.json()["id"], "chatcmpl-job-7");
    let made = server.client().get("/version");
    assert_eq!(made.header("x-request-id").unwrap().len(), 32);
    let named = server.client().chat(&json!({"request_id": "mine"}));
    assert_eq!(named.json()["id"], "chatcmpl-mine");
    assert!(server.client().get("/nothing").header("x-request-id").is_some());
}

#[test]
fn browsers_are_let_in_only_if_asked_for() {
    let origin = |server: &Server| {
        let client = server
            .client()
            .header("origin", "https://app.example")
            .header("access-control-request-method", "POST");
        let answer = client.call("OPTIONS", "/v1/chat/completions", None);
        answer.header("access-control-allow-origin").map(str::to_owned)
    };
    assert_eq!(origin(&Server::start(script("x"))), None);
    let all = Server::with(&["--allowed-origins", "*", "--api-key", "k"], script("x"));
    assert_eq!(origin(&all).as_deref(), Some("*"));
    let one = Server::with(&["--allowed-origins", "https://other.example"], script("x"));
    assert_eq!(origin(&one), None);
}

#[test]
fn head_is_get_without_its_body_and_with_its_length() {
    let server = Server::with(&["--api-key", "k"], script("x"));
    let client = server.client().header("authorization", "Bearer k");
    for (path, status) in [
        ("/health", 200),
        ("/ping", 200),
        ("/v1/models", 200),
        ("/openapi.json", 200),
        ("/v1/models/none", 404),
        ("/v1/responses/resp_none", 404),
        ("/nothing", 404),
    ] {
        let (head, get) = (client.call("HEAD", path, None), client.get(path));
        assert_eq!((head.status, get.status, head.body.len()), (status, status, 0), "{path}");
        assert_eq!(get.header("content-length"), Some(&*get.body.len().to_string()), "{path}");
        for name in ["content-length", "content-type"] {
            assert_eq!(head.header(name), get.header(name), "{name} of {path}");
        }
    }
    // What GET is not for, and a key that is missing, are refused without a body too.
    let length = |answer: &common::Answer| answer.header("content-length").unwrap().parse::<usize>().unwrap();
    for (answer, status) in [
        (client.call("HEAD", "/v1/completions", None), 405),
        (server.client().call("HEAD", "/v1/models", None), 401),
    ] {
        assert_eq!((answer.status, answer.body.len()), (status, 0));
        assert!(length(&answer) > 0);
    }
    let metrics = client.call("HEAD", "/metrics", None);
    assert_eq!((metrics.status, metrics.body.len()), (200, 0));
    assert!(length(&metrics) > 1000);
    // A connection goes on after a HEAD: nothing of a body was sent.
    let head = "HEAD /ping HTTP/1.1\r\nhost: t\r\n\r\n";
    let get = "GET /health HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n";
    let mut both = String::new();
    std::io::Read::read_to_string(&mut client.raw(format!("{head}{get}").as_bytes()), &mut both).unwrap();
    assert_eq!(both.matches("HTTP/1.1 200").count(), 2, "{both}");
    assert_eq!(both.matches("\r\n\r\n").count(), 2, "{both}");
    assert!(both.ends_with("{\"status\":\"ready\"}"), "{both}");
}

#[test]
fn a_full_queue_answers_everybody_sglang_33858_vllm_49330() {
    let info = WorkerInfo { max_num_seqs: 2, ..mock::info() };
    let worker = MockWorker::new(info).saying(Content::Alphabet([97].into()));
    let server = Server::with(&["--max-queue", "4"], worker);
    let threads: Vec<_> = (0..200)
        .map(|number| {
            let client = server.client();
            std::thread::spawn(move || {
                let answer =
                    client.completion(&json!({"prompt": "x", "max_tokens": 50, "stream": number % 2 == 0}));
                if answer.status != 200 {
                    assert_eq!(answer.error(), (503, "ServiceUnavailableError".to_owned(), None));
                    assert_eq!(answer.header("retry-after"), Some("1"));
                }
                answer.status
            })
        })
        .collect();
    let statuses: Vec<u16> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(statuses.contains(&200));
    server.quiesce();
    let served = statuses.iter().filter(|status| **status == 200).count();
    let label = "request_success_total{model_name=\"mock\",engine=\"0\",finished_reason=\"length\"}";
    assert_eq!(server.metric(&format!("frizzen:{label}")), served as f64);
}

#[test]
fn a_batch_is_taken_whole_or_refused_whole_vllm_49330() {
    let server = Server::with(&["--max-queue", "10"], slow_letters(std::time::Duration::from_millis(2)));
    let client = server.client();
    let long = std::thread::spawn(move || client.completion(&json!({"prompt": "x", "max_tokens": 100})).ok());
    wait_until("it runs", || server.state.engine.load().running > 0);
    assert_eq!(server.client().completion(&json!({"prompt": vec!["p"; 10]})).error().0, 503);
    assert_eq!(server.client().completion(&json!({"prompt": "p", "n": 10})).error().0, 503);
    long.join().unwrap();
    server.quiesce();
    assert_eq!(server.client().completion(&json!({"prompt": "p", "n": 10})).status, 200);
    let none = Server::with(&["--max-queue", "0"], letters());
    assert_eq!(none.client().completion(&json!({"prompt": "p"})).error().0, 503);
}

#[test]
fn what_can_never_be_admitted_is_no_reason_to_come_back() {
    let server = Server::with(&["--max-queue", "10"], letters());
    for (body, field) in
        [(json!({"prompt": vec!["p"; 50]}), "prompt"), (json!({"prompt": "p", "n": 11}), "prompt")]
    {
        let answer = server.client().completion(&body);
        assert_eq!(answer.error(), (400, "BadRequestError".to_owned(), Some(field.to_owned())));
        assert_eq!(answer.header("retry-after"), None);
    }
    assert_eq!(server.client().chat(&json!({"n": 11})).error().2, Some("n".to_owned()));
    server.quiesce();
}

#[test]
fn a_bad_request_touches_no_other() {
    let server = Server::start(slow_letters(std::time::Duration::from_millis(1)));
    let client = server.client();
    let long = std::thread::spawn(move || client.completion(&json!({"prompt": "x", "max_tokens": 60})).ok());
    wait_until("it runs", || server.state.engine.load().running > 0);
    for bad in
        [json!({"prompt": [4000]}), json!({"prompt": "x", "temperature": -1}), json!({"prompt": "x", "n": 0})]
    {
        assert_eq!(server.client().completion(&bad).error().0, 400);
    }
    assert_eq!(long.join().unwrap()["usage"]["completion_tokens"], 60);
}

#[test]
fn ids_above_the_tokenizer_but_below_the_table_decode_to_nothing_vllm_51795() {
    // A padded table: the model knows 300 ids, the tokenizer 259.
    let info = WorkerInfo { vocab_size: 300, ..mock::info() };
    let server = Server::start(MockWorker::new(info).saying(Content::Script([97, 299, 98].into())));
    let body = json!({"prompt": [299, 1], "max_tokens": 8, "logprobs": 1, "echo": true});
    assert_eq!(common::text_of(&server.client().completion(&body).ok(), 0), "\u{1}ab");
    let error = server.client().completion(&json!({"prompt": [300]})).error();
    assert_eq!((error.0, error.2.as_deref()), (400, Some("prompt")));
}

#[test]
fn many_stop_strings_and_messages_are_bounded_rapid_mlx_706() {
    let server = Server::start(saying(Content::Echo));
    let stops: Vec<String> = (0..1_000_000).map(|number| number.to_string()).collect();
    let error = server.client().completion(&json!({"prompt": "x", "stop": stops})).error();
    assert_eq!((error.0, error.2.as_deref()), (400, Some("stop")));
    let message = json!({"role": "user", "content": "q"});
    let error =
        server.client().post("/v1/chat/completions", &json!({"messages": vec![message; 10_000]})).error();
    assert_eq!((error.0, error.2.as_deref()), (400, Some("messages")));
}

#[test]
fn two_requests_on_one_connection_are_answered_in_order() {
    let server = Server::start(script("x"));
    let mut stream = server.client().raw(b"GET /version HTTP/1.1\r\nhost: t\r\n\r\n");
    stream.write_all(b"GET /nothing HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut stream, &mut text).unwrap();
    let (first, second) = (text.find("200 OK").unwrap(), text.find("404 Not Found").unwrap());
    assert!(first < second);
}

#[test]
fn a_text_and_a_conversation_are_not_both_tokenised() {
    let server = Server::start(letters());
    let messages = json!([{"role": "user", "content": "q"}]);
    let both = server.client().post("/tokenize", &json!({"prompt": "x", "messages": messages}));
    assert_eq!(both.error(), (400, "BadRequestError".to_owned(), Some("messages".to_owned())));
    server.client().post("/tokenize", &json!({"prompt": "x", "messages": null})).ok();
}

#[test]
fn an_id_that_is_no_text_is_refused_in_json() {
    let server = Server::start(letters());
    for path in ["/v1/models/%ff", "/v1/responses/%00%ff"] {
        assert_eq!(
            server.client().get(path).error(),
            (400, "BadRequestError".to_owned(), Some("id".to_owned()))
        );
    }
    let cancelled = server.client().call("POST", "/v1/responses/%ff/cancel", Some(b"{}"));
    assert_eq!(cancelled.error().0, 400);
}

#[test]
fn a_grammar_that_is_too_complex_behind_its_forced_beginning_is_a_400() {
    let server = Server::with(&["--tool-call-parser", "hermes"], letters());
    let tool = |i| json!({"type": "function", "function": {"name": format!("f{i}"), "parameters": {"type": "object"}}});
    let tools: Vec<_> = (0..2100).map(tool).collect();
    let answer = server.client().chat(&json!({"tools": tools, "tool_choice": "required"}));
    assert_eq!(answer.error(), (400, "BadRequestError".to_owned(), Some("tools".to_owned())));
    server.client().chat(&json!({"max_tokens": 1})).ok();
}

//! Responses that are made in the background: there from their beginning, whoever leaves, until they are ended.

#![allow(clippy::unwrap_used, reason = "a test: a failed unwrap is its failure")]

mod common;

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::time::Duration;

use common::{Answer, Server, letters, read_answer, script, slow_letters, wait_until};
use frizzen_engine::mock::Fault;
use serde_json::{Value, json};

/// The events of a stream of responses, each with its name: their order and their numbers are checked from `first` on.
fn events(answer: &Answer, first: u64) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let text = answer.text();
    let events: Vec<Value> = text
        .split_terminator("\n\n")
        .map(|event| {
            let (name, data) = event.split_once("\ndata: ").unwrap();
            let data: Value = serde_json::from_str(data).unwrap();
            assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
            data
        })
        .collect();
    for (event, number) in events.iter().zip(first..) {
        // What was not read by then is forgotten with the response.
        let may_skip = event["type"] == "error";
        assert!(
            event["sequence_number"] == number
                || may_skip && event["sequence_number"].as_u64() > Some(number)
        );
    }
    events
}

/// The id in the first event of a stream, of which no more is read.
fn id_of(stream: TcpStream) -> (String, BufReader<TcpStream>) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0, "the stream has ended");
    }
    let event: Value = serde_json::from_str(line.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!((&event["type"], &event["sequence_number"]), (&json!("response.created"), &json!(0)));
    (event["response"]["id"].as_str().unwrap().to_owned(), reader)
}

fn begin(server: &Server, limit: u32) -> TcpStream {
    let body = json!({"input": "q", "background": true, "stream": true, "max_output_tokens": limit, "ignore_eos": true});
    server.client().request("POST", "/v1/responses", Some(body.to_string().as_bytes()))
}

#[test]
fn a_response_made_in_the_background_is_there_at_once_and_complete_later() {
    let server = Server::start(slow_letters(Duration::from_millis(2)));
    let client = server.client();
    let body = json!({"input": "q", "background": true, "max_output_tokens": 20, "ignore_eos": true});
    let begun = client.post("/v1/responses", &body).ok();
    assert_eq!((&begun["status"], &begun["background"]), (&json!("in_progress"), &json!(true)));
    let path = format!("/v1/responses/{}", begun["id"].as_str().unwrap());
    wait_until("it is complete", || client.get(&path).ok()["status"] != "in_progress");
    let made = client.get(&path).ok();
    assert_eq!((&made["status"], &made["usage"]["output_tokens"]), (&json!("incomplete"), &json!(20)));
    assert_eq!(client.post(&format!("{path}/cancel"), &json!({})).ok()["status"], "incomplete");
    server.quiesce();
}

#[test]
fn a_response_in_the_background_is_cancelled_or_forgotten_with_its_work() {
    let server = Server::start(slow_letters(Duration::from_millis(2)));
    let client = server.client();
    let body = json!({"input": "q", "background": true, "ignore_eos": true});
    let begin =
        || format!("/v1/responses/{}", client.post("/v1/responses", &body).ok()["id"].as_str().unwrap());
    let (first, second) = (begin(), begin());
    wait_until("both run", || server.state.engine.open_streams() == 2);
    let cancelled = client.post(&format!("{first}/cancel"), &json!({})).ok();
    assert_eq!(cancelled["status"], "cancelled");
    assert_eq!(client.call("DELETE", &second, None).ok()["deleted"], true);
    server.quiesce();
    assert_eq!(client.get(&first).ok()["status"], "cancelled");
    assert_eq!(client.get(&second).status, 404);
    let unkept = json!({"input": "q", "background": true, "store": false});
    assert_eq!(client.post("/v1/responses", &unkept).error().0, 400);
    let without = Server::with(&["--response-store", "0"], letters());
    assert_eq!(without.client().post("/v1/responses", &body).error().2.as_deref(), Some("background"));
}

#[test]
fn a_streamed_response_in_the_background_is_read_again_from_any_event_on() {
    let server = Server::start(script("hello"));
    let body = json!({"input": "q", "background": true, "stream": true});
    let all = events(&server.client().post("/v1/responses", &body), 0);
    let last = &all[all.len() - 1];
    assert_eq!(
        (&last["type"], &last["response"]["status"]),
        (&json!("response.completed"), &json!("completed"))
    );
    let path = format!("/v1/responses/{}", last["response"]["id"].as_str().unwrap());
    assert_eq!(events(&server.client().get(&format!("{path}?stream=true")), 0), all);
    for after in 0..all.len() {
        let again = server.client().get(&format!("{path}?stream=true&starting_after={after}"));
        assert_eq!(events(&again, after as u64 + 1), all[after + 1..]);
    }
    assert_eq!(server.client().get(&path).ok(), last["response"]);
    server.quiesce();
}

#[test]
fn whoever_leaves_finds_a_streamed_response_going_on() {
    let server = Server::start(slow_letters(Duration::from_millis(2)));
    let (id, reader) = id_of(begin(&server, 100));
    drop(reader);
    let path = format!("/v1/responses/{id}");
    let readers: Vec<_> = [0, 3, 40]
        .map(|after| {
            let query = format!("{path}?stream=true&starting_after={after}");
            (after, server.client().request("GET", &query, None))
        })
        .into();
    let texts = readers.into_iter().map(|(after, stream)| {
        let events = events(&read_answer(stream), after + 1);
        let last = events.last().unwrap().clone();
        assert_eq!(last["type"], "response.incomplete", "{last}");
        last["response"].clone()
    });
    let made = server.client().get(&path).ok();
    for text in texts {
        assert_eq!(text["output"][0]["content"][0]["text"].as_str().unwrap().len(), 100);
        assert_eq!(text["usage"]["output_tokens"], 100);
    }
    assert!(matches!(made["status"].as_str(), Some("in_progress" | "incomplete")), "{made}");
    server.quiesce();
}

#[test]
fn a_cancelled_or_deleted_response_ends_the_streams_of_all_who_read_it() {
    let server = Server::start(slow_letters(Duration::from_millis(2)));
    let ended = |end: &dyn Fn(&str)| {
        let (id, reader) = id_of(begin(&server, 4000));
        let path = format!("/v1/responses/{id}");
        let other = server.client().request("GET", &format!("{path}?stream=true"), None);
        let (_, other) = id_of(other);
        end(&path);
        server.quiesce();
        [reader, other].map(|reader| {
            let lines = reader.lines().map_while(Result::ok);
            let last = lines.filter_map(|line| line.strip_prefix("data: ").map(str::to_owned)).last();
            serde_json::from_str::<Value>(&last.unwrap()).unwrap()
        })
    };
    let cancelled = ended(&|path| {
        let cancelled = server.client().post(&format!("{path}/cancel"), &json!({})).ok();
        assert_eq!(cancelled["status"], "cancelled");
        assert_eq!(server.client().get(path).ok()["status"], "cancelled");
    });
    for last in cancelled {
        assert_eq!(
            (&last["type"], &last["response"]["status"]),
            (&json!("response.incomplete"), &json!("cancelled"))
        );
    }
    let deleted = ended(&|path| {
        assert_eq!(server.client().call("DELETE", path, None).ok()["deleted"], true);
        assert_eq!(server.client().get(&format!("{path}?stream=true")).status, 404);
    });
    for last in deleted {
        assert_eq!((&last["type"], &last["message"]), (&json!("error"), &json!("the response was deleted")));
    }
}

#[test]
fn a_stream_in_the_background_that_fails_says_so_to_all_and_stays_failed() {
    let server = Server::start(letters().failing(Fault::BadRow(10)));
    let body = json!({"input": "q", "background": true, "stream": true, "ignore_eos": true, "max_output_tokens": 50});
    let all = events(&server.client().post("/v1/responses", &body), 0);
    let last = &all[all.len() - 1];
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.failed"), &json!("failed")));
    let path = format!("/v1/responses/{}", last["response"]["id"].as_str().unwrap());
    let kept = server.client().get(&path).ok();
    assert_eq!((&kept["status"], &kept["error"]["code"]), (&json!("failed"), &json!("server_error")));
    assert_eq!(events(&server.client().get(&format!("{path}?stream=true")), 0), all);
    server.quiesce();
}

#[test]
fn events_that_find_no_room_end_their_response_and_its_work() {
    let server = Server::with(&["--response-store", "20K"], slow_letters(Duration::from_millis(1)));
    let all = events(&read_answer(begin(&server, 4000)), 0);
    let last = &all[all.len() - 1];
    assert_eq!(last["type"], "error");
    assert!(last["message"].as_str().unwrap().contains("--response-store"), "{last}");
    server.quiesce();
}

#[test]
fn what_has_no_events_says_why_and_bad_places_are_refused() {
    let server = Server::start(script("hi"));
    let client = server.client();
    let made = client.post("/v1/responses", &json!({"input": "q", "background": true})).ok();
    let path = format!("/v1/responses/{}", made["id"].as_str().unwrap());
    for (query, param) in [
        ("stream=true", "stream"),
        ("stream=maybe", "stream"),
        ("stream=true&starting_after=-1", "starting_after"),
        ("stream=true&starting_after=x", "starting_after"),
        ("starting_after=1", "starting_after"),
    ] {
        let (status, _, found) = client.get(&format!("{path}?{query}")).error();
        assert_eq!((status, found.as_deref()), (400, Some(param)), "{query}");
    }
    assert_eq!(client.get("/v1/responses/resp_none?stream=true").error().0, 404);
    assert_eq!(client.get(&format!("{path}?stream=false")).status, 200);
}

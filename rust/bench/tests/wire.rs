//! Streams over a socket, and everything that can go wrong with one.

mod common;

use std::net::TcpListener;
use std::time::Duration;

use common::{EVENTS, PATIENCE, Server, Step, ask, only_failure, streamed, whole};
use frizzen_bench::answer::Reading;
use frizzen_bench::http::Url;

#[test]
fn a_stream_split_at_every_byte_is_the_same_stream() {
    let answer = streamed(&EVENTS);
    let outcome = Server::answering(vec![vec![Step::Drip(answer)]]).ask(Reading::Stream, 2);
    assert_eq!(outcome.samples.len(), 2, "{:?}", outcome.failures);
    for sample in &outcome.samples {
        assert_eq!((sample.prompt_tokens, sample.output_tokens), (3, 2));
        let [first, second] = *sample.output else { panic!("{:?}", sample.output) };
        assert!(sample.sent < first.at && first.at <= second.at && second.at <= sample.ended);
    }
}

#[test]
fn time_to_first_token_is_when_it_arrived_not_when_it_was_parsed() {
    let pause = Duration::from_millis(40);
    let answer = streamed(&EVENTS);
    let first = answer.windows(4).position(|window| window == b"\n\n\r\n").unwrap() + 4;
    let (start, end) = answer.split_at(first);
    let steps =
        vec![Step::Pause(pause), Step::Write(start.to_vec()), Step::Pause(pause), Step::Write(end.to_vec())];
    let outcome = Server::answering(vec![steps]).ask(Reading::Stream, 1);
    let sample = &outcome.samples[0];
    let first = sample.time_to_first_token().unwrap();
    assert!(first >= pause, "{first:?}");
    assert!(sample.time_per_token().unwrap() >= pause / 2, "{:?}", sample.time_per_token());
    assert!(sample.latency() >= 2 * pause && sample.latency() > first, "{:?}", sample.latency());
}

#[test]
fn a_stream_without_usage_counts_its_chunks_and_says_so() {
    let answer = streamed(&[EVENTS[0], EVENTS[1], "[DONE]"]);
    let outcome = Server::answering(vec![vec![Step::Write(answer)]]).ask(Reading::Stream, 1);
    let sample = &outcome.samples[0];
    assert_eq!((sample.prompt_tokens, sample.output_tokens, sample.counted_by_server), (7, 2, false));
}

#[test]
fn an_answer_may_end_with_its_connection() {
    let body: String = EVENTS.iter().map(|event| ["data: ", event, "\n\n"].concat()).collect();
    let answer = format!("HTTP/1.1 200 OK\r\n\r\n{body}").into_bytes();
    let server = Server::answering(vec![vec![Step::Write(answer), Step::Close]]);
    assert_eq!(server.ask(Reading::Stream, 3).samples.len(), 3);
    assert_eq!(server.connections(), 3);
}

#[test]
fn a_connection_that_the_server_closed_while_it_was_idle_is_no_failure() {
    let answer = Step::Write(whole("{}", ""));
    let server = Server::answering(vec![vec![answer.clone()], vec![answer, Step::Close]]);
    let outcome = server.ask(Reading::Json, 6);
    assert_eq!(outcome.samples.len(), 6, "{:?}", outcome.failures);
    assert_eq!(server.connections(), 3);
}

#[test]
fn every_way_to_fail_has_a_kind() {
    let kind = |steps: Vec<Step>| {
        let outcome = Server::answering(vec![steps]).ask(Reading::Stream, 2);
        let (kind, count) = only_failure(&outcome);
        assert_eq!(count, 2, "{kind}");
        kind.to_owned()
    };
    let write = |text: &str| Step::Write(text.as_bytes().to_vec());
    let answer = streamed(&EVENTS);
    let half = answer[..answer.len() / 2].to_vec();
    let error = r#"{"error":{"message":"the engine died"}}"#;
    assert_eq!(kind(vec![Step::Close]), "closed_without_answer");
    assert_eq!(kind(vec![write("SSH-2.0-x\r\n\r\n"), Step::Close]), "malformed_answer");
    assert_eq!(kind(vec![write("HTTP/1.1 200"), Step::Close]), "truncated_body");
    assert_eq!(kind(vec![Step::Write(half), Step::Close]), "truncated_body");
    assert_eq!(kind(vec![write("HTTP/1.1 429 x\r\ncontent-length: 0\r\n\r\n")]), "http_429");
    assert_eq!(kind(vec![Step::Write(streamed(&[EVENTS[0], error]))]), "error_event");
    assert_eq!(kind(vec![Step::Write(streamed(&[EVENTS[0]]))]), "stream_without_end");
    assert_eq!(kind(vec![Step::Write(streamed(&["{", "[DONE]"]))]), "malformed_answer");
}

#[test]
fn a_server_that_is_silent_or_absent_is_a_failure() {
    let silent = Server::answering(vec![vec![Step::Silence]]);
    let outcome = ask(&silent.url(), Reading::Stream, 1, Duration::from_millis(20));
    assert_eq!(only_failure(&outcome), ("timeout", 1));
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = Url::parse(&format!("http://{address}")).unwrap();
    assert_eq!(only_failure(&ask(&url, Reading::Stream, 1, PATIENCE)), ("connect", 1));
}

//! The rule of the pooling benchmark: the clock runs from before the request until the whole body is there, a failure
//! has no latency, and usage comes from where the encoding puts it.

mod common;

use std::time::Duration;

use common::{Server, Step, head, only_failure, whole};
use frizzen_bench::answer::Reading;

const USAGE: &str = r#"metadata: {"id":"x","data":[],"usage":{"prompt_tokens":5,"total_tokens":5}}"#;

#[test]
fn a_body_that_drips_counts_to_its_last_byte_in_every_encoding() {
    let json = r#"{"data":[{"embedding":[0.5]}],"usage":{"prompt_tokens":5,"total_tokens":5}}"#;
    let pause = Duration::from_millis(30);
    for reading in [Reading::Json, Reading::Bytes, Reading::BytesOnly] {
        let (start, end) = json.as_bytes().split_at(20);
        let drip = vec![
            Step::Write(head(json.len(), &format!("{USAGE}\r\n"))),
            Step::Pause(pause),
            Step::Write(start.to_vec()),
            Step::Pause(pause),
            Step::Write(end.to_vec()),
        ];
        let outcome = Server::answering(vec![drip]).ask(reading, 2);
        assert_eq!(outcome.samples.len(), 2, "{:?}", outcome.failures);
        for sample in &outcome.samples {
            assert!(sample.latency() >= 2 * pause, "{reading:?}: {:?}", sample.latency());
            assert_eq!(sample.output[0].at, sample.ended, "nothing is there before the end");
        }
    }
}

#[test]
fn a_body_that_breaks_off_is_a_failure_without_a_latency() {
    let chunk = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nabcd\r\n".to_vec();
    let by_length = [head(100, ""), b"abcd".to_vec()].concat();
    for answer in [by_length, chunk] {
        for reading in [Reading::Json, Reading::Bytes, Reading::BytesOnly] {
            let server = Server::answering(vec![vec![Step::Write(answer.clone()), Step::Close]]);
            assert_eq!(only_failure(&server.ask(reading, 3)), ("truncated_body", 3));
        }
    }
}

#[test]
fn bytes_only_has_no_metadata_and_is_counted_by_the_client() {
    // Not JSON: nobody may parse it.
    let server = Server::answering(vec![vec![Step::Write(whole("\u{1}\u{2}{", ""))]]);
    let outcome = server.ask(Reading::BytesOnly, 2);
    assert_eq!(outcome.samples.len(), 2, "{:?}", outcome.failures);
    assert!(outcome.samples.iter().all(|sample| sample.prompt_tokens == 7 && !sample.counted_by_server));
    assert_eq!(server.connections(), 1, "a body that was read to its end leaves the connection in order");
}

#[test]
fn usage_of_bytes_is_in_the_header_and_estimated_if_that_is_missing() {
    let with = vec![Step::Write(whole("abcd", &format!("{USAGE}\r\n")))];
    let without = vec![Step::Write(whole("abcd", ""))];
    let outcome = Server::answering(vec![with, without]).ask(Reading::Bytes, 2);
    let counts: Vec<_> =
        outcome.samples.iter().map(|sample| (sample.prompt_tokens, sample.counted_by_server)).collect();
    assert_eq!(counts, [(5, true), (7, false)]);
}

#[test]
fn a_refusal_is_a_failure_and_the_next_request_is_not() {
    let refusal = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy".to_vec();
    let answers = vec![vec![Step::Write(refusal)], vec![Step::Write(whole("abcd", ""))]];
    let outcome = Server::answering(answers).ask(Reading::BytesOnly, 4);
    assert_eq!(outcome.samples.len(), 2);
    assert_eq!(outcome.failures["http_503"].count, 2);
    assert_eq!(outcome.failures["http_503"].first, "status 503: busy");
}

//! Streams as they were read, judged without a server: [`Mark`]s are what the socket would have given.

use super::*;

const STEP: Duration = Duration::from_millis(100);

fn job() -> Job {
    Job { due: Duration::ZERO, body: Vec::new(), prompt_tokens: 9, inputs: 1 }
}

/// A stream whose event `i` arrives `i + 1` steps after sending.
fn exchange(origin: Instant, events: &[String]) -> Exchange {
    let (mut body, mut marks) = (Vec::new(), Vec::new());
    for (index, event) in events.iter().enumerate() {
        body.extend_from_slice(format!("data: {event}\n\n").as_bytes());
        marks.push(Mark { end: body.len(), at: origin + STEP * (index as u32 + 1) });
    }
    let ended = origin + STEP * events.len() as u32;
    let received = body.len() as u64;
    Exchange { sent: origin, ended, metadata: None, body, marks, received }
}

fn read(events: &[String]) -> Result<Sample, Failure> {
    let origin = Instant::now();
    Reading::Stream.sample(&exchange(origin, events), &job(), origin, Duration::ZERO)
}

fn text(text: &str) -> String {
    format!(r#"{{"choices":[{{"index":0,"text":"{text}","finish_reason":null}}],"usage":null}}"#)
}

fn delta(members: &str) -> String {
    format!(r#"{{"choices":[{{"index":0,"delta":{{{members}}},"finish_reason":null}}]}}"#)
}

fn usage(tokens: u64) -> String {
    format!(r#"{{"choices":[],"usage":{{"prompt_tokens":7,"completion_tokens":{tokens}}}}}"#)
}

fn done() -> String {
    "[DONE]".to_owned()
}

fn finished(reason: &str) -> String {
    format!(r#"{{"choices":[{{"index":0,"text":"","finish_reason":"{reason}"}}]}}"#)
}

#[test]
fn itl_is_by_token_when_a_chunk_carries_five_vllm_27485() {
    let events: Vec<String> = (0..10).map(|_| text("abcde")).chain([usage(50), done()]).collect();
    let sample = read(&events).unwrap();
    assert_eq!(sample.output_tokens, 50);
    assert_eq!(sample.token_gaps().collect::<Vec<_>>(), [(STEP / 5, 5); 9]);
    assert_eq!(sample.chunk_gaps().collect::<Vec<_>>(), [STEP; 9]);
    // 9 gaps bring 49 tokens after the first.
    assert_eq!(sample.time_per_token(), Some((STEP * 9).div_f64(49.0)));
    assert!(sample.counted_by_server);
}

#[test]
fn running_totals_say_which_chunk_carried_what_vllm_46652() {
    let with_total = |total: u64| {
        format!(r#"{{"choices":[{{"text":"x"}}],"usage":{{"prompt_tokens":7,"completion_tokens":{total}}}}}"#)
    };
    let sample = read(&[with_total(1), with_total(3), with_total(4), usage(4), done()]).unwrap();
    assert_eq!(sample.output.iter().map(|tokens| tokens.count).collect::<Vec<_>>(), [1, 2, 1]);
    assert_eq!(sample.token_gaps().collect::<Vec<_>>(), [(STEP / 2, 2), (STEP, 1)]);
}

#[test]
fn the_first_token_is_the_first_reasoning_not_the_first_content_club_3090_1096() {
    let role = delta(r#""role":"assistant","content":"""#);
    let reasoning = (0..20).map(|_| delta(r#""reasoning_content":"hm""#));
    let content = (0..5).map(|_| delta(r#""content":"yes""#));
    let events: Vec<String> =
        [role].into_iter().chain(reasoning).chain(content).chain([usage(25), done()]).collect();
    let sample = read(&events).unwrap();
    assert_eq!(sample.time_to_first_token(), Some(STEP * 2), "the role chunk is not a token");
    assert_eq!(sample.output.len(), 25);
    assert_eq!(sample.time_per_token(), Some(STEP));
}

#[test]
fn tool_arguments_are_generated_text_club_3090_1096() {
    let call = |arguments: &str| {
        delta(&format!(r#""tool_calls":[{{"index":0,"function":{{"arguments":"{arguments}"}}}}]"#))
    };
    let role = delta(r#""role":"assistant","content":null,"tool_calls":[]"#);
    let events = [role, call("{"), call("}"), finished("tool_calls"), usage(2), done()];
    let sample = read(&events).unwrap();
    assert_eq!(sample.time_to_first_token(), Some(STEP * 2));
    assert_eq!(sample.output.len(), 2);
}

#[test]
fn without_usage_chunks_are_counted_and_that_is_said() {
    let sample = read(&[text("a"), text(""), text("b"), finished("stop"), done()]).unwrap();
    assert_eq!((sample.output_tokens, sample.prompt_tokens, sample.counted_by_server), (2, 9, false));
    assert_eq!(sample.output.iter().map(|tokens| tokens.count).sum::<u64>(), 2);
    // A usage that does not say is none.
    let empty = r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":null}}"#.to_owned();
    let sample = read(&[text("a"), empty, done()]).unwrap();
    assert_eq!((sample.output_tokens, sample.prompt_tokens, sample.counted_by_server), (1, 7, false));
}

#[test]
fn an_error_event_is_a_failure_in_either_form() {
    for error in [r#"{"error":{"message":"oh"}}"#, r#"{"object":"error","message":"oh","code":500}"#] {
        let failure = read(&[text("a"), error.to_owned(), done()]).unwrap_err();
        assert_eq!(failure.kind(), "error_event");
        assert!(failure.to_string().contains("oh"), "{failure}");
    }
}

#[test]
fn a_stream_must_say_that_it_ended() {
    assert_eq!(read(&[text("a"), usage(1)]).unwrap_err(), Failure::NoEnd);
    assert_eq!(read(&[]).unwrap_err(), Failure::NoEnd);
    // A finish reason is enough: not every server sends [DONE].
    read(&[text("a"), finished("length"), usage(1)]).unwrap();
    assert_eq!(read(&["{".to_owned(), done()]).unwrap_err().kind(), "malformed_answer");
}

#[test]
fn an_answer_without_text_has_no_first_token() {
    let sample = read(&[finished("stop"), usage(1), done()]).unwrap();
    assert_eq!(sample.time_to_first_token(), None);
    assert_eq!(sample.time_per_token(), None);
    assert_eq!(sample.token_gaps().count(), 0);
    assert_eq!(sample.output_tokens, 1);
}

#[test]
fn an_event_is_there_when_its_last_byte_is_at_every_split() {
    let origin = Instant::now();
    let body = format!("data: {}\r\n\r\n: ping\n\ndata: {}\n\ndata: [DONE]\n\n", text("é"), text("b"));
    let at = |bytes: usize| origin + Duration::from_millis(bytes as u64);
    let marks: Vec<Mark> = (1..=body.len()).map(|end| Mark { end, at: at(end) }).collect();
    let ended = at(body.len());
    let received = body.len() as u64;
    let exchange = Exchange { sent: origin, ended, metadata: None, body: body.into(), marks, received };
    let sample = Reading::Stream.sample(&exchange, &job(), origin, Duration::ZERO).unwrap();
    let first = format!("data: {}\r\n\r\n", text("é")).len();
    let second = first + format!(": ping\n\ndata: {}\n\n", text("b")).len();
    let arrived: Vec<u128> = sample.output.iter().map(|tokens| tokens.at.as_millis()).collect();
    assert_eq!(arrived, [first as u128, second as u128]);
}

#[test]
fn usage_of_bytes_comes_from_the_header_or_from_the_client() {
    let origin = Instant::now();
    let mut exchange = exchange(origin, &[]);
    let prompt = |reading: Reading, exchange: &Exchange| {
        let sample = reading.sample(exchange, &job(), origin, Duration::ZERO).unwrap();
        (sample.prompt_tokens, sample.counted_by_server)
    };
    assert_eq!(prompt(Reading::Bytes, &exchange), (9, false), "no header: the client's own count");
    exchange.metadata = Some(r#"{"usage":{"prompt_tokens":5,"total_tokens":5}}"#.to_owned());
    assert_eq!(prompt(Reading::Bytes, &exchange), (5, true));
    assert_eq!(prompt(Reading::BytesOnly, &exchange), (9, false), "bytes_only has no metadata by design");
    exchange.body = br#"{"data":[],"usage":{"prompt_tokens":4,"total_tokens":4}}"#.to_vec();
    assert_eq!(prompt(Reading::Json, &exchange), (4, true));
    exchange.metadata = Some("{".to_owned());
    assert_eq!(
        Reading::Bytes.sample(&exchange, &job(), origin, Duration::ZERO).unwrap_err().kind(),
        "malformed_answer"
    );
}

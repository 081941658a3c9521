//! The commands against the real server over a worker without a model.

#![allow(clippy::unwrap_used, reason = "a test: a failed unwrap is its failure")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use frizzen_bench::BenchCommand;
use frizzen_engine::WorkerInfo;
use frizzen_engine::mock::{Content, MockWorker, TimingLaw, mock_drafter};
use frizzen_server::serve::{Listener, serve};
use frizzen_server::tls::Tls;
use frizzen_server::{ServerConfig, ShutdownRequests, mock};
use serde_json::Value;

#[derive(Parser)]
struct ServerCli {
    #[command(flatten)]
    config: ServerConfig,
}

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: BenchCommand,
}

/// A server that says letters, a step every `step`. It ends with the process.
fn server(step: Duration) -> SocketAddr {
    let letters = Content::Alphabet((u32::from(b'a')..=u32::from(b'z')).collect());
    serving(&[], MockWorker::new(mock::info()).saying(letters).taking(TimingLaw::constant(step)))
}

/// A server with these flags over this worker. It ends with the process.
fn serving(flags: &[&str], worker: MockWorker) -> SocketAddr {
    let words = ["serve", "mock"].iter().chain(flags);
    let config = ServerCli::try_parse_from(words).map_err(|error| error.to_string()).unwrap().config;
    let (state, _engine) = mock::start(&config, worker, mock::text_model().unwrap());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let ready = state.clone();
    std::thread::spawn(move || {
        let (_stop, requests) = ShutdownRequests::channel();
        let runtime = frizzen_server::runtime().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let listener = match Tls::load(&state.http.tls).unwrap() {
                Some(tls) => Listener::Tls(listener, Arc::new(tls)),
                None => listener.into(),
            };
            serve(listener, state, requests).await.unwrap()
        })
    });
    let start = Instant::now();
    while ready.model().is_err() {
        assert!(start.elapsed() < Duration::from_secs(20), "the engine does not come up");
        std::thread::yield_now();
    }
    address
}

/// A file that no other test writes.
fn scratch(name: &str) -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("frizzen-bench-{}-{count}-{name}", std::process::id()))
}

/// Runs a command: its exit code, and what it printed.
fn command(words: &str) -> Result<(ExitCode, String), String> {
    let words = std::iter::once("bench").chain(words.split_whitespace());
    let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
    let mut printed = Vec::new();
    let code = frizzen_bench::run(cli.command, &mut printed)?;
    Ok((code, String::from_utf8(printed).unwrap()))
}

/// The runs of a command against `server`, in order.
fn runs(server: SocketAddr, words: &str) -> Vec<Value> {
    let file = scratch("result.json");
    let (code, printed) =
        command(&format!("{words} --url http://{server} --result-json {}", file.display())).unwrap();
    assert_eq!(code, ExitCode::SUCCESS, "{printed}");
    assert!(printed.contains("Requests completed"), "{printed}");
    let document: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    std::fs::remove_file(file).unwrap();
    document["runs"].as_array().unwrap().clone()
}

#[test]
fn completions_have_exactly_the_lengths_that_were_asked_for() {
    let server = server(Duration::from_millis(1));
    let run = &runs(
        server,
        "serve --num-prompts 12 --input-len 32 --output-len 16 --max-concurrency 4 --goodput e2e:60000 ttft:60000",
    )[0];
    let summary = &run["summary"];
    assert_eq!((&summary["completed"], &summary["failed"]), (&12.into(), &0.into()));
    assert_eq!((&summary["prompt_tokens"], &summary["output_tokens"]), (&384.into(), &192.into()));
    assert_eq!(summary["not_counted_by_server"], 0);
    assert_eq!((&summary["itl_ms"]["count"], &summary["ttft_ms"]["count"]), (&180.into(), &12.into()));
    assert_eq!(summary["goodput"]["good"], 12);
    // A step takes a millisecond, and no token comes faster than a step.
    assert!(summary["tpot_ms"]["median"].as_f64().unwrap() >= 0.99, "{summary}");
    assert_eq!(run["settings"]["model"], "mock");
}

#[test]
fn a_server_with_tls_is_driven_if_its_certificate_is_believed() {
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../server/tests/data/tls");
    let file = |name: &str| data.join(name).display().to_string();
    let flags = ["--ssl-certfile", &file("server.pem"), "--ssl-keyfile", &file("server.key")];
    let port = serving(&flags, MockWorker::new(mock::info())).port();
    let words = "serve --num-prompts 6 --output-len 4 --max-concurrency 3";
    let (authority, client) = (file("authority.pem"), file("client.pem"));
    for trust in [&format!("--ca-cert {authority}"), "--insecure"] {
        let (code, printed) = command(&format!("{words} --url https://localhost:{port} {trust}")).unwrap();
        assert_eq!(code, ExitCode::SUCCESS, "{printed}");
        assert!(printed.contains("Requests completed"), "{printed}");
    }
    // Another authority, no PEM, a flag without effect, and no TLS at all.
    for (url, trust, said) in [
        ("https://localhost", format!("--ca-cert {client}"), "UnknownIssuer"),
        ("https://localhost", format!("--ca-cert {}", file("make.sh")), "make.sh cannot be used"),
        ("http://localhost", "--insecure".to_owned(), "is http"),
        ("http://localhost", String::new(), "https"),
    ] {
        let refused = command(&format!("{words} --url {url}:{port} {trust}")).unwrap_err();
        assert!(refused.contains(said), "{refused}");
    }
}

#[test]
fn a_chat_s_length_is_found_by_probing_and_exact() {
    let summary = &runs(
        server(Duration::ZERO),
        "serve --api chat --num-prompts 6 --input-len 256 --output-len 8 --continuous-usage",
    )[0]["summary"];
    assert_eq!(summary["completed"], 6);
    assert_eq!((&summary["prompt_tokens"], &summary["output_tokens"]), (&(6 * 256).into(), &48.into()));
}

#[test]
fn shared_prefixes_and_rates_are_sent() {
    let words = "serve --num-prompts 8 --prefix-len 64 --num-prefixes 2 --input-len 16 --output-len 2 \
                 --request-rate 200 --burstiness 0.5 --ramp-up 0.05";
    let summary = &runs(server(Duration::ZERO), words)[0]["summary"];
    assert_eq!(summary["prompt_tokens"], 8 * 80);
    assert!(summary["duration_s"].as_f64().unwrap() > 0.01, "{summary}");
}

#[test]
fn a_trace_and_conversations_are_played() {
    let server = server(Duration::ZERO);
    let trace = scratch("trace.jsonl");
    let rows = "{\"timestamp\": 0, \"input_length\": 20, \"output_length\": 3, \"hash_ids\": [1]}\n\
                {\"timestamp\": 40, \"input_length\": 30, \"output_length\": 4, \"hash_ids\": [1, 2]}\n";
    std::fs::write(&trace, rows).unwrap();
    let words = format!("serve --dataset trace --dataset-path {} --trace-block 16", trace.display());
    let summary = &runs(server, &words)[0]["summary"];
    assert_eq!((&summary["prompt_tokens"], &summary["output_tokens"]), (&50.into(), &7.into()));
    assert!(summary["duration_s"].as_f64().unwrap() >= 0.04, "the second was due after 40 ms: {summary}");
    std::fs::remove_file(trace).unwrap();

    let talk = scratch("talk.json");
    let text =
        r#"[{"conversations": [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "12345678"}]}]"#;
    std::fs::write(&talk, text).unwrap();
    let words =
        format!("serve --api chat --dataset sharegpt --dataset-path {} --num-prompts 3", talk.display());
    assert_eq!(runs(server, &words)[0]["summary"]["output_tokens"], 6);
    std::fs::remove_file(talk).unwrap();
}

#[test]
fn vectors_are_measured_in_every_encoding_of_the_real_endpoint() {
    let info = WorkerInfo { pooling: Some(mock::embeds(256)), ..mock::info() };
    let server = serving(&[], MockWorker::new(info).taking(TimingLaw::constant(Duration::from_millis(2))));
    for endpoint in ["embeddings", "pooling"] {
        for (encoding, not_counted) in [("float", 0), ("base64", 0), ("bytes", 0), ("bytes_only", 6)] {
            let words = format!(
                "pooling --endpoint {endpoint} --num-prompts 6 --batch-size 3 --input-len 20 --max-concurrency 2 \
                 --encoding-format {encoding} --embed-dtype float16"
            );
            let summary = &runs(server, &words)[0]["summary"];
            assert_eq!(
                (&summary["completed"], &summary["failed"]),
                (&6.into(), &0.into()),
                "{words}: {summary}"
            );
            assert_eq!(summary["prompt_tokens"], 6 * 3 * 20, "{words}");
            assert_eq!(summary["not_counted_by_server"], not_counted, "{words}");
            assert!(summary["e2e_ms"]["median"].as_f64().unwrap() >= 2.0, "{words}: {summary}");
        }
    }
}

#[test]
fn scores_rankings_and_classes_are_measured_with_texts_of_the_wanted_length() {
    for (pooling, endpoints) in
        [(mock::embeds(8), &["score", "rerank"][..]), (mock::classifies(1), &["score", "rerank", "classify"])]
    {
        let server = serving(&[], MockWorker::new(WorkerInfo { pooling: Some(pooling), ..mock::info() }));
        for endpoint in endpoints {
            let words =
                format!("pooling --endpoint {endpoint} --num-prompts 4 --batch-size 1 --input-len 64");
            let summary = &runs(server, &words)[0]["summary"];
            assert_eq!(
                (&summary["completed"], &summary["prompt_tokens"]),
                (&4.into(), &(4 * 64).into()),
                "{words}"
            );
        }
        let refusal =
            command(&format!("pooling --endpoint rerank --words ids --url http://{server}")).unwrap_err();
        assert!(refusal.contains("/rerank takes texts"), "{refusal}");
    }
}

#[test]
fn a_sweep_is_plotted_and_compared() {
    let server = server(Duration::from_millis(1));
    let (plot, result) = (scratch("sweep.svg"), scratch("sweep.json"));
    let sweep = "serve --num-prompts 8 --input-len 16 --output-len 8 --sweep-concurrency 1,4";
    let files = format!("--plot {} --result-json {}", plot.display(), result.display());
    command(&format!("{sweep} --url http://{server} {files}")).unwrap();
    let document: Value = serde_json::from_slice(&std::fs::read(&result).unwrap()).unwrap();
    let names: Vec<_> = document["runs"].as_array().unwrap().iter().map(|run| &run["name"]).collect();
    assert_eq!(names, ["concurrency 1", "concurrency 4"]);
    assert_eq!(std::fs::read_to_string(&plot).unwrap().matches("<circle").count(), 2);
    let both = format!("{0} {0}", result.display());
    let (code, printed) = command(&format!("serve --compare {both}")).unwrap();
    assert_eq!(code, ExitCode::SUCCESS);
    assert_eq!(printed.matches("Requests [1/s]").count(), 2, "{printed}");
    assert!(printed.contains("(1.000x)") && printed.contains("== concurrency 4 =="), "{printed}");
    command(&format!("serve --compare {0}", result.display())).unwrap_err();
    std::fs::remove_file(plot).unwrap();
    std::fs::remove_file(result).unwrap();
}

#[test]
fn latency_and_throughput_count_whole_answers() {
    let server = server(Duration::from_millis(1));
    let latency =
        &runs(server, "latency --batch-size 4 --iterations 3 --input-len 16 --output-len 8")[0]["summary"];
    assert_eq!((&latency["completed"], &latency["batch_ms"]["count"]), (&12.into(), &3.into()));
    assert!(latency["batch_ms"]["median"].as_f64().unwrap() >= 8.0, "8 steps of a millisecond: {latency}");
    let throughput = &runs(server, "throughput --num-prompts 20 --input-len 16 --output-len 8")[0]["summary"];
    assert_eq!((&throughput["completed"], &throughput["output_tokens"]), (&20.into(), &160.into()));
    assert!(throughput["ttft_ms"].is_null() && throughput["itl_ms"].is_null(), "nothing was streamed");
    assert_eq!(throughput["e2e_ms"]["count"], 20);
}

#[test]
fn what_a_server_does_not_have_is_said_before_the_run() {
    let server = server(Duration::ZERO);
    let refused = command(&format!("pooling --url http://{server} --num-prompts 1")).unwrap_err();
    assert!(
        refused.contains("fails before the run: status 400") && refused.contains("generates text"),
        "{refused}"
    );
    let ids = command(&format!("serve --api chat --words ids --url http://{server}")).unwrap_err();
    assert!(ids.contains("made of text"), "{ids}");
    let twice = "serve --dataset trace --dataset-path x --request-rate 3 --url";
    assert!(command(&format!("{twice} http://{server}")).unwrap_err().contains("when its requests are due"));
    let absent = command("serve --url http://127.0.0.1:1").unwrap_err();
    assert!(absent.contains("cannot connect"), "{absent}");
}

#[test]
fn drafts_that_pay_are_measured_recommended_and_drawn() {
    let info = WorkerInfo { max_drafts: 4, drafter: Some(mock_drafter("mtp", 4)), ..mock::info() };
    let letters = Content::Alphabet((u32::from(b'a')..=u32::from(b'z')).collect());
    let worker = MockWorker::new(info).saying(letters).taking(TimingLaw::constant(Duration::from_millis(2)));
    let server = serving(&["--drafter", "mtp", "--num-speculative-tokens", "4"], worker);
    let (file, plot) = (scratch("spec.json"), scratch("spec.svg"));
    let words = format!(
        "spec --url http://{server} --data prose,random --input-len 16 --drafts 1,4,8 --concurrency 2 --num-prompts 2 \
         --output-len 60 --rounds 1 --result-json {} --plot {}",
        file.display(),
        plot.display()
    );
    let (code, printed) = command(&words).unwrap();
    assert_eq!(code, ExitCode::SUCCESS, "{printed}");
    assert!(printed.contains("prose, 2 in flight") && printed.contains("break-even"), "{printed}");
    assert!(printed.contains("recommended: --drafter mtp --speculation "), "{printed}");
    let document: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let svg = std::fs::read_to_string(&plot).unwrap();
    std::fs::remove_file(file).unwrap();
    std::fs::remove_file(plot).unwrap();
    let runs = document["runs"].as_array().unwrap();
    // Off, auto, 1 and 4 of both sets; the worker verifies no 8.
    assert_eq!(runs.len(), 8);
    assert!(
        svg.contains("mtp: prose 2") && svg.contains("mtp: random 2") && svg.contains("stroke-dasharray")
    );
    for run in runs {
        let (drafts, summary) = (run["settings"]["drafts"].as_str().unwrap(), &run["summary"]);
        assert_eq!(summary["output_tokens"], 120, "{run}");
        match drafts {
            "off" => assert_eq!((&summary["drafts"], &summary["gain"]), (&0.into(), &1.0.into())),
            // Four drafts of which four in five are right, in a step that takes no longer.
            "4" => assert!(summary["tokens_per_step"].as_f64().unwrap() > 2.0, "{run}"),
            _ => {}
        }
    }
}

#[test]
fn a_server_without_a_drafter_has_nothing_to_measure() {
    let server = server(Duration::ZERO);
    assert!(command(&format!("spec --url http://{server}")).unwrap_err().contains("--drafter"));
}

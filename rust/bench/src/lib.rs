//! The load client: drives any OpenAI-compatible server and says what it saw.
//!
//! * A request's clock starts before its connection is taken or made and stops when its whole body has been read.
//! * The thread that reads does nothing else: it stamps what each read brought, and another thread parses finished
//!   answers ([`answer`]). So parsing cannot move a time. What the reading thread itself costs is reported with the
//!   results, with a warning when that is too much.
//! * A token is what the server counts, not a chunk. Where it does not count, chunks are counted and that is said.
//! * A failure has a kind and no latency.
//!
//! [`http`] and [`sse`] are the wire, [`load`] sends, [`data`] and [`arrival`] say what and when, [`summary`] computes,
//! [`report`], [`compare`] and [`plot`] show; [`drafts`] judges draft lengths.

pub mod answer;
pub mod args;
pub mod arrival;
pub mod compare;
pub mod data;
pub mod drafts;
pub mod draw;
pub mod failure;
pub mod goodput;
pub mod http;
pub mod load;
pub mod plot;
pub mod process;
pub mod progress;
pub mod prompt;
pub mod report;
pub mod run;
pub mod sample;
pub mod session;
pub mod sse;
pub mod summary;

use std::io::Write;
use std::process::ExitCode;

use clap::Subcommand;

/// `frizzen bench`
#[derive(Clone, Debug, Subcommand)]
pub enum BenchCommand {
    /// Load as it comes: rate, concurrency, latencies of streamed answers
    Serve(Box<run::serve::ServeArgs>),
    /// A batch of fixed size, over and over
    Latency(Box<run::latency::LatencyArgs>),
    /// Everything at once, nothing streamed
    Throughput(Box<run::throughput::ThroughputArgs>),
    /// Draft lengths on a server with a drafter: what each brings, and which to choose
    Spec(Box<run::spec::SpecArgs>),
    /// Embeddings, in every encoding, until the whole body is there
    Pooling(Box<run::pooling::PoolingArgs>),
}

/// Runs a command to its end and writes what people read to `out`.
pub fn run(command: BenchCommand, out: &mut dyn Write) -> Result<ExitCode, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the client: {error}"))?;
    runtime.block_on(async {
        match command {
            BenchCommand::Serve(args) => args.run(out).await,
            BenchCommand::Latency(args) => args.run(out).await,
            BenchCommand::Throughput(args) => args.run(out).await,
            BenchCommand::Spec(args) => args.run(out).await,
            BenchCommand::Pooling(args) => args.run(out).await,
        }
    })
}

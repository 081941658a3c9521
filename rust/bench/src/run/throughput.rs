//! `frizzen bench throughput`: everything at once, nothing streamed.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::args::{LengthArgs, ResultArgs, ServerArgs};
use crate::draw::Draw;
use crate::report::{Results, Run};
use crate::run::generate::Api;
use crate::run::latency::Batch;
use crate::run::{finish, show};
use crate::session::Session;
use crate::summary::summary;

/// `frizzen bench throughput`
#[derive(Args, Clone, Debug)]
pub struct ThroughputArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    lengths: LengthArgs,
    /// Which interface
    #[arg(long, visible_alias = "backend", value_enum, default_value_t)]
    api: Api,
    /// Tokens of an answer
    #[arg(long, value_name = "TOKENS", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    output_len: u32,
    /// Requests
    #[arg(long, value_name = "N", default_value_t = 1000)]
    num_prompts: usize,
    /// Connections; the server's own limit is meant to be what decides
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = crate::args::parse_concurrency)]
    max_concurrency: usize,
    #[command(flatten)]
    results: ResultArgs,
}

impl ThroughputArgs {
    /// Runs the command and writes what people read to `out`.
    pub async fn run(self, out: &mut dyn Write) -> Result<ExitCode, String> {
        let session = Session::open(&self.server).await?;
        let batch = Batch::new(&session, self.api, &self.lengths, self.output_len).await?;
        let mut draw = Draw::new(self.lengths.seed);
        batch.warm_up(&session, 1, &mut draw).await?;
        let outcome = batch.run(&session, self.num_prompts, Some(self.max_concurrency), &mut draw).await?;
        let settings = json!({"model": session.model, "requests": self.num_prompts,
                              "max_concurrency": self.max_concurrency});
        let run = Run { name: "throughput".to_owned(), settings, summary: summary(&outcome, &[]) };
        show(out, &run)?;
        let label = self.results.label.clone().unwrap_or_default();
        finish(&self.results, "throughput", &Results { label, runs: vec![run] })
    }
}

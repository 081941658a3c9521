//! `frizzen bench latency`: a batch of fixed size, over and over, from the first request to the last answer.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value, json};

use crate::answer::Reading;
use crate::args::{LengthArgs, ResultArgs, ServerArgs};
use crate::data::Random;
use crate::draw::Draw;
use crate::load::{Job, Outcome};
use crate::prompt::Maker;
use crate::report::{Results, Run};
use crate::run::generate::{Api, Asking};
use crate::run::{finish, show};
use crate::session::Session;
use crate::summary::{Statistics, millis};

/// `frizzen bench latency`
#[derive(Args, Clone, Debug)]
pub struct LatencyArgs {
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
    /// Requests of a batch
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = crate::args::parse_concurrency)]
    batch_size: usize,
    /// Batches that count
    #[arg(long, visible_alias = "num-iters", value_name = "N", default_value_t = 10)]
    iterations: usize,
    /// Batches before them
    #[arg(long, visible_alias = "num-iters-warmup", value_name = "N", default_value_t = 1)]
    warmup: usize,
    #[command(flatten)]
    results: ResultArgs,
}

impl LatencyArgs {
    /// Runs the command and writes what people read to `out`.
    pub async fn run(self, out: &mut dyn Write) -> Result<ExitCode, String> {
        let session = Session::open(&self.server).await?;
        let batch = Batch::new(&session, self.api, &self.lengths, self.output_len).await?;
        let mut draw = Draw::new(self.lengths.seed);
        for _ in 0..self.warmup {
            batch.warm_up(&session, self.batch_size, &mut draw).await?;
        }
        let mut times = Vec::with_capacity(self.iterations);
        for iteration in 0..self.iterations {
            let outcome = batch.run(&session, self.batch_size, None, &mut draw).await?;
            if let Some(failed) = outcome.failures.values().next() {
                // A batch in which something failed has no latency.
                return Err(format!("batch {} failed: {}", iteration + 1, failed.first));
            }
            times.push(millis(outcome.duration));
        }
        let settings = json!({"model": session.model, "batch_size": self.batch_size,
                              "input_len": self.lengths.input_len, "output_len": self.output_len});
        let statistics =
            Statistics::of(times.into_iter().map(|time| (time, 1))).map(|statistics| statistics.json());
        let completed = self.batch_size * self.iterations;
        let summary = json!({"completed": completed, "failed": 0, "batch_ms": statistics});
        let run = Run { name: format!("batch {}", self.batch_size), settings, summary };
        show(out, &run)?;
        let label = self.results.label.clone().unwrap_or_default();
        finish(&self.results, "latency", &Results { label, runs: vec![run] })
    }
}

/// Requests that are sent together and answered as a whole.
#[derive(Debug)]
pub struct Batch {
    api: Api,
    members: Map<String, Value>,
    maker: Maker,
    random: Random,
}

impl Batch {
    /// Random requests of these lengths.
    pub async fn new(
        session: &Session,
        api: Api,
        lengths: &LengthArgs,
        output_len: u32,
    ) -> Result<Self, String> {
        let asking = Asking { stream: false, allow_eos: false, continuous_usage: false };
        let members = session.members(asking.members());
        let words = api.words(lengths.words)?;
        let probe = |prompt: &_| api.body(&members, prompt, 1);
        let maker = session.maker(lengths, words, api.path(), probe).await?;
        let random = Random {
            input: lengths.input_len,
            output: output_len,
            spread: lengths.range_ratio,
            prefix: lengths.prefix_len,
            prefixes: lengths.num_prefixes,
        };
        Ok(Self { api, members, maker, random })
    }

    fn jobs(&self, count: usize, draw: &mut Draw) -> Vec<Job> {
        let queries = self.random.queries(count, &self.maker, draw);
        queries.iter().map(|query| self.api.job(&self.members, query)).collect()
    }

    /// Sends `count` requests that do not count.
    pub async fn warm_up(&self, session: &Session, count: usize, draw: &mut Draw) -> Result<(), String> {
        session.warm_up(self.api.path(), Reading::Json, None, self.jobs(count, draw)).await
    }

    /// Sends `count` requests at once.
    pub async fn run(
        &self,
        session: &Session,
        count: usize,
        max_concurrency: Option<usize>,
        draw: &mut Draw,
    ) -> Result<Outcome, String> {
        session.run(self.api.path(), Reading::Json, max_concurrency, self.jobs(count, draw)).await
    }
}

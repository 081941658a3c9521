//! `frizzen bench serve`: load as it comes, and what each request saw of it.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::args::{
    LengthArgs, LoadArgs, ResultArgs, ServerArgs, Words, parse_concurrency, parse_output, parse_rate,
};
use crate::compare::compare;
use crate::data::{ConversationFile, Playing, Query, Random, Trace};
use crate::draw::Draw;
use crate::goodput::Objective;
use crate::load::Job;
use crate::plot::pareto;
use crate::prompt::Maker;
use crate::report::{Results, Run};
use crate::run::generate::{Api, Asking};
use crate::run::{finish, print, show};
use crate::session::Session;
use crate::summary::summary;

/// Requests if nobody says how many.
const DEFAULT_PROMPTS: usize = 100;

/// Where the requests come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DataSet {
    /// Random tokens; with --prefix-len, behind shared prefixes
    Random,
    /// Conversations from a JSON file, in ShareGPT's form or with OpenAI's messages
    Sharegpt,
    /// A record of arrivals: JSON lines with timestamp [ms], `input_length`, `output_length`, perhaps `hash_ids`
    Trace,
}

/// `frizzen bench serve`
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    lengths: LengthArgs,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    results: ResultArgs,
    #[command(flatten)]
    judging: JudgingArgs,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Requests")]
struct DataArgs {
    /// Which interface
    #[arg(long, visible_alias = "backend", value_enum, default_value_t)]
    api: Api,
    /// Where the requests come from
    #[arg(long, visible_alias = "dataset-name", value_enum, default_value_t = DataSet::Random)]
    dataset: DataSet,
    /// The file of the data set
    #[arg(long, value_name = "FILE", required_if_eq_any = [("dataset", "sharegpt"), ("dataset", "trace")])]
    dataset_path: Option<PathBuf>,
    /// Tokens of an answer [random: 128; sharegpt: as recorded]
    #[arg(long, visible_alias = "random-output-len", value_name = "TOKENS",
          value_parser = clap::value_parser!(u32).range(1..))]
    output_len: Option<u32>,
    /// Requests [100; trace: all of it]
    #[arg(long, value_name = "N")]
    num_prompts: Option<usize>,
    /// How many times as fast as recorded a trace is played
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = crate::args::parse_positive)]
    trace_speed: f64,
    /// Tokens of a block that a trace's hash id names
    #[arg(long, value_name = "TOKENS", default_value_t = 512,
          value_parser = clap::value_parser!(u32).range(1..))]
    trace_block: u32,
    /// Let answers end early; needed for servers that refuse `ignore_eos`
    #[arg(long)]
    allow_eos: bool,
    /// Ask for the number of tokens in every chunk (vLLM's `continuous_usage_stats`)
    #[arg(long)]
    continuous_usage: bool,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Results")]
struct JudgingArgs {
    /// Limits of a good request, for example ttft:500 tpot:50 e2e:10000
    #[arg(long, num_args = 1.., value_name = "NAME:MS")]
    goodput: Vec<Objective>,
    /// One run for each of these values of --max-concurrency
    #[arg(long, value_delimiter = ',', value_name = "N,...", value_parser = parse_concurrency,
          conflicts_with_all = ["sweep_rate", "max_concurrency"])]
    sweep_concurrency: Vec<usize>,
    /// One run for each of these values of --request-rate
    #[arg(long, value_delimiter = ',', value_name = "RATE,...", value_parser = parse_rate,
          conflicts_with = "request_rate")]
    sweep_rate: Vec<f64>,
    /// Write throughput against interactivity as SVG, of the runs made or of those compared
    #[arg(long, value_name = "FILE", value_parser = parse_output)]
    plot: Option<PathBuf>,
    /// Print result files side by side, with ratios to the first, and send nothing
    #[arg(long, num_args = 2.., value_name = "FILE")]
    compare: Vec<PathBuf>,
}

impl ServeArgs {
    /// Runs the command and writes what people read to `out`.
    pub async fn run(self, out: &mut dyn Write) -> Result<ExitCode, String> {
        if !self.judging.compare.is_empty() {
            let read: Result<Vec<Results>, String> =
                self.judging.compare.iter().map(|path| Results::read(path)).collect();
            let read = read?;
            print(out, &compare(&read)?)?;
            self.plot(&read)?;
            return Ok(ExitCode::SUCCESS);
        }
        self.check()?;
        let session = Session::open(&self.server).await?;
        let maker = self.maker(&session).await?;
        let label = self.results.label.clone().unwrap_or_default();
        let mut results = Results { label, runs: Vec::new() };
        for (index, (name, load)) in self.points().into_iter().enumerate() {
            let run = self.point(&session, &maker, name, &load, index as u64).await?;
            show(out, &run)?;
            results.runs.push(run);
        }
        self.plot(std::slice::from_ref(&results))?;
        finish(&self.results, "serve", &results)
    }

    /// Refuses what would be ignored.
    fn check(&self) -> Result<(), String> {
        let load = &self.load;
        let timed =
            load.request_rate.is_finite() || !load.ramp_up.is_zero() || !self.judging.sweep_rate.is_empty();
        if timed && self.data.dataset == DataSet::Trace {
            return Err("a trace says when its requests are due: --trace-speed plays it faster".to_owned());
        }
        Ok(())
    }

    fn asking(&self) -> Asking {
        Asking { stream: true, allow_eos: self.data.allow_eos, continuous_usage: self.data.continuous_usage }
    }

    async fn maker(&self, session: &Session) -> Result<Maker, String> {
        let api = self.data.api;
        let members = session.members(self.asking().whole().members());
        // Recorded conversations are not made of anything.
        let recorded = self.data.dataset == DataSet::Sharegpt;
        let words = if recorded { Words::Ids } else { api.words(self.lengths.words)? };
        session.maker(&self.lengths, words, api.path(), |prompt| api.body(&members, prompt, 1)).await
    }

    /// The runs to make: one, or one for each value of a sweep.
    fn points(&self) -> Vec<(String, LoadArgs)> {
        let (load, judging) = (&self.load, &self.judging);
        let by_concurrency = judging.sweep_concurrency.iter().map(|count| {
            let load = LoadArgs { max_concurrency: Some(*count), ..load.clone() };
            (format!("concurrency {count}"), load)
        });
        let by_rate = judging
            .sweep_rate
            .iter()
            .map(|rate| (format!("rate {rate}"), LoadArgs { request_rate: *rate, ..load.clone() }));
        let points: Vec<_> = by_concurrency.chain(by_rate).collect();
        if points.is_empty() { vec![("serve".to_owned(), load.clone())] } else { points }
    }

    /// One run. Its prompts are its own, so that no run finds those of another in a prefix cache.
    async fn point(
        &self,
        session: &Session,
        maker: &Maker,
        name: String,
        load: &LoadArgs,
        index: u64,
    ) -> Result<Run, String> {
        let (api, asking) = (self.data.api, self.asking());
        let (path, reading) = (api.path(), asking.reading());
        let members = session.members(asking.members());
        let mut draw = Draw::new(self.lengths.seed.wrapping_add(index));
        let warm = self.queries(maker, load.warmup, &mut draw)?;
        let warm: Vec<Job> = warm
            .iter()
            .map(|query| Job { due: std::time::Duration::ZERO, ..api.job(&members, query) })
            .collect();
        session.warm_up(path, reading, load.max_concurrency, warm).await?;
        let count = match self.data.dataset {
            DataSet::Trace => self.data.num_prompts.unwrap_or(usize::MAX),
            _ => self.data.num_prompts.unwrap_or(DEFAULT_PROMPTS),
        };
        let queries = self.queries(maker, count, &mut draw)?;
        let mut jobs: Vec<Job> = queries.iter().map(|query| api.job(&members, query)).collect();
        if self.data.dataset != DataSet::Trace {
            let due = load.arrivals().schedule(jobs.len(), &mut draw);
            jobs.iter_mut().zip(due).for_each(|(job, due)| job.due = due);
        }
        let settings = settings(session, load, jobs.len());
        let outcome = session.run(path, reading, load.max_concurrency, jobs).await?;
        Ok(Run { name, settings, summary: summary(&outcome, &self.judging.goodput) })
    }

    fn queries(&self, maker: &Maker, count: usize, draw: &mut Draw) -> Result<Vec<Query>, String> {
        let (data, lengths) = (&self.data, &self.lengths);
        let random = Random {
            input: lengths.input_len,
            output: data.output_len.unwrap_or(128),
            spread: lengths.range_ratio,
            prefix: lengths.prefix_len,
            prefixes: lengths.num_prefixes,
        };
        let Some(path) = data.dataset_path.as_ref().filter(|_| data.dataset != DataSet::Random) else {
            return Ok(random.queries(count, maker, draw));
        };
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let queries = if data.dataset == DataSet::Trace {
            let playing = Playing { block: data.trace_block, speed: data.trace_speed, seed: draw.bits() };
            Trace::parse(&text).map(|trace| trace.queries(count, playing, maker))
        } else {
            ConversationFile::parse(&text).map(|file| file.queries(count, data.output_len, draw))
        };
        queries.map_err(|error| format!("{}: {error}", path.display()))
    }

    fn plot(&self, results: &[Results]) -> Result<(), String> {
        let Some(path) = &self.judging.plot else { return Ok(()) };
        let svg = pareto(results)?;
        std::fs::write(path, svg).map_err(|error| format!("cannot write {}: {error}", path.display()))
    }
}

/// What a run was asked to do.
fn settings(session: &Session, load: &LoadArgs, requests: usize) -> Value {
    json!({
        "model": session.model,
        "requests": requests,
        "request_rate": load.request_rate.is_finite().then_some(load.request_rate),
        "burstiness": load.burstiness,
        "max_concurrency": load.max_concurrency,
        "ramp_up_s": load.ramp_up.as_secs_f64(),
    })
}

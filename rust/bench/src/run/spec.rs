//! `frizzen bench spec`: the same prompts with each draft length, without drafts, and as the server chooses.
//!
//! The modes take turns, round by round, so that a machine that grows slower is slower for all of them. Each request has
//! a cache salt of its own: neither its prompt's KV nor what a drafter learnt of its text helps the next one.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};

use crate::answer::Reading;
use crate::args::{LengthArgs, ResultArgs, ServerArgs, Words, parse_concurrency, parse_output};
use crate::data::{ConversationFile, Query, Random, Texts};
use crate::drafts::{Curve, Mode, Point, recommended};
use crate::draw::Draw;
use crate::load::Job;
use crate::plot::{Line, lines};
use crate::report::{Results, Run};
use crate::run::generate::{Api, Asking};
use crate::run::{finish, print};
use crate::session::Session;

/// Where prompts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Data {
    /// A list that is to be said again
    Repetitive,
    /// Accessors of a class, one like the other
    Code,
    /// The beginning of a story
    Prose,
    /// Random tokens
    Random,
    /// Conversations from a JSON file, in ShareGPT's form or with OpenAI's messages
    File,
}

/// `frizzen bench spec`
#[derive(Args, Clone, Debug)]
pub struct SpecArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    lengths: LengthArgs,
    /// Sets of prompts
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["repetitive", "code", "prose"])]
    data: Vec<Data>,
    /// The file of --data file
    #[arg(long, value_name = "FILE", required_if_eq("data", "file"))]
    dataset_path: Option<PathBuf>,
    /// Drafts per step to measure; those that the server cannot verify are left out
    #[arg(long, value_delimiter = ',', value_name = "K,...", default_values_t = [1, 2, 4, 8],
          value_parser = clap::value_parser!(u32).range(1..))]
    drafts: Vec<u32>,
    /// Requests in flight, one curve for each
    #[arg(long, value_delimiter = ',', value_name = "N,...", default_values_t = [1, 8],
          value_parser = parse_concurrency)]
    concurrency: Vec<usize>,
    /// Tokens of an answer
    #[arg(long, value_name = "TOKENS", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    output_len: u32,
    /// Requests of a round; at least one per request in flight
    #[arg(long, value_name = "N", default_value_t = 8)]
    num_prompts: usize,
    /// Rounds of each mode
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Write the gains over the draft length as SVG
    #[arg(long, value_name = "FILE", value_parser = parse_output)]
    plot: Option<PathBuf>,
    /// Result files of servers with other drafters, to be drawn beside this one
    #[arg(long, num_args = 1.., value_name = "FILE")]
    beside: Vec<PathBuf>,
    #[command(flatten)]
    results: ResultArgs,
}

/// What the server says of its drafts.
#[derive(Clone, Debug)]
struct Drafting {
    drafter: String,
    max_drafts: u32,
    synthetic: bool,
    drafts: u64,
    accepted: u64,
}

impl Drafting {
    async fn ask(session: &Session) -> Result<Self, String> {
        let status = session.get("/v1/speculation").await?;
        let drafter = status["drafter"].as_str();
        let drafter =
            drafter.ok_or_else(|| "the server has no drafter: start it with --drafter".to_owned())?;
        let total = |name: &str| status["totals"][name].as_u64().unwrap_or(0);
        Ok(Self {
            drafter: drafter.to_owned(),
            max_drafts: status["max_drafts"].as_u64().unwrap_or(0) as u32,
            synthetic: status["synthetic"] == true,
            drafts: total("drafts"),
            accepted: total("accepted"),
        })
    }
}

impl SpecArgs {
    /// Runs the command and writes what people read to `out`.
    pub async fn run(self, out: &mut dyn Write) -> Result<ExitCode, String> {
        let beside: Vec<Results> =
            self.beside.iter().map(|path| Results::read(path)).collect::<Result<_, String>>()?;
        let session = Session::open(&self.server).await?;
        let server = Drafting::ask(&session).await?;
        let label = self.results.label.clone().unwrap_or_else(|| server.drafter.clone());
        let (mut curves, mut results) = (Vec::new(), Results { label, runs: Vec::new() });
        for data in &self.data {
            for concurrency in &self.concurrency {
                let curve = self.curve(&session, &server, *data, *concurrency).await?;
                print(out, &curve.table())?;
                results.runs.extend(self.runs(&session, &server, &curve, *data, *concurrency));
                curves.push(curve);
            }
        }
        let chosen = recommended(&curves);
        let flags = if chosen == Mode::Off {
            "no drafter: none of the lengths pays off here".to_owned()
        } else {
            format!("--drafter {} --speculation {}", server.drafter, chosen.name())
        };
        print(out, &format!("\nrecommended: {flags}\n"))?;
        if server.synthetic {
            print(out, "the server forces its acceptance: the gains are those of such a drafter\n")?;
        }
        self.draw(&results, &beside)?;
        finish(&self.results, "spec", &results)
    }

    fn modes(&self, server: &Drafting) -> Vec<Mode> {
        let lengths = self.drafts.iter().filter(|length| **length <= server.max_drafts);
        [Mode::Off, Mode::Auto].into_iter().chain(lengths.map(|length| Mode::Length(*length))).collect()
    }

    async fn curve(
        &self,
        session: &Session,
        server: &Drafting,
        data: Data,
        concurrency: usize,
    ) -> Result<Curve, String> {
        let queries = self.queries(session, data, self.num_prompts.max(concurrency)).await?;
        let mut points: Vec<Point> = self
            .modes(server)
            .into_iter()
            .map(|mode| Point { mode, tokens: 0, seconds: 0.0, drafts: 0, accepted: 0 })
            .collect();
        // Round 0 does not count: the server and its guard get to know the load.
        for round in 0..=self.rounds {
            for point in &mut points {
                let measured = self.round(session, &queries, point.mode, round, concurrency).await?;
                if round > 0 {
                    point.tokens += measured.tokens;
                    point.seconds += measured.seconds;
                    point.drafts += measured.drafts;
                    point.accepted += measured.accepted;
                }
            }
        }
        Ok(Curve { name: format!("{}, {concurrency} in flight", name_of(data)), points })
    }

    async fn round(
        &self,
        session: &Session,
        queries: &[Query],
        mode: Mode,
        round: u32,
        concurrency: usize,
    ) -> Result<Point, String> {
        let jobs = queries.iter().enumerate().map(|(index, query)| {
            let salt = format!("spec {} {concurrency} {round} {index}", mode.name());
            let members = members(session, mode, &salt);
            Api::Completions.job(&members, query)
        });
        let jobs: Vec<Job> = jobs.collect();
        let before = Drafting::ask(session).await?;
        let path = Api::Completions.path();
        let outcome = session.run(path, Reading::Json, Some(concurrency), jobs).await?;
        if let Some(failed) = outcome.failures.values().next() {
            return Err(format!("a request with speculation {} failed: {}", mode.field(), failed.first));
        }
        let after = Drafting::ask(session).await?;
        Ok(Point {
            mode,
            tokens: outcome.samples.iter().map(|sample| sample.output_tokens).sum(),
            seconds: outcome.duration.as_secs_f64(),
            drafts: after.drafts.saturating_sub(before.drafts),
            accepted: after.accepted.saturating_sub(before.accepted),
        })
    }

    async fn queries(&self, session: &Session, data: Data, count: usize) -> Result<Vec<Query>, String> {
        let mut draw = Draw::new(self.lengths.seed);
        match data {
            Data::Repetitive => Ok(Texts::Repetitive.queries(count, self.output_len)),
            Data::Code => Ok(Texts::Code.queries(count, self.output_len)),
            Data::Prose => Ok(Texts::Prose.queries(count, self.output_len)),
            Data::Random => {
                let members = members(session, Mode::Off, "probe");
                let (api, words) = (Api::Completions, self.lengths.words.unwrap_or(Words::Ids));
                let probe = |prompt: &_| api.body(&members, prompt, 1);
                let maker = session.maker(&self.lengths, words, api.path(), probe).await?;
                let random = Random {
                    input: self.lengths.input_len,
                    output: self.output_len,
                    spread: self.lengths.range_ratio,
                    prefix: self.lengths.prefix_len,
                    prefixes: self.lengths.num_prefixes,
                };
                Ok(random.queries(count, &maker, &mut draw))
            }
            Data::File => {
                let path = self.dataset_path.as_deref().ok_or("--data file needs --dataset-path")?;
                let text = std::fs::read_to_string(path);
                let text = text.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
                let file = ConversationFile::parse(&text);
                let file = file.map_err(|error| format!("{}: {error}", path.display()))?;
                Ok(file.queries(count, Some(self.output_len), &mut draw))
            }
        }
    }

    fn runs<'a>(
        &'a self,
        session: &'a Session,
        server: &'a Drafting,
        curve: &'a Curve,
        data: Data,
        concurrency: usize,
    ) -> impl Iterator<Item = Run> + 'a {
        curve.points.iter().map(move |point| {
            let requests = self.num_prompts.max(concurrency) as u64 * u64::from(self.rounds);
            let mut summary = curve.json(point);
            summary["completed"] = requests.into();
            summary["failed"] = 0.into();
            Run {
                name: format!("{}, drafts {}", curve.name, point.mode.name()),
                settings: json!({"model": session.model, "drafter": server.drafter, "data": name_of(data),
                                 "concurrency": concurrency, "drafts": point.mode.name(),
                                 "synthetic": server.synthetic, "output_len": self.output_len}),
                summary,
            }
        })
    }

    fn draw(&self, results: &Results, beside: &[Results]) -> Result<(), String> {
        let Some(path) = &self.plot else { return Ok(()) };
        let all = std::iter::once(results).chain(beside).flat_map(gains).collect::<Vec<_>>();
        let svg = lines(&all, "drafts per step", "tokens/s against no drafts", 1.0)?;
        std::fs::write(path, svg).map_err(|error| format!("cannot write {}: {error}", path.display()))
    }
}

/// The gains of each curve of a result over its draft lengths; no drafts are a gain of 1.
fn gains(results: &Results) -> Vec<Line> {
    let mut all: Vec<Line> = Vec::new();
    for run in &results.runs {
        let drafts = match run.settings["drafts"].as_str() {
            Some("off") => Some(0.0),
            drafts => drafts.and_then(|drafts| drafts.parse().ok()),
        };
        let (Some(drafts), Some(gain)) = (drafts, run.summary["gain"].as_f64()) else { continue };
        let (data, concurrency) = (&run.settings["data"], &run.settings["concurrency"]);
        let name = format!("{}: {} {concurrency}", results.label, data.as_str().unwrap_or_default());
        match all.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push((drafts, gain)),
            None => all.push(Line { name, points: vec![(drafts, gain)] }),
        }
    }
    all
}

fn name_of(data: Data) -> String {
    data.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// The members of a request that drafts like this and shares nothing.
fn members(session: &Session, mode: Mode, salt: &str) -> Map<String, Value> {
    let asking = Asking { stream: false, allow_eos: false, continuous_usage: false };
    let mut members = asking.members();
    members["speculation"] = mode.field();
    members["cache_salt"] = salt.into();
    session.members(members)
}

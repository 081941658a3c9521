//! `frizzen`: a real binary without Python in it.
//!
//! * [`launch`]: `serve`, `plan` and `doctor` become `python -m frizzen ...`, in the same process; [`interpreter`] finds
//!   the Python.
//! * [`mock`]: `mock-serve`, the whole server over a worker without a model.
//! * `bench`, the load client, is the crate `frizzen_bench`.
//! * [`render`]: `render`, a conversation as the model would see it.

mod interpreter;
mod launch;
mod mock;
mod render;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "frizzen",
    version,
    about = "Inference engine for language models",
    disable_help_subcommand = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a model over HTTP (runs `python -m frizzen serve`)
    Serve(launch::PythonArgs),
    /// Show which kernel serves each layer of a model, and the memory it takes (runs `python -m frizzen plan`)
    Plan(launch::PythonArgs),
    /// Look at this machine and its set-up (runs `python -m frizzen doctor`)
    Doctor(launch::PythonArgs),
    /// Serve without a model: the real server over a worker that makes text up
    MockServe(Box<mock::MockServeArgs>),
    /// Measure a server, this one or any with OpenAI's interface
    #[command(subcommand)]
    Bench(frizzen_bench::BenchCommand),
    /// Show the prompt and the token ids of a conversation
    Render(render::RenderArgs),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(args) => launch::run("serve", &args).map(|never| match never {}),
        Command::Plan(args) => launch::run("plan", &args).map(|never| match never {}),
        Command::Doctor(args) => launch::run("doctor", &args).map(|never| match never {}),
        Command::MockServe(args) => mock::serve(*args),
        Command::Bench(command) => frizzen_bench::run(command, &mut std::io::stdout()),
        Command::Render(args) => render::render(&args),
    };
    result.unwrap_or_else(|message| {
        #[expect(clippy::print_stderr, reason = "the last words of a command-line program")]
        {
            eprintln!("frizzen: {message}");
        }
        ExitCode::FAILURE
    })
}

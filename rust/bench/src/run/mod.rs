//! The commands.

pub mod generate;
pub mod latency;
pub mod pooling;
pub mod serve;
pub mod spec;
pub mod throughput;

use std::io::Write;
use std::process::ExitCode;

use crate::args::ResultArgs;
use crate::report::{Results, Run, table};

/// Writes for people.
pub fn print(out: &mut dyn Write, text: &str) -> Result<(), String> {
    out.write_all(text.as_bytes()).map_err(|error| format!("cannot write: {error}"))
}

/// Prints a run as soon as it has ended.
pub fn show(out: &mut dyn Write, run: &Run) -> Result<(), String> {
    print(out, &table(run))
}

/// Writes the result file. A run in which nothing succeeded is a failure of the command.
pub fn finish(args: &ResultArgs, mode: &str, results: &Results) -> Result<ExitCode, String> {
    if let Some(path) = &args.result_json {
        let text = format!("{:#}\n", results.json(mode));
        std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(if results.failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

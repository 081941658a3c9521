//! The commands that need torch: the same process becomes Python, so signals and the process id stay right.

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use crate::interpreter::{Places, find};

/// `frizzen COMMAND [--python PYTHON] ARGS...`
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub struct PythonArgs {
    /// The Python to run, with frizzen and torch in it
    #[arg(long, value_name = "PYTHON")]
    python: Option<PathBuf>,
    /// The arguments of the command; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    args: Vec<OsString>,
}

fn command(python: &PathBuf, name: &str, args: &[OsString]) -> Command {
    let mut command = Command::new(python);
    command.args(["-m", "frizzen", name]).args(args);
    command
}

/// Runs `python -m frizzen NAME`. Returns only if Python could not be started.
pub fn run(name: &str, args: &PythonArgs) -> Result<Infallible, String> {
    let directory = std::env::current_dir().unwrap_or_default();
    let places = Places { flag: args.python.clone(), directory, variable: |name| std::env::var_os(name) };
    let python = find(&places).map_err(|error| error.to_string())?;
    let error = command(&python, name, &args.args).exec();
    Err(format!("cannot run {}: {error}", python.display()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        serve: PythonArgs,
    }

    #[test]
    fn everything_but_the_python_is_handed_over() {
        let line = ["serve", "--python", "/p", "smollm2-135m", "--port", "0", "--help"];
        let args = Cli::try_parse_from(line).unwrap().serve;
        assert_eq!(args.python, Some("/p".into()));
        let command = command(&"/p".into(), "serve", &args.args);
        let given: Vec<_> = command.get_args().collect();
        assert_eq!(given, ["-m", "frizzen", "serve", "smollm2-135m", "--port", "0", "--help"]);
    }

    #[test]
    fn a_flag_may_come_before_the_model() {
        let args = Cli::try_parse_from(["serve", "--port", "0", "m"]).unwrap().serve;
        assert_eq!(args.args, ["--port", "0", "m"]);
        assert_eq!(Cli::try_parse_from(["serve", "--help"]).unwrap().serve.args, ["--help"]);
    }
}

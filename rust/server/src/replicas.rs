//! Several engines on one host: what the front end starts, and what a headless engine is.
//!
//! A headless engine is started with the very command line of its front end, and a few flags more, so that both agree
//! on everything that they do not say.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;

use clap::Args;
use frizzen_core::{Error, ReasoningMarkers, Result};
use frizzen_engine::remote::replica::{Ended, ReadConstraint, RefreshMetrics, ReplicaOptions};
use frizzen_engine::remote::{Dispatcher, Replica, Supervisor, SupervisorOptions};
use frizzen_engine::{EngineHandle, EngineSeat};
use frizzen_grammar::{GrammarCompiler, GrammarLimits};
use frizzen_metrics::Metrics;

use crate::config::{HttpArgs, ServerConfig};
use crate::enforce::Enforced;
use crate::state::TextModel;
use crate::worker_report::WorkerReport;

/// Where the kernel lists its NVIDIA devices.
const NVIDIA_DEVICES: &str = "/proc/driver/nvidia/gpus";
/// Which devices a process sees.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// Flags of serving with several engines.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Replicas")]
pub struct ReplicaArgs {
    /// Whole engines behind this front end, each in a process of its own and on a device of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub data_parallel_size: u32,
    /// How many of them the front end starts itself; the others are started by hand with --headless
    #[arg(long, value_name = "N")]
    pub data_parallel_size_local: Option<u32>,
    /// The socket on which the front end waits for its engines; a private one by default
    #[arg(long, value_name = "SOCKET")]
    pub data_parallel_address: Option<PathBuf>,
    /// Be one of the engines of the front end at --data-parallel-address, without HTTP
    #[arg(long, requires = "data_parallel_address")]
    pub headless: bool,
    /// Which one, from 0
    #[arg(long, value_name = "RANK", requires = "headless")]
    pub data_parallel_rank: Option<u32>,
}

impl ReplicaArgs {
    /// True if the engines are processes of their own and this process is the front end.
    pub const fn is_front_end(&self) -> bool {
        !self.headless && (self.data_parallel_size > 1 || self.data_parallel_address.is_some())
    }

    /// The rank of a headless engine.
    pub fn rank(&self) -> u32 {
        self.data_parallel_rank.unwrap_or(0)
    }

    /// How many engines the front end starts.
    fn local(&self) -> std::result::Result<u32, String> {
        let (local, size) =
            (self.data_parallel_size_local.unwrap_or(self.data_parallel_size), self.data_parallel_size);
        if local > size {
            return Err(format!(
                "--data-parallel-size-local {local} is more than --data-parallel-size {size}"
            ));
        }
        if local < size && self.data_parallel_address.is_none() {
            return Err(format!(
                "{} engines are to be started by hand, and --data-parallel-address does not say where they find the \
                 front end",
                size - local
            ));
        }
        Ok(local)
    }
}

/// The command line of a headless engine: what its front end was started with, and who it is.
#[derive(Clone, Debug)]
pub struct Program {
    /// What to run.
    pub program: PathBuf,
    /// The arguments of the front end, the subcommand included.
    pub arguments: Vec<OsString>,
}

impl Program {
    fn command(&self, rank: u32, socket: &Path, devices: &[String], threads: Option<usize>) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).args(["--headless", "--data-parallel-rank", &rank.to_string()]);
        command.arg("--data-parallel-address").arg(socket);
        if let Some(threads) = threads {
            command.args(["--num-threads", &threads.to_string()]);
        }
        if let Some(device) = devices.get(rank as usize) {
            command.env(VISIBLE, device);
        }
        // Its own group: Ctrl-C at a terminal is for the front end, which lets requests end first.
        command.stdin(Stdio::null()).process_group(0);
        command
    }
}

/// Makes constraints again from their sources, for a headless engine. What that takes is made by the first request that
/// needs it, when the engine is loaded: `load` reads the model's text side.
pub fn read_constraint(
    http: &HttpArgs,
    handle: EngineHandle,
    load: impl Fn() -> Result<TextModel> + Send + 'static,
) -> ReadConstraint {
    let http = http.clone();
    let mut made: Option<(GrammarCompiler, Option<Arc<ReasoningMarkers>>)> = None;
    Box::new(move |source| {
        let refused = |message: String| Error::Request { message };
        if made.is_none() {
            let info = handle.info().ok_or_else(|| refused("the engine is loading".to_owned()))?;
            let mut text = load()?;
            text.read_as(&http);
            let limits = GrammarLimits::default();
            let compiler =
                GrammarCompiler::new(&text.tokenizer, info.vocab_size, &info.eos_token_ids, limits);
            made = Some((compiler.map_err(|error| refused(error.to_string()))?, text.reasoning_markers));
        }
        let (compiler, markers) = made.as_ref().expect("made above");
        Enforced::of_source(source, compiler, markers.as_ref()).map_err(refused)
    })
}

/// What a headless engine shows of its worker besides, as a server does when its metrics are read.
pub fn refresh_metrics(metrics: &Metrics, rank: u32) -> RefreshMetrics {
    let report = WorkerReport::new(metrics.worker(rank));
    Box::new(move |handle| report.refresh(handle))
}

/// A headless engine, between its front end and the loop that `handle` belongs to. Returns the exit code once the front
/// end has gone or the engine has failed; `None` if the loop's thread is stuck and cannot be joined.
///
/// # Errors
/// There is no front end, or the connection broke.
pub fn serve_headless(
    config: &ServerConfig,
    handle: &EngineHandle,
    options: ReplicaOptions,
) -> io::Result<Option<u8>> {
    let args = &config.replicas;
    let socket = args.data_parallel_address.as_deref().unwrap_or(Path::new(""));
    let replica = Replica::connect(socket, args.rank())?;
    tracing::info!(engine = args.rank(), "connected to the front end");
    Ok(match replica.serve(handle, options)? {
        Ended::Told => Some(0),
        Ended::Failed(error) => {
            tracing::error!(engine = args.rank(), %error, "the engine failed");
            Some(1)
        }
        Ended::Stuck(error) => {
            tracing::error!(engine = args.rank(), %error, "the engine is stuck");
            None
        }
    })
}

/// The engines of a front end. Dropping it waits for their processes.
#[derive(Debug)]
pub struct Replicas {
    dispatcher: Option<JoinHandle<()>>,
    supervisor: Option<Supervisor>,
    /// Removed in the end.
    directory: Option<PathBuf>,
    socket: PathBuf,
}

impl Replicas {
    /// Listens for engines and starts those that are this host's business. `threads` is how many each may compute
    /// with, if the command line does not say.
    ///
    /// # Errors
    /// Names the flag, the socket or the engine.
    pub fn start(
        args: &ReplicaArgs,
        seat: EngineSeat,
        program: Program,
        threads: Option<usize>,
    ) -> io::Result<Self> {
        let local = args.local().map_err(io::Error::other)?;
        let devices = devices(local).map_err(io::Error::other)?;
        let (socket, directory) = if let Some(socket) = &args.data_parallel_address {
            (socket.clone(), None)
        } else {
            let name = format!("frizzen-{}-{:x}", std::process::id(), random());
            let directory = std::env::temp_dir().join(name);
            DirBuilder::new().mode(0o700).create(&directory)?;
            (directory.join("engines"), Some(directory))
        };
        let listener = UnixListener::bind(&socket).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot listen on {}: {error}", socket.display()))
        })?;
        let mut dispatcher = Dispatcher::new(seat, args.data_parallel_size, listener)?;
        let notices = dispatcher.notices();
        let mut replicas = Self { dispatcher: None, supervisor: None, directory, socket: socket.clone() };
        let thread =
            std::thread::Builder::new().name("dispatcher".to_owned()).spawn(move || dispatcher.run())?;
        replicas.dispatcher = Some(thread);
        let start = Box::new(move |rank| program.command(rank, &socket, &devices, threads).spawn());
        replicas.supervisor = Some(Supervisor::new(local, start, notices, SupervisorOptions::default())?);
        Ok(replicas)
    }
}

impl Drop for Replicas {
    fn drop(&mut self) {
        // The handle was told to end, so the dispatcher has told the engines.
        if let Some(thread) = self.dispatcher.take() {
            // A panic in there was reported where it happened.
            let _ = thread.join();
        }
        self.supervisor = None;
        // What is gone already needs no removal.
        let _ = fs::remove_file(&self.socket);
        if let Some(directory) = &self.directory {
            let _ = fs::remove_dir(directory);
        }
    }
}

fn random() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::hash::RandomState::new().build_hasher().finish()
}

/// The device of each engine, in the spelling of [`VISIBLE`]; none on a host without.
///
/// # Errors
/// There are devices, but too few: an engine without one would compute on the CPU and say nothing.
fn devices(engines: u32) -> std::result::Result<Vec<String>, String> {
    let visible = std::env::var(VISIBLE).ok();
    let found = fs::read_dir(NVIDIA_DEVICES).map_or(0, |entries| entries.flatten().count());
    assign(engines, visible.as_deref(), found)
}

fn assign(engines: u32, visible: Option<&str>, found: usize) -> std::result::Result<Vec<String>, String> {
    if found == 0 {
        return Ok(Vec::new());
    }
    let devices: Vec<String> = match visible {
        Some(list) => {
            list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
        }
        None => (0..found).map(|index| index.to_string()).collect(),
    };
    // An empty list hides the devices on purpose.
    if !devices.is_empty() && devices.len() < engines as usize {
        return Err(format!("{engines} engines need a device each, and there are {}", devices.len()));
    }
    Ok(devices)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        replicas: ReplicaArgs,
    }

    fn parse(flags: &[&str]) -> std::result::Result<ReplicaArgs, String> {
        let parsed = Cli::try_parse_from(std::iter::once(&"serve").chain(flags));
        parsed.map(|cli| cli.replicas).map_err(|error| error.to_string())
    }

    #[test]
    fn one_engine_stays_in_the_process_unless_it_is_to_come_from_elsewhere() {
        assert!(!parse(&[]).unwrap().is_front_end());
        assert!(parse(&["--data-parallel-size", "2"]).unwrap().is_front_end());
        assert!(
            parse(&["--data-parallel-address", "/s", "--data-parallel-size-local", "0"])
                .unwrap()
                .is_front_end()
        );
        let headless =
            parse(&["--data-parallel-size", "2", "--headless", "--data-parallel-address", "/s"]).unwrap();
        assert!(!headless.is_front_end() && headless.rank() == 0);
    }

    #[test]
    fn contradictions_are_refused_by_name() {
        assert!(parse(&["--headless"]).unwrap_err().contains("--data-parallel-address"));
        assert!(parse(&["--data-parallel-size", "0"]).is_err());
        let local = |flags: &[&str]| parse(flags).unwrap().local().unwrap_err();
        assert!(
            local(&["--data-parallel-size", "2", "--data-parallel-size-local", "3"]).contains("more than")
        );
        assert!(local(&["--data-parallel-size", "2", "--data-parallel-size-local", "1"]).contains("by hand"));
    }

    #[test]
    fn every_engine_has_a_device_of_its_own_or_the_start_is_refused() {
        assert_eq!(assign(2, None, 0).unwrap(), Vec::<String>::new());
        assert_eq!(assign(2, None, 3).unwrap(), ["0", "1", "2"]);
        assert_eq!(assign(2, Some("5, 7"), 8).unwrap(), ["5", "7"]);
        assert_eq!(assign(2, Some(""), 8).unwrap(), Vec::<String>::new(), "they are hidden on purpose");
        assert!(assign(3, Some("5,7"), 8).unwrap_err().contains("3 engines"));
    }

    #[test]
    fn a_headless_engine_gets_its_front_ends_command_line() {
        let arguments = ["serve", "m", "--port", "0"].map(Into::into).to_vec();
        let program = Program { program: "/p".into(), arguments };
        let command = program.command(1, Path::new("/s"), &["5".to_owned(), "7".to_owned()], Some(4));
        let given: Vec<_> = command.get_args().collect();
        assert_eq!(
            given,
            [
                "serve",
                "m",
                "--port",
                "0",
                "--headless",
                "--data-parallel-rank",
                "1",
                "--data-parallel-address",
                "/s",
                "--num-threads",
                "4"
            ]
        );
        let device = command.get_envs().find(|(name, _)| *name == VISIBLE).and_then(|(_, value)| value);
        assert_eq!(device, Some("7".as_ref()));
    }
}

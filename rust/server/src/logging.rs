//! The log: standard error, one line per event.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// The environment variable with the filter, such as `debug` or `frizzen_server=debug,warn`.
const VARIABLE: &str = "FRIZZEN_LOG";

/// Installs the log of a binary. A second call, or one in a program with its own log, has no effect.
pub fn init() {
    let filter = EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Fails only if somebody has installed another one, which is then the one to use.
    let _ = log.with_ansi(std::io::stderr().is_terminal()).try_init();
}

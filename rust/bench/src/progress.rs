//! A progress bar, on a terminal only.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

const WIDTH: u64 = 30;
const INTERVAL: Duration = Duration::from_millis(100);

/// A line on standard error that is written over, at most ten times a second.
#[derive(Debug)]
pub struct Progress {
    total: u64,
    started: Instant,
    shown: Option<Instant>,
}

impl Progress {
    /// A bar for `total` requests; none if standard error is not a terminal.
    pub fn on_terminal(total: usize) -> Option<Self> {
        let terminal = std::io::stderr().is_terminal();
        terminal.then(|| Self { total: total as u64, started: Instant::now(), shown: None })
    }

    /// Shows how far we are. A terminal that is gone is no reason to stop.
    pub fn show(&mut self, completed: u64, failed: u64) {
        let now = Instant::now();
        if self.shown.is_some_and(|shown| now - shown < INTERVAL) {
            return;
        }
        self.shown = Some(now);
        let line = line(completed, failed, self.total, now - self.started);
        let _ = write!(std::io::stderr(), "\r{line}\x1b[K");
    }

    /// Leaves the line empty.
    pub fn clear(self) {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
}

fn line(completed: u64, failed: u64, total: u64, elapsed: Duration) -> String {
    let ended = completed + failed;
    let full = (ended * WIDTH / total.max(1)).min(WIDTH) as usize;
    let bar = format!("{}{}", "#".repeat(full), "-".repeat(WIDTH as usize - full));
    let rate = ended as f64 / elapsed.as_secs_f64().max(1e-9);
    let failures = if failed == 0 { String::new() } else { format!(", {failed} failed") };
    format!("[{bar}] {ended}/{total} {rate:.1} req/s{failures}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_is_full_when_all_have_ended_well_or_not() {
        let second = Duration::from_secs(1);
        let full = "#".repeat(30);
        assert_eq!(line(8, 2, 10, second), format!("[{full}] 10/10 10.0 req/s, 2 failed"));
        assert!(line(5, 0, 10, second).starts_with("[###############---------------] 5/10 5.0"));
        assert!(line(0, 0, 0, Duration::ZERO).starts_with("[-"));
    }
}

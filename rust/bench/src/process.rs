//! CPU time and memory, of this client and of a server on this machine, from `/proc`. Elsewhere than on Linux there is
//! none: every function returns `None`.

use std::ops::Sub;
use std::time::Duration;

/// Ticks per second in `/proc/*/stat`: fixed in the kernel's interface.
const TICKS: f64 = 100.0;

/// What became of a thread's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadTime {
    /// It ran.
    pub ran: Duration,
    /// It could have run, and something else had the CPU.
    pub waited: Duration,
}

impl ThreadTime {
    /// The calling thread's, so far.
    pub fn now() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/thread-self/schedstat").ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_ascii_whitespace().map(|number| number.parse().ok());
        let mut next = || numbers.next().flatten().map(Duration::from_nanos);
        Some(Self { ran: next()?, waited: next()? })
    }
}

impl Sub for ThreadTime {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self { ran: self.ran.saturating_sub(earlier.ran), waited: self.waited.saturating_sub(earlier.waited) }
    }
}

/// CPU time of a process so far, user and system, in steps of 10 ms; `None` is this process.
pub fn cpu_time(pid: Option<u32>) -> Option<Duration> {
    let name = pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    parse_stat(&std::fs::read_to_string(format!("/proc/{name}/stat")).ok()?)
}

fn parse_stat(text: &str) -> Option<Duration> {
    // The name may hold spaces and parentheses; the fields after it do not.
    let fields = text.rsplit_once(')')?.1;
    let ticks: u64 =
        fields.split_ascii_whitespace().skip(11).take(2).map_while(|f| f.parse::<u64>().ok()).sum();
    Some(Duration::from_secs_f64(ticks as f64 / TICKS))
}

/// Resident memory of a process in KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Now.
    pub resident: u64,
    /// The most there was since the process started.
    pub peak: u64,
}

/// The memory of a process.
pub fn memory(pid: u32) -> Option<Memory> {
    parse_memory(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn parse_memory(text: &str) -> Option<Memory> {
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().next()?.parse().ok()
    };
    Some(Memory { resident: value("VmRSS:")?, peak: value("VmHWM:")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_cannot_shift_the_fields() {
        let stat = "7 (a ) b) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0";
        assert_eq!(parse_stat(stat), Some(Duration::from_secs(2)));
        assert_eq!(parse_stat("7"), None);
    }

    #[test]
    fn thread_time_and_memory_are_read_by_name_and_place() {
        let time = ThreadTime::parse("2000 500 3\n").unwrap();
        let earlier = ThreadTime::parse("500 600 1").unwrap();
        let between = ThreadTime { ran: Duration::from_nanos(1_500), waited: Duration::ZERO };
        assert_eq!(time - earlier, between);
        assert_eq!(ThreadTime::parse("1"), None);
        let memory = parse_memory("Name:\tx\nVmHWM:\t  20 kB\nVmRSS:\t  10 kB\n");
        assert_eq!(memory, Some(Memory { resident: 10, peak: 20 }));
    }
}

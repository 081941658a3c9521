//! Health means progress: what the engine's thread is doing, and who looks whether it ever ends.
//!
//! The loop notes what it begins and that it has ended ([`Activity`]). A [`Watchdog`] on another thread calls what takes
//! longer than a tenth of its limit *slow*, once per activity and at most once a minute, and what takes longer than the
//! limit *stuck*. Both are reported to the log with the engine's state and, where the worker's language can show them,
//! the stacks of its threads: looking takes no lock that the engine's thread holds while it computes.

use std::fmt;
use std::time::Duration;

use frizzen_core::Error;

use crate::handle::EngineHandle;

/// A slow activity is reported after this part of the limit.
const EARLY: u32 = 10;
/// Least time between two reports of slow activities.
const REST: Duration = Duration::from_mins(1);

/// What the engine's thread does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doing {
    /// A step: its number, rows and tokens, as of the plan that was submitted last.
    Step(u64, usize, usize),
    /// Work ahead while there is no request.
    Idle,
    /// Answering a question to the worker.
    Control(String),
}

/// What the engine's thread does, and since when on its clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activity {
    /// When it began.
    pub since: Duration,
    /// What it is.
    pub doing: Doing,
}

impl fmt::Display for Doing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(step, rows, tokens) => {
                write!(formatter, "step {step} of {rows} rows and {tokens} tokens")
            }
            Self::Idle => formatter.write_str("work ahead of requests"),
            Self::Control(name) => write!(formatter, "the worker's command {name:?}"),
        }
    }
}

/// Shows the stacks of all threads of the worker's language, for the log only. It must work while the engine's thread
/// holds whatever it may hold.
pub type ShowStacks = Box<dyn Fn() -> std::io::Result<String> + Send + Sync>;

/// Looks whether an engine's thread goes on.
#[derive(Debug)]
pub struct Watchdog {
    limit: Duration,
    /// The beginning of the activity that was reported last, and when that was.
    reported: Option<(Duration, Duration)>,
}

/// Something takes too long.
#[derive(Clone, Debug)]
pub struct Stall {
    activity: Activity,
    age: Duration,
    limit: Duration,
}

impl Watchdog {
    /// A watchdog that calls an activity stuck after `limit`.
    pub const fn new(limit: Duration) -> Self {
        Self { limit, reported: None }
    }

    /// Looks; `Some` if there is something to report.
    pub fn look(&mut self, engine: &EngineHandle) -> Option<Stall> {
        let stall = Stall::of(engine, self.limit).filter(Stall::is_slow)?;
        if stall.is_final() {
            return Some(stall);
        }
        let (begun, now) = (stall.activity.since, stall.activity.since + stall.age);
        let is_news =
            self.reported.is_none_or(|(last, when)| last != begun && now.saturating_sub(when) >= REST);
        if is_news {
            self.reported = Some((begun, now));
        }
        is_news.then_some(stall)
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (doing, age, limit) = (&self.activity.doing, self.age.as_secs_f64(), self.limit.as_secs_f64());
        let what = if matches!(doing, Doing::Step(..)) { "a step" } else { "something" };
        write!(formatter, "{what} has been running for {age:.1} s, the limit is {limit:.1} s: {doing}")
    }
}

impl Stall {
    /// What an engine does, and for how long; `None` if it waits.
    pub fn of(engine: &EngineHandle, limit: Duration) -> Option<Self> {
        let activity = engine.activity()?;
        let age = engine.now().saturating_sub(activity.since);
        Some(Self { activity, age, limit })
    }

    /// It takes longer than it should.
    pub fn is_slow(&self) -> bool {
        self.age > self.limit / EARLY
    }

    /// Nothing is to be expected of it any more.
    pub fn is_final(&self) -> bool {
        self.age > self.limit
    }

    /// What the streams end with.
    pub fn error(&self) -> Error {
        Error::Engine { message: self.to_string() }
    }

    /// Writes the engine's state and the stacks to the log. Takes a while.
    pub fn report(&self, engine: &EngineHandle) {
        let load = engine.load();
        let state = format!(
            "{} running, {} waiting, {} open, {} of {} KV blocks",
            load.running,
            load.waiting,
            engine.open_streams(),
            load.used_blocks,
            load.total_blocks
        );
        let (doing, seconds) = (&self.activity.doing, self.age.as_secs_f64());
        if self.is_final() {
            tracing::error!(%doing, seconds, state, "the engine is stuck");
        } else {
            tracing::warn!(%doing, seconds, state, "the engine is slow: something takes long");
        }
        match engine.stacks() {
            None => {}
            Some(Ok(stacks)) => {
                tracing::warn!("the worker's threads, the innermost call of each first:\n{stacks}");
            }
            Some(Err(error)) => tracing::warn!(%error, "the stacks of the worker's threads cannot be shown"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use frizzen_core::clock::ManualClock;

    use super::*;
    use crate::engine::seat;

    #[test]
    fn a_slow_activity_is_reported_once_and_a_stuck_one_always() {
        let clock = ManualClock::new();
        let (handle, _seat) = seat(Arc::new(clock.clone()), 1);
        let at = |ms| clock.advance(Duration::from_millis(ms).saturating_sub(handle.now()));
        let mut watchdog = Watchdog::new(Duration::from_secs(10));
        assert!(watchdog.look(&handle).is_none(), "nothing runs");
        handle.shared.begin(Doing::Step(7, 2, 30));
        at(1000);
        assert!(watchdog.look(&handle).is_none());
        at(1001);
        assert!(!watchdog.look(&handle).unwrap().is_final());
        at(9000);
        assert!(watchdog.look(&handle).is_none(), "once");
        handle.shared.end();
        handle.shared.begin(Doing::Step(8, 1, 1));
        at(12_000);
        assert!(watchdog.look(&handle).is_none(), "another one so soon");
        at(20_000);
        for _ in 0..2 {
            let stall = watchdog.look(&handle).unwrap();
            assert!(stall.is_final());
            let message = stall.error().to_string();
            assert!(
                message.contains("a step has been running for 11.0 s, the limit is 10.0 s: step 8 of 1 rows"),
                "{message}"
            );
        }
        handle.shared.end();
        handle.shared.begin(Doing::Control("memory".to_owned()));
        at(70_000);
        assert!(watchdog.look(&handle).unwrap().error().to_string().contains("\"memory\""));
    }
}

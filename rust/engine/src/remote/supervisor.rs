//! Starts the processes of replicas on this host, and starts them again when they die.

use std::io;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::dispatcher::Notices;

/// How often processes are looked at.
const TICK: Duration = Duration::from_millis(50);

/// How patient the supervisor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SupervisorOptions {
    /// Starts of one replica after its first, in a row; a replica that has run for [`Self::forgiven_after`] begins anew.
    pub restarts: u32,
    /// Wait before the first of them; each next one doubles it.
    pub delay: Duration,
    /// See [`Self::restarts`].
    pub forgiven_after: Duration,
    /// How long processes may take to end once told to.
    pub grace: Duration,
}

impl Default for SupervisorOptions {
    fn default() -> Self {
        Self {
            restarts: 3,
            delay: Duration::from_secs(1),
            forgiven_after: Duration::from_mins(10),
            grace: Duration::from_secs(10),
        }
    }
}

/// Starts the process of a replica.
pub type Start = Box<dyn FnMut(u32) -> io::Result<Child> + Send>;

/// What one replica's process does.
struct Post {
    rank: u32,
    child: Option<Child>,
    began: Instant,
    again_at: Option<Instant>,
    starts: u32,
}

/// The processes. Dropping it waits for them to end, and kills those that do not.
#[derive(Debug)]
pub struct Supervisor {
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Supervisor {
    /// Starts `replicas` processes and watches over them.
    ///
    /// # Errors
    /// One of them, or the thread, could not be started.
    pub fn new(
        replicas: u32,
        mut start: Start,
        notices: Notices,
        options: SupervisorOptions,
    ) -> io::Result<Self> {
        let mut posts = Vec::with_capacity(replicas as usize);
        for rank in 0..replicas {
            match start(rank) {
                Ok(child) => posts.push(Post {
                    rank,
                    child: Some(child),
                    began: Instant::now(),
                    again_at: None,
                    starts: 0,
                }),
                Err(error) => {
                    let named = io::Error::new(error.kind(), format!("engine {rank} cannot start: {error}"));
                    end(&mut posts, Duration::ZERO);
                    return Err(named);
                }
            }
        }
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopping);
        let thread = thread::Builder::new().name("supervisor".to_owned()).spawn(move || {
            while !stop.load(Ordering::Acquire) {
                for post in &mut posts {
                    post.look(&mut start, &notices, &options);
                }
                thread::sleep(TICK);
            }
            end(&mut posts, options.grace);
        })?;
        Ok(Self { stopping, thread: Some(thread) })
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic in there was reported where it happened.
            let _ = thread.join();
        }
    }
}

impl Post {
    fn look(&mut self, start: &mut Start, notices: &Notices, options: &SupervisorOptions) {
        if let Some(child) = &mut self.child {
            let ended = match child.try_wait() {
                Ok(None) => return,
                Ok(Some(status)) => told(status),
                Err(error) => error.to_string(),
            };
            self.child = None;
            if self.began.elapsed() >= options.forgiven_after {
                self.starts = 0;
            }
            self.again(&ended, notices, options);
        }
        if self.again_at.is_some_and(|at| at <= Instant::now()) {
            self.again_at = None;
            self.starts += 1;
            self.began = Instant::now();
            match start(self.rank) {
                Ok(child) => self.child = Some(child),
                Err(error) => self.again(&error.to_string(), notices, options),
            }
        }
    }

    fn again(&mut self, ended: &str, notices: &Notices, options: &SupervisorOptions) {
        if self.starts >= options.restarts {
            notices.gave_up(self.rank, format!("its process {ended}, after {} more starts", self.starts));
            return;
        }
        let delay = options.delay * 2_u32.saturating_pow(self.starts);
        tracing::warn!(
            engine = self.rank,
            "the process of a replica {ended}; it starts again in {} ms",
            delay.as_millis()
        );
        self.again_at = Some(Instant::now() + delay);
    }
}

fn told(status: ExitStatus) -> String {
    format!("ended with {status}")
}

/// Waits for the processes, and kills those that are left after `grace`.
fn end(posts: &mut [Post], grace: Duration) {
    let deadline = Instant::now() + grace;
    for post in posts {
        let Some(child) = &mut post.child else { continue };
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(TICK);
        }
        // Both fail only for a process that is gone.
        let _ = child.kill();
        let _ = child.wait();
    }
}

//! Threads of our own, for processes without an OpenMP team.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::wait_until;

type Member<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// Checks of the epoch before a worker sleeps: some tens of microseconds, longer than the gap between two kernels.
const IDLE_SPINS: u32 = 30_000;

pub(super) struct Pool {
    gate: Arc<Gate>,
    /// Taken by one caller at a time.
    caller: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
}

struct Gate {
    /// Changes when there is a new job; written under the lock of `job`, read by spinning workers.
    epoch: AtomicUsize,
    /// Workers that have finished the job.
    finished: AtomicUsize,
    job: Mutex<Job>,
    wake: Condvar,
}

#[derive(Clone, Copy)]
enum Job {
    Idle,
    Run(&'static Member<'static>),
    Stop,
}

impl Pool {
    pub(super) fn new(threads: usize) -> std::io::Result<Self> {
        let gate = Arc::new(Gate {
            epoch: AtomicUsize::new(0),
            finished: AtomicUsize::new(0),
            job: Mutex::new(Job::Idle),
            wake: Condvar::new(),
        });
        let mut pool = Self { gate: Arc::clone(&gate), caller: Mutex::new(()), workers: Vec::new() };
        for rank in 1..threads {
            let gate = Arc::clone(&gate);
            let name = format!("frizzen-kernel-{rank}");
            pool.workers
                .push(std::thread::Builder::new().name(name).spawn(move || gate.work(rank, threads))?);
        }
        Ok(pool)
    }

    pub(super) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    pub(super) fn run(&self, member: &Member<'_>) {
        let _turn = lock(&self.caller);
        self.gate.finished.store(0, Ordering::Relaxed);
        // SAFETY: only the lifetime changes; the reference is used by workers that this function waits for below.
        let job = unsafe { std::mem::transmute::<&Member<'_>, &'static Member<'static>>(member) };
        self.gate.post(Job::Run(job));
        aborting(|| member(0, self.threads()));
        wait_until(|| self.gate.finished.load(Ordering::Acquire) == self.workers.len());
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.gate.post(Job::Stop);
        for worker in self.workers.drain(..) {
            // A worker cannot panic: `aborting` ends the process first.
            let _ = worker.join();
        }
    }
}

impl Gate {
    fn post(&self, job: Job) {
        let mut current = lock(&self.job);
        *current = job;
        // Under the lock, or a worker between its check and its sleep would miss the notification.
        self.epoch.fetch_add(1, Ordering::Release);
        drop(current);
        self.wake.notify_all();
    }

    fn work(&self, rank: usize, size: usize) {
        let mut seen = 0;
        loop {
            let job = self.next(seen);
            seen += 1;
            match job {
                Job::Idle => {}
                Job::Run(member) => {
                    aborting(|| member(rank, size));
                    self.finished.fetch_add(1, Ordering::Release);
                }
                Job::Stop => return,
            }
        }
    }

    fn next(&self, seen: usize) -> Job {
        let mut spins = 0;
        while self.epoch.load(Ordering::Acquire) == seen && spins < IDLE_SPINS {
            spins += 1;
            std::hint::spin_loop();
        }
        let mut job = lock(&self.job);
        while self.epoch.load(Ordering::Acquire) == seen {
            job = self.wake.wait(job).unwrap_or_else(PoisonError::into_inner);
        }
        *job
    }
}

/// The other threads would wait at a barrier for a thread that unwound.
fn aborting(body: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(body)).is_err() {
        std::process::abort();
    }
}

/// Nothing is left half-done under these locks, so a poisoned one is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

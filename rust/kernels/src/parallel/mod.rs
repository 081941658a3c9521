//! Teams of threads that run one closure together.
//!
//! torch keeps an OpenMP team whose threads spin between operators, so a second pool would fight with it for the same
//! cores. [`Executor::open_mp`] runs on that very team, through the entry points of the library that torch has loaded;
//! [`Executor::threads`] is for processes without one.
//!
//! Invariants: every thread of a team makes the same sequence of [`Team::for_each`] and [`Team::barrier`] calls; what
//! a thread wrote before a barrier is seen by all after it. Which thread runs a task is not fixed, so a task's result
//! must not depend on it.

mod openmp;
mod pool;

use std::sync::atomic::{AtomicUsize, Ordering};

use openmp::OpenMp;
use pool::Pool;

/// Rounds of spinning before a waiting thread offers its core to others. Phases of a step are microseconds apart.
const SPINS: u32 = 4_000;

/// How teams are made.
pub struct Executor(Kind);

enum Kind {
    Serial,
    OpenMp(OpenMp),
    Threads(Pool),
}

impl Executor {
    /// Teams of one: the caller.
    pub const fn serial() -> Self {
        Self(Kind::Serial)
    }

    /// Teams of the caller and `threads - 1` threads of our own, which sleep between calls.
    pub fn threads(threads: usize) -> std::io::Result<Self> {
        Ok(if threads <= 1 { Self::serial() } else { Self(Kind::Threads(Pool::new(threads)?)) })
    }

    /// Teams of an OpenMP library that is already loaded, given the addresses of three of its functions.
    ///
    /// # Safety
    /// The addresses are those of `GOMP_parallel`, `omp_get_thread_num` and `omp_get_num_threads` of one library that
    /// stays loaded.
    pub unsafe fn open_mp(parallel: usize, thread_num: usize, num_threads: usize, threads: usize) -> Self {
        // SAFETY: the caller's promise.
        Self(Kind::OpenMp(unsafe { OpenMp::new(parallel, thread_num, num_threads, threads.max(1)) }))
    }

    /// The largest team.
    pub fn size(&self) -> usize {
        match &self.0 {
            Kind::Serial => 1,
            Kind::OpenMp(open_mp) => open_mp.threads(),
            Kind::Threads(pool) => pool.threads(),
        }
    }

    /// The name shown to users.
    pub const fn name(&self) -> &'static str {
        match self.0 {
            Kind::Serial => "serial",
            Kind::OpenMp(_) => "openmp",
            Kind::Threads(_) => "threads",
        }
    }

    /// Runs `body` on every thread of a team and returns when all have ended.
    pub fn run(&self, body: impl Fn(Team<'_>) + Sync) {
        let shared = Shared::new(self.size());
        let member = |rank, size| body(Team { shared: &shared, rank, size });
        match &self.0 {
            Kind::Serial => member(0, 1),
            Kind::OpenMp(open_mp) => open_mp.run(&member),
            Kind::Threads(pool) => pool.run(&member),
        }
    }
}

/// Alone on its cache lines (two, because the neighbour is fetched too).
#[derive(Default)]
#[repr(align(128))]
struct Counter(AtomicUsize);

struct Shared {
    arrived: Counter,
    generation: Counter,
    /// Tasks taken from each thread's slice.
    taken: Box<[Counter]>,
}

impl Shared {
    fn new(threads: usize) -> Self {
        let taken = (0..threads).map(|_| Counter::default()).collect();
        Self { arrived: Counter::default(), generation: Counter::default(), taken }
    }
}

/// One thread's membership of a team.
#[derive(Clone, Copy)]
pub struct Team<'a> {
    shared: &'a Shared,
    rank: usize,
    size: usize,
}

impl Team<'_> {
    /// This thread's number, from 0.
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// Threads of the team.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Runs tasks `0..tasks`, each on one thread, and waits for all of them. Not for vector code, see [`Self::tasks`].
    pub fn for_each(&self, tasks: usize, task: impl FnMut(usize)) {
        self.tasks(tasks).for_each(task);
        self.barrier();
    }

    /// This thread's share of tasks `0..tasks`; [`Self::barrier`] must follow. An iterator rather than a closure,
    /// because a closure with vector code in it is not inlined.
    ///
    /// A thread first takes its own contiguous slice in order, so that it streams through memory, then what is left
    /// of the others': a thread that lost its core delays only the task it is in.
    #[inline(always)]
    pub fn tasks(&self, tasks: usize) -> Tasks<'_> {
        Tasks { team: *self, count: tasks, turn: 0 }
    }

    /// Waits until every thread of the team is here.
    pub fn barrier(&self) {
        if self.size == 1 {
            self.reset();
            return;
        }
        let generation = self.shared.generation.0.load(Ordering::Relaxed);
        if self.shared.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == self.size {
            // The last one here: nobody takes tasks until the generation changes.
            self.reset();
            self.shared.arrived.0.store(0, Ordering::Relaxed);
            self.shared.generation.0.store(generation.wrapping_add(1), Ordering::Release);
        } else {
            wait_until(|| self.shared.generation.0.load(Ordering::Acquire) != generation);
        }
    }

    fn reset(&self) {
        for taken in &self.shared.taken[..self.size] {
            taken.0.store(0, Ordering::Relaxed);
        }
    }
}

/// See [`Team::tasks`].
pub struct Tasks<'a> {
    team: Team<'a>,
    count: usize,
    /// Threads whose slices are exhausted.
    turn: usize,
}

impl Iterator for Tasks<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let Team { shared, rank, size } = self.team;
        while self.turn < size {
            let owner = (rank + self.turn) % size;
            let (start, end) = (self.count * owner / size, self.count * (owner + 1) / size);
            let next = start + shared.taken[owner].0.fetch_add(1, Ordering::Relaxed);
            if next < end {
                return Some(next);
            }
            self.turn += 1;
        }
        None
    }
}

fn wait_until(done: impl Fn() -> bool) {
    let mut spins = 0;
    while !done() {
        if spins < SPINS {
            spins += 1;
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_task_runs_once_per_phase(executor: &Executor) {
        for tasks in [0, 1, 2, 7, 100] {
            let runs: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            executor.run(|team| {
                for phase in 0..20 {
                    team.for_each(tasks, |task| {
                        let before = runs[task].fetch_add(1, Ordering::Relaxed);
                        assert_eq!(before, phase, "task {task} ran twice or a phase overtook another");
                    });
                }
            });
            assert!(runs.iter().all(|run| run.load(Ordering::Relaxed) == 20));
        }
    }

    #[test]
    fn serial_team_runs_every_task_once() {
        every_task_runs_once_per_phase(&Executor::serial());
    }

    #[test]
    fn pool_runs_every_task_once_per_phase_in_order() {
        for threads in [1, 2, 5] {
            let executor = Executor::threads(threads).unwrap();
            assert_eq!(executor.size(), threads);
            every_task_runs_once_per_phase(&executor);
            every_task_runs_once_per_phase(&executor);
        }
    }

    #[test]
    fn pool_serves_callers_on_several_threads_in_turn() {
        let executor = Executor::threads(3).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| every_task_runs_once_per_phase(&executor));
            }
        });
    }
}

//! The team of an OpenMP library that another extension has loaded.

use std::ffi::{c_int, c_uint, c_void};

type Member<'a> = dyn Fn(usize, usize) + Sync + 'a;
type Outlined = extern "C" fn(*mut c_void);
type Parallel = unsafe extern "C" fn(Outlined, *mut c_void, c_uint, c_uint);
type Query = unsafe extern "C" fn() -> c_int;

pub(super) struct OpenMp {
    parallel: Parallel,
    thread_num: Query,
    num_threads: Query,
    threads: usize,
}

struct Call<'a> {
    member: &'a Member<'a>,
    thread_num: Query,
    num_threads: Query,
}

impl OpenMp {
    /// # Safety
    /// See [`super::Executor::open_mp`].
    pub(super) unsafe fn new(parallel: usize, thread_num: usize, num_threads: usize, threads: usize) -> Self {
        let at = std::ptr::with_exposed_provenance::<()>;
        // SAFETY: the caller promises which functions these are; the types are those of the OpenMP and libgomp ABI.
        unsafe {
            Self {
                parallel: std::mem::transmute::<*const (), Parallel>(at(parallel)),
                thread_num: std::mem::transmute::<*const (), Query>(at(thread_num)),
                num_threads: std::mem::transmute::<*const (), Query>(at(num_threads)),
                threads,
            }
        }
    }

    pub(super) const fn threads(&self) -> usize {
        self.threads
    }

    pub(super) fn run(&self, member: &Member<'_>) {
        let mut call = Call { member, thread_num: self.thread_num, num_threads: self.num_threads };
        // SAFETY: `GOMP_parallel` returns when every thread has left `outlined`, so `call` outlives its use.
        unsafe { (self.parallel)(outlined, (&raw mut call).cast(), self.threads as c_uint, 0) }
    }
}

/// A panic in here aborts (the frame is `extern "C"`): the other threads would wait at a barrier for ever.
extern "C" fn outlined(data: *mut c_void) {
    // SAFETY: `run` passes a `Call` that lives until every thread has returned from here, and nobody changes it.
    let call = unsafe { &*data.cast_const().cast::<Call<'_>>() };
    // SAFETY: queries without arguments or side effects. The library may give fewer threads than were asked for.
    let (rank, size) = unsafe { ((call.thread_num)(), (call.num_threads)()) };
    (call.member)(rank as usize, size as usize);
}

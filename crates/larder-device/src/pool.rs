//! Threads that execute the reads of readers without a ring.

use crate::{Device, Target};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Threads that execute reads for several readers. Each thread starts when it is first needed.
/// Dropping the pool waits for its queued and running reads. Reads that are submitted afterwards
/// fail.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    /// Returns a pool of at most `threads` threads. If `threads` is 0, the maximum is 1.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        let shared =
            Shared { threads_max: threads.max(1), state: Mutex::default(), work: Condvar::new() };
        Self { shared: Arc::new(shared) }
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.has_ended = true;
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.shared.work.notify_all();
        for thread in threads {
            // `join` returns no error, because `Job::end` catches the panics of targets.
            let _ = thread.join();
        }
    }
}

/// A read to be executed by the pool.
pub(crate) struct Job {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) target: Arc<dyn Target>,
    pub(crate) under_way: Arc<PendingReads>,
}

impl Job {
    fn run(self) {
        let parameters = self.target.parameters();
        // SAFETY: by the promise of `Target`, only this read uses the bytes until `finish` is
        // called, which happens in `end`.
        let result =
            unsafe { self.device.read(parameters.offset, parameters.into, parameters.len) };
        self.end(result);
    }

    fn end(self, result: io::Result<()>) {
        let Self { target, under_way, .. } = self;
        under_way.free_one();
        // If `finish` panics, the panic hook reports the panic. The panic must not terminate this
        // thread, because other reads depend on it.
        let _ = catch_unwind(AssertUnwindSafe(|| target.finish(result)));
        under_way.end_one();
    }
}

/// The state that the pool's threads share with readers.
pub(crate) struct Shared {
    threads_max: usize,
    state: Mutex<State>,
    work: Condvar,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("threads_max", &self.threads_max).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: Vec<JoinHandle<()>>,
    idle: usize,
    has_ended: bool,
}

/// The error of a read that was submitted after the pool was dropped.
#[derive(Debug, thiserror::Error)]
#[error("the pool of reading threads was dropped")]
struct PoolDropped;

impl Shared {
    /// Queues reads for the pool's threads. If no thread can be started, the reads fail.
    pub(crate) fn submit(self: &Arc<Self>, jobs: &mut Vec<Job>) {
        let mut state = self.state();
        if state.has_ended {
            drop(state);
            jobs.drain(..).for_each(|job| job.end(Err(io::Error::other(PoolDropped))));
            return;
        }
        let added = jobs.len();
        state.jobs.extend(jobs.drain(..));
        let refused = self.start_threads(&mut state);
        drop(state);
        for _ in 0..added {
            self.work.notify_one();
        }
        for (job, error) in refused {
            job.end(Err(error));
        }
    }

    /// If more reads are queued than threads are idle, starts one thread for each excess read, up
    /// to the maximum number of threads. If the pool has no thread and the system refuses to start
    /// a thread, returns the reads, which cannot be executed.
    fn start_threads(self: &Arc<Self>, state: &mut State) -> Vec<(Job, io::Error)> {
        let wanted = state.jobs.len().saturating_sub(state.idle) + state.threads.len();
        while state.threads.len() < wanted.min(self.threads_max) {
            let shared = Arc::clone(self);
            let builder = std::thread::Builder::new().name("flash-read".to_owned());
            match builder.spawn(move || shared.serve()) {
                Ok(thread) => state.threads.push(thread),
                Err(error) if state.threads.is_empty() => {
                    let kind = error.kind();
                    return state.jobs.drain(..).map(|job| (job, kind.into())).collect();
                }
                Err(_) => break,
            }
        }
        Vec::new()
    }

    /// Executes reads until the pool is dropped and the queue is empty.
    fn serve(&self) {
        let mut state = self.state();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job.run();
                state = self.state();
            } else if state.has_ended {
                return;
            } else {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The counts of one reader's pending reads.
#[derive(Debug, Default)]
pub(crate) struct PendingReads {
    counts: Mutex<Counts>,
    all_ended: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    /// The number of reads that have not completed. It is decremented before the call of the
    /// target's `finish`, which may start another read.
    under_way: usize,
    /// The number of started reads for which `finish` has not returned yet.
    unfinished: usize,
}

impl PendingReads {
    /// Counts another read and returns true. Returns false if `max` reads are already pending.
    pub(crate) fn start_one(&self, max: usize) -> bool {
        let mut counts = self.lock();
        let may_start = counts.under_way < max;
        counts.under_way += usize::from(may_start);
        counts.unfinished += usize::from(may_start);
        may_start
    }

    fn free_one(&self) {
        self.lock().under_way -= 1;
    }

    fn end_one(&self) {
        let mut counts = self.lock();
        counts.unfinished -= 1;
        if counts.unfinished == 0 {
            self.all_ended.notify_all();
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().under_way
    }

    /// Waits until `finish` has returned for all targets.
    pub(crate) fn wait_for_all(&self) {
        let wait = self.all_ended.wait_while(self.lock(), |counts| counts.unfinished > 0);
        drop(wait.unwrap_or_else(PoisonError::into_inner));
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

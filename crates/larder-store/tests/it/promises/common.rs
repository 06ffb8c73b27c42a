//! Helpers that call the engine with few arguments, measure time, and check values.

pub(crate) use crate::shared::*;
use larder_store::segment::{Cache, Config, Handle};
use larder_store::{
    Access, Attributes, Change, Engine, Item, Lease, Lookup, Lookups, Maintenance, NewCas, NewTags,
    NewValue, Refusal, Seconds, SizeClasses, Updates, Uploads, Value,
};
use nix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const MIB: usize = 1 << 20;

/// A time limit: no test that makes progress takes this long, however busy the machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) fn config(limit_bytes: usize) -> Config {
    Config {
        limit_bytes,
        cas: true,
        classes: SizeClasses::new(vec![96, 512, 4096, 1 << 20], 59),
        seed: 0x5eed,
        evict: true,
        item_size_max: limit_bytes / 2,
        threads: 4,
        size_exponent: larder_store::eviction::SIZE_EXPONENT,
        flash: None,
    }
}

pub(crate) fn cache(limit_bytes: usize) -> Cache {
    Cache::new(config(limit_bytes)).unwrap()
}

/// Returns a cache that refuses stores when it is full.
pub(crate) fn keeping_cache(limit_bytes: usize) -> Cache {
    Cache::new(Config { evict: false, ..config(limit_bytes) }).unwrap()
}

/// Returns a cache for `threads` writers with `limit_bytes`, or with the engine's lowest limit if
/// that is higher.
pub(crate) fn small_cache(limit_bytes: usize, threads: usize) -> Cache {
    use larder_store::segment::ConfigError;
    let config = |limit_bytes| Config { threads, ..config(limit_bytes) };
    match Cache::new(config(limit_bytes)) {
        Err(ConfigError::Limit { min, .. }) if min > limit_bytes => {
            Cache::new(config(min)).unwrap()
        }
        cache => cache.unwrap(),
    }
}

pub(crate) fn store(value: NewValue<'_>, attributes: Attributes, cas: NewCas) -> Change<'_> {
    Change::Put { attributes, cas, value, fetched: false, tags: NewTags::None }
}

pub(crate) fn set(engine: &mut impl Engine, key: &[u8], value: &[u8]) -> Result<u64, Refusal> {
    set_with(engine, key, value, Attributes::default(), NewCas::Fresh)
}

pub(crate) fn set_with(
    engine: &mut impl Engine,
    key: &[u8],
    value: &[u8],
    attributes: Attributes,
    cas: NewCas,
) -> Result<u64, Refusal> {
    change(engine, key, || store(NewValue::Bytes(value), attributes, cas))
}

/// Changes attributes. A change that needs a new record may be refused while a thread of another
/// handle is preempted within a batch, so this function repeats the change for up to ten seconds.
pub(crate) fn amend(engine: &mut Handle, key: &[u8], attributes: Attributes, cas: NewCas) -> u64 {
    let amend = || Change::SetAttributes { attributes, cas, access: Access::Untracked };
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match change(engine, key, amend) {
            Err(Refusal::OutOfMemory) if Instant::now() < until => thread::yield_now(),
            amended => return amended.expect("an amendment takes hardly any memory"),
        }
    }
}

pub(crate) fn remove(engine: &mut impl Engine, key: &[u8]) {
    change(engine, key, || Change::Remove).expect("a removal takes no memory");
}

pub(crate) fn change<'v>(
    engine: &mut impl Engine,
    key: &[u8],
    change: impl Fn() -> Change<'v>,
) -> Result<u64, Refusal> {
    let key = hashed(engine, key);
    engine.update(key, &mut None, |_| (change(), ())).map(|updated| updated.cas)
}

/// Stores a value as an upload, in pieces of 16 KiB.
pub(crate) fn set_upload(engine: &mut Handle, key: &[u8], value: &[u8]) -> Result<u64, Refusal> {
    let mut upload = engine.upload(value.len())?;
    for piece in value.chunks(16 << 10) {
        engine.extend(&mut upload, piece)?;
    }
    let key = hashed(engine, key);
    let put = || store(NewValue::Uploaded, Attributes::default(), NewCas::Fresh);
    engine.update(key, &mut Some(upload), |_| (put(), ())).map(|updated| updated.cas)
}

pub(crate) fn get(engine: &mut Handle, key: &[u8]) -> Option<Vec<u8>> {
    let key = hashed(engine, key);
    match engine.get(key, Access::Tracked, copied) {
        Lookup::Hit(value) => Some(value),
        _ => None,
    }
}

/// Returns whether a live item exists. The call does not count as an access.
pub(crate) fn has(engine: &mut impl Engine, key: &[u8]) -> bool {
    let key = hashed(engine, key);
    matches!(engine.get(key, Access::Untracked, |_| ()), Lookup::Hit(()))
}

pub(crate) fn copied<L: Lease>(item: &Item<'_, L>) -> Vec<u8> {
    match &item.value {
        Value::Whole(bytes) => bytes.to_vec(),
        Value::Large(lease) => read_lease(lease),
    }
}

/// Runs maintenance until there is nothing left to do.
pub(crate) fn tidy(engine: &mut Handle, now: Seconds) {
    let begun = Instant::now();
    while engine.maintain(now) {
        assert!(begun.elapsed() < PATIENCE, "maintenance does not end");
    }
}

/// Returns the processor time that this thread has used.
pub(crate) fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("threads have clocks").into()
}

/// Measures a step of the calling thread. The time for which the thread was ready but had no
/// processor does not count, because other programs cause it on a busy machine. Waiting for a lock
/// counts.
pub(crate) struct Stopwatch {
    begun: Instant,
    cpu: Duration,
    queued: Duration,
}

/// The duration of a step, without the time in which the thread waited for a processor.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lap {
    /// Processor time: the thread worked or polled a lock.
    pub(crate) cpu: Duration,
    /// The time for which the thread was asleep.
    pub(crate) asleep: Duration,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        // `queued_time` is called first here and last in `lap`, so that it measures a slightly
        // longer time than the other two clocks. If the thread loses its processor between these
        // calls, its sleep is underestimated rather than overestimated.
        let queued = queued_time();
        Self { queued, cpu: cpu_time(), begun: Instant::now() }
    }

    pub(crate) fn lap(&self) -> Lap {
        let all = self.begun.elapsed();
        let cpu = cpu_time() - self.cpu;
        let queued = queued_time() - self.queued;
        Lap { cpu, asleep: all.saturating_sub(cpu + queued) }
    }
}

/// Returns the time for which this thread was ready and waited for a processor. Returns zero if the
/// kernel does not count this time.
fn queued_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split(' ').nth(1).and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

/// Runs `work` on a separate thread, and fails if it does not end in time. A hanging thread keeps
/// running.
pub(crate) fn within<R: Send + 'static>(
    time: Duration,
    work: impl FnOnce() -> R + Send + 'static,
) -> R {
    let (sender, receiver) = mpsc::channel();
    let worker = thread::spawn(move || {
        // Ignore the error: after a timeout, the receiver no longer exists.
        let _ = sender.send(work());
    });
    match receiver.recv_timeout(time) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("not done after {time:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => std::panic::resume_unwind(
            worker.join().expect_err("a worker that sends nothing has panicked"),
        ),
    }
}

/// A barrier from which threads start at the same moment. The threads poll, because threads that
/// sleep at a barrier are woken one after another.
pub(crate) struct StartLine {
    threads: usize,
    arrived: AtomicUsize,
}

impl StartLine {
    pub(crate) fn new(threads: usize) -> Self {
        Self { threads, arrived: AtomicUsize::new(0) }
    }

    /// Waits until all threads have arrived for round `round`, counted from 0.
    pub(crate) fn wait(&self, round: usize) {
        self.arrived.fetch_add(1, Ordering::SeqCst);
        let all = (round + 1) * self.threads;
        for polled in 0_u32.. {
            if self.arrived.load(Ordering::SeqCst) >= all {
                return;
            }
            if polled % 64 == 63 { thread::yield_now() } else { std::hint::spin_loop() }
        }
    }
}

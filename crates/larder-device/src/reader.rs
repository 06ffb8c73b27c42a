//! Reads that go on while their thread does something else.

use crate::pool::{self, Job, Pool, UnderWay};

#[cfg(target_os = "linux")]
use crate::ring::Ring;
use crate::{Device, Target};
use std::fmt;

#[cfg(unix)]
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The reads of one thread. With a ring (io_uring) their ends are found by [`Reader::reap`], and targets are
/// told on the thread that calls it; otherwise threads of a pool read, and tell them.
///
/// Dropping it waits until all reads have ended, because their targets' bytes are written until then.
pub struct Reader {
    kind: Kind,
}

enum Kind {
    #[cfg(target_os = "linux")]
    Ring(Box<Ring>),
    Threads(Threads),
}

struct Threads {
    device: Arc<dyn Device>,
    depth: usize,
    pool: Arc<pool::Shared>,
    under_way: Arc<UnderWay>,
    begun: Vec<Job>,
}

impl Reader {
    /// A reader of at most `depth` reads at a time, with a ring if the device and the system allow one, else
    /// with threads of the pool.
    pub fn new(device: Arc<dyn Device>, depth: usize, pool: &Pool) -> Self {
        #[cfg(target_os = "linux")]
        if device.descriptor(0).is_some()
            && let Ok(ring) = Ring::new(Arc::clone(&device), depth)
        {
            return Self { kind: Kind::Ring(Box::new(ring)) };
        }
        Self::threaded(device, depth, pool)
    }

    /// A reader that uses threads of the pool even where there could be a ring.
    pub fn threaded(device: Arc<dyn Device>, depth: usize, pool: &Pool) -> Self {
        let threads = Threads {
            device,
            depth: depth.max(1),
            pool: pool.shared(),
            under_way: Arc::default(),
            begun: Vec::new(),
        };
        Self { kind: Kind::Threads(threads) }
    }

    /// Begins a read. The system is told at the next [`Reader::submit`].
    ///
    /// # Errors
    /// The target is handed back if as many reads are under way as there may be.
    pub fn begin<T: Target>(&mut self, target: Arc<T>) -> Result<(), Arc<T>> {
        match &mut self.kind {
            #[cfg(target_os = "linux")]
            Kind::Ring(ring) => ring.begin(target),
            Kind::Threads(threads) => threads.begin(target),
        }
    }

    /// Tells the system, or the threads, of all reads that were begun.
    pub fn submit(&mut self) {
        match &mut self.kind {
            #[cfg(target_os = "linux")]
            Kind::Ring(ring) => ring.submit(),
            Kind::Threads(threads) => threads.pool.submit(&mut threads.begun),
        }
    }

    /// Tells the targets of reads that have ended, and returns how many. If none has, that takes no call of
    /// the system. With threads it does nothing, because they tell the targets.
    pub fn reap(&mut self) -> usize {
        match &mut self.kind {
            #[cfg(target_os = "linux")]
            Kind::Ring(ring) => ring.reap(),
            Kind::Threads(_) => 0,
        }
    }

    /// What becomes readable when [`Reader::reap`] will find something; `None` with threads. It is the same
    /// for as long as the reader exists, and suits edge-triggered polling if each event is followed by
    /// [`Reader::reap`].
    #[cfg(unix)]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.kind {
            #[cfg(target_os = "linux")]
            Kind::Ring(ring) => Some(ring.fd()),
            Kind::Threads(_) => None,
        }
    }

    /// How many reads were begun and have not ended.
    pub fn under_way(&self) -> usize {
        match &self.kind {
            #[cfg(target_os = "linux")]
            Kind::Ring(ring) => ring.under_way(),
            Kind::Threads(threads) => threads.under_way.count(),
        }
    }

    /// Whether reads go through a ring.
    pub fn uses_ring(&self) -> bool {
        !matches!(self.kind, Kind::Threads(_))
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("uses_ring", &self.uses_ring())
            .field("under_way", &self.under_way())
            .finish()
    }
}

impl Threads {
    fn begin<T: Target>(&mut self, target: Arc<T>) -> Result<(), Arc<T>> {
        if !self.under_way.begin_one(self.depth) {
            return Err(target);
        }
        let (device, under_way) = (Arc::clone(&self.device), Arc::clone(&self.under_way));
        self.begun.push(Job { device, target, under_way });
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.pool.submit(&mut self.begun);
        self.under_way.wait_for_all();
    }
}

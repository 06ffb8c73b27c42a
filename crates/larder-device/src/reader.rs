//! Asynchronous reads that one thread starts.

use crate::pool::{self, Job, PendingReads, Pool};

#[cfg(target_os = "linux")]
use crate::ring::Ring;
use crate::{Device, Target};
use std::fmt;

#[cfg(unix)]
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The reads of one thread. With a ring (io_uring), [`Reader::reap`] collects the completed reads
/// and calls [`Target::finish`] on the calling thread. Without a ring, threads of a pool execute
/// the reads and call [`Target::finish`].
///
/// Dropping the reader waits until all reads have completed, because pending reads write to the
/// memory of their targets.
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
    under_way: Arc<PendingReads>,
    started: Vec<Job>,
}

impl Reader {
    /// Returns a reader with at most `depth` concurrent reads. It uses a ring if the device and the
    /// system support rings, and otherwise the threads of the pool.
    pub fn new(device: Arc<dyn Device>, depth: usize, pool: &Pool) -> Self {
        #[cfg(target_os = "linux")]
        if device.descriptor(0).is_some()
            && let Ok(ring) = Ring::new(Arc::clone(&device), depth)
        {
            return Self { kind: Kind::Ring(Box::new(ring)) };
        }
        Self::threaded(device, depth, pool)
    }

    /// Returns a reader that uses the threads of the pool even if a ring is possible.
    pub fn threaded(device: Arc<dyn Device>, depth: usize, pool: &Pool) -> Self {
        let threads = Threads {
            device,
            depth: depth.max(1),
            pool: pool.shared(),
            under_way: Arc::default(),
            started: Vec::new(),
        };
        Self { kind: Kind::Threads(threads) }
    }

    /// Starts a read. The next [`Reader::submit`] passes it to the system.
    ///
    /// # Errors
    /// Returns the target if the maximum number of reads is already pending.
    pub fn start<T: Target>(&mut self, target: Arc<T>) -> Result<(), Arc<T>> {
        match &mut self.kind {
            #[cfg(target_os = "linux")]
            Kind::Ring(ring) => ring.start(target),
            Kind::Threads(threads) => threads.start(target),
        }
    }

    /// Passes all started reads to the system or, without a ring, to the pool's threads.
    pub fn submit(&mut self) {
        match &mut self.kind {
            #[cfg(target_os = "linux")]
            Kind::Ring(ring) => ring.submit(),
            Kind::Threads(threads) => threads.pool.submit(&mut threads.started),
        }
    }

    /// Calls [`Target::finish`] for the completed reads, and returns their number. If no read has
    /// completed, the function usually makes no system call. Without a ring, returns 0, because the
    /// pool's threads call [`Target::finish`] themselves.
    pub fn reap(&mut self) -> usize {
        match &mut self.kind {
            #[cfg(target_os = "linux")]
            Kind::Ring(ring) => ring.reap(),
            Kind::Threads(_) => 0,
        }
    }

    /// Returns the descriptor that becomes readable when a read has completed and [`Reader::reap`]
    /// can collect it. Returns `None` without a ring. The descriptor never changes while the reader
    /// exists. It supports edge-triggered polling if the caller calls [`Reader::reap`] after each
    /// event.
    #[cfg(unix)]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.kind {
            #[cfg(target_os = "linux")]
            Kind::Ring(ring) => Some(ring.fd()),
            Kind::Threads(_) => None,
        }
    }

    /// Returns the number of reads that were started and have not completed.
    pub fn under_way(&self) -> usize {
        match &self.kind {
            #[cfg(target_os = "linux")]
            Kind::Ring(ring) => ring.under_way(),
            Kind::Threads(threads) => threads.under_way.count(),
        }
    }

    /// Returns whether reads go through io_uring instead of the pool's threads.
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
    fn start<T: Target>(&mut self, target: Arc<T>) -> Result<(), Arc<T>> {
        if !self.under_way.start_one(self.depth) {
            return Err(target);
        }
        let (device, under_way) = (Arc::clone(&self.device), Arc::clone(&self.under_way));
        self.started.push(Job { device, target, under_way });
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.pool.submit(&mut self.started);
        self.under_way.wait_for_all();
    }
}

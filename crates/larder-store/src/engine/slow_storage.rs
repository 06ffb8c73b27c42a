//! Items on slower storage, which the engine reads before it can answer a request.

use std::task::Waker;

/// A request for [`SlowStorage::start_read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The hash of the wanted item's key.
    pub hash: u64,
    /// Whether this is a read-ahead: the item is needed by a request that has to wait for earlier
    /// requests anyway. If a read-ahead cannot start now, the engine does not call the waker later.
    pub is_read_ahead: bool,
}

/// The result of [`SlowStorage::deliver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The read is still under way.
    InProgress,
    /// Until the batch ends, lookups find the item.
    Delivered,
    /// The read has failed, or was aborted because another read needed its buffer. The waker will
    /// not be called again. Repeat the request, and start another read if it returns `Pending`.
    Gone,
}

/// The result of [`SlowStorage::start_read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadStart {
    /// No read is needed: no item with this hash is on slower storage, or its read was already
    /// delivered. Repeat the request now.
    NotNeeded,
    /// At least one read was started or joined. The engine calls the waker at the end of each read.
    Started,
    /// Another read cannot start now: too many reads are under way, or too much memory is in use.
    /// Unless the request is a read-ahead, the engine calls the waker when another attempt may
    /// succeed.
    Busy,
}

/// Reads of items from slower storage. The default methods are for engines without slower storage.
pub trait SlowStorage {
    /// A started read of an item on slower storage. Dropping it does not stop the read. Engines
    /// without slower storage use [`std::convert::Infallible`].
    type PendingRead: Send;

    /// Starts to read an item from slower storage, after a request for it returned `Pending`. If a
    /// read of the item is under way, joins that read. Pushes the read to `into`, or several reads
    /// if the engine can't tell which item has the key. The engine calls `waker` when a read ends
    /// or fails.
    fn start_read(
        &mut self,
        _wanted: ReadRequest,
        _waker: &Waker,
        _into: &mut Vec<Self::PendingRead>,
    ) -> ReadStart {
        ReadStart::NotNeeded
    }

    /// Makes the result of a finished read visible: lookups find the item until the batch ends. If
    /// a request needs several reads, the caller delivers all of them again in each batch that
    /// repeats the request.
    fn deliver(&mut self, _read: &Self::PendingRead) -> Delivery {
        Delivery::Gone
    }

    /// Submits all started reads to the device. The caller calls this function once for all reads
    /// of a batch.
    fn submit(&mut self) {}

    /// Returns a descriptor that becomes readable when reads end, for a caller that polls it.
    /// Returns `None` if the engine completes reads without help from the caller. The caller
    /// requests the descriptor once, on the thread that uses the handle, before the first read.
    /// From then on the caller calls [`SlowStorage::drive_reads`] before it waits for events, and
    /// [`SlowStorage::submit`] has no effect.
    #[cfg(unix)]
    fn reads_fd(&mut self) -> Option<std::os::fd::RawFd> {
        None
    }

    /// Submits started reads to the device, completes the reads that the device has finished, and
    /// calls their wakers. Costs almost nothing while no read is under way.
    fn drive_reads(&mut self) {}
}

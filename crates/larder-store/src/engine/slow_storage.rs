//! Items on slower storage, which are read before a request can be answered.

use std::task::Waker;

/// An item that [`SlowStorage::start_read`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The hash of its key.
    pub hash: u64,
    /// Other requests are answered before the one that needs it. Where there is no room for its read, it is
    /// not waited for.
    pub is_read_ahead: bool,
}

/// The result of [`SlowStorage::deliver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The read is still under way.
    UnderWay,
    /// Look-ups find the item until the batch ends.
    Delivered,
    /// There is nothing to wait for any more: the read has failed, or was given up for another.
    Gone,
}

/// The result of [`SlowStorage::start_read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadStart {
    /// There is nothing to wait for: no item with this hash is on slower storage, or it has been
    /// delivered already. Repeat the request at once.
    NotNeeded,
    /// A read has begun. The waker will be called when it ends.
    Started,
    /// Too many reads are under way. The waker will be called when another attempt may succeed.
    Busy,
}

/// Reads of items from slower storage. The defaults are for engines without it.
pub trait SlowStorage {
    /// A read of slower storage that was begun. Dropping it does not stop the read.
    /// [`std::convert::Infallible`] for engines without slower storage.
    type PendingRead: Send;

    /// Begins to read an item from slower storage, after a request was answered with
    /// `Pending`. `waker` is called when the read has ended, also if it failed. The read is pushed to
    /// `into`.
    fn start_read(
        &mut self,
        _wanted: ReadRequest,
        _waker: &Waker,
        _into: &mut Vec<Self::PendingRead>,
    ) -> ReadStart {
        ReadStart::NotNeeded
    }

    /// Makes the result of a read visible, if the read has ended: look-ups find the item until the
    /// batch ends. It may be called in each batch as long as a request waits for this or another read.
    fn deliver(&mut self, _fetch: &Self::PendingRead) -> Delivery {
        Delivery::Gone
    }

    /// Submits the reads that were begun to the device. It is called once for the reads of a batch.
    fn submit(&mut self) {}

    /// The descriptor that becomes readable when reads have ended, for a caller that polls it. From then on
    /// the caller calls [`SlowStorage::drive_reads`] before it waits for events, and [`SlowStorage::submit`] has no
    /// effect. `None`: reads end without that. It is asked for once, on the thread that uses the handle, before
    /// the first read.
    #[cfg(unix)]
    fn reads_fd(&mut self) -> Option<std::os::fd::RawFd> {
        None
    }

    /// Submits the reads that were begun, and ends those that are done: their wakers are called. It takes
    /// hardly any time if there are none.
    fn drive_reads(&mut self) {}
}

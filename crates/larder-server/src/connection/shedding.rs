//! Load shedding: when memory is short, the server closes the connections that have stalled
//! longest, so that it can serve the active ones.
//!
//! Load shedding watches two kinds of memory. *Buffers* belong to the server: incomplete requests,
//! and replies that sockets have not accepted. All connections together may use
//! [`Memory::connections`] bytes of buffers. The last quarter of this limit is reserved for
//! connections that hold at most [`SMALL_MAX`] bytes. *Cache memory* belongs to the engine: large
//! values that are being sent (leases) or received (uploads). The engine reports the number of
//! bytes by which leases and uploads exceed their shares.
//!
//! Any thread may choose a connection to close, but only the thread that serves this connection can
//! close it. So the choosing thread marks the connection and wakes the serving thread.
//!
//! [`Memory::connections`]: crate::memory::Memory::connections

use crate::connection::connection_memory::Kind;
use crate::connection::list::{ConnectionInfo, TRACKER_SHARE};
use crate::server::Server;
use larder_store::ExcessMemory;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

/// A connection that holds at most this number of buffer bytes may use the last quarter of the
/// buffer limit.
const SMALL_MAX: usize = 4 << 10;
/// Connections that wait for memory are woken when this number of bytes is free.
const ROOM_OFFERED: usize = 512 << 10;
/// A connection that makes no progress for this time has stalled.
const STALL_MIN: Duration = Duration::from_millis(200);

impl Server {
    /// Returns the number of connections that load shedding has marked since the last reset.
    pub(crate) fn shed_count(&self) -> u64 {
        self.shedding.count.load(Relaxed)
    }

    /// Returns a counter that grows with every marked connection, and is never reset.
    pub(crate) fn shed_marks(&self) -> u64 {
        self.shedding.marks.load(SeqCst)
    }

    /// Resets [`Self::shed_count`] (`stats reset`).
    pub(crate) fn reset_shed_count(&self) {
        self.shedding.count.store(0, Relaxed);
    }

    /// Returns whether the connection `info` may hold `held` buffer bytes. `total` is the number of
    /// buffer bytes that all connections hold.
    ///
    /// Marks other connections for closing if memory is short. If `total` exceeds three quarters of
    /// the limit, the function marks connections that have stalled. If `total` still exceeds the
    /// limit for `info`, it marks further connections, even if they have not stalled, starting with
    /// those that have made no progress for the longest time.
    pub(crate) fn shed_for(&self, info: &ConnectionInfo, held: usize, total: usize) -> bool {
        self.shed_to_fit(info.id, held, total)
    }

    /// Returns the number of bytes that a connection may read while its client does not read
    /// replies. Such input must not raise the buffers of all connections above half of their limit.
    pub(crate) fn read_ahead_room(&self) -> usize {
        (self.memory().connections / 2).saturating_sub(self.connections.held())
    }

    /// Wakes connections that wait for memory to read ahead, if at least [`ROOM_OFFERED`] bytes are
    /// free.
    pub(crate) fn offer_room(&self) {
        if self.connections.is_room_awaited() && self.read_ahead_room() >= ROOM_OFFERED {
            self.connections.offer_room();
        }
    }

    /// Implements [`Self::shed_for`] for the connection with the ID `sparing`. Never marks that
    /// connection.
    fn shed_to_fit(&self, sparing: u64, held: usize, total: usize) -> bool {
        let connections = self.memory().connections;
        // Subtract at most the tracker's share. The tracker may hold more, because its own limit
        // derives from the memory limit at the start, and a client or a full file system may have
        // lowered the memory limit since.
        let tracked = self.connections.tracker.memory().min(connections / TRACKER_SHARE);
        let max = connections - tracked;
        let share = max / 4 * 3;
        let leaving = || self.shedding.leaving.of(Kind::Buffers);
        // Read the current sum: `total` may be out of date when this thread acquires the lock of
        // the list.
        let held_by_all = || self.connections.held();
        if total.saturating_sub(leaving()) > share {
            self.shed(
                Kind::Buffers,
                || held_by_all().saturating_sub(max / 8 * 5),
                STALL_MIN,
                sparing,
            );
        }
        let allowed = if held <= SMALL_MAX { max } else { share };
        if total.saturating_sub(leaving()) > allowed {
            self.shed(
                Kind::Buffers,
                || held_by_all().saturating_sub(allowed),
                Duration::ZERO,
                sparing,
            );
        }
        // Marked connections hold their memory until they close, so the total may exceed the limit
        // by up to half of the limit.
        total.saturating_sub(leaving()) <= allowed && total <= max + max / 2
    }

    /// Returns whether a reservation may raise the buffer bytes of all connections to `total`. A
    /// reservation may use the last quarter of the limit. Marks connections for closing as
    /// [`Self::shed_for`] does.
    pub(crate) fn shed_for_reservation(&self, total: usize) -> bool {
        self.shed_to_fit(0, 0, total)
    }

    /// Marks connections for closing if leases or uploads use too much cache memory. `over` returns
    /// the current excess.
    ///
    /// A connection with a lease is closed only if it has stalled. If no such connection has
    /// stalled, the leases stay, and further values are copied instead of leased. A connection with
    /// an upload is closed if it has stalled. To free the bytes in `uploaded_by_any`, connections
    /// with uploads are closed even if they have not stalled.
    pub(crate) fn free_cache(&self, over: impl Fn() -> ExcessMemory) {
        self.shed(Kind::Leased, || over().leased, STALL_MIN, 0);
        self.shed(Kind::Uploaded, || over().uploaded, STALL_MIN, 0);
        self.shed(Kind::Uploaded, || over().uploaded_by_any, Duration::ZERO, 0);
    }

    /// Returns whether a connection that is marked for closing still holds memory. This memory will
    /// soon become free, so an allocation that fails now may succeed later.
    pub(crate) fn is_shedding(&self) -> bool {
        [Kind::Buffers, Kind::Leased, Kind::Uploaded]
            .iter()
            .any(|kind| self.shedding.leaving.of(*kind) > 0)
    }

    /// Marks connections that have made no progress for the duration `stalled`, starting with the
    /// longest-stalled one. Stops when the open connections that are marked hold `wanted` bytes of
    /// this kind. `sparing` is the ID of the connection that needs the memory, and is not marked.
    fn shed(&self, kind: Kind, wanted: impl Fn() -> usize, stalled: Duration, sparing: u64) {
        // Read `leaving` first. A closing connection frees its memory before the memory is
        // subtracted from `leaving`. If `wanted` were read first, memory freed between the two
        // reads could count as missing.
        let missing = || {
            let leaving = self.shedding.leaving.of(kind);
            wanted().saturating_sub(leaving)
        };
        if missing() == 0 {
            return;
        }
        // While this thread holds the lock, no connection can close completely, because dismiss()
        // must first remove the connection from this list. Therefore, only open connections are
        // marked.
        let conns = self.connections.open();
        // Compute the missing memory under the lock, because another thread may have marked
        // connections before.
        let mut missing = missing();
        let stalled = u64::try_from(stalled.as_millis()).unwrap_or(u64::MAX);
        let since = self.clock.millis().saturating_sub(stalled);
        let mut any = false;
        for info in longest_stalled(conns.values(), kind, since, sparing) {
            if missing == 0 {
                break;
            }
            info.note_failure();
            info.memory.shed.store(true, SeqCst);
            info.memory.leaving.add(&info.memory.held);
            self.shedding.leaving.add(&info.memory.leaving);
            missing = missing.saturating_sub(info.memory.leaving.of(kind));
            self.shedding.count.fetch_add(1, Relaxed);
            self.shedding.marks.fetch_add(1, SeqCst);
            info.memory.wake();
            any = true;
        }
        drop(conns);
        if any {
            self.warnings.shed.warn(|| {
                "connection memory: the limit is reached, so stalled connections are closed; raise -m if \
                 clients are only slow"
                    .to_owned()
            });
        }
    }

    /// Subtracts a closed connection's memory from the total of the marked connections. Call this
    /// after removing the connection from the list, so that no thread marks it afterwards.
    pub(crate) fn note_shed_end(&self, info: &ConnectionInfo) {
        self.shedding.leaving.subtract(&info.memory.leaving);
    }
}

/// Returns the unmarked connections, other than `sparing`, that hold memory of this kind and have
/// made no progress after `since`. They are sorted by the time of their last progress, the
/// longest-stalled first.
fn longest_stalled<'c>(
    conns: impl Iterator<Item = &'c Arc<ConnectionInfo>>,
    kind: Kind,
    since: u64,
    sparing: u64,
) -> impl Iterator<Item = &'c ConnectionInfo> {
    let mut stalled: Vec<(u64, u64, &ConnectionInfo)> = conns
        .filter(|info| info.id != sparing && !info.memory.is_shed())
        .filter(|info| info.memory.held.of(kind) > 0)
        .map(|info| (info.memory.moved_at.load(Relaxed), info.id, &**info))
        .filter(|(moved_at, ..)| *moved_at <= since)
        .collect();
    stalled.sort_unstable_by_key(|(moved_at, id, _)| (*moved_at, *id));
    stalled.into_iter().map(|(.., info)| info)
}

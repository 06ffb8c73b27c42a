//! Load shedding: when memory runs short, the connections that have stalled for longest are closed,
//! so that active ones are served.
//!
//! Two kinds of memory are watched. *Buffers* belong to the server: incomplete requests, and answers
//! that peers have not accepted. All connections together may have [`Memory::connections`] of them;
//! the last quarter is for connections that hold no more than [`SMALL_MAX`]. *Cache memory* is kept
//! in use by large values that are being sent, under a lease, or received, as an upload; the engine
//! reports when either is too much.
//!
//! Any thread may find a connection to close, but only the thread that serves a connection can close
//! it: the connection is marked, and its thread is woken.
//!
//! [`Memory::connections`]: crate::memory::Memory::connections

use crate::connection::holdings::Kind;
use crate::connection::list::ConnectionInfo;
use crate::server::Server;
use larder_store::Overheld;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

/// A connection that holds no more than this may use the last quarter of the buffers, in bytes.
const SMALL_MAX: usize = 4 << 10;
/// A connection that has neither read nor sent anything for this long has stalled.
const STALL_MIN: Duration = Duration::from_millis(200);

impl Server {
    /// How many connections were closed because they had stalled while memory was short.
    pub(crate) fn shed_count(&self) -> u64 {
        self.shedding.count.load(Relaxed)
    }

    /// A number that grows with every connection that is to be closed.
    pub(crate) fn shed_marks(&self) -> u64 {
        self.shedding.marks.load(SeqCst)
    }

    /// Sets that count to 0 (`stats reset`).
    pub(crate) fn reset_shed_count(&self) {
        self.shedding.count.store(0, Relaxed);
    }

    /// Whether `info` may hold `held` bytes of buffers, `total` being what all hold now. Stalled
    /// connections are closed for it, and if these are not enough, those that have waited longest.
    pub(crate) fn makes_room(&self, info: &ConnectionInfo, held: usize, total: usize) -> bool {
        self.has_room(info.id, held, total)
    }

    fn has_room(&self, sparing: u64, held: usize, total: usize) -> bool {
        let max = self.memory().connections;
        let share = max / 4 * 3;
        let leaving = || self.shedding.leaving.of(Kind::Buffers);
        if total.saturating_sub(leaving()) > share {
            self.shed(Kind::Buffers, total - max / 8 * 5, STALL_MIN, sparing);
        }
        let allowed = if held <= SMALL_MAX { max } else { share };
        if total.saturating_sub(leaving()) > allowed {
            self.shed(Kind::Buffers, total - allowed, Duration::ZERO, sparing);
        }
        // Marked connections still hold their memory, so the sum must not exceed the limit by far.
        total.saturating_sub(leaving()) <= allowed && total <= max + max / 2
    }

    /// Whether there is room for a few bytes that a connection needs for its next request.
    pub(crate) fn makes_small_room(&self, total: usize) -> bool {
        self.has_room(0, 0, total)
    }

    /// Closes connections that keep this much of the cache's memory. Leases are taken only from stalled
    /// connections: while there are none, values are copied.
    pub(crate) fn free_cache(&self, over: Overheld) {
        self.shed(Kind::Leased, over.leased, STALL_MIN, 0);
        self.shed(Kind::Uploaded, over.uploaded, STALL_MIN, 0);
        self.shed(Kind::Uploaded, over.uploaded_by_any, Duration::ZERO, 0);
    }

    /// Some connections are marked and not closed yet: a request for memory may be refused now that
    /// would succeed a little later.
    pub(crate) fn is_shedding(&self) -> bool {
        [Kind::Buffers, Kind::Leased, Kind::Uploaded]
            .iter()
            .any(|kind| self.shedding.leaving.of(*kind) > 0)
    }

    /// Marks connections, the longest stalled first, until those that are marked and not closed yet
    /// hold `wanted` bytes together. `sparing` is the connection that asks.
    fn shed(&self, kind: Kind, wanted: usize, stalled: Duration, sparing: u64) {
        let leaving = || self.shedding.leaving.of(kind);
        if leaving() >= wanted {
            return;
        }
        // A connection that has ended is not in the list any more, so none is marked afterwards.
        let conns = self.connections.open();
        let stalled = u64::try_from(stalled.as_millis()).unwrap_or(u64::MAX);
        let since = self.clock.millis().saturating_sub(stalled);
        let mut any = false;
        for info in longest_stalled(conns.values(), kind, since, sparing) {
            if leaving() >= wanted {
                break;
            }
            info.note_failure();
            info.holdings.shed.store(true, SeqCst);
            info.holdings.leaving.add(&info.holdings.held);
            self.shedding.leaving.add(&info.holdings.leaving);
            self.shedding.count.fetch_add(1, Relaxed);
            self.shedding.marks.fetch_add(1, SeqCst);
            info.holdings.wake();
            any = true;
        }
        drop(conns);
        if any {
            self.warnings.shed.warn(|| {
                "memory for connections is short: the connections are closed that have neither read \
                 nor sent anything for longest; raise -m if clients are only slow"
                    .to_owned()
            });
        }
    }

    /// Notes the end of a connection that is not in the list any more: what it held when it was marked
    /// has been freed.
    pub(crate) fn note_shed_end(&self, info: &ConnectionInfo) {
        self.shedding.leaving.subtract(&info.holdings.leaving);
    }
}

/// Connections that hold memory and have neither read nor sent anything since `since`, the longest
/// stalled first.
fn longest_stalled<'c>(
    conns: impl Iterator<Item = &'c Arc<ConnectionInfo>>,
    kind: Kind,
    since: u64,
    sparing: u64,
) -> impl Iterator<Item = &'c ConnectionInfo> {
    let mut stalled: Vec<(u64, u64, &ConnectionInfo)> = conns
        .filter(|info| info.id != sparing && !info.holdings.is_shed())
        .filter(|info| info.holdings.held.of(kind) > 0)
        .map(|info| (info.holdings.moved_at.load(Relaxed), info.id, &**info))
        .filter(|(moved_at, ..)| *moved_at <= since)
        .collect();
    stalled.sort_unstable_by_key(|(moved_at, id, _)| (*moved_at, *id));
    stalled.into_iter().map(|(.., info)| info)
}

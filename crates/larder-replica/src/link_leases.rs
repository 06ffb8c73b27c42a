//! Leases of a connection for forwarded requests, as the forwarding node grants them to the leader.
//!
//! A forwarding node may report a change as failed only when the leader can no longer execute it.
//! Closing the connection is not enough: bytes can wait in the network or in the memory of a paused
//! leader. So the leader executes forwarded changes only until the end of a lease
//! ([`larder_store::Fence`]). The lease ends at a time on the leader's own clock, which the
//! forwarding node estimates from heartbeats:
//!
//! ```text
//! forwarding node                                    leader
//!                    ◀──────────────── Accepted, LinkHeartbeat: time `sent` on the leader's clock
//! e = sent + 0.98 x (time since it arrived)          its clock shows at least e
//! Lease: until e + LEASE_TIME ─────────────────────▶ extends its fence
//! requests ────────────────────────────────────────▶ executes changes until then
//! closes the connection
//! waits until e is past every granted lease          refuses the changes
//! reports the changes as lost
//! ```
//!
//! The factor 0.98 allows for clocks whose rates differ from real time by 1 % each.

use crate::time::Millis;
use std::collections::VecDeque;

/// The time from the grant of a lease to its end, unless the connection is slow. It is also the time
/// without a frame from the leader after which the connection is given up.
pub const LEASE_TIME: Millis = 1000;
/// The maximum of that time on a slow connection. A lease can be behind all requests in the buffers of
/// the system, which are some megabytes.
const LEASE_TIME_MAX: Millis = 10_000;
/// A lease lasts this multiple of the time in which the leader confirms one.
const DELAYS_PER_LEASE: u64 = 4;

/// The leases of one connection. Times are in milliseconds on the clock of this node, unless they
/// are on the leader's.
#[derive(Debug)]
pub struct LinkLeases {
    /// A time on the leader's clock, and the time at which it arrived.
    leader_time: (Millis, Millis),
    /// The latest end of a granted lease, on the leader's clock.
    granted_until: Millis,
    is_closed: bool,
    /// The written leases that the leader has not confirmed, the oldest first: the number of bytes
    /// up to the end of the lease, and the time of the grant.
    unconfirmed: VecDeque<(u64, Millis)>,
    /// The time from a grant to its confirmation, as measured last.
    delay: Millis,
    /// The number of bytes of frames that were sent.
    written: u64,
    /// The number of these bytes that the leader has handled.
    received: u64,
    /// The time of the last heartbeat.
    heartbeat_at: Millis,
    /// The time of the last heartbeat that confirmed further bytes, or all of them.
    progress_at: Millis,
}

impl LinkLeases {
    /// Starts with the time on the leader's clock in its `Accepted`, which has just arrived. `delay` is
    /// the duration of the handshake, which counts as the time from a grant to its confirmation until
    /// the leader has confirmed a lease.
    #[must_use]
    pub fn new(leader_time: Millis, delay: Millis, now: Millis) -> Self {
        Self {
            leader_time: (leader_time, now),
            granted_until: 0,
            is_closed: false,
            unconfirmed: VecDeque::new(),
            delay,
            written: 0,
            received: 0,
            heartbeat_at: now,
            progress_at: now,
        }
    }

    /// Notes a heartbeat of the leader: the time on its clock, and the number of bytes of frames that
    /// it has handled.
    pub fn note_heartbeat(&mut self, sent: Millis, received: u64, now: Millis) {
        // A heartbeat that was delayed shows an earlier time than the estimate.
        if sent >= self.leaders_clock(now) {
            self.leader_time = (sent, now);
        }
        self.heartbeat_at = now;
        if received > self.received || received >= self.written {
            (self.received, self.progress_at) = (received, now);
        }
        while let Some((position, granted_at)) = self.unconfirmed.front().copied()
            && position <= received
        {
            self.delay = now.saturating_sub(granted_at);
            self.unconfirmed.pop_front();
        }
    }

    /// Grants a lease. Returns its end on the leader's clock, or `None` if the connection is closed.
    /// The caller must send it, and should send it before waiting requests. The lease counts as
    /// granted from now on, even if the caller is paused before it sends the lease.
    pub fn grant(&mut self, now: Millis) -> Option<Millis> {
        if self.is_closed {
            return None;
        }
        let until = self.leaders_clock(now).saturating_add(self.lease_time());
        self.granted_until = self.granted_until.max(until);
        Some(until)
    }

    /// Notes sent bytes of frames. `granted_at` is the time of the grant if they end with a lease.
    pub fn note_written(&mut self, len: u64, granted_at: Option<Millis>) {
        self.written += len;
        self.unconfirmed.extend(granted_at.map(|at| (self.written, at)));
    }

    /// Grants no more leases.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// Returns whether the connection is closed and all its leases have ended: the leader executes
    /// no more changes that were sent on it.
    #[must_use]
    pub fn have_ended(&self, now: Millis) -> bool {
        self.is_closed && self.leaders_clock(now) >= self.granted_until
    }

    /// Returns whether the leader has handled nothing for the time of a lease, although there were
    /// frames to handle. Compares the times of heartbeats, because the next one may be behind a long reply.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.heartbeat_at.saturating_sub(self.progress_at) > self.lease_time()
    }

    /// Returns the time from a grant to the end of the lease.
    #[must_use]
    pub fn lease_time(&self) -> Millis {
        self.delay.saturating_mul(DELAYS_PER_LEASE).clamp(LEASE_TIME, LEASE_TIME_MAX)
    }

    /// Returns a time that the leader's clock has passed.
    fn leaders_clock(&self, now: Millis) -> Millis {
        let (sent, arrived_at) = self.leader_time;
        // Both times are rounded down, so their difference can be a millisecond too long.
        let elapsed = now.saturating_sub(arrived_at).saturating_sub(1);
        sent.saturating_add(elapsed / 100 * 98 + elapsed % 100 * 98 / 100)
    }
}

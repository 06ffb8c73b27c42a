//! Leases that a forwarding node grants to a leader on a connection for forwarded requests.
//!
//! A forwarding node may report a change as failed only when the leader can no longer execute it.
//! Closing the connection is not enough: the bytes of the change may be delayed in the network or
//! in the memory of a paused leader. So the leader executes forwarded changes only until the end of
//! a lease ([`larder_store::Fence`]). The end of a lease is a time on the leader's own clock. The
//! forwarding node estimates that clock from heartbeats:
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
//! The factor 0.98 allows for two clocks whose rates each differ from real time by up to 1 %.

use crate::time::{Millis, PeerClock};
use std::collections::VecDeque;

/// The time from the grant of a lease to its end, unless the connection is slow. If the leader
/// sends no frame for this time, the forwarding node closes the connection.
pub const LEASE_TIME: Millis = 1000;
/// On a slow connection, the time from a grant to the end of the lease grows up to this maximum. A
/// lease waits behind all requests in the system's socket buffers, which can hold several
/// megabytes.
const LEASE_TIME_MAX: Millis = 10_000;
/// A lease lasts this multiple of the measured time from a grant to its confirmation.
const DELAYS_PER_LEASE: u64 = 4;

/// The leases of one connection. Times are on this node's clock, unless the comment of a field
/// names the leader's clock.
#[derive(Debug)]
pub struct LinkLeases {
    leader_clock: PeerClock,
    /// The latest end of a granted lease, on the leader's clock.
    granted_until: Millis,
    is_closed: bool,
    /// The sent leases that the leader has not confirmed, the oldest first. Each entry has the
    /// value of `written` after the lease's frame, and the time of the grant.
    unconfirmed: VecDeque<(u64, Millis)>,
    /// The last measured time from a grant to its confirmation.
    delay: Millis,
    /// The total length of the sent frames, in bytes.
    written: u64,
    /// How many of the `written` bytes the leader has handled.
    received: u64,
    /// The time of the last heartbeat.
    heartbeat_at: Millis,
    /// The time of the last heartbeat that confirmed further bytes, or that confirmed all written
    /// bytes.
    progress_at: Millis,
}

impl LinkLeases {
    /// Creates the state of a connection. `leader_time` is the time on the leader's clock in its
    /// `Accepted`, which has just arrived. `delay` is the duration of the handshake. Until the
    /// leader has confirmed a lease, `delay` is the estimate of the time from a grant to its
    /// confirmation.
    #[must_use]
    pub fn new(leader_time: Millis, delay: Millis, now: Millis) -> Self {
        Self {
            leader_clock: PeerClock::new(leader_time, now),
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

    /// Handles a heartbeat of the leader. `sent` is the send time on the leader's clock, and
    /// `received` the total length of the frames that the leader has handled, in bytes.
    pub fn note_heartbeat(&mut self, sent: Millis, received: u64, now: Millis) {
        self.leader_clock.note(sent, now);
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

    /// Grants a lease. Returns the lease's end on the leader's clock, or `None` if the connection
    /// is closed. The caller must send the lease, and should send it ahead of waiting requests. The
    /// lease counts as granted from `now` on, even if the caller is paused before it sends the
    /// lease.
    pub fn grant(&mut self, now: Millis) -> Option<Millis> {
        if self.is_closed {
            return None;
        }
        let until = self.leader_clock.at(now).saturating_add(self.lease_time());
        self.granted_until = self.granted_until.max(until);
        Some(until)
    }

    /// Records that `len` bytes of frames were sent. If they end with a lease, `granted_at` is the
    /// time of its grant.
    pub fn note_written(&mut self, len: u64, granted_at: Option<Millis>) {
        self.written += len;
        self.unconfirmed.extend(granted_at.map(|at| (self.written, at)));
    }

    /// Grants no more leases.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// Returns whether the connection is closed and all its leases have ended. The leader then
    /// executes no more changes from this connection.
    #[must_use]
    pub fn have_ended(&self, now: Millis) -> bool {
        self.is_closed && self.leader_clock.at(now) >= self.granted_until
    }

    /// Returns whether the leader has handled no frame for [`Self::lease_time`], although there
    /// were frames to handle. Measures from heartbeat to heartbeat rather than up to now, because
    /// the next heartbeat may be queued behind a long reply.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.heartbeat_at.saturating_sub(self.progress_at) > self.lease_time()
    }

    /// Returns the time from a grant to the end of the lease.
    #[must_use]
    pub fn lease_time(&self) -> Millis {
        self.delay.saturating_mul(DELAYS_PER_LEASE).clamp(LEASE_TIME, LEASE_TIME_MAX)
    }
}

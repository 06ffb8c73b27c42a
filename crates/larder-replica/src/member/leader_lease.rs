//! The leader's lease at the coordinator, as one member reads it. A member that is not in sync
//! measures how long the leader has been without a lease. The leader measures how long ago it last
//! read its own lease. This time limits how long election promises count.

use crate::time::Millis;

/// If two reads at most this far apart show the leader without a lease, the absence counts as
/// uninterrupted. A lease that was granted between the reads would still exist at the second read.
const READ_INTERVAL_MAX: Millis = 1000;

/// The state of the leader's lease.
#[derive(Debug, Default)]
pub(super) struct LeaderLease {
    /// Since this time, every read has shown the leader without a lease. `None` if the leader has a
    /// lease, or if there is no record.
    absent_since: Option<Millis>,
    /// The send time of the last read that the coordinator answered.
    read_at: Millis,
    /// The send time of the last read that showed the lease of this leader; 0 if no read has shown
    /// the lease since this member became the leader, or since [`Self::was_absent`] was set.
    own_read_at: Millis,
    /// Whether this leader may have been without a lease. If so, it swaps in an equal record before
    /// it counts promises again. The swap changes the revision, so the pending election of a member
    /// that has measured the time without the lease fails.
    was_absent: bool,
}

impl LeaderLease {
    /// Notes the reply, which arrived at `now`, to a read that this member sent at `sent`. The
    /// caller must call this method before it calls the methods below for the view in the reply.
    /// `leads` states whether this member led before the reply.
    pub(super) fn note_read(&mut self, now: Millis, sent: Millis, leads: bool) {
        if !self.is_read_recent(now) {
            // Restart the time without a lease: this member does not know who had a lease since its
            // last read.
            self.absent_since = None;
            (self.was_absent, self.own_read_at) = (leads, 0);
        }
        self.read_at = sent;
    }

    /// Forgets the lease of the last leader, because another process leads.
    pub(super) fn reset(&mut self) {
        *self = Self { read_at: self.read_at, ..Self::default() };
    }

    /// Notes whether the leader has no lease in a view of the group.
    pub(super) fn note_absence(&mut self, now: Millis, is_absent: bool) {
        self.absent_since = is_absent.then(|| self.absent_since.unwrap_or(now));
    }

    /// Notes whether the last read showed the lease of this leader.
    pub(super) fn note_own(&mut self, is_live: bool) {
        if !is_live {
            (self.was_absent, self.own_read_at) = (true, 0);
        } else if !self.was_absent {
            self.own_read_at = self.read_at;
        }
    }

    /// Notes that this leader has swapped in a record after a read that showed its lease.
    pub(super) fn note_record(&mut self) {
        self.was_absent = false;
    }

    /// Returns whether this leader must swap in an equal record: its lease was absent, it has one again,
    /// and members that are not in sync stand for election after `unclean_after`.
    pub(super) fn needs_record(&self, unclean_after: Option<Millis>, is_live: bool) -> bool {
        unclean_after.is_some() && self.was_absent && is_live
    }

    /// Returns whether the leader has been without a lease for at least `time`.
    pub(super) fn is_absent_for(&self, time: Millis, now: Millis) -> bool {
        self.absent_since.is_some_and(|since| now.saturating_sub(since) >= time)
    }

    /// Returns whether the last read is so recent that a lease granted since would still exist at
    /// the next read.
    pub(super) fn is_read_recent(&self, now: Millis) -> bool {
        now.saturating_sub(self.read_at) <= READ_INTERVAL_MAX
    }

    /// Returns the time since the last read that the coordinator answered was sent.
    pub(super) fn read_age(&self, now: Millis) -> Millis {
        now.saturating_sub(self.read_at)
    }

    /// Returns the latest send time of a heartbeat whose promises count, if members that are not in
    /// sync stand for election after this leader has been without a lease for `time`. Their clocks
    /// may be faster by up to 2 %.
    pub(super) fn promises_count_until(&self, time: Millis) -> Millis {
        match self.own_read_at {
            0 => 0,
            read_at => read_at.saturating_add(time - time.div_ceil(50)),
        }
    }
}

//! Election promises: those that this member makes to its leader, and those that let this member
//! answer requests as the leader.

use super::{DoubtPolicy, LEADER_LEASE, Member, PROMISE_TIME};
use crate::group::{Process, Record};
use crate::time::Millis;

impl Member {
    /// Returns the time until which this member may answer requests as the leader: `Millis::MAX` if
    /// there is no limit, 0 if it may not answer any.
    #[must_use]
    pub fn serves_until(&self) -> Millis {
        let Some(record) = self.view.record.as_ref().filter(|_| self.leads()) else { return 0 };
        // While the swap of a transfer is pending, the next leader may already draw the CAS values
        // that this leader would draw.
        if self.transfer.is_some() || self.may_have_transferred() && !self.serves_in_doubt() {
            return 0;
        }
        if self.serves_in_doubt() {
            return Millis::MAX;
        }
        let since = self.confirmed_at.max(self.promised_at(record));
        since.map_or(0, |since| since.saturating_add(LEADER_LEASE))
    }

    /// Returns the send time of the last heartbeat that every other member in sync has answered with
    /// a promise that counts. Returns `None` if a member has made no promise to this leader of
    /// `record`.
    pub(super) fn promised_at(&self, record: &Record) -> Option<Millis> {
        let pending_swaps = self.pending_swaps.iter().flat_map(|(_, record)| &record.in_sync);
        let others = record.in_sync.iter().chain(pending_swaps);
        let others = others.filter(|process| **process != self.settings.me);
        let promised = others.map(|other| self.promises.get(other).copied()).min();
        // If no other member is in sync, no election promise is needed.
        let promised = promised.unwrap_or(Some(Millis::MAX));
        promised.map(|sent| sent.min(self.promises_count_until()))
    }

    /// Returns the latest send time of a heartbeat whose promises count.
    fn promises_count_until(&self) -> Millis {
        let pending_swaps = self.pending_swaps.iter().map(|(_, record)| record);
        let records = self.view.record.iter().chain(pending_swaps);
        let limit = records.filter_map(|record| record.unclean_after).min();
        limit.map_or(Millis::MAX, |limit| self.leader_lease.promises_count_until(limit))
    }

    pub(super) fn serves_in_doubt(&self) -> bool {
        self.settings.doubt == DoubtPolicy::Serve
    }

    /// Returns whether this member's election promise to its leader is still in force. Each
    /// heartbeat that this member answers with a promise renews it for [`PROMISE_TIME`].
    #[must_use]
    pub fn hears_leader(&self, now: Millis) -> bool {
        now < self.promised_until
    }

    /// Handles a heartbeat of a leader. `cas_end` is the end of the CAS range in the heartbeat.
    /// Returns whether this member promises not to stand for election for [`PROMISE_TIME`], and to
    /// draw no CAS value below `cas_end` if it is elected.
    pub fn note_heartbeat(&mut self, leader: &Process, cas_end: u64, now: Millis) -> bool {
        self.cas.note_end(cas_end);
        let is_followed = self.view.record.as_ref().is_some_and(|record| record.leader == *leader);
        // Make no promise while a swap is pending. The swap may be an election of this member with
        // a range of CAS values below `cas_end`.
        let may_promise = is_followed && self.pending_swaps.is_empty();
        if may_promise {
            self.promised_until = self.promised_until.max(now + PROMISE_TIME);
        }
        may_promise
    }
}

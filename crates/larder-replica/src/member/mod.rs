//! Elections in a group: the decisions of one member, without I/O.
//!
//! The record of the group (`group.rs`) names the leader. When the leader has failed, a member in
//! sync stands for election: it replaces the record with one that names itself as the leader. A
//! leader has failed if its process has ended, or if it has no lease at the coordinator and has
//! sent this member no heartbeat for [`PROMISE_TIME`].
//!
//! ```text
//!  coordinator ── read: record, leases ──────────▶ Member ── swap: the new record ──▶ coordinator
//!  the stream ─── heartbeats, acknowledgements ──▶   │
//!                                                    └─▶ role, and the time until which it may answer as the leader
//! ```
//! A leader may answer requests for [`LEADER_LEASE`] after either of these:
//!
//! - it sent a request to the coordinator, and the reply showed that it leads;
//! - it sent a heartbeat, and every other member in sync acknowledged the heartbeat with an
//!   election promise: not to stand for election for [`PROMISE_TIME`]. With these promises, a
//!   leader can continue while the coordinator is unreachable. A leader that is the only member in
//!   sync needs no promise.
//!
//! Members that are not in sync make no such promise. With [`Record::unclean_after`], they stand
//! for election once the leader has been without a lease for that time. Promises then count only
//! for slightly less than that time after the leader last read its own lease.
//!
//! The lease counts from the send time, so two leaders overlap by at most one second, even if one
//! of them was paused.
//!
//! A leader under [`DoubtPolicy::Serve`] needs neither confirmation: it may overlap with another
//! leader for longer than a second.

mod cas;
mod interface;
mod leader_lease;
mod promises;

use crate::group::{EPOCH_MAX, GroupView, Process, Record, Revision, TransferRequest};
use crate::time::{Millis, PauseWatch};
use cas::CasReserve;
pub use interface::*;
use leader_lease::LeaderLease;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// How long a leader may answer requests after it sent the message whose reply confirmed its
/// leadership.
pub const LEADER_LEASE: Millis = 1000;
/// How long an election promise lasts after the member has received the heartbeat. It exceeds
/// [`LEADER_LEASE`] to allow for clocks that run at different rates.
pub const PROMISE_TIME: Millis = 1250;
/// The interval at which a leader reads the group from the coordinator if another member in sync
/// has not answered its heartbeats with a promise for this time.
const LEADER_READ_INTERVAL: Millis = 300;
/// The interval at which a leader with recent promises of all members in sync reads the group.
const PROMISED_READ_INTERVAL: Millis = 800;
/// The interval at which the other members read the group from the coordinator.
const FOLLOWER_READ_INTERVAL: Millis = 500;
/// A follower skips no read if its last read is older than this. A server of the coordinator that
/// lags behind the others may never show a change in its replies to renewals of leases. With this
/// limit, followers know a planned migration before its slots are released (`PLAN_PROPAGATION_TIME`
/// in `migration/import.rs` of `larder-cluster`).
const SKIP_AGE_MAX: Millis = 1000;
/// The pause after a failed request to the coordinator.
const RETRY_PAUSE: Millis = 200;
/// A member counts as in sync if it lacks no change older than this.
const LAG_MAX: Millis = 1000;
/// The number of consecutive refused connections after which this member treats the leader's
/// process as ended.
const REFUSALS_UNTIL_DEAD: u32 = 2;
/// How long a leader waits for acknowledgements after it was paused, before it removes silent
/// members from the members in sync.
const RESUME_TIME: Millis = 500;
/// A change of leader within this time after a pause is attributed to the pause. The paused leader
/// usually notices the change at once. It takes longer only if the coordinator is slow.
const PAUSE_RESULT_MAX: Millis = 10_000;
/// How long a member without a known record waits before it writes the first record. If the
/// coordinator has lost the record, members that know it restore it within this time.
const FIRST_RECORD_WAIT: Millis = 1000;
/// The maximum duration of a leadership transfer. The leader answers requests for most of this time.
pub const TRANSFER_TIME_MAX: Millis = 4000;
/// How long a transfer may make requests wait. After this time, the leader answers requests again.
pub const TRANSFER_HOLD_MAX: Millis = 300;

// A former leader stops answering before its followers' promises end. A leader reads its record
// again before its lease ends.
const _: () = assert!(LEADER_LEASE < PROMISE_TIME && PROMISED_READ_INTERVAL < LEADER_LEASE);

/// Returns whether a member counts as in sync if it has all changes up to `synced_until`.
#[must_use]
pub fn is_caught_up(synced_until: Millis, now: Millis) -> bool {
    now.saturating_sub(synced_until) <= LAG_MAX
}

/// A member of a group.
#[derive(Debug)]
pub struct Member {
    settings: MemberSettings,
    view: GroupView,
    has_view: bool,
    next_read: Millis,
    /// The send time of the last request to the coordinator.
    requested_at: Millis,
    /// The pauses between calls to [`Member::next`].
    pauses: PauseWatch,
    /// The send time of the last request whose reply showed that this member leads; 0 before the
    /// first.
    last_led_at: Millis,
    /// The send time of the last request whose reply showed that this member leads; `None` if it
    /// does not lead.
    confirmed_at: Option<Millis>,
    /// Swaps without a reply, each with the revision that it replaces. A swap may still take effect
    /// while the record has that revision.
    pending_swaps: Vec<(Revision, Record)>,
    /// The epoch of the last leadership that started without the group's items.
    started_empty: Option<u32>,
    /// The epoch in which the current leadership of this member started; `None` if it does not
    /// lead.
    leadership_epoch: Option<u32>,
    /// The CAS values that this leader may draw, and the highest known range end.
    cas: CasReserve,
    /// The members that have all items of this leader, each with the time up to which it has all
    /// changes. At the start of this leadership, they include the members that were in sync with
    /// the previous leader, because these members have all acknowledged changes.
    ready: BTreeMap<Process, Millis>,
    /// The members of `ready` that were in sync with the previous leader and have not completed a
    /// sync with this leader yet.
    inherited: BTreeSet<Process>,
    /// The election promises to this leader: for each member, the send time of the last heartbeat
    /// that it answered with a promise.
    promises: BTreeMap<Process, Millis>,
    /// The time until which this member has promised not to stand for election.
    promised_until: Millis,
    /// The incarnation of the leader that refuses connections, and the number of consecutive
    /// refusals.
    refusals: (u64, u32),
    leader_lease: LeaderLease,
    /// The epoch of the last record in which this member stood for election because the leader had
    /// been without a lease for [`Record::unclean_after`]. With this record, the member keeps its
    /// items, although it may lack some.
    unclean_epoch: Option<u32>,
    /// Whether this member has started a full sync and not completed it. If so, it lacks items.
    lacks_items: bool,
    /// The last known record. This member restores it if the coordinator loses it.
    last_record: Option<Record>,
    /// The time at which this member first found no record at the coordinator; `None` if this
    /// member has ever read one.
    recordless_since: Option<Millis>,
    /// Whether this member has founded its cluster. No other member can then know a record.
    is_founder: bool,
    /// The leadership transfer under way, during which this leader answers no requests.
    transfer: Option<Transfer>,
    /// The time at which this leader abandons the transfer and answers requests again.
    transfer_until: Millis,
}

/// A leadership transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Transfer {
    /// This leader does not know yet which candidates have all changes.
    Waiting,
    /// These members have all changes. The next record names the first of them as the leader, and
    /// all of them as in sync.
    To(Vec<Process>),
}

impl Member {
    /// Creates a member that has not read the group yet.
    #[must_use]
    pub fn new(settings: MemberSettings) -> Self {
        Self {
            settings,
            view: GroupView::default(),
            has_view: false,
            next_read: 0,
            requested_at: 0,
            pauses: PauseWatch::default(),
            last_led_at: 0,
            confirmed_at: None,
            pending_swaps: Vec::new(),
            started_empty: None,
            leadership_epoch: None,
            cas: CasReserve::default(),
            ready: BTreeMap::new(),
            inherited: BTreeSet::new(),
            promises: BTreeMap::new(),
            promised_until: 0,
            refusals: (0, 0),
            leader_lease: LeaderLease::default(),
            unclean_epoch: None,
            lacks_items: false,
            last_record: None,
            recordless_since: None,
            is_founder: false,
            transfer: None,
            transfer_until: 0,
        }
    }

    /// Returns the last known state of the group: the result of the last read, updated with the
    /// record of any later swap by this member.
    #[must_use]
    pub fn view(&self) -> &GroupView {
        &self.view
    }

    /// Records that this member has founded its cluster. It may then write the first record without
    /// [`FIRST_RECORD_WAIT`].
    pub fn note_founder(&mut self) {
        self.is_founder = true;
    }

    /// Returns this member's process.
    #[must_use]
    pub fn me(&self) -> &Process {
        &self.settings.me
    }

    /// Returns the role of this member according to [`Self::view`].
    #[must_use]
    pub fn role(&self) -> Role {
        match &self.view.record {
            None => Role::Leaderless,
            Some(record) if record.leader == self.settings.me => {
                let starts_empty =
                    self.started_empty.is_some_and(|epoch| self.leadership_epoch == Some(epoch));
                Role::Leader { epoch: record.epoch, starts_empty }
            }
            Some(record) => Role::Follower { leader: record.leader.clone(), epoch: record.epoch },
        }
    }

    fn leads(&self) -> bool {
        self.view.record.as_ref().is_some_and(|record| record.leader == self.settings.me)
    }

    /// Returns the epoch in which the current leadership of this member started, if it leads. This
    /// epoch identifies the leadership.
    #[must_use]
    pub fn leadership_epoch(&self) -> Option<u32> {
        self.leadership_epoch
    }

    /// Records the first CAS value that this process has not drawn. Call this method before every
    /// other method that changes this member.
    pub fn note_next_cas(&mut self, now: Millis, next: u64) {
        self.cas.note_next(now, next);
    }

    /// Returns the CAS values that this leader may draw; an empty range if it does not lead. During
    /// a leadership, the end never decreases, and the start rises only in [`Self::raise_cas`].
    #[must_use]
    pub fn cas_values(&self) -> Range<u64> {
        self.cas.values()
    }

    /// Returns whether this member leads and has used up its CAS values.
    #[must_use]
    pub fn lacks_cas(&self) -> bool {
        self.leads() && self.cas.is_used_up()
    }

    /// Raises this leader's next CAS value to `floor`, because another group may have drawn the
    /// values below. Returns whether this leader now draws only values of at least `floor`. If not,
    /// the next swap reserves values above `floor`. Returns `None` if this member does not lead.
    pub fn raise_cas(&mut self, floor: u64) -> Option<bool> {
        self.leads().then(|| self.cas.raise(floor))
    }

    /// Returns the end of the CAS range that this leader sends in its heartbeats; 0 if it does not
    /// lead. If the coordinator does not answer, this end may exceed the end of
    /// [`Self::cas_values`]. This leader may draw the additional values once all other members in
    /// sync have acknowledged the higher end.
    #[must_use]
    pub fn heartbeat_cas_end(&self, now: Millis) -> u64 {
        self.cas.heartbeat_end(self.leads() && self.is_in_doubt(now))
    }

    /// Returns whether at least [`LEADER_LEASE`] has passed since the last request that confirmed
    /// this leader.
    fn is_in_doubt(&self, now: Millis) -> bool {
        now.saturating_sub(self.last_led_at) >= LEADER_LEASE
    }

    /// Extends this leader's CAS values up to the end that all other members in sync have
    /// acknowledged, unless the next leader may already draw these values.
    fn extend_cas(&mut self, now: Millis) {
        if self.leads() && !self.may_have_transferred() {
            let (named, is_in_doubt) = (self.named_in_sync(), self.is_in_doubt(now));
            self.cas.extend_by(named.iter(), is_in_doubt);
        }
    }

    /// Returns the send time of the last request whose reply showed that this member leads, or
    /// `None` if it does not lead.
    #[must_use]
    pub fn confirmed_at(&self) -> Option<Millis> {
        self.confirmed_at
    }

    /// Returns whether a pending swap of this leader names another member as the leader.
    #[must_use]
    pub fn may_have_transferred(&self) -> bool {
        self.pending_swaps.iter().any(|(_, record)| record.leader != self.settings.me)
    }

    /// Returns the next request to the coordinator, if one is due. The caller must report the
    /// outcome of the request before the next call. The caller must call this method several times
    /// a second.
    pub fn next(&mut self, now: Millis) -> Option<Command> {
        self.pauses.note(now);
        if now >= self.transfer_until {
            self.transfer = None;
        }
        self.extend_cas(now);
        if self.has_view
            && let Some(record) = self.wanted_record(now)
        {
            let swap = (self.view.revision, record.clone());
            self.requested_at = now;
            if swap.1.leader == self.settings.me && self.has_waited_for_leader(now) {
                self.unclean_epoch = Some(swap.1.epoch);
            }
            self.pending_swaps.retain(|before| *before != swap);
            self.pending_swaps.push(swap);
            return Some(Command::Swap(self.view.revision, record));
        }
        (now >= self.read_due_at()).then(|| {
            self.requested_at = now;
            Command::Read
        })
    }

    /// Returns the time until the next read is due, in milliseconds. An event may make a request
    /// due earlier.
    #[must_use]
    pub fn idle_time(&self, now: Millis) -> Millis {
        self.read_due_at().saturating_sub(now)
    }

    /// Returns the time at which the next read is due. Recent promises defer the reads of a leader
    /// whose last request has confirmed it. With [`Record::unclean_after`], reads are not deferred,
    /// because promises count only while frequent reads show the leader's lease.
    fn read_due_at(&self) -> Millis {
        let is_confirmed = self.next_read > 0 && self.confirmed_at == Some(self.requested_at);
        let record = self.view.record.as_ref().filter(|record| {
            let unclean_after = record.unclean_after.or(self.settings.unclean_after);
            self.leads() && is_confirmed && unclean_after.is_none()
        });
        let Some(promised_at) = record.and_then(|record| self.promised_at(record)) else {
            return self.next_read;
        };
        let deferred = promised_at.saturating_add(LEADER_READ_INTERVAL);
        self.next_read.max(deferred.min(self.requested_at + PROMISED_READ_INTERVAL))
    }

    /// Makes a read of the group due now.
    pub fn read_soon(&mut self) {
        self.next_read = 0;
    }

    /// Skips the read that is due, because the coordinator has not changed since the last one. Does
    /// nothing and returns false unless this member follows a leader that has a lease and sends
    /// heartbeats, no event has requested the read, and the last read that was not skipped is at
    /// most [`SKIP_AGE_MAX`] old.
    #[must_use]
    pub fn skip_read(&mut self, now: Millis) -> bool {
        let leader = self.view.record.as_ref().map(|record| &record.leader);
        // Only a follower hears a leader.
        let is_leader_live = leader.is_some_and(|leader| self.view.is_live(leader));
        let follows = self.has_view && is_leader_live && self.hears_leader(now);
        let is_requested = self.next_read == 0;
        let is_recent = self.leader_lease.read_age(now) <= SKIP_AGE_MAX;
        let skips = follows && !is_requested && is_recent;
        if skips {
            self.next_read = now + FOLLOWER_READ_INTERVAL;
        }
        skips
    }

    /// Returns the record that should replace the current one; `None` to keep the current one.
    fn wanted_record(&self, now: Millis) -> Option<Record> {
        let me = &self.settings.me;
        let Some(record) = &self.view.record else {
            let Some(last) = &self.last_record else {
                let end = self.recordless_since.map(|since| since + FIRST_RECORD_WAIT);
                let may_lead = self.is_founder || end.is_some_and(|end| now >= end);
                let (leader, in_sync) = (me.clone(), vec![me.clone()]);
                let (cas, unclean_after) = (self.cas.election_range(), self.settings.unclean_after);
                let record = Record { epoch: 1, leader, in_sync, cas, unclean_after };
                return may_lead.then_some(record);
            };
            // The coordinator has lost the record. A member that was in sync and lacks no items may
            // lead. If no member that was in sync is live, any member may lead.
            let may_lead = last.in_sync.contains(me) && !self.lacks_items
                || !last.in_sync.iter().any(|process| self.view.is_live(process));
            let epoch = (last.epoch + 1).min(EPOCH_MAX);
            return may_lead.then(|| self.election_record(last, epoch));
        };
        if let Some(Transfer::To(in_sync)) = self.transfer.as_ref().filter(|_| self.leads())
            && let Some(next) = in_sync.first()
            && record.in_sync.contains(next)
            && record.epoch < EPOCH_MAX
        {
            let is_in_sync = |process: &&Process| record.in_sync.contains(process);
            let in_sync = in_sync.iter().filter(is_in_sync).cloned().collect();
            let (epoch, leader) = (record.epoch + 1, next.clone());
            let cas = self.cas.transfer_range(self.serves_in_doubt());
            return Some(Record { epoch, leader, in_sync, cas, ..record.clone() });
        }
        if self.leads() {
            // After a pause, keep the members in sync for a while, because this leader has not
            // received their acknowledgements yet.
            let is_resuming = self.pauses.last().is_some_and(|(end, _)| now < end + RESUME_TIME);
            let ready = self.ready.iter().filter(|(process, time)| {
                is_caught_up(**time, now) || is_resuming && record.in_sync.contains(process)
            });
            let in_sync: Vec<Process> =
                std::iter::once(me).chain(ready.map(|(process, _)| process)).cloned().collect();
            let is_same = in_sync.len() == record.in_sync.len()
                && in_sync.iter().all(|process| record.in_sync.contains(process));
            let cas = self.cas.kept_range(record.cas);
            let unclean_after = self.settings.unclean_after;
            let is_wanted = !is_same
                || (cas, unclean_after) != (record.cas, record.unclean_after)
                || self.leader_lease.needs_record(unclean_after, self.view.is_live(me))
                || !self.pending_swaps.is_empty();
            return is_wanted.then(|| Record { in_sync, cas, unclean_after, ..record.clone() });
        }
        if record.epoch < EPOCH_MAX && self.may_stand_for_election(record, now) {
            return Some(self.election_record(record, record.epoch + 1));
        }
        // Swapping in an equal record changes the revision. Pending swaps can then no longer take
        // effect.
        (!self.pending_swaps.is_empty()).then(|| record.clone())
    }

    /// Returns the record of this epoch in which this member succeeds the leader of `record`.
    fn election_record(&self, record: &Record, epoch: u32) -> Record {
        Record {
            epoch,
            leader: self.settings.me.clone(),
            in_sync: self.inherited_in_sync(record),
            cas: self.cas.election_range(),
            unclean_after: self.settings.unclean_after,
        }
    }

    /// Returns the members in sync for the record in which this member succeeds the leader of
    /// `record`. All of them have every acknowledged change. The former leader is excluded: if its
    /// process has ended, changes would wait for its acknowledgement.
    fn inherited_in_sync(&self, record: &Record) -> Vec<Process> {
        let me = &self.settings.me;
        let has_items = record.in_sync.contains(me) && !self.lacks_items;
        let others = record.in_sync.iter().filter(|process| {
            has_items && *process != me && **process != record.leader && self.view.is_live(process)
        });
        std::iter::once(me).chain(others).cloned().collect()
    }

    fn may_stand_for_election(&self, record: &Record, now: Millis) -> bool {
        if record.in_sync.contains(&self.settings.me) && !self.lacks_items {
            let has_ended = self.refusals.0 == record.leader.incarnation
                && self.refusals.1 >= REFUSALS_UNTIL_DEAD;
            return has_ended
                || self.view.is_replaced(&record.leader)
                || !self.view.is_live(&record.leader) && !self.hears_leader(now);
        }
        // A member in sync has lost its items if its node has restarted. If the record names this
        // member as in sync, this member lacks items because of an incomplete sync.
        let has_none =
            |process: &Process| *process == self.settings.me || self.view.is_replaced(process);
        let is_read_recent = self.leader_lease.is_read_recent(now);
        record.in_sync.iter().all(has_none) || is_read_recent && self.has_waited_for_leader(now)
    }

    fn has_waited_for_leader(&self, now: Millis) -> bool {
        let limit = self.view.record.as_ref().and_then(|record| record.unclean_after);
        limit.is_some_and(|limit| self.leader_lease.is_absent_for(limit, now))
    }

    /// Handles the outcome of [`Command::Read`]. `view` is `None` if the request failed.
    pub fn handle_view(&mut self, now: Millis, view: Option<GroupView>) {
        let Some(view) = view else {
            self.next_read = now + RETRY_PAUSE;
            return;
        };
        self.has_view = true;
        self.leader_lease.note_read(now, self.requested_at, self.leads());
        self.update_view(now, view);
        if self.leads() {
            self.leader_lease.note_own(self.view.is_live(&self.settings.me));
        }
    }

    /// Handles the outcome of [`Command::Swap`]. `Some(Some(revision))`: the record was replaced,
    /// and has this revision. `Some(None)`: the record had another revision. `None`: the request
    /// failed, and the swap may still take effect.
    pub fn handle_swap(&mut self, now: Millis, answer: Option<Option<Revision>>) {
        let wanted = self.pending_swaps.last().map(|(_, record)| record.clone());
        let (Some(Some(revision)), Some(record)) = (answer, wanted) else {
            // Another process has changed the record, or the swap may still take effect. In both
            // cases the record is unknown until the next read.
            self.has_view = false;
            self.next_read = if answer.is_some() { 0 } else { now + RETRY_PAUSE };
            return;
        };
        let is_transferred = record.leader != self.settings.me;
        let view = GroupView { record: Some(record), revision, ..self.view.clone() };
        self.update_view(now, view);
        if self.view.is_live(&self.settings.me) {
            self.leader_lease.note_record();
        }
        if is_transferred {
            // The leases in the view are older than the record. If the next leader's node has just
            // restarted, the view still shows the lease of the old process, and this member would
            // stand for election.
            (self.has_view, self.next_read) = (false, 0);
        }
    }

    /// Applies a view of the group. Starts, continues or ends this member's leadership.
    fn update_view(&mut self, now: Millis, mut view: GroupView) {
        // Epochs never decrease. A lower epoch means that the coordinator has lost the last record
        // and has an earlier one from a backup. Ignore the earlier record: this member then
        // restores the last one, as if the coordinator had none.
        let last_epoch = self.last_record.as_ref().map_or(0, |last| last.epoch);
        view.record = view.record.filter(|record| record.epoch >= last_epoch);
        let before = self.view.record.as_ref();
        let was_in_sync = before.is_none_or(|record| record.in_sync.contains(&self.settings.me));
        let had_items = was_in_sync && !self.lacks_items;
        let led = self.leads();
        let leader = view.record.as_ref().map(|record| &record.leader);
        let is_new = before.map(|record| &record.leader) != leader;
        if is_new {
            (self.promised_until, self.transfer) = (0, None);
            self.leader_lease.reset();
            self.ready.clear();
            self.inherited.clear();
            self.promises.clear();
        }
        let is_dead = view.record.as_ref().is_some_and(|record| !view.is_live(&record.leader));
        self.leader_lease.note_absence(now, is_dead);
        // `is_own` is false if another node or an operator has written the record. Such a record
        // can name this member as the leader after a transfer, or although this member lacks items.
        let is_own = self.pending_swaps.iter().any(|(_, own)| Some(own) == view.record.as_ref());
        let epoch = |record: Option<&Record>| record.map(|record| record.epoch);
        let still_leads = led && (is_own || epoch(before) == epoch(view.record.as_ref()));
        self.pending_swaps.retain(|(revision, _)| *revision == view.revision);
        self.view = view;
        if let Some(record) = &self.view.record {
            self.cas.note_end(record.cas.to);
            self.last_record = Some(record.clone());
        }
        let knows_none = self.last_record.is_none();
        self.recordless_since = knows_none.then(|| self.recordless_since.unwrap_or(now));
        let Some(record) = self.view.record.as_ref().filter(|_| self.leads()) else {
            (self.confirmed_at, self.leadership_epoch) = (None, None);
            self.cas.stop_leading();
            self.next_read = self.requested_at + FOLLOWER_READ_INTERVAL;
            return;
        };
        if still_leads {
            self.cas.extend(record.cas.to);
        } else {
            self.leadership_epoch = Some(record.epoch);
            self.cas.start_leading(now, record.cas);
            let others = record.in_sync.iter().filter(|process| **process != self.settings.me);
            self.inherited = others.cloned().collect();
            // The inherited members stay in sync until [`LAG_MAX`] after this leader is ready for
            // followers: see `note_ready`.
            self.ready.extend(self.inherited.iter().map(|process| (process.clone(), Millis::MAX)));
        }
        if !led && is_own && !had_items && self.unclean_epoch != Some(record.epoch) {
            self.started_empty = Some(record.epoch);
        }
        self.confirmed_at = Some(self.requested_at);
        self.last_led_at = self.requested_at;
        self.next_read = self.requested_at + LEADER_READ_INTERVAL;
    }

    /// Returns the request for a transfer of this leadership, if there is one.
    #[must_use]
    pub fn transfer_request(&self) -> Option<&TransferRequest> {
        let epoch = self.view.record.as_ref().filter(|_| self.leads())?.epoch;
        self.view.requests.transfer.as_ref().filter(|request| request.epoch == epoch)
    }

    /// Returns the length of the pause during which another member replaced this leader. Returns
    /// `None` if this leader was not paused within the last [`PAUSE_RESULT_MAX`], or has led since
    /// the pause.
    #[must_use]
    pub fn replacing_pause(&self, now: Millis) -> Option<Millis> {
        let (end, length) = self.pauses.last()?;
        let is_recent = now.saturating_sub(end) <= PAUSE_RESULT_MAX;
        (is_recent && self.last_led_at < end).then_some(length)
    }

    /// Returns whether a leadership transfer is under way. Requests wait for its end.
    #[must_use]
    pub fn is_transferring(&self) -> bool {
        self.transfer.is_some()
    }

    /// Returns the members to which this leader can transfer its leadership now. With `to`, returns
    /// only the process of the node `to`. Returns no members if this member does not lead.
    #[must_use]
    pub fn transfer_candidates(&self, now: Millis, to: Option<&str>) -> Vec<Process> {
        let can_end = self.view.record.as_ref().is_some_and(|record| record.epoch < EPOCH_MAX);
        if !self.leads() || !can_end {
            return Vec::new();
        }
        let record = self.view.record.iter().flat_map(|record| &record.in_sync);
        let has_synced_or_promised = |process: &Process| {
            !self.inherited.contains(process) || self.promises.contains_key(process)
        };
        let is_ready = |process: &&Process| {
            to.is_none_or(|to| process.node == to)
                && self.ready.get(*process).is_some_and(|time| is_caught_up(*time, now))
                && has_synced_or_promised(process)
        };
        record.filter(is_ready).cloned().collect()
    }

    /// Starts a leadership transfer to the node `to`, or to any member in sync. Returns the
    /// candidates. If there are any, this leader stops answering requests until another member
    /// leads, for at most [`TRANSFER_HOLD_MAX`]. Without candidates, this leader continues to
    /// answer requests.
    pub fn start_transfer(&mut self, now: Millis, to: Option<&str>) -> Vec<Process> {
        let candidates = self.transfer_candidates(now, to);
        if !candidates.is_empty() {
            (self.transfer, self.transfer_until) =
                (Some(Transfer::Waiting), now + TRANSFER_HOLD_MAX);
        }
        candidates
    }

    /// Abandons the transfer under way: this leader answers requests again. If it has already sent
    /// a record that names another leader, it replaces that record before it answers.
    pub fn end_transfer(&mut self) {
        self.transfer = None;
    }

    /// Sets the members in sync for the record of the transfer under way, the next leader first.
    /// Each must have all changes of the requests that this leader has answered. This leader must
    /// draw no CAS value until it answers requests again, because the next leader starts at the
    /// value of [`Self::note_next_cas`].
    pub fn transfer_to(&mut self, in_sync: Vec<Process>) {
        if self.transfer.is_some() {
            self.transfer = Some(Transfer::To(in_sync));
        }
    }

    /// Records that the leader's port has refused a connection. The machine runs, but the leader's
    /// process may have ended.
    pub fn note_refusal(&mut self, leader: &Process) {
        let before = if self.refusals.0 == leader.incarnation { self.refusals.1 } else { 0 };
        self.refusals = (leader.incarnation, before + 1);
        self.read_soon();
    }

    /// Records that another process listens on the leader's port. The leader's process has ended.
    pub fn note_replaced(&mut self, leader: &Process) {
        self.refusals = (leader.incarnation, REFUSALS_UNTIL_DEAD);
        self.read_soon();
    }

    /// Starts a full sync, which removes all items of this member. Returns false if this member
    /// must keep its items: the record names it as in sync, or a pending swap may make it the
    /// leader.
    #[must_use]
    pub fn start_full_sync(&mut self) -> bool {
        let record = self.view.record.as_ref();
        let is_named = record.is_some_and(|record| record.in_sync.contains(&self.settings.me));
        let can_start = self.pending_swaps.is_empty() && !is_named;
        self.lacks_items |= can_start;
        can_start
    }

    /// Returns whether a delta sync may start. A delta sync removes no acknowledged change.
    /// Therefore this member may stand for election before the sync is complete. The sync must not
    /// start while a swap is pending, because that swap may make this member the leader.
    #[must_use]
    pub fn may_start_delta_sync(&self) -> bool {
        self.pending_swaps.is_empty()
    }

    /// Returns whether this member has started a full sync and not completed it.
    #[must_use]
    pub fn lacks_items(&self) -> bool {
        self.lacks_items
    }

    /// Records that the full sync is complete.
    pub fn end_sync(&mut self) {
        self.lacks_items = false;
    }

    /// Records that this leader is ready for followers. A member that was in sync with the previous
    /// leader does not stay in sync if it does not connect within [`LAG_MAX`].
    pub fn note_ready(&mut self, now: Millis) {
        self.lacks_items = false;
        self.ready.extend(self.inherited.iter().map(|process| (process.clone(), now)));
    }

    /// Records that the leader has accepted a connection. Resets the count of refusals.
    pub fn note_connected(&mut self) {
        self.refusals = (0, 0);
    }

    /// Handles a member's acknowledgement of a heartbeat. `synced_until` is the time up to which
    /// the member has all changes, or `None` if it lacks items. `promise` is the member's election
    /// promise, if it has made one.
    pub fn note_ack(
        &mut self,
        now: Millis,
        member: &Process,
        synced_until: Option<Millis>,
        promise: Option<ElectionPromise>,
    ) {
        match synced_until {
            Some(time) => {
                self.inherited.remove(member);
                self.ready.insert(member.clone(), time);
            }
            None => self.note_not_ready(member),
        }
        if let Some(ElectionPromise { sent, cas_end }) = promise {
            let last = self.promises.entry(member.clone()).or_default();
            *last = (*last).max(sent);
            self.cas.acknowledge(member, cas_end);
            self.extend_cas(now);
        }
    }

    /// Records that the connection of a member has ended.
    pub fn note_disconnected(&mut self, member: &Process) {
        self.note_not_ready(member);
    }

    /// Removes a member without a complete sync from `ready`. A member inherited from the previous
    /// leader stays until its time in `ready` is older than [`LAG_MAX`].
    fn note_not_ready(&mut self, member: &Process) {
        if !self.inherited.contains(member) {
            self.ready.remove(member);
        }
    }

    /// Removes a member that needs a full sync from the members in sync. The sync may start when
    /// [`Self::may_be_in_sync`] returns false for the member.
    pub fn exclude(&mut self, member: &Process) {
        self.inherited.remove(member);
        self.ready.remove(member);
    }

    /// Returns the other members in sync according to the record and pending swaps. When this
    /// leader starts, its replies must wait for acknowledgements from these processes.
    #[must_use]
    pub fn named_in_sync(&self) -> BTreeSet<Process> {
        let pending_swaps = self.pending_swaps.iter().map(|(_, record)| record);
        let named = self.view.record.iter().chain(pending_swaps).flat_map(|record| &record.in_sync);
        named.filter(|process| **process != self.settings.me).cloned().collect()
    }

    /// Returns whether the process with this incarnation may stand for election, because the
    /// record, a pending swap or the next swap names it as in sync.
    #[must_use]
    pub fn may_be_in_sync(&self, incarnation: u64, now: Millis) -> bool {
        let mut ready = self.ready.iter();
        if ready
            .any(|(process, time)| process.incarnation == incarnation && is_caught_up(*time, now))
        {
            return true;
        }
        let pending_swaps = self.pending_swaps.iter().map(|(_, record)| record);
        let mut records = self.view.record.iter().chain(pending_swaps);
        records
            .any(|record| record.in_sync.iter().any(|process| process.incarnation == incarnation))
    }
}

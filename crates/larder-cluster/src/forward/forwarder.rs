//! Forwards requests to the leader of one group.
//!
//! Sessions append requests to the output of the connection, and are woken when their replies have
//! arrived. Without a connection, sessions wait for up to 1 s, or up to 6 s during a planned change.
//! The wait ends early when a connection is established, when this node leads, or when the group no
//! longer owns keys.

use super::link::{Link, millis};
use super::owner::OwnerGroup;
use super::pending::{RouteState, lock};
use larder_operations::Tracker;
use larder_replica::{Frame, Revision};
use larder_session::ForwardOutcome;
use larder_support::clock::boot_millis;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long requests wait for a leader.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// How long requests wait during a planned change of the leader or owner. If the change fails, the
/// former leader answers again within this time.
const PLANNED_WAIT_MAX: Duration = Duration::from_secs(6);
/// The minimum pause before a session resends requests that the peer has refused.
const RETRY_AFTER: Duration = Duration::from_millis(20);
/// Forwards requests to the leader of one group, on one connection for all of this node's clients.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forwarder(pub(super) Arc<ForwarderShared>);

#[derive(Debug, Default)]
pub(super) struct ForwarderShared {
    pub(super) state: Mutex<State>,
    /// The number of forwarded batches so far.
    pub(super) forwarded: AtomicU64,
    /// The number of batches so far that ended without a leader or with a lost connection.
    pub(super) failures: AtomicU64,
    /// The number of connections to leaders so far.
    pub(super) connections: AtomicU64,
    pub(super) next_route: AtomicU64,
    /// Whether the peer has refused requests since the last check. A peer refuses requests if
    /// another group owns their keys or another node leads.
    has_refusals: AtomicBool,
    /// Until this time, requests wait longer because of a planned change of the leader or owner.
    /// The time is on the clock of [`boot_millis`]; 0 before the first planned change.
    planned_until: AtomicU64,
    /// The tracker that receives the group's item changes. `None` for the local group, whose
    /// changes this node receives as a member.
    pub(super) tracker: Option<Arc<Tracker>>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) link: Option<Arc<Link>>,
    /// Whether this node's last `TrackAll` frame on the connection requested all changes. `None` if
    /// it has sent no such frame since the connection became the current one.
    requests_all: Option<bool>,
    /// The last `MapRevision` that this node has sent on the connection; `None` if it has sent none
    /// since the connection became the current one.
    map_revision: Option<Revision>,
    /// Sessions that wait for a connection.
    waiting: Vec<WaitingSession>,
    /// Whether the node is shutting down. If so, the forwarder opens no further connections.
    pub(super) has_ended: bool,
}

/// A session that waits for a leader.
#[derive(Debug)]
struct WaitingSession {
    since: Instant,
    route: Arc<Mutex<RouteState>>,
    /// The value of [`RouteState::round`] when the wait started.
    round: u64,
    /// The earliest time of a retry.
    retry_at: Instant,
}

impl Forwarder {
    /// Creates the forwarder to another group. `tracker` receives the group's item changes.
    pub(super) fn tracking(tracker: &Arc<Tracker>) -> Self {
        Self(Arc::new(ForwarderShared { tracker: Some(Arc::clone(tracker)), ..Default::default() }))
    }

    /// Requests all of the group's item changes if a client has subscribed to prefixes, or cancels
    /// the request once no client needs them.
    pub(super) fn request_changes(&self) {
        self.request_changes_on(&mut lock(&self.0.state));
    }

    fn request_changes_on(&self, state: &mut State) {
        let (Some(tracker), Some(link)) = (&self.0.tracker, &state.link) else { return };
        let all = tracker.has_prefixes();
        if state.requests_all != Some(all) {
            link.append(&Frame::TrackAll(all));
            state.requests_all = Some(all);
        }
    }

    /// Sends the revision of this node's shard map if it has changed.
    fn send_map_revision(&self, revision: Revision) {
        let state = &mut *lock(&self.0.state);
        if let Some(link) = &state.link
            && state.map_revision != Some(revision)
        {
            link.append(&Frame::MapRevision(revision));
            state.map_revision = Some(revision);
        }
    }

    /// Makes clients drop the group's items that they have cached, because this node may miss
    /// changes to these items.
    fn note_missed_changes(&self) {
        if let Some(tracker) = &self.0.tracker {
            tracker.note_remote_flush();
        }
    }

    /// Ends all waits for a leader, because this node leads or the group no longer owns keys. The
    /// sessions then retry their requests: this node answers the requests or forwards them to
    /// another group.
    pub(crate) fn note_leading(&self) {
        self.end_waits(|_| Some(ForwardOutcome::Retry));
    }

    fn end_waits(&self, outcome_of: impl Fn(&WaitingSession) -> Option<ForwardOutcome>) {
        let mut ended = Vec::new();
        lock(&self.0.state).waiting.retain(|wait| {
            let outcome = outcome_of(wait);
            ended.extend(outcome.map(|outcome| (Arc::clone(&wait.route), wait.round, outcome)));
            outcome.is_none()
        });
        for (route, round, outcome) in ended {
            let mut state = lock(&route);
            // The session may have no batch yet: it may wait for room in the output before it adds
            // a batch.
            if state.round == round && (state.is_open() || state.batches.is_empty()) {
                state.end(outcome);
            }
        }
    }

    /// Wakes the sessions whose wait is over, and requests the item changes that clients need.
    pub(super) fn tend(&self, group: &dyn OwnerGroup) {
        if group.needs_no_leader() {
            self.note_leading();
        }
        self.request_changes();
        self.send_map_revision(group.map_revision());
        if self.0.has_refusals.swap(false, Ordering::AcqRel) {
            group.note_failure();
        }
        self.end_late_waits();
        let (is_up, now) = (self.has_link(), Instant::now());
        self.end_waits(|wait| (is_up && now >= wait.retry_at).then_some(ForwardOutcome::Retry));
    }

    /// Returns whether the forwarder has a current connection.
    pub(super) fn has_link(&self) -> bool {
        lock(&self.0.state).link.is_some()
    }

    /// Fails the requests that have waited too long.
    fn end_late_waits(&self) {
        self.end_waits(|wait| self.has_waited(wait.since).then_some(ForwardOutcome::NoLeader));
    }

    /// Closes the connection, and ends all waits.
    pub(super) fn shut_down(&self) {
        lock(&self.0.state).has_ended = true;
        self.close();
        self.end_waits(|_| Some(ForwardOutcome::NoLeader));
    }

    /// Makes a connection the current one, which receives new requests.
    pub(super) fn make_current(&self, link: &Arc<Link>) {
        let state = &mut *lock(&self.0.state);
        // Ignore a connection that has already failed: its reader may have ended, so no reply would
        // arrive.
        if !lock(&link.output).is_closed {
            state.link = Some(Arc::clone(link));
            (state.requests_all, state.map_revision) = (None, None);
            self.request_changes_on(state);
        }
    }

    /// Stops sending new requests on the current connection. The connection ends once the requests
    /// on it have results, or after a time limit.
    pub(super) fn retire(&self) {
        let link = lock(&self.0.state).link.take();
        if let Some(link) = link {
            link.retire();
            // From now on, another leader may execute changes, which this connection does not
            // report.
            self.note_missed_changes();
        }
    }

    fn close(&self) {
        let link = lock(&self.0.state).link.clone();
        if let Some(link) = link {
            self.drop_link(&link);
        }
    }

    /// Closes a connection. If it was the current connection, the forwarder then has no connection.
    pub(super) fn drop_link(&self, link: &Arc<Link>) {
        // Close the connection first. After that, `make_current` does not accept it.
        link.close();
        let is_current = {
            let mut state = lock(&self.0.state);
            state.link.take_if(|current| Arc::ptr_eq(current, link)).is_some()
        };
        if is_current {
            self.note_missed_changes();
        }
    }

    /// Handles requests that the peer has refused. Their session waits for at least
    /// [`RETRY_AFTER`], and then sends the requests to the leader of the group that owns the keys
    /// at that time.
    pub(super) fn retry_soon(&self, route: &Arc<Mutex<RouteState>>, is_planned: bool) {
        if is_planned {
            self.note_planned();
        }
        self.0.has_refusals.store(true, Ordering::Release);
        // If the peer has answered a part of the requests, the route has an outcome: the session
        // sends the rest at once.
        if lock(route).is_open() {
            self.wait(route, RETRY_AFTER);
        }
    }

    /// Records that a planned change of the leader, or of the requested keys' owner, is under way.
    pub(super) fn note_planned(&self) {
        let until = boot_millis() + millis(PLANNED_WAIT_MAX);
        self.0.planned_until.store(until, Ordering::Relaxed);
    }

    /// Returns how long requests may wait for a leader, including retries.
    pub(super) fn retry_time(&self) -> Duration {
        let is_planned = boot_millis() < self.0.planned_until.load(Ordering::Relaxed);
        if is_planned { PLANNED_WAIT_MAX } else { WAIT_MAX }
    }

    /// Returns whether requests that started to wait for a leader at `since` have waited for too
    /// long.
    pub(super) fn has_waited(&self, since: Instant) -> bool {
        since.elapsed() > self.retry_time()
    }

    /// Adds a session to the sessions that wait for a leader. The session retries no earlier than
    /// after `pause`.
    pub(super) fn wait(&self, route: &Arc<Mutex<RouteState>>, pause: Duration) {
        let now = Instant::now();
        let (since, round) = {
            let mut state = lock(route);
            (*state.waiting_since.get_or_insert(now), state.round)
        };
        let wait = WaitingSession { since, route: Arc::clone(route), round, retry_at: now + pause };
        let mut state = lock(&self.0.state);
        if state.has_ended {
            drop(state);
            return lock(route).end(ForwardOutcome::NoLeader);
        }
        state.waiting.push(wait);
    }
}

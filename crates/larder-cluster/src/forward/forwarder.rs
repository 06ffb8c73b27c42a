//! The connection to the leader of one group.
//!
//! Sessions append requests to the output of the connection, and are woken when their replies have
//! arrived. One thread connects, one writes and one reads. Without a connection, sessions wait for
//! up to 1 s, or up to 6 s during a planned change. The wait ends early when a connection is
//! established, when this node leads, or when the group no longer owns keys.

use super::earlier_links::EarlierLinks;
use super::link::{Link, connect, millis};
use super::owner::OwnerGroup;
use super::pending::{RouteState, lock};
use crate::peers::{Credentials, LocalMember, Stop};
use larder_operations::Tracker;
use larder_replica::{Frame, Process};
use larder_session::ForwardOutcome;
use larder_support::clock::boot_millis;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long requests wait for a leader.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// How long requests wait during a planned change of the leader or owner. If the change fails, the
/// former leader answers again within this time.
const PLANNED_WAIT_MAX: Duration = Duration::from_secs(6);
/// The minimum pause before a session resends requests that the peer has refused.
const RETRY_AFTER: Duration = Duration::from_millis(20);
/// The interval at which the forwarder checks for expired waits and for a new leader.
const TICK: Duration = Duration::from_millis(20);
/// The pause after a failed attempt to connect to a leader.
const RECONNECT_AFTER: Duration = Duration::from_millis(20);

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
    tracker: Option<Arc<Tracker>>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) link: Option<Arc<Link>>,
    /// Whether this node's last `TrackAll` frame on the connection requested all changes. `None` if
    /// it has sent no such frame since the connection became the current one.
    requests_all: Option<bool>,
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

    /// Maintains a connection to the leader of `group`, and wakes waiting sessions when their wait
    /// is over. Runs until the node shuts down.
    pub(crate) fn run(
        &self,
        group: &dyn OwnerGroup,
        me: &LocalMember,
        credentials: &Credentials,
        stop: &Arc<Stop>,
    ) {
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        let (mut connected, mut failed): (_, Option<(Process, Instant)>) = (None, None);
        let mut earlier = EarlierLinks::default();
        while !stop.is_set() {
            let leader = group.leader();
            let process = leader.as_ref().map(|(process, _)| process.clone());
            let is_up = lock(&self.0.state).link.is_some();
            if is_up && connected != process {
                self.retire();
            }
            if group.is_transfer_planned() {
                self.note_planned();
            }
            let is_up = lock(&self.0.state).link.is_some();
            if !is_up && let Some((process, link)) = earlier.revive(process.as_ref()) {
                self.make_current(&link);
                connected = Some(process);
            }
            let is_up = lock(&self.0.state).link.is_some();
            let has_failed = failed.as_ref().is_some_and(|(of, at)| {
                process.as_ref() == Some(of) && at.elapsed() < RECONNECT_AFTER
            });
            let is_wanted = (!is_up || connected != process) && !has_failed;
            if let Some((process, address)) = leader.filter(|_| is_wanted) {
                let tracker = self.0.tracker.as_ref();
                // Only this thread ends late waits, so it must also end them while it connects.
                let continues = || {
                    self.end_late_waits();
                    group.leader().is_some_and(|(leader, _)| leader == process)
                };
                let address = address.as_deref();
                match connect(&process, address, me, credentials, tracker, stop, &continues) {
                    Ok(link) => {
                        earlier.note_connected(&process, &link.0);
                        threads.retain(|thread| !thread.is_finished());
                        match self.start_threads(&link, &mut threads, stop) {
                            Ok(()) => connected = Some(process),
                            Err(error) => {
                                tracing::warn!(
                                    "cannot forward requests: spawning a thread failed: {error}"
                                );
                                failed = Some((process, Instant::now()));
                            }
                        }
                    }
                    Err(error) => {
                        tracing::debug!(
                            "cannot connect to the leader {} to forward requests: {error}",
                            process.node
                        );
                        if error.is_connection_refused() {
                            earlier.note_refused(&process);
                        } else {
                            earlier.note_failed();
                        }
                        if error.is_restart() {
                            earlier.note_end(&process);
                        }
                        failed = Some((process, Instant::now()));
                        group.note_failure();
                    }
                }
            }
            if group.needs_no_leader() {
                self.note_leading();
            }
            self.request_changes();
            if self.0.has_refusals.swap(false, Ordering::AcqRel) {
                group.note_failure();
            }
            self.end_late_waits();
            let (is_up, now) = (lock(&self.0.state).link.is_some(), Instant::now());
            self.end_waits(|wait| (is_up && now >= wait.retry_at).then_some(ForwardOutcome::Retry));
            group.wait(TICK);
        }
        self.shut_down();
        for thread in threads {
            let _ = thread.join();
        }
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

    /// Starts the threads of a connection, and makes the connection the current one.
    fn start_threads(
        &self,
        (link, rest): &(Arc<Link>, Vec<u8>),
        threads: &mut Vec<JoinHandle<()>>,
        stop: &Arc<Stop>,
    ) -> io::Result<()> {
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(run);
            // If one of the two threads has started, closing the connection ends that thread.
            spawned.inspect_err(|_| link.close())
        };
        let (writing, reading) = (Arc::clone(link), Arc::clone(link));
        threads.push(spawn("to leader", Box::new(move || writing.write_all()))?);
        let (forwarder, stop, rest) = (self.clone(), Arc::clone(stop), rest.clone());
        let read = move || {
            let on_refused = |route: &Arc<Mutex<RouteState>>, is_planned: bool| {
                forwarder.retry_soon(route, is_planned);
            };
            let error = reading.read_all(&on_refused, rest, &stop);
            tracing::debug!("the connection for forwarded requests has ended: {error}");
            forwarder.drop_link(&reading);
            reading.await_end(&stop);
        };
        threads.push(spawn("from leader", Box::new(read))?);
        self.0.connections.fetch_add(1, Ordering::Relaxed);
        self.make_current(link);
        Ok(())
    }

    /// Makes a connection the current one, which receives new requests.
    pub(super) fn make_current(&self, link: &Arc<Link>) {
        let state = &mut *lock(&self.0.state);
        // Ignore a connection that has already failed: its reader may have ended, so no reply would
        // arrive.
        if !lock(&link.output).is_closed {
            (state.link, state.requests_all) = (Some(Arc::clone(link)), None);
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
    fn drop_link(&self, link: &Arc<Link>) {
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
    fn note_planned(&self) {
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

//! The connection to the leader of one group.
//!
//! Sessions append requests to the output of the connection, and are woken when their answers have arrived. One thread
//! connects, one writes and one reads. While there is no connection, sessions wait for one, or until this node leads,
//! but no longer than a second.

use super::link::{Link, LocalMember, connect};
use super::owner::OwnerGroup;
use super::pending::{RouteState, lock};
use crate::peers::{Credentials, Stop};
use larder_replica::Process;
use larder_session::ForwardOutcome;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long requests wait for a leader.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(1);
/// How soon requests are sent again that the supposed leader did not answer.
const RETRY_AFTER: Duration = Duration::from_millis(20);
/// How often the forwarder checks whether requests have waited for too long, and whether there is a leader.
const TICK: Duration = Duration::from_millis(20);
/// How soon the forwarder connects again to a leader that has not accepted.
const RECONNECT_AFTER: Duration = Duration::from_millis(20);

/// Forwards requests to the leader of one group, on one connection for all clients of this node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forwarder(pub(super) Arc<Shared>);

#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// Batches of requests that were forwarded, and connections so far.
    pub(super) forwarded: AtomicU64,
    pub(super) connections: AtomicU64,
    pub(super) next_route: AtomicU64,
    /// The leader did not answer requests because another group owns their keys, or another node leads.
    has_moved: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) link: Option<Arc<Link>>,
    /// Sessions that wait for a connection.
    waiting: Vec<Wait>,
    /// The node shuts down: there will be no connection.
    pub(super) has_ended: bool,
}

/// A session that waits for a leader.
#[derive(Debug)]
struct Wait {
    since: Instant,
    whose: Arc<Mutex<RouteState>>,
    /// The round of its requests that wait.
    round: u64,
    /// When to retry, if there is a connection.
    retry_at: Instant,
}

impl Forwarder {
    /// This node leads: sessions that wait retry, and are answered locally.
    pub(crate) fn note_leading(&self) {
        self.end_waits(|_| Some(ForwardOutcome::Retry));
    }

    fn end_waits(&self, how: impl Fn(&Wait) -> Option<ForwardOutcome>) {
        let mut ended = Vec::new();
        lock(&self.0.state).waiting.retain(|wait| {
            let routed = how(wait);
            ended.extend(routed.map(|routed| (Arc::clone(&wait.whose), wait.round, routed)));
            routed.is_none()
        });
        for (whose, round, routed) in ended {
            let mut state = lock(&whose);
            // A session that waits for room has forwarded nothing yet.
            if state.round == round && (state.is_open() || state.passed.is_empty()) {
                state.end(routed);
            }
        }
    }

    /// Connects to the leader of `group` until the node shuts down.
    pub(crate) fn run(
        &self,
        group: &dyn OwnerGroup,
        me: &LocalMember,
        credentials: &Credentials,
        stop: &Arc<Stop>,
    ) {
        let mut threads: Vec<std::thread::JoinHandle<()>> = Vec::new();
        let (mut led, mut failed): (_, Option<(Process, Instant)>) = (None, None);
        while !stop.is_set() {
            let leader = group.leader();
            let process = leader.as_ref().map(|(process, _)| process.clone());
            let is_up = lock(&self.0.state).link.is_some();
            if is_up && led != process {
                self.close();
            }
            let has_failed = failed.as_ref().is_some_and(|(of, at)| {
                process.as_ref() == Some(of) && at.elapsed() < RECONNECT_AFTER
            });
            let is_wanted = (!is_up || led != process) && !has_failed;
            if let Some((process, address)) = leader.filter(|_| is_wanted) {
                match connect(&process, address.as_deref(), me, credentials, stop) {
                    Ok(link) => {
                        threads.retain(|thread| !thread.is_finished());
                        self.begin(&link, &mut threads, stop);
                        led = Some(process);
                    }
                    Err(error) => {
                        tracing::debug!(
                            "cannot connect to the leader {} to forward requests: {error}",
                            process.node
                        );
                        failed = Some((process, Instant::now()));
                        group.note_failure();
                    }
                }
            }
            if group.needs_no_leader() {
                self.note_leading();
            }
            if self.0.has_moved.swap(false, Ordering::AcqRel) {
                group.note_failure();
            }
            let (is_up, now) = (lock(&self.0.state).link.is_some(), Instant::now());
            self.end_waits(|wait| match wait {
                wait if now.duration_since(wait.since) > WAIT_MAX => Some(ForwardOutcome::NoLeader),
                wait if is_up && now >= wait.retry_at => Some(ForwardOutcome::Retry),
                _ => None,
            });
            group.wait(TICK);
        }
        self.shut_down();
        for thread in threads {
            let _ = thread.join();
        }
    }

    /// Ends the connection, and all waits for one.
    pub(super) fn shut_down(&self) {
        lock(&self.0.state).has_ended = true;
        self.close();
        self.end_waits(|_| Some(ForwardOutcome::NoLeader));
    }

    /// Starts the threads of a connection.
    fn begin(
        &self,
        (link, rest): &(Arc<Link>, Vec<u8>),
        threads: &mut Vec<std::thread::JoinHandle<()>>,
        stop: &Arc<Stop>,
    ) {
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.to_owned()).spawn(run).ok()
        };
        let (writing, reading) = (Arc::clone(link), Arc::clone(link));
        let writer = spawn("to leader", Box::new(move || writing.write_all()));
        let (forwarder, stop, rest) = (self.clone(), Arc::clone(stop), rest.clone());
        let reader = spawn(
            "from leader",
            Box::new(move || {
                let error = reading.read_all(&|whose| forwarder.retry_soon(whose), rest, &stop);
                tracing::debug!("the connection for forwarded requests has ended: {error}");
                forwarder.drop_link(&reading);
            }),
        );
        threads.extend(writer);
        threads.extend(reader);
        self.0.connections.fetch_add(1, Ordering::Relaxed);
        lock(&self.0.state).link = Some(Arc::clone(link));
    }

    fn close(&self) {
        let link = lock(&self.0.state).link.clone();
        if let Some(link) = link {
            self.drop_link(&link);
        }
    }

    /// Closes a connection.
    fn drop_link(&self, link: &Arc<Link>) {
        let state = &mut lock(&self.0.state);
        if state.link.as_ref().is_some_and(|current| Arc::ptr_eq(current, link)) {
            state.link = None;
        }
        link.close();
    }

    /// The leader has not answered requests of a session: they are sent to the next one.
    fn retry_soon(&self, whose: &Arc<Mutex<RouteState>>) {
        self.0.has_moved.store(true, Ordering::Release);
        self.wait(whose, RETRY_AFTER);
    }

    /// Has a session wait for a leader, and not retry before this time has passed.
    pub(super) fn wait(&self, whose: &Arc<Mutex<RouteState>>, pause: Duration) {
        let now = Instant::now();
        let (since, round) = {
            let mut state = lock(whose);
            (*state.waits_since.get_or_insert(now), state.round)
        };
        let wait = Wait { since, whose: Arc::clone(whose), round, retry_at: now + pause };
        let mut state = lock(&self.0.state);
        if state.has_ended {
            drop(state);
            return lock(whose).end(ForwardOutcome::NoLeader);
        }
        state.waiting.push(wait);
    }
}

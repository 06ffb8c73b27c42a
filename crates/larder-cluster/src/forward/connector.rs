//! Connects the forwarders to the leaders of their groups.
//!
//! One thread serves the forwarder to the local group, and one those to all other groups. Only an
//! attempt to connect, which waits for the peer, has a thread of its own.

use super::earlier_links::EarlierLinks;
use super::forwarder::Forwarder;
use super::forwarder_set::Forwarders;
use super::link::{Link, millis};
use super::link_driver::{LinkDriver, WRITE_TIMEOUT};
use super::owner::{LocalGroup, OwnerGroup, RemoteGroup};
use super::pending::lock;
use crate::error::{LocalError, PeerError};
use crate::group::Group;
use crate::peers::{
    Caller, Credentials, EventLoops, LocalMember, PeerConnection, Stop, Target, dial,
};
use larder_replica::{LinkLeases, Process, Purpose};
use larder_session::GroupIndex;
use larder_support::clock::boot_millis;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The interval at which a connector checks for expired waits and for a new leader.
const TICK: Duration = Duration::from_millis(20);
/// The pause after a failed attempt to connect to a leader.
const RECONNECT_AFTER: Duration = Duration::from_millis(20);

/// The parts of a node that connectors share.
#[derive(Clone)]
pub(crate) struct ConnectorContext {
    pub(crate) me: LocalMember,
    pub(crate) credentials: Credentials,
    pub(crate) loops: Arc<EventLoops>,
    pub(crate) stop: Arc<Stop>,
}

/// Maintains the connection of one forwarder to the leader of its group.
struct Connector {
    forwarder: Forwarder,
    group: Box<dyn OwnerGroup>,
    context: ConnectorContext,
    attempts: Mutex<Attempts>,
}

/// The attempts of a connector to connect to leaders.
#[derive(Default)]
struct Attempts {
    /// The process to which the last successful attempt connected.
    connected: Option<Process>,
    /// The process that the last attempt could not connect to, and the time of its failure.
    failed: Option<(Process, Instant)>,
    earlier: EarlierLinks,
    /// The thread of the last attempt.
    thread: Option<JoinHandle<()>>,
}

/// Keeps the forwarder to the leader of the local group connected, until the node shuts down.
pub(crate) fn connect_local_group(
    group: &Arc<Group>,
    forwarders: &Forwarders,
    context: &ConnectorContext,
) {
    let owner = Box::new(LocalGroup(Arc::clone(group)));
    let forwarder = forwarders.forwarder_of(GroupIndex::OWN);
    let connector = Arc::new(Connector::new(forwarder, owner, context));
    while !context.stop.is_set() {
        connector.step();
        group.wait(TICK);
    }
    connector.shut_down();
}

/// Keeps the forwarders to the leaders of all other groups in the shard map connected, until the
/// node shuts down.
pub(crate) fn connect_other_groups(
    local: &Arc<Group>,
    forwarders: &Forwarders,
    context: &ConnectorContext,
) {
    let (topology, mut connectors) = (&local.topology, Vec::new());
    while !context.stop.is_set() {
        for (number, name) in topology.others(connectors.len()) {
            let owner = Box::new(RemoteGroup { local: Arc::clone(local), name });
            let forwarder = forwarders.forwarder_of(number);
            connectors.push(Arc::new(Connector::new(forwarder, owner, context)));
            // Find the leader of the new group.
            topology.read_soon();
        }
        connectors.iter().for_each(Connector::step);
        topology.wait(TICK);
    }
    connectors.iter().for_each(|connector| connector.shut_down());
}

impl Connector {
    fn new(forwarder: Forwarder, group: Box<dyn OwnerGroup>, context: &ConnectorContext) -> Self {
        Self { forwarder, group, context: context.clone(), attempts: Mutex::default() }
    }

    /// Starts to connect if the group has a leader without a connection, and wakes the sessions
    /// whose wait is over.
    fn step(self: &Arc<Self>) {
        self.follow_leader();
        self.forwarder.tend(&*self.group);
    }

    fn follow_leader(self: &Arc<Self>) {
        let (forwarder, attempts) = (&self.forwarder, &mut *lock(&self.attempts));
        if attempts.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let leader = self.group.leader();
        let process = leader.as_ref().map(|(process, _)| process);
        if forwarder.has_link() && attempts.connected.as_ref() != process {
            forwarder.retire();
        }
        if self.group.is_transfer_planned() {
            forwarder.note_planned();
        }
        if !forwarder.has_link()
            && let Some((process, link)) = attempts.earlier.revive(process)
        {
            forwarder.make_current(&link);
            attempts.connected = Some(process);
        }
        let has_failed = attempts
            .failed
            .as_ref()
            .is_some_and(|(of, at)| process == Some(of) && at.elapsed() < RECONNECT_AFTER);
        let is_connected = forwarder.has_link() && attempts.connected.as_ref() == process;
        if let Some((process, address)) = leader.filter(|_| !is_connected && !has_failed) {
            self.start_dialing(process, address, attempts);
        }
    }

    fn start_dialing(
        self: &Arc<Self>,
        process: Process,
        address: Option<String>,
        attempts: &mut Attempts,
    ) {
        let (connector, leader) = (Arc::clone(self), process.clone());
        let dial = move || connector.dial(&leader, address.as_deref());
        match std::thread::Builder::new().name("dial leader".to_owned()).spawn(dial) {
            Ok(thread) => attempts.thread = Some(thread),
            Err(error) => {
                tracing::warn!("cannot forward requests: spawning a thread failed: {error}");
                attempts.failed = Some((process, Instant::now()));
            }
        }
    }

    /// Tries to connect to a leader.
    fn dial(&self, process: &Process, address: Option<&str>) {
        let result = self.connect(process, address);
        {
            let attempts = &mut *lock(&self.attempts);
            match result {
                Ok(link) => {
                    attempts.earlier.note_connected(process, &link);
                    attempts.connected = Some(process.clone());
                    self.forwarder.0.connections.fetch_add(1, Ordering::Relaxed);
                    self.forwarder.make_current(&link);
                }
                Err(error) => {
                    tracing::debug!(
                        "cannot connect to the leader {} to forward requests: {error}",
                        process.node
                    );
                    if error.is_connection_refused() {
                        attempts.earlier.note_refused(process);
                    } else {
                        attempts.earlier.note_failed();
                    }
                    if error.is_restart() {
                        attempts.earlier.note_end(process);
                    }
                    attempts.failed = Some((process.clone(), Instant::now()));
                    self.group.note_failure();
                }
            }
        }
        self.forwarder.tend(&*self.group);
    }

    /// Connects to a leader, and starts to drive the connection.
    fn connect(&self, leader: &Process, address: Option<&str>) -> Result<Arc<Link>, PeerError> {
        let ConnectorContext { me, credentials, loops, stop } = &self.context;
        let address = address.ok_or_else(|| LocalError::NoAddress)?;
        let is_wanted = || self.group.leader().is_some_and(|(process, _)| process == *leader);
        let target = Target { address, node: Some(&leader.node), is_wanted: &is_wanted };
        let dialed = dial(target, credentials, Caller::Member(me), Purpose::Forward, stop)?;
        let PeerConnection { stream, identity, rest, handshake_time } = dialed;
        if identity.incarnation != leader.incarnation {
            let is_successor = identity.node == leader.node;
            return Err(if is_successor {
                LocalError::Restarted
            } else {
                LocalError::OtherProcess
            }
            .into());
        }
        stream.set_nonblocking()?;
        // Discard late bytes, because a request must not take effect long after this node has
        // reported it as failed.
        stream.discard_late_bytes(WRITE_TIMEOUT)?;
        let leases = LinkLeases::new(identity.time, millis(handshake_time), boot_millis());
        let (entry, tracker) = (loops.entry(), self.forwarder.0.tracker.clone());
        let link = Arc::new(Link::new(stream, tracker, leases, entry.waker.clone()));
        // The leader executes no change before it has a lease.
        link.renew_lease(None);
        let (forwarder, stop) = (self.forwarder.clone(), Arc::clone(stop));
        entry.drive(Box::new(LinkDriver::new(Arc::clone(&link), forwarder, rest, stop)))?;
        Ok(link)
    }

    /// Ends the last attempt, closes the connection, and ends all waits.
    fn shut_down(&self) {
        let thread = lock(&self.attempts).thread.take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        self.forwarder.shut_down();
    }
}

//! Accepts peers at the sockets of `--replicate-on`, authenticates them, and serves each according
//! to its purpose.

use crate::error::{LocalError, PeerError, Violation};
use crate::forward::{Answerer, SessionHost};
use crate::group::Group;
use crate::migration::Export;
use crate::node::Node;
use crate::peers::{
    AdmittedLink, EventLoops, HandshakeLimit, LinkRegistry, PeerStream, PendingHandshakes, Stop,
    handshake_frame,
};
use crate::replication::{FollowingMember, Leader, ReplicatedCache};
use larder_replica::{
    AdmittedPeer, Frame, LeaderHandshake, LeaderIdentity, Migration, Purpose, SlotSet,
};
use larder_store::cache::Cache;
use larder_support::clock::boot_millis;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The maximum number of concurrent exports. Each export walks through all items of the cache. A
/// cluster carries out one migration at a time, so further exports belong to earlier connections
/// whose end this node has not detected yet.
const MIGRATIONS_MAX: usize = 16;
/// The time limit of a handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// The write timeout of accepted connections. A peer that reads nothing for this long is
/// disconnected.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// This node's group, and the answerer for requests that other nodes forward.
struct Membership {
    group: Arc<Group>,
    answerer: Arc<Answerer>,
    /// The event loops for the connections of forwarding nodes.
    loops: Arc<EventLoops>,
    /// The connections for forwarded requests.
    forward_links: LinkRegistry,
    /// The connections of followers.
    follow_links: LinkRegistry,
}

/// A peer after its handshake.
struct AcceptedPeer {
    stream: PeerStream,
    admitted: AdmittedPeer,
    /// The epoch in which this node's current leadership started; 0 if this node does not lead, or
    /// is not ready for its leadership.
    leadership: u32,
    /// The registry entry of the connection, if the peer is a member that forwards requests or
    /// follows this node; `None` for other peers and for imports.
    link: Option<AdmittedLink>,
}

/// Accepts and serves this node's peers.
pub(crate) struct PeerListener {
    node: Arc<Node>,
    leader: Leader,
    membership: Option<Membership>,
    stop: Arc<Stop>,
    handshakes: PendingHandshakes,
    migrations: AtomicUsize,
}

impl PeerListener {
    pub(crate) fn new(
        node: &Arc<Node>,
        host: &Arc<dyn SessionHost>,
        cache: ReplicatedCache,
        loops: &Arc<EventLoops>,
        stop: &Arc<Stop>,
    ) -> Self {
        let membership = node.group.as_ref().map(|group| {
            let handles = node.answerer_counters.iter().map(|_| cache.journaled.engine());
            let answerer = Answerer::new(node, host, group, handles.collect());
            Membership {
                group: Arc::clone(group),
                answerer: Arc::new(answerer),
                loops: Arc::clone(loops),
                forward_links: LinkRegistry::default(),
                follow_links: LinkRegistry::default(),
            }
        });
        let incarnation =
            node.group.as_ref().map_or_else(rand::random, |group| group.me().incarnation);
        let (cache, leader_node) = (Arc::new(cache), Arc::clone(node));
        Self {
            node: Arc::clone(node),
            leader: Leader { node: leader_node, cache, incarnation, stop: Arc::clone(stop) },
            membership,
            stop: Arc::clone(stop),
            handshakes: PendingHandshakes::default(),
            migrations: AtomicUsize::new(0),
        }
    }

    fn group(&self) -> Option<&Group> {
        self.membership.as_ref().map(|membership| &*membership.group)
    }

    /// Accepts peers until the node shuts down. Returns when all peer threads have ended.
    pub(crate) fn accept(&self, listeners: &[TcpListener]) {
        std::thread::scope(|scope| {
            while self.stop.wait_for_connection(listeners) {
                for listener in listeners {
                    let Ok((stream, address)) = listener.accept() else { continue };
                    let Some(handshake) = self.handshakes.start(&stream, address.ip()) else {
                        continue;
                    };
                    let serve = move || self.serve(stream, handshake, &address.to_string());
                    let thread = std::thread::Builder::new().name("sender".to_owned());
                    if let Err(error) = thread.spawn_scoped(scope, serve) {
                        self.handshakes.end(handshake);
                        tracing::warn!(
                            "cannot serve the peer at {address}: spawning a thread failed: {error}"
                        );
                    }
                }
            }
        });
    }

    fn serve(&self, socket: TcpStream, handshake: u64, address: &str) {
        let accepted = self.handshake(socket);
        self.handshakes.end(handshake);
        if let Err(error) = accepted.and_then(|accepted| self.dispatch(accepted, address)) {
            self.note_refused(address, &error);
        }
    }

    fn note_refused(&self, address: &str, error: &PeerError) {
        if error.counts_as_refused() {
            self.node.replication.refused.fetch_add(1, Ordering::Relaxed);
            self.node
                .refused_peer_warning
                .warn(|| format!("refused the peer at {address}: {error}"));
        } else {
            // No warning is needed: the peer mistakes this node for the leader. The peer will read
            // the group again and retry.
            tracing::debug!("refused the peer at {address}: {error}");
        }
    }

    /// Serves a peer until its connection ends. Event loops serve a node that forwards requests.
    ///
    /// # Errors
    /// The peer is refused.
    fn dispatch(&self, accepted: AcceptedPeer, address: &str) -> Result<(), PeerError> {
        let AcceptedPeer { stream, admitted, leadership, link } = accepted;
        let AdmittedPeer { name, member, group: peers_group, purpose, .. } = admitted;
        match (purpose, &self.membership) {
            (Purpose::Follow(position), _) => {
                let member = member.zip(self.group()).zip(link.as_ref());
                let member = member.map(|((process, group), link)| FollowingMember {
                    process,
                    group,
                    leadership,
                    link,
                });
                self.leader.serve((name, address), position.as_ref(), &stream, member)
            }
            (Purpose::Forward, Some(membership)) => {
                let Membership { answerer, loops, .. } = membership;
                link.map_or(Ok(()), |link| {
                    answerer.serve(stream, link, name, loops.entry(), &self.stop)
                })
            }
            (Purpose::Import(slots), Some(Membership { group, .. })) => {
                let to = peers_group.as_deref().and_then(|names| names.split('/').nth(1));
                self.export(&stream, &name, (group, to.unwrap_or_default()), slots, leadership)
            }
            (Purpose::Forward | Purpose::Import(_), None) => Err(Violation::NotMember.into()),
        }
    }

    /// Exports slots to the peer, which leads the group `to`.
    fn export(
        &self,
        stream: &PeerStream,
        name: &str,
        (group, to): (&Group, &str),
        slots: SlotSet,
        leadership: u32,
    ) -> Result<(), PeerError> {
        let has_room = self.migrations.fetch_add(1, Ordering::Relaxed) < MIGRATIONS_MAX;
        let result = if has_room {
            tracing::info!("exporting {} slots to {name} of group {to}", slots.len());
            let (from, to) = (group.name.group.clone(), to.to_owned());
            let export = Export {
                node: &self.node,
                cache: &self.leader.cache,
                stop: &self.stop,
                group,
                planned: Migration { from, to, slots },
                leadership,
            };
            match export.run(stream) {
                Ok(()) => tracing::info!("export to {name}: all items were sent"),
                Err(error) => {
                    tracing::warn!("export of slots to {name} failed: {error}; it is retried")
                }
            }
            Ok(())
        } else {
            Err(stream.refuse(LocalError::MigrationsMax))
        };
        self.migrations.fetch_sub(1, Ordering::Relaxed);
        result
    }

    /// Authenticates a peer, and receives its request. If a member of the group requests to follow
    /// this node, refuses it unless this node leads and is ready for followers.
    fn handshake(&self, socket: TcpStream) -> Result<AcceptedPeer, PeerError> {
        let limit = HandshakeLimit::new(HANDSHAKE_TIME, &self.stop);
        socket.set_nonblocking(false)?;
        socket.set_nodelay(true)?;
        socket.set_write_timeout(Some(WRITE_TIMEOUT))?;
        let credentials = &self.node.credentials;
        let stream = PeerStream::accept(socket, credentials.tls.as_deref(), &limit)?;
        let group = self.group();
        let name = group.map(Group::full_name);
        let cluster = group.map_or(0, |group| group.identity.number());
        let secret = credentials.secret.clone();
        let mut handshake = LeaderHandshake::new(secret, rand::random(), name, cluster);
        let (mut input, mut out) = (Vec::new(), Vec::new());
        loop {
            let Some((frame, len)) = handshake_frame(&input)? else {
                stream.receive(&limit, &mut input)?;
                continue;
            };
            check_certificate(&frame, &stream)?;
            let leadership = group.and_then(Group::ready_leadership);
            let epoch = group.and_then(Group::epoch_as_leader);
            let identity = LeaderIdentity {
                node: group.map_or_else(String::new, |group| group.me().node.clone()),
                incarnation: self.leader.incarnation,
                epoch: epoch.unwrap_or_default(),
                time: boot_millis(),
            };
            let admitted = handshake.receive(frame, &identity, &mut out);
            input.drain(..len);
            let follows = matches!(
                &admitted,
                Ok(Some(AdmittedPeer { member: Some(_), purpose: Purpose::Follow(_), .. }))
            );
            if follows && leadership.is_none() {
                return Err(stream.refuse(LocalError::NotLeader));
            }
            // Close the fence of the peer's earlier connection before the peer learns that this
            // node accepts the new connection.
            let link = match &admitted {
                Ok(Some(admitted)) => {
                    self.admit_link(admitted).map_err(|err| stream.refuse(err))?
                }
                _ => None,
            };
            (&stream).write_all(&out)?;
            out.clear();
            if let Some(admitted) = admitted? {
                let leadership = leadership.unwrap_or_default();
                return Ok(AcceptedPeer { stream, admitted, leadership, link });
            }
        }
    }

    /// Admits the connection of a member that forwards requests or follows this node. Returns
    /// `None` for other connections, which need no admission.
    fn admit_link(&self, peer: &AdmittedPeer) -> Result<Option<AdmittedLink>, PeerError> {
        let (Some(process), Some(membership)) = (&peer.member, &self.membership) else {
            return Ok(None);
        };
        let links = match peer.purpose {
            Purpose::Forward => &membership.forward_links,
            Purpose::Follow(_) => &membership.follow_links,
            Purpose::Import(_) => return Ok(None),
        };
        links.admit(process.incarnation, peer.link).map(Some)
    }
}

/// Refuses a member of a group if its certificate is not for the node that it claims to be.
fn check_certificate(frame: &Frame<'_>, stream: &PeerStream) -> Result<(), PeerError> {
    if let Frame::Hello { name, member: Some(_), .. } = frame
        && !stream.is_certified_as(name)
    {
        return Err(stream.refuse(Violation::Certificate((*name).to_owned())));
    }
    Ok(())
}

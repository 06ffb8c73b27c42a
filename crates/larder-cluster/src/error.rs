//! Errors of connections to other nodes, grouped by which side is at fault.

use larder_replica::{FrameError, HandshakeError, StreamError};
use std::io;

/// A node that does not lead its group refuses peers with this text.
const NOT_LEADER: &str = "this node does not lead its group";

/// The reason why a connection to another node is closed or is not established.
///
/// The text of the error is for the log and for `last_error` of `stats replication`.
/// [`Self::refusal`] is the text for the peer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerError {
    /// The peer violated the protocol, or failed authentication.
    #[error(transparent)]
    Protocol(#[from] Violation),
    /// The peer refused this node.
    #[error("the peer refuses: {0}")]
    Refused(String),
    /// This node refuses the peer, or cannot continue.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// The connection failed, or this node could not set it up (for example, spawn its threads).
    #[error(transparent)]
    Connection(io::Error),
    /// The peer has exceeded a time limit.
    #[error(transparent)]
    Timeout(#[from] Timeout),
}

/// A violation of the protocol by a peer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Violation {
    /// A corrupt or malformed frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A failed handshake: an unexpected frame, another version, group or cluster, or failed
    /// authentication.
    #[error("{0}")]
    Handshake(HandshakeError),
    /// A stream of changes that is invalid, or that this node cannot continue: see [`StreamError`].
    #[error("{0}")]
    Stream(StreamError),
    /// A frame that is not valid in the connection's current state.
    #[error("unexpected frame from the peer")]
    UnexpectedFrame,
    /// A forwarded conversation in a protocol that this version does not support.
    #[error(
        "unknown client protocol {0} in a forwarded conversation: run the same version on all nodes"
    )]
    UnknownConversation(u8),
    /// The follower has sent changed keys although no delta sync is under way, or has sent too many
    /// of them.
    #[error("unexpected list of keys from the follower")]
    UnexpectedKeys,
    /// A TLS record instead of a handshake frame.
    #[error("the peer speaks TLS: both sides need --cluster-tls")]
    SpeaksTls,
    /// An invalid TLS record or certificate.
    #[error("{0}")]
    Tls(String),
    /// The peer claims to be the node of this name, but its certificate is not for that node.
    #[error("the peer's certificate is not for the node {0}: issue one with that name")]
    Certificate(String),
    /// A request for a member of a cluster, although this node is not a member of any.
    #[error(
        "the peer sent a request for a member of a cluster, and this node is not one: give --cluster"
    )]
    NotMember,
}

/// A cause on this node's side for closing a connection or not establishing it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LocalError {
    /// The node is shutting down.
    #[error("this node shuts down")]
    Stopped,
    /// This node no longer needs the connection: the peer no longer leads, or this node has closed
    /// the connection or is shutting down.
    #[error("the connection was replaced")]
    Replaced,
    /// The node does not lead its group.
    #[error("this node does not lead its group")]
    NotLeader,
    /// During an import, the node has lost the leadership of its group, or is shutting down.
    #[error("this node does not lead its group any more")]
    LeadershipLost,
    /// A journal has overwritten changes before they were sent to the follower.
    #[error("the follower was too slow for the journals, and needs a full sync")]
    Overrun,
    /// The maximum number of followers is connected.
    #[error("as many followers as allowed are connected")]
    FollowersMax,
    /// The maximum number of migrations is under way.
    #[error("as many migrations as allowed are under way")]
    MigrationsMax,
    /// The shard map does not plan this migration.
    #[error("the shard map of this node does not plan to move these slots there")]
    NotPlanned,
    /// A flush with a delay may be pending.
    #[error("a delayed flush is pending")]
    FlushPending,
    /// An earlier release of slots has not ended, or this group does not own all of the slots.
    #[error("the slots are released already, or belong to another group")]
    SlotsReleased,
    /// This node has no handle to the cache for forwarded requests.
    #[error("no cache handle for forwarded requests")]
    NoHandle,
    /// The leader has not published an address.
    #[error("the leader has not published an address")]
    NoAddress,
    /// A process other than the leader listens at the leader's address.
    #[error("another process answers at the leader's address")]
    OtherProcess,
    /// A later process of the leader's node listens at the leader's address.
    #[error("the leader has ended: another process of its node answers at its address")]
    Restarted,
    /// The peer has opened a later connection for the same purpose, or has sent a change that
    /// arrived after the end of the peer's lease.
    #[error("the peer has opened a newer connection, or sent a change that came after its lease")]
    Obsolete,
    /// A node name or host that no certificate can contain.
    #[error("no certificate can be for the name {0}")]
    InvalidName(String),
    /// rustls cannot create a TLS session.
    #[error("cannot start TLS: {0}")]
    Tls(rustls::Error),
}

/// A time limit that a peer has exceeded. Each variant names the event that came too late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Timeout {
    /// The completion of the handshake.
    #[error("the handshake timed out")]
    Handshake,
    /// A frame from the leader, which sends ten heartbeats a second.
    #[error("no heartbeat from the leader in time")]
    Heartbeat,
    /// An acknowledgement from a follower.
    #[error("no acknowledgement from the follower in time")]
    Acknowledgement,
    /// A frame from the importing leader.
    #[error("no frame from the importing leader in time")]
    Importer,
    /// The leader's next read of frames that this node has sent.
    #[error("the leader has stopped reading requests")]
    LeaderStalled,
    /// A lease from a node that forwards requests.
    #[error("no lease from the forwarding node in time")]
    Lease,
    /// The results of requests that this node sent to a leader before another node replaced that
    /// leader.
    #[error("no results from the former leader in time")]
    Retired,
    /// The importing leader's request to release the slots.
    #[error("the request to release the slots arrived too late")]
    ReleaseRequest,
    /// The import of released slots.
    #[error("the released slots were not imported in time")]
    Import,
}

impl PeerError {
    /// Returns the reason that [`PeerStream::refuse`](crate::peers::PeerStream::refuse) sends to
    /// the peer in a `Refused` frame, or `None` if it sends no such frame. `LeaderHandshake` writes
    /// its own refusals, so this function returns `None` for a [`HandshakeError`].
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        Some(match self {
            Self::Protocol(Violation::Certificate(_)) => {
                "the certificate does not match the name of the node"
            }
            Self::Local(LocalError::NotLeader) => NOT_LEADER,
            Self::Local(LocalError::FollowersMax) => "as many followers as allowed are connected",
            Self::Local(LocalError::MigrationsMax) => "as many migrations as allowed are under way",
            Self::Local(LocalError::NotPlanned) => {
                "the shard map of this node does not plan this migration"
            }
            Self::Local(LocalError::FlushPending) => "a delayed flush is pending",
            _ => return None,
        })
    }

    /// Returns whether the statistics count the peer as refused. They do not count a peer that
    /// mistakes this node for the leader of its group.
    pub(crate) fn counts_as_refused(&self) -> bool {
        !matches!(self, Self::Local(LocalError::NotLeader))
    }

    /// Returns whether the peer's address refused the connection: no process listens there.
    pub(crate) fn is_connection_refused(&self) -> bool {
        matches!(self, Self::Connection(error) if error.kind() == io::ErrorKind::ConnectionRefused)
    }

    /// Returns whether the peer refuses this node because the peer does not lead its group, or is
    /// not ready for its leadership.
    pub(crate) fn is_not_leader(&self) -> bool {
        matches!(self, Self::Refused(reason) if reason == NOT_LEADER)
    }

    /// Returns whether a later process of the peer's node answered. If so, the expected process has
    /// ended.
    pub(crate) fn is_restart(&self) -> bool {
        matches!(self, Self::Local(LocalError::Restarted))
    }

    /// If this is a connection error or a violation, adds to its text that the TLS handshake
    /// failed. If the connection was closed, also adds the remedy. Returns other errors unchanged.
    pub(crate) fn in_tls_handshake(self) -> Self {
        use io::ErrorKind::{ConnectionReset, UnexpectedEof};
        match self {
            Self::Connection(error) if [UnexpectedEof, ConnectionReset].contains(&error.kind()) => {
                let text =
                    "the TLS handshake: the connection was closed; both sides need --cluster-tls";
                Self::Connection(io::Error::new(error.kind(), text))
            }
            Self::Connection(error) => {
                let text = format!("the TLS handshake: {error}");
                Self::Connection(io::Error::new(error.kind(), text))
            }
            Self::Protocol(violation) => {
                Violation::Tls(format!("the TLS handshake: {violation}")).into()
            }
            other => other,
        }
    }
}

impl From<io::Error> for PeerError {
    /// Extracts a TLS violation, which streams wrap in an [`io::Error`].
    fn from(error: io::Error) -> Self {
        match error.downcast::<Violation>() {
            Ok(violation) => Self::Protocol(violation),
            Err(error) => Self::Connection(error),
        }
    }
}

impl From<FrameError> for PeerError {
    fn from(error: FrameError) -> Self {
        Self::Protocol(error.into())
    }
}

impl From<HandshakeError> for PeerError {
    fn from(error: HandshakeError) -> Self {
        match error {
            HandshakeError::Refused(reason) => Self::Refused(reason),
            error => Self::Protocol(Violation::Handshake(error)),
        }
    }
}

impl From<StreamError> for PeerError {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Refused(reason) => Self::Refused(reason),
            error => Self::Protocol(Violation::Stream(error)),
        }
    }
}

impl From<io::ErrorKind> for PeerError {
    fn from(kind: io::ErrorKind) -> Self {
        Self::Connection(kind.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the refusal text of an error, whether statistics count the error, and its log text.
    fn check(error: impl Into<PeerError>, words: Option<&str>, counts: bool, text: &str) {
        let error = error.into();
        let found = (error.refusal(), error.counts_as_refused(), error.to_string());
        assert_eq!(found, (words, counts, text.to_owned()));
    }

    #[test]
    fn each_error_has_a_refusal_a_count_and_a_text() {
        let words = "this node does not lead its group";
        check(LocalError::NotLeader, Some(words), false, words);
        let text = "as many followers as allowed are connected";
        check(
            LocalError::FollowersMax,
            Some("as many followers as allowed are connected"),
            true,
            text,
        );
        let text = "the peer's certificate is not for the node n1: issue one with that name";
        let words = "the certificate does not match the name of the node";
        check(Violation::Certificate("n1".to_owned()), Some(words), true, text);
        check(HandshakeError::Secret, None, true, "the peer failed cluster-secret authentication");
        check(Timeout::Handshake, None, true, "the handshake timed out");
        check(StreamError::Refused("busy".to_owned()), None, true, "the peer refuses: busy");
    }

    #[test]
    fn a_violation_of_tls_is_no_fault_of_the_connection() {
        let violation = Violation::Tls("bad record".to_owned());
        let error = PeerError::from(io::Error::new(io::ErrorKind::InvalidData, violation));
        assert!(matches!(error, PeerError::Protocol(Violation::Tls(_))), "{error}");
        assert_eq!(error.in_tls_handshake().to_string(), "the TLS handshake: bad record");
        let closed = PeerError::from(io::ErrorKind::UnexpectedEof).in_tls_handshake().to_string();
        assert!(closed.ends_with("both sides need --cluster-tls"), "{closed}");
        let refused = PeerError::from(io::ErrorKind::ConnectionRefused);
        assert!(refused.is_connection_refused());
    }
}

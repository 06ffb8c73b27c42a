//! Connections to other nodes.

mod credentials;
mod dial;
mod encryption;
mod event_loops;
mod handshake;
mod heartbeat;
mod link_registry;
mod node_tls;
mod pending_handshakes;
mod stop;
mod stream;

pub use credentials::Credentials;
pub(crate) use dial::{Caller, LocalMember, PeerConnection, Target, dial};
pub(crate) use event_loops::{Connection, EventLoops, LoopEntry, LoopThread, NextStep};
pub(crate) use handshake::{HandshakeLimit, handshake_frame, is_silence};
pub(crate) use heartbeat::{HEARTBEAT_INTERVAL, HeartbeatSchedule};
pub(crate) use link_registry::{AdmittedLink, LinkRegistry};
pub use node_tls::{NodeTls, NodeTlsFiles};
pub(crate) use pending_handshakes::PendingHandshakes;
pub(crate) use stop::Stop;
pub(crate) use stream::{PeerStream, StreamWriter};

//! Requests that are forwarded to the leader of the group that owns their keys, and the answers to those of other nodes.
//!
//! `route.rs` is the session's side, `forwarder.rs` the connection's, and both share `pending.rs`. `answerer.rs` is the
//! owner's side.

mod answerer;
mod conversation;
mod forwarder;
mod forwarders;
mod link;
mod map_watch;
mod owner;
mod pending;
mod route;
mod session_host;

pub(crate) use answerer::Answerer;
pub use forwarders::Forwarders;
pub(crate) use link::LocalMember;
pub(crate) use map_watch::MapWatch;
pub(crate) use owner::LocalGroup;
pub use session_host::SessionHost;

//! Requests that are sent to the leader of the group that owns their keys, and the answers to those of other nodes.

mod answerer;
mod forwarder;
mod session_host;

pub(crate) use answerer::Answerer;
pub use forwarder::Forwarders;
pub(crate) use forwarder::{HelloMe, OtherGroup, OwnGroup};
pub use session_host::SessionHost;

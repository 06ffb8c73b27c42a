//! Server addresses, and the handshake on new connections.

pub(crate) mod address;
pub(crate) mod handshake;
pub(crate) mod login;
pub(crate) mod resolution;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
pub(crate) mod tls;

//! Where a server is, and what is done on a new connection before it is used.

pub(crate) mod address;
pub(crate) mod entry;
pub(crate) mod login;
pub(crate) mod place;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
pub(crate) mod tls;

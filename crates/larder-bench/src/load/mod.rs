//! The load itself: what is sent and how answers are read, one event loop a thread.

pub(crate) mod connection;
pub(crate) mod keys;
pub(crate) mod socket;
pub(crate) mod stats;
pub(crate) mod values;
pub(crate) mod wire;
pub(crate) mod worker;

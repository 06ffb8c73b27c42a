//! The load: generates requests and reads their answers, in one event loop per thread.

pub(crate) mod connection;
pub(crate) mod keys;
pub(crate) mod socket;
pub(crate) mod stats;
pub(crate) mod values;
pub(crate) mod wire;
pub(crate) mod worker;

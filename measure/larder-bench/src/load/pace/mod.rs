//! When the requests of an open loop are due.

pub(crate) mod bursts;
pub(crate) mod schedule;

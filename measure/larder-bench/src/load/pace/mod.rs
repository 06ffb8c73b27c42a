//! Schedules of the open loop.

pub(crate) mod bursts;
pub(crate) mod schedule;

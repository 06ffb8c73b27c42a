//! Schedules of open loops.

pub(crate) mod bursts;
pub(crate) mod schedule;

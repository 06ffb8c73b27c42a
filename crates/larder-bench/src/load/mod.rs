//! The load: generates requests and reads their answers, in one event loop per thread.

pub(crate) mod answers;
pub(crate) mod bursts;
pub(crate) mod client;
pub(crate) mod client_stats;
pub(crate) mod connection;
pub(crate) mod control;
pub(crate) mod custom;
pub(crate) mod distribution;
pub(crate) mod feed;
pub(crate) mod generator;
pub(crate) mod keys;
pub(crate) mod opening;
pub(crate) mod outage;
pub(crate) mod recorded;
pub(crate) mod replay;
pub(crate) mod schedule;
pub(crate) mod socket;
pub(crate) mod spaces;
pub(crate) mod stats;
pub(crate) mod unsent;
pub(crate) mod values;
pub(crate) mod wire;
pub(crate) mod worker;

/// A time in nanoseconds.
pub(crate) fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

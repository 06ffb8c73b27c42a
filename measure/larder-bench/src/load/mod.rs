//! Generates the load: sends requests and reads their replies, in one event loop per thread.

pub(crate) mod client;
pub(crate) mod connection;
pub(crate) mod control;
pub(crate) mod distribution;
pub(crate) mod items;
pub(crate) mod pace;
pub(crate) mod requests;
pub(crate) mod socket;
pub(crate) mod stats;
pub(crate) mod trace;
pub(crate) mod wire;
pub(crate) mod worker;
pub(crate) mod workload;

/// Returns a duration in nanoseconds, or `u64::MAX` if it is longer than 584 years.
pub(crate) fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

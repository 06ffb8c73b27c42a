//! Helpers for the server and the cluster: the clock, rate-limited warnings, addresses, and TLS
//! configurations from certificate files.
#![forbid(unsafe_code)]

pub mod address;
pub mod clock;
pub mod rate_limited;
pub mod tls;

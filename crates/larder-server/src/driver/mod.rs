//! Drivers move bytes between sockets and sessions, and know nothing of what they mean.

pub mod per_core;

//! The requests of each client, in the order of sending.

pub(crate) mod generator;
pub(crate) mod request;
pub(crate) mod space_requests;
pub(crate) mod trace_queue;

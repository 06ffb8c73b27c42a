//! Each client's requests, in the order in which it sends them.

pub(crate) mod generator;
pub(crate) mod request;
pub(crate) mod space_requests;
pub(crate) mod trace_queue;

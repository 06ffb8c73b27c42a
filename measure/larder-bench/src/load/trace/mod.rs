//! Replays a trace.

pub(crate) mod feed;
pub(crate) mod replay;

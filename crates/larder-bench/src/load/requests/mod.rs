//! The requests of each client, in the order in which it sends them.

pub(crate) mod generator;

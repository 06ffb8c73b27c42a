//! The items of requests: keys, values and key spaces.

pub(crate) mod keys;
pub(crate) mod spaces;
pub(crate) mod values;

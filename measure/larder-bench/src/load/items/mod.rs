//! The items that requests are about: their keys, their values, and the key spaces that they belong to.

pub(crate) mod keys;
pub(crate) mod spaces;
pub(crate) mod values;

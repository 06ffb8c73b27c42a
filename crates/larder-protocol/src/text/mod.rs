//! Parts of lines, common to requests and replies.

pub(crate) mod letters;
pub(crate) mod line;
pub(crate) mod number;
pub(crate) mod tokens;

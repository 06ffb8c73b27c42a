//! Parts of lines that requests and answers share.

pub(crate) mod letters;
pub(crate) mod line;
pub(crate) mod number;
pub(crate) mod tokens;

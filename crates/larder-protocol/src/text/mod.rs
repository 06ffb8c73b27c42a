//! Parts of text lines that requests and replies share.

pub(crate) mod letters;
pub(crate) mod line;
pub(crate) mod number;
pub(crate) mod tokens;

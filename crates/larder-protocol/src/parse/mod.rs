//! Parsing of memcached's requests, in all dialects.

pub(crate) mod admin;
pub(crate) mod base64;
pub(crate) mod binary;
pub(crate) mod body;
pub(crate) mod classic;
pub(crate) mod fast_get;
pub(crate) mod fast_set;
pub(crate) mod login;
pub(crate) mod meta;
pub(crate) mod noreply;
pub(crate) mod parsed;
pub(crate) mod parser;
pub(crate) mod sasl;

//! The options of `CLIENT TRACKING`, which clients with local copies of items use. The server sends
//! these clients invalidation messages when items change.

use super::error::TrackingError;
use crate::resp::error::{CommandError, Parsed};
use crate::resp::request::Arguments;
use crate::resp::words::{integer, is, next};

/// The channel on which a connection receives the invalidation messages that other connections
/// redirect to it.
pub const INVALIDATION_CHANNEL: &[u8] = b"__redis__:invalidate";

/// A parsed `CLIENT TRACKING`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracking<'b> {
    /// `OFF`: stops the invalidation messages.
    Off,
    /// `ON`: starts invalidation messages about changed items.
    On(TrackingOptions<'b>),
}

/// The options of `CLIENT TRACKING ON`, as given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrackingOptions<'b> {
    /// The number of the connection that receives the messages instead of this one.
    pub redirect: Option<u64>,
    /// Whether messages cover all keys, or all keys with certain prefixes, instead of only the keys
    /// that the connection has read.
    pub broadcast: bool,
    /// Whether to track only keys read by a request that follows `CLIENT CACHING YES`.
    pub opt_in: bool,
    /// Whether to track all keys read, except those read by a request that follows `CLIENT CACHING
    /// NO`.
    pub opt_out: bool,
    /// Whether to omit messages about the connection's own changes.
    pub no_loop: bool,
    /// All words after `ON`.
    words: Arguments<'b>,
}

impl<'b> TrackingOptions<'b> {
    /// Returns the prefixes in the options. With `broadcast` and without prefixes, messages cover
    /// all keys.
    pub fn prefixes(&self) -> impl Iterator<Item = &'b [u8]> + use<'b> {
        let mut words = self.words;
        std::iter::from_fn(move || {
            while let Some(word) = words.next() {
                if is(word, "redirect") {
                    words.next();
                } else if is(word, "prefix") {
                    return words.next();
                }
            }
            None
        })
    }
}

/// Parses the words after `CLIENT TRACKING`.
pub(in crate::resp) fn tracking(mut words: Arguments<'_>) -> Parsed<'_, Tracking<'_>> {
    let switch = next(&mut words);
    let mut options = TrackingOptions {
        redirect: None,
        broadcast: false,
        opt_in: false,
        opt_out: false,
        no_loop: false,
        words,
    };
    let mut has_prefixes = false;
    while let Some(word) = words.next() {
        if is(word, "redirect") && words.len() > 0 {
            if options.redirect.is_some_and(|client| client != 0) {
                return Err(CommandError::Tracking(TrackingError::SecondRedirect));
            }
            let client = integer(next(&mut words))?;
            options.redirect = Some(u64::try_from(client).unwrap_or(u64::MAX));
        } else if is(word, "bcast") {
            options.broadcast = true;
        } else if is(word, "optin") {
            options.opt_in = true;
        } else if is(word, "optout") {
            options.opt_out = true;
        } else if is(word, "noloop") {
            options.no_loop = true;
        } else if is(word, "prefix") && words.len() > 0 {
            has_prefixes = true;
            words.next();
        } else {
            return Err(CommandError::Syntax);
        }
    }
    if is(switch, "off") {
        return Ok(Tracking::Off);
    }
    if !is(switch, "on") {
        return Err(CommandError::Syntax);
    }
    if has_prefixes && !options.broadcast {
        return Err(CommandError::Tracking(TrackingError::PrefixWithoutBroadcast));
    }
    Ok(Tracking::On(options))
}

/// Parses the argument of `CLIENT CACHING`; `None` if it is invalid.
pub(in crate::resp) fn caching(word: &[u8]) -> Option<bool> {
    match word {
        _ if is(word, "yes") => Some(true),
        _ if is(word, "no") => Some(false),
        _ => None,
    }
}

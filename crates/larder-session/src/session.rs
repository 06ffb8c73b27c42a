//! The session itself.

use crate::{Counters, Host};
use larder_store::{Engine, Seconds, SizeClasses};

/// What all sessions of a server share and none changes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The largest item in memcached's reckoning (`-I`), in bytes.
    pub item_size_max: usize,
    /// `flush_all` works (no `-F`).
    pub flush_enabled: bool,
    /// Requests answered in one turn before other connections get theirs (`-R`).
    pub requests_per_turn: usize,
    /// Unsent output in bytes from which a session stops answering until some is sent.
    pub output_max: usize,
    /// memcached's slab classes.
    pub classes: SizeClasses,
}

/// What a session works with for one turn.
pub struct Context<'a, E: Engine, H: Host> {
    /// The cache.
    pub engine: &'a mut E,
    /// The server around.
    pub host: &'a H,
    /// This thread's counters.
    pub counters: &'a Counters,
    /// See [`Settings`].
    pub settings: &'a Settings,
    /// The time, read once for the turn.
    pub now: Seconds,
}

/// What the driver does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Everything whole is answered: keep the unconsumed rest, read more.
    Read {
        /// Bytes still missing from the request that has begun; at least 1. Worth reserving up to
        /// some bound.
        wanted: usize,
    },
    /// This turn's share is done and more is waiting in the rest: call again after the others.
    Yield,
    /// Too much output is unsent: send it, then call again with the rest, new input or not.
    Write,
    /// Send what there is, then close. The rest of the input is not for anybody.
    Close,
}

/// What one turn did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Bytes of the input that are done with.
    pub consumed: usize,
    /// What to do next.
    pub next: Next,
}

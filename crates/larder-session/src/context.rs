//! What a session is lent for a turn, and what it says afterwards.

use crate::Host;
use larder_operations::{Limits, OpContext};
use larder_protocol::Parser;
use larder_store::Engine;
use std::task::Waker;

/// What all sessions of a server share and none changes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How conversations begin: in any dialect, in one, or with a login.
    pub opening: Parser,
    /// The largest item (`-I`), and memcached's slab classes.
    pub limits: Limits,
    /// `flush_all` works (no `-F`).
    pub flush_enabled: bool,
    /// Requests answered in one turn before other connections get theirs (`-R`).
    pub requests_per_turn: usize,
    /// Unsent output in bytes from which a session stops answering until some is sent.
    pub output_max: usize,
}

/// What a session works with for one turn.
pub struct Context<'a, E: Engine, H: Host> {
    /// The cache and what operations on it need. The session sets its observer itself.
    pub operations: OpContext<'a, E>,
    /// The server around.
    pub host: &'a H,
    /// See [`Settings`].
    pub settings: &'a Settings,
    /// Makes a waker for this connection. It is called when a read of slower storage has ended that
    /// [`Next::Wait`] was returned for.
    pub waker: &'a dyn Fn() -> Waker,
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
    /// The next request waits for slower storage. Send what there is, read nothing, and call again
    /// with the rest once the waker of [`Context`] was called; calling earlier does no harm.
    Wait,
    /// Send what there is, then close. The rest of the input is not for anybody.
    Close,
}

/// What one turn did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the input that are done with.
    pub consumed: usize,
    /// The answers of this turn tell of a change that has to be acknowledged first, by a replica.
    /// Keep them, read nothing, and call again with the rest once the waker of [`Context`] was
    /// called, until a turn comes without `hold`: it releases what was kept. Calling earlier does no
    /// harm.
    pub hold: bool,
    /// What to do next, unless `hold` says to wait.
    pub next: Next,
}

/// What one step of a turn did: the input it used up, and why the turn ends with it, if it does.
pub(crate) struct Step {
    pub(crate) consumed: usize,
    pub(crate) next: Option<Next>,
}

impl Step {
    pub(crate) fn go_on(consumed: usize) -> Self {
        Self { consumed, next: None }
    }

    pub(crate) fn end(consumed: usize, next: Next) -> Self {
        Self { consumed, next: Some(next) }
    }
}

/// Whether the next request may be answered now.
pub(crate) enum Flow {
    Continue,
    /// This request waits for slower storage: nothing was written, and it is executed again.
    Wait,
    Close,
}

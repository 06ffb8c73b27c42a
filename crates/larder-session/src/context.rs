//! The arguments and results of a turn of a session.

use crate::Host;
use larder_operations::{AnsweredCounts, Limits, OpContext};
use larder_store::Engine;
use std::task::Waker;

/// The settings that all sessions of a server share, and that no session changes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The size of the largest item (`-I`), and memcached's slab classes.
    pub limits: Limits,
    /// Whether `flush_all` is allowed (no `-F`).
    pub flush_enabled: bool,
    /// Whether clients may only read, because the items are a copy of another server's.
    pub read_only: bool,
    /// Whether requests about items may have to be answered by another node: see [`Host::owner`].
    pub forwards: bool,
    /// Whether requests are those of another node's gateway, which made them of HTTP and gRPC: a store that is refused
    /// changes nothing, a look-up wins no right to fill an item, and no key is special.
    pub for_gateway: bool,
    /// How many requests a session answers in one turn, before other connections get theirs (`-R`).
    pub requests_per_poll: usize,
    /// The unsent output, in bytes, above which a session answers nothing until some of it is sent.
    pub output_max: usize,
    /// How many databases RESP's `SELECT` knows; all of them are the same items.
    pub resp_databases: u32,
}

/// Everything that a session needs for one turn.
pub struct Context<'a, E: Engine, H: Host> {
    /// The cache, and what operations on it need. The session sets the observer itself.
    pub operations: OpContext<'a, E>,
    /// The server.
    pub host: &'a H,
    /// See [`Settings`].
    pub settings: &'a Settings,
    /// Makes a waker for this connection. The waker is called when the read of slower storage has ended
    /// for which the session returned [`Next::Wait`].
    pub waker: &'a dyn Fn() -> Waker,
}

/// What the driver does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// All complete requests are answered: keep the unconsumed rest and read more.
    Read {
        /// How many bytes are still missing from the last request, at least 1. A driver may reserve
        /// buffer space for them, up to a limit of its own.
        wanted: usize,
    },
    /// The session has answered its share of requests, and there are more in the rest of the input: call
    /// again after the other connections.
    Yield,
    /// Too much output is unsent: send it, then call again with the rest, with or without new input.
    Write,
    /// The next request waits for slower storage. Send the output, read nothing, and call again with the
    /// rest once the waker of [`Context`] was called. Calling earlier does no harm.
    Wait,
    /// Send the output, then close the connection. The rest of the input is discarded.
    Close,
    /// Close the connection at once, and send nothing of the output that is held: nobody knows whether the changes
    /// that it confirms will last. Or, of requests that were forwarded to here: they are not answered here any more.
    Abandon,
}

/// The result of one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// How many bytes of the input the driver can drop.
    pub consumed: usize,
    /// The answers of this turn confirm a change that a replica has not acknowledged yet. Keep them,
    /// read nothing, and call again with the rest once the waker of [`Context`] was called. The first
    /// turn without `hold` releases the answers. Calling earlier does no harm.
    pub hold: bool,
    /// What to do next, unless `hold` says to wait.
    pub next: Next,
    /// The requests that this turn answered; with `hold`, those whose answers are held. A long answer
    /// counts when its first part is written, a refused value before the rest of it is dropped.
    pub answered: AnsweredCounts,
}

/// What a turn has done so far.
pub(crate) struct Turn {
    /// How many requests it may still answer.
    pub(crate) left: usize,
    pub(crate) answered: AnsweredCounts,
    /// Some answers are written, and not in the output yet.
    pub(crate) keeps_answers: bool,
}

/// The result of one step of a turn: the input that it consumed and, if the turn ends with it, what the
/// driver does next.
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
    /// The request waits for slower storage. Nothing was written, and it is executed again later.
    Wait,
    Close,
}

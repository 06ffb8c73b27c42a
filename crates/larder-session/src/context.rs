//! The arguments and results of one poll, which is a call of a session by its driver.

use crate::Host;
use larder_operations::{AnsweredCounts, Limits, OpContext};
use larder_store::Engine;
use std::task::Waker;

/// The settings that all sessions of a server share. Sessions do not change them.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The maximum item size (`-I`) and memcached's slab classes.
    pub limits: Limits,
    /// Whether `flush_all` is allowed. The option `-F` forbids it.
    pub flush_enabled: bool,
    /// Whether clients may only read, because this server is a replica.
    pub read_only: bool,
    /// Whether another node may own items. If true, sessions forward requests: see [`Host::owner`].
    pub forwards: bool,
    /// Whether the requests come from another node's gateway, which translates HTTP and gRPC
    /// requests. If true, three rules differ:
    ///
    /// - If a store is refused, the old value of its key stays.
    /// - A lookup does not win the right to recompute an item.
    /// - The key under which clients look up the server list is an ordinary key.
    pub for_gateway: bool,
    /// The maximum number of requests that a session answers in one poll (`-R`). The driver then
    /// polls other connections.
    pub requests_per_poll: usize,
    /// The maximum length of unsent output, in bytes. Above it, a session answers no requests until
    /// the driver has sent some of the output.
    pub output_max: usize,
    /// The number of databases that RESP's `SELECT` and `COPY` accept. All databases contain the
    /// same items.
    pub resp_databases: u32,
}

impl Settings {
    /// Returns whether RESP has a database with this number.
    pub(crate) fn has_resp_database(&self, number: i32) -> bool {
        u32::try_from(number).is_ok_and(|number| number < self.resp_databases)
    }
}

/// The arguments of one poll.
pub struct Context<'a, E: Engine, H: Host> {
    /// The context for operations on the cache. The session sets the observer.
    pub operations: OpContext<'a, E>,
    /// The server that the session belongs to.
    pub host: &'a H,
    /// The settings of all sessions.
    pub settings: &'a Settings,
    /// Creates a waker for this connection. After [`Next::Wait`] or [`Progress::hold`], the waker
    /// is called at the next event: a read from slower storage has ended, a reply to a forwarded
    /// request has arrived, a route has room for more bytes, or replicas have acknowledged a change
    /// or can no longer acknowledge it.
    pub waker: &'a dyn Fn() -> Waker,
}

/// The driver's next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// All complete requests are answered. Keep the unconsumed input and read more.
    Read {
        /// A lower bound of the number of bytes that the incomplete request lacks. Never 0. A
        /// driver may reserve buffer space for these bytes, up to the driver's own limit.
        wanted: usize,
    },
    /// Poll again after the other connections. The session can continue immediately: it has reached
    /// the limit of requests per poll, has finished one step in a dump or key listing, or no longer
    /// needs to wait.
    Yield,
    /// Too much output is unsent. Send it, then poll again, with or without new input.
    Write,
    /// The next request waits for slower storage or for another node. Send the output, read no
    /// input, and poll again after the waker of [`Context`] is called. An earlier poll is harmless.
    Wait,
    /// Send the output, then close the connection. Discard the unconsumed input.
    Close,
    /// Close the connection immediately and drop the held output, because replicas may never
    /// acknowledge the changes that this output confirms.
    Abandon,
    /// This server does not own the keys of the next forwarded request. Send the output, then end
    /// the conversation. The owner continues after the part that
    /// [`Session::answered_part`](crate::Session) returns. Only sessions created by
    /// [`Session::forwarded`](crate::Session::forwarded) return this action.
    NotOwner,
}

/// The result of one poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The number of input bytes that the driver can drop.
    pub consumed: usize,
    /// Whether the replies of this poll confirm a change that a replica has not acknowledged yet.
    /// If so, keep the replies, read no input, and poll again after the waker of [`Context`] is
    /// called. The first poll without `hold` releases the replies. An earlier poll is harmless.
    pub hold: bool,
    /// The driver's next action if `hold` is false.
    pub next: Next,
    /// The requests that this poll answered, including those with held replies. A request with a
    /// long reply counts when the first part of the reply is written. A refused store counts before
    /// the session has discarded its value.
    pub answered: AnsweredCounts,
}

/// The state of one poll.
pub(crate) struct PollState {
    /// The number of requests that the poll may still answer.
    pub(crate) left: usize,
    pub(crate) answered: AnsweredCounts,
    /// Whether some replies are complete but not in the output yet, because earlier replies must
    /// precede them.
    pub(crate) keeps_answers: bool,
}

/// The result of one step in a poll: the length of the consumed input in bytes and, if the step
/// ends the poll, the driver's next action.
pub(crate) struct Step {
    pub(crate) consumed: usize,
    pub(crate) next: Option<Next>,
}

impl Step {
    pub(crate) fn advance(consumed: usize) -> Self {
        Self { consumed, next: None }
    }

    pub(crate) fn finish(consumed: usize, next: Next) -> Self {
        Self { consumed, next: Some(next) }
    }
}

/// The next action after a request.
pub(crate) enum Flow {
    Continue,
    /// The request waits for slower storage. The request has written no output, and the session
    /// will execute it again.
    Wait,
    Close,
}

//! Requests that are answered together, as they are read.

use crate::Host;
use crate::context::Context;
use crate::session::resp_state::State;
use arrayvec::ArrayVec;
use larder_operations::CommandClass;
use larder_protocol::resp::{
    Bounds, KEY_LEN_MAX, ProtocolError, Read, Request, Verb, fast_get, fast_set, read,
};
use larder_store::Engine;

// What the protocol lets through can be stored.
const _: () = assert!(KEY_LEN_MAX <= larder_store::KEY_LEN_MAX);

/// The largest batch, for the reasons of memcached's protocol.
pub(super) const BATCH_MAX: usize = 32;
/// The shortest limit of arguments in bytes, however small the largest item may be.
const BULK_LEN_MIN: usize = 64 << 10;
/// How much longer than the largest argument a request may be, in bytes.
const REQUEST_LEN_EXTRA: usize = 64 << 20;
/// What has become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was answered.
    Done,
    /// It was answered in part, and goes on when the output was sent or others had their turns.
    Paused,
    /// It waits for [`State::waiting`].
    Wait,
    /// The connection is closed.
    Close,
}

/// A request of a batch.
pub(super) struct Ready<'b> {
    pub(super) what: What<'b>,
    /// The hash of its first key; 0 if there is none.
    pub(super) hash: u64,
    /// Where the next request begins.
    pub(super) end: usize,
}

pub(super) enum What<'b> {
    /// A `GET`, and its bytes.
    Get(&'b [u8], &'b [u8]),
    /// The key and the value of a `SET` without options, and its bytes.
    Set(&'b [u8], &'b [u8], &'b [u8]),
    Request(Request<'b>),
}

impl What<'_> {
    /// Whether it changes items.
    pub(super) fn changes(&self) -> bool {
        match self {
            Self::Get(..) => false,
            Self::Set(..) => true,
            Self::Request(request) => request.row().is_ok_and(|(_, verb)| verb.changes_items()),
        }
    }

    /// The class that the request is timed with. One with several keys counts once.
    pub(super) fn class(&self) -> CommandClass {
        let verb = match self {
            Self::Get(..) => return CommandClass::Get,
            Self::Set(..) => return CommandClass::Store,
            Self::Request(request) => request.row().map(|(_, verb)| verb),
        };
        match verb {
            Ok(Verb::Get | Verb::GetRange | Verb::MGet | Verb::StrLen) => CommandClass::Get,
            Ok(Verb::Exists | Verb::Type | Verb::Ttl | Verb::PTtl) => CommandClass::Get,
            Ok(Verb::ExpireTime | Verb::PExpireTime) => CommandClass::Get,
            Ok(Verb::Set | Verb::SetEx | Verb::PSetEx | Verb::SetNx) => CommandClass::Store,
            Ok(Verb::GetSet | Verb::MSet | Verb::Append) => CommandClass::Store,
            Ok(Verb::Del | Verb::Unlink | Verb::GetDel) => CommandClass::Delete,
            Ok(Verb::Incr | Verb::IncrBy | Verb::Decr | Verb::DecrBy) => CommandClass::Count,
            Ok(Verb::Expire | Verb::ExpireAt | Verb::PExpire | Verb::PExpireAt) => {
                CommandClass::Touch
            }
            Ok(Verb::Persist | Verb::Touch | Verb::GetEx) => CommandClass::Touch,
            _ => CommandClass::Other,
        }
    }
}

/// What follows the requests of a batch.
pub(super) enum BatchEnd<'b> {
    Full,
    Line { line: &'b [u8], consumed: usize },
    Nothing { consumed: usize },
    Incomplete { wanted: usize },
    Fault(ProtocolError),
}

pub(super) fn bounds<E: Engine, H: Host>(cx: &Context<'_, E, H>, state: &State) -> Bounds {
    let bulk_len_max = bulk_len_max(cx);
    let request_len_max = bulk_len_max + REQUEST_LEN_EXTRA;
    Bounds { bulk_len_max, request_len_max, needs_login: state.needs_login() }
}

/// The longest argument in bytes.
pub(super) fn bulk_len_max<E: Engine, H: Host>(cx: &Context<'_, E, H>) -> usize {
    cx.operations.limits.item_size_max.max(BULK_LEN_MIN)
}

/// Reads the next requests, and prefetches the memory that they will look up.
pub(super) fn gather<'b, E: Engine>(
    engine: &mut E,
    input: &'b [u8],
    bounds: &Bounds,
    max: usize,
    batch: &mut ArrayVec<Ready<'b>, BATCH_MAX>,
) -> BatchEnd<'b> {
    let mut at = 0;
    let batch_end = loop {
        if batch.len() == max {
            break BatchEnd::Full;
        }
        let rest = input.get(at..).unwrap_or_default();
        if !bounds.needs_login
            && let Some((key, len)) = fast_get(rest)
            && (1..=KEY_LEN_MAX).contains(&key.len())
        {
            at += len;
            let hash = engine.hash(key);
            engine.announce(hash);
            let raw = rest.get(..len).unwrap_or_default();
            batch.push(Ready { what: What::Get(key, raw), hash, end: at });
            continue;
        }
        if !bounds.needs_login
            && let Some((key, value, len)) = fast_set(rest)
            && (1..=KEY_LEN_MAX).contains(&key.len())
            && value.len() <= bounds.bulk_len_max
        {
            at += len;
            let hash = engine.hash(key);
            engine.announce(hash);
            let raw = rest.get(..len).unwrap_or_default();
            batch.push(Ready { what: What::Set(key, value, raw), hash, end: at });
            continue;
        }
        match read(rest, bounds) {
            Read::Request { request, consumed } => {
                at += consumed;
                batch.push(of_request(engine, request, at));
            }
            Read::Line { line, consumed } => break BatchEnd::Line { line, consumed },
            Read::Nothing { consumed } => break BatchEnd::Nothing { consumed },
            Read::Incomplete { wanted } => break BatchEnd::Incomplete { wanted },
            Read::Fault(fault) => break BatchEnd::Fault(fault),
        }
    };
    engine.prefetch_announced();
    batch_end
}

/// Reads one request, which is whole.
pub(super) fn read_one<'b, E: Engine>(
    engine: &mut E,
    bytes: &'b [u8],
    bounds: &Bounds,
) -> Option<Ready<'b>> {
    match read(bytes, bounds) {
        Read::Request { request, consumed } => Some(of_request(engine, request, consumed)),
        _ => None,
    }
}

fn of_request<'b, E: Engine>(engine: &mut E, request: Request<'b>, end: usize) -> Ready<'b> {
    let hash = match { request.arguments }.next() {
        Some(key) if (1..=KEY_LEN_MAX).contains(&key.len()) => {
            let hash = engine.hash(key);
            engine.announce(hash);
            hash
        }
        _ => 0,
    };
    Ready { what: What::Request(request), hash, end }
}

//! Parses batches of requests, and prefetches the items of their keys.

use crate::Host;
use crate::context::Context;
use crate::session::resp_state::State;
use arrayvec::ArrayVec;
use larder_operations::CommandClass;
use larder_protocol::resp::{
    Bounds, KEY_LEN_MAX, OversizedRest, ProtocolError, Read, Request, Verb, fast_get, fast_set,
    read,
};
use larder_store::Engine;

// The engine must be able to store every key that the protocol accepts.
const _: () = assert!(KEY_LEN_MAX <= larder_store::KEY_LEN_MAX);

/// The maximum number of requests in a batch: see `BATCH_MAX` of `memcached/batch.rs`.
pub(super) const BATCH_MAX: usize = 32;
/// The minimum, in bytes, of the length limit for an argument. This minimum applies if the maximum
/// item size is smaller.
const BULK_LEN_MIN: usize = 64 << 10;
/// The difference, in bytes, between the length limits for a request and for an argument.
const REQUEST_LEN_EXTRA: usize = 64 << 20;

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The reply is complete.
    Done,
    /// The reply is incomplete, because the output is full or the request has processed enough keys
    /// for one step. The request continues in a later step. If the output is full, the driver first
    /// sends the output.
    Paused,
    /// The request waits for items on slower storage. [`State::waiting`] contains the hashes of
    /// their keys.
    Wait,
    /// The session closes the connection.
    Close,
}

/// A request of a batch.
pub(super) struct BatchRequest<'b> {
    pub(super) kind: RequestKind<'b>,
    /// The hash of the first argument; 0 if the argument cannot be a key. In most commands, the
    /// first argument is the first key.
    pub(super) hash: u64,
    /// The offset in the input at which this request ends.
    pub(super) end: usize,
}

pub(super) enum RequestKind<'b> {
    /// The key of a `GET`, and the bytes of the request.
    Get(&'b [u8], &'b [u8]),
    /// The key and the value of a `SET` without options, and the bytes of the request.
    Set(&'b [u8], &'b [u8], &'b [u8]),
    Request(Request<'b>),
}

impl RequestKind<'_> {
    /// Returns whether the request changes items.
    pub(super) fn changes(&self) -> bool {
        match self {
            Self::Get(..) => false,
            Self::Set(..) => true,
            Self::Request(request) => request.row().is_ok_and(|(_, verb)| verb.changes_items()),
        }
    }

    /// Returns whether the request's command has this name.
    pub(super) fn is_named(&self, name: &[u8]) -> bool {
        match self {
            Self::Get(..) | Self::Set(..) => false,
            Self::Request(request) => request.name.eq_ignore_ascii_case(name),
        }
    }

    /// Returns the class of the request in latency statistics. A multi-key request counts once.
    pub(super) fn class(&self) -> CommandClass {
        let verb = match self {
            Self::Get(..) => return CommandClass::Get,
            Self::Set(..) => return CommandClass::Store,
            Self::Request(request) => request.row().map(|(_, verb)| verb),
        };
        match verb {
            Ok(Verb::Get | Verb::GetRange | Verb::MGet | Verb::StrLen) => CommandClass::Get,
            Ok(Verb::BitCount | Verb::GetBit) => CommandClass::Get,
            Ok(Verb::Exists | Verb::Type | Verb::Ttl | Verb::PTtl) => CommandClass::Get,
            Ok(Verb::ExpireTime | Verb::PExpireTime) => CommandClass::Get,
            Ok(Verb::Set | Verb::SetEx | Verb::PSetEx | Verb::SetNx) => CommandClass::Store,
            Ok(Verb::GetSet | Verb::MSet | Verb::MSetNx | Verb::Append) => CommandClass::Store,
            Ok(Verb::SetBit | Verb::SetRange) => CommandClass::Store,
            Ok(Verb::Copy | Verb::Rename | Verb::RenameNx) => CommandClass::Store,
            Ok(Verb::Del | Verb::DelEx | Verb::DelIfEq | Verb::Unlink | Verb::GetDel) => {
                CommandClass::Delete
            }
            Ok(Verb::Incr | Verb::IncrBy | Verb::Decr | Verb::DecrBy) => CommandClass::Count,
            Ok(Verb::IncrByFloat) => CommandClass::Count,
            Ok(Verb::Expire | Verb::ExpireAt | Verb::PExpire | Verb::PExpireAt) => {
                CommandClass::Touch
            }
            Ok(Verb::Persist | Verb::Touch | Verb::GetEx) => CommandClass::Touch,
            _ => CommandClass::Other,
        }
    }
}

/// The input that follows the requests of a batch.
pub(super) enum BatchEnd<'b> {
    /// The batch has reached its maximum length.
    Full,
    /// An inline request.
    Line {
        line: &'b [u8],
        consumed: usize,
    },
    /// An empty request, which has no reply.
    Nothing {
        consumed: usize,
    },
    /// An incomplete request. At least `wanted` more bytes of it must arrive.
    Incomplete {
        wanted: usize,
    },
    /// A request with an argument that is too long. The first `consumed` bytes of the request
    /// precede the argument.
    Oversized {
        rest: OversizedRest,
        consumed: usize,
    },
    Fault(ProtocolError),
}

pub(super) fn bounds<E: Engine, H: Host>(cx: &Context<'_, E, H>, state: &State) -> Bounds {
    let bulk_len_max = bulk_len_max(cx);
    let request_len_max = bulk_len_max + REQUEST_LEN_EXTRA;
    Bounds { bulk_len_max, request_len_max, needs_login: state.needs_login() }
}

/// Returns the maximum length of an argument, in bytes.
pub(super) fn bulk_len_max<E: Engine, H: Host>(cx: &Context<'_, E, H>) -> usize {
    cx.operations.limits.item_size_max.max(BULK_LEN_MIN)
}

/// Parses the next requests into `batch`, and prefetches the index buckets and items of their keys.
pub(super) fn gather<'b, E: Engine>(
    engine: &mut E,
    input: &'b [u8],
    bounds: &Bounds,
    max: usize,
    batch: &mut ArrayVec<BatchRequest<'b>, BATCH_MAX>,
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
            batch.push(BatchRequest { kind: RequestKind::Get(key, raw), hash, end: at });
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
            batch.push(BatchRequest { kind: RequestKind::Set(key, value, raw), hash, end: at });
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
            Read::Oversized { rest, consumed } => break BatchEnd::Oversized { rest, consumed },
            Read::Fault(fault) => break BatchEnd::Fault(fault),
        }
    };
    engine.prefetch_announced();
    batch_end
}

/// Parses one complete request. Returns `None` if the bytes are not a complete array.
pub(super) fn read_one<'b, E: Engine>(
    engine: &mut E,
    bytes: &'b [u8],
    bounds: &Bounds,
) -> Option<BatchRequest<'b>> {
    match read(bytes, bounds) {
        Read::Request { request, consumed } => Some(of_request(engine, request, consumed)),
        _ => None,
    }
}

fn of_request<'b, E: Engine>(engine: &mut E, request: Request<'b>, end: usize) -> BatchRequest<'b> {
    let hash = match { request.arguments }.next() {
        Some(key) if (1..=KEY_LEN_MAX).contains(&key.len()) => {
            let hash = engine.hash(key);
            engine.announce(hash);
            hash
        }
        _ => 0,
    };
    BatchRequest { kind: RequestKind::Request(request), hash, end }
}

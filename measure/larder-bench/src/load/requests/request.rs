//! A request before its encoding.
//!
//! This module writes no bytes and uses no socket. A [`Request`] is a plain value: the client
//! chooses a server by the request's keys before it encodes the request.

use crate::load::items::keys::KeyStream;
use crate::load::items::spaces::Space;
use crate::load::items::values::Value;
use crate::load::stats::Kind;
use crate::load::wire::recorded::Recorded;
use crate::load::workload::Load;
use rand::RngExt;
use rand::rngs::SmallRng;

/// A request before its encoding.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request<'r> {
    /// Stores a value in a key space. `expiry` is the TTL in seconds; 0 means no expiry.
    Set { space: u16, key: u64, expiry: u32, value: Value<'r> },
    /// Gets one or several keys of a key space.
    Get { space: u16, keys: &'r [u64] },
    /// A recorded request.
    Recorded(&'r Recorded),
    /// Custom command `number`, with its keys and its value.
    Command { number: usize, keys: &'r [u64], value: Option<Value<'r>> },
}

impl Request<'_> {
    pub(crate) fn kind(&self, load: &Load) -> Kind {
        match self {
            Self::Set { space, .. } => Kind::Set(*space),
            Self::Get { space, .. } => Kind::Get(*space),
            Self::Recorded(request) => request.kind(),
            Self::Command { number, .. } => load.commands.kind(*number),
        }
    }
}

#[inline]
pub(crate) fn set<'r>(
    number: u16,
    space: &'r Space,
    stream: &mut KeyStream,
    rng: &mut SmallRng,
) -> Request<'r> {
    let key = stream.next(rng);
    let expiry = space.expiry.map_or(0, |(from, to)| rng.random_range(from..=to));
    Request::Set { space: number, key, expiry, value: space.values.draw(key, rng) }
}

#[inline]
pub(crate) fn get<'r>(
    number: u16,
    multi_get: usize,
    stream: &mut KeyStream,
    rng: &mut SmallRng,
    keys: &'r mut Vec<u64>,
) -> Request<'r> {
    keys.clear();
    for _ in 0..multi_get {
        keys.push(stream.next(rng));
    }
    Request::Get { space: number, keys }
}

//! Interpretation of replies: counts responses, and detects the last response to a request.
//!
//! This module uses no socket. A [`Source`] decodes responses, and attributes each of them to the
//! oldest outstanding request, a [`PendingRequest`].

use crate::load::items::spaces::Space;
use crate::load::stats::{Kind, LoadStats};
use crate::load::wire;
use crate::load::wire::custom::Response;
use crate::load::wire::recorded::{self, Recorded};
use crate::load::workload::Load;
use larder_protocol::answer::Answer;
use larder_protocol::response::Read;
use larder_target::Protocol;
use std::collections::VecDeque;

/// A request that has not been answered yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingRequest {
    pub(super) kind: Kind,
    /// The time from which its latency counts, in nanoseconds since the start of the run. In an
    /// open loop, this is the time at which the request was due. In a closed loop, it is the time
    /// at which the request was sent.
    pub(super) at: u64,
    keys: u32,
    last_reply: LastReply,
    /// Whether an error was counted for the request.
    failed: bool,
    /// Whether a set follows if this request misses. True only for gets from a trace.
    pub(super) is_settable: bool,
}

/// The effect of a response on its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning<'b> {
    /// The last response to the request.
    Last,
    /// Further responses follow.
    More,
    /// The last response to the request: an error with this message from the server.
    LastError(&'b [u8]),
    /// An error with this message from the server. Further responses follow.
    MoreErrors(&'b [u8]),
    /// A response that does not match the request.
    Unexpected,
}

/// The condition under which a response is the last one of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastReply {
    /// The first response is the last one.
    First,
    /// An end marker or an error ends the reply.
    MarkOrError,
    /// Only an end marker ends the reply. An error is the response to one of the keys.
    Mark,
    /// The reply is an array, and its last element is the last response.
    Array,
}

/// Decodes and counts the responses to one kind of requests.
pub(super) trait Source {
    /// A response to a request.
    type Response<'b>;

    /// Decodes the response at the start of `bytes`. `pending` is the kind of the oldest
    /// outstanding request; `None` if no request is outstanding.
    fn read<'b>(load: &Load, pending: Option<Kind>, bytes: &'b [u8]) -> Read<Self::Response<'b>>;

    /// Counts a response to a request.
    fn count<'b>(
        request: &mut PendingRequest,
        response: Self::Response<'b>,
        load: &Load,
        keys: &mut VecDeque<u64>,
        stats: &mut LoadStats,
    ) -> Meaning<'b>;
}

/// Generated sets and gets.
pub(super) struct SetsAndGets;

impl Source for SetsAndGets {
    type Response<'b> = Answer<'b>;

    #[inline]
    fn read<'b>(load: &Load, _: Option<Kind>, bytes: &'b [u8]) -> Read<Answer<'b>> {
        wire::read(load.settings.protocol, bytes)
    }

    #[inline]
    fn count<'b>(
        request: &mut PendingRequest,
        answer: Self::Response<'b>,
        load: &Load,
        keys: &mut VecDeque<u64>,
        stats: &mut LoadStats,
    ) -> Meaning<'b> {
        request.answer(answer, load, keys, stats)
    }
}

/// Custom commands.
pub(super) struct Commands;

impl Source for Commands {
    type Response<'b> = Response<'b>;

    fn read<'b>(load: &Load, _: Option<Kind>, bytes: &'b [u8]) -> Read<Response<'b>> {
        load.commands.read(bytes)
    }

    fn count<'b>(
        request: &mut PendingRequest,
        response: Self::Response<'b>,
        _: &Load,
        _: &mut VecDeque<u64>,
        stats: &mut LoadStats,
    ) -> Meaning<'b> {
        request.command_answer(response, stats)
    }
}

/// Recorded requests.
pub(super) struct RecordedRequests;

impl Source for RecordedRequests {
    type Response<'b> = Response<'b>;

    fn read<'b>(load: &Load, pending: Option<Kind>, bytes: &'b [u8]) -> Read<Response<'b>> {
        recorded::read(load.settings.protocol, pending, bytes)
    }

    fn count<'b>(
        request: &mut PendingRequest,
        response: Self::Response<'b>,
        _: &Load,
        _: &mut VecDeque<u64>,
        stats: &mut LoadStats,
    ) -> Meaning<'b> {
        request.command_answer(response, stats)
    }
}

impl PendingRequest {
    #[inline]
    pub(super) fn new(kind: Kind, at: u64, keys: u32, last_reply: LastReply) -> Self {
        Self { kind, at, keys, last_reply, failed: false, is_settable: false }
    }

    pub(super) fn recorded(request: &Recorded, at: u64) -> Self {
        let is_settable = request.set_on_miss;
        Self { is_settable, ..Self::new(request.kind(), at, 1, LastReply::First) }
    }

    #[inline]
    pub(super) fn of_get(protocol: Protocol, space: u16, at: u64, keys: usize) -> Self {
        let last_reply = match (protocol, keys) {
            (Protocol::Text, _) => LastReply::MarkOrError,
            (_, 1) => LastReply::First,
            (Protocol::Meta | Protocol::Binary, _) => LastReply::Mark,
            (Protocol::Resp, _) => LastReply::Array,
        };
        Self::new(Kind::Get(space), at, u32::try_from(keys).unwrap_or(u32::MAX), last_reply)
    }

    /// Counts one response to a custom command or to a recorded request. For these requests, the
    /// field `keys` is the number of outstanding responses, including the current one. After the
    /// first line of a multi-line reply, the field is 0.
    fn command_answer<'b>(&mut self, response: Response<'b>, stats: &mut LoadStats) -> Meaning<'b> {
        let mut error = None;
        let command = stats.of(self.kind);
        let is_element = self.last_reply == LastReply::Array;
        match response {
            Response::Found(len) => {
                command.hits += u64::from(!is_element);
                command.value_bytes += len as u64;
            }
            Response::Missing => command.misses += u64::from(!is_element),
            Response::Error(text) => {
                command.errors += u64::from(!std::mem::replace(&mut self.failed, true));
                stats.fault(&shown(text), 1);
                error = Some(text);
            }
            Response::Array(elements) => {
                self.last_reply = LastReply::Array;
                self.keys = self.keys.saturating_add(u32::try_from(elements).unwrap_or(u32::MAX));
            }
            Response::More(len) => {
                command.hits += u64::from(len.is_some());
                command.value_bytes += len.unwrap_or(0) as u64;
                self.keys = 0;
                return Meaning::More;
            }
            Response::End => command.misses += u64::from(self.keys > 0),
            Response::Other => (),
        }
        self.keys = self.keys.saturating_sub(1);
        match (error, self.keys == 0) {
            (None, is_last) => self.ends_if(is_last),
            (Some(text), true) => Meaning::LastError(text),
            (Some(text), false) => Meaning::MoreErrors(text),
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the request's waiting time at `now`, in nanoseconds.
    pub(crate) fn waited(&self, now: u64) -> u64 {
        now.saturating_sub(self.at)
    }

    /// Counts the request as never answered. If an error was already counted for it, records only
    /// its latency. `now` is the end of the run, in nanoseconds since its start.
    pub(crate) fn never_answered(&self, now: u64, stats: &mut LoadStats) {
        let waited = now.saturating_sub(self.at);
        if self.failed {
            stats.of(self.kind).latency.saturating_record(waited);
        } else {
            stats.never_answered(self.kind, waited);
        }
    }

    /// Counts one response.
    #[inline]
    fn answer<'b>(
        &mut self,
        answer: Answer<'b>,
        load: &Load,
        keys: &mut VecDeque<u64>,
        stats: &mut LoadStats,
    ) -> Meaning<'b> {
        let command = stats.of(self.kind);
        match answer {
            Answer::Hit { .. } | Answer::End if self.kind.is_set() => Meaning::Unexpected,
            Answer::Hit { value, returned } => {
                command.hits += 1;
                command.value_bytes += value.len() as u64;
                if load.settings.verify {
                    let name = returned.key().map(|key| key.wire);
                    if !is_right(name, value, self.space(load), self.keys, keys) {
                        stats.fault("wrong value", 1);
                    }
                }
                self.keys = self.keys.saturating_sub(1);
                self.ends_if(self.last_reply == LastReply::First || self.is_last_of_array())
            }
            // For a set, this response means that the value was not stored.
            Answer::NotFound { .. } | Answer::NotStored { .. } => {
                command.misses += 1;
                self.keys = self.keys.saturating_sub(1);
                if load.settings.verify && !self.kind.is_set() {
                    keys.pop_front();
                }
                self.ends_if(self.last_reply == LastReply::First || self.is_last_of_array())
            }
            Answer::End => {
                // Keys for which the server sent no response count as misses.
                command.misses += u64::from(self.keys);
                if load.settings.verify {
                    keys.drain(..(self.keys as usize).min(keys.len()));
                }
                Meaning::Last
            }
            // `HD` in the meta protocol, `OK` in RESP.
            Answer::Stored { .. } | Answer::Done { .. } | Answer::Ok if self.kind.is_set() => {
                Meaning::Last
            }
            Answer::Array(_) if self.last_reply == LastReply::Array => Meaning::More,
            Answer::Error { line, .. } | Answer::Line(line) => {
                command.errors += u64::from(!std::mem::replace(&mut self.failed, true));
                stats.fault(&shown(line), 1);
                let ended = self.last_reply != LastReply::Mark;
                if ended && load.settings.verify {
                    keys.drain(..(self.keys as usize).min(keys.len()));
                }
                if ended { Meaning::LastError(line) } else { Meaning::MoreErrors(line) }
            }
            _ => Meaning::Unexpected,
        }
    }

    fn space(self, load: &Load) -> &Space {
        match self.kind {
            Kind::Set(space) | Kind::Get(space) => load.space(space),
            Kind::Custom(_) => load.space(0),
        }
    }

    fn ends_if<'b>(self, last: bool) -> Meaning<'b> {
        if last { Meaning::Last } else { Meaning::More }
    }

    fn is_last_of_array(&self) -> bool {
        self.last_reply == LastReply::Array && self.keys == 0
    }
}

/// Returns whether `value` is the correct value of its key. The first `key_count` elements of
/// `keys` are the keys of the request. `name` is the name of the key in the response; without a
/// name, the key is the first element. Removes the key from `keys`. If no requested key has this
/// name, removes the first key and returns false.
fn is_right(
    name: Option<&[u8]>,
    value: &[u8],
    space: &Space,
    key_count: u32,
    keys: &mut VecDeque<u64>,
) -> bool {
    let key = match name {
        None => keys.pop_front(),
        Some(name) => {
            let number = space.names.number(name);
            let mut requested = keys.iter().take(key_count as usize);
            let index = requested.position(|key| Some(*key) == number);
            let removed = keys.remove(index.unwrap_or(0));
            index.and(removed)
        }
    };
    key.is_some_and(|key| space.values.is_of(key, value))
}

/// Returns the first 80 bytes of a server's message, with unprintable bytes escaped.
pub(super) fn shown(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(80)].escape_ascii().to_string()
}

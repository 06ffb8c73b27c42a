//! Work that a session finishes before it parses the next request: a large value to receive or
//! send, a dump, forwarded requests, or input to discard.

use crate::Host;
use crate::route::{Conversation, ForwardId, GroupIndex};
use crate::session::dump::Dump;
use crate::session::key_scan::KeyScan;
use crate::session::resp_state::KeyProgress;
use arrayvec::ArrayVec;
use larder_operations::{AnsweredCounts, CommandClass, Tags};
use larder_protocol::resp::OversizedRest;
use larder_protocol::{Parser, Store, reply};
use larder_store::{Engine, Lease, Refusal};
use std::collections::VecDeque;
use std::ops::Range;

/// The work that a session finishes before it parses the next request.
///
/// ```text
///            fault, refusal              long value, or value with tags
///  Discard ◀───────────────── Idle ────────────────────────────────▶ Receive
///     │ all discarded: reply  ▲ │ ▲        all received: store, reply   │
///     └───────────────────────┘ │ └─────────────────────────────────────┘
///                               │ lookup of a large value
///                               ▼
///                             Send ── all written ──▶ Idle
///
///  Idle ─▶ Forward ─▶ Idle                   another node answers requests
///  Idle ─▶ ForwardUpload ─▶ Idle             another node answers a store with a long value
///  Idle ─▶ ScatterGather ─▶ Idle             several groups answer requests, possibly this server's among them
///  Idle ─▶ DiscardLine | DiscardRequest ─▶ Idle
///  Idle ─▶ Dump | KeyScan ─▶ Idle            a command walks over items
///  Idle ─▶ Watch                             until the connection closes
///
///  Idle | Forward | ScatterGather ─▶ DiscardLine ─▶ Idle   an error within a line
///  Receive ◀─▶ ForwardUpload                               the key has another owner now
///  Receive | ForwardUpload ─▶ Discard                      no memory, or no leader
/// ```
pub(crate) enum Pending<E: Engine> {
    Idle,
    /// Discards `left` bytes of input, then writes the reply `then`.
    Discard {
        left: u64,
        then: Vec<u8>,
    },
    /// Discards the input up to the next LF.
    DiscardLine,
    /// Discards the rest of a RESP request, then writes an error.
    DiscardRequest(OversizedRest),
    /// Waits for the replies to forwarded requests.
    Forward(Box<ForwardedRequests>),
    /// Waits for the replies to requests that the session has sent to several groups.
    ScatterGather(Box<ScatterGather<E>>),
    /// Forwards a store while its value arrives.
    ForwardUpload(Box<ForwardedUpload>),
    /// Receives a value in pieces.
    Receive(Box<IncomingValue<E>>),
    /// Sends a value in pieces.
    Send(Box<OutgoingValue<E::Lease>>),
    /// Writes a dump of items.
    Dump(Box<Dump<E>>),
    /// Collects and writes the list of keys for a RESP command.
    KeyScan(Box<KeyScan<E>>),
    /// Writes the log for the watcher with this number until the connection closes.
    Watch(u64),
}

impl<E: Engine> Pending<E> {
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self, Self::Idle)
    }

    /// Returns the number of bytes reserved at the host. Excludes a value that the session sends,
    /// because the value's lease uses cache memory.
    pub(crate) fn reserved(&self) -> usize {
        match self {
            Self::Receive(incoming) => incoming.head.capacity(),
            Self::KeyScan(key_scan) => key_scan.reserved,
            Self::Idle | Self::Discard { .. } => 0,
            Self::DiscardLine | Self::DiscardRequest(_) => 0,
            Self::Forward(_) | Self::ScatterGather(_) | Self::ForwardUpload(_) => 0,
            Self::Send(_) | Self::Dump(_) | Self::Watch(_) => 0,
        }
    }
}

/// A store whose value has not arrived completely.
pub(crate) struct Body<'b> {
    pub(crate) store: Store<'b>,
    pub(crate) head_len: usize,
    /// The length of the value in bytes, including the CRLF after it in the text protocol.
    pub(crate) body_len: u64,
}

/// A store whose value the session receives in pieces, because the value is long or the item will
/// have tags.
pub(crate) struct IncomingValue<E: Engine> {
    /// The request up to its value. The session parses it again when the value is complete.
    pub(crate) head: Vec<u8>,
    pub(crate) parser: Parser,
    pub(crate) upload: Option<E::Upload>,
    /// The item's tags, as they were when the upload started. If a client drops one of these tags
    /// before the value is complete, the stored item is invalid.
    pub(crate) tags: Tags,
    /// The cache memory, in bytes, that the value occupies.
    pub(crate) memory: usize,
    /// The number of bytes of the value that have not arrived.
    value_left: usize,
    /// The number of bytes of the value that have arrived.
    value_received: usize,
    /// The received bytes that follow the value: CRLF in the text protocol.
    pub(crate) trailer: ArrayVec<u8, 2>,
    trailer_len: usize,
}

/// A large value that the session writes in pieces.
pub(crate) struct OutgoingValue<L> {
    lease: L,
    at: usize,
    /// The end of the reply, after the value.
    tail: Vec<u8>,
}

impl<E: Engine> IncomingValue<E> {
    /// Returns the initial state for a value of `value_len` bytes that is followed by `trailer_len`
    /// bytes.
    pub(crate) fn new(
        head: Vec<u8>,
        parser: Parser,
        (upload, tags): (E::Upload, Tags),
        value_len: usize,
        trailer_len: usize,
    ) -> Self {
        let (upload, trailer) = (Some(upload), ArrayVec::new());
        let (value_left, value_received) = (value_len, 0);
        Self {
            head,
            parser,
            upload,
            tags,
            memory: 0,
            value_left,
            value_received,
            trailer,
            trailer_len,
        }
    }

    /// Consumes the bytes of `input` that belong to the value or its trailer, even if the engine
    /// refuses to store them. Returns the number of consumed bytes, and the engine's result.
    pub(crate) fn take(&mut self, engine: &mut E, input: &[u8]) -> (usize, Result<(), Refusal>) {
        let (value, rest) = input.split_at_checked(self.value_left).unwrap_or((input, &[]));
        let taken = match self.upload.as_mut() {
            Some(upload) => engine.extend(upload, value),
            None => Ok(()),
        };
        self.memory = self.upload.as_ref().map_or(0, |upload| engine.memory_of(upload));
        self.value_left -= value.len();
        self.value_received += value.len();
        let trailer = rest.get(..self.trailer_len - self.trailer.len()).unwrap_or(rest);
        self.trailer.extend(trailer.iter().copied());
        (value.len() + trailer.len(), taken)
    }

    /// Returns how many bytes of the request have arrived.
    pub(crate) fn received(&self) -> usize {
        self.head.len() + self.value_received + self.trailer.len()
    }

    /// Returns how many bytes of the value and its trailer have not arrived.
    pub(crate) fn missing(&self) -> usize {
        self.value_left + self.trailer_len - self.trailer.len()
    }
}

impl<L: Lease> OutgoingValue<L> {
    pub(crate) fn new(lease: L, tail: Vec<u8>) -> Self {
        Self { lease, at: 0, tail }
    }

    /// Returns the cache memory, in bytes, that the engine cannot reclaim because of the lease.
    pub(crate) fn memory(&self) -> usize {
        self.lease.memory()
    }

    /// Removes `end` from the end of the reply. If the reply does not end with `end`, returns
    /// false.
    pub(crate) fn strip_trailer(&mut self, end: &[u8]) -> bool {
        let is_right = self.tail.ends_with(end);
        if is_right {
            self.tail.truncate(self.tail.len() - end.len());
        }
        is_right
    }

    /// Appends bytes to the output until its length is `output_max`. Returns true once the whole
    /// reply is appended.
    pub(crate) fn proceed(&mut self, output_max: usize, output: &mut Vec<u8>) -> bool {
        while self.at < self.lease.len() {
            let room = output_max.saturating_sub(output.len());
            if room == 0 {
                return false;
            }
            let piece = self.lease.piece(self.at);
            let piece = piece.get(..room).unwrap_or(piece);
            output.extend_from_slice(piece);
            self.at += piece.len();
        }
        output.append(&mut self.tail);
        true
    }
}

/// Forwarded requests. Their bytes stay in the input, or in the queue, until the replies are
/// complete.
#[derive(Clone)]
pub(crate) struct ForwardedRequests {
    /// The length of the requests in the input or the queue, in bytes.
    pub(crate) len: usize,
    /// The number of requests in these bytes.
    pub(crate) requests: usize,
    /// The group to which the session sent the requests, and the result of `Route::pass`.
    pub(crate) to: (GroupIndex, ForwardId),
    /// The state of the parser after the requests.
    pub(crate) parser: Parser,
    /// Whether the session may send all requests again after a lost connection, because no request
    /// changes items.
    pub(crate) is_repeatable: bool,
    /// Whether the output already contains a part of the replies.
    pub(crate) has_output: bool,
    /// Whether the session must request the rest of the replies once the output has room.
    pub(crate) waits_for_room: bool,
    pub(crate) answered: AnsweredCounts,
    /// Whether the requests are in the RESP queue (`EXEC` or an inline request), not in the input.
    pub(crate) is_queued: bool,
}

/// A store whose value the session forwards as it arrives.
pub(crate) struct ForwardedUpload {
    /// The group to which the session sent the store, and the result of `Route::pass`. `None` while
    /// the store waits to be sent, for the first time or again.
    pub(crate) to: Option<(GroupIndex, ForwardId)>,
    /// The bytes of the request that have arrived. If `is_kept` is false, the buffer drops sent
    /// bytes.
    pub(crate) bytes: Vec<u8>,
    /// The number of bytes in `bytes` that the session has sent.
    pub(crate) sent: usize,
    /// Whether `bytes` retains sent bytes, in case the session has to send them again.
    pub(crate) is_kept: bool,
    /// The number of bytes reserved at the host for `bytes`.
    reserved: usize,
    /// The length of the request up to its value.
    pub(crate) head_len: usize,
    /// How many bytes of the value and its CRLF have not arrived.
    pub(crate) left: u64,
    pub(crate) parser: Parser,
    /// The error reply if no leader executes the store.
    pub(crate) then: Vec<u8>,
}

impl ForwardedUpload {
    pub(crate) fn new(store: &Store<'_>, parser: Parser, head_len: usize, left: u64) -> Self {
        let mut then = Vec::new();
        reply::no_leader(&store.format, &mut then);
        let (bytes, sent, reserved) = (Vec::new(), 0, 0);
        Self { to: None, bytes, sent, is_kept: true, reserved, head_len, left, parser, then }
    }

    /// Adds bytes of the request. If the host refuses memory for these bytes, the upload retains no
    /// sent bytes from now on.
    pub(crate) fn add(&mut self, host: &impl Host, bytes: &[u8]) {
        self.is_kept = self.is_kept && host.reserve_sent(self.reserved, bytes.len());
        if self.is_kept {
            self.reserved += bytes.len();
        } else {
            self.release(host);
            self.reserved = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns whether the session has sent all bytes of the request.
    pub(crate) fn is_sent(&self) -> bool {
        self.left == 0 && self.sent == self.bytes.len()
    }

    /// Returns up to `len_max` bytes to send next, and whether more bytes of the request follow.
    /// Counts the returned bytes as sent.
    pub(crate) fn next_piece(&mut self, len_max: usize) -> (&[u8], bool) {
        if !self.is_kept {
            self.bytes = self.bytes.split_off(self.sent);
            self.sent = 0;
        }
        let before = self.sent;
        self.sent = self.bytes.len().min(before + len_max);
        let more = !self.is_sent();
        (self.bytes.get(before..self.sent).unwrap_or_default(), more)
    }

    /// Releases the memory reserved at the host. The session calls this function at the end of the
    /// upload.
    pub(crate) fn release(&self, host: &impl Host) {
        host.release_sent(self.reserved);
    }
}

/// Requests that several groups answer. Their bytes stay in the input, or in the queue, until all
/// replies are complete.
pub(crate) struct ScatterGather<E: Engine> {
    /// The parts whose replies are not written yet, in the order of the requests.
    pub(crate) parts: VecDeque<Part<E>>,
    /// A large value from this server's cache that the session is writing.
    pub(crate) sending: Option<Box<OutgoingValue<E::Lease>>>,
    /// The length of the requests in the input or the queue, in bytes.
    pub(crate) len: usize,
    pub(crate) answered: AnsweredCounts,
    /// Whether the session must request the rest of the first reply once the output has room.
    pub(crate) waits_for_room: bool,
    /// Whether the session must discard the rest of the line of keys, because the reply to the line
    /// ended with an error.
    pub(crate) discards_line: bool,
    /// Whether the requests are in the RESP queue (`EXEC` or an inline request), not in the input.
    pub(crate) is_queued: bool,
    /// The multi-key RESP command that the parts belong to.
    pub(crate) split: Option<SplitCommand>,
    /// The request to all groups that the last part ends; `None` without such a request.
    pub(crate) to_all: Option<RequestToAll>,
}

/// A request to all groups.
pub(crate) struct RequestToAll {
    /// The groups that have received the request.
    pub(crate) groups: Vec<GroupIndex>,
    pub(crate) conversation: Conversation,
}

/// A multi-key RESP command that is split into one command per key. The session sends these
/// commands in batches.
pub(crate) struct SplitCommand {
    pub(crate) reply_form: SplitReply,
    /// The number of keys answered in earlier batches, and the number of items found in all batches
    /// so far.
    pub(crate) progress: KeyProgress,
    /// The number of keys in the current batch.
    pub(crate) keys: usize,
    /// Whether the current batch is the last one.
    pub(crate) is_last: bool,
    /// The first error among the replies.
    pub(crate) error: Option<Vec<u8>>,
}

/// The form of the reply to a multi-key RESP command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SplitReply {
    /// The replies for all keys, in order.
    Array,
    /// The sum of the numbers in the replies.
    Sum,
    /// `OK` if no reply is an error.
    Ok,
}

/// A part: one request, or one key of a multi-key request.
pub(crate) struct Part<E: Engine> {
    pub(crate) request: PartBytes,
    pub(crate) state: PartState<E>,
    /// The expected end of the part's reply. The session removes this end, because parts of the
    /// same reply follow. A complete reply without this end is an error.
    pub(crate) trailer: Vec<u8>,
    /// Whether the part continues the reply of the previous part. If so, an error in the previous
    /// part makes the session drop this part's reply.
    pub(crate) continues: bool,
    /// Whether the session drops the part's reply.
    pub(crate) is_dropped: bool,
    /// Whether the session merges the part's reply with other replies instead of writing it.
    pub(crate) is_merged: bool,
    /// Whether the session may send the part again after a lost connection, because the part does
    /// not change items.
    pub(crate) is_repeatable: bool,
    /// The arrived bytes of the reply that the session has not written yet.
    pub(crate) answer: Vec<u8>,
    /// Whether the session has already written some bytes of the part's reply.
    pub(crate) has_output: bool,
}

/// The bytes of a part's request.
pub(crate) enum PartBytes {
    /// A range of the input.
    Input(Range<usize>),
    /// A separate buffer: a request for one key of a multi-key request, or a copy of a request in
    /// the queue.
    Own(Vec<u8>),
}

/// The state of a part, which depends on the node that answers it.
pub(crate) enum PartState<E: Engine> {
    /// The complete reply has arrived, or this server has answered. The large value, if any,
    /// follows the bytes in [`Part::answer`].
    Local(Option<Box<OutgoingValue<E::Lease>>>),
    /// No node can answer: the reply is an error.
    Refused,
    /// The connection to the owner failed, and the owner may have executed the part.
    ConnectionLost,
    /// The leader of this group answers.
    Remote(GroupIndex, ForwardId),
}

impl ForwardedRequests {
    pub(crate) fn new(parser: Parser) -> Self {
        Self {
            len: 0,
            requests: 0,
            to: (GroupIndex::OWN, ForwardId::default()),
            parser,
            is_repeatable: true,
            has_output: false,
            waits_for_room: false,
            answered: AnsweredCounts::default(),
            is_queued: false,
        }
    }

    pub(crate) fn has_requests(&self) -> bool {
        self.requests > 0
    }

    /// Adds a request that ends at the offset `end` in the input.
    pub(crate) fn add(&mut self, end: usize, class: Option<CommandClass>, changes: bool) {
        self.len = end;
        self.requests += 1;
        self.is_repeatable &= !changes;
        if let Some(class) = class {
            self.answered.add(class, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_util::TestServer;
    use larder_store::{SizeClasses, dashmap};

    /// If the session does not retain sent bytes, it forwards a value of any length with little
    /// memory.
    #[test]
    fn sent_bytes_are_dropped_without_memory_for_them() {
        let classes = SizeClasses::new(vec![96, 512, 4096], 59);
        let config = dashmap::Config { limit_bytes: 1 << 20, cas: true, classes, seed: 7 };
        let classes = SizeClasses::new(vec![96, 512, 4096], 59);
        let mut server = TestServer::new(dashmap::Cache::new(config).handle(), 4096, classes);
        server.host.sent_limit = 0;
        assert!(server.host.reserve_sent(0, 1), "another store has a byte");
        let (parser, head) = (Parser::default(), b"set a 0 0 100000\r\n");
        let store = parser.parse_head(head).unwrap();
        let mut upload = ForwardedUpload::new(&store, parser, head.len(), 1_000_000);
        for _ in 0..1000 {
            upload.add(&server.host, &[0; 1000]);
            assert_eq!(upload.next_piece(usize::MAX / 2).0.len(), 1000);
            assert!(upload.bytes.capacity() < 4000);
        }
        assert_eq!(server.host.reserved_sent(), 1);
    }
}

//! The work that a session has to finish before it parses the next request: a large value that is
//! received or sent, a dump, or input that is dropped.

use crate::route::{ForwardId, Group};
use crate::session::dump::Dump;
use crate::session::key_scan::Scanning;
use crate::session::resp_state::Answered;
use arrayvec::ArrayVec;
use larder_operations::{AnsweredCounts, CommandClass, Tags};
use larder_protocol::{Parser, Store};
use larder_store::{Engine, Lease, Refusal};
use std::collections::VecDeque;
use std::ops::Range;

/// The work that a session has to finish before it parses the next request.
///
/// ```text
///            fault, refusal             body too long for one piece
///  Swallow ◀──────────────── Nothing ─────────────────────────────▶ Arriving
///     │ all dropped: answer   ▲  │ ▲        all here: store, answer     │
///     └───────────────────────┘  │ └──────────────────────────────────-─┘
///                                │ large value asked for
///                                ▼
///                             Sending ── all out ──▶ Nothing
///
///  Forwarded, from Nothing and back, or over Passing: requests that another node answers
///  Scattered, from Nothing and back: requests that several nodes answer, this one among them
///  Dumping and Scanning, from Nothing and back: commands that show all items, or some
///  Watching, from Nothing: until the connection ends
/// ```
pub(crate) enum Pending<E: Engine> {
    Nothing,
    /// Drops this many bytes, then writes the answer `then`.
    Swallow {
        left: u64,
        then: Vec<u8>,
    },
    /// Drops everything up to the next LF.
    SwallowLine,
    /// Waits for the answers to requests that were forwarded.
    Forwarded(Box<Forwarded>),
    /// Waits for the answers to requests that several groups have been sent.
    Scattered(Box<Scattered<E>>),
    /// Forwards a value in pieces.
    Passing(Box<Passing>),
    /// Receives a value in pieces.
    Arriving(Box<Arriving<E>>),
    /// Sends a value in pieces.
    Sending(Box<Sending<E::Lease>>),
    /// Writes a dump of items.
    Dumping(Box<Dump<E>>),
    /// Lists keys in RESP.
    Scanning(Box<Scanning<E>>),
    /// Writes the log for the watcher of this number, until the connection is closed.
    Watching(u64),
}

impl<E: Engine> Pending<E> {
    #[inline]
    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }

    /// How many bytes are reserved at the host. A value that is sent is not among them, because its lease
    /// holds memory of the cache.
    pub(crate) fn reserved(&self) -> usize {
        match self {
            Self::Arriving(arriving) => arriving.head.capacity(),
            Self::Scanning(scanning) => scanning.reserved,
            Self::Nothing | Self::Swallow { .. } | Self::SwallowLine => 0,
            Self::Forwarded(_) | Self::Scattered(_) | Self::Passing(_) => 0,
            Self::Sending(_) | Self::Dumping(_) | Self::Watching(_) => 0,
        }
    }
}

/// A store whose value has not completely arrived.
pub(crate) struct Body<'b> {
    pub(crate) store: Store<'b>,
    pub(crate) head_len: usize,
    /// The length of the value and its CRLF.
    pub(crate) body_len: u64,
}

/// A store whose value is too long for the input buffer, and is received in pieces.
pub(crate) struct Arriving<E: Engine> {
    /// The request up to its value. It is parsed again when the value has arrived.
    pub(crate) head: Vec<u8>,
    pub(crate) parser: Parser,
    pub(crate) upload: Option<E::Upload>,
    /// The tags of its item: when they are dropped, the value is not shown, also if the rest of it comes later.
    pub(crate) tags: Tags,
    /// How many bytes of the value are still to be received.
    value_left: usize,
    value_len: usize,
    /// The bytes that followed the value: CRLF in text.
    pub(crate) trailer: ArrayVec<u8, 2>,
    trailer_len: usize,
}

/// A large value that is sent in pieces.
pub(crate) struct Sending<L> {
    lease: L,
    at: usize,
    /// The end of the answer, which follows the value.
    tail: Vec<u8>,
}

impl<E: Engine> Arriving<E> {
    /// A value of `value_len` bytes, and `trailer_len` bytes that end it, of which nothing has arrived.
    pub(crate) fn new(
        head: Vec<u8>,
        parser: Parser,
        (upload, tags): (E::Upload, Tags),
        value_len: usize,
        trailer_len: usize,
    ) -> Self {
        let (upload, trailer) = (Some(upload), ArrayVec::new());
        Self { head, parser, upload, tags, value_left: value_len, value_len, trailer, trailer_len }
    }

    /// Takes the bytes of `input` that belong to the value, and returns how many they are. They are
    /// consumed even if there is no memory for them.
    pub(crate) fn take(&mut self, engine: &mut E, input: &[u8]) -> (usize, Result<(), Refusal>) {
        let (value, rest) = input.split_at_checked(self.value_left).unwrap_or((input, &[]));
        let taken = match self.upload.as_mut() {
            Some(upload) => engine.extend(upload, value),
            None => Ok(()),
        };
        self.value_left -= value.len();
        let trailer = rest.get(..self.trailer_len - self.trailer.len()).unwrap_or(rest);
        self.trailer.extend(trailer.iter().copied());
        (value.len() + trailer.len(), taken)
    }

    /// How many bytes of the value have arrived.
    pub(crate) fn received(&self) -> usize {
        self.value_len - self.value_left
    }

    /// How many bytes are still to be received.
    pub(crate) fn missing(&self) -> usize {
        self.value_left + self.trailer_len - self.trailer.len()
    }
}

impl<L: Lease> Sending<L> {
    pub(crate) fn new(lease: L, tail: Vec<u8>) -> Self {
        Self { lease, at: 0, tail }
    }

    /// The length of the value in bytes.
    pub(crate) fn len(&self) -> usize {
        self.lease.len()
    }

    /// Leaves out what ends the answer. False if the answer does not end with that.
    pub(crate) fn leave_end_out(&mut self, end: &[u8]) -> bool {
        let is_right = self.tail.ends_with(end);
        if is_right {
            self.tail.truncate(self.tail.len() - end.len());
        }
        is_right
    }

    /// Copies as much as fits into the output. Returns true when everything is copied.
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

/// Requests that were forwarded.
#[derive(Clone)]
pub(crate) struct Forwarded {
    /// The bytes of the input that they take.
    pub(crate) len: usize,
    /// How many there are.
    pub(crate) requests: usize,
    /// Where they went.
    pub(crate) to: (Group, ForwardId),
    /// The state of the parser after them.
    pub(crate) parser: Parser,
    /// They may be sent again.
    pub(crate) is_repeatable: bool,
    /// A part of the answers was written.
    pub(crate) has_output: bool,
    /// The rest of the answers is to be asked for when there is room for it.
    pub(crate) waits_for_room: bool,
    pub(crate) answered: AnsweredCounts,
    /// The answer if nobody else gives one, to a store that is not in the input any more.
    pub(crate) refusal: Option<Vec<u8>>,
    /// They are requests of a transaction in RESP, or one that came as a line, and not in the input.
    pub(crate) is_script: bool,
}

/// A store whose value is forwarded as it arrives.
pub(crate) struct Passing {
    pub(crate) to: (Group, ForwardId),
    pub(crate) left: u64,
    pub(crate) parser: Parser,
    pub(crate) then: Vec<u8>,
}

/// Requests that several groups answer. They stay in the input until all are answered.
pub(crate) struct Scattered<E: Engine> {
    /// What is not answered yet, in order.
    pub(crate) parts: VecDeque<Part<E>>,
    /// A value of this server's that is being written.
    pub(crate) sending: Option<Box<Sending<E::Lease>>>,
    /// The bytes of the input that all take.
    pub(crate) len: usize,
    pub(crate) answered: AnsweredCounts,
    /// The rest of the first answer is to be asked for when there is room for it.
    pub(crate) waits_for_room: bool,
    /// The last one is a key of a line that ends there with an error.
    pub(crate) swallows_line: bool,
    /// They are requests of a transaction in RESP, or one that came as a line, and not in the input.
    pub(crate) is_script: bool,
    /// They are keys of this command.
    pub(crate) divided: Option<DividedCommand>,
}

/// A command of RESP on several items that are asked for one by one, some keys after the other.
pub(crate) struct DividedCommand {
    pub(crate) shows: DividedAnswer,
    /// The keys before the parts, and how many of them were there.
    pub(crate) answered: Answered,
    /// The keys of the parts, and whether these are the last ones.
    pub(crate) keys: usize,
    pub(crate) is_last: bool,
    /// The first answer to a part that is an error.
    pub(crate) error: Option<Vec<u8>>,
}

/// What a command on several items is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DividedAnswer {
    /// The answers for all keys, in order.
    Each,
    /// The sum of them.
    Sum,
    /// One for all.
    Ok,
}

/// A request of those, or a key of a line of keys.
pub(crate) struct Part<E: Engine> {
    pub(crate) request: PartBytes,
    pub(crate) state: PartState<E>,
    /// What ends its answer, and is not shown because other parts of the same answer follow. An answer that does not
    /// end with it is an error.
    pub(crate) unshown: Vec<u8>,
    /// It belongs to the same answer as the part before it: none is shown behind an error there.
    pub(crate) continues: bool,
    /// Nothing of it is shown.
    pub(crate) is_dropped: bool,
    /// Its answer is taken together with others, and not shown by itself.
    pub(crate) is_kept: bool,
    /// It may be sent again when nobody knows whether it was carried out.
    pub(crate) is_repeatable: bool,
    /// What has come of its answer and is not shown yet.
    pub(crate) answer: Vec<u8>,
    pub(crate) is_begun: bool,
}

/// Where the bytes of a part are.
pub(crate) enum PartBytes {
    /// In the input.
    At(Range<usize>),
    /// Here: the key of a line, as a line of its own.
    Own(Vec<u8>),
}

/// Where a part is answered.
pub(crate) enum PartState<E: Engine> {
    /// It is: this server has done that. A long value follows the answer so far.
    Here(Option<Box<Sending<E::Lease>>>),
    /// It could not be: the answer is an error.
    Refused,
    /// Nobody knows whether it was carried out.
    Lost,
    There(Group, ForwardId),
}

impl Forwarded {
    pub(crate) fn new(parser: Parser) -> Self {
        Self {
            len: 0,
            requests: 0,
            to: (Group::OWN, ForwardId::default()),
            parser,
            is_repeatable: true,
            has_output: false,
            waits_for_room: false,
            answered: AnsweredCounts::default(),
            refusal: None,
            is_script: false,
        }
    }

    pub(crate) fn has_requests(&self) -> bool {
        self.requests > 0
    }

    /// Adds a request that ends there.
    pub(crate) fn add(&mut self, end: usize, class: Option<CommandClass>, changes: bool) {
        self.len = end;
        self.requests += 1;
        self.is_repeatable &= !changes;
        if let Some(class) = class {
            self.answered.add(class, 1);
        }
    }
}

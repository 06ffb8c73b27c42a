//! What keeps the next request waiting: a value on its way in or out, or bytes that nobody wants.

use crate::dump::Dump;
use arrayvec::ArrayVec;
use larder_protocol::{Parser, Store};
use larder_store::{Engine, Lease, Refusal};

/// What keeps the next request waiting.
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
///  Dumping, from Nothing and back: a command that shows all items
///  Watching, from Nothing: until the connection ends
/// ```
pub(crate) enum Pending<E: Engine> {
    Nothing,
    /// Drop this many bytes, then say this.
    Swallow {
        left: u64,
        then: Vec<u8>,
    },
    /// Drop everything up to the next LF.
    SwallowLine,
    /// A value is arriving in pieces.
    Arriving(Box<Arriving<E>>),
    /// A value is leaving in pieces.
    Sending(Box<Sending<E::Lease>>),
    /// Items are shown one after another.
    Dumping(Box<Dump<E>>),
    /// The log is shown to the watcher of this number, until it goes away.
    Watching(u64),
}

impl<E: Engine> Pending<E> {
    #[inline]
    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }

    /// Bytes of the server's memory that it holds. A value on its way out is not among them: its
    /// lease keeps memory of the cache.
    pub(crate) fn reserved(&self) -> usize {
        match self {
            Self::Arriving(arriving) => arriving.head.capacity(),
            Self::Nothing | Self::Swallow { .. } | Self::SwallowLine => 0,
            Self::Sending(_) | Self::Dumping(_) | Self::Watching(_) => 0,
        }
    }
}

/// A store whose value is not all here.
pub(crate) struct Body<'b> {
    pub(crate) store: Store<'b>,
    pub(crate) head_len: usize,
    /// From the value on, its CRLF included.
    pub(crate) body_len: u64,
}

/// A store whose value is too long to wait for in a buffer.
pub(crate) struct Arriving<E: Engine> {
    /// The request up to its value, to be read again when that is here.
    pub(crate) head: Vec<u8>,
    pub(crate) parser: Parser,
    pub(crate) upload: Option<E::Upload>,
    /// Bytes of the value that are still to come.
    value_left: usize,
    value_len: usize,
    /// What followed the value: CRLF in text.
    pub(crate) trailer: ArrayVec<u8, 2>,
    trailer_len: usize,
}

/// A large value on its way out.
pub(crate) struct Sending<L> {
    lease: L,
    at: usize,
    /// What follows the value.
    tail: Vec<u8>,
}

impl<E: Engine> Arriving<E> {
    /// A value of `value_len` bytes, and of `trailer_len` more that end it, of which nothing is here.
    pub(crate) fn new(
        head: Vec<u8>,
        parser: Parser,
        upload: E::Upload,
        value_len: usize,
        trailer_len: usize,
    ) -> Self {
        let (upload, trailer) = (Some(upload), ArrayVec::new());
        Self { head, parser, upload, value_left: value_len, value_len, trailer, trailer_len }
    }

    /// Takes what of `input` belongs to it, and says how much that was. It is used up even if there
    /// is no memory for it.
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

    /// Bytes of the value that are here.
    pub(crate) fn received(&self) -> usize {
        self.value_len - self.value_left
    }

    /// Bytes that are still to come.
    pub(crate) fn missing(&self) -> usize {
        self.value_left + self.trailer_len - self.trailer.len()
    }
}

impl<L: Lease> Sending<L> {
    pub(crate) fn new(lease: L, tail: Vec<u8>) -> Self {
        Self { lease, at: 0, tail }
    }

    /// Bytes of the value.
    pub(crate) fn len(&self) -> usize {
        self.lease.len()
    }

    /// Copies what fits; true when all is copied.
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

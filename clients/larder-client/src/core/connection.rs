//! The protocol state of one connection, without its socket.
//!
//! ```text
//!   push_request() ─▶ output ── sent() ─▶ server
//!   next_reply() ◀─ input ◀─ received() ◀─────── server
//!
//!   Usable ── a malformed or unexpected reply ──▶ Failed (for good)
//! ```
//! The server replies in request order, so the next reply always answers the oldest pending
//! request.

use bytes::{Buf, Bytes};
use larder_protocol::answer::{Answer, AnswerFields, Flag, read_text};
use larder_protocol::response::Read;
use std::collections::VecDeque;
use std::ops::Range;

/// The minimum space, in bytes, that the input buffer provides for a read.
const ROOM_MIN: usize = 4 << 10;
/// The maximum space, in bytes, that the input buffer reserves for data that has not arrived.
/// Without this limit, a server could make the client allocate any amount of memory by announcing a
/// long value.
const ROOM_MAX: usize = 4 << 20;
/// The capacity, in bytes, to which a buffer shrinks after a large request or reply.
const KEPT_LEN_MAX: usize = 256 << 10;
/// The maximum length of a page of statistics, in bytes. A server that sends a longer page is at
/// fault.
const STATISTICS_LEN_MAX: usize = 16 << 20;
/// A reply of at least this many bytes moves to the caller together with its buffer. The client
/// copies shorter replies, and replies after which it has received further bytes.
const LARGE_LEN_MIN: usize = 32 << 10;

/// The rule that determines the end of the reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The reply has one [`Answer`].
    One,
    /// The reply ends with the first [`Answer`] that is not a hit.
    Last,
    /// The reply ends with the first [`Answer`] that is not a statistic.
    Statistics,
}

/// A check that a reply matches its request. Shared connections need this check, because one wrong
/// reply would shift all later replies to the wrong callers.
#[derive(Clone, Debug)]
pub(crate) struct ReplyCheck {
    /// Hashes of the requested keys. A hit with another key fails the check. An empty list allows
    /// every key.
    keys: Box<[u64]>,
    /// Returns whether this [`Answer`] is valid for the command.
    fits: fn(&Answer<'_>) -> bool,
}

/// A request whose reply is not complete.
#[derive(Debug)]
struct PendingRequest {
    frame: Frame,
    check: Option<ReplyCheck>,
}

/// The text of [`InvalidReply`] if the client does not use TLS and the server requires it.
pub(crate) const REQUIRES_TLS: &str = "a TLS alert: the server requires TLS";

/// The reason why a connection is unusable. The text is either the start of the malformed or
/// unsolicited bytes, escaped, or a message about an earlier reply or a TLS alert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InvalidReply(pub(crate) Box<str>);

/// Requests and replies of one connection.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    output: Vec<u8>,
    /// The number of sent bytes in `output`.
    sent: usize,
    /// The input buffer: received bytes, followed by space for the next read.
    input: Vec<u8>,
    /// The number of received bytes in `input`.
    received: usize,
    /// The number of parsed bytes at the start of `input`. These bytes are part of the reply to the
    /// oldest request.
    read: usize,
    /// The value of `received` at which parsing continues.
    wanted: usize,
    pending: VecDeque<PendingRequest>,
    has_failed: bool,
    /// Whether several calls share the connection.
    is_shared: bool,
}

impl ReplyCheck {
    pub(crate) fn new(keys: impl Iterator<Item = u64>, fits: fn(&Answer<'_>) -> bool) -> Self {
        Self { keys: keys.collect(), fits }
    }

    /// Returns whether the connection stays usable after a reply.
    fn allows(&self, reply: &[u8]) -> bool {
        Answers(reply).all(|answer| match &answer {
            Answer::Hit { returned, .. } if !self.keys.is_empty() => {
                key_hash(returned).is_some_and(|hash| self.keys.contains(&hash))
            }
            Answer::Error { .. } => (self.fits)(&answer) || !is_fatal(&answer),
            _ => (self.fits)(&answer),
        })
    }
}

impl Connection {
    /// Adds a request. `write` appends its bytes to the output. On a shared connection, the reply
    /// must pass the check that `check` builds.
    pub(crate) fn push_request(
        &mut self,
        frame: Frame,
        check: impl FnOnce() -> ReplyCheck,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        write(&mut self.output);
        let check = self.is_shared.then(check);
        self.pending.push_back(PendingRequest { frame, check });
    }

    /// Returns the bytes to send.
    pub(crate) fn output(&self) -> &[u8] {
        self.output.get(self.sent..).unwrap_or_default()
    }

    /// Records that `len` more bytes of the output were sent.
    pub(crate) fn sent(&mut self, len: usize) {
        self.sent += len;
        if self.sent >= self.output.len() {
            self.output.clear();
            self.output.shrink_to(KEPT_LEN_MAX);
            self.sent = 0;
        }
    }

    /// Returns the unused part of the input buffer. After a read into this part, the caller passes
    /// the number of read bytes to [`Connection::received`].
    pub(crate) fn room(&mut self) -> &mut [u8] {
        let missing = self.wanted.saturating_sub(self.received).clamp(ROOM_MIN, ROOM_MAX);
        if self.input.len() - self.received < missing {
            self.input.resize(self.received + missing, 0);
        }
        self.input.get_mut(self.received..).unwrap_or_default()
    }

    /// Records that a read has filled the next `len` bytes of the input buffer.
    pub(crate) fn received(&mut self, len: usize) {
        self.received += len;
    }

    /// Returns whether the connection is usable and idle: no request is pending, no output is
    /// unsent, and no input is unread.
    pub(crate) fn is_settled(&self) -> bool {
        !self.has_failed
            && self.pending.is_empty()
            && self.received == 0
            && self.output().is_empty()
    }

    /// Returns the reply to the oldest request, if it is complete. If the reply fails its check on
    /// a shared connection, the function still returns the reply, and [`Connection::has_failed`] is
    /// true from then on.
    ///
    /// # Errors
    /// [`InvalidReply`]: the input is malformed or unsolicited.
    pub(crate) fn next_reply(&mut self) -> Result<Option<Bytes>, InvalidReply> {
        if self.received < self.wanted {
            return Ok(None);
        }
        loop {
            let rest = self.input.get(self.read..self.received).unwrap_or_default();
            let Some(PendingRequest { frame, .. }) = self.pending.front() else {
                return if rest.is_empty() { Ok(None) } else { Err(self.fail()) };
            };
            match read_text(rest) {
                Read::Whole(answer, len) => {
                    let continues = match frame {
                        Frame::One => false,
                        Frame::Last => matches!(answer, Answer::Hit { .. }),
                        Frame::Statistics => matches!(answer, Answer::Stat { .. }),
                    };
                    self.read += len;
                    if continues && *frame == Frame::Statistics && self.read > STATISTICS_LEN_MAX {
                        return Err(self.fail());
                    }
                    if continues {
                        continue;
                    }
                    let check = self.pending.pop_front().and_then(|pending| pending.check);
                    let reply = self.take_reply();
                    self.has_failed |= check.is_some_and(|check| !check.allows(&reply));
                    return Ok(Some(reply));
                }
                Read::Incomplete { .. } if is_tls_alert(rest) => return Err(self.fail()),
                Read::Incomplete { wanted } => {
                    self.wanted = self.read + wanted;
                    return Ok(None);
                }
                Read::Malformed => return Err(self.fail()),
            }
        }
    }

    /// Removes the parsed reply from the input buffer and returns it.
    fn take_reply(&mut self) -> Bytes {
        let (read, received) = (self.read, self.received);
        (self.read, self.wanted, self.received) = (0, 0, received - read);
        if read >= LARGE_LEN_MIN && read == received {
            let mut input = std::mem::take(&mut self.input);
            input.truncate(read);
            // The caller may keep the reply for a long time. If more than half of the buffer is
            // unused, the unused part is freed.
            if input.capacity() / 2 > read {
                input.shrink_to_fit();
            }
            return input.into();
        }
        let reply = Bytes::copy_from_slice(self.input.get(..read).unwrap_or_default());
        self.input.copy_within(read..received, 0);
        if self.received < KEPT_LEN_MAX && self.input.len() > KEPT_LEN_MAX {
            self.input.truncate(KEPT_LEN_MAX);
            self.input.shrink_to_fit();
        }
        reply
    }

    fn fail(&mut self) -> InvalidReply {
        self.has_failed = true;
        let rest = self.input.get(self.read..self.received).unwrap_or_default();
        match is_tls_alert(rest) {
            true => InvalidReply(REQUIRES_TLS.into()),
            false => InvalidReply(shown(rest).into()),
        }
    }
}

/// Methods of shared connections.
impl Connection {
    /// Creates a connection that several calls share.
    pub(crate) fn shared() -> Self {
        Self { is_shared: true, ..Self::default() }
    }

    /// Returns the number of bytes to send and the number of pending requests.
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.output().len(), self.pending.len())
    }

    /// Moves the first `requests` requests of `other`, whose encoding is `bytes` bytes long, to
    /// this connection. None of these bytes may have been sent, and the output of this connection
    /// must be empty.
    pub(crate) fn take_over(&mut self, other: &mut Self, bytes: usize, requests: usize) {
        if bytes == other.output.len() {
            std::mem::swap(&mut self.output, &mut other.output);
        } else {
            self.output.extend(other.output.drain(..bytes));
        }
        self.pending.extend(other.pending.drain(..requests));
    }

    /// Removes unsent requests. `bytes` is the range of these requests in the output, and
    /// `requests` is their range among the pending requests.
    pub(crate) fn withdraw(&mut self, bytes: Range<usize>, requests: Range<usize>) {
        self.output.drain(bytes);
        self.pending.drain(requests);
    }

    /// Returns whether all requests have a complete reply.
    pub(crate) fn has_no_requests(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns whether later replies cannot be trusted.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed
    }
}

/// Returns the hash of a hit's key. A classic reply contains the key, and a meta reply contains the
/// hash of the key as its opaque. Returns `None` if the reply contains neither.
fn key_hash(returned: &AnswerFields<'_>) -> Option<u64> {
    match returned {
        AnswerFields::Classic { key, .. } => Some(hash(key)),
        // The server repeats the opaque of the request, which is the hash.
        AnswerFields::Meta(_) => returned.flags().find_map(|flag| match flag {
            Flag::Opaque(digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
            _ => None,
        }),
        AnswerFields::Nothing | AnswerFields::Binary { .. } => None,
    }
}

/// Hashes a key (FNV-1a, 64 bits).
pub(crate) fn hash(key: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    key.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Returns whether the connection is unusable after this reply. `error` is an error reply, or a
/// reply that does not match its request. A reply that does not match is always fatal.
/// `CLIENT_ERROR` and `ERROR` are also fatal, because a server that refuses a store may parse the
/// value as commands.
pub(crate) fn is_fatal(error: &Answer<'_>) -> bool {
    match error {
        Answer::Error { client, line } => *client || line.starts_with(b"ERROR"),
        _ => true,
    }
}

/// Returns whether the bytes start with the header of a TLS alert (RFC 8446, 5.1). A server with
/// TLS answers an unencrypted request with an alert. No reply of the protocol starts with these
/// bytes.
fn is_tls_alert(bytes: &[u8]) -> bool {
    bytes.starts_with(&[21, 3])
}

/// Formats the first 80 bytes. Escapes unprintable bytes.
pub(crate) fn shown(bytes: &[u8]) -> String {
    bytes.get(..80).unwrap_or(bytes).escape_ascii().to_string()
}

/// An iterator over the [`Answer`]s of a reply.
pub(crate) struct Answers<'r>(pub(crate) &'r [u8]);

impl<'r> Iterator for Answers<'r> {
    type Item = Answer<'r>;

    fn next(&mut self) -> Option<Answer<'r>> {
        match read_text(self.0) {
            Read::Whole(answer, len) => {
                self.0.advance(len);
                Some(answer)
            }
            Read::Incomplete { .. } | Read::Malformed => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::operation::{Operation, Stats};
    use proptest::prelude::*;

    #[test]
    fn an_endless_page_of_statistics_is_an_error() {
        let mut connection = Connection::default();
        Stats(None).encode(&mut connection);
        let line = format!("STAT name {}\r\n", "x".repeat(1000));
        let lines = line.repeat(1000);
        let mut received = 0;
        let refused = loop {
            let mut rest = lines.as_bytes();
            while !rest.is_empty() {
                let room = connection.room();
                let len = room.len().min(rest.len());
                room[..len].copy_from_slice(&rest[..len]);
                connection.received(len);
                rest = &rest[len..];
            }
            received += lines.len();
            assert!(received < 2 * STATISTICS_LEN_MAX);
            match connection.next_reply() {
                Ok(None) => (),
                other => break other.is_err(),
            }
        };
        assert!(refused && received > STATISTICS_LEN_MAX);
        let mut connection = Connection::default();
        Stats(None).encode(&mut connection);
        let hit = b"VALUE k 0 0\r\n\r\n";
        connection.room()[..hit.len()].copy_from_slice(hit);
        connection.received(hit.len());
        assert!(connection.next_reply().unwrap().is_some(), "a hit ends the page");
    }

    fn any() -> ReplyCheck {
        ReplyCheck::new(std::iter::empty(), |_| true)
    }

    fn receive(connection: &mut Connection, bytes: &[u8]) {
        for piece in bytes.chunks(ROOM_MIN) {
            connection.room()[..piece.len()].copy_from_slice(piece);
            connection.received(piece.len());
        }
    }

    #[test]
    fn replies_come_in_the_order_of_their_requests() {
        let mut connection = Connection::default();
        connection.push_request(Frame::Last, any, |out| out.extend_from_slice(b"get a b\r\n"));
        connection.push_request(Frame::One, any, |out| out.extend_from_slice(b"delete a\r\n"));
        assert_eq!(connection.output(), b"get a b\r\ndelete a\r\n");
        connection.sent(9);
        assert_eq!(connection.output(), b"delete a\r\n");
        connection.sent(10);
        receive(&mut connection, b"VALUE b 0 2\r\nhi\r\nEND\r\nDELETED\r\n");
        let first = connection.next_reply().unwrap().unwrap();
        assert_eq!(&*first, b"VALUE b 0 2\r\nhi\r\nEND\r\n");
        assert!(!connection.is_settled());
        assert_eq!(connection.next_reply().unwrap().unwrap(), "DELETED\r\n");
        assert_eq!(connection.next_reply(), Ok(None));
        assert!(connection.is_settled());
    }

    #[test]
    fn an_error_ends_a_multi_line_reply() {
        let mut connection = Connection::default();
        connection.push_request(Frame::Last, any, |_| ());
        receive(&mut connection, b"SERVER_ERROR out of memory\r\n");
        assert_eq!(connection.next_reply().unwrap().unwrap(), "SERVER_ERROR out of memory\r\n");
        assert!(connection.is_settled());
    }

    /// Returns a connection with one pending request.
    fn waiting(frame: Frame) -> Connection {
        let mut connection = Connection::default();
        connection.push_request(frame, any, |_| ());
        connection
    }

    #[test]
    fn unsolicited_or_malformed_input_fails_the_connection() {
        let mut connection = Connection::default();
        receive(&mut connection, b"END\r\n");
        assert_eq!(connection.next_reply(), Err(InvalidReply("END\\r\\n".into())));
        let mut connection = waiting(Frame::One);
        receive(&mut connection, b"VALUE a b c\r\n");
        assert!(connection.next_reply().is_err() && !connection.is_settled());
    }

    #[test]
    fn a_tls_alert_fails_the_connection_before_it_ends() {
        let mut connection = waiting(Frame::One);
        receive(&mut connection, b"\x15");
        assert_eq!(connection.next_reply(), Ok(None));
        receive(&mut connection, b"\x03\x03\0\x02\x02\x32");
        let error = connection.next_reply().unwrap_err();
        assert_eq!(&*error.0, REQUIRES_TLS);
    }

    #[test]
    fn room_grows_with_the_announced_length_up_to_a_limit() {
        let mut connection = waiting(Frame::Last);
        receive(&mut connection, b"VALUE a 0 1000000\r\n");
        assert_eq!(connection.next_reply(), Ok(None));
        assert!(connection.room().len() >= 1_000_000);
        let mut connection = waiting(Frame::Last);
        receive(&mut connection, b"VALUE a 0 1000000000\r\n");
        assert_eq!(connection.next_reply(), Ok(None));
        assert!(connection.room().len() <= ROOM_MAX);
    }

    #[test]
    fn long_buffers_are_shrunk() {
        let mut connection = Connection::default();
        connection.push_request(Frame::Last, any, |out| out.resize(10 << 20, b'x'));
        connection.sent(10 << 20);
        // The connection copies the reply, because another reply follows it.
        connection.push_request(Frame::One, any, |_| ());
        let mut replies = b"VALUE a 0 5000000\r\n".to_vec();
        replies.resize(replies.len() + 5_000_000, b'x');
        replies.extend_from_slice(b"\r\nEND\r\nOK\r\n");
        receive(&mut connection, &replies);
        while connection.next_reply().unwrap().is_some() {}
        assert!(connection.is_settled());
        let capacity = connection.output.capacity() + connection.input.capacity();
        assert!(capacity <= 2 * KEPT_LEN_MAX, "{capacity}");
    }

    proptest! {
        #[test]
        fn any_split_of_the_input_gives_the_same_replies(cuts in prop::collection::vec(0..90_usize, 0..8)) {
            let stream = b"VALUE k 3 12\r\nEND\r\nEND\r\nxx\r\nEND\r\nSTORED\r\nSTAT a b\r\nSTAT c \r\nEND\r\n7\r\n";
            let frames = [Frame::Last, Frame::One, Frame::Statistics, Frame::One];
            let mut cuts = cuts;
            cuts.extend([0, stream.len()]);
            cuts.iter_mut().for_each(|cut| *cut = (*cut).min(stream.len()));
            cuts.sort_unstable();
            let mut connection = Connection::default();
            frames.iter().for_each(|frame| connection.push_request(*frame, any, |_| ()));
            let mut replies = Vec::new();
            for piece in cuts.windows(2) {
                receive(&mut connection, &stream[piece[0]..piece[1]]);
                while let Some(reply) = connection.next_reply().unwrap() {
                    replies.push(reply);
                }
            }
            let expected = [
                &b"VALUE k 3 12\r\nEND\r\nEND\r\nxx\r\nEND\r\n"[..],
                b"STORED\r\n",
                b"STAT a b\r\nSTAT c \r\nEND\r\n",
                b"7\r\n",
            ];
            prop_assert_eq!(replies, expected);
            prop_assert!(connection.is_settled());
        }
    }
}

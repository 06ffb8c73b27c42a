//! One connection without a socket.
//!
//! ```text
//!   begin(request, frame) ─▶ output ── sent() ─▶ server
//!   next_reply() ◀─ input ◀─ received() ◀─────── server
//!
//!   Usable ── a reply that can't be read, or is not expected ──▶ Failed (for good)
//! ```
//! Requests are answered in their order, so a reply belongs to the oldest request that has none.

use bytes::{Buf, Bytes};
use larder_protocol::answer::{Answer, Flag, Returned, read_text};
use larder_protocol::response::Read;
use std::collections::VecDeque;
use std::ops::Range;

/// There is room for at least so many bytes of input.
const ROOM_MIN: usize = 4 << 10;
/// Of a value that was announced, no more than this is reserved before any of it has come.
const ROOM_MAX: usize = 4 << 20;
/// A buffer that a large request or reply made longer than this is not kept.
const KEPT_LEN_MAX: usize = 256 << 10;
/// Replies from this length on become what the caller gets without a copy.
const LARGE_LEN_MIN: usize = 32 << 10;

/// Where the reply to a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// With its first answer.
    One,
    /// With the first answer that is neither a hit nor a statistic.
    Last,
}

/// What the reply to a request may be. A connection that several calls share has to know, so that nobody behind a reply
/// that is wrong gets one that is not his.
#[derive(Clone, Debug)]
pub(crate) struct Check {
    /// Hashes of the keys of which there may be hits.
    keys: Box<[u64]>,
    /// Whether an answer is one of the command's.
    fits: fn(&Answer<'_>) -> bool,
}

/// A request that has no reply yet.
#[derive(Debug)]
struct Awaited {
    frame: Frame,
    check: Option<Check>,
}

/// The server said something that can't be understood, of which this is the beginning. The connection is of no use
/// any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Garbage(pub(crate) Box<str>);

/// Requests and replies of one connection.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    output: Vec<u8>,
    /// How much of the output was sent.
    sent: usize,
    /// What was received, and room behind it.
    input: Vec<u8>,
    /// How many bytes were received that are in `input`.
    received: usize,
    /// How many bytes of the input belong to answers that were read of the first reply.
    read: usize,
    /// How long the input has to be before it is worth to read it again.
    wanted: usize,
    awaited: VecDeque<Awaited>,
    has_failed: bool,
    /// Whether several calls share it.
    is_shared: bool,
}

impl Check {
    pub(crate) fn new(keys: impl Iterator<Item = u64>, fits: fn(&Answer<'_>) -> bool) -> Self {
        Self { keys: keys.collect(), fits }
    }

    /// Whether the connection can go on after a reply.
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
    /// Begins a request, which `write` appends to the output.
    pub(crate) fn begin(
        &mut self,
        frame: Frame,
        check: impl FnOnce() -> Check,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        write(&mut self.output);
        let check = self.is_shared.then(check);
        self.awaited.push_back(Awaited { frame, check });
    }

    /// What is to be sent.
    pub(crate) fn output(&self) -> &[u8] {
        self.output.get(self.sent..).unwrap_or_default()
    }

    /// Notes that so many bytes of the output were sent.
    pub(crate) fn sent(&mut self, len: usize) {
        self.sent += len;
        if self.sent >= self.output.len() {
            self.output.clear();
            self.output.shrink_to(KEPT_LEN_MAX);
            self.sent = 0;
        }
    }

    /// Room for input, of which [`Connection::received`] says how much was used.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        let missing = self.wanted.saturating_sub(self.received).clamp(ROOM_MIN, ROOM_MAX);
        if self.input.len() - self.received < missing {
            self.input.resize(self.received + missing, 0);
        }
        self.input.get_mut(self.received..).unwrap_or_default()
    }

    /// Notes that so many bytes were received.
    pub(crate) fn received(&mut self, len: usize) {
        self.received += len;
    }

    /// Whether the replies to all requests have come, and nothing besides.
    pub(crate) fn is_settled(&self) -> bool {
        !self.has_failed
            && self.awaited.is_empty()
            && self.received == 0
            && self.output().is_empty()
    }

    /// The reply to the oldest request that has none, if all of it has come. A shared connection that cannot go on after
    /// it has failed: see [`Connection::has_failed`].
    ///
    /// # Errors
    /// [`Garbage`].
    pub(crate) fn next_reply(&mut self) -> Result<Option<Bytes>, Garbage> {
        if self.received < self.wanted {
            return Ok(None);
        }
        loop {
            let rest = self.input.get(self.read..self.received).unwrap_or_default();
            let Some(Awaited { frame, .. }) = self.awaited.front() else {
                return if rest.is_empty() { Ok(None) } else { Err(self.fail()) };
            };
            match read_text(rest) {
                Read::Whole(answer, len) => {
                    let goes_on = matches!(answer, Answer::Hit { .. } | Answer::Stat { .. });
                    self.read += len;
                    if *frame == Frame::Last && goes_on {
                        continue;
                    }
                    let check = self.awaited.pop_front().and_then(|awaited| awaited.check);
                    let reply = self.take_reply();
                    self.has_failed |= check.is_some_and(|check| !check.allows(&reply));
                    return Ok(Some(reply));
                }
                Read::Incomplete { wanted } => {
                    self.wanted = self.read + wanted;
                    return Ok(None);
                }
                Read::Malformed => return Err(self.fail()),
            }
        }
    }

    /// Takes what was read off the input.
    fn take_reply(&mut self) -> Bytes {
        let (read, received) = (self.read, self.received);
        (self.read, self.wanted, self.received) = (0, 0, received - read);
        if read >= LARGE_LEN_MIN && read == received {
            let mut input = std::mem::take(&mut self.input);
            input.truncate(read);
            // The caller may keep it for long.
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

    fn fail(&mut self) -> Garbage {
        self.has_failed = true;
        let rest = self.input.get(self.read..self.received).unwrap_or_default();
        Garbage(shown(rest).into())
    }
}

/// For connections that calls share.
impl Connection {
    /// One that several calls share.
    pub(crate) fn shared() -> Self {
        Self { is_shared: true, ..Self::default() }
    }

    /// How many bytes are to be sent, and how many replies are awaited.
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.output().len(), self.awaited.len())
    }

    /// Takes over the first requests that another connection has begun, and their bytes, of which nothing was sent. Its
    /// own output has to be empty.
    pub(crate) fn take_over(&mut self, other: &mut Self, bytes: usize, requests: usize) {
        if bytes == other.output.len() {
            std::mem::swap(&mut self.output, &mut other.output);
        } else {
            self.output.extend(other.output.drain(..bytes));
        }
        self.awaited.extend(other.awaited.drain(..requests));
    }

    /// Takes back requests of which nothing was sent: these bytes, and the requests with these numbers.
    pub(crate) fn withdraw(&mut self, bytes: Range<usize>, requests: Range<usize>) {
        self.output.drain(bytes);
        self.awaited.drain(requests);
    }

    /// Whether no request is without a reply.
    pub(crate) fn has_no_requests(&self) -> bool {
        self.awaited.is_empty()
    }

    /// Whether nothing that comes can be trusted any more.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed
    }
}

/// The hash of the key of a hit.
fn key_hash(returned: &Returned<'_>) -> Option<u64> {
    match returned {
        Returned::Classic { key, .. } => Some(hash(key)),
        // It repeats the hash that was sent.
        Returned::Meta(_) => returned.flags().find_map(|flag| match flag {
            Flag::Opaque(digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
            _ => None,
        }),
        Returned::Nothing | Returned::Binary { .. } => None,
    }
}

/// A hash of a key (FNV-1a).
pub(crate) fn hash(key: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    key.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Whether nothing more can be expected of a connection after this answer: a server that refuses a request may take the
/// lines behind it, as a value, for commands.
pub(crate) fn is_fatal(error: &Answer<'_>) -> bool {
    match error {
        Answer::Error { client, line } => *client || line.starts_with(b"ERROR"),
        _ => true,
    }
}

/// The beginning of what a server said, in printable characters.
pub(crate) fn shown(bytes: &[u8]) -> String {
    bytes.get(..80).unwrap_or(bytes).escape_ascii().to_string()
}

/// The answers of a reply, one after the other.
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
    use proptest::prelude::*;

    fn any() -> Check {
        Check::new(std::iter::empty(), |_| true)
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
        connection.begin(Frame::Last, any, |out| out.extend_from_slice(b"get a b\r\n"));
        connection.begin(Frame::One, any, |out| out.extend_from_slice(b"delete a\r\n"));
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
    fn an_error_ends_a_reply() {
        let mut connection = Connection::default();
        connection.begin(Frame::Last, any, |_| ());
        receive(&mut connection, b"SERVER_ERROR out of memory\r\n");
        assert_eq!(connection.next_reply().unwrap().unwrap(), "SERVER_ERROR out of memory\r\n");
        assert!(connection.is_settled());
    }

    #[test]
    fn what_nobody_asked_for_ends_the_connection() {
        let mut connection = Connection::default();
        receive(&mut connection, b"END\r\n");
        assert_eq!(connection.next_reply(), Err(Garbage("END\\r\\n".into())));
        let mut connection = Connection::default();
        connection.begin(Frame::One, any, |_| ());
        receive(&mut connection, b"VALUE a b c\r\n");
        assert!(connection.next_reply().is_err() && !connection.is_settled());
    }

    #[test]
    fn room_follows_what_was_announced_up_to_a_limit() {
        let mut connection = Connection::default();
        connection.begin(Frame::Last, any, |_| ());
        receive(&mut connection, b"VALUE a 0 1000000\r\n");
        assert_eq!(connection.next_reply(), Ok(None));
        assert!(connection.room().len() >= 1_000_000);
        let mut connection = Connection::default();
        connection.begin(Frame::Last, any, |_| ());
        receive(&mut connection, b"VALUE a 0 1000000000\r\n");
        assert_eq!(connection.next_reply(), Ok(None));
        assert!(connection.room().len() <= ROOM_MAX);
    }

    #[test]
    fn long_buffers_are_not_kept() {
        let mut connection = Connection::default();
        connection.begin(Frame::Last, any, |out| out.resize(10 << 20, b'x'));
        connection.sent(10 << 20);
        // It is copied, as another reply has come behind it.
        connection.begin(Frame::One, any, |_| ());
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
            let frames = [Frame::Last, Frame::One, Frame::Last, Frame::One];
            let mut cuts = cuts;
            cuts.extend([0, stream.len()]);
            cuts.iter_mut().for_each(|cut| *cut = (*cut).min(stream.len()));
            cuts.sort_unstable();
            let mut connection = Connection::default();
            frames.iter().for_each(|frame| connection.begin(*frame, any, |_| ()));
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

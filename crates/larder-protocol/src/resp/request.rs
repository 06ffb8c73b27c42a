//! Requests of a stream: arrays of bulk strings, and inline lines.

use super::fault::ProtocolError;
use super::number::i64_of;

/// The maximum number of words in a request, including the command.
pub const WORDS_MAX: i64 = 1 << 20;
/// The maximum length, in bytes, of an inline request, and of a line with the length of an array or
/// a bulk string.
pub const LINE_LEN_MAX: usize = 64 << 10;

/// An argument longer than this number of bytes is a protocol violation, as with redis-server's
/// `proto-max-bulk-len`. The server discards a shorter argument if the argument exceeds
/// [`Bounds::bulk_len_max`].
const DISCARDED_LEN_MAX: usize = 512 << 20;

/// The limits that [`read`] checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The maximum length of an argument, in bytes.
    pub bulk_len_max: usize,
    /// The maximum length of an array, in bytes. The parser does not check this limit if the
    /// complete array has arrived.
    pub request_len_max: usize,
    /// Whether the client still has to log in. Until then, only short requests are allowed.
    pub needs_login: bool,
}

/// The result of reading the first request in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read<'b> {
    /// A complete request in the first `consumed` bytes.
    Request {
        /// The request, which borrows from the input.
        request: Request<'b>,
        /// The length of the request in bytes. Drop these bytes after answering the request.
        consumed: usize,
    },
    /// An inline request in the first `consumed` bytes. [`super::split_line`] converts it to an
    /// array.
    Line {
        /// The line without its end.
        line: &'b [u8],
        /// The length of the line in bytes, with its end.
        consumed: usize,
    },
    /// An empty request, which has no reply.
    Nothing {
        /// The length of the empty request in bytes.
        consumed: usize,
    },
    /// The request is incomplete.
    Incomplete {
        /// A lower bound of the number of missing bytes.
        wanted: usize,
    },
    /// An argument is longer than [`Bounds::bulk_len_max`]. Its bytes follow the first `consumed`
    /// bytes.
    Oversized {
        /// The rest of the request. Discard it, then reply with an error.
        rest: OversizedRest,
        /// The number of bytes that precede the argument's content.
        consumed: usize,
    },
    /// A protocol violation: reply, then close the connection.
    Fault(ProtocolError),
}

/// The rest of a request with an argument longer than [`Bounds::bulk_len_max`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OversizedRest {
    /// The missing bytes of the current argument, its line end included.
    bytes: usize,
    /// The number of arguments after the current one.
    arguments: usize,
}

/// The result of discarding bytes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscardProgress {
    /// The first `consumed` bytes are the last bytes of the request.
    All {
        /// The number of discarded bytes.
        consumed: usize,
    },
    /// The request continues after the first `consumed` bytes.
    Part {
        /// The number of discarded bytes.
        consumed: usize,
        /// A lower bound of the number of missing bytes.
        wanted: usize,
    },
    /// A protocol violation: reply, then close the connection.
    Fault(ProtocolError),
}

impl OversizedRest {
    /// Discards the request's bytes at the start of `input`.
    pub fn discard(&mut self, input: &[u8]) -> DiscardProgress {
        let mut rest = input;
        loop {
            let arrived = self.bytes.min(rest.len());
            rest = rest.get(arrived..).unwrap_or_default();
            self.bytes -= arrived;
            let consumed = input.len() - rest.len();
            if self.bytes > 0 {
                return DiscardProgress::Part { consumed, wanted: self.bytes };
            }
            if self.arguments == 0 {
                return DiscardProgress::All { consumed };
            }
            match bulk_len(rest, DISCARDED_LEN_MAX) {
                Step::Is((len, behind)) => {
                    (self.bytes, rest) = (len + 2, behind);
                    self.arguments -= 1;
                }
                Step::Incomplete(wanted) => return DiscardProgress::Part { consumed, wanted },
                Step::Fault(fault) => return DiscardProgress::Fault(fault),
            }
        }
    }
}

/// A complete request: a command and its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'b> {
    /// The whole request as sent.
    pub raw: &'b [u8],
    /// The name of the command.
    pub name: &'b [u8],
    /// The arguments.
    pub arguments: Arguments<'b>,
}

/// An iterator over the arguments of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arguments<'b> {
    /// The arguments that the iterator has not returned yet, encoded as valid bulk strings.
    rest: &'b [u8],
    left: usize,
}

impl<'b> Iterator for Arguments<'b> {
    type Item = &'b [u8];

    fn next(&mut self) -> Option<&'b [u8]> {
        if self.left == 0 {
            return None;
        }
        let Step::Is((argument, rest)) = bulk(self.rest, usize::MAX) else { return None };
        (self.rest, self.left) = (rest, self.left - 1);
        Some(argument)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Arguments<'_> {}

/// The result of reading a part of a request.
enum Step<T> {
    Is(T),
    /// A lower bound of the number of missing bytes.
    Incomplete(usize),
    Fault(ProtocolError),
}

/// Reads the request at the start of `input`. The requests do not depend on how the stream is
/// split, with one exception: an array longer than [`Bounds::request_len_max`] is a fault only if
/// it arrives in pieces.
#[must_use]
pub fn read<'b>(input: &'b [u8], bounds: &Bounds) -> Read<'b> {
    let read = match input {
        [] => Read::Incomplete { wanted: 1 },
        [b'*', rest @ ..] => read_array(input, rest, bounds),
        _ => return read_line(input),
    };
    match read {
        Read::Incomplete { wanted } if input.len() + wanted > bounds.request_len_max => {
            Read::Fault(ProtocolError::TooLong)
        }
        read => read,
    }
}

/// Reads a complete `GET` on the fast path. Returns its key, and the length of the request.
/// [`read`] gives the same result, but more slowly.
#[inline]
#[must_use]
pub fn fast_get(input: &[u8]) -> Option<(&[u8], usize)> {
    let [b'*', b'2', b'\r', b'\n', b'$', b'3', b'\r', b'\n', rest @ ..] = input else {
        return None;
    };
    let [b'g' | b'G', b'e' | b'E', b't' | b'T', b'\r', b'\n', rest @ ..] = rest else {
        return None;
    };
    let (key, rest) = fast_bulk(rest)?;
    Some((key, input.len() - rest.len()))
}

/// Reads a complete `SET` without options on the fast path. Returns its key and value, and the
/// length of the request. [`read`] gives the same result, but more slowly.
#[inline]
#[must_use]
pub fn fast_set(input: &[u8]) -> Option<(&[u8], &[u8], usize)> {
    let [b'*', b'3', b'\r', b'\n', b'$', b'3', b'\r', b'\n', rest @ ..] = input else {
        return None;
    };
    let [b's' | b'S', b'e' | b'E', b't' | b'T', b'\r', b'\n', rest @ ..] = rest else {
        return None;
    };
    let (key, rest) = fast_bulk(rest)?;
    let (value, rest) = fast_bulk(rest)?;
    Some((key, value, input.len() - rest.len()))
}

/// Splits off a bulk string of less than 10,000 bytes; `None` if it is incomplete or unusual.
#[inline]
fn fast_bulk(input: &[u8]) -> Option<(&[u8], &[u8])> {
    // The slow path handles a length with a leading zero.
    let digit = |byte: u8| usize::from(byte - b'0');
    let (len, rest) = match input {
        [b'$', a @ b'0'..=b'9', b'\r', b'\n', rest @ ..] => (digit(*a), rest),
        [b'$', a @ b'1'..=b'9', b @ b'0'..=b'9', b'\r', b'\n', rest @ ..] => {
            (digit(*a) * 10 + digit(*b), rest)
        }
        [b'$', a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', b'\r', b'\n', rest @ ..] => {
            (digit(*a) * 100 + digit(*b) * 10 + digit(*c), rest)
        }
        [b'$', rest @ ..] => four_digits(rest)?,
        _ => return None,
    };
    let (bytes, rest) = rest.split_at_checked(len)?;
    Some((bytes, rest.get(2..)?))
}

/// Splits off a length of four digits and its line end.
fn four_digits(input: &[u8]) -> Option<(usize, &[u8])> {
    let (digits @ [b'1'..=b'9', ..], rest) = input.split_first_chunk::<4>()? else { return None };
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let len = digits.iter().fold(0, |len, digit| len * 10 + usize::from(digit - b'0'));
    Some((len, rest.strip_prefix(b"\r\n")?))
}

fn read_array<'b>(input: &'b [u8], rest: &'b [u8], bounds: &Bounds) -> Read<'b> {
    let (count, rest) = match number_line(rest, ProtocolError::LongArrayLength) {
        Step::Is((Some(count), rest)) if count <= WORDS_MAX => (count, rest),
        Step::Is(_) => return Read::Fault(ProtocolError::ArrayLength),
        Step::Incomplete(wanted) => return Read::Incomplete { wanted },
        Step::Fault(fault) => return Read::Fault(fault),
    };
    if count > UNAUTHENTICATED_WORDS_MAX && bounds.needs_login {
        return Read::Fault(ProtocolError::UnauthenticatedArrayLength);
    }
    let Ok(count @ 1..) = usize::try_from(count) else {
        return Read::Nothing { consumed: input.len() - rest.len() };
    };
    let bulk_len_max = if bounds.needs_login {
        UNAUTHENTICATED_BULK_LEN_MAX.min(bounds.bulk_len_max)
    } else {
        bounds.bulk_len_max
    };
    let (mut at, mut name) = (rest, None);
    let mut after_name = rest;
    for index in 0..count {
        match bulk(at, bulk_len_max) {
            Step::Is((argument, behind)) => {
                at = behind;
                if name.is_none() {
                    (name, after_name) = (Some(argument), behind);
                }
            }
            Step::Incomplete(wanted) => return Read::Incomplete { wanted },
            Step::Fault(ProtocolError::BulkLength { too_long: true }) if bounds.needs_login => {
                return Read::Fault(ProtocolError::UnauthenticatedBulkLength);
            }
            Step::Fault(ProtocolError::BulkLength { too_long: true }) => {
                return oversized(input, at, count - index - 1);
            }
            Step::Fault(fault) => return Read::Fault(fault),
        }
    }
    let consumed = input.len() - at.len();
    let raw = input.get(..consumed).unwrap_or_default();
    // The input may continue after the request, so end the slice at the end of the request.
    let words = after_name.len() - at.len();
    let arguments =
        Arguments { rest: after_name.get(..words).unwrap_or_default(), left: count - 1 };
    Read::Request { request: Request { raw, name: name.unwrap_or_default(), arguments }, consumed }
}

/// Returns the result for a request with an argument longer than [`Bounds::bulk_len_max`]. `at`
/// starts with this argument, and `arguments` further arguments follow.
fn oversized<'b>(input: &[u8], at: &[u8], arguments: usize) -> Read<'b> {
    match bulk_len(at, DISCARDED_LEN_MAX) {
        Step::Is((len, behind)) => {
            let rest = OversizedRest { bytes: len + 2, arguments };
            Read::Oversized { rest, consumed: input.len() - behind.len() }
        }
        Step::Incomplete(wanted) => Read::Incomplete { wanted },
        Step::Fault(fault) => Read::Fault(fault),
    }
}

/// The maximum number of words in a request before the login, as in redis-server.
const UNAUTHENTICATED_WORDS_MAX: i64 = 10;
/// The maximum length of a word in bytes before the login, as in redis-server.
const UNAUTHENTICATED_BULK_LEN_MAX: usize = 16384;

/// Splits off a line with a number. The number is `None` if it is malformed. As in redis-server,
/// any byte may follow CR.
fn number_line(input: &[u8], too_long: ProtocolError) -> Step<(Option<i64>, &[u8])> {
    let window = input.get(..LINE_LEN_MAX).unwrap_or(input);
    let Some(end) = memchr::memchr(b'\r', window) else {
        let is_long = window.len() == LINE_LEN_MAX;
        return if is_long { Step::Fault(too_long) } else { Step::Incomplete(2) };
    };
    let (digits, behind) = input.split_at_checked(end).unwrap_or((input, &[]));
    match behind.get(2..) {
        Some(rest) => Step::Is((i64_of(digits), rest)),
        None => Step::Incomplete(1),
    }
}

/// Splits off a bulk string and the two bytes after it. As in redis-server, these two bytes may
/// have any value.
fn bulk(input: &[u8], len_max: usize) -> Step<(&[u8], &[u8])> {
    let (len, rest) = match bulk_len(input, len_max) {
        Step::Is(head) => head,
        Step::Incomplete(wanted) => return Step::Incomplete(wanted),
        Step::Fault(fault) => return Step::Fault(fault),
    };
    match rest.split_at_checked(len) {
        Some((bytes, [_, _, rest @ ..])) => Step::Is((bytes, rest)),
        _ => Step::Incomplete(len.saturating_add(2) - rest.len()),
    }
}

/// Splits off the line with the length of a bulk string.
#[inline]
fn bulk_len(input: &[u8], len_max: usize) -> Step<(usize, &[u8])> {
    let Some((&first, rest)) = input.split_first() else { return Step::Incomplete(1) };
    // Like redis-server, check the first byte only after the whole line has arrived.
    let (len, rest) = match number_line(rest, ProtocolError::LongBulkLength) {
        Step::Is(_) if first != b'$' => return Step::Fault(ProtocolError::NotBulk(first)),
        Step::Is((len, rest)) => (len, rest),
        Step::Incomplete(wanted) => return Step::Incomplete(wanted),
        Step::Fault(fault) => return Step::Fault(fault),
    };
    let Some(len) = len.and_then(|len| usize::try_from(len).ok()) else {
        return Step::Fault(ProtocolError::BulkLength { too_long: false });
    };
    if len > len_max {
        return Step::Fault(ProtocolError::BulkLength { too_long: true });
    }
    Step::Is((len, rest))
}

fn read_line(input: &[u8]) -> Read<'_> {
    let window = input.get(..LINE_LEN_MAX).unwrap_or(input);
    match memchr::memchr(b'\n', window) {
        Some(end) => {
            let line = window.get(..end).unwrap_or_default();
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            Read::Line { line, consumed: end + 1 }
        }
        None if window.len() < LINE_LEN_MAX => Read::Incomplete { wanted: 1 },
        None => Read::Fault(ProtocolError::LongLine),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { bulk_len_max: 1000, request_len_max: 4000, needs_login: false };

    /// Reads a stream that arrives in pieces. Returns one line per request.
    fn reads(pieces: &[&[u8]], bounds: &Bounds) -> Vec<String> {
        let (mut seen, mut input) = (Vec::new(), Vec::new());
        let mut oversized: Option<OversizedRest> = None;
        for piece in pieces {
            input.extend_from_slice(piece);
            loop {
                if let Some(rest) = &mut oversized {
                    match rest.discard(&input) {
                        DiscardProgress::All { consumed } => {
                            seen.push("oversized".to_owned());
                            oversized = None;
                            input.drain(..consumed);
                        }
                        DiscardProgress::Part { consumed, wanted } => {
                            assert!(wanted > 0);
                            input.drain(..consumed);
                            break;
                        }
                        DiscardProgress::Fault(fault) => {
                            seen.push(format!("{fault:?}"));
                            return seen;
                        }
                    }
                }
                let consumed = match read(&input, bounds) {
                    Read::Request { request, consumed } => {
                        let words = std::iter::once(request.name).chain(request.arguments);
                        let words: Vec<_> =
                            words.map(|word| word.escape_ascii().to_string()).collect();
                        assert_eq!(request.raw.len(), consumed);
                        seen.push(words.join("|"));
                        consumed
                    }
                    Read::Line { line, consumed } => {
                        seen.push(format!("line {}", line.escape_ascii()));
                        consumed
                    }
                    Read::Nothing { consumed } => consumed,
                    Read::Incomplete { wanted } => {
                        assert!(wanted > 0);
                        break;
                    }
                    Read::Oversized { rest, consumed } => {
                        assert_eq!(oversized.replace(rest), None);
                        consumed
                    }
                    Read::Fault(fault) => {
                        seen.push(format!("{fault:?}"));
                        return seen;
                    }
                };
                assert!((1..=input.len()).contains(&consumed));
                input.drain(..consumed);
            }
        }
        seen
    }

    #[track_caller]
    fn check(stream: &[u8], bounds: &Bounds, expected: &[&str]) {
        assert_eq!(reads(&[stream], bounds), expected, "{}", stream.escape_ascii());
        for at in 0..=stream.len() {
            let (front, back) = stream.split_at(at);
            assert_eq!(reads(&[front, back], bounds), expected, "split at {at}");
        }
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(reads(&bytes, bounds), expected, "in single bytes");
    }

    #[test]
    fn a_request_does_not_depend_on_the_bytes_after_it() {
        let (request, more) = (b"*2\r\n$1\r\na\r\n$1\r\nb\r\n", b"*1\r\n$4\r\nPING\r\n");
        let both = [&request[..], more].concat();
        assert_eq!(read(&both, &BOUNDS), read(request, &BOUNDS));
    }

    #[test]
    fn any_split_of_a_stream_gives_the_same_requests() {
        check(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*1\r\n$4\r\nPING\r\n", &BOUNDS, &["GET|k", "PING"]);
        check(
            b"*1\r\n$0\r\n\r\n*3\r\n$1\r\na\r\n$2\r\n\r\n\r\n$0\r\n\r\n",
            &BOUNDS,
            &["", "a|\\r\\n|"],
        );
        check(b"*0\r\n*-1\r\n*1\r\n$1\r\nx\r\n", &BOUNDS, &["x"]);
        check(b"PING\r\n\r\nset a b\n", &BOUNDS, &["line PING", "line ", "line set a b"]);
    }

    #[test]
    fn any_split_of_a_stream_gives_the_same_fault() {
        for (stream, fault) in [
            (&b"*x\r\n"[..], "ArrayLength"),
            (b"*1048577\r\n", "ArrayLength"),
            (b"*\r\n", "ArrayLength"),
            (b"*1\r\nGET\r\n", "NotBulk(71)"),
            (b"*1\r\n$-1\r\n", "BulkLength { too_long: false }"),
            (b"*1\r\n$01\r\n", "BulkLength { too_long: false }"),
            (b"*1\r\n$536870913\r\n", "BulkLength { too_long: true }"),
        ] {
            check(stream, &BOUNDS, &[fault]);
        }
    }

    #[test]
    fn a_request_with_a_too_long_argument_is_discarded() {
        let long = [&b"$1001\r\n"[..], &[b'*'; 1001], b"\r\n"].concat();
        let stream = [b"*4\r\n$3\r\nSET\r\n", &long[..], &long, b"$1\r\nx\r\n*1\r\n$4\r\nPING\r\n"];
        check(&stream.concat(), &BOUNDS, &["oversized", "PING"]);
        for (rest, fault) in [
            ("x", "NotBulk(120)"),
            ("$-1", "BulkLength { too_long: false }"),
            ("$536870913", "BulkLength { too_long: true }"),
        ] {
            let stream = [b"*2\r\n", &long[..], rest.as_bytes(), b"\r\n"].concat();
            check(&stream, &BOUNDS, &[fault]);
        }
    }

    #[test]
    fn requests_before_the_login_are_limited() {
        let bounds = Bounds { bulk_len_max: 1 << 20, needs_login: true, ..BOUNDS };
        check(b"*11\r\n", &bounds, &["UnauthenticatedArrayLength"]);
        check(b"*1\r\n$16385\r\n", &bounds, &["UnauthenticatedBulkLength"]);
        check(b"*1\r\n$4\r\nPING\r\n", &bounds, &["PING"]);
    }

    #[test]
    fn the_lengths_of_lines_and_requests_are_limited() {
        let line = vec![b'a'; LINE_LEN_MAX];
        for (prefix, fault) in
            [("", "LongLine"), ("*", "LongArrayLength"), ("*1\r\n$", "LongBulkLength")]
        {
            let bounds = Bounds { request_len_max: 1 << 20, ..BOUNDS };
            let stream = [prefix.as_bytes(), &line].concat();
            assert_eq!(reads(&[&stream], &bounds), [fault]);
            assert!(reads(&[&stream[..stream.len() - 1]], &bounds).is_empty());
        }
        let many = [&b"*9\r\n"[..], b"$500\r\n", &[b'x'; 500], b"\r\n"].concat();
        assert!(reads(&[&many], &BOUNDS).is_empty());
        let bounds = Bounds { request_len_max: 500, ..BOUNDS };
        assert_eq!(reads(&[&many], &bounds), ["TooLong"]);
    }

    #[test]
    fn the_fast_path_leaves_unusual_lengths_to_the_slow_path() {
        for len in ["", "-1", "01", "00", "+1", "1 ", "1\n"] {
            let (in_key, in_value) = (
                format!("*3\r\n$3\r\nSET\r\n${len}\r\nk\r\n$1\r\nv\r\n"),
                format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${len}\r\nv\r\n"),
            );
            for stream in [in_key, in_value] {
                assert_eq!(fast_set(stream.as_bytes()), None, "{}", stream.escape_debug());
            }
        }
    }

    #[test]
    fn the_fast_path_reads_like_the_slow_path() {
        for (key_len, value_len) in
            [0, 1, 9, 10, 99, 100, 250].into_iter().zip([0, 9, 10, 999, 1000, 9999, 10_000])
        {
            let (key, value) = ("k".repeat(key_len), "v".repeat(value_len));
            for name in ["SET", "set", "GET"] {
                let stream = format!(
                    "*3\r\n$3\r\n{name}\r\n${key_len}\r\n{key}\r\n${value_len}\r\n{value}\r\n"
                );
                let expected = (name != "GET" && value_len < 10_000).then_some((
                    key.as_bytes(),
                    value.as_bytes(),
                    stream.len(),
                ));
                let more = format!("{stream}*1\r\n");
                assert_eq!(fast_set(more.as_bytes()), expected, "{name} {key_len} {value_len}");
                for end in (0..stream.len()).step_by(1 + value_len / 100) {
                    assert_eq!(fast_set(&stream.as_bytes()[..end]), None);
                }
            }
            for name in ["GET", "get", "Get", "SET"] {
                let stream = format!("*2\r\n$3\r\n{name}\r\n${key_len}\r\n{key}\r\n");
                let Read::Request { request, consumed } = read(stream.as_bytes(), &BOUNDS) else {
                    panic!("{stream}")
                };
                let expected =
                    (name != "SET").then(|| (request.arguments.last().unwrap(), consumed));
                assert_eq!(fast_get(stream.as_bytes()), expected, "{stream}");
                for end in 0..stream.len() {
                    assert_eq!(fast_get(&stream.as_bytes()[..end]), None);
                }
            }
        }
    }
}

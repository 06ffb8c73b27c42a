//! The parser of a connection. The first byte selects the dialect, unless an option fixes it.

use crate::parse::fast_get::FastGet;
use crate::parse::fast_set::FastSet;
use crate::parse::parsed::{fault, fault_line, faulty, hang_up};
use crate::parse::{binary, classic, login, meta, sasl};
use crate::request::{FaultReply, KEY_LEN_MAX, Parsed, Recovery, Request, Store};
use crate::text::line::{BAD_FORMAT, LINE_LEN_MAX, without_cr};
use crate::text::tokens::{Tokens, skip_spaces};
use classic::Retrieval;

/// The parser state of a connection. It is small and `Copy`: to roll back to an earlier request,
/// keep a copy of the parser from before that request.
///
/// ```
/// use larder_protocol::{Parsed, Parser, Request};
///
/// let mut parser = Parser::default();
/// let input = b"delete k\r\nget a b\r\nincr";
/// let Parsed::Request { request: Request::Delete(delete), consumed } = parser.parse(input) else {
///     panic!("expected a complete request");
/// };
/// assert_eq!((delete.key.wire, consumed), (&b"k"[..], 10));
///
/// // Each key of a line is a separate request. The end of the line may be another request.
/// let mut rest = &input[10..];
/// let mut keys = Vec::new();
/// while let Parsed::Request { request, consumed } = parser.parse(rest) {
///     if let Request::Get(get) = request {
///         keys.push(get.key.wire);
///     }
///     rest = &rest[consumed..];
/// }
/// assert_eq!(keys, [b"a", b"b"]);
/// assert_eq!((rest, parser.parse(rest)), (&b"incr"[..], Parsed::Incomplete));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parser {
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Nothing has arrived: the first byte selects the dialect.
    #[default]
    Start,
    /// At the start of a text line.
    Text,
    /// Within a classic retrieval line, after blanks and before its first key.
    Blanks(Retrieval),
    /// Within a classic retrieval line, after its first key.
    Keys(Retrieval),
    /// Binary, until the connection ends.
    Binary,
    /// Text, before the login.
    TextLogin,
    /// Binary on a connection that requires a login, before or after that login.
    Sasl(sasl::Stage),
}

impl Parser {
    /// Accepts only text (`-B ascii`).
    pub const TEXT: Self = Self { state: State::Text };
    /// Accepts only binary (`-B binary`).
    pub const BINARY: Self = Self { state: State::Binary };
    /// Accepts only text streams that start with a login (`-Y`).
    pub const TEXT_LOGIN: Self = Self { state: State::TextLogin };
    /// Accepts only binary streams that start with a login (`-S`).
    pub const BINARY_LOGIN: Self = Self { state: State::Sasl(sasl::Stage::New) };

    /// Accepts the login of the peer ([`crate::Claim::Credentials`]). Call this function before
    /// parsing anything after the login.
    pub fn admit(&mut self) {
        self.state = match self.state {
            State::TextLogin => State::Text,
            State::Sasl(_) => State::Sasl(sasl::Stage::Authenticated),
            open => open,
        };
    }

    /// Parses the request at the start of `input`. Returns [`Parsed::Incomplete`] if the result
    /// depends on bytes that have not arrived. The requests do not depend on how the stream is
    /// split, with two exceptions: the last key of a retrieval line may or may not be marked as
    /// last, and the parser may consume the rest of a faulty line or leave it to the caller.
    #[inline]
    pub fn parse<'b>(&mut self, input: &'b [u8]) -> Parsed<'b> {
        match self.state {
            State::Text => self.parse_text(input),
            State::Blanks(retrieval) => self.parse_first_key_of(retrieval, input, input),
            State::Keys(retrieval) => self.parse_key(retrieval, input, input, false),
            State::Binary => binary::parse(input),
            State::TextLogin | State::Sasl(_) => self.parse_with_login(input),
            State::Start => {
                let Some(&first) = input.first() else { return Parsed::Incomplete };
                self.state = if first == binary::MAGIC { State::Binary } else { State::Text };
                self.parse(input)
            }
        }
    }

    /// Parses the next request on the fast path, if it is a lookup that changes nothing. Returns
    /// the request and its length. [`Self::parse`] gives the same result, but more slowly. Returns
    /// `None` for any other request. Also returns `None` before the first byte has selected the
    /// dialect, within a retrieval line, and on a connection that requires a login. A connection
    /// uses the fast path again after a text login, but not after a SASL login.
    #[inline]
    #[must_use]
    pub fn fast_get<'b>(&self, input: &'b [u8]) -> Option<(FastGet<'b>, usize)> {
        match self.state {
            State::Text => FastGet::parse_text(input),
            State::Binary => FastGet::parse_binary(input),
            _ => None,
        }
    }

    /// Parses the next request on the fast path, if it is an ordinary set with its complete value.
    /// Returns the request and its length. [`Self::parse`] gives the same result, but more slowly.
    /// Returns `None` in the same cases as [`Self::fast_get`]. Separating this function from
    /// [`Self::fast_get`] saves 1 % of a lookup's instructions.
    #[inline(never)]
    #[must_use]
    pub fn fast_set<'b>(&self, input: &'b [u8]) -> Option<(FastSet<'b>, usize)> {
        match self.state {
            State::Text => FastSet::parse_text(input),
            State::Binary => FastSet::parse_binary(input),
            _ => None,
        }
    }

    /// Parses the stream of a connection that requires a login. A text stream needs this function
    /// only until [`Self::admit`] accepts the login. The function is separate and cold, so that it
    /// does not slow down connections without a login.
    #[cold]
    fn parse_with_login<'b>(&mut self, input: &'b [u8]) -> Parsed<'b> {
        match &mut self.state {
            State::Sasl(stage) => sasl::parse(stage, input),
            _ => login::parse(input),
        }
    }

    /// Returns whether the next bytes start a request, rather than continue a retrieval line.
    #[must_use]
    pub fn is_between_lines(&self) -> bool {
        !matches!(self.state, State::Blanks(_) | State::Keys(_))
    }

    /// Abandons the remaining keys of a retrieval line. Returns true if the line continues. The
    /// caller must then drop the input up to and including the line's LF.
    #[must_use]
    pub fn abandon_line(&mut self) -> bool {
        let continues = matches!(self.state, State::Blanks(_) | State::Keys(_));
        if continues {
            self.state = State::Text;
        }
        continues
    }

    /// Parses the head of a store again ([`Parsed::StoreHead`]), after its value was received in
    /// another buffer. Returns `None` if `head` is not the head of a store.
    #[must_use]
    pub fn parse_head<'b>(&self, head: &'b [u8]) -> Option<Store<'b>> {
        let mut parser = *self;
        match parser.parse(head) {
            Parsed::StoreHead { store, .. } => Some(store),
            _ => None,
        }
    }

    #[inline]
    fn parse_text<'b>(&mut self, input: &'b [u8]) -> Parsed<'b> {
        if let [b'g', rest @ ..] = input
            && let Some((retrieval, at)) = classic::retrieval(rest)
        {
            return self.parse_first_key(retrieval, input, at);
        }
        let window = input.get(..LINE_LEN_MAX).unwrap_or(input);
        let Some(end) = memchr::memchr(b'\n', window) else {
            return if window.len() < LINE_LEN_MAX { Parsed::Incomplete } else { hang_up(input) };
        };
        let (line, consumed) = (without_cr(window.get(..end).unwrap_or_default()), end + 1);
        if consumed < 4 {
            return fault(BAD_FORMAT, consumed);
        }
        let body = input.get(consumed..).unwrap_or_default();
        match line {
            [b'm', verb, b' ', rest @ ..] => meta::parse(*verb, rest, body, consumed),
            [b'm', verb] => meta::parse(*verb, &[], body, consumed),
            _ => classic::parse(line, body, consumed),
        }
    }

    fn parse_first_key<'b>(
        &mut self,
        retrieval: classic::RetrievalHead,
        input: &'b [u8],
        at: usize,
    ) -> Parsed<'b> {
        let rest = input.get(at..).unwrap_or_default();
        match retrieval {
            classic::RetrievalHead::Get { with_cas } => {
                self.parse_first_key_of(Retrieval { with_cas, touch: None }, input, rest)
            }
            classic::RetrievalHead::Gat { with_cas } => match classic::gat_exptime(front(rest)) {
                classic::GatExptime::Incomplete if rest.len() >= LINE_LEN_MAX => hang_up(input),
                classic::GatExptime::Incomplete => Parsed::Incomplete,
                classic::GatExptime::Missing { line_len } => fault(BAD_FORMAT, at + line_len),
                classic::GatExptime::Bad => {
                    let bad = FaultReply::Text("CLIENT_ERROR invalid exptime argument");
                    fault_line(bad, input)
                }
                classic::GatExptime::Is { exptime, keys } => {
                    let keys = rest.get(front(rest).len() - keys.len()..).unwrap_or_default();
                    self.parse_first_key_of(
                        Retrieval { with_cas, touch: Some(exptime) },
                        input,
                        keys,
                    )
                }
            },
        }
    }

    /// Returns the first key of a retrieval line. `rest` is the unparsed part of the line,
    /// including this key. Like memcached, refuses the complete line if any key within the first
    /// [`LINE_LEN_MAX`] bytes is too long. The result is therefore [`Parsed::Incomplete`] until
    /// this part of the line has arrived.
    #[inline]
    fn parse_first_key_of<'b>(
        &mut self,
        retrieval: Retrieval,
        input: &'b [u8],
        rest: &'b [u8],
    ) -> Parsed<'b> {
        let window = front(rest);
        let line = match memchr::memchr(b'\n', window) {
            Some(end) => without_cr(window.get(..end).unwrap_or_default()),
            None if window.len() < LINE_LEN_MAX => return Parsed::Incomplete,
            None => window,
        };
        if line.len() > KEY_LEN_MAX && Tokens(line).any(|key| key.len() > KEY_LEN_MAX) {
            self.state = State::Text;
            return fault_line(FaultReply::Text(BAD_FORMAT), input);
        }
        self.parse_key(retrieval, input, rest, true)
    }

    /// Returns the next key of a retrieval line. `rest` is the unparsed part of the line.
    #[inline]
    fn parse_key<'b>(
        &mut self,
        retrieval: Retrieval,
        input: &'b [u8],
        rest: &'b [u8],
        first: bool,
    ) -> Parsed<'b> {
        let window = front(rest);
        match classic::next_key(window) {
            classic::NextKey::Key { key, behind } => {
                let behind = rest.get(window.len() - behind.len()..).unwrap_or_default();
                let window = front(behind);
                let end = classic::line_end(window).map(|next| window.len() - next.len());
                self.state = if end.is_some() { State::Text } else { State::Keys(retrieval) };
                let consumed = input.len() - behind.len() + end.unwrap_or(0);
                Parsed::Request { request: classic::get(key, retrieval, end.is_some()), consumed }
            }
            classic::NextKey::End { behind } => {
                self.state = State::Text;
                let consumed = input.len() - rest.len() + window.len() - behind.len();
                if first {
                    return fault(BAD_FORMAT, consumed);
                }
                Parsed::Request { request: Request::GetEnd, consumed }
            }
            classic::NextKey::TooLong => {
                self.state = State::Text;
                fault_line(FaultReply::Text(BAD_FORMAT), input)
            }
            // A key is shorter than `LINE_LEN_MAX` bytes, so these bytes start with blanks. The
            // number of blanks is not limited.
            classic::NextKey::Incomplete if window.len() == LINE_LEN_MAX => {
                let blanks = window.len() - skip_spaces(window).len();
                let consumed = input.len() - rest.len() + blanks;
                self.state = if first { State::Blanks(retrieval) } else { State::Keys(retrieval) };
                faulty(FaultReply::Silent, Recovery::Continue, consumed)
            }
            classic::NextKey::Incomplete => Parsed::Incomplete,
        }
    }
}

/// Returns the part of a line in which the parser searches for the next word: at most
/// [`LINE_LEN_MAX`] bytes. The limit makes the result independent of the number of bytes that have
/// arrived.
#[inline]
fn front(rest: &[u8]) -> &[u8] {
    rest.get(..LINE_LEN_MAX).unwrap_or(rest)
}

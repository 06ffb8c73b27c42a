//! The front of a connection's bytes, in whichever dialect its first byte chose.

use crate::parse::fast_get::FastGet;
use crate::parse::fast_set::FastSet;
use crate::parse::parsed::{fault, fault_line, faulty, hang_up};
use crate::parse::{binary, classic, login, meta, sasl};
use crate::request::{FaultReply, KEY_LEN_MAX, Parsed, Recovery, Request, Store};
use crate::text::line::{BAD_FORMAT, LINE_LEN_MAX, without_cr};
use crate::text::tokens::{Tokens, skip_spaces};
use classic::Retrieval;

/// Where in a conversation the next byte is. Small, and copied freely: whoever rolls back to an
/// earlier request keeps the parser from then.
///
/// ```
/// use larder_protocol::{Parsed, Parser, Request};
///
/// let mut parser = Parser::default();
/// let input = b"delete k\r\nget a b\r\nincr";
/// let Parsed::Request { request: Request::Delete(delete), consumed } = parser.parse(input) else {
///     panic!("it is whole");
/// };
/// assert_eq!((delete.key.wire, consumed), (&b"k"[..], 10));
///
/// // Each key of a line is a request of its own; what ends the line is another.
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
    /// Nothing has arrived: the first byte chooses the dialect.
    #[default]
    Start,
    /// At the start of a text line.
    Text,
    /// Within a classic retrieval line, behind blanks that no key has come after yet.
    Blanks(Retrieval),
    /// Within a classic retrieval line, behind its first key.
    Keys(Retrieval),
    /// Binary, for the connection's lifetime.
    Binary,
    /// Text before its login.
    TextLogin,
    /// Binary with a login.
    Sasl(sasl::Stage),
}

impl Parser {
    /// A conversation in text alone (`-B ascii`).
    pub const TEXT: Self = Self { state: State::Text };
    /// A conversation in binary alone (`-B binary`).
    pub const BINARY: Self = Self { state: State::Binary };
    /// A conversation in text alone that begins with a login (`-Y`).
    pub const TEXT_LOGIN: Self = Self { state: State::TextLogin };
    /// A conversation in binary alone that begins with a login (`-S`).
    pub const BINARY_LOGIN: Self = Self { state: State::Sasl(sasl::Stage::New) };

    /// Opens the conversation to the peer whose claim ([`crate::Claim::Credentials`]) is right. To
    /// be called before anything behind the login is parsed.
    pub fn admit(&mut self) {
        self.state = match self.state {
            State::TextLogin => State::Text,
            State::Sasl(_) => State::Sasl(sasl::Stage::Authenticated),
            open => open,
        };
    }

    /// Looks at the front of `input`. Any split of a stream gives the same requests: what depends on
    /// bytes that are not here yet is [`Parsed::Incomplete`].
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

    /// The lookup that comes next, if it is one that only asks, and its length. [`Self::parse`]
    /// reads it just the same, only slower.
    #[inline]
    #[must_use]
    pub fn fast_get<'b>(&self, input: &'b [u8]) -> Option<(FastGet<'b>, usize)> {
        match self.state {
            State::Text => FastGet::parse_text(input),
            State::Binary => FastGet::parse_binary(input),
            _ => None,
        }
    }

    /// The set that comes next, if it is an ordinary one and its value is here, and its length.
    /// [`Self::parse`] reads it just the same, only slower. A function apart, which saves lookups a
    /// hundredth of their instructions.
    #[inline(never)]
    #[must_use]
    pub fn fast_set<'b>(&self, input: &'b [u8]) -> Option<(FastSet<'b>, usize)> {
        match self.state {
            State::Text => FastSet::parse_text(input),
            State::Binary => FastSet::parse_binary(input),
            _ => None,
        }
    }

    /// Where a login is asked for; apart, so that where none is nothing is paid for it.
    #[cold]
    fn parse_with_login<'b>(&mut self, input: &'b [u8]) -> Parsed<'b> {
        match &mut self.state {
            State::Sasl(stage) => sasl::parse(stage, input),
            _ => login::parse(input),
        }
    }

    /// Whether the next bytes begin a request, and not a key of one that has begun.
    #[must_use]
    pub fn is_between_lines(&self) -> bool {
        !matches!(self.state, State::Blanks(_) | State::Keys(_))
    }

    /// Gives up the keys of a retrieval line that were not handed out yet. True if the line goes on:
    /// the caller drops everything up to and including its LF.
    #[must_use]
    pub fn abandon_line(&mut self) -> bool {
        let goes_on = matches!(self.state, State::Blanks(_) | State::Keys(_));
        if goes_on {
            self.state = State::Text;
        }
        goes_on
    }

    /// Reads the head of a [`Parsed::Body`] again, once its value has arrived elsewhere.
    #[must_use]
    pub fn parse_head<'b>(&self, head: &'b [u8]) -> Option<Store<'b>> {
        let mut parser = *self;
        match parser.parse(head) {
            Parsed::Body { store, .. } => Some(store),
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

    /// Hands the first key of a retrieval line out, whose keys are looked for in `rest`. A key that
    /// is too long and not too far away is found out before any is answered, as memcached does: for
    /// that the line has to be here, or as much of it as is looked at.
    #[inline]
    fn parse_first_key_of<'b>(
        &mut self,
        retrieval: Retrieval,
        input: &'b [u8],
        rest: &'b [u8],
    ) -> Parsed<'b> {
        let near = front(rest);
        let line = match memchr::memchr(b'\n', near) {
            Some(end) => without_cr(near.get(..end).unwrap_or_default()),
            None if near.len() < LINE_LEN_MAX => return Parsed::Incomplete,
            None => near,
        };
        if line.len() > KEY_LEN_MAX && Tokens(line).any(|key| key.len() > KEY_LEN_MAX) {
            self.state = State::Text;
            return fault_line(FaultReply::Text(BAD_FORMAT), input);
        }
        self.parse_key(retrieval, input, rest, true)
    }

    /// Hands the next key of a retrieval line out; `rest` is where it is looked for.
    #[inline]
    fn parse_key<'b>(
        &mut self,
        retrieval: Retrieval,
        input: &'b [u8],
        rest: &'b [u8],
        first: bool,
    ) -> Parsed<'b> {
        let near = front(rest);
        match classic::next_key(near) {
            classic::NextKey::Key { key, behind } => {
                let behind = rest.get(near.len() - behind.len()..).unwrap_or_default();
                let near = front(behind);
                let end = classic::line_end(near).map(|next| near.len() - next.len());
                self.state = if end.is_some() { State::Text } else { State::Keys(retrieval) };
                let consumed = input.len() - behind.len() + end.unwrap_or(0);
                Parsed::Request { request: classic::get(key, retrieval, end.is_some()), consumed }
            }
            classic::NextKey::End { behind } => {
                self.state = State::Text;
                let consumed = input.len() - rest.len() + near.len() - behind.len();
                if first {
                    return fault(BAD_FORMAT, consumed);
                }
                Parsed::Request { request: Request::GetEnd, consumed }
            }
            classic::NextKey::TooLong => {
                self.state = State::Text;
                fault_line(FaultReply::Text(BAD_FORMAT), input)
            }
            // No key is so long: these are blanks, of which there may be any number.
            classic::NextKey::Incomplete if near.len() == LINE_LEN_MAX => {
                let blanks = near.len() - skip_spaces(near).len();
                let consumed = input.len() - rest.len() + blanks;
                self.state = if first { State::Blanks(retrieval) } else { State::Keys(retrieval) };
                faulty(FaultReply::Silent, Recovery::Continue, consumed)
            }
            classic::NextKey::Incomplete => Parsed::Incomplete,
        }
    }
}

/// As far as the next word of a line is looked for, so that it does not depend on how much has
/// arrived whether it is found.
#[inline]
fn front(rest: &[u8]) -> &[u8] {
    rest.get(..LINE_LEN_MAX).unwrap_or(rest)
}

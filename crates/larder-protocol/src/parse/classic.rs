//! Parsing of classic text: `get`, `set` and the other commands. Error messages and their
//! precedence match memcached.

use crate::parse::admin;
use crate::parse::body::{bad_value_len, value_len, with_body};
use crate::parse::noreply::{format, refuse};
use crate::parse::parsed::{fault, faulty, request};
use crate::request::{
    Arithmetic, Classic, Delete, Exptime, FaultReply, Get, KEY_LEN_MAX, Key, Parsed, Recovery,
    ReplyFormat, Request, Store, StoreMode,
};
use crate::text::line::{BAD_FORMAT, LINE_LEN_MAX};
use crate::text::number::{exptime_of, flags_of, i32_of, u32_of, u64_of};
use crate::text::tokens::{Tokens, skip_spaces, trim_end_spaces};

const BAD_DELETE: &str = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]";
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";
const BAD_DELTA: &str = "CLIENT_ERROR invalid numeric delta argument";

/// The options that all keys of a classic retrieval line share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retrieval {
    pub(crate) with_cas: bool,
    pub(crate) touch: Option<Exptime>,
}

/// A retrieval command without its keys.
#[derive(Clone, Copy)]
pub(crate) enum RetrievalHead {
    Get { with_cas: bool },
    Gat { with_cas: bool },
}

/// Parses a retrieval command; `rest` starts after its `g`. Returns the command and its length,
/// which includes the `g` and the space after the command. Returns `None` for any other command.
#[inline]
pub(crate) fn retrieval(rest: &[u8]) -> Option<(RetrievalHead, usize)> {
    match rest {
        [b'e', b't', b' ', ..] => Some((RetrievalHead::Get { with_cas: false }, 4)),
        [b'e', b't', b's', b' ', ..] => Some((RetrievalHead::Get { with_cas: true }, 5)),
        [b'a', b't', b' ', ..] => Some((RetrievalHead::Gat { with_cas: false }, 4)),
        [b'a', b't', b's', b' ', ..] => Some((RetrievalHead::Gat { with_cas: true }, 5)),
        _ => None,
    }
}

/// The result of parsing a `gat` command's expiry.
pub(crate) enum GatExptime<'b> {
    Is {
        exptime: Exptime,
        keys: &'b [u8],
    },
    Bad,
    /// The line ends before the first key.
    Missing {
        line_len: usize,
    },
    Incomplete,
}

pub(crate) fn gat_exptime(rest: &[u8]) -> GatExptime<'_> {
    let from = skip_spaces(rest);
    let Some(end) = memchr::memchr2(b' ', b'\n', from) else { return GatExptime::Incomplete };
    let (token, keys) = from.split_at_checked(end).unwrap_or_default();
    let line_end = if keys.first() == Some(&b'\n') { keys.get(1..) } else { line_end(keys) };
    if let Some(behind) = line_end {
        return GatExptime::Missing { line_len: rest.len() - behind.len() };
    }
    if matches!(skip_spaces(keys), [] | [b'\r']) {
        return GatExptime::Incomplete;
    }
    match i32_of(token) {
        Some(exptime) => GatExptime::Is { exptime: Exptime(exptime.into()), keys },
        None => GatExptime::Bad,
    }
}

/// The next part of a retrieval line.
pub(crate) enum NextKey<'b> {
    Key { key: &'b [u8], behind: &'b [u8] },
    End { behind: &'b [u8] },
    TooLong,
    Incomplete,
}

#[inline]
pub(crate) fn next_key(rest: &[u8]) -> NextKey<'_> {
    let rest = skip_spaces(rest);
    let window = rest.get(..KEY_LEN_MAX + 2).unwrap_or(rest);
    let Some(end) = memchr::memchr2(b' ', b'\n', window) else {
        let too_long = window.len() == KEY_LEN_MAX + 2;
        return if too_long { NextKey::TooLong } else { NextKey::Incomplete };
    };
    let (token, behind) = window.split_at_checked(end).unwrap_or_default();
    let is_line_end = behind.first() == Some(&b'\n');
    let key = if is_line_end { token.strip_suffix(b"\r").unwrap_or(token) } else { token };
    let behind = rest.get(end..).unwrap_or_default();
    match key.len() {
        0 => NextKey::End { behind: behind.get(1..).unwrap_or_default() },
        1..=KEY_LEN_MAX => NextKey::Key { key, behind },
        _ => NextKey::TooLong,
    }
}

/// Returns the bytes after the line's end, or `None` if anything except spaces precedes that end.
#[inline]
pub(crate) fn line_end(rest: &[u8]) -> Option<&[u8]> {
    match rest {
        [b'\n', behind @ ..] => Some(behind),
        _ => match skip_spaces(rest) {
            [b'\n', behind @ ..] | [b'\r', b'\n', behind @ ..] => Some(behind),
            _ => None,
        },
    }
}

#[inline]
pub(crate) fn get(key: &[u8], retrieval: Retrieval, last: bool) -> Request<'_> {
    let Retrieval { with_cas, touch } = retrieval;
    let format = ReplyFormat::Classic(Classic { noreply: false, with_cas, last });
    Request::Get(Get { touch, format, ..Get::classic(key) })
}

/// Parses a line other than a retrieval. `body` is the input after the line. `consumed` is the
/// length of the line, including the line end that `line` lacks.
#[inline]
pub(crate) fn parse<'b>(line: &'b [u8], body: &'b [u8], consumed: usize) -> Parsed<'b> {
    let command_len = memchr::memchr(b' ', line).unwrap_or(line.len());
    let (command, rest) = line.split_at_checked(command_len).unwrap_or_default();
    let mode = match command {
        b"set" => StoreMode::Set,
        b"add" => StoreMode::Add,
        b"replace" => StoreMode::Replace,
        b"append" => StoreMode::Append,
        b"prepend" => StoreMode::Prepend,
        b"cas" => return store(StoreMode::Set, true, rest, body, consumed),
        _ => return other(command, rest, consumed),
    };
    store(mode, false, rest, body, consumed)
}

#[inline]
fn store<'b>(
    mode: StoreMode,
    is_cas: bool,
    rest: &'b [u8],
    body: &'b [u8],
    consumed: usize,
) -> Parsed<'b> {
    let mut tokens = Tokens(rest);
    let (Some(key), Some(flags), Some(exptime), Some(len)) =
        (tokens.next(), tokens.next(), tokens.next(), tokens.next())
    else {
        return fault(BAD_FORMAT, consumed);
    };
    let Some(value_len) = value_len(len) else { return bad_value_len(len, consumed) };
    let compare = is_cas.then(|| tokens.next().and_then(u64_of));
    let swallow = Recovery::Swallow(value_len as u64 + 2);
    let (Some(client_flags), Some(exptime)) = (flags_of(flags), exptime_of(exptime)) else {
        return refuse(BAD_FORMAT, rest, swallow, consumed);
    };
    if key.len() > KEY_LEN_MAX || compare == Some(None) {
        return refuse(BAD_FORMAT, rest, swallow, consumed);
    }
    let store = Store {
        key: Key::raw(key),
        mode,
        client_flags,
        expiry: Exptime(exptime.into()),
        value_len,
        value: &[],
        terminated: true,
        compare: compare.flatten(),
        new_cas: None,
        invalidate: false,
        vivify: None,
        format: format(rest),
    };
    with_body(store, body, consumed)
}

#[inline]
fn other<'b>(command: &'b [u8], rest: &'b [u8], consumed: usize) -> Parsed<'b> {
    match command {
        b"delete" => delete(rest, consumed),
        b"incr" => arithmetic(false, rest, consumed),
        b"decr" => arithmetic(true, rest, consumed),
        b"touch" => touch(rest, consumed),
        // A retrieval command without a space after it.
        b"get" | b"gets" | b"gat" | b"gats" => fault(BAD_FORMAT, consumed),
        b"version" => request(Request::Version(ReplyFormat::Classic(Classic::default())), consumed),
        b"quit" => request(Request::Quit(ReplyFormat::Classic(Classic::default())), consumed),
        b"stats" => {
            let topic = trim_end_spaces(skip_spaces(rest));
            request(
                Request::Stats { topic, format: ReplyFormat::Classic(Classic::default()) },
                consumed,
            )
        }
        b"flush_all" => flush_all(rest, consumed),
        b"verbosity" => verbosity(rest, consumed),
        b"" => indented(rest, consumed),
        b"noreply" if skip_spaces(rest).is_empty() => {
            faulty(FaultReply::Silent, Recovery::Continue, consumed)
        }
        _ => admin::parse(command, rest, consumed).unwrap_or_else(|| unknown(rest, consumed)),
    }
}

/// Parses a line that starts with spaces. After leading spaces, memcached recognizes only the
/// commands that it looks up in a table.
#[cold]
fn indented<'b>(rest: &'b [u8], consumed: usize) -> Parsed<'b> {
    let line = skip_spaces(rest);
    let command_len = memchr::memchr(b' ', line).unwrap_or(line.len());
    let (command, words) = line.split_at_checked(command_len).unwrap_or_default();
    let found = match command {
        b"flush_all" => Some(flush_all(words, consumed)),
        b"verbosity" => Some(verbosity(words, consumed)),
        b"watch" => None,
        _ => admin::parse(command, words, consumed),
    };
    found.unwrap_or_else(|| unknown(rest, consumed))
}

fn unknown<'b>(rest: &[u8], consumed: usize) -> Parsed<'b> {
    match Tokens(rest).last() {
        Some(last) if last.starts_with(b"HTTP/") => {
            faulty(FaultReply::Silent, Recovery::Close, consumed)
        }
        _ => refuse("ERROR", rest, Recovery::Continue, consumed),
    }
}

fn delete<'b>(rest: &'b [u8], consumed: usize) -> Parsed<'b> {
    let mut tokens = Tokens(rest);
    let Some(key) = tokens.next() else { return fault(BAD_FORMAT, consumed) };
    if key.len() > KEY_LEN_MAX {
        return refuse(BAD_FORMAT, rest, Recovery::Continue, consumed);
    }
    // In old versions of the protocol, a time followed the key. Like memcached, accept the time 0.
    // memcached's proxy sends `noreplY` to receive a reply for a client that requested none.
    let is_valid = matches!(
        [tokens.next(), tokens.next(), tokens.next()],
        [None | Some(b"0" | b"noreply" | b"noreplY"), None, _]
            | [Some(b"0"), Some(b"noreply" | b"noreplY"), None]
    );
    if !is_valid {
        return refuse(BAD_DELETE, rest, Recovery::Continue, consumed);
    }
    let delete = Delete {
        key: Key::raw(key),
        compare: None,
        new_cas: None,
        invalidate: false,
        value_only: false,
        touch: None,
        client_flags: None,
        format: format(rest),
    };
    request(Request::Delete(delete), consumed)
}

fn arithmetic<'b>(down: bool, rest: &'b [u8], consumed: usize) -> Parsed<'b> {
    let mut tokens = Tokens(rest);
    let (Some(key), Some(delta)) = (tokens.next(), tokens.next()) else {
        return fault(BAD_FORMAT, consumed);
    };
    if key.len() > KEY_LEN_MAX {
        return refuse(BAD_FORMAT, rest, Recovery::Continue, consumed);
    }
    let Some(delta) = u64_of(delta) else {
        return refuse(BAD_DELTA, rest, Recovery::Continue, consumed);
    };
    let arithmetic = Arithmetic {
        key: Key::raw(key),
        down,
        delta,
        vivify: None,
        initial: 0,
        touch: None,
        compare: None,
        new_cas: None,
        format: format(rest),
    };
    request(Request::Arithmetic(arithmetic), consumed)
}

fn touch<'b>(rest: &'b [u8], consumed: usize) -> Parsed<'b> {
    let mut tokens = Tokens(rest);
    let (Some(key), Some(exptime)) = (tokens.next(), tokens.next()) else {
        return fault(BAD_FORMAT, consumed);
    };
    if key.len() > KEY_LEN_MAX {
        return refuse(BAD_FORMAT, rest, Recovery::Continue, consumed);
    }
    let Some(exptime) = i32_of(exptime) else {
        return refuse(BAD_EXPTIME, rest, Recovery::Continue, consumed);
    };
    let get = Get {
        key: Key::raw(key),
        value: false,
        touch: Some(Exptime(exptime.into())),
        vivify: None,
        recache: None,
        compare: None,
        new_cas: None,
        untracked: false,
        format: format(rest),
    };
    request(Request::Get(get), consumed)
}

fn flush_all<'b>(rest: &'b [u8], consumed: usize) -> Parsed<'b> {
    let mut tokens = Tokens(rest);
    let at = match (tokens.next(), tokens.next()) {
        (None | Some(b"noreply"), None) => Some(0),
        (first, _) => first.and_then(i32_of),
    };
    let Some(at) = at else { return refuse(BAD_EXPTIME, rest, Recovery::Continue, consumed) };
    request(Request::FlushAll { at: Exptime(at.into()), format: format(rest) }, consumed)
}

fn verbosity<'b>(rest: &'b [u8], consumed: usize) -> Parsed<'b> {
    match Tokens(rest).next().and_then(u32_of) {
        Some(level) => {
            let level = level.min(2);
            request(Request::Verbosity { level, format: format(rest) }, consumed)
        }
        None => refuse(BAD_FORMAT, rest, Recovery::Continue, consumed),
    }
}

const _: () = assert!(KEY_LEN_MAX + 2 < LINE_LEN_MAX);

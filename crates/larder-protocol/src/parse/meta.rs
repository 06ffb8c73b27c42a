//! Parsing of meta text: `mg ms md ma me mn mt`, with every flag. `mt` and the flag `G` are
//! Larder's extensions.

use crate::meta_flags::{Argument, Entry, SLOTS, split_tags};
use crate::parse::base64;
use crate::parse::body::{bad_value_len, value_len, with_body};
use crate::parse::parsed::{fault, faulty};
use crate::request::{
    Arithmetic, Debug, Delete, DropTag, Exptime, FaultReply, Get, KEY_LEN_MAX, Key, MetaFlags,
    Parsed, Recovery, ReplyFormat, Request, Store, StoreMode,
};
use crate::text::letters::Letters;
use crate::text::line::BAD_FORMAT;
use crate::text::tokens::{Tokens, skip_spaces};

/// The maximum number of tokens in a meta line, including the command and the key.
const TOKENS_MAX: usize = 20;
/// The maximum number of tokens that memcached parses in a meta line. memcached ignores further
/// tokens.
const TOKENS_CUT: usize = 23;
/// The maximum number of tags per item.
const TAGS_MAX: usize = 7;
/// The maximum length of a tag's name, in bytes.
const TAG_LEN_MAX: usize = 250;
/// The maximum length of an opaque in bytes, without its letter.
const OPAQUE_LEN_MAX: usize = 31;

const DUPLICATE: &str = "CLIENT_ERROR duplicate flag";
const INVALID: &str = "CLIENT_ERROR invalid flag";
const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";

/// Parses the meta command `m<verb>`. `rest` is the line after the command, `body` the input after
/// the line.
#[inline]
pub(crate) fn parse<'b>(verb: u8, rest: &'b [u8], body: &'b [u8], consumed: usize) -> Parsed<'b> {
    match verb {
        b'g' => keyed(rest, consumed, |key, flags| {
            flags.check_tags(flags.has(b'N'))?;
            Ok(get(key, flags))
        }),
        b's' => set(rest, body, consumed),
        b'd' => keyed(rest, consumed, |key, flags| {
            flags.check_tags(false)?;
            Ok(delete(key, flags))
        }),
        b't' => keyed(rest, consumed, |key, flags| {
            let is_known = |flag: &[u8]| matches!(flag.first(), Some(b'b' | b'q' | b'O' | b'k'));
            if !Tokens(flags.raw).all(is_known) {
                return Err(INVALID);
            }
            Ok(Request::DropTag(DropTag { tag: key, format: flags.format() }))
        }),
        b'a' => arithmetic(rest, consumed),
        b'e' => describe(rest, consumed),
        b'n' => {
            let format = ReplyFormat::Meta(MetaFlags::default());
            Parsed::Request { request: Request::Noop(format), consumed }
        }
        _ => unknown(rest, consumed),
    }
}

/// Refuses an unknown meta command as the classic parser refuses an unknown command.
fn unknown<'b>(rest: &[u8], consumed: usize) -> Parsed<'b> {
    match Tokens(rest).last() {
        Some(last) if last.starts_with(b"HTTP/") => {
            faulty(FaultReply::Silent, Recovery::Close, consumed)
        }
        Some(b"noreply") => faulty(FaultReply::Silent, Recovery::Continue, consumed),
        _ => fault("ERROR", consumed),
    }
}

/// Splits off the first token, and the spaces after it. Returns `None` if there is no token.
#[inline]
fn split_key(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = skip_spaces(rest);
    let end = memchr::memchr(b' ', rest).unwrap_or(rest.len());
    let (key, flags) = rest.split_at_checked(end)?;
    if key.is_empty() { None } else { Some((key, skip_spaces(flags))) }
}

#[inline]
fn keyed<'b>(
    rest: &'b [u8],
    consumed: usize,
    lower: impl FnOnce(Key<'b>, &Flags<'b>) -> Result<Request<'b>, &'static str>,
) -> Parsed<'b> {
    let Some((wire, raw)) = split_key(rest) else { return fault(BAD_FORMAT, consumed) };
    let lowered = Flags::parse(wire, raw, 2).and_then(|flags| {
        flags.check_opaque()?;
        lower(flags.key(wire), &flags)
    });
    match lowered {
        Ok(request) => Parsed::Request { request, consumed },
        Err(error) => fault(error, consumed),
    }
}

/// The parsed flags of a line.
#[derive(Clone, Copy, Default)]
struct Flags<'b> {
    raw: &'b [u8],
    letters: Letters,
    /// The numeric arguments of flags. [`Entry::slot`] is the index of a flag's argument.
    numbers: [u64; SLOTS],
    opaque_too_long: bool,
}

impl<'b> Flags<'b> {
    /// Parses `raw`, the flags after the first `before` tokens of the line.
    #[inline]
    fn parse(key: &[u8], raw: &'b [u8], before: usize) -> Result<Self, &'static str> {
        Self::read_all(key, raw, before)
            .map_err(|error| if has_stray(raw, before) { BAD_FORMAT } else { error })
    }

    /// Parses the flags in order, with memcached's precedence of errors. If several arguments are
    /// malformed, the last one determines the error. Malformed client flags are an exception: they
    /// never replace an earlier error. An unknown or repeated letter stops the parsing with its own
    /// error. After an error, the caller checks for stray tokens ([`has_stray`]), whose error
    /// replaces any other error.
    #[inline]
    fn read_all(key: &[u8], raw: &'b [u8], before: usize) -> Result<Self, &'static str> {
        if key.len() > KEY_LEN_MAX {
            return Err(BAD_FORMAT);
        }
        let mut flags = Self { raw, ..Self::default() };
        if raw.is_empty() {
            return Ok(flags);
        }
        // Count the tokens only if the line is long enough to have too many.
        let token_count_max = raw.len().div_ceil(2) + before;
        if token_count_max > TOKENS_MAX && Tokens(raw).count() + before > TOKENS_MAX {
            return Err("CLIENT_ERROR options flags are too long");
        }
        let mut error = None;
        for token in Tokens(raw) {
            let Some((&letter, argument)) = token.split_first() else { continue };
            let Some(entry) = Entry::of(letter) else {
                return Err(if is_flag_letter(letter) { INVALID } else { BAD_FORMAT });
            };
            if flags.letters.has(Letters::of(letter)) {
                return Err(DUPLICATE);
            }
            flags.letters = flags.letters.with(Letters::of(letter));
            if let Err(bad) = flags.read(entry, argument, key) {
                error = match (bad, error) {
                    // Malformed client flags do not replace an earlier error.
                    (BAD_FORMAT, Some(earlier)) => Some(earlier),
                    _ => Some(bad),
                };
            }
        }
        error.map_or(Ok(flags), Err)
    }

    #[inline]
    fn read(&mut self, entry: Entry, argument: &'b [u8], key: &[u8]) -> Result<(), &'static str> {
        match entry.argument {
            Argument::None => (),
            Argument::Opaque => self.opaque_too_long = argument.len() > OPAQUE_LEN_MAX,
            Argument::Tags => {
                let is_tag = |tag: &[u8]| (1..=TAG_LEN_MAX).contains(&tag.len());
                let is_right =
                    split_tags(argument).count() <= TAGS_MAX && split_tags(argument).all(is_tag);
                is_right.then_some(()).ok_or(BAD_TOKEN)?;
            }
            Argument::KeyEncoding => {
                base64::decode(key, &mut [0; KEY_LEN_MAX])
                    .ok_or("CLIENT_ERROR error decoding key")?;
            }
            kind => {
                let number = kind.read(argument).ok_or_else(|| bad_argument(kind))?;
                if let Some(slot) = self.numbers.get_mut(usize::from(entry.slot)) {
                    *slot = number;
                }
            }
        }
        Ok(())
    }

    /// Refuses an opaque that is too long. memcached checks the other flags first.
    #[inline]
    fn check_opaque(&self) -> Result<(), &'static str> {
        if self.opaque_too_long { Err("CLIENT_ERROR opaque token too long") } else { Ok(()) }
    }

    /// Refuses tags unless `may_have` is true. Only requests that may store a new item may have
    /// tags.
    #[inline]
    fn check_tags(&self, may_have: bool) -> Result<(), &'static str> {
        if self.has(b'G') && !may_have { Err(INVALID) } else { Ok(()) }
    }

    #[inline]
    fn has(&self, letter: u8) -> bool {
        self.letters.has(Letters::of(letter))
    }

    /// Returns the number of a flag, or 0 if the line does not have the flag.
    #[inline]
    fn number_or_0(&self, letter: u8) -> u64 {
        let slot = Entry::of(letter).and_then(|entry| self.numbers.get(usize::from(entry.slot)));
        slot.copied().unwrap_or_default()
    }

    #[inline]
    fn number(&self, letter: u8) -> Option<u64> {
        self.has(letter).then(|| self.number_or_0(letter))
    }

    /// Returns the expiry in the argument of a flag. Returns 0, which means never, if the line does
    /// not have the flag.
    #[inline]
    fn expiry_or_0(&self, letter: u8) -> Exptime {
        Exptime(self.number_or_0(letter).cast_signed())
    }

    #[inline]
    fn expiry(&self, letter: u8) -> Option<Exptime> {
        self.has(letter).then(|| self.expiry_or_0(letter))
    }

    #[inline]
    fn client_flags(&self) -> Option<u32> {
        self.number(b'F').and_then(|number| u32::try_from(number).ok())
    }

    #[inline]
    fn mode(&self) -> Option<u8> {
        self.number(b'M').and_then(|mode| u8::try_from(mode).ok())
    }

    #[inline]
    fn key(&self, wire: &'b [u8]) -> Key<'b> {
        Key { wire, base64: self.has(b'b') }
    }

    #[inline]
    fn format(&self) -> ReplyFormat<'b> {
        ReplyFormat::Meta(MetaFlags { raw: self.raw, letters: self.letters })
    }

    /// Returns the new CAS. With `E0`, as without `E`, the server chooses the CAS.
    #[inline]
    fn new_cas(&self) -> Option<u64> {
        self.number(b'E').filter(|&cas| cas != 0)
    }
}

/// Returns the error message for a malformed or out-of-range number.
#[cold]
fn bad_argument(kind: Argument) -> &'static str {
    match kind {
        Argument::Initial => "CLIENT_ERROR invalid numeric initial value",
        Argument::Delta => "CLIENT_ERROR invalid numeric delta value",
        Argument::ClientFlags => BAD_FORMAT,
        _ => BAD_TOKEN,
    }
}

#[inline]
fn get<'b>(key: Key<'b>, flags: &Flags<'b>) -> Request<'b> {
    Request::Get(Get {
        key,
        value: flags.has(b'v'),
        touch: flags.expiry(b'T'),
        vivify: flags.expiry(b'N'),
        recache: flags.expiry(b'R').and_then(|within| i32::try_from(within.0).ok()),
        compare: flags.number(b'C'),
        new_cas: flags.new_cas(),
        untracked: flags.has(b'u'),
        format: flags.format(),
    })
}

fn delete<'b>(key: Key<'b>, flags: &Flags<'b>) -> Request<'b> {
    Request::Delete(Delete {
        key,
        compare: flags.number(b'C'),
        new_cas: flags.new_cas(),
        invalidate: flags.has(b'I'),
        value_only: flags.has(b'x'),
        touch: flags.expiry(b'T'),
        client_flags: flags.client_flags(),
        format: flags.format(),
    })
}

fn set<'b>(rest: &'b [u8], body: &'b [u8], consumed: usize) -> Parsed<'b> {
    let Some((wire, rest)) = split_key(rest) else { return fault(BAD_FORMAT, consumed) };
    let Some((len, raw)) = split_key(rest) else { return fault(BAD_FORMAT, consumed) };
    let Some(value_len) = value_len(len) else { return bad_value_len(len, consumed) };
    let store = Flags::parse(wire, raw, 3).and_then(|flags| store(wire, value_len, &flags));
    match store {
        Ok(store) => with_body(store, body, consumed),
        Err(error) => {
            faulty(FaultReply::Text(error), Recovery::Swallow(value_len as u64 + 2), consumed)
        }
    }
}

/// Returns whether any of the tokens that memcached parses starts with a byte that cannot be a
/// flag.
#[cold]
fn has_stray(raw: &[u8], before: usize) -> bool {
    let stray = |token: &[u8]| token.first().is_some_and(|&letter| !is_flag_letter(letter));
    Tokens(raw).take(TOKENS_CUT - before).any(stray)
}

#[inline]
fn is_flag_letter(letter: u8) -> bool {
    letter.is_ascii_digit() || (0x41..=0x7a).contains(&letter)
}

fn store<'b>(
    wire: &'b [u8],
    value_len: usize,
    flags: &Flags<'b>,
) -> Result<Store<'b>, &'static str> {
    let mode = match flags.mode() {
        None | Some(b'S') => StoreMode::Set,
        Some(b'E') => StoreMode::Add,
        Some(b'A') => StoreMode::Append,
        Some(b'P') => StoreMode::Prepend,
        Some(b'R') => StoreMode::Replace,
        Some(_) => return Err("CLIENT_ERROR invalid mode for ms M token"),
    };
    flags.check_opaque()?;
    let compare = match mode {
        StoreMode::Add => None,
        StoreMode::Append | StoreMode::Prepend => flags.number(b'C').filter(|&cas| cas != 0),
        StoreMode::Set | StoreMode::Replace => flags.number(b'C'),
    };
    let concatenates = matches!(mode, StoreMode::Append | StoreMode::Prepend);
    flags.check_tags(!concatenates || flags.has(b'N'))?;
    Ok(Store {
        key: flags.key(wire),
        mode,
        client_flags: flags.client_flags().unwrap_or_default(),
        expiry: flags.expiry_or_0(b'T'),
        value_len,
        value: &[],
        terminated: true,
        compare,
        new_cas: flags.new_cas(),
        invalidate: flags.has(b'I'),
        vivify: if concatenates { flags.expiry(b'N') } else { None },
        format: flags.format(),
    })
}

fn arithmetic<'b>(rest: &'b [u8], consumed: usize) -> Parsed<'b> {
    let Some((wire, raw)) = split_key(rest) else { return fault(BAD_FORMAT, consumed) };
    let flags = match Flags::read_all(wire, raw, 2) {
        Ok(flags) => flags,
        Err(_) if has_stray(raw, 2) => return fault(BAD_FORMAT, consumed),
        Err(_) => return fault("CLIENT_ERROR invalid or duplicate flag", consumed),
    };
    let down = match flags.mode() {
        None | Some(b'I' | b'+') => false,
        Some(b'D' | b'-') => true,
        Some(_) => return fault("CLIENT_ERROR invalid mode for ma M token", consumed),
    };
    if let Err(error) = flags.check_opaque() {
        return fault(error, consumed);
    }
    if flags.check_tags(flags.has(b'N')).is_err() {
        return fault("CLIENT_ERROR invalid or duplicate flag", consumed);
    }
    let arithmetic = Arithmetic {
        key: flags.key(wire),
        down,
        delta: flags.number(b'D').unwrap_or(1),
        vivify: flags.expiry(b'N'),
        initial: flags.number_or_0(b'J'),
        touch: flags.expiry(b'T'),
        compare: flags.number(b'C').filter(|&cas| cas != 0),
        new_cas: flags.new_cas(),
        format: flags.format(),
    };
    Parsed::Request { request: Request::Arithmetic(arithmetic), consumed }
}

/// Parses `me`, which supports only the flag `b` and ignores all others.
fn describe<'b>(rest: &'b [u8], consumed: usize) -> Parsed<'b> {
    let Some((wire, raw)) = split_key(rest) else { return fault(BAD_FORMAT, consumed) };
    let base64 = Tokens(raw).any(|token| token == b"b");
    let decodes = !base64 || base64::decode(wire, &mut [0; KEY_LEN_MAX]).is_some();
    if wire.len() > KEY_LEN_MAX || !decodes || has_stray(raw, 2) {
        return fault(BAD_FORMAT, consumed);
    }
    let letters = if base64 { Letters::of(b'b') } else { Letters::default() };
    let format = ReplyFormat::Meta(MetaFlags { raw, letters });
    let request = Request::Debug(Debug { key: Key { wire, base64 }, format });
    Parsed::Request { request, consumed }
}

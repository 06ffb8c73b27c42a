//! The table of all meta flags (`table.rs`): the argument of each flag, the commands that support
//! it, and its effect on a reply.
//!
//! The parser (`meta.rs`), the reply encoders (`reply/`) and the fast path (`fast_get.rs`) use this
//! table, and `docs/meta-flags.md` is generated from it. The session (`larder-session`) defines the
//! effect of a flag on an item when it converts a request to an operation. The session can query
//! any flag with [`MetaFlags::has`].
//!
//! `docs/internals/changing.md` lists the steps to add a flag.

mod lookup;
mod table;

use crate::request::{Exptime, MetaFlags};
use crate::text::letters::Letters;
use crate::text::number::{i32_of, push, u32_of, u64_of};
use crate::text::tokens::Tokens;
use lookup::shows;
pub(crate) use lookup::{Entry, FAST, SLOTS};
use table::ReplyEffect;
pub(crate) use table::{Argument, Command};

/// The properties of an item that flags can show.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShownItem {
    /// Client flags, which the server does not interpret.
    pub client_flags: u32,
    /// The CAS; 0 if the server stores no CAS values (`-C`).
    pub cas: u64,
    /// The length of the whole value in bytes, even if the reply omits the value.
    pub value_len: usize,
    /// The time to live before and after the changes by the request.
    pub ttl: Ttl,
    /// Seconds since the previous access.
    pub idle_secs: u32,
    /// Whether the item had been read before the request.
    pub hit_before: bool,
}

/// The remaining time to live of an item in seconds; `None` if the item never expires. The flags
/// `T` and `N` can change the time to live. The flag `t` shows the time to live after the changes
/// by the flags that precede `t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ttl {
    /// The time to live before the request.
    pub before: Option<u32>,
    /// The time to live that the flag `T` sets.
    pub touched: Option<u32>,
    /// The time to live that the flag `N` sets. The outer `None` means that the request did not
    /// create the item.
    pub vivified: Option<Option<u32>>,
}

/// Writes the flags of a reply to `command` in the order of the request, with the values of `item`.
#[inline]
pub(crate) fn show<'b>(
    command: Command,
    flags: impl Iterator<Item = &'b [u8]>,
    item: &ShownItem,
    key: impl Fn(&mut Vec<u8>),
    out: &mut Vec<u8>,
) {
    let mut ttl = item.ttl.before;
    for flag in flags {
        let Some(&letter) = flag.first() else { continue };
        let mark = [b' ', letter];
        match shows(command, letter) {
            ReplyEffect::Nothing | ReplyEffect::Value => (),
            // Fast path: most items have no client flags.
            ReplyEffect::ClientFlags if item.client_flags == 0 => {
                out.extend_from_slice(&[b' ', letter, b'0']);
            }
            ReplyEffect::ClientFlags => number(&mark, item.client_flags.into(), out),
            ReplyEffect::Cas => number(&mark, item.cas, out),
            ReplyEffect::ValueLen => number(&mark, item.value_len as u64, out),
            ReplyEffect::HitBefore => number(&mark, item.hit_before.into(), out),
            ReplyEffect::Idle => number(&mark, item.idle_secs.into(), out),
            ReplyEffect::Ttl => match ttl {
                Some(secs) => number(&mark, secs.into(), out),
                None => out.extend_from_slice(&[b' ', letter, b'-', b'1']),
            },
            ReplyEffect::TtlTouched => ttl = item.ttl.touched,
            ReplyEffect::TtlVivified => ttl = item.ttl.vivified.unwrap_or(ttl),
            ReplyEffect::Key => key(out),
            ReplyEffect::Opaque => opaque(flag, out),
        }
    }
}

/// Writes the flags of a reply without an item: the key and the opaque.
pub(crate) fn show_request<'b>(
    command: Command,
    flags: impl Iterator<Item = &'b [u8]>,
    key: impl Fn(&mut Vec<u8>),
    out: &mut Vec<u8>,
) {
    for flag in flags {
        let Some(&letter) = flag.first() else { continue };
        match shows(command, letter) {
            ReplyEffect::Key => key(out),
            ReplyEffect::Opaque => opaque(flag, out),
            _ => (),
        }
    }
}

fn opaque(flag: &[u8], out: &mut Vec<u8>) {
    out.push(b' ');
    out.extend_from_slice(flag);
}

/// Splits the argument of the flag `G` into the names of tags.
pub(crate) fn split_tags(argument: &[u8]) -> impl Iterator<Item = &[u8]> {
    argument.split(|byte| *byte == b',')
}

#[inline]
pub(crate) fn number(before: &[u8], number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(before);
    push(number, out);
}

impl Argument {
    /// Parses an argument of this kind as a number; `None` if the argument is malformed.
    /// Sign-extends a number of seconds. For kinds that are not numeric, returns 0 without checking
    /// the argument.
    #[inline]
    pub(crate) fn read(self, argument: &[u8]) -> Option<u64> {
        match self {
            Self::None | Self::KeyEncoding | Self::Opaque | Self::Tags => Some(0),
            Self::Time => i32_of(argument).map(|secs| i64::from(secs).cast_unsigned()),
            Self::Number | Self::Initial | Self::Delta => u64_of(argument),
            Self::ClientFlags => u32_of(argument).map(u64::from),
            Self::Mode => Some(argument.first().copied().unwrap_or(b' ').into()),
        }
    }
}

impl MetaFlags<'_> {
    /// Returns whether the request has a flag. Parsed requests have fields for some flags. Use this
    /// method for the other flags.
    #[inline]
    #[must_use]
    pub fn has(&self, letter: u8) -> bool {
        self.letters.has(Letters::of(letter))
    }

    /// Returns the numeric argument of a flag, or `None` if the request does not have the flag or
    /// the flag has no numeric argument. Parsed requests have fields for some flags. Use this
    /// method for the other flags.
    #[must_use]
    pub fn number(&self, letter: u8) -> Option<u64> {
        let argument = Entry::of(letter)?.argument;
        if !argument.is_number() {
            return None;
        }
        let flag = Tokens(self.raw).find(|flag| flag.first() == Some(&letter))?;
        argument.read(flag.get(1..)?)
    }

    /// Returns the names of the tags in the flag `G`. Without this flag, there are no tags.
    pub fn tags(&self) -> impl Iterator<Item = &[u8]> {
        let tags = Tokens(self.raw).find(|flag| self.has(b'G') && flag.first() == Some(&b'G'));
        tags.into_iter().filter_map(|flag| flag.get(1..)).flat_map(split_tags)
    }

    /// Returns the argument of a flag as a time, if the request has the flag.
    #[must_use]
    pub fn exptime(&self, letter: u8) -> Option<Exptime> {
        self.number(letter).map(|secs| Exptime(secs.cast_signed()))
    }

    /// Returns whether flag `first` precedes flag `second` in the request. Also returns true if the
    /// request does not have `second`.
    #[must_use]
    pub fn precedes(&self, first: u8, second: u8) -> bool {
        let index = |letter| Tokens(self.raw).position(|flag| flag.first() == Some(&letter));
        index(second).is_none_or(|second| index(first).is_some_and(|first| first < second))
    }
}

#[cfg(test)]
mod tests {
    use super::table::{FLAGS, Flag};
    use super::*;
    use crate::reply::{self, Hit};
    use crate::{FastGet, Get, Parsed, Parser, ReplyFormat, Request};
    use Argument::{ClientFlags, Delta, Initial, KeyEncoding, Mode, Number, Opaque, Tags, Time};
    use Command::{Ma, Md, Me, Mg, Ms};
    use ReplyEffect::Nothing;
    use std::path::Path;

    const BEGIN: &str = "<!-- flags -->\n";
    const END: &str = "<!-- end of flags -->\n";

    /// Returns the row of a flag in `docs/meta-flags.md`.
    fn row(flag: &Flag) -> String {
        let letter = char::from(flag.letter);
        let argument = match flag.argument {
            Argument::None | KeyEncoding => "",
            Opaque => "up to 31 bytes",
            Time => "seconds, 32 bits with a sign",
            Number | Initial | Delta => "a number, 64 bits",
            ClientFlags => "a number, 32 bits",
            Mode => "a letter",
            Tags => "1 to 7 names of 1 to 250 bytes, separated by commas",
        };
        let commands = flag.commands.iter().map(|command| format!("`{}`", verb(*command)));
        let commands = commands.collect::<Vec<_>>().join(" ");
        let shows = match flag.shows {
            Nothing | ReplyEffect::TtlTouched | ReplyEffect::TtlVivified => String::new(),
            ReplyEffect::Value => "the value, behind `VA <length>`".to_owned(),
            ReplyEffect::Key => "`k<key>`, and `b` behind it if the key is base64".to_owned(),
            ReplyEffect::Opaque => format!("`{letter}<bytes>`"),
            _ => format!("`{letter}<number>`"),
        };
        let cells = [&format!("`{letter}`"), argument, &commands, &shows, flag.doc];
        format!("| {} |\n", cells.join(" | ")).replace("|  |", "| |").replace("|  |", "| |")
    }

    fn verb(command: Command) -> &'static str {
        match command {
            Mg => "mg",
            Ms => "ms",
            Md => "md",
            Ma => "ma",
            Me => "me",
        }
    }

    #[test]
    fn the_documentation_matches_the_table() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/meta-flags.md");
        let page = std::fs::read_to_string(&path).unwrap();
        let (before, rest) = page.split_once(BEGIN).unwrap();
        let (_, after) = rest.split_once(END).unwrap();
        let head = "| flag | argument | commands | in the reply | effect |\n\
                    |---|---|---|---|---|\n";
        let rows = FLAGS.iter().map(row).collect::<String>();
        let printed = [before, BEGIN, head, &rows, END, after].concat();
        if std::env::var_os("LARDER_WRITE_DOCS").is_some() {
            std::fs::write(&path, &printed).unwrap();
        } else {
            assert!(
                page == printed,
                "docs/meta-flags.md differs from the table: LARDER_WRITE_DOCS=1 rewrites it"
            );
        }
    }

    /// Returns a flag with a valid argument for `command`.
    fn sent(flag: &Flag, command: Command) -> String {
        let argument = match flag.argument {
            Argument::None | KeyEncoding => "",
            Mode if command == Ma => "D",
            Mode => "A",
            _ => "77",
        };
        format!("{}{argument}", char::from(flag.letter))
    }

    /// Parses a request and formats its fields without the raw flags.
    fn fields(line: &str) -> String {
        let mut parser = Parser::TEXT;
        let bare = ReplyFormat::Meta(MetaFlags::default());
        match parser.parse(line.as_bytes()) {
            Parsed::Request { request: Request::Get(get), .. } => {
                format!("{:?}", Get { format: bare, ..get })
            }
            Parsed::Request { request: Request::Store(store), .. } => {
                format!("{:?}", crate::Store { format: bare, ..store })
            }
            Parsed::Request { request: Request::Delete(delete), .. } => {
                format!("{:?}", crate::Delete { format: bare, ..delete })
            }
            Parsed::Request { request: Request::Arithmetic(count), .. } => {
                format!("{:?}", crate::Arithmetic { format: bare, ..count })
            }
            Parsed::Request { request: Request::Debug(debug), .. } => {
                format!("{:?}", crate::Debug { format: bare, ..debug })
            }
            other => panic!("{line:?}: {other:?}"),
        }
    }

    #[test]
    fn a_command_ignores_flags_that_it_does_not_support() {
        for flag in FLAGS {
            for command in [Mg, Ms, Md, Ma, Me] {
                // `md` cannot store tags, so it refuses them.
                let is_refused = flag.argument == Tags && command == Md;
                if flag.commands.contains(&command) || is_refused {
                    continue;
                }
                let (verb, sent) = (verb(command), sent(flag, command));
                let (len, body) = if command == Ms { (" 2", "hi\r\n") } else { ("", "") };
                let with = fields(&format!("{verb} Zm9v{len} {sent}\r\n{body}"));
                assert_eq!(with, fields(&format!("{verb} Zm9v{len}\r\n{body}")), "{verb} {sent}");
            }
        }
    }

    /// Returns the slow path's reply to a hit.
    fn slow_answer(get: &FastGet<'_>, item: ShownItem, value: &[u8]) -> Vec<u8> {
        let (get, mut out) = (get.get(), Vec::new());
        let hit = Hit {
            key: get.key.wire,
            binary_key: false,
            item,
            won: false,
            stale: false,
            win_taken: false,
            withheld: false,
        };
        if reply::hit_head(&get, &hit, &mut out) {
            out.extend_from_slice(value);
            reply::hit_tail(&get, &mut out);
        }
        out
    }

    #[test]
    fn the_fast_path_answers_like_the_slow_path() {
        let ttl = Ttl { before: Some(9), ..Ttl::default() };
        let item = ShownItem { client_flags: 5, cas: 7, value_len: 2, ttl, ..ShownItem::default() };
        let mut taken = Vec::new();
        for flag in FLAGS {
            let line = format!("mg k {}\r\n", sent(flag, Mg));
            let Some((get, _)) = Parser::TEXT.fast_get(line.as_bytes()) else { continue };
            taken.push(flag.letter);
            let mut answer = Vec::new();
            reply::fast_item(&get, &item, b"hi", &mut answer);
            assert_eq!(answer, slow_answer(&get, item, b"hi"), "{line:?}");
            let shown = answer.windows(2).any(|bytes| bytes == [b' ', flag.letter]);
            assert!(shown || answer == b"VA 2\r\nhi\r\n", "{line:?} shows nothing");
        }
        assert!(b"cfkstv".iter().all(|letter| taken.contains(letter)), "{taken:?}");
    }

    /// Returns whether `flags` has the flag `letter`, and its number.
    fn queried(flags: &str, letter: u8) -> (bool, Option<u64>) {
        let line = format!("mg k {flags}\r\n");
        let mut parser = Parser::TEXT;
        match parser.parse(line.as_bytes()) {
            Parsed::Request { request: Request::Get(get), .. } => {
                let flags = get.format.meta().unwrap();
                (flags.has(letter), flags.number(letter))
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_can_be_queried_by_letter() {
        assert_eq!(queried("v J12 T-1", b'J'), (true, Some(12)));
        assert_eq!(queried("v J12 T-1", b'T'), (true, Some(u64::MAX)));
        assert_eq!(queried("v", b'J'), (false, None));
        assert_eq!(queried("v", b'v'), (true, None));
        assert_eq!(queried("v", b'!'), (false, None));
    }
}

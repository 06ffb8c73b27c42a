//! Every meta flag, in one table (`table.rs`): what its argument is, which commands give it a
//! meaning, and what a reply shows for it.
//!
//! The parser (`meta.rs`) reads arguments by this table, the writers of replies (`reply/`) look up in
//! it what to show, and the fast path (`fast_get.rs`) takes from it the flags that it can answer.
//! `docs/meta-flags.md` is printed from it. What a flag makes a command do is not known here: see
//! `lower.rs` of the session, which can ask [`MetaFlags`] for any flag of this table.

mod lookup;
mod table;

use crate::request::{Exptime, MetaFlags};
use crate::text::letters::Letters;
use crate::text::number::{i32_of, push, u32_of, u64_of};
use crate::text::tokens::Tokens;
use lookup::shows;
pub(crate) use lookup::{Entry, FAST, SLOTS};
use table::Shows;
pub(crate) use table::{Argument, Command};

/// What flags can show of an item.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShownItem {
    /// Opaque to the server.
    pub client_flags: u32,
    /// 0 under `-C`.
    pub cas: u64,
    /// The whole value's length in bytes, shown even when the value is withheld.
    pub value_len: usize,
    /// The seconds that it has left.
    pub ttl: Ttl,
    /// Seconds since the access before this one.
    pub idle_secs: u32,
    /// The item had been asked for before.
    pub hit_before: bool,
}

/// The seconds that an item has left, as a request's flags change them in their order; `None` is for
/// ever. `t` shows what holds at its place among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ttl {
    /// Before the request.
    pub before: Option<u32>,
    /// After `T`.
    pub touched: Option<u32>,
    /// After `N`, if the request created the item.
    pub vivified: Option<Option<u32>>,
}

/// Writes what `flags`, in their order, show of an item in a reply to `command`.
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
            Shows::Nothing | Shows::Value => (),
            // As nearly all are.
            Shows::ClientFlags if item.client_flags == 0 => {
                out.extend_from_slice(&[b' ', letter, b'0']);
            }
            Shows::ClientFlags => number(&mark, item.client_flags.into(), out),
            Shows::Cas => number(&mark, item.cas, out),
            Shows::ValueLen => number(&mark, item.value_len as u64, out),
            Shows::HitBefore => number(&mark, item.hit_before.into(), out),
            Shows::Idle => number(&mark, item.idle_secs.into(), out),
            Shows::Ttl => match ttl {
                Some(secs) => number(&mark, secs.into(), out),
                None => out.extend_from_slice(&[b' ', letter, b'-', b'1']),
            },
            Shows::TtlTouched => ttl = item.ttl.touched,
            Shows::TtlVivified => ttl = item.ttl.vivified.unwrap_or(ttl),
            Shows::Key => key(out),
            Shows::Opaque => opaque(flag, out),
        }
    }
}

/// Writes what a reply shows that has no item: what the client knows anyway.
pub(crate) fn show_request<'b>(
    command: Command,
    flags: impl Iterator<Item = &'b [u8]>,
    key: impl Fn(&mut Vec<u8>),
    out: &mut Vec<u8>,
) {
    for flag in flags {
        let Some(&letter) = flag.first() else { continue };
        match shows(command, letter) {
            Shows::Key => key(out),
            Shows::Opaque => opaque(flag, out),
            _ => (),
        }
    }
}

fn opaque(flag: &[u8], out: &mut Vec<u8>) {
    out.push(b' ');
    out.extend_from_slice(flag);
}

/// The names in the argument of a flag for tags.
pub(crate) fn split_tags(argument: &[u8]) -> impl Iterator<Item = &[u8]> {
    argument.split(|byte| *byte == b',')
}

#[inline]
pub(crate) fn number(before: &[u8], number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(before);
    push(number, out);
}

impl Argument {
    /// Reads an argument of this kind as a number: seconds with their sign extended, 0 for kinds that
    /// are no numbers. `None` if the argument is wrong.
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
    /// Whether a flag is there. For a flag that has no field in its request.
    #[inline]
    #[must_use]
    pub fn has(&self, letter: u8) -> bool {
        self.letters.has(Letters::of(letter))
    }

    /// The number behind a flag that is there and has one. For a flag that has no field in its
    /// request.
    #[must_use]
    pub fn number(&self, letter: u8) -> Option<u64> {
        let argument = Entry::of(letter)?.argument;
        if !argument.is_number() {
            return None;
        }
        let flag = Tokens(self.raw).find(|flag| flag.first() == Some(&letter))?;
        argument.read(flag.get(1..)?)
    }

    /// The names of the tags.
    pub fn tags(&self) -> impl Iterator<Item = &[u8]> {
        let tags = Tokens(self.raw).find(|flag| self.has(b'G') && flag.first() == Some(&b'G'));
        tags.into_iter().filter_map(|flag| flag.get(1..)).flat_map(split_tags)
    }

    /// The same for a flag whose argument is a time.
    #[must_use]
    pub fn exptime(&self, letter: u8) -> Option<Exptime> {
        self.number(letter).map(|secs| Exptime(secs.cast_signed()))
    }

    /// Whether flag `first` comes before flag `second`; true if `second` is not there.
    #[must_use]
    pub fn precedes(&self, first: u8, second: u8) -> bool {
        let place = |letter| Tokens(self.raw).position(|flag| flag.first() == Some(&letter));
        place(second).is_none_or(|second| place(first).is_some_and(|first| first < second))
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
    use Shows::Nothing;
    use std::path::Path;

    const BEGIN: &str = "<!-- flags -->\n";
    const END: &str = "<!-- end of flags -->\n";

    /// The row of a flag, as `docs/meta-flags.md` has it.
    fn row(flag: &Flag) -> String {
        let letter = char::from(flag.letter);
        let argument = match flag.argument {
            Argument::None | KeyEncoding => "",
            Opaque => "up to 31 bytes",
            Time => "seconds, 32 bits with a sign",
            Number | Initial | Delta => "a number, 64 bits",
            ClientFlags => "a number, 32 bits",
            Mode => "a letter",
            Tags => "1 to 7 names of 1 to 250 bytes, with commas between them",
        };
        let commands = flag.commands.iter().map(|command| format!("`{}`", verb(*command)));
        let commands = commands.collect::<Vec<_>>().join(" ");
        let shows = match flag.shows {
            Nothing | Shows::TtlTouched | Shows::TtlVivified => String::new(),
            Shows::Value => "the value, behind `VA <length>`".to_owned(),
            Shows::Key => "`k<key>`, and `b` behind it if the key is base64".to_owned(),
            Shows::Opaque => format!("`{letter}<bytes>`"),
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
    fn the_documentation_has_the_table() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/meta-flags.md");
        let page = std::fs::read_to_string(&path).unwrap();
        let (before, rest) = page.split_once(BEGIN).unwrap();
        let (_, after) = rest.split_once(END).unwrap();
        let head = "| flag | argument | commands | in the reply | what it asks for |\n\
                    |---|---|---|---|---|\n";
        let rows = FLAGS.iter().map(row).collect::<String>();
        let printed = [before, BEGIN, head, &rows, END, after].concat();
        if std::env::var_os("LARDER_WRITE_DOCS").is_some() {
            std::fs::write(&path, &printed).unwrap();
        } else {
            assert!(
                page == printed,
                "docs/meta-flags.md is not the table; LARDER_WRITE_DOCS=1 prints it"
            );
        }
    }

    /// A flag with an argument that is right for `command`.
    fn sent(flag: &Flag, command: Command) -> String {
        let argument = match flag.argument {
            Argument::None | KeyEncoding => "",
            Mode if command == Ma => "D",
            Mode => "A",
            _ => "77",
        };
        format!("{}{argument}", char::from(flag.letter))
    }

    /// A request without its flags themselves: what is left of them is their meaning.
    fn meaning(line: &str) -> String {
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
    fn a_flag_changes_nothing_of_a_command_that_gives_it_no_meaning() {
        for flag in FLAGS {
            for command in [Mg, Ms, Md, Ma, Me] {
                // Tags that would be lost are refused.
                let is_refused = flag.argument == Tags && command == Md;
                if flag.commands.contains(&command) || is_refused {
                    continue;
                }
                let (verb, sent) = (verb(command), sent(flag, command));
                let (len, body) = if command == Ms { (" 2", "hi\r\n") } else { ("", "") };
                let with = meaning(&format!("{verb} Zm9v{len} {sent}\r\n{body}"));
                assert_eq!(with, meaning(&format!("{verb} Zm9v{len}\r\n{body}")), "{verb} {sent}");
            }
        }
    }

    /// What the slow path answers to a hit.
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
    fn the_fast_path_takes_the_flags_that_it_can_show() {
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

    /// What `flags` say of the flag `letter`: whether it is there, and its number.
    fn asked(flags: &str, letter: u8) -> (bool, Option<u64>) {
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
    fn flags_can_be_asked_for_by_letter() {
        assert_eq!(asked("v J12 T-1", b'J'), (true, Some(12)));
        assert_eq!(asked("v J12 T-1", b'T'), (true, Some(u64::MAX)));
        assert_eq!(asked("v", b'J'), (false, None));
        assert_eq!(asked("v", b'v'), (true, None));
        assert_eq!(asked("v", b'!'), (false, None));
    }
}

//! The table of meta flags, and the types of its columns.

use Argument::{ClientFlags, Delta, Initial, KeyEncoding, Mode, Number, Opaque, Tags, Time};
use Command::{Ma, Md, Me, Mg, Ms};
use Shows::Nothing;

/// A flag. Its letter is one of `A` to `z`.
pub(super) struct Flag {
    pub(super) letter: u8,
    pub(super) argument: Argument,
    /// The commands that give it a meaning. The others accept it, and ignore it.
    pub(super) commands: &'static [Command],
    pub(super) shows: Shows,
    /// What it asks for, as `docs/meta-flags.md` says it.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "the documentation alone is printed from it")
    )]
    pub(super) doc: &'static str,
}

/// The commands that work on items.
const ALL: &[Command] = &[Mg, Ms, Md, Ma];

/// The table.
pub(super) const FLAGS: &[Flag] = &[
    flag(b'b', KeyEncoding, &[Mg, Ms, Md, Ma, Me], Nothing, "the key is base64"),
    flag(b'c', Argument::None, &[Mg, Ms, Ma], Shows::Cas, "show the CAS"),
    flag(b'f', Argument::None, &[Mg], Shows::ClientFlags, "show the client flags"),
    flag(b'h', Argument::None, &[Mg], Shows::HitBefore, "show whether it was read before: 0 or 1"),
    flag(b'k', Argument::None, ALL, Shows::Key, "show the key"),
    flag(b'l', Argument::None, &[Mg], Shows::Idle, "show the seconds since the last access"),
    flag(b'q', Argument::None, ALL, Nothing, "say nothing of the ordinary outcome"),
    flag(b's', Argument::None, &[Mg, Ms], Shows::ValueLen, "show the value's length in bytes"),
    flag(b't', Argument::None, &[Mg, Ma], Shows::Ttl, "show the seconds left; -1: no end"),
    flag(b'u', Argument::None, &[Mg], Nothing, "do not record the access"),
    flag(b'v', Argument::None, &[Mg, Ma], Shows::Value, "send the value"),
    flag(b'x', Argument::None, &[Md], Nothing, "remove the value, keep the item"),
    flag(b'C', Number, ALL, Nothing, "compare the CAS with this one first"),
    flag(b'D', Delta, &[Ma], Nothing, "count by this much"),
    flag(b'E', Number, ALL, Nothing, "use this as the item's new CAS"),
    flag(b'F', ClientFlags, &[Ms, Md], Nothing, "set the client flags"),
    flag(b'G', Tags, &[Mg, Ms, Ma], Nothing, "tags of the item that is stored, with commas"),
    flag(b'I', Argument::None, &[Ms, Md], Nothing, "invalidate: mark the item as stale"),
    flag(b'J', Initial, &[Ma], Nothing, "create the number with this value"),
    flag(b'L', Argument::None, &[], Nothing, "reserved for proxies"),
    flag(b'M', Mode, &[Ms, Ma], Nothing, "mode: E A P R S of `ms`, I D + - of `ma`"),
    flag(b'N', Time, &[Mg, Ms, Ma], Shows::TtlVivified, "create on a miss, to expire so"),
    flag(b'O', Opaque, ALL, Shows::Opaque, "opaque: repeat this in the reply"),
    flag(b'P', Argument::None, &[], Nothing, "reserved for proxies"),
    flag(b'R', Time, &[Mg], Nothing, "win the right to recache when fewer seconds are left"),
    flag(b'T', Time, ALL, Shows::TtlTouched, "set the expiry"),
];

const fn flag(
    letter: u8,
    argument: Argument,
    commands: &'static [Command],
    shows: Shows,
    doc: &'static str,
) -> Flag {
    Flag { letter, argument, commands, shows, doc }
}

/// What follows the letter of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Argument {
    /// Nothing; anything that does is ignored.
    None,
    /// Nothing; the key has to be valid base64.
    KeyEncoding,
    /// Up to 31 bytes of the client's own.
    Opaque,
    /// Seconds, of 32 bits with a sign.
    Time,
    /// A number of 64 bits.
    Number,
    /// A number of 64 bits, with a fault of its own.
    Initial,
    /// A number of 64 bits, with a fault of its own.
    Delta,
    /// A number of 32 bits.
    ClientFlags,
    /// One byte; a space stands for none.
    Mode,
    /// One to seven names of 1 to 250 bytes, with commas between them.
    Tags,
}

/// A meta command with flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Mg,
    Ms,
    Md,
    Ma,
    Me,
}

/// What a flag shows in the reply of a command that gives it a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shows {
    /// Nothing.
    Nothing,
    /// The value, before and behind the other flags.
    Value,
    /// [`ShownItem::client_flags`](super::ShownItem::client_flags).
    ClientFlags,
    /// [`ShownItem::cas`](super::ShownItem::cas).
    Cas,
    /// [`ShownItem::value_len`](super::ShownItem::value_len).
    ValueLen,
    /// [`ShownItem::hit_before`](super::ShownItem::hit_before).
    HitBefore,
    /// [`ShownItem::idle_secs`](super::ShownItem::idle_secs).
    Idle,
    /// [`ShownItem::ttl`](super::ShownItem::ttl), as the flags before it have changed it.
    Ttl,
    /// Nothing itself; a [`Self::Ttl`] behind it is [`Ttl::touched`](super::Ttl::touched).
    TtlTouched,
    /// Nothing itself; a [`Self::Ttl`] behind it is [`Ttl::vivified`](super::Ttl::vivified).
    TtlVivified,
    /// The key.
    Key,
    /// The flag as it was sent.
    Opaque,
}

impl Shows {
    /// Whether the fast path can show it: it knows an item's content, but nothing of earlier
    /// accesses.
    pub(super) const fn is_fast(self) -> bool {
        matches!(
            self,
            Self::Value | Self::ClientFlags | Self::Cas | Self::ValueLen | Self::Ttl | Self::Key
        )
    }
}

impl Argument {
    /// Whether it is a number.
    pub(super) const fn is_number(self) -> bool {
        !matches!(self, Self::None | Self::KeyEncoding | Self::Opaque | Self::Tags)
    }
}

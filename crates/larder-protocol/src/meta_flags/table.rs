//! The table of meta flags, and the types of its columns.

use Argument::{ClientFlags, Delta, Initial, KeyEncoding, Mode, Number, Opaque, Tags, Time};
use Command::{Ma, Md, Me, Mg, Ms};
use ReplyEffect::Nothing;

/// A row of the table. The letter is from `A` to `z`.
pub(super) struct Flag {
    pub(super) letter: u8,
    pub(super) argument: Argument,
    /// The commands that support the flag. Other commands accept and ignore it, with two
    /// exceptions: `md` refuses `G`, and `mt` refuses all flags except `b`, `k`, `O` and `q`.
    pub(super) commands: &'static [Command],
    pub(super) shows: ReplyEffect,
    /// The effect of the flag, for `docs/meta-flags.md`.
    #[cfg_attr(not(test), expect(dead_code, reason = "only the generated documentation uses it"))]
    pub(super) doc: &'static str,
}

/// All commands of [`Command`] except `me`.
const ALL: &[Command] = &[Mg, Ms, Md, Ma];

/// All flags: first the lower-case letters, then the upper-case letters.
pub(super) const FLAGS: &[Flag] = &[
    flag(b'b', KeyEncoding, &[Mg, Ms, Md, Ma, Me], Nothing, "the key is base64"),
    flag(b'c', Argument::None, &[Mg, Ms, Ma], ReplyEffect::Cas, "show the CAS"),
    flag(b'f', Argument::None, &[Mg], ReplyEffect::ClientFlags, "show the client flags"),
    flag(
        b'h',
        Argument::None,
        &[Mg],
        ReplyEffect::HitBefore,
        "show whether it was read before: 0 or 1",
    ),
    flag(b'k', Argument::None, ALL, ReplyEffect::Key, "show the key"),
    flag(b'l', Argument::None, &[Mg], ReplyEffect::Idle, "show the seconds since the last access"),
    flag(b'q', Argument::None, ALL, Nothing, "suppress the answer of the ordinary outcome"),
    flag(
        b's',
        Argument::None,
        &[Mg, Ms],
        ReplyEffect::ValueLen,
        "show the value's length in bytes",
    ),
    flag(
        b't',
        Argument::None,
        &[Mg, Ma],
        ReplyEffect::Ttl,
        "show the seconds until expiry; -1: never",
    ),
    flag(b'u', Argument::None, &[Mg], Nothing, "do not record the access"),
    flag(b'v', Argument::None, &[Mg, Ma], ReplyEffect::Value, "send the value"),
    flag(b'x', Argument::None, &[Md], Nothing, "remove the value, keep the item"),
    flag(
        b'C',
        Number,
        ALL,
        Nothing,
        "compare the CAS: change only if it is equal; `mg` omits the value if it is equal",
    ),
    flag(b'D', Delta, &[Ma], Nothing, "the amount to add or subtract"),
    flag(b'E', Number, ALL, Nothing, "the item's new CAS"),
    flag(b'F', ClientFlags, &[Ms, Md], Nothing, "set the client flags"),
    flag(b'G', Tags, &[Mg, Ms, Ma], Nothing, "the tags of the stored item, separated by commas"),
    flag(b'I', Argument::None, &[Ms, Md], Nothing, "invalidate: mark the item as stale"),
    flag(b'J', Initial, &[Ma], Nothing, "create the number with this value"),
    flag(b'L', Argument::None, &[], Nothing, "reserved for proxies"),
    flag(b'M', Mode, &[Ms, Ma], Nothing, "mode: E A P R S of `ms`, I D + - of `ma`"),
    flag(b'N', Time, &[Mg, Ms, Ma], ReplyEffect::TtlVivified, "create on a miss, with this expiry"),
    flag(b'O', Opaque, ALL, ReplyEffect::Opaque, "opaque: repeated in the reply"),
    flag(b'P', Argument::None, &[], Nothing, "reserved for proxies"),
    flag(
        b'R',
        Time,
        &[Mg],
        Nothing,
        "win the right to recache when the item expires in fewer seconds",
    ),
    flag(b'T', Time, ALL, ReplyEffect::TtlTouched, "set the expiry"),
];

const fn flag(
    letter: u8,
    argument: Argument,
    commands: &'static [Command],
    shows: ReplyEffect,
    doc: &'static str,
) -> Flag {
    Flag { letter, argument, commands, shows, doc }
}

/// The kind of a flag's argument. The argument is the bytes after the flag's letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Argument {
    /// No argument; further bytes are ignored.
    None,
    /// No argument; the key has to be valid base64.
    KeyEncoding,
    /// Up to 31 bytes that the server does not interpret.
    Opaque,
    /// Seconds: a signed 32-bit number.
    Time,
    /// A 64-bit number.
    Number,
    /// The 64-bit number of `J`, which has its own error message.
    Initial,
    /// The 64-bit number of `D`, which has its own error message.
    Delta,
    /// A 32-bit number.
    ClientFlags,
    /// One byte. A missing byte is read as a space.
    Mode,
    /// One to seven names of 1 to 250 bytes, separated by commas.
    Tags,
}

/// A meta command whose flags this table lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Mg,
    Ms,
    Md,
    Ma,
    Me,
}

/// A flag's effect on the reply to a command that supports the flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyEffect {
    /// No field: the flag itself is not in the reply.
    Nothing,
    /// The value. The length of the value precedes the other flags, and its bytes follow them.
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
    /// [`ShownItem::ttl`](super::ShownItem::ttl) after the changes that preceding flags make.
    Ttl,
    /// The reply does not have the flag. A later [`Self::Ttl`] shows
    /// [`Ttl::touched`](super::Ttl::touched).
    TtlTouched,
    /// The reply does not have the flag. If the request created the item, a later [`Self::Ttl`]
    /// shows [`Ttl::vivified`](super::Ttl::vivified).
    TtlVivified,
    /// The key of the item, in base64 if necessary.
    Key,
    /// The flag as it was sent.
    Opaque,
}

impl ReplyEffect {
    /// Returns whether the fast path can write what this effect adds to the reply. The fast path
    /// can use an item's content, but not its access history.
    pub(super) const fn is_fast(self) -> bool {
        matches!(
            self,
            Self::Value | Self::ClientFlags | Self::Cas | Self::ValueLen | Self::Ttl | Self::Key
        )
    }
}

impl Argument {
    /// Returns whether the argument is numeric.
    pub(super) const fn is_number(self) -> bool {
        !matches!(self, Self::None | Self::KeyEncoding | Self::Opaque | Self::Tags)
    }
}

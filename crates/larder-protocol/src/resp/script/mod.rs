//! Lua scripts that the server knows. It has no interpreter: it recognises a script by its text, and runs an operation
//! of its own in its place ([decision 14](../../../../docs/decisions/0014-no-lua.md)).
//!
//! `normal_form.rs` makes texts with one meaning equal, and `known.rs` has the hashes of the known ones.

mod known;
mod normal_form;

pub use normal_form::normal_form;

use super::error::{CommandError, Parsed};
use super::key::checked_key;
use super::number::i64_of;
use super::request::Arguments;
use sha1::{Digest, Sha1};

/// The SHA-1 hash of a script's text, which names the script in `EVALSHA`.
pub type ScriptHash = [u8; 20];

/// A known script. Each has one key. `ARGV[n]` is written `arg n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Script {
    /// Removes the item if its value is arg 1. Returns 1, or else 0.
    DeleteIfEqual,
    /// Sets the expiry to arg 2 milliseconds from now if the value is arg 1. Returns 1, or else 0.
    ExpireMillisIfEqual,
    /// As [`Self::ExpireMillisIfEqual`], in seconds.
    ExpireSecondsIfEqual,
    /// redis-py's extension of a lock: if the value is arg 1 and the item has an expiry, sets the expiry to arg 2
    /// milliseconds from now, or from the old expiry if arg 3 is `0`. Returns 1, or else 0.
    ExtendIfEqual,
    /// Removes the item if its value is arg 1. Returns 1, 0 if it has another value, and -1 if there is no item.
    ReleaseLock,
    /// Sets the expiry to arg 2 milliseconds from now if the value is arg 1; stores arg 1 for that time if there is no item.
    /// Returns 1, or else 0.
    ExpireOrLock,
    /// Stores arg 1 for arg 2 seconds if there is no item. Returns `OK`, or else null.
    AddForSeconds,
    /// Stores arg 1 for arg 2 milliseconds if there is no item. Returns `OK`, or else null.
    AddForMillis,
    /// Stores arg 1 for arg 2 milliseconds if there is no item. Returns 1, or else 0.
    LockForMillis,
    /// Stores arg 1 for arg 2 milliseconds if that is the value already. Returns 1, or else 0.
    RelockForMillis,
    /// Adds arg 1 to the number.
    Increment,
    /// Adds arg 1 to the number. Returns null if there is no item.
    IncrementExisting,
    /// Adds arg 2 to the number; if the sum is arg 2, sets the expiry to arg 1 seconds from now. Returns the sum.
    IncrementForSeconds,
    /// Adds arg 1 to the number; if the sum is 1, sets the expiry to arg 2 milliseconds from now. Returns the sum.
    IncrementForMillis,
    /// Adds 1 to the number; if the item has no expiry or arg 1 is `1`, sets the expiry to arg 2 milliseconds from now.
    /// Returns the sum, and the milliseconds left.
    CountHit,
    /// Adds 1 to the number, and sets the expiry to arg 2 milliseconds from now if arg 1 is `1`. Without an item, or without
    /// an expiry, stores 1 for arg 2 milliseconds. Returns the sum, and the milliseconds left.
    CountHitInWindow,
    /// Returns the value, or null, and the milliseconds left.
    ShowHits,
    /// Adds arg 1 to the number; a new item, or one without an expiry, gets one of arg 2 seconds. Returns the sum, and the
    /// milliseconds left.
    ConsumePoints,
    /// The generic cell rate algorithm (ITU-T I.371) of redis_rate: arg 1 is the burst, arg 2 the rate in each period
    /// of arg 3 seconds, arg 4 the cost. Returns the cost or 0, the remaining burst, and the seconds until a retry and until the reset.
    AllowRate,
    /// As [`Self::AllowRate`], but allows a part of the cost if the whole is too much.
    AllowRateAtMost,
}

impl Script {
    /// Recognises a script by its text.
    #[must_use]
    pub fn of_text(text: &[u8]) -> Option<Self> {
        find(&known::NORMAL_FORMS, &hash_of(&normal_form(text)?))
    }

    /// Recognises a script by the hash of its text, as a known library sends it.
    #[must_use]
    pub fn of_hash(hash: &ScriptHash) -> Option<Self> {
        find(&known::TEXTS, hash)
    }

    /// The number of arguments that the script uses.
    #[must_use]
    fn arguments(self) -> usize {
        match self {
            Self::ShowHits => 0,
            Self::DeleteIfEqual | Self::ReleaseLock => 1,
            Self::Increment | Self::IncrementExisting => 1,
            Self::ExtendIfEqual => 3,
            Self::AllowRate | Self::AllowRateAtMost => 4,
            _ => 2,
        }
    }
}

fn find(table: &[(&str, Script)], hash: &ScriptHash) -> Option<Script> {
    let digits = hex(hash);
    table.iter().find(|(known, _)| *known == digits).map(|(_, script)| *script)
}

/// A hash in hexadecimal digits.
#[must_use]
pub fn hex(hash: &ScriptHash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The hash of a script's text.
#[must_use]
pub fn hash_of(text: &[u8]) -> ScriptHash {
    Sha1::digest(text).into()
}

/// A script as a request names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptName<'b> {
    /// `EVAL`: the text.
    Text(&'b [u8]),
    /// `EVALSHA`: the hash of the text.
    Hash(ScriptHash),
}

/// A call of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptCall<'b> {
    /// The script.
    pub name: ScriptName<'b>,
    /// The key.
    pub key: &'b [u8],
    /// The arguments.
    pub arguments: Arguments<'b>,
}

impl<'b> ScriptCall<'b> {
    /// Parses the arguments of `EVAL`, or of `EVALSHA` if `by_hash`.
    pub(super) fn parse(mut rest: Arguments<'b>, by_hash: bool) -> Parsed<'b, Self> {
        let script = rest.next().unwrap_or_default();
        let keys = i64_of(rest.next().unwrap_or_default()).ok_or(CommandError::NotInteger)?;
        match usize::try_from(keys) {
            Err(_) => return Err(CommandError::NegativeKeys),
            Ok(keys) if keys > rest.len() => return Err(CommandError::TooFewKeys),
            Ok(_) => (),
        }
        let name = match by_hash {
            true => ScriptName::Hash(parse_hash(script).ok_or(CommandError::NoScript)?),
            false => ScriptName::Text(script),
        };
        if keys != 1 {
            return Err(if by_hash { CommandError::NoScript } else { CommandError::UnknownScript });
        }
        let key = checked_key(rest.next().unwrap_or_default())?;
        Ok(Self { name, key, arguments: rest })
    }

    /// The arguments of `script`.
    ///
    /// # Errors
    /// There are too few, or a number is malformed.
    pub fn arguments_of(&self, script: Script) -> Result<[&'b [u8]; 4], CommandError<'static>> {
        if self.arguments.len() < script.arguments() {
            return Err(CommandError::ScriptArguments);
        }
        let mut rest = self.arguments;
        Ok([(); 4].map(|()| rest.next().unwrap_or_default()))
    }
}

/// Parses a hash in hexadecimal digits.
#[must_use]
pub fn parse_hash(digits: &[u8]) -> Option<ScriptHash> {
    let mut hash = [0; 20];
    if digits.len() != 2 * hash.len() {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(
            str::from_utf8(pair).ok().filter(|pair| !pair.starts_with('+'))?,
            16,
        )
        .ok()?;
    }
    Some(hash)
}

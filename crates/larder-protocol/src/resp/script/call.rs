//! Script calls: the arguments of `EVAL` and `EVALSHA`.

use super::hash::{ScriptHash, parse_hash};
use super::kind::Script;
use crate::resp::error::{CommandError, Parsed};
use crate::resp::key::checked_key;
use crate::resp::number::i64_of;
use crate::resp::request::Arguments;

/// The script that a request calls, given by its text or its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptName<'b> {
    /// `EVAL`: the text of the script.
    Text(&'b [u8]),
    /// `EVALSHA`: the hash of the text.
    Hash(ScriptHash),
}

/// A call of a script with one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptCall<'b> {
    /// The text or the hash of the script.
    pub name: ScriptName<'b>,
    /// The only key of the call, `KEYS[1]`.
    pub key: &'b [u8],
    /// The arguments after the key.
    pub arguments: Arguments<'b>,
}

impl<'b> ScriptCall<'b> {
    /// Parses the arguments of `EVAL`, or of `EVALSHA` if `by_hash`.
    pub(in crate::resp) fn parse(mut rest: Arguments<'b>, by_hash: bool) -> Parsed<'b, Self> {
        let script = rest.next().unwrap_or_default();
        let name = match by_hash {
            true => ScriptName::Hash(parse_hash(script).ok_or(CommandError::NoScript)?),
            false => ScriptName::Text(script),
        };
        let keys = i64_of(rest.next().unwrap_or_default()).ok_or(CommandError::NotInteger)?;
        match usize::try_from(keys) {
            Err(_) => return Err(CommandError::NegativeKeys),
            Ok(keys) if keys > rest.len() => return Err(CommandError::TooFewKeys),
            Ok(_) => (),
        }
        if keys != 1 {
            return Err(if by_hash { CommandError::NoScript } else { CommandError::UnknownScript });
        }
        let key = checked_key(rest.next().unwrap_or_default())?;
        Ok(Self { name, key, arguments: rest })
    }

    /// Returns the arguments of `script`.
    ///
    /// # Errors
    /// There are too few arguments, or a number is malformed.
    pub fn arguments_of(&self, script: Script) -> Result<[&'b [u8]; 4], CommandError<'static>> {
        if self.arguments.len() < script.arguments() {
            return Err(CommandError::ScriptArguments);
        }
        let mut rest = self.arguments;
        Ok([(); 4].map(|()| rest.next().unwrap_or_default()))
    }
}

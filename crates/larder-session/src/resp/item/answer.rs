//! The answers that commands on items share.

use crate::resp::batch::Outcome;
use crate::session::resp_state::State;
use larder_operations::Stored;
use larder_protocol::resp::CommandError;
use larder_store::HashedKey;

/// The number that a command is answered with, or an error; `None` if the item is on slower storage.
pub(super) type Answer<'b> = Option<Result<i64, CommandError<'b>>>;

/// Waits for one key.
pub(in crate::resp) fn waits(state: &mut State, key: HashedKey<'_>) -> Outcome {
    state.waiting.clear();
    state.waiting.push(key.hash);
    Outcome::Wait
}

/// Whether memcached's text protocol cannot write a key.
pub(super) fn is_binary(key: &[u8]) -> bool {
    key.iter().any(|byte| *byte <= b' ' || *byte == 0x7f)
}

pub(super) fn refusal(stored: Stored) -> CommandError<'static> {
    match stored {
        Stored::OutOfMemory => CommandError::OutOfMemory,
        _ => CommandError::TooLarge,
    }
}

pub(super) fn number(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}

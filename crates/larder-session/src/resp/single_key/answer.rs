//! Results and checks shared by the commands on one item.

use crate::resp::batch::Outcome;
use crate::session::resp_state::State;
use larder_operations::StoreOutcome;
use larder_protocol::resp::CommandError;
use larder_store::HashedKey;

/// The number or error that a command replies with; `None` if the item is on slower storage.
pub(super) type Answer<'b> = Option<Result<i64, CommandError<'b>>>;

/// Makes a request wait for the item of one key on slower storage.
pub(in crate::resp) fn waits(state: &mut State, key: HashedKey<'_>) -> Outcome {
    state.waiting.clear();
    state.waiting.push(key.hash);
    Outcome::Wait
}

/// Returns whether a key contains bytes that memcached's text protocol cannot transmit in a key.
pub(in crate::resp) fn is_binary(key: &[u8]) -> bool {
    key.iter().any(|byte| *byte <= b' ' || *byte == 0x7f)
}

/// Returns a number without trailing blanks. memcached's `decr` pads a number with blanks if it
/// becomes shorter.
pub(in crate::resp) fn without_padding(mut number: &[u8]) -> &[u8] {
    while let [rest @ .., b' '] = number {
        number = rest;
    }
    number
}

pub(in crate::resp) fn refusal(stored: StoreOutcome) -> CommandError<'static> {
    match stored {
        StoreOutcome::OutOfMemory | StoreOutcome::NoCas => CommandError::OutOfMemory,
        _ => CommandError::TooLarge,
    }
}

pub(super) fn number(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}

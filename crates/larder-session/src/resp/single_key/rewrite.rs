//! Commands that change a part of a value: `SETRANGE`, `SETBIT` and `INCRBYFLOAT`.

use super::answer::{Answer, is_binary, number, waits, without_padding};
use super::bits::place_of;
use crate::Host;
use crate::context::Context;
use crate::resp::batch::Outcome;
use crate::session::resp_state::State;
use larder_operations::EditRefusal;
use larder_protocol::reply::resp as reply;
use larder_protocol::resp::{CommandError, Decimal, decimal};
use larder_store::{Engine, HashedKey};

/// Executes `SETRANGE`: overwrites the bytes that start at `offset`, and fills a gap after the old
/// value with zeros. Returns the new length of the value.
pub(super) fn set_range<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    key: HashedKey<'_>,
    offset: u64,
    bytes: &[u8],
) -> Answer<'static> {
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    let end = start.saturating_add(bytes.len());
    let fits = bytes.is_empty() || fits(cx, key, end);
    rewrite(cx, key, |value, _| {
        if bytes.is_empty() {
            return (Ok(number(value.len())), false);
        }
        if !fits || !grow(value, end) {
            return (Err(CommandError::TooLarge), false);
        }
        value.get_mut(start..end).into_iter().for_each(|range| range.copy_from_slice(bytes));
        (Ok(number(value.len())), true)
    })
}

/// Executes `SETBIT`: sets a bit, and fills a gap after the old value with zeros. Returns the old
/// bit.
pub(super) fn set_bit<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    key: HashedKey<'_>,
    offset: u64,
    bit: bool,
) -> Answer<'static> {
    let (at, mask) = place_of(offset);
    let fits = fits(cx, key, at.saturating_add(1));
    rewrite(cx, key, |value, exists| {
        let len = value.len();
        if !fits || !grow(value, at + 1) {
            return (Err(CommandError::TooLarge), false);
        }
        let Some(byte) = value.get_mut(at) else { return (Err(CommandError::TooLarge), false) };
        let old = *byte & mask != 0;
        *byte = if bit { *byte | mask } else { *byte & !mask };
        let changes = old != bit || value.len() != len || !exists;
        (Ok(i64::from(old)), changes)
    })
}

/// Executes `INCRBYFLOAT`: adds `delta` to a decimal number, and writes the sum.
pub(super) fn add_decimal<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    state: &mut State,
    key: HashedKey<'_>,
    delta: Decimal,
    output: &mut Vec<u8>,
) -> Outcome {
    let added = rewrite(cx, key, |value, exists| {
        let old = if exists { decimal(without_padding(value)) } else { Ok(Decimal::ZERO) };
        let sum = old.and_then(|old| old.checked_add(delta).ok_or(CommandError::FloatRange));
        match sum.map(|sum| sum.to_string()) {
            Ok(text) => {
                *value = text.clone().into_bytes();
                (Ok(text), true)
            }
            Err(error) => (Err(error), false),
        }
    });
    match added {
        Some(Ok(sum)) => reply::bulk(sum.as_bytes(), output),
        Some(Err(error)) => reply::error(&error, output),
        None => return waits(state, key),
    }
    Outcome::Done
}

/// Changes a value with `change`, and counts a refused change. Returns `None` if the item is on
/// slower storage.
fn rewrite<E: Engine, H: Host, R>(
    cx: &mut Context<'_, E, H>,
    key: HashedKey<'_>,
    change: impl FnMut(&mut Vec<u8>, bool) -> (Result<R, CommandError<'static>>, bool),
) -> Option<Result<R, CommandError<'static>>> {
    let result = match cx.operations.rewrite(key, is_binary(key.bytes), change) {
        Ok(result) => result?,
        Err(EditRefusal::OutOfMemory) => return Some(Err(CommandError::OutOfMemory)),
        Err(EditRefusal::TooLarge) => return Some(Err(CommandError::TooLarge)),
    };
    if let Err(CommandError::TooLarge) = result {
        cx.operations.counters.thread.store_too_large.add(1);
    }
    Some(result)
}

/// Returns whether an item with a value of this length is within the maximum item size.
fn fits<E: Engine, H: Host>(cx: &Context<'_, E, H>, key: HashedKey<'_>, len: usize) -> bool {
    let limits = cx.operations.limits;
    len < limits.item_size_max && limits.footprint(key.bytes.len(), len, 0) <= limits.item_size_max
}

/// Appends zeros to a value up to the length `len`. Returns false if the allocation fails.
fn grow(value: &mut Vec<u8>, len: usize) -> bool {
    let missing = len.saturating_sub(value.len());
    let has_room = value.try_reserve_exact(missing).is_ok();
    if has_room && missing > 0 {
        value.resize(len, 0);
    }
    has_room
}

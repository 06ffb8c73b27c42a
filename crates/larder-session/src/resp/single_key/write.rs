//! Commands that store an item or change its value.

use super::answer::{Answer, is_binary, number, refusal, waits};
use super::expiry::new_expiry;
use super::read::try_show_copied;
use crate::Host;
use crate::context::Context;
use crate::resp::batch::Outcome;
use crate::session::Session;
use crate::session::resp_state::State;
use larder_operations::{
    self as operations, AddOutcome, CreateSum, Edit, StoreOutcome, Swap, SwapCondition, has_value,
};
use larder_protocol::reply::resp as reply;
use larder_protocol::resp::{CommandError, Set, SetAnswer, SetCondition};
use larder_store::{Engine, Expiry, HashedKey, Refusal, Tag};

impl<E: Engine> Session<E> {
    /// Answers a `SET` without options on the fast path. The caller ensures that there is no
    /// observer.
    #[inline]
    pub(in crate::resp) fn resp_fast_set<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        key: HashedKey<'_>,
        value: &[u8],
        output: &mut Vec<u8>,
    ) -> Outcome {
        let op = operations::Set {
            value,
            client_flags: 0,
            expiry: Expiry::Never,
            binary_key: is_binary(key.bytes),
            refusal_removes: false,
        };
        match cx.operations.set(key, &op) {
            StoreOutcome::Stored { .. } => reply::ok(output),
            StoreOutcome::Pending => return waits(state, key),
            refused => reply::error(&refusal(refused), output),
        }
        Outcome::Done
    }

    pub(super) fn resp_set<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        key: HashedKey<'_>,
        set: &Set<'_>,
        output: &mut Vec<u8>,
    ) -> Outcome {
        let expiry = match new_expiry(set.expiry, cx.operations.now) {
            Ok(expiry) => expiry,
            Err(error) => {
                reply::error(&error, output);
                return Outcome::Done;
            }
        };
        // If the command has waited, use the tags of its first execution: a client may have dropped
        // one of these tags since, which must invalidate the stored item.
        let kept = self.take_kept_tags().map(Ok);
        let tags = match kept.unwrap_or_else(|| cx.operations.tags(set.tags())) {
            Ok(tags) => tags,
            Err(refusal) => {
                let is_full = refusal == Refusal::OutOfMemory;
                let error = if is_full { CommandError::OutOfMemory } else { CommandError::NoTags };
                reply::error(&error, output);
                return Outcome::Done;
            }
        };
        let is_plain = set.condition == SetCondition::Always && set.answer == SetAnswer::Ok;
        if let (true, Some(expiry)) = (is_plain, expiry) {
            return match store(cx, key, set.value, (expiry, &tags)) {
                Some(Ok(())) => {
                    reply::ok(output);
                    Outcome::Done
                }
                Some(Err(error)) => {
                    reply::error(&error, output);
                    Outcome::Done
                }
                None => {
                    self.keep_tags(tags);
                    waits(state, key)
                }
            };
        }
        let condition = match set.condition {
            SetCondition::Always => SwapCondition::Always,
            SetCondition::Absent => SwapCondition::Absent,
            SetCondition::Present => SwapCondition::Present,
            SetCondition::Equal(value) => SwapCondition::Equal(value),
            SetCondition::Unequal(value) => SwapCondition::Unequal(value),
        };
        let binary_key = is_binary(key.bytes);
        let (mark, shows) = (output.len(), set.answer == SetAnswer::OldValue);
        let (value, is_read) = (set.value, shows);
        let op = Swap { condition, value, expiry, binary_key, tags: &tags, is_read };
        let (stored, old) = cx.operations.swap(key, &op, |item| {
            output.truncate(mark);
            if shows { try_show_copied(&item.value, output) } else { Some(()) }
        });
        if old.is_none() {
            output.truncate(mark);
        }
        match (stored, set.answer) {
            (StoreOutcome::Pending, _) => {
                output.truncate(mark);
                self.keep_tags(tags);
                return waits(state, key);
            }
            (StoreOutcome::Stored { .. } | StoreOutcome::NotStored, SetAnswer::OldValue) => {
                if old.is_none() {
                    reply::null(state.version, output);
                }
            }
            (StoreOutcome::Stored { .. }, SetAnswer::Ok) => reply::ok(output),
            (StoreOutcome::Stored { .. }, SetAnswer::Number) => reply::integer(1, output),
            (StoreOutcome::NotStored, SetAnswer::Ok) => reply::null(state.version, output),
            (StoreOutcome::NotStored, SetAnswer::Number) => reply::integer(0, output),
            (refused, _) => {
                output.truncate(mark);
                reply::error(&refusal(refused), output);
            }
        }
        Outcome::Done
    }
}

/// Stores a value unconditionally. If the store is refused, the old item stays. Returns `None` if
/// the store has to wait for slower storage.
pub(in crate::resp) fn store<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    key: HashedKey<'_>,
    value: &[u8],
    (expiry, tags): (Expiry, &[Tag]),
) -> Option<Result<(), CommandError<'static>>> {
    let op = operations::Store {
        value,
        value_len: value.len(),
        expiry,
        tags,
        binary_key: is_binary(key.bytes),
        ..operations::Store::default()
    };
    match cx.operations.store(key, &op, &mut None) {
        StoreOutcome::Stored { .. } => Some(Ok(())),
        StoreOutcome::Pending => None,
        refused => Some(Err(refusal(refused))),
    }
}

/// If `equal`, removes an item whose value equals `value`. Otherwise, removes an item whose value
/// differs from `value`. Returns the number of removed items.
pub(super) fn delete_if<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    key: HashedKey<'_>,
    value: &[u8],
    equal: bool,
) -> Answer<'static> {
    let edited = cx.operations.edit(key, is_binary(key.bytes), |item| {
        match item.filter(|item| has_value(item, value) == equal) {
            Some(_) => (Edit::Remove, 1),
            None => (Edit::Keep, 0),
        }
    });
    match edited {
        Ok(removed) => removed.map(Ok),
        Err(_) => Some(Err(CommandError::OutOfMemory)),
    }
}

pub(super) fn append<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    key: HashedKey<'_>,
    value: &[u8],
) -> Answer<'static> {
    let op = operations::Store {
        mode: operations::StoreMode::Append,
        value,
        value_len: value.len(),
        create: Some(Expiry::Never),
        binary_key: is_binary(key.bytes),
        ..operations::Store::default()
    };
    Some(match cx.operations.store(key, &op, &mut None) {
        StoreOutcome::Stored { len, .. } => Ok(number(len)),
        StoreOutcome::Pending => return None,
        refused => Err(refusal(refused)),
    })
}

pub(super) fn add<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    key: HashedKey<'_>,
    delta: i64,
) -> Answer<'static> {
    let create = CreateSum { binary_key: is_binary(key.bytes), ..CreateSum::default() };
    Some(match cx.operations.add(key, delta, &create) {
        AddOutcome::Number(number) => Ok(number),
        AddOutcome::NonNumeric => Err(CommandError::NotInteger),
        AddOutcome::Overflow => Err(CommandError::Overflow),
        AddOutcome::OutOfMemory => Err(CommandError::OutOfMemory),
        AddOutcome::Pending => return None,
    })
}

//! Stores, removals, increments and decrements.

use super::lower;
use crate::Host;
use crate::context::Context;
use crate::time::resolve;
use larder_operations as operations;
use larder_operations::RemoveOutcome;
use larder_protocol::reply::{self, ArithmeticReply, DeleteReply, StoreReply, Ttl};
use larder_protocol::{Arithmetic, Delete, FastSet, Store};
use larder_store::{Engine, HashedKey, Refusal, Tag};

/// Answers a store whose value has arrived, either within the request or as an upload. If the store
/// has to wait for the old item on slower storage, writes nothing and returns false. An
/// unconditional set without an observer does not wait.
#[inline]
pub(crate) fn store<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    store: &Store<'_>,
    key: HashedKey<'_>,
    (upload, tags): (&mut Option<E::Upload>, &[Tag]),
    output: &mut Vec<u8>,
) -> bool {
    let op = lower::store(store, tags, cx.operations.now, cx.settings);
    let outcome = if store.terminated || !fits(cx, store, key) {
        stored(cx.operations.store(key, &op, upload))
    } else {
        cx.operations.count_unusable(key, &op);
        Some(StoreReply::BadChunk)
    };
    let Some(outcome) = outcome else { return false };
    reply::stored(store, outcome, output);
    true
}

/// Answers a set on the fast path, without an observer. If the engine has to wait for slower
/// storage, writes nothing and returns false.
#[inline]
pub(crate) fn fast_set<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    set: &FastSet<'_>,
    key: HashedKey<'_>,
    output: &mut Vec<u8>,
) -> bool {
    let expiry = resolve(set.expiry(), cx.operations.now);
    let op = operations::Set {
        value: set.value,
        client_flags: set.client_flags,
        expiry,
        binary_key: false,
        refusal_removes: true,
    };
    match cx.operations.set(key, &op) {
        operations::StoreOutcome::Stored { cas, .. } => reply::fast_stored(set, cas, output),
        outcome => {
            let Some(outcome) = stored(outcome) else { return false };
            reply::stored(&set.store(), outcome, output);
        }
    }
    true
}

/// Returns whether an item with this key, client flags and value length is within the maximum item
/// size.
pub(crate) fn fits<E: Engine, H: Host>(
    cx: &Context<'_, E, H>,
    store: &Store<'_>,
    key: HashedKey<'_>,
) -> bool {
    let limits = cx.operations.limits;
    limits.footprint(key.bytes.len(), store.value_len, store.client_flags) <= limits.item_size_max
}

/// Refuses a store before its value has arrived.
pub(crate) fn refuse<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    store: &Store<'_>,
    key: HashedKey<'_>,
    refusal: Refusal,
    output: &mut Vec<u8>,
) {
    let outcome = match refusal {
        Refusal::NoTags => return reply::tags_refused(false, output),
        Refusal::OutOfMemory | Refusal::Pending => operations::StoreOutcome::OutOfMemory,
        Refusal::TooLarge | Refusal::WrongUpload => operations::StoreOutcome::TooLarge,
        Refusal::NoCas => operations::StoreOutcome::NoCas,
    };
    let op = lower::store(store, &[], cx.operations.now, cx.settings);
    if let Some(outcome) = stored(cx.operations.refuse(key, &op, outcome)) {
        reply::stored(store, outcome, output);
    }
}

/// Converts the outcome of a store to a reply. Returns `None` if the store has to wait for slower
/// storage.
fn stored(outcome: operations::StoreOutcome) -> Option<StoreReply> {
    Some(match outcome {
        operations::StoreOutcome::Stored { cas, len } => StoreReply::Stored { cas, len },
        operations::StoreOutcome::NotStored => StoreReply::NotStored,
        operations::StoreOutcome::Exists => StoreReply::Exists,
        operations::StoreOutcome::NotFound => StoreReply::NotFound,
        operations::StoreOutcome::TooLarge => StoreReply::TooLarge,
        operations::StoreOutcome::OutOfMemory => StoreReply::OutOfMemory,
        operations::StoreOutcome::NoCas => StoreReply::NoCas,
        operations::StoreOutcome::Pending => return None,
    })
}

/// Answers a removal. If the removal has to wait for slower storage, writes nothing and returns
/// false.
pub(crate) fn delete<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    delete: &Delete<'_>,
    key: HashedKey<'_>,
    output: &mut Vec<u8>,
) -> bool {
    let op = lower::remove(delete, cx.operations.now);
    let outcome = match cx.operations.remove(key, &op) {
        RemoveOutcome::Removed => DeleteReply::Deleted { cas: 0 },
        RemoveOutcome::NotFound => DeleteReply::NotFound,
        RemoveOutcome::Exists => DeleteReply::Exists,
        RemoveOutcome::OutOfMemory => DeleteReply::OutOfMemory,
        RemoveOutcome::Pending => return false,
    };
    reply::deleted(delete, outcome, output);
    true
}

/// Handles a store whose tags did not fit in memory like any other store that runs out of memory:
/// counts and reports the store, and removes the old item under the same conditions, so that
/// readers do not mistake the old item for the new item. Does nothing if the engine refused the
/// tags for another reason.
pub(crate) fn remove_refused<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    store: &Store<'_>,
    key: HashedKey<'_>,
    refusal: Refusal,
) {
    if refusal == Refusal::OutOfMemory {
        let op = lower::store(store, &[], cx.operations.now, cx.settings);
        cx.operations.refuse(key, &op, operations::StoreOutcome::OutOfMemory);
    }
}

/// Answers an increment or decrement. If the item is on slower storage, writes nothing and returns
/// false.
pub(crate) fn count<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    arithmetic: &Arithmetic<'_>,
    key: HashedKey<'_>,
    tags: &[Tag],
    output: &mut Vec<u8>,
) -> bool {
    let now = cx.operations.now;
    let op = lower::count(arithmetic, tags, now);
    let outcome = match cx.operations.count(key, &op) {
        operations::ArithmeticOutcome::Number { value, cas, before } => {
            let left = |exptime| resolve(exptime, now).left(now);
            let before_secs = before.and_then(|expiry| expiry.left(now));
            let touched = match (before, arithmetic.touch) {
                (_, Some(touch)) => left(touch),
                (_, None) => before_secs,
            };
            let vivified = match before {
                Some(_) => None,
                None => Some(arithmetic.vivify.and_then(left)),
            };
            ArithmeticReply::Number {
                value,
                cas,
                ttl: Ttl { before: before_secs, touched, vivified },
            }
        }
        operations::ArithmeticOutcome::NotFound => ArithmeticReply::NotFound,
        operations::ArithmeticOutcome::Exists => ArithmeticReply::Exists,
        operations::ArithmeticOutcome::NonNumeric => ArithmeticReply::NonNumeric,
        operations::ArithmeticOutcome::OutOfMemory { creating: true } => {
            ArithmeticReply::NotCreated
        }
        operations::ArithmeticOutcome::OutOfMemory { creating: false } => {
            ArithmeticReply::OutOfMemory
        }
        operations::ArithmeticOutcome::Pending => return false,
    };
    reply::counted(arithmetic, outcome, output);
    true
}

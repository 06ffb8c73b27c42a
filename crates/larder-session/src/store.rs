//! Stores: `set`, `add`, `replace`, `append`, `prepend`, `cas`, `ms`, and their binary kin.

use crate::Host;
use crate::session::Context;
use crate::time::resolve;
use larder_protocol::reply::{self, Stored};
use larder_protocol::{Shape, Store, StoreMode};
use larder_store::{
    Attributes, Change, Engine, HashedKey, Item, Lease, Lookup, NewCas, NewValue, Refusal, Seconds,
    SizeClasses,
};

/// How memcached would count the item that a store brings.
pub(crate) fn footprint(classes: &SizeClasses, store: &Store<'_>, key_len: usize) -> usize {
    classes.footprint(key_len, store.value_len, store.client_flags)
}

/// Answers a store whose value is here, in the request or uploaded; what became of it.
#[inline]
pub(crate) fn store<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    store: &Store<'_>,
    key: HashedKey<'_>,
    upload: &mut Option<E::Upload>,
    output: &mut Vec<u8>,
) -> Stored {
    let outcome = outcome(cx, store, key, upload);
    reply::stored(store, outcome, output);
    outcome
}

fn outcome<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    store: &Store<'_>,
    key: HashedKey<'_>,
    upload: &mut Option<E::Upload>,
) -> Stored {
    let classes = &cx.settings.classes;
    let size = footprint(classes, store, key.bytes.len());
    if size > cx.settings.item_size_max {
        return refuse(cx, store, key, Stored::TooLarge);
    }
    if !store.terminated {
        count_set(cx, size);
        return Stored::BadChunk;
    }
    let uploaded = upload.is_some();
    let (now, size_max) = (cx.now, cx.settings.item_size_max);
    let updated = cx.engine.update(key, upload, |found| {
        decide(store, uploaded, classes, size_max, key.bytes.len(), now, found)
    });
    match updated {
        Ok(updated) => {
            count(cx, store, size, &updated.result);
            match updated.result.outcome {
                Stored::Stored { len, .. } => Stored::Stored { cas: updated.cas, len },
                other => other,
            }
        }
        Err(Refusal::OutOfMemory) => refuse(cx, store, key, Stored::OutOfMemory),
        // What it was to be added to made it too large.
        Err(Refusal::TooLarge) if concatenates(store.mode) => Stored::NotStored,
        Err(Refusal::TooLarge | Refusal::WrongUpload) => refuse(cx, store, key, Stored::TooLarge),
    }
}

/// What was decided, and the class of the item that was there.
struct Decision {
    outcome: Stored,
    was_in: Option<usize>,
}

fn decide<'v, L: Lease>(
    store: &Store<'v>,
    uploaded: bool,
    classes: &SizeClasses,
    size_max: usize,
    key_len: usize,
    now: Seconds,
    found: Lookup<&Item<'_, L>>,
) -> (Change<'v>, Decision) {
    let Lookup::Hit(item) = found else {
        let (change, outcome) = decide_miss(store, uploaded, now);
        return (change, Decision { outcome, was_in: None });
    };
    let flags = item.attributes.client_flags;
    let was = classes.footprint(key_len, item.value.len(), flags);
    let (change, outcome) = match store.mode {
        mode if concatenates(mode) && was + store.value_len > size_max => {
            (Change::Keep, Stored::NotStored)
        }
        _ => decide_hit(store, uploaded, now, item),
    };
    (change, Decision { outcome, was_in: Some(classes.class_of(was)) })
}

fn decide_miss<'v>(store: &Store<'v>, uploaded: bool, now: Seconds) -> (Change<'v>, Stored) {
    let created = |expiry| {
        let attributes = Attributes {
            client_flags: store.client_flags,
            expiry: resolve(expiry, now),
            binary_key: store.key.base64,
            ..Attributes::default()
        };
        let put = put(store, attributes, whole(store, uploaded));
        (put, Stored::Stored { cas: 0, len: store.value_len })
    };
    let not_stored = (Change::Keep, Stored::NotStored);
    match (store.mode, store.vivify) {
        (StoreMode::Append | StoreMode::Prepend, Some(expiry)) => created(expiry),
        (StoreMode::Append | StoreMode::Prepend, None) => not_stored,
        _ if store.compare.is_some() => (Change::Keep, Stored::NotFound),
        (StoreMode::Replace, _) => not_stored,
        (StoreMode::Set | StoreMode::Add, _) => created(store.expiry),
    }
}

fn decide_hit<'v, L: Lease>(
    store: &Store<'v>,
    uploaded: bool,
    now: Seconds,
    item: &Item<'_, L>,
) -> (Change<'v>, Stored) {
    if store.mode == StoreMode::Add {
        return (Change::Promote, Stored::NotStored);
    }
    let stale = match store.compare {
        Some(cas) if cas == item.cas && cas != 0 => false,
        // An invalidated item's former owner may still bring its value: it is kept, as stale.
        Some(cas) if store.invalidate && cas < item.cas && !concatenates(store.mode) => true,
        Some(_) => return (Change::Keep, Stored::Exists),
        None => false,
    };
    let new = Attributes {
        client_flags: store.client_flags,
        expiry: resolve(store.expiry, now),
        binary_key: store.key.base64,
        ..Attributes::default()
    };
    let old = item.attributes;
    let (attributes, value, len) = match store.mode {
        StoreMode::Append => {
            let value =
                if uploaded { NewValue::AppendUploaded } else { NewValue::Append(store.value) };
            (Attributes { stale: false, won: false, ..old }, value, item.value.len())
        }
        StoreMode::Prepend => {
            let value =
                if uploaded { NewValue::PrependUploaded } else { NewValue::Prepend(store.value) };
            (Attributes { stale: false, won: false, ..old }, value, item.value.len())
        }
        _ if stale => {
            let kept = Attributes { stale: true, won: old.won, expiry: old.expiry, ..new };
            (kept, whole(store, uploaded), 0)
        }
        _ => (new, whole(store, uploaded), 0),
    };
    (put(store, attributes, value), Stored::Stored { cas: 0, len: len + store.value_len })
}

fn whole<'v>(store: &Store<'v>, uploaded: bool) -> NewValue<'v> {
    if uploaded { NewValue::Uploaded } else { NewValue::Bytes(store.value) }
}

fn put<'v>(store: &Store<'v>, attributes: Attributes, value: NewValue<'v>) -> Change<'v> {
    let cas = store.new_cas.map_or(NewCas::Fresh, NewCas::Exactly);
    Change::Put { attributes, cas, value, fetched: false }
}

fn concatenates(mode: StoreMode) -> bool {
    matches!(mode, StoreMode::Append | StoreMode::Prepend)
}

/// Counts a store whose value was taken in, by the size that it asked for.
fn count_set<E: Engine, H: Host>(cx: &Context<'_, E, H>, size: usize) {
    if let Some(class) = cx.counters.classes.get(cx.settings.classes.class_of(size)) {
        class.cmd_set.add(1);
    }
}

/// Counts a store that found its memory.
fn count<E: Engine, H: Host>(
    cx: &Context<'_, E, H>,
    store: &Store<'_>,
    size: usize,
    decision: &Decision,
) {
    let class = |class: usize| cx.counters.classes.get(class);
    count_set(cx, size);
    let compares =
        matches!(store.mode, StoreMode::Set | StoreMode::Replace) && store.compare.is_some();
    if !compares {
        return;
    }
    match (decision.outcome, decision.was_in.and_then(class)) {
        (Stored::Stored { .. }, Some(class)) => class.cas_hits.add(1),
        (Stored::Exists, Some(class)) => class.cas_badval.add(1),
        _ => cx.counters.thread.cas_misses.add(1),
    }
}

/// A store that can't be: what it was to replace goes too, lest a reader take it for the new value.
pub(crate) fn refuse<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    store: &Store<'_>,
    key: HashedKey<'_>,
    why: Stored,
) -> Stored {
    match why {
        Stored::TooLarge => cx.counters.thread.store_too_large.add(1),
        _ => cx.counters.thread.store_no_memory.add(1),
    }
    let drops = match store.shape {
        Shape::Meta(_) => true,
        Shape::Classic(_) => store.mode == StoreMode::Set && store.compare.is_none(),
        Shape::Binary(_) => store.mode == StoreMode::Set,
    };
    if drops {
        // Removing needs no memory.
        let _ = cx.engine.update(key, &mut None, |_| (Change::Remove, ()));
    }
    why
}

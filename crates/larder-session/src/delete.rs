//! Removals: `delete`, `md`, and their binary kin.

use crate::Host;
use crate::session::Context;
use crate::time::resolve;
use larder_protocol::reply::{self, Deleted};
use larder_protocol::{Delete, Shape};
use larder_store::{
    Access, Attributes, Change, Engine, Expiry, HashedKey, Item, Lease, Lookup, NewCas, NewValue,
    Seconds,
};

/// Answers a removal; what became of it.
pub(crate) fn delete<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    delete: &Delete<'_>,
    key: HashedKey<'_>,
    output: &mut Vec<u8>,
) -> Deleted {
    let (now, classes) = (cx.now, &cx.settings.classes);
    let mut class = 0;
    let updated = cx.engine.update(key, &mut None, |found| {
        let Lookup::Hit(item) = found else { return (Change::Keep, Deleted::NotFound) };
        let flags = item.attributes.client_flags;
        class = classes.class_of(classes.footprint(key.bytes.len(), item.value.len(), flags));
        decide(delete, now, item)
    });
    // A tombstone is smaller than what it replaces, but even that may find no memory.
    let outcome = updated.map_or(Deleted::NotFound, |updated| updated.result);
    match outcome {
        Deleted::Deleted { .. } if delete.invalidate => (),
        Deleted::Deleted { .. } => {
            if let Some(class) = cx.counters.classes.get(class) {
                class.delete_hits.add(1);
            }
        }
        // As memcached does it.
        Deleted::Exists if matches!(delete.shape, Shape::Binary(_)) => (),
        Deleted::NotFound | Deleted::Exists => cx.counters.thread.delete_misses.add(1),
    }
    reply::deleted(delete, outcome, output);
    outcome
}

fn decide<L: Lease>(
    delete: &Delete<'_>,
    now: Seconds,
    item: &Item<'_, L>,
) -> (Change<'static>, Deleted) {
    if delete.compare.is_some_and(|cas| cas != item.cas || cas == 0) {
        return (Change::Keep, Deleted::Exists);
    }
    let deleted = Deleted::Deleted { cas: 0 };
    let old = item.attributes;
    let touched = delete.touch.map(|touch| resolve(touch, now));
    let cas = |otherwise| delete.new_cas.map_or(otherwise, NewCas::Exactly);
    let change = match (delete.value_only, delete.invalidate) {
        (false, false) => Change::Remove,
        (false, true) => Change::Amend {
            attributes: Attributes {
                stale: true,
                won: false,
                expiry: touched.unwrap_or(old.expiry),
                ..old
            },
            cas: cas(NewCas::Fresh),
            access: Access::Untracked,
        },
        (true, stale) => Change::Put {
            attributes: Attributes {
                client_flags: delete.client_flags.unwrap_or(0),
                expiry: touched.unwrap_or(Expiry::Never),
                stale,
                won: false,
                binary_key: old.binary_key,
            },
            cas: cas(if stale { NewCas::Fresh } else { NewCas::Same }),
            value: NewValue::Bytes(&[]),
            fetched: false,
        },
    };
    (change, deleted)
}

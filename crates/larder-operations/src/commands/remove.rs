//! Removals and invalidations. An invalidation removes only the value of the item, or marks the
//! item as stale.

use crate::{Event, LookupResult, OpContext};
use larder_store::{
    Access, Attributes, Change, Engine, Expiry, HashedKey, Item, Lease, Lookup, NewCas, NewTags,
    NewValue, Refusal,
};

/// The parameters of a removal, or of an invalidation that keeps the item.
#[derive(Clone, Copy, Debug, Default)]
pub struct Remove {
    /// The CAS that the item must have to be removed or invalidated. `None` matches any CAS, and 0
    /// never matches.
    pub compare: Option<u64>,
    /// The CAS of the kept item. With `None`, the item gets a fresh CAS if `invalidate` is set, and
    /// otherwise keeps its CAS.
    pub new_cas: Option<u64>,
    /// Whether to keep the item and mark it as stale.
    pub invalidate: bool,
    /// Whether to keep the item without its value.
    pub value_only: bool,
    /// The expiry of the kept item. `None` keeps the expiry; with `value_only`, the item never
    /// expires.
    pub touch: Option<Expiry>,
    /// The client flags of an item kept without its value; `None` sets 0.
    pub client_flags: Option<u32>,
    /// If true, a CAS mismatch does not count as a miss.
    pub mismatch_uncounted: bool,
}

/// The outcome of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoveOutcome {
    /// The item was removed or invalidated. If the engine had no memory for an invalidation, it
    /// removed the item.
    Removed,
    /// There is no item.
    NotFound,
    /// The item has another CAS.
    Exists,
    /// The removal compares the CAS, and the engine had no memory for reading or changing the item.
    OutOfMemory,
    /// The item is on slower storage: repeat the operation.
    Pending,
}

impl<E: Engine> OpContext<'_, E> {
    /// Removes or invalidates an item.
    pub fn remove(&mut self, key: HashedKey<'_>, op: &Remove) -> RemoveOutcome {
        let limits = self.limits;
        let updated = self.update(key, &mut None, |item| {
            let found = LookupResult::of(&item, key.bytes.len(), limits);
            let Lookup::Hit(item) = item else {
                // Remove even a missing item: a replica may still have it.
                return (Change::Remove, (RemoveOutcome::NotFound, found));
            };
            let (change, removed) = op.decide(item);
            (change, (removed, found))
        });
        let (removed, found) = match updated {
            Ok(updated) => updated.result,
            Err(Refusal::Pending) => return RemoveOutcome::Pending,
            // The engine had no memory for reading the item or for keeping it invalidated. Remove
            // the item, because later lookups must not find the old value.
            Err(_) if op.compare.is_none() && self.guard.is_none() => {
                let _ = self.engine.update_unread(key, &mut None, |_| (Change::Remove, ()));
                (RemoveOutcome::Removed, LookupResult::Nothing)
            }
            Err(_) => (RemoveOutcome::OutOfMemory, LookupResult::Nothing),
        };
        match removed {
            RemoveOutcome::Removed if op.invalidate => (),
            RemoveOutcome::Removed => {
                self.counters.class(found.class(), |class| class.delete_hits.add(1))
            }
            RemoveOutcome::Exists if op.mismatch_uncounted => (),
            RemoveOutcome::OutOfMemory => (),
            _ => self.counters.thread.delete_misses.add(1),
        }
        self.notify(|| {
            let event = match (removed, found) {
                (RemoveOutcome::Removed, LookupResult::Live { class, value_len })
                    if !op.keeps() =>
                {
                    Some(Event::Removed { key: key.bytes, class, value_len })
                }
                _ => None,
            };
            [Some(Event::fetched_for_change(key.bytes, found)), event]
        });
        removed
    }
}

impl Remove {
    /// Returns whether the item is kept, either as a stale item or without its value.
    fn keeps(&self) -> bool {
        self.invalidate || self.value_only
    }

    fn decide<L: Lease>(&self, item: &Item<'_, L>) -> (Change<'static>, RemoveOutcome) {
        if self.compare.is_some_and(|cas| cas != item.cas || cas == 0) {
            return (Change::Keep, RemoveOutcome::Exists);
        }
        let old = item.attributes;
        let cas = |otherwise| self.new_cas.map_or(otherwise, NewCas::Exactly);
        let change = match (self.value_only, self.invalidate) {
            (false, false) => Change::Remove,
            (false, true) => Change::SetAttributes {
                attributes: Attributes {
                    stale: true,
                    won: false,
                    expiry: self.touch.unwrap_or(old.expiry),
                    ..old
                },
                cas: cas(NewCas::Fresh),
                access: Access::Untracked,
            },
            (true, stale) => Change::Put {
                attributes: Attributes {
                    client_flags: self.client_flags.unwrap_or(0),
                    expiry: self.touch.unwrap_or(Expiry::Never),
                    stale,
                    won: false,
                    binary_key: old.binary_key,
                },
                cas: cas(if stale { NewCas::Fresh } else { NewCas::Same }),
                value: NewValue::Bytes(&[]),
                fetched: false,
                tags: NewTags::Same,
            },
        };
        (change, RemoveOutcome::Removed)
    }
}

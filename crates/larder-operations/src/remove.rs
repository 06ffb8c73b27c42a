//! Removing an item, or keeping it as an invalidated or empty one.

use crate::{Event, Found, OpContext};
use larder_store::{
    Access, Attributes, Change, Engine, Expiry, HashedKey, Item, Lease, Lookup, NewCas, NewValue,
    Refusal,
};

/// A removal.
#[derive(Clone, Copy, Debug, Default)]
pub struct Remove {
    /// Only if the item's CAS is this one; 0 never is.
    pub compare: Option<u64>,
    /// The CAS of what is kept.
    pub new_cas: Option<u64>,
    /// Keep the item and mark it stale.
    pub invalidate: bool,
    /// Keep the item without its value.
    pub value_only: bool,
    /// The expiry of what is kept.
    pub touch: Option<Expiry>,
    /// The client flags of what is kept without its value.
    pub client_flags: Option<u32>,
    /// A CAS that differs is not counted as a miss.
    pub mismatch_uncounted: bool,
}

/// What became of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    /// The item is gone, or what is kept of it is marked.
    Removed,
    /// Nothing was there.
    NotFound,
    /// The CAS differs.
    Exists,
    /// The item is on slower storage: repeat the operation.
    Pending,
}

impl<E: Engine> OpContext<'_, E> {
    /// Removes an item.
    pub fn remove(&mut self, key: HashedKey<'_>, op: &Remove) -> Removed {
        let limits = self.limits;
        let updated = self.engine.update(key, &mut None, |item| {
            let found = Found::of(&item, key.bytes.len(), limits);
            let Lookup::Hit(item) = item else {
                // Also where nothing is: whoever follows this cache's changes may still have it.
                let change = if op.keeps() { Change::Keep } else { Change::Remove };
                return (change, (Removed::NotFound, found));
            };
            let (change, removed) = op.decide(item);
            (change, (removed, found))
        });
        let (removed, found) = match updated {
            Ok(updated) => updated.result,
            Err(Refusal::Pending) => return Removed::Pending,
            // What is kept is smaller than what it replaces, but even that may find no memory.
            Err(_) => (Removed::NotFound, Found::Nothing),
        };
        match removed {
            Removed::Removed if op.invalidate => (),
            Removed::Removed => {
                self.counters.class(found.class(), |class| class.delete_hits.add(1))
            }
            Removed::Exists if op.mismatch_uncounted => (),
            _ => self.counters.thread.delete_misses.add(1),
        }
        self.tell(|| {
            let event = match (removed, found) {
                (Removed::Removed, Found::Live { class, value_len }) if !op.keeps() => {
                    Some(Event::Removed { key: key.bytes, class, value_len })
                }
                _ => None,
            };
            [Some(Event::Fetched { key: key.bytes, found }), event]
        });
        removed
    }
}

impl Remove {
    /// Something of the item stays.
    fn keeps(&self) -> bool {
        self.invalidate || self.value_only
    }

    fn decide<L: Lease>(&self, item: &Item<'_, L>) -> (Change<'static>, Removed) {
        if self.compare.is_some_and(|cas| cas != item.cas || cas == 0) {
            return (Change::Keep, Removed::Exists);
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
            },
        };
        (change, Removed::Removed)
    }
}

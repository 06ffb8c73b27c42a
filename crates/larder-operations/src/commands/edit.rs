//! Changes of one item that depend on the item's value and expiry.

use crate::{Event, LookupResult, OpContext, StoreKind, StoreOutcome};
use larder_store::{
    Access, Attributes, Change, Engine, Expiry, HashedKey, Item, Lease, Lookup, NewCas, NewTags,
    NewValue, Refusal, Value,
};

/// A change of an existing or missing item.
#[derive(Clone, Copy, Debug)]
pub enum Edit<'v> {
    /// Changes nothing.
    Keep,
    /// Removes the item.
    Remove,
    /// Sets the expiry of the item, or removes the item if the expiry is past. Without an item,
    /// changes nothing.
    Expire(Expiry),
    /// Stores a value.
    Store {
        /// True to store a new item without tags and client flags, as `SET` does. False to keep the
        /// tags and client flags of the old item.
        replaces: bool,
        /// The value. The edit is refused if the item would exceed the maximum item size.
        value: EditValue<'v>,
        /// The expiry of the stored item, which replaces the old expiry.
        expiry: Expiry,
    },
}

/// The value that an [`Edit`] stores.
#[derive(Clone, Copy, Debug)]
pub enum EditValue<'v> {
    /// The caller's bytes.
    Bytes(&'v [u8]),
    /// The first bytes of the array; the second field is their number.
    Short([u8; 20], u8),
}

impl EditValue<'_> {
    /// Returns the length of the value in bytes.
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Short(_, len) => (*len).into(),
        }
    }
}

/// The reason for refusing an [`Edit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EditRefusal {
    /// The engine had no memory, or no CAS value, for the change.
    OutOfMemory,
    /// The new value would exceed the maximum item size.
    TooLarge,
}

impl<E: Engine> OpContext<'_, E> {
    /// Changes an item. `decide` receives the live item, or `None`, and returns the change and a
    /// result. If another thread changes the item concurrently, `decide` is called again. Returns
    /// the result of the last call, or `None` if the item is on slower storage. The caller then has
    /// to repeat the operation.
    ///
    /// # Errors
    /// See [`EditRefusal`]. The item is unchanged.
    pub fn edit<'v, R>(
        &mut self,
        key: HashedKey<'_>,
        binary_key: bool,
        mut decide: impl FnMut(Option<&Item<'_, E::Lease>>) -> (Edit<'v>, R),
    ) -> Result<Option<R>, EditRefusal> {
        let (limits, now) = (self.limits, self.now);
        let (mut found, mut edit) = (LookupResult::Nothing, Edit::Keep);
        let updated = self.update(key, &mut None, |item| {
            found = LookupResult::of(&item, key.bytes.len(), limits);
            let old = if let Lookup::Hit(item) = item { Some(item) } else { None };
            let result;
            (edit, result) = decide(old);
            let change = match edit {
                Edit::Keep => Change::Keep,
                Edit::Remove => Change::Remove,
                Edit::Expire(expiry) if expiry.is_past(now) => Change::Remove,
                Edit::Expire(expiry) => match old {
                    Some(item) => Change::SetAttributes {
                        attributes: Attributes { expiry, ..item.attributes },
                        cas: NewCas::Same,
                        access: Access::Tracked,
                    },
                    None => Change::Keep,
                },
                Edit::Store { value, .. }
                    if limits.footprint(key.bytes.len(), value.len(), 0) > limits.item_size_max =>
                {
                    return (Change::Keep, Err(EditRefusal::TooLarge));
                }
                Edit::Store { replaces, value, expiry } => Change::Put {
                    attributes: match old {
                        Some(item) if !replaces => {
                            Attributes { expiry, stale: false, won: false, ..item.attributes }
                        }
                        _ => Attributes { expiry, binary_key, ..Attributes::default() },
                    },
                    cas: NewCas::Fresh,
                    value: match value {
                        EditValue::Bytes(bytes) => NewValue::Bytes(bytes),
                        EditValue::Short(digits, len) => {
                            NewValue::Number { digits, len, width: len.into() }
                        }
                    },
                    fetched: false,
                    tags: if replaces { NewTags::None } else { NewTags::Same },
                },
            };
            (change, Ok(result))
        });
        let thread = &self.counters.thread;
        let result = match updated {
            Ok(updated) => updated.result,
            Err(Refusal::Pending) => return Ok(None),
            Err(Refusal::OutOfMemory | Refusal::NoCas) => Err(EditRefusal::OutOfMemory),
            Err(_) => Err(EditRefusal::TooLarge),
        };
        match result {
            Ok(_) => (),
            Err(EditRefusal::OutOfMemory) => thread.store_no_memory.add(1),
            Err(EditRefusal::TooLarge) => thread.store_too_large.add(1),
        }
        match found.class() {
            Some(class) => self.counters.class(Some(class), |class| {
                class.get_hits.add(1);
                match edit {
                    Edit::Remove => class.delete_hits.add(1),
                    Edit::Expire(_) => class.touch_hits.add(1),
                    Edit::Keep | Edit::Store { .. } => (),
                }
            }),
            None => thread.get_misses.add(1),
        }
        if let (Edit::Store { value, .. }, Ok(_)) = (edit, &result) {
            let class = limits.class_of(key.bytes.len(), value.len(), 0);
            self.counters.class(Some(class), |class| class.cmd_set.add(1));
        }
        self.notify(|| {
            let removed = match (found, edit) {
                (LookupResult::Live { class, value_len }, Edit::Remove) => {
                    Some(Event::Removed { key: key.bytes, class, value_len })
                }
                (LookupResult::Live { class, value_len }, Edit::Expire(expiry))
                    if expiry.is_past(now) =>
                {
                    Some(Event::Removed { key: key.bytes, class, value_len })
                }
                (_, Edit::Store { replaces: true, value, expiry }) if result.is_ok() => {
                    let (key, value_len) = (key.bytes, value.len());
                    Some(Event::Stored {
                        key,
                        outcome: StoreOutcome::Stored { cas: 0, len: value_len },
                        kind: StoreKind::Set,
                        ttl: expiry.left(now),
                        class: limits.class_of(key.len(), value_len, 0),
                        value_len,
                    })
                }
                (LookupResult::Live { .. }, _) => None,
                (_, Edit::Store { value, expiry, .. }) if result.is_ok() => {
                    Some(Event::created(key.bytes, 0, expiry, value.len(), now, limits))
                }
                _ => None,
            };
            [Some(Event::fetched_for_change(key.bytes, found)), removed]
        });
        result.map(Some)
    }
}

/// Returns whether the value of an item is `bytes`.
#[must_use]
pub fn has_value<L: Lease>(item: &Item<'_, L>, bytes: &[u8]) -> bool {
    let lease = match &item.value {
        Value::Whole(value) => return *value == bytes,
        Value::Large(lease) if lease.len() == bytes.len() => lease,
        Value::Large(_) => return false,
    };
    let mut rest = bytes;
    while !rest.is_empty() {
        match rest.strip_prefix(lease.piece(bytes.len() - rest.len())) {
            Some(behind) => rest = behind,
            None => return false,
        }
    }
    true
}

//! Stores and removals that return the old item, and stores that keep its expiry.

use super::edit::has_value;
use crate::{Event, LookupResult, OpContext, StoreKind, StoreOutcome};
use larder_store::{
    Attributes, Change, Engine, Expiry, HashedKey, Item, Lookup, NewCas, NewTags, NewValue,
    Refusal, Tag,
};

/// A store that returns the old item.
#[derive(Clone, Copy, Debug)]
pub struct Swap<'v> {
    /// The condition for storing the value.
    pub condition: SwapCondition<'v>,
    /// The bytes to store.
    pub value: &'v [u8],
    /// The expiry of the item; `None` keeps the expiry of the old item.
    pub expiry: Option<Expiry>,
    /// Whether replies in memcached's text protocol contain the key in base64: a client sent it in
    /// base64, or it contains bytes that the text protocol cannot carry.
    pub binary_key: bool,
    /// The tags of the item.
    pub tags: &'v [Tag],
    /// Whether the client receives the old value, so that the store is also a read.
    pub is_read: bool,
}

/// The condition of a [`Swap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapCondition<'v> {
    /// Stores the value unconditionally.
    Always,
    /// Stores the value only if there is no item.
    Absent,
    /// Stores the value only if there is an item.
    Present,
    /// Stores the value only if there is an item with this value.
    Equal(&'v [u8]),
    /// Stores the value unless there is an item with this value.
    Unequal(&'v [u8]),
}

impl<E: Engine> OpContext<'_, E> {
    /// Stores `op.value` if the condition holds. Passes the old item to `show`, even if the
    /// condition does not hold. Returns the outcome, and the result of `show`. This result is
    /// `None` if there is no old item, or if the store fails for a reason other than the condition.
    /// A refused store keeps the old item. If `show` returns `None` because it cannot show the old
    /// item, the old item stays and the outcome is `OutOfMemory`. If another thread changes the
    /// item concurrently, `show` is called again, and the result of its last call is returned.
    pub fn swap<R>(
        &mut self,
        key: HashedKey<'_>,
        op: &Swap<'_>,
        mut show: impl FnMut(&Item<'_, E::Lease>) -> Option<R>,
    ) -> (StoreOutcome, Option<R>) {
        let (limits, len) = (self.limits, op.value.len());
        let size = limits.footprint(key.bytes.len(), len, 0);
        if size > limits.item_size_max {
            self.counters.thread.store_too_large.add(1);
            return (StoreOutcome::TooLarge, None);
        }
        let mut found = LookupResult::Nothing;
        let updated = self.update(key, &mut None, |item| {
            found = LookupResult::of(&item, key.bytes.len(), limits);
            let old = if let Lookup::Hit(item) = item { Some(item) } else { None };
            let shown = old.and_then(&mut show);
            if old.is_some() && shown.is_none() {
                return (Change::Keep, (StoreOutcome::OutOfMemory, None));
            }
            let is_met = match op.condition {
                SwapCondition::Always => true,
                SwapCondition::Absent => old.is_none(),
                SwapCondition::Present => old.is_some(),
                SwapCondition::Equal(value) => old.is_some_and(|old| has_value(old, value)),
                SwapCondition::Unequal(value) => !old.is_some_and(|old| has_value(old, value)),
            };
            if !is_met {
                return (Change::Keep, (StoreOutcome::NotStored, shown));
            }
            let kept = old.map_or(Expiry::Never, |old| old.attributes.expiry);
            let expiry = op.expiry.unwrap_or(kept);
            let attributes =
                Attributes { expiry, binary_key: op.binary_key, ..Attributes::default() };
            let (cas, value) = (NewCas::Fresh, NewValue::Bytes(op.value));
            let tags = if op.tags.is_empty() { NewTags::None } else { NewTags::These(op.tags) };
            let put = Change::Put { attributes, cas, value, fetched: false, tags };
            (put, (StoreOutcome::Stored { cas: 0, len }, shown))
        });
        let thread = &self.counters.thread;
        let (stored, shown) = match updated {
            Ok(updated) => updated.result,
            Err(Refusal::Pending) => return (StoreOutcome::Pending, None),
            Err(Refusal::NoCas) => (StoreOutcome::NoCas, None),
            Err(Refusal::OutOfMemory) => {
                thread.store_no_memory.add(1);
                (StoreOutcome::OutOfMemory, None)
            }
            Err(Refusal::TooLarge | Refusal::WrongUpload | Refusal::NoTags) => {
                thread.store_too_large.add(1);
                (StoreOutcome::TooLarge, None)
            }
        };
        self.counters.class(Some(limits.classes.class_of(size)), |class| class.cmd_set.add(1));
        self.notify(|| {
            let kind = match op.condition {
                SwapCondition::Always | SwapCondition::Unequal(_) => StoreKind::Set,
                SwapCondition::Absent => StoreKind::Add,
                SwapCondition::Present | SwapCondition::Equal(_) => StoreKind::Replace,
            };
            let (class, ttl) =
                (limits.classes.class_of(size), op.expiry.and_then(|at| at.left(self.now)));
            let stored =
                Event::Stored { key: key.bytes, outcome: stored, kind, ttl, class, value_len: len };
            let is_read = op.is_read;
            [Some(Event::Fetched { key: key.bytes, found, is_read }), Some(stored)]
        });
        (stored, shown)
    }

    /// Removes an item and passes it to `show`. If another thread changes the item concurrently,
    /// `show` is called again, and the result of its last call is returned.
    ///
    /// # Errors
    /// [`Refusal::OutOfMemory`]: the engine had no memory for reading the item from slower storage,
    /// or `show` returned `None` because it cannot show the item. The item stays.
    pub fn take<R>(
        &mut self,
        key: HashedKey<'_>,
        mut show: impl FnMut(&Item<'_, E::Lease>) -> Option<R>,
    ) -> Result<Lookup<R>, Refusal> {
        let limits = self.limits;
        let updated = self.update(key, &mut None, |item| {
            let found = LookupResult::of(&item, key.bytes.len(), limits);
            let Lookup::Hit(item) = item else { return (Change::Remove, (None, found)) };
            let shown = show(item);
            let change = if shown.is_some() { Change::Remove } else { Change::Keep };
            (change, (shown, found))
        });
        let (shown, found) = match updated {
            Ok(updated) => updated.result,
            Err(Refusal::Pending) => return Ok(Lookup::Pending),
            Err(_) => return Err(Refusal::OutOfMemory),
        };
        if shown.is_none() && matches!(found, LookupResult::Live { .. }) {
            return Err(Refusal::OutOfMemory);
        }
        match found.class() {
            Some(class) => self.counters.class(Some(class), |class| {
                class.get_hits.add(1);
                class.delete_hits.add(1);
            }),
            None => self.counters.thread.get_misses.add(1),
        }
        self.notify(|| {
            let removed = match found {
                LookupResult::Live { class, value_len } => {
                    Some(Event::Removed { key: key.bytes, class, value_len })
                }
                _ => None,
            };
            [Some(Event::Fetched { key: key.bytes, found, is_read: true }), removed]
        });
        Ok(shown.map_or(Lookup::Miss, Lookup::Hit))
    }
}

//! The fast path of stores: an unconditional set without an observer.

use crate::{OpContext, Store, StoreOutcome};
use larder_store::{
    Attributes, Change, Engine, Expiry, HashedKey, NewCas, NewTags, NewValue, Refusal,
};

/// The parameters of an unconditional set, without its key.
#[derive(Clone, Copy, Debug)]
pub struct Set<'v> {
    /// The bytes to store.
    pub value: &'v [u8],
    /// Client flags, which the cache does not interpret.
    pub client_flags: u32,
    /// The expiry of the item.
    pub expiry: Expiry,
    /// Whether replies in memcached's text protocol contain the key in base64: a client sent it in
    /// base64, or it contains bytes that the text protocol cannot carry.
    pub binary_key: bool,
    /// Whether a refused set removes the old item, so that no reader finds an outdated value.
    pub refusal_removes: bool,
}

impl<'v> Set<'v> {
    /// Returns the equivalent [`Store`].
    fn store(&self) -> Store<'v> {
        Store {
            value: self.value,
            value_len: self.value.len(),
            client_flags: self.client_flags,
            expiry: self.expiry,
            binary_key: self.binary_key,
            refusal_removes: self.refusal_removes,
            ..Store::default()
        }
    }
}

impl<E: Engine> OpContext<'_, E> {
    /// Stores a value as [`OpContext::store`] does, with fewer instructions and without events.
    #[inline(always)]
    pub fn set(&mut self, key: HashedKey<'_>, op: &Set<'_>) -> StoreOutcome {
        debug_assert!(self.observer.is_none(), "the fast path sends no events to the observer");
        let (limits, len) = (self.limits, op.value.len());
        let size = limits.footprint(key.bytes.len(), len, op.client_flags);
        if size > limits.item_size_max {
            return self.refuse(key, &op.store(), StoreOutcome::TooLarge);
        }
        let Set { value, client_flags, expiry, binary_key, .. } = *op;
        let attributes = Attributes { client_flags, expiry, binary_key, ..Attributes::default() };
        let (cas, value) = (NewCas::Fresh, NewValue::Bytes(value));
        let put = || Change::Put { attributes, cas, value, fetched: false, tags: NewTags::None };
        match self.engine.update_unread(key, &mut None, |_| (put(), ())) {
            Ok(updated) => {
                let class = limits.classes.class_of(size);
                self.counters.class(Some(class), |class| class.cmd_set.add(1));
                StoreOutcome::Stored { cas: updated.cas, len }
            }
            Err(Refusal::Pending) => StoreOutcome::Pending,
            Err(Refusal::OutOfMemory) => self.refuse(key, &op.store(), StoreOutcome::OutOfMemory),
            Err(Refusal::NoCas) => self.refuse(key, &op.store(), StoreOutcome::NoCas),
            Err(Refusal::TooLarge | Refusal::WrongUpload | Refusal::NoTags) => {
                self.refuse(key, &op.store(), StoreOutcome::TooLarge)
            }
        }
    }
}

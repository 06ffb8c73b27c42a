//! Stores: set, add, replace, append, prepend and compare-and-swap.

use crate::{Event, Limits, LookupResult, OpContext, StoreKind, StoreOutcome};
use larder_store::{
    Attributes, Change, Engine, Expiry, HashedKey, Item, Lease, Lookup, NewCas, NewTags, NewValue,
    Refusal, Tag,
};

/// The effect of a store on an existing or missing item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreMode {
    /// Stores the value unconditionally.
    #[default]
    Set,
    /// Stores the value only if there is no item.
    Add,
    /// Stores the value only if there is an item.
    Replace,
    /// Appends the value to the value of the item.
    Append,
    /// Prepends the value to the value of the item.
    Prepend,
}

impl StoreMode {
    fn concatenates(self) -> bool {
        matches!(self, Self::Append | Self::Prepend)
    }
}

/// The parameters of a store, without its key.
#[derive(Clone, Copy, Debug, Default)]
pub struct Store<'v> {
    /// The effect on an existing or missing item.
    pub mode: StoreMode,
    /// The value; ignored if the value was uploaded.
    pub value: &'v [u8],
    /// The length of the value in bytes.
    pub value_len: usize,
    /// Client flags, which the cache does not interpret. `Append` and `Prepend` to an existing item
    /// ignore them.
    pub client_flags: u32,
    /// The expiry of the item. `Append` and `Prepend` ignore this field.
    pub expiry: Expiry,
    /// The CAS that the item must have for the store; 0 never matches. The operation ignores this
    /// field if `Add` finds an item, or if `Append` or `Prepend` finds no item.
    pub compare: Option<u64>,
    /// The CAS of the stored item; `None` assigns a fresh CAS.
    pub new_cas: Option<u64>,
    /// If true, a `compare` that is lower than the item's CAS is accepted, and the item is stored
    /// as stale, with the expiry of the old item. `Append` and `Prepend` ignore this field.
    pub invalidate: bool,
    /// The expiry of the item that `Append` or `Prepend` creates if the key has no item; `None`
    /// creates no item.
    pub create: Option<Expiry>,
    /// Whether replies in memcached's text protocol contain the key in base64: a client sent it in
    /// base64, or it contains bytes that the text protocol cannot carry.
    pub binary_key: bool,
    /// The tags of the item. `Append` and `Prepend` to an existing item ignore them.
    pub tags: &'v [Tag],
    /// Whether a refused store removes the old item, so that no reader finds an outdated value.
    pub refusal_removes: bool,
}

impl<E: Engine> OpContext<'_, E> {
    /// Stores the uploaded value if there is one, and otherwise `op.value`. Sets `upload` to `None`
    /// if it stores the upload.
    pub fn store(
        &mut self,
        key: HashedKey<'_>,
        op: &Store<'_>,
        upload: &mut Option<E::Upload>,
    ) -> StoreOutcome {
        let limits = self.limits;
        let size = limits.footprint(key.bytes.len(), op.value_len, op.client_flags);
        if size > limits.item_size_max {
            return self.refuse(key, op, StoreOutcome::TooLarge);
        }
        let uploaded = upload.is_some();
        let (mut found, mut expiry) = (LookupResult::Nothing, op.expiry);
        let decide = |item: Lookup<&Item<'_, E::Lease>>| {
            found = LookupResult::of(&item, key.bytes.len(), limits);
            let (change, stored) = match item {
                Lookup::Hit(item) => op.decide(key, item, uploaded, limits),
                _ => op.decide_miss(uploaded),
            };
            if let (true, Change::Put { attributes, .. }) = (op.mode.concatenates(), &change) {
                expiry = attributes.expiry;
            }
            (change, stored)
        };
        // If there is an observer, it receives an event about the old item, so the engine has to
        // look the item up.
        let is_blind = op.mode == StoreMode::Set && op.compare.is_none();
        let updated = if is_blind && self.observer.is_none() && self.guard.is_none() {
            self.engine.update_unread(key, upload, decide)
        } else {
            self.update(key, upload, decide)
        };
        let updated = match updated {
            Ok(updated) => updated,
            Err(Refusal::Pending) => return StoreOutcome::Pending,
            Err(Refusal::OutOfMemory) => return self.refuse(key, op, StoreOutcome::OutOfMemory),
            Err(Refusal::NoCas) => return self.refuse(key, op, StoreOutcome::NoCas),
            // If the concatenated value is too large, reply like memcached, and keep the old item.
            Err(Refusal::TooLarge) if op.mode.concatenates() => return StoreOutcome::NotStored,
            Err(Refusal::TooLarge | Refusal::WrongUpload | Refusal::NoTags) => {
                return self.refuse(key, op, StoreOutcome::TooLarge);
            }
        };
        let stored = match updated.result {
            StoreOutcome::Stored { len, .. } => StoreOutcome::Stored { cas: updated.cas, len },
            other => other,
        };
        self.counters.class(Some(limits.classes.class_of(size)), |class| class.cmd_set.add(1));
        self.count_compare(op, stored, found);
        self.notify(|| {
            let event = self.stored_event(key, op, stored, expiry);
            [Some(Event::fetched_for_change(key.bytes, found)), Some(event)]
        });
        stored
    }

    /// Counts a store whose value does not end as memcached's protocol requires (`bad data chunk`).
    /// Such a store changes nothing.
    pub fn count_unusable(&mut self, key: HashedKey<'_>, op: &Store<'_>) {
        let class = self.limits.class_of(key.bytes.len(), op.value_len, op.client_flags);
        self.counters.class(Some(class), |class| class.cmd_set.add(1));
    }

    /// Counts and reports a refused store. The caller may refuse a store before its value has
    /// arrived. Removes the old item if `op.refusal_removes`. Returns `outcome`.
    pub fn refuse(
        &mut self,
        key: HashedKey<'_>,
        op: &Store<'_>,
        outcome: StoreOutcome,
    ) -> StoreOutcome {
        match outcome {
            StoreOutcome::TooLarge => self.counters.thread.store_too_large.add(1),
            StoreOutcome::NoCas => (),
            _ => self.counters.thread.store_no_memory.add(1),
        }
        if op.refusal_removes {
            // Ignore the result, because a removal needs no memory.
            let _ = self.engine.update_unread(key, &mut None, |_| (Change::Remove, ()));
        }
        self.notify(|| [Some(self.stored_event(key, op, outcome, op.expiry)), None]);
        outcome
    }

    fn count_compare(&self, op: &Store<'_>, stored: StoreOutcome, found: LookupResult) {
        if op.compare.is_none() || !matches!(op.mode, StoreMode::Set | StoreMode::Replace) {
            return;
        }
        match (stored, found.class()) {
            (StoreOutcome::Stored { .. }, class @ Some(_)) => {
                self.counters.class(class, |class| class.cas_hits.add(1));
            }
            (StoreOutcome::Exists, class @ Some(_)) => {
                self.counters.class(class, |class| class.cas_badval.add(1));
            }
            _ => self.counters.thread.cas_misses.add(1),
        }
    }

    fn stored_event<'e>(
        &self,
        key: HashedKey<'e>,
        op: &Store<'_>,
        outcome: StoreOutcome,
        expiry: Expiry,
    ) -> Event<'e> {
        let value_len =
            if let StoreOutcome::Stored { len, .. } = outcome { len } else { op.value_len };
        let kind = match (op.mode, op.compare) {
            (StoreMode::Append, _) => StoreKind::Append,
            (StoreMode::Prepend, _) => StoreKind::Prepend,
            (_, Some(_)) => StoreKind::Compare,
            (StoreMode::Add, _) => StoreKind::Add,
            (StoreMode::Replace, _) => StoreKind::Replace,
            (StoreMode::Set, _) => StoreKind::Set,
        };
        let class = self.limits.class_of(key.bytes.len(), value_len, op.client_flags);
        let ttl = expiry.left(self.now);
        Event::Stored { key: key.bytes, outcome, kind, ttl, class, value_len }
    }
}

impl<'v> Store<'v> {
    fn decide_miss(&self, uploaded: bool) -> (Change<'v>, StoreOutcome) {
        let created = |expiry| {
            let put = self.put(self.attributes(expiry), self.whole(uploaded), self.tags());
            (put, StoreOutcome::Stored { cas: 0, len: self.value_len })
        };
        let not_stored = (Change::Keep, StoreOutcome::NotStored);
        match (self.mode, self.create) {
            (StoreMode::Append | StoreMode::Prepend, Some(expiry)) => created(expiry),
            (StoreMode::Append | StoreMode::Prepend, None) => not_stored,
            _ if self.compare.is_some() => (Change::Keep, StoreOutcome::NotFound),
            (StoreMode::Replace, _) => not_stored,
            (StoreMode::Set | StoreMode::Add, _) => created(self.expiry),
        }
    }

    fn decide<L: Lease>(
        &self,
        key: HashedKey<'_>,
        item: &Item<'_, L>,
        uploaded: bool,
        limits: &Limits,
    ) -> (Change<'v>, StoreOutcome) {
        let was =
            || limits.footprint(key.bytes.len(), item.value.len(), item.attributes.client_flags);
        if self.mode.concatenates() && was() + self.value_len > limits.item_size_max {
            return (Change::Keep, StoreOutcome::NotStored);
        }
        if self.mode == StoreMode::Add {
            return (Change::CountHit, StoreOutcome::NotStored);
        }
        let stale = match self.compare {
            Some(cas) if cas == item.cas && cas != 0 => false,
            // With the flag `I`, a client that read the item before its invalidation may still
            // store a value, which is marked as stale.
            Some(cas @ 1..) if self.invalidate && cas < item.cas && !self.mode.concatenates() => {
                true
            }
            Some(_) => return (Change::Keep, StoreOutcome::Exists),
            None => false,
        };
        let (new, old) = (self.attributes(self.expiry), item.attributes);
        let (attributes, value, len) = match self.mode {
            StoreMode::Append => {
                let value =
                    if uploaded { NewValue::AppendUploaded } else { NewValue::Append(self.value) };
                (Attributes { stale: false, won: false, ..old }, value, item.value.len())
            }
            StoreMode::Prepend => {
                let value = if uploaded {
                    NewValue::PrependUploaded
                } else {
                    NewValue::Prepend(self.value)
                };
                (Attributes { stale: false, won: false, ..old }, value, item.value.len())
            }
            _ if stale => {
                let kept = Attributes { stale: true, won: old.won, expiry: old.expiry, ..new };
                (kept, self.whole(uploaded), 0)
            }
            _ => (new, self.whole(uploaded), 0),
        };
        let tags = if self.mode.concatenates() { NewTags::Same } else { self.tags() };
        (
            self.put(attributes, value, tags),
            StoreOutcome::Stored { cas: 0, len: len + self.value_len },
        )
    }

    fn attributes(&self, expiry: Expiry) -> Attributes {
        let Self { client_flags, binary_key, .. } = *self;
        Attributes { client_flags, expiry, binary_key, ..Attributes::default() }
    }

    fn whole(&self, uploaded: bool) -> NewValue<'v> {
        if uploaded { NewValue::Uploaded } else { NewValue::Bytes(self.value) }
    }

    fn tags(&self) -> NewTags<'v> {
        if self.tags.is_empty() { NewTags::None } else { NewTags::These(self.tags) }
    }

    fn put(&self, attributes: Attributes, value: NewValue<'v>, tags: NewTags<'v>) -> Change<'v> {
        let cas = self.new_cas.map_or(NewCas::Fresh, NewCas::Exactly);
        Change::Put { attributes, cas, value, fetched: false, tags }
    }
}

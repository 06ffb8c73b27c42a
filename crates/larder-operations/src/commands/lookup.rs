//! Lookups. A lookup can also change or create the item.

use crate::{Event, LookupResult, OpContext};
use larder_store::{
    Access, Attributes, Change, Content, Engine, Expiry, HashedKey, Item, Lookup, NewCas, NewTags,
    NewValue, Now, Refusal, Seconds, Tag, Value,
};

/// The changes that a lookup makes to the item, and how the lookup is recorded and counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct LookupOptions<'t> {
    /// The new expiry of the item; `None` keeps the expiry.
    pub touch: Option<Expiry>,
    /// The empty item to create if the key has no item. The client then wins the right to fill this
    /// item.
    pub create: Option<CreateEmpty<'t>>,
    /// Whether the client may win the right to refill a stale item.
    pub may_win: bool,
    /// With `may_win`, the client may also win the right to refill an item that meets this
    /// condition because it expires soon. `None` allows only stale items.
    pub recache: Option<Recache>,
    /// If true, the lookup is not recorded as an access.
    pub untracked: bool,
    /// Whether a miss of a lookup with `touch` counts as `get_misses` rather than `touch_misses`.
    pub miss_counts_as_get: bool,
}

/// The item that a lookup creates if the key has no item.
#[derive(Clone, Copy, Debug)]
pub struct CreateEmpty<'t> {
    /// The expiry of the item.
    pub expiry: Expiry,
    /// The CAS of the item; `None` assigns a fresh CAS.
    pub new_cas: Option<u64>,
    /// Whether replies in memcached's text protocol contain the key in base64: a client sent it in
    /// base64, or it contains bytes that the text protocol cannot carry.
    pub binary_key: bool,
    /// The tags of the item.
    pub tags: &'t [Tag],
}

/// The condition for refilling an item that has not expired.
#[derive(Clone, Copy, Debug)]
pub struct Recache {
    /// The item may be refilled if it expires in fewer seconds than this. An item that never
    /// expires does not meet this condition.
    pub within_secs: u32,
    /// True to compare the expiry after [`LookupOptions::touch`], false to compare the previous
    /// expiry.
    pub after_touch: bool,
}

/// A view of an item that was looked up.
#[derive(Debug)]
pub struct ItemView<'a, L> {
    /// The attributes that the item had before the lookup, or the attributes of the created item.
    pub attributes: Attributes,
    /// The expiry after the lookup. For a created item, this is [`LookupOptions::touch`] if set,
    /// even if the item was stored with another expiry.
    pub expiry: Expiry,
    /// The CAS after the lookup; 0 if the engine stores no CAS values.
    pub cas: u64,
    /// The whole value, or a lease on a large value.
    pub value: &'a Value<'a, L>,
    /// Whether the item has been read since it was stored, not counting this lookup.
    pub fetched: bool,
    /// The time of the previous read, or of the store if the item was never read.
    pub accessed: Seconds,
    /// Whether the client has won the right to fill the item.
    pub won: bool,
    /// Whether another client has already won the right to fill the item. This is always false
    /// without [`LookupOptions::may_win`].
    pub win_taken: bool,
    /// Whether this lookup has created the item.
    pub created: bool,
}

impl<E: Engine> OpContext<'_, E> {
    /// Passes only the content of an item to `show`, and records the access. This is the fastest
    /// lookup. If `show` returns `None`, the hit is not counted. The caller then calls
    /// [`OpContext::look_up`] with `is_recorded` set to true.
    #[inline]
    pub fn content<R>(
        &mut self,
        key: HashedKey<'_>,
        show: impl FnOnce(&Content<'_, E::Lease>) -> Option<R>,
    ) -> Lookup<Option<R>> {
        let (limits, key_len) = (self.limits, key.bytes.len());
        let mut value_len = 0;
        let found = self.engine.content(key, |content| {
            value_len = content.value.len();
            let class = limits.class_of(key_len, value_len, content.client_flags);
            show(content).map(|shown| (shown, class))
        });
        self.finish_lookup(key, value_len, found)
    }

    /// Passes an item to `show` and records the access. If `show` returns `None`, the hit is
    /// neither recorded nor counted. The caller then calls [`OpContext::look_up`].
    #[inline]
    pub fn view<R>(
        &mut self,
        key: HashedKey<'_>,
        show: impl FnOnce(&Item<'_, E::Lease>) -> Option<R>,
    ) -> Lookup<Option<R>> {
        let (limits, key_len) = (self.limits, key.bytes.len());
        let mut value_len = 0;
        let found = self.engine.get_recorded(key, |item| {
            value_len = item.value.len();
            let class = limits.class_of(key_len, value_len, item.attributes.client_flags);
            match show(item) {
                Some(shown) => (Access::Tracked, Some((shown, class))),
                None => (Access::Untracked, None),
            }
        });
        self.finish_lookup(key, value_len, found)
    }

    /// Counts a lookup that changes nothing, and reports it to the observer. If `show` returned
    /// `None`, does nothing.
    #[inline]
    fn finish_lookup<R>(
        &mut self,
        key: HashedKey<'_>,
        value_len: usize,
        lookup: Lookup<Option<(R, usize)>>,
    ) -> Lookup<Option<R>> {
        match lookup {
            Lookup::Hit(Some((shown, class))) => {
                self.counters.class(Some(class), |class| class.get_hits.add(1));
                self.notify_fetched(key, LookupResult::Live { class, value_len });
                Lookup::Hit(Some(shown))
            }
            Lookup::Hit(None) => Lookup::Hit(None),
            missing => self.finish_miss(key, &LookupOptions::default(), without_hit(&missing)),
        }
    }

    /// Passes an item to `show` and changes it according to `op`. If another thread changes the
    /// item concurrently, `show` is called again, and the result of its last call is returned.
    /// `is_recorded` states whether an earlier lookup of the same request was recorded as an
    /// access. If it was, this lookup is not recorded again.
    ///
    /// # Errors
    /// [`Refusal::OutOfMemory`] if the engine had no memory for creating or changing the item. If
    /// the item is on slower storage, the result is not an error, but `Ok` with
    /// [`Lookup::Pending`].
    pub fn look_up<R>(
        &mut self,
        key: HashedKey<'_>,
        op: &LookupOptions<'_>,
        is_recorded: bool,
        mut show: impl FnMut(&ItemView<'_, E::Lease>) -> R,
    ) -> Result<Lookup<R>, Refusal> {
        if op.needs_update() {
            return self.look_up_and_change(key, op, is_recorded, show);
        }
        let (limits, access) = (self.limits, op.access(is_recorded));
        let lookup = self.engine.get_recorded(key, |item| {
            if op.may_win && item.attributes.stale && !item.attributes.won {
                // Do not record this lookup: the update that follows records the access, unless it
                // returns `Pending`.
                return (Access::Untracked, None);
            }
            let found = LookupResult::of(&Lookup::Hit(item), key.bytes.len(), limits);
            let (expiry, win_taken) = (item.attributes.expiry, op.may_win && item.attributes.won);
            (access, Some((show(&ItemView::of(item, expiry, false, win_taken)), found)))
        });
        match lookup {
            Lookup::Hit(Some((shown, found))) => {
                self.counters.class(found.class(), |class| class.get_hits.add(1));
                self.notify_fetched(key, found);
                Ok(Lookup::Hit(shown))
            }
            Lookup::Hit(None) => self.look_up_and_change(key, op, is_recorded, show),
            missing => Ok(self.finish_miss(key, op, without_hit(&missing))),
        }
    }

    /// Looks up and changes the item in one atomic update.
    fn look_up_and_change<R>(
        &mut self,
        key: HashedKey<'_>,
        op: &LookupOptions<'_>,
        is_recorded: bool,
        mut show: impl FnMut(&ItemView<'_, E::Lease>) -> R,
    ) -> Result<Lookup<R>, Refusal> {
        let (limits, now, access) = (self.limits, self.now, op.access(is_recorded));
        let mut found = LookupResult::Nothing;
        let updated = self.update(key, &mut None, |item| {
            found = LookupResult::of(&item, key.bytes.len(), limits);
            match (item, op.create) {
                (Lookup::Hit(item), _) => {
                    let (attributes, won) = op.changed(item, now);
                    let win_taken = op.may_win && item.attributes.won;
                    let view = ItemView::of(item, attributes.expiry, won, win_taken);
                    (op.change(item, attributes, access), Lookup::Hit(Some(show(&view))))
                }
                (_, Some(create)) => (create.change(op), Lookup::Hit(None)),
                (Lookup::Miss | Lookup::Pending, None) => (Change::Keep, Lookup::Miss),
                (Lookup::Expired, None) => (Change::Remove, Lookup::Expired),
                (Lookup::Flushed, None) => (Change::Remove, Lookup::Flushed),
            }
        });
        let updated = match updated {
            Ok(updated) => updated,
            Err(Refusal::Pending) => return Ok(Lookup::Pending),
            Err(refusal) => {
                self.counters.thread.store_no_memory.add(1);
                return Err(refusal);
            }
        };
        let shown = match (updated.result, op.create) {
            (Lookup::Hit(Some(shown)), _) => {
                self.count_hit(op, found.class());
                self.notify_fetched(key, found);
                shown
            }
            (Lookup::Hit(None), Some(create)) => {
                let class = limits.class_of(key.bytes.len(), 0, 0);
                self.count_hit(op, Some(class));
                self.notify(|| {
                    let created =
                        Event::created(key.bytes, updated.cas, create.expiry, 0, now, limits);
                    [Some(Event::Fetched { key: key.bytes, found, is_read: true }), Some(created)]
                });
                show(&create.view(op, updated.cas, now))
            }
            (missing, _) => return Ok(self.count_miss(key, op, without_hit(&missing))),
        };
        Ok(Lookup::Hit(shown))
    }

    /// Passes an item to `show`. The lookup is neither recorded as an access nor counted.
    pub fn describe<R>(
        &mut self,
        key: HashedKey<'_>,
        show: impl FnOnce(&Item<'_, E::Lease>) -> R,
    ) -> Lookup<R> {
        let limits = self.limits;
        let mut found = LookupResult::Nothing;
        let lookup = self.engine.get(key, Access::Untracked, |item| {
            found = LookupResult::of(&Lookup::Hit(item), key.bytes.len(), limits);
            show(item)
        });
        let found = match &lookup {
            Lookup::Pending => return lookup,
            Lookup::Hit(_) => found,
            missing => missing.into(),
        };
        let event = Event::Fetched { key: key.bytes, found, is_read: false };
        self.notify(|| [Some(event), None]);
        lookup
    }

    /// Counts a miss and removes an expired or flushed item, so that later misses do not count as
    /// `get_expired` or `get_flushed` again. In a transaction that watches items, the item stays,
    /// because a lookup must not count as a change.
    #[inline(never)]
    fn finish_miss<R>(
        &mut self,
        key: HashedKey<'_>,
        op: &LookupOptions<'_>,
        missing: Lookup<R>,
    ) -> Lookup<R> {
        if self.guard.is_none() && matches!(missing, Lookup::Expired | Lookup::Flushed) {
            // If the engine refuses the removal, the only effect is that the next miss counts the
            // item again.
            let _ = self.update(key, &mut None, |found| match found {
                Lookup::Hit(_) => (Change::Keep, ()),
                _ => (Change::Remove, ()),
            });
        }
        self.count_miss(key, op, missing)
    }

    fn count_hit(&self, op: &LookupOptions<'_>, class: Option<usize>) {
        if op.touch.is_none() {
            return self.counters.class(class, |class| class.get_hits.add(1));
        }
        self.counters.thread.cmd_touch.add(1);
        self.counters.class(class, |class| class.touch_hits.add(1));
    }

    fn count_miss<R>(
        &self,
        key: HashedKey<'_>,
        op: &LookupOptions<'_>,
        missing: Lookup<R>,
    ) -> Lookup<R> {
        let thread = &self.counters.thread;
        match &missing {
            Lookup::Pending => return missing,
            Lookup::Expired => thread.get_expired.add(1),
            Lookup::Flushed => thread.get_flushed.add(1),
            Lookup::Miss | Lookup::Hit(_) => (),
        }
        if op.touch.is_some() && !op.miss_counts_as_get {
            thread.cmd_touch.add(1);
            thread.touch_misses.add(1);
        } else {
            thread.get_misses.add(1);
        }
        self.notify_fetched(key, (&missing).into());
        missing
    }

    #[inline]
    fn notify_fetched(&self, key: HashedKey<'_>, found: LookupResult) {
        self.notify(|| [Some(Event::Fetched { key: key.bytes, found, is_read: true }), None]);
    }
}

/// Converts a result without a hit to another type.
fn without_hit<R, S>(missing: &Lookup<R>) -> Lookup<S> {
    match missing {
        Lookup::Expired => Lookup::Expired,
        Lookup::Flushed => Lookup::Flushed,
        Lookup::Pending => Lookup::Pending,
        Lookup::Hit(_) | Lookup::Miss => Lookup::Miss,
    }
}

impl<'a, L> ItemView<'a, L> {
    #[inline]
    fn of(item: &'a Item<'a, L>, expiry: Expiry, won: bool, win_taken: bool) -> Self {
        let Item { attributes, cas, ref value, fetched, accessed, .. } = *item;
        Self { attributes, expiry, cas, value, fetched, accessed, won, win_taken, created: false }
    }
}

impl LookupOptions<'_> {
    /// Returns whether the lookup needs an update even if the item is not stale, because it may
    /// change or create the item.
    fn needs_update(&self) -> bool {
        self.touch.is_some() || self.create.is_some() || self.recache.is_some()
    }

    /// Returns whether the engine records the lookup as an access. A request counts as one access,
    /// even if it looks the item up several times.
    fn access(&self, is_recorded: bool) -> Access {
        if self.untracked || is_recorded { Access::Untracked } else { Access::Tracked }
    }

    /// Returns the attributes after the lookup, and whether the client has won the right to fill
    /// the item.
    fn changed<L>(&self, item: &Item<'_, L>, now: Now) -> (Attributes, bool) {
        let before = item.attributes;
        let expiry = self.touch.unwrap_or(before.expiry);
        let ends_soon = self.recache.is_some_and(|recache| {
            let judged = if recache.after_touch { expiry } else { before.expiry };
            judged.left(now).is_some_and(|left| left < recache.within_secs)
        });
        let won = self.may_win && !before.won && (before.stale || ends_soon);
        (Attributes { expiry, won: before.won || won, ..before }, won)
    }

    fn change<L>(
        &self,
        item: &Item<'_, L>,
        attributes: Attributes,
        access: Access,
    ) -> Change<'static> {
        match access {
            _ if attributes != item.attributes => {
                Change::SetAttributes { attributes, cas: NewCas::Same, access }
            }
            Access::Untracked => Change::Keep,
            Access::Tracked => Change::MarkAccessed,
        }
    }
}

impl<'t> CreateEmpty<'t> {
    fn attributes(&self) -> Attributes {
        let Self { expiry, binary_key, .. } = *self;
        Attributes { expiry, won: true, binary_key, ..Attributes::default() }
    }

    fn change(&self, op: &LookupOptions<'_>) -> Change<'t> {
        let cas = self.new_cas.map_or(NewCas::Fresh, NewCas::Exactly);
        let value = NewValue::Bytes(&[]);
        Change::Put {
            attributes: self.attributes(),
            cas,
            value,
            fetched: !op.untracked,
            tags: if self.tags.is_empty() { NewTags::None } else { NewTags::These(self.tags) },
        }
    }

    /// Returns the view of the created item.
    fn view<'a, L>(&self, op: &LookupOptions<'_>, cas: u64, now: Now) -> ItemView<'a, L> {
        let attributes = self.attributes();
        ItemView {
            attributes,
            expiry: op.touch.unwrap_or(self.expiry),
            cas,
            value: &Value::Whole(&[]),
            fetched: false,
            accessed: now.secs,
            won: true,
            win_taken: false,
            created: true,
        }
    }
}

//! [`OpContext`]: the arguments that all operations of a batch share.

use crate::events::{Event, Observer};
use crate::guard::Guard;
use crate::limits::Limits;
use crate::thread_counters::Counters;
use larder_store::{Change, Engine, HashedKey, Item, Lookup, Now, Refusal, Updated};

/// The engine, counters, limits and time that operations use during one batch of requests.
pub struct OpContext<'a, E: Engine> {
    /// The handle to the cache.
    pub engine: &'a mut E,
    /// The counters of this thread.
    pub counters: &'a Counters,
    /// The limits and size classes.
    pub limits: &'a Limits,
    /// The time, read once for the batch.
    pub now: Now,
    /// The observer of operations' events. Without an observer, events cost each operation one
    /// branch.
    pub observer: Option<&'a dyn Observer>,
    /// The guard of a transaction's watched items, which each update checks. Without a guard, the
    /// check costs each update one branch.
    pub guard: Option<&'a Guard>,
}

impl<'a, E: Engine> OpContext<'a, E> {
    /// Returns a context without an observer, for a batch that starts at `now`.
    pub fn new(
        engine: &'a mut E,
        counters: &'a Counters,
        limits: &'a Limits,
        now: impl Into<Now>,
    ) -> Self {
        let now = now.into();
        Self { engine, counters, limits, now, observer: None, guard: None }
    }

    /// Samples a request for the statistics of hot keys: counts about one request in a hundred. An
    /// interface calls this function for each key of an answered request, or calls
    /// [`HotKeys::pick`](crate::HotKeys::pick) once for a whole batch.
    #[inline]
    pub fn sample(&self, key: HashedKey<'_>) {
        if self.counters.hot_keys.pick(1).is_some() {
            self.count_sampled(key);
        }
    }

    /// Counts a request that [`HotKeys::pick`](crate::HotKeys::pick) selected.
    #[cold]
    #[inline(never)]
    pub fn count_sampled(&self, key: HashedKey<'_>) {
        let delimiter = self.limits.prefix_delimiter;
        let end = key.bytes.iter().position(|byte| *byte == delimiter);
        let prefix = end.and_then(|end| key.bytes.get(..end));
        let prefix = prefix.map(|prefix| (prefix, self.engine.hash(prefix)));
        self.counters.hot_keys.count((key.bytes, key.hash), prefix, self.now.secs);
    }

    /// Calls [`larder_store::Updates::update`], but refuses the update if the item is watched and
    /// its version has changed.
    ///
    /// # Errors
    /// The [`Refusal`] of the engine, or [`Refusal::OutOfMemory`] if the guard refuses
    /// ([`Guard::is_violated`]).
    #[inline]
    pub(crate) fn update<'v, R>(
        &mut self,
        key: HashedKey<'_>,
        upload: &mut Option<E::Upload>,
        mut decide: impl FnMut(Lookup<&Item<'_, E::Lease>>) -> (Change<'v>, R),
    ) -> Result<Updated<R>, Refusal> {
        let (guard, mut has_changed, mut is_refused) = (self.guard, false, false);
        let updated = self.engine.update(key, upload, |item| {
            let may_change = guard.is_none_or(|guard| guard.allows(key.bytes, &item));
            is_refused = !may_change;
            let is_there = matches!(item, Lookup::Hit(_));
            let (change, result) = decide(item);
            // The removal of an expired or missing item does not count as a change.
            has_changed = guard.is_some()
                && may_change
                && match change {
                    Change::Keep | Change::MarkAccessed | Change::CountHit => false,
                    Change::Remove => is_there,
                    Change::SetAttributes { .. } | Change::Put { .. } => true,
                };
            (if may_change { change } else { Change::Keep }, result)
        });
        if let Some(guard) = guard.filter(|_| has_changed && updated.is_ok()) {
            guard.note_change(key.bytes);
        }
        // If the guard has refused the change, return an error. Without an error, the caller would
        // execute the next step of a command as if this step had succeeded.
        if is_refused { updated.and(Err(Refusal::OutOfMemory)) } else { updated }
    }

    /// Sends events to the observer, if there is one.
    #[inline]
    pub(super) fn notify<'e>(&self, events: impl FnOnce() -> [Option<Event<'e>>; 2]) {
        if let Some(observer) = self.observer {
            events().into_iter().flatten().for_each(|event| observer.notify(&event));
        }
    }
}

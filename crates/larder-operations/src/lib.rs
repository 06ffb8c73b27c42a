//! The semantics of commands, independent of the protocol: typed operations on an engine, typed
//! outcomes, counters and events.
//!
//! ```text
//!  larder-session (memcached)   other interfaces
//!          │ lowers requests, encodes outcomes
//!          ▼
//!  OpContext::{content, view, look, describe, store, refuse, swap, take, remove, count, add, expire,
//!              flush, tags, drop_tag}
//!          │ each is one look-up or one atomic update of one key
//!          ▼
//!  larder_store::Engine
//! ```
//!
//! Nothing here knows a wire format, owns a socket or reads a clock. Callers resolve expiries
//! against the clock and turn the order of flags into fields. Where dialects of a protocol differ in
//! what a command does, the operation has a field for it.
//!
//! Every outcome can be `Pending`: the item is on slower storage. A pending operation has changed
//! nothing, counted nothing and delivered no event; the caller repeats it later.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

mod commands;
mod counter;
mod counters;
mod event_queue;
mod events;
mod hot_keys;
mod latency;
mod stored;

pub use commands::*;
pub use counter::*;
pub use counters::*;
pub use event_queue::*;
pub use events::*;
pub use hot_keys::*;
pub use latency::*;
pub use stored::*;

use larder_store::{Engine, HashedKey, Now, SizeClasses};

/// The limits of operations, and the size classes of statistics.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The largest item in bytes, as memcached counts them (`-I`).
    pub item_size_max: usize,
    /// memcached's slab classes.
    pub classes: SizeClasses,
    /// What ends the prefix of a key (`-D`).
    pub prefix_delimiter: u8,
}

impl Limits {
    /// The bytes that memcached would count for an item.
    #[inline]
    #[must_use]
    pub fn footprint(&self, key_len: usize, value_len: usize, client_flags: u32) -> usize {
        self.classes.footprint(key_len, value_len, client_flags)
    }

    /// The size class of an item, counted from 0.
    #[inline]
    #[must_use]
    pub fn class_of(&self, key_len: usize, value_len: usize, client_flags: u32) -> usize {
        self.classes.class_of(self.footprint(key_len, value_len, client_flags))
    }
}

/// Everything that operations need during one batch of requests.
pub struct OpContext<'a, E: Engine> {
    /// The cache.
    pub engine: &'a mut E,
    /// The counters of this thread.
    pub counters: &'a Counters,
    /// The limits and size classes.
    pub limits: &'a Limits,
    /// The time, read once for the batch.
    pub now: Now,
    /// Receives an event for each thing that an operation did. Without an observer, an operation pays
    /// one branch for it.
    pub observer: Option<&'a dyn Observer>,
}

impl<'a, E: Engine> OpContext<'a, E> {
    /// A context without an observer, for a batch that begins at `now`.
    pub fn new(
        engine: &'a mut E,
        counters: &'a Counters,
        limits: &'a Limits,
        now: impl Into<Now>,
    ) -> Self {
        let now = now.into();
        Self { engine, counters, limits, now, observer: None }
    }

    /// Passes over a request for this key, or counts it among those that show which keys are hot. An interface calls
    /// it once for each request that was answered.
    #[inline]
    pub fn sample(&self, key: HashedKey<'_>) {
        if self.counters.hot_keys.pick(1).is_some() {
            self.count_sampled(key);
        }
    }

    /// Counts a request that was picked by [`HotKeys::pick`].
    #[cold]
    #[inline(never)]
    pub fn count_sampled(&self, key: HashedKey<'_>) {
        let delimiter = self.limits.prefix_delimiter;
        let end = key.bytes.iter().position(|byte| *byte == delimiter);
        let prefix = end.and_then(|end| key.bytes.get(..end));
        let prefix = prefix.map(|prefix| (prefix, self.engine.hash(prefix)));
        self.counters.hot_keys.count((key.bytes, key.hash), prefix, self.now.secs);
    }

    /// Delivers events to the observer, if there is one.
    #[inline]
    fn tell<'e>(&self, events: impl FnOnce() -> [Option<Event<'e>>; 2]) {
        if let Some(observer) = self.observer {
            events().into_iter().flatten().for_each(|event| observer.notify(&event));
        }
    }
}

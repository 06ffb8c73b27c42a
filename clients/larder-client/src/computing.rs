//! Values that are computed if the cache has none, for both clients, as in `calls.rs`: `computing!([] [] [F: …])`, where
//! `F` is a computation.
//!
//! A client has these besides, in its own file: `pause`, which waits for a time, and `landing`, which waits for a
//! computation of this process.

use crate::core::flight::{Flights, Turn};
use crate::item::Item;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// The computations of a client.
#[derive(Clone, Debug)]
pub(crate) struct Computing {
    pub(crate) flights: Arc<Flights>,
    /// How long a call waits for the computation of another process.
    pub(crate) time_max: Duration,
}

impl Computing {
    pub(crate) fn new(time_max: Duration) -> Self {
        Self { flights: Arc::default(), time_max }
    }
}

/// What a caller with a lease has to do.
#[derive(Debug)]
pub(crate) enum Obtained<T> {
    /// Nothing: this is the value.
    Value(T),
    /// Compute the value. There may be an old one, which others get meanwhile.
    Turn(Turn, Option<T>),
}

/// Reads a value that is bytes.
pub(crate) fn as_value(item: &Item) -> Option<Bytes> {
    Some(item.value.clone())
}

/// The item of a value that is bytes.
pub(crate) fn as_item(value: &Bytes) -> Result<Item, crate::Error> {
    Ok(Item { value: value.clone(), flags: 0, cas: None })
}

macro_rules! computing {
    ([$($async:tt)?] [$($await:tt)*] [$($compute:tt)*]) => {
        /// The value of an item, or, if there is none, what `compute` returns, which is stored.
        ///
        /// Of many callers that miss the same value, one computes it, and the others wait for it, also in other
        /// processes. If there is an old value meanwhile, because it is [stale](Lease::stale), will be [soon](Lease::early),
        /// or was [invalidated](Self::invalidate), the others get that at once. If the computation fails or is given up,
        /// one of those who wait is next, with its own `compute`. What was computed before an invalidation, a removal or
        /// another store of the key is returned, but not stored. If it fails though there is an old value, this caller gets
        /// the error, and others get the old value until its end.
        ///
        /// The computation has no deadline. Callers of the same process wait for it as long as it takes; for those
        /// of other processes they wait as long as any call, and then compute the value, without storing it. `compute`
        /// must not ask for the same key, as it would wait for itself.
        ///
        /// If the cache fails, the value is computed (once for all callers of this process that ask meanwhile), and not
        /// stored.
        ///
        /// While a value is computed for the first time, other calls find an empty one under its key. Servers that
        /// know no meta commands have no leases: there each process computes the value, and the first one stores it.
        ///
        /// # Errors
        /// `compute` failed, or the cache can't be asked: see [`ComputeError`].
        pub $($async)? fn get_or_compute<V: Into<Bytes>, E, $($compute)*>(
            &self,
            key: impl AsRef<[u8]>,
            lease: Lease,
            compute: F,
        ) -> Result<Bytes, ComputeError<E>> {
            let key = Key::new(key.as_ref()).map_err(Error::from)?;
            match self.obtain(key, lease, crate::computing::as_value)$($await)*? {
                Obtained::Value(value) => Ok(value),
                Obtained::Turn(turn, _) => {
                    let computed = compute()$($await)*.map(Into::into);
                    self.finish(turn, key, lease, crate::computing::as_item, computed)$($await)*
                }
            }
        }

        /// The value, if there is one before it is this caller's turn to compute it.
        pub(crate) $($async)? fn obtain<T>(
            &self,
            key: Key<'_>,
            lease: Lease,
            read: impl Fn(&Item) -> Option<T>,
        ) -> Result<Obtained<T>, Error> {
            loop {
                let right = match self.see(key, lease, &read)$($await)*? {
                    Seen::Value(value, _) => return Ok(Obtained::Value(value)),
                    Seen::Won(right, old) => {
                        let turn = self.computing.flights.begin(key.bytes(), right);
                        return Ok(Obtained::Turn(turn, old));
                    }
                    Seen::Missing(right) => right,
                    Seen::Unreadable(_) => Right::Ask,
                };
                let waiting = match self.computing.flights.join(key.bytes(), right) {
                    Joined::Turn(turn) => return self.ask_again(turn, key, lease, read)$($await)*,
                    Joined::Waiting(waiting) => waiting,
                };
                match self.landing(waiting)$($await)*? {
                    Landed::Turn(turn) => return self.ask_again(turn, key, lease, read)$($await)*,
                    Landed::Item(item) => if let Some(value) = read(&item) {
                        self.group.recorder.coalesced();
                        return Ok(Obtained::Value(value));
                    }
                }
            }
        }

        /// Waits for the computation of another process.
        $($async)? fn ask_again<T>(
            &self,
            turn: Turn,
            key: Key<'_>,
            lease: Lease,
            read: impl Fn(&Item) -> Option<T>,
        ) -> Result<Obtained<T>, Error> {
            let deadline = Instant::now() + self.computing.time_max;
            let mut pauses = 0;
            if turn.right() == Right::Ask {
                self.group.recorder.waits();
            }
            while turn.right() == Right::Ask {
                let left = deadline.saturating_duration_since(Instant::now());
                let Some(time) = pause(pauses, left) else { break };
                self.pause(time)$($await)*?;
                pauses += 1;
                match self.see(key, lease, &read)$($await)*? {
                    Seen::Value(value, item) => {
                        turn.land(&item);
                        return Ok(Obtained::Value(value));
                    }
                    Seen::Won(right, old) => {
                        turn.set_right(right);
                        return Ok(Obtained::Turn(turn, old));
                    }
                    Seen::Missing(right) => turn.set_right(right),
                    Seen::Unreadable(_) => (),
                }
            }
            Ok(Obtained::Turn(turn, None))
        }

        /// Asks the server. A value that can't be read is removed.
        $($async)? fn see<T>(
            &self,
            key: Key<'_>,
            lease: Lease,
            read: &impl Fn(&Item) -> Option<T>,
        ) -> Result<Seen<T>, Error> {
            let found = self.look(key, lease)$($await)*;
            found.iter().for_each(|found| self.group.recorder.looked(found));
            let seen = Seen::of(found, read)?;
            if let Seen::Unreadable(cas) = seen {
                // If it fails, this caller computes the value in the end.
                let _ = self.call(key, Delete { key, compare: Some(cas), stale: None })$($await)*;
            }
            Ok(seen)
        }

        $($async)? fn look(&self, key: Key<'_>, lease: Lease) -> Result<Found, Error> {
            let servers = self.group.servers();
            let (server, known) = servers.with_meta(key.bytes(), Instant::now());
            let knows_meta = match known.get() {
                Some(knows_meta) => *knows_meta,
                None => {
                    let answered = server.call(&mut KnowsMeta)$($await)*?;
                    *known.get_or_init(|| answered)
                }
            };
            if knows_meta {
                return server.call(&mut Look { key, lease })$($await)*;
            }
            let item = server.call(&mut Get { key, cas: false, touch: None })$($await)*?;
            Ok(item.map_or(Found::Missing, Found::Value))
        }

        /// Stores what was computed, and gives it to those who wait; or lets another try.
        pub(crate) $($async)? fn finish<T, E>(
            &self,
            turn: Turn,
            key: Key<'_>,
            lease: Lease,
            write: impl Fn(&T) -> Result<Item, Error>,
            computed: Result<T, E>,
        ) -> Result<T, ComputeError<E>> {
            self.group.recorder.computed(computed.is_err());
            let written = computed.map_err(ComputeError::Compute).and_then(|value| {
                let item = write(&value)?;
                Ok((value, item))
            });
            let (value, item) = match written {
                Ok(written) => written,
                Err(error) => {
                    self.release(&turn, key)$($await)*;
                    return Err(error);
                }
            };
            if let Err(error) = self.fill(&turn, key, lease, &item)$($await)* {
                if ends_call(&error) {
                    return Err(error.into());
                }
                if !error.is_fault() {
                    self.release(&turn, key)$($await)*;
                }
            }
            turn.land(&item);
            Ok(value)
        }

        $($async)? fn fill(
            &self,
            turn: &Turn,
            key: Key<'_>,
            lease: Lease,
            item: &Item,
        ) -> Result<(), Error> {
            let (mode, compare) = match turn.right() {
                Right::Lease { cas, .. } => (StoreMode::Set, cas),
                Right::Add => (StoreMode::Add, None),
                Right::Replace => (StoreMode::Set, None),
                Right::Ask | Right::Nothing => return Ok(()),
            };
            let expiry = lease.expiry();
            let item = NewItem { value: &item.value, client_flags: item.flags, expiry };
            self.store(mode, key.bytes(), item, compare)$($await)*.map(drop)
        }

        /// Lets another caller compute a value that is missing.
        $($async)? fn release(&self, turn: &Turn, key: Key<'_>) {
            if let Right::Lease { cas: Some(cas), has_old: false } = turn.right() {
                // If it fails, the lease ends by itself.
                let _ = self.call(key, Delete { key, compare: Some(cas), stale: None })$($await)*;
                turn.set_right(Right::Ask);
            }
        }
    };
}

pub(crate) use computing;

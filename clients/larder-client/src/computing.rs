//! Computation of missing values, for both clients. A macro generates the code, as in `calls.rs`:
//! `computing!([] [] [F: …])`. `F` is the type of the computation.
//!
//! Each client implements two methods itself: `pause`, which sleeps, and `wait_for_flight`, which
//! waits for a computation by another caller of the same client.

use crate::core::flight::{ComputePermit, Flights};
use crate::item::Item;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// The running computations of a client.
#[derive(Clone, Debug)]
pub(crate) struct Computing {
    pub(crate) flights: Arc<Flights>,
    /// The longest time that a call waits for another process to compute a value.
    pub(crate) time_max: Duration,
}

impl Computing {
    pub(crate) fn new(time_max: Duration) -> Self {
        Self { flights: Arc::default(), time_max }
    }
}

/// The next step of a caller with a lease.
#[derive(Debug)]
pub(crate) enum ComputeStep<T> {
    /// Return this value.
    Value(T),
    /// Compute the value. The second field is the old value, if there is one that can be decoded.
    /// Other callers get the old value until the new value is stored.
    Compute(ComputePermit, Option<T>),
}

/// Reads an item as bytes.
pub(crate) fn as_value(item: &Item) -> Option<Bytes> {
    Some(item.value.clone())
}

/// Returns an item with this value and flags 0.
pub(crate) fn as_item(value: &Bytes) -> Result<Item, crate::Error> {
    Ok(Item { value: value.clone(), flags: 0, cas: None })
}

macro_rules! computing {
    ([$($async:tt)?] [$($await:tt)*] [$($compute:tt)*]) => {
        /// Returns the value of an item. If there is none, calls `compute` and stores the result.
        ///
        /// If many callers miss the same value, in one process or several, one caller computes it
        /// and the others wait. If an old value exists, the other callers get it at once instead of
        /// waiting. An old value is a value that is [stale](Lease::stale), expires
        /// [soon](Lease::early) or was [invalidated](Self::invalidate). If the computation fails or
        /// its caller gives up, a waiting caller calls its own `compute`. If the computation fails
        /// while there is an old value, its caller gets the error, and the others get the old value
        /// until it expires. If the key is invalidated, removed or stored during a computation with
        /// a lease, the computed value is returned, but not stored.
        ///
        /// The computation has no deadline. Callers of the same client wait for the computation
        /// without limit. Callers of other clients wait up to the timeout of a call, and then
        /// compute the value themselves without storing it. `compute` must not call this function
        /// for the same key: that call would deadlock.
        ///
        /// If the cache fails, the value is computed once for all concurrent callers of this
        /// client, and is not stored.
        ///
        /// During the first computation of a value, other calls, such as `get`, find an empty item.
        /// Servers without meta commands have no leases. With such a server, each client computes
        /// the value, and only the first result is stored.
        ///
        /// # Errors
        /// `compute` failed, the key is invalid, the client is closed, or the call was interrupted:
        /// see [`ComputeError`].
        pub $($async)? fn get_or_compute<V: Into<Bytes>, E, $($compute)*>(
            &self,
            key: impl AsRef<[u8]>,
            lease: Lease,
            compute: F,
        ) -> Result<Bytes, ComputeError<E>> {
            let key = Key::new(key.as_ref()).map_err(Error::from)?;
            match self.obtain(key, lease, crate::computing::as_value)$($await)*? {
                ComputeStep::Value(value) => Ok(value),
                ComputeStep::Compute(permit, _) => {
                    let computed = compute()$($await)*.map(Into::into);
                    self.finish(permit, key, lease, crate::computing::as_item, computed)$($await)*
                }
            }
        }

        /// Returns the value, or the permit to compute it. If another caller computes the value and
        /// there is no old value, waits for the result.
        pub(crate) $($async)? fn obtain<T>(
            &self,
            key: Key<'_>,
            lease: Lease,
            read: impl Fn(&Item) -> Option<T>,
        ) -> Result<ComputeStep<T>, Error> {
            loop {
                let condition = match self.look_up(key, lease, &read)$($await)*? {
                    LeaseStep::Value(value, _) => return Ok(ComputeStep::Value(value)),
                    LeaseStep::Won(condition, old) => {
                        let permit = self.computing.flights.start(key.bytes(), condition);
                        return Ok(ComputeStep::Compute(permit, old));
                    }
                    LeaseStep::Missing(condition) => condition,
                    LeaseStep::Unreadable(_) => StoreCondition::Retry,
                };
                let waiting = match self.computing.flights.join(key.bytes(), condition) {
                    JoinRole::Compute(permit) => return self.wait_for_lease(permit, key, lease, read)$($await)*,
                    JoinRole::Wait(waiting) => waiting,
                };
                match self.wait_for_flight(waiting)$($await)*? {
                    FlightResult::Permit(permit) => return self.wait_for_lease(permit, key, lease, read)$($await)*,
                    FlightResult::Item(item) => if let Some(value) = read(&item) {
                        self.group.recorder.coalesced();
                        return Ok(ComputeStep::Value(value));
                    }
                }
            }
        }

        /// If another caller has the lease (the permit's condition is `Retry`), polls the server
        /// until it has a value or grants the lease to this caller. Stops after the timeout of a
        /// call. Returns the value if there is one. Otherwise returns the permit. If this caller
        /// got the lease, the result includes the old value, if there is one.
        $($async)? fn wait_for_lease<T>(
            &self,
            permit: ComputePermit,
            key: Key<'_>,
            lease: Lease,
            read: impl Fn(&Item) -> Option<T>,
        ) -> Result<ComputeStep<T>, Error> {
            let deadline = Instant::now() + self.computing.time_max;
            let mut pauses = 0;
            if permit.condition() == StoreCondition::Retry {
                self.group.recorder.waits();
            }
            while permit.condition() == StoreCondition::Retry {
                let left = deadline.saturating_duration_since(Instant::now());
                let Some(time) = pause(pauses, left) else { break };
                self.pause(time)$($await)*?;
                pauses += 1;
                match self.look_up(key, lease, &read)$($await)*? {
                    LeaseStep::Value(value, item) => {
                        permit.complete(&item);
                        return Ok(ComputeStep::Value(value));
                    }
                    LeaseStep::Won(condition, old) => {
                        permit.set_condition(condition);
                        return Ok(ComputeStep::Compute(permit, old));
                    }
                    LeaseStep::Missing(condition) => permit.set_condition(condition),
                    LeaseStep::Unreadable(_) => (),
                }
            }
            Ok(ComputeStep::Compute(permit, None))
        }

        /// Looks up a key and requests a lease. If `read` rejects the value, removes the value, so
        /// that a caller computes a new value. Keeps the value if this caller got the lease, or if
        /// the value has no CAS.
        $($async)? fn look_up<T>(
            &self,
            key: Key<'_>,
            lease: Lease,
            read: &impl Fn(&Item) -> Option<T>,
        ) -> Result<LeaseStep<T>, Error> {
            let found = self.request(key, lease)$($await)*;
            found.iter().for_each(|found| self.group.recorder.looked(found));
            let step = LeaseStep::of(found, read)?;
            if let LeaseStep::Unreadable(cas) = step {
                // Ignores errors: if the removal fails, the caller repeats the lookup until the
                // timeout of a call.
                let _ = self.call(key, Delete { key, compare: Some(cas), stale: None })$($await)*;
            }
            Ok(step)
        }

        $($async)? fn request(&self, key: Key<'_>, lease: Lease) -> Result<LeaseAnswer, Error> {
            let servers = self.group.servers();
            let (server, known) = servers.with_meta(key.bytes(), Instant::now());
            let knows_meta = match known.get() {
                Some(knows_meta) => *knows_meta,
                None => {
                    let answered = server.call(&mut MetaProbe)$($await)*?;
                    *known.get_or_init(|| answered)
                }
            };
            if knows_meta {
                return server.call(&mut LeaseGet { key, lease })$($await)*;
            }
            let item = server.call(&mut Get { key, cas: false, touch: None })$($await)*?;
            Ok(item.map_or(LeaseAnswer::Missing, LeaseAnswer::Value))
        }

        /// Stores a computed value and passes it to waiting callers. These callers get the value
        /// even if the server fails to store it. If the computation or the encoding failed, the
        /// call was interrupted, or the client is closed, one of the waiting callers computes the
        /// value instead.
        pub(crate) $($async)? fn finish<T, E>(
            &self,
            permit: ComputePermit,
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
                    self.release(&permit, key)$($await)*;
                    return Err(error);
                }
            };
            if let Err(error) = self.fill(&permit, key, lease, &item)$($await)* {
                if ends_call(&error) {
                    return Err(error.into());
                }
                if !error.is_fault() {
                    self.release(&permit, key)$($await)*;
                }
            }
            permit.complete(&item);
            Ok(value)
        }

        $($async)? fn fill(
            &self,
            permit: &ComputePermit,
            key: Key<'_>,
            lease: Lease,
            item: &Item,
        ) -> Result<(), Error> {
            let (mode, compare) = match permit.condition() {
                StoreCondition::Lease { cas, .. } => (StoreMode::Set, cas),
                StoreCondition::Add => (StoreMode::Add, None),
                StoreCondition::Replace => (StoreMode::Set, None),
                StoreCondition::Retry | StoreCondition::Never => return Ok(()),
            };
            let expiry = lease.expiry();
            let item = NewItem { value: &item.value, client_flags: item.flags, expiry };
            self.store(mode, key.bytes(), item, compare)$($await)*.map(drop)
        }

        /// Releases the lease for a missing value by deleting its empty item. Another caller can
        /// then compute the value.
        $($async)? fn release(&self, permit: &ComputePermit, key: Key<'_>) {
            if let StoreCondition::Lease { cas: Some(cas), has_old: false } = permit.condition() {
                // Ignores errors: if the removal fails, the lease expires after its lifetime.
                let _ = self.call(key, Delete { key, compare: Some(cas), stale: None })$($await)*;
                permit.set_condition(StoreCondition::Retry);
            }
        }
    };
}

pub(crate) use computing;

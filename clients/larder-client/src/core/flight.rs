//! Single-flight computations: concurrent callers of a client that miss the same key share one
//! computation.
//!
//! ```text
//!   join() ─▶ Compute: this caller computes ─── complete() ─▶ all waiting callers get the value
//!      │                                   └─── (dropped) ───▶ the first waiting caller gets the permit
//!      └────▶ Wait, until one of these
//! ```

use crate::core::lease::StoreCondition;
use crate::item::Item;
use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The running computations of a client.
#[derive(Debug, Default)]
pub(crate) struct Flights(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    flights: HashMap<u64, Flight>,
    /// For each key, the number of the flight that further callers join.
    newest: HashMap<Box<[u8]>, u64>,
    next: u64,
}

/// A computation of this client, or this client's wait for a lease that another client holds.
#[derive(Debug)]
struct Flight {
    key: Box<[u8]>,
    condition: StoreCondition,
    waiting: VecDeque<Arc<ResultSlot>>,
}

/// A waiting caller's result, and the waker to call when the result arrives. Lock order: the table
/// before the slot.
#[derive(Debug, Default)]
struct ResultSlot(Mutex<(Option<FlightResult>, Option<Waker>)>);

/// The role of a caller that joins a flight.
#[derive(Debug)]
pub(crate) enum JoinRole {
    /// This caller computes.
    Compute(ComputePermit),
    /// Another caller computes, and this caller waits.
    Wait(FlightWaiter),
}

/// The result of waiting for another caller's computation.
#[derive(Debug)]
pub(crate) enum FlightResult {
    /// The computed item.
    Item(Item),
    /// The computing caller dropped its permit without a value, so this caller gets the permit.
    Permit(ComputePermit),
}

/// The permit to compute a value. Dropping it passes the permit to the next waiting caller, with
/// the same store condition.
#[derive(Debug)]
pub(crate) struct ComputePermit {
    flights: Arc<Flights>,
    id: u64,
}

/// A future that resolves to the result of another caller's computation. Dropping it cancels the
/// wait.
#[derive(Debug)]
pub(crate) struct FlightWaiter {
    flights: Arc<Flights>,
    id: u64,
    slot: Arc<ResultSlot>,
}

impl Table {
    fn start(&mut self, key: &[u8], condition: StoreCondition) -> u64 {
        let id = self.next;
        self.next += 1;
        self.flights.insert(id, Flight { key: key.into(), condition, waiting: VecDeque::new() });
        self.newest.insert(key.into(), id);
        id
    }

    fn end(&mut self, id: u64) -> VecDeque<Arc<ResultSlot>> {
        let Some(flight) = self.flights.remove(&id) else { return VecDeque::new() };
        if self.newest.get(&flight.key) == Some(&id) {
            self.newest.remove(&flight.key);
        }
        flight.waiting
    }
}

impl Flights {
    fn lock(&self) -> MutexGuard<'_, Table> {
        // Each change leaves the table consistent, so a poisoned lock is safe to use.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a computation, even if an earlier computation for the same key is under way. The
    /// earlier computation may use outdated data, so its value must not be stored with the new
    /// lease.
    pub(crate) fn start(self: &Arc<Self>, key: &[u8], condition: StoreCondition) -> ComputePermit {
        let id = self.lock().start(key, condition);
        ComputePermit { flights: Arc::clone(self), id }
    }

    /// Joins the newest computation of this key, or starts one if there is none.
    pub(crate) fn join(self: &Arc<Self>, key: &[u8], condition: StoreCondition) -> JoinRole {
        let mut table = self.lock();
        let (flights, newest) = (Arc::clone(self), table.newest.get(key).copied());
        match newest.and_then(|id| Some((id, table.flights.get_mut(&id)?))) {
            Some((id, flight)) => {
                let slot = Arc::<ResultSlot>::default();
                flight.waiting.push_back(Arc::clone(&slot));
                JoinRole::Wait(FlightWaiter { flights, id, slot })
            }
            None => JoinRole::Compute(ComputePermit { flights, id: table.start(key, condition) }),
        }
    }
}

impl ComputePermit {
    /// Returns the condition for storing the value, or `Never` if the flight has ended.
    pub(crate) fn condition(&self) -> StoreCondition {
        self.flights
            .lock()
            .flights
            .get(&self.id)
            .map_or(StoreCondition::Never, |flight| flight.condition)
    }

    pub(crate) fn set_condition(&self, condition: StoreCondition) {
        if let Some(flight) = self.flights.lock().flights.get_mut(&self.id) {
            flight.condition = condition;
        }
    }

    /// Ends the flight and gives the item to all waiting callers.
    pub(crate) fn complete(self, item: &Item) {
        let slots = self.flights.lock().end(self.id);
        for slot in slots {
            slot.give(FlightResult::Item(item.clone()));
        }
    }
}

impl Drop for ComputePermit {
    fn drop(&mut self) {
        let mut table = self.flights.lock();
        let Some(flight) = table.flights.get_mut(&self.id) else { return };
        let Some(slot) = flight.waiting.pop_front() else {
            table.end(self.id);
            return;
        };
        // Delivers while the table is locked. A waiter that is dropped at the same time then finds
        // the permit in its slot and passes it on.
        let waker = slot
            .put(FlightResult::Permit(Self { flights: Arc::clone(&self.flights), id: self.id }));
        drop(table);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl ResultSlot {
    fn lock(&self) -> MutexGuard<'_, (Option<FlightResult>, Option<Waker>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, result: FlightResult) -> Option<Waker> {
        let mut slot = self.lock();
        slot.0 = Some(result);
        slot.1.take()
    }

    fn give(&self, result: FlightResult) {
        self.put(result).into_iter().for_each(Waker::wake);
    }
}

impl FlightWaiter {
    /// Returns whether the next poll is ready.
    pub(crate) fn is_over(&self) -> bool {
        self.slot.lock().0.is_some()
    }
}

impl Future for FlightWaiter {
    type Output = FlightResult;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<FlightResult> {
        let mut slot = self.slot.lock();
        match slot.0.take() {
            Some(result) => Poll::Ready(result),
            None => {
                slot.1 = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for FlightWaiter {
    fn drop(&mut self) {
        let mut table = self.flights.lock();
        if let Some(flight) = table.flights.get_mut(&self.id) {
            flight.waiting.retain(|other| !Arc::ptr_eq(other, &self.slot));
        }
        let result = self.slot.lock().0.take();
        drop(table);
        // The result may be a permit that arrived just before this drop. Dropping the permit passes
        // it to the next waiting caller.
        drop(result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permit(joined: JoinRole) -> ComputePermit {
        let JoinRole::Compute(permit) = joined else { panic!("another caller computes") };
        permit
    }

    fn waiting(joined: JoinRole) -> FlightWaiter {
        let JoinRole::Wait(waiting) = joined else { panic!("no caller computes") };
        waiting
    }

    fn poll(waiting: &mut FlightWaiter) -> Option<FlightResult> {
        let mut context = Context::from_waker(Waker::noop());
        match Pin::new(waiting).poll(&mut context) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    fn item() -> Item {
        Item { value: "hi".into(), flags: 0, cas: None }
    }

    fn is_empty(flights: &Flights) -> bool {
        let table = flights.lock();
        table.flights.is_empty() && table.newest.is_empty()
    }

    #[test]
    fn all_waiting_callers_get_the_computed_item() {
        let flights = Arc::<Flights>::default();
        let first = permit(flights.join(b"k", StoreCondition::Add));
        let other = permit(flights.join(b"j", StoreCondition::Add));
        let mut others = [(); 3].map(|()| waiting(flights.join(b"k", StoreCondition::Add)));
        assert!(others.iter_mut().all(|waiting| poll(waiting).is_none()));
        first.complete(&item());
        for waiting in &mut others {
            assert!(matches!(poll(waiting), Some(FlightResult::Item(found)) if found == item()));
        }
        drop(other);
        assert!(is_empty(&flights));
    }

    #[test]
    fn a_dropped_permit_passes_to_the_next_waiting_caller() {
        let flights = Arc::<Flights>::default();
        let first = permit(flights.join(b"k", StoreCondition::Add));
        let mut others =
            VecDeque::from([(); 4].map(|()| waiting(flights.join(b"k", StoreCondition::Add))));
        // The first waiting caller is dropped before the permit is passed on. The second waiting
        // caller is dropped while its slot contains the permit.
        others.pop_front();
        first.set_condition(StoreCondition::Retry);
        drop(first);
        assert!(others[0].is_over() && !others[1].is_over());
        others.pop_front();
        let Some(FlightResult::Permit(permit)) = poll(&mut others[0]) else {
            panic!("the third caller has the permit")
        };
        assert_eq!(permit.condition(), StoreCondition::Retry);
        permit.complete(&item());
        assert!(matches!(poll(&mut others[1]), Some(FlightResult::Item(_))));
        assert!(is_empty(&flights));
    }

    #[test]
    fn a_new_lease_starts_a_new_computation() {
        let flights = Arc::<Flights>::default();
        let old = permit(flights.join(b"k", StoreCondition::Add));
        let mut of_old = waiting(flights.join(b"k", StoreCondition::Add));
        let condition = StoreCondition::Lease { cas: Some(1), has_old: false };
        let new = flights.start(b"k", condition);
        let mut of_new = waiting(flights.join(b"k", StoreCondition::Retry));
        old.complete(&item());
        assert!(poll(&mut of_old).is_some() && poll(&mut of_new).is_none());
        assert!(matches!(flights.join(b"k", StoreCondition::Retry), JoinRole::Wait(_)));
        assert_eq!(new.condition(), condition);
        drop(new);
        assert!(
            matches!(poll(&mut of_new), Some(FlightResult::Permit(permit)) if permit.condition() == condition)
        );
        assert!(is_empty(&flights));
    }
}

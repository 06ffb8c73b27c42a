//! Computations that are under way in this process: callers that miss the same value share one.
//!
//! ```text
//!   join() ─▶ Turn: this caller computes ──── land() ──▶ all that wait get the value
//!      │                              └────── (dropped) ▶ the first that waits gets the turn
//!      └────▶ Waiting, until one of these
//! ```

use crate::core::lease::Right;
use crate::item::Item;
use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The computations of a client.
#[derive(Debug, Default)]
pub(crate) struct Flights(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    flights: HashMap<u64, Flight>,
    /// The one that callers join, by key.
    newest: HashMap<Box<[u8]>, u64>,
    next: u64,
}

/// A computation, or the wait for that of another process.
#[derive(Debug)]
struct Flight {
    key: Box<[u8]>,
    right: Right,
    waiting: VecDeque<Arc<Seat>>,
}

/// A caller that waits. It is locked after the table.
#[derive(Debug, Default)]
struct Seat(Mutex<(Option<Landed>, Option<Waker>)>);

/// What a caller gets that joins.
#[derive(Debug)]
pub(crate) enum Joined {
    /// This caller computes.
    Turn(Turn),
    /// Another one does.
    Waiting(Waiting),
}

/// What a caller gets that has waited.
#[derive(Debug)]
pub(crate) enum Landed {
    /// What was computed.
    Item(Item),
    /// The computation came to nothing: now it is this caller's turn.
    Turn(Turn),
}

/// The duty of computing. If it is dropped, the next caller gets it, with the right to store.
#[derive(Debug)]
pub(crate) struct Turn {
    flights: Arc<Flights>,
    id: u64,
}

/// The wait for a computation. It may be dropped.
#[derive(Debug)]
pub(crate) struct Waiting {
    flights: Arc<Flights>,
    id: u64,
    seat: Arc<Seat>,
}

impl Table {
    fn begin(&mut self, key: &[u8], right: Right) -> u64 {
        let id = self.next;
        self.next += 1;
        self.flights.insert(id, Flight { key: key.into(), right, waiting: VecDeque::new() });
        self.newest.insert(key.into(), id);
        id
    }

    fn end(&mut self, id: u64) -> VecDeque<Arc<Seat>> {
        let Some(flight) = self.flights.remove(&id) else { return VecDeque::new() };
        if self.newest.get(&flight.key) == Some(&id) {
            self.newest.remove(&flight.key);
        }
        flight.waiting
    }
}

impl Flights {
    fn lock(&self) -> MutexGuard<'_, Table> {
        // Each change of it is whole before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a computation, also if one is under way: that one may have begun before what it computes was changed, so its
    /// value must not be stored by a new lease.
    pub(crate) fn begin(self: &Arc<Self>, key: &[u8], right: Right) -> Turn {
        let id = self.lock().begin(key, right);
        Turn { flights: Arc::clone(self), id }
    }

    /// Waits for the computation that is under way, or begins one.
    pub(crate) fn join(self: &Arc<Self>, key: &[u8], right: Right) -> Joined {
        let mut table = self.lock();
        let (flights, newest) = (Arc::clone(self), table.newest.get(key).copied());
        match newest.and_then(|id| Some((id, table.flights.get_mut(&id)?))) {
            Some((id, flight)) => {
                let seat = Arc::<Seat>::default();
                flight.waiting.push_back(Arc::clone(&seat));
                Joined::Waiting(Waiting { flights, id, seat })
            }
            None => Joined::Turn(Turn { flights, id: table.begin(key, right) }),
        }
    }
}

impl Turn {
    /// With what right the value is stored.
    pub(crate) fn right(&self) -> Right {
        self.flights.lock().flights.get(&self.id).map_or(Right::Nothing, |flight| flight.right)
    }

    pub(crate) fn set_right(&self, right: Right) {
        if let Some(flight) = self.flights.lock().flights.get_mut(&self.id) {
            flight.right = right;
        }
    }

    /// Gives all that wait what was computed.
    pub(crate) fn land(self, item: &Item) {
        let seats = self.flights.lock().end(self.id);
        for seat in seats {
            seat.give(Landed::Item(item.clone()));
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut table = self.flights.lock();
        let Some(flight) = table.flights.get_mut(&self.id) else { return };
        let Some(seat) = flight.waiting.pop_front() else {
            table.end(self.id);
            return;
        };
        // The table is locked, so a caller that gives up waiting finds what it was given.
        let waker =
            seat.put(Landed::Turn(Self { flights: Arc::clone(&self.flights), id: self.id }));
        drop(table);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Seat {
    fn lock(&self) -> MutexGuard<'_, (Option<Landed>, Option<Waker>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, landed: Landed) -> Option<Waker> {
        let mut seat = self.lock();
        seat.0 = Some(landed);
        seat.1.take()
    }

    fn give(&self, landed: Landed) {
        self.put(landed).into_iter().for_each(Waker::wake);
    }
}

impl Waiting {
    /// Whether the next poll is ready.
    pub(crate) fn is_over(&self) -> bool {
        self.seat.lock().0.is_some()
    }
}

impl Future for Waiting {
    type Output = Landed;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Landed> {
        let mut seat = self.seat.lock();
        match seat.0.take() {
            Some(landed) => Poll::Ready(landed),
            None => {
                seat.1 = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut table = self.flights.lock();
        if let Some(flight) = table.flights.get_mut(&self.id) {
            flight.waiting.retain(|other| !Arc::ptr_eq(other, &self.seat));
        }
        let landed = self.seat.lock().0.take();
        drop(table);
        // A turn that came at the last moment goes on to the next one.
        drop(landed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(joined: Joined) -> Turn {
        let Joined::Turn(turn) = joined else { panic!("another one computes") };
        turn
    }

    fn waiting(joined: Joined) -> Waiting {
        let Joined::Waiting(waiting) = joined else { panic!("nobody computes") };
        waiting
    }

    fn poll(waiting: &mut Waiting) -> Option<Landed> {
        let mut context = Context::from_waker(Waker::noop());
        match Pin::new(waiting).poll(&mut context) {
            Poll::Ready(landed) => Some(landed),
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
    fn all_get_what_one_computes() {
        let flights = Arc::<Flights>::default();
        let first = turn(flights.join(b"k", Right::Add));
        let other = turn(flights.join(b"j", Right::Add));
        let mut others = [(); 3].map(|()| waiting(flights.join(b"k", Right::Add)));
        assert!(others.iter_mut().all(|waiting| poll(waiting).is_none()));
        first.land(&item());
        for waiting in &mut others {
            assert!(matches!(poll(waiting), Some(Landed::Item(found)) if found == item()));
        }
        drop(other);
        assert!(is_empty(&flights));
    }

    #[test]
    fn a_turn_that_is_dropped_goes_to_the_next_that_waits() {
        let flights = Arc::<Flights>::default();
        let first = turn(flights.join(b"k", Right::Add));
        let mut others = VecDeque::from([(); 4].map(|()| waiting(flights.join(b"k", Right::Add))));
        // The first of those that wait has gone, and the second goes with the turn in its hands.
        others.pop_front();
        first.set_right(Right::Ask);
        drop(first);
        assert!(others[0].is_over() && !others[1].is_over());
        others.pop_front();
        let Some(Landed::Turn(turn)) = poll(&mut others[0]) else { panic!("it is its turn") };
        assert_eq!(turn.right(), Right::Ask);
        turn.land(&item());
        assert!(matches!(poll(&mut others[1]), Some(Landed::Item(_))));
        assert!(is_empty(&flights));
    }

    #[test]
    fn a_new_lease_begins_a_new_computation() {
        let flights = Arc::<Flights>::default();
        let old = turn(flights.join(b"k", Right::Add));
        let mut of_old = waiting(flights.join(b"k", Right::Add));
        let right = Right::Lease { cas: Some(1), has_old: false };
        let new = flights.begin(b"k", right);
        let mut of_new = waiting(flights.join(b"k", Right::Ask));
        old.land(&item());
        assert!(poll(&mut of_old).is_some() && poll(&mut of_new).is_none());
        assert!(matches!(flights.join(b"k", Right::Ask), Joined::Waiting(_)));
        assert_eq!(new.right(), right);
        drop(new);
        assert!(matches!(poll(&mut of_new), Some(Landed::Turn(turn)) if turn.right() == right));
        assert!(is_empty(&flights));
    }
}

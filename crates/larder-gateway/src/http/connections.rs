//! The open connections, and which of them is closed when another one needs its place.
//!
//! A place is taken from the connection that has been without a request for the longest time. If all have
//! requests, one that has had its request for long is closed: answers take milliseconds, so its peer is slow.

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// A request that takes less is not ended for another connection.
const REQUEST_TIME: Duration = Duration::from_secs(5);

/// The open connections.
#[derive(Debug)]
pub(super) struct Connections {
    open: Mutex<Vec<(Arc<Activity>, AbortHandle)>>,
    max: usize,
}

/// What a connection does.
#[derive(Debug)]
pub(super) struct Activity(Mutex<State>);

#[derive(Clone, Copy, Debug)]
struct State {
    /// Its requests that are not answered to the end.
    requests: usize,
    /// Since when it has had some, or none.
    since: Instant,
}

impl Connections {
    pub(super) fn new(max: usize) -> Self {
        Self { open: Mutex::default(), max }
    }

    /// Adds a connection, in place of another if there are too many; false if there is no place.
    pub(super) fn add(&self, activity: Arc<Activity>, task: impl FnOnce() -> AbortHandle) -> bool {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, task)| !task.is_finished());
        if open.len() >= self.max && !close_one(&mut open) {
            return false;
        }
        open.push((activity, task()));
        true
    }

    /// Closes the connection that has had requests for the longest time, if that is long; false if there is none.
    pub(super) fn close_slow(&self) -> bool {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, task)| !task.is_finished());
        let states = open.iter().map(|(activity, _)| activity.state()).enumerate();
        let slow = states
            .filter(|(_, state)| state.requests > 0 && state.since.elapsed() >= REQUEST_TIME)
            .min_by_key(|(_, state)| state.since);
        let Some((place, _)) = slow else { return false };
        open.swap_remove(place).1.abort();
        true
    }

    /// Closes a connection, so that another can have what was reserved for it once its task has ended; false if
    /// none may be closed.
    pub(super) fn close_one(&self) -> bool {
        close_one(&mut self.open.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn close_one(open: &mut Vec<(Arc<Activity>, AbortHandle)>) -> bool {
    open.retain(|(_, task)| !task.is_finished());
    let states = open.iter().map(|(activity, _)| activity.state()).enumerate();
    let oldest = states.min_by_key(|(_, state)| (state.requests > 0, state.since));
    let Some((place, state)) = oldest else { return false };
    if state.requests > 0 && state.since.elapsed() < REQUEST_TIME {
        return false;
    }
    open.swap_remove(place).1.abort();
    true
}

impl Activity {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { requests: 0, since: Instant::now() })))
    }

    fn state(&self) -> State {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(usize) -> usize) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let requests = change(state.requests);
        if (requests > 0) != (state.requests > 0) {
            state.since = Instant::now();
        }
        state.requests = requests;
    }

    /// Begins a request, which ends when the result is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> Underway {
        self.change(|requests| requests + 1);
        Underway(Arc::clone(self))
    }
}

/// A request that is not answered to the end.
pub(super) struct Underway(Arc<Activity>);

impl Drop for Underway {
    fn drop(&mut self) {
        self.0.change(|requests| requests.saturating_sub(1));
    }
}

/// The body of an answer, with whose end the request ends.
pub(super) struct LastPart {
    pub(super) body: Body,
    pub(super) _underway: Underway,
}

impl http_body::Body for LastPart {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn whoever_has_been_idle_for_longest_makes_room() {
        let connections = Connections::new(2);
        let add = |activity: &Arc<Activity>| {
            let task = tokio::spawn(std::future::pending::<()>());
            let handle = task.abort_handle();
            connections.add(Arc::clone(activity), || handle).then_some(task)
        };
        let (busy, idle) = (Activity::new(), Activity::new());
        let (first, second) = (add(&busy).unwrap(), add(&idle).unwrap());
        let request = busy.begin();
        let third = add(&Activity::new()).expect("the idle one makes room");
        assert!(second.await.is_err_and(|error| error.is_cancelled()));
        drop(request);
        let begun = busy.begin();
        let fourth = add(&Activity::new()).expect("the other one is idle");
        assert!(third.await.is_err_and(|error| error.is_cancelled()));
        assert!(!first.is_finished() && !fourth.is_finished());
        drop(begun);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn requests_are_not_ended_at_once() {
        let connections = Connections::new(1);
        let busy = Activity::new();
        let _request = busy.begin();
        let task = tokio::spawn(std::future::pending::<()>()).abort_handle();
        assert!(connections.add(busy, || task));
        let other = tokio::spawn(std::future::pending::<()>()).abort_handle();
        assert!(!connections.add(Activity::new(), || other));
    }
}

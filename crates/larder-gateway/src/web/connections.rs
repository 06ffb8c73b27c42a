//! The open connections, and which of them is closed when another one needs its place.
//!
//! A place is taken from the connection that has been without a request for the longest time. If all have
//! requests, one is closed that has made no progress for long: answers take milliseconds, so its peer is slow.
//! Progress is a request that ends, or enough bytes that were received or given to the connection.
//!
//! A request lasts until the last byte of its answer was dropped, which may wait for the peer in the connection long
//! after the answer was made.

use crate::server_view::ServerView;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// A connection that made progress since is not closed for another one.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// So many bytes are progress. Fewer of them in [`REQUEST_TIME`] are not.
const PROGRESS_LEN: usize = 16 << 10;

/// The open connections.
#[derive(Debug)]
pub(crate) struct Connections {
    open: Mutex<Vec<(Arc<Activity>, AbortHandle)>>,
    max: usize,
}

/// What a connection does.
#[derive(Debug)]
pub(crate) struct Activity(Mutex<State>);

#[derive(Clone, Copy, Debug)]
struct State {
    /// Its requests that are not answered to the end.
    requests: usize,
    /// Since when it has had none or, if it has some, made no progress.
    since: Instant,
    /// Bytes since then.
    moved: usize,
}

impl Connections {
    pub(crate) fn new(max: usize) -> Self {
        Self { open: Mutex::default(), max }
    }

    /// Adds a connection, in place of another if there are too many; false if there is no place.
    pub(crate) fn add(&self, activity: Arc<Activity>, task: impl FnOnce() -> AbortHandle) -> bool {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, task)| !task.is_finished());
        if open.len() >= self.max && !close_one(&mut open) {
            return false;
        }
        open.push((activity, task()));
        true
    }

    /// Closes the connection whose requests have made no progress for the longest time, if that is long; false if there
    /// is none.
    pub(crate) fn close_slow(&self) -> bool {
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
    pub(crate) fn close_one(&self) -> bool {
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
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { requests: 0, since: Instant::now(), moved: 0 })))
    }

    fn state(&self) -> State {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(usize) -> usize) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let requests = change(state.requests);
        // The end of a request is progress; the begin of another one beside it is none.
        if requests < state.requests || state.requests == 0 {
            (state.since, state.moved) = (Instant::now(), 0);
        }
        state.requests = requests;
    }

    /// Notes bytes that were received, or given to the connection.
    pub(crate) fn note_moved(&self, len: usize) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.moved += len;
        if state.moved >= PROGRESS_LEN {
            (state.since, state.moved) = (Instant::now(), 0);
        }
    }

    /// Begins a request, which ends when the result is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> ActiveRequest {
        self.change(|requests| requests + 1);
        ActiveRequest(Arc::clone(self))
    }
}

/// A request that is not answered to the end.
pub(crate) struct ActiveRequest(Arc<Activity>);

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.change(|requests| requests.saturating_sub(1));
    }
}

/// A connection that is counted as open, until it is dropped.
pub(crate) struct OpenConnection(Arc<dyn ServerView>);

impl OpenConnection {
    pub(crate) fn new(view: &Arc<dyn ServerView>) -> Self {
        view.web_counts().count_opened();
        Self(Arc::clone(view))
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.web_counts().count_closed();
    }
}

/// Marks answers that last until the client ends them. A connection with such answers alone is idle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LongLivedResponse;

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
        let started = busy.begin();
        let fourth = add(&Activity::new()).expect("the other one is idle");
        assert!(third.await.is_err_and(|error| error.is_cancelled()));
        assert!(!first.is_finished() && !fourth.is_finished());
        drop(started);
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

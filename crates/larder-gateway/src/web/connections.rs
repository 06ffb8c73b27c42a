//! The open connections, and the choice of the one to close when the server needs room or memory.
//!
//! The connection that has been idle for the longest time is closed first. If all have requests, the one without
//! progress for the longest time is closed, if that is at least [`REQUEST_TIME`]: answers take milliseconds, so its
//! peer is slow. Progress is the end of a request, or [`PROGRESS_LEN`] bytes of bodies received from the peer or
//! passed to the connection.
//!
//! A request ends when the last byte of its answer is dropped. The connection may hold bytes for a slow peer long after
//! the handler has finished.

use crate::server_view::ServerView;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// A connection with a request that has made progress within this time is never closed to make room.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// Moving this many bytes counts as progress. A connection that moves fewer within [`REQUEST_TIME`] is slow.
const PROGRESS_LEN: usize = 16 << 10;

/// The open connections.
#[derive(Debug)]
pub(crate) struct Connections {
    open: Mutex<Vec<(Arc<Activity>, AbortHandle)>>,
    max: usize,
}

/// The activity of a connection.
#[derive(Debug)]
pub(crate) struct Activity(Mutex<State>);

#[derive(Clone, Copy, Debug)]
struct State {
    /// The number of requests whose answers are not finished. Excludes requests with a [`LongLivedResponse`].
    requests: usize,
    /// Without requests, the start of the idle time. With requests, the time of the last progress; before any progress,
    /// the start of the first request.
    since: Instant,
    /// The number of bytes since `since`: of request bodies received, and of reply bodies passed to the connection.
    moved: usize,
}

impl Connections {
    pub(crate) fn new(max: usize) -> Self {
        Self { open: Mutex::default(), max }
    }

    /// Starts `task`, which serves a connection, and adds the connection. If there are too many, closes another one
    /// first, or returns false without starting `task` if none may be closed.
    pub(crate) fn add(&self, activity: Arc<Activity>, task: impl FnOnce() -> AbortHandle) -> bool {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, task)| !task.is_finished());
        if open.len() >= self.max && !close_one(&mut open) {
            return false;
        }
        open.push((activity, task()));
        true
    }

    /// Closes the connection with requests that has made no progress for the longest time, at least [`REQUEST_TIME`].
    /// Returns false if there is none.
    pub(crate) fn close_slow(&self) -> bool {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, task)| !task.is_finished());
        let states = open.iter().map(|(activity, _)| activity.state()).enumerate();
        let slow = states
            .filter(|(_, state)| state.requests > 0 && state.since.elapsed() >= REQUEST_TIME)
            .min_by_key(|(_, state)| state.since);
        let Some((index, _)) = slow else { return false };
        open.swap_remove(index).1.abort();
        true
    }

    /// Closes an idle or slow connection. Its memory is released when its task has ended. Returns false if none may be
    /// closed.
    pub(crate) fn close_one(&self) -> bool {
        close_one(&mut self.open.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn close_one(open: &mut Vec<(Arc<Activity>, AbortHandle)>) -> bool {
    open.retain(|(_, task)| !task.is_finished());
    let states = open.iter().map(|(activity, _)| activity.state()).enumerate();
    let oldest = states.min_by_key(|(_, state)| (state.requests > 0, state.since));
    let Some((index, state)) = oldest else { return false };
    if state.requests > 0 && state.since.elapsed() < REQUEST_TIME {
        return false;
    }
    open.swap_remove(index).1.abort();
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
        // The end of a request is progress; the start of another one is not.
        if requests < state.requests || state.requests == 0 {
            (state.since, state.moved) = (Instant::now(), 0);
        }
        state.requests = requests;
    }

    /// Records bytes of a request's body that were received, or of a reply's body that were passed to the connection.
    pub(crate) fn note_moved(&self, len: usize) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.moved += len;
        if state.moved >= PROGRESS_LEN {
            (state.since, state.moved) = (Instant::now(), 0);
        }
    }

    /// Starts a request, which ends when the result is dropped.
    pub(crate) fn start(self: &Arc<Self>) -> ActiveRequest {
        self.change(|requests| requests + 1);
        ActiveRequest(Arc::clone(self))
    }
}

/// A request whose answer is not finished.
pub(crate) struct ActiveRequest(Arc<Activity>);

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.change(|requests| requests.saturating_sub(1));
    }
}

/// Counts a connection as open until it is dropped.
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

/// Marks answers that last until the client cancels them, such as watches. A connection with only such answers counts
/// as idle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LongLivedResponse;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn the_longest_idle_connection_is_closed_for_a_new_one() {
        let connections = Connections::new(2);
        let add = |activity: &Arc<Activity>| {
            let task = tokio::spawn(std::future::pending::<()>());
            let handle = task.abort_handle();
            connections.add(Arc::clone(activity), || handle).then_some(task)
        };
        let (busy, idle) = (Activity::new(), Activity::new());
        let (first, second) = (add(&busy).unwrap(), add(&idle).unwrap());
        let request = busy.start();
        let third = add(&Activity::new()).expect("the idle connection is closed");
        assert!(second.await.is_err_and(|error| error.is_cancelled()));
        drop(request);
        let started = busy.start();
        let fourth = add(&Activity::new()).expect("the third connection is idle and closed");
        assert!(third.await.is_err_and(|error| error.is_cancelled()));
        assert!(!first.is_finished() && !fourth.is_finished());
        drop(started);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_connection_with_a_recent_request_is_not_closed() {
        let connections = Connections::new(1);
        let busy = Activity::new();
        let _request = busy.start();
        let task = tokio::spawn(std::future::pending::<()>()).abort_handle();
        assert!(connections.add(busy, || task));
        let other = tokio::spawn(std::future::pending::<()>()).abort_handle();
        assert!(!connections.add(Activity::new(), || other));
    }
}

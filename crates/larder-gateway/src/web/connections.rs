//! The open connections, and the choice of a connection to close when the server has too many or
//! needs memory.
//!
//! The server first closes the connection that has been idle for the longest time. If all
//! connections have requests, it closes the connection that has made no progress for the longest
//! time, if that time is at least [`REQUEST_TIME`]. Replies take milliseconds, so the peer of such
//! a connection is slow. A connection makes progress when a request ends, and when [`PROGRESS_LEN`]
//! bytes of bodies were received from the peer or passed to the connection.
//!
//! A request ends when the last byte of its reply is dropped. The last byte can be dropped long
//! after the handler has finished, because the connection may still hold bytes for a slow peer.

use crate::server_view::ServerView;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::sleep;

/// To make room for another connection, the server closes a connection with requests only if that
/// connection has made no progress for this time.
pub(crate) const REQUEST_TIME: Duration = Duration::from_secs(5);
/// This number of transferred bytes counts as progress. A connection that transfers fewer bytes
/// within [`REQUEST_TIME`] is slow.
const PROGRESS_LEN: usize = 16 << 10;

/// When a body, a reply or a new connection needs memory, the server may close a connection that
/// has been idle for this time.
const LONG_IDLE: Duration = Duration::from_secs(1);
/// When a connection is closed, it has this time to send its peer the number of the last accepted
/// request (HTTP/2's GOAWAY).
const CLOSE_TIME: Duration = Duration::from_secs(1);
/// At most this many replaced connections get [`CLOSE_TIME`] to close. Further replaced connections
/// are closed at once, because each unresponsive peer keeps a socket open beyond the connection
/// limit.
const REPLACED_MAX: usize = 8;
/// The interval at which [`Connections::close_all`] checks for open connections.
const END_STEP: Duration = Duration::from_millis(5);

/// The open connections.
#[derive(Debug)]
pub(crate) struct Connections {
    open: Mutex<Vec<Open>>,
    /// The tasks of replaced connections, some of which may still run.
    replaced: Mutex<Vec<AbortHandle>>,
    max: usize,
}

#[derive(Debug)]
struct Open {
    activity: Arc<Activity>,
    end: watch::Sender<Option<Duration>>,
    task: AbortHandle,
}

/// The receiving end of the order to close a connection.
#[derive(Clone, Debug)]
pub(crate) struct EndOrder(watch::Receiver<Option<Duration>>);

impl EndOrder {
    /// Waits until the connection must close. Returns the time limit for closing it.
    pub(crate) async fn wait(&mut self) -> Duration {
        let time = self.0.wait_for(Option::is_some).await;
        time.map_or(Duration::ZERO, |time| time.unwrap_or_default())
    }
}

impl Open {
    fn close(&self, time: Duration) {
        // Sending fails if the task of the connection has terminated.
        let _ = self.end.send(Some(time));
    }
}

/// The activity of a connection.
#[derive(Debug)]
pub(crate) struct Activity(Mutex<State>);

#[derive(Clone, Copy, Debug)]
struct State {
    /// The number of requests whose replies are not finished. Excludes requests with a
    /// [`LongLivedResponse`].
    requests: usize,
    /// If there are no requests, the time at which the connection became idle. With requests, the
    /// time of the last progress, or the start of the first request if no progress has followed it.
    since: Instant,
    /// The number of bytes transferred after `since`: received bytes of request bodies, and bytes
    /// of reply bodies that were passed to the connection.
    moved: usize,
    /// Whether the connection has had no request yet. The server may not have read its first
    /// requests.
    is_new: bool,
}

impl Connections {
    pub(crate) fn new(max: usize) -> Self {
        Self { open: Mutex::default(), replaced: Mutex::default(), max }
    }

    /// Adds a connection, and starts `task` to serve it. `task` must end when it receives the order
    /// to close the connection. If there are too many connections, first closes another one. If no
    /// connection may be closed, returns false and does not start `task`.
    pub(crate) fn add(
        &self,
        activity: Arc<Activity>,
        task: impl FnOnce(EndOrder) -> AbortHandle,
    ) -> bool {
        let mut open = self.open();
        if open.len() >= self.max {
            let mut replaced = self.replaced.lock().unwrap_or_else(PoisonError::into_inner);
            replaced.retain(|task| !task.is_finished());
            let time = if replaced.len() < REPLACED_MAX { CLOSE_TIME } else { Duration::ZERO };
            let Some(task) = close_one(&mut open, IdleMin::NONE, time) else { return false };
            replaced.push(task);
        }
        let (end, order) = watch::channel(None);
        open.push(Open { activity, end, task: task(EndOrder(order)) });
        true
    }

    /// Returns the connections that have not ended.
    fn open(&self) -> MutexGuard<'_, Vec<Open>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|connection| !connection.task.is_finished());
        open
    }

    /// Closes a slow connection: it has requests, but has made no progress for at least
    /// [`REQUEST_TIME`]. If there are several, closes the connection whose last progress is oldest.
    /// Returns false if no connection is slow.
    pub(crate) fn close_slow(&self) -> bool {
        let mut open = self.open();
        let states = open.iter().map(|connection| connection.activity.state()).enumerate();
        let slow = states
            .filter(|(_, state)| state.requests > 0 && state.since.elapsed() >= REQUEST_TIME)
            .min_by_key(|(_, state)| state.since);
        let Some((index, _)) = slow else { return false };
        open.swap_remove(index).close(Duration::ZERO);
        true
    }

    /// Closes a slow connection, or one that has been idle for [`LONG_IDLE`]. A connection that has
    /// been idle for a shorter time stays open, because it may be new and about to send its first
    /// request. Returns false if no connection may be closed.
    pub(crate) fn close_long_idle(&self) -> bool {
        let idle_min = IdleMin { new: LONG_IDLE, used: LONG_IDLE };
        close_one(&mut self.open(), idle_min, Duration::ZERO).is_some()
    }

    /// Closes an idle or slow connection at once, to make room for a new one. A connection that
    /// has had no request yet stays open for at least [`LONG_IDLE`]. The memory is released when the connection's task
    /// has ended. Returns false if no connection may be closed.
    pub(crate) fn close_for_new(&self) -> bool {
        let idle_min = IdleMin { new: LONG_IDLE, used: Duration::ZERO };
        close_one(&mut self.open(), idle_min, Duration::ZERO).is_some()
    }

    /// Closes all connections. Requests that have started have `time` to finish.
    pub(crate) async fn close_all(&self, time: Duration) {
        self.open().iter().for_each(|connection| connection.close(time));
        while !self.open().is_empty() {
            sleep(END_STEP).await;
        }
    }
}

/// The minimum time for which a connection must have been idle before the server closes it.
struct IdleMin {
    /// Of a connection that has had no request yet.
    new: Duration,
    /// Of a connection that has had requests.
    used: Duration,
}

impl IdleMin {
    const NONE: Self = Self { new: Duration::ZERO, used: Duration::ZERO };
}

/// Of the connections that have been idle for `idle_min`, closes the one that has been idle for the
/// longest time. If there is none, closes a slow connection. The closed connection has `time` to
/// end. Returns its task, or `None` if no connection may be closed.
fn close_one(open: &mut Vec<Open>, idle_min: IdleMin, time: Duration) -> Option<AbortHandle> {
    let states = open.iter().map(|connection| connection.activity.state()).enumerate();
    let may_close = |state: &State| {
        let age_min = match state {
            State { requests: 1.., .. } => REQUEST_TIME,
            State { is_new: true, .. } => idle_min.new,
            _ => idle_min.used,
        };
        state.since.elapsed() >= age_min
    };
    let (index, _) = states
        .filter(|(_, state)| may_close(state))
        .min_by_key(|(_, state)| (state.requests > 0, state.since))?;
    let connection = open.swap_remove(index);
    connection.close(time);
    Some(connection.task)
}

impl Activity {
    pub(crate) fn new() -> Arc<Self> {
        let (requests, since, moved) = (0, Instant::now(), 0);
        Arc::new(Self(Mutex::new(State { requests, since, moved, is_new: true })))
    }

    fn state(&self) -> State {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(usize) -> usize) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let requests = change(state.requests);
        // The end of a request is progress, but the start of a further request is not.
        if requests < state.requests || state.requests == 0 {
            (state.since, state.moved) = (Instant::now(), 0);
        }
        state.requests = requests;
        state.is_new = false;
    }

    /// Records bytes of a request's body that were received, or of a reply's body that were passed
    /// to the connection.
    pub(crate) fn note_moved(&self, len: usize) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.moved += len;
        if state.moved >= PROGRESS_LEN {
            (state.since, state.moved) = (Instant::now(), 0);
        }
    }

    /// Records the start of a request. The request ends when the returned guard is dropped.
    pub(crate) fn start(self: &Arc<Self>) -> ActiveRequest {
        self.change(|requests| requests + 1);
        ActiveRequest(Arc::clone(self))
    }
}

/// A request whose reply is not finished.
pub(crate) struct ActiveRequest(Arc<Activity>);

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.change(|requests| requests.saturating_sub(1));
    }
}

/// A guard that counts a connection as open until it is dropped.
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

/// A marker for replies that last until the client cancels them, such as watches. A connection with
/// only such replies counts as idle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LongLivedResponse;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn the_longest_idle_connection_is_closed_for_a_new_one() {
        let connections = Connections::new(2);
        let add = |activity: &Arc<Activity>| {
            let mut task = None;
            let is_open = connections.add(Arc::clone(activity), |mut order| {
                let serving = tokio::spawn(async move { order.wait().await });
                task.insert(serving).abort_handle()
            });
            task.filter(|_| is_open)
        };
        let (busy, idle) = (Activity::new(), Activity::new());
        let (first, second) = (add(&busy).unwrap(), add(&idle).unwrap());
        let request = busy.start();
        let third = add(&Activity::new()).expect("the idle connection is closed");
        assert_eq!(second.await.unwrap(), CLOSE_TIME);
        drop(request);
        let started = busy.start();
        let fourth = add(&Activity::new()).expect("the third connection is idle and closed");
        assert_eq!(third.await.unwrap(), CLOSE_TIME);
        assert!(!first.is_finished() && !fourth.is_finished());
        drop(started);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_connection_that_may_not_be_closed_protects_no_other() {
        let connections = Connections::new(9);
        let add = |requests, age: Duration, is_new| {
            let since = Instant::now().checked_sub(age).unwrap();
            let state = State { requests, since, moved: 0, is_new };
            let task = tokio::spawn(std::future::pending::<()>());
            connections.add(Arc::new(Activity(Mutex::new(state))), |_| task.abort_handle());
        };
        let closed = |for_new: bool| {
            let of = |open: &Open| (open.activity.state().requests, open.activity.state().is_new);
            let before: Vec<_> = connections.open().iter().map(of).collect();
            let found =
                if for_new { connections.close_for_new() } else { connections.close_long_idle() };
            let after: Vec<_> = connections.open().iter().map(of).collect();
            let gone = before.into_iter().find(|state| !after.contains(state));
            assert_eq!(gone.is_some(), found);
            gone
        };
        let moment = Duration::from_millis(10);
        add(2, REQUEST_TIME, false);
        add(1, moment, false);
        add(0, moment, false);
        add(0, moment, true);
        assert_eq!(closed(false), Some((2, false)), "a slow one, though others are idle");
        assert_eq!(closed(false), None, "the others are idle or have requests for a moment");
        assert_eq!(closed(true), Some((0, false)), "an idle one that has had requests");
        assert_eq!(closed(true), None, "the server may not have read the new one's requests");
        add(3, moment, false);
        add(0, 2 * LONG_IDLE, true);
        assert_eq!(connections.open().len(), 4);
        assert!(connections.close_for_new(), "a new one that has sent nothing for long");
        assert_eq!(connections.open().len(), 3);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_connection_with_a_recent_request_is_not_closed() {
        let connections = Connections::new(1);
        let busy = Activity::new();
        let _request = busy.start();
        let task = tokio::spawn(std::future::pending::<()>()).abort_handle();
        assert!(connections.add(busy, |_| task));
        let other = tokio::spawn(std::future::pending::<()>()).abort_handle();
        assert!(!connections.add(Activity::new(), |_| other));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn few_replaced_connections_may_take_their_time() {
        let connections = Connections::new(1);
        let (sent, mut times) = tokio::sync::mpsc::unbounded_channel();
        for _ in 0..REPLACED_MAX + 2 {
            let sent = sent.clone();
            let is_open = connections.add(Activity::new(), |mut order| {
                let serving = async move {
                    let _ = sent.send(order.wait().await);
                    std::future::pending::<()>().await;
                };
                tokio::spawn(serving).abort_handle()
            });
            assert!(is_open);
        }
        for _ in 0..REPLACED_MAX {
            assert_eq!(times.recv().await, Some(CLOSE_TIME));
        }
        assert_eq!(times.recv().await, Some(Duration::ZERO));
    }
}

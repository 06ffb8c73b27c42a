//! A connection to a leader, which all of this node's clients share. Sessions append requests to its
//! output, and the connection's driver sends them (`link_driver.rs`).
//!
//! When the connection has closed, requests without a reply get their outcome only once the leader
//! can no longer execute them: see [`Link::awaits_end`].

use super::pending::{RouteState, lock};
use crate::error::{LocalError, PeerError, Timeout};
use crate::peers::PeerStream;
use larder_operations::{DeferredWakes, Tracker};
use larder_replica::{Frame, FrameError, Invalidated, LinkLeases, Millis, ReplyEnd};
use larder_session::{AnsweredPart, ForwardOutcome};
use larder_support::clock::boot_millis;
use std::collections::HashMap;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};

/// The maximum time that a connection to a former leader stays open to receive the results of its
/// requests.
const RETIRED_MAX: Duration = Duration::from_secs(10);
/// The maximum number of request bytes in one frame. A lease must wait until the preceding frame is
/// sent, so frames are short.
const PIECE_LEN: usize = 64 << 10;

/// The callback for a session whose requests the peer has refused. The second argument is true if
/// the change of the leader or owner is planned.
pub(super) type OnRefused<'f> = &'f dyn Fn(&Arc<Mutex<RouteState>>, bool);

/// A connection to the leader.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) stream: PeerStream,
    pub(super) output: Mutex<Output>,
    /// Makes the driver send output, or end a closed connection.
    waker: Waker,
    /// Maps each route on the connection to the state of its session.
    pub(super) routes: Mutex<HashMap<u64, Arc<Mutex<RouteState>>>>,
    retirement: Mutex<Retirement>,
    /// The tracker that receives the peer's messages about changed items; `None` if the peer sends
    /// none.
    tracker: Option<Arc<Tracker>>,
    /// Whether the peer's process has ended, or has closed its side of this connection.
    has_peer_ended: AtomicBool,
}

/// The retirement of a connection whose peer no longer leads.
#[derive(Clone, Copy, Debug)]
enum Retirement {
    /// The connection is the current one.
    None,
    /// The connection was retired at this time, and waits for the results of its requests.
    Since(Instant),
    /// The connection is being closed, and cannot be used again.
    Over,
}

#[derive(Debug)]
pub(super) struct Output {
    pub(super) bytes: Vec<u8>,
    pub(super) is_closed: bool,
    pub(super) leases: LinkLeases,
    /// The end of the lease to send next, and the time at which the lease was granted.
    pub(super) lease: Option<(Millis, Millis)>,
    /// Wakers of sessions that wait for room in the output.
    pub(super) waiting: Vec<Waker>,
}

impl Link {
    pub(super) fn new(
        stream: PeerStream,
        tracker: Option<Arc<Tracker>>,
        leases: LinkLeases,
        waker: Waker,
    ) -> Self {
        let output = Output {
            bytes: Vec::new(),
            is_closed: false,
            leases,
            lease: None,
            waiting: Vec::new(),
        };
        Self {
            stream,
            output: Mutex::new(output),
            waker,
            routes: Mutex::default(),
            retirement: Mutex::new(Retirement::None),
            tracker,
            has_peer_ended: AtomicBool::new(false),
        }
    }

    /// Retires the connection, because the peer no longer leads. The connection is closed once its
    /// requests have results, or after [`RETIRED_MAX`]. The former leader either completes the
    /// requests or returns them for the next leader.
    pub(super) fn retire(&self) {
        *lock(&self.retirement) = Retirement::Since(Instant::now());
    }

    /// Makes a retired connection usable again, because the peer leads again. A new connection
    /// would end the retired connection and lose the requests on it. Returns false if the retired
    /// connection has ended.
    pub(super) fn revive(&self) -> bool {
        let mut retirement = lock(&self.retirement);
        let is_usable = !matches!(*retirement, Retirement::Over) && !lock(&self.output).is_closed;
        if is_usable {
            *retirement = Retirement::None;
        }
        is_usable
    }

    /// Returns whether the connection's retirement is over. If so, the connection cannot be used
    /// again.
    pub(super) fn is_over(&self) -> bool {
        matches!(*lock(&self.retirement), Retirement::Over)
    }

    /// Returns the reason to close a retired connection now, or `None` if the connection is not
    /// retired or still waits for results.
    pub(super) fn retirement_end(&self) -> Option<PeerError> {
        let mut retirement = lock(&self.retirement);
        let Retirement::Since(since) = *retirement else { return None };
        let reason = if !self.has_unanswered() {
            LocalError::Replaced.into()
        } else if since.elapsed() > RETIRED_MAX {
            Timeout::Retired.into()
        } else {
            return None;
        };
        *retirement = Retirement::Over;
        Some(reason)
    }

    /// Returns whether any requests on this connection wait for a result.
    pub(super) fn has_unanswered(&self) -> bool {
        // Collect the routes before locking a state. `move_rest` locks a state first and then the
        // routes. Both orders together could deadlock.
        let routes: Vec<_> =
            lock(&self.routes).iter().map(|(route, state)| (*route, Arc::clone(state))).collect();
        routes.iter().any(|(route, state)| {
            let state = lock(state);
            state.route == Some(*route) && state.has_unanswered()
        })
    }

    /// Grants a lease, which the driver sends before further output. After a heartbeat from the
    /// leader, `heartbeat` contains the heartbeat's send time and the number of bytes that the
    /// leader had read at this time.
    pub(super) fn renew_lease(&self, heartbeat: Option<(Millis, u64)>) {
        let (now, output) = (boot_millis(), &mut *lock(&self.output));
        if let Some((sent, received)) = heartbeat {
            output.leases.note_heartbeat(sent, received, now);
        }
        output.lease = output.leases.grant(now).map(|until| (until, now));
    }

    /// Returns the time limit that the leader has exceeded, if any. `received_at` is the time at which
    /// its last bytes arrived.
    pub(super) fn timeout(&self, received_at: Instant) -> Option<Timeout> {
        let leases = &lock(&self.output).leases;
        if received_at.elapsed() > Duration::from_millis(leases.lease_time()) {
            return Some(Timeout::Heartbeat);
        }
        leases.is_stalled().then_some(Timeout::LeaderStalled)
    }

    /// Sends messages about changed items to the clients that track them.
    pub(super) fn note_changes(&self, changed: &Invalidated<'_>) -> Result<(), FrameError> {
        let Some(tracker) = &self.tracker else { return Ok(()) };
        let _wakes = DeferredWakes::begin();
        if changed.is_all() {
            tracker.note_remote_flush();
        }
        changed.keys().try_for_each(|key| key.map(|key| tracker.note_remote_change(key)))
    }

    /// Passes a reply to its session.
    pub(super) fn distribute(&self, route: u64, end: ReplyEnd, bytes: &[u8]) {
        // If the session has ended, it needs no reply.
        let Some(session) = lock(&self.routes).get(&route).cloned() else { return };
        let mut state = lock(&session);
        if state.route != Some(route) {
            return;
        }
        match end {
            ReplyEnd::Partial => state.answer(bytes, None),
            ReplyEnd::Paused => state.answer(bytes, Some(ForwardOutcome::More)),
            ReplyEnd::Done => state.answer(bytes, Some(ForwardOutcome::Done)),
            ReplyEnd::Close => state.answer(bytes, Some(ForwardOutcome::Close)),
        }
    }

    /// Ends a conversation because the peer has refused its requests. If the peer has answered a
    /// part of the first open batch, the batch gets the outcome `RetryRest`. The session sends the
    /// other requests again, on another route.
    pub(super) fn move_rest(
        &self,
        on_refused: OnRefused<'_>,
        route: u64,
        part: AnsweredPart,
        is_planned: bool,
    ) {
        let Some(session) = lock(&self.routes).get(&route).cloned() else { return };
        let mut state = lock(&session);
        if state.route != Some(route) {
            return;
        }
        lock(&self.routes).remove(&route);
        if part != AnsweredPart::default() {
            state.answer(b"", Some(ForwardOutcome::RetryRest(part)));
        }
        drop(state);
        on_refused(&session, is_planned);
    }

    /// Appends a frame to the output.
    pub(super) fn append(&self, frame: &Frame<'_>) {
        let was_empty = {
            let output = &mut lock(&self.output);
            if output.is_closed {
                return;
            }
            let was_empty = output.bytes.is_empty();
            frame.write(&mut output.bytes);
            was_empty
        };
        if was_empty {
            self.waker.wake_by_ref();
        }
    }

    /// Sends requests on a route.
    pub(super) fn send(&self, route: u64, bytes: &[u8], more: bool) {
        let mut pieces = bytes.chunks(PIECE_LEN).peekable();
        while let Some(bytes) = pieces.next() {
            let more = more || pieces.peek().is_some();
            self.append(&Frame::Request { route, more, bytes });
        }
    }

    /// Closes the connection and stops granting leases. Requests without a complete reply get their
    /// outcome in [`Link::end_requests`].
    pub(super) fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        let waiting = {
            let mut output = lock(&self.output);
            output.is_closed = true;
            output.leases.close();
            output.bytes = Vec::new();
            std::mem::take(&mut output.waiting)
        };
        self.waker.wake_by_ref();
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Records that the peer executes no more requests from this connection, because its process
    /// has ended or it has accepted a later connection.
    pub(super) fn note_peer_end(&self) {
        self.has_peer_ended.store(true, Ordering::Release);
    }

    /// Returns whether the peer can no longer execute changes that were sent on this connection.
    pub(super) fn has_ended(&self) -> bool {
        self.has_peer_ended.load(Ordering::Acquire)
            || lock(&self.output).leases.have_ended(boot_millis())
    }

    /// Returns whether the peer might still execute requests of this closed connection that have no
    /// result.
    pub(super) fn awaits_end(&self) -> bool {
        self.has_unanswered() && !self.has_ended()
    }

    /// Gives requests without a complete reply the outcome [`ForwardOutcome::ConnectionLost`]: the
    /// peer may have executed them. Call this for a closed connection when [`Self::awaits_end`]
    /// returns false, or when the node shuts down.
    pub(super) fn end_requests(&self) {
        let routes = std::mem::take(&mut *lock(&self.routes));
        for (number, route) in routes {
            let mut state = lock(&route);
            if state.route == Some(number) {
                state.end(ForwardOutcome::ConnectionLost);
            }
        }
    }
}

/// Converts a duration to milliseconds.
pub(super) fn millis(time: Duration) -> Millis {
    time.as_millis().try_into().unwrap_or(Millis::MAX)
}

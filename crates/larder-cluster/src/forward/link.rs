//! A connection to a leader. The requests of all clients of this node share it.

use super::pending::{RouteState, lock};
use crate::error::{LocalError, PeerError, Timeout, Violation};
use crate::peers::{Credentials, PeerConnection, PeerStream, Stop, Target, dial, is_silence};
use larder_operations::{DeferredWakes, Tracker};
use larder_replica::{
    FRAME_LEN_MAX, Frame, FrameError, HelloMember, Invalidated, Process, Purpose, ReplyEnd,
};
use larder_session::ForwardOutcome;
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

/// The time without received bytes after which a leader counts as unreachable: a leader sends ten
/// heartbeats a second. It is also the write timeout of the connection.
const FORWARD_SILENCE_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum time that a connection to a former leader waits for the results of its requests.
const RETIRED_MAX: Duration = Duration::from_secs(10);
/// The interval at which a waiting read checks whether the connection must end.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The length, in bytes, to which the writer shrinks a longer buffer.
const BUFFER_LEN_MAX: usize = 1 << 20;
/// The maximum number of bytes of requests in one frame.
const PIECE_LEN: usize = 256 << 10;
const READ_LEN: usize = 256 << 10;

/// The callback for sessions with requests that the peer has refused.
pub(super) type OnRefused<'f> = &'f dyn Fn(&Arc<Mutex<RouteState>>);

/// The identity that this node presents to the leaders of its cluster's groups.
#[derive(Clone)]
pub(crate) struct LocalMember {
    pub(crate) process: Process,
    /// The name of this node's group: `CLUSTER/GROUP`.
    pub(crate) group: String,
}

/// A connection to the leader.
#[derive(Debug)]
pub(super) struct Link {
    stream: PeerStream,
    pub(super) output: Mutex<Output>,
    has_output: Condvar,
    /// The sessions with an open route on the connection.
    pub(super) routes: Mutex<HashMap<u64, Arc<Mutex<RouteState>>>>,
    /// The time at which this node detected that the peer no longer leads; unset before.
    retired_at: OnceLock<Instant>,
    /// The tracker that gets the changes of items at the peer; `None` if the peer sends none.
    tracker: Option<Arc<Tracker>>,
}

#[derive(Debug, Default)]
pub(super) struct Output {
    pub(super) bytes: Vec<u8>,
    pub(super) is_closed: bool,
    /// Wakers of sessions that wait for room in the output.
    pub(super) waiting: Vec<Waker>,
}

/// Connects to a leader. Returns the connection, and the bytes that have arrived after the
/// handshake.
pub(super) fn connect(
    leader: &Process,
    address: Option<&str>,
    me: &LocalMember,
    credentials: &Credentials,
    tracker: Option<&Arc<Tracker>>,
    stop: &Stop,
) -> Result<(Arc<Link>, Vec<u8>), PeerError> {
    let address = address.ok_or_else(|| LocalError::NoAddress)?;
    let member = Some(HelloMember { group: &me.group, incarnation: me.process.incarnation });
    let target = Target { address, node: Some(&leader.node) };
    let dialed = dial(target, credentials, &me.process.node, member, Purpose::Forward, stop)?;
    let PeerConnection { stream, identity, rest } = dialed;
    if identity.incarnation != leader.incarnation {
        return Err(LocalError::OtherProcess.into());
    }
    stream.set_read_timeout(Some(STOP_POLL_INTERVAL))?;
    stream.set_write_timeout(Some(FORWARD_SILENCE_TIMEOUT))?;
    // A request whose failure this node has reported must not take effect much later.
    stream.discard_late_bytes(FORWARD_SILENCE_TIMEOUT)?;
    Ok((Arc::new(Link::new(stream, tracker.cloned())), rest))
}

impl Link {
    pub(super) fn new(stream: PeerStream, tracker: Option<Arc<Tracker>>) -> Self {
        Self {
            stream,
            output: Mutex::default(),
            has_output: Condvar::new(),
            routes: Mutex::default(),
            retired_at: OnceLock::new(),
            tracker,
        }
    }

    /// Ends the connection as soon as its requests have results, or after [`RETIRED_MAX`], because
    /// the peer no longer leads. The former leader either completes the requests or returns them
    /// for the next leader.
    pub(super) fn retire(&self) {
        let _ = self.retired_at.set(Instant::now());
    }

    /// Returns the reason to end a retired connection now, or `None` if the connection is not
    /// retired, or still waits for results.
    fn retirement_end(&self) -> Option<PeerError> {
        let since = self.retired_at.get()?;
        if !self.has_unanswered() {
            Some(LocalError::Replaced.into())
        } else {
            (since.elapsed() > RETIRED_MAX).then(|| Timeout::Retired.into())
        }
    }

    /// Returns whether requests on this connection wait for a result.
    pub(super) fn has_unanswered(&self) -> bool {
        // Collect the routes before locking a state. `distribute` takes these locks in the other
        // order, and both orders together could deadlock.
        let routes: Vec<_> =
            lock(&self.routes).iter().map(|(route, state)| (*route, Arc::clone(state))).collect();
        routes.iter().any(|(route, state)| {
            let state = lock(state);
            state.route == Some(*route) && state.has_unanswered()
        })
    }

    /// Sends the output until the connection is closed.
    pub(super) fn write_all(&self) {
        let mut sending = Vec::new();
        loop {
            let waiting = {
                let output = lock(&self.output);
                let is_idle = |output: &mut Output| output.bytes.is_empty() && !output.is_closed;
                let mut output = self
                    .has_output
                    .wait_while(output, is_idle)
                    .unwrap_or_else(PoisonError::into_inner);
                if output.is_closed {
                    return;
                }
                std::mem::swap(&mut output.bytes, &mut sending);
                std::mem::take(&mut output.waiting)
            };
            waiting.into_iter().for_each(Waker::wake);
            if (&self.stream).write_all(&sending).is_err() {
                // The reader detects the shutdown, and ends the connection.
                let _ = self.stream.shutdown(Shutdown::Both);
                return;
            }
            sending.clear();
            sending.shrink_to(BUFFER_LEN_MAX);
        }
    }

    /// Distributes replies until the connection ends. Returns the reason. Calls `on_refused` for
    /// each session with requests that the peer has refused: see [`ReplyEnd::NotLeader`].
    pub(super) fn read_all(
        self: &Arc<Self>,
        on_refused: OnRefused<'_>,
        mut input: Vec<u8>,
        stop: &Stop,
    ) -> PeerError {
        let (mut bytes, mut heard) = (vec![0; READ_LEN], Instant::now());
        loop {
            loop {
                match Frame::read(&input, FRAME_LEN_MAX) {
                    Ok(Some((frame, len))) => {
                        match frame {
                            Frame::Reply { route, end, bytes } => {
                                self.distribute(on_refused, route, end, bytes);
                            }
                            Frame::Invalidated(changed) => {
                                if let Err(error) = self.note_changes(&changed) {
                                    return error.into();
                                }
                            }
                            Frame::Heartbeat { .. } => (),
                            _ => return Violation::UnexpectedFrame.into(),
                        }
                        input.drain(..len);
                    }
                    Ok(None) => break,
                    Err(error) => return error.into(),
                }
            }
            match (&self.stream).read(&mut bytes) {
                Ok(0) => return ErrorKind::UnexpectedEof.into(),
                Ok(len) => {
                    heard = Instant::now();
                    input.extend_from_slice(bytes.get(..len).unwrap_or_default());
                }
                Err(error) if is_silence(&error) => {
                    if heard.elapsed() > FORWARD_SILENCE_TIMEOUT {
                        return Timeout::Heartbeat.into();
                    }
                }
                Err(error) => return error.into(),
            }
            if stop.is_set() || lock(&self.output).is_closed {
                return LocalError::Replaced.into();
            }
            if let Some(reason) = self.retirement_end() {
                return reason;
            }
        }
    }

    /// Sends messages about changed items to the clients that keep copies of them.
    fn note_changes(&self, changed: &Invalidated<'_>) -> Result<(), FrameError> {
        let Some(tracker) = &self.tracker else { return Ok(()) };
        let _wakes = DeferredWakes::begin();
        if changed.is_all() {
            tracker.note_remote_flush();
        }
        changed.keys().try_for_each(|key| key.map(|key| tracker.note_remote_change(key)))
    }

    fn distribute(
        self: &Arc<Self>,
        on_refused: OnRefused<'_>,
        route: u64,
        end: ReplyEnd,
        bytes: &[u8],
    ) {
        // The session may have ended.
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
            ReplyEnd::NotLeader => {
                // The session sends the requests again, on another route.
                lock(&self.routes).remove(&route);
                drop(state);
                on_refused(&session);
            }
        }
    }

    /// Appends a frame to the output.
    pub(super) fn append(&self, frame: &Frame<'_>) {
        let output = &mut lock(&self.output);
        if !output.is_closed {
            let was_empty = output.bytes.is_empty();
            frame.write(&mut output.bytes);
            if was_empty {
                self.has_output.notify_one();
            }
        }
    }

    /// Sends requests of a route.
    pub(super) fn send(&self, route: u64, bytes: &[u8], more: bool) {
        let mut pieces = bytes.chunks(PIECE_LEN).peekable();
        while let Some(bytes) = pieces.next() {
            let more = more || pieces.peek().is_some();
            self.append(&Frame::Request { route, more, bytes });
        }
    }

    /// Closes the connection. Requests without a complete reply end with
    /// [`ForwardOutcome::ConnectionLost`]: the peer may have executed them.
    pub(super) fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        let waiting = {
            let mut output = lock(&self.output);
            output.is_closed = true;
            std::mem::take(&mut output.waiting)
        };
        self.has_output.notify_all();
        waiting.into_iter().for_each(Waker::wake);
        let routes = std::mem::take(&mut *lock(&self.routes));
        for (number, route) in routes {
            let mut state = lock(&route);
            if state.route == Some(number) {
                state.end(ForwardOutcome::ConnectionLost);
            }
        }
    }
}

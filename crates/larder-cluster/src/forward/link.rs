//! A connection to a leader, which all of this node's clients share.
//!
//! When the connection has closed, requests without a reply get their outcome only once the leader
//! can no longer execute them: see [`Link::await_end`].

use super::pending::{RouteState, lock};
use crate::error::{LocalError, PeerError, Timeout, Violation};
use crate::peers::{
    Caller, Credentials, LocalMember, PeerConnection, PeerStream, Stop, Target, dial, is_silence,
};
use larder_operations::{DeferredWakes, Tracker};
use larder_replica::{
    FRAME_LEN_MAX, Frame, FrameError, Invalidated, LEASE_TIME, LinkLeases, Millis, Process,
    Purpose, ReplyEnd,
};
use larder_session::{AnsweredPart, ForwardOutcome};
use larder_support::clock::boot_millis;
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

/// The write timeout of the connection, and its TCP user timeout: the kernel closes the connection
/// if the leader's kernel acknowledges no bytes for this long.
const WRITE_TIMEOUT: Duration = Duration::from_millis(LEASE_TIME);
/// The maximum time that a connection to a former leader stays open to receive the results of its
/// requests.
const RETIRED_MAX: Duration = Duration::from_secs(10);
/// The interval at which a waiting read checks whether to close the connection.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The capacity, in bytes, to which the writer shrinks a larger buffer.
const BUFFER_LEN_MAX: usize = 1 << 20;
/// The interval at which the thread of a closed connection checks whether the leader can still
/// execute requests.
const END_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The maximum number of request bytes in one frame. A lease must wait until the preceding frame is
/// sent, so frames are short.
const PIECE_LEN: usize = 64 << 10;
/// After sending this many bytes of frames, the writer checks for a lease to send.
const WRITE_LEN: usize = 64 << 10;
const READ_LEN: usize = 256 << 10;

/// The callback for a session whose requests the peer has refused. The second argument is true if
/// the change of the leader or owner is planned.
pub(super) type OnRefused<'f> = &'f dyn Fn(&Arc<Mutex<RouteState>>, bool);

/// A connection to the leader.
#[derive(Debug)]
pub(super) struct Link {
    stream: PeerStream,
    pub(super) output: Mutex<Output>,
    has_output: Condvar,
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
    lease: Option<(Millis, Millis)>,
    /// Wakers of sessions that wait for room in the output.
    pub(super) waiting: Vec<Waker>,
}

/// Connects to a leader. Gives up when `is_wanted` returns false. Returns the connection, and the
/// bytes that were received after the handshake.
pub(super) fn connect(
    leader: &Process,
    address: Option<&str>,
    me: &LocalMember,
    credentials: &Credentials,
    tracker: Option<&Arc<Tracker>>,
    stop: &Stop,
    is_wanted: &dyn Fn() -> bool,
) -> Result<(Arc<Link>, Vec<u8>), PeerError> {
    let address = address.ok_or_else(|| LocalError::NoAddress)?;
    let target = Target { address, node: Some(&leader.node), is_wanted };
    let dialed = dial(target, credentials, Caller::Member(me), Purpose::Forward, stop)?;
    let PeerConnection { stream, identity, rest, handshake_time } = dialed;
    if identity.incarnation != leader.incarnation {
        let is_successor = identity.node == leader.node;
        return Err(
            if is_successor { LocalError::Restarted } else { LocalError::OtherProcess }.into()
        );
    }
    stream.set_read_timeout(Some(STOP_POLL_INTERVAL))?;
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    // Discard late bytes, because a request must not take effect long after this node has reported
    // it as failed.
    stream.discard_late_bytes(WRITE_TIMEOUT)?;
    let leases = LinkLeases::new(identity.time, millis(handshake_time), boot_millis());
    let link = Arc::new(Link::new(stream, tracker.cloned(), leases));
    // The leader executes no change before it has a lease.
    link.renew_lease(None);
    Ok((link, rest))
}

impl Link {
    pub(super) fn new(
        stream: PeerStream,
        tracker: Option<Arc<Tracker>>,
        leases: LinkLeases,
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
            has_output: Condvar::new(),
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
    fn retirement_end(&self) -> Option<PeerError> {
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

    /// Grants a lease, which the writer sends before further output. After a heartbeat from the
    /// leader, `heartbeat` contains the heartbeat's send time and the number of bytes that the
    /// leader had read at this time.
    fn renew_lease(&self, heartbeat: Option<(Millis, u64)>) {
        let (now, output) = (boot_millis(), &mut *lock(&self.output));
        if let Some((sent, received)) = heartbeat {
            output.leases.note_heartbeat(sent, received, now);
        }
        output.lease = output.leases.grant(now).map(|until| (until, now));
        self.has_output.notify_one();
    }

    /// Sends leases and the output until the connection is closed.
    pub(super) fn write_all(&self) {
        let (mut sending, mut at) = (Vec::new(), 0);
        while let Some(waiting) = self.next_output(&mut sending, &mut at) {
            waiting.into_iter().for_each(Waker::wake);
            let rest = sending.get(at..).unwrap_or_default();
            let piece = rest.get(..frames_len(rest, WRITE_LEN)).unwrap_or(rest);
            if !self.write_with_lease(piece) {
                // The reader detects the shutdown, and ends the connection.
                let _ = self.stream.shutdown(Shutdown::Both);
                return;
            }
            at += piece.len();
        }
    }

    /// Waits for a lease, output or unsent bytes. If all earlier bytes of `sending` were sent,
    /// moves the output to `sending`, sets `at` to 0, and returns the wakers of sessions that wait
    /// for room in the output. Returns `None` if the connection is closed.
    fn next_output(&self, sending: &mut Vec<u8>, at: &mut usize) -> Option<Vec<Waker>> {
        let is_sent = *at == sending.len();
        let is_idle = |output: &mut Output| {
            is_sent && output.bytes.is_empty() && output.lease.is_none() && !output.is_closed
        };
        let mut output = self
            .has_output
            .wait_while(lock(&self.output), is_idle)
            .unwrap_or_else(PoisonError::into_inner);
        if output.is_closed {
            return None;
        }
        if !is_sent {
            return Some(Vec::new());
        }
        sending.clear();
        sending.shrink_to(BUFFER_LEN_MAX);
        *at = 0;
        std::mem::swap(&mut output.bytes, sending);
        Some(std::mem::take(&mut output.waiting))
    }

    /// Sends the granted lease, if any, and then `bytes`. Returns false if the connection has
    /// failed.
    fn write_with_lease(&self, bytes: &[u8]) -> bool {
        let mut lease = Vec::new();
        {
            let output = &mut *lock(&self.output);
            if let Some((until, granted_at)) = output.lease.take() {
                Frame::Lease(until).write(&mut lease);
                output.leases.note_written(lease.len() as u64, Some(granted_at));
            }
            output.leases.note_written(bytes.len() as u64, None);
        }
        let mut stream = &self.stream;
        (lease.is_empty() || stream.write_all(&lease).is_ok()) && stream.write_all(bytes).is_ok()
    }

    /// Passes replies to their sessions until the connection ends. Returns the reason for its end.
    /// Calls `on_refused` for each session whose requests the peer has refused: see
    /// [`Frame::Moved`].
    pub(super) fn read_all(
        self: &Arc<Self>,
        on_refused: OnRefused<'_>,
        mut input: Vec<u8>,
        stop: &Stop,
    ) -> PeerError {
        let (mut bytes, mut received_at) = (vec![0; READ_LEN], Instant::now());
        loop {
            let mut heartbeat = None;
            loop {
                match Frame::read(&input, FRAME_LEN_MAX) {
                    Ok(Some((frame, len))) => {
                        match frame {
                            Frame::Reply { route, end, bytes } => {
                                self.distribute(route, end, bytes);
                            }
                            Frame::Moved { route, answered, keys, found, is_planned } => {
                                let (Ok(len), Ok(keys)) = (answered.try_into(), keys.try_into())
                                else {
                                    return Violation::UnexpectedFrame.into();
                                };
                                let part = AnsweredPart { len, keys, found };
                                self.move_rest(on_refused, route, part, is_planned);
                            }
                            Frame::Invalidated(changed) => {
                                if let Err(error) = self.note_changes(&changed) {
                                    return error.into();
                                }
                            }
                            Frame::LinkHeartbeat { sent, received } => {
                                heartbeat = Some((sent, received));
                            }
                            _ => return Violation::UnexpectedFrame.into(),
                        }
                        input.drain(..len);
                    }
                    Ok(None) => break,
                    Err(error) => return error.into(),
                }
            }
            if heartbeat.is_some() {
                self.renew_lease(heartbeat);
            }
            if let Some(timeout) = self.timeout(received_at) {
                return timeout.into();
            }
            match (&self.stream).read(&mut bytes) {
                Ok(0) => return ErrorKind::UnexpectedEof.into(),
                Ok(len) => {
                    received_at = Instant::now();
                    input.extend_from_slice(bytes.get(..len).unwrap_or_default());
                }
                Err(error) if is_silence(&error) => (),
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

    /// Returns the time limit that the leader has exceeded, if any. `received_at` is the time at which
    /// its last bytes arrived.
    fn timeout(&self, received_at: Instant) -> Option<Timeout> {
        let leases = &lock(&self.output).leases;
        if received_at.elapsed() > Duration::from_millis(leases.lease_time()) {
            return Some(Timeout::Heartbeat);
        }
        leases.is_stalled().then_some(Timeout::LeaderStalled)
    }

    /// Sends messages about changed items to the clients that track them.
    fn note_changes(&self, changed: &Invalidated<'_>) -> Result<(), FrameError> {
        let Some(tracker) = &self.tracker else { return Ok(()) };
        let _wakes = DeferredWakes::begin();
        if changed.is_all() {
            tracker.note_remote_flush();
        }
        changed.keys().try_for_each(|key| key.map(|key| tracker.note_remote_change(key)))
    }

    fn distribute(&self, route: u64, end: ReplyEnd, bytes: &[u8]) {
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
    fn move_rest(
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
        let output = &mut lock(&self.output);
        if !output.is_closed {
            let was_empty = output.bytes.is_empty();
            frame.write(&mut output.bytes);
            if was_empty {
                self.has_output.notify_one();
            }
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
    /// outcome in [`Link::await_end`].
    pub(super) fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        let waiting = {
            let mut output = lock(&self.output);
            output.is_closed = true;
            output.leases.close();
            output.bytes = Vec::new();
            std::mem::take(&mut output.waiting)
        };
        self.has_output.notify_all();
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

    /// Waits until the peer can no longer execute requests of this closed connection, or until this
    /// node shuts down. Then gives requests without a complete reply the outcome
    /// [`ForwardOutcome::ConnectionLost`]: the peer may have executed them.
    pub(super) fn await_end(&self, stop: &Stop) {
        while self.has_unanswered() && !self.has_ended() && !stop.is_set() {
            stop.wait(END_POLL_INTERVAL);
        }
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

/// Returns the total length of the smallest number of leading frames in `bytes` that have at least
/// `len_min` bytes together. If all frames together are shorter, returns their total length.
fn frames_len(bytes: &[u8], len_min: usize) -> usize {
    let mut len = 0;
    while len < len_min
        && let Some(next) = bytes.get(len..).and_then(Frame::encoded_len)
    {
        len += next;
    }
    len.min(bytes.len())
}

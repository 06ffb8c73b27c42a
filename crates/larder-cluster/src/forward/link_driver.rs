//! Sends and receives on a [`Link`], on the thread of an event loop.

use super::forwarder::Forwarder;
use super::link::Link;
use super::pending::{RouteState, lock};
use crate::error::{LocalError, PeerError, Violation};
use crate::peers::{Connection, LoopThread, NextStep, PeerStream, Stop, StreamWriter};
use larder_replica::{FRAME_LEN_MAX, Frame, LEASE_TIME};
use larder_session::AnsweredPart;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};

/// The write timeout of the connection, and its TCP user timeout: the kernel closes the connection
/// if the leader's kernel acknowledges no bytes for this long.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_millis(LEASE_TIME);
/// The interval at which an idle driver checks whether to close the connection.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The interval at which the driver of a closed connection checks whether the leader can still
/// execute requests.
const END_CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// The capacity, in bytes, to which the driver shrinks a larger buffer.
const BUFFER_LEN_MAX: usize = 1 << 20;
/// After sending this many bytes of frames, the driver checks for a lease to send.
const WRITE_LEN: usize = 64 << 10;
/// After sending about this many bytes, the driver lets other connections of its thread continue.
const SEND_LEN_MAX: usize = 1 << 20;

/// Drives a connection to a leader until the connection has ended and its requests have results.
pub(super) struct LinkDriver {
    link: Arc<Link>,
    forwarder: Forwarder,
    stop: Arc<Stop>,
    /// The received bytes whose frame is incomplete.
    input: Vec<u8>,
    /// The time at which the last bytes arrived.
    received_at: Instant,
    writer: StreamWriter,
    /// The unsent bytes of a lease, which precede the frames in `sending`.
    lease: Vec<u8>,
    /// Frames that were taken from the output. The bytes before `sent` are sent, and the frames up
    /// to `piece_end` are sent before the next lease.
    sending: Vec<u8>,
    sent: usize,
    piece_end: usize,
    /// Whether the connection has ended. Its requests may still wait for their results.
    has_ended: bool,
}

impl LinkDriver {
    /// Creates the driver of a connection. `input` contains the bytes that were received after the
    /// handshake.
    pub(super) fn new(
        link: Arc<Link>,
        forwarder: Forwarder,
        input: Vec<u8>,
        stop: Arc<Stop>,
    ) -> Self {
        Self {
            link,
            forwarder,
            stop,
            input,
            received_at: Instant::now(),
            writer: StreamWriter::new(WRITE_TIMEOUT),
            lease: Vec::new(),
            sending: Vec::new(),
            sent: 0,
            piece_end: 0,
            has_ended: false,
        }
    }

    /// Receives and sends as much as is possible without waiting. `bytes` is a buffer for received
    /// bytes. Returns whether more bytes may have arrived, or can be sent.
    ///
    /// # Errors
    /// The reason why the connection ends.
    pub(super) fn transfer(&mut self, bytes: &mut [u8]) -> Result<bool, PeerError> {
        self.handle_input()?;
        let received = self.link.stream.read_some(bytes)?;
        if let Some(len) = received {
            if len == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.received_at = Instant::now();
            self.input.extend_from_slice(bytes.get(..len).unwrap_or_default());
            self.handle_input()?;
        }
        if let Some(timeout) = self.link.timeout(self.received_at) {
            return Err(timeout.into());
        }
        if self.stop.is_set() || lock(&self.link.output).is_closed {
            return Err(LocalError::Replaced.into());
        }
        if let Some(reason) = self.link.retirement_end() {
            return Err(reason);
        }
        let is_unfinished = self.send()?;
        Ok(received.is_some() || is_unfinished)
    }

    /// Closes the connection. Its requests still wait until the leader can no longer execute them.
    fn end(&mut self) {
        self.forwarder.drop_link(&self.link);
        self.has_ended = true;
    }

    /// Passes the complete frames of the input to their sessions, and grants a lease after a
    /// heartbeat.
    fn handle_input(&mut self) -> Result<(), PeerError> {
        let (mut at, mut heartbeat) = (0, None);
        while let Some((frame, len)) =
            Frame::read(self.input.get(at..).unwrap_or_default(), FRAME_LEN_MAX)?
        {
            match frame {
                Frame::Reply { route, end, bytes } => self.link.distribute(route, end, bytes),
                Frame::Moved { route, answered, keys, found, is_planned } => {
                    let (Ok(len), Ok(keys)) = (answered.try_into(), keys.try_into()) else {
                        return Err(Violation::UnexpectedFrame.into());
                    };
                    let on_refused = |route: &Arc<Mutex<RouteState>>, is_planned: bool| {
                        self.forwarder.retry_soon(route, is_planned);
                    };
                    let part = AnsweredPart { len, keys, found };
                    self.link.move_rest(&on_refused, route, part, is_planned);
                }
                Frame::Invalidated(changed) => self.link.note_changes(&changed)?,
                Frame::LinkHeartbeat { sent, received } => heartbeat = Some((sent, received)),
                _ => return Err(Violation::UnexpectedFrame.into()),
            }
            at += len;
        }
        self.input.drain(..at);
        if heartbeat.is_some() {
            self.link.renew_lease(heartbeat);
        }
        Ok(())
    }

    /// Sends leases and the output until the stream has no room, but at most [`SEND_LEN_MAX`] bytes.
    /// Returns whether the rest can be sent at once.
    fn send(&mut self) -> io::Result<bool> {
        let mut total = 0;
        while total < SEND_LEN_MAX {
            let stream = &self.link.stream;
            let sent = self.writer.write(stream, &self.lease)?;
            self.lease.drain(..sent);
            if !self.lease.is_empty() {
                return Ok(false);
            }
            let piece = self.sending.get(self.sent..self.piece_end).unwrap_or_default();
            let len = self.writer.write(stream, piece)?;
            (self.sent, total) = (self.sent + len, total + len);
            if self.sent < self.piece_end || !self.take_piece() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes the granted lease, if any, and the next frames to send. If all frames of `sending` are
    /// sent, moves the output to `sending`, and wakes the sessions that wait for room in the
    /// output. Returns false if there is nothing to send.
    fn take_piece(&mut self) -> bool {
        let mut waiting = Vec::new();
        {
            let output = &mut *lock(&self.link.output);
            if self.sent == self.sending.len() && !output.bytes.is_empty() {
                self.sending.clear();
                self.sending.shrink_to(BUFFER_LEN_MAX);
                std::mem::swap(&mut output.bytes, &mut self.sending);
                (self.sent, self.piece_end) = (0, 0);
                waiting = std::mem::take(&mut output.waiting);
            }
            if let Some((until, granted_at)) = output.lease.take() {
                Frame::Lease(until).write(&mut self.lease);
                output.leases.note_written(self.lease.len() as u64, Some(granted_at));
            }
            let len = frames_len(self.sending.get(self.sent..).unwrap_or_default(), WRITE_LEN);
            output.leases.note_written(len as u64, None);
            self.piece_end = self.sent + len;
        }
        waiting.into_iter().for_each(Waker::wake);
        !self.lease.is_empty() || self.piece_end > self.sent
    }
}

impl Drop for LinkDriver {
    /// Ends the connection and its requests, even if the event loop could not drive it to its end.
    fn drop(&mut self) {
        self.forwarder.drop_link(&self.link);
        self.link.end_requests();
    }
}

impl Connection for LinkDriver {
    fn stream(&self) -> &PeerStream {
        &self.link.stream
    }

    fn advance(&mut self, thread: &mut LoopThread) -> NextStep {
        if !self.has_ended {
            match self.transfer(&mut thread.bytes) {
                Ok(true) => return NextStep::Again,
                Ok(false) => return NextStep::Wait(CHECK_INTERVAL),
                Err(error) => {
                    tracing::debug!("the connection for forwarded requests has ended: {error}");
                    self.end();
                }
            }
        }
        if self.link.awaits_end() && !self.stop.is_set() {
            return NextStep::Wait(END_CHECK_INTERVAL);
        }
        self.link.end_requests();
        NextStep::End
    }

    fn end_after_panic(&mut self) -> NextStep {
        self.end();
        NextStep::Wait(END_CHECK_INTERVAL)
    }
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

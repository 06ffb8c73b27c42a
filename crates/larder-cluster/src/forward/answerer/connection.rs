//! Receives forwarded requests on a connection and sends the replies, on the thread of an event loop.

use super::{Answerer, Conversations, UNSENT_MAX};
use crate::error::{LocalError, PeerError, Timeout};
use crate::peers::{
    AdmittedLink, Connection, HEARTBEAT_INTERVAL, HeartbeatSchedule, LoopEntry, LoopThread,
    NextStep, PeerStream, Stop, StreamWriter,
};
use larder_replica::Frame;
use larder_store::Updates;
use larder_support::clock::boot_millis;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// The answerer closes a connection after this time without a new lease.
const LEASE_SILENCE_MAX: Duration = Duration::from_secs(30);
/// The answerer closes a connection that accepts no output for this long.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

impl Answerer {
    /// Starts to answer the requests on a connection. `name` is the name of the peer's node.
    ///
    /// # Errors
    /// The connection cannot be driven.
    pub(crate) fn serve(
        self: &Arc<Self>,
        stream: PeerStream,
        link: AdmittedLink,
        name: String,
        entry: LoopEntry,
        stop: &Arc<Stop>,
    ) -> Result<(), PeerError> {
        stream.set_nonblocking()?;
        let connection = self.connections.fetch_add(1, Ordering::Relaxed);
        let peer = Conversations::new(self, &link.fence, connection, entry.waker.clone());
        let (input, unsent, heartbeats) = Default::default();
        let (writer, stop) = (StreamWriter::new(WRITE_TIMEOUT), Arc::clone(stop));
        entry.drive(Box::new(AnswererConnection {
            stream,
            link,
            name,
            stop,
            peer,
            input,
            received: 0,
            heartbeats,
            writer,
            unsent,
            has_more: false,
        }))?;
        Ok(())
    }
}

/// A connection whose requests this node answers.
struct AnswererConnection {
    stream: PeerStream,
    link: AdmittedLink,
    name: String,
    stop: Arc<Stop>,
    peer: Conversations,
    /// The received frames that are not handled yet. The last one may be incomplete.
    input: Vec<u8>,
    /// The number of bytes received so far.
    received: u64,
    heartbeats: HeartbeatSchedule,
    writer: StreamWriter,
    /// The output that the stream has not accepted yet.
    unsent: Vec<u8>,
    /// Whether complete frames or woken conversations were left for the next call.
    has_more: bool,
}

impl AnswererConnection {
    /// Answers requests. Returns the next step for the connection.
    ///
    /// # Errors
    /// The connection has ended.
    fn answer(&mut self, thread: &mut LoopThread) -> Result<NextStep, PeerError> {
        if self.peer.has_ended(&self.stop) {
            return Ok(NextStep::End);
        }
        self.send()?;
        if !self.link.is_current() {
            return Err(LocalError::Obsolete.into());
        }
        if self.peer.leased_at.elapsed() > LEASE_SILENCE_MAX {
            return Err(Timeout::Lease.into());
        }
        if !self.unsent.is_empty() {
            // Answer no further requests until the peer has read these replies.
            return Ok(NextStep::Wait(HEARTBEAT_INTERVAL));
        }
        // Handle all received frames before receiving more. Then bytes may have arrived already.
        let may_have_bytes = self.has_more || self.receive(&mut thread.bytes)?;
        self.answer_some(thread.number)?;
        self.send()?;
        let is_blocked = !self.unsent.is_empty();
        if !is_blocked && (self.has_more || may_have_bytes) {
            return Ok(NextStep::Again);
        }
        Ok(NextStep::Wait(self.peer.wait_time(self.heartbeats.left())))
    }

    /// Receives bytes. Returns whether more bytes may have arrived.
    fn receive(&mut self, bytes: &mut [u8]) -> Result<bool, PeerError> {
        let Some(len) = self.stream.read_some(bytes)? else { return Ok(false) };
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.received += len as u64;
        self.input.extend_from_slice(bytes.get(..len).unwrap_or_default());
        Ok(true)
    }

    /// Answers some of the received requests, with the handle to the cache of this number.
    fn answer_some(&mut self, number: usize) -> Result<(), PeerError> {
        let answerer = Arc::clone(&self.peer.answerer);
        let (Some(handle), Some(counters)) =
            (answerer.handles.get(number), answerer.node.answerer_counters.get(number))
        else {
            return Err(LocalError::NoHandle.into());
        };
        self.peer.take_woken();
        let (len, has_more) = {
            let mut engine = handle.lock().unwrap_or_else(PoisonError::into_inner);
            engine.set_fence(Some(Arc::clone(&self.link.fence)));
            self.peer.answer_some(&mut engine, counters, &self.input)?
        };
        self.input.drain(..len);
        self.has_more = has_more;
        if self.heartbeats.due().is_some() {
            let received = self.received - self.input.len() as u64;
            Frame::LinkHeartbeat { sent: boot_millis(), received }.write(&mut self.peer.out);
        }
        Ok(())
    }

    /// Sends output until the stream has no room.
    fn send(&mut self) -> io::Result<()> {
        if self.unsent.is_empty() {
            std::mem::swap(&mut self.unsent, &mut self.peer.out);
        }
        let len = self.writer.write(&self.stream, &self.unsent)?;
        self.unsent.drain(..len);
        self.unsent.shrink_to(UNSENT_MAX);
        Ok(())
    }
}

impl Connection for AnswererConnection {
    fn stream(&self) -> &PeerStream {
        &self.stream
    }

    fn advance(&mut self, thread: &mut LoopThread) -> NextStep {
        self.answer(thread).unwrap_or_else(|error| {
            let name = &self.name;
            tracing::debug!("the connection of {name} for requests has ended: {error}");
            NextStep::End
        })
    }
}

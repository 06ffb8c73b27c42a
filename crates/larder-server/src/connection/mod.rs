//! A client's connection, independent of the driver: a conversation, its buffers and its TLS, over
//! a non-blocking stream. The driver reports events with [`Connection::note_event`] and polls the
//! connection with [`Connection::serve`], which returns the event to wait for.

mod admission;
mod buffers;
pub(crate) mod connection_memory;
pub mod conversation;
pub mod list;
mod shedding;
mod unread;

pub use buffers::{Buffers, IoBytes};

use crate::connection::buffers::write;
use crate::connection::connection_memory::{HeldBytes, PROGRESS_MIN};
use crate::connection::conversation::Conversation;
use crate::connection::list::ConnectionInfo;
use crate::connection::unread::Unread;
use crate::timing::{RequestTimer, Timing};
use crate::tls::channel::Channel;
use larder_session::{Next, Progress, State};
use std::io::{self, Read, Write};
use std::sync::Arc;

/// An error that closes a connection before its conversation has ended.
#[derive(Debug)]
pub enum Fault {
    /// The peer has disconnected, or cannot be reached.
    Stream(io::Error),
    /// TLS has failed. The input is not TLS, violates the protocol or ends during the handshake, or
    /// the server refuses the client's certificate.
    Tls(io::Error),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Stream(error)
    }
}

/// The driver's next step for a connection after a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// Poll the connection again, after the other connections that are ready.
    PollAgain,
    /// Wait until the socket is writable if `Connection::awaits_writing` returns true, otherwise
    /// until it is readable.
    Wait,
    /// Wait for the conversation's waker, or for the peer to disconnect. The connection is held
    /// because a request waits for slower storage or for another node, or because replies wait
    /// until a change is acknowledged. Call `Connection::resume` before the next poll.
    Hold,
    /// Close the connection.
    Close,
}

/// A connection without its stream: the driver owns the stream and lends it to each poll.
pub struct Connection<C> {
    /// The TLS state; `None` for a plaintext connection.
    tls: Option<Box<Channel>>,
    pub(crate) conversation: C,
    pub(crate) info: Arc<ConnectionInfo>,
    /// Input that the conversation has not consumed. Between requests it is empty and unallocated.
    unread: Unread,
    /// Output that the socket has not accepted yet. With TLS, this is ciphertext.
    unsent: Vec<u8>,
    /// The memory used by the buffers and the conversation, as last reported to the server.
    held: HeldBytes,
    /// The number of bytes read and written since the connection last published progress.
    moved: usize,
    input: Input,
    stage: Stage,
    /// Whether the last poll could not read ahead because other connections held the memory.
    awaits_room: bool,
    timer: RequestTimer,
}

/// The state of the socket's receive buffer.
///
/// ```text
///   Empty ── event ──▶ Readable ── event: the peer sends no more ──▶ Ending ── its end is read ──▶ Ended
///     ▲──── a short read ──┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    /// No input until the next event.
    Empty,
    /// There may be input.
    Readable,
    /// The peer has shut down its sending side. Input may still precede the end of the stream.
    Ending,
    /// The connection has read the end of the stream.
    Ended,
}

/// The conversation's state between polls.
///
/// ```text
///                         ┌──────── a poll ────────┐
///   Reading ◀── needs more input ──┤               │
///   Resuming ◀── has input left ───┤               ├── is done, or the input ended ──▶ Closing
///      ▲                           │               │
///      ├── woken ── Waiting ◀── has a request that must wait
///      │                           │               │
///      └── a poll that releases the replies ── Unacknowledged ◀── holds its replies
/// ```
///
/// Every poll first sends unsent output, except in `Unacknowledged`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The conversation needs more input.
    Reading,
    /// The conversation has unprocessed input.
    Resuming,
    /// The next request waits for slower storage or for another node. The connection reads nothing,
    /// and is neither idle nor quiet. If the input has ended, the connection still answers the
    /// request before it closes.
    Waiting,
    /// The unsent replies depend on an unacknowledged change. The connection sends and reads
    /// nothing. Each poll checks the acknowledgement again.
    Unacknowledged,
    /// The conversation has ended. The connection closes after the unsent output is sent.
    Closing,
}

/// The first byte of a TLS handshake record.
const HANDSHAKE_RECORD: u8 = 22;

impl<C: Conversation> Connection<C> {
    /// Creates a connection. The driver first polls it at its first event.
    #[must_use]
    pub fn new(info: Arc<ConnectionInfo>, conversation: C, tls: Option<Channel>) -> Self {
        Self {
            tls: tls.map(Box::new),
            conversation,
            info,
            unread: Unread::default(),
            unsent: Vec::new(),
            held: HeldBytes::default(),
            moved: 0,
            input: Input::Empty,
            stage: Stage::Reading,
            awaits_room: false,
            timer: RequestTimer::default(),
        }
    }

    /// Records an event of the socket.
    pub fn note_event(&mut self, readable: bool, read_closed: bool) {
        self.input = match self.input {
            Input::Empty | Input::Readable if read_closed => Input::Ending,
            Input::Empty if readable => Input::Readable,
            input => input,
        };
    }

    /// Makes the next poll call the conversation even without new input, because the conversation
    /// may have output.
    pub fn call_again(&mut self) {
        if self.stage == Stage::Reading {
            self.stage = Stage::Resuming;
        }
    }

    /// Makes the next poll continue pending work: a request that waits for slower storage or for
    /// another node, unsolicited messages, or reading ahead. Returns false if the next poll would
    /// do nothing.
    pub(crate) fn resume(&mut self) -> bool {
        let has_messages = self.stage == Stage::Reading && self.conversation.has_messages();
        if has_messages || self.stage == Stage::Waiting {
            self.stage = Stage::Resuming;
        }
        matches!(self.stage, Stage::Resuming | Stage::Unacknowledged) || self.awaits_room
    }

    /// Returns whether a request waits for slower storage or for another node, or whether replies
    /// wait for an acknowledgement.
    pub(crate) fn is_held(&self) -> bool {
        matches!(self.stage, Stage::Waiting | Stage::Unacknowledged)
    }

    /// Returns whether all received input is processed and all replies are sent. No part of a
    /// request is then unread or unanswered.
    pub(crate) fn is_quiet(&self) -> bool {
        let is_between_requests =
            matches!(self.conversation.state(), State::Waiting | State::Watching);
        let has_no_partial_record = self.tls.as_ref().is_none_or(|tls| tls.is_empty());
        let is_at_rest = self.stage == Stage::Reading && !self.may_read();
        is_between_requests
            && is_at_rest
            && has_no_partial_record
            && self.unread.is_empty()
            && self.unsent.is_empty()
    }

    /// Returns the time at which the connection became idle, in seconds of the server's clock.
    /// Returns `None` if the idle timeout does not apply. This is the case for a unix socket, and
    /// while the connection is busy, watches the log, subscribes to messages, or receives a value.
    pub(crate) fn idle_since(&self) -> Option<u32> {
        let is_waiting = self.conversation.state() == State::Waiting
            && self.unsent.is_empty()
            && self.stage != Stage::Waiting
            && !self.conversation.awaits_messages();
        let idle = is_waiting && !self.info.is_local() && !self.awaits_value();
        idle.then(|| self.info.last_command())
    }

    /// Returns whether the client is sending a value. This is the case if the unread input contains
    /// the complete head of a request, but not all of its value.
    fn awaits_value(&self) -> bool {
        self.conversation.awaits_value(self.unread.as_slice())
    }

    /// Returns whether replies wait until the socket accepts them.
    pub(crate) fn awaits_writing(&self) -> bool {
        !self.unsent.is_empty() && self.stage != Stage::Unacknowledged
    }

    /// Returns whether the client watches the log. If so, the driver polls the connection at
    /// intervals.
    pub(crate) fn is_watching(&self) -> bool {
        self.conversation.state() == State::Watching
    }

    /// Returns whether the TLS handshake is incomplete.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Returns the memory of the connection's own buffers, in bytes. Excludes the thread's
    /// [`Buffers`].
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        let tls = self.tls.as_ref().map_or(0, |tls| tls.buffer_bytes());
        self.unread.capacity() + self.unsent.capacity() + tls
    }

    /// Publishes the memory that the connection holds. Returns the change in buffer bytes since the
    /// last call.
    ///
    /// `clock` returns milliseconds of the server's clock. `held_change` calls it only if the
    /// connection has made progress, or has started to hold memory.
    pub(crate) fn held_change(&mut self, clock: impl FnOnce() -> u64) -> isize {
        let held = HeldBytes {
            buffers: self.buffer_bytes(),
            leased: self.conversation.leased_bytes(),
            uploaded: self.conversation.uploaded_bytes(),
        };
        if held == HeldBytes::default() && !self.is_holding() {
            self.moved = 0;
            return 0;
        }
        let advances = !self.is_holding() || self.moved >= PROGRESS_MIN;
        if advances {
            self.moved = 0;
        }
        self.info.memory.publish(held, advances.then(clock));
        let change = held.buffers.cast_signed() - self.held.buffers.cast_signed();
        self.held = held;
        change
    }

    /// Returns whether the connection held memory at the last call to [`Self::held_change`].
    pub(crate) fn is_holding(&self) -> bool {
        self.held != HeldBytes::default()
    }

    /// Returns whether the connection held cache memory at the last call to [`Self::held_change`].
    pub(crate) fn is_holding_cache(&self) -> bool {
        self.held.leased > 0 || self.held.uploaded > 0
    }

    /// Returns whether load shedding has marked the connection for closing.
    pub(crate) fn is_shed(&self) -> bool {
        self.info.memory.is_shed()
    }

    /// Returns the buffer bytes that were last published to the server.
    pub(crate) fn counted_held(&self) -> isize {
        self.held.buffers.cast_signed()
    }

    /// Returns the state between polls. If the head of a request has arrived, but not its value,
    /// the state is `Receiving`.
    fn state(&self) -> State {
        match self.conversation.state() {
            State::Waiting | State::Blocked if self.awaits_writing() => State::Sending,
            _ if self.is_held() => State::Blocked,
            State::Waiting if self.stage != Stage::Resuming && self.awaits_value() => {
                State::Receiving
            }
            state => state,
        }
    }

    /// Polls the connection once: sends unsent output, reads if the conversation needs input,
    /// passes the input to the conversation, and sends the replies. Adds the numbers of bytes read
    /// and written to `moved`.
    ///
    /// # Errors
    /// [`Fault`]: the driver must close the connection, because it can send nothing more to the
    /// peer.
    pub fn serve(
        &mut self,
        stream: &mut (impl Read + Write),
        buffers: &mut Buffers,
        timing: &Timing<'_>,
        moved: &mut IoBytes,
        cx: &mut C::Context<'_>,
    ) -> Result<NextAction, Fault> {
        self.awaits_room = false;
        if self.awaits_writing() {
            let sent = self.send_unsent(stream)?;
            self.moved += sent;
            // With TLS, the sent bytes are ciphertext. Their plaintext was counted when it was
            // encrypted.
            moved.written += if self.tls.is_some() { 0 } else { sent };
            if !self.unsent.is_empty() {
                return Ok(NextAction::Wait);
            }
        }
        let mut read = 0;
        match self.stage {
            Stage::Closing => return Ok(NextAction::Close),
            Stage::Waiting => return Ok(NextAction::Hold),
            Stage::Resuming | Stage::Unacknowledged => (),
            Stage::Reading => {
                read = self.read(stream, &mut buffers.input)?;
                if read == 0 && self.input != Input::Ended {
                    return Ok(NextAction::Wait);
                }
            }
        }
        if read > 0 && self.tls.as_ref().is_some_and(|tls| tls.is_unused()) {
            read += self.read_behind_hello(stream, buffers, read)?;
        }
        self.moved += read;
        moved.read += self.decrypt(stream, read, buffers).map_err(Fault::Tls)?;
        self.info.note_poll();
        let progress = self.answer(read, buffers, cx);
        if progress.next == Next::Abandon {
            // Drop replies and TLS messages, because the next connection of the thread uses the
            // shared buffers.
            buffers.output.clear();
            if !self.unsent.is_empty() || !buffers.ciphertext.is_empty() {
                self.unsent.clear();
                buffers.ciphertext.clear();
                // Send no close alert: the peer could not decrypt it, because the records before it
                // were dropped.
                self.tls = None;
            }
            return Ok(NextAction::Close);
        }
        self.stage =
            if progress.hold { Stage::Unacknowledged } else { self.stage_of(progress.next) };
        let sent = self.send(stream, buffers)?;
        self.moved += sent.saturating_sub(self.unsent.len());
        moved.written += sent;
        self.timer.end_poll(&progress, timing);
        let after = self.next_action();
        self.info.publish(self.state(), timing.begun.seconds().0);
        Ok(after)
    }

    /// Reads input while the socket accepts no replies, so that a client can send all its requests
    /// before it reads the first reply. `room` is the number of additional bytes that the
    /// connection may buffer. Returns the next action.
    ///
    /// # Errors
    /// [`Fault`]: as [`Self::serve`].
    pub(crate) fn read_ahead(
        &mut self,
        stream: &mut (impl Read + Write),
        buffers: &mut Buffers,
        room: usize,
        moved: &mut IoBytes,
    ) -> Result<NextAction, Fault> {
        self.awaits_room = self.may_read() && room < self.unread.growth(buffers.input.len());
        if self.awaits_room || !self.may_read() {
            return Ok(NextAction::Wait);
        }
        let read = self.read(stream, &mut buffers.input)?;
        self.moved += read;
        let decrypted = self.decrypt(stream, read, buffers).map_err(Fault::Tls)?;
        moved.read += decrypted;
        self.unread.push(match self.tls {
            Some(_) => buffers.plaintext.as_slice(),
            None => buffers.input.get(..read).unwrap_or_default(),
        });
        if decrypted > 0 || self.input == Input::Ended {
            self.stage = Stage::Resuming;
        }
        // Leave the TLS messages for the next poll. If this function sent all unsent output, the
        // driver would wait for input, and no event would start the next poll.
        self.unsent.append(&mut buffers.ciphertext);
        Ok(if self.may_read() { NextAction::PollAgain } else { NextAction::Wait })
    }

    /// Returns whether the last poll could not read ahead because other connections held the
    /// memory.
    pub(crate) fn awaits_room(&self) -> bool {
        self.awaits_room
    }

    /// Returns whether the connection may read input while the socket accepts no replies.
    pub(crate) fn may_read_ahead(&self) -> bool {
        let answers = matches!(self.stage, Stage::Reading | Stage::Resuming);
        answers && self.awaits_writing() && !self.is_handshaking()
    }

    /// Returns whether the connection waits for an input event in addition to a write event.
    pub(crate) fn awaits_input(&self) -> bool {
        self.may_read_ahead() && self.input == Input::Empty
    }

    /// Reads again after the first record of a handshake, to detect a peer that has already
    /// disconnected.
    ///
    /// The server's part of a handshake takes a thousand times as long as the creation of the
    /// client's first message. For this reason, the server does not start its part for a
    /// disconnected peer.
    fn read_behind_hello(
        &mut self,
        stream: &mut impl Read,
        buffers: &mut Buffers,
        read: usize,
    ) -> Result<usize, Fault> {
        // rustls refuses other input at once, with a specific error.
        let is_handshake = buffers.input.first() == Some(&HANDSHAKE_RECORD);
        let room = buffers.input.get_mut(read..).unwrap_or_default();
        if room.is_empty() || !is_handshake {
            return Ok(0);
        }
        self.note_event(true, false);
        let more = self.read(stream, room)?;
        if self.input == Input::Ended {
            return Err(Fault::Tls(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(more)
    }

    /// Decrypts the input. Returns the number of decrypted bytes, or `read` without TLS.
    fn decrypt(
        &mut self,
        stream: &mut impl Write,
        read: usize,
        buffers: &mut Buffers,
    ) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return Ok(read) };
        buffers.plaintext.clear();
        let fresh = buffers.input.get_mut(..read).unwrap_or_default();
        if let Err(error) = tls.decrypt(fresh, &mut buffers.plaintext, &mut buffers.ciphertext) {
            // The alert nearly always fits in the socket's buffer. If it does not, the peer
            // receives no reason.
            let _ = stream.write(&buffers.ciphertext);
            buffers.ciphertext.clear();
            return Err(error);
        }
        if tls.has_ended() {
            self.input = Input::Ended;
        }
        Ok(buffers.plaintext.len())
    }

    /// Passes the input to the conversation. New input stays in the shared buffer, unless earlier
    /// input is unread.
    fn answer(&mut self, read: usize, buffers: &mut Buffers, cx: &mut C::Context<'_>) -> Progress {
        let fresh = match self.tls {
            Some(_) => buffers.plaintext.as_slice(),
            None => buffers.input.get(..read).unwrap_or_default(),
        };
        if self.unread.is_empty() {
            let progress = self.conversation.receive(cx, fresh, &mut buffers.output);
            self.unread.push(fresh.get(progress.consumed..).unwrap_or_default());
            return progress;
        }
        self.unread.push(fresh);
        let progress = self.conversation.receive(cx, self.unread.as_slice(), &mut buffers.output);
        self.unread.consume(progress.consumed);
        progress
    }

    fn stage_of(&mut self, next: Next) -> Stage {
        let stage = match next {
            Next::Read { .. } if self.input == Input::Ended => Stage::Closing,
            Next::Read { .. } => Stage::Reading,
            Next::Yield | Next::Write => Stage::Resuming,
            Next::Wait => Stage::Waiting,
            Next::Close | Next::Abandon | Next::NotOwner => Stage::Closing,
        };
        if stage == Stage::Closing && self.conversation.has_failed() {
            self.info.note_failure();
        }
        stage
    }

    fn next_action(&self) -> NextAction {
        match self.stage {
            Stage::Unacknowledged => NextAction::Hold,
            _ if !self.unsent.is_empty() => NextAction::Wait,
            Stage::Closing => NextAction::Close,
            Stage::Waiting => NextAction::Hold,
            Stage::Resuming => NextAction::PollAgain,
            Stage::Reading if self.may_read() => NextAction::PollAgain,
            Stage::Reading => NextAction::Wait,
        }
    }

    /// Returns whether the socket may have input, or the end of the stream.
    fn may_read(&self) -> bool {
        matches!(self.input, Input::Readable | Input::Ending)
    }

    /// Reads once. Records whether the socket may have more input: events are edge-triggered, so no
    /// further event reports it.
    fn read(&mut self, stream: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.may_read() {
            return Ok(0);
        }
        match stream.read(buffer) {
            Ok(0) => {
                self.input = Input::Ended;
                Ok(0)
            }
            Ok(read) => {
                // A short read has emptied the socket's receive buffer. Only the end of the stream
                // may follow.
                if read < buffer.len() && self.input == Input::Readable {
                    self.input = Input::Empty;
                }
                Ok(read)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.input = Input::Empty;
                Ok(0)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Sends the replies, encrypted if the connection uses TLS. Returns the number of bytes sent,
    /// or with TLS the number of plaintext bytes encrypted.
    fn send(&mut self, stream: &mut impl Write, buffers: &mut Buffers) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.put(stream, &mut buffers.output) };
        let len = buffers.output.len();
        let encrypted =
            if len == 0 { Ok(()) } else { tls.encrypt(&buffers.output, &mut buffers.ciphertext) };
        buffers.output.clear();
        let sent = self.put(stream, &mut buffers.ciphertext);
        encrypted.and(sent).map(|_| len)
    }

    /// Sends the TLS close alert to the peer, unless output is unsent. Does nothing without TLS.
    pub(crate) fn end(&mut self, stream: &mut impl Write) {
        let Some(tls) = &mut self.tls else { return };
        let mut ciphertext = Vec::new();
        tls.close(&mut ciphertext);
        // With unsent output, the alert would corrupt a record that is partly sent.
        if self.unsent.is_empty() && !ciphertext.is_empty() {
            let _ = stream.write(&ciphertext);
        }
    }

    /// Writes `output` after the unsent output. Keeps the part that the socket does not accept.
    /// While replies are held, keeps all of `output`. Returns the number of bytes written to the
    /// socket.
    fn put(&mut self, stream: &mut impl Write, output: &mut Vec<u8>) -> io::Result<usize> {
        let is_held = self.stage == Stage::Unacknowledged;
        if is_held || !self.unsent.is_empty() {
            self.unsent.append(output);
            return if is_held { Ok(0) } else { self.send_unsent(stream) };
        }
        let sent = if output.is_empty() { Ok(0) } else { write(stream, output) };
        let kept = sent.as_ref().map_or(output.len(), |&sent| sent);
        self.unsent.extend_from_slice(output.get(kept..).unwrap_or_default());
        // Clear `output` even after an error, because all connections of the thread share this
        // buffer.
        output.clear();
        sent
    }

    fn send_unsent(&mut self, stream: &mut impl Write) -> io::Result<usize> {
        let sent = write(stream, &self.unsent)?;
        if sent == self.unsent.len() {
            self.unsent = Vec::new();
        } else {
            self.unsent.drain(..sent);
        }
        Ok(sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Server;
    use larder_operations::{AnsweredCounts, Latencies};
    use larder_support::clock::Clock;
    use std::collections::VecDeque;

    /// A conversation that echoes each line. Some lines are special:
    /// - `quit` closes the connection without a reply;
    /// - `wait` is echoed at the second call;
    /// - `hold`: the reply waits for `is_acknowledged`;
    /// - `ahead`: the next line waits for slower storage;
    /// - `abandon`: the reply must not be sent.
    #[derive(Default)]
    struct Echo {
        has_waited: bool,
        is_blocked: bool,
        is_holding: bool,
        is_acknowledged: bool,
    }

    fn progress(consumed: usize, hold: bool, next: Next) -> Progress {
        Progress { consumed, hold, next, answered: AnsweredCounts::default() }
    }

    impl Conversation for Echo {
        type Context<'a> = ();

        fn receive(&mut self, _cx: &mut (), input: &[u8], output: &mut Vec<u8>) -> Progress {
            self.is_blocked = false;
            if self.is_holding {
                self.is_holding = !self.is_acknowledged;
                return progress(0, self.is_holding, Next::Yield);
            }
            let Some(end) = input.iter().position(|&byte| byte == b'\n') else {
                return progress(0, false, Next::Read { wanted: 1 });
            };
            let (line, consumed) = (&input[..end], end + 1);
            if line == b"wait" && !std::mem::replace(&mut self.has_waited, true) {
                return progress(0, false, Next::Wait);
            }
            if line == b"quit" {
                return progress(consumed, false, Next::Close);
            }
            output.extend_from_slice(&input[..consumed]);
            if line == b"abandon" {
                return progress(consumed, false, Next::Abandon);
            }
            if line == b"ahead" {
                self.is_blocked = true;
                return progress(consumed, false, Next::Wait);
            }
            self.is_holding = line == b"hold";
            progress(consumed, self.is_holding, Next::Yield)
        }

        fn state(&self) -> State {
            if self.is_blocked { State::Blocked } else { State::Waiting }
        }

        fn awaits_value(&self, _unread: &[u8]) -> bool {
            false
        }

        fn leased_bytes(&self) -> usize {
            0
        }

        fn uploaded_bytes(&self) -> usize {
            0
        }

        fn has_messages(&self) -> bool {
            false
        }

        fn awaits_messages(&self) -> bool {
            false
        }

        fn has_failed(&self) -> bool {
            false
        }

        fn close(&mut self, _server: &Server) {}
    }

    /// A stream with scripted input, one element per read. It accepts `room` bytes of output.
    struct Peer {
        input: VecDeque<&'static str>,
        has_ended: bool,
        room: usize,
        output: String,
    }

    impl Read for Peer {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.input.pop_front() {
                Some(bytes) => bytes.as_bytes().read(buffer),
                None if self.has_ended => Ok(0),
                None => Err(io::ErrorKind::WouldBlock.into()),
            }
        }
    }

    impl Write for Peer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let written = bytes.len().min(self.room);
            self.room -= written;
            self.output.push_str(std::str::from_utf8(&bytes[..written]).unwrap());
            if written == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(written) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Pair {
        connection: Connection<Echo>,
        peer: Peer,
        buffers: Buffers,
    }

    impl Pair {
        fn new(input: &[&'static str]) -> Self {
            let info = ConnectionInfo::new(1, "tcp:peer".to_owned(), "tcp:here".to_owned(), 0);
            let input = input.iter().copied().collect();
            Self {
                connection: Connection::new(Arc::new(info), Echo::default(), None),
                peer: Peer { input, has_ended: false, room: usize::MAX, output: String::new() },
                buffers: Buffers::new(),
            }
        }

        /// Polls the connection until it must wait, hold or close.
        fn serve(&mut self) -> NextAction {
            let (clock, latencies) = (Clock::start(), Latencies::default());
            let timing = Timing { begun: clock.moment(), clock: &clock, latencies: &latencies };
            loop {
                let mut moved = IoBytes::default();
                let (peer, buffers) = (&mut self.peer, &mut self.buffers);
                match self.connection.serve(peer, buffers, &timing, &mut moved, &mut ()).unwrap() {
                    NextAction::PollAgain => (),
                    action => return action,
                }
            }
        }

        /// Reports input, and polls the connection until it must wait, hold or close.
        fn serve_input(&mut self) -> NextAction {
            self.connection.note_event(true, false);
            self.serve()
        }
    }

    #[test]
    fn an_abandoned_reply_is_sent_to_no_connection() {
        let mut pair = Pair::new(&["abandon\n"]);
        pair.buffers.ciphertext.extend_from_slice(b"a message of the handshake");
        assert_eq!(pair.serve_input(), NextAction::Close);
        assert!(pair.buffers.ciphertext.is_empty());
        let mut next = Pair::new(&["two\n"]);
        std::mem::swap(&mut pair.buffers, &mut next.buffers);
        assert_eq!(next.serve_input(), NextAction::Wait);
        assert_eq!((pair.peer.output.as_str(), next.peer.output.as_str()), ("", "two\n"));
    }

    #[test]
    fn an_incomplete_request_is_kept_for_the_next_poll() {
        let mut pair = Pair::new(&["one\ntw"]);
        assert_eq!(pair.serve_input(), NextAction::Wait);
        assert_eq!(pair.peer.output, "one\n");
        assert!(!pair.connection.is_quiet(), "half a request has arrived");
        pair.peer.input.push_back("o\n");
        assert_eq!(pair.serve_input(), NextAction::Wait);
        assert_eq!(pair.peer.output, "one\ntwo\n");
        assert!(pair.connection.is_quiet());
        assert_eq!(pair.connection.buffer_bytes(), 0);
    }

    #[test]
    fn unsent_output_is_sent_before_input_is_read() {
        let mut pair = Pair::new(&["one\n", "two\n"]);
        pair.peer.room = 2;
        assert_eq!(pair.serve_input(), NextAction::Wait);
        assert!(pair.connection.awaits_writing());
        pair.peer.room = 1;
        assert_eq!(pair.serve_input(), NextAction::Wait);
        assert_eq!((&*pair.peer.output, pair.peer.input.len()), ("one", 1));
        pair.peer.room = usize::MAX;
        assert_eq!(pair.serve(), NextAction::Wait);
        assert_eq!(pair.peer.output, "one\ntwo\n");
    }

    #[test]
    fn input_is_read_ahead_while_output_is_unsent() {
        let mut pair = Pair::new(&["one\n", "two\nthr", "ee\n"]);
        pair.peer.room = 0;
        let ahead = |pair: &mut Pair, room| {
            let (peer, buffers) = (&mut pair.peer, &mut pair.buffers);
            pair.connection.read_ahead(peer, buffers, room, &mut IoBytes::default()).unwrap()
        };
        assert_eq!(pair.serve_input(), NextAction::Wait);
        assert!(pair.connection.may_read_ahead());
        pair.connection.note_event(true, false);
        assert_eq!(ahead(&mut pair, 1000), NextAction::Wait, "there is no room");
        assert!(pair.connection.awaits_room() && pair.connection.resume());
        assert_eq!(pair.peer.input.len(), 2);
        assert!(!pair.connection.awaits_input());
        for _ in 0..2 {
            pair.connection.note_event(true, false);
            assert_eq!(ahead(&mut pair, 1 << 20), NextAction::Wait);
        }
        assert!(pair.connection.awaits_input() && !pair.connection.is_quiet());
        pair.peer.has_ended = true;
        pair.connection.note_event(true, true);
        assert_eq!(ahead(&mut pair, 1 << 20), NextAction::Wait);
        assert_eq!(pair.peer.output, "");
        pair.peer.room = usize::MAX;
        assert_eq!(pair.serve(), NextAction::Close);
        assert_eq!(pair.peer.output, "one\ntwo\nthree\n");
    }

    #[test]
    fn reading_ahead_sends_nothing() {
        let mut pair = Pair::new(&["one\n", "two\n"]);
        pair.peer.room = 0;
        assert_eq!(pair.serve_input(), NextAction::Wait);
        // The peer accepts output again before the connection reads ahead. Even so, reading ahead
        // must send nothing: the driver waits until the socket is writable.
        pair.peer.room = usize::MAX;
        pair.connection.note_event(true, false);
        let (peer, buffers) = (&mut pair.peer, &mut pair.buffers);
        let ahead = pair.connection.read_ahead(peer, buffers, 1 << 20, &mut IoBytes::default());
        assert_eq!(ahead.unwrap(), NextAction::Wait);
        assert_eq!(pair.connection.moved, "one\ntwo\n".len(), "its client has not stalled");
        assert!(pair.connection.awaits_writing() && pair.peer.output.is_empty());
        assert_eq!(pair.serve(), NextAction::Wait);
        assert_eq!(pair.peer.output, "one\ntwo\n");
    }

    #[test]
    fn a_waiting_request_blocks_reads_and_survives_the_end_of_input() {
        let mut pair = Pair::new(&["wait\nquit", "\n"]);
        assert_eq!(pair.serve_input(), NextAction::Hold);
        assert_eq!(pair.serve_input(), NextAction::Hold);
        assert_eq!((&*pair.peer.output, pair.peer.input.len()), ("", 1));
        assert!(pair.connection.is_held() && !pair.connection.is_quiet());
        pair.connection.resume();
        assert_eq!(pair.serve(), NextAction::Close);
        assert_eq!(pair.peer.output, "wait\n");
    }

    #[test]
    fn held_replies_keep_their_order_and_survive_the_end_of_input() {
        let mut pair = Pair::new(&["one\nhold\ntwo\n", "three\n"]);
        pair.peer.has_ended = true;
        for _ in 0..3 {
            pair.connection.note_event(true, true);
            assert_eq!(pair.serve(), NextAction::Hold);
            assert_eq!((&*pair.peer.output, pair.peer.input.len()), ("one\n", 1));
            assert!(pair.connection.is_held() && !pair.connection.is_quiet());
            assert!(!pair.connection.awaits_writing(), "held replies must not be written");
            assert_eq!(pair.connection.idle_since(), None);
            assert_eq!(pair.connection.info.state(), "conn_io_queue");
        }
        pair.connection.conversation.is_acknowledged = true;
        pair.connection.resume();
        // The peer accepts only a part of the released replies, so the connection must wait.
        pair.peer.room = 2;
        assert_eq!(pair.serve(), NextAction::Wait);
        assert!(pair.connection.awaits_writing() && !pair.connection.is_held());
        pair.peer.room = usize::MAX;
        assert_eq!(pair.serve(), NextAction::Close);
        assert_eq!(pair.peer.output, "one\nhold\ntwo\nthree\n");
    }

    #[test]
    fn a_connection_with_unsent_replies_is_shown_as_writing_while_its_next_request_waits() {
        let mut pair = Pair::new(&["ahead\ntwo\n"]);
        pair.peer.room = 2;
        assert_eq!(pair.serve_input(), NextAction::Wait);
        assert_eq!(pair.connection.info.state(), "conn_mwrite");
        pair.peer.room = usize::MAX;
        assert_eq!(pair.serve(), NextAction::Hold);
        pair.connection.resume();
        assert_eq!(pair.serve(), NextAction::Wait);
        assert_eq!(pair.peer.output, "ahead\ntwo\n");
    }

    #[test]
    fn requests_before_the_end_of_input_are_answered() {
        let mut pair = Pair::new(&["one\ntwo\n"]);
        pair.peer.has_ended = true;
        pair.connection.note_event(true, true);
        assert_eq!(pair.serve(), NextAction::Close);
        assert_eq!(pair.peer.output, "one\ntwo\n");
    }
}

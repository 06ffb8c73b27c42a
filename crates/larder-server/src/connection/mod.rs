//! A client's connection as a driver sees it: a conversation with its buffers and its TLS, above a
//! stream that never blocks. The driver reports that there may be input or room to write; a turn
//! returns what to wait for.

mod admission;
mod buffers;
pub mod conversation;
pub(crate) mod holdings;
pub mod list;
mod shedding;

pub use buffers::{Buffers, IoBytes};

use crate::connection::buffers::write;
use crate::connection::conversation::Conversation;
use crate::connection::holdings::{Held, PROGRESS_MIN};
use crate::connection::list::ConnectionInfo;
use crate::timing::{Timing, TurnTimer};
use crate::tls::channel::Channel;
use larder_session::{Next, Progress, State};
use std::io::{self, Read, Write};
use std::sync::Arc;

/// An error that ends a connection early.
#[derive(Debug)]
pub enum Fault {
    /// The peer has disconnected, or cannot be reached.
    Stream(io::Error),
    /// The input is not TLS, or violates the session's parameters.
    Tls(io::Error),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Stream(error)
    }
}

/// What a driver has to do for a connection after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// Give it another turn after the other connections have had theirs.
    Again,
    /// Wait for an event: room to write if [`Connection::awaits_writing`], else input.
    Wait,
    /// Wait for the waker that its conversation was lent, or for the peer to disconnect: a request
    /// waits for slower storage, or answers wait for a change to be acknowledged. The driver calls
    /// [`Connection::resume`] before the next turn.
    Hold,
    /// Close it.
    Close,
}

/// One connection without its stream, which belongs to the driver and is lent to each turn.
pub struct Connection<C> {
    /// The connection's TLS, if it is encrypted.
    tls: Option<Box<Channel>>,
    pub(crate) conversation: C,
    pub(crate) info: Arc<ConnectionInfo>,
    /// Input that the conversation has not consumed. Empty, and without memory, between requests.
    unread: Vec<u8>,
    /// Output that the peer has not accepted yet, encrypted if need be.
    unsent: Vec<u8>,
    /// Memory of both buffers and of the conversation, as last counted at the server.
    held: Held,
    /// Bytes that were read or written since progress was last noted.
    moved: usize,
    input: Input,
    stage: Stage,
    timer: TurnTimer,
}

/// What is known about the input that the kernel still has.
///
/// ```text
///   Empty ── event ──▶ Readable ── event: the peer sends no more ──▶ Ending ── its end is read ──▶ Ended
///     ▲──── a short read ──┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    /// There is no input before another event.
    Empty,
    /// There may be input.
    Readable,
    /// The peer sends no more: the end of the stream is to be read, perhaps after more input.
    Ending,
    /// The end of the stream was read.
    Ended,
}

/// What the conversation does at the next turn.
///
/// ```text
///                         ┌──────── a turn ────────┐
///   Reading ◀── wants more input ──┤               │
///   Resuming ◀── has input left ───┤               ├── is done, or the input ended ──▶ Closing
///      ▲                           │               │
///      ├── woken ── Held ◀── waits for slower storage
///      │                           │               │
///      └── a turn that releases the answers ── Unacknowledged ◀── its answers are held
/// ```
///
/// Whatever the stage, unsent output goes out first; but while it is `Unacknowledged`, nothing does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It wants more input.
    Reading,
    /// It has input left to continue with.
    Resuming,
    /// Its next request waits for slower storage: nothing is read, and the connection is neither idle
    /// nor quiet. The end of the input does not close it before the request is answered.
    Held,
    /// Its unsent answers depend on a change that is not acknowledged yet: nothing is sent or read.
    /// Each turn asks again.
    Unacknowledged,
    /// It has ended: the unsent output is sent, then the connection is closed.
    Closing,
}

/// The first byte of a handshake's record.
const HANDSHAKE_RECORD: u8 = 22;

impl<C: Conversation> Connection<C> {
    /// A new connection. Its first turn comes with its first event.
    #[must_use]
    pub fn new(info: Arc<ConnectionInfo>, conversation: C, tls: Option<Channel>) -> Self {
        Self {
            tls: tls.map(Box::new),
            conversation,
            info,
            unread: Vec::new(),
            unsent: Vec::new(),
            held: Held::default(),
            moved: 0,
            input: Input::Empty,
            stage: Stage::Reading,
            timer: TurnTimer::default(),
        }
    }

    /// Notes an event.
    pub fn note_event(&mut self, readable: bool, read_closed: bool) {
        self.input = match self.input {
            Input::Empty | Input::Readable if read_closed => Input::Ending,
            Input::Empty if readable => Input::Readable,
            input => input,
        };
    }

    /// Has the conversation called without input, because it may have output.
    pub fn call_again(&mut self) {
        if self.stage == Stage::Reading {
            self.stage = Stage::Resuming;
        }
    }

    /// Has the conversation try again what waits for slower storage.
    pub(crate) fn resume(&mut self) {
        if self.stage == Stage::Held {
            self.stage = Stage::Resuming;
        }
    }

    /// A request waits for slower storage, or answers for a change to be acknowledged.
    pub(crate) fn is_held(&self) -> bool {
        matches!(self.stage, Stage::Held | Stage::Unacknowledged)
    }

    /// Every request that was read has been answered.
    pub(crate) fn is_quiet(&self) -> bool {
        let between = matches!(self.conversation.state(), State::Waiting | State::Watching);
        let whole = self.tls.as_ref().is_none_or(|tls| tls.is_empty());
        let is_at_rest = self.stage == Stage::Reading && !self.may_read();
        between && is_at_rest && whole && self.unread.is_empty() && self.unsent.is_empty()
    }

    /// Since when it has had nothing to do but wait for a request, Unix seconds; `None` if it is
    /// not waiting, or not over TCP.
    pub(crate) fn idle_since(&self) -> Option<u32> {
        let waits = self.conversation.state() == State::Waiting
            && self.unsent.is_empty()
            && self.stage != Stage::Held;
        let idle = waits && !self.info.is_local() && !self.awaits_value();
        idle.then(|| self.info.last_command())
    }

    /// The head of a request has arrived, and its value has not. Part of a head is no request yet.
    fn awaits_value(&self) -> bool {
        self.conversation.awaits_value(&self.unread)
    }

    /// It has answers that the peer has not accepted yet.
    pub(crate) fn awaits_writing(&self) -> bool {
        !self.unsent.is_empty() && self.stage != Stage::Unacknowledged
    }

    /// It shows the log to a watcher, so it has to be called again from time to time.
    pub(crate) fn is_watching(&self) -> bool {
        self.conversation.state() == State::Watching
    }

    /// Whether its TLS handshake is not complete.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Memory of its own, in bytes.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        let tls = self.tls.as_ref().map_or(0, |tls| tls.buffer_bytes());
        self.unread.capacity() + self.unsent.capacity() + tls
    }

    /// The difference between the memory that it holds now and what was last counted at the server.
    /// `clock` returns milliseconds, and is called only for a connection that holds memory.
    pub(crate) fn held_change(&mut self, clock: impl FnOnce() -> u64) -> isize {
        let held = Held {
            buffers: self.buffer_bytes(),
            leased: self.conversation.leased_bytes(),
            uploaded: self.conversation.uploaded_bytes(),
        };
        if held == Held::default() && !self.is_holding() {
            self.moved = 0;
            return 0;
        }
        let advances = !self.is_holding() || self.moved >= PROGRESS_MIN;
        if advances {
            self.moved = 0;
        }
        self.info.holdings.publish(held, advances.then(clock));
        let change = held.buffers.cast_signed() - self.held.buffers.cast_signed();
        self.held = held;
        change
    }

    /// It holds memory between turns, as was last noted.
    pub(crate) fn is_holding(&self) -> bool {
        self.held != Held::default()
    }

    /// It keeps memory of the cache between turns.
    pub(crate) fn is_holding_cache(&self) -> bool {
        self.held.leased > 0 || self.held.uploaded > 0
    }

    /// It is to be closed, because memory is short and it has stalled.
    pub(crate) fn is_shed(&self) -> bool {
        self.info.holdings.is_shed()
    }

    /// The memory that was last counted at the server.
    pub(crate) fn counted_held(&self) -> isize {
        self.held.buffers.cast_signed()
    }

    /// Its state between turns. A head whose value has not arrived counts as a request that arrives.
    fn state(&self) -> State {
        match self.conversation.state() {
            State::Waiting | State::Fetching if self.awaits_writing() => State::Sending,
            _ if self.is_held() => State::Fetching,
            State::Waiting if self.stage != Stage::Resuming && self.awaits_value() => {
                State::Receiving
            }
            state => state,
        }
    }

    /// One turn: send what is unsent, read once, let the conversation answer, send that.
    ///
    /// # Errors
    /// [`Fault`]: the connection is to be closed, and nothing more can be sent to the peer.
    pub fn serve(
        &mut self,
        stream: &mut (impl Read + Write),
        buffers: &mut Buffers,
        timing: &Timing<'_>,
        moved: &mut IoBytes,
        cx: &mut C::Context<'_>,
    ) -> Result<NextAction, Fault> {
        if self.awaits_writing() {
            let sent = self.send_unsent(stream)?;
            self.moved += sent;
            // What was encrypted has been counted already.
            moved.written += if self.tls.is_some() { 0 } else { sent };
            if !self.unsent.is_empty() {
                return Ok(NextAction::Wait);
            }
        }
        let mut read = 0;
        match self.stage {
            Stage::Closing => return Ok(NextAction::Close),
            Stage::Held => return Ok(NextAction::Hold),
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
        self.info.note_turn();
        let progress = self.answer(read, buffers, cx);
        if progress.next == Next::Abandon {
            self.unsent.clear();
            return Ok(NextAction::Close);
        }
        self.stage =
            if progress.hold { Stage::Unacknowledged } else { self.stage_of(progress.next) };
        let sent = self.send(stream, buffers)?;
        self.moved += sent.saturating_sub(self.unsent.len());
        moved.written += sent;
        self.timer.end_turn(&progress, timing);
        let after = self.next_action();
        self.info.publish(self.state(), timing.begun.seconds().0);
        Ok(after)
    }

    /// Handles the input after the first bytes of a handshake. Answering it takes a thousand times as
    /// long as sending it, so a peer that has disconnected gets no answer.
    fn read_behind_hello(
        &mut self,
        stream: &mut impl Read,
        buffers: &mut Buffers,
        read: usize,
    ) -> Result<usize, Fault> {
        // Input that is no handshake fails at once, with an error of its own.
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

    /// Decrypts the input; returns the number of decrypted bytes.
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
            // The alert fits the socket's buffer; otherwise the peer does not learn the reason.
            let _ = stream.write(&buffers.ciphertext);
            buffers.ciphertext.clear();
            return Err(error);
        }
        if tls.has_ended() {
            self.input = Input::Ended;
        }
        Ok(buffers.plaintext.len())
    }

    /// Hands the input to the conversation: the shared buffer, unless input was left from before.
    fn answer(&mut self, read: usize, buffers: &mut Buffers, cx: &mut C::Context<'_>) -> Progress {
        let fresh = match self.tls {
            Some(_) => buffers.plaintext.as_slice(),
            None => buffers.input.get(..read).unwrap_or_default(),
        };
        if self.unread.is_empty() {
            let turn = self.conversation.receive(cx, fresh, &mut buffers.output);
            self.unread.extend_from_slice(fresh.get(turn.consumed..).unwrap_or_default());
            return turn;
        }
        self.unread.extend_from_slice(fresh);
        let turn = self.conversation.receive(cx, &self.unread, &mut buffers.output);
        if turn.consumed >= self.unread.len() {
            self.unread = Vec::new();
        } else {
            self.unread.drain(..turn.consumed);
        }
        turn
    }

    fn stage_of(&mut self, next: Next) -> Stage {
        let stage = match next {
            Next::Read { .. } if self.input == Input::Ended => Stage::Closing,
            Next::Read { .. } => Stage::Reading,
            Next::Yield | Next::Write => Stage::Resuming,
            Next::Wait => Stage::Held,
            Next::Close | Next::Abandon => Stage::Closing,
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
            Stage::Held => NextAction::Hold,
            Stage::Resuming => NextAction::Again,
            Stage::Reading if self.may_read() => NextAction::Again,
            Stage::Reading => NextAction::Wait,
        }
    }

    /// There may be input, or the end of the stream.
    fn may_read(&self) -> bool {
        matches!(self.input, Input::Readable | Input::Ending)
    }

    /// Reads once. Notes whether there may be more, because each event is reported only once.
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
                // A short read has emptied the socket, but has not seen the end of the stream after it.
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

    /// Sends the answers, encrypted if need be.
    fn send(&mut self, stream: &mut impl Write, buffers: &mut Buffers) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.put(stream, &mut buffers.output) };
        let len = buffers.output.len();
        let encrypted =
            if len == 0 { Ok(()) } else { tls.encrypt(&buffers.output, &mut buffers.ciphertext) };
        buffers.output.clear();
        let sent = self.put(stream, &mut buffers.ciphertext);
        encrypted.and(sent).map(|_| len)
    }

    /// Announces the end of the output to the peer.
    pub(crate) fn end(&mut self, stream: &mut impl Write) {
        let Some(tls) = &mut self.tls else { return };
        let mut ciphertext = Vec::new();
        tls.close(&mut ciphertext);
        // It would be invalid in the middle of a record, and useless to a peer that accepts nothing.
        if self.unsent.is_empty() && !ciphertext.is_empty() {
            let _ = stream.write(&ciphertext);
        }
    }

    /// Writes `output` and keeps what the peer does not accept, or must not receive yet.
    fn put(&mut self, stream: &mut impl Write, output: &mut Vec<u8>) -> io::Result<usize> {
        let is_held = self.stage == Stage::Unacknowledged;
        if is_held || !self.unsent.is_empty() {
            self.unsent.append(output);
            return if is_held { Ok(0) } else { self.send_unsent(stream) };
        }
        let sent = if output.is_empty() { Ok(0) } else { write(stream, output) };
        let kept = sent.as_ref().map_or(output.len(), |&sent| sent);
        self.unsent.extend_from_slice(output.get(kept..).unwrap_or_default());
        // This happens for a disconnected peer too, because all connections share the buffer.
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

    /// Answers each line with itself, but `wait` only when it is asked again, and `quit` not at all.
    /// The answer to `hold` waits until `is_acknowledged`. What follows `ahead` waits for a read.
    #[derive(Default)]
    struct Echo {
        has_waited: bool,
        is_fetching: bool,
        is_holding: bool,
        is_acknowledged: bool,
    }

    fn progress(consumed: usize, hold: bool, next: Next) -> Progress {
        Progress { consumed, hold, next, answered: AnsweredCounts::default() }
    }

    impl Conversation for Echo {
        type Context<'a> = ();

        fn receive(&mut self, _cx: &mut (), input: &[u8], output: &mut Vec<u8>) -> Progress {
            self.is_fetching = false;
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
            if line == b"ahead" {
                self.is_fetching = true;
                return progress(consumed, false, Next::Wait);
            }
            self.is_holding = line == b"hold";
            progress(consumed, self.is_holding, Next::Yield)
        }

        fn state(&self) -> State {
            if self.is_fetching { State::Fetching } else { State::Waiting }
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

        fn has_failed(&self) -> bool {
            false
        }

        fn close(&mut self, _server: &Server) {}
    }

    /// What comes, a read at a time, and what has gone, as far as there was `room`.
    struct Peer {
        comes: VecDeque<&'static str>,
        has_ended: bool,
        room: usize,
        gone: String,
    }

    impl Read for Peer {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.comes.pop_front() {
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
            self.gone.push_str(std::str::from_utf8(&bytes[..written]).unwrap());
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
        fn new(comes: &[&'static str]) -> Self {
            let info = ConnectionInfo::new(1, "tcp:peer".to_owned(), "tcp:here".to_owned(), 0);
            let comes = comes.iter().copied().collect();
            Self {
                connection: Connection::new(Arc::new(info), Echo::default(), None),
                peer: Peer { comes, has_ended: false, room: usize::MAX, gone: String::new() },
                buffers: Buffers::new(),
            }
        }

        /// Turns until there is something to wait for.
        fn serve(&mut self) -> NextAction {
            let (clock, latencies) = (Clock::start(), Latencies::default());
            let timing = Timing { begun: clock.moment(), clock: &clock, latencies: &latencies };
            loop {
                let mut moved = IoBytes::default();
                let (peer, buffers) = (&mut self.peer, &mut self.buffers);
                match self.connection.serve(peer, buffers, &timing, &mut moved, &mut ()).unwrap() {
                    NextAction::Again => (),
                    action => return action,
                }
            }
        }

        /// The same after an event: something came.
        fn serve_input(&mut self) -> NextAction {
            self.connection.note_event(true, false);
            self.serve()
        }
    }

    #[test]
    fn input_that_is_not_whole_is_kept_for_the_next_turn() {
        let mut pair = Pair::new(&["one\ntw"]);
        assert_eq!(pair.serve_input(), NextAction::Wait);
        assert_eq!(pair.peer.gone, "one\n");
        assert!(!pair.connection.is_quiet(), "half a request is here");
        pair.peer.comes.push_back("o\n");
        assert_eq!(pair.serve_input(), NextAction::Wait);
        assert_eq!(pair.peer.gone, "one\ntwo\n");
        assert!(pair.connection.is_quiet());
        assert_eq!(pair.connection.buffer_bytes(), 0);
    }

    #[test]
    fn output_that_the_peer_does_not_take_goes_out_before_anything_is_read() {
        let mut pair = Pair::new(&["one\n", "two\n"]);
        pair.peer.room = 2;
        assert_eq!(pair.serve_input(), NextAction::Wait);
        assert!(pair.connection.awaits_writing());
        pair.peer.room = 1;
        assert_eq!(pair.serve_input(), NextAction::Wait);
        assert_eq!((&*pair.peer.gone, pair.peer.comes.len()), ("one", 1));
        pair.peer.room = usize::MAX;
        assert_eq!(pair.serve(), NextAction::Wait);
        assert_eq!(pair.peer.gone, "one\ntwo\n");
    }

    #[test]
    fn nothing_is_read_while_a_request_waits_and_the_end_does_not_close_it() {
        let mut pair = Pair::new(&["wait\nquit", "\n"]);
        assert_eq!(pair.serve_input(), NextAction::Hold);
        assert_eq!(pair.serve_input(), NextAction::Hold);
        assert_eq!((&*pair.peer.gone, pair.peer.comes.len()), ("", 1));
        assert!(pair.connection.is_held() && !pair.connection.is_quiet());
        pair.connection.resume();
        assert_eq!(pair.serve(), NextAction::Close);
        assert_eq!(pair.peer.gone, "wait\n");
    }

    #[test]
    fn held_answers_are_neither_sent_nor_overtaken_and_the_end_does_not_close_them() {
        let mut pair = Pair::new(&["one\nhold\ntwo\n", "three\n"]);
        pair.peer.has_ended = true;
        for _ in 0..3 {
            pair.connection.note_event(true, true);
            assert_eq!(pair.serve(), NextAction::Hold);
            assert_eq!((&*pair.peer.gone, pair.peer.comes.len()), ("one\n", 1));
            assert!(pair.connection.is_held() && !pair.connection.is_quiet());
            assert!(!pair.connection.awaits_writing(), "what is held may not be written");
            assert_eq!(pair.connection.idle_since(), None);
            assert_eq!(pair.connection.info.state(), "conn_io_queue");
        }
        pair.connection.conversation.is_acknowledged = true;
        pair.connection.resume();
        // Of what is released the peer takes a part.
        pair.peer.room = 2;
        assert_eq!(pair.serve(), NextAction::Wait);
        assert!(pair.connection.awaits_writing() && !pair.connection.is_held());
        pair.peer.room = usize::MAX;
        assert_eq!(pair.serve(), NextAction::Close);
        assert_eq!(pair.peer.gone, "one\nhold\ntwo\nthree\n");
    }

    #[test]
    fn a_peer_that_takes_no_answers_is_shown_so_though_the_next_request_waits() {
        let mut pair = Pair::new(&["ahead\ntwo\n"]);
        pair.peer.room = 2;
        assert_eq!(pair.serve_input(), NextAction::Wait);
        assert_eq!(pair.connection.info.state(), "conn_mwrite");
        pair.peer.room = usize::MAX;
        assert_eq!(pair.serve(), NextAction::Hold);
        pair.connection.resume();
        assert_eq!(pair.serve(), NextAction::Wait);
        assert_eq!(pair.peer.gone, "ahead\ntwo\n");
    }

    #[test]
    fn what_came_before_the_end_is_answered() {
        let mut pair = Pair::new(&["one\ntwo\n"]);
        pair.peer.has_ended = true;
        pair.connection.note_event(true, true);
        assert_eq!(pair.serve(), NextAction::Close);
        assert_eq!(pair.peer.gone, "one\ntwo\n");
    }
}

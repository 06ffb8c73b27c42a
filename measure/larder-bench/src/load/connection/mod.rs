//! A client connection: writes requests, sends them and matches replies to them.

pub(crate) mod answers;
mod input;

use crate::load::connection::answers::{
    Commands, LastReply, Meaning, PendingRequest, RecordedRequests, SetsAndGets, Source, shown,
};
use crate::load::requests::request::Request;
use crate::load::socket::{Socket, opening};
use crate::load::stats::client_stats::ClientStats;
use crate::load::stats::{Kind, LoadStats};
use crate::load::wire::Writer;
use crate::load::wire::recorded::Recorded;
use crate::load::workload::Load;
use crate::run_error::RunError;
use crate::settings::Settings;
use input::Input;
use larder_protocol::response::Read;
use mio::event::Event;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::time::Instant;

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: Socket,
    /// The index of the server.
    server: usize,
    stage: Stage,
    /// The time at which the current stage started.
    since: Instant,
    /// Number of requests until the next reconnect; `None` without `--reconnect-interval`.
    until_reconnect: Option<u64>,
    unsent: Vec<u8>,
    sent_len: usize,
    /// The connection accepts no further request while at least this many bytes are unsent.
    unsent_max: usize,
    input: Input,
    pending: VecDeque<PendingRequest>,
    /// The keys of the pending gets, if values are verified.
    keys: VecDeque<u64>,
    /// Pending gets from a trace. If such a get misses, a set follows it.
    settable: VecDeque<Recorded>,
    /// Sets that follow misses in a trace. The client moves them to its queue.
    sets: Vec<Recorded>,
    /// The last time at which a full pipeline or a full output buffer got room for another request,
    /// in nanoseconds since the start of the run.
    free_at: u64,
    /// Statistics of this connection, if they are recorded.
    client: Option<Box<ClientStats>>,
    /// The server's error message, if the last reply was an error.
    last_error: Option<String>,
    /// Whether the connection was lost before.
    was_lost: bool,
}

/// The state of a connection.
///
/// A connection starts as `Open` or, if a later step opens it, as `Dormant`. A connection that is
/// opened during the run passes through `Connecting`, `Handshaking` and `LoggingIn` (with a login)
/// to `Open`. With `--reconnect-interval`, `Open` leads to `Connecting`. With
/// `--reconnect-on-error`, each stage except `Dormant` leads to `Lost`, and `Lost` to `Connecting`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A later step of the run opens the connection.
    Dormant,
    /// The socket is not connected.
    Connecting,
    /// The TLS handshake is not complete.
    Handshaking,
    /// The server has not answered the login.
    LoggingIn,
    /// Requests can be sent.
    Open,
    /// The connection is lost and waits for its reconnect.
    Lost,
}

/// The input that a readiness event announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    Nothing,
    Data,
    /// The end of the stream, possibly after data. No further event follows.
    End,
}

impl Arrived {
    pub(crate) fn of(event: &Event) -> Self {
        match (event.is_readable(), event.is_read_closed()) {
            (_, true) => Self::End,
            (true, false) => Self::Data,
            (false, false) => Self::Nothing,
        }
    }
}

impl Connection {
    /// Opens the connection from client `index` to a server, or prepares it if a later step opens
    /// it.
    ///
    /// # Errors
    /// The connection cannot be opened, or the server does not accept the login.
    pub(crate) fn new(load: &Load, index: usize, server: usize) -> Result<Self, RunError> {
        let (settings, address, tls) = (&load.settings, load.address(server), load.tls(server));
        let dormant = settings.steps.is_some_and(|steps| index % settings.clients >= steps.start);
        let (socket, stage) = match dormant {
            true => (Socket::unconnected(address, tls), Stage::Dormant),
            false => (opening::open(settings, address, tls), Stage::Open),
        };
        let socket = socket.map_err(|error| opening::failure(settings, index, server, error))?;
        Ok(Self {
            socket,
            server,
            stage,
            since: Instant::now(),
            until_reconnect: settings.reconnect_interval,
            unsent: Vec::new(),
            sent_len: 0,
            unsent_max: settings.trace.as_ref().map_or(usize::MAX, |_| unsent_max(settings)),
            input: Input::for_replies(settings),
            pending: VecDeque::with_capacity(settings.pipeline),
            keys: VecDeque::new(),
            settable: VecDeque::new(),
            sets: Vec::new(),
            free_at: 0,
            client: settings.client_stats.then(|| Box::new(ClientStats::new(index))),
            last_error: None,
            was_lost: false,
        })
    }

    /// Returns whether the connection is not open yet, because a later step of the run opens it.
    pub(crate) fn is_dormant(&self) -> bool {
        self.stage == Stage::Dormant
    }

    /// Returns whether no reply is outstanding and the connection is neither being opened nor lost.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty() && matches!(self.stage, Stage::Dormant | Stage::Open)
    }

    /// Returns whether `--reconnect-interval` requires a reconnect now: the interval's requests
    /// were all sent and answered.
    pub(crate) fn is_used_up(&self) -> bool {
        self.until_reconnect == Some(0) && self.pending.is_empty()
    }

    /// Closes the connection and starts to reconnect, like [`begin_opening`](Self::begin_opening).
    ///
    /// # Errors
    /// The system cannot create a socket, or the connection attempt fails.
    pub(crate) fn reopen(&mut self, load: &Load) -> io::Result<()> {
        self.socket = Socket::unconnected(load.address(self.server), load.tls(self.server))?;
        self.unsent.clear();
        (self.sent_len, self.input.start, self.input.end) = (0, 0, 0);
        self.begin_opening(load)
    }

    /// Marks the connection as lost until it is reconnected. Returns its outstanding requests.
    pub(crate) fn lose(&mut self) -> VecDeque<PendingRequest> {
        (self.stage, self.was_lost, self.last_error) = (Stage::Lost, true, None);
        self.keys.clear();
        std::mem::take(&mut self.pending)
    }

    /// Returns whether requests can be sent.
    pub(crate) fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// Returns whether the connection is lost and the reconnect has not started.
    pub(crate) fn is_lost(&self) -> bool {
        self.stage == Stage::Lost
    }

    /// Starts to open the connection. Does not block, with one exception: it waits for up to a
    /// second if the backlog of a server's unix socket is full.
    ///
    /// # Errors
    /// The connection attempt fails.
    pub(crate) fn begin_opening(&mut self, load: &Load) -> io::Result<()> {
        self.until_reconnect = load.settings.reconnect_interval;
        self.enter(Stage::Connecting);
        self.socket.begin_connect(load.address(self.server))?;
        self.go_on_opening(load)
    }

    /// Continues with the TLS handshake and the login once the socket is connected.
    ///
    /// # Errors
    /// The connection attempt fails.
    #[inline]
    pub(crate) fn go_on_opening(&mut self, load: &Load) -> io::Result<()> {
        if self.stage == Stage::Connecting && self.socket.is_connected()? {
            self.enter(Stage::Handshaking);
        }
        if self.stage == Stage::Handshaking && !self.is_handshaking() {
            self.log_in(load);
        }
        Ok(())
    }

    fn log_in(&mut self, load: &Load) {
        match &load.settings.login {
            Some(login) => {
                let request = opening::login_request(load.settings.protocol, login);
                self.unsent.extend_from_slice(&request);
                self.enter(Stage::LoggingIn);
            }
            None => self.stage = Stage::Open,
        }
    }

    fn enter(&mut self, stage: Stage) {
        (self.stage, self.since) = (stage, Instant::now());
    }

    /// Returns a timeout error if the connection has taken too long to open, and `None` otherwise.
    pub(crate) fn overdue(&self, load: &Load) -> Option<io::Error> {
        let Settings { timeout, connection_timeout, .. } = load.settings;
        let by_timeout = (timeout, "--timeout");
        let (what, (limit, option)) = match (self.stage, connection_timeout) {
            (Stage::Dormant | Stage::Open | Stage::Lost, _) => return None,
            (Stage::Connecting, Some(limit)) => ("no connection", (limit, "--connection-timeout")),
            (Stage::Connecting, None) => ("no connection", by_timeout),
            (Stage::Handshaking, _) => ("no answer", by_timeout),
            (Stage::LoggingIn, _) => ("the login was not answered", by_timeout),
        };
        let words = || format!("{what} within {} s ({option})", limit.as_secs_f64());
        (self.since.elapsed() > limit).then(|| io::Error::new(ErrorKind::TimedOut, words()))
    }

    fn take_login_answer(&mut self, load: &Load) -> io::Result<()> {
        let answer = opening::login_answer(load.settings.protocol, self.input.bytes())?;
        if let Some(((), len)) = answer {
            self.input.start += len;
            self.stage = Stage::Open;
        }
        Ok(())
    }

    /// Returns whether the TLS handshake is not complete; false without TLS.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.socket.is_handshaking()
    }

    /// Stops recording statistics of this connection, and returns them. Returns `None` if they were
    /// not recorded.
    pub(crate) fn take_client(&mut self) -> Option<Box<ClientStats>> {
        self.client.take()
    }

    /// Returns the requests that have not been answered yet.
    pub(crate) fn into_pending(self) -> VecDeque<PendingRequest> {
        self.pending
    }

    /// Describes the loss of the connection. The description contains the server's last reply if
    /// that was an error, and `error` otherwise.
    pub(crate) fn describe_loss(&self, load: &Load, error: &io::Error) -> String {
        let lost = match load.settings.has_several_servers() {
            true => format!("connection lost to {}", load.address(self.server)),
            false => "connection lost".to_owned(),
        };
        let is_secured = self.stage == Stage::Connecting || !self.is_handshaking();
        let during = if is_secured { "" } else { " during the TLS handshake" };
        match (&self.last_error, error.kind()) {
            (Some(words), _) => format!("{lost} after \"{words}\""),
            (None, ErrorKind::UnexpectedEof) => format!("{lost}{during}: closed by the server"),
            (None, _) => format!("{lost}{during}: {error}"),
        }
    }

    /// Returns whether the connection can send requests now. The connection must be open and,
    /// unless the pipeline is sliding, have received all replies.
    pub(crate) fn is_ready(&self, load: &Load) -> bool {
        self.stage == Stage::Open && (self.pending.is_empty() || load.settings.sliding)
    }

    /// Returns whether the pipeline and the output buffer have room for another request, and
    /// `--reconnect-interval` permits another request before the next reconnect.
    pub(crate) fn has_room(&self, load: &Load) -> bool {
        self.until_reconnect != Some(0)
            && self.pending.len() < load.settings.pipeline
            && self.may_write()
    }

    /// Returns whether the output buffer has room for another request.
    fn may_write(&self) -> bool {
        self.unsent.len() - self.sent_len < self.unsent_max
    }

    /// Returns the number of requests that have not been answered yet.
    #[inline]
    pub(crate) fn unanswered(&self) -> usize {
        self.pending.len()
    }

    /// Writes a request into the output buffer, for [`send`](Self::send). The request's latency
    /// counts from `at` or, for a recorded request of an open loop, from its due time.
    #[expect(clippy::inline_always, reason = "a request is then kept in registers")]
    #[inline(always)]
    pub(crate) fn enqueue(
        &mut self,
        load: &Load,
        request: Request<'_>,
        at: u64,
        writer: &mut Writer,
        stats: &mut LoadStats,
    ) {
        let before = self.unsent.len();
        let pending_request = match request {
            Request::Set { space, key, expiry, value } => {
                writer.set(space, key, expiry, &value, &mut self.unsent);
                PendingRequest::new(Kind::Set(space), at, 0, LastReply::First)
            }
            Request::Get { space, keys } => {
                if load.settings.verify {
                    self.keys.extend(keys);
                }
                writer.get(space, keys, &mut self.unsent);
                PendingRequest::of_get(load.settings.protocol, space, at, keys.len())
            }
            Request::Recorded(request) => {
                let at = match request.due {
                    Some(due) => {
                        stats.sent_late(at.saturating_sub(due.max(self.free_at)));
                        due
                    }
                    None => at,
                };
                if let Some(values) = &load.recorded_values {
                    request.write(load.settings.protocol, values, &mut self.unsent);
                }
                if request.set_on_miss {
                    self.settable.push_back(request.clone());
                }
                PendingRequest::recorded(request, at)
            }
            Request::Command { number, keys, value } => {
                let (names, value) = writer.parts(0, value.as_ref());
                load.commands.write(number, names, keys, value, &mut self.unsent);
                PendingRequest::new(load.commands.kind(number), at, 1, LastReply::First)
            }
        };
        let kind = pending_request.kind;
        self.pending.push_back(pending_request);
        if let Some(left) = &mut self.until_reconnect {
            *left -= 1;
        }
        let len = (self.unsent.len() - before) as u64;
        stats.of(kind).sent_bytes += len;
        if let Some(client) = &mut self.client {
            client.at(kind, at).sent_bytes += len;
        }
    }

    /// Sends as much of the output buffer as the socket accepts.
    ///
    /// # Errors
    /// The connection is lost.
    pub(crate) fn send(&mut self) -> io::Result<()> {
        while self.sent_len < self.unsent.len() || !self.socket.is_flushed() {
            match self.socket.write(&self.unsent[self.sent_len..]) {
                Ok(len) => self.sent_len += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) => return Err(error),
            }
        }
        self.unsent.clear();
        self.sent_len = 0;
        if self.unsent.capacity() > self.unsent_max {
            self.unsent = Vec::new();
        }
        Ok(())
    }

    /// Calls [`send`](Self::send). If that fails, reads the remaining replies, because one of them
    /// can be an error message with the cause.
    ///
    /// # Errors
    /// The connection is lost.
    pub(crate) fn send_or_receive(
        &mut self,
        load: &Load,
        now: impl Fn() -> u64,
        stats: &mut LoadStats,
    ) -> io::Result<()> {
        let could_write = self.may_write();
        self.send().map_err(|error| match self.receive(load, Arrived::End, &now, stats) {
            Err(reason) if reason.kind() == ErrorKind::InvalidData => reason,
            _ => error,
        })?;
        if !could_write && self.may_write() {
            self.free_at = now();
        }
        Ok(())
    }

    /// Reads and counts replies until the socket has no more data.
    ///
    /// # Errors
    /// The connection is lost, the server refuses the login, or a reply is malformed.
    pub(crate) fn receive(
        &mut self,
        load: &Load,
        arrived: Arrived,
        now: impl Fn() -> u64,
        stats: &mut LoadStats,
    ) -> io::Result<()> {
        loop {
            let space = self.input.space();
            let space_len = space.len();
            match self.socket.read(space) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(len) => {
                    self.input.end += len;
                    if self.stage == Stage::LoggingIn {
                        self.take_login_answer(load)?;
                    }
                    self.take_answers(load, now(), stats)?;
                    let is_last = len < space_len && self.socket.short_read_is_the_last();
                    if is_last && arrived != Arrived::End {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) => return Err(error),
            }
        }
    }

    /// Counts the replies in the input buffer. On a connection that was lost before, also counts
    /// them as replies after the outage. On other connections of a run with several servers, also
    /// counts them for their server.
    #[inline]
    fn take_answers(&mut self, load: &Load, now: u64, stats: &mut LoadStats) -> io::Result<()> {
        if load.settings.servers.len() == 1 && !self.was_lost {
            return self.count_answers(load, now, stats);
        }
        let before = stats.of_all_servers();
        let result = self.count_answers(load, now, stats);
        if self.was_lost {
            stats.answered_again(now, before);
        } else {
            stats.count_for(self.server, before);
        }
        result
    }

    fn count_answers(&mut self, load: &Load, now: u64, stats: &mut LoadStats) -> io::Result<()> {
        if load.recorded_values.is_some() {
            self.take_answers_to::<RecordedRequests>(load, now, stats)
        } else if load.commands.is_empty() {
            self.take_answers_to::<SetsAndGets>(load, now, stats)
        } else {
            self.take_answers_to::<Commands>(load, now, stats)
        }
    }

    /// Counts the replies in the input buffer, which answer requests of the source `S`.
    #[inline]
    fn take_answers_to<S: Source>(
        &mut self,
        load: &Load,
        now: u64,
        stats: &mut LoadStats,
    ) -> io::Result<()> {
        let Self { input, pending, keys, last_error, client, settable, sets, free_at, .. } = self;
        // Number of pending requests after the last error, or at the start of this call.
        let mut pending_after_error = pending.len();
        let was_full = pending.len() >= load.settings.pipeline;
        loop {
            let kind = pending.front().map(|request| request.kind);
            let (response, len) = match S::read(load, kind, input.bytes()) {
                Read::Whole(response, len) => (response, len),
                Read::Incomplete { .. } => break,
                Read::Malformed => return Err(malformed(input.bytes())),
            };
            let Some(request) = pending.front_mut() else {
                return Err(malformed(input.bytes()));
            };
            let command = stats.of(request.kind);
            command.received_bytes += len as u64;
            let (kind, hits, misses) = (request.kind, command.hits, command.misses);
            let meaning = S::count(request, response, load, keys, stats);
            if matches!(meaning, Meaning::Last | Meaning::LastError(_)) {
                let latency = now.saturating_sub(request.at);
                let command = stats.of(kind);
                command.latency.saturating_record(latency);
                if request.is_settable
                    && let Some(get) = settable.pop_front()
                    && command.misses > misses
                {
                    sets.push(get.into_set());
                }
                pending.pop_front();
                if let Some(client) = client {
                    client.answered(kind, now, latency);
                }
            }
            match meaning {
                Meaning::Last | Meaning::More => (),
                Meaning::LastError(text) | Meaning::MoreErrors(text) => {
                    *last_error = Some(shown(text));
                    pending_after_error = pending.len();
                }
                Meaning::Unexpected => return Err(malformed(input.bytes())),
            }
            if let Some(client) = client {
                let (command, second) = (stats.of(kind), client.at(kind, now));
                second.received_bytes += len as u64;
                second.hits += command.hits - hits;
                second.misses += command.misses - misses;
            }
            input.start += len;
        }
        // A request was completed after the last error, so the last reply is not an error.
        if last_error.is_some() && pending_after_error != pending.len() {
            *last_error = None;
        }
        if was_full && pending.len() < load.settings.pipeline {
            *free_at = now;
        }
        Ok(())
    }

    /// Removes and returns the sets that follow misses in a trace.
    #[inline]
    pub(crate) fn take_sets(&mut self) -> impl Iterator<Item = Recorded> {
        self.sets.drain(..)
    }
}

/// Returns the maximum number of unsent bytes per connection in a replay of a trace. Without this
/// limit, a deep pipeline could use up the memory, because values of a trace have up to 1 GiB.
/// Requests are not split, so a connection can exceed the limit by one request.
fn unsent_max(settings: &Settings) -> usize {
    (UNSENT_MAX / settings.connections()).max(UNSENT_MIN)
}

/// Maximum number of unsent bytes on all connections together: 256 MiB. With more than 4096
/// connections, the sum of their minimum limits ([`UNSENT_MIN`]) exceeds this maximum.
const UNSENT_MAX: usize = 256 << 20;

/// Lowest limit of unsent bytes per connection: 64 KiB.
const UNSENT_MIN: usize = 64 << 10;

fn malformed(bytes: &[u8]) -> io::Error {
    // The first bytes of a TLS record of the type `alert`.
    let message = if bytes.starts_with(&[0x15, 0x03]) {
        "the server expects TLS on this port; add --tls".to_owned()
    } else {
        format!("unexpected answer \"{}\"; check --protocol", shown(bytes))
    };
    io::Error::new(ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Arguments;
    use clap::Parser;
    use larder_trace::Operation;
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    /// Each of 64 connections can have 4 MiB of unsent bytes: four sets of 1 MiB.
    #[test]
    fn large_recorded_values_shorten_the_pipeline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let line = format!("bench -s 127.0.0.1:{port} -t 1 -c 64 --pipeline 1000 --trace f");
        let settings = Line::parse_from(line.split_whitespace()).arguments.settings().unwrap();
        let (load, mut stats) = (Load::new(&settings).unwrap(), LoadStats::new());
        let mut connection = Connection::new(&load, 0, 0).unwrap();
        let mut written = |value_len: u32, max: usize| {
            while connection.has_room(&load) && connection.unanswered() < max {
                let (operation, key) = (Operation::Set, b"k"[..].into());
                let (ttl_secs, due, set_on_miss) = (0, None, false);
                let set = Recorded { operation, key, value_len, ttl_secs, due, set_on_miss };
                connection.enqueue(
                    &load,
                    Request::Recorded(&set),
                    0,
                    &mut load.writer(),
                    &mut stats,
                );
            }
            (connection.unanswered(), connection.unsent.len() >> 20)
        };
        assert_eq!(written(100, 500), (500, 0), "small values fill it");
        assert_eq!(written(1 << 20, 1000), (504, 4));
    }

    /// A reply and the end of the connection arrive together, and only the next write detects the
    /// end.
    #[test]
    fn answers_that_a_failing_write_finds_count_for_the_server() {
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [one, other] = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
        let line = format!("bench -s {one},{other} -t 1 -c 1");
        let settings = Line::parse_from(line.split_whitespace()).arguments.settings().unwrap();
        let (load, mut stats) = (Load::new(&settings).unwrap(), LoadStats::new());
        let mut connection = Connection::new(&load, 0, 1).unwrap();
        let get = || Request::Get { space: 0, keys: &[7] };
        connection.enqueue(&load, get(), 0, &mut load.writer(), &mut stats);
        connection.send_or_receive(&load, || 0, &mut stats).unwrap();

        let (mut server, _) = listeners[1].accept().unwrap();
        server.read_exact(&mut [0]).unwrap();
        server.write_all(b"END\r\n").unwrap();
        // The server has not read all input, so its close sends a reset, and later writes of the
        // client fail.
        drop(server);

        connection.enqueue(&load, get(), 0, &mut load.writer(), &mut stats);
        connection.send_or_receive(&load, || 0, &mut stats).unwrap_err();
        assert_eq!(stats.of_server(1).answered, 1);
        assert_eq!(stats.of_all_servers(), *stats.of_server(1));
    }
}

//! A client connection: generates requests, sends them and matches answers to them.

use super::keys::{KeyNames, KeyStream};
use super::socket::{Socket, TlsClient};
use super::stats::{Kind, LoadStats};
use super::values::{Values, typical_len};
use super::wire::{Reply, Wire};
use crate::run::RunError;
use crate::settings::{Settings, Stop};
use larder_protocol::response::Read;
use larder_target::Protocol;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};

/// The settings and generators that all connections of a run share.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) settings: Settings,
    pub(crate) names: KeyNames,
    pub(crate) values: Values,
    pub(crate) wire: Wire,
}

impl Load {
    /// # Errors
    /// The distribution of value sizes has invalid parameters.
    pub(crate) fn new(settings: &Settings) -> Result<Self, RunError> {
        let with_keys = settings.verify && settings.multi_get > 1;
        Ok(Self {
            settings: settings.clone(),
            names: KeyNames::new(&settings.keys),
            values: Values::new(settings).ok_or(RunError::Sizes)?,
            wire: Wire { protocol: settings.protocol, with_keys },
        })
    }
}

/// A client connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: Socket,
    rng: SmallRng,
    set_keys: KeyStream,
    get_keys: KeyStream,
    /// Number of requests since the current cycle of sets and gets began.
    turn: u32,
    /// Number of requests that are still to be sent; none in a timed run.
    left: Option<u64>,
    unsent: Vec<u8>,
    sent_len: usize,
    input: Input,
    pending: VecDeque<PendingRequest>,
    /// The keys of the pending gets, if values are to be checked.
    keys: VecDeque<u64>,
    /// The keys of the get that is being written, kept to reuse its memory.
    drawn: Vec<u64>,
}

/// A request whose answer is outstanding.
#[derive(Clone, Copy, Debug)]
struct PendingRequest {
    kind: Kind,
    /// The time from which its latency is measured, in nanoseconds since the start of the run: when
    /// the request was due (open loop) or sent (closed loop).
    at: u64,
    keys: u32,
    last_reply: LastReply,
}

/// Which response is the last one to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastReply {
    /// The first one.
    First,
    /// An end marker or an error.
    MarkOrError,
    /// An end marker. Errors concern single keys and do not end the answer.
    Mark,
    /// The last element of an array.
    Array,
}

impl Connection {
    /// Opens connection number `index` of the run.
    ///
    /// # Errors
    /// The server does not accept the connection, or the distribution of keys has invalid
    /// parameters.
    pub(crate) fn new(
        load: &Load,
        tls: Option<&TlsClient>,
        index: usize,
    ) -> Result<Self, RunError> {
        let Settings { keys, .. } = &load.settings;
        let all = load.settings.connections();
        let stream = |pattern| KeyStream::new(keys, pattern, index, all).ok_or(RunError::Pattern);
        let socket = Socket::connect(&load.settings.address, tls).map_err(|error| {
            RunError::Connect { address: load.settings.address.to_string(), error }
        })?;
        let own = if load.settings.distinct_client_seed { index as u64 } else { 0 };
        Ok(Self {
            socket,
            rng: SmallRng::seed_from_u64(load.settings.seed.wrapping_add(own)),
            set_keys: stream(keys.set)?,
            get_keys: stream(keys.get)?,
            turn: 0,
            left: match load.settings.stop {
                Stop::Requests(count) => Some(count),
                Stop::After(_) => None,
            },
            unsent: Vec::new(),
            sent_len: 0,
            input: Input::for_replies(&load.settings),
            pending: VecDeque::with_capacity(load.settings.pipeline),
            keys: VecDeque::new(),
            drawn: Vec::new(),
        })
    }

    /// Whether requests may be sent now: after all answers, or at any time with a sliding pipeline.
    pub(crate) fn is_ready(&self, load: &Load) -> bool {
        self.left != Some(0) && (self.pending.is_empty() || load.settings.sliding)
    }

    /// Whether another request fits into the pipeline.
    pub(crate) fn has_room(&self, load: &Load) -> bool {
        self.left != Some(0) && self.pending.len() < load.settings.pipeline
    }

    /// Whether all requests have been sent and answered. A timed run is never done.
    pub(crate) fn is_done(&self) -> bool {
        self.left == Some(0) && self.pending.is_empty()
    }

    /// Number of requests whose answers are outstanding.
    pub(crate) fn unanswered(&self) -> u64 {
        self.pending.len() as u64
    }

    /// Writes the next request into the output buffer, which [`send`](Self::send) sends. `at` is the
    /// time from which its latency is measured.
    pub(crate) fn enqueue(&mut self, load: &Load, at: u64, stats: &mut LoadStats) {
        let before = self.unsent.len();
        let kind = self.next_kind(load);
        let asked = match kind {
            Kind::Set => self.enqueue_set(load, at),
            Kind::Get => self.enqueue_get(load, at),
        };
        self.pending.push_back(asked);
        if let Some(left) = &mut self.left {
            *left -= 1;
        }
        stats.of(kind).sent_bytes += (self.unsent.len() - before) as u64;
    }

    fn next_kind(&mut self, load: &Load) -> Kind {
        let ratio = load.settings.ratio;
        let turn = self.turn;
        self.turn = if turn + 1 == ratio.sets + ratio.gets { 0 } else { turn + 1 };
        if turn < ratio.sets { Kind::Set } else { Kind::Get }
    }

    fn enqueue_set(&mut self, load: &Load, at: u64) -> PendingRequest {
        let key = self.set_keys.next(&mut self.rng);
        let expiry = load.settings.expiry.map_or(0, |(from, to)| self.rng.random_range(from..=to));
        let value = load.values.draw(key, &mut self.rng);
        load.wire.write_set(&load.names, key, expiry, value, &mut self.unsent);
        PendingRequest { kind: Kind::Set, at, keys: 0, last_reply: LastReply::First }
    }

    fn enqueue_get(&mut self, load: &Load, at: u64) -> PendingRequest {
        self.drawn.clear();
        for _ in 0..load.settings.multi_get {
            self.drawn.push(self.get_keys.next(&mut self.rng));
        }
        if load.settings.verify {
            self.keys.extend(&self.drawn);
        }
        load.wire.write_get(&load.names, &self.drawn, &mut self.unsent);
        let last_reply = match (load.wire.protocol, self.drawn.len()) {
            (Protocol::Text, _) => LastReply::MarkOrError,
            (_, 1) => LastReply::First,
            (Protocol::Meta | Protocol::Binary, _) => LastReply::Mark,
            (Protocol::Resp, _) => LastReply::Array,
        };
        let keys = u32::try_from(self.drawn.len()).unwrap_or(u32::MAX);
        PendingRequest { kind: Kind::Get, at, keys, last_reply }
    }

    /// Sends the output buffer, as far as the socket accepts it.
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
        Ok(())
    }

    /// Reads and counts the answers that have arrived.
    ///
    /// # Errors
    /// The connection is lost, or an answer does not follow the protocol.
    pub(crate) fn receive(
        &mut self,
        load: &Load,
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
                    self.take_answers(load, now(), stats)?;
                    if len < space_len && self.socket.short_read_is_the_last() {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) => return Err(error),
            }
        }
    }

    fn take_answers(&mut self, load: &Load, now: u64, stats: &mut LoadStats) -> io::Result<()> {
        let Self { input, pending, keys, .. } = self;
        loop {
            let (reply, len) = match load.wire.read(input.bytes()) {
                Read::Whole(reply, len) => (reply, len),
                Read::Incomplete => return Ok(()),
                Read::Malformed => return Err(malformed(input.bytes())),
            };
            let Some(asked) = pending.front_mut() else {
                return Err(malformed(input.bytes()));
            };
            stats.of(asked.kind).received_bytes += len as u64;
            if asked.answer(reply, load, keys, stats) {
                let latency = now.saturating_sub(asked.at);
                stats.of(asked.kind).latency.saturating_record(latency);
                pending.pop_front();
            }
            input.start += len;
        }
    }
}

impl PendingRequest {
    /// Counts one response; returns true if it was the last one to this request.
    fn answer(
        &mut self,
        reply: Reply<'_>,
        load: &Load,
        keys: &mut VecDeque<u64>,
        stats: &mut LoadStats,
    ) -> bool {
        let command = stats.of(self.kind);
        match reply {
            Reply::Hit { key, value } => {
                command.hits += 1;
                command.value_bytes += value.len() as u64;
                self.keys = self.keys.saturating_sub(1);
                if load.settings.verify {
                    verify(key, value, load, keys, stats);
                }
                self.last_reply == LastReply::First || self.is_last_of_array()
            }
            Reply::Miss => {
                command.misses += 1;
                self.keys = self.keys.saturating_sub(1);
                if load.settings.verify && self.kind == Kind::Get {
                    keys.pop_front();
                }
                self.last_reply == LastReply::First || self.is_last_of_array()
            }
            Reply::End => {
                // Keys without a response were not found.
                command.misses += u64::from(self.keys);
                if load.settings.verify {
                    keys.drain(..(self.keys as usize).min(keys.len()));
                }
                true
            }
            Reply::Stored | Reply::More => self.kind == Kind::Set,
            Reply::Error(text) => {
                command.errors += 1;
                stats.fault(&String::from_utf8_lossy(&text[..text.len().min(80)]), 1);
                let ended = self.last_reply != LastReply::Mark;
                if ended && load.settings.verify {
                    keys.drain(..(self.keys as usize).min(keys.len()));
                }
                ended
            }
        }
    }

    fn is_last_of_array(&self) -> bool {
        self.last_reply == LastReply::Array && self.keys == 0
    }
}

/// Checks that a value is one of its key.
fn verify(
    key: Option<&[u8]>,
    value: &[u8],
    load: &Load,
    keys: &mut VecDeque<u64>,
    stats: &mut LoadStats,
) {
    let number = match key {
        Some(name) => load.names.number(name),
        None => keys.front().copied(),
    };
    keys.pop_front();
    if !number.is_some_and(|number| load.values.is_of(number, value)) {
        stats.fault("wrong value", 1);
    }
}

fn malformed(bytes: &[u8]) -> io::Error {
    let shown = bytes[..bytes.len().min(60)].escape_ascii().to_string();
    io::Error::new(
        ErrorKind::InvalidData,
        format!("unexpected answer \"{shown}\"; check --protocol"),
    )
}

/// The input buffer: `start..end` has arrived and is not parsed yet.
#[derive(Debug)]
struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    /// A buffer for the answers to a full pipeline, but of at least 4 KiB and at most 64 KiB.
    fn for_replies(settings: &Settings) -> Self {
        let reply_len = typical_len(&settings.data_size) * settings.multi_get + 64;
        let len = (reply_len * settings.pipeline).clamp(4 << 10, 64 << 10);
        Self { buffer: vec![0; len], start: 0, end: 0 }
    }

    fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Free space for the next read, which is never empty: the buffer grows if it is full.
    fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.end == self.buffer.len() {
                self.buffer.resize(self.buffer.len() * 2, 0);
            }
        }
        &mut self.buffer[self.end..]
    }
}

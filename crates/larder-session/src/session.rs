//! The session itself: what is whole is answered in batches, what is not is waited for.

use crate::{Counters, Host, admin, arithmetic, delete, get, store};
use arrayvec::ArrayVec;
use larder_protocol::reply::{self, Stored};
use larder_protocol::{Fault, KEY_LEN_MAX, Key, Parsed, Parser, Request, Store, Then};
use larder_store::{Engine, HashedKey, Lease, Refusal, Seconds, SizeClasses};

/// What all sessions of a server share and none changes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The largest item in memcached's reckoning (`-I`), in bytes.
    pub item_size_max: usize,
    /// `flush_all` works (no `-F`).
    pub flush_enabled: bool,
    /// Requests answered in one turn before other connections get theirs (`-R`).
    pub requests_per_turn: usize,
    /// Unsent output in bytes from which a session stops answering until some is sent.
    pub output_max: usize,
    /// memcached's slab classes.
    pub classes: SizeClasses,
}

/// What a session works with for one turn.
pub struct Context<'a, E: Engine, H: Host> {
    /// The cache.
    pub engine: &'a mut E,
    /// The server around.
    pub host: &'a H,
    /// This thread's counters.
    pub counters: &'a Counters,
    /// See [`Settings`].
    pub settings: &'a Settings,
    /// The time, read once for the turn.
    pub now: Seconds,
}

/// What the driver does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Everything whole is answered: keep the unconsumed rest, read more.
    Read {
        /// Bytes still missing from the request that has begun; at least 1. Worth reserving up to
        /// some bound.
        wanted: usize,
    },
    /// This turn's share is done and more is waiting in the rest: call again after the others.
    Yield,
    /// Too much output is unsent: send it, then call again with the rest, new input or not.
    Write,
    /// Send what there is, then close. The rest of the input is not for anybody.
    Close,
}

/// What one turn did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Bytes of the input that are done with.
    pub consumed: usize,
    /// What to do next.
    pub next: Next,
}

/// One connection's conversation. It holds no heap memory between requests, but for a value that is
/// on its way in or out.
pub struct Session<E: Engine> {
    parser: Parser,
    pending: Pending<E>,
}

/// What keeps the next request waiting.
///
/// ```text
///            fault, refusal             body too long for one piece
///  Swallow ◀──────────────── Nothing ─────────────────────────────▶ Arriving
///     │ all dropped: answer   ▲  │ ▲        all here: store, answer     │
///     └───────────────────────┘  │ └──────────────────────────────────-─┘
///                                │ large value asked for
///                                ▼
///                             Sending ── all out ──▶ Nothing
/// ```
enum Pending<E: Engine> {
    Nothing,
    /// Drop this many bytes, then say this.
    Swallow {
        left: u64,
        then: Vec<u8>,
    },
    /// Drop everything up to the next LF.
    SwallowLine,
    /// A value is arriving in pieces.
    Arriving(Box<Arriving<E>>),
    /// A value is leaving in pieces.
    Sending(Box<Sending<E::Lease>>),
}

/// A store whose value is too long to wait for in a buffer.
struct Arriving<E: Engine> {
    /// The request up to its value, to be read again when that is here.
    head: Vec<u8>,
    parser: Parser,
    upload: Option<E::Upload>,
    /// Bytes of the value that are still to come.
    value_left: usize,
    /// What followed the value: CRLF in text.
    trailer: ArrayVec<u8, 2>,
    trailer_len: usize,
}

/// A large value on its way out.
pub(crate) struct Sending<L> {
    lease: L,
    at: usize,
    /// What follows the value.
    tail: Vec<u8>,
}

impl<L: Lease> Sending<L> {
    /// `None` if the server has no memory to hold it.
    pub(crate) fn new(lease: L, tail: Vec<u8>, host: &impl Host) -> Option<Self> {
        host.reserve(lease.heap_len()).then_some(Self { lease, at: 0, tail })
    }
}

/// What a session is at, for `stats conns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Between requests, or within the first part of one.
    Waiting,
    /// Gathering a value.
    Receiving,
    /// Dropping what a refused request announced.
    Swallowing,
    /// Sending a large value.
    Sending,
}

/// Requests looked at together: enough to hide memory's latency, few enough to stay in the cache.
const BATCH_MAX: usize = 32;

/// Values up to this long wait in the connection's buffer until they are whole, in bytes.
const BUFFERED_BODY_MAX: u64 = 64 << 10;

/// A request of a batch.
struct Ready<'b> {
    request: Request<'b>,
    hash: u64,
    /// Where the next request begins.
    end: usize,
    /// The parser as it is there.
    parser: Parser,
}

/// Why a batch ended where it did.
enum Stop<'b> {
    /// It is as long as it may be.
    Full,
    /// What follows is not whole.
    Incomplete,
    /// What follows is a store whose value is not all here.
    Body { store: Store<'b>, head_len: usize, body_len: u64 },
}

/// Whether the next request may be answered now.
enum Flow {
    GoOn,
    Close,
}

impl<E: Engine> Default for Session<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E: Engine> Session<E> {
    /// A conversation that has not begun.
    #[must_use]
    pub fn new() -> Self {
        Self { parser: Parser::default(), pending: Pending::Nothing }
    }

    /// What it is at.
    pub fn state(&self) -> State {
        match &self.pending {
            Pending::Nothing => State::Waiting,
            Pending::Swallow { .. } | Pending::SwallowLine => State::Swallowing,
            Pending::Arriving(_) => State::Receiving,
            Pending::Sending(_) => State::Sending,
        }
    }

    /// Gives back what it holds of the server's memory.
    pub fn close(&mut self, host: &impl Host) {
        match std::mem::replace(&mut self.pending, Pending::Nothing) {
            Pending::Sending(sending) => host.release(sending.lease.heap_len()),
            Pending::Arriving(arriving) => host.release(arriving.head.capacity()),
            Pending::Nothing | Pending::Swallow { .. } | Pending::SwallowLine => (),
        }
    }

    /// Answers what is whole in `input`, into `output`, for one turn. `input` begins with what the
    /// turn before did not consume; `output` may still hold what was not sent.
    pub fn receive<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Turn {
        cx.engine.begin_batch(cx.now);
        let mut scratch = [0; KEY_LEN_MAX];
        let turn = self.take_turn(cx, input, output, &mut scratch);
        cx.engine.end_batch();
        turn
    }

    fn take_turn<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        input: &[u8],
        output: &mut Vec<u8>,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> Turn {
        let mut consumed = 0;
        let mut left = cx.settings.requests_per_turn.max(1);
        loop {
            let (dropped, waits) =
                self.resume(cx, input.get(consumed..).unwrap_or_default(), output);
            consumed += dropped;
            if let Some(next) = waits {
                return Turn { consumed, next };
            }
            if output.len() > cx.settings.output_max {
                return Turn { consumed, next: Next::Write };
            }
            let rest = input.get(consumed..).unwrap_or_default();
            if left == 0 {
                let next = if rest.is_empty() { Next::Read { wanted: 1 } } else { Next::Yield };
                return Turn { consumed, next };
            }
            let mut batch = ArrayVec::new();
            let stop = self.gather(cx.engine, rest, left, scratch, &mut batch);
            left -= batch.len();
            let whole = batch.len();
            let (done, end, flow) = self.answer(cx, &batch, output, scratch);
            consumed += end;
            if let Flow::Close = flow {
                return Turn { consumed, next: Next::Close };
            }
            if done < whole {
                continue;
            }
            match stop {
                Stop::Full => (),
                Stop::Incomplete if matches!(self.pending, Pending::Nothing) => {
                    return Turn { consumed, next: Next::Read { wanted: 1 } };
                }
                Stop::Body { store, head_len, body_len }
                    if matches!(self.pending, Pending::Nothing) =>
                {
                    let rest = rest.get(end..).unwrap_or_default();
                    let wanted = (head_len as u64 + body_len).saturating_sub(rest.len() as u64);
                    if !self.begin_body(cx, &store, rest, head_len, body_len, scratch) {
                        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX).max(1);
                        return Turn { consumed, next: Next::Read { wanted } };
                    }
                    consumed += head_len;
                }
                Stop::Incomplete | Stop::Body { .. } => (),
            }
        }
    }

    /// Parses the next requests and starts fetching what they will look at.
    fn gather<'b>(
        &mut self,
        engine: &E,
        input: &'b [u8],
        max: usize,
        scratch: &mut [u8; KEY_LEN_MAX],
        batch: &mut ArrayVec<Ready<'b>, BATCH_MAX>,
    ) -> Stop<'b> {
        let mut parser = self.parser;
        let mut at = 0;
        let stop = loop {
            if batch.len() == max.min(BATCH_MAX) {
                break Stop::Full;
            }
            let rest = input.get(at..).unwrap_or_default();
            match parser.parse(rest) {
                Parsed::Request { request, consumed } => {
                    at += consumed;
                    let hash = key_of(&request).map_or(0, |key| engine.hash(key.decode(scratch)));
                    engine.prefetch_index(hash);
                    let ends = ends_batch(&request);
                    batch.push(Ready { request, hash, end: at, parser });
                    if ends {
                        break Stop::Full;
                    }
                }
                Parsed::Body { store, head_len, body_len } => {
                    break Stop::Body { store, head_len, body_len };
                }
                Parsed::Incomplete => break Stop::Incomplete,
            }
        };
        if batch.len() > 1 {
            batch.iter().for_each(|ready| engine.prefetch_item(ready.hash));
        }
        stop
    }

    /// Answers a batch in order, until the output is full; how many, and where the next begins.
    fn answer<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        batch: &[Ready<'_>],
        output: &mut Vec<u8>,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> (usize, usize, Flow) {
        let mut end = 0;
        for (done, ready) in batch.iter().enumerate() {
            let waits = !matches!(self.pending, Pending::Nothing);
            if waits || output.len() > cx.settings.output_max {
                return (done, end, Flow::GoOn);
            }
            end = ready.end;
            self.parser = ready.parser;
            if let Flow::Close = self.execute(cx, ready, output, scratch) {
                return (done + 1, end, Flow::Close);
            }
        }
        (batch.len(), end, Flow::GoOn)
    }

    #[inline]
    fn execute<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        ready: &Ready<'_>,
        output: &mut Vec<u8>,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> Flow {
        let bytes = key_of(&ready.request).map_or(&[][..], |key| key.decode(scratch));
        let key = HashedKey { bytes, hash: ready.hash };
        match &ready.request {
            Request::Get(get) => {
                if let Some(sending) = get::get(cx, get, key, output) {
                    self.pending = Pending::Sending(Box::new(sending));
                }
            }
            Request::GetEnd => reply::get_end(output),
            Request::Store(store) => store::store(cx, store, key, &mut None, output),
            Request::Delete(delete) => delete::delete(cx, delete, key, output),
            Request::Arithmetic(count) => {
                arithmetic::arithmetic(cx, count, key, output);
            }
            Request::Debug(debug) => get::describe(cx, debug, key, output),
            Request::Noop(shape) => reply::noop(shape, output),
            Request::FlushAll { delay, shape } => admin::flush(cx, *delay, shape, output),
            Request::Version(shape) => reply::version(shape, cx.host.version(), output),
            Request::Verbosity { level, shape } => {
                cx.host.set_verbosity(*level);
                reply::ok(shape, output);
            }
            Request::Stats { topic, shape } => admin::stats(cx, topic, shape, output),
            Request::Quit(shape) => {
                reply::quit(shape, output);
                return Flow::Close;
            }
            Request::Fault(fault) => return self.fault(fault, output),
        }
        Flow::GoOn
    }

    fn fault(&mut self, fault: &Fault, output: &mut Vec<u8>) -> Flow {
        match fault.then {
            Then::Swallow(left) => {
                let mut then = Vec::new();
                reply::fault(fault, &mut then);
                self.pending = Pending::Swallow { left, then };
                return Flow::GoOn;
            }
            Then::SwallowLine => self.pending = Pending::SwallowLine,
            Then::GoOn => (),
            Then::Close => {
                reply::fault(fault, output);
                return Flow::Close;
            }
        }
        reply::fault(fault, output);
        Flow::GoOn
    }

    /// Deals with a store whose value is not all here. False if it is short enough to wait for.
    fn begin_body<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        store: &Store<'_>,
        input: &[u8],
        head_len: usize,
        body_len: u64,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> bool {
        let bytes = store.key.decode(scratch);
        let key = HashedKey { bytes, hash: cx.engine.hash(bytes) };
        let size = store::footprint(&cx.settings.classes, store, bytes.len());
        if size > cx.settings.item_size_max {
            self.swallow(cx, store, key, body_len, Stored::TooLarge);
            return true;
        }
        if body_len <= BUFFERED_BODY_MAX.min(cx.engine.upload_len_min() as u64) {
            return false;
        }
        let head = input.get(..head_len).unwrap_or_default().to_vec();
        let upload = match cx.engine.upload(store.value_len) {
            Ok(upload) if cx.host.reserve(head.capacity()) => upload,
            Ok(_) | Err(Refusal::OutOfMemory) => {
                self.swallow(cx, store, key, body_len, Stored::OutOfMemory);
                return true;
            }
            Err(Refusal::TooLarge) => {
                self.swallow(cx, store, key, body_len, Stored::TooLarge);
                return true;
            }
        };
        let trailer_len = usize::try_from(body_len).unwrap_or(usize::MAX) - store.value_len;
        self.pending = Pending::Arriving(Box::new(Arriving {
            head,
            parser: self.parser,
            upload: Some(upload),
            value_left: store.value_len,
            trailer: ArrayVec::new(),
            trailer_len,
        }));
        true
    }

    /// Refuses a store before its value is here: what is announced is dropped, then the peer is
    /// told.
    fn swallow<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        store: &Store<'_>,
        key: HashedKey<'_>,
        left: u64,
        why: Stored,
    ) {
        let mut then = Vec::new();
        reply::stored(store, store::refuse(cx, store, key, why), &mut then);
        self.pending = Pending::Swallow { left, then };
    }

    /// Goes on with what is pending: the bytes it used up, and what it waits for, if anything.
    fn resume<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> (usize, Option<Next>) {
        match &mut self.pending {
            Pending::Nothing => (0, None),
            Pending::Swallow { left, then } => {
                let dropped = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                *left -= dropped as u64;
                if *left > 0 {
                    return (dropped, Some(Next::Read { wanted: 1 }));
                }
                output.append(then);
                self.pending = Pending::Nothing;
                (dropped, None)
            }
            Pending::SwallowLine => match memchr::memchr(b'\n', input) {
                Some(end) => {
                    self.pending = Pending::Nothing;
                    (end + 1, None)
                }
                None => (input.len(), Some(Next::Read { wanted: 1 })),
            },
            Pending::Arriving(_) => self.resume_arriving(cx, input, output),
            Pending::Sending(sending) => {
                if !sending.proceed(cx.settings.output_max, output) {
                    return (0, Some(Next::Write));
                }
                cx.host.release(sending.lease.heap_len());
                self.pending = Pending::Nothing;
                (0, None)
            }
        }
    }

    fn resume_arriving<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> (usize, Option<Next>) {
        let Pending::Arriving(mut arriving) =
            std::mem::replace(&mut self.pending, Pending::Nothing)
        else {
            return (0, None);
        };
        let (value, rest) = input.split_at_checked(arriving.value_left).unwrap_or((input, &[]));
        let taken = match arriving.upload.as_mut() {
            Some(upload) => cx.engine.extend(upload, value),
            None => Ok(()),
        };
        arriving.value_left -= value.len();
        let missing = arriving.trailer_len - arriving.trailer.len();
        let trailer = rest.get(..missing).unwrap_or(rest);
        let trailer = if arriving.value_left == 0 { trailer } else { &[] };
        arriving.trailer.extend(trailer.iter().copied());
        let consumed = value.len() + trailer.len();
        let missing = missing - trailer.len();
        let Err(refusal) = taken else {
            let left = arriving.value_left + missing;
            if left > 0 {
                self.pending = Pending::Arriving(arriving);
                return (consumed, Some(Next::Read { wanted: left }));
            }
            self.store_arrived(cx, *arriving, output);
            return (consumed, None);
        };
        let why = if refusal == Refusal::TooLarge { Stored::TooLarge } else { Stored::OutOfMemory };
        let left = (arriving.value_left + missing) as u64;
        cx.host.release(arriving.head.capacity());
        if let Some(store) = arriving.parser.parse_head(&arriving.head) {
            let mut scratch = [0; KEY_LEN_MAX];
            let bytes = store.key.decode(&mut scratch);
            let key = HashedKey { bytes, hash: cx.engine.hash(bytes) };
            self.swallow(cx, &store, key, left, why);
        }
        (consumed, None)
    }

    /// Stores a value that has arrived.
    fn store_arrived<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        mut arriving: Arriving<E>,
        output: &mut Vec<u8>,
    ) {
        cx.host.release(arriving.head.capacity());
        let Some(store) = arriving.parser.parse_head(&arriving.head) else { return };
        let terminated = arriving.trailer_len == 0 || arriving.trailer[..] == *b"\r\n";
        let mut scratch = [0; KEY_LEN_MAX];
        let bytes = store.key.decode(&mut scratch);
        let key = HashedKey { bytes, hash: cx.engine.hash(bytes) };
        let store = Store { terminated, ..store };
        store::store(cx, &store, key, &mut arriving.upload, output);
    }
}

impl<L: Lease> Sending<L> {
    /// Copies what fits; true when all is copied.
    fn proceed(&mut self, output_max: usize, output: &mut Vec<u8>) -> bool {
        while self.at < self.lease.len() {
            let room = output_max.saturating_sub(output.len());
            if room == 0 {
                return false;
            }
            let piece = self.lease.piece(self.at);
            let piece = piece.get(..room).unwrap_or(piece);
            output.extend_from_slice(piece);
            self.at += piece.len();
        }
        output.append(&mut self.tail);
        true
    }
}

/// The key that a request looks up.
#[inline]
fn key_of<'r, 'b>(request: &'r Request<'b>) -> Option<&'r Key<'b>> {
    match request {
        Request::Get(get) => Some(&get.key),
        Request::Store(store) => Some(&store.key),
        Request::Delete(delete) => Some(&delete.key),
        Request::Arithmetic(arithmetic) => Some(&arithmetic.key),
        Request::Debug(debug) => Some(&debug.key),
        _ => None,
    }
}

/// Whether what follows a request can't be parsed before it is answered.
fn ends_batch(request: &Request<'_>) -> bool {
    match request {
        Request::Fault(fault) => fault.then != Then::GoOn,
        Request::Quit(_) => true,
        _ => false,
    }
}

//! The session itself: what is whole is answered in batches, what is not is waited for.

use crate::get::Answered;
use crate::pending::{Body, Pending, Step};
use crate::{Counters, Host, admin, arithmetic, delete, get, store};
use arrayvec::ArrayVec;
use larder_protocol::{
    Fault, KEY_LEN_MAX, Key, LoneGet, Parsed, Parser, Request, Store, Streams, Then, reply,
};
use larder_store::{Engine, HashedKey, Seconds, SizeClasses};

/// What all sessions of a server share and none changes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How conversations begin: in any dialect, in one, or with a login.
    pub opening: Parser,
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
    pub(crate) parser: Parser,
    pub(crate) pending: Pending<E>,
    /// Its number in the log.
    pub(crate) client: u64,
    /// What anybody wants to be told of this turn.
    pub(crate) observed: Streams,
    /// The peer broke the protocol, and the conversation ends with that.
    failed: bool,
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
    /// Showing all items.
    Dumping,
    /// Showing the log: it has to be called now and then, with or without input.
    Watching,
}

/// Requests looked at together: enough to hide memory's latency, few enough to stay in the cache.
const BATCH_MAX: usize = 32;

/// A request of a batch: small, so that what is asked most is not moved about in memory.
struct Ready<'b> {
    what: What<'b>,
    hash: u64,
    /// Where the next request begins.
    end: usize,
}

enum What<'b> {
    /// A look-up that only asks.
    Get(LoneGet<'b>),
    /// One of the batch's other requests.
    Other(usize),
}

/// Any request, and the parser as it is behind it.
struct Other<'b> {
    request: Request<'b>,
    parser: Parser,
}

/// Requests that are looked at together.
struct Batch<'b> {
    ready: ArrayVec<Ready<'b>, BATCH_MAX>,
    others: ArrayVec<Other<'b>, BATCH_MAX>,
}

/// Why a batch ended where it did.
enum Stop<'b> {
    /// It is as long as it may be.
    Full,
    /// What follows is not whole.
    Incomplete,
    /// What follows is a store whose value is not all here.
    Body { store: Store<'b>, head_len: usize, body_len: u64, parser: Parser },
}

/// Whether the next request may be answered now.
pub(crate) enum Flow {
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
        Self::numbered(0)
    }

    /// The same, under a number that the log calls it by.
    #[must_use]
    pub fn numbered(client: u64) -> Self {
        let observed = Streams::default();
        let (parser, pending) = (Parser::default(), Pending::Nothing);
        Self { parser, pending, client, observed, failed: false }
    }

    /// Whether it has come to its end ([`Next::Close`]) because its peer broke the protocol.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// What it is at.
    pub fn state(&self) -> State {
        match &self.pending {
            Pending::Nothing => State::Waiting,
            Pending::Swallow { .. } | Pending::SwallowLine => State::Swallowing,
            Pending::Arriving(_) => State::Receiving,
            Pending::Sending(_) => State::Sending,
            Pending::Dumping(_) => State::Dumping,
            Pending::Watching(_) => State::Watching,
        }
    }

    /// Gives back what it holds of the server's memory.
    pub fn close(&mut self, host: &impl Host) {
        let pending = std::mem::replace(&mut self.pending, Pending::Nothing);
        match &pending {
            Pending::Watching(watcher) => host.unwatch(*watcher),
            Pending::Dumping(dump) if dump.is_crawl() => host.note_dump(false),
            _ => (),
        }
        host.release(pending.reserved());
    }

    /// Answers what is whole in `input`, into `output`, for one turn. `input` begins with what the
    /// turn before did not consume; `output` may still hold what was not sent.
    pub fn receive<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Turn {
        if self.parser.is_fresh() {
            self.parser = cx.settings.opening;
        }
        cx.engine.begin_batch(cx.now);
        self.observed = cx.host.observed();
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
            let rest = input.get(consumed..).unwrap_or_default();
            let step = if !self.pending.is_nothing() {
                self.resume(cx, rest, output)
            } else if output.len() > cx.settings.output_max {
                Step::end(0, Next::Write)
            } else if rest.is_empty() {
                Step::end(0, Next::Read { wanted: 1 })
            } else if left == 0 {
                Step::end(0, Next::Yield)
            } else {
                self.answer_batch(cx, rest, &mut left, output, scratch)
            };
            consumed += step.consumed;
            if let Some(next) = step.next {
                return Turn { consumed, next };
            }
        }
    }

    /// Answers the next requests, at most `left`, and begins what is not whole behind them.
    fn answer_batch<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        input: &[u8],
        left: &mut usize,
        output: &mut Vec<u8>,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> Step {
        let mut batch = Batch { ready: ArrayVec::new(), others: ArrayVec::new() };
        let stop = self.gather(cx.engine, input, *left, scratch, &mut batch);
        let (done, end, flow) = self.answer(cx, &batch, output, scratch);
        *left -= done;
        if let Flow::Close = flow {
            return Step::end(end, Next::Close);
        }
        if done < batch.ready.len() || !self.pending.is_nothing() {
            return Step::go_on(end);
        }
        match stop {
            Stop::Full => Step::go_on(end),
            Stop::Incomplete => Step::end(end, Next::Read { wanted: 1 }),
            Stop::Body { store, head_len, body_len, parser } => {
                self.parser = parser;
                let input = input.get(end..).unwrap_or_default();
                let body = Body { store, head_len, body_len };
                let begun = self.begin_body(cx, &body, input, scratch);
                Step { consumed: end + begun.consumed, next: begun.next }
            }
        }
    }

    /// Parses the next requests and starts fetching what they will look at.
    fn gather<'b>(
        &mut self,
        engine: &mut E,
        input: &'b [u8],
        max: usize,
        scratch: &mut [u8; KEY_LEN_MAX],
        batch: &mut Batch<'b>,
    ) -> Stop<'b> {
        let mut parser = self.parser;
        let mut at = 0;
        let stop = loop {
            if batch.ready.len() == max.min(BATCH_MAX) {
                break Stop::Full;
            }
            let rest = input.get(at..).unwrap_or_default();
            if rest.is_empty() {
                break Stop::Incomplete;
            }
            if let Some((get, len)) = parser.lone_get(rest) {
                at += len;
                let hash = engine.hash(get.key);
                engine.announce(hash);
                batch.ready.push(Ready { what: What::Get(get), hash, end: at });
                continue;
            }
            match parser.parse(rest) {
                Parsed::Request { request, consumed } => {
                    at += consumed;
                    let hash = key_of(&request).map_or(0, |key| {
                        let hash = engine.hash(key.decode(scratch));
                        engine.announce(hash);
                        hash
                    });
                    let ends = ends_batch(&request);
                    let what = What::Other(batch.others.len());
                    batch.others.push(Other { request, parser });
                    batch.ready.push(Ready { what, hash, end: at });
                    if ends {
                        break Stop::Full;
                    }
                }
                Parsed::Body { store, head_len, body_len } => {
                    break Stop::Body { store, head_len, body_len, parser };
                }
                Parsed::Incomplete => break Stop::Incomplete,
            }
        };
        engine.prefetch_announced();
        stop
    }

    /// Answers a batch in order, until the output is full; how many, and where the next begins.
    fn answer<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        batch: &Batch<'_>,
        output: &mut Vec<u8>,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> (usize, usize, Flow) {
        let mut end = 0;
        for (done, ready) in batch.ready.iter().enumerate() {
            if !self.pending.is_nothing() || output.len() > cx.settings.output_max {
                return (done, end, Flow::GoOn);
            }
            end = ready.end;
            let flow = match ready.what {
                // It leaves the parser as it was.
                What::Get(get) => self.answer_get(cx, get, ready.hash, output),
                What::Other(index) => {
                    let Some(other) = batch.others.get(index) else { continue };
                    self.parser = other.parser;
                    let request = &other.request;
                    let bytes = key_of(request).map_or(&[][..], |key| key.decode(scratch));
                    self.execute(cx, request, HashedKey { bytes, hash: ready.hash }, output)
                }
            };
            if let Flow::Close = flow {
                return (done + 1, end, Flow::Close);
            }
        }
        (batch.ready.len(), end, Flow::GoOn)
    }

    /// Answers a look-up that only asks.
    #[inline]
    fn answer_get<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        get: LoneGet<'_>,
        hash: u64,
        output: &mut Vec<u8>,
    ) -> Flow {
        let key = HashedKey { bytes: get.key, hash };
        if self.observed == Streams::default() && get::lone_get(cx, get, key, output) {
            return Flow::GoOn;
        }
        self.execute(cx, &Request::Get(get.get()), key, output)
    }

    fn execute<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        request: &Request<'_>,
        key: HashedKey<'_>,
        output: &mut Vec<u8>,
    ) -> Flow {
        if self.observed == Streams::default() {
            self.perform(cx, request, key, output)
        } else {
            self.execute_observed(cx, request, key, output)
        }
    }

    #[inline]
    pub(crate) fn perform<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        request: &Request<'_>,
        key: HashedKey<'_>,
        output: &mut Vec<u8>,
    ) -> Flow {
        match request {
            Request::Get(get) => match get::get(cx, get, key, output) {
                Answered::Whole => (),
                Answered::Large(sending) => self.pending = Pending::Sending(Box::new(sending)),
                // The client takes the error for the end: no key behind it may be answered.
                Answered::Refused if self.parser.abandon_line() => {
                    self.pending = Pending::SwallowLine;
                }
                Answered::Refused => (),
            },
            Request::GetEnd => reply::get_end(output),
            Request::Store(store) => {
                store::store(cx, store, key, &mut None, output);
            }
            Request::Delete(delete) => {
                delete::delete(cx, delete, key, output);
            }
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
            Request::Stats { topic, shape } => {
                self.stats(cx, topic, shape, output);
                // What it has changed holds for the very next request.
                self.observed = cx.host.observed();
            }
            Request::Admin { command, shape } => {
                return self.administer(cx, command, shape, output);
            }
            Request::Login(claimed) => self.log_in(cx, claimed, output),
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
                self.failed = true;
                reply::fault(fault, output);
                return Flow::Close;
            }
        }
        reply::fault(fault, output);
        Flow::GoOn
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
        Request::Quit(_) | Request::Login(_) => true,
        _ => false,
    }
}

//! The session itself: it answers complete requests in batches, and waits for the rest of the others.

use crate::context::{Context, Flow, Next, Progress, Step, Turn};
use crate::events::RequestObserver;
use crate::get::Answered;
use crate::pending::{Body, Pending};
use crate::resp::state;
use crate::route::{Conversation, Route};
use crate::{Host, admin, get, read_only, store, tags};
use arrayvec::ArrayVec;
use larder_operations::{AnsweredCounts, CommandClass, OpContext, Tags};
use larder_protocol::{
    FastGet, FastSet, Fault, KEY_LEN_MAX, Key, Parsed, Parser, Recovery, Request, Store, Streams,
    reply,
};
use larder_store::{Acknowledged, Begun, Delivery, Engine, HashedKey, Refusal, Tag, Wanted};

/// The protocol state of one connection. It holds no heap memory between requests, except for a large
/// value that is received or sent.
///
/// Input may arrive in any pieces. The session does not consume an incomplete request, and the driver
/// passes it again with the bytes that follow:
///
/// ```
/// use larder_session::{Next, Session, kit::Kit};
/// use larder_store::{SizeClasses, dashmap};
///
/// let classes = SizeClasses::new(vec![96, 512, 4096], 59);
/// let config = dashmap::Config { limit_bytes: 1 << 20, cas: true, classes: classes.clone(), seed: 7 };
/// let engine = dashmap::Cache::new(config).handle();
/// // A server has an engine handle for each thread, its settings and its clock; a kit stands for it.
/// let mut kit = Kit::new(engine, 4096, classes);
///
/// let (mut session, mut output) = (Session::new(), Vec::new());
/// let progress = kit.turn(&mut session, b"set k 0 0 1\r\n5\r\nget k\r", &mut output);
/// assert_eq!(output, b"STORED\r\n");
/// assert_eq!((progress.consumed, progress.next), (16, Next::Read { wanted: 1 }));
///
/// let progress = kit.turn(&mut session, b"get k\r\n", &mut output);
/// assert_eq!(output, b"STORED\r\nVALUE k 0 1\r\n5\r\nEND\r\n");
/// assert_eq!(progress.consumed, 7);
/// ```
pub struct Session<E: Engine> {
    pub(crate) parser: Parser,
    pub(crate) pending: Pending<E>,
    /// The number of the connection in the log.
    pub(crate) client: u64,
    /// The log streams that somebody watches in this turn.
    pub(crate) observed: Streams,
    /// Whether the connection is closed because the client violated the protocol.
    pub(crate) failed: bool,
    /// The state of a conversation in RESP; `None` in memcached's protocol.
    pub(crate) resp: Option<Box<state::State>>,
    /// What is kept of the next requests, which wait for slower storage.
    fetches: Option<Box<Fetches<E::Fetch>>>,
    /// What sessions of servers with replicas have.
    aside: Option<Box<Aside<E::Position>>>,
    /// Whether the connection is closed after the answers that are held.
    ends: bool,
    /// Another node forwards the requests: they are answered here or not at all.
    pub(crate) is_forwarded: bool,
}

/// What sessions of servers with replicas have, apart from the others.
pub(crate) struct Aside<P> {
    /// The position that replicas have to acknowledge before the answers of the last turn are sent.
    held: Option<P>,
    /// Where requests about items are forwarded to, if they are.
    pub(crate) route: Option<Box<dyn Route>>,
}

/// Boxed, because hardly any session has them.
struct Fetches<F> {
    /// Reads that were begun for them.
    reads: Vec<Fetching<F>>,
    /// The tags of the first one, as they were when it began.
    tags: Option<Tags>,
}

impl<F> Default for Fetches<F> {
    fn default() -> Self {
        Self { reads: Vec::new(), tags: None }
    }
}

impl<F> Fetches<F> {
    fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.tags.is_none()
    }
}

/// A read that was begun.
struct Fetching<F> {
    /// The hash of the key for which it was begun.
    hash: u64,
    fetch: F,
    /// What was said of it in this turn.
    delivery: Delivery,
}

/// The state of a session, for `stats conns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Waiting for a request, or for the rest of one.
    Waiting,
    /// Receiving a large value.
    Receiving,
    /// Dropping the value of a refused request.
    Swallowing,
    /// Sending a large value.
    Sending,
    /// Writing a dump of items, or a list of keys.
    Dumping,
    /// Writing the log. The driver has to call the session regularly, with or without input.
    Watching,
    /// Waiting for slower storage, or for the acknowledgement of a change.
    Fetching,
}

/// The largest batch: enough requests to hide the latency of memory, few enough for the CPU cache.
const BATCH_MAX: usize = 32;

/// A request of a batch. It is small, so that the most frequent requests are not copied in memory.
pub(crate) struct Ready<'b> {
    pub(crate) what: What<'b>,
    hash: u64,
    /// Where the next request begins.
    pub(crate) end: usize,
}

pub(crate) enum What<'b> {
    /// A look-up of the fast path.
    Get(FastGet<'b>),
    /// The index of a set of the fast path in [`Batch::sets`].
    Set(usize),
    /// The index of any other request in [`Batch::others`].
    Other(usize),
}

/// Any request, and the state of the parser after it.
pub(crate) struct Other<'b> {
    pub(crate) request: Request<'b>,
    pub(crate) parser: Parser,
}

/// Requests whose keys are prefetched together.
#[derive(Default)]
pub(crate) struct Batch<'b> {
    pub(crate) ready: ArrayVec<Ready<'b>, BATCH_MAX>,
    pub(crate) sets: ArrayVec<FastSet<'b>, BATCH_MAX>,
    pub(crate) others: ArrayVec<Other<'b>, BATCH_MAX>,
}

impl Batch<'_> {
    /// Counts the first `done` requests. Look-ups of the fast path are all that is left, so a batch of
    /// nothing else is not looked through.
    #[inline]
    fn count(&self, done: usize, answered: &mut AnsweredCounts) {
        let mut gets = done;
        if !(self.sets.is_empty() && self.others.is_empty()) {
            gets -= self.count_others(done, answered);
        }
        answered.add(CommandClass::Get, u32::try_from(gets).unwrap_or(u32::MAX));
    }

    /// Counts a request among those that show which keys are hot, if it has a key.
    #[cold]
    #[inline(never)]
    fn count_sampled<E: Engine>(
        &self,
        index: usize,
        operations: &OpContext<'_, E>,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) {
        let Some(ready) = self.ready.get(index) else { return };
        let bytes = match ready.what {
            What::Get(get) => Some(get.key),
            What::Set(index) => self.sets.get(index).map(|set| set.key),
            What::Other(index) => {
                let key = self.others.get(index).and_then(|other| key_of(&other.request));
                key.map(|key| key.decode(scratch))
            }
        };
        if let Some(bytes) = bytes {
            operations.count_sampled(HashedKey { bytes, hash: ready.hash });
        }
    }

    /// Counts those of the first `done` requests that the fast path of look-ups has not answered, and
    /// returns how many they are.
    fn count_others(&self, done: usize, answered: &mut AnsweredCounts) -> usize {
        let mut others = 0;
        for ready in self.ready.iter().take(done) {
            let class = match ready.what {
                What::Get(_) => continue,
                What::Set(_) => Some(CommandClass::Store),
                What::Other(index) => {
                    self.others.get(index).and_then(|other| class_of(&other.request))
                }
            };
            others += 1;
            if let Some(class) = class {
                answered.add(class, 1);
            }
        }
        others
    }
}

/// Why a batch ended where it did.
pub(crate) enum BatchEnd<'b> {
    /// The batch is as long as it may be, or the last request has to be answered before the next is
    /// parsed.
    Full,
    /// The next request is incomplete.
    Incomplete,
    /// The next request is a store whose value has not completely arrived.
    Body { store: Store<'b>, head_len: usize, body_len: u64, parser: Parser },
}

impl<E: Engine> Default for Session<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E: Engine> Session<E> {
    /// A session of any dialect, without a login, and with the number 0 in the log.
    #[must_use]
    pub fn new() -> Self {
        Self::opening(Parser::default(), 0)
    }

    /// A session that begins in the state `opening` of the parser: in any dialect, in one, or with a login.
    /// Its number in the log is `client`.
    #[must_use]
    pub fn opening(opening: Parser, client: u64) -> Self {
        let (parser, pending) = (opening, Pending::Nothing);
        let (observed, fetches, aside) = (Streams::default(), None, None);
        let (failed, resp, ends) = (false, None, false);
        let is_forwarded = false;
        Self { parser, pending, client, observed, failed, resp, fetches, aside, ends, is_forwarded }
    }

    /// A session in RESP whose number in the log is `client`, and in which clients may have to log in.
    #[must_use]
    pub fn resp(client: u64, login_required: bool) -> Self {
        let state = state::State::new(login_required);
        Self { resp: Some(Box::new(state)), ..Self::opening(Parser::default(), client) }
    }

    /// A session for requests of a conversation that another node forwards.
    #[must_use]
    pub fn forwarded(conversation: Conversation) -> Self {
        let mut session = match conversation {
            Conversation::Memcached => Self::new(),
            Conversation::Resp2 | Conversation::Resp3 => Self::resp(0, false),
        };
        if let Some(state) = &mut session.resp {
            state.set_conversation(conversation);
        }
        session.is_forwarded = true;
        session
    }

    /// Whether the session returned [`Next::Close`] because the client violated the protocol.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// The current state.
    pub fn state(&self) -> State {
        match &self.pending {
            _ if self.aside.as_ref().is_some_and(|aside| aside.held.is_some()) => State::Fetching,
            Pending::Nothing if self.fetches.is_some() => State::Fetching,
            Pending::Nothing => State::Waiting,
            Pending::Swallow { .. } | Pending::SwallowLine => State::Swallowing,
            Pending::Arriving(_) | Pending::Passing(_) => State::Receiving,
            Pending::Forwarded(_) => State::Fetching,
            Pending::Sending(_) => State::Sending,
            Pending::Dumping(_) | Pending::Scanning(_) => State::Dumping,
            Pending::Watching(_) => State::Watching,
        }
    }

    /// How many bytes of the cache are leased for a value that is being sent.
    pub fn leased_bytes(&self) -> usize {
        match &self.pending {
            Pending::Sending(sending) => sending.len(),
            _ => 0,
        }
    }

    /// How many bytes of the cache a value that is being received has taken.
    pub fn uploaded_bytes(&self) -> usize {
        match &self.pending {
            Pending::Arriving(arriving) => arriving.received(),
            _ => 0,
        }
    }

    /// Releases the memory that the session has reserved, and cancels what it waits for.
    pub fn close(&mut self, host: &impl Host) {
        (self.fetches, self.aside) = (None, None);
        let pending = std::mem::replace(&mut self.pending, Pending::Nothing);
        match &pending {
            Pending::Watching(watcher) => host.unwatch(*watcher),
            Pending::Dumping(dump) if dump.is_crawl() => host.note_dump(false),
            _ => (),
        }
        host.release(pending.reserved());
        if let Some(resp) = &mut self.resp {
            resp.close(host);
        }
    }

    /// Answers the complete requests of `input` into `output`, for one turn. `input` begins with the bytes
    /// that the last turn did not consume; `output` may still hold bytes that were not sent.
    pub fn receive<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Progress {
        if let Some(aside) = &mut self.aside
            && let Some(position) = aside.held.take()
        {
            let answered = AnsweredCounts::default();
            let (hold, next) = match self.hold(cx, position) {
                Acknowledged::Never => (false, Next::Abandon),
                state if self.ends => (state == Acknowledged::NotYet, Next::Close),
                state => (state == Acknowledged::NotYet, Next::Yield),
            };
            return Progress { consumed: 0, hold, next, answered };
        }
        cx.operations.engine.begin_batch(cx.operations.now);
        self.observed = cx.host.observed();
        if let Some(fetches) = &mut self.fetches {
            fetches.reads.iter_mut().for_each(|fetching| {
                fetching.delivery = cx.operations.engine.deliver(&fetching.fetch);
            });
        }
        let mut scratch = [0; KEY_LEN_MAX];
        let before = output.len();
        let left = cx.settings.requests_per_turn.max(1);
        let mut turn = Turn { left, answered: AnsweredCounts::default() };
        let (consumed, next) = self.take_turn(cx, input, &mut turn, output, &mut scratch);
        let position =
            if output.len() > before { cx.operations.engine.ack_position() } else { None };
        cx.operations.engine.end_batch();
        match next {
            // All requests are answered, so nothing waits for what is still being read.
            Next::Read { .. } => self.fetches = None,
            // A request may need several reads, which end in different turns.
            Next::Wait => (),
            _ => self.keep_fetches(|fetching| fetching.delivery == Delivery::UnderWay),
        }
        self.ends = next == Next::Close;
        let answered = turn.answered;
        match position.map(|position| self.hold(cx, position)) {
            None | Some(Acknowledged::Yes) => Progress { consumed, hold: false, next, answered },
            Some(Acknowledged::NotYet) => Progress { consumed, hold: true, next, answered },
            Some(Acknowledged::Never) => {
                Progress { consumed, hold: false, next: Next::Abandon, answered }
            }
        }
    }

    /// Whether answers may be sent, which are held until `position` is acknowledged.
    #[cold]
    fn hold<H: Host>(&mut self, cx: &mut Context<'_, E, H>, position: E::Position) -> Acknowledged {
        let state = cx.operations.engine.is_acknowledged(&position, &(cx.waker)());
        if state == Acknowledged::NotYet {
            self.aside().held = Some(position);
        }
        state
    }

    #[cold]
    pub(crate) fn aside(&mut self) -> &mut Aside<E::Position> {
        self.aside.get_or_insert_with(|| Box::new(Aside { held: None, route: None }))
    }

    /// Ends the way of requests to another node: the next ones are in another protocol.
    pub(crate) fn leave_route(&mut self) {
        if let Some(aside) = &mut self.aside {
            aside.route = None;
        }
    }

    fn take_turn<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        input: &[u8],
        turn: &mut Turn,
        output: &mut Vec<u8>,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> (usize, Next) {
        let mut consumed = 0;
        loop {
            let rest = input.get(consumed..).unwrap_or_default();
            let step = if !self.pending.is_nothing() {
                self.resume(cx, rest, turn, output)
            } else if output.len() > cx.settings.output_max {
                Step::end(0, Next::Write)
            } else if self.resp.is_some() {
                self.answer_resp(cx, rest, turn, output)
            } else if rest.is_empty() {
                Step::end(0, Next::Read { wanted: 1 })
            } else if turn.left == 0 {
                Step::end(0, Next::Yield)
            } else {
                self.answer_batch(cx, rest, turn, output, scratch)
            };
            consumed += step.consumed;
            if let Some(next) = step.next {
                return (consumed, next);
            }
        }
    }

    /// Answers the next requests, as many as the turn may, and begins to receive the value of a store that
    /// follows them.
    fn answer_batch<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        input: &[u8],
        turn: &mut Turn,
        output: &mut Vec<u8>,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> Step {
        if Self::is_elsewhere(cx) {
            return self.forward_batch(cx, input, turn, output, scratch);
        }
        let mut batch = Batch::default();
        let batch_end = self.gather(cx.operations.engine, input, turn.left, scratch, &mut batch);
        self.answer_gathered(cx, &batch, batch_end, input, turn, output, scratch)
    }

    /// Answers the requests of a batch, and begins with what follows them.
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "it is a part of another function")]
    pub(crate) fn answer_gathered<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        batch: &Batch<'_>,
        batch_end: BatchEnd<'_>,
        input: &[u8],
        turn: &mut Turn,
        output: &mut Vec<u8>,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> Step {
        let (done, end, flow) = self.answer(cx, batch, output, scratch);
        turn.left -= done;
        batch.count(done, &mut turn.answered);
        if let Some(index) = cx.operations.counters.hot_keys.pick(done) {
            batch.count_sampled(index, &cx.operations, scratch);
        }
        match flow {
            Flow::Continue => (),
            Flow::Wait => {
                let waiting = batch.ready.iter().skip(done).map(|ready| ready.hash);
                return Step::end(end, self.fetch(cx, waiting));
            }
            Flow::Close => return Step::end(end, Next::Close),
        }
        if done < batch.ready.len() || !self.pending.is_nothing() {
            return Step::go_on(end);
        }
        let rest = input.get(end..).unwrap_or_default();
        let after = self.after_batch(cx, batch_end, rest, turn, scratch);
        Step { consumed: end + after.consumed, next: after.next }
    }

    /// Begins with what follows the requests of a batch, at the beginning of the input.
    #[inline]
    pub(crate) fn after_batch<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        batch_end: BatchEnd<'_>,
        input: &[u8],
        turn: &mut Turn,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> Step {
        match batch_end {
            BatchEnd::Full => Step::go_on(0),
            BatchEnd::Incomplete => Step::end(0, Next::Read { wanted: 1 }),
            BatchEnd::Body { store, head_len, body_len, parser } => {
                self.parser = parser;
                let body = Body { store, head_len, body_len };
                self.begin_body(cx, &body, input, turn, scratch)
            }
        }
    }

    /// Begins to read the items with these hashes from slower storage. The first of the requests cannot be
    /// answered before its item was read.
    #[cold]
    pub(crate) fn fetch<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        hashes: impl Iterator<Item = u64>,
    ) -> Next {
        let (engine, mut next) = (&mut *cx.operations.engine, Next::Yield);
        let hashes: ArrayVec<u64, BATCH_MAX> = hashes.collect();
        let mut fetches = self.fetches.take().unwrap_or_default();
        fetches.reads.retain(|fetching| {
            fetching.delivery != Delivery::Gone && hashes.contains(&fetching.hash)
        });
        let (waker, mut begun) = ((cx.waker)(), Vec::new());
        for (i, hash) in hashes.into_iter().enumerate() {
            let is_waited_for = |fetching: &Fetching<E::Fetch>| {
                fetching.hash == hash && fetching.delivery == Delivery::UnderWay
            };
            let wanted = Wanted { hash, is_ahead: i > 0 };
            let answer = match fetches.reads.iter().any(is_waited_for) {
                true => Begun::Begun,
                false => engine.fetch(wanted, &waker, &mut begun),
            };
            let begun = begun.drain(..);
            fetches.reads.extend(begun.map(|fetch| {
                let delivery = Delivery::UnderWay;
                Fetching { hash, fetch, delivery }
            }));
            if i == 0 && answer != Begun::Nothing {
                next = Next::Wait;
            }
            // The engine has no room for more, so those behind are not asked for either.
            if answer == Begun::Later {
                break;
            }
        }
        engine.submit();
        self.fetches = (!fetches.is_empty()).then_some(fetches);
        next
    }

    fn keep_fetches(&mut self, is_kept: impl Fn(&Fetching<E::Fetch>) -> bool) {
        if let Some(fetches) = &mut self.fetches {
            fetches.reads.retain(is_kept);
            if fetches.is_empty() {
                self.fetches = None;
            }
        }
    }

    /// Parses the next requests, and prefetches the memory that they will look up.
    #[inline(never)]
    pub(crate) fn gather<'b>(
        &mut self,
        engine: &mut E,
        input: &'b [u8],
        max: usize,
        scratch: &mut [u8; KEY_LEN_MAX],
        batch: &mut Batch<'b>,
    ) -> BatchEnd<'b> {
        let mut parser = self.parser;
        let mut at = 0;
        let batch_end = loop {
            if batch.ready.len() == max.min(BATCH_MAX) {
                break BatchEnd::Full;
            }
            let rest = input.get(at..).unwrap_or_default();
            if rest.is_empty() {
                break BatchEnd::Incomplete;
            }
            if let Some((get, len)) = parser.fast_get(rest) {
                at += len;
                let hash = engine.hash(get.key);
                engine.announce(hash);
                batch.ready.push(Ready { what: What::Get(get), hash, end: at });
                continue;
            }
            if let Some((set, len)) = parser.fast_set(rest) {
                at += len;
                let hash = engine.hash(set.key);
                engine.announce(hash);
                let what = What::Set(batch.sets.len());
                batch.sets.push(set);
                batch.ready.push(Ready { what, hash, end: at });
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
                        break BatchEnd::Full;
                    }
                }
                Parsed::Body { store, head_len, body_len } => {
                    break BatchEnd::Body { store, head_len, body_len, parser };
                }
                Parsed::Incomplete => break BatchEnd::Incomplete,
            }
        };
        engine.prefetch_announced();
        batch_end
    }

    /// Answers a batch in order, until the output is full or a request has to wait. Returns how many
    /// requests it answered, and where the next one begins.
    #[inline(never)]
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
                return (done, end, Flow::Continue);
            }
            let flow = match &ready.what {
                // The fast path does not change the parser.
                What::Set(index) => {
                    let Some(set) = batch.sets.get(*index) else { continue };
                    self.answer_set(cx, set, ready.hash, output)
                }
                What::Get(get) => self.answer_get(cx, get, ready.hash, output),
                What::Other(index) => {
                    let Some(other) = batch.others.get(*index) else { continue };
                    self.answer_other(cx, other, ready.hash, output, scratch)
                }
            };
            match flow {
                Flow::Continue => end = ready.end,
                Flow::Wait => return (done, end, Flow::Wait),
                Flow::Close => return (done + 1, ready.end, Flow::Close),
            }
        }
        (batch.ready.len(), end, Flow::Continue)
    }

    fn answer_other<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        other: &Other<'_>,
        hash: u64,
        output: &mut Vec<u8>,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> Flow {
        let request = &other.request;
        let bytes = key_of(request).map_or(&[][..], |key| key.decode(scratch));
        let before = std::mem::replace(&mut self.parser, other.parser);
        let flow = self.execute(cx, request, HashedKey { bytes, hash }, output);
        if let Flow::Wait = flow {
            self.parser = before;
        }
        flow
    }

    /// Answers a look-up of one key that only shows.
    #[inline]
    fn answer_get<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        get: &FastGet<'_>,
        hash: u64,
        output: &mut Vec<u8>,
    ) -> Flow {
        let key = HashedKey { bytes: get.key, hash };
        if self.observed != Streams::default() {
            return self.execute(cx, &Request::Get(get.get()), key, output);
        }
        match get::fast_get(cx, get, key, output) {
            Some(Answered::Written) => Flow::Continue,
            Some(answered) => self.continue_get(answered),
            None => {
                // What shows content alone is recorded before it is known what the item is like.
                let (pending, is_recorded) = (&mut self.pending, !get.is_meta());
                let answered = get::get(cx, &get.get(), key, (is_recorded, &[]), pending, output);
                self.continue_get(answered)
            }
        }
    }

    /// Answers a set. A function apart, which saves look-ups a hundredth of their instructions.
    #[inline(never)]
    fn answer_set<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        set: &FastSet<'_>,
        hash: u64,
        output: &mut Vec<u8>,
    ) -> Flow {
        let key = HashedKey { bytes: set.key, hash };
        if self.observed != Streams::default() || cx.settings.read_only {
            return self.execute(cx, &Request::Store(set.store()), key, output);
        }
        if store::fast_set(cx, set, key, output) { Flow::Continue } else { Flow::Wait }
    }

    fn execute<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        request: &Request<'_>,
        key: HashedKey<'_>,
        output: &mut Vec<u8>,
    ) -> Flow {
        if cx.settings.read_only
            && let Some(format) = read_only::change(request)
        {
            reply::read_only(format, output);
            return self.continue_get(Answered::Refused);
        }
        if self.observed == Streams::default() || key.bytes.is_empty() {
            self.perform(cx, request, key, output)
        } else {
            self.observed(cx, request, |session, cx| session.perform(cx, request, key, output))
        }
    }

    /// Executes a request with an observer.
    #[cold]
    pub(crate) fn observed<H: Host, R>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        request: &Request<'_>,
        work: impl FnOnce(&mut Self, &mut Context<'_, E, H>) -> R,
    ) -> R {
        let observer = RequestObserver::new(cx.host, self.client, self.observed, request);
        let OpContext { counters, limits, now, .. } = cx.operations;
        let engine = &mut *cx.operations.engine;
        let operations = OpContext { engine, counters, limits, now, observer: Some(&observer) };
        let Context { host, settings, waker, .. } = *cx;
        work(self, &mut Context { operations, host, settings, waker })
    }

    /// Continues after a look-up.
    #[inline]
    fn continue_get(&mut self, answered: Answered) -> Flow {
        match answered {
            Answered::Written => (),
            // The client takes the error for the end of the answer: no later key of the line is answered.
            Answered::Refused if self.parser.abandon_line() => self.pending = Pending::SwallowLine,
            Answered::Refused => (),
            Answered::Pending => return Flow::Wait,
        }
        Flow::Continue
    }

    #[inline]
    fn perform<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        request: &Request<'_>,
        key: HashedKey<'_>,
        output: &mut Vec<u8>,
    ) -> Flow {
        if !tags::has_tags(request) {
            return self.perform_tagged(cx, request, key, &[], output);
        }
        let Ok(tags) = self.tags_of(cx, request, key, output) else { return Flow::Continue };
        let flow = self.perform_tagged(cx, request, key, &tags, output);
        if let Flow::Wait = flow {
            self.keep_tags(tags);
        }
        flow
    }

    /// Keeps the tags of a request that waits.
    #[cold]
    pub(crate) fn keep_tags(&mut self, tags: Tags) {
        if !tags.is_empty() {
            self.fetches.get_or_insert_default().tags = Some(tags);
        }
    }

    /// The tags of the request that is executed, if it had to wait before.
    pub(crate) fn take_kept_tags(&mut self) -> Option<Tags> {
        self.fetches.as_mut().and_then(|fetches| fetches.tags.take())
    }

    /// The tags that a request names for the item that it stores: if it was executed before and had to wait, those
    /// that they were then, because they may have been dropped meanwhile.
    ///
    /// # Errors
    /// The [`Refusal`] of the engine, which was answered.
    #[cold]
    fn tags_of<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        request: &Request<'_>,
        key: HashedKey<'_>,
        output: &mut Vec<u8>,
    ) -> Result<Tags, Refusal> {
        match self.take_kept_tags() {
            Some(tags) => Ok(tags),
            None => tags::of_request(cx, request).inspect_err(|refusal| {
                if let Request::Store(store) = request {
                    store::remove_refused(cx, store, key, *refusal);
                }
                reply::tags_refused(*refusal == Refusal::OutOfMemory, output);
            }),
        }
    }

    #[inline]
    fn perform_tagged<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        request: &Request<'_>,
        key: HashedKey<'_>,
        tags: &[Tag],
        output: &mut Vec<u8>,
    ) -> Flow {
        let is_done = match request {
            Request::Get(get) => {
                let answered = get::get(cx, get, key, (false, tags), &mut self.pending, output);
                return self.continue_get(answered);
            }
            Request::Store(store) => store::store(cx, store, key, (&mut None, tags), output),
            Request::Delete(delete) => store::delete(cx, delete, key, output),
            Request::Arithmetic(count) => store::count(cx, count, key, tags, output),
            Request::Debug(debug) => get::describe(cx, debug, key, output),
            _ => return self.control(cx, request, output),
        };
        if is_done { Flow::Continue } else { Flow::Wait }
    }

    /// Answers a request that is not about an item.
    fn control<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        request: &Request<'_>,
        output: &mut Vec<u8>,
    ) -> Flow {
        match request {
            Request::Get(_) | Request::Store(_) | Request::Delete(_) => (),
            Request::Arithmetic(_) | Request::Debug(_) => (),
            Request::GetEnd => reply::get_end(output),
            Request::Noop(format) => reply::noop(format, output),
            Request::DropTag(drop) => tags::drop_tag(cx, drop, output),
            Request::FlushAll { delay, format } => admin::flush(cx, *delay, format, output),
            Request::Version(format) => reply::version(format, cx.host.version(), output),
            Request::Verbosity { level, format } => {
                cx.host.set_verbosity(*level);
                reply::ok(format, output);
            }
            Request::Stats { topic, format } => {
                self.stats(cx, topic, format, output);
                // `stats detail` may have changed what is observed, from the next request on.
                self.observed = cx.host.observed();
            }
            Request::Admin { command, format } => {
                return self.administer(cx, command, format, output);
            }
            Request::Login(claimed) => self.log_in(cx, claimed, output),
            Request::Quit(format) => {
                reply::quit(format, output);
                return Flow::Close;
            }
            Request::Fault(fault) => return self.fault(fault, output),
        }
        Flow::Continue
    }

    fn fault(&mut self, fault: &Fault, output: &mut Vec<u8>) -> Flow {
        match fault.then {
            Recovery::Swallow(left) => {
                let mut then = Vec::new();
                reply::fault(fault, &mut then);
                self.pending = Pending::Swallow { left, then };
                return Flow::Continue;
            }
            Recovery::SwallowLine => self.pending = Pending::SwallowLine,
            Recovery::Continue => (),
            Recovery::Close => {
                self.failed = true;
                reply::fault(fault, output);
                return Flow::Close;
            }
        }
        reply::fault(fault, output);
        Flow::Continue
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

/// The class that a request is timed with; `None` for the end of a line of keys, each of which is a
/// request.
pub(crate) fn class_of(request: &Request<'_>) -> Option<CommandClass> {
    Some(match request {
        Request::GetEnd => return None,
        Request::Get(get) if get.touch.is_some() => CommandClass::Touch,
        Request::Get(_) => CommandClass::Get,
        Request::Store(_) => CommandClass::Store,
        Request::Delete(_) => CommandClass::Delete,
        Request::Arithmetic(_) => CommandClass::Count,
        Request::Debug(_) | Request::Noop(_) | Request::FlushAll { .. } => CommandClass::Other,
        Request::DropTag(_) => CommandClass::Other,
        Request::Version(_) | Request::Verbosity { .. } | Request::Stats { .. } => {
            CommandClass::Other
        }
        Request::Admin { .. } | Request::Login(_) | Request::Quit(_) | Request::Fault(_) => {
            CommandClass::Other
        }
    })
}

/// Whether a request has to be answered before the next one is parsed.
fn ends_batch(request: &Request<'_>) -> bool {
    match request {
        Request::Fault(fault) => fault.then != Recovery::Continue,
        Request::Quit(_) | Request::Login(_) => true,
        _ => false,
    }
}

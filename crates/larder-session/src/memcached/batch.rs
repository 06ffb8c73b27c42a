//! Batches of requests. The session parses the requests of a batch, prefetches the items of their
//! keys, and answers the requests in order.

use crate::Host;
use crate::context::{Context, Flow, Next, PollState, Step};
use crate::session::pending::Body;
use crate::session::{PendingRead, Session};
use arrayvec::ArrayVec;
use larder_operations::{AnsweredCounts, CommandClass, OpContext};
use larder_protocol::{
    FastGet, FastSet, KEY_LEN_MAX, Key, Parsed, Parser, Recovery, Request, Store,
};
use larder_store::{Delivery, Engine, HashedKey, ReadRequest, ReadStart};

/// The maximum number of requests in a batch: enough to hide memory latency by prefetching, but few
/// enough that the prefetched data stays in the CPU cache.
const BATCH_MAX: usize = 32;

/// A request of a batch. The struct is small, so that the most frequent requests need no copies in
/// memory.
pub(crate) struct BatchRequest<'b> {
    pub(crate) kind: RequestKind<'b>,
    hash: u64,
    /// The offset in the input at which this request ends.
    pub(crate) end: usize,
}

pub(crate) enum RequestKind<'b> {
    /// A fast-path lookup.
    Get(FastGet<'b>),
    /// A fast-path set: its index in [`Batch::sets`].
    Set(usize),
    /// Any other request: its index in [`Batch::others`].
    Other(usize),
}

/// A request without a fast path, and the state of the parser after this request.
pub(crate) struct Other<'b> {
    pub(crate) request: Request<'b>,
    pub(crate) parser: Parser,
}

/// Requests whose items the session prefetches together.
#[derive(Default)]
pub(crate) struct Batch<'b> {
    pub(crate) requests: ArrayVec<BatchRequest<'b>, BATCH_MAX>,
    pub(crate) sets: ArrayVec<FastSet<'b>, BATCH_MAX>,
    pub(crate) others: ArrayVec<Other<'b>, BATCH_MAX>,
}

impl Batch<'_> {
    /// The maximum number of requests in a batch.
    pub(crate) const LEN_MAX: usize = BATCH_MAX;

    /// Adds the first `done` requests to `answered`. Needs no loop if all requests of the batch are
    /// fast-path lookups.
    #[inline]
    fn count(&self, done: usize, answered: &mut AnsweredCounts) {
        let mut gets = done;
        if !(self.sets.is_empty() && self.others.is_empty()) {
            gets -= self.count_others(done, answered);
        }
        answered.add(CommandClass::Get, u32::try_from(gets).unwrap_or(u32::MAX));
    }

    /// Adds the key of a request to the sample of hot keys, if the request has a key.
    #[cold]
    #[inline(never)]
    fn count_sampled<E: Engine>(
        &self,
        index: usize,
        operations: &OpContext<'_, E>,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) {
        let Some(ready) = self.requests.get(index) else { return };
        let bytes = match ready.kind {
            RequestKind::Get(get) => Some(get.key),
            RequestKind::Set(index) => self.sets.get(index).map(|set| set.key),
            RequestKind::Other(index) => {
                let key = self.others.get(index).and_then(|other| key_of(&other.request));
                key.map(|key| key.decode(scratch))
            }
        };
        if let Some(bytes) = bytes {
            operations.count_sampled(HashedKey { bytes, hash: ready.hash });
        }
    }

    /// Adds the first `done` requests, except fast-path lookups, to `answered`. Returns the number
    /// of added requests.
    fn count_others(&self, done: usize, answered: &mut AnsweredCounts) -> usize {
        let mut others = 0;
        for ready in self.requests.iter().take(done) {
            if let RequestKind::Get(_) = ready.kind {
                continue;
            }
            others += 1;
            if let Some(class) = self.class(ready) {
                answered.add(class, 1);
            }
        }
        others
    }

    /// Returns the class of a request in latency statistics: see [`class_of`].
    pub(crate) fn class(&self, ready: &BatchRequest<'_>) -> Option<CommandClass> {
        match ready.kind {
            RequestKind::Get(_) => Some(CommandClass::Get),
            RequestKind::Set(_) => Some(CommandClass::Store),
            RequestKind::Other(index) => {
                self.others.get(index).and_then(|other| class_of(&other.request))
            }
        }
    }
}

/// The reason for the end of a batch.
pub(crate) enum BatchEnd<'b> {
    /// The batch has reached its maximum length, or the session must answer the last request before
    /// it parses the next one.
    Full,
    /// The next request is incomplete.
    Incomplete,
    /// The next request is a store with an incomplete value.
    StoreHead { store: Store<'b>, head_len: usize, body_len: u64, parser: Parser },
}

impl<E: Engine> Session<E> {
    /// Answers the next batch of requests. If a store with an incomplete value follows, starts to
    /// receive the value.
    pub(crate) fn answer_batch<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        input: &[u8],
        poll: &mut PollState,
        output: &mut Vec<u8>,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> Step {
        if cx.settings.forwards {
            return self.answer_batch_in_cluster(cx, input, poll, output, scratch);
        }
        let mut batch = Batch::default();
        let batch_end = self.gather(cx.operations.engine, input, poll.left, scratch, &mut batch);
        self.answer_gathered(cx, &batch, batch_end, input, poll, output, scratch)
    }

    /// Answers the requests of a gathered batch, and handles the end of the batch.
    #[inline]
    #[expect(
        clippy::too_many_arguments,
        reason = "inlined into its callers, whose arguments these are"
    )]
    pub(crate) fn answer_gathered<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        batch: &Batch<'_>,
        batch_end: BatchEnd<'_>,
        input: &[u8],
        poll: &mut PollState,
        output: &mut Vec<u8>,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> Step {
        let (done, end, flow) = self.answer(cx, batch, output, scratch);
        poll.left -= done;
        batch.count(done, &mut poll.answered);
        if let Some(index) = cx.operations.counters.hot_keys.pick(done) {
            batch.count_sampled(index, &cx.operations, scratch);
        }
        match flow {
            Flow::Continue => (),
            Flow::Wait => {
                let waiting = batch.requests.iter().skip(done).map(|ready| ready.hash);
                return Step::finish(end, self.start_reads(cx, waiting));
            }
            Flow::Close => return Step::finish(end, Next::Close),
        }
        if done < batch.requests.len() || !self.pending.is_idle() {
            return Step::advance(end);
        }
        let rest = input.get(end..).unwrap_or_default();
        let after = self.after_batch(cx, batch_end, rest, poll, scratch);
        Step { consumed: end + after.consumed, next: after.next }
    }

    /// Handles the end of a batch. `input` starts after the batch's requests.
    #[inline]
    pub(crate) fn after_batch<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        batch_end: BatchEnd<'_>,
        input: &[u8],
        poll: &mut PollState,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> Step {
        match batch_end {
            BatchEnd::Full => Step::advance(0),
            BatchEnd::Incomplete => Step::finish(0, Next::Read { wanted: 1 }),
            BatchEnd::StoreHead { store, head_len, body_len, parser } => {
                self.parser = parser;
                let body = Body { store, head_len, body_len };
                self.start_body(cx, &body, input, poll, scratch)
            }
        }
    }

    /// Starts to read the items with these hashes from slower storage. The first hash belongs to
    /// the waiting request. The engine reads the items of the other hashes ahead. Returns
    /// [`Next::Yield`] if the first item no longer needs a read.
    #[cold]
    pub(crate) fn start_reads<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        hashes: impl Iterator<Item = u64>,
    ) -> Next {
        let (engine, mut next) = (&mut *cx.operations.engine, Next::Yield);
        let hashes: ArrayVec<u64, BATCH_MAX> = hashes.collect();
        let mut wait = std::mem::take(&mut self.rare().storage_wait);
        wait.reads.retain(|read| read.delivery != Delivery::Gone && hashes.contains(&read.hash));
        let (waker, mut started) = ((cx.waker)(), Vec::new());
        for (i, hash) in hashes.into_iter().enumerate() {
            let is_waited_for = |read: &PendingRead<E::PendingRead>| {
                read.hash == hash && read.delivery == Delivery::InProgress
            };
            let request = ReadRequest { hash, is_read_ahead: i > 0 };
            let answer = match wait.reads.iter().any(is_waited_for) {
                true => ReadStart::Started,
                false => engine.start_read(request, &waker, &mut started),
            };
            let started = started.drain(..);
            wait.reads.extend(started.map(|engine_read| {
                let delivery = Delivery::InProgress;
                PendingRead { hash, engine_read, delivery }
            }));
            if i == 0 && answer != ReadStart::NotNeeded {
                next = Next::Wait;
            }
            // The engine has no room for more reads, and would also refuse the reads for later
            // requests.
            if answer == ReadStart::Busy {
                break;
            }
        }
        engine.submit();
        self.rare().storage_wait = wait;
        next
    }

    /// Parses the next requests into `batch`, and prefetches the index buckets and items of their
    /// keys.
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
            if batch.requests.len() == max.min(BATCH_MAX) {
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
                batch.requests.push(BatchRequest { kind: RequestKind::Get(get), hash, end: at });
                continue;
            }
            if let Some((set, len)) = parser.fast_set(rest) {
                at += len;
                let hash = engine.hash(set.key);
                engine.announce(hash);
                let kind = RequestKind::Set(batch.sets.len());
                batch.sets.push(set);
                batch.requests.push(BatchRequest { kind, hash, end: at });
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
                    let kind = RequestKind::Other(batch.others.len());
                    batch.others.push(Other { request, parser });
                    batch.requests.push(BatchRequest { kind, hash, end: at });
                    if ends {
                        break BatchEnd::Full;
                    }
                }
                Parsed::StoreHead { store, head_len, body_len } => {
                    break BatchEnd::StoreHead { store, head_len, body_len, parser };
                }
                Parsed::Incomplete => break BatchEnd::Incomplete,
            }
        };
        engine.prefetch_announced();
        batch_end
    }

    /// Answers a batch in order until the output is full or a request has to wait. Returns the
    /// number of answered requests, and the offset in the input at which the last of them ends.
    #[inline(never)]
    fn answer<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        batch: &Batch<'_>,
        output: &mut Vec<u8>,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> (usize, usize, Flow) {
        let mut end = 0;
        for (done, ready) in batch.requests.iter().enumerate() {
            if !self.pending.is_idle() || output.len() > cx.settings.output_max {
                return (done, end, Flow::Continue);
            }
            let flow = self.answer_one(cx, batch, ready, output, scratch);
            match flow {
                Flow::Continue => end = ready.end,
                Flow::Wait => return (done, end, Flow::Wait),
                Flow::Close => return (done + 1, ready.end, Flow::Close),
            }
        }
        (batch.requests.len(), end, Flow::Continue)
    }

    /// Answers a request of a batch.
    #[inline(always)]
    pub(crate) fn answer_one<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        batch: &Batch<'_>,
        ready: &BatchRequest<'_>,
        output: &mut Vec<u8>,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> Flow {
        match &ready.kind {
            // The fast path does not change the parser.
            RequestKind::Set(index) => match batch.sets.get(*index) {
                Some(set) => self.answer_set(cx, set, ready.hash, output),
                None => Flow::Continue,
            },
            RequestKind::Get(get) => self.answer_get(cx, get, ready.hash, output),
            RequestKind::Other(index) => match batch.others.get(*index) {
                Some(other) => self.answer_other(cx, other, ready.hash, output, scratch),
                None => Flow::Continue,
            },
        }
    }
}

/// Returns the key of a request about one item, or `None` for other requests, such as `mt`.
#[inline]
pub(crate) fn key_of<'r, 'b>(request: &'r Request<'b>) -> Option<&'r Key<'b>> {
    match request {
        Request::Get(get) => Some(&get.key),
        Request::Store(store) => Some(&store.key),
        Request::Delete(delete) => Some(&delete.key),
        Request::Arithmetic(arithmetic) => Some(&arithmetic.key),
        Request::Debug(debug) => Some(&debug.key),
        _ => None,
    }
}

/// Returns the class of a request in latency statistics. Returns `None` for the end of a line of
/// keys, because each key on the line already counts as a request.
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

/// Returns whether the session must answer a request before it parses the next one.
fn ends_batch(request: &Request<'_>) -> bool {
    match request {
        Request::Fault(fault) => fault.then != Recovery::Continue,
        Request::Quit(_) | Request::Login(_) => true,
        _ => false,
    }
}

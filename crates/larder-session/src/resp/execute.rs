//! Answers RESP requests in batches.

use super::batch::{BATCH_MAX, BatchEnd, BatchRequest, Outcome, RequestKind, bounds, gather};
use super::scatter::ScatterDecision;
use super::{copy_item, multi_key, script, tracking};
use crate::Host;
use crate::context::{Context, Next, PollState, Step};
use crate::session::Session;
use crate::session::pending::{ForwardedRequests, Pending};
use crate::session::resp_state::{FETCHES_MAX, State};
use arrayvec::ArrayVec;
use larder_operations::{DeferredWakes, with_author};
use larder_protocol::Parser;
use larder_protocol::reply::resp as reply;
use larder_protocol::resp::{
    Command, CommandError, DiscardProgress, OversizedRest, ProtocolError, Read, Request, Verb,
    read, split_line,
};
use larder_store::{Engine, HashedKey};

/// The maximum length of the requests queued for `EXEC`, in bytes.
const TRANSACTION_LEN_MAX: usize = 1 << 20;

impl<E: Engine> Session<E> {
    /// Answers the next batch of requests, from the queue or from the input.
    pub(crate) fn answer_resp<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        input: &[u8],
        poll: &mut PollState,
        output: &mut Vec<u8>,
    ) -> Step {
        let Some(mut state) = self.resp.take() else { return Step::finish(0, Next::Close) };
        let _deferred = DeferredWakes::begin();
        if state.tracking.is_some() && state.is_between_replies() {
            tracking::write_messages(cx, &mut state, output);
        }
        let is_idle = input.is_empty() && !state.has_queued();
        let step = if poll.left == 0 && !is_idle {
            Step::finish(0, Next::Yield)
        } else if state.has_queued() {
            self.answer_queued(cx, &mut state, poll, output)
        } else if input.is_empty() {
            Step::finish(0, Next::Read { wanted: 1 })
        } else {
            self.answer_requests(cx, &mut state, input, poll, output, Origin::Client)
        };
        self.resp = Some(state);
        step
    }

    /// Writes the arrived messages before the session waits for input. Returns false if the output
    /// has no room for all of them.
    pub(crate) fn write_last_messages<H: Host>(
        &mut self,
        cx: &Context<'_, E, H>,
        output: &mut Vec<u8>,
    ) -> bool {
        let is_between = matches!(self.pending, Pending::Idle | Pending::DiscardRequest(_));
        match &mut self.resp {
            Some(state) if is_between && state.is_between_replies() => {
                tracking::write_messages(cx, state, output)
            }
            _ => true,
        }
    }

    fn answer_queued<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        poll: &mut PollState,
        output: &mut Vec<u8>,
    ) -> Step {
        let mut queue = std::mem::take(&mut state.queue);
        let step = if let Some(guard) = queue.guard.take() {
            self.answer_guarded(cx, state, (&mut queue, guard), poll, output)
        } else {
            let requests = queue.requests.get(queue.at..).unwrap_or_default();
            let origin = if queue.is_transaction { Origin::Transaction } else { Origin::Line };
            self.answer_requests(cx, state, requests, poll, output, origin)
        };
        match &mut self.pending {
            Pending::Forward(forwarded) => forwarded.is_queued = true,
            Pending::ScatterGather(scattered) => scattered.is_queued = true,
            _ => (),
        }
        queue.at += step.consumed;
        if queue.is_transaction && queue.at >= queue.requests.len() {
            state.end_tracked_request();
        }
        // If the inline request was `EXEC`, it has replaced the queue.
        if queue.at < queue.requests.len() && !state.has_queued() {
            state.queue = queue;
        }
        state.release(cx.host);
        Step { consumed: 0, next: step.next.filter(|next| !matches!(next, Next::Read { .. })) }
    }

    pub(super) fn answer_requests<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        input: &[u8],
        poll: &mut PollState,
        output: &mut Vec<u8>,
        origin: Origin,
    ) -> Step {
        let mut batch = ArrayVec::new();
        // Before the login, requests have a lower size limit. A batch has only one request then,
        // because this request may be the login.
        let max = if state.needs_login() { 1 } else { poll.left.min(BATCH_MAX) };
        let bounds = bounds(cx, state);
        let mut batch_end = gather(cx.operations.engine, input, &bounds, max, &mut batch);
        if cx.settings.forwards && cx.host.shard_map().is_some() {
            tracking::track_batch(cx, state, &batch);
            let is_queued = origin != Origin::Client;
            let client = self.client;
            let scatter = || self.scatter_resp(cx, state, input, &batch, poll, is_queued);
            match with_author(client, scatter) {
                ScatterDecision::Finish(step) => {
                    if !self.pending.is_idle() {
                        state.end_tracked_request();
                    }
                    return step;
                }
                ScatterDecision::Local(count) if count < batch.len() => {
                    batch.truncate(count);
                    batch_end = BatchEnd::Full;
                }
                ScatterDecision::Local(_) => (),
            }
        } else if Self::is_remote(cx) {
            if self.is_forwarded {
                return Step::finish(0, Next::NotOwner);
            }
            // The requests of a transaction must see the transaction's changes, so a replica does
            // not answer these requests itself.
            let reads_locally = origin != Origin::Transaction && Self::reads_locally(cx);
            let reads = if reads_locally { count_reads(state, &batch) } else { 0 };
            if reads == 0 && state.key_progress.keys > 0 {
                // Some keys of the request are already answered, so the leader receives each
                // remaining key as a separate request.
                let is_queued = origin != Origin::Client;
                return match batch.first() {
                    Some(ready) => self.split_command(cx, state, ready, poll, is_queued),
                    None => Step::finish(0, Next::Close),
                };
            }
            let forwarded = forwarded(state, &batch);
            if reads > 0 {
                if batch.len() > reads {
                    batch.truncate(reads);
                    batch_end = BatchEnd::Full;
                }
            } else if forwarded.has_requests() {
                tracking::track_batch(cx, state, &batch);
                state.end_tracked_request();
                poll.left = poll.left.saturating_sub(batch.len());
                return self.forward(cx, state.conversation(), input, forwarded);
            }
            if reads == 0 && batch.len() > 1 {
                batch.truncate(1);
                batch_end = BatchEnd::Full;
            }
        }
        let mut end = 0;
        for (done, ready) in batch.iter().enumerate() {
            if !self.pending.is_idle() || output.len() > cx.settings.output_max {
                return Step::advance(end);
            }
            poll.left = poll.left.saturating_sub(1);
            let answered = if state.tracking.is_some() {
                self.answer_tracked(cx, state, ready, output, origin)
            } else {
                self.answer_ready(cx, state, ready, output)
            };
            match answered {
                Outcome::Done => {
                    end = ready.end;
                    poll.answered.add(ready.kind.class(), 1);
                }
                Outcome::Paused => return Step::advance(end),
                Outcome::Wait => {
                    let behind = batch.iter().skip(done + 1).map(|ready| ready.hash);
                    let behind = behind.filter(|hash| *hash != 0);
                    let hashes = state.waiting.iter().copied().chain(behind).take(FETCHES_MAX);
                    return Step::finish(end, self.start_reads(cx, hashes));
                }
                Outcome::Close => return Step::finish(ready.end, Next::Close),
            }
            if state.has_queued() {
                return Step::advance(end);
            }
        }
        if !self.pending.is_idle() {
            return Step::advance(end);
        }
        match batch_end {
            BatchEnd::Full => Step::advance(end),
            BatchEnd::Nothing { consumed } => Step::advance(end + consumed),
            BatchEnd::Incomplete { wanted } => Step::finish(end, Next::Read { wanted }),
            BatchEnd::Line { line, consumed } => {
                let mut requests = Vec::new();
                match split_line(line, &mut requests) {
                    Ok(()) if state.reserve(cx.host, requests.len()) => {
                        state.queue.requests = requests;
                        Step::advance(end + consumed)
                    }
                    Ok(()) => {
                        reply::error(&CommandError::OutOfMemory, output);
                        Step::advance(end + consumed)
                    }
                    Err(fault) => self.fail(fault, end + consumed, output),
                }
            }
            BatchEnd::Oversized { rest, consumed } => {
                poll.left = poll.left.saturating_sub(1);
                self.pending = Pending::DiscardRequest(rest);
                Step::advance(end + consumed)
            }
            BatchEnd::Fault(fault) => self.fail(fault, input.len(), output),
        }
    }

    /// Discards the next bytes of a request whose argument is too long. At the end of the request,
    /// writes an error.
    pub(crate) fn resume_discard_request<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        mut rest: OversizedRest,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Step {
        match rest.discard(input) {
            DiscardProgress::All { consumed } => {
                if let Some(state) = &mut self.resp {
                    state.end_tracked_request();
                }
                let transaction = self.resp.as_mut().and_then(|state| state.transaction.as_mut());
                if let Some(transaction) = transaction {
                    transaction.has_failed = true;
                }
                cx.operations.counters.thread.store_too_large.add(1);
                reply::error(&CommandError::TooLarge, output);
                Step::advance(consumed)
            }
            DiscardProgress::Part { consumed, wanted } => {
                self.pending = Pending::DiscardRequest(rest);
                Step::finish(consumed, Next::Read { wanted })
            }
            DiscardProgress::Fault(fault) => self.fail(fault, input.len(), output),
        }
    }

    fn fail(&mut self, fault: ProtocolError, consumed: usize, output: &mut Vec<u8>) -> Step {
        self.failed = true;
        reply::protocol_error(fault, output);
        Step::finish(consumed, Next::Close)
    }

    /// Answers a request of a connection that tracks items or receives messages. Does not use the
    /// fast paths. Each fast path thus has only one caller, into which the compiler inlines the
    /// fast path.
    #[cold]
    #[inline(never)]
    fn answer_tracked<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        ready: &BatchRequest<'_>,
        output: &mut Vec<u8>,
        origin: Origin,
    ) -> Outcome {
        if state.transaction.is_none() && !state.is_muted() {
            tracking::track(cx, state, ready);
        }
        // `CLIENT CACHING` affects the next request that is not a `CLIENT` command.
        let is_client = ready.kind.is_named(b"client");
        let answered = with_author(self.client, || self.answer_slowly(cx, state, ready, output));
        if answered == Outcome::Done && origin != Origin::Transaction {
            if !is_client {
                state.end_tracked_request();
            }
            // Write messages about the connection's own changes before the next reply. After the
            // next reply, these messages would invalidate the client's copy of an item in that
            // reply.
            if self.pending.is_idle() && state.is_between_replies() {
                tracking::write_messages(cx, state, output);
            }
        }
        answered
    }

    fn answer_ready<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        ready: &BatchRequest<'_>,
        output: &mut Vec<u8>,
    ) -> Outcome {
        match &ready.kind {
            RequestKind::Get(key, _) if state.transaction.is_none() && !state.needs_login() => {
                let key = HashedKey { bytes: key, hash: ready.hash };
                let get = |session: &mut Self, cx: &mut Context<'_, E, H>| {
                    session.resp_get(cx, state, key, output)
                };
                let outcome = self.with_resp_observer(cx, get);
                sampled(cx, key, outcome)
            }
            RequestKind::Set(key, value, _)
                if state.transaction.is_none()
                    && !state.needs_login()
                    && !self.is_observed()
                    && !cx.settings.read_only
                    && cx.operations.guard.is_none() =>
            {
                let key = HashedKey { bytes: key, hash: ready.hash };
                let outcome = self.resp_fast_set(cx, state, key, value, output);
                sampled(cx, key, outcome)
            }
            _ => self.answer_slowly(cx, state, ready, output),
        }
    }

    /// Answers a request without using the fast paths of `GET` and `SET`.
    pub(super) fn answer_slowly<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        ready: &BatchRequest<'_>,
        output: &mut Vec<u8>,
    ) -> Outcome {
        match &ready.kind {
            RequestKind::Get(_, raw) | RequestKind::Set(_, _, raw) => {
                match read(raw, &bounds(cx, state)) {
                    Read::Request { request, .. } => {
                        self.answer_request(cx, state, &request, ready.hash, output)
                    }
                    _ => Outcome::Close,
                }
            }
            RequestKind::Request(request) => {
                self.answer_request(cx, state, request, ready.hash, output)
            }
        }
    }

    fn answer_request<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        request: &Request<'_>,
        hash: u64,
        output: &mut Vec<u8>,
    ) -> Outcome {
        // A hostile web page can make a browser send an HTTP request to this port. Like
        // redis-server, close such connections.
        if [&b"post"[..], b"host:"].iter().any(|name| request.name.eq_ignore_ascii_case(name)) {
            self.failed = true;
            return Outcome::Close;
        }
        let checked = request.row().and_then(|(row, verb)| {
            let is_open = matches!(verb, Verb::Auth | Verb::Hello | Verb::Quit | Verb::Reset);
            let is_refused = state.needs_login() && !is_open;
            if is_refused {
                Err(CommandError::LoginRequired)
            } else if state.is_muted() && !verb.is_allowed_for_subscribers() {
                Err(CommandError::Subscribed(row.name))
            } else if cx.settings.read_only && verb.changes_items() {
                Err(CommandError::ReadOnly)
            } else {
                Ok((row, verb))
            }
        });
        let (row, verb) = match checked {
            Ok(checked) => checked,
            Err(error) => {
                if let Some(transaction) = &mut state.transaction {
                    transaction.has_failed = true;
                }
                reply::error(&error, output);
                return Outcome::Done;
            }
        };
        let runs_at_once = matches!(
            verb,
            Verb::Exec | Verb::Discard | Verb::Multi | Verb::Quit | Verb::Reset | Verb::Watch
        );
        if state.transaction.is_some() && !runs_at_once {
            queue(cx, state, request, output);
            return Outcome::Done;
        }
        match Command::parse(request, verb, row.name) {
            Ok(Command::Item(key, command)) => {
                // The batch has hashed the first argument. The key of `MEMORY USAGE` is the second
                // argument.
                let hash = if row.keys.0 == 1 { hash } else { cx.operations.engine.hash(key) };
                let key = HashedKey { bytes: key, hash };
                let outcome = self.with_resp_observer(cx, |session, cx| {
                    session.resp_item(cx, state, key, &command, output)
                });
                sampled(cx, key, outcome)
            }
            Ok(Command::Script(call)) => {
                let key = HashedKey { bytes: call.key, hash: cx.operations.engine.hash(call.key) };
                let outcome =
                    self.with_resp_observer(cx, |_, cx| script::run(cx, state, key, &call, output));
                sampled(cx, key, outcome)
            }
            Ok(Command::Items(command)) => self.with_resp_observer(cx, |session, cx| {
                session.resp_items(cx, state, &command, output)
            }),
            Ok(Command::CopyItem(copy)) => {
                self.with_resp_observer(cx, |_, cx| copy_item::run(cx, state, &copy, output))
            }
            Ok(Command::AddItems(words)) => {
                self.with_resp_observer(cx, |_, cx| multi_key::add(cx, state, words, output))
            }
            Ok(command) => self.resp_command(cx, state, &command, output),
            Err(error) => {
                reply::error(&error, output);
                Outcome::Done
            }
        }
    }
}

/// The source of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The input: requests sent as arrays of bulk strings.
    Client,
    /// An inline request.
    Line,
    /// Requests queued for `EXEC`.
    Transaction,
}

/// Returns the number of lookups at the start of a batch.
fn count_reads(state: &State, batch: &[BatchRequest<'_>]) -> usize {
    if state.transaction.is_some() || state.needs_login() {
        return 0;
    }
    let reads = batch.iter().take_while(|ready| match &ready.kind {
        RequestKind::Get(..) => true,
        RequestKind::Set(..) => false,
        RequestKind::Request(request) => {
            matches!(request.row(), Ok((row, verb)) if row.needs_owner() && !verb.changes_items())
        }
    });
    reads.count()
}

/// Returns the requests at the start of a batch that have keys or change items.
fn forwarded(state: &State, batch: &[BatchRequest<'_>]) -> ForwardedRequests {
    let mut forwarded = ForwardedRequests::new(Parser::default());
    if state.transaction.is_some() || state.needs_login() {
        return forwarded;
    }
    for ready in batch {
        let changes = match &ready.kind {
            RequestKind::Get(..) => false,
            RequestKind::Set(..) => true,
            RequestKind::Request(request) => match request.row() {
                Ok((row, verb)) if row.needs_owner() || verb.changes_items() => {
                    verb.changes_items()
                }
                _ => break,
            },
        };
        forwarded.add(ready.end, Some(ready.kind.class()), changes);
    }
    forwarded
}

/// Adds the key of an answered request to the sample of hot keys. Returns the outcome unchanged.
#[inline]
fn sampled<E: Engine, H: Host>(
    cx: &Context<'_, E, H>,
    key: HashedKey<'_>,
    outcome: Outcome,
) -> Outcome {
    if outcome == Outcome::Done {
        cx.operations.sample(key);
    }
    outcome
}

/// Queues a request for `EXEC`.
fn queue<E: Engine, H: Host>(
    cx: &Context<'_, E, H>,
    state: &mut State,
    request: &Request<'_>,
    output: &mut Vec<u8>,
) {
    let has_room = state.reserve(cx.host, request.raw.len());
    let Some(transaction) = &mut state.transaction else { return };
    let fits = transaction.requests.len() + request.raw.len() <= TRANSACTION_LEN_MAX;
    if fits && has_room {
        transaction.requests.extend_from_slice(request.raw);
        transaction.count += 1;
        return reply::queued(output);
    }
    transaction.has_failed = true;
    let error = if fits { CommandError::OutOfMemory } else { CommandError::TransactionTooLarge };
    reply::error(&error, output);
}

//! Reads requests, and answers them in batches.

use super::batch::{BATCH_MAX, BatchEnd, Outcome, Ready, What, bounds, gather};
use super::scatter::Scatter;
use crate::Host;
use crate::context::{Context, Next, Step, Turn};
use crate::session::Session;
use crate::session::pending::{Forwarded, Pending};
use crate::session::resp_state::{FETCHES_MAX, State};
use arrayvec::ArrayVec;
use larder_protocol::Parser;
use larder_protocol::reply::resp as reply;
use larder_protocol::resp::{
    Command, CommandError, ProtocolError, Read, Request, Verb, read, split_line,
};
use larder_store::{Engine, HashedKey};

/// The requests that are kept for `EXEC`, in bytes.
const TRANSACTION_LEN_MAX: usize = 1 << 20;

impl<E: Engine> Session<E> {
    /// Answers the next requests, as many as the turn may.
    pub(crate) fn answer_resp<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        input: &[u8],
        turn: &mut Turn,
        output: &mut Vec<u8>,
    ) -> Step {
        let Some(mut state) = self.resp.take() else { return Step::end(0, Next::Close) };
        let is_idle = input.is_empty() && !state.has_script();
        let step = if turn.left == 0 && !is_idle {
            Step::end(0, Next::Yield)
        } else if state.has_script() {
            self.answer_script(cx, &mut state, turn, output)
        } else if input.is_empty() {
            Step::end(0, Next::Read { wanted: 1 })
        } else {
            self.answer_requests(cx, &mut state, input, turn, output, Origin::Client)
        };
        self.resp = Some(state);
        step
    }

    fn answer_script<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        turn: &mut Turn,
        output: &mut Vec<u8>,
    ) -> Step {
        let mut script = std::mem::take(&mut state.script);
        let requests = script.requests.get(script.at..).unwrap_or_default();
        let origin = if script.is_transaction { Origin::Transaction } else { Origin::Line };
        let step = self.answer_requests(cx, state, requests, turn, output, origin);
        match &mut self.pending {
            Pending::Forwarded(forwarded) => forwarded.is_script = true,
            Pending::Scattered(scattered) => scattered.is_script = true,
            _ => (),
        }
        script.at += step.consumed;
        // An inline request may be `EXEC`, which leaves a script of its own.
        if script.at < script.requests.len() && !state.has_script() {
            state.script = script;
        }
        state.release(cx.host);
        Step { consumed: 0, next: step.next.filter(|next| !matches!(next, Next::Read { .. })) }
    }

    fn answer_requests<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        input: &[u8],
        turn: &mut Turn,
        output: &mut Vec<u8>,
        origin: Origin,
    ) -> Step {
        let mut batch = ArrayVec::new();
        // A login changes how long the requests after it may be.
        let max = if state.needs_login() { 1 } else { turn.left.min(BATCH_MAX) };
        let bounds = bounds(cx, state);
        let mut batch_end = gather(cx.operations.engine, input, &bounds, max, &mut batch);
        if cx.settings.forwards && cx.host.shard_map().is_some() {
            let is_script = origin != Origin::Client;
            match self.scatter_resp(cx, state, input, &batch, turn, is_script) {
                Scatter::Ends(step) => return step,
                Scatter::Here(count) if count < batch.len() => {
                    batch.truncate(count);
                    batch_end = BatchEnd::Full;
                }
                Scatter::Here(_) => (),
            }
        } else if Self::is_elsewhere(cx) {
            if self.is_forwarded {
                return Step::end(0, Next::Abandon);
            }
            // A transaction sees its own changes.
            let reads_copy = origin != Origin::Transaction && Self::reads_copy(cx);
            let reads = if reads_copy { count_reads(state, &batch) } else { 0 };
            if reads == 0 && state.answered.keys > 0 {
                // A request is answered in part, and whoever leads now would answer it from the beginning.
                return Step::end(0, Next::Close);
            }
            let forwarded = forwarded(state, &batch);
            if reads > 0 {
                if batch.len() > reads {
                    batch.truncate(reads);
                    batch_end = BatchEnd::Full;
                }
            } else if forwarded.has_requests() {
                turn.left = turn.left.saturating_sub(batch.len());
                // The conversation is that of the state.
                return self.forward(cx, state.conversation(), input, forwarded);
            }
            if reads == 0 && batch.len() > 1 {
                batch.truncate(1);
                batch_end = BatchEnd::Full;
            }
        }
        let mut end = 0;
        for (done, ready) in batch.iter().enumerate() {
            if !self.pending.is_nothing() || output.len() > cx.settings.output_max {
                return Step::go_on(end);
            }
            turn.left = turn.left.saturating_sub(1);
            match self.answer_ready(cx, state, ready, output) {
                Outcome::Done => {
                    end = ready.end;
                    turn.answered.add(ready.what.class(), 1);
                }
                Outcome::Paused => return Step::go_on(end),
                Outcome::Wait => {
                    let behind = batch.iter().skip(done + 1).map(|ready| ready.hash);
                    let behind = behind.filter(|hash| *hash != 0);
                    let hashes = state.waiting.iter().copied().chain(behind).take(FETCHES_MAX);
                    return Step::end(end, self.fetch(cx, hashes));
                }
                Outcome::Close => return Step::end(ready.end, Next::Close),
            }
            if state.has_script() {
                return Step::go_on(end);
            }
        }
        if !self.pending.is_nothing() {
            return Step::go_on(end);
        }
        match batch_end {
            BatchEnd::Full => Step::go_on(end),
            BatchEnd::Nothing { consumed } => Step::go_on(end + consumed),
            BatchEnd::Incomplete { wanted } => Step::end(end, Next::Read { wanted }),
            BatchEnd::Line { line, consumed } => {
                let mut requests = Vec::new();
                match split_line(line, &mut requests) {
                    Ok(()) if state.reserve(cx.host, requests.len()) => {
                        state.script.requests = requests;
                        Step::go_on(end + consumed)
                    }
                    Ok(()) => {
                        reply::error(&CommandError::OutOfMemory, output);
                        Step::go_on(end + consumed)
                    }
                    Err(fault) => self.fail(fault, end + consumed, output),
                }
            }
            BatchEnd::Fault(fault) => self.fail(fault, input.len(), output),
        }
    }

    fn fail(&mut self, fault: ProtocolError, consumed: usize, output: &mut Vec<u8>) -> Step {
        self.failed = true;
        reply::protocol_error(fault, output);
        Step::end(consumed, Next::Close)
    }

    fn answer_ready<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        ready: &Ready<'_>,
        output: &mut Vec<u8>,
    ) -> Outcome {
        match &ready.what {
            What::Get(key, _) if state.transaction.is_none() && !state.needs_login() => {
                let key = HashedKey { bytes: key, hash: ready.hash };
                let get = |session: &mut Self, cx: &mut Context<'_, E, H>| {
                    session.resp_get(cx, state, key, output)
                };
                let outcome = self.resp_observed(cx, get);
                sampled(cx, key, outcome)
            }
            What::Set(key, value, _)
                if state.transaction.is_none()
                    && !state.needs_login()
                    && !self.is_observed()
                    && !cx.settings.read_only =>
            {
                let key = HashedKey { bytes: key, hash: ready.hash };
                let outcome = self.resp_fast_set(cx, state, key, value, output);
                sampled(cx, key, outcome)
            }
            _ => self.answer_slowly(cx, state, ready, output),
        }
    }

    /// Answers a request as any other one, also if it is one of the most frequent.
    pub(super) fn answer_slowly<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        ready: &Ready<'_>,
        output: &mut Vec<u8>,
    ) -> Outcome {
        match &ready.what {
            What::Get(_, raw) | What::Set(_, _, raw) => match read(raw, &bounds(cx, state)) {
                Read::Request { request, .. } => {
                    self.answer_request(cx, state, &request, ready.hash, output)
                }
                _ => Outcome::Close,
            },
            What::Request(request) => self.answer_request(cx, state, request, ready.hash, output),
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
        // A browser was made to send this by a hostile page.
        if [&b"post"[..], b"host:"].iter().any(|name| request.name.eq_ignore_ascii_case(name)) {
            self.failed = true;
            return Outcome::Close;
        }
        let checked = request.row().and_then(|(row, verb)| {
            let is_open = matches!(verb, Verb::Auth | Verb::Hello | Verb::Quit | Verb::Reset);
            let is_refused = state.needs_login() && !is_open;
            if is_refused {
                Err(CommandError::LoginRequired)
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
        let runs_at_once =
            matches!(verb, Verb::Exec | Verb::Discard | Verb::Multi | Verb::Quit | Verb::Reset);
        if state.transaction.is_some() && !runs_at_once {
            keep(cx, state, request, output);
            return Outcome::Done;
        }
        match Command::parse(request, verb, row.name) {
            Ok(Command::Item(key, command)) => {
                // The first argument was hashed with others of the batch. `MEMORY USAGE` has its key behind it.
                let hash = if row.keys.0 == 1 { hash } else { cx.operations.engine.hash(key) };
                let key = HashedKey { bytes: key, hash };
                let outcome = self.resp_observed(cx, |session, cx| {
                    session.resp_item(cx, state, key, &command, output)
                });
                sampled(cx, key, outcome)
            }
            Ok(Command::Items(command)) => self
                .resp_observed(cx, |session, cx| session.resp_items(cx, state, &command, output)),
            Ok(command) => self.resp_command(cx, state, &command, output),
            Err(error) => {
                reply::error(&error, output);
                Outcome::Done
            }
        }
    }
}

/// Where requests come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Client,
    /// They came as a line.
    Line,
    /// They were kept until `EXEC`.
    Transaction,
}

/// How many requests at the beginning of a batch only look items up.
fn count_reads(state: &State, batch: &[Ready<'_>]) -> usize {
    if state.transaction.is_some() || state.needs_login() {
        return 0;
    }
    let reads = batch.iter().take_while(|ready| match &ready.what {
        What::Get(..) => true,
        What::Set(..) => false,
        What::Request(request) => {
            matches!(request.row(), Ok((row, verb)) if row.has_keys() && !verb.changes_items())
        }
    });
    reads.count()
}

/// The requests at the beginning of a batch that are about items.
fn forwarded(state: &State, batch: &[Ready<'_>]) -> Forwarded {
    let mut forwarded = Forwarded::new(Parser::default());
    if state.transaction.is_some() || state.needs_login() {
        return forwarded;
    }
    for ready in batch {
        let changes = match &ready.what {
            What::Get(..) => false,
            What::Set(..) => true,
            What::Request(request) => match request.row() {
                Ok((row, verb)) if row.has_keys() || verb.changes_items() => verb.changes_items(),
                _ => break,
            },
        };
        forwarded.add(ready.end, Some(ready.what.class()), changes);
    }
    forwarded
}

/// Samples a request for one key, if it was answered.
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

/// Keeps a request for `EXEC`.
fn keep<E: Engine, H: Host>(
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
    let why = if fits { CommandError::OutOfMemory } else { CommandError::TransactionTooLarge };
    reply::error(&why, output);
}

//! Reads requests, and answers them in batches.

use super::state::{FETCHES_MAX, State};
use crate::Host;
use crate::context::{Context, Next, Step, Turn};
use crate::pending::{Forwarded, Pending};
use crate::session::Session;
use arrayvec::ArrayVec;
use larder_operations::CommandClass;
use larder_protocol::Parser;
use larder_protocol::reply::resp as reply;
use larder_protocol::resp::{
    Bounds, Command, CommandError, KEY_LEN_MAX, ProtocolError, Read, Request, Verb, fast_get,
    fast_set, read, split_line,
};
use larder_store::{Engine, HashedKey};

// What the protocol lets through can be stored.
const _: () = assert!(KEY_LEN_MAX <= larder_store::KEY_LEN_MAX);

/// The largest batch, for the reasons of memcached's protocol.
const BATCH_MAX: usize = 32;
/// The shortest limit of arguments in bytes, however small the largest item may be.
const BULK_LEN_MIN: usize = 64 << 10;
/// How much longer than the largest argument a request may be, in bytes.
const REQUEST_LEN_EXTRA: usize = 64 << 20;
/// The requests that are kept for `EXEC`, in bytes.
const TRANSACTION_LEN_MAX: usize = 1 << 20;

/// What has become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was answered.
    Done,
    /// It was answered in part, and goes on when the output was sent or others had their turns.
    Paused,
    /// It waits for [`State::waiting`].
    Wait,
    /// The connection is closed.
    Close,
}

/// A request of a batch.
struct Ready<'b> {
    what: What<'b>,
    /// The hash of its first key; 0 if there is none.
    hash: u64,
    /// Where the next request begins.
    end: usize,
}

enum What<'b> {
    /// A `GET`, and its bytes.
    Get(&'b [u8], &'b [u8]),
    /// The key and the value of a `SET` without options, and its bytes.
    Set(&'b [u8], &'b [u8], &'b [u8]),
    Request(Request<'b>),
}

impl What<'_> {
    /// The class that the request is timed with. One with several keys counts once.
    fn class(&self) -> CommandClass {
        let verb = match self {
            Self::Get(..) => return CommandClass::Get,
            Self::Set(..) => return CommandClass::Store,
            Self::Request(request) => request.row().map(|(_, verb)| verb),
        };
        match verb {
            Ok(Verb::Get | Verb::GetRange | Verb::MGet | Verb::StrLen) => CommandClass::Get,
            Ok(Verb::Exists | Verb::Type | Verb::Ttl | Verb::PTtl) => CommandClass::Get,
            Ok(Verb::ExpireTime | Verb::PExpireTime) => CommandClass::Get,
            Ok(Verb::Set | Verb::SetEx | Verb::PSetEx | Verb::SetNx) => CommandClass::Store,
            Ok(Verb::GetSet | Verb::MSet | Verb::Append) => CommandClass::Store,
            Ok(Verb::Del | Verb::Unlink | Verb::GetDel) => CommandClass::Delete,
            Ok(Verb::Incr | Verb::IncrBy | Verb::Decr | Verb::DecrBy) => CommandClass::Count,
            Ok(Verb::Expire | Verb::ExpireAt | Verb::PExpire | Verb::PExpireAt) => {
                CommandClass::Touch
            }
            Ok(Verb::Persist | Verb::Touch | Verb::GetEx) => CommandClass::Touch,
            _ => CommandClass::Other,
        }
    }
}

/// What follows the requests of a batch.
enum BatchEnd<'b> {
    Full,
    Line { line: &'b [u8], consumed: usize },
    Nothing { consumed: usize },
    Incomplete { wanted: usize },
    Fault(ProtocolError),
}

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
        let origin = if script.is_transaction { Origin::Transaction } else { Origin::Client };
        let step = self.answer_requests(cx, state, requests, turn, output, origin);
        if let Pending::Forwarded(forwarded) = &mut self.pending {
            forwarded.is_script = true;
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
        if Self::is_elsewhere(cx) {
            if self.is_forwarded {
                return Step::end(0, Next::Abandon);
            }
            // A transaction sees its own changes.
            let reads_copy = origin == Origin::Client && Self::reads_copy(cx);
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
                return self.forward_as(cx, state.conversation(), input, forwarded);
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

fn bounds<E: Engine, H: Host>(cx: &Context<'_, E, H>, state: &State) -> Bounds {
    let bulk_len_max = bulk_len_max(cx);
    let request_len_max = bulk_len_max + REQUEST_LEN_EXTRA;
    Bounds { bulk_len_max, request_len_max, needs_login: state.needs_login() }
}

/// The longest argument in bytes.
pub(super) fn bulk_len_max<E: Engine, H: Host>(cx: &Context<'_, E, H>) -> usize {
    cx.operations.limits.item_size_max.max(BULK_LEN_MIN)
}

/// Reads the next requests, and prefetches the memory that they will look up.
fn gather<'b, E: Engine>(
    engine: &mut E,
    input: &'b [u8],
    bounds: &Bounds,
    max: usize,
    batch: &mut ArrayVec<Ready<'b>, BATCH_MAX>,
) -> BatchEnd<'b> {
    let mut at = 0;
    let batch_end = loop {
        if batch.len() == max {
            break BatchEnd::Full;
        }
        let rest = input.get(at..).unwrap_or_default();
        if !bounds.needs_login
            && let Some((key, len)) = fast_get(rest)
            && (1..=KEY_LEN_MAX).contains(&key.len())
        {
            at += len;
            let hash = engine.hash(key);
            engine.announce(hash);
            let raw = rest.get(..len).unwrap_or_default();
            batch.push(Ready { what: What::Get(key, raw), hash, end: at });
            continue;
        }
        if !bounds.needs_login
            && let Some((key, value, len)) = fast_set(rest)
            && (1..=KEY_LEN_MAX).contains(&key.len())
            && value.len() <= bounds.bulk_len_max
        {
            at += len;
            let hash = engine.hash(key);
            engine.announce(hash);
            let raw = rest.get(..len).unwrap_or_default();
            batch.push(Ready { what: What::Set(key, value, raw), hash, end: at });
            continue;
        }
        match read(rest, bounds) {
            Read::Request { request, consumed } => {
                at += consumed;
                let hash = match { request.arguments }.next() {
                    Some(key) if (1..=KEY_LEN_MAX).contains(&key.len()) => {
                        let hash = engine.hash(key);
                        engine.announce(hash);
                        hash
                    }
                    _ => 0,
                };
                batch.push(Ready { what: What::Request(request), hash, end: at });
            }
            Read::Line { line, consumed } => break BatchEnd::Line { line, consumed },
            Read::Nothing { consumed } => break BatchEnd::Nothing { consumed },
            Read::Incomplete { wanted } => break BatchEnd::Incomplete { wanted },
            Read::Fault(fault) => break BatchEnd::Fault(fault),
        }
    };
    engine.prefetch_announced();
    batch_end
}

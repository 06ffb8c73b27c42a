//! Sends the requests of RESP batches to the groups that own their keys. `crate::scatter` gathers
//! the replies.
//!
//! The session splits a multi-key command into one command per key, unless this server owns all
//! keys. It sends these commands in batches, and records the number of answered keys in
//! [`State::key_progress`].

use super::batch::{BATCH_MAX, BatchRequest, Outcome, RequestKind, bounds, read_one};
use crate::Host;
use crate::context::{Context, Next, PollState, Step};
use crate::route::{AnsweredPart, Owner};
use crate::scatter::{Destination, Destinations};
use crate::session::Session;
use crate::session::pending::{
    Part, PartBytes, PartState, Pending, ScatterGather, SplitCommand, SplitReply,
};
use crate::session::resp_state::{KeyProgress, State};
use arrayvec::ArrayVec;
use larder_protocol::encode::resp as encode;
use larder_protocol::reply::resp as reply;
use larder_protocol::resp::{Command, CommandError, ItemsCommand, checked_key};
use larder_protocol::response::{Read, Resp, read_resp};
use larder_store::Engine;

/// The next action of the session for a batch.
pub(super) enum ScatterDecision {
    /// This server answers this many requests at the start of the batch. The session then examines
    /// the other requests.
    Local(usize),
    /// The batch is scattered, or the poll ends.
    Finish(Step),
}

impl<E: Engine> Session<E> {
    /// Sends the requests of a batch to the groups that own their keys, and answers the requests
    /// for this server's keys. If the batch starts with requests that only this server answers,
    /// only returns their number. `is_queued` states whether `input` is the queue rather than the
    /// input of the connection.
    #[cold]
    #[inline(never)]
    pub(super) fn scatter_resp<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        input: &[u8],
        batch: &[BatchRequest<'_>],
        poll: &mut PollState,
        is_queued: bool,
    ) -> ScatterDecision {
        if state.transaction.is_some() {
            // The request may end the transaction. Later requests may then belong to other groups.
            return ScatterDecision::Local(1);
        }
        let destinations = Destinations::with_stable_map(cx.host, |destinations| {
            if is_queued {
                // Choose destinations as after a change, because an earlier batch of the same
                // transaction may contain a change.
                destinations.follow_change();
            }
            let destinations = batch.iter().map(|ready| destination(destinations, state, ready));
            destinations.collect::<ArrayVec<Destination, BATCH_MAX>>()
        });
        if self.is_forwarded {
            let is_elsewhere = cx.host.owner() != Owner::Local
                || destinations.iter().any(|destination| self.returns(*destination));
            return match is_elsewhere {
                false => ScatterDecision::Local(batch.len()),
                true => ScatterDecision::Finish(Step::finish(0, Next::NotOwner)),
            };
        }
        let is_remote = |destination: &Destination| {
            !matches!(destination, Destination::Local | Destination::Alone)
        };
        match destinations.iter().position(is_remote) {
            Some(0) if destinations.first() == Some(&Destination::PerKey) => {
                let Some(ready) = batch.first() else { return ScatterDecision::Local(0) };
                ScatterDecision::Finish(self.split_command(cx, state, ready, poll, is_queued))
            }
            // Close the connection: this server has executed a part of a command, and no other
            // server can finish the command.
            Some(0)
                if state.key_progress.keys > 0
                    && batch.first().is_some_and(|next| items_command(next).is_err()) =>
            {
                ScatterDecision::Finish(Step::finish(0, Next::Close))
            }
            Some(0) => {
                let scattered =
                    self.send_parts(cx, state, input, (batch, &destinations), poll, is_queued);
                self.pending = Pending::ScatterGather(Box::new(scattered));
                ScatterDecision::Finish(Step::advance(0))
            }
            Some(local) => ScatterDecision::Local(local),
            None => ScatterDecision::Local(batch.len()),
        }
    }

    fn send_parts<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        input: &[u8],
        (batch, destinations): (&[BatchRequest<'_>], &[Destination]),
        poll: &mut PollState,
        is_queued: bool,
    ) -> ScatterGather<E> {
        let mut scattered = ScatterGather::new();
        scattered.is_queued = is_queued;
        for (ready, destination) in batch.iter().zip(destinations) {
            if scattered.kept_bytes() > cx.settings.output_max {
                break;
            }
            let at = scattered.len..ready.end;
            let bytes = match is_queued {
                true => PartBytes::Own(input.get(at.clone()).unwrap_or_default().to_vec()),
                false => PartBytes::Input(at.clone()),
            };
            let mut part = Part::new(bytes, PartState::Local(None));
            part.is_repeatable = !ready.kind.changes();
            match *destination {
                Destination::Alone | Destination::PerKey => break,
                Destination::Local => {
                    if self.answer_slowly(cx, state, ready, &mut part.answer) != Outcome::Done {
                        break;
                    }
                    poll.keeps_answers = true;
                    self.take_sending(&mut part);
                    scattered.parts.push_back(part);
                }
                Destination::Group(group) => {
                    let id = self.pass(cx, group, state.conversation(), part.bytes(input));
                    part.state = PartState::Remote(group, id);
                    scattered.parts.push_back(part);
                }
                // A request that the session sends again must not overtake a flush.
                Destination::AllGroups if !scattered.parts.is_empty() => break,
                Destination::AllGroups => {
                    let (mut expected, mut local) = (Vec::new(), None);
                    reply::ok(&mut expected);
                    if cx.host.owner() == Owner::Local {
                        let local = local.insert(Vec::new());
                        // Ignore the outcome, because a flush never waits for slower storage.
                        let _ = self.answer_slowly(cx, state, ready, local);
                        poll.keeps_answers = true;
                    }
                    let from = (state.conversation(), input);
                    self.pass_to_all_groups(cx, from, at, (local, &expected), &mut scattered);
                    if scattered.parts.is_empty() {
                        // The shard map no longer has several groups. The next step processes the
                        // batch again.
                        break;
                    }
                }
            }
            scattered.len = ready.end;
            scattered.count(Some(ready.kind.class()));
            poll.left = poll.left.saturating_sub(1);
            if *destination == Destination::AllGroups {
                break;
            }
        }
        scattered
    }

    /// Sends the next keys of a multi-key command, each as a separate command.
    pub(super) fn split_command<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        ready: &BatchRequest<'_>,
        poll: &mut PollState,
        is_queued: bool,
    ) -> Step {
        let mut scattered = ScatterGather::new();
        (scattered.is_queued, scattered.len) = (is_queued, ready.end);
        let mut head = Part::new(PartBytes::Own(Vec::new()), PartState::Local(None));
        let command = match items_command(ready) {
            Ok(command) => command,
            // This server has executed a part of the command, and no other server can finish it.
            Err(_) if state.key_progress.keys > 0 => return Step::finish(0, Next::Close),
            Err(error) => {
                reply::error(&error, &mut head.answer);
                scattered.parts.push_back(head);
                scattered.count(Some(ready.kind.class()));
                self.pending = Pending::ScatterGather(Box::new(scattered));
                return Step::advance(0);
            }
        };
        let (words, words_per_key) = command.words();
        let progress = state.key_progress;
        if let ItemsCommand::MGet(keys) = command
            && progress.keys == 0
        {
            reply::array(keys.len(), &mut head.answer);
            scattered.parts.push_back(head);
        }
        let mut rest = words;
        if let Some(last) = (progress.keys * words_per_key).checked_sub(1) {
            rest.nth(last);
        }
        let looks_up = !ready.kind.changes();
        let destinations = Destinations::with_stable_map(cx.host, |destinations| {
            if is_queued {
                destinations.follow_change();
            }
            let keys = rest.step_by(words_per_key).take(BATCH_MAX);
            keys.map(|key| destinations.next(key, looks_up))
                .collect::<ArrayVec<Destination, BATCH_MAX>>()
        });
        let (bounds, mut keys, mut own_bytes) = (bounds(cx, state), 0, 0);
        // Each part is a separate command with no answered keys.
        state.key_progress = KeyProgress::default();
        for destination in destinations {
            let kept = scattered.kept_bytes() + own_bytes;
            let has_room = keys == 0 || kept <= cx.settings.output_max;
            let Some(key) = rest.next().filter(|_| has_room) else { break };
            let value = if words_per_key == 2 { rest.next() } else { None };
            let mut bytes = Vec::new();
            let name = command.of_one_key().as_bytes();
            match value {
                Some(value) => encode::command(&[name, key, value], &mut bytes),
                None => encode::command(&[name, key], &mut bytes),
            }
            let mut part = Part::new(PartBytes::Own(Vec::new()), PartState::Local(None));
            part.is_repeatable = looks_up;
            part.is_merged = !matches!(command, ItemsCommand::MGet(_));
            match destination {
                _ if checked_key(key).is_err() => match part.is_merged {
                    true => reply::integer(0, &mut part.answer),
                    false => reply::null(state.version, &mut part.answer),
                },
                Destination::Group(group) => {
                    let id = self.pass(cx, group, state.conversation(), &bytes);
                    part.state = PartState::Remote(group, id);
                }
                _ => {
                    let one = read_one(cx.operations.engine, &bytes, &bounds);
                    let outcome = one.map_or(Outcome::Close, |one| {
                        self.answer_slowly(cx, state, &one, &mut part.answer)
                    });
                    if outcome != Outcome::Done && keys > 0 {
                        break;
                    }
                    match outcome {
                        Outcome::Done => (),
                        Outcome::Wait => {
                            state.key_progress = progress;
                            return Step::finish(
                                0,
                                self.start_reads(cx, state.waiting.iter().copied()),
                            );
                        }
                        Outcome::Paused | Outcome::Close => return Step::finish(0, Next::Close),
                    }
                    poll.keeps_answers = true;
                    self.take_sending(&mut part);
                }
            }
            own_bytes += bytes.len();
            part.request = PartBytes::Own(bytes);
            scattered.parts.push_back(part);
            keys += 1;
            poll.left = poll.left.saturating_sub(1);
        }
        let is_last = (progress.keys + keys) * words_per_key >= words.len();
        if is_last {
            scattered.count(Some(ready.kind.class()));
        }
        let reply_form = match command {
            ItemsCommand::MGet(_) => SplitReply::Array,
            ItemsCommand::MSet(_) => SplitReply::Ok,
            ItemsCommand::Del(_) | ItemsCommand::Exists(_) | ItemsCommand::Touch(_) => {
                SplitReply::Sum
            }
        };
        scattered.split = Some(SplitCommand { reply_form, progress, keys, is_last, error: None });
        self.pending = Pending::ScatterGather(Box::new(scattered));
        Step::advance(0)
    }

    /// Records that another node has answered a part of the first requests, and counts the requests
    /// of this part. Returns false if the part does not end at the end of a request.
    pub(crate) fn note_answered_resp<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        is_queued: bool,
        part: AnsweredPart,
        input: &[u8],
        poll: &mut PollState,
    ) -> bool {
        let Some(state) = &mut self.resp else { return false };
        let bounds = bounds(cx, state);
        let AnsweredPart { len, keys, found } = part;
        let requests = match is_queued {
            true => state.queue.requests.get(state.queue.at..).unwrap_or_default(),
            false => input,
        };
        let mut at = 0;
        while at < len {
            let rest = requests.get(at..len).unwrap_or_default();
            let Some(ready) = read_one(cx.operations.engine, rest, &bounds) else { return false };
            poll.answered.add(ready.kind.class(), 1);
            at += ready.end;
        }
        let Ok(found) = found.try_into() else { return false };
        state.key_progress = KeyProgress { keys, found };
        true
    }

    /// Finishes one batch of a multi-key command's keys. Returns false if more keys follow.
    pub(crate) fn finish_split(&mut self, split: SplitCommand, output: &mut Vec<u8>) -> bool {
        let SplitCommand {
            reply_form,
            progress: KeyProgress { keys: before, found },
            keys,
            is_last,
            error,
        } = split;
        let is_over = is_last || error.is_some();
        match (error, reply_form) {
            (Some(mut error), _) => output.append(&mut error),
            (None, SplitReply::Sum) if is_last => reply::integer(found, output),
            (None, SplitReply::Ok) if is_last => reply::ok(output),
            (None, _) => (),
        }
        if let Some(state) = &mut self.resp {
            let answered = KeyProgress { keys: before + keys, found };
            state.key_progress = if is_over { KeyProgress::default() } else { answered };
        }
        is_over
    }

    /// Parses the bytes of a part again, and calls `act` with the request. Returns `None` if the
    /// bytes are not a request.
    fn with_resp_part<H: Host, R>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        bytes: &[u8],
        act: impl FnOnce(&mut Self, &mut Context<'_, E, H>, &mut State, &BatchRequest<'_>) -> R,
    ) -> Option<R> {
        let mut state = self.resp.take()?;
        let bounds = bounds(cx, &state);
        let ready = read_one(cx.operations.engine, bytes, &bounds);
        let result = ready.map(|ready| act(self, cx, &mut state, &ready));
        self.resp = Some(state);
        result
    }

    /// Returns the current destination of a part, or `None` if its bytes are not a request. Assumes
    /// that the part may follow a change.
    pub(crate) fn destination_resp<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        bytes: &[u8],
    ) -> Option<Destination> {
        self.with_resp_part(cx, bytes, |_, cx, state, ready| {
            destination(&mut Destinations::after_change(cx.host), state, ready)
        })
    }

    /// Answers a part. Returns false if the reply is incomplete, usually because the part has to
    /// wait for slower storage.
    pub(crate) fn answer_resp_part<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        bytes: &[u8],
        output: &mut Vec<u8>,
    ) -> bool {
        let outcome = self.with_resp_part(cx, bytes, |session, cx, state, ready| {
            session.answer_slowly(cx, state, ready, output)
        });
        outcome == Some(Outcome::Done)
    }
}

fn destination(
    destinations: &mut Destinations<'_>,
    state: &State,
    ready: &BatchRequest<'_>,
) -> Destination {
    if state.transaction.is_some() || state.needs_login() {
        return Destination::Alone;
    }
    let request = match &ready.kind {
        RequestKind::Get(key, _) => return destinations.next(key, true),
        RequestKind::Set(key, ..) => return destinations.next(key, false),
        RequestKind::Request(request) => request,
    };
    let Ok((row, verb)) = request.row() else { return Destination::Alone };
    if !row.needs_owner() {
        return if verb.changes_items() { Destination::AllGroups } else { Destination::Alone };
    }
    let (mut keys, looks_up) = (request.keys(row), !verb.changes_items());
    let Some(first) = keys.next() else { return Destination::Alone };
    let destination = destinations.next(first, looks_up);
    let Some(second) = keys.next() else { return destination };
    let mut others = [second].into_iter().chain(keys);
    let is_one = others.all(|key| destinations.next(key, looks_up) == destination);
    // A command with many keys may need several steps. It cannot be a part, because a part must be
    // answered in one step.
    match destination {
        Destination::Local if is_one => Destination::Alone,
        group @ Destination::Group(_) if is_one && !verb.is_split() => group,
        _ => Destination::PerKey,
    }
}

/// Parses a request as a multi-key command that can be split into one command per key.
fn items_command<'b>(ready: &BatchRequest<'b>) -> Result<ItemsCommand<'b>, CommandError<'b>> {
    let RequestKind::Request(request) = &ready.kind else { return Err(CommandError::Syntax) };
    let (row, verb) = request.row()?;
    let Command::Items(command) = Command::parse(request, verb, row.name)? else {
        // Any other command must be executed by a single server.
        return Err(CommandError::CrossSlot);
    };
    command.check_keys()?;
    Ok(command)
}

impl SplitCommand {
    /// Merges the complete reply to a part. Returns false if the reply is an error and a part of
    /// the array is already written. The session must then close the connection.
    pub(crate) fn take<E: Engine>(&mut self, part: &mut Part<E>, output: &mut Vec<u8>) -> bool {
        if self.reply_form == SplitReply::Array {
            let is_answered = !matches!(part.state, PartState::Refused | PartState::ConnectionLost);
            if is_answered {
                output.append(&mut part.answer);
            }
            return is_answered;
        }
        match read_resp(&part.answer) {
            Read::Whole(Resp::Integer(found), _) => self.progress.found += found,
            Read::Whole(Resp::Simple(_), _) => (),
            _ if self.error.is_none() => self.error = Some(std::mem::take(&mut part.answer)),
            _ => (),
        }
        true
    }
}

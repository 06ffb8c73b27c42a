//! Scatter-gather: sends each request of a batch to the group that owns its key, and writes the
//! replies in request order.
//!
//! `memcached.rs` splits batches in memcached's protocols into parts, and `resp/scatter.rs` splits
//! RESP batches. `to_all.rs` sends a flush to all groups. This file gathers the replies. A part is one request, or one key of a multi-key
//! request. Because a part has at most one key, the session can send it to another group if the key
//! has moved.

mod memcached;
mod to_all;

use crate::context::{Context, Next, PollState, Step};
use crate::route::{Conversation, ForwardOutcome, GroupIndex, Owner, Route};
use crate::session::Session;
use crate::session::pending::{Part, PartBytes, PartState, Pending, ScatterGather};
use crate::{GroupMap, Host};
use larder_operations::{AnsweredCounts, CommandClass};
use larder_protocol::reply::resp as resp_reply;
use larder_protocol::resp::CommandError;
use larder_store::Engine;
use std::collections::VecDeque;

/// The node that answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// This server.
    Local,
    /// The leader of a group.
    Group(GroupIndex),
    /// All groups: each group executes the whole request.
    AllGroups,
    /// The owner of each key. The session splits the request into one request per key.
    PerKey,
    /// This server. The session answers the request outside of scatter-gather, after it has written
    /// the replies to all earlier requests.
    Alone,
}

/// Finds the destination of each request in a batch, in order.
pub(crate) struct Destinations<'h> {
    shard_map: Option<&'h dyn GroupMap>,
    owner: Owner,
    /// Whether this server is a replica that may answer lookups itself. The field becomes false
    /// when a change is sent to the leader, because later lookups must see that change.
    reads_locally: bool,
}

impl<'h> Destinations<'h> {
    pub(crate) fn new(host: &'h impl Host) -> Self {
        let owner = host.owner();
        let reads_locally = owner == Owner::RemoteWithLocalReads;
        Self { shard_map: host.shard_map(), owner, reads_locally }
    }

    /// Returns a resolver for requests that may follow a change. A replica does not answer such
    /// requests itself.
    pub(crate) fn after_change(host: &'h impl Host) -> Self {
        Self { reads_locally: false, ..Self::new(host) }
    }

    /// Makes a replica forward all further lookups, because a change may precede them.
    pub(crate) fn follow_change(&mut self) {
        self.reads_locally = false;
    }

    /// Calls `find` until the shard map has not changed during the call, and returns the result of
    /// that call. The result then depends on a single version of the map. All requests of a batch
    /// for one key have the same destination, which preserves their order.
    pub(crate) fn with_stable_map<R>(
        host: &'h impl Host,
        mut find: impl FnMut(&mut Self) -> R,
    ) -> R {
        let version = || host.shard_map().map(|map| map.version());
        loop {
            let before = version();
            let found = find(&mut Self::new(host));
            if version() == before {
                return found;
            }
        }
    }

    /// Returns the destination of the next request. `key` is the key of the request, and `looks_up`
    /// states whether the request only looks up items.
    pub(crate) fn next(&mut self, key: &[u8], looks_up: bool) -> Destination {
        let group = self.shard_map.map_or(GroupIndex::OWN, |map| map.group_of(key));
        if group != GroupIndex::OWN {
            return Destination::Group(group);
        }
        self.reads_locally &= looks_up;
        if self.owner == Owner::Local || self.reads_locally {
            return Destination::Local;
        }
        Destination::Group(GroupIndex::OWN)
    }
}

impl<E: Engine> Part<E> {
    pub(crate) fn new(request: PartBytes, state: PartState<E>) -> Self {
        Self {
            request,
            state,
            trailer: Vec::new(),
            continues: false,
            is_dropped: false,
            is_merged: false,
            is_repeatable: true,
            answer: Vec::new(),
            has_output: false,
        }
    }

    /// Writes the bytes of the reply that have arrived, except for the last bytes, which may be the
    /// trailer.
    fn write_received(&mut self, output: &mut Vec<u8>) {
        let len = self.answer.len().saturating_sub(self.trailer.len());
        if len > 0 && !self.is_merged {
            self.has_output = true;
            let shown = self.answer.drain(..len);
            if !self.is_dropped {
                output.extend(shown);
            }
        }
    }

    /// Writes the rest of a complete reply. Returns false if the reply lacks the part's trailer.
    /// Such a reply is an error, which also ends the reply to the parts that continue this part.
    fn write_rest(&mut self, output: &mut Vec<u8>) -> bool {
        let is_right = self.is_dropped || self.answer == self.trailer;
        if !is_right {
            output.append(&mut self.answer);
        }
        self.trailer.is_empty() || is_right
    }

    /// Removes the trailer from a complete reply. A reply without the trailer is an error: the
    /// part's state becomes [`PartState::Refused`].
    fn strip_trailer(&mut self) {
        let is_right = match &mut self.state {
            PartState::Local(Some(sending)) => sending.strip_trailer(&self.trailer),
            _ => {
                let is_right = self.answer.ends_with(&self.trailer);
                let len = self.answer.len() - if is_right { self.trailer.len() } else { 0 };
                self.answer.truncate(len);
                is_right
            }
        };
        if !is_right {
            self.state = PartState::Refused;
        }
    }

    /// Takes the result of a part that waits for the group `from`. The session calls this function
    /// before the route drops the result. The owner may have answered this part although an earlier
    /// part has failed: the session may have sent the earlier part again, after this part.
    fn take_result(&mut self, from: GroupIndex, route: &mut dyn Route) {
        let PartState::Remote(group, id) = self.state else { return };
        if group != from {
            return;
        }
        match route.take(id, &mut self.answer) {
            ForwardOutcome::Done => {
                self.state = PartState::Local(None);
                self.strip_trailer();
            }
            ForwardOutcome::Close | ForwardOutcome::RetryRest(_) => {
                self.state = PartState::ConnectionLost;
            }
            _ => self.answer.clear(),
        }
    }

    pub(crate) fn bytes<'a>(&'a self, input: &'a [u8]) -> &'a [u8] {
        match &self.request {
            PartBytes::Input(range) => input.get(range.clone()).unwrap_or_default(),
            PartBytes::Own(bytes) => bytes,
        }
    }
}

impl<E: Engine> ScatterGather<E> {
    pub(crate) fn new() -> Self {
        Self {
            parts: VecDeque::new(),
            sending: None,
            len: 0,
            answered: AnsweredCounts::default(),
            waits_for_room: false,
            discards_line: false,
            is_queued: false,
            split: None,
            to_all: None,
        }
    }

    /// Returns the cache memory, in bytes, of the values that the session leases in order to write
    /// them.
    pub(crate) fn leased_bytes(&self) -> usize {
        let part_values = self.parts.iter().filter_map(|part| match &part.state {
            PartState::Local(sending) => sending.as_ref(),
            _ => None,
        });
        self.sending.iter().chain(part_values).map(|sending| sending.memory()).sum()
    }

    /// Returns how many bytes of the arrived replies the session has not written yet.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.answer.len()).sum()
    }

    /// Counts a request as answered.
    pub(crate) fn count(&mut self, class: Option<CommandClass>) {
        if let Some(class) = class {
            self.answered.add(class, 1);
        }
    }

    /// Makes the session drop the replies to the parts that continue the first part.
    fn drop_rest_of_reply(&mut self) {
        let rest = self.parts.iter_mut().skip(1).take_while(|part| part.continues);
        rest.for_each(|part| part.is_dropped = true);
    }

    /// Returns whether all later parts continue the reply of the first part.
    fn is_last_reply(&self) -> bool {
        self.parts.iter().skip(1).all(|part| part.continues)
    }
}

/// The session's next action after a step of the first part.
enum PartStep {
    Done,
    /// Repeats the step immediately.
    Continue,
    Wait(Next),
    Close,
}

impl<E: Engine> Session<E> {
    /// Returns whether to leave a forwarded request with this destination to the forwarding node.
    pub(crate) fn returns(&self, destination: Destination) -> bool {
        match destination {
            Destination::Group(_) | Destination::PerKey => true,
            Destination::AllGroups => self.has_old_map,
            Destination::Local | Destination::Alone => false,
        }
    }

    /// Waits for the replies to parts, and writes them in order.
    #[cold]
    pub(crate) fn resume_scatter_gather<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        mut scattered: Box<ScatterGather<E>>,
        input: &[u8],
        poll: &mut PollState,
        output: &mut Vec<u8>,
    ) -> Step {
        while !scattered.parts.is_empty() || scattered.sending.is_some() {
            let mut has_room = output.len() <= cx.settings.output_max;
            if let Some(sending) = scattered.sending.as_mut().filter(|_| has_room) {
                has_room = sending.proceed(cx.settings.output_max, output);
                if has_room {
                    scattered.sending = None;
                    continue;
                }
            }
            let step = match has_room {
                true => self.answer_first(cx, &mut scattered, input, poll, output),
                false => PartStep::Wait(Next::Write),
            };
            match step {
                PartStep::Done => drop(scattered.parts.pop_front()),
                PartStep::Continue => (),
                PartStep::Wait(next) => {
                    self.pending = Pending::ScatterGather(scattered);
                    return Step::finish(0, next);
                }
                PartStep::Close => {
                    if self.changes_have_results(&mut scattered) {
                        return Step::finish(0, Next::Close);
                    }
                    self.pending = Pending::ScatterGather(scattered);
                    return Step::finish(0, Next::Wait);
                }
            }
        }
        poll.answered.add_all(&scattered.answered);
        if let Some(split) = scattered.split.take()
            && !self.finish_split(split, output)
        {
            // The session sends the next batch of keys.
            return Step::advance(0);
        }
        if scattered.discards_line {
            self.pending = Pending::DiscardLine;
        }
        self.consume_answered(cx, scattered.is_queued, scattered.len)
    }

    /// Discards the replies to forwarded parts. Returns whether all forwarded changes have results.
    /// Before all of them have results, the session must not close the client's connection: after
    /// the close, the client treats all its pending changes as failed. The first part counts as
    /// lost.
    fn changes_have_results(&mut self, scattered: &mut ScatterGather<E>) -> bool {
        if let Some(first) = scattered.parts.front_mut() {
            first.state = PartState::ConnectionLost;
        }
        let mut waits = false;
        for part in &mut scattered.parts {
            while let PartState::Remote(group, id) = part.state {
                let Some(route) = self.rare().routes.get(group) else { break };
                match route.take(id, &mut Vec::new()) {
                    ForwardOutcome::Pending => {
                        waits |= !part.is_repeatable;
                        break;
                    }
                    // Request the rest of the group's replies, even replies to lookups. The results
                    // of later changes follow them.
                    ForwardOutcome::More => route.resume(),
                    _ => part.state = PartState::ConnectionLost,
                }
            }
        }
        !waits
    }

    /// Takes the next step of the first part: waits for the part's reply, writes the reply, or
    /// sends the part again.
    fn answer_first<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        scattered: &mut ScatterGather<E>,
        input: &[u8],
        poll: &mut PollState,
        output: &mut Vec<u8>,
    ) -> PartStep {
        let Some(part) = scattered.parts.front_mut() else { return PartStep::Done };
        let (group, id) = match &mut part.state {
            PartState::Remote(group, id) => (*group, *id),
            PartState::Local(sending) => {
                scattered.sending = sending.take().filter(|_| !part.is_dropped);
                return match self.pass_to_new_groups(cx, scattered, input) {
                    true => PartStep::Continue,
                    false => self.finish_first(scattered, output),
                };
            }
            PartState::Refused => return self.finish_first(scattered, output),
            PartState::ConnectionLost => return PartStep::Close,
        };
        let Some(route) = self.rare().routes.get(group) else { return PartStep::Close };
        if std::mem::take(&mut scattered.waits_for_room) {
            route.resume();
        }
        let outcome = route.take(id, &mut part.answer);
        part.write_received(output);
        match outcome {
            ForwardOutcome::Pending => PartStep::Wait(Next::Wait),
            ForwardOutcome::More => {
                scattered.waits_for_room = true;
                PartStep::Continue
            }
            ForwardOutcome::Done => self.finish_first(scattered, output),
            ForwardOutcome::Close => {
                if !part.is_merged {
                    part.write_rest(output);
                }
                PartStep::Close
            }
            ForwardOutcome::ConnectionLost if !part.is_repeatable || part.has_output => {
                PartStep::Close
            }
            // A part has one key, so the owner can only have answered a part of a command that the
            // same server has to finish, such as `RENAME`.
            ForwardOutcome::RetryRest(_) => PartStep::Close,
            ForwardOutcome::Retry | ForwardOutcome::ConnectionLost => {
                part.answer.clear();
                let is_lost = outcome == ForwardOutcome::ConnectionLost;
                for other in scattered.parts.iter_mut().skip(1) {
                    other.take_result(group, &mut **route);
                }
                route.forget();
                self.resend_group(cx, scattered, (group, is_lost), input, poll);
                PartStep::Continue
            }
            ForwardOutcome::NoLeader => {
                part.answer.clear();
                let bytes = part.bytes(input).to_vec();
                part.state = PartState::Refused;
                self.refuse_part(cx, &bytes, &mut part.answer);
                self.finish_first(scattered, output)
            }
        }
    }

    /// Writes the rest of the first part's reply, after the reply is complete.
    fn finish_first(&mut self, scattered: &mut ScatterGather<E>, output: &mut Vec<u8>) -> PartStep {
        let Some(part) = scattered.parts.front_mut() else { return PartStep::Done };
        if let Some(split) = &mut scattered.split {
            return match split.take(part, output) {
                true => PartStep::Done,
                false => PartStep::Close,
            };
        }
        let is_to_all = scattered.to_all.is_some();
        let is_line = !part.trailer.is_empty() || part.continues || is_to_all;
        let is_right = match part.state {
            PartState::Remote(..) => {
                // A quiet flush has no reply, so each reply to it is an error.
                let is_error = !part.is_dropped && (part.has_output || part.answer != part.trailer);
                part.write_rest(output) && !(is_to_all && is_error)
            }
            PartState::Local(_) | PartState::Refused | PartState::ConnectionLost => {
                let is_refused = matches!(part.state, PartState::Refused);
                if !part.is_dropped {
                    output.append(&mut part.answer);
                }
                !is_refused || part.is_dropped
            }
        };
        if !is_right && is_line {
            // Clients treat an error as the end of the whole reply, so the session discards the
            // rest of the line of keys.
            if scattered.is_last_reply() && self.parser.abandon_line() {
                scattered.discards_line = true;
            }
            scattered.drop_rest_of_reply();
        }
        PartStep::Done
    }

    /// Sends the parts that wait for `group` to the current owners of their keys, in order.
    /// `is_lost` states whether `group` may have executed some of the parts.
    fn resend_group<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        scattered: &mut ScatterGather<E>,
        (group, is_lost): (GroupIndex, bool),
        input: &[u8],
        poll: &mut PollState,
    ) {
        let is_of_group =
            |part: &Part<E>| matches!(part.state, PartState::Remote(of, _) if of == group);
        // If the result of a change was lost, the session repeats no lookup of the group: a lookup
        // that the client sent before the change could otherwise return the changed item. The
        // session closes the connection when it reaches the first of these parts.
        let is_lost =
            is_lost && scattered.parts.iter().any(|part| is_of_group(part) && !part.is_repeatable);
        for part in &mut scattered.parts {
            if !is_of_group(part) {
                continue;
            }
            if is_lost {
                part.state = PartState::ConnectionLost;
                continue;
            }
            let bytes = part.bytes(input).to_vec();
            self.resend_part(cx, part, &bytes, poll);
        }
    }

    /// Sends a part to the current owner of its key. If this server is the owner, answers the part.
    fn resend_part<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        part: &mut Part<E>,
        bytes: &[u8],
        poll: &mut PollState,
    ) {
        let destination = match (&part.state, self.part_destination(cx, bytes)) {
            (PartState::Remote(group, _), Destination::AllGroups) => {
                let is_local = *group == GroupIndex::OWN && cx.host.owner() == Owner::Local;
                if is_local { Destination::Local } else { Destination::Group(*group) }
            }
            (_, destination) => destination,
        };
        match destination {
            Destination::Group(group) => {
                let id = self.pass(cx, group, self.conversation(), bytes);
                part.state = PartState::Remote(group, id);
            }
            Destination::Local => {
                poll.keeps_answers = true;
                self.answer_part(cx, part, bytes);
                part.strip_trailer();
            }
            Destination::AllGroups | Destination::PerKey | Destination::Alone => {
                self.refuse_part(cx, bytes, &mut part.answer);
                part.state = PartState::Refused;
            }
        }
    }

    /// Moves the large value that a part has started to write from the session to the part.
    pub(crate) fn take_sending(&mut self, part: &mut Part<E>) {
        part.state = PartState::Local(None);
        if let Pending::Send(_) = self.pending
            && let Pending::Send(sending) = std::mem::replace(&mut self.pending, Pending::Idle)
        {
            part.state = PartState::Local(Some(sending));
        }
    }

    fn part_destination<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        bytes: &[u8],
    ) -> Destination {
        let destination = match self.resp.is_some() {
            true => self.destination_resp(cx, bytes),
            false => self.destination_memcached(cx, bytes),
        };
        destination.unwrap_or(Destination::Alone)
    }

    fn answer_part<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        part: &mut Part<E>,
        bytes: &[u8],
    ) {
        let is_answered = match self.resp.is_some() {
            true => self.answer_resp_part(cx, bytes, &mut part.answer),
            false => self.answer_memcached(cx, bytes, &mut part.answer),
        };
        self.take_sending(part);
        if !is_answered {
            self.refuse_part(cx, bytes, &mut part.answer);
        }
    }

    fn refuse_part<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        bytes: &[u8],
        output: &mut Vec<u8>,
    ) {
        match self.resp.is_some() {
            true => resp_reply::error(&CommandError::NoLeader, output),
            false => self.refuse_memcached(cx, bytes, output),
        }
    }

    fn conversation(&self) -> Conversation {
        self.resp.as_ref().map_or(Conversation::Memcached, |state| state.conversation())
    }
}

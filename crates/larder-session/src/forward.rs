//! Forwards requests to the leader of this server's own group. `forward_upload.rs` forwards stores
//! with a long value to the leader of any group.
//!
//! The session sends the bytes of complete requests unchanged. Another session at the leader parses
//! and answers them, and this session copies the bytes of the replies to the output. This session
//! answers requests that are not about items (`stats`, logins, `quit`). The forwarded bytes stay in
//! the input until their replies are complete. If another node becomes leader, the session sends
//! the same bytes again. If the leader has answered only a part of the requests, the session sends
//! only the rest again.

use crate::Host;
use crate::context::{Context, Next, PollState, Step};
use crate::memcached::batch::{Batch, BatchEnd, BatchRequest, RequestKind, class_of};
use crate::memcached::{read_only, servers};
use crate::route::{
    AnsweredPart, Conversation, ForwardId, ForwardOutcome, GroupIndex, Owner, Route,
};
use crate::session::Session;
use crate::session::pending::{ForwardedRequests, Pending};
use larder_operations::CommandClass;
use larder_protocol::reply::resp as resp_reply;
use larder_protocol::resp::CommandError;
use larder_protocol::{KEY_LEN_MAX, ReplyFormat, Request, reply};
use larder_store::Engine;

/// The maximum length of a line with keys, in bytes. If a line is longer, the session closes the
/// connection instead of waiting for the end of the line.
const LINE_LEN_MAX: usize = 1 << 20;

/// Returns the reply format of a request about items, or `None` for other requests.
fn format<'r, 'b>(request: &'r Request<'b>) -> Option<&'r ReplyFormat<'b>> {
    match request {
        Request::Get(get) => Some(&get.format),
        Request::Store(store) => Some(&store.format),
        Request::Delete(delete) => Some(&delete.format),
        Request::Arithmetic(arithmetic) => Some(&arithmetic.format),
        Request::Debug(debug) => Some(&debug.format),
        Request::DropTag(drop) => Some(&drop.format),
        Request::FlushAll { format, .. } => Some(format),
        _ => None,
    }
}

/// Replies to a request about items with the error that the group has no leader.
pub(crate) fn refuse(batch: &Batch<'_>, ready: &BatchRequest<'_>, output: &mut Vec<u8>) {
    match ready.kind {
        RequestKind::Get(get) => reply::no_leader(&get.get().format, output),
        RequestKind::Set(index) => {
            let Some(set) = batch.sets.get(index) else { return };
            reply::no_leader(&set.store().format, output);
        }
        RequestKind::Other(index) => {
            let other = batch.others.get(index);
            if let Some(format) = other.and_then(|other| format(&other.request)) {
                reply::no_leader(format, output);
            }
        }
    }
}

/// Returns whether a request of a batch changes items.
pub(crate) fn changes(batch: &Batch<'_>, ready: &BatchRequest<'_>) -> bool {
    match ready.kind {
        RequestKind::Get(_) => false,
        RequestKind::Set(_) => true,
        RequestKind::Other(index) => {
            batch.others.get(index).is_some_and(|other| read_only::change(&other.request).is_some())
        }
    }
}

/// Returns the number of lookups at the start of a batch.
fn count_reads(batch: &Batch<'_>) -> usize {
    let looks_up = |ready: &&BatchRequest<'_>| match ready.kind {
        RequestKind::Get(_) => true,
        RequestKind::Set(_) => false,
        RequestKind::Other(index) => batch
            .others
            .get(index)
            .is_some_and(|other| matches!(other.request, Request::Get(_) | Request::GetEnd)),
    };
    batch.requests.iter().take_while(looks_up).take_while(|ready| !changes(batch, ready)).count()
}

impl<E: Engine> Session<E> {
    /// Returns whether another node answers requests about the items of this server's group.
    #[inline]
    pub(crate) fn is_remote<H: Host>(cx: &Context<'_, E, H>) -> bool {
        cx.settings.forwards && cx.host.owner() != Owner::Local
    }

    /// Returns the group whose leader must answer requests for a key, or `None` if this server
    /// answers them.
    pub(crate) fn remote_owner<H: Host>(cx: &Context<'_, E, H>, key: &[u8]) -> Option<GroupIndex> {
        if !cx.settings.forwards {
            return None;
        }
        let group = cx.host.shard_map().map_or(GroupIndex::OWN, |map| map.group_of(key));
        (group != GroupIndex::OWN || Self::is_remote(cx)).then_some(group)
    }

    /// Returns whether this server is a replica that may answer lookups itself.
    pub(crate) fn reads_locally<H: Host>(cx: &Context<'_, E, H>) -> bool {
        cx.host.owner() == Owner::RemoteWithLocalReads
    }

    /// Answers or forwards the next requests on a server that is a member of a cluster.
    #[inline(never)]
    pub(crate) fn answer_batch_in_cluster<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        input: &[u8],
        poll: &mut PollState,
        output: &mut Vec<u8>,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> Step {
        let owner = cx.host.owner();
        if self.is_forwarded && owner != Owner::Local {
            return Step::finish(0, Next::NotOwner);
        }
        let mut batch = Batch::default();
        let mut batch_end =
            self.gather(cx.operations.engine, input, poll.left, scratch, &mut batch);
        let named = servers::next_list_lookup(&batch, self.parser, owner);
        match named.filter(|_| !cx.settings.for_gateway) {
            Some(0) => {
                if let Some(step) = self.answer_servers(cx, &batch, poll, output) {
                    return step;
                }
            }
            Some(index) => {
                batch.requests.truncate(index);
                batch_end = BatchEnd::Full;
            }
            None => (),
        }
        if cx.host.shard_map().is_some() {
            return self.scatter_batch(cx, (batch, batch_end), input, poll, output, scratch);
        }
        match owner {
            Owner::Local => {
                self.answer_gathered(cx, &batch, batch_end, input, poll, output, scratch)
            }
            Owner::Remote | Owner::RemoteWithLocalReads => {
                let reads_locally = owner == Owner::RemoteWithLocalReads;
                let batch = (batch, batch_end, reads_locally);
                self.forward_batch(cx, batch, input, poll, output, scratch)
            }
        }
    }

    /// Forwards the requests of a batch. Answers requests that are not about items. If
    /// `reads_locally`, also answers lookups at the start of the batch.
    #[cold]
    fn forward_batch<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        (mut batch, batch_end, reads_locally): (Batch<'_>, BatchEnd<'_>, bool),
        input: &[u8],
        poll: &mut PollState,
        output: &mut Vec<u8>,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> Step {
        let reads = if reads_locally { count_reads(&batch) } else { 0 };
        let is_within_line = !self.parser.is_between_lines();
        let changes_next = batch.requests.first().is_some_and(|next| changes(&batch, next));
        if is_within_line && (!reads_locally || changes_next) {
            let batch = (batch, batch_end);
            return self.scatter_rest_of_line(cx, batch, input, poll, output, scratch);
        }
        if reads > 0 || is_within_line {
            let count = reads.max(1);
            let is_all = batch.requests.len() <= count;
            batch.requests.truncate(count);
            let batch_end = match batch_end {
                BatchEnd::Incomplete if is_all => BatchEnd::Incomplete,
                _ => BatchEnd::Full,
            };
            return self.answer_gathered(cx, &batch, batch_end, input, poll, output, scratch);
        }
        let mut forwarded = ForwardedRequests::new(self.parser);
        // The requests up to the end of the last complete line. If the next line is incomplete, the
        // session forwards only these requests.
        let mut whole = forwarded.clone();
        for ready in &batch.requests {
            let (class, changes) = match ready.kind {
                RequestKind::Get(_) => (Some(CommandClass::Get), false),
                RequestKind::Set(_) => (Some(CommandClass::Store), true),
                RequestKind::Other(index) => {
                    let Some(other) = batch.others.get(index) else { break };
                    let request = &other.request;
                    // The end of a line of keys, and a noop, go to the leader together with the
                    // requests before them.
                    let follows = matches!(request, Request::GetEnd)
                        || matches!(request, Request::Noop(_)) && forwarded.requests > 0;
                    if format(request).is_none() && !follows {
                        break;
                    }
                    forwarded.parser = other.parser;
                    (class_of(request), read_only::change(request).is_some())
                }
            };
            forwarded.add(ready.end, class, changes);
            if forwarded.parser.is_between_lines() {
                whole = forwarded.clone();
            }
        }
        if !forwarded.parser.is_between_lines() {
            // Forward a line of keys as a whole, even if the rest of the line is malformed.
            let rest = input.get(forwarded.len..).unwrap_or_default();
            match memchr::memchr(b'\n', rest) {
                Some(end) => {
                    forwarded.len += end + 1;
                    let _ = forwarded.parser.abandon_line();
                }
                None if whole.has_requests() => forwarded = whole,
                None if input.len() > LINE_LEN_MAX => return Step::finish(0, Next::Close),
                None => return Step::finish(0, Next::Read { wanted: 1 }),
            }
        }
        if forwarded.has_requests() {
            poll.left = poll.left.saturating_sub(forwarded.requests);
            return self.forward(cx, Conversation::Memcached, input, forwarded);
        }
        if batch.requests.is_empty() {
            return self.after_batch(cx, batch_end, input, poll, scratch);
        }
        batch.requests.truncate(1);
        self.answer_gathered(cx, &batch, BatchEnd::Full, input, poll, output, scratch)
    }

    /// Sends the first `forwarded.len` bytes of the input to the leader of this server's group.
    pub(crate) fn forward<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        conversation: Conversation,
        input: &[u8],
        mut forwarded: ForwardedRequests,
    ) -> Step {
        let bytes = input.get(..forwarded.len).unwrap_or_default();
        forwarded.to = (GroupIndex::OWN, self.pass(cx, GroupIndex::OWN, conversation, bytes));
        self.pending = Pending::Forward(Box::new(forwarded));
        Step::finish(0, Next::Wait)
    }

    /// Sends complete requests to the leader of a group.
    pub(crate) fn pass<H: Host>(
        &mut self,
        cx: &Context<'_, E, H>,
        group: GroupIndex,
        conversation: Conversation,
        bytes: &[u8],
    ) -> ForwardId {
        self.route_to(cx, group, conversation).pass(bytes, false, &(cx.waker)())
    }

    /// Returns the route to a group. Opens the route if it is not open yet.
    pub(crate) fn route_to<H: Host>(
        &mut self,
        cx: &Context<'_, E, H>,
        group: GroupIndex,
        conversation: Conversation,
    ) -> &mut dyn Route {
        let open = || cx.host.open_route(group, conversation.with(group));
        &mut **self.rare().routes.get_or(group, open)
    }

    /// Writes the replies to forwarded requests, or handles their failure.
    #[cold]
    pub(crate) fn resume_forward<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        mut forwarded: Box<ForwardedRequests>,
        input: &[u8],
        poll: &mut PollState,
        output: &mut Vec<u8>,
    ) -> Step {
        let (group, id) = forwarded.to;
        let Some(route) = self.rare().routes.get(group) else {
            return Step::finish(0, Next::Close);
        };
        let is_full = output.len() > cx.settings.output_max;
        if forwarded.waits_for_room && !is_full {
            forwarded.waits_for_room = false;
            route.resume();
        }
        let before = output.len();
        let outcome =
            if forwarded.waits_for_room { ForwardOutcome::Pending } else { route.take(id, output) };
        forwarded.has_output |= output.len() > before;
        match outcome {
            ForwardOutcome::Pending | ForwardOutcome::More => {
                forwarded.waits_for_room |= outcome == ForwardOutcome::More;
                let next = if forwarded.waits_for_room { Next::Write } else { Next::Wait };
                self.pending = Pending::Forward(forwarded);
                Step::finish(0, next)
            }
            ForwardOutcome::Done => {
                poll.answered.add_all(&forwarded.answered);
                self.parser = forwarded.parser;
                self.consume_answered(cx, forwarded.is_queued, forwarded.len)
            }
            ForwardOutcome::Close => Step::finish(0, Next::Close),
            ForwardOutcome::Retry => Step::advance(0),
            ForwardOutcome::RetryRest(part) => self.resume_rest(cx, &forwarded, part, input, poll),
            ForwardOutcome::ConnectionLost if forwarded.is_repeatable && !forwarded.has_output => {
                Step::advance(0)
            }
            ForwardOutcome::ConnectionLost => Step::finish(0, Next::Close),
            ForwardOutcome::NoLeader => self.refuse_forwarded(cx, &forwarded, input, poll, output),
        }
    }

    /// Consumes the answered part of forwarded requests. The session then sends the rest to the
    /// next owner, or answers the rest itself. If the answered part does not end at the end of a
    /// request or of a key, closes the connection.
    fn resume_rest<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        forwarded: &ForwardedRequests,
        part: AnsweredPart,
        input: &[u8],
        poll: &mut PollState,
    ) -> Step {
        let requests = input.get(..forwarded.len).unwrap_or_default();
        let is_found = match self.resp.is_some() {
            true => self.note_answered_resp(cx, forwarded.is_queued, part, requests, poll),
            false => self.note_answered(cx, part.len, requests, poll),
        };
        match is_found {
            true => self.consume_answered(cx, forwarded.is_queued, part.len),
            false => Step::finish(0, Next::Close),
        }
    }

    /// Advances the parser to the offset `len` in `requests`, and counts the requests before this
    /// offset. Returns false if no request ends at this offset.
    fn note_answered<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        len: usize,
        requests: &[u8],
        poll: &mut PollState,
    ) -> bool {
        let mut at = 0;
        while at < len {
            let rest = requests.get(at..).unwrap_or_default();
            let (mut batch, mut scratch) = (Batch::default(), [0; KEY_LEN_MAX]);
            self.gather(cx.operations.engine, rest, Batch::LEN_MAX, &mut scratch, &mut batch);
            let answered = batch.requests.iter().take_while(|ready| at + ready.end <= len);
            let mut end = 0;
            for ready in answered {
                if let RequestKind::Other(index) = ready.kind
                    && let Some(other) = batch.others.get(index)
                {
                    self.parser = other.parser;
                }
                if let Some(class) = batch.class(ready) {
                    poll.answered.add(class, 1);
                }
                end = ready.end;
            }
            if end == 0 {
                return false;
            }
            at += end;
        }
        true
    }

    /// Consumes `len` bytes of answered requests in the input, or in the queue if `is_queued`.
    pub(crate) fn consume_answered<H: Host>(
        &mut self,
        cx: &Context<'_, E, H>,
        is_queued: bool,
        len: usize,
    ) -> Step {
        if !is_queued {
            return Step::advance(len);
        }
        if let Some(state) = &mut self.resp {
            state.advance_queue(len, cx.host);
        }
        Step::advance(0)
    }

    /// Replies to forwarded requests with errors, because the group has no leader.
    fn refuse_forwarded<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        forwarded: &ForwardedRequests,
        input: &[u8],
        poll: &mut PollState,
        output: &mut Vec<u8>,
    ) -> Step {
        poll.answered.add_all(&forwarded.answered);
        if self.resp.is_some() {
            (0..forwarded.requests)
                .for_each(|_| resp_reply::error(&CommandError::NoLeader, output));
            return self.consume_answered(cx, forwarded.is_queued, forwarded.len);
        }
        let mut scratch = [0; KEY_LEN_MAX];
        let mut batch = Batch::default();
        self.gather(cx.operations.engine, input, forwarded.requests, &mut scratch, &mut batch);
        for ready in &batch.requests {
            refuse(&batch, ready, output);
            let RequestKind::Other(index) = ready.kind else { continue };
            let Some(other) = batch.others.get(index) else { continue };
            self.parser = other.parser;
            // Clients treat the error as the end of the whole reply, so the session discards the
            // rest of the line of keys.
            if self.parser.abandon_line() {
                self.pending = Pending::DiscardLine;
                return Step::advance(ready.end);
            }
            if let Request::Noop(format) = &other.request {
                reply::noop(format, output);
            }
        }
        Step::advance(forwarded.len)
    }
}

//! Requests that another node answers, because it leads the group.
//!
//! Their bytes go there as they are, and the bytes of the answers come back: the other node reads and answers them
//! with a session of its own. What is not about items (`stats`, logins, `quit`) is answered here. The bytes stay in
//! the input until they are answered, so that they can go to another node if the first one does not lead any more.

use crate::Host;
use crate::context::{Context, Next, Step, Turn};
use crate::memcached::batch::{Batch, BatchEnd, Ready, What, class_of};
use crate::memcached::{read_only, servers};
use crate::route::{Conversation, ForwardId, ForwardOutcome, Group, Owner};
use crate::session::Session;
use crate::session::pending::{Body, Forwarded, Passing, Pending};
use larder_operations::CommandClass;
use larder_protocol::reply::resp as resp_reply;
use larder_protocol::resp::CommandError;
use larder_protocol::{KEY_LEN_MAX, ReplyFormat, Request, reply};
use larder_store::Engine;

/// A line of keys that is longer is not forwarded.
const LINE_LEN_MAX: usize = 1 << 20;

/// How a request about an item is answered; `None` for other requests.
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

/// Answers a request about items that nobody could answer.
pub(crate) fn refuse(batch: &Batch<'_>, ready: &Ready<'_>, output: &mut Vec<u8>) {
    match ready.what {
        What::Get(get) => reply::no_leader(&get.get().format, output),
        What::Set(index) => {
            let Some(set) = batch.sets.get(index) else { return };
            reply::no_leader(&set.store().format, output);
        }
        What::Other(index) => {
            let other = batch.others.get(index);
            if let Some(format) = other.and_then(|other| format(&other.request)) {
                reply::no_leader(format, output);
            }
        }
    }
}

/// Whether a request of a batch changes items.
pub(crate) fn changes(batch: &Batch<'_>, ready: &Ready<'_>) -> bool {
    match ready.what {
        What::Get(_) => false,
        What::Set(_) => true,
        What::Other(index) => {
            batch.others.get(index).is_some_and(|other| read_only::change(&other.request).is_some())
        }
    }
}

/// How many requests at the beginning of a batch only look items up.
fn count_reads(batch: &Batch<'_>) -> usize {
    let looks_up = |ready: &&Ready<'_>| match ready.what {
        What::Get(_) => true,
        What::Set(_) => false,
        What::Other(index) => batch
            .others
            .get(index)
            .is_some_and(|other| matches!(other.request, Request::Get(_) | Request::GetEnd)),
    };
    batch.ready.iter().take_while(looks_up).take_while(|ready| !changes(batch, ready)).count()
}

impl<E: Engine> Session<E> {
    /// Whether another node answers requests about items of this server's group.
    #[inline]
    pub(crate) fn is_elsewhere<H: Host>(cx: &Context<'_, E, H>) -> bool {
        cx.settings.forwards && cx.host.owner() != Owner::Local
    }

    /// The group whose leader answers requests for a key, if that is not this server.
    pub(crate) fn elsewhere<H: Host>(cx: &Context<'_, E, H>, key: &[u8]) -> Option<Group> {
        if !cx.settings.forwards {
            return None;
        }
        let group = cx.host.shard_map().map_or(Group::OWN, |map| map.group_of(key));
        (group != Group::OWN || Self::is_elsewhere(cx)).then_some(group)
    }

    /// Whether another node answers requests about items, and this one may answer look-ups from its copy.
    pub(crate) fn reads_copy<H: Host>(cx: &Context<'_, E, H>) -> bool {
        cx.host.owner() == Owner::RemoteWithLocalReads
    }

    /// Answers the next requests on a member of a group, or forwards them.
    #[inline(never)]
    pub(crate) fn answer_batch_of_member<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        input: &[u8],
        turn: &mut Turn,
        output: &mut Vec<u8>,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> Step {
        let owner = cx.host.owner();
        if self.is_forwarded && owner != Owner::Local {
            return Step::end(0, Next::Abandon);
        }
        let mut batch = Batch::default();
        let mut batch_end =
            self.gather(cx.operations.engine, input, turn.left, scratch, &mut batch);
        let named = servers::next_look_up(&batch, self.parser, owner);
        match named.filter(|_| !cx.settings.for_gateway) {
            Some(0) => {
                if let Some(step) = self.answer_servers(cx, &batch, turn, output) {
                    return step;
                }
            }
            Some(index) => {
                batch.ready.truncate(index);
                batch_end = BatchEnd::Full;
            }
            None => (),
        }
        if cx.host.shard_map().is_some() {
            return self.scatter_batch(cx, (batch, batch_end), input, turn, output, scratch);
        }
        match owner {
            Owner::Local => {
                self.answer_gathered(cx, &batch, batch_end, input, turn, output, scratch)
            }
            Owner::Remote | Owner::RemoteWithLocalReads => {
                let reads_copy = owner == Owner::RemoteWithLocalReads;
                let batch = (batch, batch_end, reads_copy);
                self.forward_batch(cx, batch, input, turn, output, scratch)
            }
        }
    }

    /// Forwards the requests of a batch; or answers some, if they are not about items or may be answered from a copy.
    #[cold]
    fn forward_batch<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        (mut batch, batch_end, reads_copy): (Batch<'_>, BatchEnd<'_>, bool),
        input: &[u8],
        turn: &mut Turn,
        output: &mut Vec<u8>,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> Step {
        let reads = if reads_copy { count_reads(&batch) } else { 0 };
        let is_within_line = !self.parser.is_between_lines();
        let changes_next = batch.ready.first().is_some_and(|next| changes(&batch, next));
        if is_within_line && (!reads_copy || changes_next) {
            // This server has answered the first keys of the line, and may not answer the others.
            reply::no_leader_within_line(output);
            let _ = self.parser.abandon_line();
            self.pending = Pending::SwallowLine;
            return Step::go_on(0);
        }
        if reads > 0 || is_within_line {
            let count = reads.max(1);
            let is_all = batch.ready.len() <= count;
            batch.ready.truncate(count);
            let batch_end = match batch_end {
                BatchEnd::Incomplete if is_all => BatchEnd::Incomplete,
                _ => BatchEnd::Full,
            };
            return self.answer_gathered(cx, &batch, batch_end, input, turn, output, scratch);
        }
        let mut forwarded = Forwarded::new(self.parser);
        // Those up to the end of the last line that is complete.
        let mut whole = forwarded.clone();
        for ready in &batch.ready {
            let (class, changes) = match ready.what {
                What::Get(_) => (Some(CommandClass::Get), false),
                What::Set(_) => (Some(CommandClass::Store), true),
                What::Other(index) => {
                    let Some(other) = batch.others.get(index) else { break };
                    let request = &other.request;
                    // What ends a line of keys, and what ends a pipeline, go with those before them.
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
            // The keys of a line go together, whether the rest of the line is right or not.
            let rest = input.get(forwarded.len..).unwrap_or_default();
            match memchr::memchr(b'\n', rest) {
                Some(end) => {
                    forwarded.len += end + 1;
                    let _ = forwarded.parser.abandon_line();
                }
                None if whole.has_requests() => forwarded = whole,
                None if input.len() > LINE_LEN_MAX => return Step::end(0, Next::Close),
                None => return Step::end(0, Next::Read { wanted: 1 }),
            }
        }
        if forwarded.has_requests() {
            turn.left = turn.left.saturating_sub(forwarded.requests);
            return self.forward(cx, Conversation::Memcached, input, forwarded);
        }
        if batch.ready.is_empty() {
            return self.after_batch(cx, batch_end, input, turn, scratch);
        }
        batch.ready.truncate(1);
        self.answer_gathered(cx, &batch, BatchEnd::Full, input, turn, output, scratch)
    }

    /// Sends requests at the beginning of the input to the leader of this server's group.
    pub(crate) fn forward<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        conversation: Conversation,
        input: &[u8],
        mut forwarded: Forwarded,
    ) -> Step {
        let bytes = input.get(..forwarded.len).unwrap_or_default();
        forwarded.to = (Group::OWN, self.pass(cx, Group::OWN, conversation, bytes));
        self.pending = Pending::Forwarded(Box::new(forwarded));
        Step::end(0, Next::Wait)
    }

    /// Sends complete requests to the leader of a group.
    pub(crate) fn pass<H: Host>(
        &mut self,
        cx: &Context<'_, E, H>,
        group: Group,
        conversation: Conversation,
        bytes: &[u8],
    ) -> ForwardId {
        let waker = (cx.waker)();
        let open = || cx.host.open_route(group, conversation);
        self.aside().routes.get_or(group, open).pass(bytes, false, &waker)
    }

    /// Looks what has become of requests that were forwarded.
    #[cold]
    pub(crate) fn resume_forwarded<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        mut forwarded: Box<Forwarded>,
        input: &[u8],
        turn: &mut Turn,
        output: &mut Vec<u8>,
    ) -> Step {
        let (group, passed) = forwarded.to;
        let Some(route) = self.aside().routes.get(group) else {
            return Step::end(0, Next::Close);
        };
        let is_full = output.len() > cx.settings.output_max;
        if forwarded.waits_for_room && !is_full {
            forwarded.waits_for_room = false;
            route.resume();
        }
        let before = output.len();
        let routed = if forwarded.waits_for_room {
            ForwardOutcome::Pending
        } else {
            route.take(passed, output)
        };
        forwarded.has_output |= output.len() > before;
        match routed {
            ForwardOutcome::Pending | ForwardOutcome::More => {
                forwarded.waits_for_room |= routed == ForwardOutcome::More;
                let next = if forwarded.waits_for_room { Next::Write } else { Next::Wait };
                self.pending = Pending::Forwarded(forwarded);
                Step::end(0, next)
            }
            ForwardOutcome::Done => {
                turn.answered.add_all(&forwarded.answered);
                self.parser = forwarded.parser;
                self.take_answered(cx, forwarded.is_script, forwarded.len)
            }
            ForwardOutcome::Close => Step::end(0, Next::Close),
            ForwardOutcome::Retry | ForwardOutcome::NoLeader if forwarded.refusal.is_some() => {
                turn.answered.add_all(&forwarded.answered);
                output.extend(forwarded.refusal.into_iter().flatten());
                self.parser = forwarded.parser;
                Step::go_on(0)
            }
            ForwardOutcome::Retry => Step::go_on(0),
            ForwardOutcome::ConnectionLost if forwarded.is_repeatable && !forwarded.has_output => {
                Step::go_on(0)
            }
            ForwardOutcome::ConnectionLost => Step::end(0, Next::Close),
            ForwardOutcome::NoLeader => self.refuse_forwarded(cx, &forwarded, input, turn, output),
        }
    }

    /// Removes answered requests from where they are.
    pub(crate) fn take_answered<H: Host>(
        &mut self,
        cx: &Context<'_, E, H>,
        is_script: bool,
        len: usize,
    ) -> Step {
        if !is_script {
            return Step::go_on(len);
        }
        if let Some(state) = &mut self.resp {
            state.advance_script(len, cx.host);
        }
        Step::go_on(0)
    }

    /// Answers requests that nobody else could.
    fn refuse_forwarded<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        forwarded: &Forwarded,
        input: &[u8],
        turn: &mut Turn,
        output: &mut Vec<u8>,
    ) -> Step {
        turn.answered.add_all(&forwarded.answered);
        if self.resp.is_some() {
            (0..forwarded.requests)
                .for_each(|_| resp_reply::error(&CommandError::NoLeader, output));
            return self.take_answered(cx, forwarded.is_script, forwarded.len);
        }
        let mut scratch = [0; KEY_LEN_MAX];
        let mut batch = Batch::default();
        self.gather(cx.operations.engine, input, forwarded.requests, &mut scratch, &mut batch);
        for ready in &batch.ready {
            refuse(&batch, ready, output);
            let What::Other(index) = ready.what else { continue };
            let Some(other) = batch.others.get(index) else { continue };
            self.parser = other.parser;
            // The client takes the error for the end of the answer.
            if self.parser.abandon_line() {
                self.pending = Pending::SwallowLine;
                return Step::go_on(ready.end);
            }
            if let Request::Noop(format) = &other.request {
                reply::noop(format, output);
            }
        }
        Step::go_on(forwarded.len)
    }

    /// Begins to forward a store whose value has not arrived.
    #[cold]
    pub(crate) fn forward_body<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        group: Group,
        body: &Body<'_>,
        input: &[u8],
    ) -> Step {
        let waker = (cx.waker)();
        let open = || cx.host.open_route(group, Conversation::Memcached);
        let route = self.aside().routes.get_or(group, open);
        if !route.has_room(&waker) {
            return Step::end(0, Next::Wait);
        }
        let passed = route.pass(input.get(..body.head_len).unwrap_or_default(), true, &waker);
        let mut then = Vec::new();
        reply::no_leader(&body.store.format, &mut then);
        let passing =
            Passing { to: (group, passed), left: body.body_len, parser: self.parser, then };
        self.pending = Pending::Passing(Box::new(passing));
        Step::go_on(body.head_len)
    }

    /// Forwards what has come of a value.
    #[cold]
    pub(crate) fn resume_passing<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        mut passing: Box<Passing>,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Step {
        let (group, passed) = passing.to;
        let Some(route) = self.aside().routes.get(group) else {
            return Step::end(0, Next::Close);
        };
        let waker = (cx.waker)();
        match route.take(passed, output) {
            ForwardOutcome::Pending => (),
            ForwardOutcome::Retry | ForwardOutcome::NoLeader => {
                let Passing { left, then, .. } = *passing;
                self.pending = Pending::Swallow { left, then };
                return Step::go_on(0);
            }
            ForwardOutcome::More
            | ForwardOutcome::Done
            | ForwardOutcome::Close
            | ForwardOutcome::ConnectionLost => {
                return Step::end(0, Next::Close);
            }
        }
        let wanted = usize::try_from(passing.left).unwrap_or(usize::MAX);
        let bytes = input.get(..wanted.min(input.len())).unwrap_or_default();
        if bytes.is_empty() || !route.has_room(&waker) {
            let next = if bytes.is_empty() { Next::Read { wanted } } else { Next::Wait };
            self.pending = Pending::Passing(passing);
            return Step::end(0, next);
        }
        passing.left -= bytes.len() as u64;
        route.pass_rest(bytes, passing.left > 0, &waker);
        if passing.left > 0 {
            self.pending = Pending::Passing(passing);
            return Step::go_on(bytes.len());
        }
        let mut forwarded = Forwarded::new(passing.parser);
        forwarded.to = passing.to;
        forwarded.add(0, Some(CommandClass::Store), true);
        forwarded.refusal = Some(passing.then);
        self.pending = Pending::Forwarded(Box::new(forwarded));
        Step::go_on(bytes.len())
    }
}

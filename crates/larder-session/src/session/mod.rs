//! The session: answers complete requests in batches, and leaves incomplete requests in the input.

pub(crate) mod dump;
pub(crate) mod key_scan;
pub(crate) mod pending;
pub(crate) mod resp_state;
pub(crate) mod tracking_state;

use crate::Host;
use crate::context::{Context, Next, PollState, Progress, Step};
use crate::route::{AnsweredPart, Conversation, Routes};
use crate::session::pending::Pending;
use crate::session::resp_state as state;
use crate::session::tracking_state::TrackingState;
use larder_operations::{AnsweredCounts, Subscription, Tags};
use larder_protocol::{KEY_LEN_MAX, Parser, Streams};
use larder_store::{AckState, Delivery, Engine};
use std::sync::Arc;

/// The protocol state of one connection. In memcached's protocols, a session owns no heap memory
/// between requests, unless it receives or sends a large value, waits for another component, or has
/// forwarded requests.
///
/// Input may arrive in pieces of any length. The session does not consume an incomplete request.
/// The driver passes the incomplete request again, together with the bytes that follow:
///
/// ```
/// use larder_session::{Next, Session, test_util::TestServer};
/// use larder_store::{SizeClasses, dashmap};
///
/// let classes = SizeClasses::new(vec![96, 512, 4096], 59);
/// let config = dashmap::Config { limit_bytes: 1 << 20, cas: true, classes: classes.clone(), seed: 7 };
/// let engine = dashmap::Cache::new(config).handle();
/// // Like a thread of larderd, a `TestServer` has an engine handle, settings and a clock.
/// let mut server = TestServer::new(engine, 4096, classes);
///
/// let (mut session, mut output) = (Session::new(), Vec::new());
/// let progress = server.poll(&mut session, b"set k 0 0 1\r\n5\r\nget k\r", &mut output);
/// assert_eq!(output, b"STORED\r\n");
/// assert_eq!((progress.consumed, progress.next), (16, Next::Read { wanted: 1 }));
///
/// let progress = server.poll(&mut session, b"get k\r\n", &mut output);
/// assert_eq!(output, b"STORED\r\nVALUE k 0 1\r\n5\r\nEND\r\n");
/// assert_eq!(progress.consumed, 7);
/// ```
pub struct Session<E: Engine> {
    pub(crate) parser: Parser,
    pub(crate) pending: Pending<E>,
    /// The connection's number in the log.
    pub(crate) client: u64,
    /// The log streams that the host observes in this poll: see [`Host::observed`].
    pub(crate) observed: Streams,
    /// Whether the session closes the connection because the client violated the protocol.
    pub(crate) failed: bool,
    /// The state of a RESP connection; `None` in memcached's protocols.
    pub(crate) resp: Option<Box<state::State>>,
    /// State that few sessions need. The box keeps the other sessions small.
    rare: Option<Box<RareState<E>>>,
    /// Whether the session closes the connection after the driver has sent the held replies.
    closes_after_hold: bool,
    /// Whether another node has forwarded the requests of this session. The session does not
    /// forward them again.
    pub(crate) is_forwarded: bool,
    /// Whether the forwarding node had an older shard map than this server when it sent the
    /// requests. A request to all groups may then be missing at groups that this map lacks.
    pub(crate) has_old_map: bool,
}

/// The state of sessions that wait for slower storage, forward requests, or wait for replicas.
pub(crate) struct RareState<E: Engine> {
    /// The state of requests that wait for slower storage.
    pub(crate) storage_wait: StorageWait<E::PendingRead>,
    /// The position that replicas must acknowledge before the driver may send the held replies.
    held: Option<E::Position>,
    /// The routes to the groups to which the session has forwarded requests. These groups may
    /// include the server's own group.
    pub(crate) routes: Routes,
}

impl<E: Engine> Default for RareState<E> {
    fn default() -> Self {
        Self { storage_wait: StorageWait::default(), held: None, routes: Routes::default() }
    }
}

/// The state of requests that wait for slower storage.
pub(crate) struct StorageWait<R> {
    /// The reads that the waiting requests have started.
    pub(crate) reads: Vec<PendingRead<R>>,
    /// The tags of the first waiting request, as they were when the session first executed it.
    pub(crate) tags: Option<Tags>,
}

impl<R> Default for StorageWait<R> {
    fn default() -> Self {
        Self { reads: Vec::new(), tags: None }
    }
}

impl<R> StorageWait<R> {
    pub(crate) fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.tags.is_none()
    }
}

/// A read from slower storage.
pub(crate) struct PendingRead<R> {
    /// The hash of the key whose item the engine reads.
    pub(crate) hash: u64,
    pub(crate) engine_read: R,
    /// The state of the read at the start of this poll.
    pub(crate) delivery: Delivery,
}

/// The state of a session, for `stats conns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Waiting for a request, or for the rest of a request.
    Waiting,
    /// Receiving a large value.
    Receiving,
    /// Discarding the value, or the rest of the line, of a refused request.
    Swallowing,
    /// Sending a large value.
    Sending,
    /// Writing a dump of items or a list of keys.
    Dumping,
    /// Writing the log. The driver must poll the session regularly, with or without input.
    Watching,
    /// Waiting for slower storage, for another node, or for the acknowledgement of a change.
    Blocked,
}

impl<E: Engine> Default for Session<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E: Engine> Session<E> {
    /// Returns a session for memcached's protocols. It accepts every dialect, requires no login,
    /// and has the number 0 in the log.
    #[must_use]
    pub fn new() -> Self {
        Self::opening(Parser::default(), 0)
    }

    /// Returns a session that starts with the parser state `opening`, which determines the accepted
    /// dialects and whether a login is required. `client` is its number in the log.
    #[must_use]
    pub fn opening(opening: Parser, client: u64) -> Self {
        let (parser, pending) = (opening, Pending::Idle);
        let (observed, rare) = (Streams::default(), None);
        let (failed, resp, closes_after_hold) = (false, None, false);
        let (is_forwarded, has_old_map) = (false, false);
        Self {
            parser,
            pending,
            client,
            observed,
            failed,
            resp,
            rare,
            closes_after_hold,
            is_forwarded,
            has_old_map,
        }
    }

    /// Returns a session for RESP. `client` is its number in the log.
    #[must_use]
    pub fn resp(client: u64, login_required: bool) -> Self {
        let state = state::State::new(login_required);
        Self { resp: Some(Box::new(state)), ..Self::opening(Parser::default(), client) }
    }

    /// Returns a session for requests that another node forwards. In RESP conversations, the
    /// session tracks the keys that requests look up for `reader`, the subscription of that node.
    #[must_use]
    pub fn forwarded(conversation: Conversation, reader: Option<Arc<Subscription>>) -> Self {
        let mut session = match conversation {
            Conversation::Memcached | Conversation::Gateway => Self::new(),
            _ => Self::resp(0, false),
        };
        if let Some(state) = &mut session.resp {
            state.set_conversation(conversation);
            state.tracking = reader.map(|reader| Box::new(TrackingState::shared(reader)));
        }
        session.is_forwarded = true;
        session
    }

    /// States whether the node that forwards this session's requests had an older shard map than
    /// this server when it sent them. If so, the session executes no request to all groups: it
    /// returns [`Next::NotOwner`], and the node sends the request again once it has read the map.
    pub fn note_old_map(&mut self, is_old: bool) {
        self.has_old_map = is_old;
    }

    /// Returns whether the session returned [`Next::Close`] because the client violated the
    /// protocol.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Returns the state of the session, for `stats conns`.
    pub fn state(&self) -> State {
        let rare = self.rare.as_ref();
        match &self.pending {
            _ if rare.is_some_and(|rare| rare.held.is_some()) => State::Blocked,
            Pending::Idle if rare.is_some_and(|rare| !rare.storage_wait.is_empty()) => {
                State::Blocked
            }
            Pending::Idle => State::Waiting,
            Pending::Discard { .. } | Pending::DiscardLine | Pending::DiscardRequest(_) => {
                State::Swallowing
            }
            Pending::ForwardUpload(upload) if upload.left == 0 => State::Blocked,
            Pending::Receive(_) | Pending::ForwardUpload(_) => State::Receiving,
            Pending::Forward(_) | Pending::ScatterGather(_) => State::Blocked,
            Pending::Send(_) => State::Sending,
            Pending::Dump(_) | Pending::KeyScan(_) => State::Dumping,
            Pending::Watch(_) => State::Watching,
        }
    }

    /// Returns whether the session has unsolicited messages to write to its client.
    pub fn has_messages(&self) -> bool {
        let state = self.resp.as_ref().and_then(|state| state.tracking.as_ref());
        state.is_some_and(|tracking| tracking.has_messages())
    }

    /// Returns whether the client is waiting for messages. Such a client may send no requests for a
    /// long time.
    pub fn awaits_messages(&self) -> bool {
        self.resp.as_ref().is_some_and(|state| state.is_subscribed())
    }

    /// Returns the cache memory, in bytes, that the session leases for values that it sends.
    pub fn leased_bytes(&self) -> usize {
        match &self.pending {
            Pending::Send(sending) => sending.memory(),
            Pending::ScatterGather(scattered) => scattered.leased_bytes(),
            _ => 0,
        }
    }

    /// Returns the cache memory, in bytes, of the value that the session is receiving.
    pub fn uploaded_bytes(&self) -> usize {
        match &self.pending {
            Pending::Receive(incoming) => incoming.memory,
            _ => 0,
        }
    }

    /// Releases the session's reserved memory. Cancels pending reads and forwarded requests.
    pub fn close(&mut self, host: &impl Host) {
        self.rare = None;
        let pending = std::mem::replace(&mut self.pending, Pending::Idle);
        match &pending {
            Pending::Watch(watcher) => host.unwatch(*watcher),
            Pending::Dump(dump) if dump.is_crawl() => host.note_dump(false),
            Pending::ForwardUpload(upload) => upload.release(host),
            _ => (),
        }
        host.release(pending.reserved());
        if let Some(resp) = &mut self.resp {
            if self.is_forwarded {
                // Keep the subscription, because other sessions share it.
                resp.tracking = None;
            }
            resp.close(host);
        }
    }

    /// After [`Next::NotOwner`], returns the part of the forwarded requests that this session has
    /// answered. `consumed` is the number of bytes of these requests that the session has consumed.
    /// Returns `None` if no other server can continue them.
    #[must_use]
    pub fn answered_part(&self, consumed: usize) -> Option<AnsweredPart> {
        let unanswered = match &self.pending {
            Pending::Idle => 0,
            Pending::Receive(incoming) => incoming.received(),
            _ => return None,
        };
        let progress = match &self.resp {
            Some(state) if state.has_queued() => return None,
            state => state.as_ref().map(|state| state.key_progress).unwrap_or_default(),
        };
        let len = consumed.checked_sub(unanswered)?;
        Some(AnsweredPart { len, keys: progress.keys, found: progress.found.try_into().ok()? })
    }

    /// Polls the session: answers complete requests of `input`, and appends the replies to
    /// `output`. `input` must start with the bytes that the last poll did not consume. `output` may
    /// contain unsent bytes of earlier polls. A poll that returns [`Next::Abandon`] appends
    /// nothing.
    pub fn receive<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Progress {
        let before = output.len();
        let progress = self.receive_unchecked(cx, input, output);
        if progress.next == Next::Abandon {
            output.truncate(before);
        }
        progress
    }

    /// Polls the session. Unlike [`Self::receive`], leaves the replies in `output` after
    /// [`Next::Abandon`].
    #[inline]
    fn receive_unchecked<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Progress {
        if let Some(rare) = &mut self.rare
            && let Some(position) = rare.held.take()
        {
            let answered = AnsweredCounts::default();
            let (hold, next) = match self.hold(cx, position) {
                AckState::Lost => (false, Next::Abandon),
                state if self.closes_after_hold => (state == AckState::Pending, Next::Close),
                state => (state == AckState::Pending, Next::Yield),
            };
            return Progress { consumed: 0, hold, next, answered };
        }
        cx.operations.engine.begin_batch(cx.operations.now);
        self.observed = cx.host.observed();
        if let Some(rare) = &mut self.rare {
            rare.storage_wait.reads.iter_mut().for_each(|read| {
                read.delivery = cx.operations.engine.deliver(&read.engine_read);
            });
        }
        let mut scratch = [0; KEY_LEN_MAX];
        let before = output.len();
        let left = cx.settings.requests_per_poll.max(1);
        let mut poll =
            PollState { left, answered: AnsweredCounts::default(), keeps_answers: false };
        let (consumed, next) = self.poll_requests(cx, input, &mut poll, output, &mut scratch);
        let has_answered = output.len() > before || poll.keeps_answers;
        let position = if has_answered { cx.operations.engine.ack_position() } else { None };
        cx.operations.engine.end_batch();
        match next {
            // All requests are answered, so no request needs the remaining reads.
            Next::Read { .. } => self.retain_reads(false, |_| false),
            // Keep all reads, because a request may need several reads that end in different polls.
            Next::Wait => (),
            _ => self.retain_reads(true, |read| read.delivery == Delivery::InProgress),
        }
        self.closes_after_hold = next == Next::Close;
        let answered = poll.answered;
        match position.map(|position| self.hold(cx, position)) {
            None | Some(AckState::Acknowledged) => {
                Progress { consumed, hold: false, next, answered }
            }
            Some(AckState::Pending) => Progress { consumed, hold: true, next, answered },
            Some(AckState::Lost) => {
                Progress { consumed, hold: false, next: Next::Abandon, answered }
            }
        }
    }

    /// Returns whether the replicas have acknowledged `position`. If the acknowledgement is
    /// pending, stores the position for the next poll.
    #[cold]
    fn hold<H: Host>(&mut self, cx: &mut Context<'_, E, H>, position: E::Position) -> AckState {
        let state = cx.operations.engine.ack_state(&position, &(cx.waker)());
        if state == AckState::Pending {
            self.rare().held = Some(position);
        }
        state
    }

    #[cold]
    pub(crate) fn rare(&mut self) -> &mut RareState<E> {
        self.rare.get_or_insert_default()
    }

    /// Closes all routes, because the next requests may use another protocol.
    pub(crate) fn close_routes(&mut self) {
        if let Some(rare) = &mut self.rare {
            rare.routes = Routes::default();
        }
    }

    fn poll_requests<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        input: &[u8],
        poll: &mut PollState,
        output: &mut Vec<u8>,
        scratch: &mut [u8; KEY_LEN_MAX],
    ) -> (usize, Next) {
        let mut consumed = 0;
        loop {
            let rest = input.get(consumed..).unwrap_or_default();
            let step = if !self.pending.is_idle() {
                self.resume(cx, rest, poll, output)
            } else if output.len() > cx.settings.output_max {
                Step::finish(0, Next::Write)
            } else if self.resp.is_some() {
                self.answer_resp(cx, rest, poll, output)
            } else if rest.is_empty() {
                Step::finish(0, Next::Read { wanted: 1 })
            } else if poll.left == 0 {
                Step::finish(0, Next::Yield)
            } else {
                self.answer_batch(cx, rest, poll, output, scratch)
            };
            consumed += step.consumed;
            if let Some(next) = step.next {
                let waits = matches!(next, Next::Read { .. }) && self.resp.is_some();
                return match waits && !self.write_last_messages(cx, output) {
                    true => (consumed, Next::Write),
                    false => (consumed, next),
                };
            }
        }
    }

    /// Retains only the reads for which `keeps_read` returns true. Drops the tags unless
    /// `keeps_tags`.
    fn retain_reads(
        &mut self,
        keeps_tags: bool,
        keeps_read: impl Fn(&PendingRead<E::PendingRead>) -> bool,
    ) {
        let Some(rare) = &mut self.rare else { return };
        rare.storage_wait.reads.retain(keeps_read);
        rare.storage_wait.tags = rare.storage_wait.tags.take().filter(|_| keeps_tags);
        if rare.storage_wait.is_empty() && rare.held.is_none() && rare.routes.is_empty() {
            self.rare = None;
        }
    }

    /// Stores the tags of a request that waits for slower storage.
    #[cold]
    pub(crate) fn keep_tags(&mut self, tags: Tags) {
        if !tags.is_empty() {
            self.rare().storage_wait.tags = Some(tags);
        }
    }

    /// Takes the stored tags of the current request. There are stored tags only if an earlier
    /// execution of the request had to wait.
    pub(crate) fn take_kept_tags(&mut self) -> Option<Tags> {
        self.rare.as_mut().and_then(|rare| rare.storage_wait.tags.take())
    }
}

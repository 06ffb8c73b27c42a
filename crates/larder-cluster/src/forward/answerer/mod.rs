//! Answers the requests that other nodes forward. Each client connection of a forwarding node has a
//! session on this node.

mod change_relay;
mod connection;
mod session_host;

use self::change_relay::ChangeRelay;
pub use self::session_host::SessionHost;
use super::conversation::conversation_of;
use crate::error::{LocalError, PeerError, Violation};
use crate::group::Group;
use crate::node::Node;
use crate::peers::Stop;
use larder_operations::{Counters, OpContext, Subscription};
use larder_replica::{FRAME_LEN_MAX, Frame, ReplyEnd, Revision};
use larder_session::{AnsweredPart, Conversation, Next, Session, Settings};
use larder_store::{Fence, erased};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

/// How long a node keeps its connections for forwarded requests open while it shuts down. During
/// this time, peers can move their requests to the next leader.
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// The interval at which waiting requests check for the end of a leadership transfer.
const TRANSFER_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The maximum number of reply bytes in one frame.
const PIECE_LEN: usize = 256 << 10;
/// The maximum number of frames and woken conversations that the answerer handles before other
/// connections of its thread get their turn.
const STEPS_MAX: usize = 1024;
/// The time after which other connections get their turn. It is checked after every
/// [`STEPS_PER_CHECK`] frames and conversations.
const ADVANCE_TIME_MAX: Duration = Duration::from_millis(4);
const STEPS_PER_CHECK: usize = 8;
/// A session pauses when its output has this many bytes. After this many reply bytes, a
/// conversation waits for a `Continue` frame. A single reply may exceed either limit. The bytes of
/// the output do not count towards the memory limit of connections.
const OUTPUT_MAX: usize = 64 << 10;
/// If the unsent output for one peer has at least this many bytes, the answerer sends it before it
/// answers further requests.
const UNSENT_MAX: usize = 1 << 20;
/// The maximum capacity of the output buffer that an idle conversation keeps, in bytes.
const KEPT_LEN_MAX: usize = 4 << 10;
/// The maximum number of open routes per peer.
const ROUTES_MAX: usize = 1 << 20;

/// A value among the woken routes that stands for item changes. It differs from all routes, which
/// count up from 0.
const CHANGES: u64 = u64::MAX;

/// Answers forwarded requests. Each thread of the event loops has a handle to the cache, which all
/// connections of the thread share.
pub(crate) struct Answerer {
    node: Arc<Node>,
    host: Arc<dyn SessionHost>,
    group: Arc<Group>,
    settings: Settings,
    /// Settings for conversations with the gateway of another node.
    gateway_settings: Settings,
    handles: Vec<Mutex<erased::Handle>>,
    /// The number of connections so far.
    connections: AtomicUsize,
}

/// A handle to the cache, and the counters of the requests that use it.
type CacheAccess<'c> = (&'c mut erased::Handle, &'c Counters);

/// A conversation with one of the peer's clients.
struct ForwardedConversation {
    session: Session<erased::Handle>,
    /// Whether the requests come from the peer's gateway, for clients of HTTP and gRPC.
    is_gateway: bool,
    /// The unanswered requests in order, grouped as the peer has sent them.
    batches: VecDeque<RequestBatch>,
    output: Vec<u8>,
    /// The number of reply bytes since the last `Continue` frame.
    sent: usize,
    state: State,
}

/// Requests that the peer has sent together.
#[derive(Default)]
struct RequestBatch {
    unread: Vec<u8>,
    /// Whether all bytes of the requests have arrived.
    is_whole: bool,
    /// Whether this node has started to answer the requests. If so, some requests may have taken
    /// effect.
    has_started: bool,
    /// The number of bytes that the session has consumed.
    consumed: usize,
    /// The length of `unread` when the session last found no complete request in it.
    incomplete_len: usize,
}

impl RequestBatch {
    /// Returns whether to parse the unread bytes. An incomplete request is parsed again only when
    /// it has grown by a quarter. This keeps the cost of a request that arrives in many pieces
    /// linear.
    fn should_parse(&self) -> bool {
        self.is_whole || self.unread.len() > self.incomplete_len + self.incomplete_len / 4
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// All complete requests are answered.
    Idle,
    /// The session waits for a read from flash or for acknowledgements.
    Waiting,
    /// The session has more work, and continues after other conversations.
    Yielded,
    /// The reply is paused until a `Continue` frame.
    Full,
    /// The conversation continues when the peer has sent a lease.
    AwaitingLease,
    /// The conversation continues at the end of a leadership transfer.
    AwaitingTransfer,
    /// The conversation has ended: the peer closes its client's connection, or sends the remaining
    /// requests to another node.
    Ended,
}

impl ForwardedConversation {
    /// Creates a conversation. In a conversation with tracking, the session records its reads for
    /// `reader`.
    fn new(conversation: Conversation, reader: Option<Arc<Subscription>>) -> Self {
        Self {
            session: Session::forwarded(conversation, reader),
            is_gateway: conversation == Conversation::Gateway,
            batches: VecDeque::new(),
            output: Vec::new(),
            sent: 0,
            state: State::Idle,
        }
    }

    /// Adds request bytes. If `more` is true, further bytes of the same batch follow.
    fn add(&mut self, bytes: &[u8], more: bool) {
        if self.batches.back().is_none_or(|last| last.is_whole) {
            self.batches.push_back(RequestBatch::default());
        }
        if let Some(last) = self.batches.back_mut() {
            last.unread.extend_from_slice(bytes);
            last.is_whole = !more;
        }
    }
}

impl Answerer {
    pub(crate) fn new(
        node: &Arc<Node>,
        host: &Arc<dyn SessionHost>,
        group: &Arc<Group>,
        handles: Vec<erased::Handle>,
    ) -> Self {
        let settings = Settings { output_max: OUTPUT_MAX, ..node.settings.clone() };
        Self {
            node: Arc::clone(node),
            host: Arc::clone(host),
            group: Arc::clone(group),
            gateway_settings: Settings { for_gateway: true, ..settings.clone() },
            settings,
            handles: handles.into_iter().map(Mutex::new).collect(),
            connections: AtomicUsize::new(0),
        }
    }

    /// Answers received requests until the next request is incomplete, or until the conversation
    /// waits, pauses or ends. Appends the reply frames to `out`, and sets the conversation's state.
    fn answer(
        &self,
        route: u64,
        conversation: &mut ForwardedConversation,
        (engine, counters, fence): (&mut erased::Handle, &Counters, &Fence),
        is_stopping: bool,
        woken: &Arc<WokenRoutes>,
        out: &mut Vec<u8>,
    ) {
        let ForwardedConversation { session, is_gateway, batches, output, sent, state } =
            conversation;
        let settings = if *is_gateway { &self.gateway_settings } else { &self.settings };
        let waker = || woken.waker(route);
        *state = State::Idle;
        while let Some(batch) = batches.front_mut() {
            if !batch.should_parse() {
                return;
            }
            let RequestBatch { unread, is_whole, has_started, consumed, incomplete_len } = batch;
            if !is_stopping && self.group.holds_requests() {
                *state = State::AwaitingTransfer;
                return;
            }
            if !*has_started && (is_stopping || !self.group.is_serving()) {
                self.move_rest(route, AnsweredPart::default(), out);
                *state = State::Ended;
                return;
            }
            if !*has_started && *sent > OUTPUT_MAX {
                Frame::Reply { route, end: ReplyEnd::Paused, bytes: b"" }.write(out);
                *state = State::Full;
                return;
            }
            *has_started = true;
            let now = self.node.clock.moment();
            let operations = OpContext::new(engine, counters, &settings.limits, now);
            let buffers = (unread.as_slice(), &mut *output);
            let progress = self.host.receive(session, operations, settings, &waker, buffers);
            if fence.is_closed() {
                *state = State::Waiting;
                return;
            }
            unread.drain(..progress.consumed);
            *consumed += progress.consumed;
            if progress.consumed > 0 {
                *incomplete_len = 0;
            }
            let end = match progress.next {
                _ if progress.hold => {
                    *state = State::Waiting;
                    return;
                }
                Next::Yield => {
                    *state = State::Yielded;
                    return;
                }
                Next::Wait => {
                    *state = State::Waiting;
                    return;
                }
                Next::Read { .. } if !*is_whole => {
                    *incomplete_len = unread.len();
                    return;
                }
                // The peer has marked the requests as complete, but the last request is incomplete.
                Next::Read { .. } if !unread.is_empty() => ReplyEnd::Close,
                Next::Read { .. } => ReplyEnd::Done,
                Next::Write => ReplyEnd::Paused,
                Next::Close => ReplyEnd::Close,
                Next::Abandon => {
                    output.clear();
                    ReplyEnd::Close
                }
                Next::NotOwner => match session.answered_part(*consumed) {
                    Some(part) => {
                        if !output.is_empty() {
                            send(route, output, ReplyEnd::Partial, out);
                        }
                        self.move_rest(route, part, out);
                        *state = State::Ended;
                        return;
                    }
                    None => ReplyEnd::Close,
                },
            };
            *sent += output.len();
            send(route, output, end, out);
            // This buffer does not count towards the memory limit of connections, so an idle
            // conversation keeps only a small buffer.
            output.shrink_to(KEPT_LEN_MAX);
            *state = match end {
                ReplyEnd::Paused => State::Full,
                ReplyEnd::Close => State::Ended,
                ReplyEnd::Done | ReplyEnd::Partial => State::Idle,
            };
            if *state != State::Idle {
                return;
            }
            batches.pop_front();
        }
    }

    /// Ends a conversation. The peer sends the requests after the answered part to their owner.
    fn move_rest(&self, route: u64, part: AnsweredPart, out: &mut Vec<u8>) {
        let (answered, keys, found) = (part.len as u64, part.keys as u64, part.found);
        let is_planned = self.group.is_change_planned();
        Frame::Moved { route, answered, keys, found, is_planned }.write(out);
    }
}

/// The conversations of one peer.
struct Conversations {
    answerer: Arc<Answerer>,
    /// The conversations, by route.
    all: HashMap<u64, ForwardedConversation>,
    woken: Arc<WokenRoutes>,
    /// The woken routes in the order of their wakes.
    ready: VecDeque<u64>,
    /// Relays invalidations to the peer for items that its clients have cached.
    changes: ChangeRelay,
    /// Limits the time in which the peer's requests may change items. Leases extend it.
    fence: Arc<Fence>,
    /// The routes of conversations that wait for a lease.
    awaiting_lease: Vec<u64>,
    /// The routes of conversations that wait for the end of a leadership transfer.
    awaiting_transfer: Vec<u64>,
    /// The time at which the last lease arrived.
    leased_at: Instant,
    /// The revision of the peer's shard map; 0 before its first `MapRevision`.
    map_revision: Revision,
    /// Frames that are not sent yet.
    out: Vec<u8>,
    /// The time at which this connection noticed that the node is shutting down; `None` before.
    stopped_at: Option<Instant>,
}

impl Conversations {
    /// Creates the state of a peer's connection, which has this number. `waker` wakes the
    /// connection.
    fn new(answerer: &Arc<Answerer>, fence: &Arc<Fence>, connection: usize, waker: Waker) -> Self {
        Self {
            answerer: Arc::clone(answerer),
            all: HashMap::new(),
            woken: Arc::new(WokenRoutes { routes: Mutex::default(), waker }),
            ready: VecDeque::new(),
            changes: ChangeRelay::new(&answerer.node.tracker, &answerer.host, connection),
            fence: Arc::clone(fence),
            awaiting_lease: Vec::new(),
            awaiting_transfer: Vec::new(),
            leased_at: Instant::now(),
            map_revision: 0,
            out: Vec::new(),
            stopped_at: None,
        }
    }

    /// Adds the woken conversations to those that are handled next.
    fn take_woken(&mut self) {
        self.ready.extend(self.woken.take());
        self.note_transfer_end();
    }

    /// Returns whether the shutdown has lasted for [`DRAIN_MAX`].
    fn has_ended(&mut self, stop: &Stop) -> bool {
        stop.is_set() && self.stopped_at.get_or_insert_with(Instant::now).elapsed() >= DRAIN_MAX
    }

    /// Handles the frames of `input`, and then the woken conversations, until `out` has
    /// [`UNSENT_MAX`] bytes, and at most [`STEPS_MAX`] of both. Returns the length of the handled
    /// frames, and whether more work may remain.
    fn answer_some(
        &mut self,
        engine: &mut erased::Handle,
        counters: &Counters,
        input: &[u8],
    ) -> Result<(usize, bool), PeerError> {
        let (mut at, started) = (0, Instant::now());
        for step in 1..=STEPS_MAX {
            let is_late = step % STEPS_PER_CHECK == 0 && started.elapsed() > ADVANCE_TIME_MAX;
            if is_late || self.out.len() >= UNSENT_MAX {
                break;
            }
            let rest = input.get(at..).unwrap_or_default();
            if let Some((frame, len)) = Frame::read(rest, FRAME_LEN_MAX)? {
                self.receive(&frame, (engine, counters))?;
                at += len;
            } else if let Some(route) = self.ready.pop_front() {
                match route {
                    CHANGES => self.send_changes(),
                    route => self.resume(route, State::Waiting, (engine, counters)),
                }
            } else {
                return Ok((at, false));
            }
            if self.fence.is_closed() {
                // The peer has a newer connection, or a change arrived after the lease had ended.
                // The replies so far are not sent, and the peer treats its requests as lost.
                return Err(LocalError::Obsolete.into());
            }
        }
        Ok((at, true))
    }

    fn receive(&mut self, frame: &Frame<'_>, cache: CacheAccess<'_>) -> Result<(), PeerError> {
        match *frame {
            Frame::Open { route, conversation } if self.all.len() < ROUTES_MAX => {
                let conversation = conversation_of(conversation)
                    .ok_or(Violation::UnknownConversation(conversation))?;
                let reader = conversation.is_tracked().then(|| self.changes.reader());
                if reader.is_some() {
                    self.ready.push_back(CHANGES);
                }
                self.all.insert(route, ForwardedConversation::new(conversation, reader));
            }
            Frame::Request { route, more, bytes } => {
                if let Some(conversation) = self.all.get_mut(&route) {
                    conversation.add(bytes, more);
                    self.resume(route, State::Idle, cache);
                }
            }
            Frame::Continue { route } => {
                if let Some(conversation) = self.all.get_mut(&route) {
                    conversation.sent = 0;
                    self.resume(route, State::Full, cache);
                }
            }
            Frame::Close { route } => self.close(route),
            Frame::TrackAll(all) => {
                self.changes.track_all(all, &mut self.out);
                self.ready.push_back(CHANGES);
            }
            Frame::MapRevision(revision) => self.map_revision = revision,
            Frame::Lease(until) => {
                self.fence.extend(until);
                self.leased_at = Instant::now();
                for route in self.awaiting_lease.drain(..) {
                    if let Some(conversation) = self.all.get_mut(&route) {
                        conversation.state = State::Waiting;
                        self.ready.push_back(route);
                    }
                }
            }
            _ => return Err(Violation::UnexpectedFrame.into()),
        }
        Ok(())
    }

    /// Continues a conversation if its state is `state`. If the lease has ended, the conversation
    /// waits for the next lease: the peer may already have reported the conversation's requests as
    /// failed.
    fn resume(&mut self, route: u64, state: State, (engine, counters): CacheAccess<'_>) {
        let conversation = self.all.get_mut(&route).filter(|of| of.state == state);
        let Some(conversation) = conversation else { return };
        if !self.fence.is_open() {
            conversation.state = State::AwaitingLease;
            self.awaiting_lease.push(route);
            return;
        }
        let has_old_map = self.map_revision < self.answerer.group.topology.map_revision();
        conversation.session.note_old_map(has_old_map);
        let cache = (engine, counters, &*self.fence);
        let is_stopping = self.stopped_at.is_some();
        self.answerer.answer(route, conversation, cache, is_stopping, &self.woken, &mut self.out);
        match conversation.state {
            State::Ended => self.close(route),
            State::AwaitingLease => self.awaiting_lease.push(route),
            State::AwaitingTransfer => self.awaiting_transfer.push(route),
            State::Yielded => {
                conversation.state = State::Waiting;
                self.ready.push_back(route);
            }
            State::Idle | State::Waiting | State::Full => (),
        }
    }

    /// Returns how long to wait for input: `time`, or less while conversations wait for the end of
    /// a leadership transfer.
    fn wait_time(&self, time: Duration) -> Duration {
        if self.awaiting_transfer.is_empty() { time } else { time.min(TRANSFER_POLL_INTERVAL) }
    }

    /// If no leadership transfer is under way, wakes the conversations that wait for its end.
    fn note_transfer_end(&mut self) {
        if self.answerer.group.holds_requests() {
            return;
        }
        for route in self.awaiting_transfer.drain(..) {
            if let Some(conversation) = self.all.get_mut(&route) {
                conversation.state = State::Waiting;
                self.ready.push_back(route);
            }
        }
    }

    /// Sends item changes. If there are too many for one call, the rest is sent after the other
    /// woken routes are handled.
    fn send_changes(&mut self) {
        if !self.changes.write(|| self.woken.waker(CHANGES), UNSENT_MAX, &mut self.out) {
            self.ready.push_back(CHANGES);
        }
    }

    /// Ends a conversation. The answerer ignores later requests on its route.
    fn close(&mut self, route: u64) {
        if let Some(mut conversation) = self.all.remove(&route) {
            self.answerer.host.close(&mut conversation.session);
        }
    }
}

/// Appends the reply in `output` to `out`, as frames of up to [`PIECE_LEN`] bytes, and clears
/// `output`.
fn send(route: u64, output: &mut Vec<u8>, end: ReplyEnd, out: &mut Vec<u8>) {
    let mut pieces = output.chunks(PIECE_LEN).peekable();
    while let Some(bytes) = pieces.next() {
        let end = if pieces.peek().is_some() { ReplyEnd::Partial } else { end };
        Frame::Reply { route, end, bytes }.write(out);
    }
    if output.is_empty() {
        Frame::Reply { route, end, bytes: b"" }.write(out);
    }
    output.clear();
}

/// The routes whose wakers were called. The connection's thread resumes their conversations.
struct WokenRoutes {
    routes: Mutex<Vec<u64>>,
    /// Wakes the connection's thread.
    waker: Waker,
}

struct RouteWaker {
    route: u64,
    woken: Arc<WokenRoutes>,
}

impl Wake for RouteWaker {
    fn wake(self: Arc<Self>) {
        let was_empty = {
            let mut routes = self.woken.routes();
            routes.push(self.route);
            routes.len() == 1
        };
        if was_empty {
            self.woken.waker.wake_by_ref();
        }
    }
}

impl WokenRoutes {
    fn waker(self: &Arc<Self>, route: u64) -> Waker {
        Waker::from(Arc::new(RouteWaker { route, woken: Arc::clone(self) }))
    }

    fn take(&self) -> Vec<u64> {
        std::mem::take(&mut *self.routes())
    }

    fn routes(&self) -> MutexGuard<'_, Vec<u64>> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

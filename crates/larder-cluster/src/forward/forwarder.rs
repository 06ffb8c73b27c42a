//! The way of requests to the leader of a group: one connection for all of this server's clients.
//!
//! Sessions append what they forward to the output of the connection, and are woken when their answers have come. One
//! thread connects, one writes and one reads. While there is no connection, sessions wait for one, or until this
//! server leads, but no longer than a second.

use crate::group::Group;
use crate::peers::{Credentials, Dialed, PeerStream, Stop, Target, dial, is_silence};
use larder_replica::{AnswerEnd, FRAME_LEN_MAX, Frame, HelloMember, Process, Purpose, Role};
use larder_session::{Conversation, Group as Number, Passed, Route, Routed};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

/// How long requests wait for a leader.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Within this time a session that may send requests again has done so.
const RESENT_WITHIN: Duration = Duration::from_millis(100);
/// How soon requests are sent again that whoever was taken for the leader did not answer.
const AGAIN: Duration = Duration::from_millis(20);
/// How often it is looked whether they have waited for too long, and whether there is a leader.
const TICK: Duration = Duration::from_millis(20);
/// How soon it is connected again to a leader that has not accepted.
const CONNECT_AGAIN: Duration = Duration::from_millis(20);
/// A leader that says nothing for this long is gone: it says something ten times a second.
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// How long a read waits before it looks whether the connection is to end.
const SLICE: Duration = Duration::from_millis(100);
/// Bytes that may wait to be sent before sessions have to wait with more of a long value.
const OUTPUT_MAX: usize = 1 << 20;
/// While so many bytes wait to be sent, no requests are taken. Those of clients that have gone are among them.
const OUTPUT_LIMIT: usize = 32 << 20;
/// After so many bytes of answers more is asked for with the next requests.
const ASKED_AGAIN_AFTER: usize = 16 << 10;
/// The bytes of requests in one frame.
const PIECE_LEN: usize = 256 << 10;
const READ_LEN: usize = 256 << 10;

/// The numbers by which members tell each other of conversations.
const CONVERSATIONS: [(Conversation, u8); 4] = [
    (Conversation::Memcached, 0),
    (Conversation::Gateway, 1),
    (Conversation::Resp2, 2),
    (Conversation::Resp3, 3),
];

fn number_of(conversation: Conversation) -> u8 {
    let of = CONVERSATIONS.iter().find(|(of, _)| *of == conversation);
    of.map_or(0, |(_, number)| *number)
}

/// The conversation of a number.
pub(super) fn conversation_of(number: u8) -> Option<Conversation> {
    let of = CONVERSATIONS.iter().find(|(_, of)| *of == number);
    of.map(|(conversation, _)| *conversation)
}

/// The ways to the leaders of all groups.
#[derive(Debug, Default)]
pub struct Forwarders {
    own: Forwarder,
    others: Mutex<BTreeMap<Number, Forwarder>>,
}

impl Forwarders {
    /// The way to the leader of a group.
    pub(crate) fn to(&self, group: Number) -> Forwarder {
        if group == Number::OWN {
            return self.own.clone();
        }
        lock(&self.others).entry(group).or_default().clone()
    }

    /// A route for a new conversation with the leader of a group.
    pub fn open(&self, group: Number, conversation: Conversation) -> Box<dyn Route> {
        self.to(group).open(conversation)
    }

    /// Batches of requests that were forwarded so far.
    pub fn forwarded(&self) -> u64 {
        self.sum(|shared| &shared.forwarded)
    }

    /// Connections to leaders so far.
    pub fn connections(&self) -> u64 {
        self.sum(|shared| &shared.connections)
    }

    fn sum(&self, of: impl Fn(&Shared) -> &AtomicU64) -> u64 {
        let others = lock(&self.others);
        let all = std::iter::once(&self.own).chain(others.values());
        all.map(|way| of(&way.0).load(Ordering::Relaxed)).sum()
    }
}

/// Who leads a group, as the thread that connects has to know it.
pub(crate) trait Leading: Send {
    /// The leader, if it is another server, and where it is.
    fn leader(&self) -> Option<(Process, Option<String>)>;

    /// Whether requests wait in vain for a leader: this server answers, or the group has no keys any more.
    fn is_in_vain(&self) -> bool;

    /// A connection has ended, or requests were not answered because their keys are elsewhere.
    fn note_failure(&self);

    /// Waits until there may be another leader, or for this time.
    fn wait(&self, time: Duration);
}

/// Of this server's own group.
pub(crate) struct OwnGroup(pub(crate) Arc<Group>);

impl Leading for OwnGroup {
    fn leader(&self) -> Option<(Process, Option<String>)> {
        let Role::Follower { leader, .. } = self.0.role() else { return None };
        let address = self.0.see(|member| member.view().addresses.get(&leader.node).cloned());
        Some((leader, address.map(|address| address.members)))
    }

    fn is_in_vain(&self) -> bool {
        self.0.is_serving()
    }

    fn note_failure(&self) {
        self.0.topology.look_soon();
    }

    fn wait(&self, time: Duration) {
        self.0.wait(time);
    }
}

/// Of another group.
pub(crate) struct OtherGroup {
    pub(crate) own: Arc<Group>,
    pub(crate) name: String,
}

impl Leading for OtherGroup {
    fn leader(&self) -> Option<(Process, Option<String>)> {
        let seen = self.own.topology.leader(&self.name)?;
        Some((seen.record.leader, seen.address))
    }

    fn is_in_vain(&self) -> bool {
        !self.own.topology.knows(&self.name)
    }

    fn note_failure(&self) {
        self.own.topology.look_soon();
    }

    fn wait(&self, time: Duration) {
        self.own.topology.wait(time);
    }
}

/// What sessions and threads share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forwarder(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Batches of requests that were forwarded, and connections so far.
    forwarded: AtomicU64,
    connections: AtomicU64,
    next_route: AtomicU64,
    /// Requests were not answered where they were sent to: their keys, or the leader, are elsewhere.
    has_moved: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    link: Option<Arc<Link>>,
    /// Those who wait for a connection.
    waiting: Vec<Wait>,
    /// Nobody connects any more.
    has_ended: bool,
}

#[derive(Debug)]
struct Wait {
    since: Instant,
    whose: Arc<Mutex<RouteState>>,
    /// Which of its requests wait.
    round: u64,
    /// When to try again, if there is a connection.
    again_at: Instant,
}

/// A connection to the leader.
#[derive(Debug)]
struct Link {
    stream: PeerStream,
    output: Mutex<Output>,
    /// There is output, or it has become less.
    has_output: Condvar,
    routes: Mutex<HashMap<u64, Arc<Mutex<RouteState>>>>,
}

#[derive(Debug, Default)]
struct Output {
    bytes: Vec<u8>,
    is_closed: bool,
    /// Those who wait until there is less.
    waiting: Vec<Waker>,
}

/// What has come for a session.
#[derive(Debug, Default)]
struct RouteState {
    /// The requests that were passed and whose answers were not taken yet, in order.
    passed: VecDeque<Answers>,
    /// How often requests were passed.
    passes: u64,
    /// The requests that the session has found to be without an answer: it waits for one.
    awaited: Option<Passed>,
    /// The bytes of answers that have come since more was asked for.
    received: usize,
    waker: Option<Waker>,
    /// Since when its requests have waited for a leader, and when something last became of them.
    waits_since: Option<Instant>,
    ended_at: Option<Instant>,
    /// The conversation of the requests that were sent last: an answer of another one comes too late.
    route: Option<u64>,
    /// Rises when requests are sent: who waits for a leader does so for those of one round.
    round: u64,
}

/// The answers to requests that were passed together.
#[derive(Debug)]
struct Answers {
    to: Passed,
    bytes: Vec<u8>,
    /// What has become of the requests.
    routed: Option<Routed>,
}

/// Who this server is, for leaders of groups of its cluster.
#[derive(Clone)]
pub(crate) struct HelloMe {
    pub(crate) process: Process,
    /// The names of its cluster and group.
    pub(crate) group: String,
}

fn connect(
    leader: &Process,
    address: Option<&str>,
    me: &HelloMe,
    credentials: &Credentials,
    stop: &Stop,
) -> io::Result<(Arc<Link>, Vec<u8>)> {
    let address = address.ok_or_else(|| io::Error::other("it has told no address"))?;
    let member = Some(HelloMember { group: &me.group, boot: me.process.boot });
    let target = Target { address, node: Some(&leader.node) };
    let dialed = dial(target, credentials, &me.process.node, member, Purpose::Forward, stop)?;
    let Dialed { stream, welcomed, rest } = dialed;
    if welcomed.boot != leader.boot {
        return Err(io::Error::other("another process answers there"));
    }
    stream.set_read_timeout(Some(SLICE))?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    let link = Link {
        stream,
        output: Mutex::default(),
        has_output: Condvar::new(),
        routes: Mutex::default(),
    };
    Ok((Arc::new(link), rest))
}

/// A session's way to the leader.
#[derive(Debug)]
struct ToLeader {
    forwarder: Forwarder,
    conversation: Conversation,
    state: Arc<Mutex<RouteState>>,
    /// The connection, and the number of the conversation on it.
    on: Option<(Arc<Link>, u64)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RouteState {
    /// Requests are sent, or are to be.
    fn begin(&mut self, waker: &Waker) {
        // Who may send again does so at once: what comes later was answered here meanwhile, or is another request.
        if self.ended_at.take().is_some_and(|ended| ended.elapsed() > RESENT_WITHIN) {
            self.waits_since = None;
        }
        self.waker = Some(waker.clone());
    }

    /// Whether nothing has become of some requests yet.
    fn is_open(&self) -> bool {
        self.passed.iter().any(|answers| answers.routed.is_none())
    }

    /// This becomes of all requests that are not answered.
    fn end(&mut self, routed: Routed) {
        self.ended_at = Some(Instant::now());
        for answers in &mut self.passed {
            if matches!(answers.routed, None | Some(Routed::More)) {
                answers.routed = Some(routed);
            }
        }
        self.wake();
    }

    /// Answers to the first requests that are not answered, and what has become of these.
    fn answer(&mut self, bytes: &[u8], routed: Option<Routed>) {
        let is_open = |answers: &Answers| answers.routed.is_none();
        let Some(at) = self.passed.iter().position(is_open) else { return };
        let Some(answers) = self.passed.get_mut(at) else { return };
        answers.bytes.extend_from_slice(bytes);
        answers.routed = routed;
        self.received += bytes.len();
        if routed.is_some() {
            let is_awaited = self.awaited == Some(answers.to);
            self.ended_at = Some(Instant::now());
            // Others are taken after the first ones, unless the first ones came from another group and are
            // behind these in the client's order.
            if at == 0 || is_awaited {
                self.wake();
            }
        }
    }

    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }

    /// What has become of requests that were passed before, if it is no answer.
    fn failure(&self) -> Option<Routed> {
        let routed = self.passed.iter().filter_map(|answers| answers.routed);
        routed
            .into_iter()
            .find(|routed| matches!(routed, Routed::Again | Routed::Lost | Routed::Nobody))
    }
}

impl Forwarder {
    /// A way for a new conversation.
    pub(crate) fn open(&self, conversation: Conversation) -> Box<dyn Route> {
        Box::new(ToLeader {
            forwarder: self.clone(),
            conversation,
            state: Arc::default(),
            on: None,
        })
    }

    /// This server leads, and answers what waits.
    pub(crate) fn note_leading(&self) {
        self.end_waits(|_| Some(Routed::Again));
    }

    fn end_waits(&self, how: impl Fn(&Wait) -> Option<Routed>) {
        let mut ended = Vec::new();
        lock(&self.0.state).waiting.retain(|wait| {
            let routed = how(wait);
            ended.extend(routed.map(|routed| (Arc::clone(&wait.whose), wait.round, routed)));
            routed.is_none()
        });
        for (whose, round, routed) in ended {
            let mut state = lock(&whose);
            // Who waits for room has passed nothing yet.
            if state.round == round && (state.is_open() || state.passed.is_empty()) {
                state.end(routed);
            }
        }
    }

    /// Connects to whoever leads, until the end.
    pub(crate) fn run(
        &self,
        group: &dyn Leading,
        me: &HelloMe,
        credentials: &Credentials,
        stop: &Arc<Stop>,
    ) {
        let mut threads: Vec<std::thread::JoinHandle<()>> = Vec::new();
        let (mut led, mut failed): (_, Option<(Process, Instant)>) = (None, None);
        while !stop.is_set() {
            let leader = group.leader();
            let process = leader.as_ref().map(|(process, _)| process.clone());
            let is_up = lock(&self.0.state).link.is_some();
            if is_up && led != process {
                self.close();
            }
            let has_failed = failed.as_ref().is_some_and(|(of, at)| {
                process.as_ref() == Some(of) && at.elapsed() < CONNECT_AGAIN
            });
            let is_wanted = (!is_up || led != process) && !has_failed;
            if let Some((process, address)) = leader.filter(|_| is_wanted) {
                match connect(&process, address.as_deref(), me, credentials, stop) {
                    Ok(link) => {
                        threads.retain(|thread| !thread.is_finished());
                        self.begin(&link, &mut threads, stop);
                        led = Some(process);
                    }
                    Err(error) => {
                        tracing::debug!("no requests go to {}: {error}", process.node);
                        failed = Some((process, Instant::now()));
                        group.note_failure();
                    }
                }
            }
            if group.is_in_vain() {
                self.note_leading();
            }
            if self.0.has_moved.swap(false, Ordering::AcqRel) {
                group.note_failure();
            }
            let (is_up, now) = (lock(&self.0.state).link.is_some(), Instant::now());
            self.end_waits(|wait| match wait {
                wait if now.duration_since(wait.since) > WAIT_MAX => Some(Routed::Nobody),
                wait if is_up && now >= wait.again_at => Some(Routed::Again),
                _ => None,
            });
            group.wait(TICK);
        }
        lock(&self.0.state).has_ended = true;
        self.close();
        self.end_waits(|_| Some(Routed::Nobody));
        for thread in threads {
            let _ = thread.join();
        }
    }

    /// Starts the threads of a connection.
    fn begin(
        &self,
        (link, rest): &(Arc<Link>, Vec<u8>),
        threads: &mut Vec<std::thread::JoinHandle<()>>,
        stop: &Arc<Stop>,
    ) {
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.to_owned()).spawn(run).ok()
        };
        let (writing, reading) = (Arc::clone(link), Arc::clone(link));
        let writer = spawn("to leader", Box::new(move || writing.write_all()));
        let (forwarder, stop, rest) = (self.clone(), Arc::clone(stop), rest.clone());
        let reader = spawn(
            "from leader",
            Box::new(move || {
                let error = reading.read_all(&forwarder, rest, &stop);
                tracing::debug!("requests to the leader end: {error}");
                forwarder.drop_link(&reading);
            }),
        );
        threads.extend(writer);
        threads.extend(reader);
        self.0.connections.fetch_add(1, Ordering::Relaxed);
        lock(&self.0.state).link = Some(Arc::clone(link));
    }

    fn close(&self) {
        let link = lock(&self.0.state).link.clone();
        if let Some(link) = link {
            self.drop_link(&link);
        }
    }

    /// A connection has ended: what was not answered is lost.
    fn drop_link(&self, link: &Arc<Link>) {
        let state = &mut lock(&self.0.state);
        if state.link.as_ref().is_some_and(|current| Arc::ptr_eq(current, link)) {
            state.link = None;
        }
        let _ = link.stream.shutdown(Shutdown::Both);
        let waiting = {
            let mut output = lock(&link.output);
            output.is_closed = true;
            std::mem::take(&mut output.waiting)
        };
        link.has_output.notify_all();
        waiting.into_iter().for_each(Waker::wake);
        let routes = std::mem::take(&mut *lock(&link.routes));
        for (number, whose) in routes {
            let mut state = lock(&whose);
            if state.route == Some(number) {
                state.end(Routed::Lost);
            }
        }
    }

    /// Has a session wait for a leader, and not try again before this time has passed.
    fn wait(&self, whose: &Arc<Mutex<RouteState>>, pause: Duration) {
        let now = Instant::now();
        let (since, round) = {
            let mut state = lock(whose);
            (*state.waits_since.get_or_insert(now), state.round)
        };
        let wait = Wait { since, whose: Arc::clone(whose), round, again_at: now + pause };
        let mut state = lock(&self.0.state);
        if state.has_ended {
            drop(state);
            return lock(whose).end(Routed::Nobody);
        }
        state.waiting.push(wait);
    }
}

impl Link {
    /// Sends what there is, until the connection is closed.
    fn write_all(&self) {
        let mut sending = Vec::new();
        loop {
            let waiting = {
                let output = lock(&self.output);
                let is_idle = |output: &mut Output| output.bytes.is_empty() && !output.is_closed;
                let mut output = self
                    .has_output
                    .wait_while(output, is_idle)
                    .unwrap_or_else(PoisonError::into_inner);
                if output.is_closed {
                    return;
                }
                std::mem::swap(&mut output.bytes, &mut sending);
                std::mem::take(&mut output.waiting)
            };
            waiting.into_iter().for_each(Waker::wake);
            if (&self.stream).write_all(&sending).is_err() {
                // The reader finds out, too.
                let _ = self.stream.shutdown(Shutdown::Both);
                return;
            }
            sending.clear();
            sending.shrink_to(OUTPUT_MAX);
        }
    }

    /// Distributes answers until the connection ends; why it has.
    fn read_all(
        self: &Arc<Self>,
        forwarder: &Forwarder,
        mut input: Vec<u8>,
        stop: &Stop,
    ) -> io::Error {
        let (mut bytes, mut heard) = (vec![0; READ_LEN], Instant::now());
        loop {
            loop {
                match Frame::read(&input, FRAME_LEN_MAX) {
                    Ok(Some((frame, len))) => {
                        if let Frame::Answer { route, end, bytes } = frame {
                            self.distribute(forwarder, route, end, bytes);
                        } else if !matches!(frame, Frame::Beat { .. }) {
                            return io::Error::other("it sends what does not belong there");
                        }
                        input.drain(..len);
                    }
                    Ok(None) => break,
                    Err(error) => return io::Error::other(error),
                }
            }
            match (&self.stream).read(&mut bytes) {
                Ok(0) => return io::ErrorKind::UnexpectedEof.into(),
                Ok(len) => {
                    heard = Instant::now();
                    input.extend_from_slice(bytes.get(..len).unwrap_or_default());
                }
                Err(error) if is_silence(&error) => {
                    if heard.elapsed() > SILENCE_MAX {
                        return io::Error::new(io::ErrorKind::TimedOut, "the leader is silent");
                    }
                }
                Err(error) => return error,
            }
            if stop.is_set() || lock(&self.output).is_closed {
                return io::ErrorKind::Interrupted.into();
            }
        }
    }

    fn distribute(
        self: &Arc<Self>,
        forwarder: &Forwarder,
        route: u64,
        end: AnswerEnd,
        bytes: &[u8],
    ) {
        // Whoever has gone needs no answer.
        let Some(whose) = lock(&self.routes).get(&route).cloned() else { return };
        let mut state = lock(&whose);
        if state.route != Some(route) {
            return;
        }
        match end {
            AnswerEnd::Follows => state.answer(bytes, None),
            AnswerEnd::More => state.answer(bytes, Some(Routed::More)),
            AnswerEnd::Done => state.answer(bytes, Some(Routed::Done)),
            AnswerEnd::Close => state.answer(bytes, Some(Routed::Close)),
            AnswerEnd::Moved => {
                // The next leader answers, if there is one soon.
                lock(&self.routes).remove(&route);
                drop(state);
                forwarder.0.has_moved.store(true, Ordering::Release);
                forwarder.wait(&whose, AGAIN);
            }
        }
    }

    fn append(&self, frame: &Frame<'_>) {
        let output = &mut lock(&self.output);
        if !output.is_closed {
            let was_empty = output.bytes.is_empty();
            frame.write(&mut output.bytes);
            if was_empty {
                self.has_output.notify_one();
            }
        }
    }
}

impl ToLeader {
    /// The connection that there is; opens the conversation on it, if that is not done.
    fn link(&mut self) -> Option<(Arc<Link>, u64)> {
        let link = lock(&self.forwarder.0.state).link.clone()?;
        if let Some((on, route)) = &self.on
            && Arc::ptr_eq(on, &link)
            && lock(&link.routes).contains_key(route)
        {
            return self.on.clone();
        }
        self.leave();
        let route = self.forwarder.0.next_route.fetch_add(1, Ordering::Relaxed);
        lock(&link.routes).insert(route, Arc::clone(&self.state));
        if lock(&link.output).is_closed {
            lock(&link.routes).remove(&route);
            return None;
        }
        lock(&self.state).route = Some(route);
        link.append(&Frame::Open { route, conversation: number_of(self.conversation) });
        self.on = Some((link, route));
        self.on.clone()
    }
}

fn send(link: &Link, route: u64, bytes: &[u8], more: bool) {
    let mut pieces = bytes.chunks(PIECE_LEN).peekable();
    while let Some(bytes) = pieces.next() {
        let more = more || pieces.peek().is_some();
        link.append(&Frame::Pass { route, more, bytes });
    }
}

impl Route for ToLeader {
    fn pass(&mut self, bytes: &[u8], more: bool, waker: &Waker) -> Passed {
        let link = lock(&self.forwarder.0.state).link.clone();
        let is_full = link.is_some_and(|link| lock(&link.output).bytes.len() > OUTPUT_LIMIT);
        let (number, is_first) = {
            let mut state = lock(&self.state);
            let is_answered =
                |answers: &Answers| matches!(answers.routed, Some(Routed::Done | Routed::Close));
            let is_first = state.passed.iter().all(is_answered);
            let routed = state.failure().or(is_full.then_some(Routed::Nobody));
            if is_first {
                state.begin(waker);
                state.round += 1;
            }
            let to = Passed(state.passes);
            state.passes += 1;
            state.passed.push_back(Answers { to, bytes: Vec::new(), routed });
            if routed.is_some() {
                state.wake();
                return to;
            }
            (to, is_first)
        };
        if is_first {
            self.pass_first(bytes, more);
        } else if let Some((link, route)) = self.open_conversation() {
            self.send(&link, route, bytes, more);
        }
        // Otherwise those before it wait for a leader, and this becomes of it, too, what becomes of them.
        number
    }

    fn pass_rest(&mut self, bytes: &[u8], more: bool, waker: &Waker) {
        lock(&self.state).waker = Some(waker.clone());
        // If it is not there any more, the session is told what has become of it.
        if let Some((link, route)) = self.open_conversation() {
            send(&link, route, bytes, more);
        }
    }

    fn has_room(&mut self, waker: &Waker) -> bool {
        let (link, has_ended) = {
            let state = lock(&self.forwarder.0.state);
            (state.link.clone(), state.has_ended)
        };
        let Some(link) = link else {
            {
                let mut state = lock(&self.state);
                state.begin(waker);
                let has_waited = state.waits_since.is_some_and(|since| since.elapsed() > WAIT_MAX);
                if has_waited || has_ended {
                    return true;
                }
            }
            self.forwarder.wait(&self.state, Duration::ZERO);
            return false;
        };
        let mut output = lock(&link.output);
        let has_room = output.is_closed || output.bytes.len() < OUTPUT_MAX;
        if !has_room {
            output.waiting.push(waker.clone());
        }
        has_room
    }

    fn take(&mut self, of: Passed, into: &mut Vec<u8>) -> Routed {
        let mut state = lock(&self.state);
        let Some(at) = state.passed.iter().position(|answers| answers.to == of) else {
            return Routed::Lost;
        };
        let Some(answers) = state.passed.get_mut(at) else { return Routed::Lost };
        into.append(&mut answers.bytes);
        let routed = answers.routed.unwrap_or(Routed::Waiting);
        if routed == Routed::More {
            answers.routed = None;
        } else if routed != Routed::Waiting {
            state.passed.remove(at);
        }
        state.awaited = (routed == Routed::Waiting).then_some(of);
        if !matches!(routed, Routed::Waiting | Routed::Again | Routed::Lost) {
            state.waits_since = None;
        }
        routed
    }

    fn go_on(&mut self) {
        lock(&self.state).received = 0;
        if let Some((link, route)) = &self.on {
            link.append(&Frame::GoOn { route: *route });
        }
    }

    fn forget(&mut self) {
        // What may still come belongs to no other requests.
        self.leave();
        lock(&self.state).passed.clear();
    }
}

impl ToLeader {
    /// Sends requests, none before which wait for their answers; or waits for a leader with them.
    fn pass_first(&mut self, bytes: &[u8], more: bool) {
        let Some((link, route)) = self.link() else {
            let mut state = lock(&self.state);
            if state.waits_since.is_some_and(|since| since.elapsed() > WAIT_MAX) {
                return state.end(Routed::Nobody);
            }
            drop(state);
            return self.forwarder.wait(&self.state, Duration::ZERO);
        };
        // Whoever answers stops when so much is under way that this server may not have room for it.
        let received = lock(&self.state).received;
        if received >= ASKED_AGAIN_AFTER {
            lock(&self.state).received = 0;
            link.append(&Frame::GoOn { route });
        }
        self.send(&link, route, bytes, more);
    }

    fn send(&self, link: &Link, route: u64, bytes: &[u8], more: bool) {
        self.forwarder.0.forwarded.fetch_add(1, Ordering::Relaxed);
        send(link, route, bytes, more);
        // The connection may have ended before it was known that something was to come on it.
        if lock(&link.output).is_closed {
            lock(&self.state).end(Routed::Lost);
        }
    }

    /// The conversation that there is, unless the other side has ended it.
    fn open_conversation(&self) -> Option<(Arc<Link>, u64)> {
        let is_open = |(link, route): &&(Arc<Link>, u64)| lock(&link.routes).contains_key(route);
        self.on.as_ref().filter(is_open).cloned()
    }

    /// Ends the conversation where it was.
    fn leave(&mut self) {
        if let Some((link, route)) = self.on.take() {
            lock(&link.routes).remove(&route);
            link.append(&Frame::Shut { route });
        }
    }
}

impl Drop for ToLeader {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Requests whose key has moved are sent behind those that the new group has already, though the client sent them
    /// before.
    #[test]
    fn a_session_is_woken_for_the_answer_that_it_waits_for() {
        let forwarder = Forwarder::default();
        let (state, on) = (Arc::default(), None);
        let mut way = ToLeader { forwarder, conversation: Conversation::Memcached, state, on };
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let woken = || wakes.0.swap(0, Ordering::Relaxed) > 0;
        let (behind, first) =
            (way.pass(b"get b", false, &waker), way.pass(b"get a", false, &waker));
        let answer = |way: &ToLeader| lock(&way.state).answer(b"END", Some(Routed::Done));
        let mut answers = Vec::new();
        assert_eq!(way.take(first, &mut answers), Routed::Waiting);
        answer(&way);
        woken();
        assert_eq!(way.take(first, &mut answers), Routed::Waiting);
        answer(&way);
        assert!(woken());
        assert_eq!(way.take(first, &mut answers), Routed::Done);
        assert_eq!(way.take(behind, &mut answers), Routed::Done);
    }
    /// When this server ends, nobody connects any more.
    #[test]
    fn nobody_is_waited_for_at_the_end() {
        let forwarder = Forwarder::default();
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut way = forwarder.open(Conversation::Gateway);
        let before = way.pass(b"get a", false, &waker);
        assert_eq!(way.take(before, &mut Vec::new()), Routed::Waiting);
        lock(&forwarder.0.state).has_ended = true;
        forwarder.end_waits(|_| Some(Routed::Nobody));
        assert!(wakes.0.swap(0, Ordering::Relaxed) > 0);
        assert_eq!(way.take(before, &mut Vec::new()), Routed::Nobody);
        assert!(way.has_room(&waker), "there is nothing to wait for");
        let after = way.pass(b"get a", false, &waker);
        assert_eq!(way.take(after, &mut Vec::new()), Routed::Nobody);
    }
}

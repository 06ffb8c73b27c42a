//! The leader's sockets: followers are accepted, greeted, and sent what they do not have.

use super::status::{Acked, FollowerShown, FollowerStatus};
use crate::forward::{Answerer, SessionHost};
use crate::group::Group;
use crate::node::Node;
use crate::peers::{HandshakeLimit, PeerStream, Stop, handshake_frame, is_silence};
use larder_replica::{
    Admitted, Frame, GREETING_LEN_MAX, LeaderGreeting, Millis, NAMED_LEN_MAX, Process, Purpose,
    Reached, Sender, Step, Welcomed, is_near,
};
use larder_store::cache::Cache;
use larder_store::journal::{Bell, Journals};
use larder_store::{Now, erased};
use larder_support::clock::{Clock, boot_millis};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

/// Followers that may be connected at the same time.
const FOLLOWERS_MAX: usize = 16;
/// Leaders of other groups that may take slots over at the same time: each of them has the whole cache walked through. One
/// at a time does; the others are connections of theirs that have ended, of which this side does not know yet.
const MOVES_MAX: usize = 16;
/// Connections that may be in their greeting.
const GREETINGS_MAX: usize = 32;
/// How long a greeting may take.
const GREETING_TIME: Duration = Duration::from_secs(5);
/// How often the leader says that it is alive.
const BEAT: Duration = Duration::from_millis(100);
/// How long changes for which nobody waits gather while others go on.
const REST: Duration = Duration::from_millis(1);
/// A follower that accepts or acknowledges nothing for this long is disconnected.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// A follower that is a member of this server's group.
struct FollowingMember<'g> {
    process: Process,
    group: &'g Group,
    /// Since which epoch this server led when it connected.
    leadership: u32,
}

/// The group that this server is a member of, and what answers requests of other members.
struct Membership {
    group: Arc<Group>,
    answerer: Answerer,
}

/// A peer that was admitted, and since which epoch this server leads.
struct Greeted {
    stream: PeerStream,
    admitted: Admitted,
    leadership: u32,
}

/// The cache of a server that has followers.
pub struct ReplicatedCache {
    /// Its handles append their changes to the journals.
    pub journaled: erased::Cache,
    /// Its handles keep no journals: for readers.
    pub plain: erased::Cache,
    /// The journals that followers are sent.
    pub journals: Arc<Journals>,
}

/// What all connections share.
pub(crate) struct Leader {
    pub(crate) node: Arc<Node>,
    pub(crate) cache: ReplicatedCache,
    boot: u64,
    /// The group that this server is a member of, if it is one.
    membership: Option<Membership>,
    pub(crate) stop: Arc<Stop>,
    greeting: AtomicUsize,
    moves: AtomicUsize,
}

impl Leader {
    pub(crate) fn new(
        node: &Arc<Node>,
        host: &Arc<dyn SessionHost>,
        cache: ReplicatedCache,
        stop: &Arc<Stop>,
    ) -> Self {
        let membership = node.group.as_ref().map(|group| {
            let handles = node.answerer_counters.iter().map(|_| cache.journaled.engine());
            let answerer = Answerer::new(node, host, group, handles.collect());
            Membership { group: Arc::clone(group), answerer }
        });
        let boot = node.group.as_ref().map_or_else(rand::random, |group| group.me().boot);
        Self {
            node: Arc::clone(node),
            cache,
            boot,
            membership,
            stop: Arc::clone(stop),
            greeting: AtomicUsize::new(0),
            moves: AtomicUsize::new(0),
        }
    }

    fn group(&self) -> Option<&Group> {
        self.membership.as_ref().map(|membership| &*membership.group)
    }

    /// Accepts followers until the end, and waits for the threads of all.
    pub(crate) fn accept(&self, listeners: &[TcpListener]) {
        std::thread::scope(|scope| {
            while self.stop.wait_for_connection(listeners) {
                for listener in listeners {
                    let Ok((stream, address)) = listener.accept() else { continue };
                    if self.greeting.fetch_add(1, Ordering::Relaxed) >= GREETINGS_MAX {
                        self.greeting.fetch_sub(1, Ordering::Relaxed);
                        continue;
                    }
                    let begun = std::thread::Builder::new()
                        .name("sender".to_owned())
                        .spawn_scoped(scope, move || self.serve(stream, &address.to_string()));
                    if let Err(error) = begun {
                        self.greeting.fetch_sub(1, Ordering::Relaxed);
                        tracing::warn!("a follower is not served, for want of a thread: {error}");
                    }
                }
            }
        });
    }

    /// Greets a peer, and serves it if it is a follower.
    fn serve(&self, socket: TcpStream, address: &str) {
        let greeted = self.greet(socket);
        self.greeting.fetch_sub(1, Ordering::Relaxed);
        let refuse = |reason: &dyn std::fmt::Display| {
            self.node.replication.refused.fetch_add(1, Ordering::Relaxed);
            self.node
                .refused_peer_warning
                .warn(|| format!("a follower at {address} is refused: {reason}"));
        };
        let Greeted { stream, admitted, leadership } = match greeted {
            Ok(Some(greeted)) => greeted,
            Ok(None) => {
                // It has seen that this server leads before this server was ready to, or does not know yet that it
                // does not any more, and asks again by itself.
                tracing::debug!("a follower at {address} is refused: this server does not lead");
                return;
            }
            Err(error) => return refuse(&error),
        };
        let Admitted { name, member, group: peers_group, purpose } = admitted;
        let position = match (purpose, &self.membership) {
            (Purpose::Follow(position), _) => position,
            (Purpose::Forward, Some(membership)) => {
                let ended = membership.answerer.serve(&stream, &self.stop);
                if let Err(error) = ended {
                    tracing::debug!("the requests of {name} end: {error}");
                }
                return;
            }
            (Purpose::Move(slots), Some(Membership { group, .. })) => {
                let to = peers_group.as_deref().and_then(|names| names.split('/').nth(1));
                let to = to.unwrap_or_default();
                if self.moves.fetch_add(1, Ordering::Relaxed) < MOVES_MAX {
                    tracing::info!("{name} takes {} slots over for group {to}", slots.len());
                    if let Err(error) = self.give(group, (to, slots), &stream, leadership) {
                        tracing::warn!("{name} does not take the slots over: {error}");
                    }
                } else {
                    let _ = refuse_peer(&stream, "as many moves as there may be are under way");
                    refuse(&"there are as many moves as there may be");
                }
                self.moves.fetch_sub(1, Ordering::Relaxed);
                return;
            }
            (Purpose::Forward | Purpose::Move(_), None) => {
                return refuse(&"it is no member of this cluster");
            }
        };
        let journals = &self.cache.journals;
        let status = Arc::new(FollowerStatus::new(name, address.to_owned()));
        if !self.node.replication.add(Arc::clone(&status), FOLLOWERS_MAX) {
            let _ = refuse_peer(&stream, "it has as many followers as it may have");
            return refuse(&"there are as many as there may be");
        }
        // It only reads, so it has no journal.
        let engine = self.cache.plain.engine();
        let succession = member.as_ref().and(self.group()).and_then(Group::succession);
        let (position, succession) = (position.as_ref(), succession.as_deref());
        let journals_read = Arc::clone(journals);
        let sender = Sender::new(engine, journals_read, self.boot, position, succession);
        let how = match (sender.begins_with_copy(), sender.is_repairing()) {
            (true, _) => "begins with a copy",
            (_, true) => "is sent what it has not got from the leader before",
            _ => "goes on",
        };
        tracing::info!("the follower {} at {address} {how}", status.name);
        let member = member.zip(self.group());
        let member = member.map(|(process, group)| FollowingMember { process, group, leadership });
        let ended = self.stream(sender, journals, &stream, &status, member.as_ref());
        self.node.replication.remove(&status);
        if let Some(FollowingMember { process, group, .. }) = &member {
            group.with(|member, _| member.note_gone(process));
            group.note_joining_ends(process.boot);
        }
        if let Err(error) = ended
            && !self.stop.is_set()
        {
            tracing::info!("the follower {} at {address} has gone: {error}", status.name);
        }
    }

    /// What a peer has asked for; `None` if it is to follow, and this server does not lead its group.
    fn greet(&self, socket: TcpStream) -> io::Result<Option<Greeted>> {
        let limit = HandshakeLimit::new(GREETING_TIME, &self.stop);
        socket.set_nonblocking(false)?;
        socket.set_nodelay(true)?;
        socket.set_write_timeout(Some(SILENCE_MAX))?;
        let stream = PeerStream::accept(socket, self.node.credentials.tls.as_deref(), &limit)?;
        let group = self.group();
        let name = group.map(Group::full_name);
        let mut greeting =
            LeaderGreeting::new(self.node.credentials.secret.clone(), rand::random(), name);
        let (mut input, mut out) = (Vec::new(), Vec::new());
        loop {
            let Some((frame, len)) = handshake_frame(&input)? else {
                stream.receive(&limit, &mut input)?;
                continue;
            };
            check_certificate(&frame, &stream)?;
            let leadership = group.and_then(Group::leadership);
            let epoch = group.and_then(Group::leading_epoch);
            let welcomed = Welcomed { boot: self.boot, epoch: epoch.unwrap_or_default() };
            let admitted = greeting.receive(frame, welcomed, &mut out);
            input.drain(..len);
            let follows = matches!(
                &admitted,
                Ok(Some(Admitted { member: Some(_), purpose: Purpose::Follow(_), .. }))
            );
            if follows && leadership.is_none() {
                refuse_peer(&stream, "this node does not lead its group")?;
                return Ok(None);
            }
            (&stream).write_all(&out)?;
            out.clear();
            if let Some(admitted) = admitted.map_err(io::Error::other)? {
                let leadership = leadership.unwrap_or_default();
                return Ok(Some(Greeted { stream, admitted, leadership }));
            }
        }
    }

    /// Sends until the connection ends, while another thread reads what is acknowledged.
    fn stream(
        &self,
        sender: Sender<erased::Handle>,
        journals: &Arc<Journals>,
        stream: &PeerStream,
        status: &FollowerStatus,
        member: Option<&FollowingMember<'_>>,
    ) -> io::Result<()> {
        let (name_key, named) = mpsc::channel();
        let may_name = sender.is_repairing();
        std::thread::scope(|scope| {
            let acks = std::thread::Builder::new().name("acks".to_owned());
            let acks = acks.spawn_scoped(scope, || {
                let ended =
                    read_acks(stream, journals, status, member, may_name.then_some(name_key));
                // The sender finds out when it writes.
                let _ = stream.shutdown(Shutdown::Both);
                ended
            })?;
            let sent = self.send(sender, journals, stream, status, member, &named);
            let _ = stream.shutdown(Shutdown::Both);
            let read = acks.join().unwrap_or(Ok(()));
            // The reader knows why the follower has gone, if it has.
            read.and(sent)
        })
    }

    fn send(
        &self,
        mut sender: Sender<erased::Handle>,
        journals: &Arc<Journals>,
        mut stream: &PeerStream,
        status: &FollowerStatus,
        member: Option<&FollowingMember<'_>>,
        named: &mpsc::Receiver<NamedKeys>,
    ) -> io::Result<()> {
        let alarm = Arc::new(Alarm::new(journals.bell()));
        let waker = Waker::from(Arc::clone(&alarm));
        let clock = self.node.clock;
        let (mut out, mut beats) = (Vec::new(), Beats::default());
        let (mut sent_bytes, mut rested_after) = (0, 0);
        while !self.stop.is_set() {
            let heard = journals.bell().rings();
            if member.is_some_and(|member| member.group.leads_since() != Some(member.leadership)) {
                return Err(io::Error::other("this server does not lead any more"));
            }
            for NamedKeys { keys, is_last } in named.try_iter() {
                sender.take_named(keys);
                if is_last {
                    sender.note_named_all();
                }
            }
            let now = clock.moment().into();
            if let Some(number) = beats.due() {
                let behind = sender.behind_millis(now);
                let is_in_doubt = member.is_some_and(|member| !member.group.is_serving());
                let known = (!is_in_doubt).then_some(behind);
                let behind_millis = known.and_then(|behind| behind.try_into().ok());
                let sent = boot_millis();
                Frame::Beat { number, behind_millis, sent }.write(&mut out);
                status.note_beat(number, behind);
            }
            let step = sender.step(now, &waker, &mut out);
            // Before the follower can acknowledge it.
            let reached = sender.take_reached();
            if member.is_some() {
                status.note_reached(reached);
            }
            stream.write_all(&out)?;
            sent_bytes += out.len() as u64;
            out.clear();
            let rests = matches!(step, Step::Idle) && sender.batch() != rested_after;
            // What is written while it rests is sent afterwards.
            let rest = if rests { REST } else { Duration::ZERO };
            note(&sender, status, &clock, sent_bytes, rest);
            match step {
                Step::More => (),
                Step::Idle if rests => {
                    rested_after = sender.batch();
                    journals.bell().rest(REST, heard);
                }
                Step::Idle => {
                    let has_rung = || journals.bell().rings() != heard || self.stop.is_set();
                    journals.bell().wait(beats.left(), || sender.has_more() || has_rung());
                }
                Step::Waiting => {
                    journals.bell().wait(beats.left(), || alarm.take());
                }
            }
        }
        Ok(())
    }
}

/// Refuses a peer that calls itself a node for which its certificate is not.
fn check_certificate(frame: &Frame<'_>, stream: &PeerStream) -> io::Result<()> {
    if let Frame::Hello { name, member: Some(_), .. } = frame
        && !stream.is_certified_as(name)
    {
        refuse_peer(stream, "its certificate is not for the node that it says to be")?;
        return Err(io::Error::other(format!("its certificate is not for the node {name}")));
    }
    Ok(())
}

/// Tells a peer why it is refused.
pub(crate) fn refuse_peer(mut stream: &PeerStream, reason: &str) -> io::Result<()> {
    let mut out = Vec::new();
    Frame::Refused(reason).write(&mut out);
    stream.write_all(&out)
}

/// Notes what a sender has done, and how long it is going to rest.
fn note(
    sender: &Sender<erased::Handle>,
    status: &FollowerStatus,
    clock: &Clock,
    sent_bytes: u64,
    rest: Duration,
) {
    let now: Now = clock.moment().into();
    let shown = FollowerShown {
        counts: sender.counts(),
        is_copying: sender.is_copying(),
        lag_bytes: sender.lag_bytes(),
        lag_keys: sender.lag_keys(),
        lag: Duration::from_millis(sender.behind_millis(now)) + rest,
        sent_bytes,
    };
    status.note(shown, sender.batch());
}

/// When the next beat is due.
#[derive(Default)]
pub(crate) struct Beats {
    last: Option<Instant>,
    number: u64,
}

impl Beats {
    /// The number of the beat that is due now, if one is.
    pub(crate) fn due(&mut self) -> Option<u64> {
        let is_due = self.last.is_none_or(|last| last.elapsed() >= BEAT);
        is_due.then(|| {
            self.last = Some(Instant::now());
            self.number += 1;
            self.number
        })
    }

    /// The time to the next one.
    pub(crate) fn left(&self) -> Duration {
        self.last.map_or(Duration::ZERO, |last| BEAT.saturating_sub(last.elapsed()))
    }
}

/// Rings the bell of the journals, and remembers that it has.
#[derive(Debug)]
pub(crate) struct Alarm {
    bell: Arc<Bell>,
    has_rung: AtomicBool,
}

impl Alarm {
    pub(crate) fn new(bell: &Arc<Bell>) -> Self {
        Self { bell: Arc::clone(bell), has_rung: false.into() }
    }

    /// Whether it has rung since the last call.
    pub(crate) fn take(&self) -> bool {
        self.has_rung.swap(false, Ordering::AcqRel)
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.has_rung.store(true, Ordering::Release);
        self.bell.ring();
    }
}

/// Keys that a follower has named: see [`Sender::take_named`].
struct NamedKeys {
    keys: Vec<u8>,
    is_last: bool,
}

/// Reads what a follower acknowledges, until the connection ends.
fn read_acks(
    mut stream: &PeerStream,
    journals: &Journals,
    status: &FollowerStatus,
    member: Option<&FollowingMember<'_>>,
    name_keys: Option<mpsc::Sender<NamedKeys>>,
) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    let (mut input, mut bytes, mut named_len) = (Vec::new(), [0; 4096], 0);
    let mut joining = Joining::default();
    loop {
        let len = match stream.read(&mut bytes) {
            Ok(0) => {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has disconnected"));
            }
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if is_silence(&error) => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it acknowledges nothing"));
            }
            Err(error) => return Err(error),
        };
        input.extend_from_slice(bytes.get(..len).unwrap_or_default());
        while let Some((frame, len)) =
            Frame::read(&input, GREETING_LEN_MAX).map_err(io::Error::other)?
        {
            if let Frame::Named(named) = frame {
                named_len += len;
                // A key of one byte takes three of a frame.
                let fits = named_len <= 4 * NAMED_LEN_MAX;
                let Some(name_keys) = name_keys.as_ref().filter(|_| fits) else {
                    return Err(io::Error::other("it names keys that it may not"));
                };
                let keys = named.bytes().map_err(io::Error::other)?.to_vec();
                // The sender may have ended.
                let _ = name_keys.send(NamedKeys { keys, is_last: named.is_last });
                journals.bell().ring();
                input.drain(..len);
                continue;
            }
            let Frame::Ack { batch, beat, reach, has_all, promises } = frame else {
                return Err(io::Error::other("it sends what does not belong there"));
            };
            let Acked { sent, has_until, reached } = status.note_ack((batch, beat, reach));
            if let Some(member) = member {
                joining.note(member, journals, has_all, (has_until, reached));
                if sent.is_some() {
                    let FollowingMember { process, group, .. } = member;
                    let has_joined = has_all && joining.has_joined;
                    group.with(|member, _| {
                        // It may have been left since.
                        let has_all = has_joined && journals.acks().requires(process.boot);
                        let promised = sent.filter(|_| promises);
                        member.note_ack(process, has_until.filter(|_| has_all), promised);
                    });
                }
            }
            input.drain(..len);
        }
    }
}

/// How a member comes to have all items: answers wait for it from when it has a copy, and it has joined when it has
/// all that was changed until then. Nobody waits for one that is too slow to be in sync.
#[derive(Default)]
struct Joining {
    /// What it has acknowledged last, and up to which time it has all changes.
    reached: Option<Reached>,
    has_until: Millis,
    /// Where the journals were when answers began to wait for it.
    ends: Option<Vec<u64>>,
    has_joined: bool,
}

impl Joining {
    fn note(
        &mut self,
        FollowingMember { process, group, .. }: &FollowingMember<'_>,
        journals: &Journals,
        has_all: bool,
        (has_until, reached): (Option<Millis>, Option<Reached>),
    ) {
        let acks = journals.acks();
        if !has_all {
            // It has to copy everything again.
            *self = Self::default();
            return;
        }
        let is_new = reached.is_some();
        self.reached = reached.or(self.reached.take());
        self.has_until = has_until.unwrap_or(self.has_until);
        // It may have been too slow, or another connection of its own may have ended late: then answers do not wait for
        // it any more.
        let begins = self.ends.is_none() || !acks.requires(process.boot);
        if begins && !is_near(self.has_until, boot_millis()) {
            (self.ends, self.has_joined) = (None, false);
            return;
        }
        if !self.has_joined || begins {
            group.note_joining(process.boot, self.has_until);
        }
        if begins {
            acks.require(process.boot);
            (self.ends, self.has_joined) = (Some(journals.ends()), false);
        }
        if let Some(Reached { offsets, generation, .. }) = &self.reached
            && (begins || is_new)
        {
            acks.note(process.boot, offsets, *generation);
        }
        if !self.has_joined
            && let Some(ends) = &self.ends
        {
            self.has_joined = acks.has_passed(process.boot, ends);
        }
    }
}

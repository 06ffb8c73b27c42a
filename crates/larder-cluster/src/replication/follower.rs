//! The follower's socket: it connects to its leader, again and again, and stores what it is sent.

use crate::group::Group;
use crate::node::Node;
use crate::peers::{Dialed, PeerStream, Stop, Target, dial, is_silence};
use larder_replica::{Applier, HelloMember, Member, Millis, Process, Purpose, Role, Welcomed};
use larder_store::cache::Cache;
use larder_store::{Now, erased};
use larder_support::clock::boot_millis;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A leader that says nothing for this long is gone: it says something ten times a second.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// How long a read waits before it looks whether the server ends, or another one leads.
const SLICE: Duration = Duration::from_millis(100);
/// The first pause before connecting again, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// What is read at once.
const READ_LEN: usize = 256 << 10;

pub(crate) struct Follower {
    node: Arc<Node>,
    /// The first address at which this server serves clients.
    name: String,
    stop: Arc<Stop>,
}

/// The beats of a connection.
#[derive(Default)]
struct Beats {
    last: u64,
    /// The least difference so far between the clocks at which a beat came and was sent, and when that was.
    least: Option<(i128, Millis)>,
}

impl Beats {
    /// Notes the number of the last beat; whether it is another one.
    fn note(&mut self, number: u64) -> bool {
        std::mem::replace(&mut self.last, number) < number
    }

    /// How long a beat was on its way that was sent at this time of the leader's clock, more than the fastest one.
    fn delay(&mut self, sent: u64, now: Millis) -> Millis {
        let difference = i128::from(now) - i128::from(sent);
        // The clocks' paces may differ by a thousandth.
        let least = self.least.map_or(difference, |(least, since)| {
            least + i128::from(now.saturating_sub(since) / 1000)
        });
        if difference <= least {
            self.least = Some((difference, now));
        }
        (difference - least).max(0).try_into().unwrap_or(Millis::MAX)
    }
}

/// Whom a follower follows.
enum Leader<'g> {
    /// The server at this address (`--follow`).
    At(&'g str),
    /// The leader of the group.
    Of(&'g Group, Process),
}

impl Follower {
    pub(crate) fn new(node: Arc<Node>, name: String, stop: Arc<Stop>) -> Self {
        Self { node, name, stop }
    }

    /// Follows the server at this address until the end.
    pub(crate) fn follow_always(&self, address: &str, engine: erased::Handle) {
        let mut applier = Applier::new(engine);
        let (mut pause, mut last_error) = (PAUSE_MIN, String::new());
        while !self.stop.is_set() {
            let has_begun =
                self.follow_noting_errors(&mut applier, &Leader::At(address), &mut last_error);
            pause = if has_begun { PAUSE_MIN } else { (2 * pause).min(PAUSE_MAX) };
            self.stop.wait(pause);
        }
    }

    /// Follows whoever leads the group, and has this server lead when it is to.
    pub(crate) fn take_part(&self, group: &Group, engine: erased::Handle) {
        let mut applier = match group.journals() {
            Some(journals) => Applier::of_member(engine, Arc::clone(journals)),
            None => Applier::new(engine),
        };
        let (mut last_error, mut has_led, mut last_wish) = (String::new(), false, 0);
        while !self.stop.is_set() {
            let role = group.role();
            match &role {
                Role::Alone => (),
                Role::Leader { epoch, begins_empty } => {
                    let since = group.leads_since();
                    if group.leadership().is_none()
                        && let Some(since) = since
                    {
                        // Keys may have moved to or from this group meanwhile, which its last leader knew.
                        let goes_on = || group.leads_since() == Some(since);
                        if !group.topology.wait_for_map(Instant::now(), &self.stop, goes_on) {
                            continue;
                        }
                        let succession = applier.succeed().filter(|_| !begins_empty);
                        self.node.cache.control().set_cas_epoch(*epoch);
                        if *begins_empty {
                            applier.flush(self.node.clock.moment().into());
                        }
                        has_led = true;
                        group.note_ready(since, succession);
                        self.node.forwarders.to(larder_session::Group::OWN).note_leading();
                        if let Some(link) = &self.node.replication.link {
                            link.note_lost("");
                        }
                    }
                    group.grant_wish(&mut last_wish);
                }
                Role::Follower { leader, .. } => {
                    if std::mem::take(&mut has_led) && group.settle() {
                        let now: Now = self.node.clock.moment().into();
                        applier.note_led(group.me().boot, now);
                    }
                    let leader = Leader::Of(group, leader.clone());
                    self.follow_noting_errors(&mut applier, &leader, &mut last_error);
                    group.wait_for_change(&role, PAUSE_MIN);
                    continue;
                }
            }
            group.wait_for_change(&role, SLICE);
        }
    }

    /// Follows until the connection ends; whether there was one.
    fn follow_noting_errors(
        &self,
        applier: &mut Applier<erased::Handle>,
        leader: &Leader<'_>,
        last_error: &mut String,
    ) -> bool {
        let mut has_begun = false;
        let Err(error) = self.follow(applier, leader, &mut has_begun);
        if let Leader::Of(group, _) = leader {
            // It may have handed over.
            group.with(|member, _| member.look_soon());
        }
        if self.stop.is_set() || leader.is_replaced() {
            return has_begun;
        }
        let error = error.to_string();
        if has_begun || error != *last_error {
            tracing::warn!("no connection to the leader at {}: {error}", leader.name());
        }
        if let Some(link) = &self.node.replication.link {
            link.note_lost(&error);
        }
        *last_error = error;
        has_begun
    }

    /// Connects, and follows until the connection ends.
    fn follow(
        &self,
        applier: &mut Applier<erased::Handle>,
        leader: &Leader<'_>,
        has_begun: &mut bool,
    ) -> Result<std::convert::Infallible, io::Error> {
        let Dialed { stream, welcomed, rest } = self.dial(applier, leader)?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        *has_begun = true;
        let boot = welcomed.boot;
        tracing::info!("this server follows the leader at {}", leader.name());
        if let Some(link) = &self.node.replication.link {
            link.note_connected();
        }
        applier.begin(boot);
        // Where it goes on, a flush may be the first thing that comes.
        leader.note_copy_until(None);
        let mut beats = Beats::default();
        self.take(applier, leader, &stream, &rest, &mut beats)?;
        stream.set_read_timeout(Some(SLICE))?;
        let (mut bytes, mut heard) = (vec![0; READ_LEN], Instant::now());
        loop {
            match (&stream).read(&mut bytes) {
                Ok(0) => {
                    let reason = "the leader has closed the connection";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason));
                }
                Ok(len) => {
                    heard = Instant::now();
                    let bytes = bytes.get(..len).unwrap_or_default();
                    self.take(applier, leader, &stream, bytes, &mut beats)?;
                }
                Err(error) if is_silence(&error) => {
                    if heard.elapsed() > SILENCE_MAX {
                        let reason = "the leader is silent";
                        return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
                    }
                }
                Err(error) => return Err(error),
            }
            if self.stop.is_set() || leader.is_replaced() {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
    }

    /// Stores what has come, and acknowledges it.
    fn take(
        &self,
        applier: &mut Applier<erased::Handle>,
        leader: &Leader<'_>,
        mut stream: &PeerStream,
        bytes: &[u8],
        beats: &mut Beats,
    ) -> io::Result<()> {
        let now = self.node.clock.moment().into();
        let received = applier.receive_asking(bytes, now, &mut || leader.begin_copy());
        leader.note_copy(applier.has_copy());
        if let Some(link) = &self.node.replication.link {
            link.note(applier, bytes.len());
        }
        received.map_err(io::Error::other)?;
        let mut out = Vec::new();
        let is_new = beats.note(applier.last_beat());
        let promises = is_new && leader.promise();
        if is_new {
            let now = boot_millis();
            let delay = beats.delay(applier.last_beat_sent(), now);
            let behind = applier.behind_millis().filter(|_| applier.has_copy());
            let lag = behind.map(|behind| delay + Millis::from(behind));
            leader.note_copy_until(lag.map(|lag| now.saturating_sub(lag)));
        }
        applier.acknowledge(promises, &mut out);
        stream.write_all(&out)
    }

    fn dial(&self, applier: &Applier<erased::Handle>, leader: &Leader<'_>) -> io::Result<Dialed> {
        let purpose = Purpose::Follow(applier.position());
        match leader {
            Leader::At(address) => {
                let target = Target { address, node: None };
                dial(target, &self.node.credentials, &self.name, None, purpose, &self.stop)
            }
            Leader::Of(group, process) => {
                let address = leader.address().ok_or_else(|| {
                    io::Error::new(io::ErrorKind::NotFound, "it has told no address")
                })?;
                let (me, name) = (group.me(), group.full_name());
                let member = Some(HelloMember { group: &name, boot: me.boot });
                let target = Target { address: &address, node: Some(&process.node) };
                let dialed =
                    dial(target, &self.node.credentials, &me.node, member, purpose, &self.stop);
                match &dialed {
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                        group.with(|member, _| member.note_refusal(process));
                    }
                    Err(_) => group.with(|member, _| member.look_soon()),
                    Ok(Dialed { welcomed: Welcomed { boot, .. }, .. }) if *boot != process.boot => {
                        group.with(|member, _| member.note_replaced(process));
                        return Err(io::Error::other("another process answers there"));
                    }
                    Ok(_) => group.with(|member, _| member.note_connected()),
                }
                dialed
            }
        }
    }
}

impl Leader<'_> {
    fn name(&self) -> String {
        match self {
            Self::At(address) => (*address).to_owned(),
            Self::Of(_, process) => {
                let address = self.address().unwrap_or_default();
                format!("{address} ({})", process.node)
            }
        }
    }

    fn address(&self) -> Option<String> {
        match self {
            Self::At(address) => Some((*address).to_owned()),
            Self::Of(group, process) => group.see(|member| {
                let addresses = &member.view().addresses;
                addresses.get(&process.node).map(|addresses| addresses.members.clone())
            }),
        }
    }

    /// Whether somebody else leads the group meanwhile.
    fn is_replaced(&self) -> bool {
        match self {
            Self::At(_) => false,
            Self::Of(group, process) => {
                !matches!(group.role(), Role::Follower { leader, .. } if leader == *process)
            }
        }
    }

    /// Says that all items are about to be removed, if they may be.
    fn begin_copy(&self) -> bool {
        match self {
            Self::At(_) => true,
            Self::Of(group, _) => {
                group.note_copy_until(None);
                // Look-ups that are under way see the copy as it was.
                group.settle();
                group.with(|member, _| member.begin_copy())
            }
        }
    }

    /// Says up to which time the copy has all changes, if it is complete.
    fn note_copy_until(&self, time: Option<Millis>) {
        if let Self::Of(group, _) = self {
            group.note_copy_until(time);
        }
    }

    /// Says whether a copy is complete.
    fn note_copy(&self, has_copy: bool) {
        if let Self::Of(group, _) = self
            && has_copy
            && group.see(Member::lacks_items)
        {
            group.with(|member, _| member.note_copy());
        }
    }

    /// Promises upon a beat not to stand for election, if that is to be.
    fn promise(&self) -> bool {
        match self {
            Self::At(_) => false,
            Self::Of(group, process) => group.with(|member, now| member.note_beat(process, now)),
        }
    }
}

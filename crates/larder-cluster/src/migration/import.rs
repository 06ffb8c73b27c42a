//! Takes slots over from another group: follows its leader with a filter, has it give the slots up, and says in the map
//! that they are here.
//!
//! One thread of a leader does this, and removes the items of slots that are elsewhere. So nothing is removed that has
//! just come.

use crate::group::{Exporter, Group, MapKeeper, Unfinished};
use crate::node::Node;
use crate::peers::{Dialed, PeerStream, Stop, Target, dial, is_silence};
use larder_replica::{
    Applier, EPOCH_MAX, Frame, HelloMember, Move, Process, Purpose, Revision, SlotSet,
};
use larder_store::cache::Cache;
use larder_store::{Change, Engine, HashedKey, Now, WalkState, erased};
use larder_support::clock::boot_millis;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

/// How often it is looked whether there is something to do, and how soon again after a move has failed.
const LOOKS: Duration = Duration::from_millis(500);
/// All nodes know of a move before slots are given up: they look at the map more often than this.
const KNOWN_AFTER: Duration = Duration::from_secs(2);
/// How long an epoch may take to be raised.
const RAISE_MAX: Duration = Duration::from_secs(2);
/// How long the other leader may take to give slots up, and then the followers to have everything: requests wait
/// meanwhile, for a second at most.
const GIVE_MAX: Duration = Duration::from_millis(400);
const HELD_MAX: Duration = Duration::from_millis(400);
/// How long followers may take to have what has come before that.
const FOLLOWERS_MAX: Duration = Duration::from_secs(2);
/// A flush is carried out by all groups within this time, or fails.
const FLUSHED_WITHIN: Duration = Duration::from_secs(5);
/// So many epochs are left for leaders when an epoch is raised.
const EPOCHS_LEFT: u32 = 1000;
/// A leader that says nothing for this long is gone.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// How long a read waits before it looks whether the move goes on.
const SLICE: Duration = Duration::from_millis(20);
/// How often it is looked whether something is done.
const TICK: Duration = Duration::from_millis(2);
const READ_LEN: usize = 256 << 10;
/// Bytes that are taken over, and items that are removed, before it is waited for followers.
const BYTES_AHEAD: usize = 4 << 20;
const ITEMS_AHEAD: usize = 1000;
/// Items that are looked at in one batch.
const WALK_ITEMS: usize = 256;

pub(crate) struct Importer {
    pub(crate) node: Arc<Node>,
    pub(crate) group: Arc<Group>,
    pub(crate) keeper: Arc<MapKeeper>,
    pub(crate) stop: Arc<Stop>,
    pub(crate) applier: Applier<erased::Handle>,
    pub(crate) state: ImporterState,
}

/// What it knows from before.
#[derive(Default)]
pub(crate) struct ImporterState {
    /// The number of flushes that it has seen, in which leadership, and when that changed.
    flushes: Option<(u64, u32, Instant)>,
    /// It is not known what became of the last move.
    is_unsettled: bool,
}

fn fail(why: &str) -> io::Error {
    io::Error::other(why.to_owned())
}

impl Importer {
    /// Does what there is to do while this server leads, until the end.
    pub(crate) fn run(mut self) {
        let (mut seen, mut cleaned, mut last_error) = (None, None, String::new());
        while !self.stop.is_set() {
            self.group.topology.wait(LOOKS);
            let Some(leadership) = self.group.leadership() else { continue };
            self.note_flushes(leadership);
            let wanted = self.group.topology.next_move();
            let wanted = wanted.filter(|wanted| wanted.to == self.group.name.group);
            let Some(wanted) = wanted else {
                (seen, last_error) = (None, String::new());
                let state = (leadership, self.group.topology.own_slots());
                if cleaned.as_ref() != Some(&state) && self.remove_foreign(leadership) {
                    cleaned = Some(state);
                }
                continue;
            };
            let known_since = match &seen {
                Some((of, since)) if *of == wanted => *since,
                _ => Instant::now(),
            };
            seen = Some((wanted.clone(), known_since));
            cleaned = None;
            match self.take(&wanted, leadership, known_since) {
                Ok(()) => {
                    let count = wanted.slots.len();
                    self.group.topology.note_taken(count);
                    tracing::info!("{count} slots of group {} are here now", wanted.from);
                }
                Err(error) => {
                    let error = error.to_string();
                    if error != last_error {
                        let (count, from) = (wanted.slots.len(), &wanted.from);
                        tracing::warn!("{count} slots of group {from} are not here yet: {error}");
                        last_error = error;
                    }
                    self.stop.wait(LOOKS);
                }
            }
        }
    }

    /// Notes whether all items were flushed, of late as far as this leader knows.
    fn note_flushes(&mut self, leadership: u32) {
        let flushes = self.applier.engine().flush_generation();
        if self.state.flushes.is_none_or(|(seen, of, _)| (seen, of) != (flushes, leadership)) {
            self.state.flushes = Some((flushes, leadership, Instant::now()));
        }
    }

    fn now(&self) -> Now {
        self.node.clock.moment().into()
    }

    /// Takes slots over.
    fn take(&mut self, wanted: &Move, leadership: u32, known_since: Instant) -> io::Result<()> {
        // A flush may have been carried out here, and not yet by the other group.
        let generation = self.state.flushes.filter(|(.., at)| at.elapsed() > FLUSHED_WITHIN);
        let (generation, ..) =
            generation.ok_or_else(|| fail("all items were flushed, or this leader is new"))?;
        if self.state.is_unsettled {
            self.keeper.end_swaps().map_err(io::Error::other)?;
            self.state.is_unsettled = false;
        }
        self.keeper.look().map_err(io::Error::other)?;
        if self.group.topology.next_move().as_ref() != Some(wanted) {
            return Err(fail("they are not to move here any more"));
        }
        let leader = self.group.topology.leader(&wanted.from);
        let leader = leader.ok_or_else(|| fail("nobody leads that group"))?;
        let address = leader.address.ok_or_else(|| fail("its leader has told no address"))?;
        let journals = self.group.journals().ok_or_else(|| fail("there are no journals"))?;
        if journals.flush_pends(self.node.clock.now()) {
            return Err(fail("a flush is still to come"));
        }
        if !self.remove_foreign(leadership) {
            return Err(fail("this server does not lead any more"));
        }
        let process = leader.record.leader;
        let (dialed, epoch) = self.dial(&process, &address, wanted)?;
        if epoch != leader.record.epoch || epoch > EPOCH_MAX - EPOCHS_LEFT {
            return Err(fail("its epoch is not the one that etcd has, or too late"));
        }
        let own_epoch = self.raise_epoch(epoch)?;
        tracing::info!("{} slots of group {} are taken over", wanted.slots.len(), wanted.from);
        self.applier.begin(process.boot);
        let revision = self.follow(&dialed, wanted, leadership, known_since)?;
        // After the barrier nothing comes: a flush that is later than that removes what has come, too.
        if self.applier.engine().flush_generation() != generation {
            return Err(fail("all items were flushed meanwhile"));
        }
        if !self.wait_for_followers(leadership, HELD_MAX) {
            return Err(fail("the followers did not get the items in time"));
        }
        let exporter = Exporter { process, epoch };
        let goes_on = || self.group.leads_on(leadership) && !self.stop.is_set();
        let finished = self.keeper.finish(wanted, revision, &exporter, own_epoch, goes_on);
        self.state.is_unsettled = finished == Err(Unfinished::Unknown);
        finished.map_err(io::Error::other)
    }

    fn dial(&self, leader: &Process, address: &str, wanted: &Move) -> io::Result<(Dialed, u32)> {
        let (me, name) = (self.group.me(), self.group.full_name());
        let member = Some(HelloMember { group: &name, boot: me.boot });
        let target = Target { address, node: Some(&leader.node) };
        let purpose = Purpose::Move(wanted.slots.clone());
        let dialed = dial(target, &self.node.credentials, &me.node, member, purpose, &self.stop)?;
        let welcomed = dialed.welcomed;
        if welcomed.boot != leader.boot || welcomed.epoch == 0 {
            return Err(fail("it does not lead that group any more"));
        }
        Ok((dialed, welcomed.epoch))
    }

    /// Has this leader's epoch be a later one than that of the other group, so that no CAS value is given twice.
    fn raise_epoch(&self, other: u32) -> io::Result<u32> {
        let begun = Instant::now();
        loop {
            let epoch = self.group.leading_epoch();
            let epoch = epoch.ok_or_else(|| fail("this server does not lead any more"))?;
            if epoch > other {
                self.node.cache.control().set_cas_epoch(epoch);
                return Ok(epoch);
            }
            if !self.group.with(|member, _| member.raise_epoch(other + 1)) {
                return Err(fail("the group has had as many epochs as it can have"));
            }
            if begun.elapsed() > RAISE_MAX {
                return Err(fail("the epoch was not raised in time"));
            }
            std::thread::sleep(TICK);
        }
    }

    /// Takes over what the other leader sends, until it has given the slots up and has sent everything. The number of
    /// the map from before it was asked for that.
    fn follow(
        &mut self,
        dialed: &Dialed,
        wanted: &Move,
        leadership: u32,
        known_since: Instant,
    ) -> io::Result<Revision> {
        let mut stream: &PeerStream = &dialed.stream;
        stream.set_read_timeout(Some(SLICE))?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        let (mut bytes, mut heard, mut ahead) = (vec![0; READ_LEN], Instant::now(), 0);
        let mut asked: Option<(Instant, Revision)> = None;
        self.take_over(&dialed.rest, wanted, leadership)?;
        loop {
            match stream.read(&mut bytes) {
                Ok(0) => return Err(fail("the other leader has closed the connection")),
                Ok(len) => {
                    heard = Instant::now();
                    self.take_over(bytes.get(..len).unwrap_or_default(), wanted, leadership)?;
                    ahead += len;
                    if ahead > BYTES_AHEAD {
                        ahead = 0;
                        // Who is too slow leaves those in sync.
                        self.wait_for_followers(leadership, FOLLOWERS_MAX);
                    }
                }
                Err(error) if is_silence(&error) => (),
                Err(error) => return Err(error),
            }
            if heard.elapsed() > SILENCE_MAX {
                return Err(fail("the other leader is silent"));
            }
            if self.stop.is_set() || !self.group.leads_on(leadership) {
                return Err(fail("this server does not lead any more"));
            }
            let mut out = Vec::new();
            self.applier.acknowledge(false, &mut out);
            match asked {
                Some((_, revision)) if self.applier.has_barrier() => return Ok(revision),
                Some((asked, _)) if asked.elapsed() > GIVE_MAX => {
                    return Err(fail("the other leader did not give them up in time"));
                }
                Some(_) => (),
                None if self.applier.has_copy() && known_since.elapsed() > KNOWN_AFTER => {
                    if !self.wait_for_followers(leadership, FOLLOWERS_MAX) {
                        continue;
                    }
                    self.keeper.look().map_err(io::Error::other)?;
                    if self.group.topology.next_move().as_ref() != Some(wanted) {
                        return Err(fail("they are not to move here any more"));
                    }
                    asked = Some((Instant::now(), self.group.topology.map().1));
                    Frame::GiveUp.write(&mut out);
                }
                None => (),
            }
            stream.write_all(&out)?;
        }
    }

    fn take_over(&mut self, bytes: &[u8], wanted: &Move, leadership: u32) -> io::Result<()> {
        let now = self.now();
        let Self { group, applier, .. } = self;
        let may = || group.leads_on(leadership) && !group.topology.has_one_of(&wanted.slots);
        applier.take_over(bytes, now, may).map_err(io::Error::other)
    }

    /// Waits until the followers in sync have all that was changed so far; whether they do in time.
    fn wait_for_followers(&self, leadership: u32, time: Duration) -> bool {
        let Some(journals) = self.group.journals() else { return true };
        let (ends, begun) = (journals.ends(), Instant::now());
        loop {
            if self.group.all_have_passed(journals, &ends) {
                return true;
            }
            let goes_on = self.group.leads_on(leadership) && !self.stop.is_set();
            if !goes_on || begun.elapsed() > time {
                return false;
            }
            std::thread::sleep(TICK);
        }
    }

    /// Removes all items of slots that are elsewhere; false if this server does not lead any more.
    fn remove_foreign(&mut self, leadership: u32) -> bool {
        if self.group.topology.own_slots() == SlotSet::all() {
            return self.group.leads_on(leadership);
        }
        let mut walk = self.applier.engine().walk();
        let (mut removed, mut ahead, begun) = (0, 0, boot_millis());
        loop {
            let now = self.now();
            let engine = self.applier.engine();
            engine.begin_batch(now);
            // Within the batch, for which a server waits that is to follow.
            if !self.group.leads_on(leadership) || self.stop.is_set() {
                engine.end_batch();
                return false;
            }
            let own = self.group.topology.own_slots();
            let mut foreign: Vec<Vec<u8>> = Vec::new();
            let walked = engine.walk_on(&mut walk, WALK_ITEMS, Waker::noop(), |key, _| {
                if !own.has_key(key) {
                    foreign.push(key.to_vec());
                }
            });
            for key in &foreign {
                let key = HashedKey { bytes: key, hash: engine.hash(key) };
                let _ = engine.update_unread(key, &mut None, |_| (Change::Remove, ()));
            }
            engine.end_batch();
            removed += foreign.len();
            ahead += foreign.len();
            if ahead > ITEMS_AHEAD {
                ahead = 0;
                self.wait_for_followers(leadership, FOLLOWERS_MAX);
            }
            match walked {
                WalkState::More => (),
                WalkState::Waiting => std::thread::sleep(TICK),
                WalkState::End => break,
            }
        }
        if removed > 0 {
            let millis = boot_millis().saturating_sub(begun);
            tracing::info!("{removed} items of other groups' slots are removed, in {millis} ms");
        }
        true
    }
}

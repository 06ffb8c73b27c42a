//! The nodes, the network between them, and the checks of the guarantees.

use super::hooked::{HookedCache, Role, set_hook};
use super::items::{Found, FoundItem, crc, get, key, large};
use super::nodes::{Follower, Link, Process};
use crate::seeds::Random;
use larder_replica::{FRAME_LEN_MAX, Frame, Sender, Step, StreamError};
use larder_store::cache::Cache;
use larder_store::{
    Access, Attributes, Batches, Change, Engine, Expiry, HashedKey, Item, Lookup, NewCas, NewTags,
    NewValue, Now, Refusal, Seconds, Updated,
};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

/// A function that completes pending reads from slower storage.
pub(crate) type Complete = Rc<dyn Fn()>;
type Make<C> = Rc<dyn Fn(u64) -> C>;

/// The number of CAS values in a reservation.
const CAS_LEN: u64 = 100;
const KEYS: u64 = 24;
pub(super) const FOLLOWERS: usize = 2;
pub(super) const WRITERS: usize = 2;
/// The number of steps with faults.
const STEPS: u32 = 400;
/// All nodes must converge within this many steps after the faults.
const QUIET_STEPS_MAX: u32 = 4000;
/// The time at the start of the simulation, in milliseconds.
const START: u64 = 1_000_000_000;
/// The total length, in bytes, of a process's journals in runs with long journals. Short journals
/// have room for only a few keys.
const JOURNALS_LEN: usize = 32 << 10;
/// The maximum difference between the rates of two clocks, in thousandths.
const PACES: u64 = 20;
const SHORT_SECS: u32 = 3;
const LONG_SECS: u32 = 100_000;

fn one_in(random: &Random, of: u64) -> bool {
    random.below(of) == 0
}

pub(crate) struct World<C: Cache> {
    make: Make<C>,
    complete: Complete,
    random: Random,
    /// The length of a process's journals in bytes; 0 selects the minimum length.
    journals_len: usize,
    time: Cell<u64>,
    /// The rate of each clock, in thousandths of the simulation's time.
    paces: Vec<u64>,
    /// The longest time that bytes have spent in transit so far, in milliseconds.
    delay_max: Cell<u64>,
    /// The number of leaders so far.
    leaders: Cell<u64>,
    depth: Cell<u32>,
    writes: Cell<u64>,
    /// For each write, its position in the order in which the leader's items changed.
    decided: RefCell<HashMap<u64, u64>>,
    decisions: Cell<u64>,
    /// The end of the CAS values that the leader has reserved.
    cas_end: Cell<u64>,
    /// The CAS values that leaders have assigned to each key.
    cas_values: RefCell<HashSet<(u64, u64)>>,
    trace: Cell<u64>,
    leader: RefCell<Rc<Process<C>>>,
    followers: RefCell<Vec<Follower<C>>>,
}

impl<C: Cache> World<C> {
    pub(crate) fn new(seed: u64, make: Make<C>, complete: Complete) -> Rc<Self> {
        let random = Random::new(seed);
        let journals_len = if one_in(&random, 2) { JOURNALS_LEN } else { 0 };
        let process = |clock| Rc::new(Process::new(make(1), random.next(), clock, journals_len));
        let leader = RefCell::new(process(0));
        let followers = (1..=FOLLOWERS).map(|clock| Follower::new(process(clock))).collect();
        let cas_end = 1 + CAS_LEN;
        leader.borrow().cache.control().set_cas_range(1..cas_end);
        let paces = (0..=FOLLOWERS).map(|_| 1000 - PACES / 2 + random.below(PACES + 1)).collect();
        Rc::new(Self {
            make,
            complete,
            random,
            journals_len,
            time: Cell::new(0),
            paces,
            delay_max: Cell::new(0),
            leaders: Cell::new(1),
            depth: Cell::new(0),
            writes: Cell::new(0),
            decided: RefCell::default(),
            decisions: Cell::new(0),
            cas_end: Cell::new(cas_end),
            cas_values: RefCell::default(),
            trace: Cell::new(seed),
            leader,
            followers: RefCell::new(followers),
        })
    }

    /// Runs the simulation to its end. Returns a hash of all events.
    pub(crate) fn run(self: Rc<Self>) -> u64 {
        let world = Rc::clone(&self);
        set_hook(Some(Rc::new(move |role| world.interrupt(role))));
        for _ in 0..STEPS {
            self.step();
        }
        self.converge();
        set_hook(None);
        self.compare();
        self.trace.get()
    }

    fn note(&self, event: u64) {
        let mixed = (self.trace.get() ^ event).wrapping_mul(0x9fb2_1c65_1e98_df25);
        self.trace.set(mixed ^ (mixed >> 32));
    }

    fn now(&self, process: &Process<C>) -> Now {
        let millis = START + self.time.get() * self.paces[process.clock] / 1000;
        let secs = Seconds(u32::try_from(millis / 1000).unwrap());
        Now { secs, millis: u16::try_from(millis % 1000).unwrap(), ahead: 0 }
    }

    /// With a probability of 1/6, runs steps of other users of the cache between two steps of a
    /// user in `role`.
    fn interrupt(&self, role: Role) {
        if self.depth.get() >= 2 || !one_in(&self.random, 6) {
            return;
        }
        self.depth.set(self.depth.get() + 1);
        match role {
            Role::Sender => (0..=self.random.below(4)).for_each(|_| self.write()),
            Role::Writer => self.send(usize::try_from(self.random.below(2)).unwrap()),
            Role::Applier => (),
        }
        self.depth.set(self.depth.get() - 1);
    }

    fn step(&self) {
        self.time.set(self.time.get() + self.random.below(40));
        let follower = usize::try_from(self.random.below(FOLLOWERS as u64)).unwrap();
        let choice = self.random.below(100);
        self.note(choice);
        match choice {
            0..35 => self.write(),
            35..60 => self.send(follower),
            60..85 => self.deliver(follower, false),
            85..88 => self.connect(follower),
            88..90 => self.disconnect(follower),
            90 => {
                if let Some(link) = &mut self.leader().links.borrow_mut()[follower] {
                    link.is_cut = !link.is_cut;
                }
            }
            91..93 => {
                let followers = &mut self.followers.borrow_mut();
                followers[follower].is_paused = !followers[follower].is_paused;
            }
            93 if one_in(&self.random, 2) => {
                self.disconnect(follower);
                let follower = &mut self.followers.borrow_mut()[follower];
                *follower = self.new_follower(follower.process.clock);
            }
            94 => match self.random.below(8) {
                0 => {
                    let clock = self.leader().clock;
                    *self.leader.borrow_mut() = self.process(clock);
                    self.start_leadership(self.cas_end.get());
                }
                1..3 => self.replace_leader(follower),
                _ => (),
            },
            // Make more writes than short journals have room for.
            95..97 => (0..80).for_each(|_| self.write()),
            98 => self.replace_leader(follower),
            97 => self.time.set(self.time.get() + 1500),
            _ => (self.complete)(),
        }
    }

    fn leader(&self) -> Rc<Process<C>> {
        Rc::clone(&self.leader.borrow())
    }

    /// Starts a leadership that draws only CAS values of at least `from`.
    fn start_leadership(&self, from: u64) {
        self.leaders.set(self.leaders.get() + 1);
        let leader = self.leader();
        let control = leader.cache.control();
        self.cas_end.set(self.cas_end.get().max(from.max(control.next_cas()) + CAS_LEN));
        control.set_cas_range(from..self.cas_end.get());
    }

    /// Creates a follower without items.
    fn new_follower(&self, clock: usize) -> Follower<C> {
        Follower::new(self.process(clock))
    }

    /// Creates a process without items.
    fn process(&self, clock: usize) -> Rc<Process<C>> {
        let (cache, incarnation) = ((self.make)(2), self.random.next());
        Rc::new(Process::new(cache, incarnation, clock, self.journals_len))
    }

    /// Makes a follower the leader if it is synced or in a delta sync. A synced follower may still
    /// lack bytes in transit. The old leader's process stops or becomes a follower.
    fn replace_leader(&self, number: usize) {
        let may_lead = {
            let follower = &self.followers.borrow()[number];
            follower.applier.is_synced() || follower.is_delta_syncing
        };
        if !may_lead {
            return;
        }
        let old = self.leader();
        (0..FOLLOWERS).for_each(|number| self.disconnect(number));
        let mut before = if one_in(&self.random, 2) {
            let mut before = Follower::new(Rc::clone(&old));
            before.applier.end_leadership(old.incarnation, self.now(&old));
            before
        } else {
            self.new_follower(old.clock)
        };
        std::mem::swap(&mut self.followers.borrow_mut()[number], &mut before);
        *before.process.succession.borrow_mut() = before.applier.become_leader();
        self.note(before.process.incarnation);
        *self.leader.borrow_mut() = before.process;
        // After a transfer, the next leader starts at the counter of the old leader.
        let old = old.cache.control().next_cas();
        let from = if one_in(&self.random, 2) { old } else { self.cas_end.get() };
        self.start_leadership(from);
        if one_in(&self.random, 2) {
            (0..FOLLOWERS).for_each(|number| self.connect(number));
        }
    }

    /// Repairs all faults, stops all writes, and runs until the followers have all items.
    fn converge(&self) {
        self.depth.set(2);
        // After this time, all delayed flushes are due. Their delay is one second.
        self.time.set(self.time.get() + 2000);
        for follower in self.followers.borrow_mut().iter_mut() {
            follower.is_paused = false;
        }
        for number in 0..FOLLOWERS {
            if let Some(link) = &mut self.leader().links.borrow_mut()[number] {
                link.is_cut = false;
            }
            self.connect(number);
        }
        for _ in 0..QUIET_STEPS_MAX {
            self.time.set(self.time.get() + 10);
            (self.complete)();
            let mut is_quiet = true;
            for number in 0..FOLLOWERS {
                self.send(number);
                self.deliver(number, true);
                // Connect the follower again if it has lost its connection.
                self.connect(number);
                let leader = self.leader();
                let links = leader.links.borrow();
                let link = links[number].as_ref().expect("the loop has connected it");
                is_quiet &= link.is_idle && link.sent.is_empty() && !link.sender.has_more();
                is_quiet &= self.followers.borrow()[number].applier.is_synced();
            }
            if is_quiet {
                return;
            }
        }
        panic!("the followers do not converge");
    }

    fn connect(&self, number: usize) {
        let leader = self.leader();
        if leader.links.borrow()[number].is_some() {
            return;
        }
        let follower = &mut self.followers.borrow_mut()[number];
        // If there was another leader since the last connection, it may have undone changes that
        // the follower had received from this leader.
        follower.has_missed_leader = follower.leaders != self.leaders.get();
        follower.leaders = self.leaders.get();
        let applier = &mut follower.applier;
        let position = applier.position(Some(leader.incarnation));
        let engine = HookedCache { cache: leader.cache.inner().cache.clone(), role: Role::Sender };
        let journals = Arc::clone(&leader.journals);
        let succession = leader.succession.borrow();
        let (position, succession) = (position.as_ref(), succession.as_ref());
        let sender =
            Sender::new(engine.engine(), journals, leader.incarnation, position, succession);
        self.note(
            u64::from(sender.starts_with_full_sync()) << 1 | u64::from(sender.is_delta_syncing()),
        );
        applier.start_stream(leader.incarnation);
        let link = Link {
            sender,
            is_idle: false,
            sent: Vec::new(),
            sent_since: 0,
            is_cut: false,
            heartbeats: 0,
        };
        leader.links.borrow_mut()[number] = Some(link);
    }

    /// Ends a connection. With a probability of 1/2, some of the bytes in transit still arrive.
    fn disconnect(&self, number: usize) {
        if one_in(&self.random, 2) {
            self.deliver(number, false);
        }
        self.leader().links.borrow_mut()[number] = None;
    }

    fn send(&self, number: usize) {
        let leader = self.leader();
        let Some(mut link) = leader.links.borrow_mut()[number].take() else { return };
        // If the peer reads nothing, the sender blocks.
        if link.sent.len() < 1 << 20 {
            if link.sent.is_empty() {
                link.sent_since = self.time.get();
            }
            if one_in(&self.random, 8) {
                link.heartbeats += 1;
                let lag_ms = link.sender.lag_ms(self.now(&leader)).try_into().ok();
                Frame::Heartbeat {
                    number: link.heartbeats,
                    lag_ms,
                    sent: self.time.get(),
                    cas_end: 0,
                }
                .write(&mut link.sent);
            }
            let step = link.sender.step(self.now(&leader), Waker::noop(), &mut link.sent);
            link.is_idle = step == Step::Idle;
            self.note(link.sent.len() as u64);
        }
        let mut links = leader.links.borrow_mut();
        // A nested call may have opened another connection.
        if links[number].is_none() {
            links[number] = Some(link);
        }
    }

    fn deliver(&self, number: usize, all: bool) {
        let leader = self.leader();
        let mut links = leader.links.borrow_mut();
        let followers = &mut *self.followers.borrow_mut();
        let (Some(link), follower) = (&mut links[number], &mut followers[number]) else { return };
        if link.is_cut || follower.is_paused || link.sent.is_empty() {
            return;
        }
        let len = if all {
            link.sent.len()
        } else {
            1 + self.random.below(link.sent.len() as u64) as usize
        };
        let bytes: Vec<u8> = link.sent.drain(..len).collect();
        self.delay_max.set(self.delay_max.get().max(self.time.get() - link.sent_since));
        bytes.chunks(512).for_each(|chunk| self.note(crc(chunk)));
        let (now, before) = (self.now(&follower.process), follower.applier.counts());
        let received = follower.applier.receive(&bytes, now);
        if received == Err(StreamError::TooManyChanges) {
            links[number] = None;
            return;
        }
        received.expect("a valid stream");
        let counts = follower.applier.counts();
        follower.is_delta_syncing |= counts.delta_syncs > before.delta_syncs;
        follower.is_delta_syncing &= counts.full_syncs == before.full_syncs;
        let mut acks = Vec::new();
        follower.applier.acknowledge(false, &mut acks);
        while let Some((frame, len)) = Frame::read(&acks, FRAME_LEN_MAX).unwrap() {
            match frame {
                Frame::Ack { batch, heartbeat, .. } => {
                    assert!(batch <= link.sender.batch() && heartbeat <= link.heartbeats);
                }
                Frame::ChangedKeys(keys) => {
                    link.sender.push_changed_keys(keys.bytes().unwrap().to_vec());
                    if keys.is_last {
                        link.sender.end_changed_keys();
                    }
                }
                frame => panic!("{frame:?}"),
            }
            acks.drain(..len);
        }
        self.check_order(follower);
        follower.is_delta_syncing &= !follower.applier.is_synced();
    }

    /// Checks that no key of a follower reverts to an older value. Allows this after a full sync,
    /// in a delta sync, and for a follower that has missed a leader.
    fn check_order(&self, follower: &mut Follower<C>) {
        if follower.is_delta_syncing || follower.has_missed_leader {
            follower.seen.clear();
        }
        let syncs = follower.applier.counts().full_syncs;
        for number in 0..KEYS {
            let Found::Item(found) =
                get(&mut follower.reader, number, self.now(&follower.process), &self.complete)
            else {
                continue;
            };
            let write = self.decided.borrow()[&found.write];
            let (seen_syncs, seen) = follower.seen.get(&number).copied().unwrap_or_default();
            assert!(
                write >= seen || syncs > seen_syncs,
                "key {number} went back from write {seen} to {write}"
            );
            follower.seen.insert(number, (syncs, write));
        }
    }

    /// Sends a client's request to the leader.
    fn write(&self) {
        let leader = self.leader();
        let writer = usize::try_from(self.random.below(WRITERS as u64)).unwrap();
        let Some(mut handle) = leader.writers.borrow_mut()[writer].take() else { return };
        let number = self.random.below(KEYS);
        let write = self.writes.get() + 1;
        self.writes.set(write);
        let kind = self.random.below(100);
        self.note(kind << 32 | number);
        handle.begin_batch(self.now(&leader));
        self.change(&mut handle, kind, number, write);
        handle.end_batch();
        leader.writers.borrow_mut()[writer] = Some(handle);
    }

    fn change<E: Engine>(&self, handle: &mut E, kind: u64, number: u64, write: u64) {
        let now = self.now(&self.leader()).secs.0;
        let expiry = match write % 5 {
            0 => Expiry::At(Seconds(now + 1 + (number as u32) % SHORT_SECS)),
            1 => Expiry::At(Seconds(now + LONG_SECS)),
            2 => Expiry::at_millis(u64::from(now) * 1000 + 1700),
            _ => Expiry::Never,
        };
        let attributes = Attributes { client_flags: write as u32, expiry, ..Attributes::default() };
        let put = |value| Change::Put {
            attributes,
            cas: NewCas::Fresh,
            value,
            fetched: false,
            tags: NewTags::None,
        };
        let text = format!(" {write}");
        match kind {
            0..4 => handle.flush(None),
            4 => handle.flush(Some(Seconds(now + 1))),
            5..8 => {
                let large = large(write);
                let mut upload = Some(handle.upload(large.len()).expect("room"));
                large.chunks(50_000).for_each(|piece| {
                    handle.extend(upload.as_mut().unwrap(), piece).expect("room");
                });
                self.update(handle, (number, write), &mut upload, |_| put(NewValue::Uploaded));
            }
            8..20 => self.update(handle, (number, write), &mut None, |_| Change::Remove),
            20..30 => self.update(handle, (number, write), &mut None, |found| match found {
                Lookup::Hit(item) if item.value.len() < 1000 => {
                    put(NewValue::Append(text.as_bytes()))
                }
                _ => Change::Keep,
            }),
            30..40 => self.update(handle, (number, write), &mut None, |found| match found {
                Lookup::Hit(item) => {
                    let attributes =
                        Attributes { expiry, stale: write.is_multiple_of(2), ..item.attributes };
                    Change::SetAttributes {
                        attributes,
                        cas: NewCas::Fresh,
                        access: Access::Untracked,
                    }
                }
                _ => Change::Remove,
            }),
            _ => self.update(handle, (number, write), &mut None, |_| {
                put(NewValue::Bytes(text.as_bytes()))
            }),
        }
    }

    fn update<'v, E: Engine>(
        &self,
        handle: &mut E,
        (number, write): (u64, u64),
        upload: &mut Option<E::Upload>,
        decide: impl Fn(&Lookup<&Item<'_, E::Lease>>) -> Change<'v>,
    ) {
        let bytes = key(number);
        let hashed = HashedKey { bytes: &bytes, hash: handle.hash(&bytes) };
        for _ in 0..1000 {
            let updated = handle.update(hashed, upload, |found| {
                let order = self.decisions.get() + 1;
                self.decisions.set(order);
                self.decided.borrow_mut().insert(write, order);
                let change = decide(&found);
                let is_live = matches!(found, Lookup::Hit(_));
                let draws = match change {
                    Change::Put { .. } => true,
                    Change::SetAttributes { .. } => is_live,
                    _ => false,
                };
                (change, draws)
            });
            match updated {
                Err(Refusal::Pending) => (self.complete)(),
                Err(Refusal::NoCas) => {
                    let from = self.cas_end.get();
                    self.cas_end.set(from + CAS_LEN);
                    self.leader().cache.control().set_cas_range(0..self.cas_end.get());
                }
                result => {
                    let Updated { result: draws, cas } = result.expect("room");
                    assert!(
                        !draws || self.cas_values.borrow_mut().insert((number, cas)),
                        "key {number} gets the CAS value {cas} again"
                    );
                    return;
                }
            }
        }
        panic!("the item stays pending");
    }

    /// Checks that the leader and its followers have the same items.
    fn compare(&self) {
        let leader = self.leader();
        let mut handle = leader.cache.inner().cache.engine();
        let mut followers = self.followers.borrow_mut();
        // Let all items with short lifetimes expire.
        self.time.set(self.time.get() + u64::from(SHORT_SECS) * 10_000);
        // The maximum difference between lifetimes at two nodes. Each leader adds a second of
        // rounding, the difference between clock rates, and the time in transit.
        let difference_max = 1000 + self.time.get() * PACES / 1000 + self.delay_max.get();
        let difference_max = difference_max * self.leaders.get();
        for follower in followers.iter_mut() {
            let now = self.now(&follower.process);
            assert_eq!(follower.process.cache.control().gauges().evictions, 0, "no evictions");
            for number in 0..KEYS {
                let expected = get(&mut handle, number, self.now(&leader), &self.complete);
                let found = get(&mut follower.reader, number, now, &self.complete);
                match (expected, found) {
                    (Found::Nothing, Found::Nothing) => (),
                    (Found::Item(expected), Found::Item(found)) => {
                        let without_time =
                            |shown: &FoundItem| FoundItem { left: None, ..shown.clone() };
                        assert_eq!(without_time(&found), without_time(&expected), "key {number}");
                        let (l, f) = (expected.left, found.left);
                        let is_near =
                            l.zip(f).is_some_and(|(l, f)| l.abs_diff(f) <= difference_max);
                        assert!(l == f || is_near, "key {number}: {l:?} and {f:?} ms");
                    }
                    (expected, found) => {
                        panic!("key {number}: {expected:?} at the leader, {found:?} at a follower")
                    }
                }
            }
        }
    }
}

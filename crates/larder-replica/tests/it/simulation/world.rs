//! The nodes, the network between them, and what is promised.
//!
//! A value ends with a number that rises with each write of the simulation, so that what a follower has of a key can
//! be told from what it had before.
#![allow(clippy::cast_possible_truncation, reason = "numbers of a simulation are small")]

use super::hooked::{Hooked, HookedCache, Role, set_hook};
use crate::seeds::Random;
use larder_replica::{Applier, FRAME_LEN_MAX, Frame, Sender, Step, StreamError, Succession};
use larder_store::cache::Cache;
use larder_store::journal::{Journaled, JournaledCache, Journals};
use larder_store::{
    Access, Attributes, Batches, Change, Engine, Expiry, HashedKey, Item, Lease, Lookup, NewCas,
    NewTags, NewValue, Now, Refusal, Seconds, Value,
};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

/// Ends what an engine waits for.
pub(crate) type Complete = Rc<dyn Fn()>;
type Make<C> = Rc<dyn Fn(u64) -> C>;
/// A client's handle to the leader's cache; it is not there while it is in use.
type Writer<C> = Option<Journaled<Hooked<<C as Cache>::Engine>>>;

const KEYS: u64 = 24;
const FOLLOWERS: usize = 2;
const WRITERS: usize = 2;
/// Steps in which there are faults, and within which everything has to become quiet.
const STEPS: u32 = 400;
const QUIET_STEPS_MAX: u32 = 4000;
/// When the simulation begins, in milliseconds.
const START: u64 = 1_000_000_000;
/// The bytes of long journals. Short ones hold only a few keys.
const JOURNALS_LEN: usize = 32 << 10;
/// How far the paces of two clocks can be apart, in thousandths.
const PACES: u64 = 20;
const SHORT_SECS: u32 = 3;
const LONG_SECS: u32 = 100_000;

fn one_in(random: &Random, of: u64) -> bool {
    random.below(of) == 0
}

/// A process that leads, or may come to lead.
struct Process<C: Cache> {
    boot: u64,
    /// Which clock it has.
    clock: usize,
    cache: JournaledCache<HookedCache<C>>,
    journals: Arc<Journals>,
    /// How it has come to lead, if it has after another one.
    succession: RefCell<Option<Succession>>,
    writers: RefCell<Vec<Writer<C>>>,
    /// A connection to each follower, if there is one; it is not here while it is in use.
    links: RefCell<Vec<Option<Link<C>>>>,
}

struct Link<C: Cache> {
    sender: Sender<Hooked<C::Engine>>,
    is_idle: bool,
    /// Bytes on their way, and since when there are some.
    sent: Vec<u8>,
    sent_since: u64,
    /// They don't arrive.
    is_cut: bool,
    beats: u64,
}

struct Follower<C: Cache> {
    process: Rc<Process<C>>,
    applier: Applier<Journaled<Hooked<C::Engine>>>,
    /// Reads of clients.
    reader: C::Engine,
    stands_still: bool,
    /// Items may go back, because another leader has other ones.
    is_repairing: bool,
    /// How many leaders there had been when it last connected, and whether there was another one in between.
    leaders: u64,
    has_missed_one: bool,
    /// The number of the last write that was seen of each key, and the copies before that.
    seen: HashMap<u64, (u64, u64)>,
}

pub(crate) struct World<C: Cache> {
    make: Make<C>,
    complete: Complete,
    random: Random,
    /// The bytes of a process's journals.
    journals_len: usize,
    time: Cell<u64>,
    /// How fast each clock goes, in thousandths.
    paces: Vec<u64>,
    /// The longest that something was on its way, in milliseconds, and how many leaders there were.
    delay_max: Cell<u64>,
    leaders: Cell<u64>,
    depth: Cell<u32>,
    writes: Cell<u64>,
    /// When each write decided what to do, by its number: the order in which the leader's items changed.
    decided: RefCell<HashMap<u64, u64>>,
    decisions: Cell<u64>,
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
            trace: Cell::new(seed),
            leader,
            followers: RefCell::new(followers),
        })
    }

    /// Runs to the end; a hash of what happened.
    pub(crate) fn run(self: Rc<Self>) -> u64 {
        let world = Rc::clone(&self);
        set_hook(Some(Rc::new(move |role| world.interrupt(role))));
        for _ in 0..STEPS {
            self.step();
        }
        self.become_quiet();
        set_hook(None);
        self.compare();
        self.trace.get()
    }

    fn note(&self, what: u64) {
        let mixed = (self.trace.get() ^ what).wrapping_mul(0x9fb2_1c65_1e98_df25);
        self.trace.set(mixed ^ (mixed >> 32));
    }

    fn now(&self, process: &Process<C>) -> Now {
        let millis = START + self.time.get() * self.paces[process.clock] / 1000;
        let secs = Seconds(u32::try_from(millis / 1000).unwrap());
        Now { secs, millis: u16::try_from(millis % 1000).unwrap() }
    }

    /// What others do between two steps of one.
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
                followers[follower].stands_still = !followers[follower].stands_still;
            }
            93 if one_in(&self.random, 2) => {
                self.disconnect(follower);
                let follower = &mut self.followers.borrow_mut()[follower];
                *follower = self.begin_anew(follower.process.clock);
            }
            94 => match self.random.below(8) {
                0 => {
                    let clock = self.leader().clock;
                    *self.leader.borrow_mut() = self.process(clock);
                    self.leaders.set(self.leaders.get() + 1);
                }
                1..3 => self.replace_leader(follower),
                _ => (),
            },
            // More than short journals hold.
            95..97 => (0..80).for_each(|_| self.write()),
            98 => self.replace_leader(follower),
            97 => self.time.set(self.time.get() + 1500),
            _ => (self.complete)(),
        }
    }

    fn leader(&self) -> Rc<Process<C>> {
        Rc::clone(&self.leader.borrow())
    }

    /// A follower that has nothing.
    fn begin_anew(&self, clock: usize) -> Follower<C> {
        Follower::new(self.process(clock))
    }

    /// A process that has nothing.
    fn process(&self, clock: usize) -> Rc<Process<C>> {
        let (cache, boot) = ((self.make)(2), self.random.next());
        Rc::new(Process::new(cache, boot, clock, self.journals_len))
    }

    /// A follower leads from here on, if it has everything but what has not arrived. The one that led is gone, or it
    /// follows.
    fn replace_leader(&self, number: usize) {
        if !self.followers.borrow()[number].applier.has_copy() {
            return;
        }
        let old = self.leader();
        (0..FOLLOWERS).for_each(|number| self.disconnect(number));
        let mut before = if one_in(&self.random, 2) {
            let mut before = Follower::new(Rc::clone(&old));
            before.applier.note_led(old.boot, self.now(&old));
            before
        } else {
            self.begin_anew(old.clock)
        };
        std::mem::swap(&mut self.followers.borrow_mut()[number], &mut before);
        *before.process.succession.borrow_mut() = before.applier.succeed();
        self.note(before.process.boot);
        *self.leader.borrow_mut() = before.process;
        self.leaders.set(self.leaders.get() + 1);
        if one_in(&self.random, 2) {
            (0..FOLLOWERS).for_each(|number| self.connect(number));
        }
    }

    /// Everything is repaired, and nobody writes any more.
    fn become_quiet(&self) {
        self.depth.set(2);
        // A flush that was to come later comes now.
        self.time.set(self.time.get() + 2000);
        for follower in self.followers.borrow_mut().iter_mut() {
            follower.stands_still = false;
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
                // It may have had to begin again.
                self.connect(number);
                let leader = self.leader();
                let links = leader.links.borrow();
                let link = links[number].as_ref().expect("it is connected");
                is_quiet &= link.is_idle && link.sent.is_empty() && !link.sender.has_more();
                is_quiet &= self.followers.borrow()[number].applier.has_copy();
            }
            if is_quiet {
                return;
            }
        }
        panic!("it does not become quiet");
    }

    fn connect(&self, number: usize) {
        let leader = self.leader();
        if leader.links.borrow()[number].is_some() {
            return;
        }
        let follower = &mut self.followers.borrow_mut()[number];
        // What it has of this leader from before may have been undone by the one in between.
        follower.has_missed_one = follower.leaders != self.leaders.get();
        follower.leaders = self.leaders.get();
        let applier = &mut follower.applier;
        let position = applier.position();
        let engine = HookedCache { cache: leader.cache.inner().cache.clone(), role: Role::Sender };
        let journals = Arc::clone(&leader.journals);
        let succession = leader.succession.borrow();
        let (position, succession) = (position.as_ref(), succession.as_ref());
        let sender = Sender::new(engine.engine(), journals, leader.boot, position, succession);
        self.note(u64::from(sender.begins_with_copy()) << 1 | u64::from(sender.is_repairing()));
        applier.begin(leader.boot);
        let link = Link {
            sender,
            is_idle: false,
            sent: Vec::new(),
            sent_since: 0,
            is_cut: false,
            beats: 0,
        };
        leader.links.borrow_mut()[number] = Some(link);
    }

    /// A part of what is on its way may still arrive.
    fn disconnect(&self, number: usize) {
        if one_in(&self.random, 2) {
            self.deliver(number, false);
        }
        self.leader().links.borrow_mut()[number] = None;
    }

    fn send(&self, number: usize) {
        let leader = self.leader();
        let Some(mut link) = leader.links.borrow_mut()[number].take() else { return };
        // A peer that takes nothing blocks the sender.
        if link.sent.len() < 1 << 20 {
            if link.sent.is_empty() {
                link.sent_since = self.time.get();
            }
            if one_in(&self.random, 8) {
                link.beats += 1;
                let behind_millis = link.sender.behind_millis(self.now(&leader)).try_into().ok();
                Frame::Beat { number: link.beats, behind_millis, sent: self.time.get() }
                    .write(&mut link.sent);
            }
            let step = link.sender.step(self.now(&leader), Waker::noop(), &mut link.sent);
            link.is_idle = step == Step::Idle;
            self.note(link.sent.len() as u64);
        }
        let mut links = leader.links.borrow_mut();
        // It may have been given up meanwhile.
        if links[number].is_none() {
            links[number] = Some(link);
        }
    }

    fn deliver(&self, number: usize, all: bool) {
        let leader = self.leader();
        let mut links = leader.links.borrow_mut();
        let followers = &mut *self.followers.borrow_mut();
        let (Some(link), follower) = (&mut links[number], &mut followers[number]) else { return };
        if link.is_cut || follower.stands_still || link.sent.is_empty() {
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
        if received == Err(StreamError::TooMuchChanged) {
            links[number] = None;
            return;
        }
        received.expect("the stream is in order");
        let counts = follower.applier.counts();
        follower.is_repairing |= counts.repairs > before.repairs;
        follower.is_repairing &= counts.copies == before.copies;
        let mut acks = Vec::new();
        follower.applier.acknowledge(false, &mut acks);
        while let Some((frame, len)) = Frame::read(&acks, FRAME_LEN_MAX).unwrap() {
            match frame {
                Frame::Ack { batch, beat, .. } => {
                    assert!(batch <= link.sender.batch() && beat <= link.beats);
                }
                Frame::Named(named) => {
                    link.sender.take_named(named.bytes().unwrap().to_vec());
                    if named.is_last {
                        link.sender.note_named_all();
                    }
                }
                frame => panic!("{frame:?}"),
            }
            acks.drain(..len);
        }
        self.look(follower);
        follower.is_repairing &= !follower.applier.has_copy();
    }

    /// What a follower has of a key never goes back, but for a copy or a repair.
    fn look(&self, follower: &mut Follower<C>) {
        if follower.is_repairing || follower.has_missed_one {
            follower.seen.clear();
        }
        let copies = follower.applier.counts().copies;
        for number in 0..KEYS {
            let Found::Item(found) =
                get(&mut follower.reader, number, self.now(&follower.process), &self.complete)
            else {
                continue;
            };
            let write = self.decided.borrow()[&found.write];
            let (seen_copies, seen) = follower.seen.get(&number).copied().unwrap_or_default();
            assert!(
                write >= seen || copies > seen_copies,
                "key {number} goes back from {seen} to {write}"
            );
            follower.seen.insert(number, (copies, write));
        }
    }

    /// A client's request to the leader.
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
                (decide(&found), ())
            });
            match updated {
                Err(Refusal::Pending) => (self.complete)(),
                result => return result.map(drop).expect("room"),
            }
        }
        panic!("it stays pending");
    }

    /// Leader and followers have the same items.
    fn compare(&self) {
        let leader = self.leader();
        let mut handle = leader.cache.inner().cache.engine();
        let mut followers = self.followers.borrow_mut();
        // All that lives for a short time only is gone everywhere.
        self.time.set(self.time.get() + u64::from(SHORT_SECS) * 10_000);
        // What clocks of different paces, that show whole seconds, can be apart.
        let apart = 1000 + self.time.get() * PACES / 1000 + self.delay_max.get();
        let apart = apart * self.leaders.get();
        for follower in followers.iter_mut() {
            let now = self.now(&follower.process);
            assert_eq!(follower.process.cache.control().gauges().evictions, 0, "there is room");
            for number in 0..KEYS {
                let expected = get(&mut handle, number, self.now(&leader), &self.complete);
                let found = get(&mut follower.reader, number, now, &self.complete);
                match (expected, found) {
                    (Found::Nothing, Found::Nothing) => (),
                    (Found::Item(expected), Found::Item(found)) => {
                        let without_time = |shown: &Shown| Shown { left: None, ..shown.clone() };
                        assert_eq!(without_time(&found), without_time(&expected), "key {number}");
                        let (l, f) = (expected.left, found.left);
                        let is_near = l.zip(f).is_some_and(|(l, f)| l.abs_diff(f) <= apart);
                        assert!(l == f || is_near, "key {number}: {l:?} and {f:?} ms");
                    }
                    (expected, found) => panic!("key {number}: {expected:?} became {found:?}"),
                }
            }
        }
    }
}

impl<C: Cache> Process<C> {
    fn new(cache: C, boot: u64, clock: usize, journals_len: usize) -> Self {
        let journals = Journals::new(journals_len, WRITERS);
        let hooked = HookedCache { cache, role: Role::Writer };
        let cache = JournaledCache::new(hooked, Arc::clone(&journals));
        let writers = (0..WRITERS).map(|_| Some(cache.engine())).collect();
        let links = (0..FOLLOWERS).map(|_| None).collect();
        let (writers, links) = (RefCell::new(writers), RefCell::new(links));
        Self { boot, clock, cache, journals, succession: RefCell::default(), writers, links }
    }

    /// The cache, without its journals.
    fn plain(&self) -> C {
        self.cache.inner().cache.clone()
    }
}

impl<C: Cache> Follower<C> {
    fn new(process: Rc<Process<C>>) -> Self {
        let hooked = HookedCache { cache: process.plain(), role: Role::Applier };
        let cache = JournaledCache::new(hooked, Arc::clone(&process.journals));
        Self {
            applier: Applier::of_member(cache.engine(), Arc::clone(&process.journals)),
            reader: process.plain().engine(),
            process,
            stands_still: false,
            is_repairing: false,
            leaders: 0,
            has_missed_one: false,
            seen: HashMap::new(),
        }
    }
}

/// What a look-up shows.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shown {
    /// The number at the end of the value.
    write: u64,
    value: u64,
    client_flags: u32,
    stale: bool,
    cas: u64,
    left: Option<u64>,
}

#[derive(Debug)]
enum Found {
    Item(Shown),
    Nothing,
}

fn get<E: Engine>(handle: &mut E, number: u64, now: Now, complete: &Complete) -> Found {
    let bytes = key(number);
    for _ in 0..1000 {
        handle.begin_batch(now);
        let hashed = HashedKey { bytes: &bytes, hash: handle.hash(&bytes) };
        let found = handle.get(hashed, Access::Untracked, |item| {
            let value = match &item.value {
                Value::Whole(bytes) => bytes.to_vec(),
                Value::Large(lease) => {
                    let mut value = Vec::new();
                    while value.len() < lease.len() {
                        value.extend_from_slice(lease.piece(value.len()));
                    }
                    value
                }
            };
            let last = value.rsplit(|byte| *byte == b' ').next().unwrap_or_default();
            Shown {
                write: std::str::from_utf8(last).unwrap().parse().expect("a number"),
                value: crc(&value),
                client_flags: item.attributes.client_flags,
                stale: item.attributes.stale,
                cas: item.cas,
                left: item.attributes.expiry.left_millis(now),
            }
        });
        handle.end_batch();
        match found {
            Lookup::Pending => complete(),
            Lookup::Hit(shown) => return Found::Item(shown),
            Lookup::Miss | Lookup::Expired | Lookup::Flushed => return Found::Nothing,
        }
    }
    panic!("it stays pending");
}

fn key(number: u64) -> Vec<u8> {
    // Keys of all lengths.
    let len = if number == 0 { 1000 } else { number as usize };
    format!("{number:0>len$}").into_bytes()
}

fn large(write: u64) -> Vec<u8> {
    let mut value = vec![b'x'; 40_000 + (write as usize * 7919) % 120_000];
    value.extend_from_slice(format!(" {write}").as_bytes());
    value
}

fn crc(bytes: &[u8]) -> u64 {
    bytes.iter().fold(bytes.len() as u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

//! What the simulation rarely comes to.

use larder_replica::{Applier, FRAME_LEN_MAX, Frame, Position, Sender, Succession};
use larder_store::cache::Cache;
use larder_store::journal::{Journaled, JournaledCache, Journals};
use larder_store::{
    Attributes, Batches, Change, Engine, HashedKey, NewCas, NewTags, NewValue, Now, SizeClasses,
    dashmap,
};
use std::sync::Arc;
use std::task::Waker;

type Handle = Journaled<<dashmap::Cache as Cache>::Engine>;

struct Node {
    boot: u64,
    cache: JournaledCache<dashmap::Cache>,
    journals: Arc<Journals>,
    applier: Applier<Handle>,
}

impl Node {
    fn new(boot: u64) -> Self {
        let cache = dashmap::Cache::new(dashmap::Config {
            limit_bytes: 16 << 20,
            cas: true,
            classes: SizeClasses::new(vec![1 << 10], 56),
            seed: boot,
        });
        let journals = Journals::new(1 << 20, 2);
        let cache = JournaledCache::new(cache, Arc::clone(&journals));
        let applier = Applier::of_member(cache.engine(), Arc::clone(&journals));
        Self { boot, cache, journals, applier }
    }

    fn sender(
        &self,
        position: Option<&Position>,
        succession: Option<&Succession>,
    ) -> Sender<<dashmap::Cache as Cache>::Engine> {
        let engine = self.cache.inner().engine();
        Sender::new(engine, Arc::clone(&self.journals), self.boot, position, succession)
    }

    /// Copies everything from a leader.
    fn copy(&mut self, leader: &Self) {
        self.applier.begin(leader.boot);
        let mut sender = leader.sender(None, None);
        for _ in 0..20 {
            let mut sent = Vec::new();
            sender.step(Now::default(), Waker::noop(), &mut sent);
            self.applier.receive(&sent, Now::default()).unwrap();
        }
        assert!(self.applier.has_copy());
    }
}

fn set(engine: &mut impl Engine, key: &[u8]) {
    let hashed = HashedKey { bytes: key, hash: engine.hash(key) };
    let put = || Change::Put {
        attributes: Attributes::default(),
        cas: NewCas::Fresh,
        value: NewValue::Bytes(b"value"),
        fetched: false,
        tags: NewTags::None,
    };
    engine.update(hashed, &mut None, |_| (put(), ())).unwrap();
}

/// The kinds of frames that a step sends: marks, and offsets at which marks end.
fn marks(sender: &mut Sender<impl Engine>) -> (usize, Vec<Vec<u64>>) {
    let mut sent = Vec::new();
    sender.step(Now::default(), Waker::noop(), &mut sent);
    let (mut rest, mut begun, mut ended) = (&sent[..], 0, Vec::new());
    while let Some((frame, len)) = Frame::read(rest, FRAME_LEN_MAX).unwrap() {
        match frame {
            Frame::Mark => begun += 1,
            Frame::Settled { ends } => ended.push(ends),
            _ => (),
        }
        rest = &rest[len..];
    }
    (begun, ended)
}

/// An item shows a change before its key is in a journal.
#[test]
fn a_mark_ends_when_what_was_under_way_is_in_the_journals() {
    let leader = Node::new(1);
    let (mut writer, mut unseen) = (leader.cache.engine(), leader.cache.inner().engine());
    writer.begin_batch(Now::default());
    unseen.begin_batch(Now::default());
    // As far as others can see, this is the writer's change, which has not been journaled.
    set(&mut unseen, b"key");
    let mut sender = leader.sender(None, None);
    assert_eq!(marks(&mut sender), (1, vec![]));
    assert_eq!(marks(&mut sender), (0, vec![]), "the writer has not ended its batch");
    set(&mut writer, b"key");
    writer.end_batch();
    let (begun, ended) = marks(&mut sender);
    assert_eq!((begun, ended), (0, vec![leader.journals.ends()]));
    assert!(leader.journals.ends().iter().any(|end| *end > 0));
}

#[test]
fn only_members_that_have_followed_the_same_leader_are_spared_a_copy() {
    let (first, again) = (Node::new(1), Node::new(2));
    for leader in [&first, &again] {
        let mut writer = leader.cache.engine();
        writer.begin_batch(Now::default());
        set(&mut writer, b"key");
        writer.end_batch();
    }
    let (mut a, mut b, mut c) = (Node::new(3), Node::new(4), Node::new(5));
    a.copy(&first);
    b.copy(&first);
    c.copy(&again);
    let succession = a.applier.succeed().unwrap();
    let (b, c) = (b.applier.position().unwrap(), c.applier.position().unwrap());
    assert!(a.sender(Some(&b), Some(&succession)).is_repairing());
    assert!(a.sender(Some(&c), Some(&succession)).begins_with_copy());
    assert!(a.sender(Some(&b), None).begins_with_copy());
    let flushed = Position { generation: b.generation + 1, ..b };
    assert!(a.sender(Some(&flushed), Some(&succession)).begins_with_copy());
}

#[test]
fn a_repair_that_breaks_off_ends_in_a_copy() {
    let leader = Node::new(1);
    let (mut a, mut b) = (Node::new(2), Node::new(3));
    a.copy(&leader);
    b.copy(&leader);
    let succession = a.applier.succeed().unwrap();
    let position = b.applier.position();
    let mut sender = a.sender(position.as_ref(), Some(&succession));
    b.applier.begin(a.boot);
    assert_eq!(b.applier.position(), position, "nothing has come yet");
    let mut sent = Vec::new();
    sender.step(Now::default(), Waker::noop(), &mut sent);
    b.applier.receive(&sent, Now::default()).unwrap();
    assert!(!b.applier.has_copy());
    assert_eq!(b.applier.position(), None);
}

#[test]
fn a_copy_that_breaks_off_begins_again() {
    let (leader, mut follower) = (Node::new(1), Node::new(2));
    let mut writer = leader.cache.engine();
    writer.begin_batch(Now::default());
    (0..5000_u32).for_each(|number| set(&mut writer, &number.to_le_bytes()));
    writer.end_batch();
    let mut sender = leader.sender(None, None);
    follower.applier.begin(leader.boot);
    let mut sent = Vec::new();
    sender.step(Now::default(), Waker::noop(), &mut sent);
    follower.applier.receive(&sent, Now::default()).unwrap();
    assert!(follower.applier.counts().states > 0);
    assert!(!follower.applier.has_copy());
    assert_eq!(follower.applier.position(), None);
}

/// One writer writes as many keys between two steps as a step takes, and another one has written one before.
#[test]
fn a_journal_that_is_always_full_does_not_hold_up_another_one() {
    const MANY: u32 = 300;
    let at = |millis| Now { millis, ..Now::default() };
    let mut has_waited = false;
    // Whichever of the journals has its turn.
    for idle_steps in 1..4 {
        let leader = Node::new(1);
        let (mut busy, mut other) = (leader.cache.engine(), leader.cache.engine());
        let mut sender = leader.sender(None, None);
        let mut send = |millis| {
            let mut sent = Vec::new();
            sender.step(at(millis), Waker::noop(), &mut sent);
            let is_sent = sent.windows(5).any(|bytes| bytes == b"waits");
            (is_sent, sender.behind_millis(at(millis)))
        };
        (0..idle_steps).for_each(|_| assert!(!send(0).0));
        other.begin_batch(at(0));
        set(&mut other, b"waits");
        other.end_batch();
        for step in 0.. {
            assert!(step < 3, "it waits behind a journal that is always full");
            busy.begin_batch(at(500));
            (0..MANY).for_each(|key| set(&mut busy, &(step * MANY + key).to_le_bytes()));
            busy.end_batch();
            let (is_sent, behind) = send(500);
            if is_sent {
                break;
            }
            has_waited = true;
            assert_eq!(behind, 500, "it is seen to wait");
        }
    }
    assert!(has_waited, "the other journal was never first");
}

//! Tests of stream states that the simulation rarely reaches.

use larder_replica::{Applier, FRAME_LEN_MAX, Frame, Position, Sender, Succession};
use larder_store::cache::Cache;
use larder_store::journal::{JournaledCache, JournaledHandle, Journals};
use larder_store::{
    Attributes, Batches, Change, Engine, HashedKey, NewCas, NewTags, NewValue, Now, SizeClasses,
    dashmap,
};
use std::sync::Arc;
use std::task::Waker;

type Handle = JournaledHandle<<dashmap::Cache as Cache>::Engine>;

struct Node {
    incarnation: u64,
    cache: JournaledCache<dashmap::Cache>,
    journals: Arc<Journals>,
    applier: Applier<Handle>,
}

impl Node {
    fn new(incarnation: u64) -> Self {
        let cache = dashmap::Cache::new(dashmap::Config {
            limit_bytes: 16 << 20,
            cas: true,
            classes: SizeClasses::new(vec![1 << 10], 56),
            seed: incarnation,
        });
        let journals = Journals::new(1 << 20, 2);
        let cache = JournaledCache::new(cache, Arc::clone(&journals));
        let applier = Applier::for_member(cache.engine(), Arc::clone(&journals));
        Self { incarnation, cache, journals, applier }
    }

    fn sender(
        &self,
        position: Option<&Position>,
        succession: Option<&Succession>,
    ) -> Sender<<dashmap::Cache as Cache>::Engine> {
        let engine = self.cache.inner().engine();
        Sender::new(engine, Arc::clone(&self.journals), self.incarnation, position, succession)
    }

    /// Runs a full sync of this node from a leader.
    fn full_sync(&mut self, leader: &Self) {
        self.applier.start_stream(leader.incarnation);
        let mut sender = leader.sender(None, None);
        for _ in 0..20 {
            let mut sent = Vec::new();
            sender.step(Now::default(), Waker::noop(), &mut sent);
            self.applier.receive(&sent, Now::default()).unwrap();
        }
        assert!(self.applier.is_synced());
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

/// Runs a step of the sender. Returns the number of started checkpoints, and the offsets of the
/// settled checkpoints.
fn checkpoints(sender: &mut Sender<impl Engine>) -> (usize, Vec<Vec<u64>>) {
    let mut sent = Vec::new();
    sender.step(Now::default(), Waker::noop(), &mut sent);
    let (mut rest, mut started, mut settled) = (&sent[..], 0, Vec::new());
    while let Some((frame, len)) = Frame::read(rest, FRAME_LEN_MAX).unwrap() {
        match frame {
            Frame::Checkpoint => started += 1,
            Frame::CheckpointSettled { ends } => settled.push(ends),
            _ => (),
        }
        rest = &rest[len..];
    }
    (started, settled)
}

/// A reader can see a change of an item before the item's key is in a journal.
#[test]
fn a_checkpoint_settles_when_all_open_batches_have_ended() {
    let leader = Node::new(1);
    let (mut writer, mut unseen) = (leader.cache.engine(), leader.cache.inner().engine());
    writer.begin_batch(Now::default());
    unseen.begin_batch(Now::default());
    // To readers, this looks like a change by `writer` whose key is not in the journal yet.
    set(&mut unseen, b"key");
    let mut sender = leader.sender(None, None);
    assert_eq!(checkpoints(&mut sender), (1, vec![]));
    assert_eq!(checkpoints(&mut sender), (0, vec![]), "the writer has not ended its batch");
    set(&mut writer, b"key");
    writer.end_batch();
    let (started, settled) = checkpoints(&mut sender);
    assert_eq!((started, settled), (0, vec![leader.journals.ends()]));
    assert!(leader.journals.ends().iter().any(|end| *end > 0));
}

#[test]
fn a_delta_sync_requires_the_same_leader_and_flushes() {
    let (first, other) = (Node::new(1), Node::new(2));
    for leader in [&first, &other] {
        let mut writer = leader.cache.engine();
        writer.begin_batch(Now::default());
        set(&mut writer, b"key");
        writer.end_batch();
    }
    let (mut a, mut b, mut c) = (Node::new(3), Node::new(4), Node::new(5));
    a.full_sync(&first);
    b.full_sync(&first);
    c.full_sync(&other);
    let succession = a.applier.become_leader().unwrap();
    let (b, c) = (b.applier.position(None).unwrap(), c.applier.position(None).unwrap());
    assert!(a.sender(Some(&b), Some(&succession)).is_delta_syncing());
    assert!(a.sender(Some(&c), Some(&succession)).starts_with_full_sync());
    assert!(a.sender(Some(&b), None).starts_with_full_sync());
    let flushed = Position { generation: b.generation + 1, ..b };
    assert!(a.sender(Some(&flushed), Some(&succession)).starts_with_full_sync());
}

#[test]
fn an_interrupted_delta_sync_starts_again() {
    let leader = Node::new(1);
    let (mut a, mut b) = (Node::new(2), Node::new(3));
    a.full_sync(&leader);
    b.full_sync(&leader);
    let succession = a.applier.become_leader().unwrap();
    let position = b.applier.position(None);
    let mut sender = a.sender(position.as_ref(), Some(&succession));
    b.applier.start_stream(a.incarnation);
    assert_eq!(b.applier.position(None), position, "no frame has arrived");
    let mut sent = Vec::new();
    sender.step(Now::default(), Waker::noop(), &mut sent);
    b.applier.receive(&sent, Now::default()).unwrap();
    assert!(!b.applier.is_synced());
    assert_eq!(b.applier.position(Some(a.incarnation)), position);
    assert_eq!(
        b.applier.position(Some(leader.incarnation)),
        None,
        "a resumed stream would keep changes that only `a` has"
    );
    assert!(b.applier.become_leader().is_some(), "it has all acknowledged changes");
}

#[test]
fn an_interrupted_full_sync_starts_again() {
    let (leader, mut follower) = (Node::new(1), Node::new(2));
    let mut writer = leader.cache.engine();
    writer.begin_batch(Now::default());
    (0..5000_u32).for_each(|number| set(&mut writer, &number.to_le_bytes()));
    writer.end_batch();
    let mut sender = leader.sender(None, None);
    follower.applier.start_stream(leader.incarnation);
    let mut sent = Vec::new();
    sender.step(Now::default(), Waker::noop(), &mut sent);
    follower.applier.receive(&sent, Now::default()).unwrap();
    assert!(follower.applier.counts().states > 0);
    assert!(!follower.applier.is_synced());
    assert_eq!(follower.applier.position(None), None);
}

/// Between two steps, one writer writes more keys than a step takes. Another writer has written a
/// key earlier.
#[test]
fn a_journal_that_is_always_full_does_not_starve_another_one() {
    const MANY: u32 = 300;
    let at = |millis| Now { millis, ..Now::default() };
    let mut has_waited = false;
    // The number of earlier steps determines the journal from which the next step takes keys first.
    for idle_steps in 1..4 {
        let leader = Node::new(1);
        let (mut busy, mut other) = (leader.cache.engine(), leader.cache.engine());
        let mut sender = leader.sender(None, None);
        let mut send = |millis| {
            let mut sent = Vec::new();
            sender.step(at(millis), Waker::noop(), &mut sent);
            let is_sent = sent.windows(5).any(|bytes| bytes == b"waits");
            (is_sent, sender.lag_ms(at(millis)))
        };
        (0..idle_steps).for_each(|_| assert!(!send(0).0));
        other.begin_batch(at(0));
        set(&mut other, b"waits");
        other.end_batch();
        for step in 0.. {
            assert!(step < 3, "the key waits behind a journal that is always full");
            busy.begin_batch(at(500));
            (0..MANY).for_each(|key| set(&mut busy, &(step * MANY + key).to_le_bytes()));
            busy.end_batch();
            let (is_sent, behind) = send(500);
            if is_sent {
                break;
            }
            has_waited = true;
            assert_eq!(behind, 500, "the lag includes the waiting key");
        }
    }
    assert!(has_waited, "the other journal never waited");
}

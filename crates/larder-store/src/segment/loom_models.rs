//! Model checks under weak memory ordering: loom runs the threads' steps in every order with a
//! bounded number of preemptions, and lets each load return every value that its ordering allows.
//! Run with
//!
//! ```text
//! RUSTFLAGS='--cfg loom' cargo test -p larder-store --lib --target-dir target/loom loom_models
//! ```
//! The models run the code of `epoch`, `buckets`, `word`, `record`, `flush` and `table`, over a
//! region (`raw/modelled.rs`) that detects each race for a byte. They repeat the few lines of
//! `Handle` that combine these modules, because a whole store takes more steps than loom can
//! explore. The models under `shuttle` (`models.rs`), which have no weak memory, cover that part.
//!
//! loom allows a plain store between the two halves of a compare-exchange. So in these models, no
//! reader counts a hit in a word while a writer may replace that word.
//!
//! Each of these mutations fails the models next to it:
//!
//! | mutation | models that fail |
//! |---|---|
//! | a pin that is renewed with a Relaxed store | `memory_is_reused_after_its_reader_has_left` |
//! | `PinSlot::enter` without its fence | `memory_is_reused_after_its_reader_has_left`, `memory_that_one_thread_retires_…`, `bytes_are_overwritten_…` |
//! | neither `Epoch::advance` nor `Epoch::oldest` with a fence | the same three |
//! | `PinSlot::leave` that stores with Relaxed, or `oldest` that loads slots with Relaxed | the same three |
//! | `advance` that adds with Relaxed and has no fence | `memory_that_one_thread_retires_is_reused_by_another` |
//! | `oldest` that is not bounded by the current epoch | `memory_that_one_thread_retires_is_reused_by_another` |
//! | `Index::grow` without `count_move`, or with one that is Relaxed | `a_reader_finds_a_key_while_its_bucket_is_split` |
//! | `grow` that clears the old words first, or with Relaxed; a Relaxed length | `a_reader_finds_a_key_while_its_bucket_is_split` |
//! | `shift` without `count_move` | `a_reader_finds_a_key_that_moves_to_its_other_bucket` |
//! | `shift` that reports no moves, or those to later buckets; `enter_stripe` that locks nothing | `a_walk_finds_a_key_that_moves_behind_it` |
//! | `grow` that clears the old words before the length is raised | `a_walk_finds_a_key_while_its_bucket_is_split` |
//! | `Stripe::version` that loads with Relaxed | `a_reader_finds_a_key_while_its_bucket_is_split` |
//! | `lookup` that does not check the version again; `unlock` with Relaxed | both of `a_reader_finds_a_key_…` |
//! | `scan` that loads, `replace` that stores with Relaxed | `a_reader_that_finds_an_item_sees_…`, `bytes_are_overwritten_…`, both models of flushes |
//! | `insert` that stores with Relaxed | both of `a_reader_that_finds_an_item_…` |
//! | `count_hit` by a plain store | `a_reader_that_finds_an_item_by_a_changed_word_…` |
//! | `mark_dead` or `Record::at` with Relaxed | `a_thread_that_sees_a_dead_mark_…` |
//! | `Stripe::lock` that acquires with Relaxed | `two_writers_of_a_stripe_do_not_take_the_same_word` |
//! | a mover that checks whether an item was flushed before it has room for it | `a_mover_does_not_restore_…` |
//! | attributes that are changed in two steps | `a_reader_sees_changed_attributes_whole` |
//! | a header written before the bytes, or with Relaxed | `a_segment_scan_skips_…`, `an_item_that_replaces_…` |
//! | `close` that does nothing, `take_dead` that takes from a closed segment or subtracts nothing | `an_item_that_replaces_…`, `a_dead_record_of_an_earlier_use_…` |
//! | `take_dead` that takes more than the dead bytes | `a_dead_record_is_replaced_once` |
//! | `take_dead` without the sequence, with Relaxed, or that does not return bytes to a later use of the segment | `a_dead_record_of_an_earlier_use_is_not_replaced` |
//! | `mark_dead` that counts before it marks | `marking_an_item_dead_…` |
//! | an evacuation that retires its segment without counting its dead bytes | `an_item_that_replaces_…`, `a_dead_record_of_an_earlier_use_…` |
//! | a mover that takes a dead record of a segment which was opened after a flush | `a_mover_does_not_restore_a_flushed_item_over_a_dead_record` |
//!
//! Some mutations pass because they change nothing observable:
//! - removing one of the two fences of `advance` and `oldest`, because either is enough
//! - `close`, `add_dead` or `dead` with Relaxed, because the mark and the index word order the same
//!   steps
//! - `lookup` without its fence, because all loads before the fence are Acquire
//! - loading the epoch with Relaxed, because a fence follows
//!
//! Two kinds of error are not caught here. A plain store that changes an attribute may overwrite
//! the access that a reader has just recorded; only the recorded access is lost. A writer may
//! append to a flushed segment; the models of `models.rs` catch this.
//!
//! The models are in one file, because they share helpers and the table of mutations.

use super::index::buckets::plain::{self, Plain, has, hash, rehash};
use super::index::buckets::{Buckets, Index, LockedStripe};
use super::index::word::{IndexWord, count_hit};
use super::item::header::State;
use super::item::new_record::NewRecord;
use super::item::record::Record;
use super::item::witness::{OwnedSegment, Witness};
use super::memory::allocator::{Alloc, RetiredMemory};
use super::memory::epoch::{Epoch, Pin, PinSlot};
use super::memory::layout::{Layout, Shape, limit_min};
use super::memory::raw::Region;
use super::memory::table::{Sequence, Table};
use super::sync::{AtomicU64, Mutex, Ordering};
use crate::eviction::{Kind, Queue, SizeClass};
use crate::{Attributes, Expiry, Seconds};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// Runs a model in every order with at most this many preemptions. `LOOM_MAX_PREEMPTIONS` overrides
/// the number.
fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.max_branches = 100_000;
    builder.check(model);
}

/// The slot of a reader, owned by that reader.
struct PinOwner(Arc<PinSlot>);

impl AsRef<PinSlot> for PinOwner {
    fn as_ref(&self) -> &PinSlot {
        &self.0
    }
}

/// Memory that a reader can find while `word` is 1. The model clears the word before it reuses
/// the memory.
struct ReadableMemory {
    word: AtomicU64,
    content: UnsafeCell<u64>,
}

impl ReadableMemory {
    fn new() -> Arc<Self> {
        Arc::new(Self { word: AtomicU64::new(1), content: UnsafeCell::new(1) })
    }

    fn read(&self) {
        if self.word.load(Ordering::Acquire) == 1 {
            self.content.with(|content| {
                // SAFETY: `with` fails the model if any thread writes.
                assert_eq!(unsafe { *content }, 1, "the memory was reused");
            });
        }
    }

    fn use_again(&self) {
        self.content.with_mut(|content| {
            // SAFETY: `with_mut` fails the model if any thread reads or writes.
            unsafe { *content = 2 };
        });
    }
}

#[test]
fn memory_is_reused_after_its_reader_has_left() {
    explore(5, || {
        let epoch = Arc::new(Epoch::new());
        let slot = Arc::new(PinSlot::default());
        let found = ReadableMemory::new();
        let (read, readers, own) = (found.clone(), epoch.clone(), slot.clone());
        let reader = thread::spawn(move || {
            let mut pin = Pin::new(PinOwner(own));
            pin.begin_batch(&readers);
            read.read();
            pin.renew(&readers);
            read.read();
            pin.end_batch();
            drop(pin.read(&readers));
        });
        found.word.store(0, Ordering::Release);
        let ended = epoch.advance();
        if epoch.oldest([&*slot].into_iter()) > ended {
            found.use_again();
        }
        reader.join().unwrap();
    });
}

#[test]
fn memory_that_one_thread_retires_is_reused_by_another() {
    explore(5, || {
        let epoch = Arc::new(Epoch::new());
        let slot = Arc::new(PinSlot::default());
        let found = ReadableMemory::new();
        let alloc = Arc::new(Mutex::new(Alloc::new(4, 4, 0.7)));
        let (read, readers, own) = (found.clone(), epoch.clone(), slot.clone());
        let reader = thread::spawn(move || {
            let mut pin = Pin::new(PinOwner(own));
            pin.begin_batch(&readers);
            read.read();
        });
        let (retired, retired_segments, ending) = (found.clone(), alloc.clone(), epoch.clone());
        let retirer = thread::spawn(move || {
            retired.word.store(0, Ordering::Release);
            let mut alloc = retired_segments.lock().unwrap();
            alloc.retire(RetiredMemory { epoch: ending.advance(), first: 0, segments: 1 });
        });
        let seen = epoch.oldest([&*slot].into_iter());
        let taken = alloc.lock().unwrap().take_retired(seen);
        if taken.is_some() {
            found.use_again();
        }
        reader.join().unwrap();
        retirer.join().unwrap();
    });
}

fn index(len: usize) -> Arc<Index<Plain>> {
    Arc::new(Index::new(Plain::new(4), len, 1))
}

fn put(index: &Index<Plain>, id: u64) {
    assert!(plain::put(index, id).is_ok(), "there is room");
}

#[test]
fn a_reader_finds_a_key_while_its_bucket_is_split() {
    explore(5, || {
        let index = index(2);
        // The index has only two buckets, so both are candidates of each key. Each step of growth
        // splits one of them.
        put(&index, 1);
        put(&index, 2);
        let readers = index.clone();
        let reader = thread::spawn(move || {
            assert!(has(&readers, 1) && has(&readers, 2), "no key is missed");
        });
        index.grow(rehash, |_, _| ());
        index.grow(rehash, |_, _| ());
        reader.join().unwrap();
    });
}

/// Returns the first `count` ids that have these candidate buckets in an index of four buckets.
fn ids(candidates: [usize; 2], count: usize) -> Vec<u64> {
    let index = index(4);
    (1..).filter(|id| index.candidates_of(hash(*id)) == candidates).take(count).collect()
}

#[test]
fn a_reader_finds_a_key_that_moves_to_its_other_bucket() {
    explore(5, || {
        let index = index(4);
        // A lookup of the mover reads bucket 2 first.
        let mover = ids([2, 1], 1)[0];
        // These keys leave bucket 2 fewer empty words than bucket 1, so that the mover is stored in
        // bucket 1.
        ids([2, 3], 8).into_iter().for_each(|id| put(&index, id));
        put(&index, mover);
        // These keys fill buckets 0 and 1.
        let crowd = ids([0, 1], 16);
        crowd[..15].iter().for_each(|id| put(&index, *id));
        let readers = index.clone();
        let reader = thread::spawn(move || assert!(has(&readers, mover), "the key is not missed"));
        // No word of bucket 0 or 1 is empty, so this insert moves the mover to bucket 2.
        put(&index, crowd[15]);
        reader.join().unwrap();
        assert!(has(&index, mover) && has(&index, crowd[15]));
    });
}

/// Returns the ids that a walk finds. The walk reads each bucket once, and looks up the keys that
/// moved to buckets that it had already read. It yields before it reads bucket `pause`.
fn walked(index: &Index<Plain>, pause: usize) -> Vec<u64> {
    let id = |word: IndexWord| word.offset() as u64 / 8;
    let walk = index.walks.begin();
    index.enter_stripe(walk, 0);
    let (mut found, mut bucket) = (Vec::new(), 0);
    while bucket < index.len() {
        let words = index.buckets.bucket(bucket).iter();
        found.extend(words.map(|slot| id(IndexWord(slot.load(Ordering::Acquire)))));
        bucket += 1;
        // To choose interleavings, loom considers only the latest access to a word. Without the
        // yield, it misses interleavings in which a writer reads a word after the walk read it,
        // and then changes it.
        if bucket == pause {
            thread::yield_now();
        }
    }
    let mut moved = Vec::new();
    index.walks.leave(walk, &mut moved).expect("fewer keys move than are reported");
    index.walks.end(walk);
    for hash in moved {
        index.lookup(hash, |_, word| -> Option<()> {
            found.push(id(word));
            None
        });
    }
    found
}

#[test]
fn a_walk_finds_a_key_while_its_bucket_is_split() {
    explore(5, || {
        let index = index(2);
        put(&index, 1);
        put(&index, 2);
        let walkers = index.clone();
        let walker = thread::spawn(move || {
            let found = walked(&walkers, usize::MAX);
            assert!(found.contains(&1) && found.contains(&2), "no key is missed");
        });
        index.grow(rehash, |_, _| ());
        index.grow(rehash, |_, _| ());
        walker.join().unwrap();
    });
}

#[test]
fn a_walk_finds_a_key_that_moves_behind_it() {
    explore(5, || {
        let index = index(4);
        let mover = ids([2, 1], 1)[0];
        put(&index, mover);
        // These keys fill buckets 2 and 3.
        let crowd = ids([2, 3], 16);
        crowd[..15].iter().for_each(|id| put(&index, *id));
        let walkers = index.clone();
        let walker = thread::spawn(move || assert!(walked(&walkers, 2).contains(&mover)));
        // No word of bucket 2 or 3 is empty, so this insert moves the mover to bucket 1.
        put(&index, crowd[15]);
        walker.join().unwrap();
    });
}

#[test]
fn two_writers_of_a_stripe_do_not_take_the_same_word() {
    explore(5, || {
        let index = index(4);
        let [first, second] = ids([0, 1], 2).try_into().expect("two");
        let others = index.clone();
        let other = thread::spawn(move || put(&others, first));
        put(&index, second);
        other.join().unwrap();
        assert!(has(&index, first) && has(&index, second));
    });
}

/// An index over a region, and the items in the region's open segments.
struct Items {
    index: Index<Table>,
    alloc: Mutex<Alloc>,
    epoch: Epoch,
}

const NOW: Seconds = Seconds(1_000_000);
fn kind() -> Kind {
    Kind { queue: Queue::Small, lifetime: 0, size: SizeClass::of(1) }
}

/// The distance between the starts of neighbouring items, which is also the maximum length of an
/// item, in bytes.
const ITEM_DISTANCE: usize = 64;

impl Items {
    /// Creates a region with `segments` segments, each with room for `items` items.
    fn new(segments: u32, items: usize) -> Self {
        let limit = limit_min(1);
        let layout = Layout::new(Shape::new(limit, 0, 1, 1).unwrap(), limit, 64);
        let table = Table::new(Region::new(layout.region_len()).unwrap(), layout);
        table.extend(0, [30, 31].into_iter());
        table.header_page().order.sequence.store(1, Ordering::Relaxed);
        for segment in 0..segments {
            let start = layout.start(segment);
            for at in (start..start + items * ITEM_DISTANCE).step_by(8) {
                let _ = (table.region.word(at), table.region.half(at), table.region.half(at + 4));
                // SAFETY: no other thread has access to this region.
                unsafe { table.region.write(at, &[0; 8]) };
            }
            table.entry(segment).open(kind(), 0, NOW);
        }
        let index = Index::new(table, 2, 1);
        let _ = has_item(&index);
        index.buckets.region.freeze();
        let alloc = Mutex::new(Alloc::new(4, 4, 0.7));
        Self { index, alloc, epoch: Epoch::new() }
    }

    fn table(&self) -> &Table {
        &self.index.buckets
    }

    /// Opens a segment with the next sequence, and returns this sequence.
    fn open(&self, segment: u32) -> Sequence {
        let sequence = {
            let mut alloc = self.alloc.lock().unwrap();
            self.table().header_page().next_sequence(&mut alloc)
        };
        self.table().entry(segment).open(kind(), sequence, NOW);
        sequence
    }

    fn offset_of(&self, segment: u32, i: usize) -> usize {
        self.table().layout.start(segment) + i * ITEM_DISTANCE
    }

    /// Stores a value under the only key, at an offset that no thread reads.
    fn put(&self, offset: usize, new: &NewRecord<'_>) {
        let stripe = self.index.lock(HASH);
        self.put_locked(&stripe, offset, new);
    }

    fn put_locked(&self, stripe: &LockedStripe<'_, Table>, offset: usize, new: &NewRecord<'_>) {
        let base = self.table().entry(self.table().layout.segment_of(offset)).base();
        // SAFETY: the region checks that no thread reads there.
        unsafe { new.write(self.table(), offset, new.header(base), true) };
        match stripe.find(|_| true) {
            Some(locked_slot) => stripe.replace(&locked_slot, offset, 0),
            None => stripe.insert(offset, 0, |_| HASH).unwrap(),
        }
    }

    /// Finds the only item, if it exists, under an epoch pin.
    fn find<R>(
        &self,
        slot: &Arc<PinSlot>,
        read: impl Fn(&AtomicU64, IndexWord, Record<'_>) -> R,
    ) -> Option<R> {
        let mut pin = Pin::new(PinOwner(slot.clone()));
        let reading = pin.read(&self.epoch);
        let witness = Witness::pinned(reading.witness());
        self.index.lookup(HASH, |slot, word| {
            let record = Record::at(self.table(), word.offset(), true, witness);
            assert_eq!(record.key(), b"k", "the published key");
            Some(read(slot, word, record))
        })
    }

    fn read<R>(&self, slot: &Arc<PinSlot>, read: impl Fn(Record<'_>) -> R) -> Option<R> {
        self.find(slot, |_, _, record| read(record))
    }
}

fn has_item(index: &Index<Table>) -> bool {
    index.lookup(HASH, |_, _| Some(())).is_some()
}

const HASH: u64 = 0x1234_5678_9abc_def0;

/// Returns an item whose CAS equals its value.
fn item(value: &[u8; 1]) -> NewRecord<'_> {
    NewRecord {
        attributes: Attributes::default(),
        cas: value[0].into(),
        fetched: false,
        accessed: NOW,
        extension: None,
        tags_and_key: b"k",
        value: [value, &[], &[]],
        chain: None,
        flash_copy: None,
    }
}

/// Returns the value of an item. Checks that value and CAS belong to the same item.
fn checked_value(record: Record<'_>) -> u8 {
    let &[value] = record.inline_value() else { panic!("one byte") };
    assert_eq!(record.cas(), value.into(), "value and CAS belong to the same item");
    value
}

#[test]
fn a_reader_that_finds_an_item_sees_its_bytes() {
    explore(5, || {
        let items = Arc::new(Items::new(1, 2));
        let reading = items.clone();
        let reader = thread::spawn(move || {
            let value = reading.read(&Arc::default(), checked_value);
            assert!(matches!(value, None | Some(1 | 2)));
        });
        items.put(items.offset_of(0, 0), &item(&[1]));
        items.put(items.offset_of(0, 1), &item(&[2]));
        reader.join().unwrap();
    });
}

#[test]
fn a_reader_that_finds_an_item_by_a_changed_word_sees_its_bytes() {
    explore(3, || {
        let items = Arc::new(Items::new(1, 1));
        let readers = [(); 2].map(|()| {
            let items = items.clone();
            thread::spawn(move || {
                let value = items.find(&Arc::default(), |slot, word, record| {
                    count_hit(slot, word);
                    checked_value(record)
                });
                assert!(matches!(value, None | Some(1)));
            })
        });
        items.put(items.offset_of(0, 0), &item(&[1]));
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

#[test]
fn bytes_are_overwritten_after_their_readers_have_left() {
    explore(5, || {
        let items = Arc::new(Items::new(1, 2));
        items.put(items.offset_of(0, 0), &item(&[1]));
        let slot = Arc::new(PinSlot::default());
        let (reading, own) = (items.clone(), slot.clone());
        let reader = thread::spawn(move || {
            let value = reading.read(&own, checked_value);
            assert!(matches!(value, Some(1..=3)), "the item is never missed");
        });
        items.put(items.offset_of(0, 1), &item(&[2]));
        let ended = items.epoch.advance();
        if items.epoch.oldest([&*slot].into_iter()) > ended {
            items.put(items.offset_of(0, 0), &item(&[3]));
        }
        reader.join().unwrap();
    });
}

#[test]
fn a_thread_that_sees_a_dead_mark_sees_the_index_without_the_item() {
    explore(5, || {
        let items = Arc::new(Items::new(1, 1));
        let offset = items.offset_of(0, 0);
        items.put(offset, &item(&[1]));
        let moving = items.clone();
        let mover = thread::spawn(move || {
            let owned = OwnedSegment(0);
            let record = Record::at(moving.table(), offset, true, Witness::owner(&owned));
            if record.header.has(State::Dead) {
                assert!(!has_item(&moving.index), "no word refers to the dead item");
            }
        });
        let stripe = items.index.lock(HASH);
        let locked_slot = stripe.find(|_| true).unwrap();
        let record = Record::at(items.table(), offset, true, Witness::locked(&stripe));
        stripe.remove(&locked_slot);
        record.mark_dead();
        drop(stripe);
        mover.join().unwrap();
    });
}

#[test]
fn a_reader_sees_changed_attributes_whole() {
    let attributes = |won| Attributes {
        expiry: Expiry::At(Seconds(NOW.0 + if won { 10 } else { 20 })),
        stale: !won,
        won,
        ..Attributes::default()
    };
    explore(5, move || {
        let items = Arc::new(Items::new(1, 1));
        let offset = items.offset_of(0, 0);
        items.put(offset, &NewRecord { attributes: attributes(false), ..item(&[1]) });
        let reading = items.clone();
        let reader = thread::spawn(move || {
            let seen = reading.read(&Arc::default(), |record| {
                record.note_access(Seconds(NOW.0 + 1));
                record.attributes()
            });
            let seen = seen.expect("the item always exists");
            assert!(seen == attributes(false) || seen == attributes(true));
        });
        let stripe = items.index.lock(HASH);
        let record = Record::at(items.table(), offset, true, Witness::locked(&stripe));
        assert!(record.set_attributes(&attributes(true)));
        drop(stripe);
        reader.join().unwrap();
        assert_eq!(items.read(&Arc::default(), |r| r.attributes()), Some(attributes(true)));
    });
}

/// Returns the value of the only item, if it exists and was not flushed.
fn is_live(items: &Items) -> Option<u8> {
    let value = items.read(&Arc::default(), |record| {
        let flushed = items.table().header_page().is_flushed(record.entry());
        (!flushed).then(|| checked_value(record))
    });
    value.flatten()
}

/// Stores a value like `Writer`: in the first open segment that no flush has invalidated.
fn store(items: &Items, segments: std::ops::Range<u32>, value: &[u8; 1]) {
    for segment in segments {
        let sequence = items.open(segment);
        let stripe = items.index.lock(HASH);
        if sequence >= items.table().header_page().flush_floor() {
            return items.put_locked(&stripe, items.offset_of(segment, 0), &item(value));
        }
    }
    panic!("one flush invalidates one segment");
}

#[test]
fn a_flush_removes_earlier_items_and_keeps_later_ones() {
    explore(5, || {
        let items = Arc::new(Items::new(4, 1));
        store(&items, 0..1, &[1]);
        let flushing = items.clone();
        let flusher = thread::spawn(move || {
            let page = flushing.table().header_page();
            page.flush(&mut flushing.alloc.lock().unwrap());
            assert_ne!(is_live(&flushing), Some(1), "the item was flushed");
        });
        let generation = &items.table().header_page().order.flush_generation;
        let came_later = generation.load(Ordering::Acquire) == 1;
        store(&items, 1..3, &[2]);
        assert!(!came_later || is_live(&items) == Some(2), "the item was stored later");
        flusher.join().unwrap();
        assert_ne!(is_live(&items), Some(1), "the item was flushed");
    });
}

#[test]
fn a_mover_does_not_restore_a_flushed_item() {
    explore(5, || {
        let items = Arc::new(Items::new(4, 1));
        store(&items, 0..1, &[1]);
        let moving = items.clone();
        let mover = thread::spawn(move || {
            // This thread takes the steps of `Handle::evacuate_one`.
            let sequence = moving.open(1);
            let page = moving.table().header_page();
            let stripe = moving.index.lock(HASH);
            let is_flushed = page.is_flushed(moving.table().entry(0));
            if !is_flushed && sequence >= page.flush_floor() {
                moving.put_locked(&stripe, moving.offset_of(1, 0), &item(&[1]));
            }
        });
        let page = items.table().header_page();
        page.flush(&mut items.alloc.lock().unwrap());
        assert_eq!(is_live(&items), None, "the item was flushed");
        mover.join().unwrap();
        assert_eq!(is_live(&items), None, "a flushed item does not return");
    });
}

/// Makes a dead item in segment 0 that no reader can find any more. Returns the sequence of the
/// segment and the length of the item in bytes.
fn dead_item(items: &Items) -> (Sequence, u32) {
    let sequence = items.open(0);
    let offset = items.offset_of(0, 0);
    items.put(offset, &item(&[1]));
    let stripe = items.index.lock(HASH);
    let locked_slot = stripe.find(|_| true).unwrap();
    let record = Record::at(items.table(), offset, true, Witness::locked(&stripe));
    stripe.remove(&locked_slot);
    record.mark_dead();
    let len = u32::try_from(record.len()).unwrap();
    items.table().entry(0).written().store(len, Ordering::Relaxed);
    (sequence, len)
}

/// Stores an item over the dead one, like `Writer::take_free_block` and `Writer::write`. Returns
/// whether the new item replaced the dead one.
fn replace_dead(items: &Items, sequence: Sequence, len: u32, value: &[u8; 1]) -> bool {
    let stripe = items.index.lock(HASH);
    let taken = items.table().entry(0).take_dead(sequence, len).is_some();
    if taken {
        items.put_locked(&stripe, items.offset_of(0, 0), &item(value));
    }
    taken
}

/// Marks the only item dead and removes its word from the index.
fn delete(items: &Items) {
    let stripe = items.index.lock(HASH);
    let locked_slot = stripe.find(|_| true).expect("the item exists");
    let witness = Witness::locked(&stripe);
    let record = Record::at(items.table(), locked_slot.word.offset(), true, witness);
    stripe.remove(&locked_slot);
    record.mark_dead();
}

#[test]
fn a_segment_scan_skips_a_dead_record_until_it_is_replaced() {
    explore(5, || {
        let items = Arc::new(Items::new(1, 1));
        let (sequence, len) = dead_item(&items);
        let reading = items.clone();
        let reader = thread::spawn(move || {
            // Reads the segment under a pin, like maintenance that searches for expired items.
            let slot = Arc::new(PinSlot::default());
            let mut pin = Pin::new(PinOwner(slot));
            let guard = pin.read(&reading.epoch);
            let witness = Witness::pinned(guard.witness());
            let record = Record::at(reading.table(), reading.offset_of(0, 0), true, witness);
            assert_eq!(record.len(), len as usize, "the next record is found");
            if !record.header.has(State::Dead) {
                assert_eq!((record.key(), checked_value(record)), (&b"k"[..], 2));
            }
        });
        assert!(replace_dead(&items, sequence, len, &[2]));
        reader.join().unwrap();
    });
}

#[test]
fn a_dead_record_is_replaced_once() {
    explore(5, || {
        let items = Arc::new(Items::new(1, 1));
        let (sequence, len) = dead_item(&items);
        let other = items.clone();
        let rival = thread::spawn(move || other.table().entry(0).take_dead(sequence, len));
        let taken = items.table().entry(0).take_dead(sequence, len);
        let taken = [taken, rival.join().unwrap()];
        assert_eq!(taken.iter().flatten().count(), 1);
        assert_eq!(items.table().entry(0).dead(), 0);
    });
}

/// Evacuates the only record of segment 0, like `Handle::evacuate_one` and `Handle::finish`.
/// Returns whether the segment was retired. A retired segment is reused immediately, because no
/// thread reads.
fn evacuate(items: &Items, to: usize) -> bool {
    let entry = items.table().entry(0);
    entry.close();
    let owned = OwnedSegment(0);
    let at = items.offset_of(0, 0);
    let record = Record::at(items.table(), at, true, Witness::owner(&owned));
    if !record.header.has(State::Dead) {
        let value = checked_value(record);
        let stripe = items.index.lock(HASH);
        if let Some(locked_slot) = stripe.find(|word| word.offset() == at) {
            let base = items.table().entry(1).base();
            let new = item(std::slice::from_ref(&value).try_into().unwrap());
            // SAFETY: the region checks that no thread reads there.
            unsafe { new.write(items.table(), to, new.header(base), true) };
            stripe.replace(&locked_slot, to, 0);
            record.mark_dead();
        }
    }
    let is_empty = entry.dead() == entry.written().load(Ordering::Relaxed);
    if is_empty {
        // SAFETY: no thread reads retired memory. The region checks this.
        unsafe { items.table().region.write(at, &[0; 24]) };
        items.table().region.word(at).store(0, Ordering::Relaxed);
        items.open(0);
    } else {
        entry.reopen();
    }
    is_empty
}

#[test]
fn an_item_that_replaces_a_dead_record_outlives_an_evacuation() {
    explore(5, || {
        let items = Arc::new(Items::new(2, 1));
        let (sequence, len) = dead_item(&items);
        let emptying = items.clone();
        let mover = thread::spawn(move || {
            let to = emptying.offset_of(1, 0);
            evacuate(&emptying, to)
        });
        let was_taken = replace_dead(&items, sequence, len, &[2]);
        let was_retired = mover.join().unwrap();
        let value = items.read(&Arc::default(), checked_value);
        assert_eq!(value, was_taken.then_some(2), "stored: {was_taken}");
        let entry = items.table().entry(0);
        let live = if was_taken && !was_retired { len } else { 0 };
        let dead = if was_retired { 0 } else { len - live };
        assert_eq!(entry.dead(), dead, "counted");
    });
}

#[test]
fn marking_an_item_dead_does_not_change_a_later_use_of_its_segment() {
    explore(4, || {
        let items = Arc::new(Items::new(2, 1));
        let (sequence, len) = dead_item(&items);
        let emptying = items.clone();
        let mover = thread::spawn(move || {
            let to = emptying.offset_of(1, 0);
            evacuate(&emptying, to)
        });
        // This thread has no pin, like a writer while handles alternate.
        if replace_dead(&items, sequence, len, &[2]) {
            delete(&items);
        }
        let was_retired = mover.join().unwrap();
        let first = items.table().region.word(items.offset_of(0, 0)).load(Ordering::Relaxed);
        assert!(!was_retired || first == 0, "a later use of the segment was changed");
    });
}

#[test]
fn a_dead_record_of_an_earlier_use_is_not_replaced() {
    explore(4, || {
        let items = Arc::new(Items::new(2, 1));
        let (sequence, len) = dead_item(&items);
        let emptying = items.clone();
        let mover = thread::spawn(move || {
            if !evacuate(&emptying, emptying.offset_of(1, 0)) {
                return;
            }
            // Fill the segment with another item, which dies, too.
            emptying.put(emptying.offset_of(0, 0), &item(&[3]));
            emptying.table().entry(0).written().store(len, Ordering::Relaxed);
            assert_eq!(emptying.read(&Arc::default(), checked_value), Some(3));
            delete(&emptying);
            evacuate(&emptying, emptying.offset_of(1, 0));
        });
        // This thread has no pin, like a writer while handles alternate.
        let taken = items.table().entry(0).take_dead(sequence, len);
        if taken.is_some() {
            assert_eq!(items.table().entry(0).sequence().load(Ordering::Relaxed), sequence);
            items.table().entry(0).add_dead(len);
        }
        mover.join().unwrap();
        let entry = items.table().entry(0);
        let written = entry.written().load(Ordering::Relaxed);
        assert_eq!(entry.dead(), written, "counted");
    });
}

#[test]
fn a_mover_does_not_restore_a_flushed_item_over_a_dead_record() {
    explore(4, || {
        let items = Arc::new(Items::new(2, 1));
        // The item is in segment 1, and a record of segment 0 dies after the flush.
        store(&items, 1..2, &[1]);
        let freed = Arc::new(Mutex::new(None));
        let (moving, pool) = (items.clone(), freed.clone());
        let mover = thread::spawn(move || {
            let page = moving.table().header_page();
            let floor = page.flush_floor();
            let stripe = moving.index.lock(HASH);
            if page.is_flushed(moving.table().entry(1)) {
                return;
            }
            let block: Option<(Sequence, u32)> = pool.lock().unwrap().take();
            if let Some((sequence, len)) = block
                && sequence >= floor
                && page.flush_floor() == floor
                && moving.table().entry(0).take_dead(sequence, len).is_some()
            {
                moving.put_locked(&stripe, moving.offset_of(0, 0), &item(&[1]));
            }
        });
        items.table().header_page().flush(&mut items.alloc.lock().unwrap());
        let sequence = items.open(0);
        // This is another item, in another stripe.
        let (at, other) = (items.offset_of(0, 0), item(&[3]));
        let base = items.table().entry(0).base();
        // SAFETY: the segment was just opened, and no index word refers to it.
        unsafe { other.write(items.table(), at, other.header(base), true) };
        let slot = PinSlot::default();
        slot.enter(&items.epoch);
        let mut pin = Pin::new(PinOwner(Arc::new(slot)));
        let guard = pin.read(&items.epoch);
        let record = Record::at(items.table(), at, true, Witness::pinned(guard.witness()));
        record.mark_dead();
        *freed.lock().unwrap() = Some((sequence, u32::try_from(record.len()).unwrap()));
        mover.join().unwrap();
        assert_eq!(is_live(&items), None, "a flushed item does not return");
    });
}

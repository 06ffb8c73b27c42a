//! Model checks: threads that race, and a scheduler that tries thousands of orders of their steps.
//! Run with
//!
//! ```text
//! RUSTFLAGS='--cfg shuttle' cargo test -p larder-store --lib --target-dir target/shuttle models
//! ```
//! `LARDER_SCHEDULES` sets the number of orders that each model tries at random. The same number of
//! further orders is chosen by the PCT algorithm (Burckhardt et al. 2010). A failing order is
//! printed, and `shuttle::replay` runs it again.
//!
//! Each of these mutations fails the model next to it:
//!
//! | mutation | model that fails |
//! |---|---|
//! | `Index::grow` without `count_move` | `a_reader_finds_a_key_while_its_bucket_is_split` |
//! | `shift` without `count_move` | `a_reader_finds_a_key_that_moves_to_its_other_bucket` |
//! | `shift` that reports no moves, reports those to later buckets, or reports after the old slot was cleared | `a_walk_finds_a_key_that_moves_behind_it` |
//! | `shift` that reports no moves | `a_walk_misses_nothing_while_others_insert` |
//! | `grow` that clears the old words before the length is raised | `a_walk_finds_a_key_while_its_bucket_is_split` |
//! | `Epoch::advance` that returns 0, so that a retired segment is free at once | `a_borrowed_value_does_not_change` |
//! | `oldest` that reads no slot | `a_borrowed_value_does_not_change` |
//! | a word published before the value's bytes are written | `a_value_is_whole_while_it_is_replaced` |
//! | a mover that checks whether the key exists, and not whether its word still refers to the copied item | `an_acknowledged_change_outlives_movers` |
//! | `Stripe::lock` that does not lock | `an_acknowledged_change_outlives_movers`, `one_of_many_compares_wins` |
//! | a writer that appends to a flushed segment | `flushed_items_are_missed_and_later_ones_stay` |
//! | a mover that checks whether an item was flushed before it has room for it, so that the copy finds no room and the store is refused | `flushed_items_are_missed_and_later_ones_stay` |
//! | a floor that is read before the allocator is locked | `two_flushes_at_once_do_not_undo_each_other` |
//! | a delayed flush without the second check under the lock | `a_flush_that_becomes_due_takes_effect_once` |
//! | `flush_at` cleared before the floor rises | `a_flush_that_becomes_due_takes_effect_once` |
//! | a CAS stored in place, separately from the attributes | `a_reader_sees_an_amendment_whole` |
//! | free blocks that are ready at once | `a_borrowed_value_does_not_change_while_dead_records_are_replaced` |
//! | a pool that keeps the blocks that it hands out | `a_borrowed_value_does_not_change_while_dead_records_are_replaced` |
//! | a handle that keeps a block that it has used | `handles_do_not_replace_the_same_dead_record` |
//! | `close` that does nothing | `items_that_replace_dead_records_outlive_movers` |
//! | `finish` that does not check whether all items are dead | `items_that_replace_dead_records_outlive_movers` |
//! | an open segment that is taken over and also left with its owner | both of `an_open_segment_is_taken_over_…` |
//!
//! The models are in one file, because they share helpers and the table of mutations.

use super::index::buckets::plain::{self, Plain, has, hash, rehash};
use super::index::buckets::{Buckets, Index};
use super::index::word::IndexWord;
use super::sync::{AtomicU32, Ordering};
use super::{Cache, Config, Handle};
use crate::{
    Access, Attributes, Batches, Change, Expiry, HashedKey, Lookup, Lookups, NewCas, NewTags,
    NewValue, Refusal, Seconds, SizeClasses, Updates, Value, WalkState, Walks,
};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::thread;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::Waker;

/// Returns the number of orders that each scheduler tries: `LARDER_SCHEDULES`, or `default`.
fn schedules(default: usize) -> usize {
    let given = std::env::var("LARDER_SCHEDULES").ok();
    given.map_or(default, |text| text.parse().expect("a number"))
}

fn explore(count: usize, model: fn()) {
    let count = schedules(count);
    run(RandomScheduler::new(count), model);
    // The depth of 3 is for two or three threads that race in a few places.
    run(PctScheduler::new(3, count), model);
}

fn run(scheduler: impl Scheduler + 'static, model: fn()) {
    let mut config = shuttle::Config::new();
    config.max_steps = shuttle::MaxSteps::FailAfter(10_000_000);
    config.stack_size = 256 << 10;
    shuttle::Runner::new(scheduler, config).run(model);
}

fn index(len: usize) -> Index<Plain> {
    Index::new(Plain::new(8), len, 1)
}

fn put(index: &Index<Plain>, id: u64) -> bool {
    plain::put(index, id).is_ok()
}

/// Returns the first `count` ids that have these candidate buckets in an index of four buckets.
fn ids(candidates: [usize; 2], count: usize) -> Vec<u64> {
    let index = index(4);
    (1..).filter(|id| index.candidates_of(hash(*id)) == candidates).take(count).collect()
}

#[test]
fn a_reader_finds_a_key_while_its_bucket_is_split() {
    explore(20_000, || {
        let index = Arc::new(index(2));
        // The index has only two buckets, so both are candidates of each key. Each step of growth
        // splits one of them.
        let kept = 1..=8;
        assert!(kept.clone().all(|id| put(&index, id)));
        let (readers, mut looked_for) = (Arc::clone(&index), kept.clone());
        let reader = thread::spawn(move || {
            assert!(looked_for.all(|id| has(&readers, id)), "no key is missed");
        });
        index.grow(rehash, |_, _| ());
        index.grow(rehash, |_, _| ());
        reader.join().unwrap();
        assert!({ kept }.all(|id| has(&index, id)));
    });
}

#[test]
fn a_reader_finds_a_key_that_moves_to_its_other_bucket() {
    explore(10_000, || {
        for candidates in [[1, 2], [2, 1]] {
            let index = Arc::new(index(4));
            let mover = ids(candidates, 1)[0];
            if candidates[0] == 2 {
                // These keys leave bucket 2 fewer empty words than bucket 1, so that the mover is
                // stored in bucket 1.
                assert!(ids([2, 3], 8).into_iter().all(|id| put(&index, id)));
            }
            assert!(put(&index, mover));
            // These keys fill buckets 0 and 1.
            let crowd = ids([0, 1], 16);
            assert!(crowd[..15].iter().all(|id| put(&index, *id)));
            let readers = Arc::clone(&index);
            let reader =
                thread::spawn(move || assert!(has(&readers, mover), "the key is not missed"));
            // No word of bucket 0 or 1 is empty, so this insert moves the mover to bucket 2.
            assert!(put(&index, crowd[15]));
            reader.join().unwrap();
            assert!(has(&index, mover) && has(&index, crowd[15]));
        }
    });
}

/// Returns the ids that a walk finds. The walk reads each bucket once, and looks up the keys that
/// moved to buckets that it had already read.
fn walked(index: &Index<Plain>) -> Vec<u64> {
    let id = |word: IndexWord| word.offset() as u64 / 8;
    let walk = index.walks.begin();
    index.enter_stripe(walk, 0);
    let (mut found, mut bucket) = (Vec::new(), 0);
    while bucket < index.len() {
        let words = index.buckets.bucket(bucket).iter();
        found.extend(words.map(|slot| id(IndexWord(slot.load(Ordering::Acquire)))));
        bucket += 1;
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
    explore(20_000, || {
        let index = Arc::new(index(2));
        assert!((1..=8).all(|id| put(&index, id)));
        let walkers = Arc::clone(&index);
        let walker = thread::spawn(move || {
            let found = walked(&walkers);
            assert!((1..=8).all(|id| found.contains(&id)), "no key is missed");
        });
        index.grow(rehash, |_, _| ());
        index.grow(rehash, |_, _| ());
        walker.join().unwrap();
    });
}

#[test]
fn a_walk_finds_a_key_that_moves_behind_it() {
    explore(10_000, || {
        for candidates in [[1, 2], [2, 1]] {
            let index = Arc::new(index(4));
            let mover = ids(candidates, 1)[0];
            if candidates[0] == 1 {
                // These keys leave bucket 1 fewer empty words than bucket 2, so that the mover is
                // stored in bucket 2.
                assert!(ids([1, 0], 8).into_iter().all(|id| put(&index, id)));
            }
            assert!(put(&index, mover));
            // These keys fill buckets 2 and 3.
            let crowd = ids([2, 3], 16);
            assert!(crowd[..15].iter().all(|id| put(&index, *id)));
            let walkers = Arc::clone(&index);
            let walker = thread::spawn(move || assert!(walked(&walkers).contains(&mover)));
            // No word of bucket 2 or 3 is empty, so this insert moves the mover to bucket 1.
            assert!(put(&index, crowd[15]));
            walker.join().unwrap();
            let mut words = index.buckets.bucket(1).iter();
            let is_mover = |word: u64| IndexWord(word).offset() as u64 / 8 == mover;
            assert!(words.any(|slot| is_mover(slot.load(Ordering::Relaxed))), "the key has moved");
        }
    });
}

const NOW: Seconds = Seconds(1_000_000);

fn cache(evict: bool, threads: usize) -> Cache {
    let classes = SizeClasses::new(vec![96, 1024], 59);
    let limit_bytes = super::memory::layout::limit_min(2);
    Cache::new(Config {
        limit_bytes,
        cas: true,
        classes,
        seed: 7,
        evict,
        item_size_max: limit_bytes / 2,
        threads,
        size_exponent: 0.7,
        flash: None,
    })
    .unwrap()
}

fn key<'k>(handle: &Handle, bytes: &'k [u8]) -> HashedKey<'k> {
    HashedKey { bytes, hash: handle.hash(bytes) }
}

/// Returns a 400-byte value. Each byte depends on `owner`.
fn pattern(owner: u8) -> Vec<u8> {
    (0..400_u16).map(|i| (i as u8).wrapping_mul(31) ^ owner).collect()
}

fn is_pattern(value: &[u8], owner: u8) -> bool {
    value == pattern(owner)
}

fn store(handle: &mut Handle, name: &[u8], value: &[u8]) {
    let put = || Change::Put {
        attributes: Attributes::default(),
        cas: NewCas::Fresh,
        value: NewValue::Bytes(value),
        fetched: false,
        tags: NewTags::None,
    };
    // The write waits for another thread to end its batch. A schedule may delay the end of that
    // batch for so long that the write is refused.
    loop {
        handle.begin_batch(NOW);
        let stored = handle.update(key(handle, name), &mut None, |_| (put(), ()));
        handle.end_batch();
        match stored {
            Ok(_) => return,
            Err(Refusal::OutOfMemory) => thread::yield_now(),
            Err(refusal) => panic!("{refusal:?}"),
        }
    }
}

/// Replaces values in random order, so that segments become partly dead and their live items move.
fn churn(handle: &mut Handle, stores: u32) {
    let mut random: u32 = 1;
    for _ in 0..stores {
        // This is the linear congruential generator from "Numerical Recipes".
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let filler = (random >> 24) as u8 % 64;
        store(handle, &[b'f', filler], &pattern(filler));
    }
}

/// Reads a lent value in two halves, so that the scheduler can run other threads in between.
fn read_slowly(handle: &mut Handle, name: &[u8], owner: u8) -> bool {
    handle.begin_batch(NOW);
    let found = handle.get(key(handle, name), Access::Tracked, |item| {
        let Value::Whole(value) = &item.value else { panic!("the value is small") };
        let (front, _) = value.split_at(200);
        let front = front.to_vec();
        for _ in 0..3 {
            thread::yield_now();
        }
        let seen = [&front, &value[200..]].concat();
        assert!(is_pattern(&seen, owner), "the value is torn, or another key's");
    });
    handle.end_batch();
    matches!(found, Lookup::Hit(()))
}

#[test]
fn a_borrowed_value_does_not_change() {
    explore(300, || {
        let cache = cache(true, 2);
        let mut writer = cache.handle();
        store(&mut writer, b"lent", &pattern(255));
        let readers = cache.clone();
        let reader = thread::spawn(move || {
            let mut handle = readers.handle();
            while read_slowly(&mut handle, b"lent", 255) {
                thread::yield_now();
            }
        });
        // These items are never read. There are enough of them to evict the lent item in the end.
        for round in 0..12 {
            churn_many(&mut writer, round);
        }
        let gone = key(&writer, b"lent");
        writer.update(gone, &mut None, |_| (Change::Remove, ())).unwrap();
        reader.join().unwrap();
    });
}

/// Stores keys that are never used again.
fn churn_many(handle: &mut Handle, round: u8) {
    for filler in 0..12 {
        store(handle, &[b'm', round, filler], &pattern(filler));
    }
}

#[test]
fn a_value_is_whole_while_it_is_replaced() {
    explore(1000, || {
        let cache = cache(true, 3);
        store(&mut cache.handle(), b"both", &pattern(1));
        let writers = [1, 2].map(|owner| {
            let cache = cache.clone();
            thread::spawn(move || {
                let mut handle = cache.handle();
                (0..6).for_each(|_| store(&mut handle, b"both", &pattern(owner)));
            })
        });
        let mut handle = cache.handle();
        for _ in 0..4 {
            handle.begin_batch(NOW);
            let found = handle.get(key(&handle, b"both"), Access::Tracked, |item| {
                let Value::Whole(value) = &item.value else { panic!("the value is small") };
                let front = value[..200].to_vec();
                thread::yield_now();
                let seen = [&front, &value[200..]].concat();
                assert!(
                    is_pattern(&seen, 1) || is_pattern(&seen, 2),
                    "the value is one of the two"
                );
            });
            handle.end_batch();
            assert_eq!(found, Lookup::Hit(()), "the item is never missed");
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    });
}

/// Increments a two-byte number. Returns whether the number existed.
fn count_up(handle: &mut Handle, name: &[u8]) -> bool {
    handle.begin_batch(NOW);
    let counted = handle.update(key(handle, name), &mut None, |found| {
        let Lookup::Hit(item) = found else { return (Change::Keep, false) };
        let Value::Whole(&[tens, ones]) = item.value else { panic!("two bytes") };
        let number = u16::from_be_bytes([tens, ones]) + 1;
        let (mut digits, [tens, ones]) = ([0; 20], number.to_be_bytes());
        (digits[0], digits[1]) = (tens, ones);
        let value = NewValue::Number { digits, len: 2, width: 2 };
        let (attributes, cas) = (item.attributes, NewCas::Fresh);
        (Change::Put { attributes, cas, value, fetched: item.fetched, tags: NewTags::None }, true)
    });
    handle.end_batch();
    counted.expect("there is room").result
}

/// Checks that no change is lost when its item moves. Nothing is evicted here: segments are
/// cleaned, and their live items move.
#[test]
fn an_acknowledged_change_outlives_movers() {
    explore(300, || {
        let cache = cache(false, 3);
        let mut mover = cache.handle();
        store(&mut mover, b"n", &[0, 0]);
        store(&mut mover, b"gone", &pattern(9));
        // Stores so much that cleaning never pauses afterwards.
        churn(&mut mover, 150);
        let counters = [(); 2].map(|()| {
            let cache = cache.clone();
            thread::spawn(move || {
                let mut handle = cache.handle();
                for _ in 0..100 {
                    assert!(count_up(&mut handle, b"n"), "the number always exists");
                }
            })
        });
        let deleting = cache.clone();
        let deleter = thread::spawn(move || {
            let mut handle = deleting.handle();
            let name = key(&handle, b"gone");
            handle.update(name, &mut None, |_| (Change::Remove, ())).unwrap();
            for _ in 0..5 {
                let found = handle.get(name, Access::Tracked, |_| ());
                assert_eq!(found, Lookup::Miss, "a removed item does not return");
                thread::yield_now();
            }
        });
        churn(&mut mover, 60);
        counters.into_iter().for_each(|counter| counter.join().unwrap());
        deleter.join().unwrap();
        let name = key(&mover, b"n");
        let found = mover.get(name, Access::Tracked, |item| match item.value {
            Value::Whole(bytes) => bytes.to_vec(),
            _ => panic!("the value is small"),
        });
        assert_eq!(found, Lookup::Hit(vec![0, 200]), "every count is kept");
    });
}

#[test]
fn one_of_many_compares_wins() {
    explore(3000, || {
        let cache = cache(true, 4);
        let mut handle = cache.handle();
        store(&mut handle, b"cas", b"old");
        let name = key(&handle, b"cas");
        let Lookup::Hit(cas) = handle.get(name, Access::Untracked, |item| item.cas) else {
            panic!("the item was just stored")
        };
        let rivals = [1_u8, 2, 3].map(|rival| {
            let cache = cache.clone();
            thread::spawn(move || {
                let mut handle = cache.handle();
                let name = key(&handle, b"cas");
                let value = [rival];
                let stored = handle.update(name, &mut None, |found| match found {
                    Lookup::Hit(item) if item.cas == cas => {
                        let (attributes, value) = (item.attributes, NewValue::Bytes(&value));
                        let cas = NewCas::Fresh;
                        (
                            Change::Put {
                                attributes,
                                cas,
                                value,
                                fetched: false,
                                tags: NewTags::None,
                            },
                            true,
                        )
                    }
                    _ => (Change::Keep, false),
                });
                stored.unwrap().result
            })
        });
        let won = rivals.map(|rival| rival.join().unwrap());
        assert_eq!(won.iter().filter(|won| **won).count(), 1, "exactly one");
    });
}

/// Returns whether the item exists. Checks that its value is the pattern of `owner`.
fn holds(handle: &mut Handle, now: Seconds, name: &[u8], owner: u8) -> bool {
    handle.begin_batch(now);
    let found = handle.get(key(handle, name), Access::Tracked, |item| {
        let Value::Whole(value) = &item.value else { panic!("the value is small") };
        assert!(is_pattern(value, owner), "the value is torn, or another key's");
    });
    handle.end_batch();
    matches!(found, Lookup::Hit(()))
}

/// Checks that flushed items are not copied to later segments. Two threads flush at the same time,
/// while a third thread moves items. Nothing is evicted here.
#[test]
fn flushed_items_are_missed_and_later_ones_stay() {
    const OLD: u8 = 8;
    explore(300, || {
        let cache = cache(false, 3);
        let mut mover = cache.handle();
        (0..OLD).for_each(|old| store(&mut mover, &[b'o', old], &pattern(old)));
        // Stores so much that cleaning never pauses afterwards.
        churn(&mut mover, 130);
        let flushes = Arc::new(AtomicU32::new(0));
        let flushers = [1, 2].map(|owner| {
            let (cache, flushes) = (cache.clone(), Arc::clone(&flushes));
            thread::spawn(move || {
                let mut handle = cache.handle();
                // This store opens a segment, which the flush then invalidates.
                store(&mut handle, &[b'b', owner], &pattern(owner));
                handle.flush(None);
                // The other thread's flush may still invalidate the next item.
                let is_last = flushes.fetch_add(1, Ordering::SeqCst) == 1;
                store(&mut handle, &[b'a', owner], &pattern(owner));
                for old in (0..OLD).chain(0..OLD) {
                    let came_back = holds(&mut handle, NOW, &[b'o', old], old);
                    assert!(!came_back, "the item was flushed");
                }
                is_last
            })
        });
        for filler in 0..30 {
            let is_last = flushes.load(Ordering::SeqCst) == 2;
            store(&mut mover, &[b'f', filler], &pattern(filler));
            assert!(
                !is_last || holds(&mut mover, NOW, &[b'f', filler], filler),
                "the item was stored later"
            );
        }
        let last = flushers.map(|flusher| flusher.join().unwrap());
        assert!(last[0] != last[1]);
        let mut handle = cache.handle();
        for (owner, is_last) in [1, 2].into_iter().zip(last) {
            let stays = holds(&mut handle, NOW, &[b'a', owner], owner);
            assert!(stays || !is_last, "the item was stored after both flushes");
            assert!(
                !holds(&mut handle, NOW, &[b'b', owner], owner),
                "the item was stored before a flush"
            );
        }
        assert!((0..OLD).all(|old| !holds(&mut handle, NOW, &[b'o', old], old)));
    });
}

#[test]
fn two_flushes_at_once_do_not_undo_each_other() {
    explore(5000, || {
        let cache = cache(true, 2);
        let flushers = [1, 2].map(|owner| {
            let cache = cache.clone();
            thread::spawn(move || {
                let mut handle = cache.handle();
                store(&mut handle, &[owner], &pattern(owner));
                handle.flush(None);
                assert!(!holds(&mut handle, NOW, &[owner], owner), "the item was flushed");
            })
        });
        flushers.into_iter().for_each(|flusher| flusher.join().unwrap());
        let mut handle = cache.handle();
        for owner in [1, 2] {
            assert!(!holds(&mut handle, NOW, &[owner], owner), "a flushed item does not return");
        }
        assert_eq!(cache.flush_generation(), 2);
    });
}

#[test]
fn a_flush_that_becomes_due_takes_effect_once() {
    const DUE: Seconds = Seconds(NOW.0 + 1);
    explore(5000, || {
        let cache = cache(true, 2);
        let mut handle = cache.handle();
        store(&mut handle, b"old", &pattern(0));
        handle.flush(Some(DUE));
        assert!(holds(&mut handle, NOW, b"old", 0), "the flush is not due yet");
        let threads = [1, 2].map(|owner| {
            let cache = cache.clone();
            thread::spawn(move || {
                let mut handle = cache.handle();
                assert!(!holds(&mut handle, DUE, b"old", 0), "the flush is due");
                store(&mut handle, &[owner], &pattern(owner));
                assert!(holds(&mut handle, DUE, &[owner], owner), "the item was stored later");
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!([1, 2].iter().all(|owner| holds(&mut handle, DUE, &[*owner], *owner)));
        assert_eq!((cache.flush_generation(), cache.flush_pending()), (1, None));
    });
}

/// Returns attributes that depend on the CAS, and do not change the length of the item.
fn attributes_of(cas: u64) -> Attributes {
    let at = NOW.0
        + 100
        + u32::try_from(cas).expect("the models store few items, so a CAS fits 32 bits");
    let (stale, won) = (cas % 2 == 1, cas % 2 == 0);
    Attributes { expiry: Expiry::At(Seconds(at)), stale, won, ..Attributes::default() }
}

#[test]
fn a_reader_sees_an_amendment_whole() {
    explore(3000, || {
        let cache = cache(true, 2);
        let mut handle = cache.handle();
        let name = key(&handle, b"amended");
        let put = |cas| Change::Put {
            attributes: attributes_of(cas),
            cas: NewCas::Exactly(cas),
            value: NewValue::Bytes(b"value"),
            fetched: false,
            tags: NewTags::None,
        };
        handle.update(name, &mut None, |_| (put(1), ())).unwrap();
        let readers = cache.clone();
        let reader = thread::spawn(move || {
            let mut handle = readers.handle();
            let name = key(&handle, b"amended");
            let mut last = 0;
            for _ in 0..8 {
                handle.begin_batch(NOW);
                let found = handle.get(name, Access::Tracked, |item| (item.attributes, item.cas));
                handle.end_batch();
                let Lookup::Hit((attributes, cas)) = found else {
                    panic!("the item always exists")
                };
                assert_eq!(
                    attributes,
                    attributes_of(cas),
                    "attributes and CAS belong to the same change"
                );
                assert!(cas >= last, "no change is undone");
                last = cas;
            }
        });
        for cas in 2..8 {
            let (attributes, access) = (attributes_of(cas), Access::Untracked);
            let amend = || Change::SetAttributes { attributes, cas: NewCas::Exactly(cas), access };
            handle.update(name, &mut None, |_| (amend(), ())).unwrap();
        }
        reader.join().unwrap();
    });
}

/// Checks that no item is lost while two threads write to a cache in which `idle` handles each have
/// an open segment. The threads own two of these handles.
fn take_open_segments_over(idle: usize) {
    const STORES: u8 = 9;
    let cache = cache(false, 2);
    let mut handles: Vec<Handle> = (0..idle).map(|_| cache.handle()).collect();
    for (handle, owner) in handles.iter_mut().zip(100..) {
        store(handle, &[owner], &pattern(owner));
    }
    let writers = [1, 2].map(|owner| {
        let mut handle = handles.pop().expect("more handles than writers");
        thread::spawn(move || {
            for i in 0..STORES {
                store(&mut handle, &[owner, i], &pattern(owner + i));
                assert!(
                    holds(&mut handle, NOW, &[owner, i], owner + i),
                    "the item was just stored"
                );
            }
        })
    });
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let mut handle = cache.handle();
    let first = (0..idle).zip(100..).map(|(_, owner)| (vec![owner], owner));
    let then = [1, 2].into_iter().flat_map(|owner| (0..STORES).map(move |i| (owner, i)));
    let then = then.map(|(owner, i)| (vec![owner, i], owner + i));
    for (name, owner) in first.chain(then) {
        assert!(holds(&mut handle, NOW, &name, owner), "{name:?} is lost");
    }
}

#[test]
fn an_open_segment_is_taken_over_while_its_owner_writes_again() {
    // The maximum number of segments is open, but handles do not alternate.
    explore(1500, || take_open_segments_over(4));
}

#[test]
fn an_open_segment_is_taken_over_while_handles_alternate() {
    explore(1500, || take_open_segments_over(6));
}

/// Checks that a walk finds all items of a nearly full index, in which inserts move items. Small
/// items fill the index up to the load at which it grows, and fill most buckets.
#[test]
fn a_walk_misses_nothing_while_others_insert() {
    explore(200, || {
        let cache = cache(false, 2);
        let mut handle = cache.handle();
        let names = || (0..216_u8).map(|i| [b'w', i]);
        names().for_each(|name| store(&mut handle, &name, b"v"));
        let inserting = cache.clone();
        let writer = thread::spawn(move || {
            let mut handle = inserting.handle();
            (0..60).for_each(|i| store(&mut handle, &[b'n', i], b"v"));
        });
        let mut walk = handle.walk();
        let mut shown = Vec::new();
        let mut step = |shown: &mut Vec<_>| {
            handle.continue_walk(&mut walk, 16, Waker::noop(), |key, _| shown.push(key.to_vec()))
        };
        while step(&mut shown) == WalkState::More {
            thread::yield_now();
        }
        writer.join().unwrap();
        assert!(names().all(|name| shown.contains(&name.to_vec())), "no item is missed");
    });
}

/// Returns the number of dead records that were replaced in all segments.
fn replaced(cache: &Cache) -> u64 {
    let table = cache.shared.table();
    let segments = u32::try_from(table.layout.segments).expect("segments are counted in 32 bits");
    (0..segments).map(|segment| table.entry(segment).taken_dead()).sum()
}

/// Returns a cache and its handles. The cache contains the keys `a` to `d` with the pattern of
/// owner 1, and free blocks of the same length.
fn cache_with_free_blocks(handles: usize) -> (Cache, Vec<Handle>) {
    let cache = cache(false, handles);
    let mut handles: Vec<Handle> = (0..handles).map(|_| cache.handle()).collect();
    for handle in &mut handles {
        for _ in 0..3 {
            [b"a", b"b", b"c", b"d"].iter().for_each(|name| store(handle, *name, &pattern(1)));
        }
    }
    (cache, handles)
}

#[test]
fn a_borrowed_value_does_not_change_while_dead_records_are_replaced() {
    // The number of runs of the model, and of runs in which records were replaced. Some runs
    // replace no records, because the segment with all dead records may be emptied first.
    static RUNS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    explore(600, || {
        let (cache, handles) = cache_with_free_blocks(2);
        let before = replaced(&cache);
        let writers = handles.into_iter().zip([1, 2]).map(|(mut handle, owner)| {
            thread::spawn(move || {
                for _ in 0..4 {
                    store(&mut handle, b"a", &pattern(owner));
                    store(&mut handle, b"b", &pattern(owner));
                }
            })
        });
        let writers: Vec<_> = writers.collect();
        let mut handle = cache.handle();
        for name in [b"a", b"b", b"a", b"b"] {
            handle.begin_batch(NOW);
            let found = handle.get(key(&handle, name), Access::Tracked, |item| {
                let Value::Whole(value) = &item.value else { panic!("the value is small") };
                let front = value[..200].to_vec();
                for _ in 0..3 {
                    thread::yield_now();
                }
                let seen = [&front, &value[200..]].concat();
                assert!(
                    is_pattern(&seen, 1) || is_pattern(&seen, 2),
                    "the value is torn, or another key's"
                );
            });
            handle.end_batch();
            assert_eq!(found, Lookup::Hit(()), "the item is never missed");
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        RUNS[0].fetch_add(1, Ordering::Relaxed);
        RUNS[1].fetch_add(usize::from(replaced(&cache) > before), Ordering::Relaxed);
    });
    let [all, replacing] = RUNS.each_ref().map(|runs| runs.load(Ordering::Relaxed));
    assert!(replacing * 10 > all * 9, "dead records were replaced in {replacing} of {all} runs");
}

/// Checks that no item is lost if it replaces a dead record of a segment that is being emptied.
/// Segments are emptied even if they have few dead items.
#[test]
fn items_that_replace_dead_records_outlive_movers() {
    explore(600, || {
        let (cache, handles) = cache_with_free_blocks(2);
        let moving = cache.clone();
        let mover = thread::spawn(move || {
            let mut handle = moving.handle();
            for _ in 0..3 {
                handle.begin_batch(NOW);
                if handle.begin_evacuation() {
                    while handle.evacuate_next() && handle.writer().1.writing.evacuation.is_some() {
                        thread::yield_now();
                    }
                }
                handle.end_batch();
            }
        });
        let names: [[&[u8]; 2]; 2] = [[b"a", b"b"], [b"c", b"d"]];
        let writers =
            handles.into_iter().zip(names).zip(10..).map(|((mut handle, names), owner)| {
                thread::spawn(move || {
                    for round in 0..4 {
                        for name in names {
                            store(&mut handle, name, &pattern(owner + 10 * round));
                            let value = owner + 10 * round;
                            assert!(
                                holds(&mut handle, NOW, name, value),
                                "the item was just stored"
                            );
                        }
                    }
                })
            });
        writers.collect::<Vec<_>>().into_iter().for_each(|writer| writer.join().unwrap());
        mover.join().unwrap();
        let mut handle = cache.handle();
        for (names, owner) in names.into_iter().zip(10..) {
            assert!(names.iter().all(|name| holds(&mut handle, NOW, name, owner + 30)));
        }
        assert_eq!(cache.gauges().items, 4);
    });
}

/// Two handles with the same block would both write to it, and a lookup of one key would find the
/// value of the other key.
#[test]
fn handles_do_not_replace_the_same_dead_record() {
    explore(600, || {
        let (cache, handles) = cache_with_free_blocks(3);
        let writers = handles.into_iter().zip(1..).map(|(mut handle, owner)| {
            thread::spawn(move || {
                for i in 0..6 {
                    store(&mut handle, &[owner, i % 2], &pattern(owner));
                    assert!(holds(&mut handle, NOW, &[owner, i % 2], owner));
                }
                // The other handles take the blocks of the dropped handle.
                drop(handle);
            })
        });
        writers.collect::<Vec<_>>().into_iter().for_each(|writer| writer.join().unwrap());
        let mut handle = cache.handle();
        for owner in 1..=3 {
            assert!([0, 1].iter().all(|i| holds(&mut handle, NOW, &[owner, *i], owner)));
        }
    });
}

//! Flushes at the same time as sets, other flushes, and moves of items.

use super::common::*;
use larder_store::segment::{Cache, Handle};
use larder_store::{Batches, Maintenance, Refusal, Seconds, Updates};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const TIME: Duration = Duration::from_secs(2);

/// The number of flushes that have started, the number that have ended, and whether the test is
/// over.
#[derive(Default)]
struct Flushes {
    begun: AtomicU64,
    ended: AtomicU64,
    over: AtomicBool,
}

/// Each thread stores an item and then flushes. Checks that the item does not return when the flush
/// of another thread ends. That flush may have started earlier.
#[test]
fn two_concurrent_flushes_bring_no_items_back() {
    let (cache, over, stored) = (cache(16 * MIB), AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for thread in 0..4_u32 {
            let (cache, over, stored) = (&cache, &over, &stored);
            scope.spawn(move || {
                let (mut engine, key) = (cache.handle(), thread.to_le_bytes());
                let end = Instant::now() + TIME;
                while !over.load(Ordering::Relaxed) && Instant::now() < end {
                    // A set may be refused while a thread of another handle is preempted for long.
                    if set(&mut engine, &key, b"old") == Err(Refusal::OutOfMemory) {
                        continue;
                    }
                    stored.fetch_add(1, Ordering::Relaxed);
                    engine.flush(None);
                    let is_back = (0..200).any(|_| has(&mut engine, &key));
                    if is_back {
                        over.store(true, Ordering::Relaxed);
                        panic!("a flushed item has returned");
                    }
                }
            });
        }
    });
    assert!(stored.into_inner() > 0, "no item was stored that a flush could have removed");
}

/// Items move while segments are cleaned and evicted, and a move that started before a flush may
/// end after the flush. In each round all threads store items and wait for each other. Then one
/// thread flushes while the other threads overwrite items, so that items move.
#[test]
fn an_item_that_moves_during_a_flush_is_flushed() {
    let (cache, line, outlived) = (cache(2 * MIB), StartLine::new(3), AtomicU64::new(0));
    let end = Instant::now() + TIME;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (cache, line, outlived, over) = (&cache, &line, &outlived, &over);
            scope.spawn(move || {
                let (mut engine, mut random) = (cache.handle(), Random::new(thread + 1));
                for round in 0.. {
                    store_among_others(&mut engine, &mut random, thread);
                    line.wait(3 * round);
                    if thread == 0 {
                        // Flush at a random time while the other threads work.
                        (0..random.below(5000)).for_each(|_| std::hint::spin_loop());
                        engine.flush(None);
                    } else {
                        (0..300).for_each(|_| overwrite(&mut engine, &mut random));
                    }
                    line.wait(3 * round + 1);
                    let present =
                        (0..CHECKED).filter(|&i| has(&mut engine, &checked_key(thread, i)));
                    outlived.fetch_add(present.count() as u64, Ordering::SeqCst);
                    if thread == 0 {
                        let wrong = outlived.load(Ordering::SeqCst) > 0;
                        over.store(wrong || Instant::now() > end, Ordering::SeqCst);
                    }
                    line.wait(3 * round + 2);
                    if over.load(Ordering::SeqCst) {
                        break;
                    }
                }
            });
        }
    });
    assert_eq!(outlived.into_inner(), 0, "no item survives a flush");
}

const CHECKED: u64 = 200;

fn checked_key(thread: u64, i: u64) -> [u8; 8] {
    (thread << 32 | i).to_le_bytes()
}

fn store_among_others(engine: &mut Handle, random: &mut Random, thread: u64) {
    for i in 0..CHECKED {
        let _ = set(engine, &checked_key(thread, i), &[8; 400]);
        has(engine, &checked_key(thread, i));
        (0..4).for_each(|_| overwrite(engine, random));
    }
}

/// Overwrites one of many items. The set may be refused, because all memory of the small cache may
/// be in use for a moment.
fn overwrite(engine: &mut Handle, random: &mut Random) {
    engine.begin_batch(START);
    let key = (1 << 40 | random.below(3000) as u64).to_le_bytes();
    let _ = set(engine, &key, &[7; 400]);
    get(engine, &key);
    engine.end_batch();
}

/// One thread flushes repeatedly. The other threads store an item between two flushes and look it
/// up.
#[test]
fn an_item_stored_after_a_flush_stays() {
    let (cache, flushes) = (cache(16 * MIB), Flushes::default());
    thread::scope(|scope| {
        for writer in 0..3_u32 {
            let (cache, flushes) = (&cache, &flushes);
            scope.spawn(move || {
                let mut engine = cache.handle();
                while !flushes.over.load(Ordering::Relaxed) {
                    store_between_flushes(flushes, &mut engine, &writer.to_le_bytes());
                }
            });
        }
        let mut engine = cache.handle();
        let end = Instant::now() + TIME;
        while !flushes.over.load(Ordering::Relaxed) && Instant::now() < end {
            flushes.begun.fetch_add(1, Ordering::SeqCst);
            engine.flush(None);
            flushes.ended.fetch_add(1, Ordering::SeqCst);
            thread::sleep(Duration::from_micros(50));
        }
        flushes.over.store(true, Ordering::Relaxed);
    });
}

fn store_between_flushes(flushes: &Flushes, engine: &mut Handle, key: &[u8]) {
    let ended = flushes.ended.load(Ordering::SeqCst);
    engine.begin_batch(START);
    if set(engine, key, b"new").is_err() {
        // The set may be refused: each flush seals the open segments of all writers, and none of
        // them can be reused while another writer is preempted within a batch.
        return engine.end_batch();
    }
    let mut is_there = true;
    for _ in 0..10 {
        is_there &= has(engine, key);
    }
    engine.end_batch();
    // If the number of started flushes now equals the number that had ended before the item was
    // stored, no flush was under way in between.
    if flushes.begun.load(Ordering::SeqCst) == ended && !is_there {
        flushes.over.store(true, Ordering::Relaxed);
        panic!("an item stored after a flush is gone");
    }
}

/// In each round a delayed flush becomes due, and two threads detect it at the same time.
#[test]
fn a_due_flush_ends_before_any_thread_sees_its_second() {
    let (cache, line) = (cache(16 * MIB), StartLine::new(2));
    let (old_seen, new_lost) = (AtomicU32::new(0), AtomicU32::new(0));
    let (over, end) = (AtomicBool::new(false), Instant::now() + TIME);
    thread::scope(|scope| {
        for thread in 0..2_u32 {
            let (cache, line, over) = (&cache, &line, &over);
            let (old_seen, new_lost) = (&old_seen, &new_lost);
            scope.spawn(move || {
                let (mut engine, mut random) = (cache.handle(), Random::new(thread.into()));
                let new = thread.to_le_bytes();
                for round in 0.. {
                    let before = after(2 * round);
                    let due = Seconds(before.0 + 1);
                    if thread == 0 {
                        store_and_flush_later(&mut engine, before, due);
                    }
                    line.wait(3 * round as usize);
                    (0..random.below(40)).for_each(|_| std::hint::spin_loop());
                    engine.begin_batch(due);
                    let old = has(&mut engine, OLD);
                    set(&mut engine, &new, b"new").unwrap();
                    engine.end_batch();
                    line.wait(3 * round as usize + 1);
                    old_seen.fetch_add(old.into(), Ordering::Relaxed);
                    new_lost.fetch_add((!has(&mut engine, &new)).into(), Ordering::Relaxed);
                    if thread == 0 {
                        over.store(Instant::now() > end, Ordering::SeqCst);
                    }
                    line.wait(3 * round as usize + 2);
                    if over.load(Ordering::SeqCst) {
                        break;
                    }
                }
            });
        }
    });
    let counts = (old_seen.into_inner(), new_lost.into_inner());
    assert_eq!(counts, (0, 0), "(old items seen, new items lost)");
}

const OLD: &[u8] = b"old";

fn store_and_flush_later(engine: &mut Handle, now: Seconds, due: Seconds) {
    engine.begin_batch(now);
    set(engine, OLD, b"old").unwrap();
    engine.flush(Some(due));
    engine.end_batch();
}

/// A flush becomes due repeatedly while other threads write continuously.
#[test]
fn delayed_flushes_among_writers_remove_all_older_items() {
    let (cache, over) = (cache(16 * MIB), AtomicBool::new(false));
    let clock = AtomicU32::new(START.0);
    thread::scope(|scope| {
        for writer in 0..3_u32 {
            let (cache, over, clock) = (&cache, &over, &clock);
            scope.spawn(move || write_by_the_clock(cache, over, clock, writer));
        }
        let mut engine = cache.handle();
        let end = Instant::now() + TIME;
        while !over.load(Ordering::Relaxed) && Instant::now() < end {
            let due = Seconds(clock.load(Ordering::SeqCst) + 1);
            engine.flush(Some(due));
            clock.store(due.0, Ordering::SeqCst);
            engine.begin_batch(due);
            engine.end_batch();
        }
        over.store(true, Ordering::Relaxed);
    });
}

fn write_by_the_clock(cache: &Cache, over: &AtomicBool, clock: &AtomicU32, writer: u32) {
    let mut engine = cache.handle();
    let key = writer.to_le_bytes();
    let mut stored = Seconds(0);
    while !over.load(Ordering::Relaxed) {
        let now = Seconds(clock.load(Ordering::SeqCst));
        engine.begin_batch(now);
        let old = get(&mut engine, &key);
        engine.end_batch();
        // The batch of this second started with a flush. The flush invalidates the items of earlier
        // seconds.
        if now > stored && old.is_some() {
            over.store(true, Ordering::Relaxed);
            panic!("an item of {stored:?} is found at {now:?}");
        }
        engine.begin_batch(now);
        // A set may be refused while a thread of another handle is preempted for long.
        let is_stored = set(&mut engine, &key, b"value") != Err(Refusal::OutOfMemory);
        engine.end_batch();
        if is_stored {
            stored = Seconds(clock.load(Ordering::SeqCst));
        }
    }
    assert!(stored > Seconds(0), "no item was stored that a flush could have removed");
}

#[test]
fn a_requested_search_removes_flushed_items() {
    let cache = cache(16 * MIB);
    let (mut engine, mut other) = (cache.handle(), cache.handle());
    for i in 0..5_000_u32 {
        set(&mut engine, &i.to_le_bytes(), &[1; 300]).unwrap();
        set(&mut other, &(10_000 + i).to_le_bytes(), &[1; 300]).unwrap();
    }
    engine.flush(None);
    set(&mut engine, b"later", b"1").unwrap();
    engine.crawl_soon();
    for _ in 0..2 {
        tidy(&mut engine, START);
        tidy(&mut other, START);
    }
    assert_eq!(cache.gauges().items, 1, "the search removes flushed items without a write");
    assert!(get(&mut engine, b"later").is_some());
}

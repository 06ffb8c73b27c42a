//! Flushes among sets, other flushes, and items that are being moved.

use crate::common::*;
use larder_store::segment::{Cache, Handle};
use larder_store::{Engine, Seconds};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const TIME: Duration = Duration::from_secs(2);
const FLUSHERS: usize = 2;

/// Series of flushes begun and ended, by who asked for them.
#[derive(Default)]
struct Flushes {
    begun: [AtomicU64; FLUSHERS],
    ended: [AtomicU64; FLUSHERS],
    over: AtomicBool,
}

impl Flushes {
    fn run(&self, flusher: usize, engine: &mut Handle) {
        while !self.over.load(Ordering::Relaxed) {
            self.begun[flusher].fetch_add(1, Ordering::SeqCst);
            // Counting takes time: most of it should be spent in flushes.
            (0..8).for_each(|_| engine.flush(None));
            self.ended[flusher].fetch_add(1, Ordering::SeqCst);
        }
    }

    fn count(counts: &[AtomicU64; FLUSHERS]) -> [u64; FLUSHERS] {
        counts.each_ref().map(|count| count.load(Ordering::SeqCst))
    }

    /// Whether a whole series, from its beginning to its end, has come since so many had begun.
    fn came_after(&self, begun: &[u64; FLUSHERS]) -> bool {
        Self::count(&self.ended).iter().zip(begun).any(|(ended, begun)| ended > begun)
    }
}

/// Stores an item, waits for a flush to pass over it, and looks for it again and again.
fn watch_an_item(flushes: &Flushes, engine: &mut Handle, key: &[u8], looks: usize) {
    engine.begin_batch(START);
    set(engine, key, b"old").unwrap();
    get(engine, key);
    engine.end_batch();
    let begun = Flushes::count(&flushes.begun);
    while !flushes.came_after(&begun) {
        if flushes.over.load(Ordering::Relaxed) {
            return;
        }
        // Waking up interrupts a thread that flushes, wherever it is.
        thread::sleep(Duration::from_micros(1));
    }
    for look in 0..looks {
        engine.begin_batch(START);
        let is_back = has(engine, key);
        engine.end_batch();
        if is_back {
            flushes.over.store(true, Ordering::Relaxed);
            panic!("an item from before a flush is there again, at look {look}");
        }
    }
}

fn end_after(over: &AtomicBool, time: Duration) {
    let end = Instant::now() + time;
    while !over.load(Ordering::Relaxed) && Instant::now() < end {
        thread::sleep(Duration::from_millis(5));
    }
    over.store(true, Ordering::Relaxed);
}

#[test]
fn of_two_flushes_at_once_neither_brings_items_back() {
    let (cache, flushes) = (cache(16 * MIB), Flushes::default());
    thread::scope(|scope| {
        for flusher in 0..FLUSHERS {
            let (cache, flushes) = (&cache, &flushes);
            scope.spawn(move || flushes.run(flusher, &mut cache.handle()));
        }
        for watcher in 0..2_u32 {
            let (cache, flushes) = (&cache, &flushes);
            scope.spawn(move || {
                let mut engine = cache.handle();
                while !flushes.over.load(Ordering::Relaxed) {
                    watch_an_item(flushes, &mut engine, &watcher.to_le_bytes(), 50);
                }
            });
        }
        end_after(&flushes.over, TIME);
    });
}

/// Items move while segments are cleaned and evicted: a move that began before a flush may end after
/// it.
#[test]
fn an_item_that_moves_during_a_flush_is_flushed() {
    let (cache, flushes) = (cache(4 * MIB), Flushes::default());
    thread::scope(|scope| {
        for thread in 0..2_u64 {
            let (cache, flushes) = (&cache, &flushes);
            scope.spawn(move || churn(flushes, &mut cache.handle(), thread));
        }
        let (cache, flushes) = (&cache, &flushes);
        scope.spawn(move || {
            let mut engine = cache.handle();
            let mut random = Random::new(7);
            while !flushes.over.load(Ordering::Relaxed) {
                flush_what_moves(flushes, &mut engine, &mut random);
            }
        });
        end_after(&flushes.over, TIME);
    });
}

/// Keeps other segments full of what is dead, so that the live items in them move.
fn churn(flushes: &Flushes, engine: &mut Handle, thread: u64) {
    let mut random = Random::new(thread + 1);
    while !flushes.over.load(Ordering::Relaxed) {
        engine.begin_batch(START);
        for _ in 0..16 {
            let key = (1 << 32 | random.below(4000) as u64).to_le_bytes();
            // Small memory may be all in use for a moment.
            let _ = set(engine, &key, &[7; 400]);
            has(engine, &key);
        }
        engine.end_batch();
    }
}

fn flush_what_moves(flushes: &Flushes, engine: &mut Handle, random: &mut Random) {
    let key = |i: u64| i.to_le_bytes();
    for i in 0..2000 {
        engine.begin_batch(START);
        let _ = set(engine, &key(i), &[8; 400]);
        get(engine, &key(i));
        engine.end_batch();
    }
    // At any point of what the others are doing.
    (0..random.below(2000)).for_each(|_| std::hint::spin_loop());
    engine.flush(None);
    for i in 0..2000 {
        engine.begin_batch(START);
        let is_back = has(engine, &key(i));
        engine.end_batch();
        if is_back {
            flushes.over.store(true, Ordering::Relaxed);
            panic!("item {i} has outlived a flush");
        }
    }
}

/// One thread flushes now and then; the others store between two flushes and look at once.
#[test]
fn what_is_stored_after_a_flush_stays() {
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
            flushes.begun[0].fetch_add(1, Ordering::SeqCst);
            engine.flush(None);
            flushes.ended[0].fetch_add(1, Ordering::SeqCst);
            thread::sleep(Duration::from_micros(50));
        }
        flushes.over.store(true, Ordering::Relaxed);
    });
}

fn store_between_flushes(flushes: &Flushes, engine: &mut Handle, key: &[u8]) {
    let ended = Flushes::count(&flushes.ended);
    engine.begin_batch(START);
    set(engine, key, b"new").unwrap();
    let mut is_there = true;
    for _ in 0..10 {
        is_there &= has(engine, key);
    }
    engine.end_batch();
    // No flush was under way before and none has begun since.
    if Flushes::count(&flushes.begun) == ended && !is_there {
        flushes.over.store(true, Ordering::Relaxed);
        panic!("an item stored after a flush is gone");
    }
}

/// In each round a delayed flush becomes due, and two threads notice it at the same time.
#[test]
fn a_flush_that_becomes_due_is_over_before_anybody_sees_its_second() {
    let (cache, line) = (cache(16 * MIB), StartLine::new(2));
    let (old_seen, new_lost) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        for thread in 0..2_u32 {
            let (cache, line, old_seen, new_lost) = (&cache, &line, &old_seen, &new_lost);
            scope.spawn(move || {
                let (mut engine, mut random) = (cache.handle(), Random::new(thread.into()));
                let new = thread.to_le_bytes();
                for round in 0..20_000 {
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
                    line.wait(3 * round as usize + 2);
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

/// A flush becomes due again and again while others write without a break.
#[test]
fn delayed_flushes_among_writers_take_all_that_is_older() {
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
        // This second began with a flush, later than all that was stored before it.
        if now > stored && old.is_some() {
            over.store(true, Ordering::Relaxed);
            panic!("an item of {stored:?} is there at {now:?}");
        }
        engine.begin_batch(now);
        set(&mut engine, &key, b"value").unwrap();
        engine.end_batch();
        stored = Seconds(clock.load(Ordering::SeqCst));
    }
}

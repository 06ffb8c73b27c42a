//! A batch that stays open prevents the reuse of memory. If other handles need this memory, their
//! sets are refused immediately. They continue normally after the batch has ended.

use super::common::*;
use larder_store::segment::{Cache, Handle};
use larder_store::{Batches, Refusal};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const LIMIT: usize = 64 * MIB;
/// The minimum time for which other handles write while the batch is open.
const NAP: Duration = Duration::from_millis(1500);
/// The maximum time of an operation. An operation usually takes less than 50 ms, even on a slow
/// processor.
const OPERATION_MAX: Duration = Duration::from_millis(250);

#[test]
fn a_thread_asleep_in_a_batch_does_not_stop_the_sets_of_others() {
    check_with_a_sleeper(&cache(LIMIT));
}

#[test]
fn a_thread_asleep_in_a_batch_does_not_stop_sets_without_eviction() {
    check_with_a_sleeper(&keeping_cache(LIMIT));
}

fn check_with_a_sleeper(cache: &Cache) {
    let (wake, alarm) = mpsc::channel::<()>();
    let (report, is_asleep) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut engine = cache.handle();
            engine.begin_batch(START);
            set(&mut engine, b"sleeper", b"1").unwrap();
            report.send(()).unwrap();
            // Waits until the test sends a message or drops its sender.
            let _ = alarm.recv();
            engine.end_batch();
        });
        is_asleep.recv().unwrap();
        let end = Instant::now() + NAP;
        let longest = thread::scope(|scope| {
            let writers =
                [0, 1].map(|writer| scope.spawn(move || write(&mut cache.handle(), writer, end)));
            // The batch stays open for longer than a set may take, so a set that waits for it fails
            // the test.
            while Instant::now() < end + OPERATION_MAX {
                thread::sleep(Duration::from_millis(10));
            }
            drop(wake);
            writers.map(|writer| writer.join().unwrap())
        });
        let longest = longest.into_iter().max().unwrap();
        assert!(longest < OPERATION_MAX, "one set took {longest:?}");
    });
    let mut engine = cache.handle();
    for i in 0..1000_u32 {
        let key = ((u64::from(i) % 2) << 32 | u64::from(i)).to_le_bytes();
        engine.begin_batch(START);
        let stored = set(&mut engine, &key, &[9; 4000]);
        engine.end_batch();
        assert!(stored.is_ok(), "set {i} after all batches have ended: {stored:?}");
        assert_eq!(get(&mut engine, &key).as_deref(), Some(&[9; 4000][..]));
    }
}

/// Overwrites the same keys until `end`. They take an eighth of the memory. Returns the longest
/// duration of a set.
fn write(engine: &mut Handle, writer: u64, end: Instant) -> Duration {
    let mut longest = Duration::ZERO;
    for i in (0..2000_u64).cycle() {
        if Instant::now() >= end {
            break;
        }
        let key = (writer << 32 | i).to_le_bytes();
        engine.begin_batch(START);
        let watch = Stopwatch::start();
        let stored = set(engine, &key, &[7; 4000]);
        let Lap { cpu, asleep } = watch.lap();
        longest = longest.max(cpu + asleep);
        engine.end_batch();
        assert!(matches!(stored, Ok(_) | Err(Refusal::OutOfMemory)), "{stored:?}");
    }
    longest
}

#[test]
fn two_batches_on_one_thread_do_not_wait_for_each_other() {
    within(Duration::from_secs(30), || {
        let cache = cache(LIMIT);
        let (mut one, mut other) = (cache.handle(), cache.handle());
        one.begin_batch(START);
        other.begin_batch(START);
        set(&mut other, b"other", b"1").unwrap();
        let mut refused = 0;
        // Tries to set four times as many items as fit in memory.
        for i in 0..4 * LIMIT as u64 / 4000 {
            match set(&mut one, &i.to_le_bytes(), &[7; 4000]) {
                Ok(_) => (),
                Err(Refusal::OutOfMemory) => refused += 1,
                Err(other) => panic!("refused as {other:?}"),
            }
            if refused == 20 {
                break;
            }
        }
        assert!(set(&mut other, b"other", b"2").is_ok() || refused > 0);
        other.end_batch();
        one.end_batch();
        for i in 0..1000_u64 {
            one.begin_batch(START);
            let stored = set(&mut one, &i.to_le_bytes(), &[9; 4000]);
            one.end_batch();
            assert!(stored.is_ok(), "set {i} after both batches: {stored:?}");
        }
    });
}

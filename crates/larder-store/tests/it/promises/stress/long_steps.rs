//! No operation delays other operations for long, however large a value is and however many items
//! there are.

use super::common::*;
use larder_store::segment::{Cache, Handle};
use larder_store::{Attributes, Batches, Lookups, Maintenance, NewCas, NewValue};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const LARGE: &[u8] = b"large";
/// The minimum time for which one thread sets small values while another thread uses large values.
const TIME: Duration = Duration::from_secs(1);
/// The minimum number of sets to measure.
const SETS_MIN: u32 = 2000;
/// The maximum mean duration of a set. Sets that wait for the copy of a large value take longer.
const SET_MEAN_MAX: Duration = Duration::from_micros(500);
/// The maximum time for which a set may sleep.
const SET_ASLEEP_MAX: Duration = Duration::from_millis(250);
/// The maximum time for which a set may work or poll a lock.
const SET_CPU_MAX: Duration = Duration::from_millis(10);

/// Returns keys that probably use the same lock as [`LARGE`]: their hashes have the same low bits.
fn neighbours(engine: &Handle) -> Vec<[u8; 4]> {
    const ALIKE: u64 = 1023;
    let large = engine.hash(LARGE);
    let is_near = |key: &[u8; 4]| (engine.hash(key) ^ large) & ALIKE == 0;
    (0..u32::MAX).map(u32::to_le_bytes).filter(is_near).take(8).collect()
}

/// Repeats `work` on another thread while this thread sets small values under the keys from
/// [`neighbours`].
fn check_sets_during(cache: &Cache, work: impl Fn(&mut Handle) + Sync) {
    let over = AtomicBool::new(false);
    let rounds = thread::scope(|scope| {
        let (work, over) = (&work, &over);
        let worker = scope.spawn(move || {
            let mut engine = cache.handle();
            let mut rounds = 0_u32;
            while !over.load(Ordering::Relaxed) {
                engine.begin_batch(START);
                work(&mut engine);
                engine.end_batch();
                rounds += 1;
            }
            rounds
        });
        let mut engine = cache.handle();
        let sets = set_neighbours(&mut engine);
        over.store(true, Ordering::Relaxed);
        let rounds = worker.join().unwrap();
        assert!(sets.all < SET_MEAN_MAX * sets.count, "{sets:?}");
        assert!(sets.longest.asleep < SET_ASLEEP_MAX, "{sets:?}");
        assert!(sets.longest.cpu < SET_CPU_MAX, "{sets:?}");
        rounds
    });
    assert!(rounds > 0, "`work` ran at least once");
}

#[derive(Debug, Default)]
struct Sets {
    count: u32,
    /// The total time of all sets.
    all: Duration,
    /// The most CPU time that any set used, and the longest time that any set slept.
    longest: Lap,
}

/// Sets small values for some time.
fn set_neighbours(engine: &mut Handle) -> Sets {
    let keys = neighbours(engine);
    let end = Instant::now() + TIME;
    let mut sets = Sets::default();
    for key in keys.iter().cycle() {
        engine.begin_batch(START);
        let watch = Stopwatch::start();
        set(engine, key, b"small").unwrap();
        let Lap { cpu, asleep } = watch.lap();
        engine.end_batch();
        sets.count += 1;
        sets.all += cpu + asleep;
        sets.longest.cpu = sets.longest.cpu.max(cpu);
        sets.longest.asleep = sets.longest.asleep.max(asleep);
        if sets.count >= SETS_MIN && Instant::now() >= end {
            break;
        }
    }
    sets
}

#[test]
fn appending_to_a_large_value_does_not_delay_other_sets() {
    let cache = cache(256 * MIB);
    let value = vec![7; 64 * MIB];
    set_upload(&mut cache.handle(), LARGE, &value).unwrap();
    drop(value);
    check_sets_during(&cache, |engine| {
        let append = || store(NewValue::Append(b"piece"), Attributes::default(), NewCas::Fresh);
        change(engine, LARGE, append).unwrap();
    });
    let len = get(&mut cache.handle(), LARGE).map(|value| value.len());
    assert!(len > Some(64 * MIB), "{len:?}");
}

#[test]
fn storing_a_large_value_in_one_piece_does_not_delay_other_sets() {
    let cache = cache(256 * MIB);
    let value = vec![7; 32 * MIB];
    check_sets_during(&cache, |engine| _ = set(engine, LARGE, &value).unwrap());
}

#[test]
fn overwriting_and_deleting_large_values_does_not_delay_other_sets() {
    let cache = cache(256 * MIB);
    let value = vec![7; 32 * MIB];
    check_sets_during(&cache, |engine| {
        set_upload(engine, LARGE, &value).unwrap();
        set_upload(engine, LARGE, &value).unwrap();
        remove(engine, LARGE);
    });
}

/// A deletion only releases memory, so it takes no longer for a large value than for a small value.
#[test]
fn deleting_a_large_value_is_one_short_step() {
    let cache = cache(256 * MIB);
    let mut engine = cache.handle();
    let value = vec![7; 64 * MIB];
    let mut shortest = Duration::MAX;
    for _ in 0..4 {
        engine.begin_batch(START);
        set_upload(&mut engine, LARGE, &value).unwrap();
        engine.end_batch();
        engine.begin_batch(START);
        let begun = cpu_time();
        remove(&mut engine, LARGE);
        shortest = shortest.min(cpu_time() - begun);
        engine.end_batch();
    }
    assert!(shortest < Duration::from_millis(2), "{shortest:?}");
}

/// The cache has many tiny items, some of which expire every second.
#[test]
fn maintenance_is_done_in_short_steps() {
    const ITEMS: u32 = 1_000_000;
    const LIFETIME_SECS: u32 = 10;
    let cache = cache(1024 * MIB);
    let mut engine = cache.handle();
    let mut random = Random::new(1);
    for i in 0..ITEMS {
        let secs = 1 + random.below(LIFETIME_SECS as usize);
        let attributes = expiring(after(u32::try_from(secs).unwrap()));
        engine.begin_batch(START);
        set_with(&mut engine, &i.to_le_bytes(), b"1", attributes, NewCas::Fresh).unwrap();
        engine.end_batch();
    }
    let (mut steps, mut times) = (0_u32, Vec::new());
    for secs in 1..=LIFETIME_SECS {
        let mut in_this_second = 0;
        loop {
            let begun = cpu_time();
            let more = engine.maintain(after(secs));
            times.push(cpu_time() - begun);
            in_this_second += 1;
            assert!(in_this_second < ITEMS, "maintenance does not end in second {secs}");
            if !more {
                break;
            }
        }
        steps += in_this_second;
    }
    times.sort_unstable();
    // Ignore two steps in a thousand, which may have been interrupted.
    let long = times[times.len() - 1 - times.len() / 500];
    assert!(long < Duration::from_millis(2), "a step took {long:?}, of {steps}");
    let left = cache.gauges().items;
    assert!(left < ITEMS.into(), "maintenance has removed items");
    assert_eq!(cache.gauges().evictions, 0);
}

/// One thread sets values while another thread does the maintenance of the cache.
#[test]
fn maintenance_does_not_delay_other_sets() {
    let cache = cache(256 * MIB);
    let mut engine = cache.handle();
    for i in 0..500_000_u32 {
        let attributes = expiring(after(1 + i % 1000));
        set_with(&mut engine, &i.to_le_bytes(), b"1", attributes, NewCas::Fresh).unwrap();
    }
    drop(engine);
    let secs = std::sync::atomic::AtomicU32::new(0);
    check_sets_during(&cache, |engine| {
        let now = after(secs.fetch_add(1, Ordering::Relaxed) / 16);
        engine.maintain(now);
    });
}

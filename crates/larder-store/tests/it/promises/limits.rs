//! The limit changes while threads fill the memory.

use super::common::*;
use larder_store::segment::{Cache, Config, Handle};
use larder_store::{Batches, Maintenance, Refusal};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const WRITERS: u64 = 3;
const VALUE_LEN: usize = 1000;
/// The time for which each limit applies.
const LIMIT_TIME: Duration = Duration::from_millis(300);

/// The results of a writing thread.
#[derive(Default)]
struct WriteResults {
    stored: VecDeque<[u8; 16]>,
    refused: u64,
}

fn name(writer: u64, i: u64) -> [u8; 16] {
    let mut name = [0; 16];
    name[..8].copy_from_slice(&writer.to_le_bytes());
    name[8..].copy_from_slice(&i.to_le_bytes());
    name
}

fn value(name: [u8; 16]) -> Vec<u8> {
    pattern(u64::from_le_bytes(*name.last_chunk().expect("16 bytes")), VALUE_LEN)
}

/// Stores new items one after another. After a refusal, removes an old item.
fn write(engine: &mut Handle, writer: u64, is_over: &AtomicBool) -> WriteResults {
    let mut written = WriteResults::default();
    for i in 0.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let name = name(writer, i);
        engine.begin_batch(START);
        match set(engine, &name, &value(name)) {
            Ok(_) => written.stored.push_back(name),
            Err(Refusal::OutOfMemory) => {
                written.refused += 1;
                assert!(!has(engine, &name), "a refused item is not found");
                if let Some(oldest) = written.stored.pop_front() {
                    remove(engine, &oldest);
                }
            }
            Err(refusal) => panic!("{refusal:?}"),
        }
        engine.end_batch();
    }
    written
}

fn check(evict: bool) {
    let config = Config { evict, ..config(8 * MIB) };
    let cache = Cache::growable(config, 32 * MIB).unwrap();
    let is_over = AtomicBool::new(false);
    let mut engine = cache.handle();
    let written: Vec<WriteResults> = thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (mut engine, is_over) = (cache.handle(), &is_over);
                scope.spawn(move || write(&mut engine, writer, is_over))
            })
            .collect();
        for mib in [8, 4, 16, 5, 12, 4, 8] {
            cache.set_limit(mib * MIB).unwrap();
            let end = Instant::now() + LIMIT_TIME;
            while Instant::now() < end {
                engine.maintain(START);
                thread::yield_now();
            }
        }
        is_over.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    tidy(&mut engine, START);
    let gauges = cache.gauges();
    assert_eq!(gauges.limit_bytes, 8 << 20);
    let counted: u64 = gauges.classes.iter().map(|class| class.out_of_memory).sum();
    let refused: u64 = written.iter().map(|written| written.refused).sum();
    assert_eq!(counted, refused, "each refusal is counted");
    if evict {
        assert!(gauges.used_bytes <= 8 << 20, "{} bytes are in use", gauges.used_bytes);
    } else {
        assert!(refused > 0, "the threads have filled the memory");
        for name in written.iter().flat_map(|written| &written.stored) {
            assert!(get(&mut engine, name) == Some(value(*name)), "a stored item stays");
        }
    }
    // This limit is higher than all earlier limits, because a cache that does not evict may still
    // hold all items.
    cache.set_limit(32 * MIB).unwrap();
    for i in 0..1000 {
        let name = name(WRITERS, i);
        assert!(set(&mut engine, &name, &value(name)).is_ok(), "the raised limit has room");
        assert!(get(&mut engine, &name) == Some(value(name)));
    }
}

#[test]
fn a_limit_that_is_lowered_and_raised_under_writers_is_kept() {
    within(PATIENCE, || check(true));
}

#[test]
fn a_limit_that_changes_under_writers_is_kept_without_eviction() {
    within(PATIENCE, || check(false));
}

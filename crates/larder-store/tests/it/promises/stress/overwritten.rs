//! The memory of overwritten items is reused for items of the same length, while other threads
//! read.

use super::common::*;
use larder_store::segment::Cache;
use larder_store::{Attributes, Batches, Expiry, NewCas, Seconds, Updates};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const KEYS: u64 = 256;
const ROUNDS: u64 = 60_000;

/// Returns a value of 700, 708 or 716 bytes. Successive rounds have records of different lengths.
fn value(key: u64, round: u64) -> Vec<u8> {
    let byte = u8::try_from((key * 31 + round) % 251).unwrap();
    vec![byte; usize::try_from(700 + 8 * (round % 3)).unwrap()]
}

/// Overwrites items, deletes them and lets them expire, in batches of a few requests.
fn write(cache: &Cache, writer: u64) {
    let mut engine = cache.handle();
    for round in 0..ROUNDS {
        let now = Seconds(START.0 + u32::try_from(round / 3000).unwrap());
        if round % 7 == 0 {
            engine.end_batch();
            engine.begin_batch(now);
        }
        let key = (round * 7919 + writer * 17) % KEYS;
        let name = key.to_le_bytes();
        match round % 11 {
            0 => remove(&mut engine, &name),
            1 => {
                let at = Seconds(now.0 + 1 + u32::try_from(key % 3).unwrap());
                let attributes = Attributes { expiry: Expiry::At(at), ..Attributes::default() };
                let bytes = value(key, round);
                set_with(&mut engine, &name, &bytes, attributes, NewCas::Fresh).unwrap();
            }
            _ => {
                set(&mut engine, &name, &value(key, round)).unwrap();
            }
        }
        if round % 5000 == 0 {
            engine.end_batch();
            tidy(&mut engine, now);
            engine.begin_batch(now);
        }
        if writer == 0 && round % 20_000 == 19_999 {
            engine.flush(None);
        }
    }
    engine.end_batch();
}

fn read(cache: &Cache, is_done: &AtomicBool) {
    let mut engine = cache.handle();
    while !is_done.load(Ordering::Relaxed) {
        engine.begin_batch(START);
        for key in 0..KEYS {
            let Some(value) = get(&mut engine, &key.to_le_bytes()) else { continue };
            let whole = value.iter().all(|byte| *byte == value[0]);
            assert!(whole && (700..=716).contains(&value.len()), "item {key}: {value:?}");
        }
        engine.end_batch();
    }
}

#[test]
fn readers_see_whole_values() {
    let cache = cache(64 * MIB);
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| read(&cache, &is_done));
        let writers = [0, 1, 2].map(|writer| {
            let cache = &cache;
            scope.spawn(move || write(cache, writer))
        });
        let written = writers.map(thread::ScopedJoinHandle::join);
        is_done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        written.into_iter().for_each(|writer| writer.unwrap());
    });
}

//! A walk shows every item that exists from its start to its end, although inserts move items at
//! the same time.

use super::common::*;
use larder_store::segment::Handle;
use larder_store::{Access, Batches, Lookup, Lookups, WalkState, Walks};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::thread;
use std::time::Duration;

/// The number of items that are stored before the walk: more than fit in the cache.
const FILLED: u32 = 60_000;

fn name(id: u32) -> [u8; 4] {
    id.to_le_bytes()
}

fn store_some(engine: &mut Handle, ids: std::ops::Range<u32>) {
    engine.begin_batch(START);
    for id in ids {
        set(engine, &name(id), b"v").unwrap();
    }
    engine.end_batch();
}

/// Returns the CAS of each existing item.
fn present(engine: &mut Handle, ids: std::ops::Range<u32>) -> HashMap<u32, u64> {
    engine.begin_batch(START);
    let there = ids.filter_map(|id| {
        let name = name(id);
        let key = hashed(engine, &name);
        match engine.get(key, Access::Untracked, |item| item.cas) {
            Lookup::Hit(cas) => Some((id, cas)),
            _ => None,
        }
    });
    let there = there.collect();
    engine.end_batch();
    there
}

/// Walks in steps of about `items` items. For each item that existed before the walk started and is
/// unchanged after the end of the walk, returns how often the walk showed it.
fn walked(
    engine: &mut Handle,
    items: usize,
    mut between: impl FnMut(&mut Handle),
) -> Vec<(u32, u32)> {
    let before = present(engine, 0..FILLED);
    let mut shown: HashMap<u32, u32> = HashMap::new();
    let mut walk = engine.walk();
    loop {
        engine.begin_batch(START);
        let state = engine.continue_walk(&mut walk, items, Waker::noop(), |key, _| {
            let id = u32::from_le_bytes(key.try_into().expect("a key of this test"));
            *shown.entry(id).or_default() += 1;
        });
        engine.end_batch();
        if state == WalkState::End {
            break;
        }
        between(engine);
    }
    let after = present(engine, 0..FILLED);
    let stayed = before.into_iter().filter(|(id, cas)| after.get(id) == Some(cas));
    stayed.map(|(id, _)| (id, shown.get(&id).copied().unwrap_or(0))).collect()
}

fn check(stayed: &[(u32, u32)]) {
    let missed = stayed.iter().filter(|(_, times)| *times == 0).count();
    assert_eq!(missed, 0, "of {} items that existed during the whole walk", stayed.len());
}

#[test]
fn a_walk_misses_nothing_while_items_are_inserted_between_its_steps() {
    let mut twice = 0;
    for round in 0..5 {
        let cache = cache(MIB);
        let mut engine = cache.handle();
        store_some(&mut engine, 0..FILLED);
        let mut next = FILLED * (round + 1);
        let stayed = walked(&mut engine, 30, |engine| {
            store_some(engine, next..next + 5);
            next += 5;
        });
        assert!(stayed.len() > 5000, "{}", stayed.len());
        check(&stayed);
        twice += stayed.iter().filter(|(_, times)| *times > 1).count();
    }
    assert!(twice > 0, "some items have moved");
}

#[test]
fn a_walk_misses_nothing_while_another_thread_inserts() {
    let cache = cache(MIB);
    let mut engine = cache.handle();
    store_some(&mut engine, 0..FILLED);
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut engine = cache.handle();
            let mut next = FILLED;
            while !has_ended.load(Ordering::Relaxed) {
                store_some(&mut engine, next..next + 10);
                // This thread stores slowly, because some of the items that the walk checks must
                // stay.
                thread::sleep(Duration::from_micros(200));
                next += 10;
            }
        });
        let mut looked_for = 0;
        // Evicted items are stored again, so that each walk has items to check.
        for _ in 0..10 {
            let stayed = walked(&mut engine, 100, |_| ());
            looked_for += stayed.len();
            check(&stayed);
            store_some(&mut engine, 0..FILLED);
        }
        has_ended.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        assert!(looked_for > 0, "some items existed during a whole walk");
    });
}

#[test]
#[should_panic(expected = "the walk belongs to another cache")]
fn a_walk_cannot_continue_in_another_cache() {
    let mut walk = cache(MIB).handle().walk();
    cache(2 * MIB).handle().continue_walk(&mut walk, 100, Waker::noop(), |_, _| ());
}

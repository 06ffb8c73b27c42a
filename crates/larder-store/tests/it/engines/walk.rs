//! Walks over all items.

use super::common::*;
use larder_store::{Batches, Engine, Expiry, Updates, WalkState, Walks};
use std::collections::HashMap;
use std::task::Waker;

for_every_engine! {
    a_walk_shows_every_live_item_once
    a_walk_takes_small_steps
    a_walk_survives_writes
}

const ITEMS: usize = 20_000;

/// Returns how often the walk showed each key, and the number of steps.
fn walked<E: Engine>(
    engine: &mut E,
    mut between: impl FnMut(&mut E),
) -> (HashMap<Vec<u8>, u32>, usize) {
    let (mut shown, mut steps) = (HashMap::new(), 0);
    let mut walk = engine.walk();
    loop {
        let mut seen = 0;
        let state = engine.continue_walk(&mut walk, 100, Waker::noop(), |key, _| {
            *shown.entry(key.to_vec()).or_insert(0) += 1;
            seen += 1;
        });
        assert!(seen < 200, "{seen} items in one step");
        steps += 1;
        if state == WalkState::End {
            return (shown, steps);
        }
        between(engine);
    }
}

fn filled<S: Subject>() -> S::Handle {
    let mut engine = S::new(&Setup::default()).handle();
    engine.begin_batch(START);
    for i in 0..ITEMS {
        set(&mut engine, format!("key {i}").as_bytes(), b"value").unwrap();
    }
    engine
}

fn a_walk_shows_every_live_item_once<S: Subject>() {
    let mut engine = filled::<S>();
    for i in 0..10 {
        remove(&mut engine, format!("key {i}").as_bytes());
    }
    let value = larder_store::NewValue::Bytes(b"1");
    let cas = larder_store::NewCas::Fresh;
    put(&mut engine, b"mortal", value, expiring(after(5)), cas).unwrap();
    let (shown, _) = walked(&mut engine, |_| ());
    assert_eq!(shown.len(), ITEMS - 10 + 1);
    assert!(shown.values().all(|&times| times == 1));
    let mut ends = Vec::new();
    engine.begin_batch(after(4));
    let mut walk = engine.walk();
    let mut step = || {
        engine.continue_walk(&mut walk, 1000, Waker::noop(), |key, item| {
            if key == b"mortal" {
                ends.push((item.attributes.expiry, item.value.len()));
            }
        })
    };
    while step() == WalkState::More {}
    assert_eq!(ends, [(Expiry::At(after(5)), 1)]);
    engine.begin_batch(after(5));
    assert!(!walked(&mut engine, |_| ()).0.contains_key(&b"mortal"[..]), "the item has expired");
    engine.flush(None);
    engine.begin_batch(after(5));
    assert_eq!(walked(&mut engine, |_| ()).0, HashMap::new());
}

fn a_walk_takes_small_steps<S: Subject>() {
    let (_, steps) = walked(&mut filled::<S>(), |_| ());
    assert!(steps >= ITEMS / 200, "{steps}");
}

/// A walk visits all items that exist during the whole walk, while other items are stored and
/// removed.
fn a_walk_survives_writes<S: Subject>() {
    let mut engine = filled::<S>();
    let mut next = 0;
    let (shown, _) = walked(&mut engine, |engine| {
        for i in next..next + 50 {
            set(engine, format!("new {i}").as_bytes(), b"value").unwrap();
            remove(engine, format!("new {}", i / 2).as_bytes());
        }
        next += 50;
        engine.begin_batch(START);
    });
    let old = (0..ITEMS).filter(|i| shown.contains_key(format!("key {i}").as_bytes())).count();
    assert_eq!(old, ITEMS);
}

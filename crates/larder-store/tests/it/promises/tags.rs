//! Items of a dropped tag are not found. No other items are dropped, except to make room.

use super::common::*;
use larder_store::segment::{Cache, Handle};
use larder_store::{
    Access, Attributes, Batches, Change, Expiry, Lookup, Lookups, NewCas, NewTags, NewValue,
    Refusal, TAGS_MAX, Tag, Updates,
};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

fn tags(engine: &mut Handle, names: &[&str]) -> Vec<Tag> {
    names.iter().map(|name| engine.tag(name.as_bytes()).unwrap()).collect()
}

fn put_tagged(engine: &mut Handle, key: &[u8], value: NewValue<'_>, tags: NewTags<'_>) {
    let attributes = Attributes::default();
    let put = || Change::Put { attributes, cas: NewCas::Fresh, value, fetched: false, tags };
    change(engine, key, put).unwrap();
}

fn set_tagged(engine: &mut Handle, key: &[u8], value: &[u8], names: &[&str]) {
    let tags = tags(engine, names);
    put_tagged(engine, key, NewValue::Bytes(value), NewTags::These(&tags));
}

fn is_flushed(engine: &mut Handle, key: &[u8]) -> bool {
    let hashed = larder_store::HashedKey { bytes: key, hash: engine.hash(key) };
    matches!(engine.get(hashed, Access::Untracked, |_| ()), Lookup::Flushed)
}

#[test]
fn a_drop_takes_the_items_of_its_tag_alone() {
    let cache = cache(16 * MIB);
    let mut engine = cache.handle();
    assert!(!engine.drop_tag(b"a"), "no tag exists yet");
    let names: Vec<String> = (0..TAGS_MAX).map(|n| format!("tag {n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for last in 0..TAGS_MAX {
        set(&mut engine, b"none", b"0").unwrap();
        set_tagged(&mut engine, b"all", b"1", &names);
        set_tagged(&mut engine, b"other", b"2", &["b"]);
        let long = vec![b'k'; 1024];
        set_tagged(&mut engine, &long, &[7; 100], &names);
        let large = vec![9; 300_000];
        set_tagged(&mut engine, b"large", &large, &names);
        assert_eq!(get(&mut engine, b"large").unwrap(), large);
        assert!(engine.drop_tag(names[last].as_bytes()));
        for key in [&b"all"[..], &long, b"large"] {
            assert_eq!(get(&mut engine, key), None);
            assert!(is_flushed(&mut engine, key));
        }
        assert_eq!(get(&mut engine, b"none").unwrap(), b"0");
        assert_eq!(get(&mut engine, b"other").unwrap(), b"2");
        set_tagged(&mut engine, b"all", b"3", &names);
        assert_eq!(get(&mut engine, b"all").unwrap(), b"3", "items that are stored later stay");
    }
    assert!(!engine.drop_tag(b"unknown"));
}

#[test]
fn a_set_that_began_before_a_drop_is_dropped() {
    let cache = cache(16 * MIB);
    let mut engine = cache.handle();
    let old = tags(&mut engine, &["a"]);
    assert!(engine.drop_tag(b"a"));
    put_tagged(&mut engine, b"k", NewValue::Bytes(b"1"), NewTags::These(&old));
    assert_eq!(get(&mut engine, b"k"), None);
}

#[test]
fn tags_stay_with_the_item_until_it_is_replaced() {
    let cache = cache(4 * MIB);
    let mut engine = cache.handle();
    let keys = [&b"appended"[..], b"number", b"touched", b"moved", b"replaced"];
    for key in keys {
        set_tagged(&mut engine, key, b"1", &["a"]);
    }
    put_tagged(&mut engine, b"appended", NewValue::Append(&[b'x'; 50]), NewTags::Same);
    let mut digits = [0; 20];
    digits[0] = b'7';
    put_tagged(
        &mut engine,
        b"number",
        NewValue::Number { digits, len: 1, width: 1 },
        NewTags::Same,
    );
    let touched =
        Attributes { client_flags: 3, expiry: Expiry::At(after(1000)), ..Attributes::default() };
    amend(&mut engine, b"touched", touched, NewCas::Fresh);
    set(&mut engine, b"replaced", b"2").unwrap();
    // Other items are overwritten, so that segments are emptied and these items move.
    for i in 0..200_000_u32 {
        set(&mut engine, &(i % 100).to_le_bytes(), &[1; 500]).unwrap();
        for key in keys {
            assert!(i % 1000 != 0 || get(&mut engine, key).is_some(), "{i}");
        }
    }
    assert!(engine.drop_tag(b"a"));
    for key in &keys[..4] {
        assert_eq!(get(&mut engine, key), None);
    }
    assert_eq!(get(&mut engine, b"replaced").unwrap(), b"2");
}

#[test]
fn maintenance_frees_items_of_dropped_tags() {
    let cache = cache(64 * MIB);
    let mut engine = cache.handle();
    for i in 0..30_000_u32 {
        let name = if i % 3 == 0 { "kept" } else { "dropped" };
        set_tagged(&mut engine, &i.to_le_bytes(), &[1; 500], &[name]);
    }
    engine.end_batch();
    tidy(&mut engine, after(400));
    assert_eq!(cache.gauges().items, 30_000);
    for round in 0..2 {
        engine.begin_batch(after(400));
        assert!(engine.drop_tag(b"dropped"));
        engine.end_batch();
        tidy(&mut engine, after(1000 * (round + 1)));
        let items = cache.gauges().items;
        assert!((10_000..10_200).contains(&items), "{items} left");
        engine.begin_batch(after(1000 * (round + 1)));
        for i in (1..30_000_u32).step_by(3) {
            set_tagged(&mut engine, &i.to_le_bytes(), &[1; 500], &["dropped"]);
        }
        engine.end_batch();
    }
    assert_eq!(cache.gauges().evictions, 0);
}

#[test]
fn excess_tags_are_dropped_early_and_never_late() {
    let cache = small_cache(MIB, 1);
    let mut engine = cache.handle();
    let name = |i: u32| format!("user {i}");
    for round in 0..4_u32 {
        for i in 0..40_000_u32 {
            set_tagged(&mut engine, &(i % 500).to_le_bytes(), &i.to_le_bytes(), &[&name(i)]);
        }
        let mut live = 0;
        for i in 39_500..40_000_u32 {
            live += u32::from(get(&mut engine, &(i % 500).to_le_bytes()).is_some());
            engine.drop_tag(name(i).as_bytes());
            assert_eq!(get(&mut engine, &(i % 500).to_le_bytes()), None, "round {round}, tag {i}");
        }
        assert!(live > 400, "the most recently used tags exist: {live}");
    }
}

#[test]
fn after_a_drop_no_older_item_is_found() {
    let cache = cache(16 * MIB);
    let (epoch, is_over, begin) = (AtomicU64::new(0), AtomicBool::new(false), Barrier::new(5));
    thread::scope(|scope| {
        for writer in 0..3_u64 {
            let mut engine = cache.handle();
            let (epoch, is_over, begin) = (&epoch, &is_over, &begin);
            scope.spawn(move || {
                begin.wait();
                let mut n = writer;
                while !is_over.load(Ordering::Relaxed) {
                    engine.begin_batch(START);
                    let tag = engine.tag(b"a").unwrap();
                    let value = epoch.load(Ordering::SeqCst);
                    n += 1;
                    let tags = [tag];
                    let value = value.to_le_bytes();
                    let key = (n % 8).to_le_bytes();
                    put_tagged(&mut engine, &key, NewValue::Bytes(&value), NewTags::These(&tags));
                    engine.end_batch();
                }
            });
        }
        let mut engine = cache.handle();
        let mut other = cache.handle();
        scope.spawn({
            let (is_over, begin) = (&is_over, &begin);
            move || {
                begin.wait();
                // Adds many other tags, some in the same bucket, and makes items move.
                for i in 0_u64.. {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    other.begin_batch(START);
                    set_tagged(
                        &mut other,
                        &(100 + i % 1000).to_le_bytes(),
                        &[3; 700],
                        &[&i.to_string()],
                    );
                    other.end_batch();
                }
            }
        });
        begin.wait();
        for _ in 0..20_000 {
            engine.begin_batch(START);
            let now = epoch.fetch_add(1, Ordering::SeqCst) + 1;
            engine.drop_tag(b"a");
            for key in 0..8_u64 {
                if let Some(found) = get(&mut engine, &key.to_le_bytes()) {
                    let found = u64::from_le_bytes(found.try_into().unwrap());
                    assert!(found >= now, "{found} was dropped before {now}");
                }
            }
            engine.end_batch();
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_cache_that_is_full_and_does_not_evict_refuses_the_first_tag() {
    let cache: Cache = keeping_cache(4 * MIB);
    let mut engine = cache.handle();
    let full = (0..u32::MAX).find(|i| set(&mut engine, &i.to_le_bytes(), &[1; 1000]).is_err());
    let tag = engine.tag(b"a");
    assert!(tag.is_ok() || tag == Err(Refusal::OutOfMemory));
    for i in 0..full.unwrap() {
        assert!(get(&mut engine, &i.to_le_bytes()).is_some(), "no item is lost: {i}");
    }
}

/// Threads that use a new tag at the same time may add it twice.
#[test]
fn a_drop_reaches_the_items_of_every_thread_that_added_the_tag() {
    const THREADS: u8 = 4;
    const ROUNDS: u64 = 3000;
    let cache = cache(64 * MIB);
    let begin = Barrier::new(usize::from(THREADS) + 1);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (mut engine, begin) = (cache.handle(), &begin);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    begin.wait();
                    engine.begin_batch(START);
                    set_tagged(&mut engine, &thread.to_le_bytes(), b"1", &[&round.to_string()]);
                    engine.end_batch();
                    begin.wait();
                    begin.wait();
                }
            });
        }
        let mut engine = cache.handle();
        for round in 0..ROUNDS {
            begin.wait();
            begin.wait();
            engine.begin_batch(START);
            assert!(engine.drop_tag(round.to_string().as_bytes()));
            for thread in 0..THREADS {
                assert_eq!(get(&mut engine, &thread.to_le_bytes()), None, "round {round}");
            }
            engine.end_batch();
            begin.wait();
        }
    });
}

#[test]
fn no_tag_is_replaced_while_three_quarters_of_the_table_are_in_use() {
    let cache = cache(64 * MIB);
    let mut engine = cache.handle();
    // A table of a MiB has 131,072 words.
    for i in 0..98_304_u32 {
        engine.tag(&i.to_le_bytes()).unwrap();
    }
    let displaced = cache.gauges().tags_displaced;
    assert!(displaced < 20, "{displaced} of 98,304 tags were displaced");
}

//! Handles that are made and dropped, and items that expire in segments to which no handle writes.

use super::common::*;
use larder_store::cache::Cache as _;
use larder_store::journal::{JournaledCache, Journals};
use larder_store::segment::Cache;
use larder_store::{
    Batches, Change, Fence, HashedKey, Lookups, Maintenance, NewCas, Refusal, Updates,
};
use std::sync::Arc;
use std::time::Duration;

const HANDLES: u64 = 1000;

/// Creates and drops handles one after another. Each handle stores an item and removes it.
fn create_and_drop_handles(cache: &Cache, handles: u64) {
    for i in 0..handles {
        let mut engine = cache.handle();
        engine.begin_batch(START);
        set(&mut engine, &i.to_le_bytes(), &[7; 100]).unwrap();
        remove(&mut engine, &i.to_le_bytes());
        engine.end_batch();
    }
    tidy(&mut cache.handle(), START);
}

#[test]
fn dropped_handles_leave_totals_right() {
    let cache = cache(64 * MIB);
    create_and_drop_handles(&cache, HANDLES);
    let gauges = cache.gauges();
    assert_eq!((gauges.items, gauges.bytes, gauges.items_total), (0, 0, HANDLES));
    for i in 0..HANDLES {
        let mut engine = cache.handle();
        set(&mut engine, &i.to_le_bytes(), &[7; 100]).unwrap();
        // Every second handle removes the item of the previous handle.
        if i % 2 == 1 {
            remove(&mut engine, &(i - 1).to_le_bytes());
        }
    }
    let gauges = cache.gauges();
    // An item has 59 bytes of overhead and a key of 8 bytes.
    assert_eq!((gauges.items, gauges.bytes), (HANDLES / 2, HANDLES / 2 * (59 + 8 + 100)));
    assert_eq!((gauges.items_total, gauges.evictions), (2 * HANDLES, 0));
}

#[test]
fn memory_does_not_grow_with_dropped_handles() {
    let cache = cache(64 * MIB);
    create_and_drop_handles(&cache, 50);
    let before = cache.gauges().used_bytes;
    create_and_drop_handles(&cache, HANDLES);
    let used = cache.gauges().used_bytes;
    let more = used.saturating_sub(before) / 1024;
    assert!(more <= 4 * 1024, "{more} KiB more for {HANDLES} handles and no item");
}

/// Does the same as `memory_does_not_grow_with_dropped_handles`, with items that are not removed.
/// These items need 140 KiB.
#[test]
fn items_of_dropped_handles_take_little_memory() {
    let cache = cache(64 * MIB);
    let before = cache.gauges().used_bytes;
    for i in 0..HANDLES {
        let mut engine = cache.handle();
        set(&mut engine, &i.to_le_bytes(), &[7; 100]).unwrap();
    }
    tidy(&mut cache.handle(), START);
    let gauges = cache.gauges();
    let more = gauges.used_bytes.saturating_sub(before) / 1024;
    assert_eq!(gauges.items, HANDLES);
    assert!(more <= 8 * 1024, "{more} KiB for {HANDLES} items of 140 bytes");
}

/// Some handles only remove items of other handles. Checks that these removals are subtracted from
/// the count of used index words.
#[test]
fn the_index_does_not_grow_with_removed_items() {
    const KEYS: u64 = 15;
    let cache = cache(16 * MIB);
    let mut writer = cache.handle();
    let before = cache.gauges().index_bytes;
    for _ in 0..HANDLES {
        (0..KEYS).for_each(|i| _ = set(&mut writer, &i.to_le_bytes(), b"value").unwrap());
        let mut remover = cache.handle();
        (0..KEYS).for_each(|i| remove(&mut remover, &i.to_le_bytes()));
    }
    let gauges = cache.gauges();
    assert_eq!(gauges.items, 0);
    assert_eq!(gauges.index_bytes, before, "for at most {KEYS} items at a time");
}

/// The handles only store items. The index must grow early enough that no item is evicted because
/// an index word is missing.
#[test]
fn the_index_grows_with_the_items_of_dropped_handles() {
    let (cache, one_handle) = (cache(64 * MIB), cache(64 * MIB));
    let mut engine = one_handle.handle();
    for i in 0..40_000_u64 {
        set(&mut cache.handle(), &i.to_le_bytes(), b"value").unwrap();
        set(&mut engine, &i.to_le_bytes(), b"value").unwrap();
    }
    let (gauges, expected) = (cache.gauges(), one_handle.gauges());
    assert_eq!((gauges.items, gauges.evictions), (expected.items, expected.evictions));
    assert!(gauges.index_bytes >= expected.index_bytes * 7 / 8, "{}", gauges.index_bytes);
}

#[test]
fn expired_items_in_an_open_segment_are_removed_by_maintenance() {
    const ITEMS: u64 = 1000;
    let cache = cache(64 * MIB);
    let mut engine = cache.handle();
    engine.begin_batch(START);
    for i in 0..ITEMS {
        let attributes = expiring(after(1));
        set_with(&mut engine, &i.to_le_bytes(), &[7; 100], attributes, NewCas::Fresh).unwrap();
    }
    set(&mut engine, b"stays", &[7; 100]).unwrap();
    engine.end_batch();
    assert_eq!(cache.gauges().items, ITEMS + 1);
    for _ in 0..64 {
        engine.maintain(after(3));
    }
    assert_eq!(cache.gauges().items, 1, "{ITEMS} items expired two seconds ago");
    engine.begin_batch(after(3));
    assert!(has(&mut engine, b"stays"));
}

/// Expired items are in segments that many handles have open. Each handle searches its own
/// segments.
#[test]
fn expired_items_in_many_open_segments_are_removed_by_maintenance() {
    let cache = cache(64 * MIB);
    let mut handles: Vec<_> = (0..16).map(|_| cache.handle()).collect();
    for (i, engine) in (0_u64..).zip(&mut handles) {
        engine.begin_batch(START);
        for j in 0..100_u32 {
            let key = (i << 32 | u64::from(j)).to_le_bytes();
            let attributes = expiring(after(1 + j % 100));
            set_with(engine, &key, &[7; 100], attributes, NewCas::Fresh).unwrap();
        }
        engine.end_batch();
    }
    for now in 1..=110 {
        handles.iter_mut().for_each(|engine| {
            (0..16).for_each(|_| _ = engine.maintain(after(now)));
        });
    }
    assert_eq!(cache.gauges().items, 0, "the last items expired ten seconds ago");
}

/// The gateway creates a handle for each request. Each handle continues the journal of a dropped
/// handle.
#[test]
fn journals_do_not_grow_with_dropped_handles() {
    let journals = Journals::new(1 << 20, 2);
    let cache = JournaledCache::new(cache(64 * MIB), Arc::clone(&journals));
    let stays = cache.engine();
    let mut ends = 0;
    for i in 0..HANDLES {
        let mut engine = cache.engine();
        engine.begin_batch(START);
        let key = HashedKey { bytes: &i.to_le_bytes(), hash: engine.hash(&i.to_le_bytes()) };
        engine.update(key, &mut None, |_| (Change::Remove, ())).unwrap();
        if i % 2 == 0 {
            engine.end_batch();
        }
        drop(engine);
        let now: u64 = journals.ends().iter().sum();
        assert!(now > ends, "the entries of a dropped handle stay");
        ends = now;
        // `batches_have_ended` does not wait for a handle that was dropped during a batch.
        assert!(journals.batches_have_ended(&mut Vec::new()));
    }
    assert_eq!(journals.from(0).len(), 2);
    drop(stays);
}

/// Changes that need no acknowledgement wake a paused reader only when they would soon overwrite
/// entries that the reader has not read.
#[test]
fn a_paused_reader_is_woken_before_a_quarter_of_a_journal_is_written() {
    const WORDS: u64 = 1 << 13;
    let journals = Journals::new(1 << 16, 1);
    let cache = JournaledCache::new(cache(64 * MIB), Arc::clone(&journals));
    let mut engine = cache.engine();
    let generation = journals.notifier().generation();
    let resting = Arc::clone(&journals);
    let rests =
        std::thread::spawn(move || resting.notifier().pause(Duration::from_secs(3600), generation));
    let (mut last_end, mut last_rings, mut quiet_batches) = (0, generation, 0);
    for i in 0..20 * WORDS / 3 {
        engine.begin_batch(START);
        let key = [i.to_le_bytes(); 2].concat();
        let key = HashedKey { bytes: &key, hash: engine.hash(&key) };
        engine.update(key, &mut None, |_| (Change::Remove, ())).unwrap();
        engine.end_batch();
        let (end, rings): (u64, _) =
            (journals.ends().iter().sum(), journals.notifier().generation());
        if rings == last_rings {
            quiet_batches += 1;
            assert!(end - last_end < WORDS / 4, "{} of {WORDS} words", end - last_end);
        } else {
            (last_end, last_rings) = (end, rings);
        }
    }
    rests.join().unwrap();
    assert!(quiet_batches > 19 * WORDS / 3, "{quiet_batches}");
}

/// An update holds the lock of the key while it checks the fence and makes the change. After the
/// time of the fence has passed, an update changes nothing and writes nothing to the journals.
#[test]
fn a_fence_that_has_passed_refuses_all_changes() {
    let journals = Journals::new(1 << 16, 2);
    let cache = JournaledCache::new(cache(64 * MIB), Arc::clone(&journals));
    let (mut fenced, mut free) = (cache.engine(), cache.engine());
    free.begin_batch(START);
    fenced.begin_batch(START);
    set(&mut free, b"key", b"value").unwrap();
    let ends = journals.ends();
    // The clock always returns 7.
    let fence = Arc::new(Fence::new(|| 7));
    fence.extend(8);
    fenced.set_fence(Some(Arc::clone(&fence)));
    set(&mut fenced, b"allowed", b"value").unwrap();
    assert_ne!(journals.ends(), ends);
    let ends = journals.ends();
    for is_closed in [false, true] {
        let fence = Arc::new(Fence::new(|| 7));
        fence.extend(7);
        if is_closed {
            fence.close();
        }
        fenced.set_fence(Some(Arc::clone(&fence)));
        let key = HashedKey { bytes: b"key", hash: fenced.hash(b"key") };
        assert!(has(&mut fenced, b"key"), "lookups have no limit");
        assert_eq!(fenced.update(key, &mut None, |_| (Change::Keep, 5)).unwrap().result, 5);
        let removed = fenced.update(key, &mut None, |_| (Change::Remove, ()));
        assert_eq!(removed.unwrap_err(), Refusal::Pending);
        let removed = fenced.update_unread(key, &mut None, |_| (Change::Remove, ()));
        assert_eq!(removed.unwrap_err(), Refusal::Pending);
        assert!(fence.is_closed(), "its owner learns that a change was refused");
        fenced.flush(None);
        assert!(has(&mut fenced, b"key"));
        assert_eq!((journals.ends(), fenced.flush_generation()), (ends.clone(), 0));
    }
    fenced.set_fence(None);
    remove(&mut fenced, b"key");
    assert!(!has(&mut free, b"key"));
}

//! Misuse of the interface, and panics in callers' closures, do not damage other items.

use super::common::*;
use larder_store::segment::{Cache, ChainLease, Handle, Upload};
use larder_store::{
    Access, Attributes, Batches, Change, Expiry, HashedKey, Lookup, Lookups, NewCas, NewValue,
    Refusal, Updates, Uploads, WalkState, Walks,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Waker;
use std::time::Duration;

const KEYS: u64 = 200;

fn value_of(key: u64) -> Vec<u8> {
    pattern(key, 20 + usize::try_from(key % 400).unwrap())
}

/// Stores items whose values depend on their keys.
fn store_items(engine: &mut Handle, keys: std::ops::Range<u64>) {
    keys.for_each(|key| _ = set(engine, &key.to_le_bytes(), &value_of(key)).unwrap());
}

/// Checks that all of these items exist with their complete values.
#[track_caller]
fn check_items(engine: &mut Handle, keys: std::ops::Range<u64>) {
    for key in keys {
        let value = get(engine, &key.to_le_bytes());
        assert!(value == Some(value_of(key)), "item {key}: {value:?}");
    }
}

/// Checks that the existing items have complete values, and that all memory can be reused.
fn check_by_churning(cache: &Cache) {
    let mut engine = cache.handle();
    let limit = cache.gauges().limit_bytes;
    let keys = limit / 100;
    for key in 0..keys {
        engine.begin_batch(START);
        assert!(set(&mut engine, &key.to_le_bytes(), &value_of(key)).is_ok(), "item {key}");
        let old = key / 2;
        if let Some(value) = get(&mut engine, &old.to_le_bytes()) {
            assert!(value == value_of(old), "item {old}: {value:?}");
        }
        engine.end_batch();
    }
    assert!(cache.gauges().used_bytes <= limit);
}

/// Returns the result of a call that may panic, or `None` if it panicked.
fn catch_panic<R>(call: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(call)).ok()
}

#[test]
fn a_key_that_is_too_long_is_refused() {
    for len in [1025, 1026, 2048, 65_536, 65_537] {
        let cache = cache(4 * MIB);
        let mut engine = cache.handle();
        store_items(&mut engine, 0..KEYS);
        let long = vec![b'k'; len];
        let stored = catch_panic(|| set(&mut engine, &long, b"value"));
        store_items(&mut engine, KEYS..2 * KEYS);
        check_items(&mut engine, 0..2 * KEYS);
        assert_eq!(get(&mut engine, &long), None, "{len} B");
        assert_eq!(get(&mut engine, &long[..len % 256]), None, "{len} B");
        assert_eq!(stored, Some(Err(Refusal::TooLarge)), "{len} B");
        assert_eq!(cache.gauges().items, 2 * KEYS, "{len} B");
        check_by_churning(&cache);
    }
}

/// Keys longer than memcached's 250 bytes are refused, or stored like other keys.
#[test]
fn a_key_of_unusual_length_does_not_damage_other_items() {
    for len in [251, 254, 255, 256, 257, 511, 512, 1023, 1024] {
        let cache = cache(4 * MIB);
        let mut engine = cache.handle();
        store_items(&mut engine, 0..KEYS);
        let key = vec![b'k'; len];
        let stored = catch_panic(|| set(&mut engine, &key, b"value"));
        store_items(&mut engine, KEYS..2 * KEYS);
        check_items(&mut engine, 0..2 * KEYS);
        match stored {
            Some(Ok(_)) => assert_eq!(get(&mut engine, &key).as_deref(), Some(&b"value"[..])),
            Some(Err(refusal)) => assert_eq!(refusal, Refusal::TooLarge, "{len} B"),
            None => panic!("a key of {len} B makes the engine panic"),
        }
        check_by_churning(&cache);
    }
}

fn put_upload<'v>(value: NewValue<'v>) -> (Change<'v>, ()) {
    (store(value, Attributes::default(), NewCas::Fresh), ())
}

#[test]
fn an_upload_that_is_short_is_not_stored() {
    let uploads: [fn() -> NewValue<'static>; 3] =
        [|| NewValue::Uploaded, || NewValue::AppendUploaded, || NewValue::PrependUploaded];
    for value in uploads {
        for (len, arrived) in
            [(1, 0), (100, 99), (100_000, 50_000), (300_000, 0), (300_000, 299_999)]
        {
            let cache = cache(4 * MIB);
            let mut engine = cache.handle();
            store_items(&mut engine, 0..KEYS);
            let mut upload = engine.upload(len).unwrap();
            engine.extend(&mut upload, &vec![7; arrived]).unwrap();
            let (key, mut upload) = (hashed(&engine, b"key"), Some(upload));
            let stored =
                catch_panic(|| engine.update(key, &mut upload, |_| put_upload(value())).map(drop));
            let dropped = catch_panic(|| drop(upload));
            assert!(matches!(stored, Some(Err(_))), "{arrived} B of {len}: {stored:?}");
            assert!(dropped.is_some(), "an upload can be dropped");
            assert_eq!(get(&mut engine, b"key"), None, "{arrived} B of {len}");
            check_items(&mut engine, 0..KEYS);
            check_by_churning(&cache);
        }
    }
}

#[test]
fn an_upload_of_another_cache_is_not_stored() {
    for len in [100, 40_000, 300_000] {
        let (ours, theirs) = (cache(4 * MIB), cache(4 * MIB));
        let (mut our_engine, mut their_engine) = (ours.handle(), theirs.handle());
        store_items(&mut our_engine, 0..KEYS);
        store_items(&mut their_engine, 0..KEYS);
        let mut upload = their_engine.upload(len).unwrap();
        their_engine.extend(&mut upload, &pattern(9, len)).unwrap();
        let (key, mut upload) = (hashed(&our_engine, b"key"), Some(upload));
        let stored = catch_panic(|| {
            our_engine.update(key, &mut upload, |_| put_upload(NewValue::Uploaded)).map(drop)
        });
        let dropped = catch_panic(|| drop(upload));
        assert!(matches!(stored, Some(Err(_))), "{len} B: {stored:?}");
        assert!(dropped.is_some(), "an upload can be dropped");
        assert_eq!(get(&mut our_engine, b"key"), None);
        check_items(&mut our_engine, 0..KEYS);
        check_items(&mut their_engine, 0..KEYS);
        check_by_churning(&ours);
        check_by_churning(&theirs);
    }
}

/// The handle of one cache extends the upload of another cache.
#[test]
fn extending_an_upload_with_another_cache_harms_neither() {
    let (ours, theirs) = (cache(4 * MIB), cache(4 * MIB));
    let (mut our_engine, mut their_engine) = (ours.handle(), theirs.handle());
    store_items(&mut our_engine, 0..KEYS);
    store_items(&mut their_engine, 0..KEYS);
    let mut upload: Upload = their_engine.upload(200_000).unwrap();
    their_engine.extend(&mut upload, &pattern(9, 50_000)).unwrap();
    let extended = catch_panic(|| our_engine.extend(&mut upload, &pattern(10, 100_000)));
    let dropped = catch_panic(|| drop(upload));
    assert!(!matches!(extended, Some(Ok(()))), "the other cache refuses the upload");
    assert!(dropped.is_some(), "an upload can be dropped");
    check_items(&mut our_engine, 0..KEYS);
    check_items(&mut their_engine, 0..KEYS);
    check_by_churning(&ours);
    check_by_churning(&theirs);
}

#[test]
fn a_key_with_the_hash_of_another_is_not_stored() {
    let cache = cache(4 * MIB);
    let mut engine = cache.handle();
    store_items(&mut engine, 0..KEYS);
    let before = cache.gauges();
    for wrong in 1..100_u64 {
        let key = HashedKey { bytes: b"key", hash: engine.hash(b"key") ^ wrong << (wrong % 50) };
        let put = || store(NewValue::Bytes(b"value"), Attributes::default(), NewCas::Fresh);
        let stored = catch_panic(|| engine.update(key, &mut None, |_| (put(), ())).map(drop));
        assert!(!matches!(stored, Some(Ok(()))), "not stored under a wrong hash");
    }
    assert_eq!(get(&mut engine, b"key"), None);
    check_items(&mut engine, 0..KEYS);
    let gauges = cache.gauges();
    assert_eq!((gauges.items, gauges.bytes), (before.items, before.bytes));
    check_by_churning(&cache);
}

/// Mixes writes with wrong hashes and writes with correct hashes, and overwrites all memory several
/// times. No index word that refers to reused memory may be left.
#[test]
fn wrong_hashes_never_lead_to_memory_of_others() {
    const LEN: usize = 100;
    let cache = cache(2 * MIB);
    let mut engine = cache.handle();
    let mut random = Random::new(3);
    for i in 0..100_000_u64 {
        let key = i.to_le_bytes();
        engine.begin_batch(START);
        set(&mut engine, &key, &pattern(i, LEN)).unwrap();
        if i % 10 == 0 {
            let key = HashedKey { bytes: &key, hash: random.next() };
            let value = pattern(i, LEN);
            let put = || store(NewValue::Bytes(&value), Attributes::default(), NewCas::Fresh);
            // `a_key_with_the_hash_of_another_is_not_stored` checks that the update is refused.
            let _ = catch_panic(|| engine.update(key, &mut None, |_| (put(), ())).map(drop));
        }
        engine.end_batch();
        if i % 20_000 == 19_999 {
            check_by_walking(&mut engine, LEN);
        }
    }
}

/// Checks that every item of the cache has the value that was stored under its key.
fn check_by_walking(engine: &mut Handle, len: usize) {
    let mut walk = engine.walk();
    let mut wrong = 0;
    let mut visit = |key: &[u8], value: Vec<u8>| {
        let id = key.try_into().map(u64::from_le_bytes).ok();
        wrong += u32::from(id.is_none_or(|id| value != pattern(id, len)));
    };
    let mut show = |key: &[u8], item: &larder_store::Item<'_, ChainLease>| visit(key, copied(item));
    while engine.continue_walk(&mut walk, 100, Waker::noop(), &mut show) == WalkState::More {}
    assert_eq!(wrong, 0, "every item that a walk shows is valid");
}

#[test]
fn a_panic_of_the_deciding_closure_leaves_the_cache_usable() {
    within(PATIENCE, || {
        let cache = cache(4 * MIB);
        let mut engine = cache.handle();
        store_items(&mut engine, 0..KEYS);
        for key in 0..2 * KEYS {
            let bytes = key.to_le_bytes();
            let key = hashed(&engine, &bytes);
            let decide = |_: Lookup<&larder_store::Item<'_, _>>| -> (Change<'_>, ()) {
                panic!("a panic of the caller")
            };
            assert!(catch_panic(|| engine.update(key, &mut None, decide).map(drop)).is_none());
        }
        check_items(&mut engine, 0..KEYS);
        store_items(&mut engine, 0..2 * KEYS);
        check_items(&mut cache.handle(), 0..2 * KEYS);
        check_by_churning(&cache);
    });
}

/// The closure panics during a batch, while it has a lease on a large item and there is an upload.
#[test]
fn a_panic_of_the_deciding_closure_on_a_large_item_frees_all_memory() {
    within(PATIENCE, || {
        let cache = cache(16 * MIB);
        let mut engine = cache.handle();
        let value = pattern(1, 2 * MIB);
        for _ in 0..50 {
            engine.begin_batch(START);
            set_upload(&mut engine, b"large", &value).unwrap();
            let mut upload = Some(engine.upload(MIB).unwrap());
            engine.extend(upload.as_mut().unwrap(), &value[..MIB]).unwrap();
            let key = hashed(&engine, b"large");
            let decided = catch_panic(|| {
                let decide = |found: Lookup<&larder_store::Item<'_, _>>| -> (Change<'_>, ()) {
                    assert!(matches!(found, Lookup::Miss), "a panic of the caller");
                    (Change::Keep, ())
                };
                engine.update(key, &mut upload, decide).map(drop)
            });
            assert!(decided.is_none());
            engine.end_batch();
            drop(upload);
            assert!(get(&mut engine, b"large").as_ref() == Some(&value));
        }
        remove(&mut engine, b"large");
        check_by_churning(&cache);
    });
}

#[test]
fn a_panic_of_a_reader_leaves_the_cache_usable() {
    within(PATIENCE, || {
        let cache = cache(4 * MIB);
        let mut engine = cache.handle();
        store_items(&mut engine, 0..KEYS);
        set_upload(&mut engine, b"large", &pattern(1, MIB)).unwrap();
        for key in [&b"large"[..], &7_u64.to_le_bytes()].repeat(20) {
            let key = hashed(&engine, key);
            let read = |_: &larder_store::Item<'_, _>| -> () { panic!("a panic of the caller") };
            assert!(catch_panic(|| engine.get(key, Access::Tracked, read)).is_none());
            engine.begin_batch(START);
            let read = |_: &larder_store::Content<'_, _>| -> () { panic!("a panic of the caller") };
            assert!(catch_panic(|| engine.content(key, read)).is_none());
            let mut walk = engine.walk();
            let walked = catch_panic(|| {
                let show =
                    |_: &[u8], _: &larder_store::Item<'_, _>| panic!("a panic of the caller");
                while engine.continue_walk(&mut walk, 100, Waker::noop(), show) == WalkState::More {
                }
            });
            assert!(walked.is_none());
            engine.end_batch();
        }
        check_items(&mut engine, 0..KEYS);
        check_by_churning(&cache);
    });
}

/// The environment variable that marks the child process in which the observer panics. The child
/// process may abort.
const OBSERVED: &str = "LARDER_TEST_OBSERVED";

#[test]
fn a_panic_of_the_eviction_observer_leaves_the_cache_usable_or_aborts() {
    if std::env::var_os(OBSERVED).is_some() {
        return churn_with_a_panicking_observer();
    }
    let me = std::env::current_exe().unwrap();
    let test =
        "promises::soundness::a_panic_of_the_eviction_observer_leaves_the_cache_usable_or_aborts";
    let child = Command::new(me)
        .args(["--exact", test])
        .env(OBSERVED, "1")
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    let aborted = std::os::unix::process::ExitStatusExt::signal(&child.status).is_some();
    let said = String::from_utf8_lossy(&child.stdout);
    let passed = child.status.success() && said.contains("1 passed");
    assert!(passed || aborted, "{}: {said}", child.status);
}

fn churn_with_a_panicking_observer() {
    static SEEN: AtomicU32 = AtomicU32::new(0);
    within(PATIENCE, || {
        let cache = cache(4 * MIB);
        cache.observe_evictions(Box::new(|eviction| {
            let seen = SEEN.fetch_add(1, Ordering::Relaxed);
            assert!(
                eviction.attributes.expiry == Expiry::Never && seen % 500 != 499,
                "the observer gets valid items, and panics"
            );
        }));
        let mut engine = cache.handle();
        let mut panics = 0;
        for key in 0..200_000_u64 {
            let stored = catch_panic(|| set(&mut engine, &key.to_le_bytes(), &value_of(key)));
            panics += u32::from(stored.is_none());
            assert!(!matches!(stored, Some(Err(_))), "item {key}, after {panics} panics");
            if let Some(value) = get(&mut engine, &key.to_le_bytes()) {
                assert!(value == value_of(key), "item {key}");
            }
        }
        assert!(panics > 0, "the observer has panicked");
        let gauges = cache.gauges();
        assert!(gauges.items * 200 > gauges.limit_bytes / 2, "{} items are left", gauges.items);
    });
}

/// Threads panic while their handles have a batch open. The panics drop the handles.
#[test]
fn a_thread_that_panics_in_a_batch_keeps_no_memory() {
    within(Duration::from_secs(30), || {
        let cache = cache(4 * MIB);
        for _ in 0..20 {
            let cache = cache.clone();
            let panicked = std::thread::spawn(move || {
                let mut engine = cache.handle();
                engine.begin_batch(START);
                store_items(&mut engine, 0..KEYS);
                panic!("a panic of the caller");
            });
            assert!(panicked.join().is_err());
        }
        check_items(&mut cache.handle(), 0..KEYS);
        check_by_churning(&cache);
    });
}

//! Counters, updates, compare-and-swap and expiries.

use larder_cache::{
    Cache, CounterError, InsertError, InsertOptions, SwapError, SwapOutcome, Ttl, Typed,
    TypedError, Update, Version,
};
use std::thread;
use std::time::Duration;

const THREADS: u32 = 8;
const ROUNDS: u32 = 2_000;

fn cache() -> Cache {
    Cache::builder().memory(4 << 20).build().unwrap()
}

fn versioned() -> Cache {
    Cache::builder().memory(4 << 20).versions(true).build().unwrap()
}

/// Calls `f` concurrently in `THREADS` threads, `ROUNDS` times in each.
fn in_threads(f: impl Fn(u32) + Sync) {
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| (0..ROUNDS).for_each(&f));
        }
    });
}

/// Returns the seconds left until a value expires.
fn left(cache: &Cache, key: &str) -> f64 {
    match cache.ttl(key) {
        Some(Ttl::Left(left)) => left.as_secs_f64(),
        other => panic!("{key}: {other:?}"),
    }
}

#[test]
fn counters_count_each_increment_once() {
    let cache = cache();
    in_threads(|round| {
        cache.increment("up", i64::from(round)).unwrap();
        cache.decrement("down", 1).unwrap();
    });
    let (threads, rounds) = (i64::from(THREADS), i64::from(ROUNDS));
    assert_eq!(cache.increment("up", 0), Ok(threads * rounds * (rounds - 1) / 2));
    assert_eq!(cache.increment("down", 0), Ok(-threads * rounds));
    assert_eq!(cache.get("down").unwrap(), format!("-{}", threads * rounds));
}

#[test]
fn counters_report_each_kind_of_error_and_change_nothing() {
    let cache = cache();
    for text in ["", "x", "1.5", " 1", "+1", "01", "-0", "9223372036854775808"] {
        cache.insert("text", text).unwrap();
        assert_eq!(cache.increment("text", 1), Err(CounterError::NotANumber), "{text:?}");
        assert_eq!(cache.get("text").unwrap(), text);
    }
    cache.insert("text", "9 ").unwrap();
    assert_eq!(cache.increment("text", 1), Ok(10));
    cache.insert("large", vec![b'1'; 200_000]).unwrap();
    assert_eq!(cache.increment("large", 1), Err(CounterError::NotANumber));
    cache.insert("max", i64::MAX.to_string()).unwrap();
    assert_eq!(cache.increment("max", 1), Err(CounterError::Overflow));
    assert_eq!(cache.increment("max", -1), Ok(i64::MAX - 1));
    assert_eq!(cache.decrement("max", i64::MIN), Err(CounterError::Overflow));
    let none = InsertOptions::new();
    let overflow = cache.increment_with("new", 1, i64::MAX, none.clone());
    assert_eq!((overflow, cache.get("new")), (Err(CounterError::Overflow), None));
    let refused = |error| Err(CounterError::Insert(error));
    assert_eq!(cache.increment("", 1), refused(InsertError::KeyLength));
    assert_eq!(cache.increment([0; 1025], 1), refused(InsertError::KeyLength));
    assert_eq!(cache.increment_with("k", 1, 0, none.tag("")), refused(InsertError::TagLength));
}

#[test]
fn a_new_counter_has_its_options_and_keeps_them() {
    let cache = cache();
    let options = InsertOptions::new().ttl(Duration::from_secs(100)).tag("quota");
    assert_eq!(cache.increment_with("left", -1, 10, options.clone()), Ok(9));
    let other = InsertOptions::new().ttl(Duration::from_secs(1000));
    assert_eq!(cache.increment_with("left", -1, 10, other), Ok(8));
    assert_eq!(cache.decrement("left", 1), Ok(7));
    assert!(left(&cache, "left") <= 100.0);
    cache.drop_tag("quota");
    assert_eq!(cache.get("left"), None);
    assert_eq!(cache.increment("left", 1), Ok(1));
    assert_eq!(cache.ttl("left"), Some(Ttl::Unlimited));
    assert_eq!(cache.stats().insertions, 0);
}

#[test]
fn updates_see_every_change() {
    let cache = cache();
    let counts: Typed<str, u32> = Typed::new(cache.clone()).prefix("typed");
    in_threads(|_| {
        let updated = cache.update("bytes", |old| {
            let old = old.map_or(0, |old| u32::from_le_bytes(old.try_into().unwrap()));
            Update::Replace((old + 1).to_le_bytes().to_vec())
        });
        updated.unwrap();
        counts.update("count", |old| Update::Replace(old.unwrap_or(0) + 1)).unwrap();
    });
    assert_eq!(cache.get("bytes").unwrap(), (THREADS * ROUNDS).to_le_bytes()[..]);
    assert_eq!(counts.get("count"), Some(THREADS * ROUNDS));
}

#[test]
fn an_update_keeps_stores_or_removes_the_value() {
    let cache = cache();
    let tagged = InsertOptions::new().ttl(Duration::from_secs(100)).tag("tag");
    cache.insert_with("key", "old", tagged).unwrap();
    let keep = cache.update("key", |_| Update::<&str>::Keep);
    assert_eq!(keep.unwrap().unwrap(), "old");
    // `Update::Replace` keeps the expiry and the tags. A large value consists of several pieces.
    let large = vec![7; 300_000];
    let replaced = cache.update("key", |_| Update::Replace(large.clone()));
    assert_eq!(replaced.unwrap().unwrap(), large);
    assert!(left(&cache, "key") <= 100.0);
    let shorter = cache.update("key", |old| Update::Replace(old.unwrap()[1..].to_vec()));
    assert_eq!(shorter.unwrap().unwrap().len(), 299_999);
    cache.drop_tag("tag");
    assert!(!cache.contains("key"));
    // `Update::Insert` replaces the expiry and the tags.
    let options = InsertOptions::new().ttl(Duration::from_secs(5)).tag("other");
    cache.update("key", |_| Update::Insert("new", options.clone())).unwrap();
    assert!(left(&cache, "key") <= 5.0);
    assert_eq!(cache.update("key", |_| Update::<&str>::Remove), Ok(None));
    assert!(!cache.contains("key"));
    assert_eq!(cache.update("", |_| Update::<&str>::Remove), Ok(None));
}

#[test]
fn a_refused_update_keeps_the_old_value() {
    let cache = Cache::builder().memory(4 << 20).item_size_max(1000).build().unwrap();
    cache.insert("key", "old").unwrap();
    let too_large = cache.update("key", |_| Update::Replace(vec![0; 2000]));
    assert_eq!(too_large, Err(InsertError::TooLarge));
    let no_tag = InsertOptions::new().tag("");
    let refused = cache.update("key", |_| Update::Insert("new", no_tag.clone()));
    assert_eq!(refused, Err(InsertError::TagLength));
    assert_eq!(cache.update("", |_| Update::Replace("new")), Err(InsertError::KeyLength));
    assert_eq!(cache.get("key").unwrap(), "old");
    assert_eq!(cache.stats().refusals, 1);
    // If the program sets no limit, the limit is half of the memory.
    let half = self::cache();
    half.insert("key", "old").unwrap();
    let too_large = half.update("key", |_| Update::Replace(vec![0; 3 << 20]));
    assert_eq!(too_large, Err(InsertError::TooLarge));
    assert_eq!(half.get("key").unwrap(), "old");
}

#[test]
fn the_closure_of_an_update_may_use_the_cache() {
    let cache = cache();
    let mut calls = 0;
    let updated = cache.update("key", |old| {
        calls += 1;
        if calls < 5 {
            cache.insert("key", calls.to_string()).unwrap();
        }
        Update::Replace([old.unwrap_or_default(), b"!"].concat())
    });
    assert_eq!((updated.unwrap().unwrap().as_ref(), calls), (&b"4!"[..], 5));
}

#[test]
fn only_one_of_several_swaps_of_a_version_succeeds() {
    let cache = versioned();
    cache.insert("key", "0").unwrap();
    in_threads(|_| {
        loop {
            let (value, version) = cache.get_versioned("key").unwrap();
            let next = std::str::from_utf8(&value).unwrap().parse::<u32>().unwrap() + 1;
            match cache.compare_and_swap("key", version, next.to_string()).unwrap() {
                SwapOutcome::Stored(_) => break,
                SwapOutcome::Changed => (),
                SwapOutcome::Missing => panic!("the value stays"),
            }
        }
    });
    assert_eq!(cache.get("key").unwrap(), (THREADS * ROUNDS).to_string());
}

#[test]
fn every_store_changes_the_version() {
    let cache = versioned();
    let version = || cache.get_versioned("key").unwrap().1;
    let mut versions: Vec<Version> = Vec::new();
    let mut check = |what: &str| {
        assert!(!versions.contains(&version()), "{what}");
        versions.push(version());
    };
    let changes: [(&str, &dyn Fn()); 6] = [
        ("insert", &|| cache.insert("key", "1").unwrap()),
        ("the same value", &|| cache.insert("key", "1").unwrap()),
        ("counter", &|| assert_eq!(cache.increment("key", 1), Ok(2))),
        ("update", &|| drop(cache.update("key", |_| Update::Replace("1")).unwrap())),
        ("large", &|| cache.insert("key", vec![0; 300_000]).unwrap()),
        ("removed and stored", &|| {
            cache.remove("key");
            cache.insert("key", "1").unwrap();
        }),
    ];
    for (what, change) in changes {
        change();
        check(what);
    }
    // Reads and new expiries do not change the version.
    cache.touch("key", Some(Duration::from_secs(9))).unwrap();
    assert_eq!(Some(&version()), versions.last());
}

#[test]
fn a_swap_tells_a_changed_value_from_a_missing_one() {
    let cache = versioned();
    cache.insert("key", "old").unwrap();
    let (_, old) = cache.get_versioned("key").unwrap();
    let options = InsertOptions::new().ttl(Duration::from_secs(50)).tag("tag");
    let SwapOutcome::Stored(new) =
        cache.compare_and_swap_with("key", old, vec![3; 300_000], options).unwrap()
    else {
        panic!("nothing has changed the value")
    };
    assert_eq!(cache.get_versioned("key"), Some((vec![3; 300_000].into(), new)));
    assert!(left(&cache, "key") <= 50.0);
    assert_eq!(cache.compare_and_swap("key", old, "late"), Ok(SwapOutcome::Changed));
    let too_large = cache.compare_and_swap("key", new, vec![0; 3 << 20]);
    assert_eq!(too_large, Err(SwapError::Store(InsertError::TooLarge)));
    assert_eq!(cache.get_versioned("key").unwrap().1, new, "a refused swap changes nothing");
    cache.drop_tag("tag");
    assert_eq!(cache.compare_and_swap("key", new, "late"), Ok(SwapOutcome::Missing));
    assert_eq!(cache.stats().insertions, 2, "refused swaps store nothing");
    let key_length = cache.compare_and_swap("", new, "late");
    assert_eq!(key_length, Err(SwapError::Store(InsertError::KeyLength)));
}

#[test]
fn a_cache_without_versions_refuses_swaps() {
    let cache = cache();
    cache.insert("key", "old").unwrap();
    let (value, version) = cache.get_versioned("key").unwrap();
    assert_eq!(value, "old");
    assert_eq!(cache.compare_and_swap("key", version, "new"), Err(SwapError::NoVersions));
    let words: Typed<str, String> = Typed::new(cache);
    let refused = words.compare_and_swap("key", version, &"new".into());
    assert!(matches!(refused, Err(SwapError::NoVersions)));
}

#[test]
fn typed_values_have_versions_and_expiries() {
    let words: Typed<str, String> = Typed::new(versioned());
    words.insert("key", &"old".into()).unwrap();
    let (old, version) = words.get_versioned("key").unwrap();
    assert_eq!(old, "old");
    let swapped = words.compare_and_swap("key", version, &"new".into()).unwrap();
    assert_eq!(words.get_versioned("key").map(|(_, now)| SwapOutcome::Stored(now)), Some(swapped));
    assert_eq!(words.compare_and_swap("key", version, &"late".into()), Ok(SwapOutcome::Changed));
    assert_eq!(words.ttl("key"), Some(Ttl::Unlimited));
    assert_eq!(words.touch("key", Some(Duration::from_secs(10))), Ok(true));
    assert!(matches!(words.ttl("key"), Some(Ttl::Left(_))));
    assert_eq!((words.ttl("none"), words.touch("none", None)), (None, Ok(false)));
    let long = "k".repeat(2000);
    let refused = words.update(&long, |_| Update::Replace(String::new()));
    assert_eq!(refused, Err(TypedError::Insert(InsertError::KeyLength)));
}

#[test]
fn a_touch_sets_the_time_that_is_left() {
    let cache = cache();
    cache.insert("key", "value").unwrap();
    assert_eq!(cache.ttl("key"), Some(Ttl::Unlimited));
    for secs in [100, 10, 10_000] {
        assert_eq!(cache.touch("key", Some(Duration::from_secs(secs))), Ok(true));
        let secs = secs as f64;
        assert!((secs - 30.0..=secs).contains(&left(&cache, "key")), "{secs}");
    }
    assert_eq!(cache.touch("key", None), Ok(true));
    assert_eq!(cache.ttl("key"), Some(Ttl::Unlimited));
    assert_eq!(cache.get("key").unwrap(), "value");
    assert_eq!((cache.touch("none", None), cache.ttl("none")), (Ok(false), None));
    assert_eq!((cache.touch("", None), cache.ttl([0; 2000])), (Ok(false), None));
    let before = cache.stats();
    cache.touch("key", Some(Duration::ZERO)).unwrap();
    let start_time = std::time::Instant::now();
    while cache.ttl("key").is_some() {
        assert!(start_time.elapsed() < Duration::from_secs(30), "the value expires");
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!((cache.stats().hits, cache.stats().misses), (before.hits, before.misses));
}

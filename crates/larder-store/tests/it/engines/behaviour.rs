//! The behaviour that the trait requires, with one test for each requirement.

use super::common::*;
use larder_store::{
    Access, Attributes, Batches, Change, Expiry, KEY_LEN_MAX, Lookup, Maintenance, NewCas, NewTags,
    NewValue, Now, Refusal, Updates, Uploads, Value,
};

for_every_engine! {
    cas_numbers_count_up_from_one
    a_fresh_cas_is_higher_than_one_a_client_chose
    the_highest_cas_can_be_replaced
    without_cas_every_number_is_zero
    an_item_is_gone_in_the_second_it_names
    an_item_is_gone_in_the_millisecond_it_names
    an_item_stored_with_its_time_past_is_not_there
    maintenance_removes_expired_items
    items_stored_after_a_flush_in_the_same_second_stay
    a_delayed_flush_removes_items_stored_in_between
    only_the_latest_flush_is_pending
    an_immediate_flush_replaces_a_pending_one
    a_read_is_seen_by_the_next
    an_untracked_read_leaves_no_trace
    an_amendment_keeps_the_value
    a_lease_outlives_its_item
    an_unused_upload_stays_with_the_caller
    an_upload_does_not_take_more_than_was_announced
    items_that_cannot_fit_are_too_large
    the_prefix_of_a_key_is_another_key
    the_longest_key_is_found_and_a_longer_one_is_refused
    statistics_follow_the_items
    items_in_place_are_not_counted_as_stored
    statistics_are_the_same_from_every_handle
}

for_evicting_engines! {
    a_full_cache_evicts_and_counts_it
}

for_engines!(a_full_cache_refuses_and_keeps_its_items: dashmap segment);

fn engine<S: Subject>() -> S::Handle {
    let mut engine = S::new(&Setup::default()).handle();
    engine.begin_batch(START);
    engine
}

fn cas_numbers_count_up_from_one<S: Subject>() {
    let mut engine = engine::<S>();
    assert_eq!(set(&mut engine, b"a", b"1"), Ok(1));
    assert_eq!(set(&mut engine, b"b", b"1"), Ok(2));
    assert_eq!(set(&mut engine, b"a", b"2"), Ok(3));
    assert_eq!(amend(&mut engine, b"a", Attributes::default(), NewCas::Same), 3);
    assert_eq!(amend(&mut engine, b"a", Attributes::default(), NewCas::Fresh), 4);
    assert_eq!(set(&mut engine, b"c", b"1"), Ok(5));
}

fn a_fresh_cas_is_higher_than_one_a_client_chose<S: Subject>() {
    let mut engine = engine::<S>();
    let (value, attributes) = (NewValue::Bytes(b"1"), Attributes::default());
    for chosen in [7, 1 << 20, 1 << 40] {
        let kept = put(&mut engine, b"a", value, attributes, NewCas::Exactly(chosen));
        assert_eq!(kept, Ok(chosen));
        let fresh = set(&mut engine, b"a", b"2").unwrap();
        assert!(fresh > chosen, "{fresh} after {chosen}");
        assert!(set(&mut engine, b"b", b"2").unwrap() > fresh);
    }
}

fn the_highest_cas_can_be_replaced<S: Subject>() {
    let mut engine = engine::<S>();
    let (value, attributes) = (NewValue::Bytes(b"1"), Attributes::default());
    for highest in [u64::MAX, u64::MAX - 1] {
        put(&mut engine, b"a", value, attributes, NewCas::Exactly(highest)).unwrap();
        let fresh = set(&mut engine, b"a", b"2").unwrap();
        assert!(fresh != 0 && fresh != highest, "{fresh}");
        let others = set(&mut engine, b"b", b"2").unwrap();
        assert!(others != 0 && others != fresh, "{others}");
    }
}

fn without_cas_every_number_is_zero<S: Subject>() {
    let mut engine = S::new(&Setup { cas: false, ..Setup::default() }).handle();
    engine.begin_batch(START);
    assert_eq!(set(&mut engine, b"a", b"1"), Ok(0));
    let exactly = NewCas::Exactly(9);
    assert_eq!(
        put(&mut engine, b"b", NewValue::Bytes(b"1"), Attributes::default(), exactly),
        Ok(0)
    );
    let Lookup::Hit(seen) = see(&mut engine, b"b", Access::Tracked) else {
        panic!("the item was stored")
    };
    assert_eq!(seen.cas, 0);
}

fn an_item_is_gone_in_the_second_it_names<S: Subject>() {
    let mut engine = engine::<S>();
    for key in [b"read", b"kept", b"late"] {
        set_with(&mut engine, key, b"1", expiring(after(10))).unwrap();
    }
    engine.end_batch();
    engine.begin_batch(after(9));
    assert!(get(&mut engine, b"read").is_some());
    engine.end_batch();
    engine.begin_batch(after(10));
    assert_eq!(see(&mut engine, b"read", Access::Tracked), Lookup::Expired);
    let key = hashed(&engine, b"kept");
    let shown =
        engine.update(key, &mut None, |found| (Change::Keep, matches!(found, Lookup::Expired)));
    assert!(shown.unwrap().result, "an update gets `Expired`, too");
    engine.end_batch();
    engine.begin_batch(after(100_000));
    assert_eq!(see(&mut engine, b"late", Access::Untracked), Lookup::Expired);
}

fn an_item_is_gone_in_the_millisecond_it_names<S: Subject>() {
    let mut engine = engine::<S>();
    let at = |secs, millis| Now { secs: after(secs), millis, ahead: 0 };
    let expiry = Expiry::at_millis(at(9, 750).in_millis());
    assert_eq!(expiry.second(), Some(after(10)));
    let attributes = Attributes { expiry, ..Attributes::default() };
    for key in [&b"a"[..], b"crawled"] {
        set_with(&mut engine, key, b"1", attributes).unwrap();
    }
    // The first of these items expires later in the same second, and the second one at the end of
    // the second.
    set_with(&mut engine, b"b", b"1", attributes).unwrap();
    let later = Expiry::at_millis(at(9, 900).in_millis());
    amend(&mut engine, b"b", Attributes { expiry: later, ..attributes }, NewCas::Same);
    set_with(&mut engine, b"c", b"1", attributes).unwrap();
    amend(&mut engine, b"c", expiring(after(10)), NewCas::Same);
    engine.end_batch();
    engine.begin_batch(at(9, 749));
    let Lookup::Hit(seen) = see(&mut engine, b"a", Access::Tracked) else {
        panic!("the item is live")
    };
    assert_eq!(seen.attributes.expiry, expiry);
    assert_eq!((expiry.left(at(9, 749)), expiry.left_millis(at(8, 700))), (Some(1), Some(1050)));
    engine.end_batch();
    engine.begin_batch(at(9, 750));
    assert_eq!(see(&mut engine, b"a", Access::Tracked), Lookup::Expired);
    assert!(get(&mut engine, b"b").is_some() && get(&mut engine, b"c").is_some());
    engine.end_batch();
    engine.begin_batch(at(9, 900));
    assert_eq!((get(&mut engine, b"b"), get(&mut engine, b"c").is_some()), (None, true));
    engine.end_batch();
    tidy(&mut engine, after(10));
    engine.begin_batch(after(10));
    assert_eq!(get(&mut engine, b"c"), None);
    assert_eq!(engine.gauges().items, 0, "maintenance removes expired items");
}

fn an_item_stored_with_its_time_past_is_not_there<S: Subject>() {
    let mut engine = engine::<S>();
    set(&mut engine, b"a", b"1").unwrap();
    for past in [START, after(0), larder_store::Seconds(1), larder_store::Seconds(0)] {
        assert!(set_with(&mut engine, b"a", b"2", expiring(past)).is_ok());
        assert_eq!(get(&mut engine, b"a"), None, "{past:?}");
    }
    set(&mut engine, b"a", b"3").unwrap();
    amend(&mut engine, b"a", expiring(START), NewCas::Same);
    assert_eq!(get(&mut engine, b"a"), None);
}

fn maintenance_removes_expired_items<S: Subject>() {
    let mut engine = engine::<S>();
    // These items do not all fit into open segments, so most of them are in sealed segments.
    for i in 0..20_000_u32 {
        let attributes = if i % 2 == 0 { expiring(after(60)) } else { Attributes::default() };
        set_with(&mut engine, &i.to_le_bytes(), &[7; 500], attributes).unwrap();
    }
    engine.end_batch();
    tidy(&mut engine, after(1));
    assert_eq!(engine.gauges().items, 20_000);
    tidy(&mut engine, after(60));
    let left = engine.gauges().items;
    assert!((10_000..10_500).contains(&left), "{left} left");
    let reclaimed =
        engine.gauges().classes.iter().map(|class| class.crawler_reclaimed).sum::<u64>();
    assert_eq!(left + reclaimed, 20_000_u64);
}

fn items_stored_after_a_flush_in_the_same_second_stay<S: Subject>() {
    let mut engine = engine::<S>();
    set(&mut engine, b"a", b"1").unwrap();
    engine.flush(None);
    assert_eq!(see(&mut engine, b"a", Access::Tracked), Lookup::Flushed);
    set(&mut engine, b"a", b"2").unwrap();
    set(&mut engine, b"b", b"3").unwrap();
    assert_eq!(get(&mut engine, b"a").unwrap(), b"2");
    assert_eq!(get(&mut engine, b"b").unwrap(), b"3");
    engine.flush(None);
    assert_eq!(get(&mut engine, b"a"), None);
    assert_eq!(get(&mut engine, b"b"), None);
}

fn a_delayed_flush_removes_items_stored_in_between<S: Subject>() {
    let mut engine = engine::<S>();
    set(&mut engine, b"before", b"1").unwrap();
    engine.flush(Some(after(5)));
    engine.end_batch();
    engine.begin_batch(after(4));
    set(&mut engine, b"between", b"2").unwrap();
    assert!(get(&mut engine, b"before").is_some());
    engine.end_batch();
    // No batch starts in the second of the flush.
    engine.begin_batch(after(7));
    set(&mut engine, b"after", b"3").unwrap();
    assert_eq!(see(&mut engine, b"before", Access::Tracked), Lookup::Flushed);
    assert_eq!(see(&mut engine, b"between", Access::Tracked), Lookup::Flushed);
    assert!(get(&mut engine, b"after").is_some());
    engine.end_batch();
    engine.begin_batch(after(8));
    assert!(get(&mut engine, b"after").is_some(), "the flush takes effect only once");
}

fn only_the_latest_flush_is_pending<S: Subject>() {
    let mut engine = engine::<S>();
    set(&mut engine, b"a", b"1").unwrap();
    engine.flush(Some(after(5)));
    engine.flush(Some(after(10)));
    engine.end_batch();
    engine.begin_batch(after(9));
    assert!(get(&mut engine, b"a").is_some());
    engine.end_batch();
    engine.begin_batch(after(10));
    assert_eq!(get(&mut engine, b"a"), None);
}

fn an_immediate_flush_replaces_a_pending_one<S: Subject>() {
    let mut engine = engine::<S>();
    engine.flush(Some(after(5)));
    engine.flush(None);
    set(&mut engine, b"a", b"1").unwrap();
    engine.end_batch();
    engine.begin_batch(after(5));
    assert!(get(&mut engine, b"a").is_some());
}

fn a_read_is_seen_by_the_next<S: Subject>() {
    let mut engine = engine::<S>();
    set(&mut engine, b"a", b"1").unwrap();
    engine.end_batch();
    engine.begin_batch(after(3));
    let Lookup::Hit(first) = see(&mut engine, b"a", Access::Tracked) else { panic!("stored") };
    assert_eq!((first.fetched, first.accessed), (false, START));
    engine.end_batch();
    engine.begin_batch(after(5));
    let Lookup::Hit(second) = see(&mut engine, b"a", Access::Tracked) else { panic!("stored") };
    assert_eq!((second.fetched, second.accessed), (true, after(3)));
    set(&mut engine, b"a", b"2").unwrap();
    let Lookup::Hit(new) = see(&mut engine, b"a", Access::Tracked) else { panic!("stored") };
    assert_eq!((new.fetched, new.accessed), (false, after(5)));
}

fn an_untracked_read_leaves_no_trace<S: Subject>() {
    let mut engine = engine::<S>();
    set(&mut engine, b"a", b"1").unwrap();
    engine.end_batch();
    engine.begin_batch(after(3));
    let first = see(&mut engine, b"a", Access::Untracked);
    assert_eq!(see(&mut engine, b"a", Access::Untracked), first);
    let Lookup::Hit(seen) = first else { panic!("stored") };
    assert_eq!((seen.fetched, seen.accessed), (false, START));
}

fn an_amendment_keeps_the_value<S: Subject>() {
    let mut engine = engine::<S>();
    for len in [0, 1, 500, 300_000] {
        let value = pattern(1, len);
        set(&mut engine, b"a", &value).unwrap();
        // The stored record may have no room for these attributes.
        let attributes = Attributes {
            client_flags: u32::MAX,
            expiry: Expiry::At(after(50_000_000)),
            stale: true,
            won: true,
            binary_key: true,
        };
        let cas = amend(&mut engine, b"a", attributes, NewCas::Exactly(99));
        assert_eq!(cas, 99);
        let Lookup::Hit(seen) = see(&mut engine, b"a", Access::Untracked) else { panic!("{len}") };
        assert_eq!((seen.attributes, seen.cas, seen.fetched), (attributes, 99, false));
        assert!(seen.value == value, "{len}");
        amend(&mut engine, b"a", Attributes::default(), NewCas::Same);
        let Lookup::Hit(seen) = see(&mut engine, b"a", Access::Untracked) else { panic!("{len}") };
        assert_eq!((seen.attributes, seen.cas), (Attributes::default(), 99));
    }
    assert_eq!(amend(&mut engine, b"none", Attributes::default(), NewCas::Fresh), 0);
    assert_eq!(get(&mut engine, b"none"), None, "amending a missing key makes no item");
}

fn a_lease_outlives_its_item<S: Subject>() {
    let mut engine = engine::<S>();
    let value = pattern(3, 1 << 20);
    set(&mut engine, b"a", &value).unwrap();
    let key = hashed(&engine, b"a");
    let mut lease = None;
    let take = |found: Lookup<&larder_store::Item<'_, _>>| {
        if let Lookup::Hit(larder_store::Item { value: Value::Large(large), .. }) = found {
            lease = Some(Clone::clone(large));
        }
        (Change::Remove, ())
    };
    engine.update(key, &mut None, take).unwrap();
    engine.end_batch();
    for i in 0..100 {
        engine.begin_batch(START);
        set(&mut engine, b"b", &pattern(i, 1 << 20)).unwrap();
        engine.end_batch();
    }
    assert!(read_lease(&lease.expect("a megabyte is large")) == value);
}

fn an_unused_upload_stays_with_the_caller<S: Subject>() {
    let mut engine = engine::<S>();
    let value = pattern(4, 200_000);
    let mut upload = Some(engine.upload(value.len()).unwrap());
    for piece in value.chunks(7_000) {
        engine.extend(upload.as_mut().unwrap(), piece).unwrap();
    }
    let key = hashed(&engine, b"a");
    engine.update(key, &mut upload, |_| (Change::Keep, ())).unwrap();
    assert!(upload.is_some());
    let put = || Change::Put {
        attributes: Attributes::default(),
        cas: NewCas::Fresh,
        value: NewValue::Uploaded,
        fetched: false,
        tags: NewTags::None,
    };
    engine.update(key, &mut upload, |_| (put(), ())).unwrap();
    assert!(upload.is_none());
    assert!(get(&mut engine, b"a").unwrap() == value);
}

fn an_upload_does_not_take_more_than_was_announced<S: Subject>() {
    let mut engine = engine::<S>();
    let mut upload = engine.upload(100_000).unwrap();
    engine.extend(&mut upload, &[1; 99_999]).unwrap();
    assert_eq!(engine.extend(&mut upload, &[1; 2]), Err(Refusal::TooLarge));
}

fn items_that_cannot_fit_are_too_large<S: Subject>() {
    let mut engine = engine::<S>();
    let limit_bytes = Setup::default().limit_bytes;
    assert!(matches!(engine.upload(limit_bytes + 1), Err(Refusal::TooLarge)));
    set(&mut engine, b"a", b"1").unwrap();
    let huge = vec![0; limit_bytes + 1];
    assert_eq!(set(&mut engine, b"a", &huge), Err(Refusal::TooLarge));
    assert_eq!(get(&mut engine, b"a").unwrap(), b"1", "the old item is unchanged");
}

fn the_longest_key_is_found_and_a_longer_one_is_refused<S: Subject>() {
    let mut engine = engine::<S>();
    let key = [b'k'; KEY_LEN_MAX + 1];
    for len in [KEY_LEN_MAX - 1, KEY_LEN_MAX, 255, 256] {
        set(&mut engine, &key[..len], len.to_string().as_bytes()).unwrap();
    }
    assert_eq!(set(&mut engine, &key, b"1"), Err(Refusal::TooLarge));
    for len in [KEY_LEN_MAX - 1, KEY_LEN_MAX, 255, 256] {
        assert_eq!(get(&mut engine, &key[..len]).unwrap(), len.to_string().as_bytes());
    }
    assert_eq!(get(&mut engine, &key), None);
}

fn the_prefix_of_a_key_is_another_key<S: Subject>() {
    let mut engine = engine::<S>();
    let long = [b'k'; 250];
    for len in 1..=250 {
        set(&mut engine, &long[..len], &[u8::try_from(len).unwrap()]).unwrap();
    }
    for len in 1..=250 {
        assert_eq!(get(&mut engine, &long[..len]).unwrap(), [u8::try_from(len).unwrap()]);
    }
    // Checks that a lookup does not read the first byte of the value as a part of the key.
    set(&mut engine, b"ab", b"c").unwrap();
    assert_eq!(get(&mut engine, b"abc"), None);
}

fn statistics_follow_the_items<S: Subject>() {
    let mut engine = engine::<S>();
    let classes = classes();
    set(&mut engine, b"small", b"1").unwrap();
    set_with(&mut engine, b"flags", b"1", Attributes { client_flags: 1, ..Default::default() })
        .unwrap();
    set(&mut engine, b"middle", &[0; 1000]).unwrap();
    set(&mut engine, b"large", &[0; 200_000]).unwrap();
    let sizes = [OVERHEAD + 6, OVERHEAD + 6 + 4, OVERHEAD + 1006, OVERHEAD + 200_005];
    let gauges = engine.gauges();
    assert_eq!((gauges.items, gauges.items_total), (4, 4));
    assert_eq!(gauges.bytes, sizes.iter().sum::<usize>() as u64);
    for size in sizes {
        let class = classes.class_of(size);
        let those = sizes.iter().filter(|&&size| classes.class_of(size) == class);
        assert_eq!(gauges.classes[class].items, those.clone().count() as u64);
        assert_eq!(gauges.classes[class].bytes, those.sum::<usize>() as u64);
    }
    remove(&mut engine, b"large");
    set(&mut engine, b"middle", b"1").unwrap();
    assert_eq!(engine.gauges().bytes, (3 * (OVERHEAD + 6) + 4 + 1) as u64);
    engine.reset_counters();
    let gauges = engine.gauges();
    assert_eq!((gauges.items, gauges.items_total), (3, 0));
    for key in ["small", "flags", "middle"] {
        remove(&mut engine, key.as_bytes());
    }
    let gauges = engine.gauges();
    assert_eq!((gauges.items, gauges.bytes), (0, 0));
}

/// Changing an expiry, or a number without changing its length, does not count as storing an item.
/// memcached does the same.
fn items_in_place_are_not_counted_as_stored<S: Subject>() {
    let mut engine = engine::<S>();
    let stored = |engine: &mut S::Handle| engine.gauges().items_total;
    let put_number = |engine: &mut S::Handle, text: &[u8]| {
        let mut digits = [0; 20];
        digits[..text.len()].copy_from_slice(text);
        let (len, width) = (u8::try_from(text.len()).unwrap(), text.len());
        let value = NewValue::Number { digits, len, width };
        put(engine, b"n", value, Attributes::default(), NewCas::Fresh).unwrap();
    };
    put_number(&mut engine, b"8");
    put_number(&mut engine, b"9");
    assert_eq!(stored(&mut engine), 1);
    put_number(&mut engine, b"10");
    assert_eq!(stored(&mut engine), 2);
    set(&mut engine, b"n", b"11").unwrap();
    assert_eq!(stored(&mut engine), 3);
    for expiry in [Expiry::At(after(100)), Expiry::At(after(1_000_000)), Expiry::Never] {
        amend(&mut engine, b"n", Attributes { expiry, ..Attributes::default() }, NewCas::Same);
        assert_eq!(stored(&mut engine), 3, "{expiry:?}");
    }
}

fn statistics_are_the_same_from_every_handle<S: Subject>() {
    let cache = S::new(&Setup { threads: 2, ..Setup::default() });
    let mut one = cache.handle();
    let mut two = cache.handle();
    set(&mut one, b"a", b"1").unwrap();
    set(&mut two, b"b", b"1").unwrap();
    remove(&mut two, b"a");
    assert_eq!(one.gauges(), two.gauges());
    assert_eq!((one.gauges().items, one.gauges().items_total), (1, 2));
    drop(two);
    assert_eq!((one.gauges().items, one.gauges().items_total), (1, 2));
}

fn a_full_cache_evicts_and_counts_it<S: Subject>() {
    let mut engine = S::new(&Setup { limit_bytes: 8 << 20, ..Setup::default() }).handle();
    for i in 0..30_000_u32 {
        engine.begin_batch(START);
        set(&mut engine, &i.to_le_bytes(), &[7; 1000]).unwrap();
        engine.end_batch();
    }
    tidy(&mut engine, START);
    let gauges = engine.gauges();
    assert!((4000..8400).contains(&gauges.items), "{} items", gauges.items);
    assert_eq!(gauges.items + gauges.evictions, 30_000);
    assert!(gauges.used_bytes <= 8 << 20);
    let live = (0..30_000_u32).filter(|i| get(&mut engine, &i.to_le_bytes()).is_some()).count();
    assert_eq!(live as u64, gauges.items);
}

fn a_full_cache_refuses_and_keeps_its_items<S: Subject>() {
    let setup = Setup { limit_bytes: 4 << 20, evict: false, ..Setup::default() };
    let mut engine = S::new(&setup).handle();
    engine.begin_batch(START);
    let key = |i: u32| i.to_le_bytes();
    let stored =
        (0..100_000).take_while(|&i| set(&mut engine, &key(i), &[7; 1000]).is_ok()).count();
    let stored = u32::try_from(stored).unwrap();
    assert!((2000..4200).contains(&stored), "{stored}");
    assert_eq!(set(&mut engine, b"one more", &[7; 1000]), Err(Refusal::OutOfMemory));
    assert_eq!(set(&mut engine, &key(0), &[7; 100_000]), Err(Refusal::OutOfMemory));
    assert!((0..stored).all(|i| get(&mut engine, &key(i)).is_some_and(|v| v == [7; 1000])));
    let refused = engine.gauges().classes.iter().map(|class| class.out_of_memory).sum::<u64>();
    assert_eq!(refused, 3);
    (0..stored / 2).for_each(|i| remove(&mut engine, &key(i)));
    engine.end_batch();
    tidy(&mut engine, START);
    engine.begin_batch(START);
    assert!(set(&mut engine, b"one more", &[7; 1000]).is_ok(), "the removal has made room");
}

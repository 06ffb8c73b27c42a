//! CAS ranges of a cluster: fresh values are in the range of the leader, and stores fail when the
//! range is used up.

use super::common::*;
use larder_store::cache::CacheControl;
use larder_store::{Attributes, Batches, NewCas, NewValue, Refusal};
use std::collections::HashSet;

for_every_engine! {
    each_value_of_a_range_is_drawn_once
    stores_fail_at_the_end_and_change_nothing
    values_chosen_by_clients_are_not_followed
}

fn each_value_of_a_range_is_drawn_once<S: Subject + CacheControl>() {
    let cache = S::new(&Setup { threads: 2, ..Setup::default() });
    let mut handles = [cache.handle(), cache.handle()];
    handles.iter_mut().for_each(|engine| engine.begin_batch(START));
    let mut drawn = HashSet::new();
    for (from, to) in [(100, 200), (100, 250), (1000, 1040)] {
        cache.set_cas_range(from..to);
        assert!(cache.next_cas() >= from);
        loop {
            let results = handles.each_mut().map(|engine| set(engine, b"a", b"1"));
            if results == [Err(Refusal::NoCas); 2] {
                break;
            }
            for cas in results.iter().flatten() {
                assert!(drawn.insert(*cas) && *cas < to, "{cas} is drawn twice, or not below {to}");
            }
        }
        assert_eq!(cache.next_cas(), to);
    }
    let writes = drawn.len();
    handles.iter_mut().for_each(|engine| assert_eq!(set(engine, b"a", b"1"), Err(Refusal::NoCas)));
    cache.set_cas_range(0..2000);
    for number in 0..100 {
        assert!(drawn.insert(set(&mut handles[number % 2], b"a", b"1").unwrap()));
    }
    assert_eq!(drawn.len(), writes + 100);
}

fn stores_fail_at_the_end_and_change_nothing<S: Subject + CacheControl>() {
    let cache = S::new(&Setup::default());
    let mut engine = cache.handle();
    engine.begin_batch(START);
    set(&mut engine, b"a", b"1").unwrap();
    // Use up the block that the handle took earlier.
    cache.set_cas_range(1..1);
    while set(&mut engine, b"rest", b"1").is_ok() {}
    assert_eq!(set(&mut engine, b"a", b"2"), Err(Refusal::NoCas));
    assert_eq!(set(&mut engine, b"new", b"2"), Err(Refusal::NoCas));
    let appended =
        put(&mut engine, b"a", NewValue::Append(b"2"), Attributes::default(), NewCas::Fresh);
    assert_eq!(appended, Err(Refusal::NoCas));
    assert_eq!(get(&mut engine, b"a").as_deref(), Some(&b"1"[..]));
    assert_eq!(get(&mut engine, b"new"), None);
    // Other changes need no fresh value.
    let mut put =
        |key, cas| put(&mut engine, key, NewValue::Bytes(b"3"), Attributes::default(), cas);
    assert_eq!(put(b"b", NewCas::Exactly(7)), Ok(7));
    assert_eq!(put(b"b", NewCas::Same), Ok(7));
    amend(&mut engine, b"a", expiring(after(9)), NewCas::Same);
    remove(&mut engine, b"a");
    cache.set_cas_range(500..600);
    assert_eq!(set(&mut engine, b"a", b"2"), Ok(500));
}

fn values_chosen_by_clients_are_not_followed<S: Subject + CacheControl>() {
    let cache = S::new(&Setup::default());
    let mut engine = cache.handle();
    engine.begin_batch(START);
    cache.set_cas_range(10..100);
    for (expected, chosen) in (10..).zip([50, 101, 1 << 40, 1 << 60, u64::MAX]) {
        let value = NewValue::Bytes(b"1");
        put(&mut engine, b"a", value, Attributes::default(), NewCas::Exactly(chosen)).unwrap();
        assert_eq!(set(&mut engine, b"a", b"2"), Ok(expected), "after {chosen}");
    }
}

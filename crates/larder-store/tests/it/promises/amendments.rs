//! Attribute changes are atomic: readers see no mixture of old and new attributes.

use super::common::*;
use larder_store::segment::{Cache, Handle};
use larder_store::{
    Access, Attributes, Batches, Change, Expiry, Lookup, Lookups, NewCas, NewValue, Updates,
    WalkState, Walks,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

const KEY: &[u8] = b"amended";
const TIME: Duration = Duration::from_secs(1);

/// Returns the attributes that belong to a CAS.
fn attributes(cas: u64) -> Attributes {
    let phase = u32::try_from(cas % 4).unwrap();
    Attributes {
        client_flags: phase + 1,
        expiry: Expiry::At(after(1000 + phase)),
        stale: phase % 2 == 1,
        won: phase / 2 == 1,
        binary_key: false,
    }
}

/// Makes one thread change the item repeatedly, while others check it.
fn check(
    cache: &Cache,
    write: impl Fn(&mut Handle, u64) + Sync,
    read: impl Fn(&mut Handle) + Sync,
) {
    let over = AtomicBool::new(false);
    write(&mut cache.handle(), 4);
    thread::scope(|scope| {
        let (write, read, over) = (&write, &read, &over);
        scope.spawn(move || {
            let mut engine = cache.handle();
            engine.begin_batch(START);
            for cas in 5.. {
                write(&mut engine, cas);
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        for _ in 0..2 {
            scope.spawn(move || {
                let _end = EndOnDrop(over);
                let mut engine = cache.handle();
                let end = Instant::now() + TIME;
                while !over.load(Ordering::Relaxed) && Instant::now() < end {
                    engine.begin_batch(START);
                    (0..100).for_each(|_| read(&mut engine));
                    engine.end_batch();
                }
            });
        }
    });
}

struct EndOnDrop<'t>(&'t AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn amend_to(engine: &mut Handle, cas: u64) {
    if cas == 4 {
        set_with(engine, KEY, b"value", attributes(cas), NewCas::Exactly(cas)).unwrap();
    }
    amend(engine, KEY, attributes(cas), NewCas::Exactly(cas));
}

fn read_item(engine: &mut Handle) {
    let key = hashed(engine, KEY);
    let seen = engine.get(key, Access::Untracked, |item| (item.attributes, item.cas));
    let Lookup::Hit((seen, cas)) = seen else { panic!("the item always exists: {seen:?}") };
    assert_eq!(seen, attributes(cas), "with CAS {cas}");
}

#[test]
fn a_reader_sees_attributes_and_cas_of_one_moment() {
    check(&cache(4 * MIB), amend_to, read_item);
}

#[test]
fn a_plain_lookup_sees_flags_and_cas_of_one_moment() {
    check(&cache(4 * MIB), amend_to, |engine| {
        let key = hashed(engine, KEY);
        let seen = engine.content(key, |content| (content.client_flags, content.cas));
        let Lookup::Hit((flags, cas)) = seen else { panic!("the item always exists: {seen:?}") };
        assert_eq!(flags, attributes(cas).client_flags, "with CAS {cas}");
    });
}

#[test]
fn a_walk_sees_attributes_and_cas_of_one_moment() {
    check(&cache(MIB), amend_to, |engine| {
        let mut walk = engine.walk();
        let mut step = || {
            engine.continue_walk(&mut walk, 100, Waker::noop(), |key, item| {
                assert_eq!(key, KEY);
                assert_eq!(item.attributes, attributes(item.cas), "with CAS {}", item.cas);
            })
        };
        while step() == WalkState::More {}
    });
}

/// Changes of the attributes in place alternate with new values.
#[test]
fn a_reader_sees_value_attributes_and_cas_of_one_moment() {
    let write = |engine: &mut Handle, cas: u64| {
        // An odd CAS belongs to an amendment. The item then keeps the value that was stored with
        // the previous CAS.
        if cas.is_multiple_of(2) {
            let value = cas.to_le_bytes();
            set_with(engine, KEY, &value, attributes(cas), NewCas::Exactly(cas)).unwrap();
        } else {
            amend(engine, KEY, attributes(cas), NewCas::Exactly(cas));
        }
    };
    let read = |engine: &mut Handle| {
        let key = hashed(engine, KEY);
        let see = |item: &larder_store::Item<'_, _>| (item.attributes, item.cas, copied(item));
        let seen = engine.get(key, Access::Untracked, see);
        let Lookup::Hit((seen, cas, value)) = seen else { panic!("the item always exists") };
        assert_eq!((seen, value), (attributes(cas), (cas & !1).to_le_bytes().into()), "CAS {cas}");
    };
    check(&cache(16 * MIB), write, read);
}

/// An item is alternately stale with an odd CAS and fresh with an even CAS.
#[test]
fn a_stale_item_and_its_fresh_cas_appear_together() {
    let write = |engine: &mut Handle, step: u64| {
        let stale = step % 2 == 1;
        let key = hashed(engine, KEY);
        if step == 4 {
            set_with(engine, KEY, b"value", Attributes::default(), NewCas::Exactly(2)).unwrap();
        }
        // Each CAS is higher than the last, and odd if and only if the item is stale.
        let amended = engine.update(key, &mut None, |found| {
            let Lookup::Hit(item) = found else { panic!("the item always exists") };
            let cas = (item.cas / 2 + 1) * 2 + u64::from(stale);
            let attributes = Attributes { stale, ..Attributes::default() };
            let (cas, access) = (NewCas::Exactly(cas), Access::Untracked);
            (Change::SetAttributes { attributes, cas, access }, ())
        });
        amended.unwrap();
    };
    check(&cache(4 * MIB), write, |engine| {
        let key = hashed(engine, KEY);
        let see = |item: &larder_store::Item<'_, _>| (item.attributes.stale, item.cas);
        let Lookup::Hit((stale, cas)) = engine.get(key, Access::Tracked, see) else {
            panic!("the item always exists")
        };
        assert_eq!(stale, cas % 2 == 1, "with CAS {cas}");
    });
}

/// An update reads the item under a lock, so its closure always receives a consistent item.
#[test]
fn an_update_is_shown_attributes_and_cas_of_one_moment() {
    check(&cache(4 * MIB), amend_to, |engine| {
        let key = hashed(engine, KEY);
        let shown = engine.update(key, &mut None, |found| {
            let Lookup::Hit(item) = found else { panic!("the item always exists") };
            (Change::Keep, (item.attributes, item.cas))
        });
        let (seen, cas) = shown.unwrap().result;
        assert_eq!(seen, attributes(cas), "with CAS {cas}");
    });
}

/// Appending rewrites the item: the attributes change together with the value.
#[test]
fn an_item_that_grows_is_never_seen_half_changed() {
    let write = |engine: &mut Handle, cas: u64| {
        let value =
            if cas % 64 == 4 { NewValue::Bytes(&[1; 4]) } else { NewValue::Append(&[1; 4]) };
        change(engine, KEY, || store(value, attributes(cas), NewCas::Exactly(cas))).unwrap();
    };
    check(&cache(16 * MIB), write, |engine| {
        let key = hashed(engine, KEY);
        let see = |item: &larder_store::Item<'_, _>| (item.attributes, item.cas, item.value.len());
        let Lookup::Hit((seen, cas, len)) = engine.get(key, Access::Tracked, see) else {
            panic!("the item always exists")
        };
        let len = u64::try_from(len).unwrap();
        assert_eq!((seen, len), (attributes(cas), ((cas - 4) % 64 + 1) * 4), "with CAS {cas}");
    });
}

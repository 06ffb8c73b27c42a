//! Reports of changes to an observer.

use super::common::*;
use larder_store::cache::CacheControl;
use larder_store::{
    Access, Attributes, Batches, Change, ItemChange, Lookup, NewCas, Updates, segment,
};
use std::sync::{Arc, Mutex};

for_every_engine! {
    each_change_is_reported_after_it_took_effect
    the_removal_of_expired_items_is_reported
    flushes_are_reported_when_they_take_effect
}

/// The reports that were not yet taken.
#[derive(Clone, Default)]
struct Reports(Arc<Mutex<Vec<String>>>);

impl Reports {
    /// Starts to collect the reports of a cache.
    fn of(cache: &impl CacheControl) -> Self {
        let reports = Self::default();
        let list = reports.clone();
        cache.observe_changes(Box::new(move |change| {
            list.0.lock().unwrap().push(match change {
                ItemChange::Updated(key) => format!("updated {}", String::from_utf8_lossy(key)),
                ItemChange::Expired(key) => format!("expired {}", String::from_utf8_lossy(key)),
                ItemChange::Invalidated => "invalidated".to_owned(),
            });
        }));
        reports
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

fn each_change_is_reported_after_it_took_effect<S: Subject + CacheControl>() {
    let cache = S::new(&Setup::default());
    let mut engine = cache.handle();
    engine.begin_batch(START);
    set(&mut engine, b"before", b"1").unwrap();
    let reports = Reports::of(&cache);
    assert_eq!(get(&mut engine, b"before").as_deref(), Some(&b"1"[..]));
    let kept = [Change::Keep, Change::MarkAccessed, Change::CountHit];
    for change in kept {
        let key = hashed(&engine, b"before");
        engine.update(key, &mut None, |_| (change, ())).unwrap();
    }
    remove(&mut engine, b"missing");
    amend(&mut engine, b"missing", Attributes::default(), NewCas::Fresh);
    assert!(reports.take().is_empty());

    set(&mut engine, b"a", b"1").unwrap();
    set(&mut engine, b"a", b"2").unwrap();
    amend(&mut engine, b"a", expiring(after(100)), NewCas::Same);
    amend(&mut engine, b"a", expiring(after(200)), NewCas::Fresh);
    assert_eq!(reports.take(), ["updated a"; 4]);
    set(&mut engine, b"large", &vec![b'x'; 3 << 20]).unwrap();
    remove(&mut engine, b"large");
    remove(&mut engine, b"before");
    assert_eq!(reports.take(), ["updated large", "updated large", "updated before"]);
    assert_eq!(see(&mut engine, b"before", Access::Untracked), Lookup::Miss);
}

fn the_removal_of_expired_items_is_reported<S: Subject + CacheControl>() {
    let cache = S::new(&Setup::default());
    let mut engine = cache.handle();
    engine.begin_batch(START);
    for key in ["replaced", "removed", "swept"] {
        set_with(&mut engine, key.as_bytes(), b"1", expiring(after(5))).unwrap();
    }
    let reports = Reports::of(&cache);
    engine.begin_batch(after(6));
    set(&mut engine, b"replaced", b"2").unwrap();
    remove(&mut engine, b"removed");
    let seen = reports.take();
    assert!(seen.contains(&"updated replaced".to_owned()), "{seen:?}");
    assert!(seen.contains(&"expired removed".to_owned()), "{seen:?}");
    tidy(&mut engine, after(7));
    engine.begin_batch(after(1000));
    tidy(&mut engine, after(1000));
    assert_eq!(reports.take(), ["expired swept"]);
}

fn flushes_are_reported_when_they_take_effect<S: Subject + CacheControl>() {
    let cache = S::new(&Setup::default());
    let mut engine = cache.handle();
    engine.begin_batch(START);
    let reports = Reports::of(&cache);
    engine.flush(None);
    assert_eq!(reports.take(), ["invalidated"]);
    engine.flush(Some(after(10)));
    engine.begin_batch(after(9));
    assert!(reports.take().is_empty());
    engine.begin_batch(after(10));
    engine.begin_batch(after(11));
    assert_eq!(reports.take(), ["invalidated"]);
}

#[test]
fn a_dropped_tag_is_reported() {
    let cache = segment::Cache::new(Setup::default().segments()).unwrap();
    let mut engine = cache.handle();
    engine.begin_batch(START);
    let reports = Reports::of(&cache);
    engine.tag(b"news").unwrap();
    assert!(reports.take().is_empty());
    assert!(!engine.drop_tag(b"other"));
    assert!(engine.drop_tag(b"news"));
    assert_eq!(reports.take(), ["invalidated"]);
}

//! A client that writes many keys once does not evict keys that other clients read all the time.

use super::common::*;
use larder_store::Batches;

const LIMIT: usize = 16 * MIB;
const VALUE_LEN: usize = 1000;
/// The number of keys that are read all the time: a tenth of the items that fit in the cache.
const HOT: usize = LIMIT / VALUE_LEN / 10;
/// The number of keys that are written once: twenty times the number of items that fit in the
/// cache.
const FLOOD: usize = 20 * LIMIT / VALUE_LEN;

#[test]
fn keys_written_once_do_not_evict_keys_that_are_always_read() {
    let cache = cache(LIMIT);
    let mut engine = cache.handle();
    let value = pattern(1, VALUE_LEN);
    let hot = |i: usize| [b"hot".as_slice(), &i.to_le_bytes()].concat();
    for _ in 0..3 {
        for i in 0..HOT {
            if get(&mut engine, &hot(i)).is_none() {
                set(&mut engine, &hot(i), &value).unwrap();
            }
        }
    }
    let (mut random, mut missed) = (Random::new(7), 0);
    for i in 0..FLOOD {
        engine.begin_batch(START);
        set(&mut engine, &i.to_le_bytes(), &value).unwrap();
        let key = hot(random.below(HOT));
        if get(&mut engine, &key).is_none() {
            missed += 1;
            set(&mut engine, &key, &value).unwrap();
        }
        engine.end_batch();
    }
    assert!(cache.gauges().evictions > FLOOD as u64 / 2, "the flood was evicted");
    assert!(missed * 100 < FLOOD * 3, "{missed} of {FLOOD} reads missed");
    let held = (0..HOT).filter(|i| has(&mut engine, &hot(*i))).count();
    assert!(held * 100 >= HOT * 97, "{held} of {HOT} are left");
}

//! Benchmarks of the segment engine alone, with keys of 20 bytes and values of 100: `cargo bench -p
//! larder-store`. Times are for a batch of 16 operations.

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use larder_store::{
    Attributes, Batches, Change, HashedKey, Lookup, Lookups, NewCas, NewTags, NewValue, Seconds,
    SizeClasses, Updates, segment,
};

const BATCH: usize = 16;
const ITEMS: usize = 100_000;
const NOW: Seconds = Seconds(1_700_000_000);
const VALUE: [u8; 100] = [b'v'; 100];

fn main() {
    divan::main();
}

/// Returns a cache with the items 0 to [`ITEMS`].
fn filled() -> segment::Handle {
    let mut engine = segment::Cache::new(segment::Config {
        limit_bytes: 64 << 20,
        cas: true,
        classes: SizeClasses::new(vec![96, 512, 4096, 1 << 20], 59),
        seed: 0x5eed,
        evict: true,
        item_size_max: 1 << 20,
        threads: 1,
        size_exponent: larder_store::eviction::SIZE_EXPONENT,
        flash: None,
    })
    .expect("64 MiB")
    .handle();
    for keys in batches(0..ITEMS) {
        set(&mut engine, &keys);
    }
    engine
}

/// Returns the keys of these numbers, in an order that defeats prefetching.
fn batches(numbers: std::ops::Range<usize>) -> Vec<Vec<String>> {
    let (start, len) = (numbers.start, numbers.len());
    let number = |i| start + i * 7919 % len;
    let keys: Vec<String> = numbers.map(|i| format!("key:{:016}", number(i - start))).collect();
    keys.chunks(BATCH).map(<[String]>::to_vec).collect()
}

fn get(engine: &mut segment::Handle, keys: &[String]) -> usize {
    engine.begin_batch(NOW);
    let hashes: [u64; BATCH] = std::array::from_fn(|i| engine.hash(keys[i].as_bytes()));
    hashes.iter().for_each(|&hash| engine.announce(hash));
    engine.prefetch_announced();
    let look_up = |(key, &hash): (&String, &u64)| {
        let key = HashedKey { bytes: key.as_bytes(), hash };
        engine.content(key, |content| content.value.len())
    };
    let found = keys.iter().zip(&hashes).map(look_up);
    let hits = found.filter(|found| matches!(black_box(found), Lookup::Hit(_))).count();
    engine.end_batch();
    hits
}

fn put() -> Change<'static> {
    Change::Put {
        attributes: Attributes::default(),
        cas: NewCas::Fresh,
        value: NewValue::Bytes(&VALUE),
        fetched: false,
        tags: NewTags::None,
    }
}

fn set(engine: &mut segment::Handle, keys: &[String]) {
    engine.begin_batch(NOW);
    for key in keys {
        let (bytes, hash) = (key.as_bytes(), engine.hash(key.as_bytes()));
        let key = HashedKey { bytes, hash };
        engine.update(key, &mut None, |_| (put(), ())).expect("the cache evicts");
    }
    engine.end_batch();
}

/// Repeats the batches of keys in a cycle.
fn run<R>(
    bencher: Bencher<'_, '_>,
    numbers: std::ops::Range<usize>,
    mut batch: impl FnMut(&mut segment::Handle, &[String]) -> R,
) {
    let (mut engine, batches) = (filled(), batches(numbers));
    let mut next = batches.iter().cycle();
    bencher
        .counter(ItemsCount::new(BATCH))
        .bench_local(|| batch(&mut engine, next.next().expect("the cycle does not end")));
}

#[divan::bench]
fn get_hit(bencher: Bencher<'_, '_>) {
    run(bencher, 0..ITEMS, |engine, keys| assert_eq!(get(engine, keys), keys.len()));
}

#[divan::bench]
fn get_miss(bencher: Bencher<'_, '_>) {
    run(bencher, ITEMS..2 * ITEMS, |engine, keys| assert_eq!(get(engine, keys), 0));
}

/// Overwrites existing items.
#[divan::bench]
fn set_again(bencher: Bencher<'_, '_>) {
    run(bencher, 0..ITEMS, set);
}

/// Sets several times as many items as fit, so that each set evicts another item.
#[divan::bench]
fn set_new(bencher: Bencher<'_, '_>) {
    run(bencher, ITEMS..32 * ITEMS, set);
}

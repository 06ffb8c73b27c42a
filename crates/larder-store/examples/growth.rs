//! Measures the time of sets while the index grows and while memory is full, with the segment
//! engine alone. Over sockets, the noise of a shared machine's scheduler hides the differences.
//!
//! Usage: `growth`. The program sets keys of 20 bytes and values of 16 bytes in batches of 16. It
//! prints a line for each state: the name of the state, and the 50th, 99th and 99.9th percentile
//! and the maximum of the durations of its batches, in nanoseconds.
#![allow(clippy::disallowed_methods, reason = "this program measures time")]
#![expect(clippy::print_stdout, reason = "this is a command-line program")]

use larder_store::{
    Attributes, Batches, Change, HashedKey, Lookups, NewCas, NewTags, NewValue, Seconds,
    SizeClasses, Updates, segment,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::io::Write;
use std::time::Instant;

const BATCH: usize = 16;
const VALUE: [u8; 16] = [b'v'; 16];
/// The number of items to which the index grows.
const MANY: u32 = 10_000_000;
/// The number of items that fit in the small cache with room to spare.
const FEW: u32 = 200_000;
/// The number of items that are set to fill memory: more than fit in the cache.
const FULL: u32 = 2_000_000;

fn engine(limit_mib: usize) -> segment::Handle {
    segment::Cache::new(segment::Config {
        limit_bytes: limit_mib << 20,
        cas: true,
        classes: SizeClasses::new(vec![1 << 20], 56),
        seed: 1,
        evict: true,
        item_size_max: 1 << 20,
        threads: 1,
        size_exponent: larder_store::eviction::SIZE_EXPONENT,
        flash: None,
    })
    .expect("memory")
    .handle()
}

fn set(engine: &mut segment::Handle, number: u32) {
    let mut key = [0; 20];
    write!(&mut key[..], "key:{number:016}").expect("room");
    let key = HashedKey { bytes: &key, hash: engine.hash(&key) };
    let put = || Change::Put {
        attributes: Attributes::default(),
        cas: NewCas::Fresh,
        value: NewValue::Bytes(&VALUE),
        fetched: false,
        tags: NewTags::None,
    };
    engine.update(key, &mut None, |_| (put(), ())).expect("the cache evicts");
}

/// Sets the keys with these numbers in batches, and prints percentiles of the batch durations.
fn run(name: &str, engine: &mut segment::Handle, numbers: impl Iterator<Item = u32>) {
    let mut numbers = numbers.peekable();
    let mut taken = Vec::new();
    while numbers.peek().is_some() {
        let begun = Instant::now();
        engine.begin_batch(Seconds(1));
        numbers.by_ref().take(BATCH).for_each(|number| set(engine, number));
        engine.end_batch();
        taken.push(begun.elapsed().as_nanos());
    }
    taken.sort_unstable();
    let at = |per_mille: usize| taken[(taken.len() - 1) * per_mille / 1000];
    println!("{name} {} {} {} {}", at(500), at(990), at(999), at(1000));
}

fn main() {
    let mut random = SmallRng::seed_from_u64(1);
    let mut any_of = |count: u32| random.random_range(0..count);
    let again: Vec<u32> = (0..FULL).map(|_| any_of(MANY)).collect();
    let few: Vec<u32> = (0..FULL).map(|_| any_of(FEW)).collect();
    let mut large = engine(2048);
    run("growing", &mut large, 0..MANY);
    run("grown", &mut large, again.into_iter());
    drop(large);
    let mut small = engine(64);
    (0..FULL).for_each(|number| set(&mut small, number));
    run("evicting", &mut small, FULL..MANY);
    let mut roomy = engine(64);
    (0..FEW).for_each(|number| set(&mut roomy, number));
    run("roomy", &mut roomy, few.into_iter());
}

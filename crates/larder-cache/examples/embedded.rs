//! Measures in-process caches: Larder, moka, `quick_cache` and foyer.
//!
//! The program stores `--items` values of `--value-bytes` under keys of 16 bytes, and every cache
//! is large enough for all of them. Then threads look up Zipf-distributed keys, and read a byte of
//! each value. On average, `--sets` of every hundred operations store the value again instead of
//! reading it. The program prints one JSON object. `scripts/bench embedded` runs it.
#![expect(clippy::print_stdout, reason = "the program prints its measurements")]

use clap::{Parser, ValueEnum};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rand::distr::Distribution;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use rand_distr::Zipf;
use std::fs;
use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Instant;

type Key = [u8; 16];

/// The operations that the benchmark runs on each cache.
trait Bench: Send + Sync {
    /// Returns a byte of the value under a key.
    fn read(&self, key: &Key) -> Option<u8>;
    fn insert(&self, key: &Key, value: &[u8]);
    fn len(&self) -> usize;
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Library {
    Larder,
    Moka,
    #[value(name = "quick_cache")]
    QuickCache,
    Foyer,
}

/// Measures one cache inside of a program.
#[derive(Parser)]
struct Arguments {
    library: Library,
    #[arg(long, default_value_t = 1)]
    threads: usize,
    #[arg(long, default_value_t = 1_000_000)]
    items: u32,
    #[arg(long, default_value_t = 100)]
    value_bytes: usize,
    /// Operations of each thread.
    #[arg(long, default_value_t = 2_000_000)]
    operations: usize,
    /// Inserts in a hundred operations.
    #[arg(long, default_value_t = 0)]
    sets: u32,
}

impl Bench for larder_cache::Cache {
    fn read(&self, key: &Key) -> Option<u8> {
        self.read(key, |value| value.first().copied())?
    }

    fn insert(&self, key: &Key, value: &[u8]) {
        self.insert(key, value).expect("the cache has room");
    }

    fn len(&self) -> usize {
        self.len()
    }
}

impl Bench for moka::sync::Cache<Key, Arc<[u8]>> {
    fn read(&self, key: &Key) -> Option<u8> {
        self.get(key)?.first().copied()
    }

    fn insert(&self, key: &Key, value: &[u8]) {
        self.insert(*key, value.into());
    }

    fn len(&self) -> usize {
        self.run_pending_tasks();
        usize::try_from(self.entry_count()).expect("the count fits")
    }
}

impl Bench for quick_cache::sync::Cache<Key, Arc<[u8]>> {
    fn read(&self, key: &Key) -> Option<u8> {
        self.get(key)?.first().copied()
    }

    fn insert(&self, key: &Key, value: &[u8]) {
        self.insert(*key, value.into());
    }

    fn len(&self) -> usize {
        self.len()
    }
}

impl Bench for foyer_memory::Cache<Key, Arc<[u8]>> {
    fn read(&self, key: &Key) -> Option<u8> {
        self.get(key)?.value().first().copied()
    }

    fn insert(&self, key: &Key, value: &[u8]) {
        self.insert(*key, value.into());
    }

    fn len(&self) -> usize {
        self.usage()
    }
}

fn build(arguments: &Arguments) -> Arc<dyn Bench> {
    // Make room for 1.5 times the number of items, so that no cache evicts items and all caches
    // have the same hits.
    let items = arguments.items as usize * 3 / 2;
    match arguments.library {
        Library::Larder => {
            let memory = items * (arguments.value_bytes + 64);
            Arc::new(larder_cache::Cache::builder().memory(memory).build().expect("memory"))
        }
        Library::Moka => Arc::new(moka::sync::Cache::new(items as u64)),
        Library::QuickCache => Arc::new(quick_cache::sync::Cache::new(items)),
        Library::Foyer => Arc::new(foyer_memory::Cache::<Key, Arc<[u8]>>::builder(items).build()),
    }
}

fn key(number: u32) -> Key {
    let mut key = *b"a key:0000000000";
    key[6..10].copy_from_slice(&number.to_be_bytes());
    key
}

/// Returns the resident memory in bytes.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Returns the user time of this process in nanoseconds.
fn user_ns() -> i64 {
    getrusage(UsageWho::RUSAGE_SELF)
        .expect("the system reports the process's usage")
        .user_time()
        .num_microseconds()
        * 1000
}

/// Returns the operations of one thread. Each operation is the number of a key, and whether the
/// thread stores the value of the key instead of reading it.
fn plan(arguments: &Arguments, thread: usize) -> Vec<(u32, bool)> {
    let mut rng = SmallRng::seed_from_u64(thread as u64);
    let zipf = Zipf::new(f64::from(arguments.items), 0.99).expect("an exponent");
    (0..1 << 20)
        .map(|_| {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a rank is at most the number of items"
            )]
            let rank = zipf.sample(&mut rng) as u32 - 1;
            // Spreads the ranks, so that frequent items are not neighbours in memory.
            let number = rank.wrapping_mul(2_654_435_761) % arguments.items;
            (number, rng.random_range(0..100) < arguments.sets)
        })
        .collect()
}

fn main() {
    let arguments = Arguments::parse();
    let value = vec![b'v'; arguments.value_bytes];
    let before = resident();
    let cache = build(&arguments);
    for number in 0..arguments.items {
        cache.insert(&key(number), &value);
    }
    let items = cache.len();
    let taken = resident() - before;

    let plans: Vec<_> = (0..arguments.threads).map(|thread| plan(&arguments, thread)).collect();
    let (begin, end) = (Barrier::new(arguments.threads + 1), Barrier::new(arguments.threads + 1));
    let (mut user, mut wall) = (0, 0);
    let mut hits = 0;
    thread::scope(|scope| {
        let workers: Vec<_> = plans
            .iter()
            .map(|plan| {
                let (cache, value, begin, end) = (&cache, &value, &begin, &end);
                let operations = arguments.operations;
                scope.spawn(move || {
                    begin.wait();
                    let mut hits = 0_usize;
                    for &(number, is_set) in plan.iter().cycle().take(operations) {
                        let key = key(number);
                        if is_set {
                            cache.insert(&key, value);
                        } else {
                            hits += usize::from(black_box(cache.read(&key)).is_some());
                        }
                    }
                    end.wait();
                    hits
                })
            })
            .collect();
        let (start_time, user_before) = (Instant::now(), user_ns());
        begin.wait();
        end.wait();
        user = user_ns() - user_before;
        wall = start_time.elapsed().as_nanos();
        hits = workers
            .into_iter()
            .map(|worker| worker.join().expect("the worker has not panicked"))
            .sum();
    });
    let operations = (arguments.operations * arguments.threads) as f64;
    println!(
        "{}",
        serde_json::json!({
            "items": items,
            "bytes_per_item": taken as f64 / items as f64,
            "user_ns": user as f64 / operations,
            "operations_per_second": operations / (wall as f64 / 1e9),
            "hits": hits as f64 / operations,
        })
    );
}

//! Tests that the memory of a cache stays within the limit. This test has a process of its own, so
//! that no other test allocates memory at the same time.
#![cfg(target_os = "linux")]
#![expect(clippy::print_stdout, reason = "the test prints its measurements")]

use larder_cache::Cache;
use std::fs;

fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib: usize = line.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    kib << 10
}

fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn resident_memory_stays_within_the_limit_and_is_returned() {
    const MEMORY: usize = 64 << 20;
    /// The maximum memory in bytes outside of the cache's region: counters and a sample of keys.
    const OUTSIDE_MAX: usize = 3 << 20;
    let (before, threads_before) = (resident(), threads());
    for _ in 0..3 {
        let cache = Cache::builder().memory(MEMORY).build().unwrap();
        for number in 0..1_500_000_u32 {
            cache.insert(number.to_le_bytes(), [1; 100]).unwrap();
        }
        let stats = cache.stats();
        assert!(stats.evictions > 500_000, "{stats:?}");
        let taken = resident() - before;
        println!("{taken} bytes for {} items", stats.items);
        assert!(taken <= MEMORY + OUTSIDE_MAX, "{taken}");
        drop(cache);
        // The cache's own thread may keep the cache alive for a moment.
        for _ in 0..1000 {
            if threads() == threads_before && resident() < before + OUTSIDE_MAX {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(resident() < before + OUTSIDE_MAX, "{}", resident() - before);
        assert_eq!(threads(), threads_before);
    }
}

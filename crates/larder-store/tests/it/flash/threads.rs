//! Several threads use a cache at the same time: no value is wrong, no removed item returns, and no
//! request hangs.

use super::common::*;
use larder_device::{Faults, Memory};

use larder_store::Maintenance;
use larder_store::segment::Cache;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use std::sync::Arc;
use std::time::Duration;

/// Runs threads with keys of their own. Each thread checks its own keys, and reads other threads'
/// keys.
fn threads(device_len: usize, faults: Faults) -> Cache {
    const THREADS: usize = 4;
    const KEYS: usize = 16_000;
    let device = Memory::new(device_len, 11);
    device.set_faults(faults);
    let cache = Cache::new(config(16 * MIB, &device, any_size())).unwrap();
    let now = clock();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cache, now) = (&cache, Arc::clone(&now));
            scope.spawn(move || {
                let mut client = Client::new(cache, &now);
                let mut random = SmallRng::seed_from_u64(thread as u64);
                let mut versions = vec![0_u64; KEYS];
                for request in 1..60_000_u64 {
                    let own = random.random_range(0..KEYS);
                    let i = thread * KEYS + own;
                    match random.random_range(0..10) {
                        0..4 => {
                            client.set(&key(i), &value(i, request, 1200));
                            versions[own] = request;
                        }
                        4 => {
                            client.delete(&key(i));
                            versions[own] = 0;
                        }
                        5..8 => {
                            if let Some(found) = client.get(&key(i)) {
                                assert_eq!(version(i, &found, 1200), versions[own], "{i}");
                            }
                        }
                        _ => {
                            let i = random.random_range(0..THREADS * KEYS);
                            if let Some(found) = client.get(&key(i)) {
                                version(i, &found, 1200);
                            }
                        }
                    }
                    pace(cache, usize::try_from(request).unwrap());
                    if request % 1_000 == 0 {
                        client.handle.maintain(client.now());
                    }
                }
            });
        }
    });
    cache
}

#[test]
fn each_thread_finds_its_latest_items() {
    let gauges = threads(128 * MIB, Faults::default()).flash_gauges().unwrap();
    assert!(gauges.get_extstore > 1_000 && gauges.badcrc == 0, "{gauges:?}");
}

#[test]
fn pages_are_emptied_while_threads_read_them() {
    let gauges = threads(8 * MIB, Faults::default()).flash_gauges().unwrap();
    assert!(gauges.page_evictions + gauges.page_reclaims > 1, "{gauges:?}");
    assert_eq!(gauges.badcrc, 0, "{gauges:?}");
}

#[test]
fn a_slow_failing_device_gives_no_wrong_answers() {
    let delay_max = Duration::from_micros(200);
    let faults = Faults {
        delay_max,
        flipped_bits: 50,
        torn_writes: 100,
        torn_unnoticed: true,
        ..Faults::default()
    };
    threads(32 * MIB, faults);
}

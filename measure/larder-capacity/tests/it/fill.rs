//! `larder bench fill` against memcached servers that the measurement starts.

use larder_capacity::fill::{FillResult, Settings, measure};
use larder_target::blocking::Dialect;
use larder_target::target::Target;
use std::time::Duration;

const MEMCACHED: &str = "memcached -u root -l 127.0.0.1 -U 0 -t 1 -p {port} -m {memory_mb}";

fn settings(value_bytes: usize, probes_max: u32) -> Settings {
    let settle = Duration::from_millis(100);
    Settings { value_bytes, key_bytes: 13, fill: 2.0, probes_max, pipeline: 64, settle }
}

fn fill(memory_mb: u64, settings: &Settings) -> FillResult {
    let target = Target::from_command(MEMCACHED);
    let mut server = target.open(Dialect::Text, Some(memory_mb)).unwrap();
    measure(&mut server, 0, settings).unwrap()
}

/// With `-m 16`, memcached has 16 slab pages of 1 MiB. It stores items with values of 1000 bytes in
/// the slab class of 1184 bytes, 885 per page.
#[test]
fn the_items_that_memcached_holds_are_counted() {
    let held = fill(16, &settings(1000, u32::MAX));
    assert_eq!((held.refused, held.wrong, held.items_error), (0, 0, 0.0));
    assert_eq!((held.probed, held.found as f64), (held.offered, held.items));
    assert!((12_000.0..16_000.0).contains(&held.items), "{held:?}");
    assert!((30.0..300.0).contains(&held.overhead_bytes()), "{held:?}");
    if cfg!(target_os = "linux") {
        let (empty, full) = (held.rss_empty_bytes.unwrap(), held.rss_bytes.unwrap());
        assert!(full - empty > 12 << 20 && full < 48 << 20, "{held:?}");
        assert!(held.items_per_gib_rss().unwrap() < held.items_per_gib_limit());
    }
}

#[test]
fn a_sample_agrees_with_a_count() {
    let counted = fill(8, &settings(200, u32::MAX));
    let sampled = fill(8, &settings(200, 4000));
    assert_eq!(sampled.probed, 4000);
    // Twice `items_error`: the full width of the sample's 95 % confidence interval.
    let allowed = 2.0 * sampled.items_error;
    assert!((sampled.items - counted.items).abs() < allowed, "{counted:?}\n{sampled:?}");
}

//! Memory from the operator's view: its usage, the miss-ratio curve, removals and the limit.

use super::helpers::{ENGINES, ask, fill, larderd, stat, value};
use crate::common::{Scratch, Server, wait_for};
use std::io::{Read, Write};
use std::time::Duration;

/// All keys fit in a quarter of the memory, so the hit ratio is the same for every estimated limit.
#[test]
fn only_the_segment_engine_has_a_miss_ratio_curve() {
    let gets: String = (0..40_000).map(|i| format!("get key-{i}\r\n")).collect();
    let [segment, others @ ..] = ENGINES;
    let server = larderd(segment, &["-m", "64"]);
    assert_eq!(
        ask(&server, "stats mrc\r\n"),
        "STAT mrc:samples 0\r\nSTAT mrc:keys 0\r\nSTAT mrc:sampled 0.007812\r\nEND\r\n"
    );
    fill(&server, 40_000);
    (0..2).for_each(|_| drop(ask(&server, &gets)));
    let page = ask(&server, "stats mrc\r\n");
    for factor in ["0.25", "0.5", "1", "2", "4"] {
        // The order in which worker threads record samples may differ from the order of the
        // requests, so the ratio may be below 1.
        let ratio: f64 = value(&page, &format!("mrc:{factor}")).parse().unwrap();
        assert!((0.9..=1.0).contains(&ratio), "{page}");
    }
    assert!(stat(&page, "mrc:samples") > 0 && stat(&page, "mrc:keys") > 0, "{page}");
    for engine in others {
        assert_eq!(ask(&larderd(engine, &[]), "stats mrc\r\n"), "STAT mrc none\r\nEND\r\n");
    }
}

#[test]
fn the_uses_of_memory_sum_to_the_limit() {
    let server = larderd(ENGINES[0], &["-m", "64"]);
    let uses = |names: &[&str]| -> Vec<u64> {
        let pages = ask(&server, "stats\r\n") + &ask(&server, "stats memory\r\n");
        names.iter().map(|name| stat(&pages, name)).collect()
    };
    let all = ["items_bytes", "dead_bytes", "free_bytes", "hash_bytes"];
    fill(&server, 10_000);
    let before = uses(&all);
    assert_eq!(before.iter().sum::<u64>(), 64 << 20, "{before:?}");
    let deletes: String = (0..5000).map(|i| format!("delete key-{i}\r\n")).collect();
    ask(&server, &deletes);
    let after = uses(&all);
    assert!(after[0] < before[0] && after[1] >= before[1] + 5000 * 24, "{before:?} {after:?}");
    assert_eq!(after.iter().sum::<u64>(), 64 << 20, "{after:?}");
    assert_eq!(ask(&server, "ms tagged 1 Gtag\r\n1\r\n"), "HD\r\n");
    assert!(uses(&["tags_bytes"])[0] > 0);
}

/// Monitoring agents compare `bytes`, and the number of 1 MiB pages, with the limit. Small items
/// take less memory in Larder than in memcached, but the statistics must not show more memory than
/// the limit.
#[test]
fn items_of_a_full_cache_take_no_more_than_the_limit() {
    let scratch = Scratch::new("full");
    let flash = format!("ext_path={}:256m", scratch.path("flash").display());
    for (engine, sets, options) in [
        (ENGINES[0], 800_000, &["-m", "32"][..]),
        (ENGINES[0], 400_000, &["-m", "32", "-o", &flash, "-o", "ext_item_size=2,ext_item_age=0"]),
        (ENGINES[2], 100_000, &["-m", "32"]),
    ] {
        let resp = [options, &["-l", "proto[resp]:127.0.0.1"]].concat();
        let server = larderd(engine, &resp);
        for from in (0..sets).step_by(100_000) {
            let sets = (from..from + 100_000)
                .map(|i| format!("set key-{i:08} 0 0 10 noreply\r\n0123456789\r\n"));
            ask(&server, &sets.collect::<String>());
        }
        let [page, slabs, items] = settled_pages(&server);
        let limit = stat(&page, "limit_maxbytes");
        let bytes = stat(&page, "bytes");
        let has_flash = options.contains(&"-o");
        // Expect a full cache only from the segment engine without flash: with flash, the index
        // takes most of the memory, and moka needs several hundred bytes per item.
        let is_filled = bytes >= limit / 2 || has_flash || engine != ENGINES[0];
        assert!(bytes > 0 && bytes <= limit && is_filled, "{engine:?} {options:?}: {page}");
        if has_flash {
            let used = stat(&page, "extstore_bytes_used");
            assert!((1..=stat(&page, "extstore_limit_maxbytes")).contains(&used), "{page}");
        }
        let pages = stats_ending_in(&slabs, ":total_pages");
        assert!(pages.iter().sum::<u64>() << 20 <= limit, "{engine:?} {options:?}: {slabs}");
        let requested = stats_ending_in(&items, ":mem_requested");
        let requested = requested.iter().sum::<u64>();
        assert!(requested.abs_diff(bytes) <= bytes / 20, "{engine:?} {bytes} bytes: {items}");
        let used = stats_ending_in(&slabs, ":used_chunks").iter().sum::<u64>();
        let count = stat(&page, "curr_items");
        assert!(used.abs_diff(count) <= count / 20, "{engine:?} {count} items: {slabs}");
        if stat(&page, "evictions") > 0 {
            let [used, total] =
                [":used_chunks", ":total_chunks"].map(|end| stats_ending_in(&slabs, end));
            assert_eq!(used, total, "memcached-tool shows the class as full: {slabs}");
        }
    }
}

/// Refused sets must evict nothing, except for the first few: earlier sets may have started to
/// evict the items of a segment.
#[test]
fn refused_sets_evict_nothing() {
    let server = larderd(ENGINES[0], &["-m", "16", "-t", "1"]);
    let sets = |count: usize, len: usize| -> String {
        let value = "v".repeat(len);
        (0..count).map(|i| format!("set {len}-{i} 0 0 {len}\r\n{value}\r\n")).collect()
    };
    ask(&server, &sets(30_000, 1000));
    let refuse = || {
        let replies = ask(&server, &sets(40, 1_100_000));
        assert_eq!(replies, "SERVER_ERROR object too large for cache\r\n".repeat(40));
        let page = ask(&server, "stats\r\n");
        ["evictions", "curr_items"].map(|name| stat(&page, name))
    };
    let before = refuse();
    assert!(before[0] > 0, "the cache is full");
    assert_eq!(refuse(), before);
}

/// Returns `stats`, `stats slabs` and `stats items` for the same cache state. Retries until no item
/// was demoted or evicted between the pages.
fn settled_pages(server: &Server) -> [String; 3] {
    let state = |page: &str| ["bytes", "curr_items", "evictions"].map(|name| stat(page, name));
    let mut pages = Default::default();
    wait_for("a cache at rest", || {
        let names = ["stats", "stats slabs", "stats items"];
        pages = names.map(|name| ask(server, &format!("{name}\r\n")));
        state(&ask(server, "stats\r\n")) == state(&pages[0])
    });
    pages
}

/// Returns the values of all statistics whose names end with `end`.
fn stats_ending_in(page: &str, end: &str) -> Vec<u64> {
    let values = page.lines().filter_map(|line| {
        let (name, value) = line.strip_prefix("STAT ")?.split_once(' ')?;
        name.ends_with(end).then(|| value.parse().unwrap())
    });
    values.collect()
}

#[test]
fn removals_are_counted_by_reason() {
    let server = larderd(ENGINES[0], &[]);
    assert_eq!(ask(&server, "ms tagged 1 Gtag\r\n1\r\nmt tag\r\n"), "HD\r\nHD\r\n");
    let removed = || {
        let page = ask(&server, "stats memory\r\n");
        ["removed_expired", "removed_flushed", "removed_tag"].map(|name| stat(&page, name))
    };
    // A store removes the old item, which has expired, was flushed or has a dropped tag. If
    // maintenance has already removed the old item, the removal must not count twice.
    let set = |key: &str| {
        assert_eq!(ask(&server, &format!("set {key} 0 0 1\r\n1\r\n")), "STORED\r\n");
    };
    set("tagged");
    assert_eq!(removed(), [0, 0, 1]);
    set("short");
    assert_eq!(ask(&server, "touch short -1\r\n"), "TOUCHED\r\n");
    set("short");
    assert_eq!(removed(), [1, 0, 1]);
    assert_eq!(ask(&server, "flush_all\r\n"), "OK\r\n");
    set("tagged");
    set("short");
    assert_eq!(removed(), [1, 2, 1]);
    let page = ask(&server, "stats memory\r\n");
    assert_eq!((stat(&page, "tags_dropped"), stat(&page, "tags_displaced")), (1, 0));
    assert_eq!(stat(&ask(&server, "stats\r\n"), "reclaimed"), 4);
}

/// Returns the resident memory of the server in MiB.
fn resident(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

/// Stores `mib` values of nearly a MiB.
fn fill_mib(server: &Server, mib: usize) {
    let mut stream = server.connect();
    for i in 0..mib {
        let head = format!("set m-{i} 0 0 1000000\r\n");
        stream.write_all(&[head.as_bytes(), &[b'x'; 1_000_000], b"\r\n"].concat()).unwrap();
        stream.read_exact(&mut [0; 8]).unwrap();
    }
}

#[test]
fn cache_memlimit_changes_the_memory_limit() {
    let server = larderd(ENGINES[0], &["-t", "2", "-m", "32"]);
    fill(&server, 10_000);
    assert_eq!(ask(&server, "cache_memlimit 256\r\n"), "OK\r\n");
    fill_mib(&server, 160);
    let stats = ask(&server, "stats\r\n");
    assert_eq!(stat(&stats, "limit_maxbytes"), 256 << 20);
    assert_eq!(stat(&stats, "evictions"), 0, "all of it fits");
    assert!(resident(&server) > 150);
    // Items that fit within the lower limit must stay.
    assert_eq!(ask(&server, "cache_memlimit 224\r\n"), "OK\r\n");
    // Wait for two runs of maintenance, which must not evict anything.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(stat(&ask(&server, "stats\r\n"), "evictions"), 0, "it still fits");
    assert_eq!(ask(&server, "cache_memlimit 32\r\n"), "OK\r\n");
    wait_for("smaller process", || resident(&server) < 32 + 32);
    let stats = ask(&server, "stats\r\n");
    assert!(stat(&stats, "curr_items") >= 10, "{stats}");
    let settings = ask(&server, "stats settings\r\n");
    assert_eq!(stat(&settings, "maxbytes"), 32 << 20);
    // The memory can grow again.
    fill_mib(&server, 40);
    assert_eq!(ask(&server, "cache_memlimit 64 noreply\r\nmn\r\n"), "MN\r\n");
    assert_eq!(stat(&ask(&server, "stats\r\n"), "limit_maxbytes"), 64 << 20);
}

#[test]
fn an_impossible_limit_is_refused_with_the_possible_range() {
    let refused = "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust (";
    let server = larderd(ENGINES[0], &["-m", "64"]);
    let answer = ask(&server, "cache_memlimit 1000000000\r\n");
    let could = answer.strip_prefix(refused).unwrap_or_else(|| panic!("{answer}"));
    let max = could.trim_end().trim_end_matches(')').split(" to ").nth(1).unwrap();
    let max: u64 = max.trim_end_matches('m').parse().unwrap();
    assert!((64..=4096).contains(&max), "{answer}");
    assert_eq!(ask(&server, &format!("cache_memlimit {}\r\n", max + 1)), answer);
    assert_eq!(ask(&server, &format!("cache_memlimit {max}\r\n")), "OK\r\n");
    let moka = larderd(ENGINES[2], &["-m", "64"]);
    assert_eq!(ask(&moka, "cache_memlimit 128\r\n"), format!("{refused}64m to 64m)\r\n"));
    assert_eq!(ask(&moka, "cache_memlimit 64\r\n"), "OK\r\n");
    let dashmap = larderd(ENGINES[1], &["-m", "8"]);
    let kib = "x".repeat(1000);
    let sets: String = (0..10_000).map(|i| format!("set {i} 0 0 1000\r\n{kib}\r\n")).collect();
    assert!(ask(&dashmap, &sets).contains("SERVER_ERROR out of memory"));
    assert_eq!(ask(&dashmap, "cache_memlimit 64\r\n"), "OK\r\n");
    assert!(!ask(&dashmap, &sets).contains("SERVER_ERROR"));
}

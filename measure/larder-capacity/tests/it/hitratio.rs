//! `larder bench hitratio` against servers that it starts.

use clap::Parser;
use larder_capacity::hitratio::{
    Arguments, Counted, NAMED, Overheads, Replayed, Stream, TtlShare, Workload, command, open,
    replay, simulate,
};
use larder_target::blocking::Dialect;
use larder_target::target::{OpenTarget, Target};
use std::path::PathBuf;

const MEMCACHED: &str = "memcached -u root -l 127.0.0.1 -U 0 -t 1 -p {port} -m {memory_mb}";
const MEMCACHED_UNIX: &str = "memcached -u root -s {socket} -t 1 -m {memory_mb}";
const OVERHEADS: Overheads = Overheads { lru: 56, s3fifo: 31 };

fn workload(traits: &str, requests: usize, keys: u32) -> Workload {
    Workload {
        traits: traits.parse().unwrap(),
        requests,
        keys,
        exponent: 1.0,
        value_bytes: 300,
        one_hit_share: 0.3,
        ttl_mix: vec![TtlShare { share: 1.0, secs: 1 }],
        per_sec: 1000,
        seed: 1,
    }
}

fn start(command: &str, memory_mb: u64) -> OpenTarget {
    Target::from_command(command).open(Dialect::Text, Some(memory_mb)).unwrap()
}

fn play(command: &str, memory_mb: u64, stream: &Stream) -> Replayed {
    let mut server = start(command, memory_mb);
    let replayed = replay(std::slice::from_mut(&mut server.connection), stream, 32).unwrap();
    assert_eq!((replayed.wrong, replayed.stats.requests), (0, stream.requests.len() as u64));
    replayed
}

/// Returns a command that starts larderd, or `None` if cargo has not built it.
fn larderd() -> Option<String> {
    let folder = std::env::current_exe().ok()?.parent()?.parent()?.to_owned();
    let program = folder.join("larderd");
    let options = "-u root -l 127.0.0.1 -t 1 -p {port} -m {memory_mb}";
    program.exists().then(|| format!("{} {options}", program.display()))
}

fn scratch_file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("larder-bench-test-{}-{name}", std::process::id()))
}

/// If the server holds all items, only the first request for each key misses.
#[test]
fn only_new_keys_miss_if_all_items_fit() {
    let stream = workload("onehit+lognormal", 60_000, 10_000).stream("").unwrap();
    let keys = stream.footprint().keys;
    let simulated = simulate(&stream, 256 << 20, OVERHEADS);
    for command in [MEMCACHED, MEMCACHED_UNIX] {
        let replayed = play(command, 256, &stream);
        assert_eq!((replayed.stats.misses, replayed.refused), (keys, 0));
        assert_eq!([simulated.lru, simulated.s3fifo, simulated.optimum], [replayed.stats; 3]);
    }
}

#[test]
#[ignore = "long tier: a replay of 600,000 requests"]
fn memcached_is_near_lru_and_above_the_bound() {
    let stream = workload("zipf", 600_000, 300_000).stream("").unwrap();
    let simulated = simulate(&stream, 16 << 20, OVERHEADS);
    let missed = play(MEMCACHED, 16, &stream).stats.miss_ratio();
    assert!((missed / simulated.lru.miss_ratio() - 1.0).abs() < 0.15, "{missed}: {simulated:?}");
    assert!(missed > simulated.bound.miss_ratio, "{missed}: {simulated:?}");
    assert!(simulated.s3fifo.misses < simulated.lru.misses, "{simulated:?}");
    assert!(simulated.optimum.misses < simulated.s3fifo.misses, "{simulated:?}");
}

#[test]
#[ignore = "long tier: a replay of 600,000 requests"]
fn larderd_is_near_s3_fifo() {
    let Some(larderd) = larderd() else { return };
    let stream = workload("zipf", 600_000, 300_000).stream("").unwrap();
    let simulated = simulate(&stream, 16 << 20, OVERHEADS);
    let missed = play(&larderd, 16, &stream).stats.miss_ratio();
    assert!((missed / simulated.s3fifo.miss_ratio() - 1.0).abs() < 0.08, "{missed}: {simulated:?}");
}

/// Checks that the replay sends requests at their times. The stream takes 3.5 s, and its keys have
/// a TTL of 1 s. If the replay ignored the times, no key would expire.
#[test]
fn expired_keys_miss_again() {
    let stream = workload("ttl", 3500, 10).stream("").unwrap();
    let replayed = play(MEMCACHED, 64, &stream);
    assert!(replayed.seconds > 3.4, "{replayed:?}");
    assert!(replayed.stats.misses >= 20, "{replayed:?}");
}

/// Checks that lookups do not store the keys that miss. After the fill, memcached holds only some
/// of the keys to look up. If the lookups of the first replay stored the missing keys, the second
/// replay would have fewer misses.
#[test]
fn only_look_ups_are_counted_and_they_store_nothing() {
    let workload = NAMED.iter().find(|workload| workload.name == "old-then-new").unwrap();
    let mut stream = workload.stream(1).unwrap();
    let server = start(MEMCACHED, workload.memory_mb);
    let mut connections = [server.connect().unwrap(), server.connect().unwrap()];
    let first = replay(&mut connections, &stream, 32).unwrap().stats;
    assert_eq!(first.requests, 5_100);
    assert!((1_000..5_100).contains(&first.misses), "{first:?}");
    stream.requests.drain(..stream.counted.first());
    stream.counted = Counted::ReadOnlyFrom(0);
    let second = replay(&mut connections, &stream, 32).unwrap().stats;
    assert!(second.misses >= first.misses, "{first:?}, {second:?}");
}

#[test]
fn lookups_store_nothing_in_simulated_caches() {
    let mut stream = workload("zipf", 50, 10).stream("").unwrap();
    stream.counted = Counted::ReadOnlyFrom(0);
    let simulated = simulate(&stream, 64 << 20, OVERHEADS);
    for stats in [simulated.lru, simulated.s3fifo, simulated.optimum] {
        assert_eq!((stats.requests, stats.misses), (50, 50));
    }
}

#[test]
fn refused_sets_are_reported() {
    let mut stream = workload("zipf", 50, 10).stream("").unwrap();
    stream.requests.iter_mut().for_each(|request| request.size = 2 << 20);
    let replayed = play(MEMCACHED, 64, &stream);
    assert_eq!((replayed.refused, replayed.stats.misses), (50, 50));
}

#[derive(Parser)]
struct Typed {
    #[command(flatten)]
    arguments: Arguments,
}

/// Replays a trace with the command line and reads the JSON file.
#[test]
fn a_trace_is_replayed_by_the_command() {
    let (trace, json) = (scratch_file("trace.csv"), scratch_file("out.json"));
    std::fs::write(&trace, "time_secs,key,size\n0,a,100\n0,b,300\n0.5,a,100\n1,a,100\n").unwrap();
    let (trace_text, json_text) = (trace.to_str().unwrap(), json.to_str().unwrap());
    let mut typed = vec!["hitratio", "--trace", trace_text, "--json-out-file", json_text];
    typed.extend(["--command", MEMCACHED, "-m", "64"]);
    command(&Typed::parse_from(typed).arguments).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let row = &report["rows"][0];
    assert_eq!((&row["server"], &row["capacity_bytes"]), (&"memcached".into(), &(64 << 20).into()));
    assert_eq!((&row["footprint"]["keys"], &row["footprint"]["bytes"]), (&2.into(), &402.into()));
    for stats in [&row["replayed"]["tally"], &row["simulated"]["lru"]] {
        let counts = ["requests", "misses", "bytes", "missed_bytes"].map(|name| &stats[name]);
        assert_eq!(counts, [4, 2, 600, 400]);
    }
    std::fs::remove_file(trace).unwrap();
    std::fs::remove_file(json).unwrap();
}

#[test]
fn a_missing_trace_is_an_error() {
    assert!(open(&scratch_file("none.csv")).is_err());
}

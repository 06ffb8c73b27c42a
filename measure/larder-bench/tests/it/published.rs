//! `larder bench` accepts published memtier_benchmark command lines unchanged, and the `load`
//! options of every suite. It rejects memtier_benchmark options that it does not implement.

use crate::common::parse_words;
use larder_bench::Settings;
use std::path::Path;

/// Command lines with their sources. Shell variables are replaced by addresses.
const PUBLISHED: &[(&str, &str)] = &[
    (
        "memtier_benchmark, README: rate limits",
        "--ratio=1:0 --test-time=60 --rate-limiting=100 -t 2 -c 50 --key-pattern=P:P --key-maximum \
         1000000",
    ),
    ("memtier_benchmark, README: percentiles", "--print-percentiles 90,99,99.9,99.99"),
    (
        "memtier_benchmark, README: statistics by command",
        "-P redis --command=\"SET foo __data__\" --command=\"SET bar __data__\" --command=\"GET foo\"",
    ),
    (
        "memtier_benchmark, help: a command",
        "-P redis --command=\"set __key__ 5\" --command-ratio=2 --command-key-pattern=G",
    ),
    (
        "memtier_benchmark, docker-compose.memcached.yml",
        "--protocol=memcache_text --server=localhost --port=11211 --generate-keys",
    ),
    ("memtier_benchmark, DEVELOPMENT.md", "--server localhost --port 6379 --test-time 60"),
    (
        "tidwall/cache-benchmarks, cmd/bench/main.go: sets",
        "-c 16 -t 16 -n 100000 --distinct-client-seed --hide-histogram --key-prefix \"\" --ratio 1:0 \
         --data-size-range 1-1024 --pipeline 50 --json-out-file bench-set.json --print-percentiles \
         50,90,99,99.9,99.99 --key-pattern=P:P -S /tmp/cachebench.sock --protocol memcache_text",
    ),
    (
        "tidwall/cache-benchmarks, cmd/bench/main.go: gets over TCP",
        "-c 16 -t 16 -n 100000 --distinct-client-seed --hide-histogram --key-prefix \"\" --ratio 0:1 \
         --data-size-range 1-1024 --pipeline 1 --json-out-file bench-get.json --print-percentiles \
         50,90,99,99.9,99.99 --key-pattern=P:P -p 19283",
    ),
    (
        "Dragonfly, documentation: write-only test",
        "-s 127.0.0.1 --distinct-client-seed --hide-histogram --ratio 1:0 -t 60 -c 20 -n 200000",
    ),
    (
        "Dragonfly, documentation: pipelined reads",
        "-s 127.0.0.1 --ratio 0:1 -t 60 -c 5 -n 200000 --distinct-client-seed --hide-histogram \
         --pipeline=10",
    ),
    (
        "EloqKV, documentation",
        "-s 127.0.0.1 --distinct-client-seed --hide-histogram --ratio 1:0 -t 10 -c 10 --test-time=300",
    ),
    (
        "Linux kernel, patches for multi-generational LRU",
        "-S /tmp/memcached.socket -P memcache_binary -n allkeys --key-minimum=1 \
         --key-maximum=16000000 -d 1024 --ratio=1:0 --key-pattern=P:P -c 2 -t 16 --pipeline 8 -x 6",
    ),
    (
        "Linux kernel, measurements of multi-generational LRU",
        "-S /tmp/memcached.sock -P memcache_binary -n 30000000 -c 1 -t 16 --ratio 0:1 --pipeline 1 \
         --randomize --distinct-client-seed",
    ),
    (
        "junhe/wiser, scripts/redis_benchmark/populate.sh",
        "-p 8888 --hide-histogram --data-size-range=1024-8192 --data-size-pattern=R \
         --key-maximum=100000 -n allkeys --key-pattern=P:P --ratio=1:0",
    ),
    (
        "junhe/wiser, scripts/redis_benchmark/populate.sh: memcached",
        "--protocol=memcache_text -p 11211 --hide-histogram --key-maximum=100000 -n allkeys -d 4096 \
         --key-pattern=P:P --ratio=1:0 --key-prefix=\"\"",
    ),
    (
        "skotti/middleware, experiment.sh",
        "--protocol=memcache_text --ratio=0:1 --expiry-range=99999-100000 --hide-histogram \
         --key-maximum=10000 --server=127.0.0.1 --port=11212 --test-time=60 --data-size=1024 \
         --clients=32 --threads=2",
    ),
    (
        "memcrs: read-heavy",
        "--port=11211 --run-count=5 --protocol=memcache_binary --threads=6 --clients=50 \
         --test-time=60 --ratio=1:10 --data-size=256 --key-maximum=1000000 --key-pattern=R:R \
         --hdr-file-prefix=read_heavy_run_1 --hide-histogram",
    ),
    (
        "memcrs: stress",
        "--port=11211 --run-count=5 --protocol=memcache_binary --threads=6 --clients=50 \
         --test-time=60 --ratio=1:10 --data-size=512 --key-maximum=10000000 --key-pattern=G:G \
         --hdr-file-prefix=stress_run_1 --hide-histogram",
    ),
    (
        "liufuyang/memc-kv",
        "--protocol=memcache_text --server localhost --port=11211 --generate-keys \
         --key-maximum=100000 --key-prefix=key- --ratio=4:8 --distinct-client-seed --randomize \
         --data-size-range=32-500 --expiry-range=10-3600 -n 10000 -c 10 -t 4",
    ),
    (
        "a script with options that have no space before their values",
        "--server=10.0.0.21 --port=11212 --protocol=memcache_text --json-out-file=json.txt -d4096 \
         -x1 --expiry-range=9999-10000 --key-maximum=100 -x1 -n100",
    ),
    (
        "a script for Redis commands",
        "-s 172.17.0.2 -P redis --key-minimum=1 --key-maximum=10000 --requests=allkeys \
         --command='set __key__ text'",
    ),
    ("a script for Redis with a password", "--server localhost -P redis -p 19701 -a password"),
    (
        "memtier_benchmark, tests: growing load",
        "-P redis -c 10 -t 2 --clients-start 2 --clients-step 4 --step-duration 5 --test-time 30",
    ),
    (
        "memtier_benchmark, tests: reconnections",
        "-P memcache_text -4 --requests=10000 --reconnect-interval=100 --client-stats=client",
    ),
];

/// Options of memtier_benchmark that `larder bench` does not implement.
const UNSUPPORTED_OPTIONS: &[&str] = &[
    "--cluster-mode",
    "--data-import=file",
    "--data-offset=5",
    "--data-verify",
    "--monitor-input=monitor.txt",
    "--scan-incremental-iteration",
    "--select-db=1",
    "--statsd-host=localhost",
    "--uri=redis://localhost",
    "--wait-ratio=1:1",
    "-P resp3",
];

fn words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let (mut quote, mut in_word) = (None, false);
    for c in line.chars() {
        match quote {
            Some(end) if c == end => quote = None,
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c == ' ' => {
                in_word = false;
                continue;
            }
            _ => (),
        }
        if !std::mem::replace(&mut in_word, true) {
            words.push(String::new());
        }
        if !(quote.is_none() && (c == '"' || c == '\'') || quote == Some(c)) {
            words.last_mut().unwrap().push(c);
        }
    }
    words
}

fn settings(line: &str) -> Result<Settings, String> {
    let words = words(line);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let arguments = parse_words(&words).map_err(|error| error.to_string())?;
    arguments.settings().map_err(|error| error.to_string())
}

#[test]
fn published_lines_are_accepted() {
    for (source, line) in PUBLISHED {
        if let Err(error) = settings(line) {
            panic!("{source}: {line}: {error}");
        }
    }
    let quoted = settings("-P resp --key-prefix \"\" --command='get \"a b\"'").unwrap();
    assert_eq!(
        (quoted.keys.prefix.as_str(), quoted.commands[0].line.as_str()),
        ("", "get \"a b\"")
    );
}

#[test]
fn unsupported_options_are_refused() {
    for line in UNSUPPORTED_OPTIONS {
        assert!(settings(line).is_err(), "{line}");
    }
}

#[test]
fn the_loads_of_all_suites_are_accepted() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../suites");
    let mut loads = 0;
    for suite in std::fs::read_dir(folder).unwrap() {
        let path = suite.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for load in text.lines().filter_map(|line| line.strip_prefix("load = ")) {
            // The strings of these TOML files are also valid JSON.
            let mut load: String = serde_json::from_str(load).unwrap();
            for name in ["pipeline", "clients", "load_threads", "threads"] {
                load = load.replace(&format!("{{{name}}}"), "4");
            }
            if let Err(error) = settings(&load) {
                panic!("{}: {load}: {error}", path.display());
            }
            loads += 1;
        }
    }
    assert!(loads > 15, "{loads} loads");
}

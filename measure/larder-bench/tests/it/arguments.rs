//! Checks that command lines, including memtier_benchmark's published ones, are converted to the
//! correct settings, and that invalid values and combinations are rejected.

use crate::common::{self, arguments};
use larder_bench::{Arrivals, DataSize, Pattern, Ratio, Settings, Steps, Stop};
use larder_target::{Protocol, ServerAddress};
use std::time::Duration;

fn settings(line: &str) -> Settings {
    arguments(line).settings().unwrap()
}

#[test]
fn memcrs() {
    let heavy = settings(
        "--port=11211 --run-count=5 --protocol=memcache_binary --threads=6 --clients=50 \
         --test-time=60 --ratio=1:10 --data-size=256 --key-maximum=1000000 --key-pattern=R:R \
         --hdr-file-prefix=read_heavy_run_1 --hide-histogram",
    );
    assert_eq!((heavy.protocol, heavy.threads, heavy.clients), (Protocol::Binary, 6, 50));
    assert_eq!(heavy.stop, Stop::After(Duration::from_secs(60)));
    assert_eq!((heavy.ratio, heavy.pipeline), (Ratio { sets: 1, gets: 10 }, 1));
    assert_eq!((heavy.data_size, heavy.keys.maximum), (DataSize::Fixed(256), 1_000_000));
    let stress = settings("--key-maximum=10000000 --key-pattern=G:G --data-size=512");
    let middle = Pattern::Gaussian { median: 5e6, deviation: 1e7 / 6.0 };
    assert_eq!((stress.keys.set, stress.keys.get), (middle, middle));
    let older = "-s 127.0.0.1 -p 11211 -P memcache_binary --hide-histogram --show-config -c 20 \
                 -t 8 --ratio=1:10 -d 14096 --key-pattern S:S -n 100000 -R --randomize";
    assert_eq!(settings(older).stop, Stop::Requests(100_000));
}

#[test]
fn memc_kv() {
    let settings = settings(
        "--protocol=memcache_text --server localhost --port=11211 --generate-keys \
         --key-maximum=100000 --key-prefix=key- --ratio=4:8 --distinct-client-seed --randomize \
         --data-size-range=32-500 --expiry-range=10-3600 -n 10000 -c 10 -t 4",
    );
    assert_eq!(settings.protocol, Protocol::Text);
    assert_eq!(settings.data_size, DataSize::Range(32, 500));
    assert_eq!((settings.expiry, settings.connections()), (Some((10, 3600)), 40));
    assert_eq!(settings.keys.prefix, "key-");
}

#[test]
fn five_caches() {
    let line = [
        "bench",
        "-c",
        "16",
        "-t",
        "16",
        "-n",
        "100000",
        "--distinct-client-seed",
        "--hide-histogram",
        "--key-prefix",
        "",
        "--ratio",
        "1:0",
        "--data-size-range",
        "1-1024",
        "--pipeline",
        "25",
        "--json-out-file",
        "bench-set.json",
        "--print-percentiles",
        "50,90,99,99.9,99.99",
        "--key-pattern=P:P",
        "-S",
        "/tmp/cachebench.sock",
    ];
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        arguments: larder_bench::Arguments,
    }
    let arguments = <Line as clap::Parser>::try_parse_from(line).unwrap().arguments;
    let settings = arguments.settings().unwrap();
    assert_eq!(settings.servers[0].address.to_string(), "/tmp/cachebench.sock");
    assert_eq!((settings.keys.prefix.as_str(), settings.keys.set), ("", Pattern::Partitioned));
    assert_eq!(arguments.print_percentiles, [50.0, 90.0, 99.0, 99.9, 99.99]);
}

#[test]
fn all_keys_by_connection() {
    let each = settings("-n allkeys --key-minimum 1 --key-maximum 1000 -t 2 -c 5");
    assert_eq!(each.stop, Stop::Requests(1000));
    let shared =
        settings("-n allkeys --key-minimum 1 --key-maximum 1000 -t 2 -c 5 --key-pattern P:P");
    assert_eq!(shared.stop, Stop::Requests(100));
}

#[test]
fn sizes_of_every_kind() {
    let list = settings("--data-size-list 100:9,1000:1").data_size;
    assert_eq!(list, DataSize::List(vec![(100, 9), (1000, 1)]));
    let log = settings("--data-size-lognormal 200:1.5:100000").data_size;
    assert_eq!(log, DataSize::LogNormal { median: 200.0, sigma: 1.5, maximum: 100_000 });
}

#[test]
fn a_rate_by_connection_is_one_of_all() {
    let limited = settings("--rate-limiting 100 -t 2 -c 5");
    assert_eq!((limited.rate, limited.arrivals), (Some(1000), Arrivals::Bursts));
    assert!(limited.sliding);
    let even = settings("--rate-limiting 100 --arrivals fixed");
    assert_eq!((even.arrivals, even.sliding), (Arrivals::Fixed, false));
}

#[test]
fn errors_name_the_option() {
    for (line, named) in [
        ("--key-pattern R", "--key-pattern R"),
        ("--key-pattern X:R", "two of R Z G S P"),
        ("--key-minimum 5 --key-maximum 4", "--key-minimum 5"),
        (
            "--key-minimum 0 --key-maximum 18446744073709551615",
            "--key-maximum 18446744073709551615: expected a range of fewer than 2^64 keys",
        ),
        ("--data-size-list 100", "--data-size-list 100"),
        ("--data-size-lognormal 0:1", "--data-size-lognormal"),
        ("--rate 0", "--rate 0"),
        ("--print-percentiles 50,101", "--print-percentiles 101"),
        ("--print-percentiles nan", "--print-percentiles NaN"),
        ("-s no.such.host.invalid", "no.such.host.invalid"),
    ] {
        let error = arguments(line).settings().unwrap_err().to_string();
        assert!(error.contains(named), "{line}: {error}");
    }
}

#[test]
fn addresses_of_each_family() {
    for (line, is_v4) in
        [("-4 -s 127.0.0.1", true), ("--ipv4 -s localhost", true), ("-6 -s ::1", false)]
    {
        let address = settings(line).servers[0].address.clone();
        let ServerAddress::Tcp(address) = address else { panic!("{address}") };
        assert_eq!(address.is_ipv4(), is_v4, "{line}");
    }
    let error = arguments("-4 -s ::1").settings().unwrap_err();
    assert!(error.to_string().contains("::1"), "{error}");
}

#[test]
fn steps_need_room_and_time() {
    let line = "-c 10 --clients-start 2 --clients-step 4 --step-duration 5 --test-time 30";
    let steps = Steps { start: 2, step: 4, every: Duration::from_secs(5) };
    assert_eq!(settings(line).steps, Some(steps));
    let error = arguments(&line.replace("-c 10", "-c 2")).settings().unwrap_err();
    assert!(error.to_string().contains("--clients-start 2"), "{error}");
    for without in ["--test-time 30", "--clients-step 4", "--step-duration 5", "--clients-start 2"]
    {
        assert!(common::parse(&line.replace(without, "")).is_err(), "{without}");
    }
}

#[test]
fn options_that_a_search_for_the_highest_rate_cannot_keep_are_refused() {
    let search = "--find-rate 99:1 --test-time 1";
    assert!(common::parse(search).is_ok());
    for option in
        ["-x 3", "--sliding", "--hdr-file-prefix p", "--print-all-runs", "--rate-limiting 5"]
    {
        assert!(common::parse(&format!("{search} {option}")).is_err(), "{option}");
    }
}

#[test]
fn options_of_an_open_loop_are_checked() {
    let settings = |line: &str| common::parse(line).unwrap().settings();
    assert!(settings("--arrivals poisson").is_err());
    assert!(settings("--arrivals poisson --rate 100").is_ok());
    assert!(settings("--arrivals bursts --rate 100").is_err());
    assert!(settings("--arrivals bursts --rate-limiting 100 --sliding").is_ok());
    assert!(settings("--arrivals fixed --rate-limiting 100 --sliding").is_err());
    assert!(settings("--rate 100 --pipeline 10 --reconnect-interval 15").is_err());
    assert!(settings("--rate 100 --pipeline 10 --reconnect-interval 20").is_ok());
    assert!(settings("--pipeline 10 --reconnect-interval 15").is_ok());
}

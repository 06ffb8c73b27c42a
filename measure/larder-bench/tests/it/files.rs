//! The result files of `larder bench`.

use crate::common::{Server, arguments};
use larder_bench::bench;
use serde_json::Value;
use std::path::Path;

fn json(folder: &Path, line: &str) -> Value {
    let path = folder.join("results.json");
    let line = format!("{line} --json-out-file {}", path.display());
    bench(&arguments(&line), &mut Vec::new()).unwrap();
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
#[ignore = "long tier: a load at full speed"]
fn the_json_file_describes_the_run_and_its_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let (memcached, redis) = (Server::memcached(), Server::redis());
    for (protocol, server) in
        [("text", &memcached), ("meta", &memcached), ("binary", &memcached), ("resp", &redis)]
    {
        // On a busy machine, some requests may remain unsent.
        let line = format!(
            "-s 127.0.0.1 -p {} -P {protocol} -t 1 -c 2 --rate 2000 --test-time 1.2 -x 2 -q \
             --print-percentiles 25,99.95 --ratio 1:1 --key-maximum 99 --max-faults 2000",
            server.port
        );
        let results = json(folder.path(), &line);
        let version = results["server_version"].as_str().unwrap();
        assert!(version.contains(|c: char| c.is_ascii_digit()), "{protocol}: {version}");
        assert_eq!(version.starts_with("redis "), protocol == "resp", "{version}");
        assert!(!results["command_line"].as_array().unwrap().is_empty());
        assert_eq!(results["units"]["latency"], "microseconds");
        let runs = results["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 2);
        for run in runs.iter().chain([&results["median"]]) {
            let latency = &run["commands"]["get"]["latency"];
            assert!(latency["deviation"].as_f64().unwrap() > 0.0, "{latency}");
            let percentiles = &run["percentiles"]["get"];
            let [low, high] = ["p25", "p99.95"].map(|name| percentiles[name].as_f64().unwrap());
            assert!(0.0 < low && low <= high, "{percentiles}");
        }
        for run in runs {
            let seconds = run["seconds_of_run"].as_array().unwrap();
            assert!(seconds.len() >= 2, "{seconds:?}");
            let requests = seconds.iter().map(|second| second["requests"].as_u64().unwrap());
            assert_eq!(Some(requests.sum()), run["commands"]["total"]["requests"].as_u64());
            for (number, second) in seconds.iter().enumerate() {
                assert_eq!(second["second"], number);
                let [p50, p99, max] =
                    ["p50", "p99", "max"].map(|name| second[name].as_f64().unwrap());
                assert!(p50 <= p99 && p99 <= max, "{second}");
            }
        }
    }
}

#[test]
fn errors_are_counted_by_second() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::memcached();
    let line = "-t 1 -c 1 -n 7 --ratio 1:0 --data-size 2000000 -q --max-faults 7";
    let results = json(folder.path(), &format!("-s 127.0.0.1 -p {} {line}", server.port));
    let seconds = results["runs"][0]["seconds_of_run"].as_array().unwrap();
    assert_eq!(seconds.iter().map(|second| second["errors"].as_u64().unwrap()).sum::<u64>(), 7);
}

#[test]
fn each_connection_has_a_file_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::memcached();
    let prefix = folder.path().join("client");
    let line = format!(
        "-s 127.0.0.1 -p {} -t 2 -c 3 -n 50 --ratio 2:3 --key-maximum 99 -x 2 -q --fill -d 10 \
         --client-stats {}",
        server.port,
        prefix.display()
    );
    bench(&arguments(&line), &mut Vec::new()).unwrap();
    let files = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(files, 12, "2 runs x 2 threads x 3 connections");
    for (run, thread, number) in [(1, 0, 0), (1, 1, 2), (2, 0, 1)] {
        let path = format!("{}-{run}-{thread}-{number}.csv", prefix.display());
        let text = std::fs::read_to_string(path).unwrap();
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("Per-Second Benchmark Data"));
        let names: Vec<&str> = lines.next().unwrap().split(',').collect();
        let rows: Vec<Vec<f64>> = lines
            .take_while(|line| !line.is_empty())
            .map(|line| line.split(',').map(|figure| figure.parse().unwrap()).collect())
            .collect();
        assert!(rows.iter().all(|row| row.len() == names.len()), "{text}");
        let sum = |name: &str| {
            let column = names.iter().position(|other| *other == name).unwrap();
            rows.iter().map(|row| row[column]).sum::<f64>()
        };
        assert_eq!((sum("SET Requests"), sum("GET Requests")), (20.0, 30.0), "{text}");
        assert_eq!((sum("GET Hits"), sum("GET Misses")), (30.0, 0.0), "{text}");
        assert_eq!(sum("SET Total Bytes RX"), 20.0 * 8.0, "{text}");
        assert!(sum("GET Average Latency") > 0.0, "{text}");
        assert!(text.contains("\nFull-Test GET Latency\nLatency (<= msec),Percent\n"), "{text}");
    }
}

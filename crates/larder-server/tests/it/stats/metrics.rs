//! `--metrics-listen`: the metrics for Prometheus, and robustness against invalid clients.
#![cfg(feature = "metrics")]

use crate::common::{self, Scratch, Server, TIMEOUT, read_some, stat, wait_for};
use nix::sys::signal::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const OPTIONS: [&str; 2] = ["--metrics-listen", "127.0.0.1:0"];

fn larderd() -> Server {
    Server::larderd(&[&OPTIONS[..], &["-t", "2"]].concat())
}

fn connect(server: &Server) -> TcpStream {
    wait_for("port file", || server.scratch.path("ports").exists());
    let ports = server.scratch.read("ports");
    let port = ports.lines().find_map(|line| line.strip_prefix("METRICS INET: ")).unwrap();
    let stream = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Sends a request and reads until the server closes the connection.
fn send(server: &Server, request: &[u8]) -> String {
    let mut stream = connect(server);
    // The server may refuse the request before all of it is sent.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Sends a GET with this `Accept` header. Returns the head of the reply in lower case, and its
/// body.
fn get(server: &Server, accept: &str) -> (String, String) {
    let request = format!("GET /metrics HTTP/1.1\r\nHost: larder\r\nAccept: {accept}\r\n\r\n");
    let answer = send(server, request.as_bytes());
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    (head.to_lowercase(), body.to_owned())
}

/// Returns the samples of a scrape, by name and labels.
fn scrape(server: &Server) -> BTreeMap<String, f64> {
    let (_, text) = get(server, "text/plain");
    let samples = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    });
    samples.collect()
}

fn page(server: &Server, request: &str) -> String {
    server.ask_text(request).replace('\r', "")
}

fn work(server: &Server) {
    let mut requests = String::new();
    for i in 0..50 {
        requests += &format!("set key-{i} 0 0 5\r\nvalue\r\nget key-{i}\r\nget none-{i}\r\n");
    }
    requests += "incr key-1 1\r\ntouch key-2 90\r\ndelete key-3\r\ndelete none\r\nmn\r\n";
    assert!(server.ask_text(&requests).ends_with("MN\r\n"));
}

#[test]
fn counters_equal_those_of_stats() {
    let server = larderd();
    work(&server);
    let (samples, stats) = (scrape(&server), page(&server, "stats\r\n"));
    for (command, result, name) in [
        ("get", "hit", "get_hits"),
        ("get", "miss", "get_misses"),
        ("store", "done", "cmd_set"),
        ("touch", "hit", "touch_hits"),
        ("delete", "hit", "delete_hits"),
        ("delete", "miss", "delete_misses"),
    ] {
        let metric = format!("larder_commands_total{{command=\"{command}\",result=\"{result}\"}}");
        assert_eq!(samples[&metric], stat(&stats, name).parse::<f64>().unwrap(), "{metric}");
        assert!(samples[&metric] > 0.0, "{metric}");
    }
    assert_eq!(samples["larder_items"], 49.0);
    assert_eq!(samples["larder_memory_limit_bytes"], f64::from(64 << 20));
    let build = format!(
        "larder_build_info{{version=\"{}\",memcached=\"1.6.45\"}}",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(samples[&build], 1.0);
    for name in ["process_resident_memory_bytes", "process_open_fds", "process_start_time_seconds"]
    {
        assert!(samples[name] > 1.0, "{name}");
    }
}

#[test]
fn latencies_equal_those_of_stats_and_of_clients() {
    let server = larderd();
    let begun = Instant::now();
    work(&server);
    // The server may count the last poll only after the reply has arrived.
    let counts = page(&server, "stats latency\r\n");
    let seen = begun.elapsed().as_secs_f64();
    let samples = scrape(&server);
    for class in ["get", "store", "delete", "count", "touch"] {
        let of = |part: &str| format!("larder_command_duration_seconds_{part}");
        let count = samples[&format!("{}{{class=\"{class}\"}}", of("count"))];
        assert_eq!(count, stat(&counts, &format!("{class}:count")).parse::<f64>().unwrap());
        let sum = samples[&format!("{}{{class=\"{class}\"}}", of("sum"))];
        assert!(sum > 0.0 && sum / count <= seen, "{class}: {sum} for {count} in {seen}");
        // Sort by bound, because the map sorts the bounds as strings.
        let buckets = samples.iter().filter_map(|(name, value)| {
            let labels = name.strip_prefix(&of("bucket"))?;
            let bound = labels.strip_prefix(&format!("{{class=\"{class}\",le=\""))?;
            Some((bound.strip_suffix("\"}")?.parse::<f64>().unwrap(), *value))
        });
        let mut buckets: Vec<(f64, f64)> = buckets.collect();
        buckets.sort_by(|a, b| a.partial_cmp(b).unwrap());
        assert_eq!((buckets.len(), buckets[25]), (26, (f64::INFINITY, count)), "{buckets:?}");
        assert!(buckets.is_sorted_by_key(|(_, count)| *count), "{buckets:?}");
        let below = |part: f64| buckets.iter().find(|(_, n)| *n >= part * count).unwrap().0;
        assert!(below(0.01) / 2.0 <= sum / count && sum / count <= below(1.0), "{buckets:?}");
    }
    page(&server, "stats reset\r\n");
    let name = "larder_command_duration_seconds_count{class=\"get\"}";
    assert_eq!(scrape(&server)[name], 0.0);
}

/// promtool contains Prometheus's own parser, and also checks names.
#[test]
fn promtool_accepts_the_metrics() {
    let server = larderd();
    work(&server);
    let checked = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = checked else { return };
    let (_, text) = get(&server, "*/*");
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", common::stderr(&output));
    assert_eq!(common::stderr(&output), "");
}

#[test]
fn a_scraper_gets_the_format_of_its_accept_header() {
    let server = larderd();
    let (head, text) = get(&server, "text/html, */*");
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert!(text.contains("\n# TYPE larder_received_bytes_total counter\n"), "{text}");
    let (head, openmetrics) = get(&server, "application/openmetrics-text;version=1.0.0,*/*;q=0.1");
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(openmetrics.contains("\n# TYPE larder_received_bytes counter\n"), "{openmetrics}");
    assert!(openmetrics.ends_with("\n# EOF\n"), "{openmetrics}");
    let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
                    encoding=delimited";
    let (head, body) = get(&server, protobuf);
    assert!(head.contains("content-type: application/vnd.google.protobuf"), "{head}");
    assert!(body.contains("larder_command_duration_seconds"));
}

#[test]
fn only_get_requests_for_metrics_are_answered() {
    let server = larderd();
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: h\r\n\r\n", "404 Not Found"),
        ("GET /metrics HTTP/1.1\r\n\r\n", "400 Bad Request"),
        ("GET /metrics HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400 Bad Request"),
        ("GET /metrics/ HTTP/1.1\r\nHost: h\r\n\r\n", "404 Not Found"),
        (
            "POST /metrics HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
            "405 Method Not Allowed",
        ),
        ("DELETE /metrics HTTP/1.1\r\nHost: h\r\n\r\n", "405 Method Not Allowed"),
        ("GET /metrics?a=b HTTP/1.0\r\n\r\n", "200 OK"),
        ("stats\r\n\r\n", "400 Bad Request"),
        (&format!("GET /metrics HTTP/1.1\r\nA: {}\r\n\r\n", "a".repeat(64 << 10)), "431 "),
    ] {
        let answer = send(&server, request.as_bytes());
        let line = answer.lines().next().unwrap_or_default();
        assert!(line.contains(status), "{line:?} to {:?}", &request[..20]);
        assert!(answer.to_lowercase().contains("allow: get, head") == status.starts_with("405"));
    }
    let head = send(&server, b"HEAD /metrics HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
}

/// Returns the name of each server thread, and its number of voluntary context switches.
fn threads(server: &Server) -> BTreeMap<String, u64> {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
    let threads = tasks.map(|task| {
        let path = task.unwrap().path();
        let status = fs::read_to_string(path.join("status")).unwrap();
        let line =
            |name| status.lines().find_map(|line: &str| line.strip_prefix(name)).unwrap().trim();
        (line("Name:").to_owned(), line("voluntary_ctxt_switches:").parse().unwrap())
    });
    threads.collect()
}

#[test]
fn the_thread_exists_only_with_the_option_and_sleeps_between_scrapes() {
    const THREAD: &str = "larder-metrics";
    assert!(!threads(&Server::larderd(&[])).contains_key(THREAD));
    let server = larderd();
    scrape(&server);
    // Repeat the check, because the thread may still be closing the connection.
    let asleep = |server: &Server| {
        let before = threads(server)[THREAD];
        std::thread::sleep(Duration::from_millis(1500));
        threads(server)[THREAD] == before
    };
    wait_for("sleep", || asleep(&server));
}

#[test]
fn the_environment_and_the_file_can_set_metrics_listen() {
    let server = Server::larderd_with(&[], &[("LARDER_METRICS_LISTEN", "127.0.0.1:0")]);
    assert!(scrape(&server).contains_key("larder_items"));
    let scratch = Scratch::new("metrics");
    let file = scratch.file("larder.toml", "metrics-listen = \"127.0.0.1:0\"\n");
    let server = Server::larderd(&["--config", &file]);
    assert!(scrape(&server).contains_key("larder_items"));
    let output = common::larderd(&["-p", "-1", "--metrics-listen", "no address"]);
    assert_eq!(output.status.code(), Some(71));
    assert!(common::stderr(&output).contains("no address"), "{output:?}");
}

fn open_files(server: &Server) -> usize {
    fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count()
}

/// Opens more connections than the limit allows. Some send nothing, some send half a head or
/// invalid data, and some do not read the reply.
#[test]
fn slow_and_invalid_peers_disturb_neither_scrapes_nor_the_cache() {
    let server = larderd();
    // Use the cache and scrape once before counting the open files, so that all threads are
    // running.
    work(&server);
    scrape(&server);
    let before = open_files(&server);
    let peers: Vec<TcpStream> = (0_usize..200)
        .map(|i| {
            let mut stream = connect(&server);
            let sent: &[u8] = match i % 4 {
                0 => b"",
                1 => b"GET /metrics HTTP/1.1\r\nHost:",
                2 => b"\0\xff\x80 noise \r\n\r\n",
                _ => b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n",
            };
            // The server may have closed the oldest connections.
            let _ = stream.write_all(sent);
            stream
        })
        .collect();
    assert!(scrape(&server)["process_open_fds"] < (before + 64) as f64);
    work(&server);
    // The server closes all of these connections within the timeout.
    wait_for("end of the connections", || open_files(&server) <= before);
    for mut peer in peers {
        // Read until the end of the stream or a reset.
        let mut bytes = [0; 16 << 10];
        while matches!(read_some(&mut peer, &mut bytes), Ok(len) if len > 0) {}
    }
    assert!(scrape(&server).contains_key("larder_items"));
}

#[test]
fn slow_scrapers_do_not_delay_the_stop() {
    for signal in [Signal::SIGTERM, Signal::SIGUSR1] {
        let mut server = larderd();
        let mut slow = connect(&server);
        slow.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
        scrape(&server);
        let begun = Instant::now();
        server.signal(signal);
        assert!(server.ends().success());
        assert!(begun.elapsed() < Duration::from_secs(9), "{signal}: {:?}", begun.elapsed());
    }
}

fn deployed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name)
}

/// Returns the names of Larder's metrics that the dashboard or an alert contains.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("larder_") || word.starts_with("process_")).collect()
}

#[test]
fn the_dashboard_and_the_alerts_use_metrics_that_exist() {
    let documented = fs::read_to_string(deployed("../docs/metrics.md")).unwrap();
    let known = metrics_in(&documented);
    for name in ["prometheus/larder-alerts.yml", "grafana/larder.json"] {
        let text = fs::read_to_string(deployed(name)).unwrap();
        let used = metrics_in(&text);
        assert!(used.len() > 5, "{name}: {used:?}");
        for metric in used {
            let family = metric.strip_suffix("_count").unwrap_or(metric);
            let family = family.strip_suffix("_bucket").unwrap_or(family);
            assert!(known.contains(family), "{name}: {metric} does not exist");
        }
    }
}

#[test]
fn promtool_confirms_each_alert() {
    for (check, file) in [("check", "larder-alerts.yml"), ("test", "larder-alerts.test.yml")] {
        let output = Command::new("promtool")
            .args([check, "rules", file])
            .current_dir(deployed("prometheus"))
            .output();
        let Ok(output) = output else { return };
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}{}", common::stderr(&output));
    }
}

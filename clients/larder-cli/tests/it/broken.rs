//! Tests the output, the result file and the exit status of `larder bench` against failing servers.

use crate::broken_server::{self, Action, BrokenServer};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The output of a finished `larder bench`, and its JSON results.
struct Bench {
    output: Output,
    json: Value,
}

impl Bench {
    fn run(server: &BrokenServer, line: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let json = folder.path().join("results.json");
        Self::finish(start(server, line, &json), &json)
    }

    fn finish(child: Child, json: &Path) -> Self {
        let output = child.wait_with_output().unwrap();
        let json = std::fs::read(json).unwrap_or_default();
        Self { output, json: serde_json::from_slice(&json).unwrap_or_default() }
    }

    fn code(&self) -> Option<i32> {
        self.output.status.code()
    }

    fn table(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    fn message(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// Returns a count from the JSON results, summed over all commands.
    fn total(&self, figure: &str) -> u64 {
        self.json["median"]["commands"]["total"][figure].as_u64().unwrap()
    }

    fn fault(&self, name: &str) -> u64 {
        self.json["median"]["faults"][name].as_u64().unwrap_or(0)
    }
}

fn start(server: &BrokenServer, line: &str, json: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_larder"))
        .args(["bench", "-s", "127.0.0.1", "-q", "--hide-histogram", "--json-out-file"])
        .arg(json)
        .args(["-p", &server.port.to_string()])
        .args(line.split_whitespace())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn sound() -> BrokenServer {
    BrokenServer::start(|request| Action::Send(request.right()))
}

fn failing_every_tenth() -> BrokenServer {
    BrokenServer::start(|request| match request.number % 10 {
        0 => Action::Send(b"SERVER_ERROR out of memory\r\n".to_vec()),
        _ => Action::Send(request.right()),
    })
}

fn wait_for(event: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "{event}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_correct_server_has_no_faults() {
    for line in ["-n 100", "--rate 1000 --test-time 1", "--test-time 1 --fill --key-maximum 99"] {
        let bench = Bench::run(&sound(), &format!("-t 1 -c 1 {line}"));
        assert_eq!(bench.code(), Some(0), "{line}: {}", bench.message());
        assert!(bench.total("requests") >= 100, "{line}");
        let table = bench.table();
        assert!(table.contains("1 thread x 1 connection = 1"), "{table}");
        assert!(!table.contains("FAULT") && !table.contains("EARLY"), "{table}");
    }
}

#[test]
fn the_open_loop_shows_the_requested_and_the_reached_rate() {
    let bench = Bench::run(&sound(), "-t 1 -c 4 --rate 500 --test-time 1");
    let table = bench.table();
    assert!(table.contains("requested 500/s, achieved "), "{table}");
    assert!(table.contains(" 0 never sent, 0 never answered"), "{table}");
    assert!(table.contains("load generator late by p50 "), "{table}");
    assert_eq!(bench.json["median"]["offered"]["due"], 500);
    assert!(bench.json["median"]["offered"]["lateness"]["p99"].is_number());
}

#[test]
fn errors_decide_the_exit_status() {
    let bench = Bench::run(&failing_every_tenth(), "-t 1 -c 1 -n 100");
    assert_eq!(bench.code(), Some(1));
    let message = bench.message();
    assert!(message.contains("10 faults, and --max-faults allows 0"), "{message}");
    assert!(message.contains("10 x SERVER_ERROR out of memory"), "{message}");
    assert_eq!((bench.total("requests"), bench.total("errors")), (90, 10));
    let table = bench.table();
    assert!(table.contains("errors/s"), "{table}");
    assert!(table.contains("FAULT 10 x SERVER_ERROR out of memory"), "{table}");
}

#[test]
fn as_many_faults_as_allowed_do_not_fail_the_run() {
    for (allowed, code) in [(9, 1), (10, 0)] {
        let line = format!("-t 1 -c 1 -n 100 --max-faults {allowed}");
        let bench = Bench::run(&failing_every_tenth(), &line);
        assert_eq!(bench.code(), Some(code), "{}", bench.message());
        assert_eq!(bench.fault("SERVER_ERROR out of memory"), 10);
    }
}

#[test]
fn malformed_replies_and_wrong_values_fail_the_run() {
    let garbled = BrokenServer::start(|_| Action::Send(b"what?\r\n".to_vec()));
    let bench = Bench::run(&garbled, "-t 1 -c 1 -n 10");
    assert_eq!((bench.code(), bench.total("requests"), bench.fault("what?")), (Some(1), 0, 10));
    let halving = BrokenServer::start(|request| match request.get {
        Some(key) if request.items.contains_key(key) => {
            let value = &request.items[key];
            Action::Send(broken_server::hit(key, &value[..value.len() / 2]))
        }
        _ => Action::Send(request.right()),
    });
    let line = "-t 1 -c 1 -n 10 --ratio 0:1 --key-maximum 9 --fill --verify";
    let bench = Bench::run(&halving, line);
    assert_eq!((bench.code(), bench.fault("wrong value")), (Some(1), 10), "{}", bench.message());
}

#[test]
fn unsent_and_unanswered_requests_fail_the_run() {
    let silent = BrokenServer::start(|request| match request.number {
        0..100 => Action::Send(request.right()),
        _ => Action::Ignore,
    });
    let bench = Bench::run(&silent, "-t 1 -c 2 --rate 400 --test-time 1 --timeout 0.9");
    assert_eq!(bench.code(), Some(1));
    assert_eq!(bench.total("requests"), 100);
    assert_eq!((bench.fault("never answered"), bench.fault("never sent")), (2, 298));
    let table = bench.table();
    assert!(table.contains("298 never sent, 2 never answered"), "{table}");
}

#[test]
fn results_are_kept_if_the_server_dies() {
    let dying = BrokenServer::start(|request| match request.number {
        0..500 => Action::Send(request.right()),
        _ => Action::Close,
    });
    let bench = Bench::run(&dying, "-t 2 -c 2 --test-time 60");
    assert_eq!(bench.code(), Some(1));
    assert_eq!((bench.total("requests"), bench.total("never_answered")), (500, 4));
    assert_eq!(bench.json["median"]["lost_connections"], 4);
    let (table, message) = (bench.table(), bench.message());
    assert!(table.contains("LOST 4 of 4 connections"), "{table}");
    assert!(message.contains("all connections were lost"), "{message}");
}

#[test]
fn results_are_kept_if_the_server_answers_nothing() {
    let silent = BrokenServer::start(|_| Action::Ignore);
    let bench = Bench::run(&silent, "-t 1 -c 2 --test-time 60 --timeout 0.5");
    assert_eq!((bench.code(), bench.fault("never answered")), (Some(1), 2));
    let message = bench.message();
    assert!(message.contains("answered nothing for 0.5 s (--timeout)"), "{message}");
}

#[test]
fn the_error_of_a_refusing_server_is_shown() {
    let refusing = BrokenServer::refusing(b"ERROR Too many open connections\r\n");
    let bench = Bench::run(&refusing, "-t 1 -c 2 -n 10");
    assert_eq!(bench.code(), Some(1));
    let message = bench.message();
    assert!(message.contains("ERROR Too many open connections"), "{message}");
}

#[test]
fn a_signal_ends_the_run_and_keeps_the_results() {
    for (signal, line) in [
        (Signal::SIGINT, "--test-time 100"),
        (Signal::SIGTERM, "-n 100000000"),
        (Signal::SIGINT, "--rate 500 --test-time 100 --run-count 3"),
    ] {
        let (server, folder) = (sound(), TempDir::new().unwrap());
        let json = folder.path().join("results.json");
        let child = start(&server, &format!("-t 2 -c 2 {line}"), &json);
        wait_for("the load starts", || server.requests.load(Ordering::Relaxed) > 100);
        // The command `timeout` signals its child and then its process group, so the child receives
        // the signal twice.
        for _ in 0..2 {
            kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
        }
        let bench = Bench::finish(child, &json);
        assert_eq!(bench.code(), Some(1), "{line}");
        assert!(bench.message().contains("interrupted after"), "{line}: {}", bench.message());
        assert!(bench.total("requests") > 90, "{line}");
        assert_eq!(bench.total("never_answered"), 0, "{line}");
        assert!(bench.table().contains("total"), "{}", bench.table());
    }
}

#[test]
fn an_unwritable_path_is_an_error_before_the_run() {
    let folder = TempDir::new().unwrap();
    let missing = folder.path().join("missing");
    for option in ["--out-file", "--json-out-file", "--hdr-file-prefix"] {
        let server = sound();
        let json = folder.path().join("results.json");
        let line = format!("-t 1 -c 1 --test-time 60 {option} {}/x", missing.display());
        let bench = Bench::finish(start_without_json(&server, &line), &json);
        assert_eq!(bench.code(), Some(1), "{option}");
        assert!(bench.message().contains("cannot write"), "{option}: {}", bench.message());
        assert_eq!(server.accepted.load(Ordering::Relaxed), 0, "{option}");
    }
}

fn start_without_json(server: &BrokenServer, line: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_larder"))
        .args(["bench", "-s", "127.0.0.1", "-q", "-p", &server.port.to_string()])
        .args(line.split_whitespace())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_run_that_cannot_start_leaves_no_empty_file() {
    let folder = TempDir::new().unwrap();
    let json: PathBuf = folder.path().join("results.json");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let output = Command::new(env!("CARGO_BIN_EXE_larder"))
        .args(["bench", "-s", "127.0.0.1", "-p", &port.to_string(), "--json-out-file"])
        .arg(&json)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(!json.exists());
}

#[test]
fn the_error_about_too_few_file_descriptors_names_the_limit() {
    let server = sound();
    let output = Command::new("sh")
        .args(["-c", "ulimit -n 40; exec \"$0\" bench -s 127.0.0.1 -p \"$1\" -t 1 -c 100"])
        .arg(env!("CARGO_BIN_EXE_larder"))
        .arg(server.port.to_string())
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(message.contains("of 100: ") && message.contains("ulimit -n"), "{message}");
    assert!(!message.contains("server runs there"), "{message}");
}

/// The server replies to one request at a time, each after 20 ms, so its capacity is at most 50
/// requests per second.
#[test]
fn the_highest_rate_is_within_the_capacity_of_the_server() {
    let delay = Duration::from_millis(20);
    let server = BrokenServer::start(move |request| Action::SendAfter(delay, request.right()));
    let line = "-t 1 -c 1 --test-time 0.4 --find-rate 50:100 --rate 500";
    let bench = Bench::run(&server, line);
    assert_eq!(bench.code(), Some(0), "{}", bench.message());
    let highest = bench.json["highest_per_second"].as_u64().unwrap();
    let fails_at = bench.json["fails_at_per_second"].as_u64().unwrap();
    assert!((1..=100).contains(&highest) && highest < fails_at, "{highest} to {fails_at}");
    let table = bench.table();
    assert!(table.contains(&format!("p50 of at most 100 ms: {highest}/s; ")), "{table}");
    assert!(table.contains("open loop at several rates"), "{table}");
    assert_eq!(bench.json["steps"][0]["passed"], false);
}

#[test]
fn no_rate_is_found_for_a_failing_server() {
    let refusing = BrokenServer::start(|_| Action::Send(b"SERVER_ERROR no\r\n".to_vec()));
    let line = "-t 1 -c 1 --test-time 0.1 --find-rate 99:1000 --rate 4";
    let bench = Bench::run(&refusing, line);
    assert_eq!(bench.code(), Some(1));
    assert!(bench.message().contains("no rate keeps the bound"), "{}", bench.message());
    assert!(bench.json["highest_per_second"].is_null());

    let silent = BrokenServer::start(|_| Action::Ignore);
    let bench = Bench::run(&silent, &format!("{line} --timeout 1"));
    assert_eq!(bench.code(), Some(1), "{}", bench.table());
}

//! Runs during which the server restarts.

use crate::common::{Server, load, parse};
use larder_bench::Outcome;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

const LINE: &str = "-t 2 -c 3 --pipeline 4 --ratio 0:1 --key-minimum 1 --key-maximum 50 --verify \
                    --reconnect-on-error --timeout 20";

/// Durations of the run in seconds. If a run on a busy machine ends before the new server has all
/// items, the test tries a longer run.
const RUN_SECS: [u32; 3] = [3, 20, 120];

#[test]
#[ignore = "long tier: a load at full speed"]
fn a_run_goes_on_when_its_server_is_back() {
    let mut runs = RUN_SECS.into_iter().map(run_over_a_restart);
    let outcome = runs.find(|run| run.interruption.is_some_and(|found| found.hits_after > 0));
    let outcome = outcome.expect("hits after the restart");
    assert!(outcome.faults.is_empty() && outcome.ended_early.is_none(), "{outcome:?}");
    assert_eq!(outcome.lost_connections, 0, "connections were reconnected");
    let interruption = outcome.interruption.unwrap();
    // There are six connections. A reconnected connection can be lost again; this happened once on
    // a busy machine.
    assert!((6..=12).contains(&interruption.lost_connections), "{interruption:?}");
    assert_eq!(outcome.total().never_answered, interruption.lost_requests, "{interruption:?}");
    let (answered, hit) = (interruption.answered_secs.unwrap(), interruption.hit_secs.unwrap());
    assert!(answered > interruption.begun_secs + 0.25 && hit >= answered, "{interruption:?}");
    assert!(interruption.misses_after > 0, "{interruption:?}");
}

/// Runs a load for this many seconds. During the load, an empty server replaces the loaded server
/// and then receives the items.
fn run_over_a_restart(secs: u32) -> Outcome {
    let server = Server::memcached();
    let port = server.port;
    scope(|scope| {
        let line = format!("-s 127.0.0.1 -p {port} {LINE} --fill --test-time {secs}");
        let running = scope.spawn(move || load(&line).outcome);
        server.await_requests(1000);
        let reserved = server.stop();
        sleep(Duration::from_millis(300));
        let again = Server::memcached_at(reserved);
        for key in 1..=50 {
            again.load(&format!(
                "-t 1 -c 1 -n 1 --verify --ratio 1:0 --key-minimum {key} --key-maximum {key}"
            ));
        }
        let outcome = running.join().unwrap();
        drop(again);
        outcome
    })
}

/// If the server is not started again, the run ends.
#[test]
fn a_server_that_stays_away_ends_the_run() {
    let server = Server::memcached();
    let port = server.port;
    let start_time = Instant::now();
    let outcome = scope(|scope| {
        let line = format!("-s 127.0.0.1 -p {port} {LINE} --timeout 1 --test-time 60");
        let running = scope.spawn(move || load(&line).outcome);
        server.await_requests(1000);
        let _reserved = server.stop();
        running.join().unwrap()
    });
    assert!(start_time.elapsed() < Duration::from_secs(30));
    assert!(outcome.ended_early.is_some(), "{outcome:?}");
    assert_eq!(outcome.interruption.unwrap().answered_secs, None);
}

#[test]
fn several_servers_are_refused() {
    let error = parse("-s 127.0.0.1:1,127.0.0.1:2 --reconnect-on-error").unwrap().settings();
    assert!(error.unwrap_err().to_string().contains("reconnect-on-error"));
    assert!(parse("--reconnect-on-error --trace file").is_err());
}

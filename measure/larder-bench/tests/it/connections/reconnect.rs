//! Runs during which the server restarts.

use crate::common::{Server, load, parse};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

const LINE: &str = "-t 2 -c 3 --pipeline 4 --ratio 0:1 --key-minimum 1 --key-maximum 50 --verify \
                    --reconnect-on-error --timeout 20";

#[test]
fn a_run_goes_on_when_its_server_is_back() {
    let server = Server::memcached();
    let port = server.port;
    let outcome = scope(|scope| {
        let line = format!("-s 127.0.0.1 -p {port} {LINE} --fill --test-time 3");
        let running = scope.spawn(move || load(&line).outcome);
        server.await_requests(1000);
        let reserved = server.stop();
        sleep(Duration::from_millis(300));
        let again = Server::memcached_at(reserved);
        // The new server is empty, so set the items again.
        for key in 1..=50 {
            again.load(&format!(
                "-t 1 -c 1 -n 1 --verify --ratio 1:0 --key-minimum {key} --key-maximum {key}"
            ));
        }
        let outcome = running.join().unwrap();
        drop(again);
        outcome
    });
    assert!(outcome.faults.is_empty() && outcome.ended_early.is_none(), "{outcome:?}");
    assert_eq!(outcome.lost_connections, 0, "connections were reconnected");
    let interruption = outcome.interruption.unwrap();
    assert_eq!(interruption.lost_connections, 6, "{interruption:?}");
    assert_eq!(outcome.total().never_answered, interruption.lost_requests, "{interruption:?}");
    let (answered, hit) = (interruption.answered_secs.unwrap(), interruption.hit_secs.unwrap());
    assert!(answered > interruption.begun_secs + 0.25 && hit >= answered, "{interruption:?}");
    assert!(interruption.misses_after > 0 && interruption.hits_after > 0, "{interruption:?}");
}

/// A server that does not come back ends the run.
#[test]
fn a_server_that_stays_away_ends_the_run() {
    let server = Server::memcached();
    let port = server.port;
    let begun = Instant::now();
    let outcome = scope(|scope| {
        let line = format!("-s 127.0.0.1 -p {port} {LINE} --timeout 1 --test-time 60");
        let running = scope.spawn(move || load(&line).outcome);
        server.await_requests(1000);
        let _reserved = server.stop();
        running.join().unwrap()
    });
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert!(outcome.ended_early.is_some(), "{outcome:?}");
    assert_eq!(outcome.interruption.unwrap().answered_secs, None);
}

#[test]
fn several_servers_are_refused() {
    let error = parse("-s 127.0.0.1:1,127.0.0.1:2 --reconnect-on-error").unwrap().settings();
    assert!(error.unwrap_err().to_string().contains("reconnect-on-error"));
    assert!(parse("--reconnect-on-error --trace file").is_err());
}

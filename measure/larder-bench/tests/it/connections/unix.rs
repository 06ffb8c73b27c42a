//! The load over unix sockets.

use crate::common::load;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn connections_are_opened_again_and_added() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("memcached");
    let mut server = Command::new("memcached")
        .args(["-u", "root", "-t", "1", "-s"])
        .arg(&socket)
        .stderr(Stdio::null())
        .spawn()
        .expect("scripts/test installs memcached");
    let start_time = Instant::now();
    while UnixStream::connect(&socket).is_err() {
        assert!(start_time.elapsed() < Duration::from_secs(60), "memcached does not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    let socket = format!("-S {} -t 2 --key-maximum 99 --verify", socket.display());
    let again = load(&format!("{socket} -c 3 -n 100 --reconnect-interval 7 --pipeline 4")).outcome;
    let steps = "--clients-start 1 --clients-step 1 --step-duration 0.2 --test-time 0.7";
    let added = load(&format!("{socket} -c 3 {steps}")).outcome;
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!((again.total().requests, again.faults.len()), (600, 0), "{:?}", again.faults);
    assert!(added.faults.is_empty() && added.ended_early.is_none(), "{added:?}");
}

//! The transcripts of `tests/conformance/`. All cases run against larderd with each engine, with
//! each runtime, and over TLS. A case also runs against memcached if the installed version supports
//! it.
#![expect(clippy::print_stderr, reason = "each try that differs is shown")]

use crate::common::tls::{Client, Secure};
use crate::common::{RUNTIMES, Server};
use larder_model::{Case, Received, Target, Version, read_folder, run};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The maximum time to wait for a reply. A wait takes this long only if the reply is missing or the
/// machine is busy.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The number of attempts for a failing case. The server's clock may tick during a case, which
/// makes a TTL a second shorter.
const ATTEMPTS: usize = 3;

/// A server with the options of a case.
trait TestServer {
    type Peer: Peer;

    fn connect(&self) -> Self::Peer;

    /// Sends requests on a new connection, and returns the replies.
    fn ask(&self, requests: &str) -> String;
}

/// A client connection with a read timeout.
trait Peer: Read + Write {
    /// Shuts down the sending side.
    fn end_input(&mut self);
}

impl TestServer for Server {
    type Peer = TcpStream;

    fn connect(&self) -> TcpStream {
        let stream = Self::connect(self);
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    fn ask(&self, requests: &str) -> String {
        String::from_utf8(Self::ask(self, requests.as_bytes())).unwrap()
    }
}

impl Peer for TcpStream {
    fn end_input(&mut self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

impl TestServer for Secure {
    type Peer = Client;

    fn connect(&self) -> Client {
        let client = Self::connect(self);
        client.sock.set_read_timeout(Some(TIMEOUT)).unwrap();
        client
    }

    fn ask(&self, requests: &str) -> String {
        Self::ask(self, requests)
    }
}

impl Peer for Client {
    fn end_input(&mut self) {
        self.conn.send_close_notify();
        let _ = self.flush();
    }
}

/// A server and the connections of a case.
struct CaseTarget<R: TestServer> {
    server: R,
    peers: BTreeMap<usize, R::Peer>,
}

impl<R: TestServer> CaseTarget<R> {
    fn peer(&mut self, id: usize) -> &mut R::Peer {
        self.peers.entry(id).or_insert_with(|| self.server.connect())
    }
}

impl<R: TestServer> Target for CaseTarget<R> {
    fn reset(&mut self) {
        self.peers.clear();
        assert_eq!(self.server.ask("flush_all\r\nverbosity 0\r\n"), "OK\r\nOK\r\n");
    }

    fn send(&mut self, peer: usize, bytes: &[u8]) {
        // The next read detects a closed connection.
        let _ = self.peer(peer).write_all(bytes);
    }

    fn receive(&mut self, peer: usize, into: &mut Vec<u8>) -> Received {
        let mut bytes = [0; 64 << 10];
        match self.peer(peer).read(&mut bytes) {
            Ok(0) => Received::Closed,
            Ok(len) => {
                into.extend_from_slice(&bytes[..len]);
                Received::Bytes
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Received::Closed,
            Err(_) => Received::Nothing,
        }
    }

    fn end_input(&mut self, peer: usize) {
        self.peer(peer).end_input();
    }

    fn advance(&mut self, secs: u32) {
        // Each server's clock ticks once a second, at a different time.
        std::thread::sleep(Duration::from_secs(u64::from(secs)) + Duration::from_millis(100));
    }
}

fn play(server: impl TestServer, runs: impl Fn(&Case) -> bool) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance");
    let cases = read_folder(&folder).unwrap();
    let mut target = CaseTarget { server, peers: BTreeMap::new() };
    let chosen: Vec<&Case> =
        cases.iter().filter(|case| (!case.needs_clock() || case.sleep) && runs(case)).collect();
    let mut fails = |case: &Case| {
        let outcomes = (0..ATTEMPTS).map_while(|_| run(case, &mut target).err());
        outcomes.inspect(|why| eprintln!("{why}")).nth(ATTEMPTS - 1)
    };
    let failures: Vec<String> = chosen.iter().filter_map(|case| fails(case)).collect();
    let (failed, played) = (failures.len(), chosen.len());
    assert!(failures.is_empty(), "{failed} of {played} cases:\n{}", failures.join("\n"));
    assert!(played > 200, "only {played} cases");
}

/// Runs the cases for all runtimes concurrently, because they mostly wait for clocks.
fn play_all<R: TestServer>(start: impl Fn(&str) -> R + Sync) {
    let start = &start;
    std::thread::scope(|scope| {
        for runtime in RUNTIMES {
            let play = move || play(start(runtime), |_| true);
            std::thread::Builder::new().name(runtime.to_owned()).spawn_scoped(scope, play).unwrap();
        }
    });
}

fn larderd(engine: &[&str]) {
    play_all(|runtime| {
        Server::larderd(&[&["-t", "1", "--runtime", runtime, "--engine"], engine].concat())
    });
}

#[test]
fn larderd_over_segment() {
    larderd(&["segment"]);
}

#[test]
fn larderd_with_delays() {
    larderd(&["delayed"]);
}

#[test]
fn larderd_over_dashmap() {
    larderd(&["dashmap", "-M"]);
}

#[test]
fn larderd_over_moka() {
    larderd(&["moka"]);
}

#[test]
fn larderd_over_tls() {
    play_all(|runtime| {
        Secure::start(&format!("conformance-{runtime}"), &["--runtime", runtime], "")
    });
}

/// Checks the cases themselves: memcached must send the expected replies.
#[test]
fn memcached() {
    let server = Server::memcached(&["-t", "1"]).expect("memcached; scripts/test installs it");
    let version = installed();
    play(server, |case| case.larder.is_none() && case.since.is_none_or(|since| since <= version));
}

fn installed() -> Version {
    let output = Command::new("memcached").arg("-V").output().unwrap().stdout;
    let numbers: Vec<u32> = String::from_utf8_lossy(&output)
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .collect();
    numbers[..3].try_into().unwrap()
}

//! The transcripts of `conformance/`, against larderd under each engine, and against memcached as
//! far as the installed one has what a case needs.

mod common;

use common::Server;
use larder_model::{Case, Received, Target, Version, read_folder, run};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// How long an answer is waited for: only what does not conform takes so long.
const PATIENCE: Duration = Duration::from_secs(3);

/// A server with the peers of a case.
struct Running {
    server: Server,
    peers: BTreeMap<usize, TcpStream>,
}

impl Running {
    fn peer(&mut self, id: usize) -> &mut TcpStream {
        self.peers.entry(id).or_insert_with(|| {
            let stream = self.server.connect();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream
        })
    }
}

impl Target for Running {
    fn reset(&mut self) {
        self.peers.clear();
        assert_eq!(self.server.ask(b"flush_all\r\nverbosity 0\r\n"), b"OK\r\nOK\r\n");
    }

    fn send(&mut self, peer: usize, bytes: &[u8]) {
        // A server that hung up is found out by reading.
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
        let _ = self.peer(peer).shutdown(Shutdown::Write);
    }

    fn advance(&mut self, secs: u32) {
        // The clock of a server ticks once a second, at its own moment.
        std::thread::sleep(Duration::from_secs(u64::from(secs)) + Duration::from_millis(100));
    }
}

fn play(server: Server, runs: impl Fn(&Case) -> bool) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance");
    let cases = read_folder(&folder).unwrap();
    let mut target = Running { server, peers: BTreeMap::new() };
    let chosen: Vec<&Case> =
        cases.iter().filter(|case| (!case.needs_clock() || case.sleep) && runs(case)).collect();
    let failures: Vec<String> =
        chosen.iter().filter_map(|case| run(case, &mut target).err()).collect();
    let (failed, played) = (failures.len(), chosen.len());
    assert!(failures.is_empty(), "{failed} of {played} cases:\n{}", failures.join("\n"));
    assert!(played > 200, "only {played} cases");
}

fn larderd(engine: &[&str]) {
    play(Server::larderd(&[&["-t", "1", "--engine"], engine].concat()), |_| true);
}

#[test]
fn larderd_over_segment() {
    larderd(&["segment"]);
}

#[test]
fn larderd_over_dashmap() {
    larderd(&["dashmap", "-M"]);
}

#[test]
fn larderd_over_moka() {
    larderd(&["moka"]);
}

/// Cases that the judge itself gets wrong test nothing.
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

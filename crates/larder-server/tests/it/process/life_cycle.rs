//! Signals and the end of connections.

use crate::common::{Server, wait_for};
use nix::sys::signal::Signal;
use std::io::{Read, Write};
use std::net::Shutdown;

#[test]
fn signals_end_the_server_with_open_connections() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut server = Server::larderd(&["-t", "2"]);
        let idle: Vec<_> = (0..20).map(|_| server.connect()).collect();
        assert_eq!(server.ask(b"mn\r\n"), b"MN\r\n");
        server.signal(signal);
        assert_eq!(server.ends().code(), Some(0), "{signal}");
        for mut connection in idle {
            assert_eq!(connection.read_to_end(&mut Vec::new()).unwrap_or(0), 0, "closed");
        }
    }
}

#[test]
fn sighup_does_not_end_the_server() {
    let server = Server::larderd(&["-v"]);
    server.signal(Signal::SIGHUP);
    wait_for("its handling", || server.said().contains("SIGHUP: reloading"));
    assert_eq!(server.ask(b"mn\r\n"), b"MN\r\n");
}

/// Sends the signal as soon as the server has written its port file.
#[test]
fn sighup_during_the_start_does_not_end_the_server() {
    for _ in 0..10 {
        let server = Server::larderd(&[]);
        server.signal(Signal::SIGHUP);
        assert_eq!(server.ask_text("mn\r\n"), "MN\r\n");
    }
}

#[test]
fn a_half_closed_connection_gets_every_reply() {
    let server = Server::larderd(&["-t", "1"]);
    let value = "v".repeat(3000);
    let mut requests = format!("set a 0 0 3000\r\n{value}\r\n");
    requests.push_str(&"get a\r\n".repeat(2000));
    let answer = server.ask(requests.as_bytes());
    let expected =
        "STORED\r\n".len() + 2000 * (format!("VALUE a 0 3000\r\n{value}\r\nEND\r\n").len());
    assert_eq!(answer.len(), expected);
}

#[test]
fn an_incomplete_request_at_the_end_is_dropped() {
    let server = Server::larderd(&["-t", "1"]);
    assert_eq!(server.ask(b"mn\r\nset a 0 0 10\r\nabc"), b"MN\r\n");
    assert_eq!(server.ask(b"get a\r\n"), b"END\r\n");
}

/// One worker serves a long pipeline and a second connection.
#[test]
fn a_long_pipeline_does_not_starve_other_connections() {
    let server = Server::larderd(&["-t", "1", "-R", "10"]);
    let mut busy = server.connect();
    let mut reading = busy.try_clone().unwrap();
    let writer = std::thread::spawn(move || {
        let many = b"mn\r\n".repeat(10_000);
        let sent = (0..50).all(|_| busy.write_all(&many).is_ok());
        let _ = busy.shutdown(Shutdown::Write);
        sent
    });
    let reader = std::thread::spawn(move || {
        let mut answers = Vec::new();
        reading.read_to_end(&mut answers).unwrap();
        answers.len()
    });
    let mut other = server.connect();
    for _ in 0..50 {
        other.write_all(b"mg a\r\n").unwrap();
        let mut answer = [0; 4];
        other.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"EN\r\n");
    }
    assert!(writer.join().unwrap());
    assert_eq!(reader.join().unwrap(), 50 * 10_000 * 4);
    let stats = String::from_utf8(server.ask(b"stats\r\n")).unwrap();
    let yields = stats.lines().find_map(|line| line.strip_prefix("STAT conn_yields "));
    assert!(yields.unwrap().parse::<u64>().unwrap() > 1000, "{yields:?}");
}

//! Tests that the breaker opens after faults, and closes when the server works again.

use super::{MILLIS, at, each_client, kind};
use crate::common::{Action, FakeServer};
use larder_client::{Error, ErrorKind};
use socket2::{Domain, Socket, Type};
use std::cell::RefCell;
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Instant;

#[test]
fn the_breaker_opens_for_an_unreachable_server_and_closes_when_it_is_back() {
    each_client(|client| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let client = client(at(port)).build().unwrap();
        for _ in 0..5 {
            let error = client.set("a", "1", 0).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::Connect(_)) && !error.is_ambiguous(),
                "{error}"
            );
        }
        assert!(matches!(kind(client.get("a")), ErrorKind::Unavailable { .. }));
        let _server =
            FakeServer::at(TcpListener::bind(("127.0.0.1", port)).unwrap(), |_| Action::Reply);
        let back = Instant::now();
        while client.get("a").is_err() {
            thread::sleep(MILLIS(5));
        }
        assert!(back.elapsed() < MILLIS(2000), "{:?}", back.elapsed());
    });
}

/// Returns the last fault that the error of an open breaker contains.
fn cause(error: &Error) -> Option<&ErrorKind> {
    match error.kind() {
        ErrorKind::Unavailable { cause, .. } => Some(cause),
        _ => None,
    }
}

#[test]
fn the_error_of_an_open_breaker_contains_the_last_fault() {
    each_client(|client| {
        let server = FakeServer::start(|request| match request.number {
            0..5 => Action::Send(b"what?\r\n".to_vec()),
            _ => Action::Close,
        });
        let client = client(at(server.port)).build().unwrap();
        for _ in 0..5 {
            assert!(matches!(kind(client.get("a")), ErrorKind::Unexpected(_)));
        }
        let error = client.set("a", "1", 0).unwrap_err();
        assert!(matches!(cause(&error), Some(ErrorKind::Unexpected(_))), "{error}");
        assert!(error.is_fault() && !error.is_ambiguous());
        let text = error.to_string();
        assert!(text.starts_with(&at(server.port)) && text.contains("what?"), "{text}");
        // The next probe fails because the server closes connections.
        let probe = || loop {
            let error = client.get("a").unwrap_err();
            match cause(&error) {
                Some(_) => thread::sleep(MILLIS(1)),
                None => break error,
            }
        };
        assert!(matches!(probe().kind(), ErrorKind::Closed));
        let error = client.get("a").unwrap_err();
        assert!(matches!(cause(&error), Some(ErrorKind::Closed)), "{error}");
    });
}

/// Checks how long clients take to detect that a server works again after a long outage. At the end
/// of the outage, the pauses between probes have reached their maximum.
#[test]
fn a_server_is_found_within_two_seconds_after_a_long_outage() {
    let clients = RefCell::new(Vec::new());
    each_client(|client| {
        // Until the socket listens, the port is reserved, and the system refuses connections to it.
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        clients.borrow_mut().push((client(address.to_string()).build().unwrap(), socket));
    });
    thread::scope(|scope| {
        for (client, socket) in clients.take() {
            scope.spawn(move || {
                let mut attempts = 0;
                while attempts < 10 {
                    match kind(client.get("a")) {
                        ErrorKind::Connect(_) => attempts += 1,
                        ErrorKind::Unavailable { .. } => thread::sleep(MILLIS(1)),
                        other => panic!("{other}"),
                    }
                }
                socket.listen(128).unwrap();
                let _server = FakeServer::at(socket.into(), |_| Action::Reply);
                let back = Instant::now();
                while client.get("a").is_err() {
                    thread::sleep(MILLIS(1));
                }
                assert!(back.elapsed() < MILLIS(2000), "{:?}", back.elapsed());
            });
        }
    });
}

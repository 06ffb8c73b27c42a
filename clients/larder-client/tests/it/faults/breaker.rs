//! Servers that fail are left alone, and found again.

use super::{MILLIS, at, each_face, kind};
use crate::common::{Action, Fake};
use larder_client::{Error, ErrorKind};
use socket2::{Domain, Socket, Type};
use std::cell::RefCell;
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Instant;

#[test]
fn a_server_that_is_gone_is_left_alone_and_found_again() {
    each_face(|client| {
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
        let _server = Fake::at(TcpListener::bind(("127.0.0.1", port)).unwrap(), |_| Action::Right);
        let back = Instant::now();
        while client.get("a").is_err() {
            thread::sleep(MILLIS(5));
        }
        assert!(back.elapsed() < MILLIS(2000), "{:?}", back.elapsed());
    });
}

/// Why the server failed, if it is left alone.
fn cause(error: &Error) -> Option<&ErrorKind> {
    match error.kind() {
        ErrorKind::Unavailable { cause, .. } => Some(cause),
        _ => None,
    }
}

#[test]
fn a_server_that_is_left_alone_says_how_it_failed_last() {
    each_face(|client| {
        let server = Fake::start(|request| match request.number {
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
        // Those who try again find out that it closes connections.
        let attempt = || loop {
            let error = client.get("a").unwrap_err();
            match cause(&error) {
                Some(_) => thread::sleep(MILLIS(1)),
                None => break error,
            }
        };
        assert!(matches!(attempt().kind(), ErrorKind::Closed));
        let error = client.get("a").unwrap_err();
        assert!(matches!(cause(&error), Some(ErrorKind::Closed)), "{error}");
    });
}

/// By then the pauses between attempts are as long as they get.
#[test]
fn a_server_that_was_gone_for_long_is_found_within_two_seconds() {
    let clients = RefCell::new(Vec::new());
    each_face(|client| {
        // Until it listens, the port is kept and connections are refused.
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
                let _server = Fake::at(socket.into(), |_| Action::Right);
                let back = Instant::now();
                while client.get("a").is_err() {
                    thread::sleep(MILLIS(1));
                }
                assert!(back.elapsed() < MILLIS(2000), "{:?}", back.elapsed());
            });
        }
    });
}

//! Logins of larder-client at larderd, at Debian's memcached, and at servers that misbehave.

use super::fake_server::{Fake, LONG, MILLIS, NewClient, at, reason, tls, with_tls};
use crate::any_client::{AnyClient, each_client};
use crate::common::tls::Secure;
use crate::common::{Scratch, Server};
use larder_client::{Error, ErrorKind, StoreOutcome};
use std::io::Read;
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;

const PASSWORDS: &str = "ann:first\nbob:seco:nd";

/// Starts larderd and memcached, both of which require logins.
fn with_logins() -> [(Scratch, Server); 2] {
    let scratch = || {
        let scratch = Scratch::new("client-logins");
        let file = scratch.file("logins", PASSWORDS);
        (scratch, file)
    };
    let ((ours, our_file), (theirs, their_file)) = (scratch(), scratch());
    [
        (ours, Server::larderd(&["-Y", &our_file])),
        (theirs, Server::memcached(&["-Y", &their_file]).expect("Debian's memcached is installed")),
    ]
}

fn logged_in(
    client: NewClient<'_>,
    port: u16,
    user: &str,
    password: &str,
) -> Result<AnyClient, Error> {
    client(at(port)).login(user, password).timeout(LONG).connect_timeout(LONG).build()
}

#[test]
fn logins() {
    for (_scratch, server) in with_logins() {
        each_client(|client| {
            for (user, password) in [("ann", "first"), ("bob", "seco:nd")] {
                let client = logged_in(client, server.port(), user, password).unwrap();
                thread::scope(|scope| {
                    for n in 0..8 {
                        let (client, key) = (&client, format!("{user}{n}"));
                        scope.spawn(move || {
                            client.set(&key, &key, 0).unwrap();
                            assert_eq!(client.get(&key).unwrap().unwrap(), key);
                        });
                    }
                });
            }
        });
    }
}

#[test]
fn a_refused_login_is_a_distinct_error_without_the_password() {
    for (_scratch, server) in with_logins() {
        each_client(|client| {
            for (user, password) in [("ann", "hush-hush"), ("eve", "hush-hush"), ("bob", "seco")] {
                let client = logged_in(client, server.port(), user, password).unwrap();
                // Repeat the call more often than the number of faults that opens the circuit
                // breaker.
                for _ in 0..7 {
                    let error = client.set("k", "1", 0).unwrap_err();
                    assert!(matches!(error.kind(), ErrorKind::Login(_)), "{error:?}");
                    assert!(!error.is_ambiguous() && !error.is_fault());
                    let shown = format!("{error} {error:?} {client:?}");
                    assert!(shown.contains("authentication failure"), "{error}");
                    assert!(!shown.contains(password), "{shown}");
                }
                assert_eq!(client.connections().0, 0);
            }
            let builder = client(at(server.port())).login("ann", "hush-hush").degrade(true);
            assert!(!format!("{builder:?}").contains("hush-hush"));
            assert!(builder.build().unwrap().get("k").is_err(), "it is no miss");
            let no_name = logged_in(client, server.port(), "an n", "first").unwrap_err();
            assert!(matches!(no_name.kind(), ErrorKind::Login(_)), "{no_name}");
        });
    }
}

#[test]
fn a_server_without_logins_stores_no_password() {
    let memcached = Server::memcached(&[]).expect("Debian's memcached is installed");
    for server in [Server::larderd(&[]), memcached] {
        each_client(|client| {
            let client = logged_in(client, server.port(), "ann", "first").unwrap();
            assert_eq!(client.set("k", "1", 0).unwrap(), StoreOutcome::Stored);
            assert_eq!(client.get("k").unwrap().unwrap(), "1");
            assert_eq!(client.get("login").unwrap(), None);
        });
    }
}

#[test]
fn a_login_over_tls() {
    let scratch = Scratch::new("client-login");
    let file = scratch.file("logins", PASSWORDS);
    let secure = Secure::start("client-login", &["-Y", &file], "");
    let (port, tls) = (secure.server.port(), || tls(&secure.server.scratch));
    each_client(|client| {
        let with = |password| {
            let builder = with_tls(client(at(port)), tls()).login("ann", password);
            builder.timeout(LONG).connect_timeout(LONG).build().unwrap()
        };
        assert_eq!(with("first").set("k", "1", 0).unwrap(), StoreOutcome::Stored);
        let error = with("second").get("k").unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Login(_)), "{error}");
    });
}

#[test]
fn an_invalid_reply_to_a_login_is_an_error() {
    let silent = Fake::start(Arc::new(|_, mut stream: TcpStream| {
        drop(stream.read_to_end(&mut Vec::new()));
    }));
    let echoing = Fake::start(Arc::new(|_, stream: TcpStream| {
        drop(std::io::copy(&mut &stream, &mut &stream));
    }));
    let closing = Fake::start(Arc::new(|_, mut stream: TcpStream| {
        drop(stream.read(&mut [0; 4096]));
    }));
    each_client(|client| {
        for (server, time, expected) in [
            (&silent, MILLIS(200), "no reply to the login by the deadline"),
            (&echoing, LONG, "neither STORED nor CLIENT_ERROR"),
            (&closing, LONG, "closed by the server during the login"),
        ] {
            let client = client(at(server.port)).login("ann", "hush-hush");
            let client = client.timeout(LONG).connect_timeout(time).build().unwrap();
            let error = client.get("k").unwrap_err();
            assert!(reason(&error).contains(expected), "{error}");
            assert!(!format!("{error:?}").contains("hush"), "{error:?}");
        }
    });
}

//! larder-client over TLS with servers that misbehave.

use super::fake_server::{
    Fake, LONG, MILLIS, at, hasty, patient, reason, reset, right, scratch_with_ca, tls, with_tls,
};
use crate::any_client::{each_client, each_pool};
use crate::common::tls::Secure;
use crate::common::{Scratch, Server, wait_for};
use larder_client::{ErrorKind, Interrupted, WaitCondition, Waiter, blocking};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn without_a_handshake_calls_fail_at_their_deadline_and_send_no_request() {
    let scratch = scratch_with_ca();
    each_client(|client| {
        let seen: Arc<Mutex<Vec<u8>>> = Arc::default();
        let sees = Arc::clone(&seen);
        let server = Fake::start(Arc::new(move |_, mut stream: TcpStream| {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = stream.read(&mut bytes) {
                sees.lock().unwrap().extend_from_slice(&bytes[..len]);
            }
        }));
        let builder = with_tls(client(at(server.port)), tls(&scratch)).login("ann", "secret");
        let client = builder.timeout(LONG).connect_timeout(MILLIS(200)).build().unwrap();
        let times = (0..3).map(|_| {
            let begun = Instant::now();
            let error = client.set("the-key", "the-value", 0).unwrap_err();
            assert!(reason(&error).contains("no TLS handshake by the deadline"), "{error}");
            begun.elapsed().checked_sub(MILLIS(200)).expect("not before the deadline")
        });
        // A busy machine may wake a thread late, but it is unlikely to do so in every attempt.
        let earliest = times.min().unwrap();
        assert!(earliest < MILLIS(150), "{earliest:?}");
        let seen = seen.lock().unwrap();
        assert_eq!(seen.first(), Some(&22), "a handshake");
        for secret in ["the-", "secret", "ann"] {
            assert!(!seen.windows(secret.len()).any(|part| part == secret.as_bytes()));
        }
    });
}

#[test]
fn calls_fail_if_only_one_side_uses_tls() {
    let scratch = scratch_with_ca();
    let larderd = Server::larderd(&[]);
    let garbage = Fake::start(Arc::new(|_, mut stream: TcpStream| {
        drop(stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
        drop(stream.read_to_end(&mut Vec::new()));
    }));
    let closes = Fake::start(Arc::new(|_, mut stream: TcpStream| {
        drop(stream.read(&mut [0; 4096]));
        drop(stream.shutdown(Shutdown::Write));
        drop(stream.read_to_end(&mut Vec::new()));
    }));
    each_client(|client| {
        for (port, expected) in [
            (larderd.port(), "the server does not speak TLS"),
            (garbage.port, "the server does not speak TLS"),
            (closes.port, "closed by the server during the TLS handshake"),
        ] {
            let error = patient(client, port, tls(&scratch)).set("k", "1", 0).unwrap_err();
            assert!(reason(&error).contains(expected), "{error}");
        }
        // A client without TLS must also fail at a server with TLS.
        let secure = Secure::start("client-plain", &[], "");
        let plain = client(at(secure.server.port())).build().unwrap();
        assert!(plain.get("k").unwrap_err().is_fault());
    });
}

/// A proxy resets the first connection after forwarding some of the server's bytes. The reset cuts
/// records at different offsets.
#[test]
fn a_reset_in_the_middle_of_a_record_is_an_error_and_the_next_call_has_a_new_connection() {
    let secure = Secure::start("client-cut", &[], "");
    let (port, scratch) = (secure.server.port(), &secure.server.scratch);
    let value = "v".repeat(100_000);
    each_client(|client| {
        patient(client, port, tls(scratch)).set("key", &value, 0).unwrap();
        let mut failures = 0;
        for cut in (1..110_000).step_by(9973).chain([3, 200, 2000]) {
            let proxy = Fake::start(Arc::new(move |number, near: TcpStream| {
                let mut far = TcpStream::connect(("127.0.0.1", port)).unwrap();
                let (mut from, mut to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                thread::spawn(move || {
                    drop(std::io::copy(&mut from, &mut to));
                    drop(to.shutdown(Shutdown::Both));
                });
                let limit = if number == 0 { cut } else { u64::MAX };
                drop(std::io::copy(&mut Read::by_ref(&mut far).take(limit), &mut &near));
                if number == 0 {
                    reset(&near);
                }
                drop(far.shutdown(Shutdown::Both));
                drop(near.shutdown(if number == 0 { Shutdown::Read } else { Shutdown::Both }));
            }));
            let client = patient(client, proxy.port, tls(scratch));
            match client.get("key") {
                // The complete reply arrived before the reset.
                Ok(found) => assert_eq!(found.unwrap(), value),
                Err(error) => {
                    assert!(error.is_fault() && !error.is_ambiguous(), "{error}");
                    failures += 1;
                }
            }
            assert_eq!(client.get("key").unwrap().unwrap(), value, "{cut}");
        }
        assert!(failures >= 12, "{failures}");
    });
}

#[test]
fn a_connection_with_an_unexpected_reply_is_not_used_again() {
    each_client(|client| {
        for unasked in ["END\r\n", "VALUE b 0 1\r\nx\r\nEND\r\n"] {
            let scratch = Scratch::new("client-unasked");
            // A counter that makes client and server alternate: the client continues while it is
            // even, and the server while it is odd.
            let turns: Arc<AtomicU64> = Arc::default();
            let turn = Arc::clone(&turns);
            let server = Fake::with_tls(&scratch, move |_, _, line, stream| {
                stream.write_all(right(line).as_bytes()).unwrap();
                wait_for("the client", || turn.load(Ordering::Acquire) % 2 == 1);
                let sent = stream.write_all(unasked.as_bytes());
                turn.fetch_add(1, Ordering::Release);
                sent.is_ok()
            });
            let client = patient(client, server.port, tls(&scratch));
            for key in ["a", "b", "c"] {
                assert_eq!(client.get(key).unwrap().unwrap(), key);
                turns.fetch_add(1, Ordering::Release);
                wait_for("the server", || turns.load(Ordering::Acquire).is_multiple_of(2));
            }
            assert_eq!(server.accepted(), 3);
        }
    });
}

#[test]
fn a_tls_message_does_not_close_a_connection_but_a_close_notify_does() {
    each_client(|client| {
        let scratch = Scratch::new("client-quiet");
        let server = Fake::with_tls(&scratch, |connection, number, line, stream| {
            stream.write_all(right(line).as_bytes()).unwrap();
            // The client replies to a key update with its own key update.
            stream.conn.refresh_traffic_keys().unwrap();
            stream.flush().unwrap();
            if connection == 0 && number == 9 {
                stream.conn.send_close_notify();
                stream.flush().unwrap();
            }
            true
        });
        let client = patient(client, server.port, tls(&scratch));
        for n in 0..10 {
            let key = format!("key{n}");
            assert_eq!(client.get(&key).unwrap().unwrap(), key);
            thread::sleep(MILLIS(5));
        }
        assert_eq!(server.accepted(), 1);
        for _ in 0..5 {
            assert_eq!(client.get("more").unwrap().unwrap(), "more");
            thread::sleep(MILLIS(5));
        }
        assert_eq!(server.accepted(), 2);
    });
}

#[test]
fn deadlines_are_kept_after_the_handshake() {
    each_pool(|client| {
        let scratch = Scratch::new("client-late");
        let server = Fake::with_tls(&scratch, |_, number, line, stream| {
            match number {
                0 => stream.write_all(right(line).as_bytes()).unwrap(),
                // Send the value one byte at a time.
                1 => {
                    let announced = stream.write_all(b"VALUE a 0 1000000\r\n");
                    let dripped = |_| {
                        thread::sleep(MILLIS(2));
                        stream.write_all(b"v").is_ok()
                    };
                    announced.unwrap();
                    assert!(!(0..30_000).all(dripped), "the client gives up");
                }
                _ => (),
            }
            true
        });
        let client = hasty(client, server.port, tls(&scratch));
        assert_eq!(client.get("a").unwrap().unwrap(), "a");
        let begun = Instant::now();
        let error = client.get("a").unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Timeout), "{error}");
        assert!((MILLIS(1000)..MILLIS(5000)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        assert_eq!(client.get("b").unwrap().unwrap(), "b");
        assert_eq!(server.accepted(), 2);
    });
}

/// A client that gives up while sending a request must never send the rest of the request, even
/// when it closes the connection.
#[test]
fn a_request_that_is_given_up_before_its_end_is_not_completed() {
    each_client(|client| {
        let scratch = Scratch::new("client-half");
        let (read, has_given_up) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counts, given_up) = (Arc::clone(&read), Arc::clone(&has_given_up));
        let server = Fake::with_tls(&scratch, move |_, _, line, stream| {
            assert!(line.starts_with("set k 0 0 20000000"), "{line:?}");
            wait_for("the client", || given_up.load(Ordering::Acquire));
            let mut rest = Vec::new();
            drop(stream.read_to_end(&mut rest));
            counts.store(rest.len() as u64 + 1, Ordering::Relaxed);
            false
        });
        let client = hasty(client, server.port, tls(&scratch));
        let error = client.set("k", "v".repeat(20_000_000), 0).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Timeout), "{error}");
        has_given_up.store(true, Ordering::Release);
        wait_for("the end", || read.load(Ordering::Relaxed) > 0);
        assert!(read.load(Ordering::Relaxed) < 20_000_000, "{read:?}");
    });
}

/// A waiter that counts waits. If `left` is set, the first `left` waits are normal, and all later
/// ones are interrupted.
#[derive(Debug, Default)]
struct Counting {
    waits: AtomicU64,
    left: Option<u64>,
}

impl Waiter for Counting {
    fn wait(&self, waiting: &mut WaitCondition<'_>, time: Duration) -> Result<(), Interrupted> {
        let before = self.waits.fetch_add(1, Ordering::Relaxed);
        if self.left.is_some_and(|left| before >= left) {
            return Err(Interrupted);
        }
        waiting.poll(time);
        Ok(())
    }
}

#[test]
fn a_waiter_decides_how_threads_wait_in_the_handshake_and_afterwards() {
    let scratch = Scratch::new("client-waiter");
    let server = Fake::with_tls(&scratch, |_, _, line, stream| {
        thread::sleep(MILLIS(20));
        stream.write_all(right(line).as_bytes()).is_ok()
    });
    let client = |port, waiter: &Arc<Counting>| {
        let builder = blocking::Client::builder(at(port)).tls(tls(&scratch));
        builder.timeout(LONG).connect_timeout(LONG).waiter(waiter.clone()).build().unwrap()
    };
    let waiter = Arc::new(Counting::default());
    let patient = client(server.port, &waiter);
    assert_eq!(patient.get("first").unwrap().unwrap(), "first");
    let before = waiter.waits.load(Ordering::Relaxed);
    for _ in 0..10 {
        assert_eq!(patient.get("key").unwrap().unwrap(), "key");
    }
    assert!(waiter.waits.load(Ordering::Relaxed) > before);
    let silent = Fake::start(Arc::new(|_, mut stream: TcpStream| {
        drop(stream.read_to_end(&mut Vec::new()));
    }));
    // Interrupt the first or the second wait. One of these waits is part of the handshake.
    for left in 0..2 {
        let waiter = Arc::new(Counting { left: Some(left), ..Counting::default() });
        let error = client(silent.port, &waiter).get("k").unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Interrupted), "{left}: {error}");
    }
}

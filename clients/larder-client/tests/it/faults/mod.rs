//! What the client does when a server misbehaves: typed errors, deadlines that are kept, and nobody's value for another.

mod breaker;

use crate::common::any_client::{self, FaceBuilder};
use crate::common::{Action, Fake};
use larder_client::{
    Builder, Counted, Error, ErrorKind, Interrupted, Stored, Ttl, Waiter, Waiting, blocking,
};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const MILLIS: fn(u64) -> Duration = Duration::from_millis;

fn at(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// Runs a test with each kind of client; calls end after 200 ms.
fn each_face(test: impl Fn(&dyn Fn(String) -> FaceBuilder)) {
    any_client::each_face(|client| test(&|address| client(address).timeout(MILLIS(200))));
}

/// Runs a test with each kind of client that has a pool.
fn each_pool(test: impl Fn(&dyn Fn(String) -> FaceBuilder)) {
    any_client::each_pool(|client| test(&|address| client(address).timeout(MILLIS(200))));
}

fn threads(port: u16) -> Builder<blocking::Client> {
    blocking::Client::builder(at(port)).timeout(MILLIS(200))
}

fn kind<T: std::fmt::Debug>(called: Result<T, Error>) -> ErrorKind {
    called.unwrap_err().kind().clone()
}

#[test]
fn a_call_to_a_silent_server_is_over_by_its_deadline() {
    each_face(|client| {
        let server = Fake::start(|_| Action::Silence);
        let client = client(at(server.port)).build().unwrap();
        let late = |call: &dyn Fn() -> Error, is_ambiguous| {
            let begun = Instant::now();
            let error = call();
            assert!(matches!(error.kind(), ErrorKind::Timeout), "{error}");
            assert_eq!(error.is_ambiguous(), is_ambiguous);
            begun.elapsed().checked_sub(MILLIS(200)).expect("not before the deadline")
        };
        // A busy machine may wake a thread late, but hardly each time.
        let gets = (0..2).map(|_| late(&|| client.get("a").unwrap_err(), false));
        let sets = (0..2).map(|_| late(&|| client.set("a", "1", 0).unwrap_err(), true));
        let earliest = gets.chain(sets).min().unwrap();
        assert!(earliest < MILLIS(10), "{earliest:?}");
    });
}

#[test]
fn an_answer_that_comes_late_is_nobody_s() {
    each_face(|client| {
        let server = Fake::start(|request| match request.number % 3 {
            0 => Action::Late(MILLIS(300)),
            _ => Action::Right,
        });
        let client = client(at(server.port)).connections(1).build().unwrap();
        for n in 0..9 {
            let key = format!("key{n}");
            match client.get(&key) {
                Ok(value) => assert_eq!(value.unwrap(), key),
                Err(error) => assert!(matches!(error.kind(), ErrorKind::Timeout), "{error}"),
            }
        }
    });
}

#[test]
fn garbage_is_an_error_and_the_next_call_has_a_new_connection() {
    each_face(|client| {
        for garbage in [
            "what?\r\n",
            "VALUE key 0 x\r\n",
            "VALUE other 0 1\r\nx\r\nEND\r\n",
            "END\r\nEND\r\n",
            "VALUE key 0 3\r\nkeyxxEND\r\n",
            "\0\0\0\r\n",
            "STORED\r\n",
        ] {
            let server = Fake::start(move |request| match request.number {
                0 => Action::Send(garbage.into()),
                _ => Action::Right,
            });
            let client = client(at(server.port)).build().unwrap();
            assert!(matches!(kind(client.get("key")), ErrorKind::Unexpected(_)), "{garbage}");
            assert_eq!(client.get("key").unwrap().unwrap(), "key");
            assert_eq!(server.accepted(), 2);
        }
    });
}

#[test]
fn half_a_value_is_none() {
    each_face(|client| {
        for (action, reset) in [(Action::Close, false), (Action::Reset, true)] {
            let action = Arc::new(action);
            let server = Fake::start(move |request| match request.number {
                0 => Action::SendThen(b"VALUE key 0 1000\r\nhalf".to_vec(), Arc::clone(&action)),
                _ => Action::Right,
            });
            let client = client(at(server.port)).build().unwrap();
            match kind(client.get("key")) {
                ErrorKind::Closed => assert!(!reset),
                ErrorKind::Io(error) => assert!(reset, "{error}"),
                other => panic!("{other}"),
            }
            assert_eq!(client.get("key").unwrap().unwrap(), "key");
        }
    });
}

#[test]
fn a_read_is_repeated_if_the_connection_had_ended_and_a_write_says_that_it_may_have_happened() {
    each_face(|client| {
        let server = Fake::start(|request| match request.on_connection {
            0 => Action::Right,
            _ => Action::Close,
        });
        let client = client(at(server.port)).build().unwrap();
        for _ in 0..3 {
            assert_eq!(client.get("key").unwrap().unwrap(), "key");
        }
        assert_eq!(client.set("key", "1", 0).map_err(|error| error.is_ambiguous()), Err(true));
        assert_eq!(client.set("key", "1", 0).unwrap(), Stored::Stored);
    });
}

#[test]
fn a_connection_that_the_server_has_closed_is_not_used() {
    each_face(|client| {
        let server =
            Fake::start(|request| Action::SendThen(request.right(), Arc::new(Action::Close)));
        let client = client(at(server.port)).build().unwrap();
        for n in 1..5 {
            assert_eq!(client.set("key", "1", 0).unwrap(), Stored::Stored);
            while server.closed() < n {
                thread::yield_now();
            }
        }
    });
}

#[test]
fn an_answer_that_nobody_asked_for_is_not_given_to_the_next_call() {
    each_face(|client| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (late, lates) = mpsc::sync_channel(0);
        let (sent, sents) = mpsc::sync_channel(0);
        thread::spawn(move || {
            let mut streams = listener.incoming().map(|stream| BufReader::new(stream.unwrap()));
            let mut answer = |number: &str| {
                let mut stream = streams.next().unwrap();
                stream.read_line(&mut String::new()).unwrap();
                stream.get_mut().write_all(number.as_bytes()).unwrap();
                stream
            };
            let mut first = answer("1\r\n");
            lates.recv().unwrap();
            first.get_mut().write_all(b"777\r\n").unwrap();
            sent.send(()).unwrap();
            let _second = answer("5\r\n");
            lates.recv().unwrap();
        });
        let client = client(at(port)).timeout(MILLIS(20_000)).build().unwrap();
        assert_eq!(client.incr("a", 1).unwrap(), Counted::Number(1));
        late.send(()).unwrap();
        sents.recv().unwrap();
        assert_eq!(client.incr("b", 1).unwrap(), Counted::Number(5));
        late.send(()).unwrap();
    });
}

#[test]
fn a_request_that_was_never_answered_before_is_not_repeated() {
    each_face(|client| {
        let server = Fake::start(|_| Action::Close);
        let client = client(at(server.port)).build().unwrap();
        assert!(matches!(kind(client.get("key")), ErrorKind::Closed));
        assert_eq!(server.requests(), 1);
    });
}

#[test]
fn errors_of_the_server_keep_the_connection() {
    each_face(|client| {
        let server = Fake::start(|request| match request.number {
            0 => Action::Send(b"SERVER_ERROR out of memory storing object\r\n".to_vec()),
            _ => Action::Right,
        });
        let client = client(at(server.port)).build().unwrap();
        let error = client.set("key", "1", 0).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Server(_)) && !error.is_ambiguous(), "{error}");
        assert_eq!(client.get("key").unwrap().unwrap(), "key");
        assert_eq!(server.accepted(), 1);
    });
}

/// A server that is blocked, because nobody reads its replies, reads no further requests.
#[test]
fn replies_are_read_while_requests_are_sent() {
    each_face(|client| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Accepted connections have the same small buffers.
        let small = socket2::SockRef::from(&listener);
        small
            .set_recv_buffer_size(8 << 10)
            .and_then(|()| small.set_send_buffer_size(8 << 10))
            .unwrap();
        let server = Fake::at(listener, |_| Action::Right);
        let client = client(at(server.port)).timeout(MILLIS(60_000)).build().unwrap();
        // 10 MB of requests: more than a socket's buffer holds.
        let keys: Vec<String> = (0..50_000).map(|n| format!("{n:0200}")).collect();
        let items = client.get_many(&keys).unwrap();
        assert!(items.iter().zip(&keys).all(|(item, key)| item.as_ref().unwrap().value == key));
        assert_eq!((items.len(), server.accepted()), (keys.len(), 1));
    });
}

/// A unix socket gives each part of a large request a timeout of its own.
#[test]
fn a_server_that_reads_slowly_delays_no_call_beyond_its_deadline() {
    each_face(|client| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut piece = vec![0; 64 << 10];
            while stream.read(&mut piece).is_ok_and(|len| len > 0) {
                thread::sleep(MILLIS(50));
            }
        });
        let client =
            client(path.to_str().unwrap().to_owned()).timeout(MILLIS(200)).build().unwrap();
        let begun = Instant::now();
        let error = client.set("key", vec![0; 4 << 20], 0).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Timeout) && error.is_ambiguous(), "{error}");
        // The server needs three seconds.
        assert!(begun.elapsed() < MILLIS(1500), "{:?}", begun.elapsed());
    });
}

#[test]
fn a_look_up_that_sets_an_expiry_may_have_happened() {
    each_face(|client| {
        let server = Fake::start(|_| Action::Silence);
        let client = client(at(server.port)).build().unwrap();
        assert!(!client.gets("key").unwrap_err().is_ambiguous());
        assert!(client.gat("key", 60).unwrap_err().is_ambiguous());
    });
}

#[test]
fn the_longest_times_are_times() {
    each_face(|client| {
        let server = Fake::start(|_| Action::Right);
        let long = client(at(server.port)).timeout(Duration::MAX).connect_timeout(Duration::MAX);
        let client = long.idle_time(Duration::MAX).lifetime(Duration::MAX).build().unwrap();
        assert_eq!(client.get("key").unwrap().unwrap(), "key");
    });
}

#[test]
fn a_pool_has_no_more_connections_than_it_may() {
    each_pool(|client| {
        let server = Fake::start(|_| Action::Late(MILLIS(1)));
        let client =
            client(at(server.port)).timeout(MILLIS(20_000)).connections(3).build().unwrap();
        thread::scope(|scope| {
            for thread in 0..12 {
                let client = &client;
                scope.spawn(move || {
                    for n in 0..50 {
                        let key = format!("key-{thread}-{n}");
                        assert_eq!(client.get(&key).unwrap().unwrap(), key);
                    }
                });
            }
        });
        assert_eq!(server.accepted(), 3);
        assert_eq!(client.connections(), (3, 3, 0));
    });
}

#[test]
fn whoever_waits_for_a_connection_waits_until_the_deadline() {
    each_pool(|client| {
        let is_silent = Arc::new(AtomicBool::new(true));
        let silent = Arc::clone(&is_silent);
        let server = Fake::start(move |_| {
            if silent.load(Ordering::Relaxed) { Action::Silence } else { Action::Right }
        });
        let client = client(at(server.port)).connections(1).build().unwrap();
        thread::scope(|scope| {
            let first = scope.spawn(|| kind(client.get("a")));
            while client.connections().0 == 0 {
                thread::yield_now();
            }
            let second = scope.spawn(|| kind(client.set("b", "1", 0)));
            assert!(matches!(first.join().unwrap(), ErrorKind::Timeout));
            // It has the place of the first one for the rest of its time, or got it too late.
            let second = second.join().unwrap();
            assert!(matches!(second, ErrorKind::Timeout | ErrorKind::PoolTimeout), "{second}");
        });
        is_silent.store(false, Ordering::Relaxed);
        assert_eq!(client.get("a").unwrap().unwrap(), "a");
        assert_eq!(client.connections(), (1, 1, 0));
    });
}

/// Looks without blocking for a while, as a binding does that keeps its interpreter's lock, and is interrupted on demand.
#[derive(Debug, Default)]
struct Spinner {
    is_interrupted: AtomicBool,
    waits: AtomicU32,
}

impl Waiter for Spinner {
    fn wait(&self, waiting: &mut Waiting<'_>, time: Duration) -> Result<(), Interrupted> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        let spins = if waiting.socket().is_some() { 10 } else { 0 };
        if (0..spins).any(|_| waiting.look(Duration::ZERO)) {
            return Ok(());
        }
        let begun = Instant::now();
        while begun.elapsed() < time {
            if self.is_interrupted.load(Ordering::Relaxed) {
                return Err(Interrupted);
            }
            if waiting.look(MILLIS(1).min(time)) {
                break;
            }
        }
        Ok(())
    }
}

#[test]
fn a_waiter_waits_for_sockets_and_for_other_threads() {
    let server = Fake::start(|_| Action::Late(MILLIS(2)));
    let spinner = Arc::new(Spinner::default());
    let client = threads(server.port).timeout(MILLIS(20_000)).connections(1);
    let client = client.waiter(spinner.clone()).build().unwrap();
    thread::scope(|scope| {
        for thread in 0..4 {
            let client = &client;
            scope.spawn(move || {
                for n in 0..20 {
                    let key = format!("key-{thread}-{n}");
                    assert_eq!(client.get(&key).unwrap().unwrap(), key);
                }
            });
        }
    });
    assert_eq!((server.accepted(), client.connections()), (1, (1, 1, 0)));
    assert!(spinner.waits.load(Ordering::Relaxed) >= 80);
}

#[test]
fn a_waiter_interrupts_calls_and_keeps_deadlines() {
    let server = Fake::start(|_| Action::Silence);
    let spinner = Arc::new(Spinner::default());
    let client = threads(server.port).connections(1).waiter(spinner.clone()).build().unwrap();
    let begun = Instant::now();
    assert!(matches!(kind(client.get("a")), ErrorKind::Timeout));
    assert!(begun.elapsed() >= MILLIS(200));
    spinner.is_interrupted.store(true, Ordering::Relaxed);
    let error = client.set("a", "1", 0).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Interrupted) && error.is_ambiguous(), "{error}");
    assert!(!error.is_fault());
    // Nothing is left of it.
    assert_eq!(client.connections(), (0, 0, 0));
}

#[test]
fn a_closed_client_refuses_calls_and_wakes_who_waits() {
    each_pool(|client| {
        let server = Fake::start(|_| Action::Silence);
        let client =
            client(at(server.port)).timeout(MILLIS(20_000)).connections(1).build().unwrap();
        let short = client.clone();
        let waiting = thread::spawn({
            let client = client.clone();
            move || {
                while client.connections().0 == 0 {
                    thread::yield_now();
                }
                kind(client.get("b"))
            }
        });
        thread::spawn(move || client.get("a"));
        while short.connections().2 == 0 {
            thread::yield_now();
        }
        short.close();
        assert!(matches!(waiting.join().unwrap(), ErrorKind::ClientClosed));
        assert!(matches!(kind(short.get("c")), ErrorKind::ClientClosed));
    });
}

/// A slow reply keeps those behind it waiting. Somebody has given up, so the connection is closed.
#[test]
fn a_shared_connection_without_answers_is_given_up() {
    any_client::shared_by_tasks(|client| {
        let server = Fake::start(|request| match request.on_connection {
            0 if request.number == 0 => Action::Dripping(MILLIS(60_000)),
            _ => Action::Right,
        });
        let client = client(at(server.port)).timeout(MILLIS(100)).build().unwrap();
        let begun = Instant::now();
        assert!(matches!(kind(client.get("a")), ErrorKind::Timeout));
        while client.get("b").is_err() {
            assert!(begun.elapsed() < MILLIS(10_000));
            thread::sleep(MILLIS(10));
        }
        assert!(begun.elapsed() > MILLIS(900), "{:?}", begun.elapsed());
        assert_eq!(server.accepted(), 2);
    });
}

#[test]
fn connections_end_after_their_lifetime() {
    each_face(|client| {
        let server = Fake::start(|_| Action::Right);
        let client = client(at(server.port)).lifetime(MILLIS(1)).build().unwrap();
        for n in 1..=3 {
            assert_eq!(client.get("key").unwrap().unwrap(), "key");
            thread::sleep(MILLIS(2));
            assert_eq!(client.get("key").unwrap().unwrap(), "key");
            assert!(server.accepted() > n, "{}", server.accepted());
        }
    });
}

#[test]
fn nobody_gets_another_s_value_whatever_the_server_does() {
    any_client::each_pool(|client| {
        call_a_mad_server(&|address| client(address).connections(8), 300)
    });
    // A fault of a shared connection fails all of its calls.
    any_client::shared(|client| call_a_mad_server(&|address| client(address), 60));
}

/// Each of 16 threads makes `calls` calls. Each value says whose it is, so a value of another key can't go unnoticed.
fn call_a_mad_server(client: &dyn Fn(String) -> FaceBuilder, calls: u32) {
    let server = Fake::start(|request| match request.random % 40 {
        0 => Action::Silence,
        1 => Action::Close,
        2 => Action::Reset,
        3 => Action::Late(MILLIS(request.random / 40 % 30)),
        4 => Action::Send(b"VALUE x 0 1\r\nx\r\nEND\r\n".to_vec()),
        5 => Action::SendThen(request.right()[..5].to_vec(), Arc::new(Action::Close)),
        6 => Action::Send([request.right(), request.right()].concat()),
        7 => Action::Send(b"SERVER_ERROR busy\r\n".to_vec()),
        8 => Action::SendThen(request.right(), Arc::new(Action::Close)),
        _ => Action::Right,
    });
    let client = client(at(server.port)).timeout(MILLIS(40)).build().unwrap();
    let (right, failed) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        for thread in 0..16 {
            let (client, right, failed) = (&client, &right, &failed);
            scope.spawn(move || {
                for n in 0..calls {
                    let keys = [format!("key-{thread}-{n}"), format!("other-{thread}-{n}")];
                    let begun = Instant::now();
                    let found = if n % 4 == 0 {
                        client.get_many(&keys).map(|found| {
                            for (item, key) in found.iter().zip(&keys) {
                                assert_eq!(item.as_ref().unwrap().value, key.as_bytes());
                            }
                        })
                    } else {
                        client.get(&keys[0]).map(|value| assert_eq!(value.unwrap(), keys[0]))
                    };
                    assert!(begun.elapsed() < MILLIS(2000), "{:?}", begun.elapsed());
                    let counter = if found.is_ok() { right } else { failed };
                    counter.fetch_add(1, Ordering::Relaxed);
                    if let Err(error) = found
                        && let ErrorKind::Unavailable { retry_in, .. } = error.kind()
                    {
                        thread::sleep(*retry_in);
                    }
                }
            });
        }
    });
    let (right, failed) = (right.into_inner(), failed.into_inner());
    assert!(right > 5 * calls && failed > calls / 3, "{right} {failed}");
    let (open, idle, waiting) = client.connections();
    assert!(
        open == idle && open <= 8 && waiting == 0,
        "no connection is leaked: {open} {idle} {waiting}"
    );
}

#[test]
fn what_can_not_be_sent_is_refused_before() {
    each_face(|client| {
        let server = Fake::start(|_| Action::Right);
        let no_port = client("127.0.0.1:port".to_owned()).build();
        assert!(matches!(kind(no_port), ErrorKind::Connect(_)));
        let client = client(at(server.port)).build().unwrap();
        for key in ["", &"k".repeat(251), &" ".repeat(187)] {
            assert!(matches!(kind(client.get(key)), ErrorKind::Key(_)), "{key:?}");
            assert!(
                matches!(kind(client.set(key, "1", Ttl::FOREVER)), ErrorKind::Key(_)),
                "{key:?}"
            );
        }
        assert!(matches!(kind(client.get_many(&["a", ""])), ErrorKind::Key(_)));
        assert!(client.get_many(&[""; 0]).unwrap().is_empty());
        assert_eq!(server.requests(), 0);
    });
}

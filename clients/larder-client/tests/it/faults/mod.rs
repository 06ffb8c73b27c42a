//! Tests with misbehaving servers: errors have the right kind, calls end by their deadlines, and no
//! caller gets another caller's value.

mod breaker;

use crate::common::any_client::{self, AnyClientBuilder};
use crate::common::{Action, FakeServer};
use larder_client::{
    Builder, CountOutcome, Error, ErrorKind, Interrupted, StoreOutcome, Ttl, WaitCondition, Waiter,
    blocking,
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

/// Runs a test with each kind of client, with a timeout of 200 ms.
fn each_client(test: impl Fn(&dyn Fn(String) -> AnyClientBuilder)) {
    any_client::each_client(|client| test(&|address| client(address).timeout(MILLIS(200))));
}

/// Runs a test with each kind of client over pooled connections, with a timeout of 200 ms.
fn each_pool(test: impl Fn(&dyn Fn(String) -> AnyClientBuilder)) {
    any_client::each_pool(|client| test(&|address| client(address).timeout(MILLIS(200))));
}

fn threads(port: u16) -> Builder<blocking::Client> {
    blocking::Client::builder(at(port)).timeout(MILLIS(200))
}

fn kind<T: std::fmt::Debug>(called: Result<T, Error>) -> ErrorKind {
    called.unwrap_err().kind().clone()
}

#[test]
fn a_call_to_a_silent_server_ends_at_its_deadline() {
    each_client(|client| {
        let server = FakeServer::start(|_| Action::Silence);
        let late = |call: &dyn Fn() -> Error, is_ambiguous| {
            let start_time = Instant::now();
            let error = call();
            assert!(matches!(error.kind(), ErrorKind::Timeout), "{error}");
            assert_eq!(error.is_ambiguous(), is_ambiguous);
            start_time.elapsed().checked_sub(MILLIS(200)).expect("not before the deadline")
        };
        // A busy machine may wake a thread late, but not every time. Each attempt uses a new
        // client, because timeouts open the breaker.
        let (mut get, mut set) = (Duration::MAX, Duration::MAX);
        for _ in 0..25 {
            let client = client(at(server.port)).build().unwrap();
            get = get.min(late(&|| client.get("a").unwrap_err(), false));
            set = set.min(late(&|| client.set("a", "1", 0).unwrap_err(), true));
            if get.max(set) < MILLIS(10) {
                return;
            }
        }
        panic!("get: {get:?} late, set: {set:?} late");
    });
}

#[test]
fn a_late_reply_reaches_no_caller() {
    each_client(|client| {
        let server = FakeServer::start(|request| match request.number % 3 {
            0 => Action::ReplyAfter(MILLIS(300)),
            _ => Action::Reply,
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
fn a_malformed_reply_is_an_error_and_closes_the_connection() {
    each_client(|client| {
        for garbage in [
            "what?\r\n",
            "VALUE key 0 x\r\n",
            "VALUE other 0 1\r\nx\r\nEND\r\n",
            "END\r\nEND\r\n",
            "VALUE key 0 3\r\nkeyxxEND\r\n",
            "\0\0\0\r\n",
            "STORED\r\n",
        ] {
            let server = FakeServer::start(move |request| match request.number {
                0 => Action::Send(garbage.into()),
                _ => Action::Reply,
            });
            let client = client(at(server.port)).build().unwrap();
            assert!(matches!(kind(client.get("key")), ErrorKind::Unexpected(_)), "{garbage}");
            assert_eq!(client.get("key").unwrap().unwrap(), "key");
            assert_eq!(server.accepted(), 2);
        }
    });
}

#[test]
fn a_truncated_value_is_an_error() {
    each_client(|client| {
        for (action, reset) in [(Action::Close, false), (Action::Reset, true)] {
            let action = Arc::new(action);
            let server = FakeServer::start(move |request| match request.number {
                0 => Action::SendThen(b"VALUE key 0 1000\r\nhalf".to_vec(), Arc::clone(&action)),
                _ => Action::Reply,
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
fn after_a_lost_connection_a_read_is_retried_and_a_write_is_ambiguous() {
    each_client(|client| {
        let server = FakeServer::start(|request| match request.on_connection {
            0 => Action::Reply,
            _ => Action::Close,
        });
        let client = client(at(server.port)).build().unwrap();
        for _ in 0..3 {
            assert_eq!(client.get("key").unwrap().unwrap(), "key");
        }
        assert_eq!(client.set("key", "1", 0).map_err(|error| error.is_ambiguous()), Err(true));
        assert_eq!(client.set("key", "1", 0).unwrap(), StoreOutcome::Stored);
    });
}

#[test]
fn a_connection_closed_by_the_server_is_not_reused() {
    each_client(|client| {
        let server =
            FakeServer::start(|request| Action::SendThen(request.right(), Arc::new(Action::Close)));
        let client = client(at(server.port)).build().unwrap();
        for n in 1..50 {
            assert_eq!(client.set("key", "1", 0).unwrap(), StoreOutcome::Stored);
            while server.closed() < n {
                thread::yield_now();
            }
        }
    });
}

#[test]
fn an_unsolicited_reply_does_not_reach_the_next_call() {
    each_client(|client| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (send_extra, extra_requested) = mpsc::sync_channel(0);
        let (extra_sent, sent) = mpsc::sync_channel(0);
        thread::spawn(move || {
            let mut streams = listener.incoming().map(|stream| BufReader::new(stream.unwrap()));
            let mut answer = |number: &str| {
                let mut stream = streams.next().unwrap();
                stream.read_line(&mut String::new()).unwrap();
                stream.get_mut().write_all(number.as_bytes()).unwrap();
                stream
            };
            let mut first = answer("1\r\n");
            extra_requested.recv().unwrap();
            first.get_mut().write_all(b"777\r\n").unwrap();
            extra_sent.send(()).unwrap();
            let _second = answer("5\r\n");
            extra_requested.recv().unwrap();
        });
        let client = client(at(port)).timeout(MILLIS(20_000)).build().unwrap();
        assert_eq!(client.incr("a", 1).unwrap(), CountOutcome::Number(1));
        send_extra.send(()).unwrap();
        sent.recv().unwrap();
        assert_eq!(client.incr("b", 1).unwrap(), CountOutcome::Number(5));
        send_extra.send(()).unwrap();
    });
}

#[test]
fn a_read_on_a_connection_without_earlier_replies_is_not_retried() {
    each_client(|client| {
        let server = FakeServer::start(|_| Action::Close);
        let client = client(at(server.port)).build().unwrap();
        assert!(matches!(kind(client.get("key")), ErrorKind::Closed));
        assert_eq!(server.requests(), 1);
    });
}

#[test]
fn server_errors_keep_the_connection() {
    each_client(|client| {
        let server = FakeServer::start(|request| match request.number {
            0 => Action::Send(b"SERVER_ERROR out of memory storing object\r\n".to_vec()),
            _ => Action::Reply,
        });
        let client = client(at(server.port)).build().unwrap();
        let error = client.set("key", "1", 0).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Server(_)) && !error.is_ambiguous(), "{error}");
        assert_eq!(client.get("key").unwrap().unwrap(), "key");
        assert_eq!(server.accepted(), 1);
    });
}

/// Checks that the client reads replies while it sends. Otherwise, both sides would block, because
/// the server stops reading requests until the client reads replies.
#[test]
fn replies_are_read_while_requests_are_sent() {
    each_client(|client| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Accepted connections inherit the small buffer sizes.
        let small = socket2::SockRef::from(&listener);
        small
            .set_recv_buffer_size(8 << 10)
            .and_then(|()| small.set_send_buffer_size(8 << 10))
            .unwrap();
        let server = FakeServer::at(listener, |_| Action::Reply);
        let client = client(at(server.port)).timeout(MILLIS(60_000)).build().unwrap();
        // The requests total 10 MB, more than the socket buffers hold.
        let keys: Vec<String> = (0..50_000).map(|n| format!("{n:0200}")).collect();
        let items = client.get_many(&keys).unwrap();
        assert!(items.iter().zip(&keys).all(|(item, key)| item.as_ref().unwrap().value == key));
        assert_eq!((items.len(), server.accepted()), (keys.len(), 1));
    });
}

/// Checks that a call ends by its deadline even if the server reads a large request slowly. The
/// socket's own timeout is not enough: on a unix socket, it applies to each part of a large write
/// separately.
#[test]
fn a_slowly_reading_server_delays_no_call_past_its_deadline() {
    each_client(|client| {
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
        let start_time = Instant::now();
        let error = client.set("key", vec![0; 4 << 20], 0).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Timeout) && error.is_ambiguous(), "{error}");
        // The server takes three seconds to read the complete request.
        assert!(start_time.elapsed() < MILLIS(1500), "{:?}", start_time.elapsed());
    });
}

#[test]
fn a_failed_lookup_that_sets_an_expiry_is_ambiguous() {
    each_client(|client| {
        let server = FakeServer::start(|_| Action::Silence);
        let client = client(at(server.port)).build().unwrap();
        assert!(!client.gets("key").unwrap_err().is_ambiguous());
        assert!(client.gat("key", 60).unwrap_err().is_ambiguous());
    });
}

#[test]
fn unlimited_times_are_accepted() {
    each_client(|client| {
        let server = FakeServer::start(|_| Action::Reply);
        let long = client(at(server.port)).timeout(Duration::MAX).connect_timeout(Duration::MAX);
        let client = long.idle_time(Duration::MAX).lifetime(Duration::MAX).build().unwrap();
        assert_eq!(client.get("key").unwrap().unwrap(), "key");
    });
}

#[test]
fn a_pool_respects_its_limit() {
    each_pool(|client| {
        let server = FakeServer::start(|_| Action::ReplyAfter(MILLIS(1)));
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
fn a_call_waits_for_a_connection_until_its_deadline() {
    each_pool(|client| {
        let is_silent = Arc::new(AtomicBool::new(true));
        let silent = Arc::clone(&is_silent);
        let server = FakeServer::start(move |_| {
            if silent.load(Ordering::Relaxed) { Action::Silence } else { Action::Reply }
        });
        let client = client(at(server.port)).connections(1).build().unwrap();
        thread::scope(|scope| {
            let first = scope.spawn(|| kind(client.get("a")));
            while client.connections().0 == 0 {
                thread::yield_now();
            }
            let second = scope.spawn(|| kind(client.set("b", "1", 0)));
            assert!(matches!(first.join().unwrap(), ErrorKind::Timeout));
            // The second call has little time left when the first call ends. Either it gets the
            // first call's slot but no reply in time, or it gets no slot before its deadline.
            let second = second.join().unwrap();
            assert!(matches!(second, ErrorKind::Timeout | ErrorKind::PoolTimeout), "{second}");
        });
        is_silent.store(false, Ordering::Relaxed);
        assert_eq!(client.get("a").unwrap().unwrap(), "a");
        assert_eq!(client.connections(), (1, 1, 0));
    });
}

/// A waiter that first polls without blocking, like a binding that does not release its
/// interpreter's lock for short waits. A test can interrupt it.
#[derive(Debug, Default)]
struct Spinner {
    is_interrupted: AtomicBool,
    waits: AtomicU32,
}

impl Waiter for Spinner {
    fn wait(&self, waiting: &mut WaitCondition<'_>, time: Duration) -> Result<(), Interrupted> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        let spins = if waiting.socket().is_some() { 10 } else { 0 };
        if (0..spins).any(|_| waiting.poll(Duration::ZERO)) {
            return Ok(());
        }
        let start_time = Instant::now();
        while start_time.elapsed() < time {
            if self.is_interrupted.load(Ordering::Relaxed) {
                return Err(Interrupted);
            }
            if waiting.poll(MILLIS(1).min(time)) {
                break;
            }
        }
        Ok(())
    }
}

#[test]
fn a_waiter_waits_for_sockets_and_for_other_threads() {
    let server = FakeServer::start(|_| Action::ReplyAfter(MILLIS(2)));
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
    let server = FakeServer::start(|_| Action::Silence);
    let spinner = Arc::new(Spinner::default());
    let client = threads(server.port).connections(1).waiter(spinner.clone()).build().unwrap();
    let start_time = Instant::now();
    assert!(matches!(kind(client.get("a")), ErrorKind::Timeout));
    assert!(start_time.elapsed() >= MILLIS(200));
    spinner.is_interrupted.store(true, Ordering::Relaxed);
    let error = client.set("a", "1", 0).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Interrupted) && error.is_ambiguous(), "{error}");
    assert!(!error.is_fault());
    // The interrupted call leaves no open connection.
    assert_eq!(client.connections(), (0, 0, 0));
}

#[test]
fn closing_a_client_fails_new_and_waiting_calls() {
    each_pool(|client| {
        let server = FakeServer::start(|_| Action::Silence);
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

/// Checks that the client closes a shared connection if its first reply never ends and the caller
/// that waits for this reply has given up.
#[test]
fn a_shared_connection_without_replies_is_closed() {
    any_client::shared_by_tasks(|client| {
        let server = FakeServer::start(|request| match request.on_connection {
            0 if request.number == 0 => Action::SendSlowly(MILLIS(60_000)),
            _ => Action::Reply,
        });
        let client = client(at(server.port)).timeout(MILLIS(100)).build().unwrap();
        let start_time = Instant::now();
        assert!(matches!(kind(client.get("a")), ErrorKind::Timeout));
        while client.get("b").is_err() {
            assert!(start_time.elapsed() < MILLIS(10_000));
            thread::sleep(MILLIS(10));
        }
        assert!(start_time.elapsed() > MILLIS(900), "{:?}", start_time.elapsed());
        assert_eq!(server.accepted(), 2);
    });
}

#[test]
fn connections_end_after_their_lifetime() {
    each_client(|client| {
        let server = FakeServer::start(|_| Action::Reply);
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
fn no_misbehaviour_of_a_server_mixes_up_values() {
    any_client::each_pool(|client| {
        call_random_server(&|address| client(address).connections(8), 1500)
    });
    // A fault of a shared connection fails all of its calls, so this part requires fewer calls.
    any_client::shared(|client| call_random_server(&|address| client(address), 300));
}

/// Calls a randomly misbehaving server from 16 threads until `wanted` calls have succeeded and
/// `wanted` ÷ 15 calls have failed. On a busy machine, most calls may time out. Each value contains
/// its key, so the test detects a value of another key.
fn call_random_server(client: &dyn Fn(String) -> AnyClientBuilder, wanted: u32) {
    let server = FakeServer::start(|request| match request.random % 40 {
        0 => Action::Silence,
        1 => Action::Close,
        2 => Action::Reset,
        3 => Action::ReplyAfter(MILLIS(request.random / 40 % 30)),
        4 => Action::Send(b"VALUE x 0 1\r\nx\r\nEND\r\n".to_vec()),
        5 => Action::SendThen(request.right()[..5].to_vec(), Arc::new(Action::Close)),
        6 => Action::Send([request.right(), request.right()].concat()),
        7 => Action::Send(b"SERVER_ERROR busy\r\n".to_vec()),
        8 => Action::SendThen(request.right(), Arc::new(Action::Close)),
        _ => Action::Reply,
    });
    let client = client(at(server.port)).timeout(MILLIS(40)).build().unwrap();
    let (right, failed) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        for thread in 0..16 {
            let (client, right, failed) = (&client, &right, &failed);
            scope.spawn(move || {
                for n in 0.. {
                    if right.load(Ordering::Relaxed) > wanted
                        && failed.load(Ordering::Relaxed) > wanted / 15
                    {
                        break;
                    }
                    let keys = [format!("key-{thread}-{n}"), format!("other-{thread}-{n}")];
                    let start_time = Instant::now();
                    let found = if n % 4 == 0 {
                        client.get_many(&keys).map(|found| {
                            for (item, key) in found.iter().zip(&keys) {
                                assert_eq!(item.as_ref().unwrap().value, key.as_bytes());
                            }
                        })
                    } else {
                        client.get(&keys[0]).map(|value| assert_eq!(value.unwrap(), keys[0]))
                    };
                    assert!(start_time.elapsed() < MILLIS(10_000), "{:?}", start_time.elapsed());
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
    let (open, idle, waiting) = client.connections();
    assert!(
        open == idle && open <= 8 && waiting == 0,
        "no connection is leaked: {open} {idle} {waiting}"
    );
}

#[test]
fn invalid_addresses_and_keys_are_refused_without_a_request() {
    each_client(|client| {
        let server = FakeServer::start(|_| Action::Reply);
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

//! Tests clients that use hostile and healthy servers together. Hostile servers send without end or
//! never reply. Also tests clients that are closed, or whose runtime shuts down, during a call.

use crate::common::any_client::{self, AnyClient, AnyClientBuilder, each_client, each_pool};
use crate::common::{Action, FakeServer};
use larder_client::{
    Client, Error, ErrorKind, Interrupted, StoreOutcome, WaitCondition, Waiter, blocking,
};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

const MILLIS: fn(u64) -> Duration = Duration::from_millis;

fn at(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// Starts a server that sends hits without end. The receiver gets a message for each closed
/// connection.
fn endless() -> (String, mpsc::Receiver<()>) {
    // The client parses such short hits more slowly than the server sends them, so it never runs
    // out of input.
    sending("", "VALUE a 0 0\r\n\r\n")
}

/// Starts a server that replies with `first`, and then sends `repeated` without end. The receiver
/// gets a message for each closed connection.
fn sending(first: &'static str, repeated: &'static str) -> (String, mpsc::Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (closed, closes) = mpsc::channel();
    thread::spawn(move || {
        let many = repeated.repeat(10_000);
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let (closed, many) = (closed.clone(), many.clone());
            thread::spawn(move || {
                stream.read_exact(&mut [0; 7]).unwrap();
                drop(stream.write_all(first.as_bytes()));
                while stream.write_all(many.as_bytes()).is_ok() {}
                closed.send(()).ok();
            });
        }
    });
    (address, closes)
}

/// Runs a function in a thread and returns its result. Panics if the function does not finish
/// within `time`.
fn within<T: Send + 'static>(time: Duration, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, results) = mpsc::channel();
    thread::spawn(move || sender.send(run()));
    results.recv_timeout(time).expect("finished in time")
}

/// A waiter that does nothing but wait. With any waiter, the client makes no blocking reads.
#[derive(Debug)]
struct Plain;

impl Waiter for Plain {
    fn wait(&self, waiting: &mut WaitCondition<'_>, time: Duration) -> Result<(), Interrupted> {
        waiting.poll(time);
        Ok(())
    }
}

#[test]
fn an_endless_reply_fails_at_the_deadline() {
    each_client(|client| {
        let (address, closes) = endless();
        let client = client(address).timeout(MILLIS(100)).build().unwrap();
        let calls = client.clone();
        let error = within(MILLIS(1500), move || calls.get("a").unwrap_err());
        assert!(error.is_fault(), "{error}");
        closes.recv_timeout(MILLIS(4000)).expect("the connection is closed");
    });
}

#[test]
fn an_endless_reply_to_a_login_is_refused() {
    each_client(|client| {
        for (first, repeated) in
            [("VALUE a 0 1000000000\r\n", "a"), ("", "a"), ("CLIENT_ERROR ", "a")]
        {
            let (address, closes) = sending(first, repeated);
            let builder = client(address).timeout(MILLIS(20_000)).connect_timeout(MILLIS(20_000));
            let client = builder.login("ann", "secret").build().unwrap();
            let error = within(MILLIS(5000), move || client.get("a").unwrap_err());
            assert!(matches!(error.kind(), ErrorKind::Connect(_)), "{first:?}: {error}");
            assert!(error.to_string().contains("longer than 1024 bytes"), "{first:?}: {error}");
            closes.recv_timeout(MILLIS(4000)).expect("the connection is closed");
        }
    });
}

#[test]
fn an_endless_reply_fails_at_the_deadline_with_a_waiter() {
    let (address, closes) = endless();
    let builder = blocking::Client::builder(address).timeout(MILLIS(100));
    let client = builder.waiter(Arc::new(Plain)).build().unwrap();
    within(MILLIS(1500), move || client.get("a").unwrap_err());
    closes.recv_timeout(MILLIS(4000)).expect("the connection is closed");
}

/// A waiter that makes a nested call after `waits_before` waits, as a signal handler may do.
#[derive(Debug, Default)]
struct Handler {
    client: OnceLock<blocking::Client>,
    waits_before: AtomicUsize,
    calls: AtomicUsize,
}

impl Waiter for Handler {
    fn wait(&self, waiting: &mut WaitCondition<'_>, time: Duration) -> Result<(), Interrupted> {
        let before = self.waits_before.load(Ordering::Relaxed);
        self.waits_before.store(before.wrapping_sub(1), Ordering::Relaxed);
        if before == 0 {
            let client = self.client.get().unwrap();
            assert_eq!(client.get("handler").unwrap().unwrap(), "handler");
            self.calls.fetch_add(1, Ordering::Relaxed);
        }
        waiting.poll(time);
        Ok(())
    }
}

#[test]
fn a_waiting_thread_may_make_a_nested_call() {
    for shared in [false, true] {
        // Test both waits of a call: first for the connection, and then for the reply.
        for waits_before in 0..2 {
            let server = FakeServer::start(|_| Action::ReplyAfter(MILLIS(50)));
            let builder = blocking::Client::builder(at(server.port)).timeout(MILLIS(5000));
            let builder = if shared { builder.shared(1) } else { builder.connections(2) };
            let handler = Arc::new(Handler::default());
            handler.waits_before.store(waits_before, Ordering::Relaxed);
            let client = builder.waiter(Arc::clone(&handler) as _).build().unwrap();
            handler.client.set(client.clone()).unwrap();
            let start_time = Instant::now();
            for key in ["a", "b"] {
                assert_eq!(client.get(key).unwrap().unwrap(), key);
            }
            let took = start_time.elapsed();
            assert!(took < MILLIS(1000), "{shared} {waits_before} {took:?}");
            assert_eq!(handler.calls.load(Ordering::Relaxed), 1, "{shared} {waits_before}");
        }
    }
}

#[test]
fn an_endless_reply_does_not_block_other_tasks_of_the_thread() {
    for shared in [false, true] {
        let (address, _closes) = endless();
        within(MILLIS(20_000), move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let builder = Client::builder(address).timeout(MILLIS(2000));
                let builder = if shared { builder.shared(1) } else { builder.connections(1) };
                let client = builder.build().unwrap();
                let call = tokio::spawn(async move { client.get("a").await });
                let start_time = Instant::now();
                tokio::time::sleep(MILLIS(20)).await;
                assert!(start_time.elapsed() < MILLIS(1000), "{shared} {:?}", start_time.elapsed());
                call.await.unwrap().unwrap_err();
            });
        });
    }
}

#[test]
fn a_client_survives_its_runtime() {
    for shared in [false, true] {
        let server = FakeServer::start(|_| Action::Reply);
        let builder = Client::builder(at(server.port)).timeout(MILLIS(500));
        let builder = if shared { builder.shared(1) } else { builder.connections(1) };
        let client = builder.build().unwrap();
        for _ in 0..3 {
            let runtime = Runtime::new().unwrap();
            let stored = runtime.block_on(client.set("key", "1", 0));
            assert_eq!(stored.unwrap(), StoreOutcome::Stored, "shared: {shared}");
            assert_eq!(runtime.block_on(client.get("key")).unwrap().unwrap(), "key");
        }
    }
}

#[test]
fn closing_a_client_during_a_connect_leaves_no_connection() {
    each_client(|client| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (proceed, proceeds) = mpsc::channel();
        let (received, receives) = mpsc::channel();
        let server = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            for answer in ["STORED\r\n", "END\r\n"] {
                let lines = if answer == "STORED\r\n" { 2 } else { 1 };
                (0..lines).for_each(|_| assert!(reader.read_line(&mut String::new()).unwrap() > 0));
                received.send(()).unwrap();
                proceeds.recv().unwrap();
                reader.get_mut().write_all(answer.as_bytes()).unwrap();
            }
            assert_eq!(reader.read_to_end(&mut Vec::new()).unwrap(), 0);
        });
        let builder = client(address).timeout(MILLIS(20_000)).connect_timeout(MILLIS(20_000));
        let client = builder.login("ann", "secret").build().unwrap();
        let call = thread::spawn({
            let client = client.clone();
            move || client.get("key")
        });
        receives.recv().unwrap();
        client.close();
        (0..2).for_each(|_| proceed.send(()).unwrap());
        // The call started before the client was closed, so it gets its reply.
        assert_eq!(call.join().unwrap().unwrap(), None);
        within(MILLIS(20_000), move || server.join().unwrap());
        assert!(matches!(client.get("key").unwrap_err().kind(), ErrorKind::ClientClosed));
    });
}

/// Starts a server that replies to each line after the delay `time`. With `None`, the server never
/// replies.
fn replying(reply: &'static str, time: Option<Duration>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || {
                let mut reader = BufReader::new(stream.unwrap());
                while reader.read_line(&mut String::new()).is_ok_and(|len| len > 0) {
                    let Some(time) = time else { continue };
                    thread::sleep(time);
                    if reader.get_mut().write_all(reply.as_bytes()).is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

/// Makes a call, drops its result, and returns its duration.
fn duration<T>(call: impl FnOnce() -> T) -> Duration {
    let start = Instant::now();
    call();
    start.elapsed()
}

#[test]
fn a_call_to_several_servers_ends_by_its_deadline() {
    each_client(|client| {
        let list = || (0..5).map(|_| replying("OK\r\n", Some(MILLIS(450)))).collect::<Vec<_>>();
        let client = client(list().join(",")).timeout(MILLIS(600)).build().unwrap();
        let took = duration(|| client.flush());
        // Sequential requests would take longer.
        assert!(took < MILLIS(1200), "flush: {took:?}");
    });
    each_client(|client| {
        let list = (0..5).map(|_| replying("", None)).collect::<Vec<_>>();
        let builder = client(list.join(",")).timeout(MILLIS(600)).login("ann", "secret");
        let client = builder.build().unwrap();
        let keys: Vec<_> = (0..100).map(|n| n.to_string()).collect();
        let took = duration(|| client.get_many(&keys));
        assert!(took < MILLIS(1200), "get_many: {took:?}");
    });
}

#[test]
fn a_partly_successful_flush_is_ambiguous() {
    let unused_address =
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    each_client(|client| {
        let good = replying("OK\r\n", Some(Duration::ZERO));
        let client = client(format!("{good},{unused_address}")).build().unwrap();
        let error = client.flush().unwrap_err();
        assert!(error.is_ambiguous(), "{error}");
    });
}

#[test]
fn a_silent_server_does_not_affect_other_servers() {
    each_client(|client| {
        let silent = replying("", None);
        let good = FakeServer::start(|_| Action::Reply);
        let client = client(format!("{silent},{}", at(good.port)));
        let client = client.timeout(MILLIS(500)).degrade(true).build().unwrap();
        let keys: Vec<_> = (0..100).map(|n| n.to_string()).collect();
        for _ in 0..2 {
            let found = client.get_many(&keys).unwrap().into_iter().flatten().count();
            assert!((20..80).contains(&found), "{found}");
        }
        assert_eq!(good.accepted(), 1);
    });
}

#[test]
fn a_connection_closed_by_the_server_is_not_counted() {
    any_client::shared_by_tasks(|client| {
        let server =
            FakeServer::start(|request| Action::SendThen(request.right(), Arc::new(Action::Close)));
        let client = client(at(server.port)).build().unwrap();
        assert_eq!(client.get("key").unwrap().unwrap(), "key");
        let start_time = Instant::now();
        while client.connections() != (0, 0, 0) {
            assert!(start_time.elapsed() < MILLIS(2000));
            thread::yield_now();
        }
    });
}

/// Accepts a connection and waits until data has arrived on the connection. Leaves the data unread.
fn arrived(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().unwrap();
    assert_eq!(stream.peek(&mut [0]).unwrap(), 1);
    stream
}

/// Checks that the client withdraws an unsent request if its call ends while the server reads
/// nothing and so blocks an earlier request.
#[test]
fn a_request_behind_a_blocked_one_is_not_ambiguous() {
    any_client::shared(|client| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = client(listener.local_addr().unwrap().to_string());
        let client = client.timeout(MILLIS(500)).build().unwrap();
        thread::scope(|scope| {
            let first = scope.spawn(|| client.set("large", vec![0; 16 << 20], 0));
            let _stream = arrived(&listener);
            let second = client.set("small", "1", 0);
            assert!(first.join().unwrap().unwrap_err().is_ambiguous());
            assert!(!second.unwrap_err().is_ambiguous());
        });
    });
}

/// Checks that the client continues to send as soon as the socket's send buffer has space, instead
/// of at its next check for silence a second later.
#[test]
fn a_request_behind_a_large_one_is_sent_once_there_is_room() {
    any_client::shared(|client| {
        // On a busy machine, the transfer of so many bytes may take long, but not five times in a
        // row.
        let fastest =
            (0..5).map(|_| time_behind_a_large_request(client)).find(|time| *time < MILLIS(800));
        assert!(fastest.is_some());
    });
}

/// Measures the time from the server's first read of a large request until that request and the
/// next request have replies.
fn time_behind_a_large_request(client: &dyn Fn(String) -> AnyClientBuilder) -> Duration {
    const LEN: usize = 16 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = client(listener.local_addr().unwrap().to_string());
    let client = client.timeout(MILLIS(20_000)).build().unwrap();
    let (start_reading, starts) = mpsc::channel();
    let (has_arrived, arrives) = mpsc::channel();
    let server = thread::spawn(move || {
        let mut stream = arrived(&listener);
        has_arrived.send(()).unwrap();
        starts.recv().unwrap();
        let requests = [format!("set large 0 0 {LEN}\r\n\r\n").len() + LEN, "get small\r\n".len()];
        for len in requests {
            stream.read_exact(&mut vec![0; len]).unwrap();
        }
        stream.write_all(b"STORED\r\nEND\r\n").unwrap();
        // Reads until the client closes the connection.
        assert_eq!(stream.read_to_end(&mut Vec::new()).unwrap(), 0);
    });
    let took = thread::scope(|scope| {
        let first = scope.spawn(|| client.set("large", vec![0; LEN], 0));
        arrives.recv().unwrap();
        let second = scope.spawn(|| client.get("small"));
        thread::sleep(MILLIS(50));
        start_reading.send(()).unwrap();
        let start = Instant::now();
        assert_eq!(first.join().unwrap().unwrap(), StoreOutcome::Stored);
        assert_eq!(second.join().unwrap().unwrap(), None);
        start.elapsed()
    });
    client.close();
    within(MILLIS(20_000), move || server.join().unwrap());
    took
}

/// Checks that a lost connection counts as a fault even if its first call cannot report the fault,
/// because the future of that call was dropped.
#[test]
fn a_lost_connection_counts_as_a_fault_even_if_its_first_call_was_dropped() {
    any_client::shared_by_tasks(|client| {
        let server = FakeServer::start(|request| match request.on_connection {
            0 => Action::Silence,
            _ => Action::Close,
        });
        let client = client(at(server.port)).timeout(MILLIS(20_000)).build().unwrap();
        let AnyClient::Tokio(client, runtime) = client else { unreachable!() };
        runtime.block_on(async {
            for n in 0..5 {
                let first = tokio::spawn({
                    let client = client.clone();
                    async move { client.set("a", "1", 0).await }
                });
                while server.requests() < 2 * n + 1 {
                    tokio::task::yield_now().await;
                }
                first.abort();
                assert!(first.await.unwrap_err().is_cancelled());
                let error = client.set("b", "1", 0).await.unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Closed | ErrorKind::Io(_)), "{error}");
            }
            let error = client.get("c").await.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Unavailable { .. }), "{error}");
        });
    });
}

/// Starts a server with a full backlog. Attempts to connect get no response while the returned
/// streams exist.
fn black_hole() -> (String, TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    socket2::SockRef::from(&listener).listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queue = Vec::new();
    // On a busy machine, a single timeout does not prove that the backlog is full.
    let mut late = 0;
    while late < 3 {
        match TcpStream::connect_timeout(&address, MILLIS(50)) {
            Ok(stream) => {
                late = 0;
                queue.push(stream);
            }
            Err(_) => late += 1,
        }
    }
    (address.to_string(), listener, queue)
}

#[test]
fn calls_that_wait_for_the_same_connect_fail_with_it() {
    // The number of calls. With so few calls, the client opens only one connection.
    const CALLS: usize = 30;
    // The timeout is long enough for all threads to start, even on a busy machine.
    const CONNECT_TIMEOUT: Duration = Duration::from_millis(2000);
    any_client::shared(|client| {
        let (address, _listener, _queue) = black_hole();
        let client = client(address).timeout(MILLIS(60_000)).connect_timeout(CONNECT_TIMEOUT);
        let client = client.build().unwrap();
        // The barrier starts all calls together, because no call may start after the attempt has
        // failed.
        let call_all = || -> Vec<_> {
            let start = Barrier::new(CALLS);
            let call = || {
                start.wait();
                client.get("key").unwrap_err()
            };
            thread::scope(|scope| {
                let calls: Vec<_> = (0..CALLS).map(|_| scope.spawn(call)).collect();
                calls.into_iter().map(|call| call.join().unwrap()).collect()
            })
        };
        // The breaker counts one fault per round. The fifth fault opens the breaker.
        for round in 1..=5 {
            for error in call_all() {
                assert!(matches!(error.kind(), ErrorKind::Connect(_)), "{error}");
            }
            assert_eq!(client.metrics().servers[0].breaker_opened, u64::from(round == 5));
        }
        // After the pause, one call at a time may probe.
        let start_time = Instant::now();
        let is_attempt = |error: &&Error| match error.kind() {
            ErrorKind::Connect(_) => true,
            ErrorKind::Unavailable { .. } => false,
            _ => panic!("{error}"),
        };
        let attempts = call_all().iter().filter(is_attempt).count();
        let took = start_time.elapsed();
        let attempts_max = 1 + took.as_millis() / CONNECT_TIMEOUT.as_millis();
        assert!(attempts as u128 <= attempts_max, "{attempts} in {took:?}");
    });
}

#[test]
fn calls_that_wait_for_a_pooled_connection_see_the_open_breaker() {
    const CALLS: usize = 40;
    const CONNECTIONS: usize = 8;
    const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
    each_pool(|client| {
        let (address, _listener, _queue) = black_hole();
        let client = client(address).timeout(MILLIS(60_000)).connect_timeout(CONNECT_TIMEOUT);
        let client = client.connections(CONNECTIONS).build().unwrap();
        let start_time = Instant::now();
        let errors: Vec<_> = thread::scope(|scope| {
            let calls: Vec<_> =
                (0..CALLS).map(|_| scope.spawn(|| client.get("key").unwrap_err())).collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        let took = start_time.elapsed();
        let is_left_alone = |error: &&Error| matches!(error.kind(), ErrorKind::Unavailable { .. });
        let attempts = CALLS - errors.iter().filter(is_left_alone).count();
        // Each of the first four failed calls passes its slot to a waiting call, and that call
        // makes another attempt. The fifth failure opens the breaker. After that, one call at a
        // time may probe, each time after a pause of at least 75 ms.
        let probes = took.as_millis() / (CONNECT_TIMEOUT + MILLIS(75)).as_millis();
        let attempts_max = CONNECTIONS + 4 + usize::try_from(probes).unwrap();
        assert!(attempts >= 5 && attempts <= attempts_max, "{attempts} in {took:?}: {errors:?}");
        for error in errors {
            let cause = match error.kind() {
                ErrorKind::Unavailable { cause, .. } => cause,
                kind => kind,
            };
            assert!(matches!(cause, ErrorKind::Connect(_)), "{error}");
        }
        assert_eq!(client.connections(), (0, 0, 0));
    });
}

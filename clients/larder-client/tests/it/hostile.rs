//! Servers that never stop to send, or never answer, beside others that are all right; clients that are closed, or whose
//! runtime ends, at a bad moment.

use crate::common::any_client::{self, Face, FaceBuilder, each_face, each_pool};
use crate::common::{Action, Fake};
use larder_client::{Client, Error, ErrorKind, Interrupted, Stored, Waiter, Waiting, blocking};
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

/// A server that sends one hit after the other, and never the end. It says when its connection was closed.
fn endless() -> (String, mpsc::Receiver<()>) {
    // Reading them takes longer than sending them.
    sending("", "VALUE a 0 0\r\n\r\n")
}

/// A server that answers with these bytes, and then with others again and again. It says when its connection was closed.
fn sending(first: &'static str, then: &'static str) -> (String, mpsc::Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (closed, closes) = mpsc::channel();
    thread::spawn(move || {
        let many = then.repeat(10_000);
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

/// Runs something that may never end.
fn within<T: Send + 'static>(time: Duration, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, dones) = mpsc::channel();
    thread::spawn(move || done.send(run()));
    dones.recv_timeout(time).expect("it is over in time")
}

/// Waits as if it did not, so that nothing of the client blocks.
#[derive(Debug)]
struct Plain;

impl Waiter for Plain {
    fn wait(&self, waiting: &mut Waiting<'_>, time: Duration) -> Result<(), Interrupted> {
        waiting.look(time);
        Ok(())
    }
}

#[test]
fn an_answer_without_an_end_is_given_up() {
    each_face(|client| {
        let (address, closes) = endless();
        let client = client(address).timeout(MILLIS(100)).build().unwrap();
        let calls = client.clone();
        let error = within(MILLIS(1500), move || calls.get("a").unwrap_err());
        assert!(error.is_fault(), "{error}");
        closes.recv_timeout(MILLIS(4000)).expect("the connection is closed");
    });
}

#[test]
fn an_answer_to_a_login_without_an_end_is_refused() {
    each_face(|client| {
        for (first, then) in [("VALUE a 0 1000000000\r\n", "a"), ("", "a"), ("CLIENT_ERROR ", "a")]
        {
            let (address, closes) = sending(first, then);
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
fn an_answer_without_an_end_is_given_up_by_a_waiter() {
    let (address, closes) = endless();
    let builder = blocking::Client::builder(address).timeout(MILLIS(100));
    let client = builder.waiter(Arc::new(Plain)).build().unwrap();
    within(MILLIS(1500), move || client.get("a").unwrap_err());
    closes.recv_timeout(MILLIS(4000)).expect("the connection is closed");
}

/// Makes a call of its own when it waits for the n-th time, as the handler of a signal may.
#[derive(Debug, Default)]
struct Handler {
    client: OnceLock<blocking::Client>,
    waits_before: AtomicUsize,
    calls: AtomicUsize,
}

impl Waiter for Handler {
    fn wait(&self, waiting: &mut Waiting<'_>, time: Duration) -> Result<(), Interrupted> {
        let before = self.waits_before.load(Ordering::Relaxed);
        self.waits_before.store(before.wrapping_sub(1), Ordering::Relaxed);
        if before == 0 {
            let client = self.client.get().unwrap();
            assert_eq!(client.get("handler").unwrap().unwrap(), "handler");
            self.calls.fetch_add(1, Ordering::Relaxed);
        }
        waiting.look(time);
        Ok(())
    }
}

#[test]
fn a_thread_that_waits_may_make_another_call() {
    for shared in [false, true] {
        // The first wait is for the connection.
        for waits_before in 0..2 {
            let server = Fake::start(|_| Action::Late(MILLIS(50)));
            let builder = blocking::Client::builder(at(server.port)).timeout(MILLIS(5000));
            let builder = if shared { builder.shared(1) } else { builder.connections(2) };
            let handler = Arc::new(Handler::default());
            handler.waits_before.store(waits_before, Ordering::Relaxed);
            let client = builder.waiter(Arc::clone(&handler) as _).build().unwrap();
            handler.client.set(client.clone()).unwrap();
            let begun = Instant::now();
            for key in ["a", "b"] {
                assert_eq!(client.get(key).unwrap().unwrap(), key);
            }
            let took = begun.elapsed();
            assert!(took < MILLIS(1000), "{shared} {waits_before} {took:?}");
            assert_eq!(handler.calls.load(Ordering::Relaxed), 1, "{shared} {waits_before}");
        }
    }
}

#[test]
fn other_calls_of_a_thread_go_on_beside_an_answer_without_an_end() {
    for shared in [false, true] {
        let (address, _closes) = endless();
        within(MILLIS(20_000), move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let builder = Client::builder(address).timeout(MILLIS(2000));
                let builder = if shared { builder.shared(1) } else { builder.connections(1) };
                let client = builder.build().unwrap();
                let call = tokio::spawn(async move { client.get("a").await });
                let begun = Instant::now();
                tokio::time::sleep(MILLIS(20)).await;
                assert!(begun.elapsed() < MILLIS(1000), "{shared} {:?}", begun.elapsed());
                call.await.unwrap().unwrap_err();
            });
        });
    }
}

#[test]
fn a_client_survives_its_runtime() {
    for shared in [false, true] {
        let server = Fake::start(|_| Action::Right);
        let builder = Client::builder(at(server.port)).timeout(MILLIS(500));
        let builder = if shared { builder.shared(1) } else { builder.connections(1) };
        let client = builder.build().unwrap();
        for _ in 0..3 {
            let runtime = Runtime::new().unwrap();
            let stored = runtime.block_on(client.set("key", "1", 0));
            assert_eq!(stored.unwrap(), Stored::Stored, "shared: {shared}");
            assert_eq!(runtime.block_on(client.get("key")).unwrap().unwrap(), "key");
        }
    }
}

#[test]
fn a_client_that_is_closed_while_a_connection_is_opened_keeps_none() {
    each_face(|client| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (go_on, goes) = mpsc::channel();
        let (asked, asks) = mpsc::channel();
        let server = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            for answer in ["STORED\r\n", "END\r\n"] {
                let lines = if answer == "STORED\r\n" { 2 } else { 1 };
                (0..lines).for_each(|_| assert!(reader.read_line(&mut String::new()).unwrap() > 0));
                asked.send(()).unwrap();
                goes.recv().unwrap();
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
        asks.recv().unwrap();
        client.close();
        (0..2).for_each(|_| go_on.send(()).unwrap());
        // It was let in before.
        assert_eq!(call.join().unwrap().unwrap(), None);
        within(MILLIS(20_000), move || server.join().unwrap());
        assert!(matches!(client.get("key").unwrap_err().kind(), ErrorKind::ClientClosed));
    });
}

/// A server that answers each line so after a time. `None`: never.
fn answering(answer: &'static str, time: Option<Duration>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || {
                let mut reader = BufReader::new(stream.unwrap());
                while reader.read_line(&mut String::new()).is_ok_and(|len| len > 0) {
                    let Some(time) = time else { continue };
                    thread::sleep(time);
                    if reader.get_mut().write_all(answer.as_bytes()).is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

/// How long a call takes; what comes of it does not matter.
fn how_long<T>(call: impl FnOnce() -> T) -> Duration {
    let begun = Instant::now();
    call();
    begun.elapsed()
}

#[test]
fn a_call_to_several_servers_is_over_by_its_deadline() {
    each_face(|client| {
        let list = || (0..5).map(|_| answering("OK\r\n", Some(MILLIS(450)))).collect::<Vec<_>>();
        let client = client(list().join(",")).timeout(MILLIS(600)).build().unwrap();
        let took = how_long(|| client.flush());
        // The first answers alone take longer, one after the other.
        assert!(took < MILLIS(1200), "flush: {took:?}");
    });
    each_face(|client| {
        let list = (0..5).map(|_| answering("", None)).collect::<Vec<_>>();
        let builder = client(list.join(",")).timeout(MILLIS(600)).login("ann", "secret");
        let client = builder.build().unwrap();
        let keys: Vec<_> = (0..100).map(|n| n.to_string()).collect();
        let took = how_long(|| client.get_many(&keys));
        assert!(took < MILLIS(1200), "get_many: {took:?}");
    });
}

#[test]
fn a_flush_that_has_flushed_some_servers_is_no_flush_that_did_nothing() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    each_face(|client| {
        let good = answering("OK\r\n", Some(Duration::ZERO));
        let client = client(format!("{good},{gone}")).build().unwrap();
        let error = client.flush().unwrap_err();
        assert!(error.is_ambiguous(), "{error}");
    });
}

#[test]
fn what_a_silent_server_does_not_say_is_not_the_fault_of_others() {
    each_face(|client| {
        let silent = answering("", None);
        let good = Fake::start(|_| Action::Right);
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
fn a_connection_that_the_server_has_closed_is_not_counted() {
    any_client::shared_by_tasks(|client| {
        let server =
            Fake::start(|request| Action::SendThen(request.right(), Arc::new(Action::Close)));
        let client = client(at(server.port)).build().unwrap();
        assert_eq!(client.get("key").unwrap().unwrap(), "key");
        let begun = Instant::now();
        while client.connections() != (0, 0, 0) {
            assert!(begun.elapsed() < MILLIS(2000));
            thread::yield_now();
        }
    });
}

/// A connection over which something has come, which is left there.
fn arrived(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().unwrap();
    assert_eq!(stream.peek(&mut [0]).unwrap(), 1);
    stream
}

/// A server that reads nothing. Behind what it does not read, nothing is sent, so that can be taken back.
#[test]
fn what_waits_behind_a_request_that_can_not_be_sent_has_not_happened() {
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

/// Room wakes the thread that sends. Without that, it would look again only after a second.
#[test]
fn what_waits_behind_a_large_request_is_sent_once_there_is_room() {
    any_client::shared(|client| {
        // A busy machine may take long to move so many bytes, but not each time.
        let fastest =
            (0..5).map(|_| time_behind_a_large_request(client)).find(|time| *time < MILLIS(800));
        assert!(fastest.is_some());
    });
}

/// The time from when the server begins to read a large request until it and one behind it are answered.
fn time_behind_a_large_request(client: &dyn Fn(String) -> FaceBuilder) -> Duration {
    const LEN: usize = 16 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = client(listener.local_addr().unwrap().to_string());
    let client = client.timeout(MILLIS(20_000)).build().unwrap();
    let (begin, begins) = mpsc::channel();
    let (has_arrived, arrives) = mpsc::channel();
    let server = thread::spawn(move || {
        let mut stream = arrived(&listener);
        has_arrived.send(()).unwrap();
        begins.recv().unwrap();
        let requests = [format!("set large 0 0 {LEN}\r\n\r\n").len() + LEN, "get small\r\n".len()];
        for len in requests {
            stream.read_exact(&mut vec![0; len]).unwrap();
        }
        stream.write_all(b"STORED\r\nEND\r\n").unwrap();
        // Until it is closed.
        assert_eq!(stream.read_to_end(&mut Vec::new()).unwrap(), 0);
    });
    let took = thread::scope(|scope| {
        let first = scope.spawn(|| client.set("large", vec![0; LEN], 0));
        arrives.recv().unwrap();
        let second = scope.spawn(|| client.get("small"));
        thread::sleep(MILLIS(50));
        begin.send(()).unwrap();
        let begun = Instant::now();
        assert_eq!(first.join().unwrap().unwrap(), Stored::Stored);
        assert_eq!(second.join().unwrap().unwrap(), None);
        begun.elapsed()
    });
    client.close();
    within(MILLIS(20_000), move || server.join().unwrap());
    took
}

/// The call that was sent first has been dropped, and so it tells nobody of the fault.
#[test]
fn a_connection_that_fails_is_a_fault_whoever_is_left_to_see_it() {
    any_client::shared_by_tasks(|client| {
        let server = Fake::start(|request| match request.on_connection {
            0 => Action::Silence,
            _ => Action::Close,
        });
        let client = client(at(server.port)).timeout(MILLIS(20_000)).build().unwrap();
        let Face::Tokio(client, runtime) = client else { unreachable!() };
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

/// A server that answers no attempt to connect, because its queue is full, as long as the connections live.
fn black_hole() -> (String, TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    socket2::SockRef::from(&listener).listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queue = Vec::new();
    // One attempt that is late on a busy machine does not show that the queue is full.
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
fn calls_that_wait_for_the_same_connection_fail_with_it() {
    // Fewer than have a second connection opened.
    const CALLS: usize = 30;
    const CONNECT_TIMEOUT: Duration = Duration::from_millis(300);
    any_client::shared(|client| {
        let (address, _listener, _queue) = black_hole();
        let client = client(address).timeout(MILLIS(60_000)).connect_timeout(CONNECT_TIMEOUT);
        let client = client.build().unwrap();
        // They begin together, so that none finds the attempt of the others failed.
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
        for _ in 0..5 {
            let begun = Instant::now();
            for error in call_all() {
                assert!(matches!(error.kind(), ErrorKind::Connect(_)), "{error}");
            }
            // One after the other they would take nine seconds.
            assert!(begun.elapsed() < MILLIS(4500), "{:?}", begun.elapsed());
        }
        // Each time, the breaker was told of one fault. After a pause of at least 75 ms, one call may try.
        let begun = Instant::now();
        let is_attempt = |error: &&Error| match error.kind() {
            ErrorKind::Connect(_) => true,
            ErrorKind::Unavailable { .. } => false,
            _ => panic!("{error}"),
        };
        let attempts = call_all().iter().filter(is_attempt).count();
        let took = begun.elapsed();
        let attempts_max = took.as_millis() / MILLIS(75).as_millis();
        assert!(attempts as u128 <= attempts_max, "{attempts} in {took:?}");
    });
}

#[test]
fn calls_that_wait_for_a_connection_of_a_pool_are_told_that_the_server_fails() {
    const CALLS: usize = 40;
    const CONNECTIONS: usize = 8;
    const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
    each_pool(|client| {
        let (address, _listener, _queue) = black_hole();
        let client = client(address).timeout(MILLIS(60_000)).connect_timeout(CONNECT_TIMEOUT);
        let client = client.connections(CONNECTIONS).build().unwrap();
        let begun = Instant::now();
        let errors: Vec<_> = thread::scope(|scope| {
            let calls: Vec<_> =
                (0..CALLS).map(|_| scope.spawn(|| client.get("key").unwrap_err())).collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        let took = begun.elapsed();
        let is_left_alone = |error: &&Error| matches!(error.kind(), ErrorKind::Unavailable { .. });
        let attempts = CALLS - errors.iter().filter(is_left_alone).count();
        // The fifth failure decides. Before it, each of the first four gives its place to another call. After it, one
        // call at a time may try, each time after a pause of at least 75 ms.
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

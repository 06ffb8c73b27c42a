//! Tests threads that share connections: reading, waking, and the effects on other calls if a call
//! gives up, makes a nested call, or loses the connection.

use crate::common::{Action, FakeServer, any_client};
use larder_client::{Error, ErrorKind, Interrupted, WaitCondition, Waiter, blocking};
use std::cell::RefCell;
use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const MILLIS: fn(u64) -> Duration = Duration::from_millis;

type Handler = Box<dyn FnOnce()>;

thread_local! {
    /// The nested call that this thread makes in its next wait for another thread.
    static HANDLER: RefCell<Option<Handler>> = const { RefCell::new(None) };
}

/// A waiter that runs the thread's handler once, as an interpreter runs a signal handler, and then
/// waits.
#[derive(Debug)]
struct Handling;

impl Waiter for Handling {
    fn wait(&self, waiting: &mut WaitCondition<'_>, time: Duration) -> Result<(), Interrupted> {
        let start_time = Instant::now();
        if waiting.socket().is_none()
            && let Some(handler) = HANDLER.take()
        {
            handler();
        }
        while !waiting.poll(time.saturating_sub(start_time.elapsed()))
            && start_time.elapsed() < time
        {}
        Ok(())
    }
}

/// Starts a server for one connection. For each list of keys from the channel, the server reads
/// until it has requests for all of these keys, and then sends their values in one write.
fn controlled_server() -> (String, mpsc::Sender<&'static [&'static str]>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (replies, received) = mpsc::channel::<&[&str]>();
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let (mut requests, mut answers) = (BufReader::new(&stream), &stream);
        let mut requested = HashSet::new();
        // The loop ends when the test drops the sender.
        for keys in received {
            while !keys.iter().all(|key| requested.contains(*key)) {
                let mut line = String::new();
                if requests.read_line(&mut line).unwrap() == 0 {
                    return;
                }
                requested.extend(line.trim_end().strip_prefix("get ").map(str::to_owned));
            }
            answers
                .write_all(&keys.iter().map(|key| hit(key)).collect::<Vec<_>>().concat())
                .unwrap();
        }
    });
    (address, replies)
}

fn hit(key: &str) -> Vec<u8> {
    format!("VALUE {key} 0 {}\r\n{key}\r\nEND\r\n", key.len()).into_bytes()
}

fn get(client: &blocking::Client, key: &str) {
    assert_eq!(client.get(key).unwrap().unwrap(), key);
}

/// Makes the nested call "n" in the thread of call "x" while that thread waits for the reading
/// thread. `before` and `after` run before and after the nested call. The server replies in the
/// order of `answers`.
fn call_while_waiting(
    before: fn(&ServerControl),
    after: fn(),
    answers: &'static [&'static [&'static str]],
) {
    let (address, replies) = controlled_server();
    let builder = blocking::Client::builder(address).timeout(MILLIS(4000)).shared(1);
    let client = builder.waiter(Arc::new(Handling)).build().unwrap();
    let control = ServerControl { replies, is_read: Arc::default() };
    let start_time = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            get(&client, "y");
            control.is_read.store(true, Ordering::Relaxed);
        });
        thread::sleep(MILLIS(50));
        scope.spawn(|| {
            let (nested, control) = (client.clone(), control.clone());
            HANDLER.set(Some(Box::new(move || {
                before(&control);
                get(&nested, "n");
                after();
            })));
            get(&client, "x");
        });
        thread::sleep(MILLIS(150));
        for keys in answers {
            control.replies.send(keys).unwrap();
            thread::sleep(MILLIS(20));
        }
    });
    let took = start_time.elapsed();
    assert!(took < MILLIS(2000), "{took:?}");
    // The next call must find the read permit free.
    thread::scope(|scope| {
        let call = scope.spawn(|| get(&client, "z"));
        thread::sleep(MILLIS(20));
        control.replies.send(&["z"]).unwrap();
        call.join().unwrap();
    });
    assert!(start_time.elapsed() - took < MILLIS(2000), "{:?}", start_time.elapsed() - took);
}

/// The channel that controls the server, and whether the reading thread is done.
#[derive(Clone)]
struct ServerControl {
    replies: mpsc::Sender<&'static [&'static str]>,
    is_read: Arc<AtomicBool>,
}

#[test]
fn a_thread_that_gets_the_read_permit_may_make_a_nested_call() {
    let read_first = |control: &ServerControl| {
        control.replies.send(&["y"]).unwrap();
        while !control.is_read.load(Ordering::Relaxed) {
            thread::yield_now();
        }
    };
    call_while_waiting(read_first, || (), &[&["x", "n"]]);
}

#[test]
fn a_thread_in_a_nested_call_may_get_the_read_permit() {
    call_while_waiting(|_| (), || (), &[&["y"], &["x", "n"]]);
}

#[test]
fn a_reply_that_arrives_during_a_nested_call_is_not_waited_for() {
    // A thread has only one unpark token, which announces the replies to both calls. The nested
    // call consumes the token.
    let forget = || thread::park_timeout(Duration::ZERO);
    call_while_waiting(|_| (), forget, &[&["y", "x", "n"]]);
}

/// Checks that a reply is not lost if it fills the read buffer and the server's FIN arrives in the
/// same TCP segment.
#[test]
fn a_reply_together_with_the_end_of_the_connection_counts() {
    const LEN: usize = 16 << 10;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = blocking::Client::builder(listener.local_addr().unwrap().to_string());
    let client = client.shared(1).build().unwrap();
    let value = "v".repeat(LEN - "VALUE key 0 16359\r\n\r\nEND\r\n".len());
    let answer = format!("VALUE key 0 {}\r\n{value}\r\nEND\r\n", value.len());
    assert_eq!(answer.len(), LEN);
    let server = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        socket2::SockRef::from(&stream).set_tcp_cork(true).unwrap();
        let mut reader = BufReader::new(stream);
        reader.read_line(&mut String::new()).unwrap();
        reader.get_mut().write_all(answer.as_bytes()).unwrap();
        reader.get_mut().shutdown(Shutdown::Write).unwrap();
    });
    assert_eq!(client.get("key").unwrap().unwrap(), value);
    server.join().unwrap();
}

/// Checks that a wrong reply also fails the later calls on its connection, but counts as only one
/// fault.
#[test]
fn a_wrong_reply_is_one_fault_for_all_calls_behind_it() {
    any_client::shared(|client| {
        let server = FakeServer::start(|request| {
            if request.on_connection == 0 {
                thread::sleep(MILLIS(60));
            }
            Action::Send(b"VALUE x 0 1\r\nx\r\nEND\r\n".to_vec())
        });
        let client = client(format!("127.0.0.1:{}", server.port)).build().unwrap();
        let is_unexpected = |error: Error| matches!(error.kind(), ErrorKind::Unexpected(_));
        // Make only four faults in a row, because five would open the breaker.
        for _ in 0..4 {
            thread::scope(|scope| {
                let first = scope.spawn(|| client.get("a").unwrap_err());
                thread::sleep(MILLIS(20));
                let second = scope.spawn(|| client.get("b").unwrap_err());
                assert!(is_unexpected(first.join().unwrap()));
                assert!(is_unexpected(second.join().unwrap()));
            });
        }
    });
}

/// Checks that waiting calls make their own attempt to connect if the connecting call reaches its
/// deadline. In this test, the first call waits so long for the first server that it has no time
/// left for the login to the second server.
#[test]
fn a_connect_that_ran_out_of_time_is_retried_by_the_next_call() {
    const LOGIN: &[u8; 31] = b"set login 0 -1 10\r\nann secret\r\n";
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let slow = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
    let (silent_address, slow_address) = (address(&silent), address(&slow));
    thread::spawn(move || {
        for stream in slow.incoming() {
            thread::spawn(move || {
                let mut reader = BufReader::new(stream.unwrap());
                let mut login = [0; LOGIN.len()];
                reader.read_exact(&mut login).unwrap();
                assert_eq!(&login, LOGIN);
                thread::sleep(MILLIS(300));
                // The write may fail, because the client closes the connection if its call has no
                // time left.
                let mut written = reader.get_mut().write_all(b"STORED\r\n");
                while written.is_ok()
                    && reader.read_line(&mut String::new()).is_ok_and(|len| len > 0)
                {
                    written = reader.get_mut().write_all(b"END\r\n");
                }
            });
        }
    });
    let builder = blocking::Client::builder(format!("{silent_address},{slow_address}")).shared(1);
    let builder = builder.login("ann", "secret").timeout(MILLIS(1000));
    let client = builder.connect_timeout(MILLIS(800)).build().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| client.versions().unwrap_err());
        thread::sleep(MILLIS(850));
        let get = |n: usize| client.get(n.to_string());
        let calls: Vec<_> = (0..8).map(|n| scope.spawn(move || get(n))).collect();
        let mut found = 0;
        for call in calls {
            match call.join().unwrap() {
                Ok(_) => found += 1,
                Err(error) => assert_eq!(error.server(), Some(&*silent_address), "{error}"),
            }
        }
        assert!(found > 0);
    });
}

thread_local! {
    /// The client that this thread uses for nested calls.
    static NESTED: RefCell<Option<blocking::Client>> = const { RefCell::new(None) };
}

/// A waiter that randomly interrupts calls, makes nested calls and returns early.
#[derive(Debug, Default)]
struct Restless {
    waits: AtomicU64,
    is_calm: AtomicBool,
}

impl Waiter for Restless {
    fn wait(&self, waiting: &mut WaitCondition<'_>, time: Duration) -> Result<(), Interrupted> {
        let number = self.waits.fetch_add(1, Ordering::Relaxed) + 1;
        let random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        if self.is_calm.load(Ordering::Relaxed) {
            waiting.poll(time);
            return Ok(());
        }
        match random % 16 {
            0 => return Err(Interrupted),
            1 | 2 => {
                // Nested calls make no further nested calls.
                let client = NESTED.take();
                if let Some(client) = &client {
                    call(client, random);
                    NESTED.set(Some(client.clone()));
                }
                drop(client);
                waiting.poll(time);
            }
            3..8 => drop(waiting.poll(MILLIS(random / 16 % 3).min(time))),
            8 => thread::yield_now(),
            _ => while !waiting.poll(time) && random.is_multiple_of(2) {},
        }
        Ok(())
    }
}

/// Makes a call and checks its value.
fn call(client: &blocking::Client, random: u64) {
    let start_time = Instant::now();
    let keys: Vec<_> = (0..6).map(|n| format!("key-{random}-{n}")).collect();
    let error = match random / 64 % 8 {
        0 => client.set(&keys[0], "1", 0).err(),
        1 | 2 => client
            .get_many(&keys)
            .map(|found| {
                assert!(
                    found.iter().zip(&keys).all(|(item, key)| item.as_ref().unwrap().value == key)
                );
            })
            .err(),
        _ => client.get(&keys[0]).map(|value| assert_eq!(value.unwrap(), keys[0])).err(),
    };
    if let Some(error) = error {
        assert!(matches!(error.kind(), ErrorKind::Interrupted), "{error}");
    }
    assert!(start_time.elapsed() < MILLIS(5000), "{:?}", start_time.elapsed());
}

#[test]
fn interrupted_and_nested_calls_do_not_block_other_threads() {
    // Nested calls use only one server. With two servers, threads with nested calls could deadlock.
    (0..5).for_each(|_| call_at_random(1, true));
    (0..20).for_each(|_| call_at_random(2, false));
}

fn call_at_random(servers: usize, is_nested: bool) {
    let servers: Vec<_> = (0..servers)
        .map(|_| {
            FakeServer::start(|request| match request.random % 20 {
                0 => Action::ReplyAfter(MILLIS(request.random / 20 % 3)),
                _ => Action::Reply,
            })
        })
        .collect();
    let list: Vec<_> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
    let restless = Arc::new(Restless::default());
    let builder = blocking::Client::builder(list.join(",")).shared(1).timeout(MILLIS(20_000));
    let client = builder.waiter(restless.clone()).build().unwrap();
    thread::scope(|scope| {
        for thread in 0..48_u64 {
            let client = &client;
            scope.spawn(move || {
                NESTED.set(is_nested.then(|| client.clone()));
                (0..60).for_each(|n| {
                    call(client, (thread * 1000 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20)
                });
            });
        }
    });
    restless.is_calm.store(true, Ordering::Relaxed);
    let start_time = Instant::now();
    (0..64).for_each(|n| call(&client, n * 64));
    assert!(start_time.elapsed() < MILLIS(2000), "{:?}", start_time.elapsed());
    let n = servers.len();
    assert_eq!(client.connections(), (n, n, 0));
}

/// Measures the median duration of a call while 64 threads make calls.
fn median_latency(client: &blocking::Client) -> Duration {
    let mut latencies = thread::scope(|scope| {
        let threads: Vec<_> = (0..64)
            .map(|thread| {
                scope.spawn(move || {
                    let timed = |n| {
                        let start_time = Instant::now();
                        get(client, &format!("key-{thread}-{n}"));
                        start_time.elapsed()
                    };
                    (0..10).map(timed).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    latencies.sort_unstable();
    latencies[latencies.len() / 2]
}

/// Checks calls whose deadlines expire at about the time when their replies arrive.
#[test]
fn threads_that_give_up_do_not_block_others() {
    let server = FakeServer::start(|request| match request.random % 20 {
        0 => Action::ReplyAfter(MILLIS(request.random / 20 % 5)),
        _ => Action::Reply,
    });
    let shared = |timeout| {
        let builder = blocking::Client::builder(format!("127.0.0.1:{}", server.port)).shared(1);
        builder.timeout(timeout).build().unwrap()
    };
    // Independently of the machine's load, about half of the calls end by this timeout.
    let timeout = median_latency(&shared(MILLIS(60_000))).max(MILLIS(4));
    let client = shared(timeout);
    let (right, late) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for thread in 0..64 {
            let (client, right, late) = (&client, &right, &late);
            scope.spawn(move || {
                for n in 0..20 {
                    let key = format!("key-{thread}-{n}");
                    let start_time = Instant::now();
                    let called = client.get(&key);
                    let took = start_time.elapsed();
                    assert!(took < timeout + MILLIS(2000), "{took:?}");
                    match called {
                        Ok(value) => {
                            assert_eq!(value.unwrap(), key);
                            right.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => match error.kind() {
                            ErrorKind::Unavailable { retry_in, .. } => thread::sleep(*retry_in),
                            ErrorKind::Timeout | ErrorKind::Closed | ErrorKind::Connect(_) => {
                                late.fetch_add(1, Ordering::Relaxed);
                            }
                            _ => panic!("{error}"),
                        },
                    }
                }
            });
        }
    });
    let (right, late) = (right.into_inner(), late.into_inner());
    assert!(right > 50 && late > 0, "{right} {late}");
    let start_time = Instant::now();
    while client.get("key").is_err() {
        assert!(start_time.elapsed() < MILLIS(4000));
        thread::sleep(MILLIS(5));
    }
    assert_eq!(client.connections(), (1, 1, 0));
}

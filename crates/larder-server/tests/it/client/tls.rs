//! larder-client over TLS and with logins: with larderd, with Debian's memcached, and with servers inside of the test
//! that misbehave.

use crate::common::tls::{Authority, Identity, Secure, write_identity};
use crate::common::{Scratch, Server, stat, wait_for};
use crate::face::{Face, FaceBuilder, each_face, each_pool};
use larder_client::{
    Client, Error, ErrorKind, Interrupted, Stored, Tls, Waiter, Waiting, blocking,
};
use rcgen::CertificateParams;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned, SupportedProtocolVersion};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

type NewClient<'c> = &'c dyn Fn(String) -> FaceBuilder;

const MILLIS: fn(u64) -> Duration = Duration::from_millis;
/// A busy machine is no fault of the client.
const LONG: Duration = Duration::from_secs(60);

fn at(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

fn with_tls(builder: FaceBuilder, tls: Tls) -> FaceBuilder {
    match builder {
        FaceBuilder::Threads(builder) => FaceBuilder::Threads(builder.tls(tls)),
        FaceBuilder::Tokio(builder) => FaceBuilder::Tokio(builder.tls(tls)),
    }
}

/// Trusts the CA in this directory, for `cache.test`.
fn tls(scratch: &Scratch) -> Tls {
    Tls::new().ca_file(scratch.path("ca.pem")).server_name("cache.test")
}

fn patient(client: NewClient<'_>, port: u16, tls: Tls) -> Face {
    with_tls(client(at(port)), tls).timeout(LONG).connect_timeout(LONG).build().unwrap()
}

/// A client whose calls end after a second.
fn hasty(client: NewClient<'_>, port: u16, tls: Tls) -> Face {
    let builder = with_tls(client(at(port)), tls).timeout(Duration::from_secs(1));
    builder.connect_timeout(LONG).build().unwrap()
}

/// Runs a test with each kind of client and each server.
fn each_server(name: &str, test: impl Fn(&Face, &Secure)) {
    each_face(|client| {
        for secure in [
            Secure::start(name, &[], ""),
            Secure::start(name, &["--engine", "delayed"], ""),
            Secure::memcached(name, ""),
        ] {
            test(&patient(client, secure.server.port(), tls(&secure.server.scratch)), &secure);
        }
    });
}

#[test]
fn values_of_each_length_and_many_keys() {
    each_server("client-values", |client, secure| {
        let total = || -> u64 {
            let page = secure.ask("stats\r\n");
            stat(&page, "total_connections").parse().unwrap()
        };
        let before = total();
        assert_eq!(client.get("none").unwrap(), None);
        for len in [0, 1, 100, 4096, 16 << 10, (16 << 10) + 1, 60_000, 300_000, 1_000_000] {
            let value: Vec<u8> = (0..=255).cycle().skip(len % 7).take(len).collect();
            assert_eq!(client.set("key", &value, 0).unwrap(), Stored::Stored, "{len}");
            assert_eq!(client.get("key").unwrap().unwrap(), value, "{len}");
        }
        let keys: Vec<String> = (0..2000).map(|n| format!("{n}-{}", "k".repeat(100))).collect();
        keys.iter().step_by(2).for_each(|key| {
            client.set(key, key, 0).unwrap();
        });
        for (n, (item, key)) in client.get_many(&keys).unwrap().iter().zip(&keys).enumerate() {
            assert_eq!(
                item.as_ref().map(|item| &*item.value),
                (n % 2 == 0).then_some(key.as_bytes())
            );
        }
        // Neither session tickets nor anything else of TLS's own is a reason to close one. Whoever asks has one, too.
        assert_eq!(client.connections(), (1, 1, 0));
        assert_eq!(total() - before, 2);
    });
}

#[test]
fn many_threads() {
    each_server("client-threads", |client, _| {
        thread::scope(|scope| {
            for thread in 0..64 {
                scope.spawn(move || {
                    for n in 0..20 {
                        let key = format!("{thread}-{n}");
                        let value = key.repeat(1 + n * 97);
                        client.set(&key, &value, 0).unwrap();
                        assert_eq!(client.get(&key).unwrap().unwrap(), value);
                    }
                });
            }
        });
        let (open, idle, waiting) = client.connections();
        assert!(open == idle && open <= 64 && waiting == 0, "{open} {idle} {waiting}");
    });
}

fn reason(error: &Error) -> String {
    assert!(matches!(error.kind(), ErrorKind::Connect(_)), "{error:?}");
    assert!(!error.is_ambiguous() && error.is_fault());
    error.to_string()
}

/// larderd with this certificate, and a directory with its CA.
fn larderd_as(authority: &Authority, identity: &Identity) -> Secure {
    let secure = Secure::start("client-identity", &[], "");
    let scratch = &secure.server.scratch;
    // By then it has read its first one.
    secure.ask("mn\r\n");
    write_identity(scratch, identity);
    assert_eq!(secure.ask("refresh_certs\r\n"), "OK\r\n");
    scratch.file("ca.pem", &authority.pem());
    secure
}

#[test]
fn a_certificate_that_can_not_be_trusted_is_said_to_be_so() {
    let authority = Authority::new();
    let named = |names: &[&str]| {
        CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap()
    };
    let mut expired = named(&["cache.test"]);
    expired.not_before = rcgen::date_time_ymd(2001, 1, 1);
    expired.not_after = rcgen::date_time_ymd(2002, 1, 1);
    for (issuer, params, of_address, expected) in [
        (&authority, named(&["cache.test"]), false, None),
        (&authority, named(&["127.0.0.1"]), true, None),
        (&authority, named(&["cache.test"]), true, Some("is not for 127.0.0.1, but for")),
        (&authority, named(&["other.test"]), false, Some("is not for cache.test, but for")),
        (&authority, expired, false, Some("certificate has expired")),
        (&Authority::new(), named(&["cache.test"]), false, Some("no CA that is trusted")),
    ] {
        let secure = larderd_as(&authority, &issuer.issue_as(params));
        let ca = secure.server.scratch.path("ca.pem");
        each_face(|client| {
            let tls = Tls::new().ca_file(&ca);
            let tls = if of_address { tls } else { tls.server_name("cache.test") };
            let client = patient(client, secure.server.port(), tls);
            let (got, stored) = (client.get("k"), client.set("k", "1", 0));
            match expected {
                None => assert!(got.is_ok() && stored.is_ok()),
                Some(expected) => {
                    for error in [got.unwrap_err(), stored.unwrap_err()] {
                        assert!(reason(&error).contains(expected), "{error}");
                    }
                    // It is said also when the server is left alone.
                    let mut last = None;
                    wait_for("pause after several faults", || {
                        let error = last.insert(client.get("k").unwrap_err());
                        matches!(error.kind(), ErrorKind::Unavailable { .. })
                    });
                    let last = last.unwrap();
                    assert!(last.to_string().contains(expected), "{last}");
                    assert_eq!(client.connections().0, 0);
                }
            }
        });
    }
}

#[test]
fn a_client_shows_its_certificate() {
    let secure = Secure::start("client-mutual", &["-l", "mtls:127.0.0.1"], "ssl_ca_cert=ca.pem");
    let (scratch, port) = (&secure.server.scratch, secure.ports()[1]);
    let Identity { chain, key } = secure.authority.issue();
    let (chain, key) = (scratch.file("client.pem", &chain), scratch.file("client.key", &key));
    each_face(|client| {
        let known = patient(client, port, tls(scratch).client_certificate(&chain, &key));
        assert_eq!(known.set("k", "1", 0).unwrap(), Stored::Stored);
        // Version 1.3 refuses it after the client's handshake, so that it is the first request that fails, and the reason
        // may be lost when the server closes the connection.
        wait_for("the reason", || {
            let error = patient(client, port, tls(scratch)).get("k").unwrap_err();
            assert!(error.is_fault(), "{error}");
            error.to_string().contains("CertificateRequired")
        });
    });
}

#[test]
fn files_and_names_that_are_of_no_use() {
    let (scratch, authority) = (Scratch::new("client-files"), Authority::new());
    let good = scratch.file("good.pem", &authority.pem());
    let [empty, missing] = [scratch.file("empty.pem", ""), "/nonexistent/ca.pem".to_owned()];
    each_face(|client| {
        let refused = |tls: Tls| {
            let built = with_tls(client("127.0.0.1".to_owned()), tls).build();
            reason(&Error::clone(&built.unwrap_err()))
        };
        assert!(refused(Tls::new().ca_file(&empty)).contains("empty.pem: no certificate"));
        assert!(refused(Tls::new().ca_file(&missing)).contains("/nonexistent/ca.pem: "));
        let ours = || Tls::new().ca_file(&good);
        assert!(refused(ours().client_certificate(&good, &good)).contains("good.pem: "));
        assert!(refused(ours().client_certificate(&empty, &good)).contains("empty.pem: "));
        assert!(refused(ours().server_name("no name")).contains("\"no name\" is no name"));
    });
}

/// What a server inside of the test does with each connection, of which it gets the number.
type Serve = dyn Fn(u64, TcpStream) + Send + Sync;

/// A server inside of the test. It ends with the test's process.
struct Fake {
    port: u16,
    accepted: Arc<AtomicU64>,
}

impl Fake {
    fn start(serve: Arc<Serve>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fake = Self { port: listener.local_addr().unwrap().port(), accepted: Arc::default() };
        let accepted = Arc::clone(&fake.accepted);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (number, serve) =
                    (accepted.fetch_add(1, Ordering::Relaxed), Arc::clone(&serve));
                thread::spawn(move || serve(number, stream.unwrap()));
            }
        });
        fake
    }

    /// One that speaks TLS. `answer` gets each line and the numbers of its connection and on it; it returns whether the
    /// connection goes on.
    fn with_tls(
        scratch: &Scratch,
        answer: impl Fn(u64, u64, &str, &mut Encrypted) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self::with_versions(scratch, rustls::ALL_VERSIONS, answer)
    }

    /// The same with these versions of TLS alone.
    fn with_versions(
        scratch: &Scratch,
        versions: &[&'static SupportedProtocolVersion],
        answer: impl Fn(u64, u64, &str, &mut Encrypted) -> bool + Send + Sync + 'static,
    ) -> Self {
        let authority = Authority::new();
        scratch.file("ca.pem", &authority.pem());
        let Identity { chain, key } = authority.issue();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(chain.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
            );
        let config = Arc::new(config.unwrap());
        Self::start(Arc::new(move |number, stream| {
            stream.set_nodelay(true).unwrap();
            let tls = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut lines = BufReader::new(StreamOwned::new(tls, stream));
            for on_connection in 0.. {
                let mut line = String::new();
                let is_over = lines.read_line(&mut line).is_ok_and(|len| len == 0);
                if is_over || !answer(number, on_connection, &line, lines.get_mut()) {
                    break;
                }
            }
        }))
    }

    fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }
}

type Encrypted = StreamOwned<ServerConnection, TcpStream>;

/// The right answer to the look-up of a key: itself.
fn right(line: &str) -> String {
    let key = line.trim_end().strip_prefix("get ").unwrap();
    format!("VALUE {key} 0 {}\r\n{key}\r\nEND\r\n", key.len())
}

/// Closing with a linger time of 0 sends a reset.
fn reset(stream: &TcpStream) {
    socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
}

fn scratch_with_ca() -> Scratch {
    let scratch = Scratch::new("client-fake");
    scratch.file("ca.pem", &Authority::new().pem());
    scratch
}

#[test]
fn a_server_that_shakes_no_hands_keeps_no_call_from_its_deadline_and_sees_no_request() {
    let scratch = scratch_with_ca();
    each_face(|client| {
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
            assert!(reason(&error).contains("no TLS handshake in time"), "{error}");
            begun.elapsed().checked_sub(MILLIS(200)).expect("not before the deadline")
        });
        // A busy machine may wake a thread late, but hardly each time.
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
fn what_is_not_tls_is_said_to_be_none() {
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
    each_face(|client| {
        for (port, expected) in [
            (larderd.port(), "what the server sent is not TLS"),
            (garbage.port, "what the server sent is not TLS"),
            (closes.port, "closed the connection during the TLS handshake"),
        ] {
            let error = patient(client, port, tls(&scratch)).set("k", "1", 0).unwrap_err();
            assert!(reason(&error).contains(expected), "{error}");
        }
        // And the other way round.
        let secure = Secure::start("client-plain", &[], "");
        let plain = client(at(secure.server.port())).build().unwrap();
        assert!(plain.get("k").unwrap_err().is_fault());
    });
}

/// A proxy resets the first connection after so many of the server's bytes, wherever that is.
#[test]
fn a_reset_in_the_middle_of_a_record_is_an_error_and_the_next_call_has_a_new_connection() {
    let secure = Secure::start("client-cut", &[], "");
    let (port, scratch) = (secure.server.port(), &secure.server.scratch);
    let value = "v".repeat(100_000);
    each_face(|client| {
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
                // The whole of it came before.
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
fn a_connection_on_which_the_server_says_what_nobody_asked_for_is_not_used_again() {
    each_face(|client| {
        for unasked in ["END\r\n", "VALUE b 0 1\r\nx\r\nEND\r\n"] {
            let scratch = Scratch::new("client-unasked");
            // Even: it is the client's turn.
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
fn what_tls_has_to_say_is_no_reason_to_close_a_connection_but_its_end_is() {
    each_face(|client| {
        let scratch = Scratch::new("client-quiet");
        let server = Fake::with_tls(&scratch, |connection, number, line, stream| {
            stream.write_all(right(line).as_bytes()).unwrap();
            // Keys are changed, which the client answers.
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
fn each_version_of_tls() {
    each_face(|client| {
        for version in rustls::ALL_VERSIONS {
            let scratch = Scratch::new("client-versions");
            let server = Fake::with_versions(&scratch, &[version], |_, _, line, stream| {
                let len: usize = line.trim_end().strip_prefix("get ").unwrap().parse().unwrap();
                let value = "v".repeat(len);
                write!(stream, "VALUE {len} 0 {len}\r\n{value}\r\nEND\r\n").unwrap();
                true
            });
            let client = patient(client, server.port, tls(&scratch));
            for len in [0, 1, 4096, 16 << 10, 100_000, 1_000_000, 1] {
                assert_eq!(client.get(len.to_string()).unwrap().unwrap().len(), len);
            }
            assert_eq!(server.accepted(), 1, "{version:?}");
        }
    });
}

/// Each value is its key, repeated.
#[test]
fn nobody_gets_another_s_value_when_futures_are_dropped() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap().block_on(drop_futures());
}

/// When a call is dropped. None depends on the speed of the machine.
#[derive(Clone, Copy)]
enum DropAt {
    Never,
    /// After so many polls.
    Poll(u32),
    /// After this time.
    Time(Duration),
}

impl DropAt {
    /// One call in four is not dropped, one in four after one to eight polls, and two after a random part of the time
    /// that the last call took which was not dropped, or up to twice that time.
    fn of_call(n: u32, latency_micros: u64) -> Self {
        match n % 4 {
            0 => Self::Never,
            1 => Self::Poll(1 + n / 4 % 8),
            _ => {
                let share = n.wrapping_mul(0x9e37_79b9) >> 16;
                Self::Time(Duration::from_micros((latency_micros * 2 * u64::from(share)) >> 16))
            }
        }
    }

    /// The output of a future that ends before it is dropped.
    async fn run<T>(self, future: impl Future<Output = T>) -> Option<T> {
        match self {
            Self::Never => Some(future.await),
            Self::Time(time) => tokio::time::timeout(time, future).await.ok(),
            Self::Poll(mut left) => {
                let mut future = pin!(future);
                std::future::poll_fn(|context| {
                    left -= 1;
                    match future.as_mut().poll(context) {
                        Poll::Ready(output) => Poll::Ready(Some(output)),
                        Poll::Pending if left == 0 => Poll::Ready(None),
                        Poll::Pending => Poll::Pending,
                    }
                })
                .await
            }
        }
    }
}

async fn drop_futures() {
    const TASKS: u32 = 8;
    const CALLS: u32 = 800;
    let secure = Secure::start("client-dropped", &[], "");
    let builder = Client::builder(at(secure.server.port())).tls(tls(&secure.server.scratch));
    let client = builder.timeout(LONG).connect_timeout(LONG).connections(4).build().unwrap();
    let (dropped, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let latency_micros = Arc::new(AtomicU64::new(200));
    let tasks = (0..TASKS).map(|task| {
        let (client, dropped, done) = (client.clone(), Arc::clone(&dropped), Arc::clone(&done));
        let latency_micros = Arc::clone(&latency_micros);
        tokio::spawn(async move {
            for n in 0..CALLS {
                let key = format!("key-{task}-{}", n % 50);
                let value = key.repeat(1 + n as usize % 50 * 40);
                let exchange = async {
                    if n % 3 == 0 {
                        client.set(&key, &value, 0).await.unwrap();
                    }
                    client.get(&key).await.unwrap()
                };
                let drop_at = DropAt::of_call(n, latency_micros.load(Ordering::Relaxed));
                let begun = Instant::now();
                let found = drop_at.run(exchange).await;
                if matches!(drop_at, DropAt::Never) {
                    let micros = u64::try_from(begun.elapsed().as_micros()).unwrap();
                    latency_micros.store(micros, Ordering::Relaxed);
                }
                if let Some(found) = &found {
                    assert!(found.as_ref().is_none_or(|found| *found == value), "{key}");
                }
                let count = if found.is_some() { &done } else { &dropped };
                count.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let (dropped, done) = (dropped.load(Ordering::Relaxed), done.load(Ordering::Relaxed));
    let calls = u64::from(TASKS * CALLS);
    // One in 32 calls is polled once, which is never enough for an answer.
    assert!(
        done >= calls / 4 && dropped >= calls / 32,
        "{done} calls were done, {dropped} dropped"
    );
    let (open, idle, waiting) = client.connections();
    assert!(open == idle && open <= 4 && waiting == 0, "{open} {idle} {waiting}");
}

#[test]
fn deadlines_are_kept_after_the_handshake() {
    each_pool(|client| {
        let scratch = Scratch::new("client-late");
        let server = Fake::with_tls(&scratch, |_, number, line, stream| {
            match number {
                0 => stream.write_all(right(line).as_bytes()).unwrap(),
                // A byte at a time.
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

/// A request of which the end was not sent never reaches the server, also when the connection is closed.
#[test]
fn a_request_that_is_given_up_before_its_end_is_not_completed() {
    each_face(|client| {
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

/// Counts what is waited for; gives up when it is told to.
#[derive(Debug, Default)]
struct Counting {
    waits: AtomicU64,
    left: Option<u64>,
}

impl Waiter for Counting {
    fn wait(&self, waiting: &mut Waiting<'_>, time: Duration) -> Result<(), Interrupted> {
        let before = self.waits.fetch_add(1, Ordering::Relaxed);
        if self.left.is_some_and(|left| before >= left) {
            return Err(Interrupted);
        }
        waiting.look(time);
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
    // The second wait is for the handshake, if not the first.
    for left in 0..2 {
        let waiter = Arc::new(Counting { left: Some(left), ..Counting::default() });
        let error = client(silent.port, &waiter).get("k").unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Interrupted), "{left}: {error}");
    }
}

const PASSWORDS: &str = "ann:first\nbob:seco:nd";

/// A server with logins of each kind.
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

fn logged_in(client: NewClient<'_>, port: u16, user: &str, password: &str) -> Result<Face, Error> {
    client(at(port)).login(user, password).timeout(LONG).connect_timeout(LONG).build()
}

#[test]
fn logins() {
    for (_scratch, server) in with_logins() {
        each_face(|client| {
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
fn a_login_that_is_refused_is_an_error_of_its_own_and_shows_no_password() {
    for (_scratch, server) in with_logins() {
        each_face(|client| {
            for (user, password) in [("ann", "hush-hush"), ("eve", "hush-hush"), ("bob", "seco")] {
                let client = logged_in(client, server.port(), user, password).unwrap();
                // More often than the breaker lets faults pass.
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
fn a_server_without_logins_keeps_no_password() {
    let memcached = Server::memcached(&[]).expect("Debian's memcached is installed");
    for server in [Server::larderd(&[]), memcached] {
        each_face(|client| {
            let client = logged_in(client, server.port(), "ann", "first").unwrap();
            assert_eq!(client.set("k", "1", 0).unwrap(), Stored::Stored);
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
    each_face(|client| {
        let with = |password| {
            let builder = with_tls(client(at(port)), tls()).login("ann", password);
            builder.timeout(LONG).connect_timeout(LONG).build().unwrap()
        };
        assert_eq!(with("first").set("k", "1", 0).unwrap(), Stored::Stored);
        let error = with("second").get("k").unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Login(_)), "{error}");
    });
}

#[test]
fn a_login_that_is_not_answered_rightly() {
    let silent = Fake::start(Arc::new(|_, mut stream: TcpStream| {
        drop(stream.read_to_end(&mut Vec::new()));
    }));
    let echoing = Fake::start(Arc::new(|_, stream: TcpStream| {
        drop(std::io::copy(&mut &stream, &mut &stream));
    }));
    let closing = Fake::start(Arc::new(|_, mut stream: TcpStream| {
        drop(stream.read(&mut [0; 4096]));
    }));
    each_face(|client| {
        for (server, time, expected) in [
            (&silent, MILLIS(200), "no answer to the login in time"),
            (&echoing, LONG, "neither a refusal nor STORED"),
            (&closing, LONG, "closed the connection during the login"),
        ] {
            let client = client(at(server.port)).login("ann", "hush-hush");
            let client = client.timeout(LONG).connect_timeout(time).build().unwrap();
            let error = client.get("k").unwrap_err();
            assert!(reason(&error).contains(expected), "{error}");
            assert!(!format!("{error:?}").contains("hush"), "{error:?}");
        }
    });
}

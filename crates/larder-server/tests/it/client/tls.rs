//! larder-client over TLS, with larderd and with Debian's memcached.

use super::fake_server::{Fake, LONG, NewClient, at, patient, reason, tls, with_tls};
use crate::any_client::{AnyClient, each_client, each_pool};
use crate::common::tls::{Authority, Identity, Secure, write_identity};
use crate::common::{Scratch, stat, wait_for};
use larder_client::{Client, Error, ErrorKind, StoreOutcome, Tls};
use rcgen::CertificateParams;
use std::io::Write;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

/// Runs a test with each kind of client and larderd.
fn each_larderd(name: &str, test: impl Fn(&AnyClient, &Secure)) {
    each_client(|client| {
        for options in [&[][..], &["--engine", "delayed"]] {
            let secure = Secure::start(name, options, "");
            test(&patient(client, secure.server.port(), tls(&secure.server.scratch)), &secure);
        }
    });
}

fn with_memcached(name: &str, client: NewClient<'_>, test: impl Fn(&AnyClient, &Secure)) {
    let secure = Secure::memcached(name, "");
    test(&patient(client, secure.server.port(), tls(&secure.server.scratch)), &secure);
}

#[test]
fn values_of_each_length_and_many_keys() {
    let test = |client: &AnyClient, secure: &Secure| {
        let total = || -> u64 {
            let page = secure.ask("stats\r\n");
            stat(&page, "total_connections").parse().unwrap()
        };
        let before = total();
        assert_eq!(client.get("none").unwrap(), None);
        for len in [0, 1, 100, 4096, 16 << 10, (16 << 10) + 1, 60_000, 300_000, 1_000_000] {
            let value: Vec<u8> = (0..=255).cycle().skip(len % 7).take(len).collect();
            assert_eq!(client.set("key", &value, 0).unwrap(), StoreOutcome::Stored, "{len}");
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
        // TLS messages such as session tickets do not close the connection. The second connection
        // requests the statistics.
        assert_eq!(client.connections(), (1, 1, 0));
        assert_eq!(total() - before, 2);
    };
    each_larderd("client-values", test);
    each_client(|client| with_memcached("client-values", client, test));
}

#[test]
fn many_threads() {
    let test = |client: &AnyClient, _: &Secure| {
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
    };
    each_larderd("client-threads", test);
    // memcached before 1.6.39 can stop reading a TLS connection if a set follows another without a
    // pause: it waits for the socket although OpenSSL has buffered the next request. A pooled
    // connection carries only one set at a time, so the test uses only pools.
    each_pool(|client| with_memcached("client-threads", client, test));
}

/// Starts larderd with this certificate, and writes its CA to the directory.
fn larderd_as(authority: &Authority, identity: &Identity) -> Secure {
    let secure = Secure::start("client-identity", &[], "");
    let scratch = &secure.server.scratch;
    // Wait for a reply, which shows that the server has read its first certificate.
    secure.ask("mn\r\n");
    write_identity(scratch, identity);
    assert_eq!(secure.ask("refresh_certs\r\n"), "OK\r\n");
    scratch.file("ca.pem", &authority.pem());
    secure
}

#[test]
fn an_untrusted_certificate_is_an_error_with_the_reason() {
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
        (&Authority::new(), named(&["cache.test"]), false, Some("not signed by a trusted CA")),
    ] {
        let secure = larderd_as(&authority, &issuer.issue_as(params));
        let ca = secure.server.scratch.path("ca.pem");
        each_client(|client| {
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
                    // After failures, the client pauses its attempts to connect. Its errors must
                    // contain the reason even during the pause.
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
fn a_client_presents_its_certificate() {
    let secure = Secure::start("client-mutual", &["-l", "mtls:127.0.0.1"], "ssl_ca_cert=ca.pem");
    let (scratch, port) = (&secure.server.scratch, secure.ports()[1]);
    let Identity { chain, key } = secure.authority.issue();
    let (chain, key) = (scratch.file("client.pem", &chain), scratch.file("client.key", &key));
    each_client(|client| {
        let known = patient(client, port, tls(scratch).client_certificate(&chain, &key));
        assert_eq!(known.set("k", "1", 0).unwrap(), StoreOutcome::Stored);
        // In TLS 1.3, the server refuses the client only after the client has completed its part of
        // the handshake. Therefore, the first request fails, and the reason may be lost when the
        // server closes the connection.
        wait_for("the reason", || {
            let error = patient(client, port, tls(scratch)).get("k").unwrap_err();
            assert!(error.is_fault(), "{error}");
            error.to_string().contains("CertificateRequired")
        });
    });
}

#[test]
fn invalid_files_and_names_are_errors() {
    let (scratch, authority) = (Scratch::new("client-files"), Authority::new());
    let good = scratch.file("good.pem", &authority.pem());
    let [empty, missing] = [scratch.file("empty.pem", ""), "/nonexistent/ca.pem".to_owned()];
    each_client(|client| {
        let refused = |tls: Tls| {
            let loaded = tls.clone().load().unwrap_err().to_string();
            let built = with_tls(client("127.0.0.1".to_owned()), tls).build();
            assert!(reason(&Error::clone(&built.unwrap_err())).contains(&loaded), "{loaded}");
            loaded
        };
        assert!(refused(Tls::new().ca_file(&empty)).contains("empty.pem: no certificate"));
        assert!(refused(Tls::new().ca_file(&missing)).contains("/nonexistent/ca.pem: "));
        let ours = || Tls::new().ca_file(&good);
        assert!(refused(ours().client_certificate(&good, &good)).contains("good.pem: "));
        assert!(refused(ours().client_certificate(&good, &good)).contains("no private key"));
        assert!(refused(ours().client_certificate(&empty, &good)).contains("empty.pem: "));
        assert!(
            refused(ours().server_name("no name"))
                .contains("\"no name\" is not a valid certificate name")
        );
    });
}

#[test]
fn loaded_settings_do_not_need_the_files_again() {
    let secure = Secure::start("client-loaded", &["-l", "mtls:127.0.0.1"], "ssl_ca_cert=ca.pem");
    let (scratch, port) = (&secure.server.scratch, secure.ports()[1]);
    let Identity { chain, key } = secure.authority.issue();
    let (chain, key) = (scratch.file("client.pem", &chain), scratch.file("client.key", &key));
    let tls = tls(scratch).client_certificate(&chain, &key).load().unwrap();
    std::fs::remove_file(&key).unwrap();
    each_client(|client| {
        let client = patient(client, port, tls.clone());
        assert_eq!(client.set("k", "1", 0).unwrap(), StoreOutcome::Stored);
    });
    let changed = tls.ca_file(scratch.path("none.pem")).load().unwrap_err();
    assert_eq!(changed.kind(), std::io::ErrorKind::NotFound, "{changed}");
}

#[test]
fn a_client_without_tls_reports_that_the_server_requires_it() {
    let secure = Secure::start("client-plain", &[], "");
    let address = at(secure.server.port());
    each_client(|client| {
        let client = client(address.clone()).build().unwrap();
        wait_for("the reason", || {
            let error = client.get("k").unwrap_err();
            assert!(error.is_fault(), "{error}");
            error.to_string().contains("requires TLS")
        });
    });
}

#[test]
fn each_version_of_tls() {
    each_client(|client| {
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

/// Each value consists of repetitions of its key.
#[test]
fn dropped_futures_never_mix_up_values() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap().block_on(drop_futures());
}

/// The time at which the future of a call is dropped.
#[derive(Clone, Copy)]
enum DropAt {
    Never,
    /// After this number of polls.
    Poll(u32),
    /// After this time.
    Time(Duration),
}

impl DropAt {
    /// Chooses when call `n` is dropped. Of four calls, one is never dropped, and one is dropped
    /// after one to eight polls. The other two are dropped after a random time of up to twice the
    /// latency of the last completed call, which makes the test independent of the machine's speed.
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

    /// Runs a future. Returns `None` if the future was dropped before it completed.
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
    // One in 32 calls is polled only once, and a single poll never completes a call.
    assert!(
        done >= calls / 4 && dropped >= calls / 32,
        "{done} calls were done, {dropped} dropped"
    );
    let (open, idle, waiting) = client.connections();
    assert!(open == idle && open <= 4 && waiting == 0, "{open} {idle} {waiting}");
}

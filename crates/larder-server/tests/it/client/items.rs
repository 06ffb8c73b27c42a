//! larder-client with larderd, with larderd and the delayed engine, and with Debian's memcached.

use crate::any_client::{AnyClient, AnyClientBuilder, each_client};
use crate::common::{self, Server};
use larder_client::codec::Convention;
use larder_client::{ComputeError, CountOutcome, ErrorKind, Item, Lease, StoreOutcome, Ttl};
use std::net::TcpListener;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

fn connected(server: &Server, client: &dyn Fn(String) -> AnyClientBuilder) -> AnyClient {
    // The timeout is long, because the machine may be busy.
    client(format!("127.0.0.1:{}", server.port())).timeout(Duration::from_secs(60)).build().unwrap()
}

/// Runs a test with each kind of client and each server.
fn each_server(test: impl Fn(&AnyClient)) {
    each_client(|client| {
        let larderds = [Server::larderd(&[]), Server::larderd(&["--engine", "delayed"])];
        let memcached = Server::memcached(&[]).expect("Debian's memcached is installed");
        for server in larderds.iter().chain([&memcached]) {
            test(&connected(server, client));
        }
    });
}

fn value(item: Option<Item>) -> Option<Vec<u8>> {
    item.map(|item| item.value.to_vec())
}

#[test]
fn values_of_each_length_and_any_bytes() {
    each_server(|client| {
        assert_eq!(client.get("none").unwrap(), None);
        for len in [0, 1, 100, 4096, 16 << 10, 60_000, 100_000, 900_000] {
            let value: Vec<u8> = (0..=255).cycle().skip(len % 7).take(len).collect();
            assert_eq!(client.set("key", &value, 0).unwrap(), StoreOutcome::Stored, "{len}");
            assert_eq!(client.get("key").unwrap().unwrap(), value, "{len}");
        }
        let too_long = client.set("key", vec![0; 3 << 20], 0).unwrap_err();
        assert!(
            matches!(too_long.kind(), ErrorKind::Server(_)) && !too_long.is_ambiguous(),
            "{too_long}"
        );
        assert_eq!(client.get("key").unwrap(), None, "the old value is gone");
        client.set_with_flags("flags", "1", Ttl::FOREVER, u32::MAX).unwrap();
        assert_eq!(client.gets("flags").unwrap().unwrap().flags, u32::MAX);
    });
}

#[test]
fn keys_of_any_bytes() {
    each_server(|client| {
        let keys: [&[u8]; 5] =
            [b"plain", "schlüssel".as_bytes(), b"with space", b"\r\nset x 0 0 1\r\ny", &[0; 186]];
        for key in keys {
            assert_eq!(client.get(key).unwrap(), None);
            client.set(key, key, 0).unwrap();
            assert_eq!(client.get(key).unwrap().unwrap(), key);
            assert_eq!(client.append(key, "!").unwrap(), StoreOutcome::Stored);
            assert!(client.touch(key, 60).unwrap());
            assert_eq!(client.add(key, "x", 0).unwrap(), StoreOutcome::NotStored);
        }
        let found = client.get_many(&keys).unwrap();
        for (item, key) in found.into_iter().zip(keys) {
            assert_eq!(value(item).unwrap(), [key, b"!"].concat());
        }
        for key in keys {
            assert!(client.delete(key).unwrap());
            assert!(!client.delete(key).unwrap() && !client.touch(key, 1).unwrap());
        }
        assert_eq!(client.get("x").unwrap(), None, "a key is never a command");
    });
}

#[test]
fn conditions() {
    each_server(|client| {
        assert_eq!(client.replace("k", "1", 0).unwrap(), StoreOutcome::NotStored);
        assert_eq!(client.append("k", "1").unwrap(), StoreOutcome::NotStored);
        assert_eq!(client.cas("k", "1", 0, 1).unwrap(), StoreOutcome::NotFound);
        assert_eq!(client.add("k", "1", 0).unwrap(), StoreOutcome::Stored);
        assert_eq!(client.replace("k", "2", 0).unwrap(), StoreOutcome::Stored);
        assert_eq!(client.prepend("k", "1").unwrap(), StoreOutcome::Stored);
        let Item { value, cas, .. } = client.gets("k").unwrap().unwrap();
        assert_eq!(value, "12");
        let cas = cas.unwrap();
        assert_eq!(client.cas("k", "3", 0, cas).unwrap(), StoreOutcome::Stored);
        assert_eq!(client.cas("k", "4", 0, cas).unwrap(), StoreOutcome::Exists);
        assert!(!client.delete_if("k", cas).unwrap());
        let cas = client.gets("k").unwrap().unwrap().cas.unwrap();
        assert!(client.delete_if("k", cas).unwrap());
        assert_eq!(client.get("k").unwrap(), None);
    });
}

#[test]
fn numbers_and_expiries() {
    each_server(|client| {
        assert_eq!(client.incr("n", 1).unwrap(), CountOutcome::NotFound);
        assert_eq!(client.incr_or_create("n", 1, 10, 60).unwrap(), CountOutcome::Number(10));
        assert_eq!(client.incr_or_create("n", 5, 10, 60).unwrap(), CountOutcome::Number(15));
        assert_eq!(client.incr("n", u64::MAX).unwrap(), CountOutcome::Number(14));
        assert_eq!(client.decr("n", 100).unwrap(), CountOutcome::Number(0));
        client.set("n", "text", 0).unwrap();
        assert_eq!(client.incr("n", 1).unwrap(), CountOutcome::NotANumber);
        client.set("short", "1", Duration::from_millis(1)).unwrap();
        client.set("long", "1", Ttl::secs(40 * 24 * 3600)).unwrap();
        assert_eq!(value(client.gat("long", 60).unwrap()).unwrap(), b"1");
        assert!(client.invalidate("long", 30).unwrap() && !client.invalidate("none", 30).unwrap());
        common::wait_for("the expiry", || client.get("short").unwrap().is_none());
        client.flush().unwrap();
        // memcached flushes only items that were stored before the current second.
        common::wait_for("the flush", || client.get("long").unwrap().is_none());
    });
}

#[test]
fn many_keys_at_once() {
    each_server(|client| {
        let keys: Vec<String> = (0..1000).map(|n| format!("key{n}")).collect();
        for key in keys.iter().step_by(2) {
            client.set(key, key, 0).unwrap();
        }
        let found = client.gets_many(&keys).unwrap();
        for (n, (item, key)) in found.into_iter().zip(&keys).enumerate() {
            assert!(item.as_ref().is_none_or(|item| item.cas.is_some()));
            assert_eq!(value(item), (n % 2 == 0).then(|| key.clone().into_bytes()), "{key}");
        }
        assert_eq!(client.connections().0, 1);
    });
}

#[test]
fn changes_of_many_threads_are_all_made() {
    each_server(|client| {
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..25 {
                        let add = |old: Option<&[u8]>| {
                            let old = old.map_or(0, |old| {
                                std::str::from_utf8(old).unwrap().parse().unwrap()
                            });
                            Some((old + 1_u32).to_string())
                        };
                        client.update("sum", 0, add).unwrap();
                    }
                });
            }
        });
        assert_eq!(client.get("sum").unwrap().unwrap(), "200");
        assert_eq!(client.update("sum", 0, |_| None::<String>).unwrap(), None);
    });
}

#[test]
fn pages_and_versions() {
    each_server(|client| {
        assert!(client.versions().unwrap()[0].1.starts_with("1.6."));
        client.set("k", "1", 0).unwrap();
        let (_, page) = client.stats("").unwrap().remove(0);
        assert!(page.iter().any(|(name, value)| name == "curr_items" && value == "1"));
        assert!(client.stats("settings").unwrap()[0].1.len() > 10);
        let unknown = client.stats("unknown").unwrap_err();
        assert!(
            matches!(unknown.kind(), ErrorKind::Unexpected(_) | ErrorKind::Refused(_)),
            "{unknown}"
        );
        assert_eq!(client.get("k").unwrap().unwrap(), "1");
    });
}

#[test]
fn a_unix_socket() {
    each_client(|client| {
        let scratch = common::Scratch::new("client");
        let path = scratch.path("socket");
        let socket = path.to_str().unwrap();
        let mut larderd = Command::new(env!("CARGO_BIN_EXE_larderd"));
        larderd.args(["-u", "root", "-s", socket]);
        let server = Server::spawn(common::Scratch::new("unix"), &mut larderd);
        let client = client(path.to_str().unwrap().to_owned()).build().unwrap();
        common::wait_for("the socket", || client.set("k", "1", 0).is_ok());
        assert_eq!(client.get("k").unwrap().unwrap(), "1");
        drop(server);
    });
}

/// A guard that sets the flag when it is dropped.
struct SetAtEnd<'f>(&'f AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Threads send requests while the server is killed and restarted. Each value that a thread finds
/// must equal its key.
#[test]
fn a_server_that_is_killed_and_comes_back() {
    each_client(|client| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        drop(listener);
        let start = || Server::larderd(&["-p", &port]);
        let mut server = start();
        let client = client(format!("127.0.0.1:{port}")).connections(4).build().unwrap();
        let (is_over, right) = (AtomicBool::new(false), AtomicU32::new(0));
        thread::scope(|scope| {
            // Make the threads stop even if an assertion fails.
            let _over = SetAtEnd(&is_over);
            for thread in 0..8 {
                let (client, is_over, right) = (&client, &is_over, &right);
                scope.spawn(move || {
                    for n in 0.. {
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                        let key = format!("key-{thread}-{}", n % 100);
                        let begun = Instant::now();
                        if client.set(&key, &key, 0).is_ok()
                            && let Ok(found) = client.get(&key)
                        {
                            // The value is missing if the server was killed between the two calls.
                            assert!(found.is_none_or(|value| value == key));
                            right.fetch_add(1, Ordering::Relaxed);
                        } else {
                            thread::sleep(Duration::from_millis(1));
                        }
                        assert!(begun.elapsed() < Duration::from_secs(10));
                    }
                });
            }
            for _ in 0..3 {
                let before = right.load(Ordering::Relaxed);
                common::wait_for("answers", || right.load(Ordering::Relaxed) > before + 100);
                server.child.kill().unwrap();
                server.child.wait().unwrap();
                thread::sleep(Duration::from_millis(300));
                server = start();
                let back = Instant::now();
                let before = right.load(Ordering::Relaxed);
                common::wait_for("answers", || right.load(Ordering::Relaxed) > before);
                assert!(back.elapsed() < Duration::from_secs(2), "{:?}", back.elapsed());
            }
        });
        let (open, idle, waiting) = client.connections();
        assert!(open == idle && open <= 4 && waiting == 0, "{open} {idle} {waiting}");
    });
}

#[test]
fn a_server_that_wants_a_login_is_an_error() {
    each_client(|client| {
        let scratch = common::Scratch::new("client");
        let file = scratch.path("logins");
        std::fs::write(&file, "me:secret\n").unwrap();
        let server = Server::larderd(&["-Y", file.to_str().unwrap()]);
        let error = connected(&server, client).get("k").unwrap_err();
        assert!(!error.is_ambiguous() && error.to_string().contains("authent"), "{error}");
    });
}

/// Returns a lease that expires long after the test.
fn lease() -> Lease {
    Lease::ttl(1000).lock(1000)
}

/// Runs a test with two clients of each kind at the same server, larderd or memcached. The two
/// clients represent two processes.
fn each_server_twice(test: impl Fn(&AnyClient, &AnyClient)) {
    each_client(|client| {
        let memcached = Server::memcached(&[]).expect("Debian's memcached is installed");
        for server in [Server::larderd(&[]), memcached] {
            test(&connected(&server, client), &connected(&server, client));
        }
    });
}

#[test]
fn callers_of_two_processes_compute_a_value_once() {
    each_server_twice(|first, second| {
        let computed = AtomicU32::new(0);
        thread::scope(|scope| {
            for n in 0..50 {
                let (client, computed) = (if n % 2 == 0 { first } else { second }, &computed);
                scope.spawn(move || {
                    let compute = || {
                        computed.fetch_add(1, Ordering::Relaxed);
                        thread::sleep(Duration::from_millis(50));
                        Ok::<_, ()>("value of the key")
                    };
                    let value = client.get_or_compute("a key", lease(), compute).unwrap();
                    assert_eq!(value, "value of the key");
                });
            }
        });
        assert_eq!(computed.load(Ordering::Relaxed), 1);
        assert_eq!(first.get("a key").unwrap().unwrap(), "value of the key");
        assert_eq!(first.get_or_compute("empty", lease(), || Ok::<_, ()>("")).unwrap(), "");
        assert_eq!(first.get_or_compute("empty", lease(), || Err::<String, _>(())).unwrap(), "");
    });
}

#[test]
fn another_caller_computes_if_one_fails() {
    each_server_twice(|first, second| {
        let begun = Instant::now();
        let (computed, failed) = (AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            for n in 0..10 {
                let client = if n % 2 == 0 { first } else { second };
                scope.spawn(|| {
                    let compute = || match computed.fetch_add(1, Ordering::Relaxed) {
                        n @ 0..3 => Err(n),
                        _ => Ok("v"),
                    };
                    match client.get_or_compute("k", lease(), compute) {
                        Ok(value) => assert_eq!(value, "v"),
                        Err(ComputeError::Compute(_)) => {
                            failed.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => panic!("{error:?}"),
                    }
                });
            }
        });
        let counts = (computed.load(Ordering::Relaxed), failed.load(Ordering::Relaxed));
        assert_eq!((counts, first.get("k").unwrap().unwrap().as_ref()), ((4, 3), &b"v"[..]));
        // If the server refuses a computed value, the lease must end. Otherwise the next caller
        // could not compute.
        let too_long = vec![b'x'; 3 << 20];
        for n in 0..2 {
            let compute = || Ok::<_, ()>([&too_long[..], &[n]].concat());
            assert_eq!(first.get_or_compute("l", lease(), compute).unwrap()[3 << 20], n);
        }
        assert!(begun.elapsed() < Duration::from_secs(50), "no caller waits for a deadline");
    });
}

#[test]
fn another_caller_computes_if_one_panics() {
    each_server_twice(|client, _| {
        let (begun, computes) = (Instant::now(), AtomicBool::new(false));
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                client.get_or_compute("k", lease(), || {
                    let before = lookups(client);
                    computes.store(true, Ordering::Relaxed);
                    wait_for_lookup(client, &before);
                    if true {
                        std::panic::resume_unwind(Box::new("it failed"));
                    }
                    Ok::<_, ()>("1")
                })
            });
            common::wait_for("the computation", || computes.load(Ordering::Relaxed));
            let second = client.get_or_compute("k", lease(), || Ok::<_, ()>("2")).unwrap();
            assert!(first.join().is_err() && second == "2");
        });
        // After the first caller panicked, the second caller acquired the lease and stored its own
        // value.
        assert_eq!(client.get("k").unwrap().unwrap(), "2");
        assert!(begun.elapsed() < Duration::from_secs(50), "no caller waits for a deadline");
    });
}

/// Returns the number of lookups that the server has answered.
fn lookups(client: &AnyClient) -> String {
    let page = client.stats("").unwrap().remove(0).1;
    page.into_iter().find(|(name, _)| name == "cmd_get").unwrap().1
}

/// Waits until the server has answered the lookup of another caller. Then waits a little longer, so
/// that the other caller receives the reply.
fn wait_for_lookup(client: &AnyClient, before: &str) {
    common::wait_for("the other caller", || lookups(client) != before);
    thread::sleep(Duration::from_millis(100));
}

#[test]
fn an_old_value_is_there_while_one_caller_computes() {
    each_server_twice(|first, second| {
        let get = |client: &AnyClient, lease, value: &'static str| {
            client.get_or_compute("k", lease, || Ok::<_, ()>(value)).unwrap()
        };
        assert_eq!(get(first, lease(), "1"), "1");
        assert!(second.invalidate("k", 1000).unwrap());
        let compute = || {
            assert_eq!(get(first, lease(), "none"), "1");
            assert_eq!(get(second, lease(), "none"), "1");
            Ok::<_, ()>("2")
        };
        assert_eq!(first.get_or_compute("k", lease(), compute).unwrap(), "2");
        assert_eq!(get(second, lease(), "none"), "2");
        // With this lease, one caller computes the next value early if the value expires in less
        // than 2000 s, as it does here.
        let early = lease().early(2000);
        let compute = || {
            assert_eq!(get(first, early, "none"), "2");
            assert_eq!(get(second, early, "none"), "2");
            Ok::<_, ()>("3")
        };
        assert_eq!(second.get_or_compute("k", early, compute).unwrap(), "3");
        assert_eq!(get(first, lease(), "none"), "3");
        // With this lease, a new value would be fresh for only a second. The stored value has a
        // later expiry, so the call returns it.
        assert_eq!(get(first, Lease::ttl(1).stale(1000), "none"), "3", "it has a longer expiry");
        first.delete("k").unwrap();
        let stale = Lease::ttl(1).stale(1000);
        assert_eq!(get(first, stale, "4"), "4");
        common::wait_for("the end of the value", || get(first, stale, "5") == "5");
    });
}

#[test]
fn a_value_computed_before_a_change_is_not_stored() {
    each_server_twice(|first, second| {
        for change in ["invalidate", "delete", "set"] {
            let compute = || {
                let is_changed = match change {
                    "invalidate" => second.invalidate(change, 1000).unwrap(),
                    "delete" => second.delete(change).unwrap(),
                    _ => second.set(change, "2", 0).unwrap().is_stored(),
                };
                assert!(is_changed);
                // A call after the change must not wait for the older computation.
                if change != "set" {
                    let newer = first.get_or_compute(change, lease(), || Ok::<_, ()>("2"));
                    assert_eq!(newer.unwrap(), "2");
                }
                Ok::<_, ()>("1")
            };
            assert_eq!(first.get_or_compute(change, lease(), compute).unwrap(), "1");
            assert_eq!(second.get(change).unwrap().unwrap(), "2", "{change}");
        }
    });
}

/// Tests the calls of a Tokio client. When the first caller's future is dropped, a second caller
/// must compute the value. While a task computes a new value, callers must get the old value.
#[test]
fn futures_that_are_dropped_and_tasks_in_the_background() {
    each_client(|client| {
        let memcached = Server::memcached(&[]).expect("Debian's memcached is installed");
        for server in [Server::larderd(&[]), memcached] {
            let client = connected(&server, client);
            let AnyClient::Tokio(cache, runtime) = &client else { continue };
            let (began, computes) = tokio::sync::oneshot::channel();
            let first = runtime.spawn({
                let cache = cache.clone();
                async move {
                    let compute = async || {
                        began.send(()).unwrap();
                        std::future::pending::<Result<String, ()>>().await
                    };
                    cache.get_or_compute("k", lease(), compute).await
                }
            });
            runtime.block_on(computes).unwrap();
            let before = lookups(&client);
            let second = runtime.spawn({
                let cache = cache.clone();
                async move { cache.get_or_compute("k", lease(), async || Ok::<_, ()>("2")).await }
            });
            wait_for_lookup(&client, &before);
            first.abort();
            assert_eq!(runtime.block_on(second).unwrap().unwrap(), "2");
            assert_eq!(client.get("k").unwrap().unwrap(), "2", "it had the right to store");

            client.invalidate("k", 1000).unwrap();
            let (go, gone) = tokio::sync::oneshot::channel();
            let compute = async || {
                gone.await.unwrap();
                Ok::<_, ()>("3")
            };
            let old = cache.get_or_compute_in_background("k", lease(), compute);
            assert_eq!(runtime.block_on(old).unwrap(), "2");
            go.send(()).unwrap();
            common::wait_for("the task", || client.get("k").unwrap().unwrap() == "3");
            let missing =
                cache.get_or_compute_in_background("m", lease(), async || Ok::<_, ()>("1"));
            assert_eq!(runtime.block_on(missing).unwrap(), "1");
        }
    });
}

/// A typed value must be stored with the flags of its convention. A value that cannot be decoded
/// must be computed again.
#[test]
fn values_of_a_type() {
    each_client(|client| {
        let memcached = Server::memcached(&[]).expect("Debian's memcached is installed");
        for server in [Server::larderd(&[]), memcached] {
            match connected(&server, client) {
                AnyClient::Threads(cache) => {
                    let numbers = cache.typed::<i64, _>(Convention::Pylibmc);
                    assert_eq!(numbers.get("n").unwrap(), None);
                    numbers.set("n", &-7, 60).unwrap();
                    assert_eq!(numbers.get("n").unwrap(), Some(-7));
                    assert_eq!(cache.gets("n").unwrap().unwrap().flags, 4);
                    let texts = cache.typed::<String, _>(Convention::Pylibmc);
                    let wrong = texts.get("n").unwrap_err();
                    assert!(matches!(wrong.kind(), ErrorKind::Decode(_)), "{wrong}");
                    let compute = || {
                        assert_eq!(numbers.get("n").unwrap(), None, "it is being computed");
                        Ok::<_, ()>("seven".to_owned())
                    };
                    assert_eq!(texts.get_or_compute("n", lease(), compute).unwrap(), "seven");
                    let again = texts.get_or_compute("n", lease(), || Err(()));
                    assert_eq!(again.unwrap(), "seven");
                    assert_eq!(cache.gets("n").unwrap().unwrap().flags, 16);
                }
                AnyClient::Tokio(cache, runtime) => runtime.block_on(async {
                    let numbers = cache.typed::<i64, _>(Convention::Dalli);
                    numbers.set("n", &7, 60).await.unwrap();
                    let compute = async || Ok::<_, ()>("seven".to_owned());
                    let texts = cache.typed::<String, _>(Convention::Dalli);
                    // `spawn` requires that the future can be sent to another thread.
                    let computed = tokio::spawn(async move {
                        texts.get_or_compute("n", lease(), compute).await.unwrap()
                    });
                    assert_eq!(computed.await.unwrap(), "seven");
                    assert!(numbers.get("n").await.is_err());
                }),
            }
        }
    });
}

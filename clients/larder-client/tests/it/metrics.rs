//! Tests the metrics of a client with scripted servers.

use crate::common::any_client::{self, AnyClient, AnyClientBuilder, each_client, each_pool};
use crate::common::{Action, FakeServer, Request, wait_until};
use larder_client::metrics::{CloseReason, Command, Histogram, ServerMetrics};
use larder_client::{Client, Lease, StoreMode, StoreRequest, Ttl, blocking};
use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

const MILLIS: fn(u64) -> Duration = Duration::from_millis;
const LONG: Duration = Duration::from_secs(60);

type NewClient<'c> = &'c dyn Fn(String) -> AnyClientBuilder;

fn at(server: &FakeServer) -> String {
    format!("127.0.0.1:{}", server.port)
}

/// Returns the metrics of the only server.
fn of(client: &AnyClient) -> ServerMetrics {
    let [server] = client.metrics().servers.try_into().unwrap();
    server
}

fn errors(client: &AnyClient) -> Vec<(&'static str, u64)> {
    of(client).errors().filter(|(_, count)| *count > 0).collect()
}

/// Returns the reasons for which connections were closed, with the number of connections closed for
/// each reason. First waits until every opened connection counts as either open or closed.
fn closed(client: &AnyClient) -> Vec<(CloseReason, u64)> {
    let all = || CloseReason::ALL.map(|reason| (reason, of(client).closed(reason)));
    let sum = || all().iter().map(|(_, count)| count).sum::<u64>();
    // The task of a shared connection closes the connection slightly later.
    wait_until(|| of(client).opened == of(client).open as u64 + sum());
    all().into_iter().filter(|(_, count)| *count > 0).collect()
}

fn is_closed(client: &AnyClient, reason: CloseReason) -> bool {
    of(client).closed(reason) > 0
}

#[test]
fn calls_are_counted_by_server_and_command() {
    each_client(|client| {
        let servers = [FakeServer::start(|_| Action::Reply), FakeServer::start(|_| Action::Reply)];
        let list = servers.each_ref().map(at);
        let client = client(list.join(",")).timeout(LONG).build().unwrap();
        let keys: Vec<String> = (0..100).map(|n| format!("key-{n}")).collect();
        for key in &keys {
            client.set(key, "1", 0).unwrap();
            client.get(key).unwrap();
            client.gets(key).unwrap();
        }
        client.gat("key", 1).unwrap();
        client.get_many(&keys).unwrap();
        let metrics = client.metrics();
        let names: Vec<_> = metrics.servers.iter().map(|server| &*server.server).collect();
        assert_eq!(names, list);
        let count = |command| metrics.latency(command).count();
        assert_eq!(
            Command::ALL.map(count),
            [200, 2, 1, 100, 0, 0, 0, 0, 0, 0],
            "get, get_many, touch, store"
        );
        for (fake, server) in servers.iter().zip(&metrics.servers) {
            let counts = Command::ALL.map(|command| server.latency(command).count());
            assert_eq!(fake.requests(), counts.into_iter().sum::<u64>());
            assert!(server.latency(Command::Get).count() > 20);
        }
        let mut sum = Histogram::default();
        metrics.servers.iter().for_each(|server| sum += &server.latency(Command::Get));
        assert_eq!(sum, metrics.latency(Command::Get));
    });
}

#[test]
fn batches_are_counted_apart_from_single_stores_and_deletes() {
    let server = FakeServer::start(|request| match &*request.verb {
        "delete" => Action::Send(b"DELETED\r\n".to_vec()),
        _ => Action::Reply,
    });
    let client = blocking::Client::builder(at(&server)).timeout(LONG).build().unwrap();
    let one = |key| StoreRequest {
        mode: StoreMode::Set,
        key,
        value: b"1",
        ttl: Ttl::FOREVER,
        flags: 0,
        cas: None,
    };
    client.store_many(&[one(b"a"), one(b"b")]).unwrap();
    client.delete_many(&["a", "b", "c"]).unwrap();
    client.delete("a").unwrap();
    let metrics = client.metrics();
    let count = |command| metrics.latency(command).count();
    use Command::{Delete, DeleteMany, Store, StoreMany};
    assert_eq!([Store, StoreMany, Delete, DeleteMany].map(count), [0, 1, 1, 1]);
}

#[test]
fn the_duration_of_a_call_includes_its_reply() {
    each_client(|client| {
        let server = FakeServer::start(|request| match request.number {
            0 => Action::ReplyAfter(MILLIS(30)),
            _ => Action::Reply,
        });
        let client = client(at(&server)).timeout(LONG).build().unwrap();
        client.get("a").unwrap();
        let late = of(&client).latency(Command::Get);
        assert!(late.sum() >= MILLIS(30) && late.quantile(0.5) > Some(MILLIS(30)), "{late:?}");
        client.get("a").unwrap();
        let next = of(&client).latency(Command::Get).since(&late);
        assert!(next.count() == 1 && !next.sum().is_zero(), "{next:?}");
    });
}

#[test]
fn failed_calls_are_counted_by_kind_with_their_duration() {
    each_client(|client| {
        let server = FakeServer::start(|request| match request.number {
            0 => Action::Silence,
            1 => Action::Send(b"SERVER_ERROR busy\r\n".to_vec()),
            _ => Action::Reply,
        });
        let client = client(at(&server)).timeout(MILLIS(500)).build().unwrap();
        client.get("a").unwrap_err();
        let late = of(&client).latency(Command::Get);
        assert!(late.count() == 1 && late.sum() >= MILLIS(500), "{late:?}");
        assert_eq!(errors(&client), [("timeout", 1)]);
    });
    each_client(|client| {
        let server = FakeServer::start(|_| Action::Send(b"SERVER_ERROR busy\r\n".to_vec()));
        let client = client(at(&server)).timeout(LONG).build().unwrap();
        client.get("a").unwrap_err();
        client.set("a", "1", 0).unwrap_err();
        assert_eq!(errors(&client), [("server", 2)]);
        assert_eq!(of(&client).degraded, 0);
        client.close();
        client.get("a").unwrap_err();
        assert_eq!(errors(&client), [("server", 2), ("client_closed", 1)]);
    });
}

/// Looks up a key, and checks that one connection is closed for this reason.
#[track_caller]
fn check_closed(
    each: impl Fn(&dyn Fn(NewClient<'_>)),
    reason: CloseReason,
    behave: fn(&Request) -> Action,
) {
    each(&|client| {
        let server = FakeServer::start(behave);
        let client = client(at(&server)).timeout(MILLIS(500)).build().unwrap();
        drop(client.get("key"));
        wait_until(|| server.requests() == 1);
        // If the server closes an idle connection, only the next call detects that the connection
        // is closed.
        wait_until(|| {
            is_closed(&client, reason) || (server.closed() > 0 && client.get("key").is_ok())
        });
        wait_until(|| is_closed(&client, reason));
        assert_eq!(closed(&client), [(reason, 1)]);
    });
}

#[test]
fn connections_closed_by_the_server_are_counted() {
    check_closed(
        |test| each_client(test),
        CloseReason::ServerClosed,
        |request| match request.number {
            0 => Action::SendThen(request.right(), Arc::new(Action::Close)),
            _ => Action::Reply,
        },
    );
    check_closed(
        |test| each_client(test),
        CloseReason::ServerClosed,
        |request| match request.number {
            0 => Action::SendThen(b"VALUE key 0 3\r\nk".to_vec(), Arc::new(Action::Close)),
            _ => Action::Reply,
        },
    );
}

#[test]
fn failed_connections_are_counted() {
    check_closed(
        |test| each_client(test),
        CloseReason::Failed,
        |request| match request.number {
            0 => Action::SendThen(b"VALUE key 0 3\r\nk".to_vec(), Arc::new(Action::Reset)),
            _ => Action::Reply,
        },
    );
}

#[test]
fn connections_to_silent_servers_are_counted() {
    check_closed(
        |test| each_client(test),
        CloseReason::Timeout,
        |request| match request.number {
            0 => Action::Silence,
            _ => Action::Reply,
        },
    );
}

#[test]
fn connections_with_unexpected_replies_are_counted() {
    check_closed(
        |test| each_client(test),
        CloseReason::Unexpected,
        |request| match request.number {
            0 => Action::Send(b"VALUE other 0 1\r\nx\r\nEND\r\n".to_vec()),
            _ => Action::Reply,
        },
    );
}

#[test]
fn connections_of_a_closed_client_are_counted() {
    each_client(|client| {
        let server = FakeServer::start(|_| Action::Reply);
        let client = client(at(&server)).timeout(LONG).build().unwrap();
        client.get("a").unwrap();
        assert_eq!((closed(&client), of(&client).open, of(&client).idle), (vec![], 1, 1));
        client.close();
        wait_until(|| is_closed(&client, CloseReason::ClientClosed));
        assert_eq!(closed(&client), [(CloseReason::ClientClosed, 1)]);
    });
}

#[test]
fn connections_past_their_lifetime_are_counted() {
    each_client(|client| {
        let server = FakeServer::start(|_| Action::Reply);
        let client = client(at(&server)).timeout(LONG).lifetime(MILLIS(1)).build().unwrap();
        wait_until(|| {
            client.get("key").unwrap();
            is_closed(&client, CloseReason::Lifetime)
        });
        client.close();
        wait_until(|| of(&client).open == 0);
        let other = |(reason, _): &(_, _)| {
            ![CloseReason::Lifetime, CloseReason::ClientClosed].contains(reason)
        };
        assert!(!closed(&client).iter().any(other), "{:?}", closed(&client));
    });
}

#[test]
fn connections_past_their_idle_time_are_counted() {
    each_pool(|client| {
        let both = Barrier::new(2);
        let server = FakeServer::start(move |_| {
            both.wait();
            Action::Reply
        });
        let client = client(at(&server)).timeout(LONG).idle_time(Duration::ZERO).build().unwrap();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| client.get("a").unwrap());
            }
        });
        assert_eq!(closed(&client), [(CloseReason::Idle, 1)]);
        assert_eq!((of(&client).opened, of(&client).open), (2, 1));
    });
}

/// Checks a call with two requests. The call fails with the first reply while the second reply is
/// pending.
#[test]
fn connections_of_abandoned_calls_are_counted() {
    each_pool(|client| {
        let server = FakeServer::start(|_| Action::Send(b"SERVER_ERROR busy\r\n".to_vec()));
        let client = client(at(&server)).timeout(LONG).build().unwrap();
        let keys: Vec<String> = (0..101).map(|n| format!("key-{n}")).collect();
        client.get_many(&keys).unwrap_err();
        assert_eq!(closed(&client), [(CloseReason::Abandoned, 1)]);
    });
}

#[tokio::test]
async fn a_dropped_future_abandons_its_connection_or_its_reply() {
    for connections in [None, Some(1)] {
        let is_dropped = Arc::new(AtomicBool::new(false));
        let dropped = Arc::clone(&is_dropped);
        let server = FakeServer::start(move |_| {
            wait_until(|| dropped.load(Ordering::Relaxed));
            Action::Reply
        });
        let builder = Client::builder(at(&server)).timeout(LONG);
        let client = match connections {
            Some(connections) => builder.connections(connections).build().unwrap(),
            None => builder.shared(1).build().unwrap(),
        };
        tokio::select! {
            biased;
            got = client.get("a") => panic!("{got:?}"),
            () = async {
                while server.requests() == 0 {
                    tokio::time::sleep(MILLIS(1)).await;
                }
            } => (),
        }
        is_dropped.store(true, Ordering::Relaxed);
        assert_eq!(client.get("b").await.unwrap().unwrap(), "b");
        let [metrics] = client.metrics().servers.try_into().unwrap();
        let is_shared = connections.is_none();
        assert_eq!(metrics.abandoned, u64::from(is_shared));
        assert_eq!(metrics.closed(CloseReason::Abandoned), u64::from(!is_shared));
        assert_eq!(metrics.latency(Command::Get).count(), 1, "the dropped call is not counted");
    }
}

#[test]
fn a_reply_after_the_deadline_is_abandoned() {
    any_client::shared_by_tasks(|client| {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let server = FakeServer::start(move |_| {
            wait_until(|| over.load(Ordering::Relaxed));
            Action::Reply
        });
        let client = client(at(&server)).timeout(MILLIS(300)).build().unwrap();
        client.get("a").unwrap_err();
        assert_eq!(of(&client).abandoned, 0);
        is_over.store(true, Ordering::Relaxed);
        wait_until(|| of(&client).abandoned == 1);
        assert_eq!(closed(&client), []);
    });
}

#[test]
fn waits_for_a_connection_are_counted() {
    each_pool(|client| {
        let is_waiting = Arc::new(AtomicBool::new(false));
        let waiting = Arc::clone(&is_waiting);
        let server = FakeServer::start(move |_| {
            wait_until(|| waiting.load(Ordering::Relaxed));
            Action::Reply
        });
        let client = client(at(&server)).timeout(LONG).connections(1).build().unwrap();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| client.get("a").unwrap());
            }
            wait_until(|| of(&client).waiting == 1);
            is_waiting.store(true, Ordering::Relaxed);
        });
        let server = of(&client);
        assert_eq!((server.waits.count(), server.waiting), (1, 0));
        assert!(!server.waits.sum().is_zero());
        assert!(server.latency(Command::Get).sum() > server.waits.sum());
        client.get("a").unwrap();
        assert_eq!(of(&client).waits, server.waits, "the call did not wait");
    });
}

#[test]
fn openings_and_closings_of_the_breaker_are_counted() {
    each_client(|client| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let client = client(format!("127.0.0.1:{port}")).degrade(true).build().unwrap();
        for _ in 0..5 {
            assert!(!of(&client).breaker_is_open);
            assert_eq!(client.get("a").unwrap(), None);
        }
        assert!(of(&client).breaker_is_open);
        assert_eq!(client.get("a").unwrap(), None);
        let server = of(&client);
        assert_eq!((server.breaker_opened, server.degraded, server.opened), (1, 6, 0));
        assert_eq!(errors(&client), [("connect", 5), ("unavailable", 1)]);
        assert_eq!(server.latency(Command::Get).count(), 5, "the refused call has no duration");
        let _server =
            FakeServer::at(TcpListener::bind(("127.0.0.1", port)).unwrap(), |_| Action::Reply);
        wait_until(|| client.get("a").unwrap().is_some());
        let server = of(&client);
        assert!(!server.breaker_is_open && server.breaker_opened == 1);
    });
}

/// Returns the reply to a lookup with a lease.
fn leased(request: &Request, value: &str, flags: &str) -> Action {
    let words: Vec<&str> = request.line.split_whitespace().collect();
    let opaque = words.iter().find(|word| word.starts_with('O')).unwrap();
    let (key, len) = (words[1], value.len());
    Action::Send(format!("VA {len} f0 c1 k{key} {opaque}{flags}\r\n{value}\r\n").into())
}

#[test]
fn leases_are_counted_by_outcome() {
    each_client(|client| {
        let server = FakeServer::start(|request| match (&*request.verb, request.number) {
            ("mn", _) => Action::Send(b"MN\r\n".to_vec()),
            ("ms", _) => Action::Send(b"HD\r\n".to_vec()),
            (_, 1) => leased(request, "", " W"),
            (_, 3) => leased(request, "old", " Z"),
            (_, 4) => leased(request, "", " Z"),
            (_, 5) => leased(request, "", " Z"),
            _ => leased(request, "new", ""),
        });
        let client = client(at(&server)).timeout(LONG).build().unwrap();
        let get = || client.get_or_compute("k", Lease::ttl(60), || Ok::<_, Infallible>("computed"));
        let counts = || {
            let computing = client.metrics().computing;
            (computing.won, computing.stale, computing.waited, computing.computed)
        };
        assert_eq!((&*get().unwrap(), counts()), (&b"computed"[..], (1, 0, 0, 1)));
        assert_eq!((&*get().unwrap(), counts()), (&b"old"[..], (1, 1, 0, 1)));
        assert_eq!((&*get().unwrap(), counts()), (&b"new"[..], (1, 1, 1, 1)));
        assert_eq!((&*get().unwrap(), counts()), (&b"new"[..], (1, 1, 1, 1)));
        assert_eq!(of(&client).latency(Command::Lease).count(), 6);
        let computing = client.metrics().computing;
        assert_eq!((computing.failed, computing.coalesced), (0, 0));
    });
}

#[test]
fn shared_computations_are_counted() {
    each_client(|client| {
        // The server never has a value, so each caller computes a value or gets the value of
        // another caller.
        let server = FakeServer::start(|request| match &*request.verb {
            "mn" => Action::Send(b"MN\r\n".to_vec()),
            "mg" => Action::Send(b"EN\r\n".to_vec()),
            _ => Action::Reply,
        });
        let client = client(at(&server)).timeout(LONG).build().unwrap();
        let counts = || {
            let computing = client.metrics().computing;
            (computing.computed, computing.coalesced)
        };
        for round in 1.. {
            let before = client.metrics().latency(Command::Lease).count();
            let compute = || {
                // Waits until all lookups have ended. By then, the other callers usually wait for
                // this computation.
                wait_until(|| client.metrics().latency(Command::Lease).count() >= before + 4);
                Ok::<_, Infallible>("v")
            };
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| client.get_or_compute("k", Lease::ttl(60), compute).unwrap());
                }
            });
            let (computed, coalesced) = counts();
            assert_eq!(computed + coalesced, 4 * round);
            if coalesced > 0 {
                break;
            }
            assert!(round < 1000, "no caller ever waits");
        }
        let before = counts();
        client.get_or_compute("k", Lease::ttl(60), || Err::<&str, _>("no")).unwrap_err();
        assert_eq!((counts(), client.metrics().computing.failed), (before, 1));
    });
}

#[test]
fn clones_share_their_metrics() {
    each_client(|client| {
        let server = FakeServer::start(|_| Action::Reply);
        let client = client(at(&server)).timeout(LONG).build().unwrap();
        client.clone().get("a").unwrap();
        assert_eq!(of(&client).latency(Command::Get).count(), 1);
    });
}

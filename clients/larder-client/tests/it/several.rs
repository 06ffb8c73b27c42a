//! Tests clients with several servers: the choice of the server for each key, and calls while some
//! servers are unreachable.

use crate::common::any_client::each_client;
use crate::common::{Action, FakeServer};
use larder_client::ring::{Hashing, Node, Ring};
use larder_client::{
    Error, ErrorKind, Failover, StoreMode, StoreOutcome, StoreRequest, Ttl, blocking,
};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const MILLIS: fn(u64) -> Duration = Duration::from_millis;

/// The keys that clients have requested from a server, in request order.
type RequestedKeys = Arc<Mutex<Vec<String>>>;

/// Starts servers that record the requested keys. Returns the servers, and the requested keys of
/// each server.
fn servers(count: usize) -> (Vec<FakeServer>, Vec<RequestedKeys>) {
    let requested: Vec<RequestedKeys> = (0..count).map(|_| Arc::default()).collect();
    let start = |requested: &RequestedKeys| {
        let requested = Arc::clone(requested);
        FakeServer::start(move |request| {
            requested.lock().unwrap().extend(request.keys.iter().cloned());
            Action::Reply
        })
    };
    (requested.iter().map(start).collect(), requested)
}

fn list(servers: &[FakeServer]) -> String {
    let addresses: Vec<_> = servers.iter().map(|fake| format!("127.0.0.1:{}", fake.port)).collect();
    addresses.join(", ")
}

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("key-{n}")).collect()
}

/// Returns an address on which no server listens.
fn unreachable_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn each_server_gets_only_its_keys() {
    each_client(|client| {
        for hashing in [Hashing::Rendezvous, Hashing::Pymemcache, Hashing::Jump] {
            let (servers, requested) = servers(3);
            let nodes: Vec<_> =
                servers.iter().map(|fake| Node::new("127.0.0.1", fake.port)).collect();
            let ring = Ring::new(hashing, &nodes).unwrap();
            let client = client(list(&servers)).hashing(hashing).timeout(MILLIS(60_000));
            let client = client.build().unwrap();
            let keys = keys(500);
            let found = client.get_many(&keys).unwrap();
            for (item, key) in found.iter().zip(&keys) {
                assert_eq!(item.as_ref().unwrap().value, key);
                assert_eq!(client.get(key).unwrap().unwrap(), key);
            }
            for (index, requested) in requested.iter().enumerate() {
                let of_server: Vec<_> =
                    keys.iter().filter(|key| ring.pick(key.as_bytes()) == index).cloned().collect();
                assert!(of_server.len() > 100, "{hashing:?} {}", of_server.len());
                assert_eq!(*requested.lock().unwrap(), [of_server.clone(), of_server].concat());
            }
            assert_eq!(client.connections(), (3, 3, 0));
        }
    });
}

#[test]
fn batches_of_stores_and_deletes_are_split_by_server() {
    let connect = |answers: [&'static str; 3]| {
        let servers = answers
            .map(|answer| FakeServer::start(move |_| Action::Send(answer.as_bytes().to_vec())));
        let nodes: Vec<_> = servers.iter().map(|fake| Node::new("127.0.0.1", fake.port)).collect();
        let client = blocking::Client::builder(list(&servers)).hashing(Hashing::Rendezvous);
        let ring = Ring::new(Hashing::Rendezvous, &nodes).unwrap();
        (client.timeout(MILLIS(60_000)).build().unwrap(), ring)
    };
    let keys = keys(500);
    let (client, ring) = connect(["STORED\r\n", "NOT_STORED\r\n", "EXISTS\r\n"]);
    let outcomes = [StoreOutcome::Stored, StoreOutcome::NotStored, StoreOutcome::Exists];
    let (mode, value, ttl) = (StoreMode::Set, &b"x"[..], Ttl::FOREVER);
    let request = |key| StoreRequest { mode, key, value, ttl, flags: 0, cas: None };
    let requests: Vec<_> = keys.iter().map(|key| request(key.as_bytes())).collect();
    let stored = client.store_many(&requests).unwrap();
    let expected = keys.iter().map(|key| outcomes[ring.pick(key.as_bytes())]);
    assert_eq!(stored, expected.collect::<Vec<_>>());
    assert!(outcomes.iter().all(|outcome| stored.contains(outcome)));

    let (client, ring) = connect(["DELETED\r\n", "NOT_FOUND\r\n", "NOT_FOUND\r\n"]);
    let expected = keys.iter().map(|key| ring.pick(key.as_bytes()) == 0);
    assert_eq!(client.delete_many(&keys).unwrap(), expected.collect::<Vec<_>>());

    let (client, _) = connect(["STORED\r\n", "SERVER_ERROR out of memory\r\n", "STORED\r\n"]);
    assert!(client.store_many(&requests).unwrap_err().is_ambiguous(), "other items are stored");
    assert!(client.store_many(&[]).unwrap().is_empty());
}

#[test]
fn unreachable_servers_do_not_affect_keys_of_other_servers() {
    each_client(|client| {
        let (servers, _) = servers(2);
        let addresses =
            format!("{},{},{}", unreachable_address(), list(&servers), unreachable_address());
        let client = client(addresses).timeout(MILLIS(5000)).build().unwrap();
        let mut failed = 0;
        for key in keys(300) {
            let start_time = Instant::now();
            match client.get(&key) {
                Ok(value) => assert_eq!(value.unwrap(), key),
                Err(error) => {
                    assert!(error.is_fault() && error.server().is_some(), "{error}");
                    failed += 1;
                }
            }
            // A call to an unreachable server fails at once, without waiting for the deadline.
            assert!(start_time.elapsed() < MILLIS(2500), "{:?}", start_time.elapsed());
        }
        assert!((50..250).contains(&failed), "{failed}");
        assert!(client.get_many(&keys(300)).unwrap_err().is_fault());
    });
}

#[test]
fn lookups_find_nothing_on_unreachable_servers_with_degrade() {
    each_client(|client| {
        let (servers, _) = servers(1);
        let addresses = format!("{},{}", list(&servers), unreachable_address());
        let client = client(addresses).degrade(true).build().unwrap();
        let keys = keys(100);
        let found = client.get_many(&keys).unwrap();
        let found_count = found.iter().flatten().count();
        assert!((20..80).contains(&found_count), "{found_count}");
        for (item, key) in found.iter().zip(&keys) {
            assert_eq!(client.get(key).unwrap(), item.as_ref().map(|item| item.value.clone()));
            let stored = client.set(key, "1", 0).map_err(|error| error.is_fault());
            assert_eq!(stored.is_ok(), item.is_some(), "a write fails all the more");
        }
    });
}

#[test]
fn gets_available_ignores_unreachable_servers() {
    let (servers, _) = servers(1);
    let addresses = format!("{},{}", list(&servers), unreachable_address());
    let client = blocking::Client::builder(addresses).build().unwrap();
    let keys = keys(100);
    let found = client.gets_available(&keys).unwrap();
    let found_count = found.iter().flatten().count();
    assert!((20..80).contains(&found_count), "{found_count}");
    for (item, key) in found.iter().zip(&keys) {
        assert_eq!(client.get(key).is_ok(), item.is_some(), "other calls report the server");
    }
    let error = client.gets_available(&[""]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Key(_)));
    client.close();
    let error = client.gets_available(&keys).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ClientClosed));
}

#[test]
fn keys_use_the_next_server_while_theirs_is_unreachable() {
    each_client(|client| {
        let (servers, requested) = servers(2);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let addresses = format!("{},{address}", list(&servers));
        let client = client(addresses).failover(Failover::Next).build().unwrap();
        let keys = keys(300);
        let get = |key: &String| client.get(key).map(|value| assert_eq!(value.unwrap(), *key));
        // No call fails: neither the calls with the first faults nor the probes.
        keys.iter().for_each(|key| get(key).unwrap());
        let values = client.get_many(&keys).unwrap();
        assert_eq!(values.iter().flatten().count(), keys.len());
        let requested = |n: usize| requested[n].lock().unwrap().len();
        assert!(requested(0) > 100 && requested(1) > 100, "{} {}", requested(0), requested(1));
        let back = FakeServer::at(TcpListener::bind(address).unwrap(), |_| Action::Reply);
        let start_time = Instant::now();
        while back.requests() == 0 {
            keys.iter().for_each(|key| drop(get(key)));
            assert!(start_time.elapsed() < MILLIS(2000), "{:?}", start_time.elapsed());
            thread::sleep(MILLIS(1));
        }
        let before = back.requests();
        keys.iter().for_each(|key| get(key).unwrap());
        assert!(back.requests() > before + 50, "the server has its keys again");
    });
}

#[test]
fn several_keys_use_other_servers_than_an_unreachable_one() {
    let (servers, requested) = servers(2);
    let addresses = format!("{},{}", list(&servers), unreachable_address());
    let keys = keys(300);
    let requests: Vec<StoreRequest<'_>> = keys
        .iter()
        .map(|key| StoreRequest {
            mode: StoreMode::Set,
            key: key.as_bytes(),
            value: b"value",
            ttl: Ttl::FOREVER,
            flags: 0,
            cas: None,
        })
        .collect();
    for shared in [false, true] {
        // Creates a client for each call, because no breaker is open in a new client.
        let client = || {
            let builder = blocking::Client::builder(&*addresses).failover(Failover::Next);
            let builder = if shared { builder.shared(1) } else { builder };
            builder.build().unwrap()
        };
        let stored = client().store_many(&requests).unwrap();
        assert_eq!(stored, vec![StoreOutcome::Stored; 300]);
        assert!(client().gets_available(&keys).unwrap().iter().all(Option::is_some));
        assert!(client().get_many(&keys).unwrap().iter().all(Option::is_some));
        let failing = blocking::Client::builder(&*addresses).build().unwrap();
        assert!(failing.get_many(&keys).is_err() && failing.store_many(&requests).is_err());
    }
    assert!(requested.iter().all(|requested| requested.lock().unwrap().len() > 500));
    let deleting = FakeServer::start(|_| Action::Send(b"DELETED\r\n".to_vec()));
    let addresses = format!("127.0.0.1:{},{}", deleting.port, unreachable_address());
    let client = blocking::Client::builder(addresses).failover(Failover::Next).build().unwrap();
    assert_eq!(client.delete_many(&keys).unwrap(), vec![true; 300]);
}

#[test]
fn with_all_servers_unreachable_a_call_fails_with_the_error_of_one() {
    each_client(|client| {
        let addresses = format!("{},{}", unreachable_address(), unreachable_address());
        let client = client(addresses).failover(Failover::Next).build().unwrap();
        for key in keys(20) {
            let error = client.get(&key).unwrap_err();
            assert!(error.is_fault() && !error.is_ambiguous(), "{error}");
        }
    });
}

#[test]
fn lists_of_servers_have_several_forms() {
    let addresses = ["127.0.0.1:1", "127.0.0.1:2"];
    let build = |list: larder_client::ServerList| blocking::Client::builder(list).build();
    for list in [
        addresses.into(),
        addresses.to_vec().into(),
        addresses[..].into(),
        addresses.map(str::to_owned).into(),
        addresses.join(",").into(),
        [(addresses[0], 1), (addresses[1], 3)].into(),
    ] {
        assert!(build(list).is_ok());
    }
    let error = |list: larder_client::ServerList| build(list).unwrap_err();
    let is_invalid = |error: &Error| matches!(error.kind(), ErrorKind::Connect(error) if error.kind() == std::io::ErrorKind::InvalidInput);
    for list in [",".into(), [""; 0].into(), [(addresses[0], 0)].into()] {
        let error = error(list);
        assert!(is_invalid(&error), "{error}");
    }
    let weighted = blocking::Client::builder([("127.0.0.1:1", 1), ("127.0.0.1:2", 2)]);
    let error = weighted.hashing(Hashing::Pymemcache).build().unwrap_err();
    assert!(is_invalid(&error) && error.to_string().contains("weights"), "{error}");
}

//! Tests that a client in use follows changes of a discovered server list.

use crate::common::any_client::each_client;
use crate::common::cluster::Cluster;
use crate::common::{Action, FakeServer, wait_until};
use larder_client::{Discovery, ErrorKind};
use std::net::TcpListener;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

const MILLIS: fn(u64) -> Duration = Duration::from_millis;

fn server() -> FakeServer {
    FakeServer::start(|_| Action::Reply)
}

#[test]
fn keys_move_when_the_list_changes() {
    each_client(|client| {
        let (cluster, servers) = (Cluster::start(), [server(), server(), server()]);
        let ports = |numbers: &[usize]| -> Vec<u16> {
            numbers.iter().map(|number| servers[*number].port).collect()
        };
        cluster.set_list(5, &ports(&[0, 1]));
        let client = client(cluster.address()).discovery(Discovery::Cluster);
        let client = client.discovery_interval(MILLIS(20)).timeout(MILLIS(20_000)).build().unwrap();
        let used_servers = || {
            let before = servers.each_ref().map(FakeServer::requests);
            for n in 0..100 {
                let key = format!("key-{n}");
                assert_eq!(client.get(&key).unwrap().unwrap(), key);
            }
            let after = servers.each_ref().map(FakeServer::requests);
            [0, 1, 2].map(|n| after[n] > before[n])
        };
        assert_eq!(used_servers(), [true, true, false]);
        cluster.set_list(6, &ports(&[1, 2]));
        wait_until(|| used_servers() == [false, true, true]);
        assert_eq!(servers[1].accepted(), 1, "a server in both lists keeps its connections");
        wait_until(|| servers[0].closed() == servers[0].accepted());
        // The client ignores an older list and invalid replies.
        cluster.set_list(4, &ports(&[0]));
        cluster.wait_for_requests();
        for wrong in ["ERROR\r\n", "CONFIG cluster 0 1\r\n7\n\n\r\nEND\r\n", "END\r\n"] {
            cluster.set_reply(wrong);
            cluster.wait_for_requests();
        }
        assert_eq!(used_servers(), [false, true, true]);
        cluster.set_list(7, &ports(&[0]));
        wait_until(|| used_servers() == [true, false, false]);
        let metrics = client.metrics();
        let listed: Vec<_> = metrics.servers.iter().map(|server| &*server.server).collect();
        assert_eq!(listed, [format!("127.0.0.1:{}", servers[0].port)]);
        assert_eq!(metrics.lists_replaced, 2);
    });
}

#[test]
fn the_list_with_the_highest_version_is_used() {
    each_client(|client| {
        let (clusters, server) = ([(); 3].map(|()| Cluster::start()), server());
        let unused_port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        clusters[0].set_list(8, &[unused_port]);
        clusters[1].set_list(10, &[server.port]);
        clusters[2].set_list(9, &[unused_port]);
        let mut addresses: Vec<_> = clusters.iter().map(Cluster::address).collect();
        // The first and the last configured server are unreachable.
        addresses.insert(0, format!("127.0.0.1:{unused_port}"));
        addresses.push(format!("127.0.0.1:{unused_port}"));
        let client = client(addresses.join(",")).discovery(Discovery::Cluster).build().unwrap();
        assert_eq!(client.get("a").unwrap().unwrap(), "a");
    });
}

#[test]
fn a_fault_triggers_a_refresh() {
    each_client(|client| {
        let (cluster, good) = (Cluster::start(), server());
        let unused_port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        cluster.set_list(1, &[unused_port]);
        let client = client(cluster.address()).discovery(Discovery::Cluster);
        let client = client.discovery_interval(Duration::from_secs(3600)).build().unwrap();
        cluster.set_list(2, &[good.port]);
        let start = Instant::now();
        wait_until(|| client.get("key").is_ok());
        assert!(start.elapsed() < MILLIS(5000), "{:?}", start.elapsed());
    });
}

#[test]
fn discovery_stops_when_the_client_is_dropped_or_closed() {
    each_client(|client| {
        let (cluster, good) = (Cluster::start(), server());
        cluster.set_list(1, &[good.port]);
        let build = || {
            let builder = client(cluster.address()).discovery(Discovery::Cluster);
            builder.discovery_interval(MILLIS(10)).build().unwrap()
        };
        let clients = [build(), build()];
        let clone = clients[0].clone();
        cluster.wait_for_requests();
        let [dropped, closed] = clients;
        drop(dropped);
        closed.close();
        assert!(matches!(closed.get("a").unwrap_err().kind(), ErrorKind::ClientClosed));
        assert_eq!(clone.get("a").unwrap().unwrap(), "a");
        drop(clone);
        // A refresh may still finish if it started before the client was dropped or closed.
        wait_until(|| {
            let before = cluster.requests.load(Ordering::Relaxed);
            thread::sleep(MILLIS(100));
            cluster.requests.load(Ordering::Relaxed) == before
        });
    });
}

#[test]
fn building_fails_without_a_first_list() {
    each_client(|client| {
        let cluster = Cluster::start();
        cluster.set_reply("ERROR\r\n");
        let built = client(cluster.address()).discovery(Discovery::Cluster).build();
        let error = built.unwrap_err();
        assert!(error.to_string().contains("no list of servers"), "{error}");
    });
}

#[test]
fn each_address_of_a_name_is_a_server() {
    each_client(|client| {
        let server = server();
        let client = client(format!("127.0.0.1:{}", server.port)).discovery(Discovery::Dns);
        let client = client.discovery_interval(MILLIS(10)).build().unwrap();
        for _ in 0..20 {
            assert_eq!(client.get("a").unwrap().unwrap(), "a");
            thread::sleep(MILLIS(5));
        }
        assert_eq!(server.accepted(), 1, "the list stays the same");
    });
}

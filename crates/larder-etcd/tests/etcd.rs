//! What is asked of etcd, with a real one (Debian's `etcd-server`). Without it, these tests do nothing.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "common/etcd_server.rs"]
mod etcd_server;

use etcd_server::{TIMEOUT, named, start};
use larder_etcd::{DiscoveryKeeper, Etcd, EtcdGroup, EtcdMap, EtcdSettings, GroupName, Presence};
use larder_replica::{Addresses, Coordinator, Process, Record, SlotMap};
use std::net::TcpListener;
use std::time::{Duration, Instant};

fn process(node: &str, boot: u64) -> Process {
    Process { node: node.to_owned(), boot }
}

fn record(epoch: u32, leader: &Process) -> Record {
    Record { epoch, leader: leader.clone(), in_sync: vec![leader.clone()] }
}

fn addresses(port: u16) -> Addresses {
    let at = |port| format!("127.0.0.1:{port}");
    Addresses { clients: Some(at(port)), members: at(port + 1) }
}

#[test]
fn one_of_two_replaces_a_record() {
    let Some(server) = start() else { return };
    let (mut one, mut other) = (server.group("0"), server.group("0"));
    let (a, b) = (process("a", u64::MAX), process("b", 7));
    let view = one.look().unwrap();
    assert_eq!((view.record, view.revision), (None, 0));
    let first = one.swap(0, &record(1, &a)).unwrap().expect("there was none");
    assert_eq!(other.swap(0, &record(1, &b)).unwrap(), None, "there is one");
    let view = other.look().unwrap();
    assert_eq!((view.record, view.revision), (Some(record(1, &a)), first));
    let second = other.swap(first, &record(2, &b)).unwrap().expect("it was as it was read");
    assert!(second > first);
    assert_eq!(one.swap(first, &record(2, &a)).unwrap(), None);
    assert_eq!(one.look().unwrap().record, Some(record(2, &b)));
    // Another group, also one whose name begins in the same way.
    assert_eq!(server.group("00").look().unwrap().record, None);
}

#[test]
fn who_is_alive_is_shown_until_it_says_so_no_more() {
    let Some(server) = start() else { return };
    let (a, b) = (process("a", 1), process("b", 2));
    let mut presences: Vec<Presence> = [(&a, 10), (&b, 20)]
        .map(|(process, port)| {
            Presence::new(server.client(), &named("0"), process, addresses(port))
        })
        .into();
    presences.iter_mut().for_each(|presence| presence.renew().unwrap());
    let mut group = server.group("0");
    let view = group.look().unwrap();
    assert!(view.is_live(&a) && view.is_live(&b));
    assert_eq!(view.addresses["b"], addresses(20));
    // One says nothing more, the other one goes on.
    let begun = Instant::now();
    loop {
        presences[0].renew().unwrap();
        let view = group.look().unwrap();
        assert!(view.is_live(&a));
        if !view.is_live(&b) {
            assert!(begun.elapsed() > Duration::from_secs(1), "a lease lasts for two seconds");
            assert_eq!(view.addresses.len(), 2, "where it was is still known");
            break;
        }
        assert!(begun.elapsed() < TIMEOUT);
        std::thread::sleep(Duration::from_millis(50));
    }
    // It comes back, with another process, and says so again after its lease was lost.
    let mut presence = Presence::new(server.client(), &named("0"), &process("b", 3), addresses(20));
    presence.renew().unwrap();
    assert!(group.look().unwrap().is_replaced(&b));
    presence.end().unwrap();
    assert!(!group.look().unwrap().live.contains_key("b"));
    presence.renew().unwrap();
    assert!(group.look().unwrap().is_live(&process("b", 3)));
    // Somebody removes all keys, while the lease lasts.
    let all = ureq::post(format!("{}/v3/kv/deleterange", server.url));
    all.send(r#"{"key":"AA==","range_end":"AA=="}"#).unwrap();
    assert!(group.look().unwrap().live.is_empty());
    presence.renew().unwrap();
    let view = group.look().unwrap();
    assert!(view.is_live(&process("b", 3)) && view.addresses.contains_key("b"));
}

#[test]
fn clients_are_told_of_who_is_alive() {
    let Some(server) = start() else { return };
    let mut keeper = DiscoveryKeeper::new(server.client(), "demo".to_owned());
    assert_eq!(keeper.keep().unwrap().version, 0);
    let mut presences: Vec<Presence> = [("0", "a", 10), ("0", "b", 30), ("1", "c", 20)]
        .map(|(group, node, port)| {
            let process = process(node, 1);
            Presence::new(server.client(), &named(group), &process, addresses(port))
        })
        .into();
    presences.iter_mut().for_each(|presence| presence.renew().unwrap());
    let list = keeper.keep().unwrap();
    assert_eq!(list.version, 1);
    assert_eq!(list.servers, ["127.0.0.1:10", "127.0.0.1:20", "127.0.0.1:30"]);
    assert_eq!(keeper.keep().unwrap(), list);
    // A short absence changes nothing, also in the eyes of one who has just begun to keep the list.
    presences[1].end().unwrap();
    let mut other = DiscoveryKeeper::new(server.client(), "demo".to_owned());
    assert_eq!(keeper.keep().unwrap(), list);
    assert_eq!(other.keep().unwrap(), list);
    assert_eq!(other.read().unwrap(), list);
}

#[test]
fn what_can_not_be_asked_is_an_error() {
    let urls = |urls: &[&str]| EtcdSettings {
        urls: urls.iter().map(|url| (*url).to_owned()).collect(),
        ..EtcdSettings::default()
    };
    for settings in [urls(&[]), urls(&["127.0.0.1:2379"]), urls(&["https://127.0.0.1:2379"])] {
        assert!(Etcd::new(&settings).is_err(), "{settings:?}");
    }
    let nobody = Etcd::new(&urls(&["http://127.0.0.1:1"])).unwrap();
    let error = EtcdGroup::new(nobody, named("0")).look().unwrap_err();
    assert!(error.0.contains("127.0.0.1:1"), "{error}");
    // One that accepts connections and says nothing is given up.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let silent_etcd = Etcd::new(&urls(&[&url])).unwrap();
    let begun = Instant::now();
    EtcdGroup::new(silent_etcd, named("0")).look().unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn all_groups_of_a_cluster_are_shown() {
    let Some(server) = start() else { return };
    let a = process("a", 1);
    server.group("one").swap(0, &record(1, &a)).unwrap().expect("there was none");
    let mut presence = Presence::new(server.client(), &named("two"), &a, addresses(10));
    presence.renew().unwrap();
    let groups = larder_etcd::groups(&mut server.client(), "demo").unwrap();
    assert_eq!(groups.keys().collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!(groups["one"].record, Some(record(1, &a)));
    assert!(!groups["one"].is_live(&a) && groups["two"].is_live(&a));
    assert!(larder_etcd::groups(&mut server.client(), "dem").unwrap().is_empty());
}

#[test]
fn the_map_is_replaced_only_as_it_was_read_and_while_the_same_one_leads() {
    let Some(server) = start() else { return };
    let mut cluster = EtcdMap::new(server.client(), "demo".to_owned());
    let none = cluster.look().unwrap();
    assert_eq!((none.map, none.revision, none.leaders.len()), (None, 0, 0));
    let mut map = SlotMap::of_one("0");
    assert!(cluster.swap(0, &map, &[]).unwrap().is_some());
    assert_eq!(cluster.swap(0, &map, &[]), Ok(None), "another one was first");
    map.plan_move("1", None).unwrap();
    let mut group = server.group("0");
    let (a, b) = (process("a", 1), process("b", 2));
    group.swap(0, &record(1, &a)).unwrap();
    let name = GroupName { cluster: "demo".to_owned(), group: "0".to_owned() };
    Presence::new(server.client(), &name, &a, addresses(70)).renew().unwrap();
    let seen = cluster.look().unwrap();
    assert_eq!(seen.map, Some(SlotMap::of_one("0")));
    let leader = &seen.leaders["0"];
    assert_eq!((&leader.record, leader.address.as_deref()), (&record(1, &a), Some("127.0.0.1:71")));
    assert!(!seen.leaders.contains_key("1"));
    group.swap(leader.revision, &record(2, &b)).unwrap();
    let while_a_leads = [("0", leader.revision)];
    assert_eq!(cluster.swap(seen.revision, &map, &while_a_leads), Ok(None), "another one leads");
    let leader = cluster.look().unwrap().leaders["0"].clone();
    let while_b_leads = [("0", leader.revision)];
    let revision = cluster.swap(seen.revision, &map, &while_b_leads).unwrap().unwrap();
    let seen = cluster.look().unwrap();
    assert_eq!((seen.map, seen.revision), (Some(map), revision));
}

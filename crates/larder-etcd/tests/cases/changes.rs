//! Reads that request only the changes since the last read.

use crate::etcd_server::{Server, named, start};
use crate::{ALL_KEYS, addresses, delete, overwrite, post, process, record};
use larder_etcd::{Discovery, Etcd, EtcdGroup, EtcdSettings, EtcdShardMap, Presence, TimeLimits};
use larder_replica::{Coordinator, ShardMap};
use std::time::{Duration, Instant};

#[test]
fn a_group_that_has_not_changed_is_read_by_the_revision_of_etcd() {
    let Some(server) = start() else { return };
    let a = process("a", 1);
    let mut group = server.group("0");
    let revision = group.swap(0, &record(1, &a)).unwrap().unwrap();
    let mut presence = Presence::new(server.client(), &named("0"), &a, addresses(10));
    presence.renew(false).unwrap();
    let changes: [&dyn Fn(); 7] = [
        &|| (),
        &|| overwrite(&server, "settings/0", r#"{"ack":"writes"}"#),
        &|| overwrite(&server, "transfer/0", r#"{"epoch":1,"to":null}"#),
        &|| delete(&server, "transfer/0"),
        &|| assert!(server.group("0").swap(revision, &record(2, &a)).unwrap().is_some()),
        &|| delete(&server, "live/0/a"),
        &|| delete(&server, "groups/0"),
    ];
    for (step, change) in changes.iter().enumerate() {
        // After two equal reads, the client reads only the revision.
        let seen = [(); 3].map(|()| group.read().unwrap());
        assert!(seen[0] == seen[1] && seen[1] == seen[2], "{step}");
        change();
        let now = server.group("0").read().unwrap();
        assert_eq!(group.read().unwrap(), now, "{step}");
        assert_eq!(now == seen[0], step == 0, "{step}");
    }
}

/// Creates a client that uses the second server once the first one is unreachable.
fn client_of_both(first: &Server, second: &Server) -> Etcd {
    let urls = vec![first.url.clone(), second.url.clone()];
    let settings = EtcdSettings { urls, ..EtcdSettings::default() };
    Etcd::with_limits(&settings, TimeLimits::COMMAND).unwrap()
}

#[test]
fn an_etcd_that_has_lost_its_data_is_read_completely() {
    let (Some(first), Some(second)) = (start(), start()) else { return };
    let open = || client_of_both(&first, &second);
    let (a, b) = (process("a", 1), process("b", 2));
    overwrite(&first, "other", "");
    first.group("0").swap(0, &record(1, &a)).unwrap().unwrap();
    second.group("0").swap(0, &record(1, &b)).unwrap().unwrap();
    overwrite(&second, "other", "");
    overwrite(&first, "other", "");
    let (mut map, mut group) =
        (EtcdShardMap::new(open(), "demo".to_owned()), EtcdGroup::new(open(), named("0")));
    for _ in 0..3 {
        assert_eq!(map.read().unwrap().leaders["0"].record.leader, a);
        assert_eq!(group.read().unwrap().record, Some(record(1, &a)));
    }
    // The second etcd has the same number of keys, and an earlier revision.
    drop(first);
    assert_eq!(map.read().unwrap().leaders["0"].record.leader, b);
    assert_eq!(group.read().unwrap().record, Some(record(1, &b)));
    assert_eq!(group.read_revision(), None, "a request has failed");
    assert_eq!(group.read().unwrap().record, Some(record(1, &b)));
    assert!(group.read_revision().is_some());
    drop(second);
    group.read().unwrap_err();
    assert_eq!(group.read_revision(), None, "the next read is a complete one");
}

/// Waits until the next read of a replica is complete. This takes at most two seconds after a
/// deletion.
fn wait_for_complete_read(replica: &EtcdShardMap) {
    let start = Instant::now();
    while !replica.keys().is_due() {
        assert!(start.elapsed() < Duration::from_secs(3));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn after_a_failed_request_a_replica_is_replaced_even_if_etcd_has_a_later_revision() {
    let (Some(first), Some(second)) = (start(), start()) else { return };
    let mut map = EtcdShardMap::new(client_of_both(&first, &second), "demo".to_owned());
    let (a, b) = (process("a", 1), process("b", 2));
    first.group("0").swap(0, &record(1, &a)).unwrap().unwrap();
    second.group("0").swap(0, &record(1, &b)).unwrap().unwrap();
    overwrite(&second, "other", "");
    overwrite(&first, "other", "");
    overwrite(&second, "other", "");
    map.read().unwrap();
    drop(first);
    // The replica requests only later changes, and the record of the second etcd is older than the
    // replica's revision.
    assert_eq!(map.read().unwrap().leaders["0"].record.leader, a);
    // The call has succeeded at the second etcd, but its request to the first one has failed.
    // Therefore, a complete read follows.
    wait_for_complete_read(&map);
    assert_eq!(map.read().unwrap().leaders["0"].record.leader, b);
}

#[test]
fn a_replica_never_has_an_earlier_map_than_etcd() {
    let Some(server) = start() else { return };
    let mut replica = EtcdShardMap::new(server.client(), "demo".to_owned());
    server.group("0").swap(0, &record(1, &process("a", 1))).unwrap().unwrap();
    let owned_by = |group: &str| format!(r#"{{"slots":{{"{group}":"0-4095"}}}}"#);
    overwrite(&server, "map", &owned_by("0"));
    assert!(replica.read().unwrap().map.is_some());
    // After the deletion of a key, the replica keeps the deleted key until its next complete read.
    overwrite(&server, "map", &owned_by("1"));
    delete(&server, "groups/0");
    let view = replica.read().unwrap();
    assert_eq!(view.map.unwrap().owner_of(0), Some("1"));
    overwrite(&server, "map", &owned_by("2"));
    delete(&server, "map");
    assert_eq!(replica.read().unwrap().map, None, "not the map that was replaced");
}

/// Returns the map, the leaders and the list of servers of a replica, as text.
fn contents(map: &mut EtcdShardMap) -> String {
    let view = map.read().unwrap();
    let mut leaders: Vec<_> = view.leaders.iter().collect();
    leaders.sort_by_key(|(group, _)| *group);
    format!("{:?} {} {leaders:?} {:?}", view.map, view.revision, Discovery::listed(map.keys()))
}

#[test]
fn reads_return_every_change_and_complete_reads_follow_only_deletions() {
    let Some(server) = start() else { return };
    let settings = EtcdSettings { urls: vec![server.url.clone()], ..EtcdSettings::default() };
    let open = || {
        let etcd = Etcd::with_limits(&settings, TimeLimits::COMMAND).unwrap();
        EtcdShardMap::new(etcd, "demo".to_owned())
    };
    let records = [record(1, &process("a", 1)), record(2, &process("b", 2))];
    let map = |slots: &str| format!(r#"{{"slots":{{"0":"{slots}"}}}}"#);
    let list = |version| format!(r#"{{"version":{version},"servers":[]}}"#);
    let put_record = |group: &str, which: usize| {
        let mut group = server.group(group);
        let revision = group.read().unwrap().revision;
        group.swap(revision, &records[which]).unwrap().unwrap();
    };
    put_record("0", 0);
    put_record("1", 0);
    overwrite(&server, "map", &map("0-4095"));
    let (mut replica, mut complete) = (open(), 1);
    let first = contents(&mut replica);
    assert_eq!(replica.keys().complete_reads(), 1, "the first read");
    let mut check = |step: &str, is_complete: bool| {
        if is_complete {
            replica.read().unwrap();
            wait_for_complete_read(&replica);
        }
        let seen = contents(&mut replica);
        assert_eq!(seen, contents(&mut open()), "{step}");
        complete += u64::from(is_complete);
        assert_eq!(replica.keys().complete_reads(), complete, "{step}");
        seen
    };
    assert_eq!(check("no change", false), first);
    // Change another cluster in the same etcd.
    EtcdShardMap::new(server.client(), "dem".to_owned())
        .swap(0, &ShardMap::single_group("0"), &[])
        .unwrap();
    assert_eq!(check("a change elsewhere", false), first);
    put_record("1", 1);
    assert_ne!(check("a put", false), first);
    overwrite(&server, "discovery", &list(7));
    check("a new key", false);
    delete(&server, "discovery");
    check("a deletion of the newest key", true);
    delete(&server, "groups/0");
    check("a deletion of an old key", true);
    delete(&server, "groups/1");
    put_record("1", 0);
    check("a key deleted and written again", false);
    delete(&server, "groups/1");
    put_record("2", 0);
    check("a key deleted and another one written", true);
    put_record("3", 0);
    delete(&server, "groups/3");
    check("a key written and deleted", false);
    delete(&server, "map");
    check("a deletion of the map", false);
    overwrite(&server, "map", &map("0-4095"));
    check("a map written again", false);
    post(&server, "/v3/kv/deleterange", ALL_KEYS);
    check("all keys deleted", true);
    check("no key", false);
    overwrite(&server, "map", &map("0-4095"));
    check("a first key", false);
}

//! Tests with a real etcd (Debian's `etcd-server`). If etcd is not installed, the tests that need
//! it pass without testing anything.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "cases/changes.rs"]
mod changes;
#[path = "common/etcd_server.rs"]
mod etcd_server;
#[path = "cases/identity.rs"]
mod identity;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use etcd_server::{TIMEOUT, named, start};
use larder_etcd::{
    Discovery, DiscoveryKeeper, Etcd, EtcdGroup, EtcdSettings, EtcdShardMap, GroupName, LEASE_SECS,
    Login, Presence, PresenceError, TimeLimits, ValueKind, groups, survey,
};
use larder_replica::{Addresses, CasRange, Coordinator, Process, Record, ShardMap};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn process(node: &str, incarnation: u64) -> Process {
    Process { node: node.to_owned(), incarnation }
}

fn record(epoch: u32, leader: &Process) -> Record {
    let (leader, in_sync) = (leader.clone(), vec![leader.clone()]);
    Record { epoch, leader, in_sync, cas: CasRange::starting_at(1), unclean_after: None }
}

fn addresses(port: u16) -> Addresses {
    let at = |port| format!("127.0.0.1:{port}");
    Addresses { clients: Some(at(port)), members: at(port + 1) }
}

const ALL_KEYS: &str = r#"{"key":"AA==","range_end":"AA=="}"#;

/// Sends a request to etcd's gateway.
fn post(server: &etcd_server::Server, path: &str, body: &str) {
    ureq::post(format!("{}{path}", server.url)).send(body).unwrap();
}

#[test]
fn only_the_first_of_two_concurrent_swaps_succeeds() {
    let Some(server) = start() else { return };
    let (mut one, mut other) = (server.group("0"), server.group("0"));
    let (a, b) = (process("a", u64::MAX), process("b", 7));
    let view = one.read().unwrap();
    assert_eq!((view.record, view.revision), (None, 0));
    let first = one.swap(0, &record(1, &a)).unwrap().expect("there was none");
    assert_eq!(other.swap(0, &record(1, &b)).unwrap(), None, "there is one");
    let view = other.read().unwrap();
    assert_eq!((view.record, view.revision), (Some(record(1, &a)), first));
    let second = other.swap(first, &record(2, &b)).unwrap().expect("the revision is current");
    assert!(second > first);
    assert_eq!(one.swap(first, &record(2, &a)).unwrap(), None);
    assert_eq!(one.read().unwrap().record, Some(record(2, &b)));
    // The name of the first group, `0`, is a prefix of the name `00`.
    assert_eq!(server.group("00").read().unwrap().record, None);
}

#[test]
fn a_process_is_live_until_its_lease_ends() {
    let Some(server) = start() else { return };
    let (a, b) = (process("a", 1), process("b", 2));
    let mut presences: Vec<Presence> = [(&a, 10), (&b, 20)]
        .map(|(process, port)| {
            Presence::new(server.client(), &named("0"), process, addresses(port))
        })
        .into();
    for presence in &mut presences {
        presence.renew(true).unwrap();
    }
    let mut group = server.group("0");
    let view = group.read().unwrap();
    assert!(view.is_live(&a) && view.is_live(&b));
    assert_eq!(view.addresses["b"], addresses(20));
    // Only `a` renews its lease.
    let start = Instant::now();
    loop {
        presences[0].renew(false).unwrap();
        let view = group.read().unwrap();
        assert!(view.is_live(&a));
        if !view.is_live(&b) {
            assert!(start.elapsed() > Duration::from_secs(1), "a lease lasts for two seconds");
            assert_eq!(view.addresses.len(), 2, "addresses outlive the lease");
            break;
        }
        assert!(start.elapsed() < TIMEOUT);
        std::thread::sleep(Duration::from_millis(50));
    }
    // The node restarts, revokes its lease, and obtains a new one.
    let mut presence = Presence::new(server.client(), &named("0"), &process("b", 3), addresses(20));
    presence.renew(true).unwrap();
    assert!(group.read().unwrap().is_replaced(&b));
    presence.revoke().unwrap();
    assert!(!group.read().unwrap().live.contains_key("b"));
    presence.renew(true).unwrap();
    assert!(group.read().unwrap().is_live(&process("b", 3)));
    // An operator removes all keys while the lease lasts.
    post(&server, "/v3/kv/deleterange", ALL_KEYS);
    assert!(group.read().unwrap().live.is_empty());
    presence.renew(true).unwrap();
    let view = group.read().unwrap();
    assert!(view.is_live(&process("b", 3)) && view.addresses.contains_key("b"));
}

#[test]
fn a_process_does_not_take_the_name_of_a_live_process() {
    let Some(server) = start() else { return };
    let presence = |incarnation, port| {
        let process = process("a", incarnation);
        Presence::new(server.client(), &named("0"), &process, addresses(port))
    };
    let (mut first, mut twin) = (presence(1, 10), presence(2, 20));
    first.renew(true).unwrap();
    let Err(PresenceError::NameConflict(conflict)) = twin.renew(false) else {
        panic!("the name is free")
    };
    assert_eq!(conflict.lease_time(), Duration::from_secs(LEASE_SECS));
    let shown = conflict.to_string();
    assert!(shown.contains("/larder/1/demo/live/0/a"), "{shown}");
    assert!(shown.contains("0000000000000001 at 127.0.0.1:11"), "{shown}");
    let view = server.group("0").read().unwrap();
    assert!(view.is_live(&process("a", 1)));
    assert_eq!(view.addresses["a"], addresses(10));
    // An operator changes a key of the live process. The process repairs it.
    let key = |kind: &str| BASE64.encode(format!("/larder/1/demo/{kind}/0/a"));
    post(&server, "/v3/kv/deleterange", &format!(r#"{{"key":"{}"}}"#, key("nodes")));
    first.renew(true).unwrap();
    assert_eq!(server.group("0").read().unwrap().addresses["a"], addresses(10));
    for (kind, value) in [("live", "none"), ("live", "0000000000000007"), ("nodes", "none")] {
        let (key, value) = (key(kind), BASE64.encode(value));
        post(&server, "/v3/kv/put", &format!(r#"{{"key":"{key}","value":"{value}"}}"#));
        first.renew(true).unwrap();
        let view = server.group("0").read().unwrap();
        assert!(view.is_live(&process("a", 1)), "no process has written {kind}");
        assert_eq!(view.addresses["a"], addresses(10));
    }
    // An operator writes the correct value without the lease. The process attaches its lease again,
    // so the key disappears after the process ends.
    let (live, value) = (key("live"), BASE64.encode("0000000000000001"));
    post(&server, "/v3/kv/put", &format!(r#"{{"key":"{live}","value":"{value}"}}"#));
    first.renew(true).unwrap();
    // The first process ends without revoking its lease.
    drop(first);
    let start = Instant::now();
    while twin.renew(false).is_err() {
        assert!(start.elapsed() < TIMEOUT);
        std::thread::sleep(Duration::from_millis(50));
    }
    let view = server.group("0").read().unwrap();
    assert!(view.is_live(&process("a", 2)) && view.is_replaced(&process("a", 1)));
    assert_eq!(view.addresses["a"], addresses(20));
}

#[test]
fn the_list_of_servers_has_live_nodes_and_survives_a_short_absence() {
    let Some(server) = start() else { return };
    let mut cluster = EtcdShardMap::new(server.client(), "demo".to_owned());
    let keeper = || DiscoveryKeeper::new(server.client(), "demo".to_owned());
    let mut update = |keeper: &mut DiscoveryKeeper| {
        cluster.read().unwrap();
        let (list, replaced) = keeper.compute(cluster.keys());
        if let Some(revision) = replaced {
            assert!(keeper.write(&list, revision).unwrap());
        }
        cluster.read().unwrap();
        assert_eq!(Discovery::listed(cluster.keys()), list);
        list
    };
    let mut first = keeper();
    assert_eq!(update(&mut first).version, 0);
    let mut presences: Vec<Presence> = [("0", "a", 10), ("0", "b", 30), ("1", "c", 20)]
        .map(|(group, node, port)| {
            let process = process(node, 1);
            Presence::new(server.client(), &named(group), &process, addresses(port))
        })
        .into();
    for presence in &mut presences {
        presence.renew(false).unwrap();
    }
    let list = update(&mut first);
    assert_eq!(list.version, 1);
    assert_eq!(list.servers, ["127.0.0.1:10", "127.0.0.1:20", "127.0.0.1:30"]);
    assert_eq!(update(&mut first), list);
    // A short absence does not change the list, not even for a new keeper.
    presences[1].revoke().unwrap();
    assert_eq!(update(&mut first), list);
    assert_eq!(update(&mut keeper()), list);
}

#[test]
fn invalid_settings_and_unreachable_servers_are_errors() {
    let urls = |urls: &[&str]| EtcdSettings {
        urls: urls.iter().map(|url| (*url).to_owned()).collect(),
        ..EtcdSettings::default()
    };
    for settings in [urls(&[]), urls(&["127.0.0.1:2379"]), urls(&["https://127.0.0.1:2379"])] {
        assert!(Etcd::new(&settings).is_err(), "{settings:?}");
    }
    let unreachable = Etcd::new(&urls(&["http://127.0.0.1:1"])).unwrap();
    let error = EtcdGroup::new(unreachable, named("0")).read().unwrap_err();
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    // A server that accepts connections and never answers times out.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let silent_etcd = Etcd::new(&urls(&[&url])).unwrap();
    let start = Instant::now();
    EtcdGroup::new(silent_etcd, named("0")).read().unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn the_clients_with_the_same_settings_share_their_counters() {
    let Some(server) = start() else { return };
    let urls = vec!["http://127.0.0.1:1".to_owned(), server.url.clone()];
    let settings = EtcdSettings { urls, ..EtcdSettings::default() };
    let counters = Arc::clone(&settings.counters);
    assert_eq!((counters.requests(), counters.total_time()), (0, Duration::ZERO));
    let group = |settings: &EtcdSettings| {
        EtcdGroup::new(Etcd::with_limits(settings, TimeLimits::COMMAND).unwrap(), named("0"))
    };
    for _ in 0..2 {
        group(&settings).read().unwrap();
    }
    // The first server is unreachable; the second one answers the same call.
    assert_eq!((counters.requests(), counters.failures()), (2, 0));
    assert!(!counters.total_time().is_zero());
    let lost = EtcdSettings { urls: vec!["http://127.0.0.1:1".to_owned()], ..settings };
    let age = counters.success_age();
    group(&lost).read().unwrap_err();
    assert_eq!((counters.requests(), counters.failures()), (3, 1));
    assert!(counters.success_age() > age, "a failure is no success");
}

#[test]
fn a_malformed_value_does_not_hide_other_keys() {
    let Some(server) = start() else { return };
    let leader = process("a", 1);
    server.group("0").swap(0, &record(1, &leader)).unwrap().expect("there was none");
    let put = |key: &[u8], value: &str| {
        let (key, value) =
            (BASE64.encode([b"/larder/1/demo/", key].concat()), BASE64.encode(value));
        post(&server, "/v3/kv/put", &format!(r#"{{"key":"{key}","value":"{value}"}}"#));
    };
    put(b"groups/1", "{");
    put(b"nodes/0/\xff", "{");
    put(b"live/0/a/b", "1");
    let found = survey(&mut server.client(), "demo").unwrap();
    assert_eq!(found.groups["0"].record, Some(record(1, &leader)));
    assert_eq!(found.groups["1"].record, None);
    let faults: Vec<_> = found.faults.iter().map(|fault| (&fault.key[15..], fault.kind)).collect();
    let expected = [
        ("groups/1", ValueKind::Record),
        ("live/0/a/b", ValueKind::Unknown),
        ("nodes/0/\u{fffd}", ValueKind::Unknown),
    ];
    assert_eq!(faults, expected);
    // Members also ignore unexpected keys.
    let view = server.group("0").read().unwrap();
    assert_eq!(view.record, Some(record(1, &leader)));
    assert_eq!((view.live.get("b"), view.addresses.get("\u{fffd}")), (None, None));
    assert!(groups(&mut server.client(), "demo").unwrap_err().to_string().contains("groups/1"));
}

/// Deletes a key of the cluster `demo`.
fn delete(server: &etcd_server::Server, key: &str) {
    let key = BASE64.encode(format!("/larder/1/demo/{key}"));
    post(server, "/v3/kv/deleterange", &format!(r#"{{"key":"{key}"}}"#));
}

/// Overwrites a key of the cluster `demo`.
fn overwrite(server: &etcd_server::Server, key: &str, value: &str) {
    let (key, value) = (BASE64.encode(format!("/larder/1/demo/{key}")), BASE64.encode(value));
    post(server, "/v3/kv/put", &format!(r#"{{"key":"{key}","value":"{value}"}}"#));
}

/// Compacts etcd's history up to a revision, which removes older values.
fn compact(server: &etcd_server::Server, revision: u64) {
    post(server, "/v3/kv/compaction", &format!(r#"{{"revision":"{revision}"}}"#));
}

#[test]
fn a_malformed_record_gets_its_last_valid_value_again() {
    let Some(server) = start() else { return };
    let (mut group, a) = (server.group("0"), process("a", 1));
    assert_eq!(group.restore_record(), Ok(true), "there is none");
    let first = group.swap(0, &record(1, &a)).unwrap().unwrap();
    group.swap(first, &record(2, &a)).unwrap().unwrap();
    overwrite(&server, "groups/0", "{");
    overwrite(&server, "groups/0", "nonsense");
    group.read().unwrap_err();
    assert_eq!(group.restore_record(), Ok(true));
    let view = group.read().unwrap();
    assert_eq!(view.record, Some(record(2, &a)));
    // A valid record is not replaced.
    assert_eq!(group.restore_record(), Ok(true));
    assert_eq!(group.read().unwrap().revision, view.revision);
    overwrite(&server, "groups/0", "{");
    compact(&server, view.revision + 1);
    assert_eq!(group.restore_record(), Ok(false), "etcd has no earlier value");
    group.read().unwrap_err();
    overwrite(&server, "groups/1", "{");
    assert_eq!(server.group("1").restore_record(), Ok(false), "there is no earlier value");
}

#[test]
fn a_malformed_or_deleted_map_gets_its_last_value_again() {
    let Some(server) = start() else { return };
    let mut cluster = EtcdShardMap::new(server.client(), "demo".to_owned());
    let delete = || {
        let key = BASE64.encode("/larder/1/demo/map");
        post(&server, "/v3/kv/deleterange", &format!(r#"{{"key":"{key}"}}"#));
    };
    let read = || EtcdShardMap::new(server.client(), "demo".to_owned()).read().unwrap();
    let mut map = ShardMap::single_group("0");
    let seen = cluster.swap(0, &map, &[]).unwrap().unwrap();
    map.plan_migration("1", None).unwrap();
    let mut last = cluster.swap(seen, &map, &[]).unwrap().unwrap();
    overwrite(&server, "map", "nonsense");
    cluster.read().unwrap_err();
    assert_eq!(cluster.restore_malformed(), Ok(true));
    assert_eq!(cluster.read().unwrap().map.as_ref(), Some(&map));
    // `restore_deleted` finds the last value from any revision at which the map existed.
    for existed_at in [seen, last, cluster.read().unwrap().revision] {
        delete();
        for other in 0..5 {
            overwrite(&server, "other", &other.to_string());
        }
        assert_eq!(read().map, None);
        assert_eq!(cluster.restore_deleted(existed_at), Ok(true));
        let view = cluster.read().unwrap();
        assert_eq!(view.map.as_ref(), Some(&map));
        last = view.revision;
    }
    delete();
    assert_eq!(cluster.restore_deleted(last + 1000), Ok(false), "etcd has lost its data");
    compact(&server, last + 1);
    assert_eq!(cluster.restore_deleted(last), Ok(false), "etcd has no earlier value");
    assert_eq!(read().map, None);
}

/// Returns the number of logins that etcd has accepted.
fn logins(server: &etcd_server::Server) -> u32 {
    let mut metrics = ureq::get(format!("{}/metrics", server.url)).call().unwrap();
    let metrics = metrics.body_mut().read_to_string().unwrap();
    let is_login = |line: &&str| {
        line.starts_with("grpc_server_handled_total")
            && line.contains("\"Authenticate\"")
            && line.contains("grpc_code=\"OK\"")
    };
    let count = metrics.lines().find(is_login).and_then(|line| line.rsplit(' ').next());
    count.map_or(0, |count| count.parse().unwrap())
}

#[test]
fn the_clients_of_a_process_share_a_login() {
    let Some(server) = start() else { return };
    post(&server, "/v3/auth/user/add", r#"{"name":"root","password":"secret"}"#);
    post(&server, "/v3/auth/role/add", r#"{"name":"root"}"#);
    post(&server, "/v3/auth/user/grant", r#"{"user":"root","role":"root"}"#);
    post(&server, "/v3/auth/enable", "{}");
    let settings = |password| EtcdSettings {
        urls: vec!["http://127.0.0.1:1".to_owned(), server.url.clone()],
        login: Some(Login::new("root", password)),
        ..EtcdSettings::default()
    };
    let with = |settings: &EtcdSettings| {
        EtcdGroup::new(Etcd::with_limits(settings, TimeLimits::COMMAND).unwrap(), named("0"))
    };
    let process = settings("secret");
    let mut groups: Vec<EtcdGroup> = (0..4).map(|_| with(&process)).collect();
    let read_all = |groups: &mut Vec<EtcdGroup>| {
        std::thread::scope(|scope| {
            groups.iter_mut().for_each(|group| {
                scope.spawn(|| group.read().unwrap());
            });
        });
    };
    let before = logins(&server);
    read_all(&mut groups);
    assert_eq!(logins(&server), before + 1);
    // Changing the password invalidates the tokens. Together, the next calls log in once.
    let mut admin = ureq::post(format!("{}/v3/auth/authenticate", server.url))
        .send(r#"{"name":"root","password":"secret"}"#)
        .unwrap();
    let token = admin.body_mut().read_to_string().unwrap();
    let token = token.rsplit("\"token\":\"").next().unwrap().split('"').next().unwrap();
    let change = format!("{}/v3/auth/user/changepw", server.url);
    let change = ureq::post(change).header("Authorization", token);
    change.send(r#"{"name":"root","password":"secret"}"#).unwrap();
    let before = logins(&server);
    read_all(&mut groups);
    assert_eq!(logins(&server), before + 1);
    // A request that fails for another reason does not drop the token.
    let first = self::process("a", 1);
    assert!(groups[0].swap(0, &record(1, &first)).unwrap().is_some());
    assert_eq!(groups[0].swap(0, &record(1, &first)), Ok(None));
    read_all(&mut groups);
    assert_eq!(logins(&server), before + 1);
    let error = with(&settings("wrong")).read().unwrap_err().to_string();
    assert!(error.contains("authentication failed"), "{error}");
}

#[test]
fn groups_returns_all_groups_of_one_cluster() {
    let Some(server) = start() else { return };
    let a = process("a", 1);
    server.group("one").swap(0, &record(1, &a)).unwrap().expect("there was none");
    let mut presence = Presence::new(server.client(), &named("two"), &a, addresses(10));
    presence.renew(true).unwrap();
    let groups = groups(&mut server.client(), "demo").unwrap();
    assert_eq!(groups.keys().collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!(groups["one"].record, Some(record(1, &a)));
    assert!(!groups["one"].is_live(&a) && groups["two"].is_live(&a));
    assert!(larder_etcd::groups(&mut server.client(), "dem").unwrap().is_empty());
}

#[test]
fn a_map_swap_requires_the_revisions_of_the_map_and_of_the_leaders() {
    let Some(server) = start() else { return };
    let mut cluster = EtcdShardMap::new(server.client(), "demo".to_owned());
    let none = cluster.read().unwrap();
    assert_eq!((none.map, none.revision, none.leaders.len()), (None, 0, 0));
    let mut map = ShardMap::single_group("0");
    assert!(cluster.swap(0, &map, &[]).unwrap().is_some());
    assert_eq!(cluster.swap(0, &map, &[]), Ok(None), "a map exists");
    map.plan_migration("1", None).unwrap();
    let mut group = server.group("0");
    let (a, b) = (process("a", 1), process("b", 2));
    group.swap(0, &record(1, &a)).unwrap();
    let name = GroupName { cluster: "demo".to_owned(), group: "0".to_owned() };
    Presence::new(server.client(), &name, &a, addresses(70)).renew(false).unwrap();
    let seen = cluster.read().unwrap();
    assert_eq!(seen.map, Some(ShardMap::single_group("0")));
    let leader = &seen.leaders["0"];
    assert_eq!((&leader.record, leader.address.as_deref()), (&record(1, &a), Some("127.0.0.1:71")));
    assert!(!seen.leaders.contains_key("1"));
    group.swap(leader.revision, &record(2, &b)).unwrap();
    let while_a_leads = [("0", leader.revision)];
    assert_eq!(cluster.swap(seen.revision, &map, &while_a_leads), Ok(None), "another node leads");
    let leader = cluster.read().unwrap().leaders["0"].clone();
    let while_b_leads = [("0", leader.revision)];
    let revision = cluster.swap(seen.revision, &map, &while_b_leads).unwrap().unwrap();
    let seen = cluster.read().unwrap();
    assert_eq!((seen.map, seen.revision), (Some(map), revision));
}

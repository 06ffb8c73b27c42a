//! The identity of a cluster in etcd, and the secret that belongs to it.

use crate::etcd_server::{Server, TIMEOUT, named, start};
use crate::{ALL_KEYS, addresses, post, process, record};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use larder_etcd::{
    ClusterIdentity, Etcd, EtcdGroup, EtcdSettings, EtcdShardMap, IdentityError, IdentityFinder,
    Presence, SecretReplaced, TimeLimits, ValueKind, replace_secret, survey,
};
use larder_replica::{Coordinator, CoordinatorError, Secret, ShardMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A process that must know the identity of the cluster `demo`.
struct Member {
    settings: EtcdSettings,
    finder: IdentityFinder,
    identity: Arc<ClusterIdentity>,
}

impl Member {
    fn new(server: &Server, secret: Option<&str>) -> Self {
        let identity = Arc::new(ClusterIdentity::new("demo"));
        let settings = EtcdSettings {
            urls: vec![server.url.clone()],
            identity: Some(Arc::clone(&identity)),
            ..EtcdSettings::default()
        };
        let secret = secret.map(|text| Secret::of(text.as_bytes()).unwrap());
        let finder = IdentityFinder::new(&settings, "demo", &identity, secret).unwrap();
        Self { settings, finder, identity }
    }

    fn client(&self) -> Etcd {
        Etcd::with_limits(&self.settings, TimeLimits::COMMAND).unwrap()
    }

    fn group(&self) -> EtcdGroup {
        EtcdGroup::new(self.client(), named("0"))
    }

    /// Waits until the identity is known. Returns how long this took.
    fn wait_for_identity(&mut self) -> Duration {
        let start = Instant::now();
        while !self.finder.find().unwrap() {
            assert!(start.elapsed() < TIMEOUT);
            std::thread::sleep(Duration::from_millis(50));
        }
        start.elapsed()
    }

    /// Returns the text of the error with which this process is refused.
    fn refusal(&mut self) -> String {
        match self.finder.find() {
            Err(IdentityError::OtherSecret(other)) => other.to_string(),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_first_process_draws_the_identity_and_the_others_need_its_secret() {
    let Some(server) = start() else { return };
    let secret = "a secret of the cluster";
    let mut first = Member::new(&server, Some(secret));
    assert_eq!(first.group().read(), Err(CoordinatorError::IdentityPending));
    assert_eq!((first.finder.find(), first.identity.number()), (Ok(false), 0));
    assert!(first.wait_for_identity() > Duration::from_secs(1));
    assert!(first.identity.is_founder());
    let mut second = Member::new(&server, Some(secret));
    assert_eq!(second.finder.find(), Ok(true));
    assert!(!second.identity.is_founder());
    assert_eq!(second.identity.number(), first.identity.number());
    assert_ne!(second.identity.number(), 0);
    let other = Member::new(&server, Some("another secret of it")).refusal();
    assert!(other.contains("demo in etcd has another secret"), "{other}");
    let none = Member::new(&server, None).refusal();
    assert!(none.contains("demo in etcd has a secret: set --cluster-secret"), "{none}");
    // Another cluster has another identity.
    assert!(replace_secret(&mut server.client(), "dem", None) == Ok(SecretReplaced::NoCluster));
    // An operator replaces the secret while no process is live.
    let mut presence = Presence::new(first.client(), &named("0"), &process("a", 1), addresses(10));
    presence.renew(true).unwrap();
    let replace = || replace_secret(&mut server.client(), "demo", None).unwrap();
    assert_eq!(replace(), SecretReplaced::Refused);
    presence.revoke().unwrap();
    assert_eq!(replace(), SecretReplaced::Done);
    let mut without = Member::new(&server, None);
    assert_eq!(without.finder.find(), Ok(true));
    assert_eq!(without.identity.number(), first.identity.number());
    let refused = Member::new(&server, Some(secret)).refusal();
    assert!(refused.contains("demo in etcd has no secret: omit --cluster-secret"), "{refused}");
}

/// An operator deletes a malformed identity. After that, running processes have time to restore the
/// identity.
#[test]
fn the_wait_for_an_identity_starts_again_after_a_malformed_one() {
    let Some(server) = start() else { return };
    let mut member = Member::new(&server, None);
    assert_eq!(member.finder.find(), Ok(false));
    let absent = Instant::now();
    let key = BASE64.encode("/larder/1/demo/identity");
    post(&server, "/v3/kv/put", &format!(r#"{{"key":"{key}","value":"{}"}}"#, BASE64.encode("{")));
    while absent.elapsed() < Duration::from_millis(2100) {
        assert!(member.finder.find().is_err());
        std::thread::sleep(Duration::from_millis(50));
    }
    post(&server, "/v3/kv/deleterange", &format!(r#"{{"key":"{key}"}}"#));
    assert_eq!(member.finder.find(), Ok(false));
    member.wait_for_identity();
}

#[test]
fn processes_restore_a_lost_identity_and_leave_another_cluster_alone() {
    let Some(server) = start() else { return };
    let (mut one, mut other) = (Member::new(&server, None), Member::new(&server, None));
    one.wait_for_identity();
    other.wait_for_identity();
    let a = process("a", 1);
    let (mut ones, mut others) = (one.group(), other.group());
    ones.swap(0, &record(1, &a)).unwrap().expect("there was none");
    assert_eq!(others.swap(0, &record(2, &a)), Ok(None), "the identity is right");
    // etcd loses all keys. A read, a swap and a renewal each detect one such loss.
    post(&server, "/v3/kv/deleterange", ALL_KEYS);
    assert_eq!(ones.read().unwrap().record, None);
    assert!(others.swap(0, &record(3, &a)).unwrap().is_some(), "written again by a process");
    post(&server, "/v3/kv/deleterange", ALL_KEYS);
    assert!(others.swap(0, &record(4, &a)).unwrap().is_some());
    post(&server, "/v3/kv/deleterange", ALL_KEYS);
    let mut presence = Presence::new(one.client(), &named("0"), &a, addresses(10));
    presence.renew(true).unwrap();
    let mut third = Member::new(&server, None);
    assert_eq!(third.finder.find(), Ok(true));
    assert_eq!(third.identity.number(), one.identity.number());
    // etcd loses all keys, and another cluster of this name is founded.
    post(&server, "/v3/kv/deleterange", ALL_KEYS);
    let mut twin = Member::new(&server, None);
    twin.wait_for_identity();
    assert_ne!(twin.identity.number(), one.identity.number());
    twin.group().swap(0, &record(1, &process("b", 2))).unwrap().expect("there was none");
    let view = server.group("0").read().unwrap();
    let key = "/larder/1/demo/identity".to_owned();
    assert_eq!(ones.read(), Err(CoordinatorError::OtherCluster(key.clone())));
    let swapped = ones.swap(view.revision, &record(9, &a));
    assert_eq!(swapped, Err(CoordinatorError::OtherCluster(key.clone())));
    let renewed = presence.renew(true);
    assert_eq!(renewed, Err(CoordinatorError::OtherCluster(key.clone()).into()));
    let mut map = EtcdShardMap::new(one.client(), "demo".to_owned());
    let swapped = map.swap(0, &ShardMap::single_group("0"), &[]);
    assert_eq!(swapped, Err(CoordinatorError::OtherCluster(key.clone())));
    assert_eq!(server.group("0").read().unwrap(), view, "nothing was written");
    // A malformed identity does not count as another cluster.
    let put = format!(r#"{{"key":"{}","value":"{}"}}"#, BASE64.encode(&key), BASE64.encode("{"));
    post(&server, "/v3/kv/deleterange", ALL_KEYS);
    post(&server, "/v3/kv/put", &put);
    assert_eq!(ones.read(), Err(CoordinatorError::MalformedValue(key.clone())));
    let found = Member::new(&server, None).finder.find();
    assert_eq!(found, Err(CoordinatorError::MalformedValue(key).into()));
    let faults = survey(&mut server.client(), "demo").unwrap().faults;
    assert_eq!(faults.first().map(|fault| fault.kind), Some(ValueKind::Identity));
}

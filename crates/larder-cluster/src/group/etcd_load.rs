//! The load of a whole cluster on etcd. For each member, the measurement runs only the threads that
//! use etcd, and makes no connections between members. `LARDER_GROUPS` is the number of groups of
//! three members.
//!
//! ```sh
//! LARDER_GROUPS=100 cargo test -p larder-cluster etcd_load -- --ignored --nocapture
//! ```

#![allow(clippy::print_stdout, reason = "the result of a measurement")]

use super::{Coordination, Group, GroupConfig, ShardMapKeeper};
use crate::peers::{HEARTBEAT_INTERVAL, Stop};
use larder_etcd::{ClusterIdentity, Etcd, EtcdSettings, EtcdShardMap, GroupName, IdentityFinder};
use larder_operations::Tracker;
use larder_replica::{Addresses, DoubtPolicy, ElectionPromise, ShardMap};
use larder_store::eviction::SIZE_EXPONENT;
use larder_store::journal::AckMode;
use larder_store::{SizeClasses, erased, segment};
use larder_support::clock::boot_millis;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const MEMBERS: usize = 3;
const MEASURED_TIME: Duration = Duration::from_secs(20);
const START_MAX: Duration = Duration::from_secs(120);
/// The number of clock ticks per second. `/proc` contains CPU times in clock ticks.
const TICKS_PER_SEC: f64 = 100.0;

struct Server {
    child: Child,
    url: String,
    _data: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts an etcd server, with its data in memory if possible.
    fn start() -> Self {
        let data = TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).unwrap();
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (url, peer) = (format!("http://{}", free()), format!("http://{}", free()));
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(data.path());
        command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("default={peer}")]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Self { child: child.expect("etcd is installed"), url, _data: data }
    }

    fn settings(&self, identity: Option<Arc<ClusterIdentity>>) -> EtcdSettings {
        EtcdSettings { urls: vec![self.url.clone()], identity, ..EtcdSettings::default() }
    }

    /// Returns the user and system time of the process.
    fn cpu_time(&self) -> Duration {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks: f64 =
            [11, 12].map(|index: usize| fields[index].parse::<f64>().unwrap()).iter().sum();
        Duration::from_secs_f64(ticks / TICKS_PER_SEC)
    }

    /// Returns the number of calls of each kind, and of bytes in each direction.
    fn counters(&self) -> BTreeMap<String, f64> {
        let mut text = String::new();
        let mut stream =
            std::net::TcpStream::connect(self.url.trim_start_matches("http://")).unwrap();
        let request = "GET /metrics HTTP/1.0\n\n";
        std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
        std::io::Read::read_to_string(&mut stream, &mut text).unwrap();
        let mut found = BTreeMap::new();
        for (name, value) in text.lines().filter_map(|line| line.rsplit_once(' ')) {
            let label = |name: &str| {
                name.split("grpc_method=\"").nth(1)?.split('"').next().map(str::to_owned)
            };
            let kind = if name.starts_with("grpc_server_handled_total") {
                label(name)
            } else if name.starts_with("etcd_network_client_grpc_") {
                name.strip_prefix("etcd_network_client_grpc_").map(str::to_owned)
            } else {
                None
            };
            if let Some(kind) = kind {
                *found.entry(kind).or_default() += value.parse::<f64>().unwrap_or_default();
            }
        }
        found
    }
}

fn map_of(groups: usize) -> ShardMap {
    let mut map = ShardMap::single_group("g0");
    for group in 1..groups {
        map.plan_migration(&format!("g{group}"), None).unwrap();
        while let Some(next) = map.next_migration() {
            map.finish(&next);
        }
    }
    map
}

fn member(group: usize, node: usize, tracker: &Arc<Tracker>) -> Arc<Group> {
    let cache = segment::Cache::new(segment::Config {
        limit_bytes: 8 << 20,
        cas: true,
        classes: SizeClasses::new(vec![96, 1 << 20], 59),
        seed: 1,
        evict: true,
        item_size_max: 300 << 10,
        threads: 1,
        size_exponent: SIZE_EXPONENT,
        flash: None,
    });
    let config = GroupConfig {
        name: GroupName { cluster: "demo".to_owned(), group: format!("g{group}") },
        node: format!("g{group}-n{node}"),
        doubt: DoubtPolicy::Stop,
        unclean_after: None,
        ack: AckMode::Deletes,
        read_lag: 0,
    };
    Arc::new(Group::new(config, erased::Cache::new(cache.unwrap()), tracker))
}

/// Passes a heartbeat of a group's leader to the other members, and their acknowledgements to the
/// leader.
fn send_heartbeats(members: &[Arc<Group>]) {
    let Some(leader) = members.iter().find(|member| member.ready_leadership().is_some()) else {
        return;
    };
    let (process, sent) = (leader.me(), boot_millis());
    let cas_end = leader.read(|member| member.heartbeat_cas_end(sent));
    for follower in members.iter().filter(|member| !Arc::ptr_eq(member, leader)) {
        let promises = follower.update(|member, now| member.note_heartbeat(&process, cas_end, now));
        let promise = promises.then_some(ElectionPromise { sent, cas_end });
        let follower = follower.me();
        leader.update(|member, now| member.note_ack(now, &follower, Some(now), promise));
    }
}

#[test]
#[ignore = "long tier: loads etcd for half a minute"]
fn etcd_load() {
    let groups = std::env::var("LARDER_GROUPS").map_or(10, |text| text.parse().unwrap());
    let server = Server::start();
    let identity = Arc::new(ClusterIdentity::new("demo"));
    let settings = server.settings(Some(Arc::clone(&identity)));
    let mut finder = IdentityFinder::new(&settings, "demo", &identity, None).unwrap();
    let start = Instant::now();
    while finder.find() != Ok(true) {
        assert!(start.elapsed() < START_MAX, "etcd does not answer");
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut map = EtcdShardMap::new(Etcd::new(&settings).unwrap(), "demo".to_owned());
    map.swap(0, &map_of(groups), &[]).unwrap().expect("there is no map");
    let (stop, tracker) = (Stop::new().unwrap(), Arc::new(Tracker::new(1 << 10)));
    let members: Vec<Arc<Group>> = (0..groups)
        .flat_map(|group| (0..MEMBERS).map(move |node| (group, node)))
        .map(|(group, node)| member(group, node, &tracker))
        .collect();
    std::thread::scope(|scope| {
        let spawn = |run: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().stack_size(512 << 10).spawn_scoped(scope, run).unwrap();
        };
        for group in &members {
            let (stop, server) = (&stop, &server);
            let settings = server.settings(Some(Arc::clone(&group.identity)));
            let addresses = Addresses {
                clients: Some("192.168.100.100:11211".to_owned()),
                members: "192.168.100.100:11311".to_owned(),
            };
            let coordination =
                || Coordination::new(settings.clone(), Arc::clone(group), addresses.clone());
            let (lease, elections) = (coordination(), coordination());
            spawn(Box::new(move || {
                let registration = lease.register(None, &|| true).unwrap().unwrap();
                lease.stay_alive(registration, stop).unwrap();
            }));
            spawn(Box::new(move || elections.coordinate(stop)));
            let keeper = ShardMapKeeper::new(&settings, group).unwrap();
            spawn(Box::new(move || {
                let mut is_due = true;
                while !stop.is_set() {
                    is_due = is_due && keeper.read().is_err();
                    let _ = keeper.revoke_release();
                    keeper.update_discovery();
                    stop.wait(Duration::from_millis(10));
                    is_due |= group.topology.wait_until_due(Duration::from_millis(500));
                }
            }));
            // The members of a real cluster do not start at the same moment either.
            std::thread::sleep(Duration::from_millis(20));
        }
        let (of_groups, stopped) = (&members, &stop);
        spawn(Box::new(move || {
            while !stopped.is_set() {
                of_groups.chunks(MEMBERS).for_each(send_heartbeats);
                stopped.wait(HEARTBEAT_INTERVAL);
            }
        }));
        // In a real node, the thread that follows the leader reports that the node is ready.
        let leads = |group: &&Arc<Group>| {
            let elected = group.leadership_start();
            if let Some(epoch) = elected.filter(|_| group.ready_leadership().is_none()) {
                group.note_ready(epoch, None);
            }
            elected.is_some()
        };
        let leaders = || members.iter().filter(leads).count();
        let start = Instant::now();
        while leaders() < groups && start.elapsed() < START_MAX {
            std::thread::sleep(Duration::from_millis(100));
        }
        // Wait until the list of servers is complete.
        std::thread::sleep(Duration::from_secs(15));
        let (start, before, cpu) = (Instant::now(), server.counters(), server.cpu_time());
        std::thread::sleep(MEASURED_TIME);
        let (cpu, after) = (server.cpu_time().saturating_sub(cpu), server.counters());
        let secs = start.elapsed().as_secs_f64();
        println!(
            "{groups} groups of {MEMBERS} members: {:.3} cores of etcd",
            cpu.as_secs_f64() / secs
        );
        for (kind, count) in after {
            let rate = (count - before.get(&kind).copied().unwrap_or_default()) / secs;
            if rate > 0.0 {
                println!("{kind:24} {rate:12.1} per second");
            }
        }
        let leaders = leaders();
        stop.set();
        assert_eq!(
            leaders, groups,
            "leaders; without all of them, etcd or the members were overloaded"
        );
    });
}

//! Copies of the cache: a leader sends its items and changes to followers (`--replicate-on`), and a follower
//! stores those of its leader (`--follow`). `larder-replica` decides what is sent and what is done with it; here
//! are the sockets and threads.
//!
//! A leader has a thread that accepts followers, and two for each follower: one that sends, with a handle to the
//! cache of its own, and one that reads what the follower acknowledges. A follower has one thread.

mod follower;
mod giving;
mod leader;
mod role;
mod status;
mod taking;

use crate::cluster::{Coordination, HelloMe, MapKeeper, OwnGroup};
pub use crate::peers::Credentials;
use crate::peers::Stop;
use crate::server::Server;
use larder_etcd::EtcdSettings;
use larder_replica::{Addresses, Applier};
use larder_store::cache::Cache;
use larder_store::erased;
pub use leader::ReplicatedCache;
pub(crate) use status::{FollowerStatus, LinkShown, ReplicationStatus};
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The threads of replication.
#[derive(Debug)]
pub struct Replication {
    stop: Arc<Stop>,
    threads: Vec<JoinHandle<()>>,
}

impl Replication {
    /// Starts to follow the leader that the options name: without one, no thread.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn follow(
        server: &Arc<Server>,
        cache: &erased::Cache,
        credentials: Credentials,
    ) -> io::Result<Self> {
        let mut replication = Self { stop: Arc::new(Stop::new()?), threads: Vec::new() };
        if let Some(address) = server.options.follow.clone() {
            let (server, cache) = (Arc::clone(server), cache.clone());
            let stop = Arc::clone(&replication.stop);
            replication.spawn("follower", move || {
                let follower = follower::Follower::new(server, credentials, stop);
                follower.follow_always(&address, cache.engine());
            })?;
        }
        Ok(replication)
    }

    /// Starts to take part in the group that the options name.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn take_part(
        &mut self,
        server: &Arc<Server>,
        cache: &erased::Cache,
        credentials: Credentials,
        etcd: &EtcdSettings,
        addresses: &Addresses,
    ) -> io::Result<()> {
        let Some(group) = server.group.clone() else { return Ok(()) };
        let coordination =
            || Coordination::new(etcd.clone(), Arc::clone(&group), addresses.clone());
        type Task = fn(&Coordination, &Stop);
        let tasks: [(&str, Task); 3] = [
            ("coordinator", Coordination::coordinate),
            ("presence", Coordination::stay_alive),
            ("discovery", Coordination::keep_discovery),
        ];
        for (name, task) in tasks {
            let (coordination, stop) = (coordination(), Arc::clone(&self.stop));
            self.spawn(name, move || task(&coordination, &stop))?;
        }
        let (way, me) = (
            server.ways.to(larder_session::Group::OWN),
            HelloMe { process: group.me(), group: group.full_name() },
        );
        let (own, of_way, stop) = (Arc::clone(&group), credentials.clone(), Arc::clone(&self.stop));
        self.spawn("forwarder", move || way.run(&OwnGroup(own), &me, &of_way, &stop))?;
        if let Some(keeper) = MapKeeper::new(etcd, &group).map(Arc::new) {
            let (of_map, server, stop) =
                (Arc::clone(&keeper), Arc::clone(server), Arc::clone(&self.stop));
            let of_keeper = credentials.clone();
            let taker = taking::Taker {
                server: Arc::clone(&server),
                group: Arc::clone(&group),
                keeper,
                credentials: credentials.clone(),
                stop: Arc::clone(&stop),
                applier: Applier::of_move(cache.engine()),
                state: taking::TakerState::default(),
            };
            self.spawn("map", move || of_map.keep(&server.ways, &of_keeper, &stop))?;
            self.spawn("mover", move || taker.run())?;
        }
        let (server, cache, stop) = (Arc::clone(server), cache.clone(), Arc::clone(&self.stop));
        self.spawn("follower", move || {
            let follower = follower::Follower::new(server, credentials, stop);
            follower.take_part(&group, cache.engine());
        })
    }

    /// Starts to serve followers at these sockets.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn lead(
        &mut self,
        server: &Arc<Server>,
        cache: ReplicatedCache,
        credentials: Credentials,
        listeners: Vec<TcpListener>,
    ) -> io::Result<()> {
        server.replication.set_journals(&cache.journals);
        if let Some(group) = &server.group {
            group.set_journals(&cache.journals);
        }
        let leader = leader::Leader::new(server, cache, credentials, &self.stop);
        self.spawn("leader", move || leader.accept(&listeners))
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(std::thread::Builder::new().name(name.to_owned()).spawn(run)?);
        Ok(())
    }

    /// Ends all connections and threads.
    pub fn stop(self) {
        self.stop.set();
        for thread in self.threads {
            // A thread that has panicked has said so.
            let _ = thread.join();
        }
    }
}

//! The threads of a node.

use crate::forward::{HelloMe, OwnGroup, SessionHost};
use crate::group::{Coordination, MapKeeper};
use crate::migration::import::{Importer, ImporterState};
use crate::node::Node;
use crate::peers::Stop;
use crate::replication::ReplicatedCache;
use crate::replication::follower::Follower;
use crate::replication::leader::Leader;
use larder_etcd::EtcdSettings;
use larder_replica::{Addresses, Applier};
use larder_session::Group as Number;
use larder_store::cache::Cache;
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
    pub fn follow(node: &Arc<Node>, name: String) -> io::Result<Self> {
        let mut replication = Self { stop: Arc::new(Stop::new()?), threads: Vec::new() };
        if let Some(address) = node.follow.clone() {
            let node = Arc::clone(node);
            let stop = Arc::clone(&replication.stop);
            replication.spawn("follower", move || {
                let handle = node.cache.engine();
                let follower = Follower::new(node, name, stop);
                follower.follow_always(&address, handle);
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
        node: &Arc<Node>,
        etcd: &EtcdSettings,
        addresses: &Addresses,
    ) -> io::Result<()> {
        let Some(group) = node.group.clone() else { return Ok(()) };
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
            node.forwarders.to(Number::OWN),
            HelloMe { process: group.me(), group: group.full_name() },
        );
        let (own, of_way, stop) =
            (Arc::clone(&group), node.credentials.clone(), Arc::clone(&self.stop));
        self.spawn("forwarder", move || way.run(&OwnGroup(own), &me, &of_way, &stop))?;
        if let Some(keeper) = MapKeeper::new(etcd, &group).map(Arc::new) {
            let (of_map, of_routes, stop) =
                (Arc::clone(&keeper), Arc::clone(node), Arc::clone(&self.stop));
            let importer = Importer {
                node: Arc::clone(node),
                group: Arc::clone(&group),
                keeper,
                stop: Arc::clone(&stop),
                applier: Applier::of_move(node.cache.engine()),
                state: ImporterState::default(),
            };
            self.spawn("map", move || {
                of_map.keep(&of_routes.forwarders, &of_routes.credentials, &stop)
            })?;
            self.spawn("mover", move || importer.run())?;
        }
        let (node, stop) = (Arc::clone(node), Arc::clone(&self.stop));
        self.spawn("follower", move || {
            let handle = node.cache.engine();
            let follower = Follower::new(node, group.me().node, stop);
            follower.take_part(&group, handle);
        })
    }

    /// Starts to serve followers at these sockets.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn lead(
        &mut self,
        node: &Arc<Node>,
        host: &Arc<dyn SessionHost>,
        cache: ReplicatedCache,
        listeners: Vec<TcpListener>,
    ) -> io::Result<()> {
        node.replication.set_journals(&cache.journals);
        if let Some(group) = &node.group {
            group.set_journals(&cache.journals);
        }
        let leader = Leader::new(node, host, cache, &self.stop);
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

//! The threads of a node.

use crate::accept::PeerListener;
use crate::forward::{
    ConnectorContext, MapWatch, SessionHost, connect_local_group, connect_other_groups,
};
use crate::group::{Coordination, Group, MembershipError, ShardMapKeeper};
use crate::migration::Importer;
use crate::node::Node;
use crate::peers::{EventLoops, Stop};
use crate::replication::{Follower, ReplicatedCache};
use larder_etcd::EtcdSettings;
use larder_replica::Addresses;
use larder_store::cache::Cache;
use std::io;
use std::net::TcpListener;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

/// The threads of a node.
pub struct NodeThreads {
    stop: Arc<Stop>,
    /// The event loops for forwarded requests.
    loops: Arc<EventLoops>,
    threads: Vec<JoinHandle<()>>,
    /// The sockets for peers. They are closed after the last connection: a node takes refused
    /// connections as the end of this process.
    listeners: Arc<[TcpListener]>,
    /// The reason why this node has left its group; unset if it has not left.
    leave_reason: Arc<OnceLock<MembershipError>>,
}

/// The reason why a node could not join its group.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Spawning a thread failed.
    #[error("spawning a thread failed: {0}")]
    Thread(#[from] io::Error),
    /// The node cannot be a member of its group.
    #[error(transparent)]
    Membership(#[from] MembershipError),
}

impl NodeThreads {
    /// If `--follow` is set, starts to follow that leader. `name` identifies this node to the
    /// leader.
    ///
    /// # Errors
    /// Creating the shutdown flag's socket pair or spawning a thread failed.
    pub fn follow(node: &Arc<Node>, name: String) -> io::Result<Self> {
        let stop = Arc::new(Stop::new()?);
        let count = if node.group.is_some() { node.answerer_counters.len() } else { 0 };
        let (loops, runs) = EventLoops::new(count, &stop)?;
        let (listeners, leave_reason) = (Arc::from(Vec::new()), Arc::default());
        let mut threads = Self { stop, loops, threads: Vec::new(), listeners, leave_reason };
        for run in runs {
            threads.spawn("forwarding", run)?;
        }
        if let Some(address) = node.follow.clone() {
            let (node, stop) = (Arc::clone(node), Arc::clone(&threads.stop));
            threads.spawn("follower", move || {
                let handle = node.cache.engine();
                Follower::new(node, name, stop).follow_always(&address, handle);
            })?;
        }
        Ok(threads)
    }

    /// Starts to accept followers and other peers at these sockets.
    ///
    /// # Errors
    /// Spawning a thread failed.
    pub fn accept(
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
        let listener = PeerListener::new(node, host, cache, &self.loops, &self.stop);
        self.listeners = Arc::from(listeners);
        let listeners = Arc::clone(&self.listeners);
        self.spawn("peer-acceptor", move || listener.accept(&listeners))
    }

    /// Joins the node's group, if it has one. Waits up to 30 s until the cluster has an identity
    /// and any lease of the node's earlier process has ended. Stops waiting if `continues` returns
    /// false. If the node later cannot stay a member, a thread shuts the server down, and
    /// [`Self::stop`] returns the reason.
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn join_group(
        &mut self,
        node: &Arc<Node>,
        host: &Arc<dyn SessionHost>,
        etcd: &EtcdSettings,
        addresses: &Addresses,
        continues: &dyn Fn() -> bool,
    ) -> Result<(), JoinError> {
        let Some(group) = node.group.clone() else { return Ok(()) };
        let etcd = &EtcdSettings {
            counters: Arc::clone(&group.etcd),
            identity: Some(Arc::clone(&group.identity)),
            ..etcd.clone()
        };
        let coordination = Coordination::new(etcd.clone(), Arc::clone(&group), addresses.clone());
        let secret = node.credentials.secret.clone();
        if let Some(registration) = coordination.register(secret, continues)? {
            let (stop, leave_reason) = (Arc::clone(&self.stop), Arc::clone(&self.leave_reason));
            let host = Arc::clone(host);
            self.spawn("presence", move || {
                if let Err(error) = coordination.stay_alive(registration, &stop) {
                    let _ = leave_reason.set(error);
                    host.shut_down();
                }
            })?;
        }
        let (stop, coordination) = (
            Arc::clone(&self.stop),
            Coordination::new(etcd.clone(), Arc::clone(&group), addresses.clone()),
        );
        self.spawn("coordinator", move || coordination.coordinate(&stop))?;
        self.start_connectors(node, &group)?;
        if let Some(keeper) = ShardMapKeeper::new(etcd, &group).map(Arc::new) {
            let importer = Importer::new(node, &group, &keeper, &self.stop);
            let (watched, stop) = (Arc::clone(&group), Arc::clone(&self.stop));
            self.spawn("map", move || {
                MapWatch { keeper: &keeper, group: &watched, stop: &stop }.run();
            })?;
            self.spawn("importer", move || importer.run())?;
        }
        let (node, stop) = (Arc::clone(node), Arc::clone(&self.stop));
        self.spawn("follower", move || {
            let handle = node.cache.engine();
            Follower::new(node, group.me().node, stop).follow_group(&group, handle);
        })?;
        Ok(())
    }

    /// Starts the threads that connect the forwarders to the leaders of their groups.
    fn start_connectors(&mut self, node: &Arc<Node>, group: &Arc<Group>) -> io::Result<()> {
        let context = ConnectorContext {
            me: group.local_member(),
            credentials: node.credentials.clone(),
            loops: Arc::clone(&self.loops),
            stop: Arc::clone(&self.stop),
        };
        for connect in [connect_local_group, connect_other_groups] {
            let (node, group, context) = (Arc::clone(node), Arc::clone(group), context.clone());
            self.spawn("forwarder", move || connect(&group, &node.forwarders, &context))?;
        }
        Ok(())
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(std::thread::Builder::new().name(name.to_owned()).spawn(run)?);
        Ok(())
    }

    /// Closes the node's connections to other nodes, and joins its threads.
    ///
    /// # Errors
    /// The reason why the node has left its group.
    pub fn stop(self) -> Result<(), JoinError> {
        self.stop.set();
        self.loops.wake();
        for thread in self.threads {
            // A panic of the thread is already in the log.
            let _ = thread.join();
        }
        self.leave_reason.get().cloned().map_or(Ok(()), |error| Err(error.into()))
    }
}

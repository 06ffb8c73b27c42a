//! The thread that keeps the topology up to date, and starts forwarders to the other groups of the
//! shard map.

use super::forwarder_set::Forwarders;
use super::owner::RemoteGroup;
use crate::group::{EtcdLog, Group, ShardMapKeeper};
use crate::peers::{Credentials, Stop};
use larder_session::GroupIndex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The interval of checks for failed exports, and for changes of the list of servers.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The minimum pause before the next read if etcd did not answer, or has no map yet. The maximum is
/// twice as long.
const RETRY: Duration = Duration::from_millis(100);
/// The minimum time between two successful reads.
const PAUSE: Duration = Duration::from_millis(10);

/// Watches the shard map: reads it when etcd has changed, revokes the releases of failed exports,
/// starts a forwarder to each other group in the map, and maintains the list of servers for
/// clients.
pub(crate) struct MapWatch<'n> {
    /// Reads and changes the map in etcd.
    pub(crate) keeper: &'n ShardMapKeeper,
    /// The local group.
    pub(crate) group: &'n Arc<Group>,
    pub(crate) forwarders: &'n Forwarders,
    pub(crate) credentials: &'n Credentials,
    pub(crate) stop: &'n Arc<Stop>,
}

impl MapWatch<'_> {
    /// Runs until the node shuts down.
    pub(crate) fn run(&self) {
        let topology = &self.group.topology;
        let mut connected: BTreeMap<GroupIndex, JoinHandle<()>> = BTreeMap::new();
        let (mut is_due, mut log) = (true, EtcdLog::default());
        while !self.stop.is_set() {
            let is_read = !is_due || self.read(&mut log);
            let is_known = is_read && self.keeper.revoke_release().is_ok();
            let is_known = is_known && topology.map().0.is_some();
            self.keeper.update_discovery();
            for (number, name) in topology.others() {
                if !connected.contains_key(&number)
                    && let Some(thread) = self.connect(number, name)
                {
                    connected.insert(number, thread);
                    // Find the leader of the new group.
                    topology.read_soon();
                }
            }
            if is_known {
                self.stop.wait(PAUSE);
                is_due = topology.wait_until_due(CHECK_INTERVAL) || self.keeper.is_due();
            } else {
                // All nodes may lose etcd at the same time, so each pauses for a random time before
                // it retries.
                self.stop.wait(RETRY.mul_f64(rand::random_range(1.0..2.0)));
                is_due = true;
            }
        }
        for thread in connected.into_values() {
            let _ = thread.join();
        }
    }

    /// Reads the map. Logs an error, unless reads of the group fail, too: the log already contains
    /// the errors of those reads.
    fn read(&self, log: &mut EtcdLog) -> bool {
        let answer = self.keeper.read();
        if answer.is_ok() || self.group.has_etcd() {
            log.note(&answer);
        }
        answer.is_ok()
    }

    /// Starts the forwarder to another group. Returns `None` if spawning its thread failed.
    fn connect(&self, number: GroupIndex, name: String) -> Option<JoinHandle<()>> {
        let (forwarder, local) = (self.forwarders.forwarder_of(number), Arc::clone(self.group));
        let me = local.local_member();
        let (credentials, stop) = (self.credentials.clone(), Arc::clone(self.stop));
        let thread = std::thread::Builder::new().name("forwarder".to_owned());
        let run = move || forwarder.run(&RemoteGroup { local, name }, &me, &credentials, &stop);
        thread.spawn(run).ok()
    }
}

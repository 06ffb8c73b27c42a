//! The thread that keeps the topology up to date.

use crate::group::{EtcdLog, Group, ShardMapKeeper};
use crate::peers::Stop;
use std::sync::Arc;
use std::time::Duration;

/// The interval of checks for failed exports, and for changes of the list of servers.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The minimum pause before the next read if etcd did not answer, or has no map yet. The maximum is
/// twice as long.
const RETRY: Duration = Duration::from_millis(100);
/// The minimum time between two successful reads.
const PAUSE: Duration = Duration::from_millis(10);

/// Watches the shard map: reads it when etcd has changed, revokes the releases of failed exports,
/// and maintains the list of servers for clients.
pub(crate) struct MapWatch<'n> {
    /// Reads and changes the map in etcd.
    pub(crate) keeper: &'n ShardMapKeeper,
    /// The local group.
    pub(crate) group: &'n Arc<Group>,
    pub(crate) stop: &'n Arc<Stop>,
}

impl MapWatch<'_> {
    /// Runs until the node shuts down.
    pub(crate) fn run(&self) {
        let topology = &self.group.topology;
        let (mut is_due, mut log) = (true, EtcdLog::default());
        while !self.stop.is_set() {
            let is_read = !is_due || self.read(&mut log);
            let is_known = is_read && self.keeper.revoke_release().is_ok();
            let is_known = is_known && topology.map().0.is_some();
            self.keeper.update_discovery();
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
}

//! Changes of a group's leader: planned transfers and forced promotions.

use super::options::{GroupArguments, POLL_INTERVAL, message};
use larder_etcd::{EtcdGroup, GroupName, TRANSFER_REQUEST_SECS};
use larder_replica::{CasRange, Coordinator, EPOCH_MAX, GroupView, Process, Record};
use std::io::Write;
use std::time::{Duration, Instant};

/// A group, and its state at the last read from etcd.
pub(super) struct GroupSnapshot {
    pub(super) name: GroupName,
    pub(super) group: EtcdGroup,
    pub(super) view: GroupView,
}

impl GroupSnapshot {
    pub(super) fn read(arguments: &GroupArguments) -> Result<Self, String> {
        let mut group = EtcdGroup::new(arguments.at.etcd()?, arguments.name());
        let view = group.read().map_err(message)?;
        Ok(Self { name: arguments.name(), group, view })
    }

    pub(super) fn record(&self) -> Result<&Record, String> {
        let GroupName { cluster, group } = &self.name;
        let no_record = || format!("cluster {cluster} has no group {group} with a leader");
        self.view.record.as_ref().ok_or_else(no_record)
    }

    /// Returns the live process of a node.
    ///
    /// # Errors
    /// A message if etcd does not list the node as alive.
    pub(super) fn live(&self, node: &str) -> Result<Process, String> {
        let incarnation = self.view.live.get(node);
        let not_alive = || format!("{node} is not alive according to etcd");
        incarnation
            .map(|incarnation| Process { node: node.to_owned(), incarnation: *incarnation })
            .ok_or_else(not_alive)
    }

    /// Waits until a process other than `leader` leads, and prints the new leader. Returns false if
    /// no other process leads within [`TRANSFER_REQUEST_SECS`]. `requested` is the epoch for which
    /// the transfer was requested. If the group enters a later epoch under the same leader, the
    /// function requests the transfer again.
    fn wait_for_other_leader(
        &mut self,
        leader: &Process,
        mut requested: u32,
        to: Option<&String>,
        out: &mut impl Write,
    ) -> Result<bool, String> {
        let start = Instant::now();
        loop {
            // Retries a failed read until the timeout, because etcd may be busy.
            if let Ok(view) = self.group.read() {
                self.view = view;
            }
            let Record { leader: current, epoch, .. } = self.record()?;
            let epoch = *epoch;
            if current != leader {
                let printed = writeln!(out, "{} leads in epoch {epoch}", current.node);
                return printed.map(|()| true).map_err(message);
            }
            if start.elapsed() > Duration::from_secs(TRANSFER_REQUEST_SECS) {
                return Ok(false);
            }
            // A leader ignores requests from earlier epochs, so a higher epoch needs a new request.
            if epoch > requested && self.group.request_transfer(epoch, to.cloned()).is_ok() {
                requested = epoch;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Requests that the leader transfer leadership to the node `to`, and waits for the new leader. If
/// `to` is `None`, any in-sync node may become the leader. Does nothing if `to` already leads.
///
/// # Errors
/// A message if the group has no record, its leader is not alive, no candidate is in sync, etcd
/// fails, or no other process leads within [`TRANSFER_REQUEST_SECS`].
pub(super) fn transfer_leadership(
    mut snapshot: GroupSnapshot,
    to: Option<String>,
    out: &mut impl Write,
) -> Result<(), String> {
    let Record { epoch, leader, in_sync, .. } = snapshot.record()?.clone();
    if !snapshot.view.is_live(&leader) {
        return Err(format!(
            "leader {} is not alive: an in-sync node takes over if there is one",
            leader.node
        ));
    }
    if to.as_ref() == Some(&leader.node) {
        return writeln!(out, "{} already leads", leader.node).map_err(message);
    }
    let is_candidate =
        |node: &Process| *node != leader && to.as_ref().is_none_or(|to| *to == node.node);
    if !in_sync.iter().any(is_candidate) {
        let cause = to.map_or_else(
            || "no other node is in sync".to_owned(),
            |to| format!("{to} is not in sync"),
        );
        return Err(format!("leadership stays with {}: {cause}", leader.node));
    }
    snapshot.group.request_transfer(epoch, to.clone()).map_err(message)?;
    if snapshot.wait_for_other_leader(&leader, epoch, to.as_ref(), out)? {
        return Ok(());
    }
    Err(format!("leadership transfer timed out: no in-sync member took over from {}", leader.node))
}

/// Makes a live node the leader of a group. The current leader and all in-sync nodes must be dead.
///
/// # Errors
/// A message if the group has no record, its leader or an in-sync node is alive, `node` is not
/// alive, the group is in the last possible epoch or has changed since the snapshot, or etcd fails.
pub(super) fn promote(
    mut snapshot: GroupSnapshot,
    node: &str,
    out: &mut impl Write,
) -> Result<(), String> {
    let Record { epoch, leader, in_sync, cas, unclean_after } = snapshot.record()?.clone();
    if snapshot.view.is_live(&leader) {
        return Err(format!(
            "leader {} has a lease at etcd: use transfer-leadership if it runs, or try again in 3 s if it has ended",
            leader.node
        ));
    }
    if let Some(other) = in_sync.iter().find(|process| snapshot.view.is_live(process)) {
        return Err(format!("{} is alive and in sync: it takes over automatically", other.node));
    }
    let process = snapshot.live(node)?;
    if epoch >= EPOCH_MAX {
        return Err(format!("the group is in epoch {EPOCH_MAX}, the last one: create a new group"));
    }
    let epoch = epoch + 1;
    let cas = CasRange::starting_at(cas.to);
    let (leader, in_sync) = (process.clone(), vec![process]);
    let record = Record { epoch, leader, in_sync, cas, unclean_after };
    let swapped = snapshot.group.swap(snapshot.view.revision, &record).map_err(message)?;
    if swapped.is_none() {
        return Err("the group changed during the command: check its status and retry".to_owned());
    }
    writeln!(out, "{node} leads in epoch {epoch}").map_err(message)
}

//! Removes a permanently lost node from etcd.

use super::leadership::GroupSnapshot;
use super::options::message;
use larder_etcd::Forgotten;
use std::io::Write;

/// Removes a group's node from etcd. Also succeeds if etcd has no record of the node.
///
/// # Errors
/// A message if the node is alive or leads the group, the group changed during the command, or etcd
/// failed.
pub(super) fn forget(
    mut snapshot: GroupSnapshot,
    node: &str,
    out: &mut impl Write,
) -> Result<(), String> {
    let group = &snapshot.name.group;
    if snapshot.view.live.contains_key(node) {
        return Err(format!("{node} is alive according to etcd: stop it first"));
    }
    if snapshot.view.record.as_ref().is_some_and(|record| record.leader.node == node) {
        return Err(format!(
            "{node} leads group {group} according to its record: wait until another node leads, or use promote"
        ));
    }
    let forgotten = snapshot.group.forget(node, snapshot.view.revision).map_err(message)?;
    let printed = match forgotten {
        Forgotten::Removed => writeln!(out, "{node} is no longer a node of group {group}"),
        Forgotten::Absent => writeln!(out, "etcd has no node {node} in group {group}"),
        Forgotten::Refused => {
            return Err(format!(
                "{node} or group {group} changed during the command, or the live key of {node} is malformed: see \
                 `larder cluster status`"
            ));
        }
    };
    printed.map_err(message)
}

//! The status of a cluster as a JSON object. Unknown values are `null`.

use super::status::{ClusterStatus, GroupStatus, NodeStatus};
use larder_etcd::MalformedKey;
use larder_replica::AckMode;
use serde_json::{Value, json};

pub(super) fn cluster(status: &ClusterStatus) -> Value {
    json!({
        "cluster": status.name,
        "groups": status.groups.iter().map(group).collect::<Vec<_>>(),
        "malformed_keys": faults(&status.faults),
    })
}

fn group(group: &GroupStatus) -> Value {
    let record = group.view.record.as_ref();
    let leader = record.map(|record| &record.leader);
    let slots = group.slots.as_ref();
    json!({
        "name": group.name,
        "leader": leader.map(|leader| &leader.node),
        "leader_alive": leader.map(|leader| group.view.is_live(leader)),
        "epoch": record.map(|record| record.epoch),
        // The mode that is set for all nodes, or, if no mode is set, the mode that the leader
        // reports.
        "ack": group.view.requests.ack.map(AckMode::name).or(group.ack_of_leader()),
        "ack_for_all_nodes": group.view.requests.ack.is_some(),
        "slots": slots.map(|slots| &slots.ranges),
        "slot_count": slots.map(|slots| slots.count),
        "slots_to_import": slots.map(|slots| slots.to_import.unwrap_or_default()),
        "nodes": group.nodes.iter().map(node).collect::<Vec<_>>(),
        "malformed_keys": faults(&group.faults),
    })
}

fn node(node: &NodeStatus) -> Value {
    let (stats, error) = match &node.stats {
        None => (None, None),
        Some(Ok(stats)) => (Some(stats), None),
        Some(Err(error)) => (None, Some(error)),
    };
    json!({
        "name": node.name,
        "state": node.state,
        "clients": node.clients,
        "members": (!node.members.is_empty()).then_some(&node.members),
        "lag_seconds": stats.and_then(|stats| stats.lag),
        "memory_bytes": stats.and_then(|stats| stats.memory),
        "memory_limit_bytes": stats.and_then(|stats| stats.memory_limit),
        "version": stats.and_then(|stats| stats.version.as_ref()),
        "stats_error": error,
        "malformed_keys": faults(&node.faults),
    })
}

fn faults(faults: &[MalformedKey]) -> Vec<String> {
    faults.iter().map(ToString::to_string).collect()
}

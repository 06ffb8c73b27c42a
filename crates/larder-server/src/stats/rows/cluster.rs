//! Rows of `stats cluster`, Larder's own: this member of a group (`--cluster`).

use crate::stats::row::Source::Server;
use crate::stats::row::Unit::Seconds;
use crate::stats::row::{Condition, Row, Value};
use crate::stats::snapshot::Snapshot;
use larder_cluster::Group;
use larder_replica::Role;
use larder_support::clock::boot_millis;
use std::time::Duration;

const MEMBER: Condition =
    Condition::new("with `--cluster`", |snapshot, _| snapshot.server.node.group.is_some());

pub(in crate::stats) const ROWS: &[Row] = &[
    Row::text(
        "cluster",
        Server(|s| text(s, |group| group.name.cluster.clone())),
        "Name of the cluster.",
    )
    .shown(MEMBER),
    Row::text("group", Server(|s| text(s, |group| group.name.group.clone())), "Name of the group.")
        .shown(MEMBER),
    Row::text("node", Server(|s| text(s, |group| group.me().node)), "Name of this node.")
        .shown(MEMBER),
    Row::text(
        "role",
        Server(|s| text(s, |group| group.role().name().to_owned())),
        "What this node is: `leader`, `follower`, or `alone` while no leader is known.",
    )
    .shown(MEMBER),
    Row::text(
        "leader",
        Server(|s| text(s, |group| leader(&group.role(), &group.me().node))),
        "Node that leads, as far as this one knows.",
    )
    .shown(MEMBER),
    Row::gauge(
        "epoch",
        Server(|s| number(s, |group| epoch(&group.role()))),
        "Rises with each leader of the group, and when keys come from another one.",
    )
    .metric("larder_cluster_epoch", &[])
    .shown(MEMBER),
    Row::gauge(
        "serving",
        Server(|s| Value::bit(s.server.node.group.as_ref().is_some_and(|group| group.is_serving()))),
        "Whether this node answers requests about items itself, as the leader: 1 or 0.",
    )
    .metric("larder_cluster_serving", &[])
    .shown(MEMBER),
    Row::text(
        "in_sync",
        Server(|s| text(s, |group| group.in_sync().join(" "))),
        "Nodes that have all items, as the record of the group says: one of them leads next.",
    )
    .shown(MEMBER),
    Row::gauge(
        "in_sync_count",
        Server(|s| number(s, |group| group.in_sync().len() as u64)),
        "How many nodes those are.",
    )
    .metric("larder_cluster_in_sync", &[])
    .shown(MEMBER),
    Row::gauge(
        "proof_age",
        Server(|s| proof_age(s).into()),
        "The time since etcd was last asked whether this node leads, and said so; 0 on others.",
    )
    .unit(Seconds)
    .shown(MEMBER),
    Row::gauge(
        "slots",
        Server(|s| number(s, |group| group.topology.own_slots().len() as u64)),
        "Of the 4096 slots of keys, how many this node's group has.",
    )
    .metric("larder_cluster_slots", &[])
    .shown(MEMBER),
    Row::gauge(
        "slots_moving",
        Server(|s| number(s, |group| group.topology.slots_moving() as u64)),
        "Slots that are still to move from one group to another, in the whole cluster.",
    )
    .metric("larder_cluster_slots_moving", &[])
    .shown(MEMBER),
    Row::counter(
        "slots_taken",
        Server(|s| number(s, |group| group.topology.imported())),
        "Slots that this node has taken over from other groups, with their items.",
    )
    .metric("larder_cluster_slots_taken_total", &[])
    .shown(MEMBER),
    Row::counter(
        "slots_given",
        Server(|s| number(s, |group| group.topology.exported())),
        "Slots that this node has given to other groups.",
    )
    .metric("larder_cluster_slots_given_total", &[])
    .shown(MEMBER),
    Row::counter(
        "elections",
        Server(|s| number(s, |group| group.elections.load(std::sync::atomic::Ordering::Relaxed))),
        "Times that this node has begun to lead.",
    )
    .metric("larder_cluster_elections_total", &[])
    .shown(MEMBER),
    Row::gauge(
        "reads_copy",
        Server(|s| number(s, |group| u64::from(!group.is_serving() && group.reads_replica()))),
        "1 while this node answers look-ups from its copy (`--read-lag`).",
    )
    .metric("larder_cluster_reads_copy", &[])
    .shown(MEMBER),
    Row::text(
        "ack",
        Server(|s| text(s, |group| group.current_ack_mode().name().to_owned())),
        "Which changes wait for all members in sync, while this node leads: `none`, `deletes` or `writes`.",
    )
    .shown(MEMBER),
    Row::counter(
        "held",
        Server(|s| number(s, |group| group.acks().map_or(0, |acks| acks.holds()))),
        "Times that answers had to wait for acknowledgements.",
    )
    .metric("larder_cluster_held_total", &[])
    .shown(MEMBER),
    Row::counter(
        "lost",
        Server(|s| number(s, |group| group.acks().map_or(0, |acks| acks.lost()))),
        "Those of them whose connections were closed without an answer, because no acknowledgement came in time, or \
         another node leads.",
    )
    .metric("larder_cluster_lost_total", &[])
    .shown(MEMBER),
    Row::counter(
        "forwarded",
        Server(|s| s.server.node.forwarders.forwarded().into()),
        "Batches of requests that were forwarded to leaders.",
    )
    .metric("larder_cluster_forwarded_total", &[])
    .shown(MEMBER),
    Row::counter(
        "forwarding_connections",
        Server(|s| s.server.node.forwarders.connections().into()),
        "Connections to leaders for that, so far.",
    )
    .shown(MEMBER),
];

fn text(snapshot: &Snapshot<'_>, of: impl Fn(&Group) -> String) -> Value {
    snapshot.server.node.group.as_ref().map(|group| of(group)).unwrap_or_default().into()
}

fn number(snapshot: &Snapshot<'_>, of: impl Fn(&Group) -> u64) -> Value {
    snapshot.server.node.group.as_ref().map_or(0, |group| of(group)).into()
}

fn leader(role: &Role, me: &str) -> String {
    match role {
        Role::Leaderless => String::new(),
        Role::Leader { .. } => me.to_owned(),
        Role::Follower { leader, .. } => leader.node.clone(),
    }
}

fn epoch(role: &Role) -> u64 {
    match role {
        Role::Leaderless => 0,
        Role::Leader { epoch, .. } | Role::Follower { epoch, .. } => (*epoch).into(),
    }
}

fn proof_age(snapshot: &Snapshot<'_>) -> Duration {
    let proof =
        snapshot.server.node.group.as_ref().and_then(|group| group.see(|m| m.confirmed_at()));
    proof.map_or(Duration::ZERO, |at| Duration::from_millis(boot_millis().saturating_sub(at)))
}

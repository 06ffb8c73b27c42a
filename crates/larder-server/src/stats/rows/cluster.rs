//! Rows of `stats cluster`, Larder's own: this node as a member of a group (`--cluster`).

use crate::process::version;
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
        "Role of this node: `leader`, `follower`, or `alone` while no leader is known.",
    )
    .shown(MEMBER),
    Row::text(
        "leader",
        Server(|s| text(s, |group| leader(&group.role(), &group.me().node))),
        "Leader of the group, as known to this node.",
    )
    .shown(MEMBER),
    Row::gauge(
        "epoch",
        Server(|s| number(s, |group| epoch(&group.role()))),
        "Fencing epoch (term): rises with each leader of the group.",
    )
    .metric("larder_cluster_epoch", &[])
    .shown(MEMBER),
    Row::gauge(
        "serving",
        Server(|s| Value::bit(s.server.node.group.as_ref().is_some_and(|group| group.is_serving()))),
        "1 while this node serves items as the leader, else 0.",
    )
    .metric("larder_cluster_serving", &[])
    .shown(MEMBER),
    Row::text(
        "in_sync",
        Server(|s| text(s, |group| group.in_sync().join(" "))),
        "In-sync members in the group record. The next leader is one of them.",
    )
    .shown(MEMBER),
    Row::gauge(
        "in_sync_count",
        Server(|s| number(s, |group| group.in_sync().len() as u64)),
        "Number of in-sync members.",
    )
    .metric("larder_cluster_in_sync", &[])
    .shown(MEMBER),
    Row::gauge(
        "members",
        Server(|s| number(s, |group| group.read(|m| m.view().addresses.len() as u64))),
        "Number of members of the group in etcd, including those that are not alive (`larder cluster forget`).",
    )
    .metric("larder_cluster_members", &[])
    .shown(MEMBER),
    Row::gauge(
        "proof_age",
        Server(|s| proof_age(s).into()),
        "Time since etcd last confirmed that this node leads; 0 on other nodes.",
    )
    .unit(Seconds)
    .shown(MEMBER),
    Row::gauge(
        "slots",
        Server(|s| number(s, |group| group.topology.own_slots().len() as u64)),
        "Slots, of 4096, that the group of this node owns.",
    )
    .metric("larder_cluster_slots", &[])
    .shown(MEMBER),
    Row::gauge(
        "slots_moving",
        Server(|s| number(s, |group| group.topology.slots_moving() as u64)),
        "Slots that the whole cluster still has to migrate between groups.",
    )
    .metric("larder_cluster_slots_moving", &[])
    .shown(MEMBER),
    Row::counter(
        "slots_imported",
        Server(|s| number(s, |group| group.topology.imported())),
        "Slots that this node has imported from other groups, with their items.",
    )
    .metric("larder_cluster_slots_imported_total", &[])
    .shown(MEMBER),
    Row::counter(
        "slots_exported",
        Server(|s| number(s, |group| group.topology.exported())),
        "Slots that this node has exported to other groups.",
    )
    .metric("larder_cluster_slots_exported_total", &[])
    .shown(MEMBER),
    Row::counter(
        "elections",
        Server(|s| number(s, |group| group.elections.load(std::sync::atomic::Ordering::Relaxed))),
        "Elections that this node has won.",
    )
    .metric("larder_cluster_elections_total", &[])
    .shown(MEMBER),
    Row::gauge(
        "serves_reads",
        Server(|s| {
            number(s, |group| {
                u64::from(!group.is_serving() && group.may_answer_lookups_as_replica())
            })
        }),
        "1 while this node answers lookups as a follower (`--read-lag`), else 0.",
    )
    .metric("larder_cluster_serves_reads", &[])
    .shown(MEMBER),
    Row::text(
        "ack",
        Server(|s| text(s, |group| group.current_ack_mode().name().to_owned())),
        "Changes that wait for every in-sync member while this node leads: `none`, `deletes` or `writes` (`--ack`).",
    )
    .shown(MEMBER),
    Row::counter(
        "held",
        Server(|s| number(s, |group| group.acks().map_or(0, |acks| acks.holds()))),
        "Replies that waited for acknowledgements.",
    )
    .metric("larder_cluster_held_total", &[])
    .shown(MEMBER),
    Row::counter(
        "lost",
        Server(|s| number(s, |group| group.acks().map_or(0, |acks| acks.lost()))),
        "Connections that were closed without a reply, because the acknowledgement of a change timed out, or another \
         node became the leader.",
    )
    .metric("larder_cluster_lost_total", &[])
    .shown(MEMBER),
    Row::counter(
        "forwarded",
        Server(|s| s.server.node.forwarders.forwarded().into()),
        "Batches of requests that this node forwarded to leaders.",
    )
    .metric("larder_cluster_forwarded_total", &[])
    .shown(MEMBER),
    Row::counter(
        "forward_failures",
        Server(|s| s.server.node.forwarders.failures().into()),
        "Batches of requests that this node could not forward in time, or whose leader did not reply before the \
         connection to it was lost.",
    )
    .metric("larder_cluster_forward_failures_total", &[])
    .shown(MEMBER),
    Row::counter(
        "forwarding_connections",
        Server(|s| s.server.node.forwarders.connections().into()),
        "Connections to leaders that this node has opened for forwarding.",
    )
    .shown(MEMBER),
    Row::text("larder_version", Server(|_| version::LARDER.into()), "Version of Larder on this node.")
        .shown(MEMBER),
];

/// The rows about this node's requests to etcd.
pub(in crate::stats) const ETCD: &[Row] = &[
    Row::counter(
        "etcd_requests",
        Server(|s| number(s, |group| group.etcd.requests())),
        "Requests to etcd that have ended; retries at other servers of etcd do not count.",
    )
    .metric("larder_etcd_requests_total", &[])
    .shown(MEMBER),
    Row::counter(
        "etcd_failures",
        Server(|s| number(s, |group| group.etcd.failures())),
        "Requests to etcd that failed at every server.",
    )
    .metric("larder_etcd_failures_total", &[])
    .shown(MEMBER),
    Row::counter(
        "etcd_time",
        Server(|s| time(s, |group| group.etcd.total_time())),
        "Total time of the requests to etcd.",
    )
    .unit(Seconds)
    .metric("larder_etcd_requests_seconds_total", &[])
    .shown(MEMBER),
    Row::gauge(
        "etcd_success_age",
        Server(|s| time(s, |group| group.etcd.success_age())),
        "Time since the last successful request to etcd, or since the start before the first one.",
    )
    .unit(Seconds)
    .metric("larder_etcd_success_age_seconds", &[])
    .shown(MEMBER),
];

fn text(snapshot: &Snapshot<'_>, of: impl Fn(&Group) -> String) -> Value {
    snapshot.server.node.group.as_ref().map(|group| of(group)).unwrap_or_default().into()
}

fn number(snapshot: &Snapshot<'_>, of: impl Fn(&Group) -> u64) -> Value {
    snapshot.server.node.group.as_ref().map_or(0, |group| of(group)).into()
}

fn time(snapshot: &Snapshot<'_>, of: impl Fn(&Group) -> Duration) -> Value {
    snapshot.server.node.group.as_ref().map_or(Duration::ZERO, |group| of(group)).into()
}

/// Returns the name of the leader, or an empty string if this node knows no leader.
pub(in crate::stats) fn leader(role: &Role, me: &str) -> String {
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
        snapshot.server.node.group.as_ref().and_then(|group| group.read(|m| m.confirmed_at()));
    proof.map_or(Duration::ZERO, |at| Duration::from_millis(boot_millis().saturating_sub(at)))
}

//! Rows of `stats replication`, Larder's own: this server, its link to a leader, and each follower.

use crate::stats::row::Source::{Follower, Server};
use crate::stats::row::Unit::{Bytes, Seconds};
use crate::stats::row::{Condition, Row, Value};
use crate::stats::snapshot::Snapshot;
use larder_cluster::LinkStats;
use larder_replica::Role;
use std::time::Duration;

const FOLLOWS: Condition = Condition::new("with `--follow` or `--cluster`", |snapshot, _| {
    snapshot.server.node.replication.link.is_some()
});
const LEADS: Condition = Condition::new("with `--replicate-on`", |snapshot, _| {
    snapshot.server.options.replicate_on.is_some()
});

/// The rows about this server and its link to a leader.
pub(in crate::stats) const ROWS: &[Row] = &[
    Row::text(
        "role",
        Server(|s| role(s).into()),
        "Role of this server: `follower` with `--follow`, else `leader` with `--replicate-on`, else `alone`. With \
         `--cluster`, the role in the group.",
    ),
    Row::gauge("followers", Server(|s| s.server.node.replication.followers().len().into()), "Connected followers.")
        .metric("larder_replication_followers", &[])
        .shown(LEADS),
    Row::gauge(
        "followers_lag",
        Server(|s| longest_lag(s).into()),
        "Largest replication lag of a follower: the age of its oldest unsent change, plus the time until the follower \
         acknowledges sent changes.",
    )
    .unit(Seconds)
    .metric("larder_replication_followers_lag_seconds", &[])
    .shown(LEADS),
    Row::counter(
        "followers_admitted",
        Server(|s| s.server.node.replication.admitted().into()),
        "Connections of followers that were admitted.",
    )
    .metric("larder_replication_followers_admitted_total", &[])
    .shown(LEADS),
    Row::counter(
        "followers_refused",
        Server(|s| s.server.node.replication.refused().into()),
        "Connections of followers that were refused.",
    )
    .metric("larder_replication_followers_refused_total", &[])
    .shown(LEADS),
    Row::counter(
        "full_syncs_sent",
        Server(|s| s.server.node.replication.sync_totals().full_syncs.into()),
        "Full syncs that this server has started, with all followers.",
    )
    .metric("larder_replication_full_syncs_sent_total", &[])
    .shown(LEADS),
    Row::counter(
        "journal_overruns",
        Server(|s| s.server.node.replication.sync_totals().overruns.into()),
        "Overruns of a journal by a follower, each of which causes a full sync; raise `--journal-size` if it grows.",
    )
    .metric("larder_replication_journal_overruns_total", &[])
    .shown(LEADS),
    Row::gauge(
        "journal_bytes",
        Server(|s| s.server.options.journal_bytes().into()),
        "Memory of the journals, part of `-m` (`--journal-size`).",
    )
    .unit(Bytes)
    .shown(LEADS),
    Row::text("leader", Server(|s| leader(s).into()), "Address of the leader.")
        .shown(FOLLOWS),
    Row::text(
        "link",
        Server(|s| link(s).state.into()),
        "State of the link: `connecting`, `syncing` during a full sync, or `following`.",
    )
    .shown(FOLLOWS),
    Row::gauge(
        "synced",
        Server(|s| Value::bit(leads(s) || link(s).is_synced)),
        "1 if this server has all items of its leader, or leads; 0 during a sync, and before the first one.",
    )
    .metric("larder_replication_synced", &[])
    .shown(FOLLOWS),
    Row::gauge(
        "link_lag",
        Server(|s| link(s).lag.unwrap_or_default().into()),
        "Replication lag of this server: the time since the last message of the leader, plus the lag at that message; 0 \
         during a sync, before the first one, and while this server leads.",
    )
    .unit(Seconds)
    .metric("larder_replication_lag_seconds", &[])
    .shown(FOLLOWS),
    Row::counter(
        "states_received",
        Server(|s| link(s).counts.states.into()),
        "Item states received from the leader, including removed items.",
    )
    .metric("larder_replication_states_received_total", &[])
    .shown(FOLLOWS),
    Row::counter(
        "states_refused",
        Server(|s| link(s).counts.refused.into()),
        "States of `states_received` that this server could not store, because the item is too large or memory is short; \
         their keys are misses.",
    )
    .metric("larder_replication_states_refused_total", &[])
    .shown(FOLLOWS),
    Row::counter("full_syncs_received", Server(|s| link(s).counts.full_syncs.into()), "Full syncs that the leader has started.")
        .metric("larder_replication_full_syncs_received_total", &[])
        .shown(FOLLOWS),
    Row::counter(
        "delta_syncs_received",
        Server(|s| link(s).counts.delta_syncs.into()),
        "Delta syncs with a new leader.",
    )
    .metric("larder_replication_delta_syncs_received_total", &[])
    .shown(FOLLOWS),
    Row::counter("flushes_received", Server(|s| link(s).counts.flushes.into()), "Flushes received from the leader.")
        .shown(FOLLOWS),
    Row::counter("connections", Server(|s| link(s).connections.into()), "Connections to the leader since the start.")
        .metric("larder_replication_connections_total", &[])
        .shown(FOLLOWS),
    Row::counter("received_bytes", Server(|s| link(s).received_bytes.into()), "Bytes received from the leader.")
        .unit(Bytes)
        .metric("larder_replication_received_bytes_total", &[])
        .shown(FOLLOWS),
    Row::text(
        "last_error",
        Server(|s| link(s).error.into()),
        "Reason for the missing connection to the leader; empty while connected.",
    )
    .shown(FOLLOWS),
];

/// The rows about each follower. Their prefix is the follower's number.
pub(in crate::stats) const FOLLOWER: &[Row] = &[
    Row::text(
        "name",
        Follower(|f| f.name.clone().into()),
        "First listening address of the follower.",
    ),
    Row::text(
        "addr",
        Follower(|f| f.address.clone().into()),
        "Address that the follower connects from.",
    ),
    Row::text(
        "state",
        Follower(|f| if f.stats().is_full_syncing { "syncing" } else { "following" }.into()),
        "State of the follower: `syncing` during a full sync, or `following`.",
    ),
    Row::gauge(
        "lag_bytes",
        Follower(|f| f.stats().lag_bytes.into()),
        "Bytes of the journals that are not sent yet.",
    )
    .unit(Bytes),
    Row::gauge(
        "lag_keys",
        Follower(|f| f.stats().lag_keys.into()),
        "Changes that are not sent or not acknowledged yet.",
    ),
    Row::gauge(
        "lag",
        Follower(|f| f.stats().lag.into()),
        "Replication lag, as in `followers_lag`.",
    )
    .unit(Seconds),
    Row::counter(
        "states",
        Follower(|f| f.stats().counts.states.into()),
        "Item states sent, including removed items.",
    ),
    Row::counter(
        "coalesced",
        Follower(|f| f.stats().counts.coalesced.into()),
        "Changes that were merged into a later state of the same item.",
    ),
    Row::counter(
        "full_syncs",
        Follower(|f| f.stats().counts.full_syncs.into()),
        "Full syncs started on this connection.",
    ),
    Row::counter(
        "delta_syncs",
        Follower(|f| f.stats().counts.delta_syncs.into()),
        "1 if this connection started with a delta sync after another leader, else 0.",
    ),
    Row::counter(
        "overruns",
        Follower(|f| f.stats().counts.overruns.into()),
        "Full syncs of this follower because a journal was full: changes arrived faster than it received them.",
    ),
    Row::counter("flushes", Follower(|f| f.stats().counts.flushes.into()), "Flushes sent."),
    Row::counter("sent_bytes", Follower(|f| f.stats().sent_bytes.into()), "Bytes sent.")
        .unit(Bytes),
];

fn role(snapshot: &Snapshot<'_>) -> &'static str {
    let options = &snapshot.server.options;
    if let Some(group) = &snapshot.server.node.group {
        return group.role().name();
    }
    match (&options.follow, &options.replicate_on) {
        (Some(_), _) => "follower",
        (None, Some(_)) => "leader",
        (None, None) => "alone",
    }
}

/// Returns whether this server leads its group.
fn leads(snapshot: &Snapshot<'_>) -> bool {
    let group = snapshot.server.node.group.as_ref();
    group.is_some_and(|group| matches!(group.role(), Role::Leader { .. }))
}

fn leader(snapshot: &Snapshot<'_>) -> String {
    let of_group = snapshot.server.node.group.as_ref().and_then(|group| {
        let Role::Follower { leader, .. } = group.role() else { return None };
        group.read(|member| {
            let addresses = member.view().addresses.get(&leader.node);
            addresses.map(|addresses| addresses.members.clone())
        })
    });
    of_group.or(snapshot.server.options.follow.clone()).unwrap_or_default()
}

fn longest_lag(snapshot: &Snapshot<'_>) -> Duration {
    let followers = snapshot.server.node.replication.followers();
    followers.iter().map(|follower| follower.stats().lag).max().unwrap_or_default()
}

fn link(snapshot: &Snapshot<'_>) -> LinkStats {
    let link = snapshot.server.node.replication.link.as_ref();
    link.map(|link| link.stats()).unwrap_or_default()
}

//! Rows of `stats replication`, Larder's own: of this server, of its link to a leader, and of each follower.

use crate::stats::row::Source::{Follower, Server};
use crate::stats::row::Unit::{Bytes, Seconds};
use crate::stats::row::{Condition, Row, Value};
use crate::stats::snapshot::Snapshot;
use larder_cluster::LinkShown;
use larder_replica::Role;
use std::time::Duration;

const FOLLOWS: Condition = Condition::new("with `--follow` or `--cluster`", |snapshot, _| {
    snapshot.server.node.replication.link.is_some()
});
const LEADS: Condition = Condition::new("with `--replicate-on`", |snapshot, _| {
    snapshot.server.options.replicate_on.is_some()
});

/// Of the server.
pub(in crate::stats) const ROWS: &[Row] = &[
    Row::text(
        "role",
        Server(|s| role(s).into()),
        "What it is to other servers: `leader` with `--replicate-on`, `follower` with `--follow` (with both, too), or `alone`. \
         With `--cluster`, what it is in its group.",
    ),
    Row::gauge("followers", Server(|s| s.server.node.replication.followers().len().into()), "Followers that are connected.")
        .metric("larder_replication_followers", &[])
        .shown(LEADS),
    Row::gauge(
        "followers_lag",
        Server(|s| longest_lag(s).into()),
        "How far the follower may be behind that is behind most: the age of its oldest change that was not sent, \
         and the time until the follower has acknowledged what is sent.",
    )
    .unit(Seconds)
    .metric("larder_replication_followers_lag_seconds", &[])
    .shown(LEADS),
    Row::counter(
        "followers_admitted",
        Server(|s| s.server.node.replication.admitted().into()),
        "Followers that have connected so far.",
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
    Row::gauge(
        "journal_bytes",
        Server(|s| s.server.options.journal_bytes().into()),
        "Memory for the keys of changes, out of `-m` (`--journal-size`).",
    )
    .unit(Bytes)
    .shown(LEADS),
    Row::text("leader", Server(|s| leader(s).into()), "Address of the leader.")
        .shown(FOLLOWS),
    Row::text(
        "link",
        Server(|s| link(s).state.into()),
        "What it does: `connecting`, `copying` while items come that were there before, or `following`.",
    )
    .shown(FOLLOWS),
    Row::gauge(
        "has_copy",
        Server(|s| Value::bit(link(s).is_synced)),
        "Whether there is everything that the leader had at some time, 1 or 0.",
    )
    .metric("larder_replication_has_copy", &[])
    .shown(FOLLOWS),
    Row::gauge(
        "link_lag",
        Server(|s| link(s).lag.unwrap_or_default().into()),
        "How far the copy may be behind: the time since the leader was last heard of, and how far it was behind \
         its own changes then; 0 without a copy.",
    )
    .unit(Seconds)
    .metric("larder_replication_lag_seconds", &[])
    .shown(FOLLOWS),
    Row::counter(
        "states_received",
        Server(|s| link(s).counts.states.into()),
        "States of items that came from the leader, also of those that are gone.",
    )
    .metric("larder_replication_states_received_total", &[])
    .shown(FOLLOWS),
    Row::counter(
        "states_refused",
        Server(|s| link(s).counts.refused.into()),
        "Those of `states_received` whose items could not be stored here, because they are too large or for want of memory; \
         their keys are misses.",
    )
    .metric("larder_replication_states_refused_total", &[])
    .shown(FOLLOWS),
    Row::counter("copies_received", Server(|s| link(s).counts.full_syncs.into()), "Copies that were begun.")
        .metric("larder_replication_copies_received_total", &[])
        .shown(FOLLOWS),
    Row::counter(
        "repairs_received",
        Server(|s| link(s).counts.delta_syncs.into()),
        "Times that this server went on with a new leader without a copy.",
    )
    .metric("larder_replication_repairs_received_total", &[])
    .shown(FOLLOWS),
    Row::counter("flushes_received", Server(|s| link(s).counts.flushes.into()), "Flushes that came from the leader.")
        .shown(FOLLOWS),
    Row::counter("connections", Server(|s| link(s).connections.into()), "Connections to the leader so far.")
        .metric("larder_replication_connections_total", &[])
        .shown(FOLLOWS),
    Row::counter("received_bytes", Server(|s| link(s).received_bytes.into()), "Bytes that came from the leader.")
        .unit(Bytes)
        .metric("larder_replication_received_bytes_total", &[])
        .shown(FOLLOWS),
    Row::text(
        "last_error",
        Server(|s| link(s).error.into()),
        "Why there is no connection to the leader; empty while there is one.",
    )
    .shown(FOLLOWS),
];

/// Of each follower, with its number in front.
pub(in crate::stats) const FOLLOWER: &[Row] = &[
    Row::text("name", Follower(|f| f.name.clone().into()), "The first address at which it serves."),
    Row::text("addr", Follower(|f| f.address.clone().into()), "Where it connects from."),
    Row::text(
        "state",
        Follower(|f| if f.shown().is_full_syncing { "copying" } else { "following" }.into()),
        "What it does: `copying` while it is sent what was there before, or `following`.",
    ),
    Row::gauge(
        "lag_bytes",
        Follower(|f| f.shown().lag_bytes.into()),
        "Bytes of the journals that it was not sent yet.",
    )
    .unit(Bytes),
    Row::gauge(
        "lag_keys",
        Follower(|f| f.shown().lag_keys.into()),
        "Changes that it was not sent, or has not acknowledged yet.",
    ),
    Row::gauge(
        "lag",
        Follower(|f| f.shown().lag.into()),
        "How far it may be behind, as in `followers_lag`.",
    )
    .unit(Seconds),
    Row::counter(
        "states",
        Follower(|f| f.shown().counts.states.into()),
        "States of items that it was sent, also of those that are gone.",
    ),
    Row::counter(
        "coalesced",
        Follower(|f| f.shown().counts.coalesced.into()),
        "Changes that it was not sent by themselves, because it was sent a later state of the item.",
    ),
    Row::counter(
        "copies",
        Follower(|f| f.shown().counts.full_syncs.into()),
        "Copies that were begun on this connection.",
    ),
    Row::counter(
        "repairs",
        Follower(|f| f.shown().counts.delta_syncs.into()),
        "1 if it followed another leader before, and was sent only what it had not got from that one.",
    ),
    Row::counter(
        "overruns",
        Follower(|f| f.shown().counts.overruns.into()),
        "Times that changes came faster than it took them, for longer than the journals last, so that it has to \
         copy everything again.",
    ),
    Row::counter(
        "flushes",
        Follower(|f| f.shown().counts.flushes.into()),
        "Flushes that it was sent.",
    ),
    Row::counter(
        "sent_bytes",
        Follower(|f| f.shown().sent_bytes.into()),
        "Bytes that it was sent.",
    )
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

fn leader(snapshot: &Snapshot<'_>) -> String {
    let of_group = snapshot.server.node.group.as_ref().and_then(|group| {
        let Role::Follower { leader, .. } = group.role() else { return None };
        group.see(|member| {
            let addresses = member.view().addresses.get(&leader.node);
            addresses.map(|addresses| addresses.members.clone())
        })
    });
    of_group.or(snapshot.server.options.follow.clone()).unwrap_or_default()
}

fn longest_lag(snapshot: &Snapshot<'_>) -> Duration {
    let followers = snapshot.server.node.replication.followers();
    followers.iter().map(|follower| follower.shown().lag).max().unwrap_or_default()
}

fn link(snapshot: &Snapshot<'_>) -> LinkShown {
    let link = snapshot.server.node.replication.link.as_ref();
    link.map(|link| link.shown()).unwrap_or_default()
}

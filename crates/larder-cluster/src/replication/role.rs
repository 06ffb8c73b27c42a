//! The role of a node in the replies to Redis's `ROLE` and `INFO replication`.

use super::status::{FollowerStatus, LinkStats};
use crate::group::Group;
use crate::node::Node;
use larder_protocol::reply::resp::{Follower, Link, LinkState, Replication};
use larder_replica::Role;
use larder_support::address::host_of;
use std::net::SocketAddr;

impl Node {
    /// Returns the role of this node, or `None` if it neither follows a leader nor accepts
    /// followers.
    pub fn replication_info(&self) -> Option<Replication> {
        let status = &self.replication;
        let own_offset = status.journal_offset();
        if status.link.is_none() && own_offset.is_none() {
            return None;
        }
        let link = self.link_info();
        let leader_offset = link.as_ref().and_then(|link| link.offset);
        let offset = own_offset.or(leader_offset).unwrap_or_default();
        let group = self.group.as_deref();
        let followers = status.followers();
        let followers = followers.iter().map(|follower| follower_info(follower, group, offset));
        Some(Replication { link, followers: followers.collect(), offset })
    }

    /// Returns the link to the leader, or `None` if this node leads or never follows.
    fn link_info(&self) -> Option<Link> {
        let stats = self.replication.link.as_ref()?.stats();
        let leader = match self.group.as_deref().map(|group| (group, group.role())) {
            Some((_, Role::Leader { .. })) => return None,
            Some((_, Role::Leaderless)) => None,
            Some((group, Role::Follower { leader, .. })) => client_address(group, &leader.node),
            None => self.follow.as_deref().map(host_and_port),
        };
        let LinkStats { offset, silence, down, .. } = stats;
        Some(Link {
            leader: leader.unwrap_or_default(),
            state: match stats.state {
                "following" => LinkState::Following,
                "syncing" => LinkState::FullSync,
                _ => LinkState::Connecting,
            },
            silence_secs: silence.map(|silence| silence.as_secs()),
            down_secs: down.map(|down| down.as_secs()),
            offset,
            is_read_only: self.settings.read_only,
        })
    }
}

/// Returns the values that `ROLE` and `INFO replication` report about a follower. `offset` is the
/// number of bytes written to this node's journals so far.
fn follower_info(follower: &FollowerStatus, group: Option<&Group>, offset: u64) -> Follower {
    let stats = follower.stats();
    let (host, port) =
        group.and_then(|group| client_address(group, &follower.name)).unwrap_or_else(|| {
            // Outside of groups, a follower's name is its first address for clients.
            let peer = follower.address.parse::<SocketAddr>();
            let host = peer.map_or(follower.address.clone(), |peer| peer.ip().to_string());
            (host, host_and_port(&follower.name).1)
        });
    Follower {
        host,
        port,
        is_copying: stats.is_full_syncing,
        offset: offset.saturating_sub(stats.lag_bytes),
        lag_secs: stats.lag.as_secs(),
    }
}

/// Returns the host and port of a node's address for clients, or of its address for members if it
/// has published none for clients. Returns `None` if it has published no addresses.
fn client_address(group: &Group, node: &str) -> Option<(String, u16)> {
    group.read(|member| {
        let addresses = member.view().addresses.get(node)?;
        let address = addresses.clients.as_ref().unwrap_or(&addresses.members);
        Some(host_and_port(address))
    })
}

/// Splits `HOST:PORT` or `[V6]:PORT`. The port is 0 if it is missing or invalid.
fn host_and_port(address: &str) -> (String, u16) {
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    (host_of(address).to_owned(), port.unwrap_or_default())
}

//! The state that all threads of a node share.

use crate::forward::Forwarders;
use crate::group::{Group, GroupConfig};
use crate::peers::Credentials;
use crate::replication::ReplicationStatus;
use larder_operations::{Counters, Tracker};
use larder_session::Settings;
use larder_store::erased;
use larder_support::clock::Clock;
use larder_support::rate_limited::RateLimitedWarning;
use std::sync::Arc;

/// The settings of a node, and the parts of the server that the node uses.
pub struct NodeConfig {
    /// The address of the leader (`--follow`), outside of groups.
    pub follow: Option<String>,
    /// The group that the node is a member of (`--cluster`).
    pub group: Option<GroupConfig>,
    /// The secret and certificates for connections to other nodes.
    pub credentials: Credentials,
    /// The settings of sessions with the server's own clients.
    pub settings: Settings,
    /// The server's clock.
    pub clock: Clock,
    /// The cache, which the server's own clients also use.
    pub cache: erased::Cache,
    /// The counters for forwarded requests: one element per handle that answers them. The length
    /// determines the number of these handles.
    pub answerer_counters: Vec<Arc<Counters>>,
    /// Tracks the items that clients have cached.
    pub tracker: Arc<Tracker>,
}

/// A server that replicates items to or from other servers, or shares the keys of a cluster with
/// them.
pub struct Node {
    /// The address of the leader (`--follow`), outside of groups.
    pub follow: Option<String>,
    /// The group that the node is a member of (`--cluster`).
    pub group: Option<Arc<Group>>,
    /// Forwards requests to the leaders of groups.
    pub forwarders: Forwarders,
    /// The status of the followers, and of the link to the leader.
    pub replication: ReplicationStatus,
    /// The secret and certificates for connections to other nodes.
    pub credentials: Credentials,
    pub(crate) settings: Settings,
    pub(crate) clock: Clock,
    pub(crate) cache: erased::Cache,
    pub(crate) answerer_counters: Vec<Arc<Counters>>,
    pub(crate) tracker: Arc<Tracker>,
    /// Warns about refused peers, at most once a minute.
    pub(crate) refused_peer_warning: RateLimitedWarning,
}

impl Node {
    /// Creates a node. Its threads are not started yet.
    #[must_use]
    pub fn new(config: NodeConfig) -> Self {
        let NodeConfig {
            follow,
            group,
            credentials,
            settings,
            clock,
            cache,
            answerer_counters,
            tracker,
        } = config;
        Self {
            replication: ReplicationStatus::new(follow.is_some() || group.is_some()),
            group: group.map(|config| Arc::new(Group::new(config, cache.clone(), &tracker))),
            forwarders: Forwarders::new(&tracker),
            refused_peer_warning: RateLimitedWarning::default(),
            follow,
            credentials,
            settings,
            clock,
            cache,
            answerer_counters,
            tracker,
        }
    }
}

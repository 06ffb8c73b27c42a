//! The credentials with which nodes authenticate each other.

use super::node_tls::NodeTls;
use larder_replica::Secret;
use std::sync::Arc;

/// The credentials of this node. The node requires the same kinds of credentials from peers. If
/// this node has none, every process may connect.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// The secret of `--cluster-secret`.
    pub secret: Option<Secret>,
    /// The certificates of `--cluster-tls`. With them, all connections to other nodes are
    /// encrypted.
    pub tls: Option<Arc<NodeTls>>,
}

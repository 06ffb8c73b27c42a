//! How nodes prove to each other who they are.

use super::node_tls::NodeTls;
use larder_replica::Secret;
use std::sync::Arc;

/// What this node proves itself with, and asks of others; without either, anybody may connect.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// The secret of `--cluster-secret`.
    pub secret: Option<Secret>,
    /// The certificates of `--cluster-tls`. With them, all connections to other nodes are encrypted.
    pub tls: Option<Arc<NodeTls>>,
}

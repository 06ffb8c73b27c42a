//! The credentials of this node for connections to other nodes.

use super::failure::{EX_USAGE, Failure, failure};
use larder_cluster::{Credentials, NodeTls};
use larder_replica::{SECRET_LEN_MIN, Secret};
use larder_server::options::Options;
use std::sync::Arc;

/// Reads the secret and the certificates of this node.
pub(crate) fn read_credentials(options: &Options) -> Result<Credentials, Failure> {
    let node = options.cluster.as_ref().map(|_| options.node_name());
    let tls = options.cluster_tls.as_ref().map(|files| NodeTls::new(files, node)).transpose();
    let tls = tls.map_err(|error| failure(EX_USAGE)(&format!("--cluster-tls: {error}")))?;
    Ok(Credentials { secret: read_secret(options)?, tls: tls.map(Arc::new) })
}

/// Reads the file of `--cluster-secret`. Call this before dropping privileges: root may be the only
/// user that can read the file.
fn read_secret(options: &Options) -> Result<Option<Secret>, Failure> {
    let Some(path) = &options.cluster_secret else { return Ok(None) };
    let name = path.display();
    let file = std::fs::read(path)
        .map_err(|error| failure(EX_USAGE)(&format!("--cluster-secret {name}: {error}")))?;
    let secret = Secret::of(&file).ok_or_else(|| {
        failure(EX_USAGE)(&format!(
            "--cluster-secret {name}: the secret must have at least {SECRET_LEN_MIN} bytes"
        ))
    })?;
    Ok(Some(secret))
}

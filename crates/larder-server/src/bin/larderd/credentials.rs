//! The credentials of this node.

use super::failure::{EX_USAGE, Failure, failure};
use larder_cluster::{Credentials, NodeTls};
use larder_replica::{SECRET_LEN_MIN, Secret};
use larder_server::options::Options;
use std::sync::Arc;

/// What this node proves itself to others with.
pub(crate) fn read_credentials(options: &Options) -> Result<Credentials, Failure> {
    let node = options.cluster.as_ref().map(|_| options.node_name());
    let tls = options.cluster_tls.as_ref().map(|files| NodeTls::new(files, node)).transpose();
    let tls = tls.map_err(|error| failure(EX_USAGE)(&format!("--cluster-tls: {error}")))?;
    Ok(Credentials { secret: read_secret(options)?, tls: tls.map(Arc::new) })
}

/// The secret of the file of `--cluster-secret`, which may be readable for root alone.
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

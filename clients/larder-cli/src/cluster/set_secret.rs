//! Replaces the secret that the nodes of a cluster must have.

use super::options::{ClusterArguments, message};
use larder_etcd::{SecretReplaced, replace_secret};
use larder_replica::{SECRET_LEN_MIN, Secret};
use std::io::Write;
use std::path::Path;

/// Writes the fingerprint of the secret in `file` to etcd. `None` removes the fingerprint, so that
/// the cluster has no secret.
///
/// # Errors
/// A message if the file is unreadable or too short, the cluster does not exist, one of its nodes
/// is alive, or etcd failed.
pub(super) fn set_secret(
    at: &ClusterArguments,
    file: Option<&Path>,
    out: &mut impl Write,
) -> Result<(), String> {
    let secret = file.map(read).transpose()?;
    let cluster = &at.cluster;
    match replace_secret(&mut at.etcd()?, cluster, secret.as_ref()).map_err(message)? {
        SecretReplaced::Done => {
            let has = if secret.is_some() { "a new secret" } else { "no secret" };
            writeln!(out, "cluster {cluster} has {has}: its nodes can start").map_err(message)
        }
        SecretReplaced::NoCluster => Err(format!("etcd has no cluster {cluster}")),
        SecretReplaced::Refused => Err(format!(
            "a node of cluster {cluster} is alive: stop all nodes, and retry after 3 s"
        )),
    }
}

fn read(path: &Path) -> Result<Secret, String> {
    let name = path.display();
    let file = std::fs::read(path).map_err(|error| format!("{name}: {error}"))?;
    let too_short = || format!("{name}: the secret must have at least {SECRET_LEN_MIN} bytes");
    Secret::of(&file).ok_or_else(too_short)
}

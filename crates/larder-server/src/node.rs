//! Builds the configuration of this node's replication and cluster from the options.

use crate::options::Options;
use larder_cluster::{Credentials, GroupConfig, NodeConfig};
use larder_etcd::{Etcd, EtcdOptions, EtcdSettings, GroupName, SettingsError};
use larder_operations::{Counters, Tracker};
use larder_session::Settings;
use larder_store::erased;
use larder_support::clock::Clock;
use std::sync::Arc;

/// Builds the node's configuration. `counters` starts with the counters of the handles that serve
/// clients ([`Options::handles`]). The counters of the handles that answer forwarded requests
/// ([`Options::answerers`]) follow.
pub(crate) fn config(
    options: &Options,
    settings: &Settings,
    credentials: Credentials,
    clock: Clock,
    cache: &erased::Cache,
    counters: &[Arc<Counters>],
    tracker: &Arc<Tracker>,
) -> NodeConfig {
    NodeConfig {
        follow: options.follow.clone(),
        group: group(options),
        credentials,
        settings: settings.clone(),
        clock,
        cache: cache.clone(),
        answerer_counters: counters.get(options.handles()..).unwrap_or_default().to_vec(),
        tracker: Arc::clone(tracker),
    }
}

fn group(options: &Options) -> Option<GroupConfig> {
    let cluster = options.cluster.clone()?;
    Some(GroupConfig {
        name: GroupName { cluster, group: options.group.clone() },
        node: options.node_name(),
        doubt: options.doubt.into(),
        unclean_after: options.unclean_after.map(|secs| secs.saturating_mul(1000)),
        ack: options.ack.into(),
        read_lag: u64::from(options.read_lag) * 1000,
    })
}

/// Reads the settings for etcd, including the files that they name. Without `--cluster`, returns
/// the defaults. Call this before dropping privileges: root may be the only user that can read the
/// files.
///
/// # Errors
/// [`SettingsError`]: a URL or a file is invalid.
pub fn read_etcd_settings(options: &Options) -> Result<EtcdSettings, SettingsError> {
    if options.cluster.is_none() {
        return Ok(EtcdSettings::default());
    }
    let settings = EtcdOptions {
        urls: &options.etcd,
        authorities: options.etcd_ca.as_deref(),
        certificate: options.etcd_cert.as_deref(),
        key: options.etcd_key.as_deref(),
        password: options.etcd_password.as_deref(),
    }
    .read()?;
    // Refuse invalid settings before the server starts to serve.
    Etcd::new(&settings)?;
    Ok(settings)
}

//! Options that the subcommands share: the cluster, the group and the connection to etcd.

use clap::Args;
use larder_etcd::{Etcd, EtcdOptions, GroupName, TimeLimits};
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

/// The interval between reads of etcd while a command waits.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Options of commands that concern one group.
#[derive(Args, Debug)]
pub(crate) struct GroupArguments {
    #[command(flatten)]
    pub(super) at: ClusterArguments,
    /// Name of the group
    #[arg(long, value_name = "NAME", default_value = "0", help_heading = "Cluster")]
    group: String,
}

/// Options of commands that concern a cluster.
#[derive(Args, Debug)]
pub(crate) struct ClusterArguments {
    /// Name of the cluster
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    pub(super) cluster: String,
    /// URLs of the etcd servers, separated by commas
    #[arg(
        long,
        value_name = "URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:2379",
        help_heading = "etcd"
    )]
    etcd: Vec<String>,
    /// PEM file of the CA certificates for etcd; https URLs need it [default: none]
    #[arg(long, value_name = "FILE", help_heading = "etcd")]
    etcd_ca: Option<PathBuf>,
    /// PEM file of the client certificate for etcd [default: none]
    #[arg(long, value_name = "FILE", requires = "etcd_key", help_heading = "etcd")]
    etcd_cert: Option<PathBuf>,
    /// PEM file of the private key of --etcd-cert [default: none]
    #[arg(long, value_name = "FILE", requires = "etcd_cert", help_heading = "etcd")]
    etcd_key: Option<PathBuf>,
    /// File with NAME:PASSWORD for etcd [default: no login]
    #[arg(long, value_name = "FILE", help_heading = "etcd")]
    etcd_password: Option<PathBuf>,
}

impl ClusterArguments {
    pub(super) fn etcd(&self) -> Result<Etcd, String> {
        self.etcd_within(TimeLimits::COMMAND)
    }

    /// Returns an etcd client with the short time limits of a node. A readiness probe must end
    /// within a second.
    pub(super) fn etcd_for_probe(&self) -> Result<Etcd, String> {
        self.etcd_within(TimeLimits::NODE)
    }

    fn etcd_within(&self, limits: TimeLimits) -> Result<Etcd, String> {
        let options = EtcdOptions {
            urls: &self.etcd,
            authorities: self.etcd_ca.as_deref(),
            certificate: self.etcd_cert.as_deref(),
            key: self.etcd_key.as_deref(),
            password: self.etcd_password.as_deref(),
        };
        Etcd::with_limits(&options.read().map_err(message)?, limits).map_err(message)
    }
}

impl GroupArguments {
    pub(super) fn name(&self) -> GroupName {
        GroupName { cluster: self.at.cluster.clone(), group: self.group.clone() }
    }
}

pub(super) fn message(error: impl Display) -> String {
    error.to_string()
}

pub(super) fn slot_count(count: usize) -> String {
    format!("{count} {}", if count == 1 { "slot" } else { "slots" })
}

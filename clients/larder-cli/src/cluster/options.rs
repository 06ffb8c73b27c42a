//! Options that the subcommands share: the cluster, the group, and the connections to etcd and to
//! nodes.

use clap::Args;
use larder_client::Tls;
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

/// Options of commands that connect to nodes.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct NodeArguments {
    /// Connect to the nodes with TLS
    #[arg(long, help_heading = "Nodes")]
    tls: bool,
    /// PEM file of the CA certificates for the nodes [default: the CAs of the system]
    #[arg(long, value_name = "FILE", requires = "tls", help_heading = "Nodes")]
    tls_ca: Option<PathBuf>,
    /// PEM file of the client certificate for the nodes [default: none]
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = "Nodes")]
    tls_cert: Option<PathBuf>,
    /// PEM file of the private key of --tls-cert [default: none]
    #[arg(long, value_name = "FILE", requires_all = ["tls", "tls_cert"], help_heading = "Nodes")]
    tls_key: Option<PathBuf>,
    /// Name that the certificates of the nodes must contain [default: the host of each address]
    #[arg(long, value_name = "NAME", requires = "tls", help_heading = "Nodes")]
    tls_server_name: Option<String>,
    /// File with NAME:PASSWORD for the nodes [default: no login]
    #[arg(long, value_name = "FILE", help_heading = "Nodes")]
    password: Option<PathBuf>,
}

impl NodeArguments {
    /// Reads the files for TLS. Returns `None` without `--tls`.
    pub(super) fn tls(&self) -> Result<Option<Tls>, String> {
        if !self.tls {
            return Ok(None);
        }
        let files = [&self.tls_ca, &self.tls_cert, &self.tls_key].map(Option::as_ref);
        let [authorities, certificate, key] = files;
        Tls::load_parts(authorities, certificate, key, self.tls_server_name.clone())
            .map(Some)
            .map_err(|error| format!("--tls: {error}"))
    }

    /// Returns whether the command logs in to nodes.
    pub(super) fn has_login(&self) -> bool {
        self.password.is_some()
    }

    /// Reads the name and the password. Returns `None` without `--password`.
    pub(super) fn login(&self) -> Result<Option<(String, String)>, String> {
        let Some(file) = &self.password else { return Ok(None) };
        let path = file.display();
        let text =
            std::fs::read_to_string(file).map_err(|error| format!("--password {path}: {error}"))?;
        let (name, password) = text
            .trim_end_matches(['\r', '\n'])
            .split_once(':')
            .ok_or_else(|| format!("--password {path}: the file must contain NAME:PASSWORD"))?;
        Ok(Some((name.to_owned(), password.to_owned())))
    }
}

impl ClusterArguments {
    pub(super) fn etcd(&self) -> Result<Etcd, String> {
        self.etcd_within(TimeLimits::COMMAND)
    }

    /// Returns an etcd client with the short time limits of a node, because a readiness probe must
    /// end within a second.
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

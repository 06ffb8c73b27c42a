//! Which cluster or group is meant, and where etcd is; and what all commands need.

use clap::Args;
use larder_etcd::{Etcd, EtcdFiles, GroupName};
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

/// How often it is looked whether what was asked for has been done.
pub(super) const LOOKS: Duration = Duration::from_millis(50);

/// Which group, and where etcd is.
#[derive(Args, Debug)]
pub(crate) struct Which {
    #[command(flatten)]
    pub(super) at: Where,
    /// Name of the group
    #[arg(long, value_name = "NAME", default_value = "0")]
    group: String,
}

/// Which cluster, and where etcd is.
#[derive(Args, Debug)]
pub(crate) struct Where {
    /// Name of the cluster
    #[arg(long, value_name = "NAME")]
    pub(super) cluster: String,
    /// Servers of etcd, separated by commas
    #[arg(
        long,
        value_name = "URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:2379"
    )]
    etcd: Vec<String>,
    /// Certificates, in PEM, of those who certify the servers of etcd
    #[arg(long, value_name = "FILE")]
    etcd_ca: Option<PathBuf>,
    /// Certificate, in PEM, that is shown to etcd
    #[arg(long, value_name = "FILE", requires = "etcd_key")]
    etcd_cert: Option<PathBuf>,
    /// Private key of --etcd-cert, in PEM
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,
    /// File with NAME:PASSWORD for etcd
    #[arg(long, value_name = "FILE")]
    etcd_password: Option<PathBuf>,
}

impl Where {
    pub(super) fn etcd(&self) -> Result<Etcd, String> {
        let files = EtcdFiles {
            urls: &self.etcd,
            authorities: self.etcd_ca.as_deref(),
            certificate: self.etcd_cert.as_deref(),
            key: self.etcd_key.as_deref(),
            password: self.etcd_password.as_deref(),
        };
        Etcd::new(&files.read().map_err(message)?).map_err(message)
    }
}

impl Which {
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

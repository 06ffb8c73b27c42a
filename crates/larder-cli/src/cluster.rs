//! `larder cluster`: shows the groups of a cluster, as etcd has them.

use clap::{Args, Subcommand};
use larder_etcd::{Etcd, EtcdFiles, groups};
use larder_replica::{Process, View};
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::PathBuf;

/// What is to be done with a cluster
#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Show who leads each group, who has all items, and who is alive
    Status(Where),
}

/// Which cluster, and where etcd is.
#[derive(Args, Debug)]
pub(crate) struct Where {
    /// Name of the cluster
    #[arg(long, value_name = "NAME")]
    cluster: String,
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

/// Does it.
///
/// # Errors
/// A message for whoever gave the command.
pub(crate) fn command(task: &Task, out: &mut impl Write) -> Result<(), String> {
    match task {
        Task::Status(cluster) => status(cluster, out),
    }
}

fn status(at: &Where, out: &mut impl Write) -> Result<(), String> {
    let files = EtcdFiles {
        urls: &at.etcd,
        authorities: at.etcd_ca.as_deref(),
        certificate: at.etcd_cert.as_deref(),
        key: at.etcd_key.as_deref(),
        password: at.etcd_password.as_deref(),
    };
    let settings = files.read().map_err(|error| error.to_string())?;
    let mut etcd = Etcd::new(&settings).map_err(|error| error.to_string())?;
    let groups = groups(&mut etcd, &at.cluster).map_err(|error| error.to_string())?;
    if groups.is_empty() {
        return Err(format!("there is no cluster {} in etcd", at.cluster));
    }
    for (name, view) in &groups {
        show(name, view, out).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn show(name: &str, view: &View, out: &mut impl Write) -> io::Result<()> {
    let record = view.record.as_ref();
    match record {
        None => writeln!(out, "group {name}: no leader yet")?,
        Some(record) => {
            let (leader, epoch) = (&record.leader, record.epoch);
            let away = if view.is_live(leader) { "" } else { ", but is away" };
            writeln!(out, "group {name}: {} leads in epoch {epoch}{away}", leader.node)?;
        }
    }
    let in_sync = record.map(|record| &record.in_sync[..]).unwrap_or_default();
    let nodes: BTreeSet<&String> =
        view.addresses.keys().chain(in_sync.iter().map(|process| &process.node)).collect();
    let width = nodes.iter().map(|node| node.len()).max().unwrap_or_default();
    for node in nodes {
        let process = view.live.get(node).map(|boot| Process { node: node.clone(), boot: *boot });
        let state = match process {
            None => "away",
            Some(process) if record.is_some_and(|record| record.leader == process) => "leader",
            Some(process) if in_sync.contains(&process) => "in sync",
            Some(_) => "not in sync",
        };
        let addresses = view.addresses.get(node).cloned().unwrap_or_default();
        let clients = addresses.clients.unwrap_or_else(|| "-".to_owned());
        writeln!(
            out,
            "  {node:width$}  {state:11}  clients {clients}  members {}",
            addresses.members
        )?;
    }
    Ok(())
}

//! `larder cluster`: shows the groups of a cluster, as etcd has them, and changes what operators decide.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use larder_etcd::{Etcd, EtcdFiles, EtcdGroup, GroupName, HAND_OVER_SECS, groups};
use larder_replica::{AckMode, Coordinator, EPOCH_MAX, Process, Record, View};
use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often it is looked whether what was asked for has been done.
const LOOKS: Duration = Duration::from_millis(50);

/// What is to be done with a cluster
#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Show who leads each group, who has all items, and who is alive
    Status(Where),
    /// Say which changes of a group wait until all nodes in sync have them, whatever the nodes were given
    Set {
        #[command(flatten)]
        group: Which,
        /// Which changes wait: none, those after which nobody may find an item as it was, or all
        #[arg(long, value_name = "CHANGES", value_parser = ack_modes())]
        ack: AckMode,
    },
    /// Have another node lead, which loses nothing and fails no request of other nodes' clients
    HandOver {
        #[command(flatten)]
        group: Which,
        /// The node that is to lead; any that is in sync, if none is given
        node: Option<String>,
    },
    /// Have a node lead that may lack items, because the leader is gone for good and no node in sync is left. Make sure
    /// that the leader's process has ended: if it is only cut off from etcd, it still answers
    Promote {
        #[command(flatten)]
        group: Which,
        /// The node that is to lead, with whatever it has
        node: String,
        /// What it lacks is lost
        #[arg(long, required = true)]
        unclean: bool,
    },
    /// Succeed if a node has all items of its group, and fail if not: for readiness probes
    Ready {
        #[command(flatten)]
        group: Which,
        /// The node
        node: String,
        /// Succeed also if etcd can't be asked
        #[arg(long)]
        or_unknown: bool,
    },
}

fn ack_modes() -> impl TypedValueParser<Value = AckMode> {
    let names = PossibleValuesParser::new(AckMode::ALL.map(AckMode::name));
    names.map(|name| AckMode::named(&name).unwrap_or_default())
}

/// Which group, and where etcd is.
#[derive(Args, Debug)]
pub(crate) struct Which {
    #[command(flatten)]
    at: Where,
    /// Name of the group
    #[arg(long, value_name = "NAME", default_value = "0")]
    group: String,
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
        Task::Set { group, ack } => {
            let mut seen = Seen::look(group)?;
            seen.group.set_ack(*ack).map_err(message)
        }
        Task::HandOver { group, node } => hand_over(Seen::look(group)?, node.clone(), out),
        Task::Promote { group, node, .. } => promote(Seen::look(group)?, node, out),
        Task::Ready { group, node, or_unknown } => {
            let mut asked = EtcdGroup::new(group.at.etcd()?, group.name());
            let seen = match asked.look() {
                Err(error) if *or_unknown => {
                    return writeln!(out, "nobody knows of {node}: {error}").map_err(message);
                }
                view => Seen { name: group.name(), group: asked, view: view.map_err(message)? },
            };
            if !seen.record()?.in_sync.contains(&seen.live(node)?) {
                return Err(format!("{node} does not have all items yet"));
            }
            writeln!(out, "{node} has all items").map_err(message)
        }
    }
}

fn message(error: impl Display) -> String {
    error.to_string()
}

impl Where {
    fn etcd(&self) -> Result<Etcd, String> {
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

/// A group as it was last seen.
struct Seen {
    name: GroupName,
    group: EtcdGroup,
    view: View,
}

impl Which {
    fn name(&self) -> GroupName {
        GroupName { cluster: self.at.cluster.clone(), group: self.group.clone() }
    }
}

impl Seen {
    fn look(of: &Which) -> Result<Self, String> {
        let mut group = EtcdGroup::new(of.at.etcd()?, of.name());
        let view = group.look().map_err(message)?;
        Ok(Self { name: of.name(), group, view })
    }

    fn record(&self) -> Result<&Record, String> {
        let GroupName { cluster, group } = &self.name;
        let nobody = || format!("cluster {cluster} has no group {group} with a leader");
        self.view.record.as_ref().ok_or_else(nobody)
    }

    /// The process of a node.
    fn live(&self, node: &str) -> Result<Process, String> {
        let boot = self.view.live.get(node);
        let away = || format!("{node} is not alive, as far as etcd knows");
        boot.map(|boot| Process { node: node.to_owned(), boot: *boot }).ok_or_else(away)
    }

    /// Waits until somebody else leads than the leader of this epoch, and says who. False if nobody does in time.
    fn wait_for_another(&mut self, epoch: u32, out: &mut impl Write) -> Result<bool, String> {
        let begun = Instant::now();
        loop {
            // etcd may be busy.
            if let Ok(view) = self.group.look() {
                self.view = view;
            }
            let Record { leader, epoch: now, .. } = self.record()?;
            if *now > epoch {
                let said = writeln!(out, "{} leads in epoch {now}", leader.node);
                return said.map(|()| true).map_err(message);
            }
            if begun.elapsed() > Duration::from_secs(HAND_OVER_SECS) {
                return Ok(false);
            }
            std::thread::sleep(LOOKS);
        }
    }
}

fn hand_over(mut seen: Seen, to: Option<String>, out: &mut impl Write) -> Result<(), String> {
    let Record { epoch, leader, in_sync } = seen.record()?.clone();
    if !seen.view.is_live(&leader) {
        return Err(format!("{} leads and is away: another node in sync takes over", leader.node));
    }
    if to.as_ref() == Some(&leader.node) {
        return writeln!(out, "{} leads already", leader.node).map_err(message);
    }
    let could = |node: &Process| *node != leader && to.as_ref().is_none_or(|to| *to == node.node);
    if !in_sync.iter().any(could) {
        let why = to.map_or_else(
            || "no other node has all items".to_owned(),
            |to| format!("{to} does not have all items"),
        );
        return Err(format!("{} leads on: {why}", leader.node));
    }
    seen.group.ask_to_hand_over(epoch, to).map_err(message)?;
    if seen.wait_for_another(epoch, out)? {
        return Ok(());
    }
    Err(format!("{} leads on: nobody could take over in time", leader.node))
}

fn promote(mut seen: Seen, node: &str, out: &mut impl Write) -> Result<(), String> {
    let Record { epoch, leader, in_sync } = seen.record()?.clone();
    if seen.view.is_live(&leader) {
        return Err(format!("{} leads and is alive: use hand-over", leader.node));
    }
    if let Some(other) = in_sync.iter().find(|process| seen.view.is_live(process)) {
        return Err(format!("{} is alive and has all items: it takes over by itself", other.node));
    }
    let process = seen.live(node)?;
    if epoch >= EPOCH_MAX {
        return Err(format!("the group has had {EPOCH_MAX} leaders, and can have no more"));
    }
    let epoch = epoch + 1;
    let record = Record { epoch, leader: process.clone(), in_sync: vec![process] };
    let swapped = seen.group.swap(seen.view.revision, &record).map_err(message)?;
    if swapped.is_none() {
        return Err("the group has changed meanwhile: look at its status, and try again".to_owned());
    }
    writeln!(out, "{node} leads in epoch {epoch}").map_err(message)
}

fn status(at: &Where, out: &mut impl Write) -> Result<(), String> {
    let groups = groups(&mut at.etcd()?, &at.cluster).map_err(message)?;
    if groups.is_empty() {
        return Err(format!("there is no cluster {} in etcd", at.cluster));
    }
    for (name, view) in &groups {
        show(name, view, out).map_err(message)?;
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
    if let Some(ack) = view.wishes.ack {
        writeln!(out, "  --ack {} for all nodes", ack.name())?;
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

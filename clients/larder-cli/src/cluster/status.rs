//! The status of a cluster: the records in etcd, and the statistics of the nodes that reply.

use super::node_stats::{self, NodeStats};
use super::options::{ClusterArguments, NodeArguments, message, slot_count};
use larder_etcd::{MalformedKey, ValueKind, survey};
use larder_replica::{AckMode, GroupView, Process, ShardMap};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

/// The state of a cluster: its records in etcd, and the statistics of its nodes.
pub(super) struct ClusterStatus {
    pub(super) name: String,
    pub(super) groups: Vec<GroupStatus>,
    /// The malformed keys that do not belong to a group.
    pub(super) faults: Vec<MalformedKey>,
}

pub(super) struct GroupStatus {
    pub(super) name: String,
    pub(super) view: GroupView,
    /// The slots of the group. `None` without a shard map.
    pub(super) slots: Option<Slots>,
    /// The malformed keys of the group, except those of its nodes.
    pub(super) faults: Vec<MalformedKey>,
    pub(super) nodes: Vec<NodeStatus>,
}

pub(super) struct Slots {
    /// The ranges of slots that the group owns.
    pub(super) ranges: String,
    /// The number of slots that the group owns.
    pub(super) count: usize,
    /// The number of slots that the group has yet to import. `None` if no move to the group is
    /// planned.
    pub(super) to_import: Option<usize>,
}

pub(super) struct NodeStatus {
    pub(super) name: String,
    /// `leader`, `in sync`, `not in sync` or `not alive`.
    pub(super) state: &'static str,
    /// The address for clients.
    pub(super) clients: Option<String>,
    /// The address for other nodes. Empty if the address is unknown.
    pub(super) members: String,
    /// The malformed keys of the node.
    pub(super) faults: Vec<MalformedKey>,
    /// The statistics, or the reason why the statistics are unknown. `None` if the node has no
    /// address for clients. Also `None` if the node has no lease and the command has a login,
    /// because the command does not send the login to such a node.
    pub(super) stats: Option<Result<NodeStats, String>>,
}

impl ClusterStatus {
    /// Reads the status from etcd and from the nodes.
    ///
    /// # Errors
    /// A message if etcd failed or has no such cluster, or if a file in the arguments is unusable.
    pub(super) fn read(at: &ClusterArguments, nodes: &NodeArguments) -> Result<Self, String> {
        let mut survey = survey(&mut at.etcd()?, &at.cluster).map_err(message)?;
        if survey.groups.is_empty() && survey.faults.is_empty() {
            return Err(format!("etcd has no cluster {}", at.cluster));
        }
        if let Some(map) = &survey.map {
            // The output also includes groups that occur only in the map.
            for (name, _) in map.owners().chain(map.targets()) {
                survey.groups.entry(name.to_owned()).or_default();
            }
        }
        for fault in &survey.faults {
            // The output also includes groups with only malformed values.
            if let Some(name) = &fault.group {
                survey.groups.entry(name.clone()).or_default();
            }
        }
        let (with_group, faults) = survey.faults.into_iter().partition(|one| one.group.is_some());
        let mut faults_of = by_group(with_group);
        let groups = survey.groups.into_iter().map(|(name, view)| {
            let faults = faults_of.remove(&name).unwrap_or_default();
            GroupStatus::new(name, view, survey.map.as_ref(), faults)
        });
        let mut status = Self { name: at.cluster.clone(), groups: groups.collect(), faults };
        status.read_nodes(nodes)?;
        Ok(status)
    }

    /// Reads the statistics of all nodes that have an address for clients.
    fn read_nodes(&mut self, arguments: &NodeArguments) -> Result<(), String> {
        let nodes = || self.groups.iter().flat_map(|group| &group.nodes);
        // Another server may have taken over the address of a lost node, and that server must not
        // receive the password.
        let may_connect = |node: &&NodeStatus| node.state != NOT_ALIVE || !arguments.has_login();
        let clients = nodes().filter(may_connect).filter_map(|node| node.clients.clone());
        let addresses: BTreeSet<String> = clients.collect();
        let stats = node_stats::read_all(addresses.into_iter().collect(), arguments)?;
        for group in &mut self.groups {
            for node in &mut group.nodes {
                let found = node.clients.as_ref().and_then(|address| stats.get(address).cloned());
                let member = format!("{}/{}/{}", self.name, group.name, node.name);
                node.stats = found.map(|stats| stats.and_then(|stats| of_member(stats, &member)));
            }
        }
        Ok(())
    }

    /// Prints the status as text.
    pub(super) fn show(&self, out: &mut impl Write) -> io::Result<()> {
        for fault in &self.faults {
            writeln!(out, "{fault}")?;
        }
        self.groups.iter().try_for_each(|group| group.show(out))
    }
}

/// Returns the statistics if `member` has sent them. Another server may have taken over the address
/// of a lost node.
fn of_member(stats: NodeStats, member: &str) -> Result<NodeStats, String> {
    match &stats.member {
        Some(name) if name == member => Ok(stats),
        Some(name) => Err(format!("member {name} has this address")),
        None => Err("a server outside of clusters has this address".to_owned()),
    }
}

fn by_group(faults: Vec<MalformedKey>) -> BTreeMap<String, Vec<MalformedKey>> {
    let mut groups: BTreeMap<String, Vec<MalformedKey>> = BTreeMap::new();
    for fault in faults {
        groups.entry(fault.group.clone().unwrap_or_default()).or_default().push(fault);
    }
    groups
}

impl GroupStatus {
    fn new(
        name: String,
        view: GroupView,
        map: Option<&ShardMap>,
        faults: Vec<MalformedKey>,
    ) -> Self {
        let (of_nodes, faults): (Vec<_>, Vec<_>) =
            faults.into_iter().partition(|fault| fault.node.is_some());
        let in_sync = view.record.iter().flat_map(|record| &record.in_sync);
        let names: BTreeSet<&String> = in_sync
            .map(|process| &process.node)
            .chain(view.addresses.keys())
            .chain(view.live.keys())
            .chain(of_nodes.iter().filter_map(|fault| fault.node.as_ref()))
            .collect();
        let nodes = names.into_iter().map(|node| NodeStatus::new(node, &view, &of_nodes)).collect();
        Self { slots: map.map(|map| Slots::new(&name, map)), name, view, faults, nodes }
    }

    /// Returns the acknowledgement mode that the leader reports, or `None` if the leader does not
    /// reply.
    pub(super) fn ack_of_leader(&self) -> Option<&str> {
        let leader = &self.view.record.as_ref()?.leader.node;
        let node = self.nodes.iter().find(|node| node.name == *leader)?;
        node.stats.as_ref()?.as_ref().ok()?.ack.as_deref()
    }

    fn show(&self, out: &mut impl Write) -> io::Result<()> {
        let name = &self.name;
        let is_malformed = self.faults.iter().any(|fault| fault.kind == ValueKind::Record);
        match &self.view.record {
            // A later line reports the malformed record.
            None if is_malformed => writeln!(out, "group {name}: unknown leader")?,
            None => writeln!(out, "group {name}: no leader yet")?,
            Some(record) => {
                let (leader, epoch) = (&record.leader, record.epoch);
                let not_alive = if self.view.is_live(leader) { "" } else { ", but is not alive" };
                writeln!(out, "group {name}: {} leads in epoch {epoch}{not_alive}", leader.node)?;
            }
        }
        for fault in &self.faults {
            writeln!(out, "  {fault}")?;
        }
        if let Some(slots) = &self.slots {
            slots.show(out)?;
        }
        match (self.view.requests.ack.map(AckMode::name), self.ack_of_leader()) {
            (Some(ack), _) => writeln!(out, "  --ack {ack} for all nodes")?,
            (None, Some(ack)) => writeln!(out, "  --ack {ack} of the leader")?,
            (None, None) => (),
        }
        let width = self.nodes.iter().map(|node| node.name.len()).max().unwrap_or_default();
        self.nodes.iter().try_for_each(|node| node.show(width, out))
    }
}

impl Slots {
    fn new(group: &str, map: &ShardMap) -> Self {
        let slots = map.slots_of(group);
        let target = map.targets().find(|(name, _)| *name == group);
        Self {
            ranges: slots.to_string(),
            count: slots.len(),
            to_import: target.map(|(_, slots)| slots.len()),
        }
    }

    fn show(&self, out: &mut impl Write) -> io::Result<()> {
        match self.count {
            0 => writeln!(out, "  no slots")?,
            count => writeln!(out, "  slots {} ({count})", self.ranges)?,
        }
        match self.to_import {
            Some(count) => writeln!(out, "  to import: {}", slot_count(count)),
            None => Ok(()),
        }
    }
}

impl NodeStatus {
    fn new(name: &str, view: &GroupView, faults: &[MalformedKey]) -> Self {
        let addresses = view.addresses.get(name).cloned().unwrap_or_default();
        let of_node = faults.iter().filter(|fault| fault.node.as_deref() == Some(name));
        Self {
            name: name.to_owned(),
            state: state(name, view),
            clients: addresses.clients,
            members: addresses.members,
            faults: of_node.cloned().collect(),
            stats: None,
        }
    }

    fn show(&self, width: usize, out: &mut impl Write) -> io::Result<()> {
        let clients = self.clients.as_deref().unwrap_or("-");
        let (name, state, members) = (&self.name, self.state, &self.members);
        write!(out, "  {name:width$}  {state:11}  clients {clients}  members {members}")?;
        match &self.stats {
            None => (),
            Some(Err(error)) => write!(out, "  no statistics: {error}")?,
            Some(Ok(stats)) => write!(out, "  {}", stats_text(stats))?,
        }
        for fault in &self.faults {
            write!(out, "  {fault}")?;
        }
        writeln!(out)
    }
}

/// The state of a node without a lease.
const NOT_ALIVE: &str = "not alive";

fn state(node: &str, view: &GroupView) -> &'static str {
    let incarnation = view.live.get(node);
    let process =
        incarnation.map(|incarnation| Process { node: node.to_owned(), incarnation: *incarnation });
    let record = view.record.as_ref();
    match process {
        None => NOT_ALIVE,
        Some(process) if record.is_some_and(|record| record.leader == process) => "leader",
        Some(process) if record.is_some_and(|record| record.in_sync.contains(&process)) => {
            "in sync"
        }
        Some(_) => "not in sync",
    }
}

fn stats_text(stats: &NodeStats) -> String {
    let lag = stats.lag.map_or_else(|| "unknown".to_owned(), |lag| format!("{lag:.3} s"));
    let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let memory = stats.memory.zip(stats.memory_limit).map_or_else(
        || "unknown".to_owned(),
        |(used, limit)| format!("{:.1} of {:.1} MiB", mebibytes(used), mebibytes(limit)),
    );
    let version = stats.version.as_deref().unwrap_or("unknown");
    format!("lag {lag}  memory {memory}  version {version}")
}

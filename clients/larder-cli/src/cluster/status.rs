//! Prints the groups of a cluster from their records in etcd.

use super::options::{ClusterArguments, message, slot_count};
use larder_etcd::{EtcdShardMap, groups};
use larder_replica::{GroupView, Process, ShardMap};
use std::collections::BTreeSet;
use std::io::{self, Write};

pub(super) fn status(at: &ClusterArguments, out: &mut impl Write) -> Result<(), String> {
    let mut groups = groups(&mut at.etcd()?, &at.cluster).map_err(message)?;
    if groups.is_empty() {
        return Err(format!("etcd has no cluster {}", at.cluster));
    }
    let map = EtcdShardMap::new(at.etcd()?, at.cluster.clone()).read().map_err(message)?.map;
    if let Some(map) = &map {
        // The output also includes groups that occur only in the map.
        for (name, _) in map.owners().chain(map.targets()) {
            groups.entry(name.to_owned()).or_default();
        }
    }
    for (name, view) in &groups {
        show(name, view, map.as_ref(), out).map_err(message)?;
    }
    Ok(())
}

fn show(
    name: &str,
    view: &GroupView,
    map: Option<&ShardMap>,
    out: &mut impl Write,
) -> io::Result<()> {
    let record = view.record.as_ref();
    match record {
        None => writeln!(out, "group {name}: no leader yet")?,
        Some(record) => {
            let (leader, epoch) = (&record.leader, record.epoch);
            let not_alive = if view.is_live(leader) { "" } else { ", but is not alive" };
            writeln!(out, "group {name}: {} leads in epoch {epoch}{not_alive}", leader.node)?;
        }
    }
    if let Some(map) = map {
        show_slots(name, map, out)?;
    }
    if let Some(ack) = view.requests.ack {
        writeln!(out, "  --ack {} for all nodes", ack.name())?;
    }
    let in_sync = record.map(|record| &record.in_sync[..]).unwrap_or_default();
    let nodes: BTreeSet<&String> =
        view.addresses.keys().chain(in_sync.iter().map(|process| &process.node)).collect();
    let width = nodes.iter().map(|node| node.len()).max().unwrap_or_default();
    for node in nodes {
        let process = view
            .live
            .get(node)
            .map(|incarnation| Process { node: node.clone(), incarnation: *incarnation });
        let state = match process {
            None => "not alive",
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

fn show_slots(name: &str, map: &ShardMap, out: &mut impl Write) -> io::Result<()> {
    let slots = map.slots_of(name);
    if slots.is_empty() {
        writeln!(out, "  no slots")?;
    } else {
        writeln!(out, "  slots {slots} ({})", slots.len())?;
    }
    match map.targets().find(|(group, _)| *group == name) {
        Some((_, slots)) => writeln!(out, "  to import: {}", slot_count(slots.len())),
        None => Ok(()),
    }
}

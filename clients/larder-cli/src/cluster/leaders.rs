//! Who leads a group: has another node lead.

use super::options::{LOOKS, Which, message};
use larder_etcd::{EtcdGroup, GroupName, TRANSFER_REQUEST_SECS};
use larder_replica::{Coordinator, EPOCH_MAX, GroupView, Process, Record};
use std::io::Write;
use std::time::{Duration, Instant};

/// A group as it was last seen.
pub(super) struct Seen {
    pub(super) name: GroupName,
    pub(super) group: EtcdGroup,
    pub(super) view: GroupView,
}

impl Seen {
    pub(super) fn look(of: &Which) -> Result<Self, String> {
        let mut group = EtcdGroup::new(of.at.etcd()?, of.name());
        let view = group.read().map_err(message)?;
        Ok(Self { name: of.name(), group, view })
    }

    pub(super) fn record(&self) -> Result<&Record, String> {
        let GroupName { cluster, group } = &self.name;
        let nobody = || format!("cluster {cluster} has no group {group} with a leader");
        self.view.record.as_ref().ok_or_else(nobody)
    }

    /// The process of a node.
    pub(super) fn live(&self, node: &str) -> Result<Process, String> {
        let boot = self.view.live.get(node);
        let away = || format!("{node} is not alive, as far as etcd knows");
        boot.map(|boot| Process { node: node.to_owned(), boot: *boot }).ok_or_else(away)
    }

    /// Waits until another process leads than this one, which was asked in its epoch to hand over to a node, and says who
    /// leads. False if no other does in time.
    fn wait_for_another(
        &mut self,
        leader: &Process,
        mut asked: u32,
        to: Option<&String>,
        out: &mut impl Write,
    ) -> Result<bool, String> {
        let begun = Instant::now();
        loop {
            // etcd may be busy.
            if let Ok(view) = self.group.read() {
                self.view = view;
            }
            let Record { leader: now, epoch, .. } = self.record()?;
            let epoch = *epoch;
            if now != leader {
                let said = writeln!(out, "{} leads in epoch {epoch}", now.node);
                return said.map(|()| true).map_err(message);
            }
            if begun.elapsed() > Duration::from_secs(TRANSFER_REQUEST_SECS) {
                return Ok(false);
            }
            // A leader whose epoch has risen disregards what it was asked in an earlier one.
            if epoch > asked && self.group.request_transfer(epoch, to.cloned()).is_ok() {
                asked = epoch;
            }
            std::thread::sleep(LOOKS);
        }
    }
}

pub(super) fn hand_over(
    mut seen: Seen,
    to: Option<String>,
    out: &mut impl Write,
) -> Result<(), String> {
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
    seen.group.request_transfer(epoch, to.clone()).map_err(message)?;
    if seen.wait_for_another(&leader, epoch, to.as_ref(), out)? {
        return Ok(());
    }
    Err(format!("{} leads on: nobody could take over in time", leader.node))
}

pub(super) fn promote(mut seen: Seen, node: &str, out: &mut impl Write) -> Result<(), String> {
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

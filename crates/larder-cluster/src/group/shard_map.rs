//! Reads and writes the shard map and the list of servers for clients in etcd. A lock serializes
//! reads and swaps of the map, so that the topology never returns to an older map.

use super::membership::Group;
use super::topology::MAP_AGE_MAX;
use larder_etcd::{Discovery, DiscoveryKeeper, Etcd, EtcdSettings, EtcdShardMap};
use larder_replica::{
    Completion, CoordinatorError, FinishedImport, Migration, Process, Revision, ShardMap,
};
use larder_support::rate_limited::RateLimitedWarning;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The total time limit for attempts to finish a migration.
const TRY_MAX: Duration = Duration::from_secs(3);
/// The pause between two attempts to finish a migration.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// Reads and changes the shard map in etcd. Passes new maps to the topology.
#[derive(Debug)]
pub(crate) struct ShardMapKeeper {
    etcd: Mutex<EtcdShardMap>,
    discovery: Mutex<DiscoveryKeeper>,
    group: Arc<Group>,
    /// Warns that the map is malformed or deleted and that this node cannot repair it.
    warning: RateLimitedWarning,
}

/// The exporting leader of a migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExportingLeader {
    pub(crate) process: Process,
    pub(crate) epoch: u32,
}

/// The reason why a migration is not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FinishError {
    Refused(&'static str),
    /// etcd did not answer. The migration may be finished.
    Unknown,
}

impl std::fmt::Display for FinishError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Refused(reason) => reason,
            Self::Unknown => "etcd did not confirm that the shard map was replaced",
        })
    }
}

impl std::error::Error for FinishError {}

impl ShardMapKeeper {
    /// Creates the keeper for the cluster of this group. Returns `None` if the settings are
    /// invalid.
    pub(crate) fn new(settings: &EtcdSettings, group: &Arc<Group>) -> Option<Self> {
        // Fails only for invalid settings. These settings were valid when the server started.
        let etcd = Etcd::new(settings).ok()?;
        let cluster = &group.name.cluster;
        let discovery = DiscoveryKeeper::new(Etcd::new(settings).ok()?, cluster.clone());
        let etcd = EtcdShardMap::new(etcd, cluster.clone());
        let (etcd, discovery) = (Mutex::new(etcd), Mutex::new(discovery));
        let (group, warning) = (Arc::clone(group), RateLimitedWarning::default());
        Some(Self { etcd, discovery, group, warning })
    }

    fn lock(&self) -> MutexGuard<'_, EtcdShardMap> {
        self.etcd.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the map and the leaders. If this node leads, it repairs a malformed or absent map.
    pub(crate) fn read(&self) -> Result<(), CoordinatorError> {
        let mut etcd = self.lock();
        if !self.group.topology.is_confirmed() {
            etcd.expect_another_history();
        }
        let mut requested_at = Instant::now();
        let mut view = etcd.read();
        self.group.topology.note_attempt();
        let is_faulty = match &view {
            Ok(view) => view.map.is_none(),
            Err(error) => matches!(error, CoordinatorError::MalformedValue(_)),
        };
        if is_faulty && self.group.leadership_start().is_some() {
            self.repair(&mut etcd, view.is_err())?;
            requested_at = Instant::now();
            view = etcd.read();
        }
        self.group.topology.note(requested_at, view?);
        Ok(())
    }

    /// Updates the list of servers for clients from the last read of etcd, if that read is recent.
    /// The leader of a group also writes a changed list to etcd.
    pub(crate) fn update_discovery(&self) {
        let group = &self.group;
        let mut keeper = self.discovery.lock().unwrap_or_else(PoisonError::into_inner);
        let (list, replaced) = {
            let etcd = self.lock();
            let keys = etcd.keys();
            if !keys.is_younger(MAP_AGE_MAX) && !group.topology.is_current(Duration::MAX) {
                return;
            }
            match group.epoch_as_leader() {
                Some(_) => keeper.compute(keys),
                None => (Discovery::listed(keys), None),
            }
        };
        if let Some(revision) = replaced {
            match keeper.write(&list, revision) {
                Ok(true) => group.topology.read_soon(),
                Ok(false) => {
                    self.lock().read_all_next();
                    return group.topology.read_soon();
                }
                Err(_) => return,
            }
        }
        *group.discovery.lock().unwrap_or_else(PoisonError::into_inner) = list;
    }

    /// Returns whether the next read must return all keys, even if etcd has not changed.
    pub(crate) fn is_due(&self) -> bool {
        self.lock().keys().is_due()
    }

    /// Replaces a malformed map with the previous one. If the map is absent, writes the last map
    /// that etcd had, or else the last map that this node knows. If this node has never read a map,
    /// writes one in which the local group owns all slots. Warns if the repair is impossible.
    fn repair(&self, etcd: &mut EtcdShardMap, is_malformed: bool) -> Result<(), CoordinatorError> {
        let (remembered, revision) = self.group.topology.map();
        if is_malformed {
            if etcd.restore_malformed()? {
                tracing::warn!("etcd: the shard map was malformed: it has its earlier value again");
            } else {
                self.warn_unrepaired("malformed", remembered.as_ref());
            }
            return Ok(());
        }
        let Some(remembered) = remembered else {
            etcd.swap(0, &ShardMap::single_group(&self.group.name.group), &[])?;
            return Ok(());
        };
        if etcd.restore_deleted(revision)? {
            tracing::warn!("etcd: the shard map was deleted: it has its last value again");
        } else if remembered.targets().next().is_some() {
            // Do not write the known map: it plans migrations, and one of them may have finished
            // since this node read the map.
            self.warn_unrepaired("lost", Some(&remembered));
        } else if etcd.swap(0, &remembered, &[])?.is_some() {
            tracing::warn!(
                "etcd: the shard map was lost: it has the value again that this node knows"
            );
        }
        Ok(())
    }

    fn warn_unrepaired(&self, fault: &str, remembered: Option<&ShardMap>) {
        let remembered = remembered.map_or_else(String::new, |map| {
            format!("; this node knows the map {}", larder_etcd::shown_map(map))
        });
        self.warning.warn(|| {
            format!("etcd: the shard map is {fault}, and etcd has no earlier value: write it with etcdctl{remembered}")
        });
    }

    /// If an export has ended without success, revokes its release. First replaces the map in etcd
    /// with an equal one, which makes a late swap by the importing group fail.
    pub(crate) fn revoke_release(&self) -> Result<(), CoordinatorError> {
        let topology = &self.group.topology;
        if !topology.has_unused_release(self.group.leadership_start()) {
            return Ok(());
        }
        let mut etcd = self.lock();
        if let (Some(map), revision) = topology.map() {
            match etcd.swap(revision, &map, &[])? {
                Some(revision) => {
                    topology.revoke_release(map, revision);
                    tracing::warn!(
                        "migration: the importing group did not take over; this group serves the slots again"
                    );
                }
                None => {
                    etcd.read_all_next();
                    topology.read_soon();
                }
            }
        }
        Ok(())
    }

    /// Replaces the map with an equal one that has a new revision. Afterwards, an earlier swap
    /// without a reply can no longer take effect.
    pub(crate) fn supersede_swaps(&self) -> Result<(), CoordinatorError> {
        let mut etcd = self.lock();
        let view = etcd.read()?;
        let map = view.map.ok_or(CoordinatorError::MapChanged)?;
        let swapped = etcd.swap(view.revision, &map, &[])?;
        let revision = swapped.ok_or(CoordinatorError::MapChanged)?;
        self.group.topology.note_map(map, revision);
        Ok(())
    }

    /// Writes the new owner of a migration's slots to the map if the map still has this revision
    /// and both leaders still lead in these epochs. Retries for up to [`TRY_MAX`] while `continues`
    /// returns true.
    ///
    /// # Errors
    /// [`FinishError::Unknown`] if the write may have succeeded, else the reason for the failure.
    pub(crate) fn finish(
        &self,
        migration: &Migration,
        revision: Revision,
        exporter: &ExportingLeader,
        epoch: u32,
        continues: impl Fn() -> bool,
    ) -> Result<(), FinishError> {
        let (start, mut is_unknown) = (Instant::now(), false);
        while continues() && start.elapsed() < TRY_MAX {
            match self.try_to_finish(migration, revision, exporter, epoch) {
                Ok(Some(ended)) => return ended.map_err(FinishError::Refused),
                Ok(None) => (),
                Err(_) => is_unknown = true,
            }
            std::thread::sleep(RETRY_AFTER);
        }
        Err(if is_unknown {
            FinishError::Unknown
        } else {
            FinishError::Refused("finishing the migration timed out")
        })
    }

    /// Makes one attempt to finish a migration. Returns its result, or `None` if the caller must
    /// retry.
    fn try_to_finish(
        &self,
        migration: &Migration,
        revision: Revision,
        exporter: &ExportingLeader,
        epoch: u32,
    ) -> Result<Option<Result<(), &'static str>>, CoordinatorError> {
        let mut etcd = self.lock();
        let view = etcd.read()?;
        let Some(map) = view.map else { return Ok(Some(Err("etcd has no shard map"))) };
        let me = self.group.me();
        let (exporter, importer) = ((&exporter.process, exporter.epoch), (&me, epoch));
        let finished = FinishedImport { migration, revision, exporter, importer };
        let record_of =
            |group: &str| view.leaders.get(group).map(|leader| (&leader.record, leader.revision));
        let (map, records) = match finished.completion((&map, view.revision), record_of) {
            Completion::ReplaceMap(map, records) => (map, records),
            Completion::Refused(reason) => return Ok(Some(Err(reason))),
            Completion::AlreadyDone => {
                self.group.topology.note_map(map, view.revision);
                return Ok(Some(Ok(())));
            }
        };
        let records = records.each_ref().map(|(group, revision)| (group.as_str(), *revision));
        let swapped = etcd.swap(revision, &map, &records)?;
        Ok(swapped.map(|revision| {
            self.group.topology.note_map(map, revision);
            Ok(())
        }))
    }
}

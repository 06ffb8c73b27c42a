//! Reads and replaces the map in etcd, one after the other, so that what is known here never goes back.

use super::membership::Group;
use crate::forward::{Forwarders, HelloMe, OtherGroup};
use crate::peers::{Credentials, Stop};
use larder_etcd::{Etcd, EtcdMap, EtcdSettings};
use larder_replica::{CoordinatorError, Ending, Move, Process, Revision, SlotMap, Taken};
use larder_session::Group as Number;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the map is looked at.
const LOOKS: Duration = Duration::from_millis(500);
/// How soon again, if etcd did not answer, or has no map yet.
const RETRY: Duration = Duration::from_millis(100);
/// The shortest time between two looks.
const PAUSE: Duration = Duration::from_millis(10);
/// How long it is tried to finish a move, and how soon again.
const TRY_MAX: Duration = Duration::from_secs(3);
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// The map in etcd.
#[derive(Debug)]
pub(crate) struct MapKeeper {
    etcd: Mutex<EtcdMap>,
    group: Arc<Group>,
}

/// The leader that gives slots up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exporter {
    pub(crate) process: Process,
    pub(crate) epoch: u32,
}

/// Why a move is not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfinished {
    Refused(&'static str),
    /// It may be all the same.
    Unknown,
}

impl std::fmt::Display for Unfinished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Refused(why) => why,
            Self::Unknown => "etcd did not say whether the map is replaced",
        })
    }
}

impl std::error::Error for Unfinished {}

impl MapKeeper {
    /// For the cluster of this group; `None` if the settings are wrong.
    pub(crate) fn new(settings: &EtcdSettings, group: &Arc<Group>) -> Option<Self> {
        // They were right when the server started.
        let etcd = Etcd::new(settings).ok()?;
        let etcd = EtcdMap::new(etcd, group.name.cluster.clone());
        Some(Self { etcd: Mutex::new(etcd), group: Arc::clone(group) })
    }

    fn lock(&self) -> MutexGuard<'_, EtcdMap> {
        self.etcd.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what is known of the cluster up to date, and connections to the leaders of its groups, until the end.
    pub(crate) fn keep(&self, ways: &Forwarders, credentials: &Credentials, stop: &Arc<Stop>) {
        let mut connected: BTreeMap<Number, JoinHandle<()>> = BTreeMap::new();
        while !stop.is_set() {
            let is_known = self.look().is_ok() && self.take_back().is_ok();
            let is_known = is_known && self.group.topology.map().0.is_some();
            for (number, name) in self.group.topology.others() {
                if !connected.contains_key(&number)
                    && let Some(thread) = self.connect(number, name, ways, credentials, stop)
                {
                    connected.insert(number, thread);
                    // Nobody has asked for its leader yet.
                    self.group.topology.look_soon();
                }
            }
            if is_known {
                stop.wait(PAUSE);
                self.group.topology.wait_until_wanted(LOOKS);
            } else {
                stop.wait(RETRY);
            }
        }
        for thread in connected.into_values() {
            let _ = thread.join();
        }
    }

    /// Starts the thread that connects to the leader of another group.
    fn connect(
        &self,
        number: Number,
        name: String,
        ways: &Forwarders,
        credentials: &Credentials,
        stop: &Arc<Stop>,
    ) -> Option<JoinHandle<()>> {
        let (way, own) = (ways.to(number), Arc::clone(&self.group));
        let me = HelloMe { process: own.me(), group: own.full_name() };
        let (credentials, stop) = (credentials.clone(), Arc::clone(stop));
        let thread = std::thread::Builder::new().name("forwarder".to_owned());
        let run = move || way.run(&OtherGroup { own, name }, &me, &credentials, &stop);
        thread.spawn(run).ok()
    }

    /// Looks at the map and the leaders. If there is no map, this server makes one if it leads.
    pub(crate) fn look(&self) -> Result<(), CoordinatorError> {
        let topology = &self.group.topology;
        let mut etcd = self.lock();
        let asked = Instant::now();
        let view = etcd.look()?;
        let has_map = view.map.is_some();
        if !has_map && self.group.leads_since().is_some() {
            // If it was there before, it has been lost.
            let map = topology.map().0.unwrap_or_else(|| SlotMap::of_one(&self.group.name.group));
            if let Some(revision) = etcd.swap(0, &map, &[])? {
                topology.note_map(map, revision);
            }
        }
        topology.note(asked, view);
        Ok(())
    }

    /// Has slots answered for again that were given up for a move that was not finished: replaces the map by the same
    /// one, so that nobody can finish it any more.
    fn take_back(&self) -> Result<(), CoordinatorError> {
        let topology = &self.group.topology;
        if !topology.has_given_in_vain(self.group.leads_since()) {
            return Ok(());
        }
        let mut etcd = self.lock();
        if let (Some(map), revision) = topology.map() {
            match etcd.swap(revision, &map, &[])? {
                Some(revision) => topology.take_back(map, revision),
                None => topology.look_soon(),
            }
        }
        Ok(())
    }

    /// Replaces the map by the same one, so that nothing can come of a swap that was not answered.
    pub(crate) fn end_swaps(&self) -> Result<(), CoordinatorError> {
        let mut etcd = self.lock();
        let view = etcd.look()?;
        let changed = || CoordinatorError("the map has changed meanwhile".to_owned());
        let map = view.map.ok_or_else(changed)?;
        let revision = etcd.swap(view.revision, &map, &[])?.ok_or_else(changed)?;
        self.group.topology.note_map(map, revision);
        Ok(())
    }

    /// Says in the map that a move is done, if the map is still the one of this revision, the leader that has given the
    /// slots up still leads, and so does this one, in this epoch.
    ///
    /// # Errors
    /// Why it is not done; [`Unfinished::Unknown`] if it may be all the same.
    pub(crate) fn finish(
        &self,
        done: &Move,
        revision: Revision,
        giver: &Exporter,
        epoch: u32,
        goes_on: impl Fn() -> bool,
    ) -> Result<(), Unfinished> {
        let (begun, mut is_unknown) = (Instant::now(), false);
        while goes_on() && begun.elapsed() < TRY_MAX {
            match self.try_to_finish(done, revision, giver, epoch) {
                Ok(Some(ended)) => return ended.map_err(Unfinished::Refused),
                Ok(None) => (),
                Err(_) => is_unknown = true,
            }
            std::thread::sleep(TRY_AGAIN);
        }
        Err(if is_unknown { Unfinished::Unknown } else { Unfinished::Refused("it took too long") })
    }

    /// What has become of it; `None` if it may be tried again.
    fn try_to_finish(
        &self,
        done: &Move,
        revision: Revision,
        giver: &Exporter,
        epoch: u32,
    ) -> Result<Option<Result<(), &'static str>>, CoordinatorError> {
        let mut etcd = self.lock();
        let view = etcd.look()?;
        let Some(map) = view.map else { return Ok(Some(Err("the map is gone"))) };
        let me = self.group.me();
        let (giver, taker) = ((&giver.process, giver.epoch), (&me, epoch));
        let taken = Taken { done, asked: revision, giver, taker };
        let record_of =
            |group: &str| view.leaders.get(group).map(|leader| (&leader.record, leader.revision));
        let (map, records) = match taken.ending((&map, view.revision), record_of) {
            Ending::Replace(map, records) => (map, records),
            Ending::Refused(why) => return Ok(Some(Err(why))),
            Ending::Done => {
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

//! Processes, followers, and the connections between them.

use super::hooked::{Hooked, HookedCache, Role};
use super::world::{FOLLOWERS, WRITERS};
use larder_replica::{Applier, Sender, Succession};
use larder_store::cache::Cache;
use larder_store::journal::{JournaledCache, JournaledHandle, Journals};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// A client's handle to the leader's cache; `None` while a call uses the handle.
pub(super) type Writer<C> = Option<JournaledHandle<Hooked<<C as Cache>::Engine>>>;

/// A process that leads or follows.
pub(super) struct Process<C: Cache> {
    pub(super) incarnation: u64,
    /// The index of the process's clock.
    pub(super) clock: usize,
    pub(super) cache: JournaledCache<HookedCache<C>>,
    pub(super) journals: Arc<Journals>,
    /// The state at the start of the process's leadership, if the process has succeeded another
    /// leader.
    pub(super) succession: RefCell<Option<Succession>>,
    pub(super) writers: RefCell<Vec<Writer<C>>>,
    /// The connections to the followers; `None` without a connection, or while a call uses the
    /// connection.
    pub(super) links: RefCell<Vec<Option<Link<C>>>>,
}

pub(super) struct Link<C: Cache> {
    pub(super) sender: Sender<Hooked<C::Engine>>,
    pub(super) is_idle: bool,
    /// Bytes in transit.
    pub(super) sent: Vec<u8>,
    /// The time at which `sent` last became non-empty.
    pub(super) sent_since: u64,
    /// Whether the connection currently delivers no bytes.
    pub(super) is_cut: bool,
    pub(super) heartbeats: u64,
}

pub(super) struct Follower<C: Cache> {
    pub(super) process: Rc<Process<C>>,
    pub(super) applier: Applier<JournaledHandle<Hooked<C::Engine>>>,
    /// The handle that client reads use.
    pub(super) reader: C::Engine,
    pub(super) is_paused: bool,
    /// Whether a delta sync is under way. Items may then revert to older states, because the new
    /// leader may have older states.
    pub(super) is_delta_syncing: bool,
    /// The value of `World::leaders` when the follower last connected.
    pub(super) leaders: u64,
    /// Whether the leader changed between the last two connections. Also true after the first
    /// connection.
    pub(super) has_missed_leader: bool,
    /// The result of the last read of each key: the number of full syncs before the read, and the
    /// position of the value's write in the order of all writes.
    pub(super) seen: HashMap<u64, (u64, u64)>,
}

impl<C: Cache> Process<C> {
    pub(super) fn new(cache: C, incarnation: u64, clock: usize, journals_len: usize) -> Self {
        let journals = Journals::new(journals_len, WRITERS);
        let hooked = HookedCache { cache, role: Role::Writer };
        let cache = JournaledCache::new(hooked, Arc::clone(&journals));
        let writers = (0..WRITERS).map(|_| Some(cache.engine())).collect();
        let links = (0..FOLLOWERS).map(|_| None).collect();
        let (writers, links) = (RefCell::new(writers), RefCell::new(links));
        Self { incarnation, clock, cache, journals, succession: RefCell::default(), writers, links }
    }

    /// Returns the cache without the layers that write journals and call the hook.
    pub(super) fn plain(&self) -> C {
        self.cache.inner().cache.clone()
    }
}

impl<C: Cache> Follower<C> {
    pub(super) fn new(process: Rc<Process<C>>) -> Self {
        let hooked = HookedCache { cache: process.plain(), role: Role::Applier };
        let cache = JournaledCache::new(hooked, Arc::clone(&process.journals));
        Self {
            applier: Applier::for_member(cache.engine(), Arc::clone(&process.journals)),
            reader: process.plain().engine(),
            process,
            is_paused: false,
            is_delta_syncing: false,
            leaders: 0,
            has_missed_leader: false,
            seen: HashMap::new(),
        }
    }
}

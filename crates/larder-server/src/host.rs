//! Implements [`Host`], the sessions' interface to the server.

use crate::memory::Memory;
use crate::process::version;
use crate::server::Server;
use crate::stats;
use larder_operations::{Latencies, Tracker};
use larder_protocol::reply::Servers;
use larder_protocol::reply::resp::Replication;
use larder_protocol::resp::{Script, ScriptHash};
use larder_protocol::watch::ItemLine;
use larder_protocol::{Credentials, Streams, Tuning};
use larder_session::{
    Conversation, GroupIndex, GroupMap, Host, Owner, PrefixEvent, RefreshRefusal, Route,
    StatsAnswer, WatchRefusal,
};
use larder_store::{ItemChange, LimitRefused};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

/// The maximum memory that all forwarded stores together may retain is the memory for items divided
/// by this number.
const SENT_PART: usize = 16;

impl Host for Server {
    fn version(&self) -> &str {
        version::MEMCACHED_LEVEL
    }

    fn set_verbosity(&self, level: u32) {
        self.verbosity.set(level);
    }

    fn stats(&self, topic: &[u8], stat: &mut dyn FnMut(&str, &str)) -> StatsAnswer {
        stats::answer(self, topic, stat)
    }

    fn script(&self, hash: &ScriptHash) -> Option<Script> {
        self.controls.scripts.find(hash)
    }

    fn keep_script(&self, hash: ScriptHash, script: Script) {
        self.controls.scripts.keep(hash, script);
    }

    fn forget_scripts(&self) {
        self.controls.scripts.clear();
    }

    fn latencies(&self) -> Latencies {
        Latencies::sum(self.counters.iter().map(|counters| &counters.latencies))
    }

    fn authenticate(&self, credentials: &Credentials<'_>) -> bool {
        self.access.passwords.as_ref().is_some_and(|passwords| passwords.authenticate(credentials))
    }

    fn owner(&self) -> Owner {
        match &self.node.group {
            Some(group) if group.is_serving() => Owner::Local,
            Some(group) if group.may_answer_lookups_as_replica() => Owner::RemoteWithLocalReads,
            Some(_) => Owner::Remote,
            None => Owner::Local,
        }
    }

    fn shard_map(&self) -> Option<&dyn GroupMap> {
        self.node.group.as_ref()?.topology.shard_map()
    }

    fn open_route(&self, group: GroupIndex, conversation: Conversation) -> Box<dyn Route> {
        self.node.forwarders.open(group, conversation)
    }

    fn servers(&self) -> Option<Servers> {
        let group = self.node.group.as_ref()?;
        let list = group.discovery.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Servers { version: list.version, addresses: list.servers.clone() })
    }

    fn replication(&self) -> Option<Replication> {
        self.node.replication_info()
    }

    fn tracker(&self) -> Option<&Tracker> {
        Some(&self.connections.tracker)
    }

    fn start_tracking(&self) -> Option<&Tracker> {
        let tracker = Arc::clone(&self.connections.tracker);
        self.control().observe_changes(Box::new(move |change| match change {
            ItemChange::Updated(key) => tracker.note_change(key),
            ItemChange::Expired(key) => tracker.note_expiry(key),
            ItemChange::Invalidated => tracker.note_flush(),
        }));
        self.tracker()
    }

    fn request_changes(&self) {
        self.node.forwarders.request_changes();
    }

    fn is_connected(&self, connection: u64) -> bool {
        self.connections.open().contains_key(&connection)
    }

    fn reserve(&self, bytes: usize) -> bool {
        let total = self.connections.count_held(bytes.cast_signed());
        let fits = self.shed_for_reservation(total);
        if !fits {
            self.release(bytes);
        }
        fits
    }

    fn release(&self, bytes: usize) {
        self.connections.count_held(-bytes.cast_signed());
    }

    fn reserve_sent(&self, held: usize, more: usize) -> bool {
        self.node.forwarders.reserve_sent(held, more, self.memory().items / SENT_PART)
    }

    fn release_sent(&self, bytes: usize) {
        self.node.forwarders.release_sent(bytes);
    }

    fn crawler_enabled(&self) -> bool {
        self.controls.crawler_enabled()
    }

    fn enable_crawler(&self, enable: bool) {
        self.controls.enable_crawler(enable);
    }

    fn note_crawl(&self) {
        self.controls.note_crawl();
    }

    fn note_dump(&self, running: bool) {
        self.controls.note_dump(running);
    }

    fn dumps_allowed(&self) -> bool {
        !self.options.disable_dumping
    }

    fn set_memory_limit(&self, mib: u32) -> Result<(), RangeInclusive<usize>> {
        // `usize` has at least 32 bits.
        let mib = mib as usize;
        let journals = self.options.journal_bytes();
        let items = Memory::new(mib).items.saturating_sub(journals);
        self.control().set_limit(items).map_err(|refused| {
            let (min, max) = (refused.min + journals, refused.max.saturating_add(journals));
            Memory::range(LimitRefused { min, max })
        })?;
        self.controls.limit_mib.store(mib, Relaxed);
        tracing::info!("memory limit set to {mib} MiB (cache_memlimit)");
        Ok(())
    }

    fn shutdown_allowed(&self) -> bool {
        self.options.enable_shutdown
    }

    fn shut_down(&self, graceful: bool) {
        self.life.stop(graceful);
    }

    fn refresh_certs(&self) -> Result<(), RefreshRefusal> {
        let refreshed = self.refresh_certificates().ok_or(RefreshRefusal::NotEnabled)?;
        refreshed.map_err(|error| RefreshRefusal::Failed(error.to_string()))
    }

    fn apply_tuning(&self, tuning: Tuning) {
        match tuning {
            Tuning::Flash(tuning) => self
                .controls
                .tune_flash(tuning, |settings| self.control().set_flash_settings(settings)),
            _ => self.controls.apply_tuning(tuning),
        }
    }

    fn sizes_tracked(&self) -> bool {
        self.controls.tracks_sizes()
    }

    fn observed(&self) -> Streams {
        self.log.observed()
    }

    fn log_item(&self, stream: Streams, line: &ItemLine<'_>) {
        self.log.note_item(stream, line);
    }

    fn count_prefix(&self, key: &[u8], event: PrefixEvent) {
        self.prefixes.count(key, event);
    }

    fn watch(&self, streams: Streams) -> Result<u64, WatchRefusal> {
        if self.options.disable_watch {
            return Err(WatchRefusal::NotAllowed);
        }
        self.log.watch(streams).ok_or(WatchRefusal::TooMany)
    }

    fn read_log(&self, watcher: u64, output: &mut Vec<u8>) {
        self.log.read(watcher, output);
    }

    fn unwatch(&self, watcher: u64) {
        self.log.unwatch(watcher);
    }
}

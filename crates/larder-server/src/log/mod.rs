//! The log for watchers. Each client of `watch` has a buffer of lines in memcached's format. The
//! client's connection sends these lines. If the buffer is full, new lines are dropped. Watchers of
//! the gateway have queues of events instead.

#[cfg(feature = "delayed")]
pub(crate) mod evicted_keys;
pub mod verbosity;

use larder_operations::{EventKind, EventKinds, EventQueue, ItemEvent};
use larder_protocol::Streams;
use larder_protocol::watch::{self, ConnectionLine, ItemLine, LookupStatus, Peer, StoreStatus};
use larder_store::{Eviction, SizeClasses};
use larder_support::clock::Clock;
use std::fmt::Display;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// The maximum number of watchers, as in memcached.
const WATCHERS_MAX: usize = 20;

/// The log and its watchers.
#[derive(Debug)]
pub struct Log {
    clock: Clock,
    classes: SizeClasses,
    /// The maximum length of a watcher's buffer, in bytes.
    buffer_max: usize,
    /// The union of the streams that watchers have requested. Also contains [`Streams::PREFIXES`]
    /// while requests are counted by prefix.
    observed: AtomicU32,
    watchers: Mutex<Watchers>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Watchers {
    list: Vec<Watcher>,
    /// Watchers that receive events instead of lines.
    queues: Vec<Arc<EventQueue>>,
    last_id: u64,
    last_gid: u64,
}

#[derive(Debug)]
struct Watcher {
    id: u64,
    streams: Streams,
    lines: Vec<u8>,
    /// The number of lines that were dropped since the last line in the buffer, because the buffer
    /// was full.
    skipped: u64,
}

/// The line counters for `stats`.
#[derive(Debug, Default)]
#[expect(missing_docs, reason = "the names are memcached's own")]
pub struct Counts {
    pub log_worker_written: AtomicU64,
    pub log_watcher_skipped: AtomicU64,
    pub log_watcher_sent: AtomicU64,
}

impl Log {
    /// Creates a log without watchers. `buffer_max` is the maximum length of a watcher's buffer in
    /// bytes.
    #[must_use]
    pub fn new(clock: Clock, classes: SizeClasses, buffer_max: usize) -> Self {
        let (observed, watchers) = (AtomicU32::default(), Mutex::default());
        Self { clock, classes, buffer_max, observed, watchers, counts: Counts::default() }
    }

    /// Returns the union of the streams that watchers have requested. It also contains
    /// [`Streams::PREFIXES`] while requests are counted by prefix.
    #[inline]
    pub fn observed(&self) -> Streams {
        Streams(self.observed.load(Relaxed))
    }

    /// Returns the line counters.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the number of watchers. Includes watchers that receive events instead of lines.
    pub fn watchers(&self) -> usize {
        self.lock().count()
    }

    pub(crate) fn set_prefixes(&self, on: bool) {
        let bit = Streams::PREFIXES.0;
        if on {
            self.observed.fetch_or(bit, Relaxed);
        } else {
            self.observed.fetch_and(!bit, Relaxed);
        }
    }

    /// Adds a watcher and returns its ID. Returns `None` if the maximum number of watchers is
    /// reached.
    pub(crate) fn watch(&self, streams: Streams) -> Option<u64> {
        let mut watchers = self.lock();
        if watchers.count() >= WATCHERS_MAX {
            return None;
        }
        watchers.last_id += 1;
        let id = watchers.last_id;
        watchers.list.push(Watcher { id, streams, lines: Vec::new(), skipped: 0 });
        self.observe(&watchers);
        Some(id)
    }

    pub(crate) fn unwatch(&self, id: u64) {
        let mut watchers = self.lock();
        watchers.list.retain(|watcher| watcher.id != id);
        self.observe(&watchers);
    }

    /// Adds a queue that receives events. Returns false if the maximum number of watchers is
    /// reached.
    #[cfg(feature = "metrics")]
    pub(crate) fn queue(&self, queue: &Arc<EventQueue>) -> bool {
        let mut watchers = self.lock();
        if watchers.count() >= WATCHERS_MAX {
            return false;
        }
        watchers.queues.push(Arc::clone(queue));
        self.observe(&watchers);
        true
    }

    /// Removes a queue.
    #[cfg(feature = "metrics")]
    pub(crate) fn unqueue(&self, queue: &Arc<EventQueue>) {
        let mut watchers = self.lock();
        watchers.queues.retain(|other| !Arc::ptr_eq(other, queue));
        self.observe(&watchers);
    }

    fn observe(&self, watchers: &Watchers) {
        let streams = watchers.list.iter().map(|watcher| watcher.streams);
        let streams = streams.chain(watchers.queues.iter().map(|queue| streams_of(queue.kinds())));
        let all = streams.fold(Streams::default(), Streams::with);
        let keep = |observed: u32| Some(observed & Streams::PREFIXES.0 | all.0);
        // The closure always returns a value, so the update cannot fail.
        let _ = self.observed.fetch_update(Relaxed, Relaxed, keep);
    }

    /// Moves the buffered lines of a watcher to `output`. Does nothing if there is no such watcher.
    pub(crate) fn read(&self, id: u64, output: &mut Vec<u8>) {
        let mut watchers = self.lock();
        let Some(watcher) = watchers.list.iter_mut().find(|watcher| watcher.id == id) else {
            return;
        };
        if watcher.skipped > 0 && watcher.lines.len() < self.buffer_max / 2 {
            watcher.note_skipped();
        }
        let lines = std::mem::take(&mut watcher.lines);
        let sent = watch::count_lines(&lines);
        self.counts.log_watcher_sent.fetch_add(sent as u64, Relaxed);
        output.extend_from_slice(&lines);
    }

    /// Logs an eviction or a write to flash.
    pub fn note_eviction(&self, evicted: &Eviction<'_>) {
        if !self.observed().has(Streams::EVICTIONS) {
            return;
        }
        let Eviction { key, attributes, fetched, accessed, value_len: size, now, flash_bucket } =
            *evicted;
        let footprint = self.classes.footprint(key.len(), size, attributes.client_flags);
        let class = self.classes.class_of(footprint) + 1;
        let ttl = attributes.expiry.left(now);
        let idle_secs = now.0.saturating_sub(accessed.0);
        let line = match flash_bucket {
            Some(bucket) => ItemLine::FlashWrite { key, fetched, ttl, idle_secs, class, bucket },
            None => ItemLine::Eviction { key, fetched, ttl, idle_secs, class, size },
        };
        self.note_item(Streams::EVICTIONS, &line);
    }

    /// Logs an event about an item. Each watcher gets a line, and each watcher of the gateway gets
    /// an event in its queue.
    pub(crate) fn note_item(&self, stream: Streams, line: &ItemLine<'_>) {
        self.write(stream, |rest| line.write(rest));
        let watchers = self.lock();
        if !watchers.queues.is_empty()
            && let Some(event) = event_of(line, SystemTime::now())
        {
            watchers.queues.iter().for_each(|queue| queue.push(&event));
        }
    }

    /// If `close_reason` is `None`, logs that a connection was accepted. Otherwise, logs that the
    /// connection was closed for the reason in `close_reason`. `peer` is in memcached's format.
    pub(crate) fn note_connection(&self, peer: &str, client: u64, close_reason: Option<&str>) {
        if !self.observed().has(Streams::CONNEVENTS) {
            return;
        }
        let peer = peer_of(peer);
        let connection = match close_reason {
            None => ConnectionLine::New { peer, client },
            Some(reason) => ConnectionLine::Closed { peer, reason, client },
        };
        self.write(Streams::CONNEVENTS, |line| connection.write(line));
    }

    /// Logs the TLS error or stream error that closes a connection.
    pub(crate) fn note_fault(&self, client: u64, tls: bool, why: impl Display) {
        if !self.observed().has(Streams::CONNEVENTS) {
            return;
        }
        let failed = ConnectionLine::Failed { tls, why: &why, client };
        self.write(Streams::CONNEVENTS, |line| failed.write(line));
    }

    /// Writes a line to the buffers of all watchers of `stream`. `rest` writes the part of the line
    /// after the time and the sequence number. `rest` is called only if the stream has watchers.
    pub(crate) fn write(&self, stream: Streams, rest: impl FnOnce(&mut Vec<u8>)) {
        let mut watchers = self.lock();
        if !watchers.list.iter().any(|watcher| watcher.streams.has(stream)) {
            return;
        }
        watchers.last_gid += 1;
        let mut line = Vec::with_capacity(160);
        watch::start_line(self.clock.precise(), watchers.last_gid, &mut line);
        rest(&mut line);
        watch::end_line(&mut line);
        self.counts.log_worker_written.fetch_add(1, Relaxed);
        for watcher in watchers.list.iter_mut().filter(|watcher| watcher.streams.has(stream)) {
            if !watcher.push(&line, self.buffer_max) {
                self.counts.log_watcher_skipped.fetch_add(1, Relaxed);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Watchers> {
        // The lines stay valid if a thread panics while holding the lock.
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watcher {
    /// Appends a line to the buffer. Returns false and counts the line as skipped if the buffer
    /// would exceed `buffer_max` bytes.
    fn push(&mut self, line: &[u8], buffer_max: usize) -> bool {
        let room = buffer_max.saturating_sub(self.lines.len());
        if line.len() + watch::SKIPPED_LINES_LEN_MAX > room {
            self.skipped += 1;
            return false;
        }
        if self.skipped > 0 {
            self.note_skipped();
        }
        self.lines.extend_from_slice(line);
        true
    }

    fn note_skipped(&mut self) {
        watch::skipped_lines(std::mem::take(&mut self.skipped), &mut self.lines);
    }
}

impl Watchers {
    fn count(&self) -> usize {
        self.list.len() + self.queues.len()
    }
}

/// Returns the streams whose log lines produce events of these kinds.
fn streams_of(kinds: EventKinds) -> Streams {
    let of = [
        (EventKind::Hit, Streams::FETCHERS),
        (EventKind::Miss, Streams::FETCHERS),
        (EventKind::Stored, Streams::MUTATIONS),
        (EventKind::Removed, Streams::DELETIONS),
        (EventKind::Evicted, Streams::EVICTIONS),
    ];
    let wanted = of.into_iter().filter(|(kind, _)| kinds.has(*kind));
    wanted.fold(Streams::default(), |all, (_, stream)| all.with(stream))
}

/// Converts a line to an event. Returns `None` for a lookup by a request that does not read the
/// item, for a failed store, and for an item that was written to flash.
fn event_of<'k>(line: &ItemLine<'k>, time: SystemTime) -> Option<ItemEvent<&'k [u8]>> {
    let (kind, key, value_len, ttl) = match *line {
        ItemLine::Get { is_read: false, .. } => return None,
        ItemLine::Get { key, found: LookupStatus::Live, size, .. } => {
            (EventKind::Hit, key, size, None)
        }
        ItemLine::Get { key, .. } => (EventKind::Miss, key, 0, None),
        ItemLine::Store { key, status: StoreStatus::Stored, ttl, size, .. } => {
            (EventKind::Stored, key, size, (ttl != 0).then_some(ttl))
        }
        ItemLine::Store { .. } | ItemLine::FlashWrite { .. } => return None,
        ItemLine::Deleted { key, size, .. } => (EventKind::Removed, key, size, None),
        ItemLine::Eviction { key, ttl, size, .. } => (EventKind::Evicted, key, size, ttl),
    };
    Some(ItemEvent { kind, key, value_len, ttl, time })
}

/// Parses a peer's name in memcached's format, such as `tcp:127.0.0.1:50132`.
fn peer_of(name: &str) -> Peer<'_> {
    let Some((kind, rest)) = name.split_once(':') else {
        return Peer { transport: "tcp", address: name, port: "0" };
    };
    match (kind, rest.rsplit_once(':')) {
        ("unix", _) => Peer { transport: "local", address: "unix", port: "0" },
        ("udp" | "udp6", Some((host, port))) => {
            Peer { transport: "udp", address: bare(host), port }
        }
        (_, Some((host, port))) => Peer { transport: "tcp", address: bare(host), port },
        _ => Peer { transport: "tcp", address: rest, port: "0" },
    }
}

/// Returns an IPv6 address without its brackets.
fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::slab_classes::size_classes;

    fn log() -> Log {
        Log::new(Clock::start(), size_classes(true), 256 << 10)
    }

    fn lookup(is_read: bool) -> ItemLine<'static> {
        let found = LookupStatus::Live;
        ItemLine::Get { key: b"a b", found, class: 1, client: 7, size: 2, is_read }
    }

    fn fetched(log: &Log) {
        log.write(Streams::FETCHERS, |rest| lookup(true).write(rest));
    }

    fn lines(log: &Log, id: u64) -> Vec<String> {
        let mut output = Vec::new();
        log.read(id, &mut output);
        String::from_utf8(output).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_slow_watcher_is_told_how_much_it_missed() {
        let log = log();
        let id = log.watch(Streams::FETCHERS).unwrap();
        (0..10_000).for_each(|_| fetched(&log));
        let seen = lines(&log, id);
        assert!(
            seen[0].ends_with(" gid=1 type=item_get key=a%20b status=found clsid=1 cfd=7 size=2")
        );
        assert!((1000..10_000).contains(&seen.len()));
        fetched(&log);
        let missed = 10_000 - seen.len();
        let later = lines(&log, id);
        assert_eq!(later[0], format!("skipped={missed}"));
        assert!(later[1].contains(" gid=10001 "));
        assert_eq!(log.counts().log_watcher_skipped.load(Relaxed), missed as u64);
        assert_eq!(log.counts().log_worker_written.load(Relaxed), 10_001);
    }

    #[test]
    fn only_reads_cause_lookup_events() {
        let kind = |line| event_of(&line, SystemTime::now()).map(|event| event.kind);
        assert_eq!(kind(lookup(true)), Some(EventKind::Hit));
        assert_eq!(kind(lookup(false)), None);
    }

    #[test]
    fn nothing_is_observed_without_watchers() {
        let log = log();
        let both = Streams::FETCHERS.with(Streams::EVICTIONS);
        let (first, second) = (log.watch(Streams::FETCHERS).unwrap(), log.watch(both).unwrap());
        assert_eq!(log.observed(), both);
        log.set_prefixes(true);
        log.unwatch(second);
        assert_eq!(log.observed(), Streams::FETCHERS.with(Streams::PREFIXES));
        log.unwatch(first);
        log.set_prefixes(false);
        assert_eq!(log.observed(), Streams::default());
    }

    #[test]
    fn watchers_are_few() {
        let log = log();
        let ids: Vec<u64> = (0..20).map(|_| log.watch(Streams::FETCHERS).unwrap()).collect();
        assert_eq!(log.watch(Streams::FETCHERS), None);
        log.unwatch(ids[3]);
        assert!(log.watch(Streams::FETCHERS).is_some());
    }

    #[test]
    fn peers_as_memcached_shows_them() {
        let shown = |name| {
            let Peer { transport, address, port } = peer_of(name);
            (transport, address, port)
        };
        assert_eq!(shown("tcp:127.0.0.1:50132"), ("tcp", "127.0.0.1", "50132"));
        assert_eq!(shown("tcp6:[::1]:7"), ("tcp", "::1", "7"));
        assert_eq!(shown("unix:"), ("local", "unix", "0"));
    }
}

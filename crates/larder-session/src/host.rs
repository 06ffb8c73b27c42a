//! The interface through which a session calls the server.

use crate::route::{Conversation, GroupIndex, NoRoute, Owner, Route};
use larder_operations::{Latencies, Tracker};
use larder_protocol::reply::resp::Replication;
use larder_protocol::reply::{PrefixCounts, Servers, StatsRefusal};
use larder_protocol::resp::{Script, ScriptHash};
use larder_protocol::watch::ItemLine;
use larder_protocol::{Credentials, Streams, Tuning};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// The server's side of commands that need more than the cache. Tests implement a small host.
pub trait Host {
    /// Returns the version in the reply to `version`, without `VERSION `.
    fn version(&self) -> &str;

    /// Sets the log level (`verbosity`): 0, 1 or 2.
    fn set_verbosity(&self, level: u32);

    /// Answers `stats <topic>`: calls `stat` for each line. The topic `""` is the general page.
    fn stats(&self, topic: &[u8], stat: &mut dyn FnMut(&str, &str)) -> StatsAnswer;

    /// Returns the latencies of requests, for each class of commands.
    fn latencies(&self) -> Latencies {
        Latencies::default()
    }

    /// Returns whether the credentials of a login are right. Sessions call it only if the server
    /// requires a login ([`crate::Session::opening`], [`crate::Session::resp()`]).
    fn authenticate(&self, _credentials: &Credentials<'_>) -> bool {
        false
    }

    /// Returns the owner of the keys of this server's group. Sessions call it for every batch of
    /// requests if [`crate::Settings::forwards`] is set.
    fn owner(&self) -> Owner {
        Owner::Local
    }

    /// Returns the shard map, or `None` if this server's group owns all keys. Sessions call it for
    /// every batch of requests if [`crate::Settings::forwards`] is set.
    fn shard_map(&self) -> Option<&dyn GroupMap> {
        None
    }

    /// Opens a route to the owner of a group's keys. Sessions call it only if another node is the
    /// owner.
    fn open_route(&self, _group: GroupIndex, _conversation: Conversation) -> Box<dyn Route> {
        Box::new(NoRoute)
    }

    /// Returns the servers of the cluster (`config get cluster`); `None` without a cluster.
    fn servers(&self) -> Option<Servers> {
        None
    }

    /// Returns the replication role (`ROLE`, `INFO replication`), or `None` if the server neither
    /// follows a leader nor accepts followers.
    fn replication(&self) -> Option<Replication> {
        None
    }

    /// Returns the tracker of items that clients keep copies of, or `None` if there is no tracker.
    fn tracker(&self) -> Option<&Tracker> {
        None
    }

    /// Makes the cache report its changes to the tracker, and returns the tracker. Returns `None`
    /// if this is not possible.
    fn start_tracking(&self) -> Option<&Tracker> {
        self.tracker()
    }

    /// Requests all changes of the items of other groups for the tracker, because a connection has
    /// subscribed to prefixes (`BCAST`).
    fn request_changes(&self) {}

    /// Returns whether the connection with this number is open.
    fn is_connected(&self, _connection: u64) -> bool {
        false
    }

    /// Reserves `bytes` of memory for a connection. Returns false if all connections together would
    /// exceed the limit.
    fn reserve(&self, bytes: usize) -> bool;

    /// Releases reserved bytes.
    fn release(&self, bytes: usize);

    /// Reserves `more` bytes for the sent bytes of a forwarded store, which already has `held` bytes.
    /// Returns false if all such stores together would exceed the limit. A single store always fits.
    fn reserve_sent(&self, _held: usize, _more: usize) -> bool {
        true
    }

    /// Releases bytes of [`Self::reserve_sent`].
    fn release_sent(&self, _bytes: usize) {}

    /// Returns whether the background search for expired items is on (`lru_crawler`).
    fn crawler_enabled(&self) -> bool {
        true
    }

    /// Switches the background search for expired items on or off.
    fn enable_crawler(&self, _enable: bool) {}

    /// Counts a crawl or dump that a client has requested.
    fn note_crawl(&self) {}

    /// Records that an `lru_crawler metadump` or `mgdump` has started or ended.
    fn note_dump(&self, _running: bool) {}

    /// Returns whether clients may dump keys (no `-X`).
    fn dumps_allowed(&self) -> bool {
        true
    }

    /// Sets the memory limit (`cache_memlimit`), in MiB.
    ///
    /// # Errors
    /// The limit is refused. The value is the range of accepted limits, in MiB. If the limit cannot
    /// change, this range contains only the current one.
    fn set_memory_limit(&self, _mib: u32) -> Result<(), RangeInclusive<usize>> {
        Err(0..=0)
    }

    /// Returns whether `stats sizes` counts items.
    fn sizes_tracked(&self) -> bool {
        false
    }

    /// Returns the log streams that have a watcher, and [`Streams::PREFIXES`] if requests are
    /// counted by prefix. Sessions call it in each poll, except a poll that only checks whether
    /// held replies may be sent.
    fn observed(&self) -> Streams {
        Streams::default()
    }

    /// Logs an event of an item for the watchers of `stream`.
    fn log_item(&self, _stream: Streams, _line: &ItemLine<'_>) {}

    /// Counts a request by the prefix of its key.
    fn count_prefix(&self, _key: &[u8], _event: PrefixEvent) {}

    /// Registers a watcher, for which the host keeps log lines. Returns the watcher's number.
    ///
    /// # Errors
    /// [`WatchRefusal`]: the watcher is not registered.
    fn watch(&self, _streams: Streams) -> Result<u64, WatchRefusal> {
        Err(WatchRefusal::NoLog)
    }

    /// Writes the log lines kept for a watcher.
    fn read_log(&self, _watcher: u64, _output: &mut Vec<u8>) {}

    /// Removes a watcher.
    fn unwatch(&self, _watcher: u64) {}

    /// Returns whether clients may shut the server down (`-A`).
    fn shutdown_allowed(&self) -> bool {
        false
    }

    /// Shuts the server down: at once, or after it has answered the requests that have arrived.
    fn shut_down(&self, _graceful: bool) {}

    /// Reloads the certificates for new connections.
    ///
    /// # Errors
    /// [`RefreshRefusal`]: the server keeps the current certificates.
    fn refresh_certs(&self) -> Result<(), RefreshRefusal> {
        Err(RefreshRefusal::NotEnabled)
    }

    /// Returns the loaded script whose text has this hash.
    fn script(&self, _hash: &ScriptHash) -> Option<Script> {
        None
    }

    /// Stores the hash of a loaded script.
    fn keep_script(&self, _hash: ScriptHash, _script: Script) {}

    /// Removes all loaded scripts (`SCRIPT FLUSH`).
    fn forget_scripts(&self) {}

    /// Applies a setting of the flash tier. Records other settings for `stats settings`.
    fn apply_tuning(&self, _tuning: Tuning) {}
}

/// The assignment of keys to groups.
pub trait GroupMap {
    /// Returns the group that owns a key.
    fn group_of(&self, key: &[u8]) -> GroupIndex;

    /// Returns the groups that own keys or are about to import some, in the order of their indices.
    /// A flush of all items is sent to each of them.
    fn groups(&self) -> Vec<GroupIndex>;

    /// Returns the version of the map. It increases when keys move to other groups.
    fn version(&self) -> u64;
}

/// A classic or binary request, for counts by prefix. Requests of other protocols are not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixEvent {
    /// `get` or `gat`; true if it found the item.
    Get(bool),
    /// A store, even if its item is too large or there is no memory for it. A store with a
    /// malformed end of its value is not counted.
    Set,
    /// A removal, with any outcome.
    Delete,
}

/// The reason for refusing a watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchRefusal {
    /// Watching is forbidden (`-W`).
    NotAllowed,
    /// The limit of watchers is reached.
    TooMany,
    /// There is no log.
    NoLog,
}

/// The reason for keeping the current certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefreshRefusal {
    /// There is no TLS (no `-Z`).
    NotEnabled,
    /// Loading the files failed, with this error message.
    Failed(String),
}

/// The end of the reply to a stats request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatsAnswer {
    /// The end of a page, after the lines passed to `stat`.
    Lines,
    /// The counters were reset (`stats reset`).
    Reset,
    /// A setting was changed (`stats detail on`).
    Done,
    /// The counts of requests by prefix (`stats detail dump`).
    Prefixes(BTreeMap<Vec<u8>, PrefixCounts>),
    /// Whether items are counted by size from now on (`stats sizes_enable`, `sizes_disable`).
    SizesStatus(bool),
    /// The request is refused, and the session answers with an error.
    Refused(StatsRefusal),
}

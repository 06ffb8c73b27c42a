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

/// The server as a session uses it, without the cache. Tests use a small implementation.
pub trait Host {
    /// Returns the version in the reply to `version`, without `VERSION `.
    fn version(&self) -> &str;

    /// Sets the log level (`verbosity`): 0, 1 or 2.
    fn set_verbosity(&self, level: u32);

    /// Answers `stats <topic>`: calls `stat` with the name and the value of each line. The topic
    /// `""` selects the general page.
    fn stats(&self, topic: &[u8], stat: &mut dyn FnMut(&str, &str)) -> StatsAnswer;

    /// Returns the latency histograms of requests, one per command class.
    fn latencies(&self) -> Latencies {
        Latencies::default()
    }

    /// Returns whether the credentials of a login are valid. Sessions call this method only if the
    /// server requires a login ([`crate::Session::opening`], [`crate::Session::resp()`]).
    fn authenticate(&self, _credentials: &Credentials<'_>) -> bool {
        false
    }

    /// Returns the node that owns the keys of this server's group. Sessions call this method for
    /// every batch of requests if [`crate::Settings::forwards`] is set.
    fn owner(&self) -> Owner {
        Owner::Local
    }

    /// Returns the shard map, or `None` if this server's group owns all keys. Sessions call this
    /// method for every batch of requests if [`crate::Settings::forwards`] is set.
    fn shard_map(&self) -> Option<&dyn GroupMap> {
        None
    }

    /// Opens a route to the owner of a group's keys. Sessions call this method only if another node
    /// is the owner.
    fn open_route(&self, _group: GroupIndex, _conversation: Conversation) -> Box<dyn Route> {
        Box::new(NoRoute)
    }

    /// Returns the servers of the cluster for `config get cluster`, or `None` without a cluster.
    fn servers(&self) -> Option<Servers> {
        None
    }

    /// Returns the replication role for `ROLE` and `INFO replication`, or `None` if the server
    /// neither follows a leader nor accepts followers.
    fn replication(&self) -> Option<Replication> {
        None
    }

    /// Returns the tracker of the items in clients' near caches, or `None` if the server has no
    /// tracker.
    fn tracker(&self) -> Option<&Tracker> {
        None
    }

    /// Makes the cache report changes of items to the tracker, and returns the tracker. Returns
    /// `None` if the server cannot track changes.
    fn start_tracking(&self) -> Option<&Tracker> {
        self.tracker()
    }

    /// Makes the tracker request all changes of items from the other groups. A session calls this
    /// method when its connection subscribes to prefixes (`BCAST`).
    fn request_changes(&self) {}

    /// Returns whether the connection with this number is open.
    fn is_connected(&self, _connection: u64) -> bool {
        false
    }

    /// Reserves `bytes` bytes of memory for a connection. Returns false if all connections together
    /// would exceed the memory limit.
    fn reserve(&self, bytes: usize) -> bool;

    /// Releases reserved bytes.
    fn release(&self, bytes: usize);

    /// Reserves `more` bytes of memory for the sent bytes of a forwarded store. The store already
    /// has a reservation of `held` bytes. Returns false if all such stores together would exceed
    /// the limit. If no other store has a reservation, returns true.
    fn reserve_sent(&self, _held: usize, _more: usize) -> bool {
        true
    }

    /// Releases bytes that [`Self::reserve_sent`] has reserved.
    fn release_sent(&self, _bytes: usize) {}

    /// Returns whether the background search for expired items is on (`lru_crawler`).
    fn crawler_enabled(&self) -> bool {
        true
    }

    /// Enables or disables the background search for expired items.
    fn enable_crawler(&self, _enable: bool) {}

    /// Counts a crawl or dump that a client has requested.
    fn note_crawl(&self) {}

    /// Records that an `lru_crawler metadump` or `mgdump` has started or ended.
    fn note_dump(&self, _running: bool) {}

    /// Returns whether clients may dump keys. The option `-X` forbids dumps.
    fn dumps_allowed(&self) -> bool {
        true
    }

    /// Sets the memory limit (`cache_memlimit`), in MiB.
    ///
    /// # Errors
    /// The host refuses the limit. The error value is the range of accepted limits, in MiB. If the
    /// limit cannot change, the range contains only the current limit.
    fn set_memory_limit(&self, _mib: u32) -> Result<(), RangeInclusive<usize>> {
        Err(0..=0)
    }

    /// Returns whether `stats sizes`, which counts items by size, is enabled.
    fn sizes_tracked(&self) -> bool {
        false
    }

    /// Returns the log streams that have a watcher. Includes [`Streams::PREFIXES`] if the host
    /// counts requests by prefix. Sessions call this method in each poll, except in polls that only
    /// check whether held replies may be sent.
    fn observed(&self) -> Streams {
        Streams::default()
    }

    /// Logs an event about an item for the watchers of `stream`.
    fn log_item(&self, _stream: Streams, _line: &ItemLine<'_>) {}

    /// Counts a request by the prefix of its key.
    fn count_prefix(&self, _key: &[u8], _event: PrefixEvent) {}

    /// Registers a watcher and returns its number. From then on, the host buffers log lines for the
    /// watcher.
    ///
    /// # Errors
    /// [`WatchRefusal`]: the host has not registered the watcher.
    fn watch(&self, _streams: Streams) -> Result<u64, WatchRefusal> {
        Err(WatchRefusal::NoLog)
    }

    /// Appends the buffered log lines of a watcher to `output`.
    fn read_log(&self, _watcher: u64, _output: &mut Vec<u8>) {}

    /// Removes a watcher.
    fn unwatch(&self, _watcher: u64) {}

    /// Returns whether clients may shut down the server. The option `-A` permits it.
    fn shutdown_allowed(&self) -> bool {
        false
    }

    /// Shuts down the server: immediately, or if `graceful` after it has answered the requests that
    /// have arrived.
    fn shut_down(&self, _graceful: bool) {}

    /// Reloads the certificates for new connections.
    ///
    /// # Errors
    /// [`RefreshRefusal`]: the server keeps the current certificates.
    fn refresh_certs(&self) -> Result<(), RefreshRefusal> {
        Err(RefreshRefusal::NotEnabled)
    }

    /// Returns the loaded script whose source has this hash, or `None` if it is not loaded.
    fn script(&self, _hash: &ScriptHash) -> Option<Script> {
        None
    }

    /// Stores a loaded script under the hash of its source.
    fn keep_script(&self, _hash: ScriptHash, _script: Script) {}

    /// Removes all loaded scripts (`SCRIPT FLUSH`).
    fn forget_scripts(&self) {}

    /// Applies a setting of the flash tier. For other settings, only stores the value for `stats
    /// settings`.
    fn apply_tuning(&self, _tuning: Tuning) {}
}

/// The shard map as a session uses it: the assignment of keys to groups.
pub trait GroupMap {
    /// Returns the group that owns a key.
    fn group_of(&self, key: &[u8]) -> GroupIndex;

    /// Returns the groups that own keys or will import keys, ordered by index. The session sends a
    /// flush of all items to each of these groups.
    fn groups(&self) -> Vec<GroupIndex>;

    /// Returns the version of the map, which increases when keys move to other groups.
    fn version(&self) -> u64;
}

/// An event of a classic or binary request, for request counts per key prefix. Requests of other
/// protocols are not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixEvent {
    /// `get` or `gat`; true if it found the item.
    Get(bool),
    /// A store, including a store that is refused because the item is too large or memory is full.
    /// A store whose value has a malformed end is not counted.
    Set,
    /// A removal, regardless of its outcome.
    Delete,
}

/// The reason for refusing a watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchRefusal {
    /// The option `-W` forbids watching.
    NotAllowed,
    /// The maximum number of watchers is reached.
    TooMany,
    /// There is no log.
    NoLog,
}

/// The reason for keeping the current certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefreshRefusal {
    /// The server does not use TLS, because `-Z` is not set.
    NotEnabled,
    /// Loading the certificate files failed with this error message.
    Failed(String),
}

/// The end of the reply to a stats request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatsAnswer {
    /// The end of a page. The host has passed the lines to `stat`.
    Lines,
    /// The counters were reset (`stats reset`).
    Reset,
    /// A setting was changed (`stats detail on`).
    Done,
    /// The request counts per key prefix (`stats detail dump`).
    Prefixes(BTreeMap<Vec<u8>, PrefixCounts>),
    /// True if the server has started to count items by size, false if it has stopped (`stats
    /// sizes_enable`, `sizes_disable`).
    SizesStatus(bool),
    /// The host refuses the request. The session replies with an error.
    Refused(StatsRefusal),
}

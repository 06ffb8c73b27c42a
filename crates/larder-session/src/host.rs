//! The interface through which a session calls the server.

use crate::route::{Conversation, Group, NoRoute, Owner, Route};
use larder_operations::Latencies;
use larder_protocol::reply::resp::Replication;
use larder_protocol::reply::{PrefixCounts, Servers, StatsRefusal};
use larder_protocol::watch::ItemLine;
use larder_protocol::{Credentials, Streams, Tuning};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// The server, as far as commands need it. Tests implement a small one of their own.
pub trait Host {
    /// The version that `version` answers, without `VERSION `.
    fn version(&self) -> &str;

    /// Sets the log level (`verbosity`): 0, 1 or 2.
    fn set_verbosity(&self, level: u32);

    /// Answers `stats <topic>` by calling `stat` for each line (`""` is the general page).
    fn stats(&self, topic: &[u8], stat: &mut dyn FnMut(&str, &str)) -> StatsAnswer;

    /// How long requests have taken, by class.
    fn latencies(&self) -> Latencies {
        Latencies::default()
    }

    /// Whether the credentials of a login are right. Sessions call it only if the server requires a login
    /// ([`crate::Session::opening`]).
    fn authenticate(&self, _credentials: &Credentials<'_>) -> bool {
        false
    }

    /// Who answers requests about items of this server's group. Sessions ask with every batch of requests, if
    /// [`crate::Settings::forwards`].
    fn owner(&self) -> Owner {
        Owner::Local
    }

    /// How keys are divided among groups; `None` if this server's group has all. Sessions ask as above.
    fn shard_map(&self) -> Option<&dyn ShardMap> {
        None
    }

    /// The way to who answers requests about items of a group, if that is not this server.
    fn open_route(&self, _group: Group, _conversation: Conversation) -> Box<dyn Route> {
        Box::new(NoRoute)
    }

    /// The servers of the cluster (`config get cluster`); `None` without one.
    fn servers(&self) -> Option<Servers> {
        None
    }

    /// What the server is to other servers (`ROLE`, `INFO replication`); `None` if it neither follows one nor may be
    /// followed.
    fn replication(&self) -> Option<Replication> {
        None
    }

    /// Reserves `bytes` of memory for a connection. Returns false if all connections together would hold
    /// more than the limit.
    fn reserve(&self, bytes: usize) -> bool;

    /// Gives reserved bytes back.
    fn release(&self, bytes: usize);

    /// Whether expired items are looked for in the background (`lru_crawler`).
    fn crawler_enabled(&self) -> bool {
        true
    }

    /// Switches the background search for expired items on or off.
    fn enable_crawler(&self, _enable: bool) {}

    /// Counts a crawl or dump that a client asked for.
    fn note_crawl(&self) {}

    /// Notes that an `lru_crawler metadump` or `mgdump` begins, or ends.
    fn note_dump(&self, _running: bool) {}

    /// Whether keys may be dumped (no `-X`).
    fn dumps_allowed(&self) -> bool {
        true
    }

    /// Sets the memory limit (`cache_memlimit`), in MiB.
    ///
    /// # Errors
    /// The limits that could be set instead; that may be the present one alone.
    fn set_memory_limit(&self, _mib: u32) -> Result<(), RangeInclusive<usize>> {
        Err(0..=0)
    }

    /// Whether `stats sizes` counts items.
    fn sizes_tracked(&self) -> bool {
        false
    }

    /// The log streams that somebody watches, and [`Streams::PREFIXES`] if requests are counted by prefix.
    /// Sessions call it once a turn.
    fn observed(&self) -> Streams {
        Streams::default()
    }

    /// Logs what happened to an item, for the watchers of `stream`.
    fn log_item(&self, _stream: Streams, _line: &ItemLine<'_>) {}

    /// Counts a request by the prefix of its key.
    fn count_prefix(&self, _key: &[u8], _event: PrefixEvent) {}

    /// Begins to keep log lines for a watcher; returns the number of the watcher.
    ///
    /// # Errors
    /// [`WatchRefusal`]: no lines are kept.
    fn watch(&self, _streams: Streams) -> Result<u64, WatchRefusal> {
        Err(WatchRefusal::NoLog)
    }

    /// Writes the lines that were kept for a watcher.
    fn read_log(&self, _watcher: u64, _output: &mut Vec<u8>) {}

    /// Keeps no more lines for a watcher.
    fn unwatch(&self, _watcher: u64) {}

    /// Whether clients may end the server (`-A`).
    fn shutdown_allowed(&self) -> bool {
        false
    }

    /// Ends the server: at once, or after it has answered the requests that have arrived.
    fn shut_down(&self, _graceful: bool) {}

    /// Reads the certificates again, for new connections.
    ///
    /// # Errors
    /// [`RefreshRefusal`]: the certificates that were there are kept.
    fn refresh_certs(&self) -> Result<(), RefreshRefusal> {
        Err(RefreshRefusal::NotEnabled)
    }

    /// Remembers a setting for `stats settings`.
    fn set(&self, _tuning: Tuning) {}
}

/// How keys are divided among groups.
pub trait ShardMap {
    /// The group that has a key.
    fn group_of(&self, key: &[u8]) -> Group;

    /// The groups that have keys or are about to get some, in order: those that all items are removed from.
    fn groups(&self) -> Vec<Group>;

    /// Rises when keys get to other groups.
    fn version(&self) -> u64;
}

/// A request that is counted by prefix. Meta requests are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixEvent {
    /// `get` or `gat`, and whether it found the item.
    Get(bool),
    /// A store, with any outcome.
    Set,
    /// A removal, with any outcome.
    Delete,
}

/// Why a client cannot watch the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchRefusal {
    /// Watching is forbidden (`-W`).
    NotAllowed,
    /// The limit of watchers is reached.
    TooMany,
    /// There is no log.
    NoLog,
}

/// Why certificates were not read again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefreshRefusal {
    /// There is no TLS (no `-Z`).
    NotEnabled,
    /// The files could not be loaded, for the reason that this line gives.
    Failed(String),
}

/// How a stats request ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatsAnswer {
    /// With the end of a page, after the lines that were passed to `stat`.
    Lines,
    /// The counters were reset (`stats reset`).
    Reset,
    /// A setting was changed (`stats detail on`).
    Done,
    /// With the counts of requests by prefix (`stats detail dump`).
    Prefixes(BTreeMap<Vec<u8>, PrefixCounts>),
    /// With whether items are counted by size from now on (`stats sizes_enable`, `sizes_disable`).
    SizesStatus(bool),
    /// With an error.
    Refused(StatsRefusal),
}

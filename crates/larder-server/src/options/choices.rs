//! Value types for options with a fixed set of choices.

use clap::ValueEnum;
use larder_replica::DoubtPolicy;
use larder_store::journal::AckMode;

/// The engine that stores the items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineKind {
    /// Larder's own engine: items in segments of one memory mapping; supports flash and restarts
    Segment,
    /// The moka crate: a concurrent map on the heap with LRU or TinyLFU eviction
    Moka,
    /// The dashmap crate: a concurrent map on the heap that never evicts; requires -M
    Dashmap,
    /// The segment engine with lookups that complete late at random, for tests of waiting requests
    #[value(hide = true)]
    Delayed,
}

impl EngineKind {
    /// Returns whether the segment engine stores the items.
    pub(crate) fn is_segment(self) -> bool {
        matches!(self, Self::Segment | Self::Delayed)
    }
}

/// The eviction policy of the moka engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EvictionPolicy {
    /// Evict the least recently used item
    Lru,
    /// Evict the least frequently used item
    TinyLfu,
}

/// The changes whose replies wait for every in-sync member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Ack {
    /// Answer at once; if the leader fails, changes not yet sent to followers are lost
    None,
    /// Wait for deletes and invalidations; after a failover, no reader sees a deleted item
    Deletes,
    /// Wait for all changes; a failover loses no acknowledged change
    Writes,
}

impl From<Ack> for AckMode {
    fn from(ack: Ack) -> Self {
        match ack {
            Ack::None => Self::None,
            Ack::Deletes => Self::Deletes,
            Ack::Writes => Self::Writes,
        }
    }
}

/// Leader behaviour when neither etcd nor every in-sync member is reachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Doubt {
    /// Refuse requests for items, because another member may lead already
    Stop,
    /// Keep serving items, although another member may lead already
    Serve,
}

impl From<Doubt> for DoubtPolicy {
    fn from(doubt: Doubt) -> Self {
        match doubt {
            Doubt::Stop => Self::Stop,
            Doubt::Serve => Self::Serve,
        }
    }
}

/// The kind of event loop that the worker threads run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Runtime {
    /// One event loop per worker thread; the fastest
    PerCore,
    /// One current-thread Tokio runtime per worker thread
    TokioCurrentThread,
    /// One work-stealing Tokio runtime for all worker threads
    TokioMultiThread,
}

//! Groups of commands. Each group has a latency histogram.

/// A group of commands with one latency histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Command {
    /// Lookups of one key: `get`, `get_with_flags`, `gets`, and the lookups in `update`.
    Get,
    /// Lookups of several keys. One call counts once per server.
    GetMany,
    /// Changes of an expiry: `touch`, `gat`.
    Touch,
    /// Stores of one item, including the stores in `update` and `get_or_compute`.
    Store,
    /// Stores of several items. One call counts once per server.
    StoreMany,
    /// Deletes of one key: `delete`, `delete_if`, `invalidate`, and the deletes in
    /// `get_or_compute`.
    Delete,
    /// Deletes of several keys. One call counts once per server.
    DeleteMany,
    /// Changes of a number: `incr`, `decr`, `incr_or_create`.
    Count,
    /// Lookups of `get_or_compute`, without the computation. With servers without meta commands,
    /// such lookups count as [`Get`](Self::Get).
    Lease,
    /// All other commands: `flush`, `versions`, `stats`, and probes for meta commands.
    Other,
}

impl Command {
    /// All commands.
    pub const ALL: [Self; 10] = [
        Self::Get,
        Self::GetMany,
        Self::Touch,
        Self::Store,
        Self::StoreMany,
        Self::Delete,
        Self::DeleteMany,
        Self::Count,
        Self::Lease,
        Self::Other,
    ];

    /// Returns the value of the label `command` in reported metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::GetMany => "get_many",
            Self::Touch => "touch",
            Self::Store => "store",
            Self::StoreMany => "store_many",
            Self::Delete => "delete",
            Self::DeleteMany => "delete_many",
            Self::Count => "count",
            Self::Lease => "lease",
            Self::Other => "other",
        }
    }

    /// Returns the group that counts batches of this group's commands.
    pub(crate) const fn many(self) -> Self {
        match self {
            Self::Store => Self::StoreMany,
            Self::Delete => Self::DeleteMany,
            other => other,
        }
    }
}

//! Commands that are timed together.

/// Commands that are timed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Command {
    /// Look-ups of one key: `get`, `get_with_flags`, `gets`.
    Get,
    /// Look-ups of several keys. Each server that is asked counts.
    GetMany,
    /// Changes of an expiry: `touch`, `gat`.
    Touch,
    /// Stores of one item: `set`, `add`, `replace`, `append`, `prepend`, `cas`, and those of `get_or_compute`.
    Store,
    /// Stores of several items. Each server that is asked counts.
    StoreMany,
    /// Removals of one key: `delete`, `delete_if`, `invalidate`.
    Delete,
    /// Removals of several keys. Each server that is asked counts.
    DeleteMany,
    /// Changes of a number: `incr`, `decr`, `incr_or_create`.
    Count,
    /// Look-ups of `get_or_compute`. The computation is no part of them.
    Lease,
    /// All others: `flush`, `versions`, `stats`, and the question whether a server knows meta commands.
    Other,
}

impl Command {
    /// Every command.
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

    /// Its name, as the label `command` has it.
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

    /// Several of these in one call.
    pub(crate) const fn many(self) -> Self {
        match self {
            Self::Store => Self::StoreMany,
            Self::Delete => Self::DeleteMany,
            other => other,
        }
    }
}

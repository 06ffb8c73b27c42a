//! Replies in, bytes out: each function writes the answer to one kind of request, in the dialect of
//! its [`Shape`]. A suppressed answer (`noreply`, quiet) writes nothing.

/// What a hit shows. Every number is of the moment the flag is read, see the fields.
#[derive(Clone, Copy, Debug)]
pub struct Hit<'k> {
    /// The decoded key, for answers that show it (`VALUE`, binary `getk`, `mg k`).
    pub key: &'k [u8],
    /// The item was stored under a base64 key.
    pub binary_key: bool,
    /// Opaque to the server.
    pub client_flags: u32,
    /// 0 under `-C`.
    pub cas: u64,
    /// The whole value's length, shown even when it is withheld.
    pub value_len: usize,
    /// Seconds left before this request changed the expiry; `None` is for ever.
    pub ttl_before: Option<u32>,
    /// The same after the last of `T` and `N` took effect. `t` shows the one or the other by its
    /// place among the flags.
    pub ttl_after: Option<u32>,
    /// Seconds since the access before this one.
    pub idle_secs: u32,
    /// The item had been asked for before.
    pub hit_before: bool,
    /// The requester may recache (`W`).
    pub won: bool,
    /// The item is stale (`X`).
    pub stale: bool,
    /// Somebody else may recache (`Z`).
    pub win_taken: bool,
    /// `mg C` matched: say `HD` rather than `VA`, and send no value.
    pub withheld: bool,
}

/// What became of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// Kept, under this CAS and with this final length.
    Stored {
        /** new CAS */
        cas: u64,
        /** final length */
        len: usize,
    },
    /// Add on a hit, replace and append on a miss.
    NotStored,
    /// The CAS differs.
    Exists,
    /// A CAS was given and nothing is there.
    NotFound,
    /// A refusal: the announced value exceeds the limit.
    TooLarge,
    /// A refusal: nothing can be evicted.
    OutOfMemory,
    /// The value did not end where it was said to (text only).
    BadChunk,
}

/// What became of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// Gone, or marked.
    Deleted {
        /** the CAS of what is left */
        cas: u64,
    },
    /// Nothing was there.
    NotFound,
    /// The CAS differs.
    Exists,
}

/// What became of counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// The new number.
    Number {
        /// It.
        value: u64,
        /// The item's new CAS.
        cas: u64,
        /// Seconds left before; `None` is for ever.
        ttl_before: Option<u32>,
        /// Seconds left after `T` or `N`.
        ttl_after: Option<u32>,
    },
    /// Nothing was there.
    NotFound,
    /// The CAS differs.
    Exists,
    /// The item was created by another between look-up and store, or could not be (`NS`).
    NotStored,
    /// What is there is not a number.
    NonNumeric,
    /// Nothing can be evicted.
    OutOfMemory,
}

/// What `me` shows.
#[derive(Clone, Copy, Debug)]
pub struct Described<'k> {
    /// The decoded key.
    pub key: &'k [u8],
    /// Stored under a base64 key.
    pub binary_key: bool,
    /// Seconds left; `None` is for ever.
    pub ttl: Option<u32>,
    /// Seconds since the last access.
    pub idle_secs: u32,
    /// 0 under `-C`.
    pub cas: u64,
    /// Asked for since it was stored.
    pub fetched: bool,
    /// The slab class it would have in memcached.
    pub class: u8,
    /// The bytes it would take in memcached.
    pub size: usize,
}

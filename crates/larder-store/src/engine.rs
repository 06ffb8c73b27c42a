//! What a session needs of a cache, and no more.
//!
//! Two verbs carry every command: [`Engine::get`] reads without a lock, [`Engine::update`] reads,
//! decides and writes one key as one step. What memcached's commands mean is decided by the caller's
//! closure; an engine only keeps items, lets them expire, and evicts.

use std::task::Waker;

/// Whole seconds on the caller's clock. An engine never reads a clock; it is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seconds(pub u32);

/// When an item ends. It is gone in the very second it names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Expiry {
    /// Lives until it is evicted.
    #[default]
    Never,
    /// Gone from this second on.
    At(Seconds),
}

impl Expiry {
    /// Whether an item with this expiry is gone at `now`.
    #[must_use]
    pub fn is_past(self, now: Seconds) -> bool {
        matches!(self, Self::At(at) if at <= now)
    }

    /// Seconds left at `now`; `None` is for ever.
    #[must_use]
    pub fn left(self, now: Seconds) -> Option<u32> {
        match self {
            Self::Never => None,
            Self::At(at) => Some(at.0.saturating_sub(now.0)),
        }
    }
}

/// A key with its hash, so that a batch hashes once and prefetches ahead.
#[derive(Clone, Copy, Debug)]
pub struct HashedKey<'k> {
    /// 1 to 250 bytes.
    pub bytes: &'k [u8],
    /// What [`Engine::hash`] said of them.
    pub hash: u64,
}

/// What an item carries besides key and value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Opaque to the cache.
    pub client_flags: u32,
    /// When it ends.
    pub expiry: Expiry,
    /// Kept for the caller: invalidated, but still shown.
    pub stale: bool,
    /// Kept for the caller: somebody was told to recache it.
    pub won: bool,
    /// Kept for the caller: its key came in base64.
    pub binary_key: bool,
}

/// An item as lent to a closure.
#[derive(Debug)]
pub struct Item<'a, L> {
    /// What it carries.
    pub attributes: Attributes,
    /// Changes with every write; 0 where the engine keeps none.
    pub cas: u64,
    /// It was read since it was stored.
    pub fetched: bool,
    /// When it was last read, or else stored; coarse for items that live long.
    pub accessed: Seconds,
    /// The value.
    pub value: Value<'a, L>,
}

/// What a plain look-up shows of an item.
#[derive(Debug)]
pub struct Content<'a, L> {
    /// Opaque to the cache.
    pub client_flags: u32,
    /// Changes with every write; 0 where the engine keeps none.
    pub cas: u64,
    /// The value.
    pub value: Value<'a, L>,
}

/// A value as lent.
#[derive(Clone, Debug)]
pub enum Value<'a, L> {
    /// All of it.
    Whole(&'a [u8]),
    /// Too large to be copied at once: a lease that may outlive the closure.
    Large(L),
}

impl<L: Lease> Value<'_, L> {
    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::Large(lease) => lease.len(),
        }
    }
}

/// A large value, readable piece by piece for as long as it is held, whatever happens to its item.
#[expect(clippy::len_without_is_empty, reason = "a large value is not empty")]
pub trait Lease: Clone {
    /// Bytes.
    fn len(&self) -> usize;
    /// The piece at `offset`: as much as lies in one place, at least one byte while `offset < len`.
    fn piece(&self, offset: usize) -> &[u8];
    /// Whether it may outlive the batch. Where so much is leased already that it must not, the value
    /// is copied now, or not at all.
    fn may_be_kept(&self) -> bool {
        true
    }
}

/// What [`Engine::get`] found.
#[derive(Debug, PartialEq, Eq)]
pub enum Lookup<R> {
    /// The item was there; this is what the closure made of it.
    Hit(R),
    /// Nothing of that name.
    Miss,
    /// It is there no more: its time had come.
    Expired,
    /// It is there no more: [`Engine::flush`] came after it.
    Flushed,
    /// It is on slower storage: nothing was read. [`Engine::fetch`] brings it, then ask again.
    Pending,
}

impl<R> Lookup<R> {
    /// The same, with what a hit holds made into something else.
    pub fn map<S>(self, f: impl FnOnce(R) -> S) -> Lookup<S> {
        match self {
            Self::Hit(hit) => Lookup::Hit(f(hit)),
            Self::Miss => Lookup::Miss,
            Self::Expired => Lookup::Expired,
            Self::Flushed => Lookup::Flushed,
            Self::Pending => Lookup::Pending,
        }
    }
}

/// Whether an item that is stored can be shown, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    Live,
    /// Its expiry is past.
    Expired,
    /// [`Engine::flush`] came after it was stored.
    Flushed,
}

impl Liveness {
    #[inline]
    pub(crate) fn is_live(self) -> bool {
        self == Self::Live
    }

    /// What a look-up answers that found such an item. `hit` is called for a live one alone.
    #[inline]
    pub(crate) fn lookup<R>(self, hit: impl FnOnce() -> R) -> Lookup<R> {
        match self {
            Self::Live => Lookup::Hit(hit()),
            Self::Expired => Lookup::Expired,
            Self::Flushed => Lookup::Flushed,
        }
    }
}

/// Whether a read leaves traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It counts for eviction, `fetched` and `accessed`.
    Tracked,
    /// It leaves no trace.
    Untracked,
}

/// What an update wants done with the item it was shown.
#[derive(Debug)]
pub enum Change<'v> {
    /// Nothing.
    Keep,
    /// Nothing, but count it as an access.
    MarkAccessed,
    /// Nothing, but whoever evicts knows that somebody cares; no access is marked.
    Promote,
    /// Remove it.
    Remove,
    /// Keep the value, change what goes with it.
    SetAttributes {
        /// The new attributes, all of them.
        attributes: Attributes,
        /// Which CAS it gets.
        cas: NewCas,
        /// Counts as an access.
        access: Access,
    },
    /// Store a value.
    Put {
        /// The attributes, all of them.
        attributes: Attributes,
        /// Which CAS it gets.
        cas: NewCas,
        /// The value.
        value: NewValue<'v>,
        /// Mark the item as read already (a created item that its creator was just shown).
        fetched: bool,
    },
}

/// Which CAS a changed item gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewCas {
    /// A fresh one, higher than the item's old one.
    Fresh,
    /// The one it has.
    Same,
    /// This one.
    Exactly(u64),
}

/// Where a new value comes from.
#[derive(Clone, Copy, Debug)]
pub enum NewValue<'v> {
    /// These bytes.
    Bytes(&'v [u8]),
    /// A number: the first `len` bytes of `digits`, then spaces up to `width` bytes in all.
    Number {
        /// Its digits.
        digits: [u8; 20],
        /// How many there are.
        len: u8,
        /// Bytes in all; at most [`NUMBER_WIDTH_MAX`].
        width: usize,
    },
    /// The item's value, then these bytes.
    Append(&'v [u8]),
    /// These bytes, then the item's value.
    Prepend(&'v [u8]),
    /// What was uploaded.
    Uploaded,
    /// The item's value, then what was uploaded.
    AppendUploaded,
    /// What was uploaded, then the item's value.
    PrependUploaded,
}

/// The widest that a number is padded to, in bytes.
pub const NUMBER_WIDTH_MAX: usize = 4096;

/// The padding of the widest number.
pub(crate) static SPACES: [u8; NUMBER_WIDTH_MAX] = [b' '; NUMBER_WIDTH_MAX];

/// Why an update did not happen. The item that was there is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Nothing can be evicted to make room. Trying again may work.
    OutOfMemory,
    /// It fits no configuration of this engine, or its key has no byte or more than 255. Trying again
    /// will not work.
    TooLarge,
    /// The upload is of another cache, or a part of its announced length is missing.
    WrongUpload,
    /// The item is on slower storage: nothing was decided. [`Engine::fetch`] brings it, then ask
    /// again.
    Pending,
}

/// What [`Engine::fetch`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// Nothing under this hash is on slower storage, or what was is there already: ask again.
    Nothing,
    /// It is being read; the waker will be called.
    Begun,
    /// Too much is being read already; the waker will be called when asking again may work.
    Later,
}

/// An item that is dropped for room, as an observer sees it.
#[derive(Clone, Copy, Debug)]
pub struct Eviction<'e> {
    /// Its key.
    pub key: &'e [u8],
    /// What it carries.
    pub attributes: Attributes,
    /// It was read since it was stored.
    pub fetched: bool,
    /// When it was last read, or else stored.
    pub accessed: Seconds,
    /// Bytes of its value.
    pub value_len: usize,
    /// When it is dropped.
    pub now: Seconds,
}

/// Told of every eviction, under locks: it must be quick, and use no cache.
pub type EvictionObserver = Box<dyn Fn(&Eviction<'_>) + Send + Sync>;

/// A memory limit that an engine can't work under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitRefused {
    /// The lowest that it can for now, in bytes.
    pub min: usize,
    /// The highest, in bytes.
    pub max: usize,
}

/// What an update did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Updated<R> {
    /// What the closure returned the last time it was asked.
    pub result: R,
    /// The item's CAS afterwards; 0 if it has none or is gone.
    pub cas: u64,
}

/// What leases and uploads hold beyond their shares, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overheld {
    /// By leases, of peers that have stalled.
    pub leased: usize,
    /// By uploads, of peers that have stalled.
    pub uploaded: usize,
    /// By uploads, of any peers: soon others have to be refused.
    pub uploaded_by_any: usize,
}

/// One thread's way into a cache. Cheap calls, no locks on the read path; a thread keeps its own.
/// What lives longer than a call may go on with another thread's.
pub trait Engine {
    /// A large value that is being read.
    type Lease: Lease + Send;
    /// A value that arrives in pieces. Dropping it gives its memory back.
    type Upload: Send;
    /// A walk over all items.
    type Walk: Send;
    /// A read of slower storage that was begun; dropping it only stops waiting for it.
    /// [`std::convert::Infallible`] where there is no slower storage.
    type Fetch: Send;
    /// A point in the history of changes up to which others have to acknowledge them before the
    /// answers are sent. [`std::convert::Infallible`] where nothing is acknowledged.
    type Position: Send;

    /// Hashes a key with the cache's own seed.
    fn hash(&self, key: &[u8]) -> u64;

    /// `hash` will be looked up: starts fetching what that reads first. Hashes are announced in the
    /// order of their look-ups, and before any of these.
    fn announce(&mut self, _hash: u64) {}

    /// Starts fetching the items that were announced; useful some time after that.
    fn prefetch_announced(&mut self) {}

    /// Opens a batch: from here on reads cost no synchronisation, until [`Engine::end_batch`].
    /// Moves the engine's time on to `now`.
    fn begin_batch(&mut self, now: Seconds);

    /// Closes a batch. Memory that was let go during it can be used again.
    fn end_batch(&mut self);

    /// Looks `key` up and lends the item to `read`. Takes no lock.
    fn get<R>(
        &mut self,
        key: HashedKey<'_>,
        access: Access,
        read: impl FnOnce(&Item<'_, Self::Lease>) -> R,
    ) -> Lookup<R>;

    /// [`Engine::get`] for who wants no more than an item's content: what else there is to it is not
    /// worked out.
    #[inline]
    fn content<R>(
        &mut self,
        key: HashedKey<'_>,
        read: impl FnOnce(&Content<'_, Self::Lease>) -> R,
    ) -> Lookup<R> {
        self.get(key, Access::Tracked, |item| {
            let (client_flags, value) = (item.attributes.client_flags, item.value.clone());
            read(&Content { client_flags, cas: item.cas, value })
        })
    }

    /// Shows `decide` what is under `key` (`Hit`), or why nothing is, and does what it says, as one
    /// step: no other write to the key happens in between. `decide` may be asked again when room
    /// had to be made first, so it must depend on nothing but what it is shown; its last answer
    /// counts.
    ///
    /// `upload` is used up by a `Put` of an uploaded value, otherwise given back unused.
    ///
    /// # Errors
    /// [`Refusal`]: nothing changed.
    fn update<'v, R>(
        &mut self,
        key: HashedKey<'_>,
        upload: &mut Option<Self::Upload>,
        decide: impl FnMut(Lookup<&Item<'_, Self::Lease>>) -> (Change<'v>, R),
    ) -> Result<Updated<R>, Refusal>;

    /// [`Engine::update`] for a decision that does not depend on what is there: a blind write. What
    /// is there may be shown as a `Miss`, as an item on slower storage always is, so this is never
    /// [`Refusal::Pending`].
    ///
    /// # Errors
    /// [`Refusal`]: nothing changed.
    #[inline]
    fn update_unread<'v, R>(
        &mut self,
        key: HashedKey<'_>,
        upload: &mut Option<Self::Upload>,
        decide: impl FnMut(Lookup<&Item<'_, Self::Lease>>) -> (Change<'v>, R),
    ) -> Result<Updated<R>, Refusal> {
        self.update(key, upload, decide)
    }

    /// Begins to read what is under `hash` from slower storage, as `Pending` has asked for. `waker`
    /// is called when it is there or can't be had. What was begun is pushed to `into`.
    fn fetch(&mut self, _hash: u64, _waker: &Waker, _into: &mut Vec<Self::Fetch>) -> Begun {
        Begun::Nothing
    }

    /// Hands over a read, if it has ended: look-ups find what it brought until the batch ends. False
    /// if it is still under way.
    fn deliver(&mut self, _fetch: &Self::Fetch) -> bool {
        true
    }

    /// Hands reads that were begun to the device; called once after those of a batch.
    fn submit(&mut self) {}

    /// The position that has to be acknowledged before answers of this batch are sent: that of the
    /// last change of the batch. `None` if nothing was changed that others have to know of.
    fn ack_position(&mut self) -> Option<Self::Position> {
        None
    }

    /// Whether everything up to `position` is acknowledged. If not, `waker` is called once it is.
    fn is_acknowledged(&mut self, _position: &Self::Position, _waker: &Waker) -> bool {
        true
    }

    /// The length from which a value should come as an upload rather than in one piece.
    fn upload_len_min(&self) -> usize;

    /// Begins a value of `len` bytes that arrives in pieces. Memory is taken as they arrive.
    ///
    /// # Errors
    /// [`Refusal`] if it can never fit.
    fn upload(&mut self, len: usize) -> Result<Self::Upload, Refusal>;

    /// Takes the next piece of an upload.
    ///
    /// # Errors
    /// [`Refusal`]: no memory for it; drop the upload.
    fn extend(&mut self, upload: &mut Self::Upload, bytes: &[u8]) -> Result<(), Refusal>;

    /// What leases and uploads hold beyond what should wait for slow peers: some of these are to be
    /// closed, before others have to be refused.
    fn overheld(&self) -> Overheld {
        Overheld::default()
    }

    /// Forgets everything stored before `at`, or before now. A call
    /// takes the place of an earlier one whose time has not come.
    fn flush(&mut self, at: Option<Seconds>);

    /// Does a little housekeeping (expired items, growth, [`Engine::shrink`]); true if more is
    /// waiting.
    fn maintain(&mut self, now: Seconds) -> bool;

    /// Gives a little of the memory back that a lowered limit no longer allows; true if there is
    /// more.
    fn shrink(&mut self) -> bool {
        false
    }

    /// Looks for dead items soon rather than in its own time: the next [`Engine::maintain`] begins.
    fn crawl_soon(&mut self) {}

    /// Begins a walk over all items.
    fn walk(&self) -> Self::Walk;

    /// Shows the next live items to `visit`, about `items` of them; false when all were shown. No
    /// access is marked. What is there during the whole walk is shown once, unless writes move it
    /// in the meantime.
    fn walk_on(
        &mut self,
        walk: &mut Self::Walk,
        items: usize,
        visit: impl FnMut(&[u8], &Item<'_, Self::Lease>),
    ) -> bool;

    /// Adds this cache's totals up. All threads' handles give the same answer.
    fn gauges(&self) -> Gauges;

    /// Zeroes what `stats reset` zeroes.
    fn reset_counters(&self);
}

/// A cache's totals, for `stats`. Lengths of [`Gauges::classes`] follow [`SizeClasses`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Live items, and those dead ones that nothing has come across yet.
    pub items: u64,
    /// Bytes that memcached would count for them: see [`SizeClasses::footprint`].
    pub bytes: u64,
    /// Items ever stored.
    pub items_total: u64,
    /// Live items dropped for room.
    pub evictions: u64,
    /// The same, per class and more.
    pub classes: Vec<ClassGauges>,
    /// Index slots in bytes, and whether it is growing.
    pub index_bytes: u64,
    /// log2 of the number of slots.
    pub index_power: u32,
    /// A growth step is waiting.
    pub index_growing: bool,
    /// Memory the engine may use, and has taken so far, in bytes.
    pub limit_bytes: u64,
    /// Memory taken so far.
    pub used_bytes: u64,
}

/// One size class's totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are memcached's own, from `stats items`")]
pub struct ClassGauges {
    pub items: u64,
    pub bytes: u64,
    pub evicted: u64,
    pub evicted_nonzero: u64,
    pub evicted_unfetched: u64,
    pub evicted_active: u64,
    /// Seconds since the access of the last evicted item.
    pub evicted_time: u64,
    pub expired_unfetched: u64,
    pub reclaimed: u64,
    pub crawler_reclaimed: u64,
    pub out_of_memory: u64,
}

/// How items are sorted by size for statistics. The caller brings the bounds (memcached's slab
/// classes), the engine only counts.
#[derive(Clone, Debug)]
pub struct SizeClasses {
    bounds: Vec<usize>,
    /// Bytes added to key and value: memcached's header, terminator, CAS.
    overhead: usize,
    /// Class by footprint in units of 8 bytes, for the common sizes.
    table: Box<[u8]>,
}

impl SizeClasses {
    /// `bounds` are the largest footprints of each class, ascending; what exceeds the last one
    /// belongs to it still. At most 255 classes.
    #[must_use]
    pub fn new(bounds: Vec<usize>, overhead: usize) -> Self {
        assert!(!bounds.is_empty() && bounds.len() < 256, "1 to 255 classes");
        assert!(bounds.is_sorted(), "ascending");
        let find =
            |size: usize| bounds.partition_point(|&bound| bound < size).min(bounds.len() - 1);
        let table = (0..Self::TABLE_LEN)
            .map(|i| u8::try_from(find(i * 8)).expect("fewer than 256 classes"))
            .collect();
        Self { bounds, overhead, table }
    }

    const TABLE_LEN: usize = 512;

    /// How many classes.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bounds.len()
    }

    /// The bytes an item counts for.
    #[inline]
    #[must_use]
    pub fn footprint(&self, key_len: usize, value_len: usize, client_flags: u32) -> usize {
        self.overhead + key_len + value_len + if client_flags == 0 { 0 } else { 4 }
    }

    /// The class of a footprint, from 0.
    #[inline]
    #[must_use]
    pub fn class_of(&self, footprint: usize) -> usize {
        // Bounds are multiples of 8, so rounding up to 8 stays within a class.
        match self.table.get(footprint.div_ceil(8)) {
            Some(&class) => class.into(),
            None => self.bounds.partition_point(|&b| b < footprint).min(self.bounds.len() - 1),
        }
    }

    /// The largest footprint of a class.
    #[must_use]
    pub fn bound(&self, class: usize) -> usize {
        self.bounds[class]
    }
}

//! The interface between a session and a cache.
//!
//! Two verbs carry every command: [`Engine::get`] reads without a lock, [`Engine::update`] reads,
//! decides and writes one key as one step. What memcached's commands mean is decided by the caller's
//! closure; an engine keeps items, expires them, and evicts them.

use std::num::NonZeroU16;
use std::task::Waker;

/// Whether others have a change that answers depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledged {
    /// They have it.
    Yes,
    /// They don't have it yet.
    NotYet,
    /// Nobody knows whether they have it, and nobody will: no answer may be sent.
    Never,
}

/// Whole seconds on the caller's clock. An engine reads no clock: callers pass the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seconds(pub u32);

/// A time on the caller's clock, to the millisecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now {
    /// The whole seconds.
    pub secs: Seconds,
    /// Milliseconds since the second began, below 1000.
    pub millis: u16,
}

impl Now {
    /// All of it in milliseconds.
    #[must_use]
    pub fn in_millis(self) -> u64 {
        u64::from(self.secs.0) * 1000 + u64::from(self.millis)
    }
}

impl From<Seconds> for Now {
    /// The beginning of the second.
    fn from(secs: Seconds) -> Self {
        Self { secs, millis: 0 }
    }
}

/// When an item expires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Expiry {
    /// The item stays until it is evicted or removed.
    #[default]
    Never,
    /// The item has expired from this second on.
    At(Seconds),
    /// The item expires so many milliseconds before this second.
    Before(Seconds, Early),
}

/// Milliseconds before a second: 1 to 999.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Early(NonZeroU16);

impl Early {
    /// `None` if there are not 1 to 999.
    #[must_use]
    pub fn new(millis: u16) -> Option<Self> {
        NonZeroU16::new(millis).filter(|millis| millis.get() < 1000).map(Self)
    }

    /// The number of milliseconds.
    #[must_use]
    pub fn millis(self) -> u16 {
        self.0.get()
    }
}

impl Expiry {
    /// The expiry at this time in milliseconds, exactly. Times too late for the clock are never reached.
    #[must_use]
    pub fn at_millis(millis: u64) -> Self {
        let at = Seconds(u32::try_from(millis.div_ceil(1000)).unwrap_or(u32::MAX));
        let early = (millis.div_ceil(1000) * 1000).saturating_sub(millis);
        match u16::try_from(early).ok().and_then(Early::new) {
            Some(early) if at.0 < u32::MAX => Self::Before(at, early),
            _ => Self::At(at),
        }
    }

    /// The second by which the item has expired, if it does.
    #[inline]
    #[must_use]
    pub fn second(self) -> Option<Seconds> {
        match self {
            Self::Never => None,
            Self::At(at) | Self::Before(at, _) => Some(at),
        }
    }

    /// How many milliseconds before [`Expiry::second`] the item expires.
    #[inline]
    #[must_use]
    pub fn early_millis(self) -> u16 {
        if let Self::Before(_, early) = self { early.millis() } else { 0 }
    }

    /// When the item expires in milliseconds, if it does.
    #[must_use]
    pub fn in_millis(self) -> Option<u64> {
        let at = u64::from(self.second()?.0) * 1000;
        Some(at.saturating_sub(self.early_millis().into()))
    }

    /// Whether an item with this expiry has expired at `now`.
    #[must_use]
    pub fn is_past(self, now: impl Into<Now>) -> bool {
        let now = now.into();
        match self {
            Self::Never => false,
            Self::At(at) => at <= now.secs,
            Self::Before(..) => self.in_millis().is_some_and(|end| end <= now.in_millis()),
        }
    }

    /// Seconds left at `now`, rounded up; `None` if the item never expires.
    #[must_use]
    pub fn left(self, now: impl Into<Now>) -> Option<u32> {
        let now = now.into();
        match self {
            Self::Never => None,
            Self::At(at) => Some(at.0.saturating_sub(now.secs.0)),
            Self::Before(..) => {
                let secs = self.left_millis(now)?.div_ceil(1000);
                Some(u32::try_from(secs).unwrap_or(u32::MAX))
            }
        }
    }

    /// Milliseconds left at `now`; `None` if the item never expires.
    #[must_use]
    pub fn left_millis(self, now: Now) -> Option<u64> {
        Some(self.in_millis()?.saturating_sub(now.in_millis()))
    }
}

/// The longest key in bytes.
pub const KEY_LEN_MAX: usize = 1024;

/// A key with its hash, so that a batch hashes once and prefetches ahead.
#[derive(Clone, Copy, Debug)]
pub struct HashedKey<'k> {
    /// 1 to [`KEY_LEN_MAX`] bytes.
    pub bytes: &'k [u8],
    /// The result of [`Engine::hash`] for these bytes.
    pub hash: u64,
}

/// The attributes of an item: all of it but key, value and CAS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// A number of the client's. The cache does not interpret it.
    pub client_flags: u32,
    /// When the item expires.
    pub expiry: Expiry,
    /// Kept for the caller: the item was invalidated, but is still shown.
    pub stale: bool,
    /// Kept for the caller: a client was told to recache the item.
    pub won: bool,
    /// Kept for the caller: the client sent the key in base64.
    pub binary_key: bool,
}

/// An item, borrowed for the time of a closure.
#[derive(Debug)]
pub struct Item<'a, L> {
    /// Client flags, expiry and marks.
    pub attributes: Attributes,
    /// Changes with every write; 0 where the engine keeps none.
    pub cas: u64,
    /// Whether the item was read since it was stored.
    pub fetched: bool,
    /// When the item was last read, or stored if it was never read. The time is approximate for items
    /// that live long.
    pub accessed: Seconds,
    /// The value, or a lease on it.
    pub value: Value<'a, L>,
}

/// The part of an item that [`Engine::content`] shows.
#[derive(Debug)]
pub struct Content<'a, L> {
    /// A number of the client's.
    pub client_flags: u32,
    /// Changes with every write; 0 where the engine keeps none.
    pub cas: u64,
    /// The value, or a lease on it.
    pub value: Value<'a, L>,
}

/// A borrowed value.
#[derive(Clone, Debug)]
pub enum Value<'a, L> {
    /// The whole value.
    Whole(&'a [u8]),
    /// A value that is too large to be copied at once: a lease on it, which may outlive the closure.
    Large(L),
}

impl<L: Lease> Value<'_, L> {
    /// The length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no caller asks whether a value is empty")]
    pub fn len(&self) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::Large(lease) => lease.len(),
        }
    }
}

/// Access to a large value, piece by piece. The value stays as it is for as long as the lease lives,
/// even if its item is replaced or removed.
#[expect(clippy::len_without_is_empty, reason = "a large value is not empty")]
pub trait Lease: Clone {
    /// The length of the value in bytes.
    fn len(&self) -> usize;
    /// The bytes from `offset` on that are contiguous in memory: at least one while `offset < len`.
    fn piece(&self, offset: usize) -> &[u8];
    /// Whether the lease may outlive the batch. If so much memory is leased already that it may not,
    /// the caller copies the value now, or refuses the request.
    fn may_be_kept(&self) -> bool {
        true
    }
}

/// What [`Engine::get`] found.
#[derive(Debug, PartialEq, Eq)]
pub enum Lookup<R> {
    /// The item was there. This is the result of the closure.
    Hit(R),
    /// There is no item with that key.
    Miss,
    /// There was an item, which has expired.
    Expired,
    /// There was an item, which [`Engine::flush`] has invalidated.
    Flushed,
    /// The item is on slower storage and the closure was not called. Begin to read it with
    /// [`Engine::fetch`], and repeat the look-up when the waker was called. The closure of
    /// [`Engine::update`] is never shown this: see [`Refusal::Pending`].
    Pending,
}

impl<R> Lookup<R> {
    /// The same outcome with `f` applied to the content of a hit.
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
    /// The read counts for eviction, [`Item::fetched`] and [`Item::accessed`].
    Tracked,
    /// The read leaves no trace.
    Untracked,
}

/// What the closure of an update decides about the item that it was shown.
#[derive(Clone, Copy, Debug)]
pub enum Change<'v> {
    /// Leave the item as it is.
    Keep,
    /// Leave the item as it is, and count an access.
    MarkAccessed,
    /// Leave the item as it is, and count a use for eviction. Neither [`Item::fetched`] nor
    /// [`Item::accessed`] change.
    Promote,
    /// Remove the item.
    Remove,
    /// Keep the value and replace the attributes.
    SetAttributes {
        /// All attributes that the item has afterwards.
        attributes: Attributes,
        /// The CAS that the item has afterwards.
        cas: NewCas,
        /// Whether this counts as an access.
        access: Access,
    },
    /// Store an item in place of the one that is there, if there is one.
    Put {
        /// All attributes of the new item.
        attributes: Attributes,
        /// The CAS of the new item.
        cas: NewCas,
        /// The value of the new item, or how it is made from the old one.
        value: NewValue<'v>,
        /// Whether the new item counts as read already (the client that created it was shown it).
        fetched: bool,
        /// The tags of the new item.
        tags: NewTags<'v>,
    },
}

/// The most tags that an item can have.
pub const TAGS_MAX: usize = 7;

/// A tag, as an engine keeps it in items: see [`Engine::tag`]. It loses its meaning when the tag is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(pub(crate) u64);

/// The tags of an item that is stored.
#[derive(Clone, Copy, Debug)]
pub enum NewTags<'v> {
    /// It has none.
    None,
    /// Those that the old item has, if there is one.
    Same,
    /// These; at most [`TAGS_MAX`].
    These(&'v [Tag]),
}

/// The CAS of an item that is changed or stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewCas {
    /// A CAS that no other item has had, higher than the item's old one.
    Fresh,
    /// The CAS that the item has.
    Same,
    /// This CAS, which the client has chosen.
    Exactly(u64),
}

/// The source of a new value.
#[derive(Clone, Copy, Debug)]
pub enum NewValue<'v> {
    /// These bytes.
    Bytes(&'v [u8]),
    /// A number: the first `len` bytes of `digits`, then spaces up to `width` bytes in all.
    Number {
        /// Its decimal digits, followed by unused bytes.
        digits: [u8; 20],
        /// The number of digits.
        len: u8,
        /// The length of the value in bytes, at most [`NUMBER_WIDTH_MAX`].
        width: usize,
    },
    /// The item's value, then these bytes.
    Append(&'v [u8]),
    /// These bytes, then the item's value.
    Prepend(&'v [u8]),
    /// The uploaded value.
    Uploaded,
    /// The item's value, then the uploaded one.
    AppendUploaded,
    /// The uploaded value, then the item's.
    PrependUploaded,
}

/// The greatest width to which a number is padded, in bytes.
pub const NUMBER_WIDTH_MAX: usize = 4096;

/// The padding of the widest number.
pub(crate) static SPACES: [u8; NUMBER_WIDTH_MAX] = [b' '; NUMBER_WIDTH_MAX];

/// Why an update was refused. The item that was there is still there, unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no room and nothing can be evicted. A later attempt may succeed.
    OutOfMemory,
    /// The item is larger than this cache can store, or its key has no bytes or more than
    /// [`KEY_LEN_MAX`]. A later
    /// attempt will not succeed.
    TooLarge,
    /// The upload belongs to another cache, or is shorter than its announced length.
    WrongUpload,
    /// The engine has no tags.
    NoTags,
    /// The item is on slower storage: the closure was not called, or its answer does not count. Begin
    /// to read the item with [`Engine::fetch`], and repeat the update when the waker was called.
    Pending,
}

/// An item that [`Engine::fetch`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The hash of its key.
    pub hash: u64,
    /// Other requests are answered before the one that needs it. Where there is no room for its read, it is
    /// not waited for.
    pub is_ahead: bool,
}

/// The result of [`Engine::deliver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The read is still under way.
    UnderWay,
    /// Look-ups find the item until the batch ends.
    Delivered,
    /// There is nothing to wait for any more: the read has failed, or was given up for another.
    Gone,
}

/// The result of [`Engine::fetch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// There is nothing to wait for: no item with this hash is on slower storage, or it has been
    /// delivered already. Repeat the request at once.
    Nothing,
    /// A read has begun. The waker will be called when it ends.
    Begun,
    /// Too many reads are under way. The waker will be called when another attempt may succeed.
    Later,
}

/// The result of [`Engine::walk_on`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkState {
    /// There may be more to show: continue the walk.
    More,
    /// The next items are being read from slower storage. The waker will be called when there is something
    /// to show; continuing earlier does no harm.
    Waiting,
    /// All items were shown.
    End,
}

/// Where another walk can go on after one: see [`Engine::walk_place`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkPlace {
    /// There, for [`Engine::walk_from`]; never 0.
    At(u64),
    /// Nowhere yet: items that the walk has come by are still to be shown. [`Engine::walk_on`] with 0 items does
    /// that without going on.
    Unsettled,
    /// Nowhere: the engine's walks have to be continued themselves.
    Nowhere,
}

/// An evicted item, as an [`EvictionObserver`] sees it.
#[derive(Clone, Copy, Debug)]
pub struct Eviction<'e> {
    /// The key of the item.
    pub key: &'e [u8],
    /// Client flags, expiry and marks.
    pub attributes: Attributes,
    /// Whether the item was read since it was stored.
    pub fetched: bool,
    /// When the item was last read, or stored if it was never read.
    pub accessed: Seconds,
    /// The length of the value in bytes.
    pub value_len: usize,
    /// When the item is evicted.
    pub now: Seconds,
}

/// A function that is called for every eviction. It is called under locks, so it must be quick and
/// must not use a cache.
pub type EvictionObserver = Box<dyn Fn(&Eviction<'_>) + Send + Sync>;

/// An engine can't work under a memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitRefused {
    /// The lowest limit that would be accepted now, in bytes.
    pub min: usize,
    /// The highest limit that would be accepted, in bytes.
    pub max: usize,
}

/// The result of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Updated<R> {
    /// The result of the closure's last call.
    pub result: R,
    /// The item's CAS afterwards; 0 if it has none or was removed.
    pub cas: u64,
}

/// How much leases and uploads hold above their shares of memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overheld {
    /// Held by leases above the share from which stalled peers are disconnected.
    pub leased: usize,
    /// Held by uploads above the share from which stalled peers are disconnected.
    pub uploaded: usize,
    /// Held by uploads above the share from which any peers are disconnected, lest new uploads have to
    /// be refused.
    pub uploaded_by_any: usize,
}

/// One thread's handle to a cache. Reads take no locks; each thread has a handle of its own. Leases,
/// uploads, walks and fetches may be used with the handle of another thread later.
pub trait Engine {
    /// Access to a large value.
    type Lease: Lease + Send;
    /// A value that arrives in pieces. Its memory is freed when it is dropped.
    type Upload: Send;
    /// A walk over all items.
    type Walk: Send;
    /// A read of slower storage that was begun. Dropping it does not stop the read.
    /// [`std::convert::Infallible`] for engines without slower storage.
    type Fetch: Send;
    /// A point in the history of changes up to which others have to acknowledge them before the
    /// answers are sent. [`std::convert::Infallible`] where nothing is acknowledged.
    type Position: Send;

    /// Hashes a key with the cache's own seed.
    fn hash(&self, key: &[u8]) -> u64;

    /// Prefetches what a look-up of `hash` reads first. Hashes are announced in the order of their
    /// look-ups, and before the first of them.
    fn announce(&mut self, _hash: u64) {}

    /// Prefetches the announced items. It is called after all of a batch were announced, when their
    /// index buckets have come from memory.
    fn prefetch_announced(&mut self) {}

    /// Begins a batch: until [`Engine::end_batch`], reads need no synchronisation of their own. Sets
    /// the engine's time to `now`.
    fn begin_batch(&mut self, now: impl Into<Now>);

    /// Ends a batch. Memory that was freed during it can be used again.
    fn end_batch(&mut self);

    /// Looks `key` up and shows the item to `read`. Takes no lock.
    fn get<R>(
        &mut self,
        key: HashedKey<'_>,
        access: Access,
        read: impl FnOnce(&Item<'_, Self::Lease>) -> R,
    ) -> Lookup<R>;

    /// [`Engine::get`] for a look-up that knows only from the item whether it is the access that counts:
    /// `read` returns that, too. A request that goes on to change the item records its access with the
    /// change, so that a change that is `Pending` leaves no trace. A miss counts as an access.
    fn get_recorded<R>(
        &mut self,
        key: HashedKey<'_>,
        read: impl FnOnce(&Item<'_, Self::Lease>) -> (Access, R),
    ) -> Lookup<R>;

    /// [`Engine::get_recorded`] for callers that need only an item's content. It is faster because the
    /// other attributes are not decoded.
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

    /// Shows `decide` the item under `key` (`Hit`), or why there is none, and applies its answer
    /// atomically: no other write to the key happens in between. `decide` is called again if room had
    /// to be made first, so it must depend on nothing but what it is shown; its last answer counts. The
    /// update may still be refused, or have to wait because the item has gone to slower storage meanwhile.
    ///
    /// A `Put` of an uploaded value takes `upload`; otherwise it stays where it is.
    ///
    /// # Errors
    /// [`Refusal`]: nothing changed.
    fn update<'v, R>(
        &mut self,
        key: HashedKey<'_>,
        upload: &mut Option<Self::Upload>,
        decide: impl FnMut(Lookup<&Item<'_, Self::Lease>>) -> (Change<'v>, R),
    ) -> Result<Updated<R>, Refusal>;

    /// [`Engine::update`] for a decision that does not depend on the old item. An old item may be shown
    /// as a `Miss`, and one on slower storage always is, so this is never refused with
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

    /// The tag of this name, for the items of [`Change::Put`]. If all room for tags is in use, another tag is
    /// dropped for it. An item that is stored after its tag was dropped is `Flushed`.
    ///
    /// # Errors
    /// [`Refusal::NoTags`], or [`Refusal::OutOfMemory`] if there is no room for the first tag.
    fn tag(&mut self, _name: &[u8]) -> Result<Tag, Refusal> {
        Err(Refusal::NoTags)
    }

    /// Invalidates all items with the tag of this name, in a step that does not depend on their number; false if
    /// there can be none. Their memory is used again as they are found.
    fn drop_tag(&mut self, _name: &[u8]) -> bool {
        false
    }

    /// Whether items can have tags.
    fn has_tags(&self) -> bool {
        false
    }

    /// Begins to read an item from slower storage, after a request was answered with
    /// `Pending`. `waker` is called when the read has ended, also if it failed. The read is pushed to
    /// `into`.
    fn fetch(&mut self, _wanted: Wanted, _waker: &Waker, _into: &mut Vec<Self::Fetch>) -> Begun {
        Begun::Nothing
    }

    /// Makes the result of a read visible, if the read has ended: look-ups find the item until the
    /// batch ends. It may be called in each batch as long as a request waits for this or another read.
    fn deliver(&mut self, _fetch: &Self::Fetch) -> Delivery {
        Delivery::Gone
    }

    /// Submits the reads that were begun to the device. It is called once for the reads of a batch.
    fn submit(&mut self) {}

    /// The descriptor that becomes readable when reads have ended, for a caller that polls it. From then on
    /// the caller calls [`Engine::turn_reads`] before it waits for events, and [`Engine::submit`] has no
    /// effect. `None`: reads end without that. It is asked for once, on the thread that uses the handle, before
    /// the first read.
    #[cfg(unix)]
    fn poll_reads(&mut self) -> Option<std::os::fd::RawFd> {
        None
    }

    /// Submits the reads that were begun, and ends those that are done: their wakers are called. It takes
    /// hardly any time if there are none.
    fn turn_reads(&mut self) {}

    /// The position that has to be acknowledged before answers of this batch are sent: that of the
    /// last change of the batch. `None` if nothing was changed that others have to know of.
    fn ack_position(&mut self) -> Option<Self::Position> {
        None
    }

    /// Whether everything up to `position` is acknowledged. If not, `waker` is called once something has become of
    /// it.
    fn is_acknowledged(&mut self, _position: &Self::Position, _waker: &Waker) -> Acknowledged {
        Acknowledged::Yes
    }

    /// The length in bytes from which a value should be uploaded rather than passed in one piece.
    fn upload_len_min(&self) -> usize;

    /// Begins a value of `len` bytes that arrives in pieces. Memory is taken as the pieces arrive.
    ///
    /// # Errors
    /// [`Refusal::TooLarge`] if the cache can't store a value of this length.
    fn upload(&mut self, len: usize) -> Result<Self::Upload, Refusal>;

    /// Takes the next piece of an upload.
    ///
    /// # Errors
    /// [`Refusal`]: there is no memory for the piece. The caller drops the upload.
    fn extend(&mut self, upload: &mut Self::Upload, bytes: &[u8]) -> Result<(), Refusal>;

    /// How much memory leases and uploads hold above the shares that slow peers may hold. The server
    /// disconnects some of these peers before it has to refuse others.
    fn overheld(&self) -> Overheld {
        Overheld::default()
    }

    /// Invalidates everything that was stored before `at`, or before now. A call replaces an earlier
    /// one that has not taken effect.
    fn flush(&mut self, at: Option<Seconds>);

    /// The number of flushes that took effect, delayed ones included. Each is counted after it took effect, and
    /// before anything that is stored after it can be looked up.
    fn flush_generation(&self) -> u64;

    /// Does a short step of maintenance (removing expired items, [`Engine::shrink`]); true if there is
    /// more to do now.
    fn maintain(&mut self, now: Seconds) -> bool;

    /// Returns some of the memory above a lowered limit to the system; true if there is more to
    /// return.
    fn shrink(&mut self) -> bool {
        false
    }

    /// Makes the next [`Engine::maintain`] begin a search for expired items, whether one is due or not.
    fn crawl_soon(&mut self) {}

    /// Begins a walk over all items, which ends when it is dropped.
    fn walk(&self) -> Self::Walk;

    /// Begins a walk where another one was, or at the beginning if `place` is 0. Any number will do. Between two
    /// such walks items move unnoticed: an item that is there all the time may be missed if a write moves it.
    ///
    /// Engines whose walks have no places begin at the beginning.
    fn walk_from(&self, _place: u64) -> Self::Walk {
        self.walk()
    }

    /// Where a walk that has not ended can be continued by another one.
    fn walk_place(&self, _walk: &Self::Walk) -> WalkPlace {
        WalkPlace::Nowhere
    }

    /// Shows the next live items to `visit`, about `items` of them. This counts as no access. An item that
    /// is there during the whole walk is shown at least once, and only once unless writes move items
    /// meanwhile. Items on slower storage are read for it, some at a time, and shown in a later call, unless
    /// there is no memory for a large value. After [`WalkState::Waiting`], `waker` is called or that of an
    /// earlier call.
    ///
    /// # Panics
    /// An engine may panic if the walk belongs to another cache.
    fn walk_on(
        &mut self,
        walk: &mut Self::Walk,
        items: usize,
        waker: &Waker,
        visit: impl FnMut(&[u8], &Item<'_, Self::Lease>),
    ) -> WalkState;

    /// The cache's totals, the same from each handle.
    fn gauges(&self) -> Gauges;

    /// Zeroes what `stats reset` zeroes.
    fn reset_counters(&self);
}

/// A cache's totals, for `stats`. Lengths of [`Gauges::classes`] follow [`SizeClasses`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Live items, and expired or flushed ones that were not removed yet.
    pub items: u64,
    /// Bytes that memcached would count for these items: see [`SizeClasses::footprint`].
    pub bytes: u64,
    /// Items stored since the start, or since the last reset.
    pub items_total: u64,
    /// Live items that were dropped to make room.
    pub evictions: u64,
    /// The totals of each size class.
    pub classes: Vec<ClassGauges>,
    /// Memory for index slots, in bytes.
    pub index_bytes: u64,
    /// log2 of the number of slots.
    pub index_power: u32,
    /// Whether the index is growing at the moment.
    pub index_growing: bool,
    /// Memory that the engine may use, in bytes.
    pub limit_bytes: u64,
    /// Memory that the engine uses, in bytes.
    pub used_bytes: u64,
    /// What of that is taken by items which are not there any more, until the memory is used again, in bytes.
    pub dead_bytes: u64,
    /// What of it the table of tags takes, in bytes; 0 before there are any.
    pub tags_bytes: u64,
    /// Tags that were dropped, those of earlier processes and those that made room for others included.
    pub tags_dropped: u64,
    /// Tags that made room for others.
    pub tags_displaced: u64,
    /// Seconds since the access of the item that was evicted last, of any class.
    pub evicted_time: u64,
}

/// Why an item is removed that can't be shown any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    /// It has expired.
    Expired,
    /// It was flushed with all others.
    Flushed,
    /// One of its tags was dropped.
    Untagged,
}

/// The totals of a size class.
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
    /// Those of `reclaimed` that had been flushed.
    pub reclaimed_flushed: u64,
    /// Those of `reclaimed` one of whose tags had been dropped.
    pub reclaimed_untagged: u64,
    pub crawler_reclaimed: u64,
    pub out_of_memory: u64,
}

/// The size classes of the statistics. The caller chooses their bounds (memcached's slab classes).
#[derive(Clone, Debug)]
pub struct SizeClasses {
    bounds: Vec<usize>,
    /// Bytes added to key and value: memcached's header, terminator, CAS.
    overhead: usize,
    /// The class of each footprint below [`Self::TABLE_LEN`] units of 8 bytes.
    table: Box<[u8]>,
}

impl SizeClasses {
    /// `bounds` are the largest footprints of each class, ascending, at most 255. Larger items belong
    /// to the last class. `overhead` bytes are added to each key and value.
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

    /// The number of classes.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bounds.len()
    }

    /// The bytes that an item counts for in statistics.
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

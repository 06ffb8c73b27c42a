//! The interface between handlers and the cache's items, independent of the engine.

use bytes::Bytes;
use larder_operations::{
    ArithmeticOutcome, Count, ExpireOutcome, Remove, RemoveOutcome, Store, StoreOutcome, Tags,
};
use larder_store::{Expiry, Refusal};
use std::any::Any;
use std::pin::Pin;
use std::time::Duration;

/// The result of an operation that may wait for slower storage or for another server.
pub(crate) type ItemFuture<'a, R> = Pin<Box<dyn Future<Output = R> + Send + 'a>>;

/// A value that arrives in pieces. The implementation of [`Items`] defines the concrete type.
pub(crate) type Upload = Box<dyn Any + Send>;

/// Operations on items, called on the gateway's thread. `larder-operations` defines their
/// semantics.
///
/// An operation on an item that this server does not serve is forwarded to the leader of the item's
/// group. If the leader is unreachable, [`Items::get`] reports it, and other forwarded operations
/// abort the request (`abort.rs`). Pages and tags cover only the items of this server. For tags,
/// this is sufficient, because an engine with replicas does not support tags.
pub(crate) trait Items: Send + Sync + 'static {
    /// Looks a key up. If `allows_replica` is true, a server that only follows the owner may answer
    /// from its own cache (`--read-lag`).
    fn get<'a>(&'a self, key: &'a [u8], allows_replica: bool) -> ItemFuture<'a, LookupOutcome>;

    /// Returns whether there is an item. The check is neither counted nor recorded as an access.
    fn exists<'a>(&'a self, key: &'a [u8]) -> ItemFuture<'a, bool>;

    /// Stores the value of `upload` if there is one, else the value in `op`.
    fn store<'a>(
        &'a self,
        key: &'a [u8],
        op: Store<'a>,
        upload: Option<Upload>,
    ) -> ItemFuture<'a, StoreOutcome>;

    /// Removes an item.
    fn remove<'a>(&'a self, key: &'a [u8], op: Remove) -> ItemFuture<'a, RemoveOutcome>;

    /// Increments or decrements a number.
    fn count<'a>(&'a self, key: &'a [u8], op: Count<'static>) -> ItemFuture<'a, ArithmeticOutcome>;

    /// Sets the expiry of an item.
    fn expire<'a>(&'a self, key: &'a [u8], expiry: Expiry) -> ItemFuture<'a, ExpireOutcome>;

    /// Lists about `items` items of this server. `cursor` is 0 for the first page, and
    /// [`Page::next`] of the previous page for each later page. Returns `None` if the list does not
    /// fit on one page and the engine cannot continue it on another page.
    fn page<'a>(&'a self, cursor: u64, items: usize) -> ItemFuture<'a, Option<Page>>;

    /// Resolves the names of at most [`larder_store::TAGS_MAX`] tags.
    ///
    /// # Errors
    /// [`Refusal::NoTags`]: the engine does not support tags. [`Refusal::OutOfMemory`]: the engine
    /// could not allocate memory for a tag.
    fn tags(&self, names: &[Vec<u8>]) -> Result<Tags, Refusal>;

    /// Drops a tag: removes all items with the tag in one step. Returns `None` if the engine does
    /// not support tags, and `Some(false)` if no item can have the tag.
    fn drop_tag(&self, name: &[u8]) -> Option<bool>;

    /// At the start of the second that contains `at`, removes all items that were stored earlier,
    /// in all groups. Takes effect immediately if `at` is in the past or is [`Expiry::Never`].
    fn flush(&self, at: Expiry) -> ItemFuture<'_, ()>;

    /// Returns the minimum length, in bytes, of a value that callers have to upload in pieces.
    fn upload_len_min(&self) -> usize;

    /// Starts uploading a value of `len` bytes for this key.
    ///
    /// # Errors
    /// [`Refusal::TooLarge`]: the item would be too large. [`Refusal::OutOfMemory`]: all uploads
    /// together would exceed their limit, or the engine could not allocate memory.
    fn start_upload(&self, key: &[u8], len: usize) -> Result<Upload, Refusal>;

    /// Returns whether the uploads of all protocols together use more than their share of memory.
    /// If they do, the caller must abandon a slow upload.
    fn lacks_memory(&self) -> bool;

    /// Appends a piece to an upload.
    ///
    /// # Errors
    /// [`Refusal`]: the engine could not allocate memory for the piece, or the value exceeds the
    /// announced length.
    fn extend(&self, upload: &mut Upload, bytes: &[u8]) -> Result<(), Refusal>;
}

/// Returns whether memcached's text protocol has to encode a key in base64.
pub(crate) fn is_binary(key: &[u8]) -> bool {
    key.iter().any(|byte| *byte <= b' ' || *byte == 0x7f)
}

/// One page of a list of items.
#[derive(Debug)]
pub(crate) struct Page {
    /// The items, in no particular order.
    pub(crate) items: Vec<ListedItem>,
    /// The cursor of the next page; `None` after the last page.
    pub(crate) next: Option<u64>,
}

/// An item in a list.
#[derive(Debug)]
pub(crate) struct ListedItem {
    pub(crate) key: Vec<u8>,
    /// The length of the value in bytes.
    pub(crate) value_len: usize,
    /// Seconds until the item expires; `None` if it never does.
    pub(crate) ttl: Option<u32>,
}

/// The outcome of a lookup.
#[derive(Debug)]
pub(crate) enum LookupOutcome {
    /// An item.
    Found(StoredItem),
    /// There is no item, or the memory limit does not allow reading a large item from slower
    /// storage.
    Missing,
    /// The item is large, and too many large values are being sent already.
    Busy,
    /// The engine, or the server that owns the item, could not allocate memory for the lookup. In
    /// this server's own cache, only lookups that change the item can fail like this, and the
    /// gateway does not use such lookups. If the engine cannot allocate memory for reading a large
    /// value from slower storage, the outcome is `Missing`.
    OutOfMemory,
    /// Another server owns the item and is unreachable.
    OwnerUnreachable,
}

#[cfg(feature = "grpc")]
impl LookupOutcome {
    /// Returns the item, if there is one.
    pub(crate) fn found(&self) -> Option<&StoredItem> {
        if let Self::Found(found) = self { Some(found) } else { None }
    }
}

/// An item that a lookup found.
#[derive(Debug)]
pub(crate) struct StoredItem {
    /// The value in pieces. The pieces of a large value in this server's cache are not copied: they
    /// point into the cache.
    pub(crate) value: Vec<Bytes>,
    /// The CAS, which changes with every write; 0 if the engine stores no CAS values.
    pub(crate) cas: u64,
    /// Client flags, which the cache does not interpret.
    pub(crate) client_flags: u32,
    /// The time until the item expires, rounded like the result of
    /// [`time_left`](crate::expiry::time_left); `None` if it never does. From another server, the
    /// time has whole seconds, rounded up.
    pub(crate) ttl: Option<Duration>,
}

impl StoredItem {
    /// Returns the seconds until the item expires, rounded up, or `None` if it never does.
    pub(crate) fn ttl_secs(&self) -> Option<u32> {
        let secs = self.ttl?.as_millis().div_ceil(1000);
        Some(u32::try_from(secs).unwrap_or(u32::MAX))
    }

    /// Returns the length of the value in bytes.
    pub(crate) fn len(&self) -> usize {
        self.value.iter().map(Bytes::len).sum()
    }
}

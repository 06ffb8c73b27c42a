//! The items of a cache as handlers of requests see them, whichever engine the cache has.

use bytes::Bytes;
use larder_operations::{
    ArithmeticOutcome, Count, ExpireOutcome, Remove, RemoveOutcome, Store, StoreOutcome, Tags,
};
use larder_store::{Expiry, Refusal};
use std::any::Any;
use std::pin::Pin;

/// What an operation answers, which may have to wait for slower storage.
pub(crate) type Answer<'a, R> = Pin<Box<dyn Future<Output = R> + Send + 'a>>;

/// A value that arrives in pieces: the engine's own type.
pub(crate) type Upload = Box<dyn Any + Send>;

/// Operations on items, on the gateway's thread. What they mean is said in `larder-operations`. Items that another server
/// of the cluster has are asked for there.
pub(crate) trait Items: Send + Sync + 'static {
    /// Looks a key up. `may_be_old`: the item may be shown as a copy of this server's has it (`--read-lag`).
    fn get<'a>(&'a self, key: &'a [u8], may_be_old: bool) -> Answer<'a, Looked>;

    /// Whether there is an item. It is neither counted nor recorded as an access.
    fn has<'a>(&'a self, key: &'a [u8]) -> Answer<'a, bool>;

    /// Stores the value of `op`, or that of `upload` if there is one.
    fn store<'a>(
        &'a self,
        key: &'a [u8],
        op: Store<'a>,
        upload: Option<Upload>,
    ) -> Answer<'a, StoreOutcome>;

    /// Removes an item.
    fn remove<'a>(&'a self, key: &'a [u8], op: Remove) -> Answer<'a, RemoveOutcome>;

    /// Changes a number.
    fn count<'a>(&'a self, key: &'a [u8], op: Count<'static>) -> Answer<'a, ArithmeticOutcome>;

    /// Sets the expiry of an item.
    fn expire<'a>(&'a self, key: &'a [u8], expiry: Expiry) -> Answer<'a, ExpireOutcome>;

    /// Some items of this server, from where another page ended, or from the beginning if `place` is 0. About `items` are looked
    /// at. `None`: the engine can't go on in the middle.
    fn page<'a>(&'a self, place: u64, items: usize) -> Answer<'a, Option<Page>>;

    /// The tags of these names, at most [`larder_store::TAGS_MAX`].
    ///
    /// # Errors
    /// [`Refusal::NoTags`], or [`Refusal::OutOfMemory`] for the first tag.
    fn tags(&self, names: &[Vec<u8>]) -> Result<Tags, Refusal>;

    /// Drops a tag; `None` if the engine has no tags, and false if there can be no item with it.
    fn drop_tag(&self, name: &[u8]) -> Option<bool>;

    /// Removes all items of all groups, now or later.
    fn flush(&self, at: Expiry) -> Answer<'_, ()>;

    /// The length in bytes from which a value is to be uploaded in pieces.
    fn upload_len_min(&self) -> usize;

    /// Begins the upload of a value of `len` bytes for this key.
    ///
    /// # Errors
    /// [`Refusal::TooLarge`]; [`Refusal::OutOfMemory`] while other uploads hold what they may hold together.
    fn begin_upload(&self, key: &[u8], len: usize) -> Result<Upload, Refusal>;

    /// Whether uploads of all interfaces hold so much memory that slow peers have to give theirs up.
    fn lacks_memory(&self) -> bool;

    /// Takes the next piece of an upload.
    ///
    /// # Errors
    /// [`Refusal`]: there is no memory for it.
    fn extend(&self, upload: &mut Upload, bytes: &[u8]) -> Result<(), Refusal>;
}

/// Whether memcached's text protocol can't write a key, so that it is shown in base64 there.
pub(crate) fn is_binary(key: &[u8]) -> bool {
    key.iter().any(|byte| *byte <= b' ' || *byte == 0x7f)
}

/// Some items of a cache.
#[derive(Debug)]
pub(crate) struct Page {
    /// What is known of them.
    pub(crate) items: Vec<Listed>,
    /// Where the next page begins; `None` if there is none.
    pub(crate) next: Option<u64>,
}

/// An item in a list.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) key: Vec<u8>,
    /// The length of the value in bytes.
    pub(crate) value_len: usize,
    /// Seconds until the item expires; `None` if it never does.
    pub(crate) ttl: Option<u32>,
}

/// What a lookup found.
#[derive(Debug)]
pub(crate) enum Looked {
    /// An item.
    Found(Found),
    /// No item.
    Missing,
    /// An item that can't be shown now: too many large values are being sent already.
    Busy,
    /// There is no memory to read the item from slower storage.
    OutOfMemory,
    /// Another server has the item, and does not answer.
    Elsewhere,
}

#[cfg(feature = "grpc")]
impl Looked {
    /// The item, if there is one.
    pub(crate) fn found(&self) -> Option<&Found> {
        if let Self::Found(found) = self { Some(found) } else { None }
    }
}

/// An item that was looked up.
#[derive(Debug)]
pub(crate) struct Found {
    /// The value. The pieces of a large one stay where they are in the cache.
    pub(crate) value: Vec<Bytes>,
    /// Changes with every write; 0 where the engine keeps none.
    pub(crate) cas: u64,
    /// A number of the client's.
    pub(crate) client_flags: u32,
    /// Seconds until the item expires; `None` if it never does.
    pub(crate) ttl: Option<u32>,
}

impl Found {
    /// The length of the value in bytes.
    pub(crate) fn len(&self) -> usize {
        self.value.iter().map(Bytes::len).sum()
    }
}

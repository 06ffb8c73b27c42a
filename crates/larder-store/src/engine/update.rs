//! Updates of one key or of all keys, and uploads.

use super::{Change, Fence, HashedKey, Item, Lookup, Lookups, Refusal, Seconds, Tag, Updated};
use std::sync::Arc;

/// The number of bytes by which leases and uploads exceed their shares of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExcessMemory {
    /// The number of bytes by which leases exceed their share. While it is not 0, the server
    /// disconnects stalled peers.
    pub leased: usize,
    /// The number of bytes by which uploads exceed their share. While it is not 0, the server
    /// disconnects stalled peers.
    pub uploaded: usize,
    /// The number of bytes by which uploads exceed a second, higher share. While it is not 0, the
    /// server disconnects even uploading peers that are not stalled, to avoid refusing new uploads.
    pub uploaded_by_any: usize,
}

/// Uploads: values that arrive in pieces.
pub trait Uploads {
    /// A value that arrives in pieces. Dropping it frees its memory.
    type Upload: Send;

    /// Returns the length in bytes from which callers should upload a value rather than pass it in
    /// one piece.
    fn upload_len_min(&self) -> usize;

    /// Starts an upload of `len` bytes. The engine allocates memory as the pieces arrive.
    ///
    /// # Errors
    /// [`Refusal::TooLarge`] if the cache can't store a value of this length.
    fn upload(&mut self, len: usize) -> Result<Self::Upload, Refusal>;

    /// Appends the next piece to an upload.
    ///
    /// # Errors
    /// [`Refusal`]: the memory limit leaves no room for the piece, the value exceeds the announced
    /// length, or the upload belongs to another cache. The caller drops the upload.
    fn extend(&mut self, upload: &mut Self::Upload, bytes: &[u8]) -> Result<(), Refusal>;

    /// Returns the memory that an upload occupies, in bytes: at least the length of its pieces. 0
    /// for an upload of another engine.
    fn memory_of(&self, upload: &Self::Upload) -> usize;

    /// Returns the appended bytes from `offset` on that are contiguous in memory: at least one byte
    /// if `offset` is below the number of appended bytes. Returns an empty slice for an upload of
    /// another engine.
    fn uploaded<'u>(&self, upload: &'u Self::Upload, offset: usize) -> &'u [u8];

    /// Returns the number of bytes by which leases and uploads exceed their shares of memory. While
    /// a share is exceeded, the server disconnects some of the peers that use it, before it has to
    /// refuse requests of other peers.
    fn excess_memory(&self) -> ExcessMemory {
        ExcessMemory::default()
    }
}

/// Changes to single items, and invalidation of all items or of the items with a tag.
pub trait Updates: Lookups + Uploads {
    /// Calls `decide` with the item under `key` (`Hit`) or with the reason why there is none, and
    /// applies the change that `decide` returns. No other write to the key happens between the call
    /// and the change. If the engine has to free memory first, it calls `decide` again, so `decide`
    /// must depend only on its argument. The result of the last call counts. The engine may refuse
    /// the update even after it has called `decide`. For example, it returns [`Refusal::Pending`]
    /// if the item has moved to slower storage since the call.
    ///
    /// A `Put` of an uploaded value moves the upload out of `upload`. Other changes leave it there.
    ///
    /// # Errors
    /// [`Refusal`]: nothing changed.
    fn update<'v, R>(
        &mut self,
        key: HashedKey<'_>,
        upload: &mut Option<Self::Upload>,
        decide: impl FnMut(Lookup<&Item<'_, Self::Lease>>) -> (Change<'v>, R),
    ) -> Result<Updated<R>, Refusal>;

    /// Updates a key like [`Updates::update`], for decisions that do not depend on the old item.
    /// The engine may pass `Miss` for an existing item, and always passes `Miss` for an item on
    /// slower storage. So the engine returns [`Refusal::Pending`] only if the change is a `Put`,
    /// the cache does not evict, and another item on slower storage may have the same index word.
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

    /// Sets the fence for all later changes through this handle. `None` removes the limit. An
    /// update that the fence does not allow closes the fence and returns [`Refusal::Pending`]. A
    /// flush that the fence does not allow closes the fence and has no effect. Only handles with a
    /// journal support fences, because only they receive changes that other nodes forward.
    fn set_fence(&mut self, _fence: Option<Arc<Fence>>) {}

    /// Returns the tag with this name, for use in [`Change::Put`]. Adds the tag to the table of
    /// tags if it is new. If the table has no slot for the tag, the engine drops another tag to
    /// make room. If the tag is dropped before an item is stored with the returned [`Tag`], lookups
    /// of the item return `Flushed`.
    ///
    /// # Errors
    /// [`Refusal::NoTags`], or [`Refusal::OutOfMemory`] if no memory is free for the table, which
    /// the first tag creates.
    fn tag(&mut self, _name: &[u8]) -> Result<Tag, Refusal> {
        Err(Refusal::NoTags)
    }

    /// Invalidates all items that have the tag with this name, in constant time. Returns false if
    /// no item can have the tag. The engine reclaims the memory of the items when it next finds
    /// them.
    fn drop_tag(&mut self, _name: &[u8]) -> bool {
        false
    }

    /// Returns whether items can have tags.
    fn has_tags(&self) -> bool {
        false
    }

    /// Invalidates all items that exist when the flush takes effect. Without `at`, the flush takes
    /// effect immediately. With `at`, the flush takes effect when the first batch or step of
    /// maintenance starts at that second or later. Each call cancels a flush that is still pending.
    fn flush(&mut self, at: Option<Seconds>);

    /// Returns the number of flushes that took effect, delayed flushes included. The engine counts
    /// a flush after it took effect. Items that are stored after the flush can be found only after
    /// the flush is counted.
    fn flush_generation(&self) -> u64;
}

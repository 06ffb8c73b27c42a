//! Updates of one key or of all, and values that arrive in pieces.

use super::{Change, HashedKey, Item, Lookup, Lookups, Refusal, Seconds, Tag, Updated};

/// How much leases and uploads hold above their shares of memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExcessMemory {
    /// Held by leases above the share from which stalled peers are disconnected.
    pub leased: usize,
    /// Held by uploads above the share from which stalled peers are disconnected.
    pub uploaded: usize,
    /// Held by uploads above the share from which any peers are disconnected, lest new uploads have to
    /// be refused.
    pub uploaded_by_any: usize,
}

/// Values that arrive in pieces.
pub trait Uploads {
    /// A value that arrives in pieces. Its memory is freed when it is dropped.
    type Upload: Send;

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
    fn excess_memory(&self) -> ExcessMemory {
        ExcessMemory::default()
    }
}

/// Changes of one item, of the items of a tag, and of all items.
pub trait Updates: Lookups + Uploads {
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

    /// [`Updates::update`] for a decision that does not depend on the old item. An old item may be shown
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

    /// Invalidates everything that was stored before `at`, or before now. A call replaces an earlier
    /// one that has not taken effect.
    fn flush(&mut self, at: Option<Seconds>);

    /// The number of flushes that took effect, delayed ones included. Each is counted after it took effect, and
    /// before anything that is stored after it can be looked up.
    fn flush_generation(&self) -> u64;
}

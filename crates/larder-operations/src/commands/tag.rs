//! Tags of items: see [`larder_store::Engine::tag`].

use crate::OpContext;
use larder_store::{Engine, Refusal, TAGS_MAX, Tag};

/// The maximum length of a tag's name, in bytes.
pub const TAG_LEN_MAX: usize = 250;

/// The tags of one item.
pub type Tags = arrayvec::ArrayVec<Tag, TAGS_MAX>;

impl<E: Engine> OpContext<'_, E> {
    /// Resolves the names of tags. Ignores names beyond the first [`TAGS_MAX`].
    ///
    /// # Errors
    /// [`Refusal::NoTags`] or [`Refusal::OutOfMemory`]: see `Updates::tag` of larder-store.
    pub fn tags<'n>(&mut self, names: impl Iterator<Item = &'n [u8]>) -> Result<Tags, Refusal> {
        names.take(TAGS_MAX).map(|name| self.engine.tag(name)).collect()
    }

    /// Invalidates all items with the tag named `name`. Returns false if no item can have the tag.
    pub fn drop_tag(&mut self, name: &[u8]) -> bool {
        let is_known = self.engine.drop_tag(name);
        if let Some(guard) = self.guard.filter(|_| is_known) {
            guard.note_dropped_tag();
        }
        is_known
    }
}

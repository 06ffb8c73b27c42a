//! Tags: see [`larder_store::Engine::tag`].

use crate::OpContext;
use larder_store::{Engine, Refusal, TAGS_MAX, Tag};

/// The longest name of a tag in bytes.
pub const TAG_LEN_MAX: usize = 250;

/// The tags of an item that is stored.
pub type Tags = arrayvec::ArrayVec<Tag, TAGS_MAX>;

impl<E: Engine> OpContext<'_, E> {
    /// The tags of these names, of which there are [`TAGS_MAX`] at most; others are left out.
    ///
    /// # Errors
    /// [`Refusal::NoTags`] or [`Refusal::OutOfMemory`]: see [`Engine::tag`].
    pub fn tags<'n>(&mut self, names: impl Iterator<Item = &'n [u8]>) -> Result<Tags, Refusal> {
        names.take(TAGS_MAX).map(|name| self.engine.tag(name)).collect()
    }

    /// Invalidates all items with the tag of this name; false if there can be none.
    pub fn drop_tag(&mut self, name: &[u8]) -> bool {
        self.engine.drop_tag(name)
    }
}

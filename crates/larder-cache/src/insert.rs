//! Options and errors of inserts.

use bytes::Bytes;
use std::fmt;
use std::time::Duration;

/// The maximum length of a key, in bytes.
pub const KEY_LEN_MAX: usize = larder_store::KEY_LEN_MAX;

/// The maximum number of tags per item.
pub const TAGS_MAX: usize = larder_store::TAGS_MAX;

/// The maximum length of a tag, in bytes.
pub const TAG_LEN_MAX: usize = larder_operations::TAG_LEN_MAX;

/// Options of an insert: see [`crate::Cache::insert_with`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InsertOptions {
    pub(crate) ttl: Option<Duration>,
    pub(crate) tags: Vec<Box<[u8]>>,
}

impl InsertOptions {
    /// Creates options without an expiry and without tags.
    #[must_use]
    pub const fn new() -> Self {
        Self { ttl: None, tags: Vec::new() }
    }

    /// Makes the item expire after `ttl`.
    ///
    /// Items expire at whole seconds of the cache's clock, up to a second before `ttl` has passed.
    /// With a `ttl` of less than a second, the item expires at the end of the clock's current
    /// second, which may be later than `ttl`.
    #[must_use]
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Adds a tag. [`crate::Cache::drop_tag`] removes all items with a tag. An item has at most
    /// [`TAGS_MAX`] tags.
    #[must_use]
    pub fn tag(mut self, name: impl AsRef<[u8]>) -> Self {
        self.tags.push(name.as_ref().into());
        self
    }
}

/// A value and its options, which the maker of a [`crate::Cache::get_or_insert_with`] call returns.
/// A value converts to an insertion without options. A pair of a value and [`InsertOptions`]
/// converts to an insertion with these options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Insertion {
    pub(crate) value: Bytes,
    pub(crate) options: InsertOptions,
}

macro_rules! insertion_from {
    ($($value:ty),*) => {
        $(impl From<$value> for Insertion {
            fn from(value: $value) -> Self {
                Self { value: value.into(), options: InsertOptions::new() }
            }
        })*
    };
}

insertion_from!(Bytes, Vec<u8>, Box<[u8]>, String, &'static [u8], &'static str);

impl<V: Into<Bytes>> From<(V, InsertOptions)> for Insertion {
    fn from((value, options): (V, InsertOptions)) -> Self {
        Self { value: value.into(), options }
    }
}

/// The reason why a value was not stored.
///
/// [`crate::Cache::insert`] then removes an old value under the key, so that no lookup finds the
/// old value instead of the new one. Methods whose change depends on the old value, such as
/// [`crate::Cache::update`], keep the old value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertError {
    /// The key is empty, or longer than [`KEY_LEN_MAX`].
    KeyLength,
    /// There are more than [`TAGS_MAX`] tags.
    TooManyTags,
    /// A tag is empty, or longer than [`TAG_LEN_MAX`].
    TagLength,
    /// Key and value together are longer than [`crate::Builder::item_size_max`], or than half of
    /// the memory.
    TooLarge,
    /// No item can be evicted now, because readers or writers use all segments, or the cache could
    /// not allocate memory for the tag table. A retry may succeed.
    OutOfMemory,
}

impl fmt::Display for InsertError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeyLength => write!(f, "a key must have 1 to {KEY_LEN_MAX} bytes"),
            Self::TooManyTags => write!(f, "an item can have at most {TAGS_MAX} tags"),
            Self::TagLength => write!(f, "a tag must have 1 to {TAG_LEN_MAX} bytes"),
            Self::TooLarge => f.write_str("the value is too large for the cache"),
            Self::OutOfMemory => f.write_str("nothing can be evicted to make room for the value"),
        }
    }
}

impl std::error::Error for InsertError {}

//! An item in its segment.
//!
//! | file | subject |
//! |---|---|
//! | `new_record` | an item that is written |
//! | `record` | a published item: reading it, changing its attributes |
//! | `witness` | why published bytes do not change while they are read |
//! | `flash_copy` | the link of an item in memory that is on flash, too |
//! | `extension` | the word for what the header has no bits for |
//! | `header` | the packed first word of an item |
//!
//! # Invariants
//! - After an item was published, only its attributes change, all in one word, and its links.
//! - Bytes of an item are read only with a `Witness` that they do not change.

pub(crate) mod extension;
pub(crate) mod flash_copy;
pub(crate) mod header;
pub(crate) mod new_record;
pub(crate) mod record;
pub(crate) mod witness;

//! An item in its segment.
//!
//! | file | subject |
//! |---|---|
//! | `new_record` | an item before it is written |
//! | `record` | a published item: reading it, changing its attributes |
//! | `witness` | proofs that published bytes do not change while a thread reads them |
//! | `flash_copy` | the link from an item in memory to its copy on flash |
//! | `extension` | the word for fields that do not fit the header |
//! | `header` | the packed first word of an item |
//!
//! # Invariants
//! - After an item was published, only its link, its header and its exact expiry change. A change
//!   of attributes writes the header or the exact expiry, never both.
//! - Bytes of an item are read only with a `Witness` that they do not change.

pub(crate) mod extension;
pub(crate) mod flash_copy;
pub(crate) mod header;
pub(crate) mod new_record;
pub(crate) mod record;
pub(crate) mod witness;

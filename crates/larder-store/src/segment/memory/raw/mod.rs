//! The region: memory that is addressed by offsets. All access to it passes through the functions
//! of [`Region`]. Other files call its unsafe functions to read, write and discard bytes, and give
//! the reason why each call is sound: `item::{new_record, record}`, `large_value::{builder, lease,
//! upload}`, `write::writer`, `update::value`, `reclaim::decommission`, `restart::{totals, image}`,
//! `flash_read::device_read` and `flash_write::{block_writer, demotion, page_reclaim}`.
//!
//! The safety of this code depends on three rules.
//! 1. *Words*: headers, CAS and expiries of items, the index and the segment table are read and
//!    written through atomics only. The exception is memory that no index word refers to yet: a
//!    device or a restart may fill it.
//! 2. *Bytes*: one thread writes keys and values: the owner of the open segment, of the upload, of
//!    the read buffer or of the free block, or the thread that extends a chain under the lock of
//!    its stripe. It writes them before it stores an index word with their location with `Release`,
//!    or before it delivers a finished read. Afterwards they do not change until the segment is
//!    recycled or they become a free block (`free_lists`).
//! 3. *Recycling*: a segment is recycled, and a free block overwritten, only after no index word
//!    refers to it any more, and every lease and every epoch pin that could have seen such a word
//!    has ended. Recycling and overwriting are also allowed if no index word ever referred to the
//!    memory. A reader of bytes needs one of four protections: such a pin, a lease, the lock of the
//!    key's stripe, or ownership of the sealed segment. The key's index word does not change
//!    without the lock of its stripe. A segment that is owned is closed, and no free block in it is
//!    taken. In a block that was taken earlier, the header of the dead record stays until the new
//!    record is complete, and no thread reads the bytes of a record whose header is marked dead.
//!
//! | file | subject |
//! |---|---|
//! | `mapped` | the region as mapped memory |
//! | `modelled` | the region of model checks under weak memory ordering |
//! | `system` | the memory behind a mapped region: an anonymous mapping, a file, or an allocation |
//! | `hardware` | prefetching, the length of cache lines and of pages |

pub(crate) mod hardware;
#[cfg(not(loom))]
mod mapped;
#[cfg(loom)]
mod modelled;
#[cfg(not(loom))]
mod system;

#[cfg(not(loom))]
pub(crate) use mapped::Region;
#[cfg(loom)]
pub(crate) use modelled::Region;

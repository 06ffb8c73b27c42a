//! The whole interface of a handle.

use super::{Acknowledge, Batches, Lookups, Maintenance, SlowStorage, Updates, Walks};

/// One thread's handle to a cache. Each thread has a handle of its own. Leases, uploads, walks and fetches may be used
/// with the handle of another thread later.
pub trait Engine:
    Batches + Lookups + Updates + SlowStorage + Acknowledge + Walks + Maintenance
{
}

impl<T: Batches + Lookups + Updates + SlowStorage + Acknowledge + Walks + Maintenance> Engine
    for T
{
}

//! The complete interface of a handle.

use super::{Acknowledge, Batches, Lookups, Maintenance, SlowStorage, Updates, Walks};

/// A handle to a cache, for one thread at a time. Leases, uploads, walks and pending reads may be
/// used with another handle of the same cache later.
pub trait Engine:
    Batches + Lookups + Updates + SlowStorage + Acknowledge + Walks + Maintenance
{
}

impl<T: Batches + Lookups + Updates + SlowStorage + Acknowledge + Walks + Maintenance> Engine
    for T
{
}

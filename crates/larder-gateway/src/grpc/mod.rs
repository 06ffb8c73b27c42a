//! Items and statistics over gRPC: the service of `proto/larder/v1/cache.proto`.
//!
//! | file | contains |
//! |---|---|
//! | `router.rs` | all services |
//! | `guard.rs`, `deadline.rs`, `memory.rs`, `codec.rs` | access checks; limits of time, memory and message parts |
//! | `cache.rs`, `value.rs`, `watch.rs` | the methods; values in pieces; events of items |
//! | `fields.rs` | conversions of request fields and outcomes |
//! | `health.rs` | the standard health service |

mod cache;
mod codec;
mod deadline;
mod fields;
mod guard;
mod health;
mod memory;
mod router;
mod value;
mod watch;

pub(crate) use memory::refused;
pub(crate) use router::{router, services};

/// Types that `scripts/grpc-code` generates from the service description.
mod pb {
    #![allow(
        clippy::allow_attributes_without_reason,
        clippy::use_self,
        missing_docs,
        unnameable_types,
        unreachable_pub,
        unused_qualifications,
        reason = "the code is generated"
    )]
    include!("generated/larder.v1.rs");

    /// The encoded service description, for reflection.
    pub(super) const DESCRIPTION: &[u8] = include_bytes!("generated/larder.v1.bin");
}

//! Items and statistics over gRPC, as `proto/larder/v1/cache.proto` describes them.
//!
//! | file | contains |
//! |---|---|
//! | `router.rs` | all services |
//! | `guard.rs`, `deadline.rs`, `memory.rs`, `codec.rs` | who may do what, and how long and large requests and answers may be |
//! | `cache.rs`, `value.rs`, `watch.rs` | the methods; those for values in pieces; events of items |
//! | `fields.rs` | fields of requests, and what outcomes are in answers |
//! | `health.rs` | the standard service that says whether the server takes requests |

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

/// What is generated from the description.
mod pb {
    #![allow(
        clippy::allow_attributes_without_reason,
        clippy::use_self,
        missing_docs,
        unnameable_types,
        unreachable_pub,
        unused_qualifications,
        reason = "it is generated"
    )]
    tonic::include_proto!("larder.v1");

    /// The description, encoded, for reflection.
    pub(super) const DESCRIPTION: &[u8] = tonic::include_file_descriptor_set!("larder.v1");
}

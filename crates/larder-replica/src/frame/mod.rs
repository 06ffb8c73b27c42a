//! The frames between two nodes: the handshake, the replication stream, and forwarded requests.
//!
//! ```text
//! ┌─────────┬─────────┬──────┬─────────┐
//! │ length  │ CRC-32  │ type │ fields  │   length and CRC-32 cover type and fields
//! │ 4 bytes │ 4 bytes │ 1    │         │   numbers are little-endian
//! └─────────┴─────────┴──────┴─────────┘
//! ```
//! In the handshake, the peer that has opened the connection sends `Hello`. If there is a secret,
//! the node that has accepted the connection (called the leader below) sends a `Challenge`, and the
//! peer replies with a `Proof`. Then the leader sends `Accepted`. At any point, the leader may send
//! `Refused` instead. The frames after the handshake depend on the purpose in the `Hello`:
//!
//! | purpose | leader sends | peer sends |
//! |---|---|---|
//! | follow | the stream of changes, `Heartbeat` | `Ack`, in a delta sync `ChangedKeys` |
//! | import | the stream of changes of some slots, `Heartbeat`, `Barrier` | `Ack`, `ReleaseSlots` |
//! | forward | `Reply`, `Moved`, `Invalidated`, `LinkHeartbeat` | `Open`, `Request`, `Continue`, `Close`, `Lease`, `TrackAll`, `MapRevision` |
//!
//! `fields.rs` encodes and decodes headers and fields, `message.rs` the frames, and `state.rs` the
//! item states in a batch. `changed_keys.rs` contains the keys that a follower sends in a delta
//! sync, and `invalidated.rs` the keys that a leader sends for near caches.

mod changed_keys;
mod fields;
mod invalidated;
mod message;
mod state;

pub(crate) use changed_keys::ChangedKeyQueue;
pub use changed_keys::{CHANGED_KEYS_LEN_MAX, ChangedKeys};
pub use fields::{FrameError, JOURNALS_MAX, Nonce, Position};
pub use invalidated::Invalidated;
pub use message::{
    FRAME_LEN_MAX, Frame, HANDSHAKE_FRAME_LEN_MAX, HelloMember, PART_LEN_MAX, Purpose, ReplyEnd,
    VERSION,
};
pub use state::{Batch, BatchWriter, ItemState, State, TimeLeft, ValueState};

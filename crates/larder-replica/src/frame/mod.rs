//! The frames between two nodes: the handshake, the replication stream, and forwarded requests.
//!
//! ```text
//! ┌─────────┬─────────┬──────┬─────────┐
//! │ length  │ CRC-32  │ type │ fields  │   length and CRC-32 cover type and fields
//! │ 4 bytes │ 4 bytes │ 1    │         │   numbers are little-endian
//! └─────────┴─────────┴──────┴─────────┘
//! ```
//! The handshake: the peer that has connected sends `Hello`. If there is a secret, the node that
//! has accepted the connection (called the leader below) sends a `Challenge`, and the peer a
//! `Proof`. Then the leader sends `Accepted`. At any point the leader may send `Refused` instead.
//! The next frames depend on the purpose in the `Hello`:
//!
//! | purpose | leader sends | peer sends |
//! |---|---|---|
//! | follow | the stream of changes, `Heartbeat` | `Ack`, in a delta sync `ChangedKeys` |
//! | import | the stream of changes of some slots, `Heartbeat`, `Barrier` | `Ack`, `ReleaseSlots` |
//! | forward | `Reply`, `Invalidated`, `Heartbeat` | `Open`, `Request`, `Continue`, `Close`, `TrackAll` |
//!
//! `fields.rs` has headers and fields, `message.rs` the frames, `state.rs` the states of items in a
//! batch, `changed_keys.rs` the keys that a follower sends, and `invalidated.rs` those that a
//! leader sends for near caches.

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

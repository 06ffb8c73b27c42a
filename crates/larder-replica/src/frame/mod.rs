//! The frames of the stream from a leader to a follower, and back.
//!
//! ```text
//! ┌─────────┬─────────┬──────┬─────────┐
//! │ length  │ CRC-32  │ type │ fields  │   length and CRC-32 are those of what follows them
//! │ 4 bytes │ 4 bytes │ 1    │         │   numbers are little-endian
//! └─────────┴─────────┴──────┴─────────┘
//! ```
//! A connection begins with `Hello` of the follower. If there is a secret, the leader answers with a `Challenge`,
//! and the follower with a `Proof`; then the leader sends `Welcome` and the stream. A member of a group may ask to
//! forward requests instead: it then sends `Open`, `Pass`, `GoOn` and `Shut`, and the leader `Answer`.
//!
//! `fields.rs` is what all frames have, `message.rs` which there are, `state.rs` the items in them, and `named.rs` the
//! keys that a follower names.

mod fields;
mod message;
mod named;
mod state;

pub use fields::{FrameError, JOURNALS_MAX, Nonce, Position};
pub use message::{
    AnswerEnd, FRAME_LEN_MAX, Frame, GREETING_LEN_MAX, HelloMember, PART_LEN_MAX, Purpose, VERSION,
};
pub(crate) use named::NamedKeys;
pub use named::{NAMED_LEN_MAX, Named};
pub use state::{Batch, BatchWriter, ItemState, State, TimeLeft, ValueState};

//! Batches of item states.
//!
//! ```text
//! ┌───────┬─────────┬──────────────┬─────┬───────────┬───────────┬─────┬───────┐
//! │ flags │ key_len │ client_flags │ CAS │ time left │ value_len │ key │ value │   of a removed item only
//! │ 1     │ 2       │ 4            │ 8   │ 0, 4 or 8 │ 8         │     │       │   flags, key_len and key
//! └───────┴─────────┴──────────────┴─────┴───────────┴───────────┴─────┴───────┘
//! ```

use super::fields::{Fields, FrameError, seal, start, write};
use larder_store::KEY_LEN_MAX;

/// The type number of a `Batch` frame.
const BATCH: u8 = 7;

const REMOVED: u8 = 1;
const STALE: u8 = 2;
const WON: u8 = 4;
const BINARY_KEY: u8 = 8;
const FETCHED: u8 = 16;
const IN_PARTS: u8 = 32;
const LEFT_SECONDS: u8 = 64;
const LEFT_MILLIS: u8 = 128;

/// A batch of encoded item states. [`Batch::states`] decodes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch<'b> {
    /// The number of the batch on its connection, starting at 1.
    pub number: u64,
    states: &'b [u8],
}

/// The state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State<'b> {
    /// The key as raw bytes, never in base64.
    pub key: &'b [u8],
    /// The item; `None` if the key has no item.
    pub item: Option<ItemState<'b>>,
}

/// The leader's state of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemState<'b> {
    /// The client's flags, which the server does not interpret.
    pub client_flags: u32,
    /// The remaining lifetime.
    pub left: TimeLeft,
    /// Whether the item is invalidated. Reads still return the item, but mark it as stale.
    pub stale: bool,
    /// Whether a client has the right to recompute the item.
    pub won: bool,
    /// Whether memcached's text protocol sends the key in base64. The protocol does so if a client
    /// sent the key in base64, or if a text line cannot contain the key's bytes.
    pub binary_key: bool,
    /// Whether a client has read the item.
    pub fetched: bool,
    /// The CAS value; 0 if the leader stores no CAS values.
    pub cas: u64,
    /// The value, or its length.
    pub value: ValueState<'b>,
}

/// The value of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueState<'b> {
    /// A value within the batch.
    Whole(&'b [u8]),
    /// The length in bytes of a value that follows the batch in `Part` frames. Only the last state
    /// of a batch can have such a value.
    InParts(u64),
}

/// The remaining lifetime of an item. The format sends a duration, because the clocks of leader and
/// follower differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeLeft {
    /// The item does not expire.
    Forever,
    /// The item expires at a whole second of the local clock: this many seconds after the current
    /// second.
    Seconds(u32),
    /// The item expires in this many milliseconds.
    Millis(u64),
}

impl<'b> Batch<'b> {
    /// Decodes the states, in the order of the stream.
    ///
    /// # Errors
    /// A malformed state yields [`FrameError::Malformed`], and the iterator ends.
    pub fn states(&self) -> impl Iterator<Item = Result<State<'b>, FrameError>> + use<'b> {
        Fields::new(self.states).all(BATCH, state)
    }

    /// Reads the fields of a frame. Returns `None` if they are malformed. Does not validate the
    /// states.
    pub(super) fn read(fields: &mut Fields<'b>) -> Option<Self> {
        Some(Self { number: fields.number()?, states: fields.rest() })
    }

    /// Appends the frame to `out`.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        write(out, BATCH, |out| {
            out.extend_from_slice(&self.number.to_le_bytes());
            out.extend_from_slice(self.states);
        });
    }
}

/// Decodes the next state. Returns `None` if it is malformed.
fn state<'b>(fields: &mut Fields<'b>) -> Option<State<'b>> {
    let [flags] = fields.array()?;
    let key_len = usize::from(u16::from_le_bytes(fields.array()?));
    if key_len == 0 || key_len > KEY_LEN_MAX {
        return None;
    }
    let has = |flag| flags & flag != 0;
    if has(REMOVED) {
        return Some(State { key: fields.take(key_len)?, item: None });
    }
    let client_flags = u32::from_le_bytes(fields.array()?);
    let cas = fields.number()?;
    let left = if has(LEFT_SECONDS) {
        TimeLeft::Seconds(u32::from_le_bytes(fields.array()?))
    } else if has(LEFT_MILLIS) {
        TimeLeft::Millis(fields.number()?)
    } else {
        TimeLeft::Forever
    };
    let value_len = fields.number()?;
    let key = fields.take(key_len)?;
    let value = if has(IN_PARTS) {
        ValueState::InParts(value_len)
    } else {
        ValueState::Whole(fields.take(usize::try_from(value_len).ok()?)?)
    };
    let (stale, won) = (has(STALE), has(WON));
    let (binary_key, fetched) = (has(BINARY_KEY), has(FETCHED));
    let item = ItemState { client_flags, left, stale, won, binary_key, fetched, cas, value };
    Some(State { key, item: Some(item) })
}

/// Encodes a batch, one state at a time.
#[derive(Debug)]
pub struct BatchWriter {
    /// The offset in the output at which the frame of the batch starts.
    offset: usize,
    states: usize,
}

impl BatchWriter {
    /// Starts a batch at the end of `out`.
    #[must_use]
    pub fn start(out: &mut Vec<u8>, number: u64) -> Self {
        let offset = out.len();
        start(out, BATCH);
        out.extend_from_slice(&number.to_le_bytes());
        Self { offset, states: 0 }
    }

    /// Appends a state.
    #[expect(clippy::cast_possible_truncation, reason = "keys are short")]
    pub fn push(&mut self, out: &mut Vec<u8>, state: &State<'_>) {
        self.states += 1;
        let key_len = (state.key.len() as u16).to_le_bytes();
        let Some(item) = &state.item else {
            out.push(REMOVED);
            out.extend_from_slice(&key_len);
            out.extend_from_slice(state.key);
            return;
        };
        let flag = |on: bool, flag: u8| if on { flag } else { 0 };
        let (value, len) = match item.value {
            ValueState::Whole(value) => (value, value.len() as u64),
            ValueState::InParts(len) => (&[][..], len),
        };
        let flags = flag(item.stale, STALE)
            | flag(item.won, WON)
            | flag(item.binary_key, BINARY_KEY)
            | flag(item.fetched, FETCHED)
            | flag(matches!(item.value, ValueState::InParts(_)), IN_PARTS)
            | flag(matches!(item.left, TimeLeft::Seconds(_)), LEFT_SECONDS)
            | flag(matches!(item.left, TimeLeft::Millis(_)), LEFT_MILLIS);
        out.push(flags);
        out.extend_from_slice(&key_len);
        out.extend_from_slice(&item.client_flags.to_le_bytes());
        out.extend_from_slice(&item.cas.to_le_bytes());
        match item.left {
            TimeLeft::Forever => (),
            TimeLeft::Seconds(seconds) => out.extend_from_slice(&seconds.to_le_bytes()),
            TimeLeft::Millis(millis) => out.extend_from_slice(&millis.to_le_bytes()),
        }
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(state.key);
        out.extend_from_slice(value);
    }

    /// Returns the number of states so far.
    #[must_use]
    pub fn states(&self) -> usize {
        self.states
    }

    /// Returns the length of the encoded batch so far, in bytes.
    #[must_use]
    pub fn len(&self, out: &[u8]) -> usize {
        out.len() - self.offset
    }

    /// Completes the frame.
    pub fn finish(self, out: &mut [u8]) {
        seal(out, self.offset);
    }

    /// Removes the batch from `out`.
    pub fn cancel(self, out: &mut Vec<u8>) {
        out.truncate(self.offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{FRAME_LEN_MAX, Frame};

    #[test]
    fn states_round_trip() {
        let item = ItemState {
            client_flags: 5,
            left: TimeLeft::Forever,
            stale: false,
            won: true,
            binary_key: false,
            fetched: true,
            cas: 1 << 50,
            value: ValueState::Whole(b"value"),
        };
        let states = [
            State { key: b"removed", item: None },
            State { key: b"a", item: Some(item) },
            State {
                key: b"b",
                item: Some(ItemState { left: TimeLeft::Seconds(3), stale: true, ..item }),
            },
            State { key: &[9; 1024], item: Some(ItemState { left: TimeLeft::Millis(1), ..item }) },
            State { key: b"c", item: Some(ItemState { value: ValueState::Whole(b""), ..item }) },
            State {
                key: b"d",
                item: Some(ItemState { value: ValueState::InParts(1 << 30), ..item }),
            },
        ];
        let mut out = b"before".to_vec();
        let mut batch = BatchWriter::start(&mut out, 3);
        states.iter().for_each(|state| batch.push(&mut out, state));
        assert_eq!(batch.states(), states.len());
        batch.finish(&mut out);
        let (frame, len) = Frame::read(&out[6..], FRAME_LEN_MAX).unwrap().unwrap();
        assert_eq!(len, out.len() - 6);
        let Frame::Batch(batch) = frame else { panic!("a batch") };
        assert_eq!(batch.number, 3);
        let read: Vec<_> = batch.states().map(Result::unwrap).collect();
        assert_eq!(read, states);
    }
}

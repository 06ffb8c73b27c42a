//! States of items, of which batches consist.

use super::fields::{Fields, FrameError, begin, seal, write};
use larder_store::KEY_LEN_MAX;

/// The type of a batch.
const BATCH: u8 = 7;

const GONE: u8 = 1;
const STALE: u8 = 2;
const WON: u8 = 4;
const BINARY_KEY: u8 = 8;
const FETCHED: u8 = 16;
const IN_PARTS: u8 = 32;
const LEFT_SECONDS: u8 = 64;
const LEFT_MILLIS: u8 = 128;

/// States of items: see [`Batch::states`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch<'b> {
    /// Rises with each batch of a connection, from 1.
    pub number: u64,
    states: &'b [u8],
}

/// The state of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State<'b> {
    /// The key.
    pub key: &'b [u8],
    /// What is under it.
    pub item: Option<ItemState<'b>>,
}

/// An item as the leader has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemState<'b> {
    /// A number of the client's.
    pub client_flags: u32,
    /// The time that is left.
    pub left: TimeLeft,
    /// The item was invalidated, but is still shown.
    pub stale: bool,
    /// A client was told to recache the item.
    pub won: bool,
    /// The key was sent in base64.
    pub binary_key: bool,
    /// The item was read.
    pub fetched: bool,
    /// 0 if the leader keeps none.
    pub cas: u64,
    /// The value.
    pub value: ValueState<'b>,
}

/// The value of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueState<'b> {
    /// All of it.
    Whole(&'b [u8]),
    /// So many bytes, which follow the batch in parts. Only the last state of a batch has this.
    InParts(u64),
}

/// How long an item is still to live, on whatever clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeLeft {
    /// It does not expire.
    Forever,
    /// It expires at a whole second of its clock, so many seconds from the present one.
    Seconds(u32),
    /// It expires in so many milliseconds.
    Millis(u64),
}

impl<'b> Batch<'b> {
    /// The states, in their order.
    ///
    /// # Errors
    /// [`FrameError::Malformed`]: so is all that follows.
    pub fn states(&self) -> impl Iterator<Item = Result<State<'b>, FrameError>> + use<'b> {
        Fields::new(self.states).all(BATCH, state)
    }

    /// Reads the fields of a frame.
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

/// The next state; `None` if it can't be read.
fn state<'b>(fields: &mut Fields<'b>) -> Option<State<'b>> {
    let [flags] = fields.array()?;
    let key_len = usize::from(u16::from_le_bytes(fields.array()?));
    if key_len == 0 || key_len > KEY_LEN_MAX {
        return None;
    }
    let has = |flag| flags & flag != 0;
    if has(GONE) {
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

/// Writes a batch state by state.
#[derive(Debug)]
pub struct BatchWriter {
    start: usize,
    states: usize,
}

impl BatchWriter {
    /// Begins a batch at the end of `out`.
    #[must_use]
    pub fn begin(out: &mut Vec<u8>, number: u64) -> Self {
        let start = out.len();
        begin(out, BATCH);
        out.extend_from_slice(&number.to_le_bytes());
        Self { start, states: 0 }
    }

    /// Appends a state.
    #[expect(clippy::cast_possible_truncation, reason = "keys are short")]
    pub fn push(&mut self, out: &mut Vec<u8>, state: &State<'_>) {
        self.states += 1;
        let key_len = (state.key.len() as u16).to_le_bytes();
        let Some(item) = &state.item else {
            out.push(GONE);
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

    /// The states so far.
    #[must_use]
    pub fn states(&self) -> usize {
        self.states
    }

    /// The bytes so far.
    #[must_use]
    pub fn len(&self, out: &[u8]) -> usize {
        out.len() - self.start
    }

    /// Ends the batch.
    pub fn end(self, out: &mut [u8]) {
        seal(out, self.start);
    }

    /// Takes back all that was written.
    pub fn cancel(self, out: &mut Vec<u8>) {
        out.truncate(self.start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{FRAME_LEN_MAX, Frame};

    #[test]
    fn states_are_read_as_they_were_written() {
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
            State { key: b"gone", item: None },
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
        let mut batch = BatchWriter::begin(&mut out, 3);
        states.iter().for_each(|state| batch.push(&mut out, state));
        assert_eq!(batch.states(), states.len());
        batch.end(&mut out);
        let (frame, len) = Frame::read(&out[6..], FRAME_LEN_MAX).unwrap().unwrap();
        assert_eq!(len, out.len() - 6);
        let Frame::Batch(batch) = frame else { panic!("a batch") };
        assert_eq!(batch.number, 3);
        let read: Vec<_> = batch.states().map(Result::unwrap).collect();
        assert_eq!(read, states);
    }
}

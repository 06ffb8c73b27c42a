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

use larder_store::KEY_LEN_MAX;
use std::collections::VecDeque;

/// The version of this format. Both sides have to have the same.
pub const VERSION: u16 = 3;

/// The longest frame that is sent or accepted, without its head, in bytes.
pub const FRAME_LEN_MAX: usize = 1 << 20;
/// The longest frame before the peer has shown who it is.
pub const GREETING_LEN_MAX: usize = 64 << 10;
/// The longest part of a large value in one frame.
pub const PART_LEN_MAX: usize = 64 << 10;
/// The most bytes of keys that a member names after another one has begun to lead. Above, it copies everything.
pub const NAMED_LEN_MAX: usize = 4 << 20;
/// A frame of named keys ends when it has this many bytes.
const NAMED_LEN: usize = 16 << 10;
/// The most journals that a position can have.
pub const JOURNALS_MAX: usize = 4096;

const HEAD_LEN: usize = 8;

/// A number drawn at random for one connection.
pub type Nonce = [u8; 32];

/// Where a follower is in its leader's journals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The start of the leader's process that the offsets belong to.
    pub boot: u64,
    /// The number of the last flush that it has followed.
    pub generation: u64,
    /// What it has of each journal.
    pub offsets: Vec<u64>,
}

/// A message in either direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'b> {
    /// The follower says who it is, and where it is.
    Hello {
        /// Of the follower's format.
        version: u16,
        /// For the leader's proof.
        nonce: Nonce,
        /// A name for logs and statistics; a member's is that of its node.
        name: &'b str,
        /// The group that it is a member of, if it is one.
        member: Option<HelloMember<'b>>,
        /// What it asks for.
        purpose: Purpose,
    },
    /// The leader proves that it knows the secret, and asks for the same.
    Challenge {
        /// For the follower's proof.
        nonce: Nonce,
        /// The leader's proof.
        proof: [u8; 32],
    },
    /// The follower proves that it knows the secret.
    Proof([u8; 32]),
    /// The leader refuses the follower, for this reason.
    Refused(&'b str),
    /// The stream begins.
    Welcome {
        /// The start of the leader's process.
        boot: u64,
        /// The leader's epoch in its group; 0 without one.
        epoch: u32,
    },
    /// A copy begins: the follower forgets what it has.
    CopyBegins {
        /// The number of flushes so far.
        generation: u64,
    },
    /// States of items.
    Batch(Batch<'b>),
    /// The follower has everything up to these offsets in the journals, and up to the last flush.
    Reach {
        /// Rises with each of a connection, from 1.
        number: u64,
        /// An offset for each journal.
        offsets: Vec<u64>,
    },
    /// The next bytes of the large value that the last batch ended with.
    Part(&'b [u8]),
    /// All items are flushed.
    Flush {
        /// The number of flushes so far.
        generation: u64,
    },
    /// The copy, or the repair, is complete: from here on the follower is as far as the stream.
    CopyEnds,
    /// A repair begins: the follower keeps what it has, and names the keys of all that this leader may not know.
    RepairBegins {
        /// How far this leader had followed the one before.
        before: Position,
        /// The number of flushes of this leader when it began to lead.
        generation: u64,
    },
    /// Keys that the follower has changed and the leader may not know.
    Named(Named<'b>),
    /// What was sent so far was changed before the offsets that the next `Settled` has.
    Mark,
    /// See `Mark`.
    Settled {
        /// An offset for each journal.
        ends: Vec<u64>,
    },
    /// The leader is alive.
    Beat {
        /// Rises with each.
        number: u64,
        /// How old the oldest change is that the leader has not sent yet, in milliseconds.
        behind_millis: u32,
        /// When it was sent, in milliseconds on a clock of the leader.
        sent: u64,
    },
    /// The follower has applied all frames up to one.
    Ack {
        /// The number of the last batch.
        batch: u64,
        /// The number of the last beat.
        beat: u64,
        /// The number of the last reach.
        reach: u64,
        /// The follower has everything, up to some lag.
        has_all: bool,
        /// The follower does not stand for election for a while after this beat.
        promises: bool,
    },
    /// A conversation begins whose requests are forwarded.
    Open {
        /// Its number on this connection.
        route: u64,
        /// In which protocol, by a number of whoever forwards.
        conversation: u8,
    },
    /// Bytes of requests.
    Pass {
        /// The conversation.
        route: u64,
        /// The last request is not complete yet.
        more: bool,
        /// The bytes.
        bytes: &'b [u8],
    },
    /// More of an answer may be sent.
    GoOn {
        /// The conversation.
        route: u64,
    },
    /// A conversation has ended.
    Shut {
        /// Which one.
        route: u64,
    },
    /// Bytes of answers.
    Answer {
        /// The conversation.
        route: u64,
        /// What follows.
        end: AnswerEnd,
        /// The bytes.
        bytes: &'b [u8],
    },
}

/// The group that a peer is a member of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelloMember<'b> {
    /// Its cluster and group.
    pub group: &'b str,
    /// The start of its process.
    pub boot: u64,
}

/// What a peer asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To be sent all items and changes, from this position on; `None` if it has nothing.
    Follow(Option<Position>),
    /// To have requests of its clients answered.
    Forward,
}

/// What follows a part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerEnd {
    /// More of it, at once.
    Follows,
    /// More of it, once that was asked for.
    More,
    /// Nothing: all requests were answered.
    Done,
    /// The end of the client's connection.
    Close,
    /// Nothing: this node does not lead, and has answered none of the requests.
    Moved,
}

/// States of items: see [`Batch::states`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch<'b> {
    /// Rises with each batch of a connection, from 1.
    pub number: u64,
    states: &'b [u8],
}

/// Keys: see [`Named::keys`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named<'b> {
    /// No more follow.
    pub is_last: bool,
    keys: &'b [u8],
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

/// Why bytes are no frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A frame is longer than any can be.
    #[error("a frame says that it has {0} bytes, which is more than any frame may have")]
    TooLong(usize),
    /// A frame does not contain what was sent.
    #[error("the checksum of a frame is wrong")]
    Checksum,
    /// A frame has contents that can't be.
    #[error("a frame of type {0} can't be read")]
    Malformed(u8),
}

const GONE: u8 = 1;
const STALE: u8 = 2;
const WON: u8 = 4;
const BINARY_KEY: u8 = 8;
const FETCHED: u8 = 16;
const IN_PARTS: u8 = 32;
const LEFT_SECONDS: u8 = 64;
const LEFT_MILLIS: u8 = 128;

const NUMBER_LEN: usize = size_of::<u64>();

/// Writes a frame whose fields `fields` writes.
fn write(out: &mut Vec<u8>, kind: u8, fields: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD_LEN]);
    out.push(kind);
    fields(out);
    seal(out, start);
}

/// Completes the head of the frame that is from `start` to the end.
#[expect(clippy::cast_possible_truncation, reason = "frames are short")]
fn seal(out: &mut [u8], start: usize) {
    let Some((head, body)) =
        out.get_mut(start..).and_then(|frame| frame.split_at_mut_checked(HEAD_LEN))
    else {
        return;
    };
    let (len, crc) = (body.len() as u32, crc32fast::hash(body));
    head.copy_from_slice(&(u64::from(len) | u64::from(crc) << 32).to_le_bytes());
}

#[expect(clippy::cast_possible_truncation, reason = "it is cut to fit")]
fn write_text(out: &mut Vec<u8>, text: &str) {
    let text = text.get(..text.floor_char_boundary(255)).unwrap_or(text).as_bytes();
    out.push(text.len() as u8);
    out.extend_from_slice(text);
}

fn write_position(out: &mut Vec<u8>, position: &Position) {
    out.extend_from_slice(&position.boot.to_le_bytes());
    out.extend_from_slice(&position.generation.to_le_bytes());
    write_offsets(out, &position.offsets);
}

#[expect(clippy::cast_possible_truncation, reason = "there are few journals")]
fn write_offsets(out: &mut Vec<u8>, offsets: &[u64]) {
    out.extend_from_slice(&(offsets.len() as u16).to_le_bytes());
    offsets.iter().for_each(|offset| out.extend_from_slice(&offset.to_le_bytes()));
}

impl Frame<'_> {
    /// Appends the frame to `out`. A batch is written by a [`BatchWriter`] instead.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello { version, nonce, name, member, purpose } => write(out, 1, |out| {
                out.extend_from_slice(&version.to_le_bytes());
                out.extend_from_slice(nonce);
                write_text(out, name);
                out.push(member.is_some().into());
                if let Some(HelloMember { group, boot }) = member {
                    write_text(out, group);
                    out.extend_from_slice(&boot.to_le_bytes());
                }
                match purpose {
                    Purpose::Follow(None) => out.push(0),
                    Purpose::Follow(Some(position)) => {
                        out.push(1);
                        write_position(out, position);
                    }
                    Purpose::Forward => out.push(2),
                }
            }),
            Self::Challenge { nonce, proof } => write(out, 2, |out| {
                out.extend_from_slice(nonce);
                out.extend_from_slice(proof);
            }),
            Self::Proof(proof) => write(out, 3, |out| out.extend_from_slice(proof)),
            Self::Refused(reason) => write(out, 4, |out| out.extend_from_slice(reason.as_bytes())),
            Self::Welcome { boot, epoch } => write(out, 5, |out| {
                out.extend_from_slice(&boot.to_le_bytes());
                out.extend_from_slice(&epoch.to_le_bytes());
            }),
            Self::CopyBegins { generation } => {
                write(out, 6, |out| out.extend_from_slice(&generation.to_le_bytes()));
            }
            Self::Batch(Batch { number, states }) => write(out, 7, |out| {
                out.extend_from_slice(&number.to_le_bytes());
                out.extend_from_slice(states);
            }),
            Self::Part(bytes) => write(out, 8, |out| out.extend_from_slice(bytes)),
            Self::Flush { generation } => {
                write(out, 9, |out| out.extend_from_slice(&generation.to_le_bytes()));
            }
            Self::CopyEnds => write(out, 10, |_| ()),
            Self::Beat { number, behind_millis, sent } => write(out, 11, |out| {
                out.extend_from_slice(&number.to_le_bytes());
                out.extend_from_slice(&behind_millis.to_le_bytes());
                out.extend_from_slice(&sent.to_le_bytes());
            }),
            Self::Reach { number, offsets } => write(out, 13, |out| {
                out.extend_from_slice(&number.to_le_bytes());
                write_offsets(out, offsets);
            }),
            Self::Ack { batch, beat, reach, has_all, promises } => write(out, 12, |out| {
                out.extend_from_slice(&batch.to_le_bytes());
                out.extend_from_slice(&beat.to_le_bytes());
                out.extend_from_slice(&reach.to_le_bytes());
                out.extend_from_slice(&[(*has_all).into(), (*promises).into()]);
            }),
            Self::Open { route, conversation } => write(out, 14, |out| {
                out.extend_from_slice(&route.to_le_bytes());
                out.push(*conversation);
            }),
            Self::Pass { route, more, bytes } => write(out, 15, |out| {
                out.extend_from_slice(&route.to_le_bytes());
                out.push((*more).into());
                out.extend_from_slice(bytes);
            }),
            Self::GoOn { route } => {
                write(out, 16, |out| out.extend_from_slice(&route.to_le_bytes()))
            }
            Self::Shut { route } => {
                write(out, 17, |out| out.extend_from_slice(&route.to_le_bytes()))
            }
            Self::Answer { route, end, bytes } => write(out, 18, |out| {
                out.extend_from_slice(&route.to_le_bytes());
                out.push(*end as u8);
                out.extend_from_slice(bytes);
            }),
            Self::RepairBegins { before, generation } => write(out, 19, |out| {
                write_position(out, before);
                out.extend_from_slice(&generation.to_le_bytes());
            }),
            Self::Named(Named { is_last, keys }) => write(out, 20, |out| {
                out.push((*is_last).into());
                out.extend_from_slice(keys);
            }),
            Self::Mark => write(out, 21, |_| ()),
            Self::Settled { ends } => write(out, 22, |out| write_offsets(out, ends)),
        }
    }

    /// The first frame of `bytes`, and how many bytes it takes; `None` if it is not complete. Frames have
    /// `len_max` bytes at most.
    ///
    /// # Errors
    /// [`FrameError`]: nothing that follows can be read.
    pub fn read(bytes: &[u8], len_max: usize) -> Result<Option<(Frame<'_>, usize)>, FrameError> {
        let Some((head, rest)) = bytes.split_first_chunk::<HEAD_LEN>() else { return Ok(None) };
        let [l0, l1, l2, l3, c0, c1, c2, c3] = *head;
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let crc = u32::from_le_bytes([c0, c1, c2, c3]);
        if len > len_max || len == 0 {
            return Err(FrameError::TooLong(len));
        }
        let Some(body) = rest.get(..len) else { return Ok(None) };
        if crc32fast::hash(body) != crc {
            return Err(FrameError::Checksum);
        }
        let (kind, fields) = body.split_first().unwrap_or((&0, &[]));
        let frame = Fields(fields).frame(*kind).ok_or(FrameError::Malformed(*kind))?;
        Ok(Some((frame, HEAD_LEN + len)))
    }
}

/// Reads fields one after the other; `None` if there is no such field.
#[derive(Clone, Copy)]
struct Fields<'b>(&'b [u8]);

impl<'b> Fields<'b> {
    fn frame(mut self, kind: u8) -> Option<Frame<'b>> {
        let frame = match kind {
            1 => Frame::Hello {
                version: u16::from_le_bytes(self.array()?),
                nonce: self.array()?,
                name: self.text()?,
                member: match self.array()? {
                    [0] => None,
                    [_] => Some(HelloMember { group: self.text()?, boot: self.number()? }),
                },
                purpose: match self.array()? {
                    [0] => Purpose::Follow(None),
                    [1] => Purpose::Follow(Some(self.position()?)),
                    [_] => Purpose::Forward,
                },
            },
            2 => Frame::Challenge { nonce: self.array()?, proof: self.array()? },
            3 => Frame::Proof(self.array()?),
            4 => Frame::Refused(std::str::from_utf8(self.rest()).ok()?),
            5 => Frame::Welcome { boot: self.number()?, epoch: u32::from_le_bytes(self.array()?) },
            6 => Frame::CopyBegins { generation: self.number()? },
            7 => Frame::Batch(Batch { number: self.number()?, states: self.rest() }),
            8 => Frame::Part(self.rest()),
            9 => Frame::Flush { generation: self.number()? },
            10 => Frame::CopyEnds,
            11 => Frame::Beat {
                number: self.number()?,
                behind_millis: u32::from_le_bytes(self.array()?),
                sent: self.number()?,
            },
            12 => Frame::Ack {
                batch: self.number()?,
                beat: self.number()?,
                reach: self.number()?,
                has_all: self.flag()?,
                promises: self.flag()?,
            },
            13 => Frame::Reach { number: self.number()?, offsets: self.offsets()? },
            14 => {
                let route = self.number()?;
                let [conversation] = self.array()?;
                Frame::Open { route, conversation }
            }
            15 => Frame::Pass { route: self.number()?, more: self.flag()?, bytes: self.rest() },
            16 => Frame::GoOn { route: self.number()? },
            17 => Frame::Shut { route: self.number()? },
            18 => {
                let route = self.number()?;
                let end = match self.array()? {
                    [0] => AnswerEnd::Follows,
                    [1] => AnswerEnd::More,
                    [2] => AnswerEnd::Done,
                    [3] => AnswerEnd::Close,
                    [4] => AnswerEnd::Moved,
                    [_] => return None,
                };
                Frame::Answer { route, end, bytes: self.rest() }
            }
            19 => Frame::RepairBegins { before: self.position()?, generation: self.number()? },
            20 => Frame::Named(Named { is_last: self.flag()?, keys: self.rest() }),
            21 => Frame::Mark,
            22 => Frame::Settled { ends: self.offsets()? },
            _ => return None,
        };
        self.0.is_empty().then_some(frame)
    }

    fn take(&mut self, len: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn rest(&mut self) -> &'b [u8] {
        std::mem::take(&mut self.0)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn flag(&mut self) -> Option<bool> {
        let [flag] = self.array()?;
        Some(flag != 0)
    }

    fn text(&mut self) -> Option<&'b str> {
        let [len] = self.array()?;
        std::str::from_utf8(self.take(len.into())?).ok()
    }

    fn position(&mut self) -> Option<Position> {
        let (boot, generation) = (self.number()?, self.number()?);
        Some(Position { boot, generation, offsets: self.offsets()? })
    }

    fn key(&mut self) -> Option<&'b [u8]> {
        let len = usize::from(u16::from_le_bytes(self.array()?));
        if len == 0 || len > KEY_LEN_MAX { None } else { self.take(len) }
    }

    fn offsets(&mut self) -> Option<Vec<u64>> {
        let count = usize::from(u16::from_le_bytes(self.array()?));
        if count > JOURNALS_MAX || count * NUMBER_LEN > self.0.len() {
            return None;
        }
        (0..count).map(|_| self.number()).collect()
    }

    fn state(&mut self) -> Option<State<'b>> {
        let [flags] = self.array()?;
        let key_len = usize::from(u16::from_le_bytes(self.array()?));
        if key_len == 0 || key_len > KEY_LEN_MAX {
            return None;
        }
        let has = |flag| flags & flag != 0;
        if has(GONE) {
            return Some(State { key: self.take(key_len)?, item: None });
        }
        let client_flags = u32::from_le_bytes(self.array()?);
        let cas = self.number()?;
        let left = if has(LEFT_SECONDS) {
            TimeLeft::Seconds(u32::from_le_bytes(self.array()?))
        } else if has(LEFT_MILLIS) {
            TimeLeft::Millis(self.number()?)
        } else {
            TimeLeft::Forever
        };
        let value_len = self.number()?;
        let key = self.take(key_len)?;
        let value = if has(IN_PARTS) {
            ValueState::InParts(value_len)
        } else {
            ValueState::Whole(self.take(usize::try_from(value_len).ok()?)?)
        };
        let (stale, won) = (has(STALE), has(WON));
        let (binary_key, fetched) = (has(BINARY_KEY), has(FETCHED));
        let item = ItemState { client_flags, left, stale, won, binary_key, fetched, cas, value };
        Some(State { key, item: Some(item) })
    }
}

impl<'b> Batch<'b> {
    /// The states, in their order.
    ///
    /// # Errors
    /// [`FrameError::Malformed`]: so is all that follows.
    pub fn states(&self) -> impl Iterator<Item = Result<State<'b>, FrameError>> + use<'b> {
        let mut fields = Fields(self.states);
        std::iter::from_fn(move || {
            if fields.0.is_empty() {
                return None;
            }
            let state = fields.state().ok_or(FrameError::Malformed(7));
            if state.is_err() {
                fields.0 = &[];
            }
            Some(state)
        })
    }
}

impl<'b> Named<'b> {
    /// The keys as they are written, if all of them can be read: see [`NamedKeys`].
    ///
    /// # Errors
    /// [`FrameError::Malformed`].
    pub fn bytes(&self) -> Result<&'b [u8], FrameError> {
        self.keys().try_for_each(|key| key.map(drop)).map(|()| self.keys)
    }

    /// The keys.
    ///
    /// # Errors
    /// [`FrameError::Malformed`]: so is all that follows.
    pub fn keys(&self) -> impl Iterator<Item = Result<&'b [u8], FrameError>> + use<'b> {
        let mut fields = Fields(self.keys);
        std::iter::from_fn(move || {
            if fields.0.is_empty() {
                return None;
            }
            let key = fields.key().ok_or(FrameError::Malformed(20));
            if key.is_err() {
                fields.0 = &[];
            }
            Some(key)
        })
    }

    /// Writes frames of these keys, of which the last one says so.
    #[expect(clippy::cast_possible_truncation, reason = "keys are short")]
    pub(crate) fn write<'k>(keys: impl Iterator<Item = &'k [u8]>, out: &mut Vec<u8>) {
        let mut bytes = Vec::new();
        for key in keys {
            bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
            bytes.extend_from_slice(key);
            if bytes.len() >= NAMED_LEN {
                Frame::Named(Named { is_last: false, keys: &bytes }).write(out);
                bytes.clear();
            }
        }
        Frame::Named(Named { is_last: true, keys: &bytes }).write(out);
    }
}

/// Keys that were named and are still to be looked up, as they came.
#[derive(Debug, Default)]
pub(crate) struct NamedKeys {
    frames: VecDeque<Vec<u8>>,
    /// What was read of the first of them.
    at: usize,
}

impl NamedKeys {
    pub(crate) fn push(&mut self, frame: Vec<u8>) {
        self.frames.push_back(frame);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Takes up to so many keys.
    pub(crate) fn take(&mut self, count: usize, mut each: impl FnMut(&[u8])) {
        for _ in 0..count {
            let Some(frame) = self.frames.front() else { return };
            let mut fields = Fields(frame.get(self.at..).unwrap_or_default());
            if let Some(key) = fields.key() {
                each(key);
            }
            self.at = frame.len() - fields.0.len();
            if fields.0.is_empty() {
                self.frames.pop_front();
                self.at = 0;
            }
        }
    }
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
        out.extend_from_slice(&[0; HEAD_LEN]);
        out.push(7);
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

    fn frames() -> Vec<Frame<'static>> {
        let position = Position { boot: 7, generation: 2, offsets: vec![0, 1, u64::MAX] };
        vec![
            Frame::Hello {
                version: VERSION,
                nonce: [3; 32],
                name: "b",
                member: None,
                purpose: Purpose::Follow(Some(position)),
            },
            Frame::Hello {
                version: 9,
                nonce: [4; 32],
                name: "",
                member: Some(HelloMember { group: "demo/0", boot: 5 }),
                purpose: Purpose::Forward,
            },
            Frame::Challenge { nonce: [5; 32], proof: [6; 32] },
            Frame::Proof([7; 32]),
            Frame::Refused("no"),
            Frame::Welcome { boot: 1 << 60, epoch: 3 },
            Frame::CopyBegins { generation: 4 },
            Frame::Part(b"some bytes"),
            Frame::Flush { generation: 5 },
            Frame::CopyEnds,
            Frame::Beat { number: 8, behind_millis: 20, sent: 77 },
            Frame::Ack { batch: 9, beat: 10, reach: 11, has_all: true, promises: false },
            Frame::Reach { number: 2, offsets: vec![3, 4] },
            Frame::Open { route: 1, conversation: 2 },
            Frame::Pass { route: 1, more: true, bytes: b"get a\r\n" },
            Frame::GoOn { route: 1 },
            Frame::Shut { route: 1 },
            Frame::Answer { route: 1, end: AnswerEnd::Moved, bytes: b"" },
            Frame::Answer { route: 2, end: AnswerEnd::Done, bytes: b"END\r\n" },
            Frame::RepairBegins {
                before: Position { boot: 8, generation: 1, offsets: vec![5] },
                generation: 6,
            },
            Frame::Named(Named { is_last: false, keys: b"\x01\0a\x02\0bc" }),
            Frame::Mark,
            Frame::Settled { ends: vec![6, 7] },
        ]
    }

    #[test]
    fn what_is_written_is_read_however_it_arrives() {
        let mut bytes = Vec::new();
        frames().iter().for_each(|frame| frame.write(&mut bytes));
        let (mut at, mut read) = (0, Vec::new());
        for end in 0..=bytes.len() {
            while let Some((frame, len)) = Frame::read(&bytes[at..end], FRAME_LEN_MAX).unwrap() {
                read.push(frame);
                at += len;
            }
        }
        assert_eq!((read, at), (frames(), bytes.len()));
    }

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

    #[test]
    fn named_keys_are_read_as_they_were_written() {
        let keys: Vec<Vec<u8>> = (1..=1000).map(|len| vec![b'k'; len]).collect();
        let (mut out, mut read, mut is_last) = (Vec::new(), Vec::new(), false);
        Named::write(keys.iter().map(Vec::as_slice), &mut out);
        let mut rest = &out[..];
        while let Some((frame, len)) = Frame::read(rest, GREETING_LEN_MAX).unwrap() {
            let Frame::Named(named) = frame else { panic!("{frame:?}") };
            assert!(!is_last);
            is_last = named.is_last;
            read.extend(named.keys().map(|key| key.unwrap().to_vec()));
            rest = &rest[len..];
        }
        assert_eq!((read, is_last), (keys, true));
        let nonsense = Named { is_last: true, keys: b"\x05\0a" };
        let malformed = vec![Err(FrameError::Malformed(20))];
        assert_eq!(nonsense.keys().collect::<Vec<_>>(), malformed);
    }

    #[test]
    fn changed_bytes_are_refused() {
        for frame in frames() {
            let mut bytes = Vec::new();
            frame.write(&mut bytes);
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 0x10;
                let read = Frame::read(&changed, FRAME_LEN_MAX);
                assert!(!matches!(read, Ok(Some(_))), "{frame:?} at {at}");
            }
        }
    }

    /// What a peer may write that has the right checksum.
    #[test]
    fn nonsense_is_refused_without_a_panic() {
        let mut random = 88_172_645_463_325_252_u64;
        for _ in 0..200_000 {
            let mut body = Vec::new();
            for _ in 0..random % 60 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                body.push(random.to_le_bytes()[3]);
            }
            random = random.wrapping_add(1);
            if let Some(kind) = body.first_mut() {
                *kind %= 24;
            }
            let mut bytes = vec![0; HEAD_LEN];
            bytes.extend_from_slice(&body);
            seal(&mut bytes, 0);
            if let Ok(Some((Frame::Batch(batch), _))) = Frame::read(&bytes, FRAME_LEN_MAX) {
                assert!(batch.states().count() < 60);
            }
        }
        assert_eq!(Frame::read(&[255; 20], 100), Err(FrameError::TooLong(u32::MAX as usize)));
    }
}

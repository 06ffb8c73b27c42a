//! Which frames there are.

use super::fields::{
    Fields, FrameError, Nonce, Position, open, write, write_offsets, write_position, write_text,
};
use super::named::Named;
use super::state::Batch;
use crate::slots::SlotSet;

/// The version of this format. Both sides have to have the same.
pub const VERSION: u16 = 5;

/// The longest frame that is sent or accepted, without its head, in bytes.
pub const FRAME_LEN_MAX: usize = 1 << 20;
/// The longest frame before the peer has shown who it is.
pub const GREETING_LEN_MAX: usize = 64 << 10;
/// The longest part of a large value in one frame.
pub const PART_LEN_MAX: usize = 64 << 10;

/// Stands for a time that is not known.
const BEHIND_UNKNOWN: u32 = u32::MAX;

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
        /// How old the oldest change is that the leader has not sent yet, in milliseconds; `None` if somebody else may
        /// lead already, whose changes nobody can know here.
        behind_millis: Option<u32>,
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
    /// The other group is ready to have the slots that are moved to it: this leader is to answer nothing about them from
    /// here on.
    GiveUp,
    /// This leader answers nothing about the slots that are moved, and has sent everything that it had.
    Barrier,
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
    /// To be sent all items of these slots and their changes, and then to be given the slots.
    Move(SlotSet),
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
                    Purpose::Move(slots) => {
                        out.push(3);
                        out.extend(slots.to_bytes());
                    }
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
            Self::Batch(batch) => batch.write(out),
            Self::Part(bytes) => write(out, 8, |out| out.extend_from_slice(bytes)),
            Self::Flush { generation } => {
                write(out, 9, |out| out.extend_from_slice(&generation.to_le_bytes()));
            }
            Self::CopyEnds => write(out, 10, |_| ()),
            Self::Beat { number, behind_millis, sent } => write(out, 11, |out| {
                out.extend_from_slice(&number.to_le_bytes());
                out.extend_from_slice(&behind_millis.unwrap_or(BEHIND_UNKNOWN).to_le_bytes());
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
            Self::Named(named) => named.write(out),
            Self::Mark => write(out, 21, |_| ()),
            Self::Settled { ends } => write(out, 22, |out| write_offsets(out, ends)),
            Self::GiveUp => write(out, 23, |_| ()),
            Self::Barrier => write(out, 24, |_| ()),
        }
    }

    /// The first frame of `bytes`, and how many bytes it takes; `None` if it is not complete. Frames have
    /// `len_max` bytes at most.
    ///
    /// # Errors
    /// [`FrameError`]: nothing that follows can be read.
    pub fn read(bytes: &[u8], len_max: usize) -> Result<Option<(Frame<'_>, usize)>, FrameError> {
        let Some((kind, fields, len)) = open(bytes, len_max)? else { return Ok(None) };
        let frame = frame(kind, fields).ok_or(FrameError::Malformed(kind))?;
        Ok(Some((frame, len)))
    }
}

/// A frame of this type with these fields; `None` if it can't be.
fn frame(kind: u8, mut fields: Fields<'_>) -> Option<Frame<'_>> {
    let frame = match kind {
        1 => Frame::Hello {
            version: u16::from_le_bytes(fields.array()?),
            nonce: fields.array()?,
            name: fields.text()?,
            member: match fields.array()? {
                [0] => None,
                [_] => Some(HelloMember { group: fields.text()?, boot: fields.number()? }),
            },
            purpose: match fields.array()? {
                [0] => Purpose::Follow(None),
                [1] => Purpose::Follow(Some(fields.position()?)),
                [2] => Purpose::Forward,
                [3] => Purpose::Move(SlotSet::from_bytes(&fields.array()?)),
                [_] => return None,
            },
        },
        2 => Frame::Challenge { nonce: fields.array()?, proof: fields.array()? },
        3 => Frame::Proof(fields.array()?),
        4 => Frame::Refused(std::str::from_utf8(fields.rest()).ok()?),
        5 => Frame::Welcome { boot: fields.number()?, epoch: u32::from_le_bytes(fields.array()?) },
        6 => Frame::CopyBegins { generation: fields.number()? },
        7 => Frame::Batch(Batch::read(&mut fields)?),
        8 => Frame::Part(fields.rest()),
        9 => Frame::Flush { generation: fields.number()? },
        10 => Frame::CopyEnds,
        11 => Frame::Beat {
            number: fields.number()?,
            behind_millis: Some(u32::from_le_bytes(fields.array()?))
                .filter(|behind| *behind != BEHIND_UNKNOWN),
            sent: fields.number()?,
        },
        12 => Frame::Ack {
            batch: fields.number()?,
            beat: fields.number()?,
            reach: fields.number()?,
            has_all: fields.flag()?,
            promises: fields.flag()?,
        },
        13 => Frame::Reach { number: fields.number()?, offsets: fields.offsets()? },
        14 => {
            let route = fields.number()?;
            let [conversation] = fields.array()?;
            Frame::Open { route, conversation }
        }
        15 => Frame::Pass { route: fields.number()?, more: fields.flag()?, bytes: fields.rest() },
        16 => Frame::GoOn { route: fields.number()? },
        17 => Frame::Shut { route: fields.number()? },
        18 => {
            let route = fields.number()?;
            let end = match fields.array()? {
                [0] => AnswerEnd::Follows,
                [1] => AnswerEnd::More,
                [2] => AnswerEnd::Done,
                [3] => AnswerEnd::Close,
                [4] => AnswerEnd::Moved,
                [_] => return None,
            };
            Frame::Answer { route, end, bytes: fields.rest() }
        }
        19 => Frame::RepairBegins { before: fields.position()?, generation: fields.number()? },
        20 => Frame::Named(Named::read(&mut fields)?),
        21 => Frame::Mark,
        22 => Frame::Settled { ends: fields.offsets()? },
        23 => Frame::GiveUp,
        24 => Frame::Barrier,
        _ => return None,
    };
    (fields.len() == 0).then_some(frame)
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
            Frame::Beat { number: 8, behind_millis: Some(20), sent: 77 },
            Frame::Beat { number: 9, behind_millis: None, sent: 78 },
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
            Frame::GiveUp,
            Frame::Barrier,
            Frame::Hello {
                version: VERSION,
                nonce: [8; 32],
                name: "c",
                member: Some(HelloMember { group: "demo/1", boot: 6 }),
                purpose: Purpose::Move([0, 7, 4095].into_iter().collect()),
            },
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
                *kind %= 26;
            }
            let mut bytes = Vec::new();
            let Some((kind, fields)) = body.split_first() else { continue };
            write(&mut bytes, *kind, |out| out.extend_from_slice(fields));
            match Frame::read(&bytes, FRAME_LEN_MAX) {
                Ok(Some((Frame::Batch(batch), _))) => assert!(batch.states().count() < 60),
                Ok(Some((Frame::Named(named), _))) => assert!(named.keys().count() < 60),
                _ => (),
            }
        }
        assert_eq!(Frame::read(&[0; 20], 100), Err(FrameError::TooLong(0)));
        assert_eq!(Frame::read(&[255; 20], 100), Err(FrameError::TooLong(u32::MAX as usize)));
    }
}

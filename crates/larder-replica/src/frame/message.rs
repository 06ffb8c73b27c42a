//! The frames of the replication format.

use super::changed_keys::ChangedKeys;
use super::fields::{
    Fields, FrameError, Nonce, Position, encoded_len, open, write, write_offsets, write_position,
    write_text,
};
use super::invalidated::Invalidated;
use super::state::Batch;
use crate::group::Revision;
use crate::slot_set::SlotSet;

/// The version of this format. Both sides of a connection must use the same version.
pub const VERSION: u16 = 6;

/// The maximum length of a frame without its header, in bytes.
pub const FRAME_LEN_MAX: usize = 1 << 20;
/// The maximum length of a frame without its header, in bytes, if the peer is not authenticated or
/// may send only short frames.
pub const HANDSHAKE_FRAME_LEN_MAX: usize = 64 << 10;
/// The maximum length of one part of a large value, in bytes.
pub const PART_LEN_MAX: usize = 64 << 10;

/// The encoding of an unknown replication lag.
const LAG_UNKNOWN: u32 = u32::MAX;

/// A message in either direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'b> {
    /// The first frame of a connection. The peer that has opened the connection identifies itself
    /// and states its request.
    Hello {
        /// The peer's format version.
        version: u16,
        /// A random number. The proofs of both sides cover it.
        nonce: Nonce,
        /// The peer's name for logs and statistics. A member of a group sends the name of its node.
        name: &'b str,
        /// The peer's group and process; `None` if the peer is not a member of a group.
        member: Option<HelloMember<'b>>,
        /// The purpose of the connection.
        purpose: Purpose,
        /// The number of the connection. It rises with each connection that the peer's process
        /// opens.
        link: u64,
    },
    /// The node that has accepted the connection proves that it has the secret, and requests the
    /// peer's proof.
    Challenge {
        /// A random number. The proofs of both sides cover it.
        nonce: Nonce,
        /// The accepting node's proof.
        proof: [u8; 32],
    },
    /// The peer proves that it has the secret.
    Proof([u8; 32]),
    /// The node that has accepted the connection refuses the peer for this reason.
    Refused(&'b str),
    /// The peer is admitted: the handshake is complete.
    Accepted {
        /// The incarnation of the accepting process.
        incarnation: u64,
        /// The epoch in which the accepting process leads its group; 0 if it does not lead or is
        /// not ready to lead.
        epoch: u32,
        /// The time at which the frame was written, in milliseconds on the clock of the accepting
        /// process.
        sent: u64,
        /// The name of the accepting node; empty for a server that is not a member of a cluster.
        node: &'b str,
    },
    /// A full sync starts. A follower removes all its items; an importing leader removes none.
    FullSyncStart {
        /// The leader's flush count so far.
        generation: u64,
    },
    /// A batch of item states.
    Batch(Batch<'b>),
    /// A follower that has applied all frames so far has all changes before these journal offsets,
    /// and all flushes that the leader has sent.
    Watermark {
        /// The number of the watermark on its connection, starting at 1.
        number: u64,
        /// One offset for each of the leader's journals.
        offsets: Vec<u64>,
    },
    /// The next bytes of the large value at the end of the last batch.
    Part(&'b [u8]),
    /// The leader has flushed all items.
    Flush {
        /// The leader's flush count so far.
        generation: u64,
    },
    /// The full sync or delta sync is complete. A `Watermark` follows.
    SyncEnd,
    /// A delta sync starts. The follower keeps its items, and sends the keys of all changes that it
    /// has and that the new leader may lack.
    DeltaSyncStart {
        /// The new leader's position in the previous leader's journals.
        before: Position,
        /// The new leader's flush count when its leadership started.
        generation: u64,
    },
    /// Keys of changes that the follower has applied and the new leader may lack.
    ChangedKeys(ChangedKeys<'b>),
    /// The follower must record the current offsets of its own journals. The next
    /// `CheckpointSettled` makes them usable.
    Checkpoint,
    /// Completes the last `Checkpoint`. Every state that was sent before that `Checkpoint` belongs
    /// to a change before these offsets.
    CheckpointSettled {
        /// An offset for each of the leader's journals.
        ends: Vec<u64>,
    },
    /// The leader is alive.
    Heartbeat {
        /// The number of the heartbeat on its connection, starting at 1.
        number: u64,
        /// The age of the oldest change that the leader has not sent yet, in milliseconds. `None`
        /// in an export. Also `None` if another node may already lead, because the sender does not
        /// know the changes of that leader.
        lag_ms: Option<u32>,
        /// The send time, in milliseconds on the leader's clock.
        sent: u64,
        /// The end of the leader's CAS range. If the leader has not reserved values up to this end,
        /// it may draw the remaining values once all other members in sync have acknowledged the
        /// end. 0 outside of groups and in an export.
        cas_end: u64,
    },
    /// The follower has applied all frames up to the frames with these numbers.
    Ack {
        /// The number of the last batch. If the batch ends with a large value, parts of that value
        /// may still be missing.
        batch: u64,
        /// The number of the last heartbeat.
        heartbeat: u64,
        /// The number of the last watermark.
        watermark: u64,
        /// Whether the follower has all items: no full sync or delta sync is under way or needed.
        is_synced: bool,
        /// Whether the follower makes an election promise: it does not stand for election for
        /// [`PROMISE_TIME`](crate::PROMISE_TIME) after it received the last heartbeat. If it is
        /// elected later, it draws no CAS value below that heartbeat's `cas_end`.
        promises: bool,
    },
    /// The importing leader has all items of the slots. The exporting leader must now release the
    /// slots: it answers no more requests for them.
    ReleaseSlots {
        /// The send time in milliseconds on the clock of the exporting leader, or a little earlier:
        /// the time in the last heartbeat, plus the time since its arrival. The exporting leader
        /// refuses a late request, because the importing leader has given up by then.
        sent: u64,
    },
    /// The exporting leader has released the slots and sent all their changes.
    Barrier {
        /// A CAS value above all CAS values that the exporting leader has assigned to items of the
        /// slots.
        cas_end: u64,
    },
    /// Starts a conversation, which carries one client connection's forwarded requests.
    Open {
        /// The number of the conversation on this connection.
        route: u64,
        /// The number that larder-cluster assigns to the client protocol.
        conversation: u8,
    },
    /// Bytes of forwarded requests.
    Request {
        /// The number of the conversation on this connection.
        route: u64,
        /// Whether more bytes of the same batch of requests follow.
        more: bool,
        /// The next bytes of the requests.
        bytes: &'b [u8],
    },
    /// The forwarding node has consumed the replies so far and has room for more. The leader
    /// continues a paused reply.
    Continue {
        /// The number of the conversation on this connection.
        route: u64,
    },
    /// Ends a conversation.
    Close {
        /// The number of the conversation on this connection.
        route: u64,
    },
    /// Bytes of replies.
    Reply {
        /// The number of the conversation on this connection.
        route: u64,
        /// Whether and how the reply continues.
        end: ReplyEnd,
        /// The next bytes of the replies.
        bytes: &'b [u8],
    },
    /// This node executes no further requests of a conversation, because it does not lead, does not
    /// own the keys, or is shutting down. It has answered a part of the current batch. The peer
    /// sends the rest of this batch, and all later batches, to the owner of their keys.
    Moved {
        /// The number of the conversation on this connection.
        route: u64,
        /// The length of the answered requests at the start of the batch, in bytes. Their replies
        /// precede this frame.
        answered: u64,
        /// The number of keys that this node has already answered, if the next request is a RESP
        /// command on several keys.
        keys: u64,
        /// The number of these keys that have an item.
        found: u64,
        /// Whether the change of owner is planned. If it is, the next owner answers soon.
        is_planned: bool,
    },
    /// The leader is alive. The leader sends this heartbeat on connections for forwarded requests.
    LinkHeartbeat {
        /// The send time, in milliseconds on the leader's clock.
        sent: u64,
        /// The total length of the frames that the leader has handled on this connection since the
        /// handshake, in bytes.
        received: u64,
    },
    /// Until this time on the leader's clock, in milliseconds, the leader may execute changes that
    /// were forwarded on this connection. A time before the end of an earlier lease has no effect.
    Lease(u64),
    /// With `true`, the forwarding node requests the keys of all changes. With `false`, and before
    /// the first such frame, it requests only the keys of items that its clients with near caches
    /// have read.
    TrackAll(bool),
    /// The revision of the forwarding node's shard map from now on. The leader refuses requests to
    /// all groups while its own map is newer.
    MapRevision(Revision),
    /// Items that the forwarding node's clients have read may have changed since.
    Invalidated(Invalidated<'b>),
}

/// The membership that a peer claims in its `Hello`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelloMember<'b> {
    /// The peer's cluster and group: `CLUSTER/GROUP`.
    pub group: &'b str,
    /// The incarnation of the peer's process.
    pub incarnation: u64,
    /// The identity of the peer's cluster; 0 if the peer does not know it yet.
    pub cluster: u128,
}

/// The purpose of a connection, which the peer states in its [`Hello`](Frame::Hello). The purpose
/// determines the frames that follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Follow the leader: receive all changes after this position. `None` requests a full sync.
    Follow(Option<Position>),
    /// Forward client requests.
    Forward,
    /// Import slots: receive all items of these slots and their changes, then the slots themselves.
    Import(SlotSet),
}

/// Whether and how a reply continues after one of its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyEnd {
    /// The next frame continues the reply.
    Partial,
    /// The reply continues once the peer has sent a `Continue`.
    Paused,
    /// The reply is complete. All requests of the batch are answered.
    Done,
    /// The forwarding node must close the client's connection.
    Close,
}

impl Frame<'_> {
    /// Appends the frame to `out`. To write a batch one state at a time, use
    /// [`BatchWriter`](crate::BatchWriter).
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello { version, nonce, name, member, purpose, link } => write(out, 1, |out| {
                out.extend_from_slice(&version.to_le_bytes());
                out.extend_from_slice(nonce);
                write_text(out, name);
                out.push(member.is_some().into());
                if let Some(HelloMember { group, incarnation, cluster }) = member {
                    write_text(out, group);
                    out.extend_from_slice(&incarnation.to_le_bytes());
                    out.extend_from_slice(&cluster.to_le_bytes());
                }
                match purpose {
                    Purpose::Follow(None) => out.push(0),
                    Purpose::Follow(Some(position)) => {
                        out.push(1);
                        write_position(out, position);
                    }
                    Purpose::Forward => out.push(2),
                    Purpose::Import(slots) => {
                        out.push(3);
                        out.extend(slots.to_bytes());
                    }
                }
                out.extend_from_slice(&link.to_le_bytes());
            }),
            Self::Challenge { nonce, proof } => write(out, 2, |out| {
                out.extend_from_slice(nonce);
                out.extend_from_slice(proof);
            }),
            Self::Proof(proof) => write(out, 3, |out| out.extend_from_slice(proof)),
            Self::Refused(reason) => write(out, 4, |out| out.extend_from_slice(reason.as_bytes())),
            Self::Accepted { incarnation, epoch, sent, node } => write(out, 5, |out| {
                out.extend_from_slice(&incarnation.to_le_bytes());
                out.extend_from_slice(&epoch.to_le_bytes());
                out.extend_from_slice(&sent.to_le_bytes());
                write_text(out, node);
            }),
            Self::FullSyncStart { generation } => {
                write(out, 6, |out| out.extend_from_slice(&generation.to_le_bytes()));
            }
            Self::Batch(batch) => batch.write(out),
            Self::Part(bytes) => write(out, 8, |out| out.extend_from_slice(bytes)),
            Self::Flush { generation } => {
                write(out, 9, |out| out.extend_from_slice(&generation.to_le_bytes()));
            }
            Self::SyncEnd => write(out, 10, |_| ()),
            Self::Heartbeat { number, lag_ms, sent, cas_end } => write(out, 11, |out| {
                out.extend_from_slice(&number.to_le_bytes());
                out.extend_from_slice(&lag_ms.unwrap_or(LAG_UNKNOWN).to_le_bytes());
                out.extend_from_slice(&sent.to_le_bytes());
                out.extend_from_slice(&cas_end.to_le_bytes());
            }),
            Self::Watermark { number, offsets } => write(out, 13, |out| {
                out.extend_from_slice(&number.to_le_bytes());
                write_offsets(out, offsets);
            }),
            Self::Ack { batch, heartbeat, watermark, is_synced, promises } => {
                write(out, 12, |out| {
                    out.extend_from_slice(&batch.to_le_bytes());
                    out.extend_from_slice(&heartbeat.to_le_bytes());
                    out.extend_from_slice(&watermark.to_le_bytes());
                    out.extend_from_slice(&[(*is_synced).into(), (*promises).into()]);
                })
            }
            Self::Open { route, conversation } => write(out, 14, |out| {
                out.extend_from_slice(&route.to_le_bytes());
                out.push(*conversation);
            }),
            Self::Request { route, more, bytes } => write(out, 15, |out| {
                out.extend_from_slice(&route.to_le_bytes());
                out.push((*more).into());
                out.extend_from_slice(bytes);
            }),
            Self::Continue { route } => {
                write(out, 16, |out| out.extend_from_slice(&route.to_le_bytes()))
            }
            Self::Close { route } => {
                write(out, 17, |out| out.extend_from_slice(&route.to_le_bytes()))
            }
            Self::Reply { route, end, bytes } => write(out, 18, |out| {
                out.extend_from_slice(&route.to_le_bytes());
                out.push(*end as u8);
                out.extend_from_slice(bytes);
            }),
            Self::Moved { route, answered, keys, found, is_planned } => write(out, 32, |out| {
                for number in [route, answered, keys, found] {
                    out.extend_from_slice(&number.to_le_bytes());
                }
                out.push((*is_planned).into());
            }),
            Self::DeltaSyncStart { before, generation } => write(out, 19, |out| {
                write_position(out, before);
                out.extend_from_slice(&generation.to_le_bytes());
            }),
            Self::ChangedKeys(keys) => keys.write(out),
            Self::Checkpoint => write(out, 21, |_| ()),
            Self::CheckpointSettled { ends } => write(out, 22, |out| write_offsets(out, ends)),
            Self::ReleaseSlots { sent } => {
                write(out, 23, |out| out.extend_from_slice(&sent.to_le_bytes()));
            }
            Self::Barrier { cas_end } => {
                write(out, 24, |out| out.extend_from_slice(&cas_end.to_le_bytes()));
            }
            Self::Lease(until) => write(out, 28, |out| out.extend_from_slice(&until.to_le_bytes())),
            Self::LinkHeartbeat { sent, received } => write(out, 31, |out| {
                out.extend_from_slice(&sent.to_le_bytes());
                out.extend_from_slice(&received.to_le_bytes());
            }),
            Self::TrackAll(all) => write(out, 29, |out| out.push((*all).into())),
            Self::MapRevision(revision) => {
                write(out, 33, |out| out.extend_from_slice(&revision.to_le_bytes()))
            }
            Self::Invalidated(keys) => keys.write(out),
        }
    }

    /// Returns the encoded length of the first frame of `bytes`, or `None` if `bytes` is shorter
    /// than a header. The frame must be complete and valid.
    #[must_use]
    pub fn encoded_len(bytes: &[u8]) -> Option<usize> {
        encoded_len(bytes)
    }

    /// Reads the first frame of `bytes`. Returns the frame with its encoded length in bytes, or
    /// `None` if the frame is incomplete.
    ///
    /// # Errors
    /// [`FrameError`] if the frame is corrupt, malformed, empty or longer than `len_max`. The rest
    /// of the stream is then unreadable.
    pub fn read(bytes: &[u8], len_max: usize) -> Result<Option<(Frame<'_>, usize)>, FrameError> {
        let Some((kind, fields, len)) = open(bytes, len_max)? else { return Ok(None) };
        let frame = frame(kind, fields).ok_or(FrameError::Malformed(kind))?;
        Ok(Some((frame, len)))
    }
}

/// Decodes the fields of a frame of type `kind`. Returns `None` if they are malformed.
fn frame(kind: u8, mut fields: Fields<'_>) -> Option<Frame<'_>> {
    let frame = match kind {
        1 => Frame::Hello {
            version: u16::from_le_bytes(fields.array()?),
            nonce: fields.array()?,
            name: fields.text()?,
            member: match fields.array()? {
                [0] => None,
                [_] => Some(HelloMember {
                    group: fields.text()?,
                    incarnation: fields.number()?,
                    cluster: u128::from_le_bytes(fields.array()?),
                }),
            },
            purpose: match fields.array()? {
                [0] => Purpose::Follow(None),
                [1] => Purpose::Follow(Some(fields.position()?)),
                [2] => Purpose::Forward,
                [3] => Purpose::Import(SlotSet::from_bytes(&fields.array()?)),
                [_] => return None,
            },
            link: fields.number()?,
        },
        2 => Frame::Challenge { nonce: fields.array()?, proof: fields.array()? },
        3 => Frame::Proof(fields.array()?),
        4 => Frame::Refused(std::str::from_utf8(fields.rest()).ok()?),
        5 => Frame::Accepted {
            incarnation: fields.number()?,
            epoch: u32::from_le_bytes(fields.array()?),
            sent: fields.number()?,
            node: fields.text()?,
        },
        6 => Frame::FullSyncStart { generation: fields.number()? },
        7 => Frame::Batch(Batch::read(&mut fields)?),
        8 => Frame::Part(fields.rest()),
        9 => Frame::Flush { generation: fields.number()? },
        10 => Frame::SyncEnd,
        11 => Frame::Heartbeat {
            number: fields.number()?,
            lag_ms: Some(u32::from_le_bytes(fields.array()?))
                .filter(|behind| *behind != LAG_UNKNOWN),
            sent: fields.number()?,
            cas_end: fields.number()?,
        },
        12 => Frame::Ack {
            batch: fields.number()?,
            heartbeat: fields.number()?,
            watermark: fields.number()?,
            is_synced: fields.flag()?,
            promises: fields.flag()?,
        },
        13 => Frame::Watermark { number: fields.number()?, offsets: fields.offsets()? },
        14 => {
            let route = fields.number()?;
            let [conversation] = fields.array()?;
            Frame::Open { route, conversation }
        }
        15 => {
            Frame::Request { route: fields.number()?, more: fields.flag()?, bytes: fields.rest() }
        }
        16 => Frame::Continue { route: fields.number()? },
        17 => Frame::Close { route: fields.number()? },
        18 => {
            let route = fields.number()?;
            let end = match fields.array()? {
                [0] => ReplyEnd::Partial,
                [1] => ReplyEnd::Paused,
                [2] => ReplyEnd::Done,
                [3] => ReplyEnd::Close,
                [_] => return None,
            };
            Frame::Reply { route, end, bytes: fields.rest() }
        }
        19 => Frame::DeltaSyncStart { before: fields.position()?, generation: fields.number()? },
        20 => Frame::ChangedKeys(ChangedKeys::read(&mut fields)?),
        21 => Frame::Checkpoint,
        22 => Frame::CheckpointSettled { ends: fields.offsets()? },
        23 => Frame::ReleaseSlots { sent: fields.number()? },
        24 => Frame::Barrier { cas_end: fields.number()? },
        // 25 to 27 are reserved for tags.
        28 => Frame::Lease(fields.number()?),
        29 => Frame::TrackAll(fields.flag()?),
        30 => Frame::Invalidated(Invalidated { keys: fields.rest() }),
        31 => Frame::LinkHeartbeat { sent: fields.number()?, received: fields.number()? },
        32 => Frame::Moved {
            route: fields.number()?,
            answered: fields.number()?,
            keys: fields.number()?,
            found: fields.number()?,
            is_planned: fields.flag()?,
        },
        33 => Frame::MapRevision(fields.number()?),
        _ => return None,
    };
    (fields.len() == 0).then_some(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Vec<Frame<'static>> {
        let position = Position { incarnation: 7, generation: 2, offsets: vec![0, 1, u64::MAX] };
        vec![
            Frame::Hello {
                version: VERSION,
                nonce: [3; 32],
                name: "b",
                member: None,
                purpose: Purpose::Follow(Some(position)),
                link: 1,
            },
            Frame::Hello {
                version: 9,
                nonce: [4; 32],
                name: "",
                member: Some(HelloMember { group: "demo/0", incarnation: 5, cluster: 0 }),
                purpose: Purpose::Forward,
                link: u64::MAX,
            },
            Frame::Challenge { nonce: [5; 32], proof: [6; 32] },
            Frame::Proof([7; 32]),
            Frame::Refused("no"),
            Frame::Accepted { incarnation: 1 << 60, epoch: 3, sent: 9, node: "n1" },
            Frame::FullSyncStart { generation: 4 },
            Frame::Part(b"some bytes"),
            Frame::Flush { generation: 5 },
            Frame::SyncEnd,
            Frame::Heartbeat { number: 8, lag_ms: Some(20), sent: 77, cas_end: 99 },
            Frame::Heartbeat { number: 9, lag_ms: None, sent: 78, cas_end: 0 },
            Frame::Ack { batch: 9, heartbeat: 10, watermark: 11, is_synced: true, promises: false },
            Frame::Watermark { number: 2, offsets: vec![3, 4] },
            Frame::Open { route: 1, conversation: 2 },
            Frame::Request { route: 1, more: true, bytes: b"get a\r\n" },
            Frame::Continue { route: 1 },
            Frame::Close { route: 1 },
            Frame::Moved { route: 1, answered: 7, keys: 2, found: 1, is_planned: true },
            Frame::Reply { route: 2, end: ReplyEnd::Done, bytes: b"END\r\n" },
            Frame::DeltaSyncStart {
                before: Position { incarnation: 8, generation: 1, offsets: vec![5] },
                generation: 6,
            },
            Frame::ChangedKeys(ChangedKeys { is_last: false, keys: b"\x01\0a\x02\0bc" }),
            Frame::Checkpoint,
            Frame::CheckpointSettled { ends: vec![6, 7] },
            Frame::ReleaseSlots { sent: 7 },
            Frame::Barrier { cas_end: 1 << 40 },
            Frame::Lease(77),
            Frame::LinkHeartbeat { sent: 78, received: 79 },
            Frame::TrackAll(true),
            Frame::MapRevision(9),
            Frame::Invalidated(Invalidated { keys: b"\x01\0a\x02\0bc" }),
            Frame::Hello {
                version: VERSION,
                nonce: [8; 32],
                name: "c",
                member: Some(HelloMember { group: "demo/1", incarnation: 6, cluster: 1 << 127 }),
                purpose: Purpose::Import([0, 7, 4095].into_iter().collect()),
                link: 0,
            },
        ]
    }

    #[test]
    fn frames_round_trip_under_any_split_of_the_input() {
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
    fn a_changed_bit_anywhere_is_detected() {
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

    /// Reads random frames with a correct checksum.
    #[test]
    fn malformed_frames_are_refused_without_a_panic() {
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
                *kind %= 33;
            }
            let mut bytes = Vec::new();
            let Some((kind, fields)) = body.split_first() else { continue };
            write(&mut bytes, *kind, |out| out.extend_from_slice(fields));
            match Frame::read(&bytes, FRAME_LEN_MAX) {
                Ok(Some((Frame::Batch(batch), _))) => assert!(batch.states().count() < 60),
                Ok(Some((Frame::ChangedKeys(changed), _))) => assert!(changed.keys().count() < 60),
                _ => (),
            }
        }
        assert_eq!(Frame::read(&[0; 20], 100), Err(FrameError::TooLong(0)));
        assert_eq!(Frame::read(&[255; 20], 100), Err(FrameError::TooLong(u32::MAX as usize)));
    }
}

//! The acknowledgements of a follower, and the transition of a member to in sync.

use super::status::{AckProgress, FollowerStatus};
use crate::error::{LocalError, PeerError, Timeout, Violation};
use crate::group::Group;
use crate::peers::{AdmittedLink, PeerStream, is_silence};
use larder_replica::{
    CHANGED_KEYS_LEN_MAX, Frame, HANDSHAKE_FRAME_LEN_MAX, Millis, Process, SentWatermark,
    is_caught_up,
};
use larder_store::journal::Journals;
use larder_support::clock::boot_millis;
use std::io::{self, Read};
use std::sync::mpsc;
use std::time::Duration;

/// The leader disconnects a follower after this time without received bytes.
const FOLLOWER_SILENCE_TIMEOUT: Duration = Duration::from_secs(10);

/// A follower that is a member of the local group.
pub(crate) struct FollowingMember<'g> {
    pub(crate) process: Process,
    pub(crate) group: &'g Group,
    /// The start epoch of the leadership in which the follower connected to this node.
    pub(crate) leadership: u32,
    /// The follower's connection. A later connection from the follower closes its fence.
    pub(crate) link: &'g AdmittedLink,
}

impl FollowingMember<'_> {
    /// Returns whether the record or a pending swap lists the member as in sync, or the next swap
    /// will.
    pub(super) fn may_be_in_sync(&self) -> bool {
        let incarnation = self.process.incarnation;
        self.group.read(|member| member.may_be_in_sync(incarnation, boot_millis()))
    }
}

/// Some of the keys that a follower sends in a delta sync, for
/// [`larder_replica::Sender::push_changed_keys`].
pub(super) struct ChangedKeysPart {
    pub(super) keys: Vec<u8>,
    pub(super) is_last: bool,
}

/// Reads a follower's acknowledgements until the connection is closed, and always returns an error
/// with the reason for the close. `is_full_sync` states whether the connection starts with a full
/// sync.
pub(super) fn read_acks(
    mut stream: &PeerStream,
    journals: &Journals,
    status: &FollowerStatus,
    member: Option<&FollowingMember<'_>>,
    (is_full_sync, keys_sender): (bool, Option<mpsc::Sender<ChangedKeysPart>>),
) -> Result<(), PeerError> {
    stream.set_read_timeout(Some(FOLLOWER_SILENCE_TIMEOUT))?;
    let (mut input, mut bytes, mut changed_len) = (Vec::new(), [0; 4096], 0);
    let mut joining = JoinProgress::default();
    loop {
        let len = match stream.read(&mut bytes) {
            Ok(0) => {
                let reason = "the follower has disconnected";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason).into());
            }
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if is_silence(&error) => {
                return Err(Timeout::Acknowledgement.into());
            }
            Err(error) => return Err(error.into()),
        };
        input.extend_from_slice(bytes.get(..len).unwrap_or_default());
        while let Some((frame, len)) = Frame::read(&input, HANDSHAKE_FRAME_LEN_MAX)? {
            if let Frame::ChangedKeys(changed_keys) = frame {
                changed_len += len;
                // A length of two bytes precedes each key, so a key of one byte takes three bytes.
                // The factor 4 leaves room for the frame headers.
                let fits = changed_len <= 4 * CHANGED_KEYS_LEN_MAX;
                let Some(keys_sender) = keys_sender.as_ref().filter(|_| fits) else {
                    return Err(Violation::UnexpectedKeys.into());
                };
                let keys = changed_keys.bytes()?.to_vec();
                // An error is ignored: it means that the sender has ended.
                let _ = keys_sender.send(ChangedKeysPart { keys, is_last: changed_keys.is_last });
                journals.notifier().notify();
                input.drain(..len);
                continue;
            }
            let Frame::Ack { batch, heartbeat, watermark, is_synced, promises } = frame else {
                return Err(Violation::UnexpectedFrame.into());
            };
            let acked = (batch, heartbeat, watermark);
            // Before it receives the full sync, the follower may still report that it is synced, at
            // its old position.
            let is_synced = is_synced && (!is_full_sync || watermark > 0);
            let AckProgress { heartbeat, synced_until, watermark } = status.note_ack(acked);
            if let Some(member) = member {
                // If the follower has a later connection, a full sync may have started on it.
                if !member.link.is_current() {
                    return Err(LocalError::Obsolete.into());
                }
                joining.note(member, journals, is_synced, (synced_until, watermark));
                if heartbeat.is_some() {
                    let FollowingMember { process, group, link, .. } = member;
                    let has_joined = is_synced && joining.has_joined;
                    group.update(|member, now| {
                        if !link.is_current() {
                            return;
                        }
                        // Check again whether replies wait for the member, because they may have
                        // stopped waiting after the member joined.
                        let is_synced = has_joined && journals.acks().requires(process.incarnation);
                        let synced_until = synced_until.filter(|_| is_synced);
                        let promise = heartbeat.filter(|_| promises);
                        member.note_ack(now, process, synced_until, promise);
                    });
                }
            }
            input.drain(..len);
        }
    }
}

/// The transition of a member to in sync:
///
/// 1. When its sync is complete and its lag is small, replies start to wait for its
///    acknowledgements.
/// 2. When it has acknowledged all changes made before step 1, it has joined. The leader then
///    proposes it for the record's list of members in sync.
///
/// Replies do not wait for a member that is too slow to be in sync.
#[derive(Default)]
struct JoinProgress {
    /// The last acknowledged watermark; `None` before the first one and during a sync.
    watermark: Option<SentWatermark>,
    /// The time up to which the member has all changes.
    synced_until: Millis,
    /// The ends of the journals when replies started to wait for the member; `None` while they do
    /// not wait.
    ends: Option<Vec<u64>>,
    has_joined: bool,
}

impl JoinProgress {
    fn note(
        &mut self,
        FollowingMember { process, group, .. }: &FollowingMember<'_>,
        journals: &Journals,
        is_synced: bool,
        (synced_until, watermark): (Option<Millis>, Option<SentWatermark>),
    ) {
        let acks = journals.acks();
        if !is_synced {
            // The follower needs a sync or has a sync under way, so drop its earlier positions.
            *self = Self::default();
            return;
        }
        let is_new = watermark.is_some();
        self.watermark = watermark.or(self.watermark.take());
        self.synced_until = synced_until.unwrap_or(self.synced_until);
        // Replies stop waiting if the follower was too slow, or if an earlier connection of the
        // same follower ends late. In both cases, start again.
        let starts = self.ends.is_none() || !acks.requires(process.incarnation);
        if starts && !is_caught_up(self.synced_until, boot_millis()) {
            (self.ends, self.has_joined) = (None, false);
            return;
        }
        if !self.has_joined || starts {
            group.note_joining(process.incarnation, self.synced_until);
        }
        if starts {
            acks.require(process.incarnation);
            (self.ends, self.has_joined) = (Some(journals.ends()), false);
        }
        if let Some(SentWatermark { offsets, generation, .. }) = &self.watermark
            && (starts || is_new)
        {
            acks.note(process.incarnation, offsets, *generation);
        }
        if !self.has_joined
            && let Some(ends) = &self.ends
        {
            self.has_joined = acks.has_passed(process.incarnation, ends);
        }
    }
}

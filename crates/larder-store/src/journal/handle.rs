//! A handle that appends the keys of changed items to a journal.

use super::acks::AckPosition;
use super::journals::{Journal, Journals};
use super::ring::{ChangeKind, Writer};
use crate::engine::layer::*;
use crate::engine::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::task::Waker;

/// One thread's access to a [`super::JournaledCache`].
#[derive(Debug)]
pub struct JournaledHandle<E> {
    engine: E,
    journals: Arc<Journals>,
    /// The number of this handle's journal.
    number: usize,
    journal: Writer,
    /// A number that is odd while a batch is under way.
    batches: Arc<AtomicU64>,
    /// The time of the batch.
    now: Now,
    /// The term in which the batch started.
    term: u64,
    /// Whether this batch has appended to the journal.
    has_written: bool,
    /// Whether a change of this batch waits for acknowledgements.
    is_waited_for: bool,
    /// The end of the journal when this handle last woke paused readers.
    notified_until: u64,
    /// Before the replies of this batch are sent, followers must have acknowledged the journal up
    /// to this offset and applied this many flushes. A value of 0 requires nothing. `None` if the
    /// replies do not wait.
    waits_for: Option<(u64, u64)>,
    /// The end of the journal after the last paced change of this batch, or `None` if there was no
    /// such change.
    paced: Option<u64>,
    /// The fence that limits changes, or `None` if there is no limit.
    fence: Option<Arc<Fence>>,
}

/// The position on which a batch's replies depend: a position of the inner engine, a position that
/// replicas must acknowledge, or both.
#[derive(Debug)]
pub struct Position<P> {
    engine: Option<P>,
    replicas: Option<AckPosition>,
}

impl<E> JournaledHandle<E> {
    pub(super) fn new(engine: E, journals: Arc<Journals>) -> Self {
        let (number, Journal { ring, batches }) = journals.take();
        let journal = Writer::continuing(ring);
        let notified_until = journal.end();
        Self {
            engine,
            journals,
            number,
            journal,
            batches,
            now: Now::default(),
            term: 0,
            has_written: false,
            is_waited_for: false,
            notified_until,
            waits_for: None,
            paced: None,
            fence: None,
        }
    }
}

impl<E> Drop for JournaledHandle<E> {
    fn drop(&mut self) {
        // The handle may be dropped within a batch. The batch then counts as ended: its number
        // becomes even.
        let batch = self.batches.load(Ordering::Relaxed) | 1;
        self.batches.store(batch.wrapping_add(1), Ordering::Release);
        self.journals.give_back(self.number);
    }
}

impl<E> JournaledHandle<E> {
    /// Appends the change of an update to the journal.
    ///
    /// # Errors
    /// The fence did not allow the change.
    fn note(&mut self, key: HashedKey<'_>, decision: Decision) -> Result<(), Refusal> {
        if let Decision::Journaled(kind) = decision {
            self.journal.append(kind, key.bytes, self.now.in_millis());
            self.has_written = true;
            let (waits, is_paced) = self.journals.acks().waits_for(kind);
            if is_paced {
                self.is_waited_for = true;
                self.paced = Some(self.journal.end());
            }
            if waits {
                self.is_waited_for = true;
                let before = self.waits_for.map_or(0, |(_, generation)| generation);
                self.waits_for = Some((self.journal.end(), before));
            }
        }
        match decision {
            Decision::Refused => Err(Refusal::Pending),
            Decision::Unjournaled | Decision::Journaled(_) => Ok(()),
        }
    }
}

/// Returns the kind of a change, or `None` if the change is not journaled.
#[inline]
fn kind(change: &Change<'_>, now: Now) -> Option<ChangeKind> {
    match change {
        // If the new expiry has already passed, the change counts as a removal.
        Change::Put { attributes, .. } | Change::SetAttributes { attributes, .. }
            if attributes.expiry.is_past(now) =>
        {
            Some(ChangeKind::Removal)
        }
        Change::Keep | Change::MarkAccessed | Change::CountHit => None,
        Change::Remove => Some(ChangeKind::Removal),
        Change::SetAttributes { attributes, .. } if attributes.stale => Some(ChangeKind::Removal),
        Change::Put { value: NewValue::Bytes([]), .. } => Some(ChangeKind::Removal),
        Change::SetAttributes { .. } | Change::Put { .. } => Some(ChangeKind::Other),
    }
}

/// Returns whether a fence allows changes now. If not, closes the fence.
fn allows(fence: Option<&Fence>) -> bool {
    fence.is_none_or(|fence| {
        let is_open = fence.is_open();
        if !is_open {
            fence.close();
        }
        is_open
    })
}

/// The effect of an update on the journal.
#[derive(Clone, Copy, Default)]
enum Decision {
    /// There is no change to journal.
    #[default]
    Unjournaled,
    /// A change to journal.
    Journaled(ChangeKind),
    /// The fence has refused the change.
    Refused,
}

/// Wraps `decide`. Each call also stores its decision in `into`, and keeps the item if the fence
/// does not allow the change. The engine applies the change of the last call.
#[inline]
fn record_decision<'v, L: Lease, R>(
    mut decide: impl FnMut(Lookup<&Item<'_, L>>) -> (Change<'v>, R),
    now: Now,
    fence: Option<&Fence>,
    into: &mut Decision,
) -> impl FnMut(Lookup<&Item<'_, L>>) -> (Change<'v>, R) {
    move |found| {
        let (change, result) = decide(found);
        let kind = kind(&change, now);
        *into = kind.map_or(Decision::Unjournaled, Decision::Journaled);
        // Check the fence here, because the engine holds the lock of the key, which all later
        // changes of the key need.
        if kind.is_some() && !allows(fence) {
            *into = Decision::Refused;
            return (Change::Keep, result);
        }
        (change, result)
    }
}

impl<E: Engine> Layer for JournaledHandle<E> {
    type Inner = E;

    fn inner(&self) -> &E {
        &self.engine
    }

    fn inner_mut(&mut self) -> &mut E {
        &mut self.engine
    }
}

impl<E: Engine> DelegateLookups for JournaledHandle<E> {}
impl<E: Engine> DelegateUploads for JournaledHandle<E> {}
impl<E: Engine> DelegateSlowStorage for JournaledHandle<E> {}
impl<E: Engine> DelegateWalks for JournaledHandle<E> {}
impl<E: Engine> DelegateMaintenance for JournaledHandle<E> {}

impl<E: Engine> Batches for JournaledHandle<E> {
    #[inline]
    fn begin_batch(&mut self, now: impl Into<Now>) {
        let now = now.into();
        self.now = now;
        // Either the thread that calls `Journals::batches_have_ended` sees this batch, or this
        // batch sees everything that the thread stored before that call.
        let batch = self.batches.load(Ordering::Relaxed) | 1;
        self.batches.store(batch, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.term = self.journals.acks().term();
        // Reset these fields, because the previous batch may have ended without a call to
        // `ack_position`.
        (self.waits_for, self.paced) = (None, None);
        self.engine.begin_batch(now);
    }

    #[inline]
    fn end_batch(&mut self) {
        self.engine.end_batch();
        let batch = self.batches.load(Ordering::Relaxed) | 1;
        self.batches.store(batch.wrapping_add(1), Ordering::Release);
        if std::mem::take(&mut self.has_written) {
            // Wakes paused readers after each quarter of the ring, so that the writer does not
            // overrun them.
            let end = self.journal.end();
            let is_much = end - self.notified_until >= self.journal.capacity() / 4;
            if std::mem::take(&mut self.is_waited_for) || is_much {
                self.notified_until = end;
                self.journals.notifier().notify();
            } else {
                self.journals.notifier().notify_waiting();
            }
        }
    }
}

impl<E: Engine> Updates for JournaledHandle<E> {
    #[inline]
    fn update<'v, R>(
        &mut self,
        key: HashedKey<'_>,
        upload: &mut Option<Self::Upload>,
        decide: impl FnMut(Lookup<&Item<'_, Self::Lease>>) -> (Change<'v>, R),
    ) -> Result<Updated<R>, Refusal> {
        let (mut decision, now) = (Decision::default(), self.now);
        let decide = record_decision(decide, now, self.fence.as_deref(), &mut decision);
        let updated = self.engine.update(key, upload, decide)?;
        self.note(key, decision)?;
        Ok(updated)
    }

    #[inline]
    fn update_unread<'v, R>(
        &mut self,
        key: HashedKey<'_>,
        upload: &mut Option<Self::Upload>,
        decide: impl FnMut(Lookup<&Item<'_, Self::Lease>>) -> (Change<'v>, R),
    ) -> Result<Updated<R>, Refusal> {
        let (mut decision, now) = (Decision::default(), self.now);
        let decide = record_decision(decide, now, self.fence.as_deref(), &mut decision);
        let updated = self.engine.update_unread(key, upload, decide)?;
        self.note(key, decision)?;
        Ok(updated)
    }

    fn set_fence(&mut self, fence: Option<Arc<Fence>>) {
        self.fence = fence;
    }

    /// Refuses all tags, because journals do not support them yet.
    fn tag(&mut self, _name: &[u8]) -> Result<Tag, Refusal> {
        Err(Refusal::NoTags)
    }

    fn drop_tag(&mut self, _name: &[u8]) -> bool {
        false
    }

    fn has_tags(&self) -> bool {
        false
    }

    fn flush(&mut self, at: Option<Seconds>) {
        if !allows(self.fence.as_deref()) {
            return;
        }
        if let Some(at) = at {
            self.journals.note_flush(at);
        }
        self.engine.flush(at);
        if at.is_none() {
            let generation = self.engine.flush_generation();
            self.journals.acks().note_flush(generation);
            if self.journals.acks().waits_for(ChangeKind::Removal).0 {
                let offset = self.waits_for.map_or(0, |(offset, _)| offset);
                self.waits_for = Some((offset, generation));
            }
        }
        self.journals.notifier().notify();
    }

    fn flush_generation(&self) -> u64 {
        self.engine.flush_generation()
    }
}

impl<E: Engine> Acknowledge for JournaledHandle<E> {
    type Position = Position<E::Position>;

    fn ack_position(&mut self) -> Option<Self::Position> {
        let engine = self.engine.ack_position();
        let (waits_for, paced) = (self.waits_for.take(), self.paced.take());
        let replicas = (waits_for.is_some() || paced.is_some()).then(|| {
            let (offset, generation) = waits_for.unwrap_or_default();
            self.journals.acks().position(self.term, (self.number, offset), generation, paced)
        });
        let waits = engine.is_some() || replicas.is_some();
        waits.then_some(Position { engine, replicas })
    }

    fn ack_state(&mut self, position: &Self::Position, waker: &Waker) -> AckState {
        if let Some(engine) = &position.engine {
            let acknowledged = self.engine.ack_state(engine, waker);
            if acknowledged != AckState::Acknowledged {
                return acknowledged;
            }
        }
        let replicas = position.replicas.as_ref();
        replicas.map_or(AckState::Acknowledged, |position| {
            self.journals.acks().state_of(position, waker)
        })
    }
}

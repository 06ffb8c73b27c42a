//! The follower's side of a stream: stores the item states that the leader sends.
//!
//! A follower with less memory or a smaller maximum item size than its leader may be unable to
//! store an item. It then removes the key, because a client must not read the outdated item.

use crate::frame::{
    Batch, CHANGED_KEYS_LEN_MAX, ChangedKeys, FRAME_LEN_MAX, Frame, FrameError, ItemState,
    Position, State, TimeLeft, ValueState,
};
use crate::keys::Keys;
use crate::lineage::{Checkpoints, Lineage, Succession};
use larder_store::journal::Journals;
use larder_store::{
    Attributes, Change, Engine, Expiry, HashedKey, NewCas, NewTags, NewValue, Now, Refusal, Seconds,
};
use std::sync::Arc;

/// The error that ends a stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// A corrupt or malformed frame.
    #[error("{0}")]
    Frame(#[from] FrameError),
    /// The leader has refused the follower for this reason.
    #[error("the leader refuses: {0}")]
    Refused(String),
    /// A frame that is not valid in the current state of the stream.
    #[error("unexpected frame from the leader")]
    Unexpected,
    /// A full sync or delta sync would change the items of a member that may become the leader.
    #[error("sync refused: this member is in sync, or is standing for election")]
    SyncRefused,
    /// The import of slots cannot complete: the exporter's items were flushed, its journals were
    /// overrun, or the caller did not permit the batch ([`Applier::receive_import`]).
    #[error("the import of slots must restart")]
    ImportRestart,
    /// This member cannot send the keys that a delta sync needs: its checkpoints or journals do not
    /// reach back far enough, or the total length of the keys exceeds [`CHANGED_KEYS_LEN_MAX`].
    #[error("no delta sync: too many changes since the previous leader, a full sync is needed")]
    TooManyChanges,
}

/// The kind of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncKind {
    /// A full sync, which removes all items first.
    Full,
    /// A delta sync, during which the member never loses an acknowledged change.
    Delta,
}

/// Counters of an applier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApplierCounts {
    /// Received states, including the states of removed items.
    pub states: u64,
    /// Items that the engine could not store, because memory was full or the items were too large.
    /// The applier removed their keys instead.
    pub refused: u64,
    /// Started full syncs. Excludes imports.
    pub full_syncs: u64,
    /// Started delta syncs.
    pub delta_syncs: u64,
    /// Received flushes.
    pub flushes: u64,
}

/// The follower's end of a stream: stores the states that a leader sends. The applier outlives
/// connections, and records the position at which the next connection resumes.
#[derive(Debug)]
pub struct Applier<E: Engine> {
    engine: E,
    /// The bytes of an incomplete frame.
    rest: Vec<u8>,
    incoming: Option<IncomingItem<E::Upload>>,
    /// The incarnation of the leader's process.
    incarnation: u64,
    /// The number of the leader's flushes that this follower has applied.
    generation: u64,
    /// The offsets of the last watermark: this follower has all changes before them in the leader's
    /// journals. `None` before the first watermark, and from the start of a sync to the first
    /// watermark after the sync.
    offsets: Option<Vec<u64>>,
    /// Whether a full sync or a delta sync is under way.
    is_syncing: bool,
    /// Whether the stream is an import of slots. Its full sync removes no items.
    is_import: bool,
    /// The `cas_end` of the barrier; `None` until the exporting leader has released the slots.
    barrier: Option<u64>,
    /// The journals that the engine writes to; `None` outside of groups and for imports.
    journals: Option<Arc<Journals>>,
    checkpoints: Checkpoints,
    /// The position in the previous leader's stream, from which a delta sync starts. `None` if no
    /// delta sync is possible, and after a sync with the current leader.
    previous: Option<Lineage>,
    /// Whether an incomplete delta sync has stored changes of a later leader than the leader of
    /// `previous`. These changes are in this member's own journals, so a delta sync with a third
    /// leader includes them.
    has_partial_delta: bool,
    /// Frames for the leader, to be sent before the next acknowledgement.
    outbox: Vec<u8>,
    lag_ms: Option<u32>,
    last_batch: u64,
    last_heartbeat: u64,
    last_heartbeat_sent_ms: u64,
    last_heartbeat_cas_end: u64,
    last_watermark: u64,
    has_unacknowledged: bool,
    counts: ApplierCounts,
}

/// An item whose large value has not arrived completely.
#[derive(Debug)]
struct IncomingItem<U> {
    key: Vec<u8>,
    attributes: Attributes,
    cas: NewCas,
    fetched: bool,
    left: u64,
    value: IncomingValue<U>,
}

#[derive(Debug)]
enum IncomingValue<U> {
    Uploaded(U),
    Whole(Vec<u8>),
    /// The engine cannot store the value: memory is full, or the value is too large.
    Refused,
}

impl<E: Engine> Applier<E> {
    /// Creates an applier without a position. Its first stream starts with a full sync.
    pub fn new(engine: E) -> Self {
        Self {
            engine,
            rest: Vec::new(),
            incoming: None,
            incarnation: 0,
            generation: 0,
            offsets: None,
            is_syncing: false,
            is_import: false,
            barrier: None,
            journals: None,
            checkpoints: Checkpoints::default(),
            previous: None,
            has_partial_delta: false,
            outbox: Vec::new(),
            lag_ms: None,
            last_batch: 0,
            last_heartbeat: 0,
            last_heartbeat_sent_ms: 0,
            last_heartbeat_cas_end: 0,
            last_watermark: 0,
            has_unacknowledged: false,
            counts: ApplierCounts::default(),
        }
    }

    /// Creates the applier for a member of a group. `journals` are the journals that the engine
    /// writes to. With them, delta syncs are possible.
    pub fn for_member(engine: E, journals: Arc<Journals>) -> Self {
        Self { journals: Some(journals), ..Self::new(engine) }
    }

    /// Creates an applier for imports. Its full syncs remove no items.
    pub fn for_import(engine: E) -> Self {
        Self { is_import: true, ..Self::new(engine) }
    }

    /// Returns a value above all CAS values that the exporting leader has assigned to items of the
    /// slots. Returns `None` until this import has all items and the exporting leader has released
    /// the slots.
    #[must_use]
    pub fn barrier(&self) -> Option<u64> {
        self.barrier
    }

    /// Returns the handle to the cache.
    pub fn engine(&mut self) -> &mut E {
        &mut self.engine
    }

    /// Returns the position from which the next stream can resume or start a delta sync. Returns
    /// `None` if the stream must start with a full sync. `leader` is the incarnation of the next
    /// leader's process, if it is known.
    #[must_use]
    pub fn position(&self, leader: Option<u64>) -> Option<Position> {
        self.current_position().or_else(|| {
            let before = self.previous.as_ref()?.position();
            // After a partial delta sync, do not return the position to the leader that it belongs
            // to: a resumed stream of that leader would not undo the changes of the partial sync.
            let is_undone = !self.has_partial_delta || leader != Some(before.incarnation);
            is_undone.then(|| before.clone())
        })
    }

    fn current_position(&self) -> Option<Position> {
        let offsets = self.offsets.clone()?;
        Some(Position { incarnation: self.incarnation, generation: self.generation, offsets })
    }

    /// Ends the stream. Returns how far this process has followed the stream's leader, or `None`
    /// before the first watermark and during a sync.
    fn end_stream(&mut self) -> Option<Lineage> {
        let position = self.current_position().filter(|_| !self.is_syncing);
        let checkpoints = std::mem::take(&mut self.checkpoints);
        self.rest.clear();
        self.incoming = None;
        (self.offsets, self.is_syncing) = (None, false);
        position.map(|position| Lineage::followed(position, checkpoints))
    }

    /// Starts this process's leadership. Returns the state from which it can start delta syncs for
    /// other members, or `None` if the other members need full syncs.
    pub fn become_leader(&mut self) -> Option<Succession> {
        let lineage = self.end_stream().or(self.previous.take())?;
        (self.previous, self.has_partial_delta) = (None, false);
        Some(Succession::new(lineage, self.engine.flush_generation()))
    }

    /// Ends this process's leadership. `incarnation` identifies this process. All client batches
    /// must have ended.
    pub fn end_leadership(&mut self, incarnation: u64, now: Now) {
        self.end_stream();
        // Starting a batch executes a delayed flush that is due.
        self.engine.begin_batch(now);
        self.engine.end_batch();
        // If this process has a pending delayed flush, no delta sync is possible. The next leader
        // does not have this flush, and only a full sync cancels it.
        let journals = self.journals.as_ref().filter(|journals| !journals.flush_pends(now.secs));
        self.has_partial_delta = false;
        self.previous = journals.map(|journals| {
            let generation = self.engine.flush_generation();
            Lineage::led(Position { incarnation, generation, offsets: journals.ends() })
        });
    }

    /// Removes all items.
    pub fn flush(&mut self, now: Now) {
        self.engine.begin_batch(now);
        self.engine.flush(None);
        self.engine.end_batch();
    }

    /// Returns the counters.
    #[must_use]
    pub fn counts(&self) -> ApplierCounts {
        self.counts
    }

    /// Returns whether this node has all items of the leader, except for changes within the
    /// replication lag.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.offsets.is_some() && !self.is_syncing
    }

    /// Returns the sum of the offsets in the last watermark, in bytes, or `None` before the first
    /// watermark and during a sync.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.offsets.as_ref().map(|offsets| offsets.iter().sum())
    }

    /// Returns the replication lag, in milliseconds, that the connection's last heartbeat reported.
    /// Returns `None` before the first heartbeat, and if the leader did not report its lag.
    #[must_use]
    pub fn lag_ms(&self) -> Option<u32> {
        self.lag_ms
    }

    /// Starts the stream of a new connection to the leader with this incarnation.
    pub fn start_stream(&mut self, incarnation: u64) {
        self.rest.clear();
        self.incoming = None;
        (self.last_batch, self.last_heartbeat, self.last_watermark) = (0, 0, 0);
        self.lag_ms = None;
        self.has_unacknowledged = false;
        self.outbox.clear();
        if self.is_import {
            (self.offsets, self.is_syncing, self.barrier) = (None, false, None);
        }
        if self.incarnation != incarnation {
            if let Some(lineage) = self.end_stream() {
                (self.previous, self.has_partial_delta) = (Some(lineage), false);
            }
            self.incarnation = incarnation;
        }
    }

    /// Applies received bytes of the stream.
    ///
    /// # Errors
    /// [`StreamError`]: the caller must close the connection. Changes applied before the error
    /// stay, and the next stream can start at [`Applier::position`].
    pub fn receive(&mut self, bytes: &[u8], now: Now) -> Result<(), StreamError> {
        self.receive_with_consent(bytes, now, &mut |_| true)
    }

    /// Applies received bytes of an import. Calls `is_permitted` within the batch that stores the items. If
    /// `is_permitted` returns false, stores nothing.
    ///
    /// # Errors
    /// The errors of [`Applier::receive`], and [`StreamError::ImportRestart`] if `is_permitted` returns
    /// false.
    pub fn receive_import(
        &mut self,
        bytes: &[u8],
        now: Now,
        is_permitted: impl FnOnce() -> bool,
    ) -> Result<(), StreamError> {
        self.receive_in_batch(bytes, now, is_permitted, &mut |_| true)
    }

    /// Applies received bytes of the stream. Before a full sync or a delta sync starts, calls
    /// `may_sync` outside of a batch.
    ///
    /// # Errors
    /// The errors of [`Applier::receive`], and [`StreamError::SyncRefused`] if `may_sync`
    /// returns false.
    pub fn receive_with_consent(
        &mut self,
        bytes: &[u8],
        now: Now,
        may_sync: &mut dyn FnMut(SyncKind) -> bool,
    ) -> Result<(), StreamError> {
        self.receive_in_batch(bytes, now, || true, may_sync)
    }

    fn receive_in_batch(
        &mut self,
        bytes: &[u8],
        now: Now,
        is_permitted: impl FnOnce() -> bool,
        may_sync: &mut dyn FnMut(SyncKind) -> bool,
    ) -> Result<(), StreamError> {
        let mut all = std::mem::take(&mut self.rest);
        all.extend_from_slice(bytes);
        let mut at = 0;
        self.engine.begin_batch(now);
        let is_permitted = is_permitted();
        let result = loop {
            if !is_permitted {
                break Err(StreamError::ImportRestart);
            }
            match Frame::read(all.get(at..).unwrap_or_default(), FRAME_LEN_MAX) {
                Ok(None) => break Ok(()),
                Err(error) => break Err(error.into()),
                Ok(Some((frame, len))) => {
                    at += len;
                    if let Err(error) = self.apply(frame, now, may_sync) {
                        break Err(error);
                    }
                }
            }
        };
        self.engine.end_batch();
        all.drain(..at.min(all.len()));
        self.rest = all;
        result
    }

    /// Returns the number of the last heartbeat on this connection, or 0 before the first.
    #[must_use]
    pub fn last_heartbeat(&self) -> u64 {
        self.last_heartbeat
    }

    /// Returns the send time of the last heartbeat, in milliseconds on the leader's clock.
    #[must_use]
    pub fn last_heartbeat_sent_ms(&self) -> u64 {
        self.last_heartbeat_sent_ms
    }

    /// Returns the end of the CAS range in the last heartbeat.
    #[must_use]
    pub fn last_heartbeat_cas_end(&self) -> u64 {
        self.last_heartbeat_cas_end
    }

    /// Appends frames for the leader: the keys of a delta sync, and an acknowledgement if one is
    /// due. An acknowledgement is due if a complete batch, large value, watermark, heartbeat or
    /// barrier has arrived since the last call. With `promises`, this member promises in the
    /// acknowledgement not to stand for election for [`PROMISE_TIME`](crate::PROMISE_TIME).
    pub fn acknowledge(&mut self, promises: bool, out: &mut Vec<u8>) {
        out.append(&mut self.outbox);
        if std::mem::take(&mut self.has_unacknowledged) {
            let (batch, heartbeat, watermark) =
                (self.last_batch, self.last_heartbeat, self.last_watermark);
            Frame::Ack { batch, heartbeat, watermark, is_synced: self.is_synced(), promises }
                .write(out);
        }
    }

    fn apply(
        &mut self,
        frame: Frame<'_>,
        now: Now,
        may_sync: &mut dyn FnMut(SyncKind) -> bool,
    ) -> Result<(), StreamError> {
        if self.incoming.is_some() && !matches!(frame, Frame::Part(_) | Frame::Heartbeat { .. }) {
            // Until a large value is complete, the leader may only send parts of it, send
            // heartbeats, or start a full sync again.
            let Frame::FullSyncStart { .. } = frame else { return Err(StreamError::Unexpected) };
            self.incoming = None;
        }
        let sync = match frame {
            Frame::FullSyncStart { .. } => Some(SyncKind::Full),
            Frame::DeltaSyncStart { .. } => Some(SyncKind::Delta),
            _ => None,
        };
        if let Some(kind) = sync {
            // `may_sync` runs outside of a batch, because it may wait until all batches have ended.
            self.engine.end_batch();
            let is_permitted = may_sync(kind);
            self.engine.begin_batch(now);
            if !is_permitted {
                return Err(StreamError::SyncRefused);
            }
        }
        match frame {
            Frame::FullSyncStart { generation } if self.is_import => {
                // A second full sync means that the exporter's journals were overrun and removals
                // were lost. The import must restart, because otherwise it would keep the removed
                // items.
                if self.is_syncing || self.offsets.is_some() {
                    return Err(StreamError::ImportRestart);
                }
                self.start_sync(generation);
                self.previous = None;
            }
            Frame::Flush { .. } if self.is_import => return Err(StreamError::ImportRestart),
            Frame::Barrier { cas_end } if self.is_import && self.is_synced() => {
                (self.barrier, self.has_unacknowledged) = (Some(cas_end), true);
            }
            Frame::FullSyncStart { generation } => {
                self.counts.full_syncs += 1;
                self.start_sync(generation);
                (self.previous, self.has_partial_delta) = (None, false);
                self.engine.flush(None);
            }
            Frame::DeltaSyncStart { before, generation } => {
                let changed_keys = self.changed_since(&before);
                self.start_sync(generation);
                let Some(changed_keys) = changed_keys else {
                    // Forget the position, so that the next stream starts with a full sync.
                    self.previous = None;
                    return Err(StreamError::TooManyChanges);
                };
                self.has_partial_delta = true;
                ChangedKeys::write_all(changed_keys.iter(), &mut self.outbox);
                self.counts.delta_syncs += 1;
            }
            Frame::Checkpoint => {
                if let Some(journals) = &self.journals {
                    self.checkpoints.start(journals.ends());
                }
            }
            Frame::CheckpointSettled { ends } => self.checkpoints.complete(ends),
            Frame::SyncEnd => self.is_syncing = false,
            Frame::Flush { generation } => {
                self.counts.flushes += 1;
                self.generation = generation;
                // Journals do not record flushes, so a later delta sync from `previous` would not
                // include this one.
                self.previous = None;
                self.engine.flush(None);
            }
            Frame::Watermark { number, offsets } => {
                if !self.is_syncing {
                    (self.previous, self.has_partial_delta) = (None, false);
                }
                (self.offsets, self.last_watermark, self.has_unacknowledged) =
                    (Some(offsets), number, true);
            }
            Frame::Batch(batch) => self.apply_batch(batch, now)?,
            Frame::Part(bytes) => self.apply_part(bytes)?,
            Frame::Heartbeat { number, lag_ms, sent, cas_end } => {
                (self.last_heartbeat, self.lag_ms, self.has_unacknowledged) =
                    (number, lag_ms, true);
                (self.last_heartbeat_sent_ms, self.last_heartbeat_cas_end) = (sent, cas_end);
            }
            Frame::Refused(reason) => return Err(StreamError::Refused(reason.to_owned())),
            Frame::Hello { .. }
            | Frame::Challenge { .. }
            | Frame::Proof(_)
            | Frame::Accepted { .. }
            | Frame::Ack { .. }
            | Frame::ReleaseSlots { .. }
            | Frame::Barrier { .. }
            | Frame::Open { .. }
            | Frame::Request { .. }
            | Frame::Continue { .. }
            | Frame::Close { .. }
            | Frame::Reply { .. }
            | Frame::Moved { .. }
            | Frame::ChangedKeys(_)
            | Frame::LinkHeartbeat { .. }
            | Frame::Lease(_)
            | Frame::TrackAll(_)
            | Frame::MapRevision(_)
            | Frame::Invalidated(_) => return Err(StreamError::Unexpected),
        }
        Ok(())
    }

    /// Starts a sync. Invalidates the position until the sync is complete.
    fn start_sync(&mut self, generation: u64) {
        (self.generation, self.offsets, self.is_syncing) = (generation, None, true);
    }

    /// Returns the keys of changes that this member has and that a leader at this position may
    /// lack. Returns `None` if the keys are unknown, or if their total length exceeds
    /// [`CHANGED_KEYS_LEN_MAX`].
    fn changed_since(&self, position: &Position) -> Option<Keys> {
        let before = self
            .previous
            .as_ref()
            .filter(|lineage| lineage.position().incarnation == position.incarnation)?;
        let own = before.own_since(&position.offsets)?;
        let (mut keys, mut len) = (Keys::default(), 0);
        for mut reader in self.journals.as_ref()?.readers_at(&own).ok()? {
            while let Some(entry) = reader.take().ok()? {
                if keys.push(entry.key, self.engine.hash(entry.key)) {
                    len += entry.key.len();
                }
                if len > CHANGED_KEYS_LEN_MAX {
                    return None;
                }
            }
        }
        Some(keys)
    }

    fn apply_batch(&mut self, batch: Batch<'_>, now: Now) -> Result<(), StreamError> {
        for state in batch.states() {
            let State { key, item } = state?;
            if self.incoming.is_some() {
                return Err(StreamError::Unexpected);
            }
            self.counts.states += 1;
            match item {
                None => self.remove(key),
                Some(item) => self.store(key, &item, now),
            }
        }
        self.last_batch = batch.number;
        self.has_unacknowledged |= self.incoming.is_none();
        Ok(())
    }

    fn store(&mut self, key: &[u8], item: &ItemState<'_>, now: Now) {
        let expiry = match item.left {
            TimeLeft::Forever => Expiry::Never,
            TimeLeft::Seconds(left) => Expiry::At(Seconds(now.secs.0.saturating_add(left))),
            TimeLeft::Millis(left) => Expiry::at_millis(now.in_millis().saturating_add(left)),
        };
        let attributes = Attributes {
            client_flags: item.client_flags,
            expiry,
            stale: item.stale,
            won: item.won,
            binary_key: item.binary_key,
        };
        let (cas, fetched) = (self.new_cas(item.cas), item.fetched);
        match item.value {
            ValueState::Whole(value) => {
                self.put(key, attributes, cas, fetched, NewValue::Bytes(value), &mut None);
            }
            ValueState::InParts(left) => {
                let value = self.start_value(left);
                let key = key.to_vec();
                self.incoming = Some(IncomingItem { key, attributes, cas, fetched, left, value });
            }
        }
    }

    /// Returns the CAS value for a replicated item: the leader's value, or a fresh one if the
    /// leader stores no CAS values. A follower in a group has no range from which to take a fresh
    /// value, so it stores 0.
    fn new_cas(&self, cas: u64) -> NewCas {
        let is_member = self.journals.is_some();
        if cas == 0 && !is_member { NewCas::Fresh } else { NewCas::Exactly(cas) }
    }

    fn start_value(&mut self, len: u64) -> IncomingValue<E::Upload> {
        match usize::try_from(len) {
            Ok(len) if len < self.engine.upload_len_min() => IncomingValue::Whole(Vec::new()),
            Ok(len) => {
                let upload = self.engine.upload(len);
                upload.map_or(IncomingValue::Refused, IncomingValue::Uploaded)
            }
            Err(_) => IncomingValue::Refused,
        }
    }

    fn apply_part(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        let Some(mut incoming) = self.incoming.take() else { return Err(StreamError::Unexpected) };
        let len = bytes.len() as u64;
        if len == 0 || len > incoming.left {
            return Err(StreamError::Unexpected);
        }
        incoming.left -= len;
        match &mut incoming.value {
            IncomingValue::Whole(value) => value.extend_from_slice(bytes),
            IncomingValue::Uploaded(upload) => {
                if self.engine.extend(upload, bytes).is_err() {
                    incoming.value = IncomingValue::Refused;
                }
            }
            IncomingValue::Refused => (),
        }
        if incoming.left > 0 {
            self.incoming = Some(incoming);
            return Ok(());
        }
        let IncomingItem { key, attributes, cas, fetched, value, .. } = incoming;
        match value {
            IncomingValue::Whole(value) => {
                let value = NewValue::Bytes(&value);
                self.put(&key, attributes, cas, fetched, value, &mut None);
            }
            IncomingValue::Uploaded(upload) => {
                let value = NewValue::Uploaded;
                self.put(&key, attributes, cas, fetched, value, &mut Some(upload));
            }
            IncomingValue::Refused => self.refuse(&key),
        }
        self.has_unacknowledged = true;
        Ok(())
    }

    fn put(
        &mut self,
        key: &[u8],
        attributes: Attributes,
        cas: NewCas,
        fetched: bool,
        value: NewValue<'_>,
        upload: &mut Option<E::Upload>,
    ) {
        let hashed = HashedKey { bytes: key, hash: self.engine.hash(key) };
        let tags = NewTags::None;
        let put = || Change::Put { attributes, cas, value, fetched, tags };
        if self.engine.update_unread(hashed, upload, |_| (put(), ())).is_err() {
            self.refuse(key);
        }
    }

    fn refuse(&mut self, key: &[u8]) {
        self.counts.refused += 1;
        self.remove(key);
    }

    fn remove(&mut self, key: &[u8]) {
        let hashed = HashedKey { bytes: key, hash: self.engine.hash(key) };
        let removed = self.engine.update_unread(hashed, &mut None, |_| (Change::Remove, ()));
        debug_assert!(!matches!(removed, Err(Refusal::Pending)), "an unread update never waits");
    }
}

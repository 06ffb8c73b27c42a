//! The follower's side of a stream: stores the states that the leader sends.
//!
//! A follower stores what it is sent as it comes. What it can't store (it has less memory, or smaller items) it
//! removes, so that nobody finds an older state there.

use crate::frame::{
    Batch, FRAME_LEN_MAX, Frame, FrameError, ItemState, NAMED_LEN_MAX, Named, Position, State,
    TimeLeft, ValueState,
};
use crate::keys::Keys;
use crate::lineage::{Lineage, Marks, Succession};
use larder_store::journal::Journals;
use larder_store::{
    Attributes, Change, Engine, Expiry, HashedKey, NewCas, NewTags, NewValue, Now, Refusal, Seconds,
};
use std::sync::Arc;

/// Why a stream ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// What the leader sends can't be read.
    #[error("{0}")]
    Frame(#[from] FrameError),
    /// The leader refuses to be followed.
    #[error("the leader refuses: {0}")]
    Refused(String),
    /// The leader sends what does not belong there.
    #[error("the leader sends a frame that does not belong there")]
    Unexpected,
    /// A copy would remove items that are still needed.
    #[error("this server may be about to lead, and keeps its items")]
    CopyRefused,
    /// All items were flushed, or changed faster than they were sent, so the move has to begin anew.
    #[error("the move of slots has to begin anew")]
    MoveUndone,
    /// What was changed here that the leader may not know is not in the journals any more.
    #[error("too much was changed here since the leader before: everything has to be copied")]
    TooMuchChanged,
}

/// What an applier has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApplierCounts {
    /// States of items that came, also of those that are gone.
    pub states: u64,
    /// Items that could not be stored, and were removed.
    pub refused: u64,
    /// Copies that began.
    pub copies: u64,
    /// Repairs that began: the items were kept when another member began to lead.
    pub repairs: u64,
    /// Flushes that came.
    pub flushes: u64,
}

/// Stores what a leader sends. It outlives connections, and knows where the next one can go on.
#[derive(Debug)]
pub struct Applier<E: Engine> {
    engine: E,
    /// Bytes of a frame that is not complete.
    rest: Vec<u8>,
    large: Option<Arriving<E::Upload>>,
    /// The leader's process, and the number of the flush that was followed last.
    boot: u64,
    generation: u64,
    /// What there is of each of the leader's journals, once there is everything.
    offsets: Option<Vec<u64>>,
    /// A copy or a repair is under way.
    is_copying: bool,
    /// The items of some slots are taken over, beside others.
    is_move: bool,
    /// The other group answers nothing about these slots any more.
    has_barrier: bool,
    /// The journals that the engine writes, if it writes any, and where the stream is in them.
    journals: Option<Arc<Journals>>,
    marks: Marks,
    /// What there is of the leader before, until this one has begun to send.
    before: Option<Lineage>,
    /// Frames for the leader.
    outbox: Vec<u8>,
    behind_millis: Option<u32>,
    last_batch: u64,
    last_beat: u64,
    last_beat_sent: u64,
    last_reach: u64,
    has_news: bool,
    counts: ApplierCounts,
}

/// A large value that arrives.
#[derive(Debug)]
struct Arriving<U> {
    key: Vec<u8>,
    attributes: Attributes,
    cas: NewCas,
    fetched: bool,
    left: u64,
    value: ArrivingValue<U>,
}

#[derive(Debug)]
enum ArrivingValue<U> {
    Uploaded(U),
    Whole(Vec<u8>),
    /// There is no room for it.
    Refused,
}

impl<E: Engine> Applier<E> {
    /// An applier that has nothing yet.
    pub fn new(engine: E) -> Self {
        Self {
            engine,
            rest: Vec::new(),
            large: None,
            boot: 0,
            generation: 0,
            offsets: None,
            is_copying: false,
            is_move: false,
            has_barrier: false,
            journals: None,
            marks: Marks::default(),
            before: None,
            outbox: Vec::new(),
            behind_millis: None,
            last_batch: 0,
            last_beat: 0,
            last_beat_sent: 0,
            last_reach: 0,
            has_news: false,
            counts: ApplierCounts::default(),
        }
    }

    /// The same, of an engine that writes these journals: it can go on with another leader of its group.
    pub fn of_member(engine: E, journals: Arc<Journals>) -> Self {
        Self { journals: Some(journals), ..Self::new(engine) }
    }

    /// An applier that takes over items of some slots from the leaders of other groups, and keeps what else there is.
    pub fn of_move(engine: E) -> Self {
        Self { is_move: true, ..Self::new(engine) }
    }

    /// Whether everything is there, and the other group answers nothing about these slots any more.
    #[must_use]
    pub fn has_barrier(&self) -> bool {
        self.has_barrier
    }

    /// The handle to the cache.
    pub fn engine(&mut self) -> &mut E {
        &mut self.engine
    }

    /// Where a stream can go on; `None` if it has to begin with a copy.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        let before = || self.before.as_ref().map(|before| before.position().clone());
        self.current_position().or_else(before)
    }

    fn current_position(&self) -> Option<Position> {
        let offsets = self.offsets.clone()?;
        Some(Position { boot: self.boot, generation: self.generation, offsets })
    }

    /// What there is of the leader of the stream so far, if there is everything; from here on there is no stream.
    fn end_stream(&mut self) -> Option<Lineage> {
        let position = self.current_position().filter(|_| !self.is_copying);
        let marks = std::mem::take(&mut self.marks);
        self.rest.clear();
        self.large = None;
        (self.offsets, self.is_copying) = (None, false);
        position.map(|position| Lineage::followed(position, marks))
    }

    /// This process leads from here on. What other members need to go on with it; `None` if they have to copy
    /// everything.
    pub fn succeed(&mut self) -> Option<Succession> {
        let lineage = self.end_stream().or(self.before.take())?;
        self.before = None;
        Some(Succession::new(lineage, self.engine.flush_generation()))
    }

    /// This process, of this number, has led, and all its batches have ended.
    pub fn note_led(&mut self, boot: u64, now: Now) {
        self.end_stream();
        // A flush that is due takes effect now.
        self.engine.begin_batch(now);
        self.engine.end_batch();
        // A flush that is still to come would be one that the next leader knows nothing of. A copy cancels it.
        let journals = self.journals.as_ref().filter(|journals| !journals.flush_pends(now.secs));
        self.before = journals.map(|journals| {
            let generation = self.engine.flush_generation();
            Lineage::led(Position { boot, generation, offsets: journals.ends() })
        });
    }

    /// Removes all items.
    pub fn flush(&mut self, now: Now) {
        self.engine.begin_batch(now);
        self.engine.flush(None);
        self.engine.end_batch();
    }

    /// What was done so far.
    #[must_use]
    pub fn counts(&self) -> ApplierCounts {
        self.counts
    }

    /// Whether everything is there that the leader has, up to some lag.
    #[must_use]
    pub fn has_copy(&self) -> bool {
        self.offsets.is_some() && !self.is_copying
    }

    /// How many bytes of the leader's journals it has the changes of; `None` until it has what was there before.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.offsets.as_ref().map(|offsets| offsets.iter().sum())
    }

    /// How far the leader said last that it was behind the changes of its group, in milliseconds; `None` if it can't
    /// know.
    #[must_use]
    pub fn behind_millis(&self) -> Option<u32> {
        self.behind_millis
    }

    /// Begins the stream of a connection to the leader's process of this number.
    pub fn begin(&mut self, boot: u64) {
        self.rest.clear();
        self.large = None;
        (self.last_batch, self.last_beat, self.last_reach) = (0, 0, 0);
        self.behind_millis = None;
        self.has_news = false;
        self.outbox.clear();
        if self.is_move {
            (self.offsets, self.is_copying, self.has_barrier) = (None, false, false);
        }
        if self.boot != boot {
            self.before = self.end_stream().or(self.before.take());
            self.boot = boot;
        }
    }

    /// Applies what has arrived of the stream.
    ///
    /// # Errors
    /// [`StreamError`]: the connection has to be closed. What was applied stays, and [`Applier::position`] is right.
    pub fn receive(&mut self, bytes: &[u8], now: Now) -> Result<(), StreamError> {
        self.receive_asking(bytes, now, &mut || true)
    }

    /// Takes over what has arrived of a move; `may` is asked within the batch that stores it, whether that may still be.
    ///
    /// # Errors
    /// As [`Applier::receive`].
    pub fn take_over(
        &mut self,
        bytes: &[u8],
        now: Now,
        may: impl FnOnce() -> bool,
    ) -> Result<(), StreamError> {
        self.receive_in_batch(bytes, now, may, &mut || true)
    }

    /// The same; `may_copy` is asked before a copy begins, for which all items are removed.
    ///
    /// # Errors
    /// As [`Applier::receive`].
    pub fn receive_asking(
        &mut self,
        bytes: &[u8],
        now: Now,
        may_copy: &mut dyn FnMut() -> bool,
    ) -> Result<(), StreamError> {
        self.receive_in_batch(bytes, now, || true, may_copy)
    }

    fn receive_in_batch(
        &mut self,
        bytes: &[u8],
        now: Now,
        may: impl FnOnce() -> bool,
        may_copy: &mut dyn FnMut() -> bool,
    ) -> Result<(), StreamError> {
        let mut all = std::mem::take(&mut self.rest);
        all.extend_from_slice(bytes);
        let mut at = 0;
        self.engine.begin_batch(now);
        let may = may();
        let result = loop {
            if !may {
                break Err(StreamError::MoveUndone);
            }
            match Frame::read(all.get(at..).unwrap_or_default(), FRAME_LEN_MAX) {
                Ok(None) => break Ok(()),
                Err(error) => break Err(error.into()),
                Ok(Some((frame, len))) => {
                    at += len;
                    if let Err(error) = self.apply(frame, now, may_copy) {
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

    /// The number of the leader's last beat on this connection; 0 before the first one.
    #[must_use]
    pub fn last_beat(&self) -> u64 {
        self.last_beat
    }

    /// When that was sent, in milliseconds on a clock of the leader.
    #[must_use]
    pub fn last_beat_sent(&self) -> u64 {
        self.last_beat_sent
    }

    /// Appends what the leader has to know of what was applied since the last call, if anything. `promises`: this
    /// member of a group does not stand for election for a while.
    pub fn acknowledge(&mut self, promises: bool, out: &mut Vec<u8>) {
        out.append(&mut self.outbox);
        if std::mem::take(&mut self.has_news) {
            let (batch, beat, reach) = (self.last_batch, self.last_beat, self.last_reach);
            Frame::Ack { batch, beat, reach, has_all: self.has_copy(), promises }.write(out);
        }
    }

    fn apply(
        &mut self,
        frame: Frame<'_>,
        now: Now,
        may_copy: &mut dyn FnMut() -> bool,
    ) -> Result<(), StreamError> {
        if self.large.is_some() && !matches!(frame, Frame::Part(_) | Frame::Beat { .. }) {
            // The leader has begun again, or it is none.
            let Frame::CopyBegins { .. } = frame else { return Err(StreamError::Unexpected) };
            self.large = None;
        }
        if matches!(frame, Frame::CopyBegins { .. } | Frame::RepairBegins { .. }) {
            // Whoever is asked may wait for all batches.
            self.engine.end_batch();
            let may = may_copy();
            self.engine.begin_batch(now);
            if !may {
                return Err(StreamError::CopyRefused);
            }
        }
        match frame {
            Frame::CopyBegins { generation } if self.is_move => {
                // After the first one the keys of some changes are lost.
                if self.is_copying || self.offsets.is_some() {
                    return Err(StreamError::MoveUndone);
                }
                self.begin_copy(generation);
            }
            Frame::Flush { .. } if self.is_move => return Err(StreamError::MoveUndone),
            Frame::Barrier if self.is_move && self.has_copy() => {
                (self.has_barrier, self.has_news) = (true, true);
            }
            Frame::CopyBegins { generation } => {
                self.counts.copies += 1;
                self.begin_copy(generation);
                self.engine.flush(None);
            }
            Frame::RepairBegins { before, generation } => {
                let named = self.changed_since(&before);
                self.begin_copy(generation);
                Named::write_all(
                    named.ok_or(StreamError::TooMuchChanged)?.iter(),
                    &mut self.outbox,
                );
                self.counts.repairs += 1;
            }
            Frame::Mark => {
                if let Some(journals) = &self.journals {
                    self.marks.begin(journals.ends());
                }
            }
            Frame::Settled { ends } => self.marks.end(ends),
            Frame::CopyEnds => self.is_copying = false,
            Frame::Flush { generation } => {
                self.counts.flushes += 1;
                self.generation = generation;
                self.engine.flush(None);
            }
            Frame::Reach { number, offsets } => {
                (self.offsets, self.last_reach, self.has_news) = (Some(offsets), number, true);
            }
            Frame::Batch(batch) => self.apply_batch(batch, now)?,
            Frame::Part(bytes) => self.take_part(bytes)?,
            Frame::Beat { number, behind_millis, sent } => {
                (self.last_beat, self.behind_millis, self.has_news) = (number, behind_millis, true);
                self.last_beat_sent = sent;
            }
            Frame::Refused(reason) => return Err(StreamError::Refused(reason.to_owned())),
            Frame::Hello { .. }
            | Frame::Challenge { .. }
            | Frame::Proof(_)
            | Frame::Welcome { .. }
            | Frame::Ack { .. }
            | Frame::GiveUp
            | Frame::Barrier
            | Frame::Open { .. }
            | Frame::Pass { .. }
            | Frame::GoOn { .. }
            | Frame::Shut { .. }
            | Frame::Answer { .. }
            | Frame::Named(_) => return Err(StreamError::Unexpected),
        }
        Ok(())
    }

    /// Begins to take in everything that the leader has.
    fn begin_copy(&mut self, generation: u64) {
        (self.generation, self.offsets, self.is_copying) = (generation, None, true);
        self.before = None;
    }

    /// The keys that were changed here and that somebody may not know who was at this position; `None` if they are not
    /// known any more, or too many.
    fn changed_since(&self, position: &Position) -> Option<Keys> {
        let before = self.before.as_ref().filter(|of| of.position().boot == position.boot)?;
        let own = before.own_since(&position.offsets)?;
        let (mut keys, mut len) = (Keys::default(), 0);
        for mut reader in self.journals.as_ref()?.readers_at(&own).ok()? {
            while let Some(entry) = reader.take().ok()? {
                if keys.push(entry.key, self.engine.hash(entry.key)) {
                    len += entry.key.len();
                }
                if len > NAMED_LEN_MAX {
                    return None;
                }
            }
        }
        Some(keys)
    }

    fn apply_batch(&mut self, batch: Batch<'_>, now: Now) -> Result<(), StreamError> {
        for state in batch.states() {
            let State { key, item } = state?;
            if self.large.is_some() {
                return Err(StreamError::Unexpected);
            }
            self.counts.states += 1;
            match item {
                None => self.remove(key),
                Some(item) => self.store(key, &item, now),
            }
        }
        self.last_batch = batch.number;
        self.has_news |= self.large.is_none();
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
        let (cas, fetched) = (new_cas(item.cas), item.fetched);
        match item.value {
            ValueState::Whole(value) => {
                self.put(key, attributes, cas, fetched, NewValue::Bytes(value), &mut None);
            }
            ValueState::InParts(left) => {
                let value = self.begin_value(left);
                let key = key.to_vec();
                self.large = Some(Arriving { key, attributes, cas, fetched, left, value });
            }
        }
    }

    fn begin_value(&mut self, len: u64) -> ArrivingValue<E::Upload> {
        match usize::try_from(len) {
            Ok(len) if len < self.engine.upload_len_min() => ArrivingValue::Whole(Vec::new()),
            Ok(len) => {
                let upload = self.engine.upload(len);
                upload.map_or(ArrivingValue::Refused, ArrivingValue::Uploaded)
            }
            Err(_) => ArrivingValue::Refused,
        }
    }

    fn take_part(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        let Some(mut large) = self.large.take() else { return Err(StreamError::Unexpected) };
        let len = bytes.len() as u64;
        if len == 0 || len > large.left {
            return Err(StreamError::Unexpected);
        }
        large.left -= len;
        match &mut large.value {
            ArrivingValue::Whole(value) => value.extend_from_slice(bytes),
            ArrivingValue::Uploaded(upload) => {
                if self.engine.extend(upload, bytes).is_err() {
                    large.value = ArrivingValue::Refused;
                }
            }
            ArrivingValue::Refused => (),
        }
        if large.left > 0 {
            self.large = Some(large);
            return Ok(());
        }
        let Arriving { key, attributes, cas, fetched, value, .. } = large;
        match value {
            ArrivingValue::Whole(value) => {
                let value = NewValue::Bytes(&value);
                self.put(&key, attributes, cas, fetched, value, &mut None);
            }
            ArrivingValue::Uploaded(upload) => {
                let value = NewValue::Uploaded;
                self.put(&key, attributes, cas, fetched, value, &mut Some(upload));
            }
            ArrivingValue::Refused => self.refuse(&key),
        }
        self.has_news = true;
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
        debug_assert!(!matches!(removed, Err(Refusal::Pending)), "it does not depend on the item");
    }
}

/// The CAS of a copied item: the leader's, if that has any.
fn new_cas(cas: u64) -> NewCas {
    if cas == 0 { NewCas::Fresh } else { NewCas::Exactly(cas) }
}

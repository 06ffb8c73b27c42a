//! The follower's side of a stream: stores the states that the leader sends.
//!
//! A follower stores what it is sent as it comes. What it can't store (it has less memory, or smaller items) it
//! removes, so that nobody finds an older state there.

use crate::frame::{
    Batch, FRAME_LEN_MAX, Frame, FrameError, ItemState, Position, State, TimeLeft, ValueState,
};
use larder_store::{
    Attributes, Change, Engine, Expiry, HashedKey, NewCas, NewTags, NewValue, Now, Refusal, Seconds,
};

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
    is_copying: bool,
    behind_millis: u32,
    last_batch: u64,
    last_beat: u64,
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
            behind_millis: 0,
            last_batch: 0,
            last_beat: 0,
            last_reach: 0,
            has_news: false,
            counts: ApplierCounts::default(),
        }
    }

    /// Where a stream can go on; `None` if it has to begin with a copy.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        let offsets = self.offsets.clone()?;
        Some(Position { boot: self.boot, generation: self.generation, offsets })
    }

    /// Forgets where the stream was, because the items here have changed without it: the next one begins with a copy.
    pub fn forget_position(&mut self) {
        self.offsets = None;
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

    /// How far the leader said that it was behind its own changes, in milliseconds.
    #[must_use]
    pub fn behind_millis(&self) -> u32 {
        self.behind_millis
    }

    /// Begins the stream of a connection to the leader's process of this number.
    pub fn begin(&mut self, boot: u64) {
        self.rest.clear();
        self.large = None;
        (self.last_batch, self.last_beat, self.last_reach) = (0, 0, 0);
        self.has_news = false;
        if self.boot != boot {
            (self.boot, self.offsets) = (boot, None);
        }
    }

    /// Applies what has arrived of the stream.
    ///
    /// # Errors
    /// [`StreamError`]: the connection has to be closed. What was applied stays, and [`Applier::position`] is right.
    pub fn receive(&mut self, bytes: &[u8], now: Now) -> Result<(), StreamError> {
        self.receive_asking(bytes, now, &mut || true)
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
        let mut all = std::mem::take(&mut self.rest);
        all.extend_from_slice(bytes);
        let mut at = 0;
        self.engine.begin_batch(now);
        let result = loop {
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

    /// Appends what the leader has to know of what was applied since the last call, if anything. `promises`: this
    /// member of a group does not stand for election for a while.
    pub fn acknowledge(&mut self, promises: bool, out: &mut Vec<u8>) {
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
        match frame {
            Frame::CopyBegins { .. } if !may_copy() => return Err(StreamError::CopyRefused),
            Frame::CopyBegins { generation } => {
                self.counts.copies += 1;
                (self.generation, self.offsets, self.is_copying) = (generation, None, true);
                self.engine.flush(None);
            }
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
            Frame::Beat { number, behind_millis } => {
                (self.last_beat, self.behind_millis, self.has_news) = (number, behind_millis, true);
            }
            Frame::Refused(reason) => return Err(StreamError::Refused(reason.to_owned())),
            Frame::Hello { .. }
            | Frame::Challenge { .. }
            | Frame::Proof(_)
            | Frame::Welcome { .. }
            | Frame::Ack { .. }
            | Frame::Open { .. }
            | Frame::Pass { .. }
            | Frame::GoOn { .. }
            | Frame::Shut { .. }
            | Frame::Answer { .. } => return Err(StreamError::Unexpected),
        }
        Ok(())
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

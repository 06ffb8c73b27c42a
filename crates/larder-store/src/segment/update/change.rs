//! Writing: an item is written to this handle's open segment and published by one store to its index
//! word, under the lock of its stripe.

use crate::segment::cache::shared::{AbortOnUnwind, Shared};
use crate::segment::large_value::chain::{ChainLease, Upload};

use crate::engine::{Liveness, SPACES};
use crate::eviction::{Kind, Queue};
use crate::segment::flash::pending_read::Reading;
use crate::segment::flash_read::lookup::{OnFlash, liveness_on_flash};
use crate::segment::handle::state::{Handle, lend, liveness};
use crate::segment::index::buckets::{Locked, Place};
use crate::segment::item::extension::Extension;
use crate::segment::item::header::State;
use crate::segment::item::record::{Chain, NewRecord, Record, Witness};
use crate::segment::large_value::builder::{Plan, Staging};
use crate::segment::memory::table::Table;
use crate::segment::sync::Ordering;
use crate::segment::write::writer::Writer;
use crate::{
    Access, Attributes, Change, HashedKey, Item, KEY_LEN_MAX, Lookup, NUMBER_WIDTH_MAX, NewCas,
    NewTags, NewValue, Refusal, TAGS_MAX, Updated,
};
use std::sync::Arc;

/// The bytes that a typical item takes beside key and value, for its size class.
const ITEM_HEAD: usize = 16;

/// What an update lacks. The shortage is resolved without any lock held, then the update starts over.
#[derive(Debug)]
pub(crate) enum Shortage<'v> {
    /// An open segment with room for an item of this kind and length.
    Room(Kind, usize),
    /// An index word.
    Slot,
    /// A large value that has to be put together in segments of its own.
    Staging(Plan, NewValue<'v>),
    /// The update is refused.
    Refused(Refusal),
}

impl Handle {
    /// Applies what `decide` answers about the item under `key`. A live item is shown as a `Miss`
    /// unless `is_shown`.
    pub(crate) fn update_item<'v, R>(
        &mut self,
        key: HashedKey<'_>,
        upload: &mut Option<Upload>,
        is_shown: bool,
        mut decide: impl FnMut(Lookup<&Item<'_, ChainLease>>) -> (Change<'v>, R),
    ) -> Result<Updated<R>, Refusal> {
        self.evacuate_before_write();
        let mut rounds = 0;
        loop {
            let (shared, mut writer) = self.writer();
            match writer.attempt(shared, key, upload, is_shown, &mut decide) {
                Ok(updated) => {
                    self.staging = None;
                    self.evacuate_after_write();
                    self.flush_slot_delta();
                    return Ok(updated);
                }
                Err(shortage) => {
                    rounds += 1;
                    let resolved = self.resolve(shortage, key, upload.as_ref(), rounds);
                    resolved.inspect_err(|refusal| {
                        self.staging = None;
                        if *refusal != Refusal::Pending {
                            self.member.stats.refuse(0);
                        }
                    })?;
                }
            }
        }
    }

    fn resolve(
        &mut self,
        shortage: Shortage<'_>,
        key: HashedKey<'_>,
        upload: Option<&Upload>,
        rounds: u32,
    ) -> Result<(), Refusal> {
        match shortage {
            Shortage::Room(kind, len) => self.open_segment(kind, len),
            Shortage::Slot => self.make_slot(key.hash, rounds),
            Shortage::Staging(plan, value) => self.stage(key, plan, value, upload),
            Shortage::Refused(refusal) => Err(refusal),
        }
    }
}

type Stripe<'i> = Locked<'i, Table>;

/// The item that an update found. It may have expired or been flushed.
struct Found<'i> {
    place: Place<'i>,
    record: Record<'i>,
    liveness: Liveness,
}

impl Found<'_> {
    /// What says that it was read from flash.
    fn is_on_flash(&self) -> bool {
        self.place.slot.is_on_flash()
    }
}

impl Writer<'_> {
    fn attempt<'v, R>(
        &mut self,
        shared: &Arc<Shared>,
        key: HashedKey<'_>,
        upload: &mut Option<Upload>,
        is_shown: bool,
        decide: &mut impl FnMut(Lookup<&Item<'_, ChainLease>>) -> (Change<'v>, R),
    ) -> Result<Updated<R>, Shortage<'v>> {
        let stripe = &shared.index.lock(key.hash);
        let witness = Witness::locked(stripe);
        let is_key = |slot| shared.record(slot, witness).has_key(key.bytes);
        let mut found = stripe.find(is_key).map(|place| {
            let record = shared.record(place.slot, witness);
            let liveness = liveness(shared, &record, self.now);
            Found { place, record, liveness }
        });
        let (mut is_unread, mut read) = (false, None);
        let source;
        if found.is_none() && shared.flash.is_some() {
            match self.find_on_flash(shared, stripe, key, is_shown) {
                OnFlash::Nothing => self.remove_unreadable(shared, stripe),
                OnFlash::Pending => return Err(Shortage::Refused(Refusal::Pending)),
                OnFlash::NoRoom => return Err(Shortage::Refused(Refusal::OutOfMemory)),
                OnFlash::Unread => is_unread = true,
                OnFlash::Item(place, item) => {
                    source = item;
                    read = Some(&*source);
                    let record = shared.record_in_buffer(&*source);
                    let liveness = liveness_on_flash(shared, &*source, &record, self.now);
                    found = Some(Found { place, record, liveness });
                }
            }
        }
        let state = found.as_ref().map(|found| found.liveness);
        let is_live = state == Some(Liveness::Live);
        let (change, result) = match (&found, state) {
            (_, Some(Liveness::Expired)) => decide(Lookup::Expired),
            (_, Some(Liveness::Flushed)) => decide(Lookup::Flushed),
            (Some(found), _) if is_shown => decide(Lookup::Hit(&lend(shared, &found.record))),
            _ => decide(Lookup::Miss),
        };
        if let (Change::Put { .. }, None) = (&change, &found) {
            // Under the stripe of another hash no look-up would find it, and an evacuation would not
            // move it.
            assert_eq!(key.hash, shared.hash(key.bytes), "the hash is not the key's own");
        }
        // No thread may see half of a change.
        let whole = AbortOnUnwind;
        let cas_before = self.writing.cas;
        let mut update =
            Update { shared, stripe, key, witness, found, read, is_live, is_unread, writer: self };
        let applied = update.apply(change, upload);
        if applied.is_err() {
            // The CAS was not published, so it can be used again.
            self.writing.cas.put_back_to(cas_before);
        }
        std::mem::forget(whole);
        applied.map(|cas| Updated { result, cas })
    }
}

/// One update of one key, under the lock of its stripe.
struct Update<'u, 'h> {
    shared: &'u Arc<Shared>,
    stripe: &'u Stripe<'u>,
    key: HashedKey<'u>,
    witness: Witness<'u>,
    found: Option<Found<'u>>,
    /// What has read the item that was found, if that is on flash.
    read: Option<&'u dyn Reading>,
    /// Whether the item that was found is live.
    is_live: bool,
    /// The item may be on flash, and need not be read.
    is_unread: bool,
    writer: &'u mut Writer<'h>,
}

impl<'u> Update<'u, '_> {
    /// The item that was found, if it is live.
    fn live(&self) -> Option<&Found<'u>> {
        self.found.as_ref().filter(|_| self.is_live)
    }

    fn live_cas(&self) -> u64 {
        self.live().map_or(0, |found| found.record.cas())
    }

    /// Applies a change and returns the item's CAS afterwards.
    fn apply<'v>(
        &mut self,
        change: Change<'v>,
        upload: &mut Option<Upload>,
    ) -> Result<u64, Shortage<'v>> {
        match change {
            Change::Keep => Ok(self.live_cas()),
            Change::MarkAccessed => {
                self.mark_accessed();
                Ok(self.live_cas())
            }
            Change::Promote => {
                self.count_hit();
                Ok(self.live_cas())
            }
            Change::Remove => {
                self.remove();
                Ok(0)
            }
            Change::SetAttributes { attributes, cas, access } => {
                self.set_attributes(attributes, cas, access)
            }
            Change::Put { attributes, cas, value, fetched, tags } => {
                if !(1..=KEY_LEN_MAX).contains(&self.key.bytes.len()) {
                    return Err(Shortage::Refused(Refusal::TooLarge));
                }
                let cas = self.choose_cas(cas);
                let new = |value| NewRecord {
                    attributes,
                    cas,
                    fetched,
                    accessed: self.writer.now.secs,
                    extension: self.extension(&attributes, 0),
                    tags_and_key: self.key.bytes,
                    value,
                    chain: None,
                    flash_copy: None,
                };
                match value {
                    _ if self.may_have(tags) => {
                        self.put_tagged(new([&[]; 3]), tags, value, upload)?;
                    }
                    NewValue::Bytes(bytes) if self.is_inline(bytes.len()) => {
                        let new = new([bytes, &[], &[]]);
                        self.publish(&new, false)?;
                    }
                    _ => self.put(new([&[]; 3]), value, upload)?,
                }
                Ok(cas)
            }
        }
    }

    /// Whether an item that is stored with these tags may have some.
    fn may_have(&self, tags: NewTags<'_>) -> bool {
        match tags {
            NewTags::None => false,
            NewTags::Same => self.live().is_some_and(|found| found.record.has_extension()),
            NewTags::These(_) => true,
        }
    }

    /// Whether a value of this length in bytes can be stored, and needs no segments of its own.
    fn is_inline(&self, len: usize) -> bool {
        let max = self.shared.table().layout.inline_max();
        len <= max && len <= self.shared.config.item_size_max
    }

    fn count_hit(&self) {
        if let Some(found) = self.live()
            && self.stripe.count_hit(&found.place)
        {
            if found.is_on_flash() {
                self.shared.count_first_hit_on_flash(found.place.slot);
            } else {
                found.record.count_first_hit();
            }
        }
    }

    fn mark_accessed(&self) {
        self.count_hit();
        if let Some(found) = self.live() {
            found.record.note_access(self.writer.now.secs);
        }
    }

    fn remove(&mut self) {
        if let Some(found) = self.found.take() {
            if !self.is_live {
                self.writer.count_reclaimed(self.shared, &found.record, false);
            }
            if found.is_on_flash() {
                self.writer.remove_from_flash(self.shared, self.stripe, &found.place);
            } else {
                self.writer.remove(self.shared, self.stripe, &found.place, &found.record);
            }
        } else if self.is_unread {
            for place in self.stripe.on_flash() {
                self.writer.remove_from_flash(self.shared, self.stripe, &place);
            }
        }
    }

    fn choose_cas(&mut self, cas: NewCas) -> u64 {
        let mut old = self.live_cas();
        match cas {
            _ if !self.shared.config.cas => 0,
            NewCas::Fresh => {
                let words = &self.shared.table().header_page().cas;
                if self.is_unread {
                    // Of the item that it replaces no more is known.
                    old = words.floor.load(Ordering::Relaxed);
                }
                self.writer.writing.cas.draw(words, old)
            }
            NewCas::Same => old,
            NewCas::Exactly(cas) => cas,
        }
    }

    /// The extension of an item of this key.
    #[inline]
    fn extension(&self, attributes: &Attributes, tags_len: usize) -> Option<Extension> {
        let early = attributes.expiry.early_millis();
        Extension::of(self.key.bytes.len(), early, attributes.binary_key, tags_len)
    }

    fn set_attributes<'v>(
        &mut self,
        attributes: Attributes,
        cas: NewCas,
        access: Access,
    ) -> Result<u64, Shortage<'v>> {
        let Some(&Found { record, .. }) = self.live() else { return Ok(0) };
        let cas = self.choose_cas(cas);
        // A reader must not see the old attributes with the new CAS or the other way round, so a new
        // CAS needs a new record.
        if cas == record.cas() && record.set_attributes(&attributes) {
            if access == Access::Tracked {
                self.mark_accessed();
            }
            return Ok(cas);
        }
        let read = access == Access::Tracked;
        let new = NewRecord {
            attributes,
            cas,
            fetched: read || record.header.has(State::Fetched),
            accessed: if read { self.writer.now.secs } else { record.accessed() },
            extension: self.extension(&attributes, record.tags_len()),
            tags_and_key: record.tags_and_key(),
            value: [record.inline_value(), &[], &[]],
            chain: record.chain(),
            flash_copy: None,
        };
        self.publish_with_chain_of(&record, &new)?;
        Ok(cas)
    }

    /// [`Update::put`] for an item that may have tags.
    #[cold]
    fn put_tagged<'v>(
        &mut self,
        new: NewRecord<'_>,
        tags: NewTags<'_>,
        value: NewValue<'v>,
        upload: &mut Option<Upload>,
    ) -> Result<(), Shortage<'v>> {
        let mut words = Vec::new();
        match tags {
            NewTags::None => (),
            NewTags::Same => {
                words.extend_from_slice(self.live().map_or(&[][..], |found| found.record.tags()));
            }
            NewTags::These(tags) => {
                let tags = tags.iter().take(TAGS_MAX);
                tags.for_each(|tag| words.extend_from_slice(&tag.0.to_ne_bytes()));
            }
        }
        let extension = self.extension(&new.attributes, words.len());
        words.extend_from_slice(self.key.bytes);
        self.put(NewRecord { extension, tags_and_key: &words, ..new }, value, upload)
    }

    fn put<'v>(
        &mut self,
        new: NewRecord<'_>,
        value: NewValue<'v>,
        upload: &mut Option<Upload>,
    ) -> Result<(), Shortage<'v>> {
        let old = self.live().map(|found| found.record);
        let (before, bytes, after) = match value {
            NewValue::Number { digits, len, width } => {
                let digits = digits.split_at(len.into()).0;
                let padding = width.min(NUMBER_WIDTH_MAX).saturating_sub(digits.len());
                let value = [digits, SPACES.split_at(padding).0, &[]];
                return self.publish(&NewRecord { value, ..new }, false).map(drop);
            }
            NewValue::Bytes(bytes) => (None, Some(bytes), None),
            NewValue::Append(bytes) => (old, Some(bytes), None),
            NewValue::Prepend(bytes) => (None, Some(bytes), old),
            NewValue::Uploaded => (None, None, None),
            NewValue::AppendUploaded => (old, None, None),
            NewValue::PrependUploaded => (None, None, old),
        };
        if bytes.is_none() {
            let complete = upload
                .as_ref()
                .map_or(Err(Refusal::WrongUpload), |upload| upload.check_complete(self.shared));
            complete.map_err(Shortage::Refused)?;
        }
        let added = bytes.map_or_else(|| upload.as_ref().map_or(0, |u| u.len), <[u8]>::len);
        let len = before.iter().chain(&after).map(Record::value_len).sum::<usize>() + added;
        if len > self.shared.config.item_size_max {
            return Err(Shortage::Refused(Refusal::TooLarge));
        }
        let inline_max = self.shared.table().layout.inline_max();
        if added == len && bytes.is_none() {
            self.publish_upload(new, upload)?;
        } else if len <= inline_max {
            let whole =
                |record: Option<Record<'u>>| record.map_or(&[][..], |record| record.inline_value());
            let bytes =
                bytes.or_else(|| upload.as_ref().map(|upload| upload.piece(0))).unwrap_or_default();
            let value = [whole(before), bytes, whole(after)];
            self.publish(&NewRecord { value, ..new }, false)?;
        } else if let (Some(old), None, Some(chain)) =
            (before, after, before.and_then(|old| old.chain()))
        {
            self.extend_chain(new, &old, chain, value, upload.as_ref(), added)?;
        } else {
            let plan = Plan { len, skipped: 0, is_suffix: false };
            let staged = self.staged(plan, value, upload.as_ref())?;
            let mut staged = Some(staged);
            let published = self.publish_upload(new, &mut staged);
            self.restage(plan, staged);
            published?;
        }
        if bytes.is_none() {
            *upload = None;
        }
        Ok(())
    }

    /// Appends to a large value in place: the new item takes over the chain, and bytes that do not fit
    /// into its last segment follow in further segments and in the item.
    fn extend_chain<'v>(
        &mut self,
        new: NewRecord<'_>,
        old: &Record<'u>,
        chain: Chain,
        value: NewValue<'v>,
        upload: Option<&Upload>,
        added: usize,
    ) -> Result<(), Shortage<'v>> {
        let shared = self.shared;
        let segment_len = shared.segment_len();
        let tail = old.inline_value();
        let chain_len = chain.value_len as usize - tail.len();
        // Either the last segment of the chain has room, or it is full and a tail follows.
        let room = chain_len.next_multiple_of(segment_len) - chain_len;
        let skipped = room.min(added);
        let value_len = chain.value_len as usize + added;
        let value_len =
            u32::try_from(value_len).map_err(|_| Shortage::Refused(Refusal::TooLarge))?;
        let chain = Some(Chain { value_len, ..chain });
        let suffix_len = tail.len() + added - skipped;
        let bytes = |range: std::ops::Range<usize>, f: &mut dyn FnMut(&[u8])| {
            crate::segment::large_value::builder::for_added(value, upload, range, f);
        };
        if suffix_len <= shared.table().layout.inline_max() {
            let mut rest = Vec::new();
            bytes(skipped..added, &mut |piece| rest.extend_from_slice(piece));
            let new = NewRecord { chain, value: [tail, &rest, &[]], ..new };
            self.fill_last(old, chain_len, |f| bytes(0..skipped, f));
            return self.publish_with_chain_of(old, &new);
        }
        let plan = Plan { len: suffix_len, skipped, is_suffix: true };
        let staged = self.staged(plan, value, upload)?;
        let first = staged.link_chain();
        let last = shared.last_of_chain(old);
        let next = shared.table().entry(last).next();
        next.store(first.map_or(0, |first| first + 1), Ordering::Relaxed);
        self.fill_last(old, chain_len, |f| bytes(0..skipped, f));
        let new = NewRecord { chain, value: [staged.tail(), &[], &[]], ..new };
        match self.publish_with_chain_of(old, &new) {
            Ok(()) => {
                staged.release_chain();
                Ok(())
            }
            Err(shortage) => {
                next.store(0, Ordering::Relaxed);
                self.restage(plan, Some(staged));
                Err(shortage)
            }
        }
    }

    /// Writes after the end of a chain of `chain_len` bytes, into its last segment.
    fn fill_last(
        &self,
        old: &Record<'u>,
        chain_len: usize,
        pieces: impl FnOnce(&mut dyn FnMut(&[u8])),
    ) {
        let layout = &self.shared.table().layout;
        let last = self.shared.last_of_chain(old);
        let mut at = layout.start(last) + chain_len % layout.segment_len;
        pieces(&mut |piece| {
            // SAFETY: the chain belongs to this item, whose stripe is locked, so nobody else appends;
            // readers and leases go no further than the length that was published.
            unsafe { self.shared.table().region.write(at, piece) };
            at += piece.len();
        });
    }

    /// The large value that was put together for this update, if the old value has not changed.
    fn staged<'v>(
        &mut self,
        plan: Plan,
        value: NewValue<'v>,
        upload: Option<&Upload>,
    ) -> Result<Upload, Shortage<'v>> {
        let old = self.live().map(|found| found.record);
        let staging = self.writer.staging.take().filter(|staging| staging.plan == plan);
        match staging {
            Some(staging) if staging.is_based_on(old.as_ref()) => Ok(staging.upload),
            // Other threads keep changing the item, but can't while its stripe is locked.
            Some(mut staging) if staging.rounds > Staging::ROUNDS_MAX => {
                staging.fill(self.shared, old.as_ref(), self.witness, value, upload);
                Ok(staging.upload)
            }
            other => {
                *self.writer.staging = other;
                Err(Shortage::Staging(plan, value))
            }
        }
    }

    /// Keeps a staged value for another attempt.
    fn restage(&mut self, plan: Plan, staged: Option<Upload>) {
        let old = self.live().map(|found| found.record);
        *self.writer.staging = staged.map(|upload| Staging::filled(plan, upload, old.as_ref()));
    }

    /// Publishes an item whose value is `upload`, and takes over its chain.
    fn publish_upload<'v>(
        &mut self,
        new: NewRecord<'_>,
        upload: &mut Option<Upload>,
    ) -> Result<(), Shortage<'v>> {
        let Some(uploaded) = upload.as_ref() else { return Ok(()) };
        assert_eq!(uploaded.filled, uploaded.len, "only what has arrived whole is published");
        let value_len =
            u32::try_from(uploaded.len).map_err(|_| Shortage::Refused(Refusal::TooLarge))?;
        let chain = uploaded.link_chain().map(|first| Chain { first, value_len });
        let new = NewRecord { chain, value: [uploaded.tail(), &[], &[]], ..new };
        let offset = self.publish(&new, false)?;
        if let Some(upload) = upload.take() {
            let segments = upload.release_chain();
            if segments > 0 {
                self.writer.count_chain(self.shared, offset, segments);
            }
        }
        Ok(())
    }

    /// Publishes an item that takes over the chain of `old`, if it has one.
    fn publish_with_chain_of<'v>(
        &mut self,
        old: &Record<'u>,
        new: &NewRecord<'_>,
    ) -> Result<(), Shortage<'v>> {
        let old_segments = self.shared.chain_segments_of(old);
        let offset = self.publish(new, true)?;
        if old_segments > 0 {
            let segments = new.chain_len().div_ceil(self.shared.segment_len());
            self.shared.take_chain_off(old.segment(), old_segments);
            self.writer.count_chain(self.shared, offset, segments);
        }
        Ok(())
    }

    /// Writes an item, makes its index word refer to it, and marks the old item dead. Returns the
    /// offset of the new one.
    fn publish<'v>(
        &mut self,
        new: &NewRecord<'_>,
        keep_chain: bool,
    ) -> Result<usize, Shortage<'v>> {
        let (shared, hash) = (self.shared, self.key.hash);
        let unread = self.is_unread.then(|| self.stripe.on_flash().next()).flatten();
        let (queue, freq, ghosts) = match self.live() {
            Some(found) => (found.record.entry().kind().queue, found.place.freq(), None),
            None if let Some(place) = &unread => {
                let was_hit = place.freq() > 0;
                (if was_hit { Queue::Main } else { Queue::Small }, 0, None)
            }
            None => {
                let words = shared.table().ghosts(self.stripe.bucket());
                let ghosts = shared.ghosts(words);
                let is_remembered = ghosts.holds(hash, shared.ghost_epoch());
                let queue = if is_remembered { Queue::Main } else { Queue::Small };
                (queue, 0, is_remembered.then_some((words, ghosts)))
            }
        };
        let bytes = new.chain_len() + new.inline_len() + self.key.bytes.len() + ITEM_HEAD;
        let kind = self.writer.kind(shared, queue, new.attributes.expiry, bytes);
        let Some(offset) = self.writer.write(shared, kind, new) else {
            return Err(Shortage::Room(kind, new.len_at_most()));
        };
        shared.table().set_chain_owner(new.chain.map(|chain| chain.first), offset);
        match &self.found {
            Some(found) => {
                self.writer.member.block.note_dying(shared.table(), found.record.segment());
                self.stripe.replace(&found.place, offset, freq);
            }
            None if let Some(place) = &unread => {
                // Others are of keys that agree in all bits of the word, or of none. One of them may be the
                // key's own, which must not outlive this if the process dies.
                for other in self.stripe.on_flash().skip(1) {
                    self.stripe.report_to_walks();
                    self.writer.remove_from_flash(shared, self.stripe, &other);
                }
                self.stripe.replace(place, offset, freq);
                self.writer.count_off_flash(shared, place.slot);
            }
            None => {
                let witness = self.witness;
                let rehash = |slot| shared.hash(shared.record(slot, witness).key());
                if self.stripe.insert(offset, freq, rehash).is_err() {
                    let record =
                        Record::at(shared.table(), offset, shared.config.cas, self.witness);
                    self.writer.unwrite(shared, &record);
                    return Err(Shortage::Slot);
                }
                self.writer.writing.slots += 1;
            }
        }
        strict_assert!(
            Record::at(shared.table(), offset, shared.config.cas, self.witness)
                .has_key(self.key.bytes),
            "the item that was written is read back"
        );
        if let Some((words, ghosts)) = ghosts {
            shared.set_ghosts(words, ghosts.forget(hash));
        }
        self.account(new, keep_chain);
        Ok(offset)
    }

    /// Counts a published item, and counts out the one that it replaced.
    fn account(&mut self, new: &NewRecord<'_>, keep_chain: bool) {
        let (shared, attributes) = (self.shared, &new.attributes);
        let value_len = new.chain_len() + new.inline_len();
        let (class, footprint) =
            shared.class_of_parts(self.key.bytes.len(), value_len, attributes.client_flags);
        let (table, member) = (shared.table(), self.writer.member);
        member.stats.store();
        let Some(found) = &self.found else {
            return member.block.add_item(table, class, footprint);
        };
        if !self.is_live {
            self.writer.count_reclaimed(shared, &found.record, false);
        }
        if found.is_on_flash() {
            if let Some(read) = self.read.filter(|_| keep_chain) {
                read.give_value_away();
            }
            member.block.add_item(table, class, footprint);
            return self.writer.count_off_flash(shared, found.place.slot);
        }
        let (old_class, old_footprint) = shared.class_of(&found.record);
        if (old_class, old_footprint) != (class, footprint) {
            member.block.add_item(table, class, footprint);
            member.block.remove_item(table, old_class, old_footprint);
        }
        self.writer.mark_counted_dead(shared, &found.record, keep_chain);
    }
}

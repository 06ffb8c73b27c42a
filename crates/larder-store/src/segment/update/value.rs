//! The value of a stored item: inline, an upload, an extended chain, or a large value that was
//! assembled before.

use super::change::{Shortage, Update};
use crate::engine::SPACES;
use crate::segment::item::new_record::NewRecord;
use crate::segment::item::record::{Chain, Record};
use crate::segment::large_value::builder::{Plan, ValueBuilder, for_added};
use crate::segment::large_value::upload::Upload;
use crate::segment::sync::Ordering;
use crate::{NUMBER_WIDTH_MAX, NewTags, NewValue, Refusal, TAGS_MAX};

impl<'u> Update<'u, '_> {
    /// Stores an item like [`Update::put`], with tags.
    #[cold]
    pub(super) fn put_tagged<'v>(
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

    pub(super) fn put<'v>(
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
            let built = self.take_assembled(plan, value, upload.as_ref())?;
            let mut built = Some(built);
            let published = self.publish_upload(new, &mut built);
            self.keep_built(plan, built);
            published?;
        }
        if bytes.is_none() {
            *upload = None;
        }
        Ok(())
    }

    /// Appends to a large value in place: the new item takes over the chain. Bytes that do not fit
    /// into the last segment of the chain are stored in the item. If there are too many of them for
    /// the item, they are stored in further segments of the chain and in the item.
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
        // If the last segment of the chain has room, the item has no tail. So added bytes go into
        // that segment first.
        let room = chain_len.next_multiple_of(segment_len) - chain_len;
        let skipped = room.min(added);
        let value_len = chain.value_len as usize + added;
        let value_len =
            u32::try_from(value_len).map_err(|_| Shortage::Refused(Refusal::TooLarge))?;
        let chain = Some(Chain { value_len, ..chain });
        let suffix_len = tail.len() + added - skipped;
        let bytes = |range: std::ops::Range<usize>, f: &mut dyn FnMut(&[u8])| {
            for_added(value, upload, range, f);
        };
        if suffix_len <= shared.table().layout.inline_max() {
            let mut rest = Vec::new();
            bytes(skipped..added, &mut |piece| rest.extend_from_slice(piece));
            let new = NewRecord { chain, value: [tail, &rest, &[]], ..new };
            self.fill_last(old, chain_len, |f| bytes(0..skipped, f));
            return self.publish_with_chain_of(old, &new);
        }
        let plan = Plan { len: suffix_len, skipped, is_suffix: true };
        let built = self.take_assembled(plan, value, upload)?;
        let first = built.link_chain();
        let last = shared.last_of_chain(old);
        let next = shared.table().entry(last).next();
        next.store(first.map_or(0, |first| first + 1), Ordering::Relaxed);
        self.fill_last(old, chain_len, |f| bytes(0..skipped, f));
        let new = NewRecord { chain, value: [built.tail(), &[], &[]], ..new };
        match self.publish_with_chain_of(old, &new) {
            Ok(()) => {
                built.release_chain();
                Ok(())
            }
            Err(shortage) => {
                next.store(0, Ordering::Relaxed);
                self.keep_built(plan, Some(built));
                Err(shortage)
            }
        }
    }

    /// Appends the pieces to the last segment of a chain that contains `chain_len` bytes.
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
            // SAFETY: the chain belongs to this item, whose stripe is locked, so no other thread
            // appends. Readers and leases read only the length that was published.
            unsafe { self.shared.table().region.write(at, piece) };
            at += piece.len();
        });
    }

    /// Returns the large value that was assembled for this update. If there is no such value, or
    /// the old value has changed since the copy, returns a shortage that requests another copy.
    /// After more than [`ValueBuilder::ROUNDS_MAX`] copies, makes the next copy now, under the lock
    /// of the stripe.
    fn take_assembled<'v>(
        &mut self,
        plan: Plan,
        value: NewValue<'v>,
        upload: Option<&Upload>,
    ) -> Result<Upload, Shortage<'v>> {
        let old = self.live().map(|found| found.record);
        let builder = self.writer.value_builder.take().filter(|builder| builder.plan == plan);
        match builder {
            Some(builder) if builder.is_based_on(old.as_ref()) => Ok(builder.upload),
            // Other threads keep changing the item, so copy the value now, while the stripe is
            // locked and they can't.
            Some(mut builder) if builder.rounds > ValueBuilder::ROUNDS_MAX => {
                builder.fill(self.shared, old.as_ref(), self.witness, value, upload);
                Ok(builder.upload)
            }
            other => {
                *self.writer.value_builder = other;
                Err(Shortage::LargeValue(plan, value))
            }
        }
    }

    /// Keeps an assembled value for another attempt.
    fn keep_built(&mut self, plan: Plan, built: Option<Upload>) {
        let old = self.live().map(|found| found.record);
        *self.writer.value_builder =
            built.map(|upload| ValueBuilder::filled(plan, upload, old.as_ref()));
    }

    /// Publishes an item whose value is `upload`, and moves the upload out of the option, because
    /// the item now owns its chain. Does nothing if there is no upload. If publishing fails, the
    /// upload stays.
    fn publish_upload<'v>(
        &mut self,
        new: NewRecord<'_>,
        upload: &mut Option<Upload>,
    ) -> Result<(), Shortage<'v>> {
        let Some(uploaded) = upload.as_ref() else { return Ok(()) };
        assert_eq!(uploaded.filled, uploaded.len, "only complete uploads are published");
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

    /// Publishes an item that takes over the chain of `old`, if `old` has one.
    pub(super) fn publish_with_chain_of<'v>(
        &mut self,
        old: &Record<'u>,
        new: &NewRecord<'_>,
    ) -> Result<(), Shortage<'v>> {
        let old_segments = self.shared.chain_segments_of(old);
        if old_segments > 0 {
            // Forget the copy on flash, which lacks the change: the new item keeps the chain, which
            // contains the link to this copy.
            old.forget_flash_copy();
        }
        let offset = self.publish(new, true)?;
        if old_segments > 0 {
            let segments = new.chain_len().div_ceil(self.shared.segment_len());
            self.shared.take_chain_off(old.segment(), old_segments);
            self.writer.count_chain(self.shared, offset, segments);
        }
        Ok(())
    }
}

//! An item in its segment: reading one that is published, and writing one that is not yet.

use super::extension::Extension;
use super::flash_copy::FlashCopy;
use super::header::{
    Header, SHORT_KEY_MAX, State, WIDE, access_code, accessed_at, expiry_code, expiry_of,
};
use crate::segment::index::buckets::{Buckets, Locked};
use crate::segment::memory::epoch::Pinned;
use crate::segment::memory::read_buffers::Buffer;
use crate::segment::memory::table::{Entry, SegmentState, Table};
use crate::segment::sync::{AtomicU64, Ordering, fence};
use crate::{Attributes, Early, Expiry, Now, Seconds};
use std::marker::PhantomData;

/// Proof that published bytes do not change for `'p`; see `memory::raw`, rule 3.
#[derive(Clone, Copy)]
pub(crate) struct Witness<'p>(PhantomData<&'p ()>);

impl<'p> Witness<'p> {
    /// By an epoch pin: memory that could be found under it is not recycled before it ends.
    pub(crate) fn pinned(_: Pinned<'p>) -> Self {
        Self(PhantomData)
    }

    /// By the stripe lock, for the keys of that stripe, whose index words do not change.
    pub(crate) fn locked<B: Buckets>(_: &'p Locked<'_, B>) -> Self {
        Self(PhantomData)
    }

    /// By nobody else using the region, after a restart.
    pub(crate) fn alone(_: &'p Table) -> Self {
        Self(PhantomData)
    }

    /// By the read that owns the buffer, and that has ended.
    pub(crate) fn buffered(_: &'p Buffer) -> Self {
        Self(PhantomData)
    }

    /// By owning the sealed segment, which only its owner retires, and in which no dead record is replaced
    /// meanwhile. Records that are marked dead are not covered.
    pub(crate) fn owner(_: &'p OwnedSegment) -> Self {
        Self(PhantomData)
    }
}

/// A sealed segment that was taken out of its queue. Its owner empties and retires it, or puts it back.
#[derive(Debug)]
pub(crate) struct OwnedSegment(pub(crate) u32);

/// A published item.
#[derive(Clone, Copy)]
pub(crate) struct Record<'p> {
    table: &'p Table,
    pub(crate) offset: usize,
    pub(crate) header: Header,
    cas: bool,
    witness: Witness<'p>,
}

/// The front of a large value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    /// The first segment of the chain.
    pub(crate) first: u32,
    /// The length of the whole value in bytes, the inline part included.
    pub(crate) value_len: u32,
}

impl<'p> Record<'p> {
    /// The item that begins at `offset`; `cas` says whether items have a CAS.
    #[inline]
    pub(crate) fn at(table: &'p Table, offset: usize, cas: bool, witness: Witness<'p>) -> Self {
        let record = Self::perhaps_at(table, offset, cas, witness);
        let is_in_place = || is_in_place(table, offset, record.header, cas);
        strict_assert!(is_in_place(), "no item begins at {offset}");
        record
    }

    /// What may be an item at `offset`, after a restart.
    #[inline]
    pub(crate) fn perhaps_at(
        table: &'p Table,
        offset: usize,
        cas: bool,
        witness: Witness<'p>,
    ) -> Self {
        let header = Header(table.region.word(offset).load(Ordering::Acquire));
        Self { table, offset, header, cas, witness }
    }

    fn word(&self) -> &'p AtomicU64 {
        self.table.region.word(self.offset)
    }

    /// The length of the item in its segment, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.header.record_len(self.cas)
    }

    #[inline]
    pub(crate) fn segment(&self) -> u32 {
        self.table.layout.segment_of(self.offset)
    }

    #[inline]
    pub(crate) fn entry(&self) -> Entry<'p> {
        self.table.entry(self.segment())
    }

    #[inline]
    fn published(&self, offset: usize, len: usize) -> &'p [u8] {
        let Witness(PhantomData) = self.witness;
        // SAFETY: the witness keeps this item's segment from being recycled for 'p, and `at` is
        // only given offsets where an item was published.
        unsafe { self.table.region.bytes(offset, len) }
    }

    #[inline]
    fn extension(&self) -> Option<Extension> {
        if !self.header.has(State::Extended) {
            return None;
        }
        let word = self.table.region.word(self.offset + 8 + 8 * usize::from(self.cas));
        Extension::from_word(word.load(Ordering::Relaxed))
    }

    /// Whether its fields can be those of an item, as far as it says itself.
    pub(crate) fn is_plausible(&self) -> bool {
        let is_extended = self.header.has(State::Extended);
        self.header.key_len() > 0
            && (!is_extended
                || self.extension().is_some_and(|extension| extension.fits(self.header)))
    }

    #[inline]
    fn fields_end(&self) -> usize {
        self.offset + 8 + self.header.extras_len(self.cas)
    }

    /// The offset of the key of a plain item.
    #[inline]
    fn plain_key_offset(&self) -> usize {
        self.offset + 8 + 8 * usize::from(self.cas)
    }

    /// The offset and the length of the key.
    #[inline]
    fn key_place(&self) -> (usize, usize) {
        if self.header.has(State::Extended) {
            return self.extended_key_place();
        }
        (self.fields_end(), self.header.key_len())
    }

    #[cold]
    #[inline(never)]
    fn extended_key_place(self) -> (usize, usize) {
        let (tags_len, key_len) = self
            .extension()
            .map_or((0, 0), |extension| (extension.tags_len(), extension.key_len()));
        (self.fields_end() + tags_len, key_len)
    }

    /// The length of the key in bytes.
    #[inline]
    pub(crate) fn key_len(&self) -> usize {
        if self.header.has(State::Extended) {
            return self.extended_key_place().1;
        }
        self.header.key_len()
    }

    #[inline]
    pub(crate) fn key(&self) -> &'p [u8] {
        let (offset, len) = self.key_place();
        self.published(offset, len)
    }

    /// Whether its key is this one.
    #[inline]
    pub(crate) fn has_key(&self, key: &[u8]) -> bool {
        if !self.header.is_plain() {
            return self.has_key_behind_fields(key);
        }
        self.published(self.plain_key_offset(), self.header.key_len()) == key
    }

    #[inline(never)]
    fn has_key_behind_fields(self, key: &[u8]) -> bool {
        self.key() == key
    }

    /// The words of its tags, and the key behind them.
    pub(crate) fn tags_and_key(&self) -> &'p [u8] {
        let (key_offset, key_len) = self.key_place();
        let start = self.fields_end();
        self.published(start, key_offset + key_len - start)
    }

    #[inline]
    pub(crate) fn has_extension(&self) -> bool {
        self.header.has(State::Extended)
    }

    /// The words of its tags.
    #[cold]
    pub(crate) fn tags(&self) -> &'p [u8] {
        self.published(self.fields_end(), self.tags_len())
    }

    /// The bytes of the words of its tags.
    pub(crate) fn tags_len(&self) -> usize {
        self.extension().map_or(0, Extension::tags_len)
    }

    /// What is between the header and the value.
    pub(crate) fn fields_and_key(&self) -> &'p [u8] {
        let start = self.offset + 8;
        self.published(start, self.value_offset() - start)
    }

    /// The offset of the value in the region, or of its tail if there is a chain.
    #[inline]
    pub(crate) fn value_offset(&self) -> usize {
        let (offset, len) = self.key_place();
        offset + len
    }

    /// The length of the inline value in bytes.
    #[inline]
    pub(crate) fn inline_len(&self) -> usize {
        if self.header.has(State::Extended) {
            return self.extended_inline_len();
        }
        self.header.inline_len()
    }

    #[cold]
    #[inline(never)]
    fn extended_inline_len(self) -> usize {
        self.extension().map_or(0, |extension| extension.inline_len(self.header))
    }

    /// The value, or its tail if there is a chain.
    #[inline]
    pub(crate) fn inline_value(&self) -> &'p [u8] {
        self.published(self.value_offset(), self.inline_len())
    }

    /// The value of a plain item, which has no client flags and is all here.
    #[inline]
    pub(crate) fn plain_value(&self) -> Option<&'p [u8]> {
        self.header.is_plain().then(|| {
            let offset = self.plain_key_offset() + self.header.key_len();
            self.published(offset, self.header.inline_len())
        })
    }

    /// Its header if it had no inline value.
    pub(crate) fn header_without_value(&self) -> Header {
        self.header.with_inline_len(self.header.inline_len() - self.inline_len())
    }

    /// The length of the whole value in bytes.
    pub(crate) fn value_len(&self) -> usize {
        self.chain().map_or(self.inline_len(), |chain| chain.value_len as usize)
    }

    #[inline]
    fn cas_word(&self) -> Option<&'p AtomicU64> {
        self.cas.then(|| self.table.region.word(self.offset + 8))
    }

    #[inline]
    pub(crate) fn cas(&self) -> u64 {
        self.cas_word().map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// The half word at this place behind the CAS and the extension.
    fn half(&self, at: usize) -> &'p crate::segment::sync::AtomicU32 {
        let words = usize::from(self.cas) + usize::from(self.header.has(State::Extended));
        self.table.region.half(self.offset + 8 + 8 * words + at)
    }

    fn wide_at(&self) -> usize {
        4 * usize::from(self.header.has(State::Flags))
    }

    #[inline]
    pub(crate) fn client_flags(&self) -> u32 {
        if self.header.has(State::Flags) { self.half(0).load(Ordering::Relaxed) } else { 0 }
    }

    fn link_at(&self) -> usize {
        self.wide_at() + 4 * usize::from(self.header.has(State::Wide))
    }

    #[inline]
    fn link(&self) -> Option<[u32; 2]> {
        self.header.has(State::Link).then(|| {
            let at = self.link_at();
            [at, at + 4].map(|at| self.half(at).load(Ordering::Relaxed))
        })
    }

    /// The front of its value, if that is large.
    #[inline]
    pub(crate) fn chain(&self) -> Option<Chain> {
        let [first, value_len] = self.link().filter(|link| !FlashCopy::is_one(*link))?;
        Some(Chain { first, value_len })
    }

    /// Says where the chain of an item is that was read from flash, and that nobody else knows yet.
    pub(crate) fn set_chain(&self, first: u32) {
        self.half(self.link_at()).store(first, Ordering::Relaxed);
    }

    /// Where a copy of the item is on flash, if it was copied from there and is still the same.
    #[inline]
    pub(crate) fn flash_copy(&self) -> Option<FlashCopy> {
        FlashCopy::from_link(self.link()?)
    }

    /// Notes that what is on flash is no copy any more, before the item is changed.
    fn forget_flash_copy(&self) {
        if self.flash_copy().is_some() {
            self.half(self.link_at()).store(FlashCopy::FORGOTTEN, Ordering::Release);
        }
    }

    /// Whether the item has expired.
    #[inline]
    pub(crate) fn is_past(&self, now: Now) -> bool {
        self.header.may_expire() && self.expiry().is_past(now)
    }

    pub(crate) fn expiry(&self) -> Expiry {
        let at = match self.header.expiry_code() {
            0 => None,
            WIDE => Some(Seconds(self.half(self.wide_at()).load(Ordering::Relaxed))),
            code => expiry_of(self.entry().base(), code),
        };
        match (at, self.extension().and_then(Extension::early)) {
            (None, _) => Expiry::Never,
            (Some(at), None) => Expiry::At(at),
            (Some(at), Some(early)) => Expiry::Before(at, early),
        }
    }

    #[inline]
    pub(crate) fn accessed(&self) -> Seconds {
        accessed_at(self.entry().base(), self.header.access_code())
    }

    #[inline]
    pub(crate) fn attributes(&self) -> Attributes {
        Attributes {
            client_flags: self.client_flags(),
            expiry: self.expiry(),
            stale: self.header.has(State::Stale),
            won: self.header.has(State::Won),
            binary_key: self.extension().is_some_and(Extension::binary_key),
        }
    }

    /// Marks the item read at `now`. That is at most one write a second, and no thread waits for it.
    #[inline]
    pub(crate) fn note_access(&self, now: Seconds) {
        let word = self.word();
        let seen = Header(word.load(Ordering::Relaxed));
        let code = access_code(self.entry().base(), now);
        let read = seen.with_access_code(code).with(State::Fetched, true);
        if read != seen {
            // A lost race loses one mark.
            let _ = word.compare_exchange(seen.0, read.0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Counts the first hit of the item since it was written to this segment.
    pub(crate) fn count_first_hit(&self) {
        let len = u32::try_from(self.item_len()).unwrap_or(u32::MAX);
        self.entry().first_hits().fetch_add(len, Ordering::Relaxed);
    }

    /// The length of the item in bytes, chain included.
    pub(crate) fn item_len(&self) -> usize {
        let in_chain = self.chain().map_or(0, |_| self.value_len() - self.inline_len());
        self.len() + in_chain
    }

    /// Marks that no index word refers to the item any more, so that an evacuation need not look it up.
    /// The mark is read with `Acquire`, so that a thread that sees it also sees the index without the
    /// word. The bytes are counted after the mark was set: once all of a segment are counted, it may be
    /// freed and written to again. Returns how many bytes of the segment are dead now, and how many were
    /// before.
    pub(crate) fn mark_dead(&self) -> (u32, u32) {
        let len = u32::try_from(self.len()).expect("an item fits a segment");
        self.word().fetch_or((State::Dead as u64) << 48, Ordering::Release);
        let before = self.entry().add_dead(len);
        (before + len, before)
    }

    /// Marks a record dead whose bytes the caller counts, after a restart.
    pub(crate) fn restore_dead(&self) {
        self.word().fetch_or((State::Dead as u64) << 48, Ordering::Release);
    }

    /// The number of segments in its chain.
    pub(crate) fn chain_segments(&self, segment_len: usize) -> usize {
        (self.item_len() - self.len()).div_ceil(segment_len)
    }

    /// Changes attributes in place, in one word, so that readers see all of the change or nothing of
    /// it; false if that is not possible. The caller holds the lock of the stripe.
    pub(crate) fn set_attributes(&self, attributes: &Attributes) -> bool {
        let entry = self.entry();
        // What leaves for flash, or was read from there, is not changed where it is.
        let is_frozen = entry.is(SegmentState::Leaving) || entry.is(SegmentState::Buffers);
        let extension = self.extension();
        let is_same_key = attributes.binary_key == extension.is_some_and(Extension::binary_key);
        let early = extension.and_then(Extension::early).map_or(0, Early::millis);
        if is_frozen
            || attributes.client_flags != self.client_flags()
            || !is_same_key
            || attributes.expiry.early_millis() != early
        {
            return false;
        }
        let at = attributes.expiry.second();
        let code = match expiry_code(entry.base(), at) {
            _ if attributes.expiry == self.expiry() => self.header.expiry_code(),
            Some(code) => code,
            None if self.header.has(State::Wide) => WIDE,
            None => return false,
        };
        if *attributes == self.attributes() {
            return true;
        }
        let changed = |seen| marked(Header(seen), attributes).with_expiry_code(code).0;
        if let (WIDE, Some(at)) = (code, at) {
            let exact = self.half(self.wide_at());
            if exact.load(Ordering::Relaxed) != at.0 {
                if changed(self.header.0) != self.header.0 {
                    return false;
                }
                self.forget_flash_copy();
                exact.store(at.0, Ordering::Release);
                note_changed_expiry(entry, attributes.expiry);
                return true;
            }
        }
        self.forget_flash_copy();
        // Readers may mark accesses in the same word meanwhile.
        let _ = self
            .word()
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |seen| Some(changed(seen)));
        note_changed_expiry(entry, attributes.expiry);
        true
    }
}

/// Whether an item with this header can be at `offset`: it has a key, ends in the segment where it
/// begins, and that segment holds items.
fn is_in_place(table: &Table, offset: usize, header: Header, cas: bool) -> bool {
    let segment = table.layout.segment_of(offset);
    let end = table.layout.start(segment) + table.layout.segment_len;
    let is_inside = offset + header.record_len(cas) <= end;
    offset.is_multiple_of(8)
        && header.key_len() > 0
        && is_inside
        && table.entry(segment).holds_items()
}

/// Notes an expiry in the segment's entry after the item has it. Maintenance resets the noted expiry
/// before it reads the items: either it reads the new expiry, or the expiry is noted afterwards.
pub(crate) fn note_changed_expiry(entry: Entry<'_>, expiry: Expiry) {
    fence(Ordering::SeqCst);
    entry.note_expiry(expiry);
}

fn marked(header: Header, attributes: &Attributes) -> Header {
    header.with(State::Stale, attributes.stale).with(State::Won, attributes.won)
}

/// An item that is about to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewRecord<'v> {
    pub(crate) attributes: Attributes,
    pub(crate) cas: u64,
    pub(crate) fetched: bool,
    pub(crate) accessed: Seconds,
    pub(crate) extension: Option<Extension>,
    /// The words of its tags, and the key behind them.
    pub(crate) tags_and_key: &'v [u8],
    /// The inline value, in up to three pieces.
    pub(crate) value: [&'v [u8]; 3],
    pub(crate) chain: Option<Chain>,
    /// Where the same item is on flash; never if it has a chain.
    pub(crate) flash_copy: Option<FlashCopy>,
}

impl<'v> NewRecord<'v> {
    /// A copy of an item, to be written to another segment.
    pub(crate) fn copy_of(record: &Record<'v>) -> Self {
        Self {
            attributes: record.attributes(),
            cas: record.cas(),
            fetched: record.header.has(State::Fetched),
            accessed: record.accessed(),
            extension: record.extension(),
            tags_and_key: record.tags_and_key(),
            value: [record.inline_value(), &[], &[]],
            chain: record.chain(),
            flash_copy: record.flash_copy(),
        }
    }
}

impl NewRecord<'_> {
    /// Whether it has tags.
    #[inline]
    pub(crate) fn has_tags(&self) -> bool {
        self.extension.is_some_and(|extension| extension.tags_len() > 0)
    }

    /// Its header in a segment with this base that is written to flash: its expiry is exact.
    pub(crate) fn header_for_flash(&self, base: Seconds) -> Header {
        let header = self.header(base);
        let expires = self.attributes.expiry != Expiry::Never;
        if expires { header.with(State::Wide, true).with_expiry_code(WIDE) } else { header }
    }

    /// Its header with the lengths alone.
    #[inline]
    fn plain_header(&self) -> Header {
        if let Some(extension) = self.extension {
            return self.extended_header(extension);
        }
        Header::new(self.tags_and_key.len(), self.inline_len())
    }

    #[cold]
    #[inline(never)]
    fn extended_header(&self, extension: Extension) -> Header {
        let short = extension.key_len().min(SHORT_KEY_MAX);
        let rest = self.tags_and_key.len() - short;
        Header::new(short, rest + self.inline_len()).with(State::Extended, true)
    }

    /// Its header in a segment with this base.
    #[expect(clippy::inline_always, reason = "a call costs `set` 2 % of its instructions")]
    #[inline(always)]
    pub(crate) fn header(&self, base: Seconds) -> Header {
        let code = expiry_code(base, self.attributes.expiry.second());
        let flags = self.attributes.client_flags != 0;
        // A large item always has a field for an exact expiry, so that a touch rarely has to copy it.
        let wide = code.is_none() || self.chain.is_some();
        marked(self.plain_header(), &self.attributes)
            .with(State::Flags, flags)
            .with(State::Wide, wide)
            .with(State::Link, self.link().is_some())
            .with(State::Fetched, self.fetched)
            .with_expiry_code(code.unwrap_or(WIDE))
            .with_access_code(access_code(base, self.accessed))
    }

    /// Its header in a segment with this base, if it is known for another one.
    #[inline]
    pub(crate) fn header_at(&self, header: Header, base: Seconds) -> Header {
        match self.attributes.expiry {
            Expiry::Never => header.with_access_code(access_code(base, self.accessed)),
            Expiry::At(_) | Expiry::Before(..) => self.header(base),
        }
    }

    /// The maximum of bytes that it takes in any segment.
    pub(crate) fn len_at_most(&self) -> usize {
        let wide = self.plain_header().with(State::Wide, true);
        let wide = wide.with(State::Link, self.link().is_some());
        wide.with(State::Flags, self.attributes.client_flags != 0).record_len(true)
    }

    fn link(&self) -> Option<[u32; 2]> {
        let chain = self.chain.map(|chain| [chain.first, chain.value_len]);
        chain.or_else(|| self.flash_copy.map(FlashCopy::link))
    }

    /// The bytes of the value that are inline.
    pub(crate) fn inline_len(&self) -> usize {
        self.value.iter().map(|piece| piece.len()).sum()
    }

    /// The bytes of the value that are in its chain.
    pub(crate) fn chain_len(&self) -> usize {
        self.chain.map_or(0, |chain| chain.value_len as usize - self.inline_len())
    }

    /// Writes the item at `offset`.
    ///
    /// # Safety
    /// `header` is that of [`NewRecord::header`] for the segment of `offset`. The bytes from `offset` on
    /// that this header counts belong to the caller's open segment and were not published, or were a dead
    /// record of the same length that the caller has taken and that no reader can find any more.
    #[inline]
    pub(crate) unsafe fn write(&self, table: &Table, offset: usize, header: Header, cas: bool) {
        let region = &table.region;
        strict_assert!(is_in_place(table, offset, header, cas), "no item can begin at {offset}");
        let at = self.attributes.expiry.second();
        let mut here = offset + 8;
        if cas {
            region.word(here).store(self.cas, Ordering::Relaxed);
            here += 8;
        }
        if let Some(extension) = self.extension {
            region.word(here).store(extension.word(), Ordering::Relaxed);
            here += 8;
        }
        let flags = header.has(State::Flags).then_some(self.attributes.client_flags);
        let wide = header.has(State::Wide).then(|| at.map_or(0, |at| at.0));
        let link = self.link().into_iter().flatten();
        for half in flags.into_iter().chain(wide).chain(link) {
            region.half(here).store(half, Ordering::Relaxed);
            here += 4;
        }
        for piece in [self.tags_and_key].into_iter().chain(self.value) {
            // SAFETY: the caller owns these bytes, and `len` has counted them all.
            unsafe { region.write(here, piece) };
            here += piece.len();
        }
        strict_assert!(
            here.next_multiple_of(8) == offset + header.record_len(cas),
            "the header says how long the item is"
        );
        // Last, because a thread that reads the segment from front to back must pass over the place of a
        // dead record until the new one is complete.
        region.word(offset).store(header.0, Ordering::Release);
    }
}

//! A published item in its segment.

use super::extension::Extension;
use super::flash_copy::FlashCopy;
use super::header::{Header, State, WIDE, access_code, accessed_at, expiry_code, expiry_of};
use super::witness::Witness;
use crate::segment::memory::table::{Entry, SegmentState, Table};
use crate::segment::sync::{AtomicU64, Ordering, fence};
use crate::{Attributes, Expiry, Now, Seconds, SubsecondMillis};

/// A published item.
#[derive(Clone, Copy)]
pub(crate) struct Record<'p> {
    table: &'p Table,
    pub(crate) offset: usize,
    pub(crate) header: Header,
    cas: bool,
    witness: Witness<'p>,
}

/// The chain of a large value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    /// The first segment of the chain.
    pub(crate) first: u32,
    /// The length of the value in bytes, the inline part included.
    pub(crate) value_len: u32,
}

impl<'p> Record<'p> {
    /// Returns the item that starts at `offset`. `cas` is true if items have a CAS.
    #[inline]
    pub(crate) fn at(table: &'p Table, offset: usize, cas: bool, witness: Witness<'p>) -> Self {
        let record = Self::candidate_at(table, offset, cas, witness);
        let is_in_place = || is_in_place(table, offset, record.header, cas);
        strict_assert!(is_in_place(), "no item starts at {offset}");
        record
    }

    /// Returns the record at `offset` of a restored region. If no item starts there, the record is
    /// invalid. The caller must check the record.
    #[inline]
    pub(crate) fn candidate_at(
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

    /// Returns the length of the item in its segment, in bytes.
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
        let _: Witness<'p> = self.witness;
        // SAFETY: the witness keeps the item's segment from being recycled for 'p, and callers pass
        // only offsets at which an item was published.
        unsafe { self.table.region.bytes(offset, len) }
    }

    #[inline]
    pub(super) fn extension(&self) -> Option<Extension> {
        if !self.header.has(State::Extended) {
            return None;
        }
        let word = self.table.region.word(self.offset + 8 + 8 * usize::from(self.cas));
        Extension::from_word(word.load(Ordering::Relaxed))
    }

    /// Returns whether the item's fields are consistent with each other.
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

    /// Returns the offset of a plain item's key.
    #[inline]
    fn plain_key_offset(&self) -> usize {
        self.offset + 8 + 8 * usize::from(self.cas)
    }

    /// Returns the key's offset in the region, and its length in bytes.
    #[inline]
    fn key_extent(&self) -> (usize, usize) {
        if self.header.has(State::Extended) {
            return self.extended_key_extent();
        }
        (self.fields_end(), self.header.key_len())
    }

    #[cold]
    #[inline(never)]
    fn extended_key_extent(self) -> (usize, usize) {
        let (tags_len, key_len) = self
            .extension()
            .map_or((0, 0), |extension| (extension.tags_len(), extension.key_len()));
        (self.fields_end() + tags_len, key_len)
    }

    /// Returns the length of the key in bytes.
    #[inline]
    pub(crate) fn key_len(&self) -> usize {
        if self.header.has(State::Extended) {
            return self.extended_key_extent().1;
        }
        self.header.key_len()
    }

    #[inline]
    pub(crate) fn key(&self) -> &'p [u8] {
        let (offset, len) = self.key_extent();
        self.published(offset, len)
    }

    /// Returns whether the item has this key.
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

    /// Returns the item's tags, as words, followed by its key.
    pub(crate) fn tags_and_key(&self) -> &'p [u8] {
        let (key_offset, key_len) = self.key_extent();
        let start = self.fields_end();
        self.published(start, key_offset + key_len - start)
    }

    #[inline]
    pub(crate) fn has_extension(&self) -> bool {
        self.header.has(State::Extended)
    }

    /// Returns the item's tags, as words.
    #[cold]
    pub(crate) fn tags(&self) -> &'p [u8] {
        self.published(self.fields_end(), self.tags_len())
    }

    /// Returns the length of the item's tags in bytes.
    pub(crate) fn tags_len(&self) -> usize {
        self.extension().map_or(0, Extension::tags_len)
    }

    /// Returns the bytes between the header and the value.
    pub(crate) fn fields_and_key(&self) -> &'p [u8] {
        let start = self.offset + 8;
        self.published(start, self.value_offset() - start)
    }

    /// Returns the region offset of the value or, if there is a chain, of the value's tail.
    #[inline]
    pub(crate) fn value_offset(&self) -> usize {
        let (offset, len) = self.key_extent();
        offset + len
    }

    /// Returns the length of the inline value in bytes.
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

    /// Returns the value, or its tail if there is a chain.
    #[inline]
    pub(crate) fn inline_value(&self) -> &'p [u8] {
        self.published(self.value_offset(), self.inline_len())
    }

    /// Returns the value of an item that has no fields (such as client flags or a link) between CAS
    /// and key. Returns `None` for other items.
    #[inline]
    pub(crate) fn plain_value(&self) -> Option<&'p [u8]> {
        self.header.is_plain().then(|| {
            let offset = self.plain_key_offset() + self.header.key_len();
            self.published(offset, self.header.inline_len())
        })
    }

    /// Returns the item's header with the length of the inline value set to 0.
    pub(crate) fn header_without_value(&self) -> Header {
        self.header.with_inline_len(self.header.inline_len() - self.inline_len())
    }

    /// Returns the length of the value in bytes, chain included.
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

    /// Returns the 32-bit word that starts `at` bytes after the CAS and the extension.
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

    /// Returns the chain of the item, or `None` if its value is not large.
    #[inline]
    pub(crate) fn chain(&self) -> Option<Chain> {
        let [first, value_len] = self.link().filter(|link| !FlashCopy::is_one(*link))?;
        Some(Chain { first, value_len })
    }

    /// Sets the chain of an item that was read from flash. No other thread can find the item yet.
    pub(crate) fn set_chain(&self, first: u32) {
        self.half(self.link_at()).store(first, Ordering::Relaxed);
    }

    /// Returns the item's copy on flash, or `None` if the item was not copied from flash or has
    /// changed since the copy.
    #[inline]
    pub(crate) fn flash_copy(&self) -> Option<FlashCopy> {
        match self.chain() {
            None => FlashCopy::from_link(self.link()?),
            Some(chain) => {
                let word = self.table.entry(chain.first).chain_copy();
                FlashCopy::from_chain(word.load(Ordering::Acquire))
            }
        }
    }

    /// Invalidates the link to the copy on flash, before the item changes.
    pub(crate) fn forget_flash_copy(&self) {
        if self.flash_copy().is_none() {
            return;
        }
        match self.chain() {
            None => self.half(self.link_at()).store(FlashCopy::FORGOTTEN, Ordering::Release),
            Some(chain) => {
                self.table.entry(chain.first).chain_copy().store(0, Ordering::Release);
            }
        }
    }

    /// Returns whether the item has expired.
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

    /// Records that the item was read at `now`. Writes at most once a second, and never waits for
    /// another thread.
    #[inline]
    pub(crate) fn note_access(&self, now: Seconds) {
        let word = self.word();
        let seen = Header(word.load(Ordering::Relaxed));
        let code = access_code(self.entry().base(), now);
        let read = seen.with_access_code(code).with(State::Fetched, true);
        if read != seen {
            // If another thread changes the word first, this access is not recorded.
            let _ = word.compare_exchange(seen.0, read.0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Counts the first hit of the item since it was written to its segment: adds the item's length
    /// in bytes to the segment's count of first hits.
    pub(crate) fn count_first_hit(&self) {
        let len = u32::try_from(self.item_len()).unwrap_or(u32::MAX);
        self.entry().first_hits().fetch_add(len, Ordering::Relaxed);
    }

    /// Returns the length of the item in bytes, chain included.
    pub(crate) fn item_len(&self) -> usize {
        let in_chain = self.chain().map_or(0, |_| self.value_len() - self.inline_len());
        self.len() + in_chain
    }

    /// Marks the item dead: no index word refers to it any more, so an evacuation need not look it
    /// up. Threads read the mark with `Acquire`, so a thread that sees the mark no longer finds the
    /// index word. Sets the mark before it counts the bytes, because a segment whose bytes are all
    /// counted as dead may be freed and overwritten. Returns the number of dead bytes in the
    /// segment now, and the number before.
    pub(crate) fn mark_dead(&self) -> (u32, u32) {
        let len = u32::try_from(self.len()).expect("an item fits a segment");
        self.word().fetch_or((State::Dead as u64) << 48, Ordering::Release);
        let before = self.entry().add_dead(len);
        (before + len, before)
    }

    /// Marks a record dead after a restart. The caller counts its bytes.
    pub(crate) fn restore_dead(&self) {
        self.word().fetch_or((State::Dead as u64) << 48, Ordering::Release);
    }

    /// Returns the number of segments in the item's chain.
    pub(crate) fn chain_segments(&self, segment_len: usize) -> usize {
        (self.item_len() - self.len()).div_ceil(segment_len)
    }

    /// Changes attributes in place, in one word, so that readers see either the complete change or
    /// the old attributes. Returns false if the change needs a new record. The caller holds the
    /// lock of the stripe.
    pub(crate) fn set_attributes(&self, attributes: &Attributes) -> bool {
        let entry = self.entry();
        // An item in a write buffer or a read buffer does not change in place.
        let is_frozen = entry.is(SegmentState::WriteBuffer) || entry.is(SegmentState::ReadBuffers);
        let extension = self.extension();
        let is_same_key = attributes.binary_key == extension.is_some_and(Extension::binary_key);
        let early = extension.and_then(Extension::early).map_or(0, SubsecondMillis::millis);
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
        // Readers may record accesses in the word while this thread changes it.
        let _ = self
            .word()
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |seen| Some(changed(seen)));
        note_changed_expiry(entry, attributes.expiry);
        true
    }
}

/// Returns whether an item with this header can be at `offset`: it has a key and ends in its
/// segment, and the segment holds items.
pub(super) fn is_in_place(table: &Table, offset: usize, header: Header, cas: bool) -> bool {
    let segment = table.layout.segment_of(offset);
    let end = table.layout.start(segment) + table.layout.segment_len;
    let is_inside = offset + header.record_len(cas) <= end;
    offset.is_multiple_of(8)
        && header.key_len() > 0
        && is_inside
        && table.entry(segment).holds_items()
}

/// Notes a new expiry in the segment's entry, after the item was changed. Maintenance resets the
/// noted expiry before it reads the items. So either maintenance reads the new expiry, or this
/// function notes it after the reset.
pub(crate) fn note_changed_expiry(entry: Entry<'_>, expiry: Expiry) {
    fence(Ordering::SeqCst);
    entry.note_expiry(expiry);
}

pub(super) fn marked(header: Header, attributes: &Attributes) -> Header {
    header.with(State::Stale, attributes.stale).with(State::Won, attributes.won)
}

//! An item before it is written to a segment.

use super::extension::Extension;
use super::flash_copy::FlashCopy;
use super::header::{Header, SHORT_KEY_MAX, State, WIDE, access_code, expiry_code};
use super::record::{Chain, Record, is_in_place, marked};
use crate::segment::memory::table::Table;
use crate::segment::sync::Ordering;
use crate::{Attributes, Expiry, Seconds};

/// An item before it is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewRecord<'v> {
    pub(crate) attributes: Attributes,
    pub(crate) cas: u64,
    pub(crate) fetched: bool,
    pub(crate) accessed: Seconds,
    pub(crate) extension: Option<Extension>,
    /// The item's tags, as words, followed by its key.
    pub(crate) tags_and_key: &'v [u8],
    /// The inline value, in up to three pieces.
    pub(crate) value: [&'v [u8]; 3],
    pub(crate) chain: Option<Chain>,
    /// The item's copy on flash; `None` if it has no valid copy. Ignored if the item has a chain,
    /// because the chain then keeps the link to the copy.
    pub(crate) flash_copy: Option<FlashCopy>,
}

impl<'v> NewRecord<'v> {
    /// Returns a copy of an item, for another segment.
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
    /// Returns whether the item has tags.
    #[inline]
    pub(crate) fn has_tags(&self) -> bool {
        self.extension.is_some_and(|extension| extension.tags_len() > 0)
    }

    /// Returns the item's header for a segment that has this base and will be written to flash.
    /// Differs from [`NewRecord::header`] in that an item that expires always has an exact expiry.
    pub(crate) fn header_for_flash(&self, base: Seconds) -> Header {
        let header = self.header(base);
        let expires = self.attributes.expiry != Expiry::Never;
        if expires { header.with(State::Wide, true).with_expiry_code(WIDE) } else { header }
    }

    /// Returns a header with the item's lengths, but without its attributes.
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

    /// Returns the item's header in a segment with this base.
    #[expect(clippy::inline_always, reason = "a call costs `set` 2 % of its instructions")]
    #[inline(always)]
    pub(crate) fn header(&self, base: Seconds) -> Header {
        let code = expiry_code(base, self.attributes.expiry.second());
        let flags = self.attributes.client_flags != 0;
        // A large item always has a field for an exact expiry, so that a change of its expiry
        // rarely has to copy the item.
        let wide = code.is_none() || self.chain.is_some();
        marked(self.plain_header(), &self.attributes)
            .with(State::Flags, flags)
            .with(State::Wide, wide)
            .with(State::Link, self.link().is_some())
            .with(State::Fetched, self.fetched)
            .with_expiry_code(code.unwrap_or(WIDE))
            .with_access_code(access_code(base, self.accessed))
    }

    /// Returns the item's header in a segment with this base, derived from its header for another
    /// base.
    #[inline]
    pub(crate) fn header_at(&self, header: Header, base: Seconds) -> Header {
        match self.attributes.expiry {
            Expiry::Never => header.with_access_code(access_code(base, self.accessed)),
            Expiry::At(_) | Expiry::Before(..) => self.header(base),
        }
    }

    /// Returns the maximum length of the record in any segment, in bytes.
    pub(crate) fn len_at_most(&self) -> usize {
        let wide = self.plain_header().with(State::Wide, true);
        let wide = wide.with(State::Link, self.link().is_some());
        wide.with(State::Flags, self.attributes.client_flags != 0).record_len(true)
    }

    fn link(&self) -> Option<[u32; 2]> {
        let chain = self.chain.map(|chain| [chain.first, chain.value_len]);
        chain.or_else(|| self.flash_copy.map(FlashCopy::link))
    }

    /// Returns the length in bytes of the value's inline part.
    pub(crate) fn inline_len(&self) -> usize {
        self.value.iter().map(|piece| piece.len()).sum()
    }

    /// Returns the length in bytes of the value's part in the chain.
    pub(crate) fn chain_len(&self) -> usize {
        self.chain.map_or(0, |chain| chain.value_len as usize - self.inline_len())
    }

    /// Writes the item at `offset`.
    ///
    /// # Safety `header` is a header that a method of this item returned for the segment that
    /// contains `offset`. It determines the number of bytes that are written from `offset` on. One
    /// of these conditions holds:
    /// - The bytes belong to the caller's open segment, and were not published.
    /// - The bytes are those of a dead record of the same length. The caller has claimed the
    ///   record, and no reader can find it any more.
    #[inline]
    pub(crate) unsafe fn write(&self, table: &Table, offset: usize, header: Header, cas: bool) {
        let region = &table.region;
        strict_assert!(is_in_place(table, offset, header, cas), "no item can start at {offset}");
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
            // SAFETY: the caller owns all bytes that the header counts, and this piece is among
            // them.
            unsafe { region.write(here, piece) };
            here += piece.len();
        }
        strict_assert!(
            here.next_multiple_of(8) == offset + header.record_len(cas),
            "the header contains the length of the item"
        );
        // The header is stored last: a thread that reads the segment from front to back must skip
        // the bytes of a dead record until the new record is complete.
        region.word(offset).store(header.0, Ordering::Release);
    }
}

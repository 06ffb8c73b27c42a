//! The first word of an item, and the clocks packed into it.
//!
//! ```text
//! 63      56 55      48 47        32 31         20 19              0
//! ┌─────────┬──────────┬────────────┬─────────────┬─────────────────┐
//! │ key len │ state    │ expiry     │ accessed    │ inline value len│
//! └─────────┴──────────┴────────────┴─────────────┴─────────────────┘
//! ```
//! These fields follow the header, each only if used: CAS (8 bytes, unless items have no CAS), the
//! extension (8, see `extension`), client flags (4), exact expiry (4), a link (8), tags, key and
//! inline value, up to the next multiple of 8. The link is a chain (first segment 4, value length
//! 4) or a copy on flash (see `flash_copy`). Expiry and access time are codes for seconds relative
//! to the segment's base.
//!
//! With an extension, the two lengths have another meaning (see `extension`), but their sum is
//! still the number of bytes after the fields. So this word alone determines the length of a
//! record.
#![expect(clippy::cast_possible_truncation, reason = "fields are cut out of a word")]

use crate::Seconds;

/// The maximum length of an inline value in bytes.
pub(crate) const INLINE_LEN_MAX: usize = (1 << 20) - 1;

/// The maximum key length, in bytes, that the header can encode.
pub(crate) const SHORT_KEY_MAX: usize = 255;

/// The expiry code of items that never expire.
const NEVER: u16 = 0;
/// The expiry code of items whose exact expiry follows the header, because the items expire too
/// long after the base or are written to flash.
pub(crate) const WIDE: u16 = u16::MAX;

/// The bits of the state byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// Client flags follow the header.
    Flags = 1,
    /// The item is stale; see [`crate::Attributes::stale`].
    Stale = 1 << 1,
    /// A client was chosen to recache the item; see [`crate::Attributes::won`].
    Won = 1 << 2,
    /// The item was read since it was stored.
    Fetched = 1 << 3,
    /// An extension follows the header.
    Extended = 1 << 4,
    /// A link follows the header. It refers to the first part of a large value, whose parts are in
    /// a chain of segments, or to a copy of the item on flash.
    Link = 1 << 5,
    /// An exact expiry follows the header. It is valid if the expiry code is [`WIDE`].
    Wide = 1 << 6,
    /// No index word refers to the item any more. If the bit is not set, only a lookup in the index
    /// shows whether the item is live.
    Dead = 1 << 7,
}

/// The first word of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header(pub(crate) u64);

/// The state bits that add fields after the header.
const EXTRAS: u64 =
    (State::Flags as u64 | State::Wide as u64 | State::Link as u64 | State::Extended as u64) << 48;

impl Header {
    pub(crate) fn new(key_len: usize, inline_len: usize) -> Self {
        strict_assert!((1..=SHORT_KEY_MAX).contains(&key_len) && inline_len <= INLINE_LEN_MAX);
        Self((key_len as u64) << 56 | inline_len as u64)
    }

    #[inline]
    pub(crate) fn key_len(self) -> usize {
        (self.0 >> 56) as usize
    }

    #[inline]
    pub(crate) fn inline_len(self) -> usize {
        (self.0 & INLINE_LEN_MAX as u64) as usize
    }

    #[must_use]
    pub(crate) fn with_inline_len(self, len: usize) -> Self {
        strict_assert!(len <= INLINE_LEN_MAX);
        Self(self.0 & !(INLINE_LEN_MAX as u64) | len as u64)
    }

    #[inline]
    pub(crate) fn has(self, state: State) -> bool {
        self.0 & (state as u64) << 48 != 0
    }

    #[must_use]
    pub(crate) fn with(self, state: State, on: bool) -> Self {
        let bit = (state as u64) << 48;
        Self(if on { self.0 | bit } else { self.0 & !bit })
    }

    #[inline]
    pub(crate) fn expiry_code(self) -> u16 {
        (self.0 >> 32) as u16
    }

    /// Returns whether the item has an expiry.
    #[inline]
    pub(crate) fn may_expire(self) -> bool {
        self.expiry_code() != NEVER
    }

    #[must_use]
    pub(crate) fn with_expiry_code(self, code: u16) -> Self {
        Self(self.0 & !(0xffff << 32) | u64::from(code) << 32)
    }

    #[inline]
    pub(crate) fn access_code(self) -> u16 {
        (self.0 >> 20) as u16 & ACCESS_MAX
    }

    #[must_use]
    #[inline]
    pub(crate) fn with_access_code(self, code: u16) -> Self {
        Self(self.0 & !(u64::from(ACCESS_MAX) << 20) | u64::from(code) << 20)
    }

    /// Returns whether no field except a CAS follows the header: no extension, client flags, exact
    /// expiry or link.
    #[inline]
    pub(crate) fn is_plain(self) -> bool {
        self.0 & EXTRAS == 0
    }

    /// Returns the length in bytes of the fields between the header word and the tags or the key.
    #[inline]
    pub(crate) fn extras_len(self, cas: bool) -> usize {
        let cas = 8 * usize::from(cas);
        if self.is_plain() {
            return cas;
        }
        let len = |state, len| if self.has(state) { len } else { 0 };
        let halves = len(State::Flags, 4) + len(State::Wide, 4);
        cas + len(State::Extended, 8) + halves + len(State::Link, 8)
    }

    /// Returns the item's length in its segment in bytes, including padding.
    #[inline]
    pub(crate) fn record_len(self, cas: bool) -> usize {
        let len = 8 + self.extras_len(cas) + self.key_len() + self.inline_len();
        len.next_multiple_of(8)
    }
}

/// Encodes the expiry `at` for a segment with this base. Returns `None` if the expiry needs
/// [`WIDE`]. An expiry at or before the base is stored as one second after the base. That second
/// has already come, because the base is one second before the segment was opened.
pub(crate) fn expiry_code(base: Seconds, at: Option<Seconds>) -> Option<u16> {
    let Some(at) = at else { return Some(NEVER) };
    let delta = at.0.saturating_sub(base.0).max(1);
    u16::try_from(delta).ok().filter(|&code| code != WIDE)
}

/// Decodes an expiry code other than [`WIDE`]. Returns `None` if the item never expires.
#[inline]
pub(crate) fn expiry_of(base: Seconds, code: u16) -> Option<Seconds> {
    (code != NEVER).then(|| Seconds(base.0.saturating_add(code.into())))
}

const ACCESS_MAX: u16 = (1 << 12) - 1;
/// The bit that marks an access time before the base.
const ACCESS_BEFORE: u16 = 1 << 11;

/// Encodes an access time as a small float: the number of seconds between the segment's base and
/// the access. The number is exact up to 255 and has 8 significant bits above. The access may be
/// before the base, because items move to newer segments.
#[inline]
pub(crate) fn access_code(base: Seconds, at: Seconds) -> u16 {
    match at.0.checked_sub(base.0) {
        Some(secs @ 0..256) => secs as u16,
        _ => far_access_code(base, at),
    }
}

fn far_access_code(base: Seconds, at: Seconds) -> u16 {
    let secs = at.0.abs_diff(base.0);
    let shift = (u32::BITS - secs.leading_zeros()).saturating_sub(8);
    let code = ((shift << 7) + (secs >> shift)).min(u32::from(ACCESS_BEFORE) - 1) as u16;
    if at < base { code | ACCESS_BEFORE } else { code }
}

/// Decodes an access time.
pub(crate) fn accessed_at(base: Seconds, code: u16) -> Seconds {
    let magnitude = u32::from(code & !ACCESS_BEFORE);
    let secs =
        if magnitude < 256 { magnitude } else { (magnitude & 127 | 128) << ((magnitude >> 7) - 1) };
    if code & ACCESS_BEFORE == 0 {
        Seconds(base.0.saturating_add(secs))
    } else {
        Seconds(base.0.saturating_sub(secs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_returns_its_fields() {
        let header = Header::new(250, INLINE_LEN_MAX)
            .with(State::Link, true)
            .with_expiry_code(77)
            .with_access_code(ACCESS_MAX);
        assert_eq!((header.key_len(), header.inline_len()), (250, INLINE_LEN_MAX));
        assert_eq!((header.expiry_code(), header.access_code()), (77, ACCESS_MAX));
        assert!(header.has(State::Link) && !header.has(State::Dead));
        assert_eq!(header.with(State::Link, false), header.with(State::Link, false));
        assert!(!header.with(State::Link, false).has(State::Link));
    }

    #[test]
    fn the_length_of_a_record_counts_all_fields_and_padding() {
        let plain = Header::new(13, 3);
        assert_eq!((plain.record_len(false), plain.record_len(true)), (24, 32));
        let rich = plain.with(State::Flags, true).with(State::Wide, true).with(State::Link, true);
        assert_eq!(rich.extras_len(true), 24);
    }

    #[test]
    fn access_times_are_exact_near_the_base_and_coarse_far_from_it() {
        let base = Seconds(1_000_000_000);
        for secs in (0..100_000).chain([1 << 20, 4_000_000]) {
            for at in [Seconds(base.0 + secs), Seconds(base.0 - secs)] {
                let read = accessed_at(base, access_code(base, at));
                let error = at.0.abs_diff(read.0);
                assert!(error == 0 || secs >= 256 && error <= secs >> 7, "{secs} {error}");
                assert!(read.0.abs_diff(base.0) <= secs, "codes round towards the base");
            }
        }
    }

    #[test]
    fn expiries_near_the_base_are_exact() {
        let base = Seconds(100);
        for at in [101, 5000, 65_634] {
            let code = expiry_code(base, Some(Seconds(at))).unwrap();
            assert_eq!(expiry_of(base, code), Some(Seconds(at)));
        }
        assert_eq!(expiry_code(base, Some(Seconds(65_635))), None);
        assert_eq!(expiry_of(base, expiry_code(base, None).unwrap()), None);
        assert_eq!(
            expiry_of(base, expiry_code(base, Some(Seconds(3))).unwrap()),
            Some(Seconds(101))
        );
    }
}

//! Times and expiries on the caller's clock.

use std::num::NonZeroU16;

/// Whole seconds on the caller's clock. An engine reads no clock: callers pass the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seconds(pub u32);

/// A time on the caller's clock, with millisecond resolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now {
    /// Whole seconds.
    pub secs: Seconds,
    /// Milliseconds within the second, below 1000.
    pub millis: u16,
    /// The number of seconds by which the caller's clock is ahead of Unix time; negative if it is
    /// behind. Engines ignore it.
    pub ahead: i32,
}

impl Now {
    /// Returns the time in milliseconds.
    #[must_use]
    pub fn in_millis(self) -> u64 {
        u64::from(self.secs.0) * 1000 + u64::from(self.millis)
    }

    /// Converts a time on the caller's clock to Unix time, both in seconds.
    #[must_use]
    pub fn unix_of(self, secs: Seconds) -> u32 {
        secs.0.saturating_add_signed(-self.ahead)
    }

    /// Converts a time on the caller's clock to Unix time, both in milliseconds.
    #[must_use]
    pub fn unix_millis_of(self, millis: u64) -> u64 {
        millis.saturating_add_signed(-i64::from(self.ahead) * 1000)
    }
}

impl From<Seconds> for Now {
    /// Returns the start of the second.
    fn from(secs: Seconds) -> Self {
        Self { secs, ..Self::default() }
    }
}

/// The time at which an item expires, if it expires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Expiry {
    /// The item stays until it is evicted or removed.
    #[default]
    Never,
    /// The item expires at the start of this second.
    At(Seconds),
    /// The item expires this many milliseconds before the start of the second.
    Before(Seconds, SubsecondMillis),
}

/// A number of milliseconds before a full second: 1 to 999.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SubsecondMillis(NonZeroU16);

impl SubsecondMillis {
    /// Returns `None` unless `millis` is in 1 to 999.
    #[must_use]
    pub fn new(millis: u16) -> Option<Self> {
        NonZeroU16::new(millis).filter(|millis| millis.get() < 1000).map(Self)
    }

    /// Returns the number of milliseconds.
    #[must_use]
    pub fn millis(self) -> u16 {
        self.0.get()
    }
}

impl Expiry {
    /// Returns the expiry for a time in milliseconds. A time after second `u32::MAX - 1` becomes
    /// second `u32::MAX`, which is the last second of the clock.
    #[must_use]
    pub fn at_millis(millis: u64) -> Self {
        let at = Seconds(u32::try_from(millis.div_ceil(1000)).unwrap_or(u32::MAX));
        let early = millis.div_ceil(1000).saturating_mul(1000).saturating_sub(millis);
        match u16::try_from(early).ok().and_then(SubsecondMillis::new) {
            Some(early) if at.0 < u32::MAX => Self::Before(at, early),
            _ => Self::At(at),
        }
    }

    /// Returns the second by which the item has expired, or `None` if it never expires.
    #[inline]
    #[must_use]
    pub fn second(self) -> Option<Seconds> {
        match self {
            Self::Never => None,
            Self::At(at) | Self::Before(at, _) => Some(at),
        }
    }

    /// Returns the number of milliseconds from the item's expiry to [`Expiry::second`], or 0 if the
    /// item never expires.
    #[inline]
    #[must_use]
    pub fn early_millis(self) -> u16 {
        if let Self::Before(_, early) = self { early.millis() } else { 0 }
    }

    /// Returns the time at which the item expires, in milliseconds, or `None` if it never expires.
    #[must_use]
    pub fn in_millis(self) -> Option<u64> {
        let at = u64::from(self.second()?.0) * 1000;
        Some(at.saturating_sub(self.early_millis().into()))
    }

    /// Returns whether an item with this expiry has expired at `now`.
    #[must_use]
    pub fn is_past(self, now: impl Into<Now>) -> bool {
        let now = now.into();
        match self {
            Self::Never => false,
            Self::At(at) => at <= now.secs,
            Self::Before(..) => self.in_millis().is_some_and(|end| end <= now.in_millis()),
        }
    }

    /// Returns the remaining lifetime at `now` in seconds, rounded up: 0 if the item has expired,
    /// `None` if it never expires.
    #[must_use]
    pub fn left(self, now: impl Into<Now>) -> Option<u32> {
        let now = now.into();
        match self {
            Self::Never => None,
            Self::At(at) => Some(at.0.saturating_sub(now.secs.0)),
            Self::Before(..) => {
                let secs = self.left_millis(now)?.div_ceil(1000);
                Some(u32::try_from(secs).unwrap_or(u32::MAX))
            }
        }
    }

    /// Returns the remaining lifetime at `now` in milliseconds: 0 if the item has expired, `None`
    /// if it never expires.
    #[must_use]
    pub fn left_millis(self, now: Now) -> Option<u64> {
        Some(self.in_millis()?.saturating_sub(now.in_millis()))
    }
}

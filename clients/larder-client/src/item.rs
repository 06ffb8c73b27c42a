//! What calls take and return.

use bytes::Bytes;
use larder_protocol::encode::NewItem;
use larder_protocol::{Exptime, StoreMode};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An item as a server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The value.
    pub value: Bytes,
    /// The number that was stored with the value.
    pub flags: u32,
    /// What changes with each change of the item; `None` unless it was asked for.
    pub cas: Option<u64>,
}

/// What each server answered, with its address as it was given.
pub type PerServer<T> = Vec<(Arc<str>, T)>;

/// The outcome of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The item is stored.
    Stored,
    /// It is not, because of what was there, or was not: see each store.
    NotStored,
    /// It is not, because the item was changed since its CAS was seen.
    Exists,
    /// It is not, because there is no such item.
    NotFound,
}

impl Stored {
    /// Whether the item is stored.
    #[must_use]
    pub fn is_stored(self) -> bool {
        self == Self::Stored
    }
}

/// The outcome of counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// The number afterwards.
    Number(u64),
    /// There is no such item.
    NotFound,
    /// The value is not a number.
    NotANumber,
}

/// A store in any form that there is.
#[derive(Clone, Copy, Debug)]
pub struct StoreRequest<'a> {
    /// What has to be there, and what is done with it.
    pub mode: StoreMode,
    /// Which item.
    pub key: &'a [u8],
    /// The value, or what is added to one.
    pub value: &'a [u8],
    /// How long the item lives. Appending and prepending ignore it.
    pub ttl: Ttl,
    /// The number that is kept with the value. Appending and prepending ignore it.
    pub flags: u32,
    /// Stores it only if the item that is there has this CAS. The mode is `Set` then.
    pub cas: Option<u64>,
}

impl<'a> StoreRequest<'a> {
    pub(crate) fn item(&self) -> NewItem<'a> {
        NewItem { client_flags: self.flags, ..new_item(self.value, self.ttl) }
    }
}

/// Numbers of more seconds than 30 days are Unix time.
const RELATIVE_MAX: u32 = 30 * 24 * 3600;

/// How long an item lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ttl(Time);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Time {
    Secs(u32),
    Exptime(i64),
}

impl Default for Time {
    fn default() -> Self {
        Self::Secs(0)
    }
}

impl Ttl {
    /// Until it is evicted.
    pub const FOREVER: Self = Self(Time::Secs(0));

    /// So many seconds; 0 is [`FOREVER`](Self::FOREVER).
    #[must_use]
    pub const fn secs(secs: u32) -> Self {
        Self(Time::Secs(secs))
    }

    /// A number that is sent as it is: up to 30 days are seconds from now on, higher numbers are Unix time, 0 is
    /// [`FOREVER`](Self::FOREVER), and with a negative number the item has expired at once.
    #[must_use]
    pub const fn from_exptime(number: i64) -> Self {
        Self(Time::Exptime(number))
    }

    /// So many seconds longer. An item that has expired stays so.
    pub(crate) fn plus(self, secs: u32) -> Self {
        Self(match self.0 {
            Time::Secs(time) => Time::Secs(time.saturating_add(secs)),
            Time::Exptime(number) => match u32::try_from(number) {
                Ok(time @ 1..=RELATIVE_MAX) => Time::Secs(time.saturating_add(secs)),
                _ if number <= 0 => Time::Exptime(number),
                _ => Time::Exptime(number.saturating_add(secs.into())),
            },
        })
    }

    pub(crate) fn exptime(self) -> Exptime {
        let secs = match self.0 {
            Time::Secs(secs) => secs,
            Time::Exptime(number) => return Exptime(number),
        };
        // Longer times than 30 days are sent as Unix time, so the clock has to be read only for these.
        let is_short = secs <= RELATIVE_MAX;
        let since_epoch = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Exptime::after(secs, if is_short { 0 } else { since_epoch().as_secs() })
    }
}

impl From<Duration> for Ttl {
    /// Rounded up to whole seconds; none at all is a second, not for ever.
    fn from(time: Duration) -> Self {
        let secs = time.as_secs().saturating_add((time.subsec_nanos() > 0).into());
        Self::secs(u32::try_from(secs.max(1)).unwrap_or(u32::MAX))
    }
}

impl From<u32> for Ttl {
    fn from(secs: u32) -> Self {
        Self::secs(secs)
    }
}

/// An item that is to be stored, without flags.
pub(crate) fn new_item(value: &[u8], ttl: impl Into<Ttl>) -> NewItem<'_> {
    NewItem { expiry: ttl.into().exptime(), ..NewItem::of(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up() {
        for (millis, secs) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (u64::MAX, u32::MAX)] {
            assert_eq!(Ttl::from(Duration::from_millis(millis)), Ttl::secs(secs), "{millis}");
        }
        assert_eq!(Ttl::secs(60).exptime(), Exptime(60));
        assert!(Ttl::secs(31 * 24 * 3600).exptime().0 > 1_700_000_000);
        assert_eq!(Ttl::from_exptime(-1).exptime(), Exptime(-1));
    }

    #[test]
    fn times_are_made_longer() {
        assert_eq!(Ttl::secs(60).plus(5).exptime(), Exptime(65));
        for (number, longer) in [(-1, -1), (0, 0), (60, 65), (2_000_000_000, 2_000_000_005)] {
            assert_eq!(Ttl::from_exptime(number).plus(5).exptime(), Exptime(longer));
        }
    }
}

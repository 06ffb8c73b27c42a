//! Arguments and results of calls.

use bytes::Bytes;
use larder_protocol::encode::NewItem;
use larder_protocol::{Exptime, StoreMode};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An item on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The stored bytes.
    pub value: Bytes,
    /// The client flags: a number that is stored with the value.
    pub flags: u32,
    /// The CAS unique, which changes with each change of the item. `None` if the call did not
    /// request it or the server did not send it.
    pub cas: Option<u64>,
}

/// One result per server. The first field is the server's address as configured or discovered.
pub type PerServer<T> = Vec<(Arc<str>, T)>;

/// The outcome of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOutcome {
    /// The item is stored.
    Stored,
    /// The item is not stored, because the condition of the store mode does not hold. Each store
    /// call documents its condition.
    NotStored,
    /// The item is not stored, because it was changed after its CAS was read.
    Exists,
    /// Nothing is stored, because the store requires a CAS and the item does not exist.
    NotFound,
}

impl StoreOutcome {
    /// Returns whether the item is stored.
    #[must_use]
    pub fn is_stored(self) -> bool {
        self == Self::Stored
    }
}

/// The outcome of an increment or a decrement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountOutcome {
    /// The new number.
    Number(u64),
    /// The item does not exist.
    NotFound,
    /// The value is not a number.
    NotANumber,
}

/// A request to store an item, with all options.
#[derive(Clone, Copy, Debug)]
pub struct StoreRequest<'a> {
    /// When to store the item, and whether to replace the current value, append to it or prepend to
    /// it.
    pub mode: StoreMode,
    /// The key of the item.
    pub key: &'a [u8],
    /// The value, or the bytes to append or prepend.
    pub value: &'a [u8],
    /// The lifetime of the item. Append and prepend ignore it.
    pub ttl: Ttl,
    /// The client flags. Append and prepend ignore them.
    pub flags: u32,
    /// If set, the server stores the item only if the current item has this CAS. The mode must then
    /// be `Set`.
    pub cas: Option<u64>,
}

impl<'a> StoreRequest<'a> {
    pub(crate) fn item(&self) -> NewItem<'a> {
        NewItem { client_flags: self.flags, ..new_item(self.value, self.ttl) }
    }
}

/// The largest exptime, in seconds, that servers interpret as relative. Larger numbers are Unix
/// times.
const RELATIVE_MAX: u32 = 30 * 24 * 3600;

/// The lifetime of an item.
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
    /// The item never expires.
    pub const FOREVER: Self = Self(Time::Secs(0));

    /// Creates a TTL in seconds; 0 is [`FOREVER`](Self::FOREVER).
    #[must_use]
    pub const fn secs(secs: u32) -> Self {
        Self(Time::Secs(secs))
    }

    /// Creates a TTL from a memcached exptime. The client sends the number unchanged. A number up
    /// to 30 days is a relative time in seconds, and a higher number is a Unix time. 0 is
    /// [`FOREVER`](Self::FOREVER), and a negative number makes the item expire at once.
    #[must_use]
    pub const fn from_exptime(number: i64) -> Self {
        Self(Time::Exptime(number))
    }

    /// Returns a TTL that is `secs` longer. A TTL from an exptime of 0 or below stays unchanged.
    /// Callers must not call this function on [`FOREVER`](Self::FOREVER): the result would be a TTL
    /// of `secs`.
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
        // Only times longer than 30 days need the clock, because the client sends them as Unix
        // times.
        let is_short = secs <= RELATIVE_MAX;
        let since_epoch = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Exptime::after(secs, if is_short { 0 } else { since_epoch().as_secs() })
    }
}

impl From<Duration> for Ttl {
    /// Rounds up to whole seconds. A zero duration becomes one second, because 0 would mean
    /// forever.
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

/// Returns an item to store, with flags 0.
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
    fn plus_makes_times_longer() {
        assert_eq!(Ttl::secs(60).plus(5).exptime(), Exptime(65));
        for (number, longer) in [(-1, -1), (0, 0), (60, 65), (2_000_000_000, 2_000_000_005)] {
            assert_eq!(Ttl::from_exptime(number).plus(5).exptime(), Exptime(longer));
        }
    }
}

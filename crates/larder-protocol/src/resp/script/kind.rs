//! The known scripts.

/// A known script. Each script has one key. In the descriptions, `arg n` is `ARGV[n]`, and the
/// value, the number and the expiry are those of the item with this key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Script {
    /// Removes the item if its value is arg 1. Returns 1 if it was removed, else 0.
    DeleteIfEqual,
    /// Sets the expiry to arg 2 milliseconds from now if the value is arg 1. Returns 1 if the
    /// expiry was set, else 0.
    ExpireMillisIfEqual,
    /// As [`Self::ExpireMillisIfEqual`], but arg 2 is in seconds.
    ExpireSecondsIfEqual,
    /// Extends a lock of redis-py if the value is arg 1 and the item has an expiry. Sets the expiry
    /// to arg 2 milliseconds from now, or to arg 2 milliseconds after the old expiry if arg 3 is
    /// `0`. Returns 1 if the expiry was set, else 0.
    ExtendIfEqual,
    /// Removes the item if its value is arg 1. Returns 1 if it was removed, 0 if it has another
    /// value, and -1 if there is no item.
    ReleaseLock,
    /// Sets the expiry to arg 2 milliseconds from now if the value is arg 1. If there is no item,
    /// stores arg 1 for arg 2 milliseconds. Returns 1 after a change, else 0.
    ExpireOrLock,
    /// Stores arg 1 for arg 2 seconds if there is no item. Returns `OK` if it was stored, else
    /// null.
    AddForSeconds,
    /// Stores arg 1 for arg 2 milliseconds if there is no item. Returns `OK` if it was stored, else
    /// null.
    AddForMillis,
    /// Stores arg 1 for arg 2 milliseconds if there is no item. Returns 1 if it was stored, else 0.
    LockForMillis,
    /// Stores arg 1 again, for arg 2 milliseconds, if the value is arg 1. Returns 1 if it was
    /// stored, else 0.
    RelockForMillis,
    /// Adds arg 1 to the number.
    Increment,
    /// Adds arg 1 to the number. Returns null if there is no item.
    IncrementExisting,
    /// Adds arg 2 to the number. If the sum is arg 2, sets the expiry to arg 1 seconds from now.
    /// Returns the sum.
    IncrementForSeconds,
    /// Adds arg 1 to the number. If the sum is 1, sets the expiry to arg 2 milliseconds from now.
    /// Returns the sum.
    IncrementForMillis,
    /// Adds 1 to the number. If the item has no expiry or arg 1 is `1`, sets the expiry to arg 2
    /// milliseconds from now. Returns the sum, and the milliseconds until the item expires.
    CountHit,
    /// Adds 1 to the number, and sets the expiry to arg 2 milliseconds from now if arg 1 is `1`. If
    /// there is no item or it has no expiry, stores 1 with an expiry of arg 2 milliseconds. Returns
    /// the sum, and the milliseconds until the item expires.
    CountHitInWindow,
    /// Returns the value or null, and the milliseconds until the item expires.
    ShowHits,
    /// Adds arg 1 to the number. If the item is new or has no expiry, sets the expiry to arg 2
    /// seconds from now. Returns the sum, and the milliseconds until the item expires.
    ConsumePoints,
    /// The generic cell rate algorithm (ITU-T I.371) of redis_rate: arg 1 is the burst, arg 2 the
    /// rate in each period of arg 3 seconds, arg 4 the cost. Returns the cost or 0, the remaining
    /// burst, the seconds until a retry, and the seconds until the reset.
    AllowRate,
    /// As [`Self::AllowRate`], but allows a part of the cost if the remaining burst is less than
    /// the cost.
    AllowRateAtMost,
}

impl Script {
    /// Returns the number of arguments that the script uses.
    pub(super) fn arguments(self) -> usize {
        match self {
            Self::ShowHits => 0,
            Self::DeleteIfEqual | Self::ReleaseLock => 1,
            Self::Increment | Self::IncrementExisting => 1,
            Self::ExtendIfEqual => 3,
            Self::AllowRate | Self::AllowRateAtMost => 4,
            _ => 2,
        }
    }
}

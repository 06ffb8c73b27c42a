//! Sets and removes the expiry of items.

use crate::{Event, LookupResult, OpContext};
use larder_store::{
    Access, Attributes, Change, Engine, Expiry, HashedKey, Lookup, NewCas, Now, Refusal, Seconds,
};

/// The latest possible expiry, in milliseconds since 1970. This time is in the year 2106.
const LAST_MILLIS: u64 = (u32::MAX as u64 - 1) * 1000;
/// Expiries that are less than this many milliseconds ahead are exact to the millisecond.
const EXACT_MILLIS: u64 = 60_000;

/// Returns the expiry for a time in milliseconds since 1970. Returns `None` if the time is after
/// the latest expiry that the cache's clock can represent, which is in the year 2106. An expiry
/// that is at least a minute ahead is rounded down to a whole second, because items with
/// milliseconds are 8 bytes longer.
#[must_use]
pub fn expiry_at(millis: u64, now: Now) -> Option<Expiry> {
    if millis > LAST_MILLIS {
        return None;
    }
    if millis < now.in_millis().saturating_add(EXACT_MILLIS) {
        return Some(Expiry::at_millis(millis));
    }
    Some(Expiry::At(Seconds(u32::try_from(millis / 1000).unwrap_or(u32::MAX))))
}

/// A conditional change of an item's expiry. The expiry is set only if all conditions hold.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expire {
    /// The new expiry. An item is removed if its new expiry is past.
    pub expiry: Expiry,
    /// Whether the item must have no expiry.
    pub if_none: bool,
    /// Whether the item must have an expiry.
    pub if_some: bool,
    /// Whether the new expiry must be later than the old one. An item that never expires has the
    /// latest expiry.
    pub if_later: bool,
    /// Whether the new expiry must be earlier than the old one.
    pub if_earlier: bool,
}

/// The outcome of [`OpContext::expire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpireOutcome {
    /// The expiry was set, or the item was removed.
    Changed,
    /// There is an item, but a condition does not hold.
    Kept,
    /// There is no item.
    NotFound,
    /// The engine could not allocate memory for the change.
    OutOfMemory,
    /// The item is on slower storage: repeat the operation.
    Pending,
}

impl<E: Engine> OpContext<'_, E> {
    /// Changes the expiry of an item, if the conditions hold.
    pub fn expire(&mut self, key: HashedKey<'_>, op: &Expire) -> ExpireOutcome {
        let (limits, now) = (self.limits, self.now);
        let mut found = LookupResult::Nothing;
        let updated = self.update(key, &mut None, |item| {
            found = LookupResult::of(&item, key.bytes.len(), limits);
            let Lookup::Hit(item) = item else { return (Change::Keep, ExpireOutcome::NotFound) };
            if !op.applies_to(item.attributes.expiry) {
                return (Change::Keep, ExpireOutcome::Kept);
            }
            if op.expiry.is_past(now) {
                return (Change::Remove, ExpireOutcome::Changed);
            }
            let attributes = Attributes { expiry: op.expiry, ..item.attributes };
            let (cas, access) = (NewCas::Same, Access::Tracked);
            (Change::SetAttributes { attributes, cas, access }, ExpireOutcome::Changed)
        });
        let outcome = match updated {
            Ok(updated) => updated.result,
            Err(Refusal::Pending) => return ExpireOutcome::Pending,
            Err(_) => {
                self.counters.thread.store_no_memory.add(1);
                ExpireOutcome::OutOfMemory
            }
        };
        self.counters.thread.cmd_touch.add(1);
        match found.class() {
            Some(class) => self.counters.class(Some(class), |class| class.touch_hits.add(1)),
            None => self.counters.thread.touch_misses.add(1),
        }
        self.notify(|| {
            let removed = match (outcome, found) {
                (ExpireOutcome::Changed, LookupResult::Live { class, value_len })
                    if op.expiry.is_past(now) =>
                {
                    Some(Event::Removed { key: key.bytes, class, value_len })
                }
                _ => None,
            };
            [Some(Event::fetched_for_change(key.bytes, found)), removed]
        });
        outcome
    }
}

impl Expire {
    fn applies_to(&self, old: Expiry) -> bool {
        let has_expiry = old != Expiry::Never;
        let end = |expiry: Expiry| expiry.in_millis().unwrap_or(u64::MAX);
        let is_later = end(self.expiry) > end(old);
        let is_earlier = end(self.expiry) < end(old);
        !(self.if_none && has_expiry
            || self.if_some && !has_expiry
            || self.if_later && !is_later
            || self.if_earlier && !is_earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_compare_with_the_current_expiry() {
        let at = |secs| Expiry::At(Seconds(secs));
        let op = Expire { expiry: at(20), ..Expire::default() };
        let (none, some) = (Expire { if_none: true, ..op }, Expire { if_some: true, ..op });
        let (later, earlier) = (Expire { if_later: true, ..op }, Expire { if_earlier: true, ..op });
        for (old, expected) in [
            (Expiry::Never, [true, true, false, false, true]),
            (at(10), [true, false, true, true, false]),
            (at(20), [true, false, true, false, false]),
            (at(30), [true, false, true, false, true]),
        ] {
            let met = [op, none, some, later, earlier].map(|op| op.applies_to(old));
            assert_eq!(met, expected, "{old:?}");
        }
    }

    #[test]
    fn near_expiries_are_exact_and_far_ones_are_rounded_down_to_a_second() {
        let now = Now { secs: Seconds(1000), millis: 300, ahead: 0 };
        for (millis, expected) in [
            (0, 0),
            (1_000_300, 1_000_300),
            (1_001_000, 1_001_000),
            (1_060_299, 1_060_299),
            (1_060_300, 1_060_000),
            (9_999_999, 9_999_000),
            (LAST_MILLIS, LAST_MILLIS),
        ] {
            assert_eq!(
                expiry_at(millis, now).and_then(Expiry::in_millis),
                Some(expected),
                "{millis}"
            );
        }
        assert_eq!([LAST_MILLIS + 1, u64::MAX].map(|millis| expiry_at(millis, now)), [None; 2]);
    }
}

//! Signed addition with Redis's semantics: an overflow is refused, and the value has no padding.

use crate::{Event, LookupResult, OpContext};
use larder_store::{
    Attributes, Change, Engine, Expiry, HashedKey, Item, Lease, Lookup, NewCas, NewTags, NewValue,
    Refusal, Tag, Value,
};

/// The item that an addition creates if the key has no item.
#[derive(Clone, Copy, Debug, Default)]
pub struct CreateSum<'t> {
    /// The number to which the delta is added.
    pub initial: i64,
    /// The expiry of the item.
    pub expiry: Expiry,
    /// Whether replies in memcached's text protocol contain the key in base64: a client sent it in
    /// base64, or it contains bytes that the text protocol cannot carry.
    pub binary_key: bool,
    /// The tags of the item.
    pub tags: &'t [Tag],
}

/// The outcome of [`OpContext::add`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddOutcome {
    /// The number after the addition.
    Number(i64),
    /// The item's value is not a number.
    NonNumeric,
    /// The sum does not fit in a signed 64-bit number.
    Overflow,
    /// The engine had no memory, or no CAS value, for the new number.
    OutOfMemory,
    /// The item is on slower storage: repeat the operation.
    Pending,
}

impl<E: Engine> OpContext<'_, E> {
    /// Adds `delta` to a number. The item keeps its expiry and tags. Creates a missing item.
    pub fn add(&mut self, key: HashedKey<'_>, delta: i64, create: &CreateSum<'_>) -> AddOutcome {
        let limits = self.limits;
        let mut found = LookupResult::Nothing;
        let updated = self.update(key, &mut None, |item| {
            found = LookupResult::of(&item, key.bytes.len(), limits);
            match item {
                Lookup::Hit(item) => added_to(item, delta),
                _ => create.plus(delta),
            }
        });
        let (added, cas) = match updated {
            Ok(updated) => (updated.result, updated.cas),
            Err(Refusal::Pending) => return AddOutcome::Pending,
            Err(_) => (AddOutcome::OutOfMemory, 0),
        };
        if let AddOutcome::Number(_) = added {
            let thread = &self.counters.thread;
            match found.class() {
                Some(class) => self.counters.class(Some(class), |class| {
                    if delta < 0 { class.decr_hits.add(1) } else { class.incr_hits.add(1) }
                }),
                None if delta < 0 => thread.decr_misses.add(1),
                None => thread.incr_misses.add(1),
            }
        }
        self.notify(|| {
            let created = match (added, found.class()) {
                (AddOutcome::Number(number), None) => {
                    let len = digits_of(number).1.into();
                    Some(Event::created(key.bytes, cas, create.expiry, len, self.now, limits))
                }
                _ => None,
            };
            [Some(Event::fetched_for_change(key.bytes, found)), created]
        });
        added
    }
}

impl<'t> CreateSum<'t> {
    fn plus(&self, delta: i64) -> (Change<'t>, AddOutcome) {
        let Some(sum) = self.initial.checked_add(delta) else {
            return (Change::Keep, AddOutcome::Overflow);
        };
        let Self { expiry, binary_key, tags, .. } = *self;
        let attributes = Attributes { expiry, binary_key, ..Attributes::default() };
        let tags = if tags.is_empty() { NewTags::None } else { NewTags::These(tags) };
        (put(sum, attributes, tags), AddOutcome::Number(sum))
    }
}

fn added_to<L: Lease>(item: &Item<'_, L>, delta: i64) -> (Change<'static>, AddOutcome) {
    let Value::Whole(bytes) = item.value else { return (Change::Keep, AddOutcome::NonNumeric) };
    let Some(old) = number_of(bytes) else { return (Change::Keep, AddOutcome::NonNumeric) };
    let Some(sum) = old.checked_add(delta) else { return (Change::Keep, AddOutcome::Overflow) };
    let attributes = Attributes { stale: false, won: false, ..item.attributes };
    (put(sum, attributes, NewTags::Same), AddOutcome::Number(sum))
}

fn put(number: i64, attributes: Attributes, tags: NewTags<'_>) -> Change<'_> {
    let (digits, len) = digits_of(number);
    let value = NewValue::Number { digits, len, width: len.into() };
    Change::Put { attributes, cas: NewCas::Fresh, value, fetched: false, tags }
}

/// Parses a value as a number in canonical decimal form. Allows trailing spaces, because
/// memcached's `decr` pads a number that has become shorter.
fn number_of(bytes: &[u8]) -> Option<i64> {
    let len = bytes.iter().rposition(|byte| *byte != b' ')? + 1;
    let text = std::str::from_utf8(bytes.get(..len)?).ok()?;
    let number: i64 = text.parse().ok()?;
    let (digits, len) = digits_of(number);
    (digits.get(..usize::from(len)) == Some(text.as_bytes())).then_some(number)
}

/// Returns the decimal form of a number, and the length of this form in bytes.
fn digits_of(number: i64) -> ([u8; 20], u8) {
    let (mut backwards, mut len, mut rest) = ([b'0'; 20], 0, number.unsigned_abs());
    for digit in &mut backwards {
        if rest == 0 && len > 0 {
            if number < 0 {
                *digit = b'-';
                len += 1;
            }
            break;
        }
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
        len += 1;
    }
    if let Some(used) = backwards.get_mut(..usize::from(len)) {
        used.reverse();
    }
    (backwards, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_form_of_a_number_is_accepted() {
        for number in [0, 1, -1, 10, -10, 99, i64::MAX, i64::MIN] {
            let (digits, len) = digits_of(number);
            let text = &digits[..len.into()];
            assert_eq!(text, number.to_string().as_bytes());
            assert_eq!(number_of(text), Some(number));
        }
        assert_eq!(number_of(b"9  "), Some(9));
        for bad in ["", " ", "-", "+1", "01", "-0", " 1", "1x", "9223372036854775808"] {
            assert_eq!(number_of(bad.as_bytes()), None, "{bad}");
        }
    }
}

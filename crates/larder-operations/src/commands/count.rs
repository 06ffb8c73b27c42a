//! Increments and decrements of numbers.

use crate::{Event, LookupResult, OpContext};
use larder_store::{
    Attributes, Change, Engine, Expiry, HashedKey, Item, Lease, Lookup, NUMBER_WIDTH_MAX, NewCas,
    NewTags, NewValue, Refusal, Tag, Value,
};

/// An increment or decrement of a number. The value of the item consists of its decimal digits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count<'t> {
    /// Whether to decrement rather than increment.
    pub down: bool,
    /// The amount to add or subtract. An increment wraps at 2^64, a decrement stops at 0.
    pub delta: u64,
    /// The item to create if the key has no item; `None` creates no item.
    pub create: Option<CreateNumber<'t>>,
    /// The new expiry of an existing item; `None` keeps the expiry.
    pub touch: Option<Expiry>,
    /// The CAS that an existing item must have to be changed; `None` matches any CAS.
    pub compare: Option<u64>,
    /// The CAS of the changed or created item; `None` assigns a fresh CAS.
    pub new_cas: Option<u64>,
}

/// The item that an increment or decrement creates if the key has no item.
#[derive(Clone, Copy, Debug)]
pub struct CreateNumber<'t> {
    /// The number; the delta is not added to it.
    pub value: u64,
    /// The expiry of the item.
    pub expiry: Expiry,
    /// Whether replies in memcached's text protocol contain the key in base64: a client sent it in
    /// base64, or it contains bytes that the text protocol cannot carry.
    pub binary_key: bool,
    /// The tags of the item.
    pub tags: &'t [Tag],
}

/// The outcome of an increment or decrement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArithmeticOutcome {
    /// The number was changed or created.
    Number {
        /// The number after the change.
        value: u64,
        /// The item's new CAS.
        cas: u64,
        /// The previous expiry of the item; `None` if the item was created.
        before: Option<Expiry>,
    },
    /// There is no item.
    NotFound,
    /// The item has another CAS.
    Exists,
    /// The item's value is not a number.
    NonNumeric,
    /// The engine had no memory or no CAS value for the new number, or no memory for reading the
    /// item from slower storage.
    OutOfMemory {
        /// Whether creating the item failed, rather than reading or changing it.
        creating: bool,
    },
    /// The item is on slower storage: repeat the operation.
    Pending,
}

impl<E: Engine> OpContext<'_, E> {
    /// Increments or decrements a number.
    pub fn count(&mut self, key: HashedKey<'_>, op: &Count<'_>) -> ArithmeticOutcome {
        let limits = self.limits;
        let mut found = LookupResult::Nothing;
        // This variable stays false if the engine has no memory for reading an existing item from
        // slower storage.
        let mut creating = false;
        let updated = self.update(key, &mut None, |item| {
            found = LookupResult::of(&item, key.bytes.len(), limits);
            creating = found.class().is_none();
            match item {
                Lookup::Hit(item) => op.decide(item),
                _ => op.create(),
            }
        });
        let counted = match updated {
            Ok(updated) => match updated.result {
                ArithmeticOutcome::Number { value, before, .. } => {
                    ArithmeticOutcome::Number { value, before, cas: updated.cas }
                }
                other => other,
            },
            Err(Refusal::Pending) => return ArithmeticOutcome::Pending,
            Err(_) => ArithmeticOutcome::OutOfMemory { creating },
        };
        let thread = &self.counters.thread;
        match counted {
            ArithmeticOutcome::Number { .. } => self.counters.class(found.class(), |class| {
                if op.down { class.decr_hits.add(1) } else { class.incr_hits.add(1) }
            }),
            ArithmeticOutcome::NotFound if op.down => thread.decr_misses.add(1),
            ArithmeticOutcome::NotFound => thread.incr_misses.add(1),
            _ => (),
        }
        self.notify(|| {
            let created = match (counted, op.create) {
                (ArithmeticOutcome::Number { value, cas, before: None }, Some(create)) => {
                    let len = digits_of(value).1.into();
                    Some(Event::created(key.bytes, cas, create.expiry, len, self.now, limits))
                }
                _ => None,
            };
            [Some(Event::fetched_for_change(key.bytes, found)), created]
        });
        counted
    }
}

impl<'t> Count<'t> {
    fn new_cas(&self) -> NewCas {
        self.new_cas.map_or(NewCas::Fresh, NewCas::Exactly)
    }

    fn decide<L: Lease>(&self, item: &Item<'_, L>) -> (Change<'static>, ArithmeticOutcome) {
        // memcached checks for an empty value first, then the CAS, then the digits.
        if item.value.len() == 0 {
            return (Change::Keep, ArithmeticOutcome::NonNumeric);
        }
        if self.compare.is_some_and(|cas| cas != item.cas) {
            return (Change::Keep, ArithmeticOutcome::Exists);
        }
        let Value::Whole(bytes) = item.value else {
            return (Change::Keep, ArithmeticOutcome::NonNumeric);
        };
        if bytes.len() > NUMBER_WIDTH_MAX {
            return (Change::Keep, ArithmeticOutcome::NonNumeric);
        }
        let Some(old) = number_of(bytes) else {
            return (Change::Keep, ArithmeticOutcome::NonNumeric);
        };
        let value =
            if self.down { old.saturating_sub(self.delta) } else { old.wrapping_add(self.delta) };
        let before = item.attributes;
        let expiry = self.touch.unwrap_or(before.expiry);
        let (digits, len) = digits_of(value);
        // As in memcached, spaces pad a number that becomes shorter. A longer number is a new value
        // and loses the attributes `stale`, `won` and `fetched`.
        let longer = usize::from(len) > bytes.len();
        let attributes = if longer {
            Attributes { expiry, stale: false, won: false, ..before }
        } else {
            Attributes { expiry, ..before }
        };
        let width = bytes.len().max(len.into());
        let put = Change::Put {
            attributes,
            cas: self.new_cas(),
            value: NewValue::Number { digits, len, width },
            fetched: item.fetched && !longer,
            tags: NewTags::Same,
        };
        (put, ArithmeticOutcome::Number { value, cas: 0, before: Some(before.expiry) })
    }

    fn create(&self) -> (Change<'t>, ArithmeticOutcome) {
        let Some(create) = self.create else { return (Change::Keep, ArithmeticOutcome::NotFound) };
        let CreateNumber { value, expiry, binary_key, tags } = create;
        let (digits, len) = digits_of(value);
        let put = Change::Put {
            attributes: Attributes { expiry, binary_key, ..Attributes::default() },
            cas: self.new_cas(),
            value: NewValue::Number { digits, len, width: len.into() },
            fetched: false,
            tags: if tags.is_empty() { NewTags::None } else { NewTags::These(tags) },
        };
        (put, ArithmeticOutcome::Number { value, cas: 0, before: None })
    }
}

/// Parses a value as memcached does: optional white space, an optional `+`, and then digits. White
/// space, a NUL or the end of the value ends the digits; all bytes after the digits are ignored.
/// Returns `None` for other values, and for numbers of 2^64 or more.
fn number_of(bytes: &[u8]) -> Option<u64> {
    let is_space = |byte: u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let start = bytes.iter().position(|&byte| !is_space(byte))?;
    let bytes = bytes.get(start..)?;
    let bytes = bytes.strip_prefix(b"+").unwrap_or(bytes);
    let len = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = bytes.split_at_checked(len)?;
    if len == 0 || rest.first().is_some_and(|&byte| byte != 0 && !is_space(byte)) {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, digit| {
        number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    })
}

/// Returns the decimal digits of a number, and their count.
fn digits_of(mut value: u64) -> ([u8; 20], u8) {
    let mut backwards = [b'0'; 20];
    let mut len = 0;
    for digit in &mut backwards {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
        len += 1;
        if value == 0 {
            break;
        }
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
    fn numbers_are_parsed_as_memcached_does() {
        let cases: [(&str, Option<u64>); 15] = [
            ("10", Some(10)),
            (" +007", Some(7)),
            ("10 b", Some(10)),
            ("99 ", Some(99)),
            ("5\0", Some(5)),
            ("5\0x", Some(5)),
            ("\x005", None),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("-1", None),
            ("", None),
            (" ", None),
            ("10ab", None),
            ("+", None),
            ("ab", None),
        ];
        for (text, number) in cases {
            assert_eq!(number_of(text.as_bytes()), number, "{text:?}");
        }
    }

    #[test]
    fn digits_are_the_decimal_form() {
        for value in [0, 7, 10, 12345, u64::MAX] {
            let (digits, len) = digits_of(value);
            assert_eq!(&digits[..len.into()], value.to_string().as_bytes());
        }
    }
}

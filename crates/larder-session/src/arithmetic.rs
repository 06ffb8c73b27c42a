//! Counting: `incr`, `decr`, `ma`, and their binary kin.

use crate::Host;
use crate::session::Context;
use crate::time::resolve;
use larder_protocol::reply::{self, Counted, Ttl};
use larder_protocol::{Arithmetic, Shape};
use larder_store::{
    Attributes, Change, Engine, HashedKey, Item, Lease, Lookup, NUMBER_WIDTH_MAX, NewCas, NewValue,
    Seconds, Value,
};

/// Answers a count.
pub(crate) fn arithmetic<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    arithmetic: &Arithmetic<'_>,
    key: HashedKey<'_>,
    output: &mut Vec<u8>,
) {
    let (now, classes) = (cx.now, &cx.settings.classes);
    let mut was_in = None;
    let updated = cx.engine.update(key, &mut None, |found| {
        let Lookup::Hit(item) = found else {
            was_in = None;
            return create(arithmetic, now);
        };
        let flags = item.attributes.client_flags;
        let footprint = classes.footprint(key.bytes.len(), item.value.len(), flags);
        was_in = Some(classes.class_of(footprint));
        decide(arithmetic, now, item)
    });
    let outcome = match updated {
        Ok(updated) => match updated.result {
            Counted::Number { value, ttl, .. } => Counted::Number { value, cas: updated.cas, ttl },
            other => other,
        },
        Err(_) => Counted::OutOfMemory,
    };
    count(cx, arithmetic, was_in, outcome);
    if let (Counted::OutOfMemory, None, Shape::Meta(_)) = (outcome, was_in, &arithmetic.shape) {
        let line = "SERVER_ERROR Out of memory allocating new item";
        return reply::error_line(&arithmetic.shape, line, output);
    }
    reply::counted(arithmetic, outcome, output);
}

fn decide<L: Lease>(
    arithmetic: &Arithmetic<'_>,
    now: Seconds,
    item: &Item<'_, L>,
) -> (Change<'static>, Counted) {
    // memcached looks at the CAS before it reads the digits, but after it has seen an empty value.
    if item.value.len() == 0 {
        return (Change::Keep, Counted::NonNumeric);
    }
    if arithmetic.compare.is_some_and(|cas| cas != item.cas) {
        return (Change::Keep, Counted::Exists);
    }
    let Value::Whole(bytes) = item.value else { return (Change::Keep, Counted::NonNumeric) };
    if bytes.len() > NUMBER_WIDTH_MAX {
        return (Change::Keep, Counted::NonNumeric);
    }
    let Some(old) = number_of(bytes) else { return (Change::Keep, Counted::NonNumeric) };
    let value = if arithmetic.down {
        old.saturating_sub(arithmetic.delta)
    } else {
        old.wrapping_add(arithmetic.delta)
    };
    let before = item.attributes;
    let expiry = arithmetic.touch.map_or(before.expiry, |touch| resolve(touch, now));
    let (digits, len) = digits_of(value);
    // A number never gets shorter. When it gets longer its marks go, as with any new value.
    let longer = usize::from(len) > bytes.len();
    let attributes = if longer {
        Attributes { expiry, stale: false, won: false, ..before }
    } else {
        Attributes { expiry, ..before }
    };
    let width = bytes.len().max(len.into());
    let put = Change::Put {
        attributes,
        cas: new_cas(arithmetic),
        value: NewValue::Number { digits, len, width },
        fetched: item.fetched && !longer,
    };
    let ttl = Ttl { before: before.expiry.left(now), touched: expiry.left(now), vivified: None };
    (put, Counted::Number { value, cas: 0, ttl })
}

fn create(arithmetic: &Arithmetic<'_>, now: Seconds) -> (Change<'static>, Counted) {
    let Some(vivify) = arithmetic.vivify else { return (Change::Keep, Counted::NotFound) };
    let (digits, len) = digits_of(arithmetic.initial);
    // Of `N` and `T` the later one counts; before them the item has no end.
    let last = match (&arithmetic.shape, arithmetic.touch) {
        (Shape::Meta(flags), Some(touch)) if flags.precedes(b'N', b'T') => touch,
        _ => vivify,
    };
    let expiry = resolve(last, now);
    let binary_key = arithmetic.key.base64;
    let put = Change::Put {
        attributes: Attributes { expiry, binary_key, ..Attributes::default() },
        cas: new_cas(arithmetic),
        value: NewValue::Number { digits, len, width: len.into() },
        fetched: false,
    };
    let left = |exptime| resolve(exptime, now).left(now);
    let touched = arithmetic.touch.and_then(left);
    let ttl = Ttl { before: None, touched, vivified: Some(left(vivify)) };
    let value = arithmetic.initial;
    (put, Counted::Number { value, cas: 0, ttl })
}

fn new_cas(arithmetic: &Arithmetic<'_>) -> NewCas {
    arithmetic.new_cas.map_or(NewCas::Fresh, NewCas::Exactly)
}

/// The number that a value stands for, read as `strtoull` does: leading white space and `+`, digits
/// up to the first white space; what follows that does not matter.
fn number_of(bytes: &[u8]) -> Option<u64> {
    let is_space = |byte: u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let start = bytes.iter().position(|&byte| !is_space(byte))?;
    let bytes = bytes.get(start..)?;
    let bytes = bytes.strip_prefix(b"+").unwrap_or(bytes);
    let len = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = bytes.split_at_checked(len)?;
    if len == 0 || rest.first().is_some_and(|&byte| !is_space(byte)) {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, digit| {
        number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    })
}

/// Decimal digits, and how many.
fn digits_of(mut value: u64) -> ([u8; 20], u8) {
    let mut backwards = [b'0'; 20];
    let mut len = 0;
    for place in &mut backwards {
        *place = b'0' + (value % 10) as u8;
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

fn count<E: Engine, H: Host>(
    cx: &Context<'_, E, H>,
    arithmetic: &Arithmetic<'_>,
    was_in: Option<usize>,
    outcome: Counted,
) {
    let thread = &cx.counters.thread;
    let class = was_in.and_then(|class| cx.counters.classes.get(class));
    match (outcome, class) {
        (Counted::Number { .. }, Some(class)) if arithmetic.down => class.decr_hits.add(1),
        (Counted::Number { .. }, Some(class)) => class.incr_hits.add(1),
        (Counted::NotFound, _) if arithmetic.down => thread.decr_misses.add(1),
        (Counted::NotFound, _) => thread.incr_misses.add(1),
        _ => (),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_memcached_reads_them() {
        let cases: [(&str, Option<u64>); 12] = [
            ("10", Some(10)),
            (" +007", Some(7)),
            ("10 b", Some(10)),
            ("99 ", Some(99)),
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
    fn digits_come_out_in_order() {
        for value in [0, 7, 10, 12345, u64::MAX] {
            let (digits, len) = digits_of(value);
            assert_eq!(&digits[..len.into()], value.to_string().as_bytes());
        }
    }
}

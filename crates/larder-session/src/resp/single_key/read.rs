//! Commands that read an item.

use super::answer::{Answer, number, waits};
use crate::Host;
use crate::context::Context;
use crate::memcached::get::{COPIED_LEN_MAX, copy};
use crate::resp::batch::Outcome;
use crate::session::Session;
use crate::session::pending::{OutgoingValue, Pending};
use crate::session::resp_state::State;
use larder_operations::LookupOptions;
use larder_protocol::reply::resp as reply;
use larder_protocol::resp::CommandError;
use larder_store::{Engine, HashedKey, Lease, Lookup, Value};

impl<E: Engine> Session<E> {
    /// Answers `GET`.
    #[inline]
    pub(in crate::resp) fn resp_get<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        key: HashedKey<'_>,
        output: &mut Vec<u8>,
    ) -> Outcome {
        let lookup = cx.operations.content(key, |content| {
            let Value::Whole(value) = content.value else { return None };
            reply::bulk(value, output);
            Some(())
        });
        match lookup {
            Lookup::Hit(Some(())) => Outcome::Done,
            // `content` has already recorded the access to the large value.
            Lookup::Hit(None) => {
                self.resp_look(cx, state, key, &LookupOptions::default(), true, output)
            }
            Lookup::Pending => waits(state, key),
            Lookup::Miss | Lookup::Expired | Lookup::Flushed => {
                reply::null(state.version, output);
                Outcome::Done
            }
        }
    }

    /// Looks up an item and writes its value. The lookup may change the item's expiry.
    pub(super) fn resp_look<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        key: HashedKey<'_>,
        op: &LookupOptions<'_>,
        is_recorded: bool,
        output: &mut Vec<u8>,
    ) -> Outcome {
        let (mark, pending) = (output.len(), &mut self.pending);
        let lookup = cx.operations.look_up(key, op, is_recorded, |item| {
            output.truncate(mark);
            show(item.value, pending, output);
        });
        if let Ok(Lookup::Hit(())) = lookup {
            return Outcome::Done;
        }
        // Drop any output that the closure wrote before the engine refused the change or had to
        // wait.
        *pending = Pending::Idle;
        output.truncate(mark);
        match lookup {
            Ok(Lookup::Pending) => return waits(state, key),
            Ok(_) => reply::null(state.version, output),
            Err(_) => reply::error(&CommandError::OutOfMemory, output),
        }
        Outcome::Done
    }
}

/// Writes a value. Leases a large value, which the session then sends in pieces. If leases already
/// use too much memory, copies the value with [`show_copied`] instead.
fn show<E: Engine>(value: &Value<'_, E::Lease>, pending: &mut Pending<E>, output: &mut Vec<u8>) {
    *pending = Pending::Idle;
    match value {
        Value::Large(lease) if lease.may_be_kept() => {
            let mut tail = Vec::new();
            reply::bulk_tail(&mut tail);
            reply::bulk_head(lease.len(), output);
            *pending = Pending::Send(Box::new(OutgoingValue::new(lease.clone(), tail)));
        }
        value => show_copied(value, output),
    }
}

/// Writes a copy of a value, or an error if a large value is longer than [`COPIED_LEN_MAX`].
pub(super) fn show_copied<L: Lease>(value: &Value<'_, L>, output: &mut Vec<u8>) {
    if try_show_copied(value, output).is_none() {
        reply::error(&CommandError::OutOfMemory, output);
    }
}

/// Writes a copy of a value. Returns `None` if a large value is longer than [`COPIED_LEN_MAX`].
pub(in crate::resp) fn try_show_copied<L: Lease>(
    value: &Value<'_, L>,
    output: &mut Vec<u8>,
) -> Option<()> {
    match value {
        Value::Whole(bytes) => reply::bulk(bytes, output),
        Value::Large(lease) if lease.len() <= COPIED_LEN_MAX => {
            reply::bulk_head(lease.len(), output);
            copy(lease, output);
            reply::bulk_tail(output);
        }
        Value::Large(_) => return None,
    }
    Some(())
}

pub(super) fn resp_take<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    state: &mut State,
    key: HashedKey<'_>,
    output: &mut Vec<u8>,
) -> Outcome {
    let mark = output.len();
    let taken = cx.operations.take(key, |item| {
        output.truncate(mark);
        try_show_copied(&item.value, output)
    });
    if let Ok(Lookup::Hit(())) = taken {
        return Outcome::Done;
    }
    output.truncate(mark);
    match taken {
        Ok(Lookup::Pending) => return waits(state, key),
        Ok(_) => reply::null(state.version, output),
        Err(_) => reply::error(&CommandError::OutOfMemory, output),
    }
    Outcome::Done
}

pub(super) fn str_len<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    key: HashedKey<'_>,
) -> Answer<'static> {
    match cx.operations.content(key, |content| Some(number(content.value.len()))) {
        Lookup::Hit(len) => Some(Ok(len.unwrap_or_default())),
        Lookup::Pending => None,
        Lookup::Miss | Lookup::Expired | Lookup::Flushed => Some(Ok(0)),
    }
}

/// Executes `MEMORY USAGE`: writes the size of an item in bytes, computed as in memcached.
pub(super) fn memory_usage<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    state: &mut State,
    key: HashedKey<'_>,
    output: &mut Vec<u8>,
) -> Outcome {
    let limits = cx.operations.limits;
    let lookup = cx.operations.describe(key, |item| {
        let client_flags = item.attributes.client_flags;
        number(limits.footprint(key.bytes.len(), item.value.len(), client_flags))
    });
    match lookup {
        Lookup::Hit(bytes) => reply::integer(bytes, output),
        Lookup::Pending => return waits(state, key),
        Lookup::Miss | Lookup::Expired | Lookup::Flushed => reply::null(state.version, output),
    }
    Outcome::Done
}

pub(super) fn get_range<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    state: &mut State,
    key: HashedKey<'_>,
    (start, end): (i64, i64),
    output: &mut Vec<u8>,
) -> Outcome {
    let lookup = cx.operations.content(key, |content| {
        let (from, to) = range(start, end, content.value.len());
        match &content.value {
            Value::Whole(bytes) => reply::bulk(bytes.get(from..to).unwrap_or_default(), output),
            Value::Large(lease) => {
                reply::bulk_head(to - from, output);
                let mut at = from;
                while at < to {
                    let piece = lease.piece(at);
                    let piece = piece.get(..to - at).unwrap_or(piece);
                    output.extend_from_slice(piece);
                    at += piece.len();
                }
                reply::bulk_tail(output);
            }
        }
        Some(())
    });
    match lookup {
        Lookup::Hit(_) => (),
        Lookup::Pending => return waits(state, key),
        Lookup::Miss | Lookup::Expired | Lookup::Flushed => reply::bulk(&[], output),
    }
    Outcome::Done
}

/// Converts the positions `start` and `end` of a Redis command to offsets in a value of length
/// `len`. The position `end` is inclusive, the returned end is exclusive. Negative positions count
/// from the end of the value.
pub(super) fn range(start: i64, end: i64, len: usize) -> (usize, usize) {
    let position = |at: i64| {
        let at = if at < 0 { at.saturating_add(number(len)) } else { at };
        usize::try_from(at.max(0)).unwrap_or(usize::MAX)
    };
    if start < 0 && end < 0 && start > end {
        return (0, 0);
    }
    let (from, to) = (position(start), position(end).saturating_add(1).min(len));
    if from < to { (from, to) } else { (0, 0) }
}

pub(super) fn show_type<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    state: &mut State,
    key: HashedKey<'_>,
    output: &mut Vec<u8>,
) -> Outcome {
    match cx.operations.describe(key, |_| ()) {
        Lookup::Pending => return waits(state, key),
        lookup => reply::item_type(lookup == Lookup::Hit(()), output),
    }
    Outcome::Done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_redis() {
        for ((start, end), expected) in [
            ((0, -1), (0, 5)),
            ((1, 2), (1, 3)),
            ((-2, -1), (3, 5)),
            ((-1, -2), (0, 0)),
            ((-100, 1), (0, 2)),
            ((0, -100), (0, 1)),
            ((4, 100), (4, 5)),
            ((5, 100), (0, 0)),
            ((3, 1), (0, 0)),
            ((i64::MIN, i64::MAX), (0, 5)),
        ] {
            assert_eq!(range(start, end, 5), expected, "{start} {end}");
        }
        assert_eq!(range(0, -1, 0), (0, 0));
    }
}

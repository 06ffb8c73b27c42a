//! Commands on one item.

use super::batch::Outcome;
use crate::Host;
use crate::context::Context;
use crate::events::RequestObserver;
use crate::memcached::get::{COPIED_LEN_MAX, copy};
use crate::session::Session;
use crate::session::pending::{Pending, Sending};
use crate::session::resp_state::State;
use crate::time::resolve_millis;
use larder_operations::{
    self as operations, Added, Expired, Look, OpContext, Stored, Swap, SwapCondition,
};
use larder_protocol::Streams;
use larder_protocol::reply::resp as reply;
use larder_protocol::resp::{
    CommandError, Expire, ExpireTime, ItemCommand, NewExpiry, Set, SetAnswer, SetCondition,
};
use larder_store::{Engine, Expiry, HashedKey, Lease, Lookup, Now, Refusal, Tag, Value};

impl<E: Engine> Session<E> {
    /// Does `work` with an observer, if somebody watches.
    pub(super) fn resp_observed<H: Host, R>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        work: impl FnOnce(&mut Self, &mut Context<'_, E, H>) -> R,
    ) -> R {
        if !self.is_observed() {
            return work(self, cx);
        }
        let observer = RequestObserver::unprefixed(cx.host, self.client, self.observed);
        let OpContext { counters, limits, now, .. } = cx.operations;
        let engine = &mut *cx.operations.engine;
        let operations = OpContext { engine, counters, limits, now, observer: Some(&observer) };
        let Context { host, settings, waker, .. } = *cx;
        work(self, &mut Context { operations, host, settings, waker })
    }

    /// Answers `GET`.
    #[inline]
    pub(super) fn resp_get<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        key: HashedKey<'_>,
        output: &mut Vec<u8>,
    ) -> Outcome {
        let looked = cx.operations.content(key, |content| {
            let Value::Whole(value) = content.value else { return None };
            reply::bulk(value, output);
            Some(())
        });
        match looked {
            Lookup::Hit(Some(())) => Outcome::Done,
            // The access to a large value is recorded already.
            Lookup::Hit(None) => self.resp_look(cx, state, key, &Look::default(), true, output),
            Lookup::Pending => waits(state, key),
            Lookup::Miss | Lookup::Expired | Lookup::Flushed => {
                reply::null(state.version, output);
                Outcome::Done
            }
        }
    }

    /// Answers a `SET` without options that nobody observes.
    #[inline]
    pub(super) fn resp_fast_set<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        key: HashedKey<'_>,
        value: &[u8],
        output: &mut Vec<u8>,
    ) -> Outcome {
        let op = operations::Set {
            value,
            client_flags: 0,
            expiry: Expiry::Never,
            binary_key: is_binary(key.bytes),
            refusal_removes: false,
        };
        match cx.operations.set(key, &op) {
            Stored::Stored { .. } => reply::ok(output),
            Stored::Pending => return waits(state, key),
            refused => reply::error(&refusal(refused), output),
        }
        Outcome::Done
    }

    /// Whether somebody watches.
    pub(super) fn is_observed(&self) -> bool {
        self.observed != Streams::default()
    }

    /// Answers with the value of an item, which a look-up may change.
    fn resp_look<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        key: HashedKey<'_>,
        op: &Look<'_>,
        is_recorded: bool,
        output: &mut Vec<u8>,
    ) -> Outcome {
        let (mark, pending) = (output.len(), &mut self.pending);
        let looked = cx.operations.look(key, op, is_recorded, |item| {
            output.truncate(mark);
            show(item.value, pending, output);
        });
        if let Ok(Lookup::Hit(())) = looked {
            return Outcome::Done;
        }
        // The item may have been written before its change was refused or had to wait.
        *pending = Pending::Nothing;
        output.truncate(mark);
        match looked {
            Ok(Lookup::Pending) => return waits(state, key),
            Ok(_) => reply::null(state.version, output),
            Err(_) => reply::error(&CommandError::OutOfMemory, output),
        }
        Outcome::Done
    }

    /// Answers a command on one item.
    pub(super) fn resp_item<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        key: HashedKey<'_>,
        command: &ItemCommand<'_>,
        output: &mut Vec<u8>,
    ) -> Outcome {
        let now = cx.operations.now;
        let answered = match command {
            ItemCommand::Get | ItemCommand::GetEx(None | Some(NewExpiry::Keep)) => {
                return self.resp_get(cx, state, key, output);
            }
            ItemCommand::GetEx(Some(expiry)) => match new_expiry(*expiry, now) {
                Ok(touch) => {
                    let op = Look { touch, ..Look::default() };
                    return self.resp_look(cx, state, key, &op, false, output);
                }
                Err(error) => Some(Err(error)),
            },
            ItemCommand::Set(set) => return self.resp_set(cx, state, key, set, output),
            ItemCommand::GetDel => return resp_take(cx, state, key, output),
            ItemCommand::GetRange { start, end } => {
                return get_range(cx, state, key, (*start, *end), output);
            }
            ItemCommand::Type => return show_type(cx, state, key, output),
            ItemCommand::Append(value) => append(cx, key, value),
            ItemCommand::StrLen => str_len(cx, key),
            ItemCommand::MemoryUsage => return memory_usage(cx, state, key, output),
            ItemCommand::Add(delta) => add(cx, key, *delta),
            ItemCommand::Expire(expire) => set_expiry(cx, key, expire),
            ItemCommand::Persist => persist(cx, key),
            ItemCommand::ShowExpiry { in_millis, absolute } => {
                show_expiry(cx, key, *in_millis, *absolute)
            }
        };
        match answered {
            Some(Ok(number)) => reply::integer(number, output),
            Some(Err(error)) => reply::error(&error, output),
            None => return waits(state, key),
        }
        Outcome::Done
    }

    fn resp_set<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        state: &mut State,
        key: HashedKey<'_>,
        set: &Set<'_>,
        output: &mut Vec<u8>,
    ) -> Outcome {
        let expiry = match new_expiry(set.expiry, cx.operations.now) {
            Ok(expiry) => expiry,
            Err(error) => {
                reply::error(&error, output);
                return Outcome::Done;
            }
        };
        // If it had to wait, they may have been dropped meanwhile.
        let kept = self.take_kept_tags().map(Ok);
        let tags = match kept.unwrap_or_else(|| cx.operations.tags(set.tags())) {
            Ok(tags) => tags,
            Err(refusal) => {
                let is_full = refusal == Refusal::OutOfMemory;
                let error = if is_full { CommandError::OutOfMemory } else { CommandError::NoTags };
                reply::error(&error, output);
                return Outcome::Done;
            }
        };
        let is_plain = set.condition == SetCondition::Always && set.answer == SetAnswer::Ok;
        if let (true, Some(expiry)) = (is_plain, expiry) {
            return match store(cx, key, set.value, (expiry, &tags)) {
                Some(Ok(())) => {
                    reply::ok(output);
                    Outcome::Done
                }
                Some(Err(error)) => {
                    reply::error(&error, output);
                    Outcome::Done
                }
                None => {
                    self.keep_tags(tags);
                    waits(state, key)
                }
            };
        }
        let condition = match set.condition {
            SetCondition::Always => SwapCondition::Always,
            SetCondition::Absent => SwapCondition::Absent,
            SetCondition::Present => SwapCondition::Present,
        };
        let binary_key = is_binary(key.bytes);
        let op = Swap { condition, value: set.value, expiry, binary_key, tags: &tags };
        let (mark, shows) = (output.len(), set.answer == SetAnswer::OldValue);
        let (stored, old) = cx.operations.swap(key, &op, |item| {
            output.truncate(mark);
            if shows {
                show_copied(&item.value, output);
            }
        });
        if old.is_none() {
            output.truncate(mark);
        }
        match (stored, set.answer) {
            (Stored::Pending, _) => {
                output.truncate(mark);
                self.keep_tags(tags);
                return waits(state, key);
            }
            (Stored::Stored { .. } | Stored::NotStored, SetAnswer::OldValue) => {
                if old.is_none() {
                    reply::null(state.version, output);
                }
            }
            (Stored::Stored { .. }, SetAnswer::Ok) => reply::ok(output),
            (Stored::Stored { .. }, SetAnswer::Number) => reply::integer(1, output),
            (Stored::NotStored, SetAnswer::Ok) => reply::null(state.version, output),
            (Stored::NotStored, SetAnswer::Number) => reply::integer(0, output),
            (refused, _) => {
                output.truncate(mark);
                reply::error(&refusal(refused), output);
            }
        }
        Outcome::Done
    }
}

/// The number that a command is answered with, or an error; `None` if the item is on slower storage.
type Answer<'b> = Option<Result<i64, CommandError<'b>>>;

/// Waits for one key.
pub(super) fn waits(state: &mut State, key: HashedKey<'_>) -> Outcome {
    state.waiting.clear();
    state.waiting.push(key.hash);
    Outcome::Wait
}

/// Whether memcached's text protocol cannot write a key.
pub(super) fn is_binary(key: &[u8]) -> bool {
    key.iter().any(|byte| *byte <= b' ' || *byte == 0x7f)
}

fn refusal(stored: Stored) -> CommandError<'static> {
    match stored {
        Stored::OutOfMemory => CommandError::OutOfMemory,
        _ => CommandError::TooLarge,
    }
}

/// The expiry of an item that is stored; `None` if it keeps its own.
fn new_expiry(expiry: NewExpiry, now: Now) -> Result<Option<Expiry>, CommandError<'static>> {
    match expiry {
        NewExpiry::Never => Ok(Some(Expiry::Never)),
        NewExpiry::Keep => Ok(None),
        NewExpiry::At(time) => expiry_at(time, now).map(Some),
    }
}

fn expiry_at(time: ExpireTime, now: Now) -> Result<Expiry, CommandError<'static>> {
    resolve_millis(time.millis, time.absolute, now).ok_or(CommandError::ExpireTime(time.name))
}

/// Stores a value whatever is there. A refused value leaves the old item.
pub(super) fn store<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    key: HashedKey<'_>,
    value: &[u8],
    (expiry, tags): (Expiry, &[Tag]),
) -> Option<Result<(), CommandError<'static>>> {
    let op = operations::Store {
        value,
        value_len: value.len(),
        expiry,
        tags,
        binary_key: is_binary(key.bytes),
        ..operations::Store::default()
    };
    match cx.operations.store(key, &op, &mut None) {
        Stored::Stored { .. } => Some(Ok(())),
        Stored::Pending => None,
        refused => Some(Err(refusal(refused))),
    }
}

/// Writes a value. A large one is sent piece by piece, if there is memory to keep it that long.
pub(super) fn show<E: Engine>(
    value: &Value<'_, E::Lease>,
    pending: &mut Pending<E>,
    output: &mut Vec<u8>,
) {
    *pending = Pending::Nothing;
    match value {
        Value::Large(lease) if lease.may_be_kept() => {
            let mut tail = Vec::new();
            reply::bulk_tail(&mut tail);
            reply::bulk_head(lease.len(), output);
            *pending = Pending::Sending(Box::new(Sending::new(lease.clone(), tail)));
        }
        value => show_copied(value, output),
    }
}

/// Writes a copy of a value.
fn show_copied<L: Lease>(value: &Value<'_, L>, output: &mut Vec<u8>) {
    match value {
        Value::Whole(bytes) => reply::bulk(bytes, output),
        Value::Large(lease) if lease.len() <= COPIED_LEN_MAX => {
            reply::bulk_head(lease.len(), output);
            copy(lease, output);
            reply::bulk_tail(output);
        }
        Value::Large(_) => reply::error(&CommandError::OutOfMemory, output),
    }
}

fn resp_take<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    state: &mut State,
    key: HashedKey<'_>,
    output: &mut Vec<u8>,
) -> Outcome {
    let mark = output.len();
    let taken = cx.operations.take(key, |item| {
        output.truncate(mark);
        show_copied(&item.value, output);
    });
    match taken {
        Lookup::Hit(()) => return Outcome::Done,
        Lookup::Pending => {
            output.truncate(mark);
            return waits(state, key);
        }
        Lookup::Miss | Lookup::Expired | Lookup::Flushed => {
            output.truncate(mark);
            reply::null(state.version, output);
        }
    }
    Outcome::Done
}

fn append<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    key: HashedKey<'_>,
    value: &[u8],
) -> Answer<'static> {
    let op = operations::Store {
        mode: operations::StoreMode::Append,
        value,
        value_len: value.len(),
        create: Some(Expiry::Never),
        binary_key: is_binary(key.bytes),
        ..operations::Store::default()
    };
    Some(match cx.operations.store(key, &op, &mut None) {
        Stored::Stored { len, .. } => Ok(number(len)),
        Stored::Pending => return None,
        refused => Err(refusal(refused)),
    })
}

fn number(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}

fn str_len<E: Engine, H: Host>(cx: &mut Context<'_, E, H>, key: HashedKey<'_>) -> Answer<'static> {
    match cx.operations.content(key, |content| Some(number(content.value.len()))) {
        Lookup::Hit(len) => Some(Ok(len.unwrap_or_default())),
        Lookup::Pending => None,
        Lookup::Miss | Lookup::Expired | Lookup::Flushed => Some(Ok(0)),
    }
}

/// Answers with the bytes that an item takes, as memcached counts them.
fn memory_usage<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    state: &mut State,
    key: HashedKey<'_>,
    output: &mut Vec<u8>,
) -> Outcome {
    let limits = cx.operations.limits;
    let looked = cx.operations.describe(key, |item| {
        let client_flags = item.attributes.client_flags;
        number(limits.footprint(key.bytes.len(), item.value.len(), client_flags))
    });
    match looked {
        Lookup::Hit(bytes) => reply::integer(bytes, output),
        Lookup::Pending => return waits(state, key),
        Lookup::Miss | Lookup::Expired | Lookup::Flushed => reply::null(state.version, output),
    }
    Outcome::Done
}

fn get_range<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    state: &mut State,
    key: HashedKey<'_>,
    (start, end): (i64, i64),
    output: &mut Vec<u8>,
) -> Outcome {
    let looked = cx.operations.content(key, |content| {
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
    match looked {
        Lookup::Hit(_) => (),
        Lookup::Pending => return waits(state, key),
        Lookup::Miss | Lookup::Expired | Lookup::Flushed => reply::bulk(&[], output),
    }
    Outcome::Done
}

/// The bytes of a value of `len` bytes from `start` to `end`, which is included. Negative positions are
/// counted from the value's end.
fn range(start: i64, end: i64, len: usize) -> (usize, usize) {
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

fn show_type<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    state: &mut State,
    key: HashedKey<'_>,
    output: &mut Vec<u8>,
) -> Outcome {
    match cx.operations.describe(key, |_| ()) {
        Lookup::Pending => return waits(state, key),
        looked => reply::item_type(looked == Lookup::Hit(()), output),
    }
    Outcome::Done
}

fn add<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    key: HashedKey<'_>,
    delta: i64,
) -> Answer<'static> {
    Some(match cx.operations.add(key, delta, is_binary(key.bytes)) {
        Added::Number(number) => Ok(number),
        Added::NonNumeric => Err(CommandError::NotInteger),
        Added::Overflow => Err(CommandError::Overflow),
        Added::OutOfMemory => Err(CommandError::OutOfMemory),
        Added::Pending => return None,
    })
}

fn set_expiry<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    key: HashedKey<'_>,
    expire: &Expire,
) -> Answer<'static> {
    let expiry = match expiry_at(expire.time, cx.operations.now) {
        Ok(expiry) => expiry,
        Err(error) => return Some(Err(error)),
    };
    let conditions = expire.conditions;
    change_expiry(
        cx,
        key,
        &operations::Expire {
            expiry,
            if_none: conditions.has_none,
            if_some: conditions.has_one,
            if_later: conditions.later,
            if_earlier: conditions.earlier,
        },
    )
}

fn persist<E: Engine, H: Host>(cx: &mut Context<'_, E, H>, key: HashedKey<'_>) -> Answer<'static> {
    change_expiry(cx, key, &operations::Expire { if_some: true, ..operations::Expire::default() })
}

fn change_expiry<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    key: HashedKey<'_>,
    op: &operations::Expire,
) -> Answer<'static> {
    Some(match cx.operations.expire(key, op) {
        Expired::Changed => Ok(1),
        Expired::Kept | Expired::NotFound => Ok(0),
        Expired::OutOfMemory => Err(CommandError::OutOfMemory),
        Expired::Pending => return None,
    })
}

fn show_expiry<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    key: HashedKey<'_>,
    in_millis: bool,
    absolute: bool,
) -> Answer<'static> {
    let now = cx.operations.now;
    Some(Ok(match cx.operations.describe(key, |item| item.attributes.expiry) {
        Lookup::Hit(expiry) => shown_expiry(expiry, now, in_millis, absolute),
        Lookup::Pending => return None,
        Lookup::Miss | Lookup::Expired | Lookup::Flushed => -2,
    }))
}

/// An expiry as TTL and its relatives show it: seconds rounded to the next whole ones, as by redis-server, or up
/// where the item has only whole ones.
fn shown_expiry(expiry: Expiry, now: Now, in_millis: bool, absolute: bool) -> i64 {
    let millis = if absolute { expiry.in_millis() } else { expiry.left_millis(now) };
    let Some(millis) = millis else { return -1 };
    let shown = match expiry {
        _ if in_millis => millis,
        Expiry::Before(..) => (millis + 500) / 1000,
        Expiry::Never | Expiry::At(_) => millis.div_ceil(1000),
    };
    i64::try_from(shown).unwrap_or(i64::MAX)
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

//! Expiry of items: `EXPIRE`, `PERSIST`, `TTL` and related commands.

use super::answer::Answer;
use crate::Host;
use crate::context::Context;
use crate::time::resolve_millis;
use larder_operations::{self as operations, ExpireOutcome};
use larder_protocol::resp::{CommandError, Expire, ExpireTime, NewExpiry};
use larder_store::{Engine, Expiry, HashedKey, Lookup, Now};

/// Returns the expiry to store with an item, or `None` if the item keeps its old expiry.
pub(super) fn new_expiry(
    expiry: NewExpiry,
    now: Now,
) -> Result<Option<Expiry>, CommandError<'static>> {
    match expiry {
        NewExpiry::Never => Ok(Some(Expiry::Never)),
        NewExpiry::Keep => Ok(None),
        NewExpiry::At(time) => expiry_at(time, now).map(Some),
    }
}

fn expiry_at(time: ExpireTime, now: Now) -> Result<Expiry, CommandError<'static>> {
    resolve_millis(time.millis, time.absolute, now).ok_or(CommandError::ExpireTime(time.name))
}

pub(super) fn set_expiry<E: Engine, H: Host>(
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

pub(super) fn persist<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    key: HashedKey<'_>,
) -> Answer<'static> {
    change_expiry(cx, key, &operations::Expire { if_some: true, ..operations::Expire::default() })
}

fn change_expiry<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    key: HashedKey<'_>,
    op: &operations::Expire,
) -> Answer<'static> {
    Some(match cx.operations.expire(key, op) {
        ExpireOutcome::Changed => Ok(1),
        ExpireOutcome::Kept | ExpireOutcome::NotFound => Ok(0),
        ExpireOutcome::OutOfMemory => Err(CommandError::OutOfMemory),
        ExpireOutcome::Pending => return None,
    })
}

pub(super) fn show_expiry<E: Engine, H: Host>(
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

/// Returns the milliseconds until an item expires, or -1 if it never expires.
pub(in crate::resp) fn milliseconds_left(expiry: Expiry, now: Now) -> i64 {
    shown_expiry(expiry, now, true, false)
}

/// Returns the number for a reply to `TTL` and related commands; -1 if the item never expires. Like
/// redis-server, rounds seconds to the nearest second. If the item expires at a whole second,
/// rounds up.
fn shown_expiry(expiry: Expiry, now: Now, in_millis: bool, absolute: bool) -> i64 {
    let millis = if absolute {
        expiry.in_millis().map(|millis| now.unix_millis_of(millis))
    } else {
        expiry.left_millis(now)
    };
    let Some(millis) = millis else { return -1 };
    let shown = match expiry {
        _ if in_millis => millis,
        Expiry::Before(..) => (millis + 500) / 1000,
        Expiry::Never | Expiry::At(_) => millis.div_ceil(1000),
    };
    i64::try_from(shown).unwrap_or(i64::MAX)
}

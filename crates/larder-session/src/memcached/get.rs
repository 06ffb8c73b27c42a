//! Look-ups: `get`, `gat`, `touch`, `mg`, `me`, and their binary counterparts.

use super::lower;
use crate::Host;
use crate::context::Context;
use crate::session::pending::{Pending, Sending};
use crate::time::resolve;
use larder_operations::ItemView;
use larder_protocol::reply::{self, Hit, ItemInfo, ShownItem, Ttl};
use larder_protocol::{Debug, FastGet, Get, ReplyFormat};
use larder_store::{Content, Engine, HashedKey, Item, Lease, Lookup, Now, Tag, Value};

/// Whether a look-up was answered.
#[derive(Clone, Copy)]
pub(crate) enum Answered {
    /// The answer was written. A large value may still have to be sent: it is pending then.
    Written,
    /// There was no memory for the answer: an error was written.
    Refused,
    /// The item is on slower storage: nothing was written.
    Pending,
}

/// Whether a hit was answered.
#[derive(Clone, Copy)]
enum Shown {
    /// The answer was written. A large value may still have to be sent: it is pending then.
    Written,
    /// Too much memory is leased already to lease the value, too: nothing was written.
    Refused,
}

/// The fast path: answers a look-up that changes nothing, if the item is not large, stale or otherwise
/// special. If it is, returns `None`, and [`get`] answers.
#[inline]
pub(crate) fn fast_get<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    fast: &FastGet<'_>,
    key: HashedKey<'_>,
    output: &mut Vec<u8>,
) -> Option<Answered> {
    let now = cx.operations.now;
    let looked = if fast.is_meta() {
        cx.operations.view(key, |item| {
            let Item { attributes: seen, cas, value: Value::Whole(value), .. } = *item else {
                return None;
            };
            if seen.stale || seen.won || seen.binary_key {
                return None;
            }
            let ttl = Ttl { before: seen.expiry.left(now), ..Ttl::default() };
            let (client_flags, value_len) = (seen.client_flags, value.len());
            let shown = ShownItem { client_flags, cas, value_len, ttl, ..ShownItem::default() };
            reply::fast_item(fast, &shown, value, output);
            Some(())
        })
    } else {
        cx.operations.content(key, |content| {
            let Value::Whole(value) = content.value else { return None };
            reply::fast_value(fast, content.client_flags, content.cas, value, output);
            Some(())
        })
    };
    match looked {
        Lookup::Hit(shown) => shown.map(|()| Answered::Written),
        Lookup::Miss | Lookup::Expired | Lookup::Flushed => {
            reply::miss(&fast.get(), key.bytes, output);
            Some(Answered::Written)
        }
        Lookup::Pending => Some(Answered::Pending),
    }
}

/// Answers any look-up. `is_recorded`: [`fast_get`] was tried, and has recorded the access.
pub(crate) fn get<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    get: &Get<'_>,
    key: HashedKey<'_>,
    (is_recorded, tags): (bool, &[Tag]),
    pending: &mut Pending<E>,
    output: &mut Vec<u8>,
) -> Answered {
    let (now, mark) = (cx.operations.now, output.len());
    let is_plain = get.touch.is_none() && !matches!(get.format, ReplyFormat::Meta(_));
    if is_plain && !is_recorded {
        let looked = cx
            .operations
            .content(key, |content| Some(show_content(get, key.bytes, content, pending, output)));
        let looked = looked.map(|shown| shown.unwrap_or(Shown::Refused));
        return finish(cx, get, key.bytes, &looked, output);
    }
    let looked =
        cx.operations.look(key, &lower::look(get, tags, now, cx.settings), is_recorded, |item| {
            output.truncate(mark);
            show(get, key.bytes, item, now, pending, output)
        });
    if !matches!(looked, Ok(Lookup::Hit(_))) {
        // The item may have been written to the output before its change was refused or had to wait, or before
        // it was evicted to make room for that change.
        *pending = Pending::Nothing;
        output.truncate(mark);
    }
    match looked {
        Ok(looked) => finish(cx, get, key.bytes, &looked, output),
        Err(_) => {
            reply::get_created_refused(get, output);
            Answered::Refused
        }
    }
}

/// Writes the answer to a hit that shows only the content of the item.
fn show_content<E: Engine>(
    get: &Get<'_>,
    key: &[u8],
    content: &Content<'_, E::Lease>,
    pending: &mut Pending<E>,
    output: &mut Vec<u8>,
) -> Shown {
    let (mark, len) = (output.len(), content.value.len());
    reply::content_head(get, key, content.client_flags, content.cas, len, output);
    show_value(get, &content.value, mark, pending, output)
}

/// Writes the answer to any hit. It may be called again, to replace the answer.
fn show<E: Engine>(
    get: &Get<'_>,
    key: &[u8],
    item: &ItemView<'_, E::Lease>,
    now: Now,
    pending: &mut Pending<E>,
    output: &mut Vec<u8>,
) -> Shown {
    *pending = Pending::Nothing;
    let mark = output.len();
    if reply::hit_head(get, &hit(get, key, item, now), output) {
        show_value(get, item.value, mark, pending, output)
    } else {
        Shown::Written
    }
}

/// Writes the value and the end of an answer that begins at `mark`.
fn show_value<E: Engine>(
    get: &Get<'_>,
    value: &Value<'_, E::Lease>,
    mark: usize,
    pending: &mut Pending<E>,
    output: &mut Vec<u8>,
) -> Shown {
    match value {
        Value::Whole(bytes) => {
            output.extend_from_slice(bytes);
            reply::hit_tail(get, output);
        }
        Value::Large(lease) if lease.may_be_kept() => {
            let mut tail = Vec::new();
            reply::hit_tail(get, &mut tail);
            *pending = Pending::Sending(Box::new(Sending::new(lease.clone(), tail)));
        }
        Value::Large(lease) if lease.len() <= COPIED_LEN_MAX => {
            copy(lease, output);
            reply::hit_tail(get, output);
        }
        Value::Large(_) => {
            output.truncate(mark);
            return Shown::Refused;
        }
    }
    Shown::Written
}

/// The fields of the answer to a hit.
fn hit<'k, L: Lease>(get: &Get<'_>, key: &'k [u8], item: &ItemView<'_, L>, now: Now) -> Hit<'k> {
    let left = |exptime| resolve(exptime, now).left(now);
    let attributes = &item.attributes;
    let ttl = if item.created {
        let touched = get.touch.and_then(left);
        Ttl { before: None, touched, vivified: Some(get.vivify.and_then(left)) }
    } else {
        let (before, touched) = (attributes.expiry.left(now), item.expiry.left(now));
        Ttl { before, touched, vivified: None }
    };
    Hit {
        key,
        binary_key: attributes.binary_key,
        item: ShownItem {
            client_flags: attributes.client_flags,
            cas: item.cas,
            value_len: item.value.len(),
            ttl,
            idle_secs: now.secs.0.saturating_sub(item.accessed.0),
            hit_before: item.fetched,
        },
        won: item.won,
        stale: attributes.stale,
        win_taken: item.win_taken,
        withheld: get.compare == Some(item.cas),
    }
}

/// The longest value, in bytes, that is copied when too much memory is leased already: the default of
/// `-I`. The copy belongs to the buffers of the connection.
pub(crate) const COPIED_LEN_MAX: usize = 1 << 20;

pub(crate) fn copy(lease: &impl Lease, output: &mut Vec<u8>) {
    let end = output.len() + lease.len();
    while output.len() < end {
        output.extend_from_slice(lease.piece(lease.len() + output.len() - end));
    }
}

/// Writes the answer of a look-up that did not find an item, or could not send its value.
fn finish<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    get: &Get<'_>,
    key: &[u8],
    looked: &Lookup<Shown>,
    output: &mut Vec<u8>,
) -> Answered {
    match looked {
        Lookup::Hit(Shown::Written) => (),
        Lookup::Hit(Shown::Refused) => {
            cx.operations.counters.thread.response_obj_oom.add(1);
            reply::get_refused(get, output);
            return Answered::Refused;
        }
        Lookup::Miss | Lookup::Expired | Lookup::Flushed => reply::miss(get, key, output),
        Lookup::Pending => return Answered::Pending,
    }
    Answered::Written
}

/// Answers `me`. Returns false, and writes nothing, if the item is on slower storage.
pub(crate) fn describe<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    debug: &Debug<'_>,
    key: HashedKey<'_>,
    output: &mut Vec<u8>,
) -> bool {
    let (now, limits) = (cx.operations.now, cx.operations.limits);
    let looked = cx.operations.describe(key, |item| {
        let attributes = &item.attributes;
        let size = limits.footprint(key.bytes.len(), item.value.len(), attributes.client_flags);
        let info = ItemInfo {
            key: key.bytes,
            binary_key: attributes.binary_key,
            ttl: attributes.expiry.left(now),
            idle_secs: now.secs.0.saturating_sub(item.accessed.0),
            cas: item.cas,
            fetched: item.fetched,
            class: u8::try_from(limits.classes.class_of(size) + 1).unwrap_or(u8::MAX),
            size,
        };
        reply::item_info(debug, Some(&info), output);
    });
    if let Lookup::Pending = looked {
        return false;
    }
    cx.operations.counters.thread.cmd_meta.add(1);
    if !matches!(looked, Lookup::Hit(())) {
        reply::item_info(debug, None, output);
    }
    true
}

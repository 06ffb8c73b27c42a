//! Lookups: `get`, `gat`, `touch`, `mg`, `me`, and their binary counterparts.

use super::lower;
use crate::Host;
use crate::context::Context;
use crate::session::pending::{OutgoingValue, Pending};
use crate::time::resolve;
use larder_operations::ItemView;
use larder_protocol::reply::{self, Hit, ItemInfo, ShownItem, Ttl};
use larder_protocol::{Debug, FastGet, Get, ReplyFormat};
use larder_store::{Content, Engine, HashedKey, Item, Lease, Lookup, Now, Tag, Value};

/// The result of a lookup.
#[derive(Clone, Copy)]
pub(crate) enum LookupReply {
    /// The reply is in the output. A large value may follow: it is then in [`Pending`].
    Written,
    /// An error is in the output. This error ends the reply to the whole line of keys.
    Refused,
    /// The item is on slower storage. The output is unchanged.
    Pending,
}

/// The result of writing a hit.
#[derive(Clone, Copy)]
enum HitReply {
    /// The reply is in the output. A large value may follow: it is then in [`Pending`].
    Written,
    /// The value is not in the output, because it is too large to copy and leases already use too
    /// much memory. The output is unchanged.
    Refused,
}

/// Answers a lookup on the fast path. The lookup must not change its item. Returns `None` if the
/// item is large, or if a meta lookup finds a stale item, a won item or an item with a binary key.
/// The caller then calls [`get`].
#[inline]
pub(crate) fn fast_get<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    fast: &FastGet<'_>,
    key: HashedKey<'_>,
    output: &mut Vec<u8>,
) -> Option<LookupReply> {
    let now = cx.operations.now;
    let lookup = if fast.is_meta() {
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
    match lookup {
        Lookup::Hit(shown) => shown.map(|()| LookupReply::Written),
        Lookup::Miss | Lookup::Expired | Lookup::Flushed => {
            reply::miss(&fast.get(), key.bytes, output);
            Some(LookupReply::Written)
        }
        Lookup::Pending => Some(LookupReply::Pending),
    }
}

/// Answers any lookup. `is_recorded` states whether [`fast_get`] has already recorded the access.
pub(crate) fn get<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    get: &Get<'_>,
    key: HashedKey<'_>,
    (is_recorded, tags): (bool, &[Tag]),
    pending: &mut Pending<E>,
    output: &mut Vec<u8>,
) -> LookupReply {
    let (now, start) = (cx.operations.now, output.len());
    let is_plain = get.touch.is_none() && !matches!(get.format, ReplyFormat::Meta(_));
    if is_plain && !is_recorded {
        let lookup = cx
            .operations
            .content(key, |content| Some(show_content(get, key.bytes, content, pending, output)));
        let lookup = lookup.map(|shown| shown.unwrap_or(HitReply::Refused));
        return finish(cx, get, key.bytes, &lookup, output);
    }
    let lookup = cx.operations.look_up(
        key,
        &lower::lookup_options(get, tags, now, cx.settings),
        is_recorded,
        |item| {
            output.truncate(start);
            show(get, key.bytes, item, now, pending, output)
        },
    );
    if !matches!(lookup, Ok(Lookup::Hit(_))) {
        // Drop any output that the closure wrote before the update failed. An update fails if the
        // engine refuses the change, has to wait, or evicts the item to make room for the change.
        *pending = Pending::Idle;
        output.truncate(start);
    }
    match lookup {
        Ok(lookup) => finish(cx, get, key.bytes, &lookup, output),
        Err(_) => {
            reply::get_created_refused(get, output);
            LookupReply::Refused
        }
    }
}

/// Writes the reply to a hit of a classic or binary get that sets no new expiry. Such a reply
/// contains only the flags, the CAS value and the value.
fn show_content<E: Engine>(
    get: &Get<'_>,
    key: &[u8],
    content: &Content<'_, E::Lease>,
    pending: &mut Pending<E>,
    output: &mut Vec<u8>,
) -> HitReply {
    let (start, len) = (output.len(), content.value.len());
    reply::content_head(get, key, content.client_flags, content.cas, len, output);
    show_value(get, &content.value, start, pending, output)
}

/// Writes the reply to any hit. If the function is called again for the same request, a large value
/// replaces the value in `pending`.
fn show<E: Engine>(
    get: &Get<'_>,
    key: &[u8],
    item: &ItemView<'_, E::Lease>,
    now: Now,
    pending: &mut Pending<E>,
    output: &mut Vec<u8>,
) -> HitReply {
    *pending = Pending::Idle;
    let start = output.len();
    if reply::hit_head(get, &hit(get, key, item, now), output) {
        show_value(get, item.value, start, pending, output)
    } else {
        HitReply::Written
    }
}

/// Writes the value and the end of a reply. `start` is the offset of the reply in the output.
fn show_value<E: Engine>(
    get: &Get<'_>,
    value: &Value<'_, E::Lease>,
    start: usize,
    pending: &mut Pending<E>,
    output: &mut Vec<u8>,
) -> HitReply {
    match value {
        Value::Whole(bytes) => {
            output.extend_from_slice(bytes);
            reply::hit_tail(get, output);
        }
        Value::Large(lease) if lease.may_be_kept() => {
            let mut tail = Vec::new();
            reply::hit_tail(get, &mut tail);
            *pending = Pending::Send(Box::new(OutgoingValue::new(lease.clone(), tail)));
        }
        Value::Large(lease) if lease.len() <= COPIED_LEN_MAX => {
            copy(lease, output);
            reply::hit_tail(get, output);
        }
        Value::Large(_) => {
            output.truncate(start);
            return HitReply::Refused;
        }
    }
    HitReply::Written
}

/// Returns the fields of the reply to a hit.
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

/// The maximum length, in bytes, of a large value that the session copies to the output because it
/// may not lease the value. This length equals the default maximum item size (`-I`). The copy
/// counts as a buffer of the connection.
pub(crate) const COPIED_LEN_MAX: usize = 1 << 20;

pub(crate) fn copy(lease: &impl Lease, output: &mut Vec<u8>) {
    let end = output.len() + lease.len();
    while output.len() < end {
        output.extend_from_slice(lease.piece(lease.len() + output.len() - end));
    }
}

/// Completes the reply to a lookup: writes a miss, or an error if the session could not write the
/// value.
fn finish<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    get: &Get<'_>,
    key: &[u8],
    lookup: &Lookup<HitReply>,
    output: &mut Vec<u8>,
) -> LookupReply {
    match lookup {
        Lookup::Hit(HitReply::Written) => (),
        Lookup::Hit(HitReply::Refused) => {
            cx.operations.counters.thread.response_obj_oom.add(1);
            reply::get_refused(get, output);
            return LookupReply::Refused;
        }
        Lookup::Miss | Lookup::Expired | Lookup::Flushed => reply::miss(get, key, output),
        Lookup::Pending => return LookupReply::Pending,
    }
    LookupReply::Written
}

/// Answers `me`. Writes nothing and returns false if the item is on slower storage.
pub(crate) fn describe<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    debug: &Debug<'_>,
    key: HashedKey<'_>,
    output: &mut Vec<u8>,
) -> bool {
    let (now, limits) = (cx.operations.now, cx.operations.limits);
    let lookup = cx.operations.describe(key, |item| {
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
    if let Lookup::Pending = lookup {
        return false;
    }
    cx.operations.counters.thread.cmd_meta.add(1);
    if !matches!(lookup, Lookup::Hit(())) {
        reply::item_info(debug, None, output);
    }
    true
}

//! Converts requests to operations. Differences between dialects, and the order of meta flags,
//! become fields of the operation. Relative expiry times become absolute times.

use crate::context::Settings;
use crate::time::resolve;
use larder_operations as operations;
use larder_operations::{Count, CreateEmpty, CreateNumber, LookupOptions, Recache, Remove};
use larder_protocol::{Arithmetic, Delete, Exptime, Get, ReplyFormat, Store, StoreMode};
use larder_store::{Expiry, Now, Tag};

/// Returns the lookup options for `get`, `gat`, `touch` and `mg`.
pub(crate) fn lookup_options<'t>(
    get: &Get<'_>,
    tags: &'t [Tag],
    now: Now,
    settings: &Settings,
) -> LookupOptions<'t> {
    let flags = get.format.meta();
    let create = get.vivify.map(|vivify| CreateEmpty {
        expiry: created_expiry(&get.format, vivify, get.touch, now),
        new_cas: get.new_cas,
        binary_key: get.key.base64,
        tags,
    });
    let recache = get.recache.and_then(|within| {
        let after_touch = flags.is_some_and(|flags| !flags.precedes(b'R', b'T'));
        Some(Recache { within_secs: recache_secs(within, now)?, after_touch })
    });
    LookupOptions {
        touch: get.touch.map(|touch| resolve(touch, now)),
        create,
        may_win: flags.is_some() && !settings.for_gateway,
        recache,
        untracked: get.untracked,
        // Like memcached, count a miss of `mg` with T as a get, too.
        miss_counts_as_get: flags.is_some(),
    }
}

/// Returns the value of the meta flag `R`, in seconds. Like memcached, parses the number as an
/// expiry time: a value above 30 days is a Unix time. Returns `None` for 0, which has no effect.
fn recache_secs(within: i32, now: Now) -> Option<u32> {
    resolve(Exptime(within.into()), now).left(now)
}

/// Returns the store operation for `set`, `add`, `replace`, `append`, `prepend`, `cas` and `ms`.
#[inline]
pub(crate) fn store<'v>(
    store: &Store<'v>,
    tags: &'v [Tag],
    now: Now,
    settings: &Settings,
) -> operations::Store<'v> {
    let mode = match store.mode {
        StoreMode::Set => operations::StoreMode::Set,
        StoreMode::Add => operations::StoreMode::Add,
        StoreMode::Replace => operations::StoreMode::Replace,
        StoreMode::Append => operations::StoreMode::Append,
        StoreMode::Prepend => operations::StoreMode::Prepend,
    };
    let refusal_removes = match store.format {
        ReplyFormat::Meta(_) => !settings.for_gateway,
        ReplyFormat::Classic(_) => store.mode == StoreMode::Set && store.compare.is_none(),
        ReplyFormat::Binary(_) => store.mode == StoreMode::Set,
    };
    operations::Store {
        mode,
        value: store.value,
        value_len: store.value_len,
        client_flags: store.client_flags,
        expiry: resolve(store.expiry, now),
        compare: store.compare,
        new_cas: store.new_cas,
        invalidate: store.invalidate,
        create: store.vivify.map(|vivify| resolve(vivify, now)),
        binary_key: store.key.base64,
        tags,
        refusal_removes,
    }
}

/// Returns the removal operation for `delete` and `md`.
pub(crate) fn remove(delete: &Delete<'_>, now: Now) -> Remove {
    Remove {
        compare: delete.compare,
        new_cas: delete.new_cas,
        invalidate: delete.invalidate,
        value_only: delete.value_only,
        touch: delete.touch.map(|touch| resolve(touch, now)),
        client_flags: delete.client_flags,
        // memcached counts a CAS mismatch as a miss, except in the binary protocol.
        mismatch_uncounted: matches!(delete.format, ReplyFormat::Binary(_)),
    }
}

/// Returns the operation for `incr`, `decr` and `ma`.
pub(crate) fn count<'t>(arithmetic: &Arithmetic<'_>, tags: &'t [Tag], now: Now) -> Count<'t> {
    let create = arithmetic.vivify.map(|vivify| CreateNumber {
        value: arithmetic.initial,
        expiry: created_expiry(&arithmetic.format, vivify, arithmetic.touch, now),
        binary_key: arithmetic.key.base64,
        tags,
    });
    Count {
        down: arithmetic.down,
        delta: arithmetic.delta,
        create,
        touch: arithmetic.touch.map(|touch| resolve(touch, now)),
        compare: arithmetic.compare,
        new_cas: arithmetic.new_cas,
    }
}

/// Returns the expiry of an item that a request creates. In a meta request, the last of the flags
/// `N` and `T` determines it. Other requests have only one expiry.
fn created_expiry(
    format: &ReplyFormat<'_>,
    vivify: Exptime,
    touch: Option<Exptime>,
    now: Now,
) -> Expiry {
    let last = match (format.meta(), touch) {
        (Some(flags), Some(touch)) if flags.precedes(b'N', b'T') => touch,
        _ => vivify,
    };
    resolve(last, now)
}

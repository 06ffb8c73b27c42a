//! Look-ups: `get`, `gat`, `touch`, `mg`, `me`, and their binary kin.

use crate::pending::Sending;
use crate::session::Context;
use crate::time::resolve;
use crate::{Counters, Host};
use larder_protocol::reply::{self, Described, Glance, Hit, Ttl};
use larder_protocol::{Debug, Exptime, Get, LoneGet, Shape};
use larder_store::{
    Access, Attributes, Change, Engine, Expiry, HashedKey, Item, Lease, Lookup, NewCas, NewValue,
    Seconds, Value,
};

/// How far a look-up is answered.
pub(crate) enum Answered<L> {
    /// The answer is written.
    Whole,
    /// It is written up to a value that is still to be sent.
    Large(Sending<L>),
    /// There was no memory for it: an error is written.
    Refused,
}

/// What became of the answer to a hit.
enum Shown<L> {
    /// It is written.
    Whole,
    /// It is written up to a value that is sent piece by piece.
    Large(L),
    /// Too much is leased already for its value to be sent.
    Refused,
    /// Nothing is written: the item has to change first. This is how it was before this look.
    Changes(Traces),
}

/// What earlier readers left on an item.
#[derive(Clone, Copy)]
struct Traces {
    fetched: bool,
    accessed: Seconds,
}

impl Traces {
    fn of<L>(item: &Item<'_, L>) -> Self {
        Self { fetched: item.fetched, accessed: item.accessed }
    }
}

/// Answers a look-up that only asks, if no more than that comes of it; false if more does.
#[inline]
pub(crate) fn lone_get<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    get: LoneGet<'_>,
    key: HashedKey<'_>,
    output: &mut Vec<u8>,
) -> bool {
    let (now, classes) = (cx.now, &cx.settings.classes);
    let class_of = |value: &[u8], flags| {
        classes.class_of(classes.footprint(key.bytes.len(), value.len(), flags))
    };
    let found = if get.is_meta() {
        cx.engine.get(key, Access::Tracked, |item| {
            let Item { attributes: seen, cas, value: Value::Whole(value), .. } = *item else {
                return None;
            };
            if seen.stale || seen.won || seen.binary_key {
                return None;
            }
            let (client_flags, ttl) = (seen.client_flags, seen.expiry.left(now));
            reply::lone_glance(&get, &Glance { client_flags, cas, ttl, value }, output);
            Some(class_of(value, client_flags))
        })
    } else {
        cx.engine.content(key, |content| {
            let Value::Whole(value) = content.value else { return None };
            reply::lone_value(&get, content.client_flags, content.cas, value, output);
            Some(class_of(value, content.client_flags))
        })
    };
    match found {
        Lookup::Hit(Some(class)) => {
            if let Some(class) = cx.counters.classes.get(class) {
                class.get_hits.add(1);
            }
        }
        Lookup::Hit(None) => return false,
        gone => {
            bury(cx.engine, key, &gone);
            missed(cx, &get.get(), key, &gone, output);
        }
    }
    true
}

/// Answers a look-up.
pub(crate) fn get<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    get: &Get<'_>,
    key: HashedKey<'_>,
    output: &mut Vec<u8>,
) -> Answered<E::Lease> {
    if get.touch.is_some() || get.vivify.is_some() || get.recache.is_some() {
        return change(cx, get, key, None, output);
    }
    if let Shape::Classic(_) | Shape::Binary(_) = get.shape {
        return plain(cx, get, key, output);
    }
    let access = if get.untracked { Access::Untracked } else { Access::Tracked };
    let (now, classes, mark) = (cx.now, &cx.settings.classes, output.len());
    let mut class = 0;
    let found = cx.engine.get(key, access, |item| {
        let traces = Traces::of(item);
        if item.attributes.stale && !item.attributes.won {
            return Shown::Changes(traces);
        }
        let flags = item.attributes.client_flags;
        class = classes.class_of(classes.footprint(key.bytes.len(), item.value.len(), flags));
        let seen = Seen::of(get, item, now);
        show(get, &seen.hit(get, key.bytes, item, traces, now), &item.value, output)
    });
    match found {
        Lookup::Hit(Shown::Changes(traces)) => change(cx, get, key, Some(traces), output),
        Lookup::Hit(shown) => {
            count(cx.counters, get, Some(class));
            finish(cx, get, shown, mark, output)
        }
        gone => {
            bury(cx.engine, key, &gone);
            missed(cx, get, key, &gone, output);
            Answered::Whole
        }
    }
}

/// Answers a look-up that wants the content of an item alone.
#[inline]
fn plain<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    get: &Get<'_>,
    key: HashedKey<'_>,
    output: &mut Vec<u8>,
) -> Answered<E::Lease> {
    let (classes, mark) = (&cx.settings.classes, output.len());
    let mut class = 0;
    let found = cx.engine.content(key, |content| {
        let len = content.value.len();
        class = classes.class_of(classes.footprint(key.bytes.len(), len, content.client_flags));
        reply::content_head(get, key.bytes, content.client_flags, content.cas, len, output);
        show_value(get, &content.value, mark, output)
    });
    match found {
        Lookup::Hit(shown) => {
            count(cx.counters, get, Some(class));
            match shown {
                Shown::Whole => Answered::Whole,
                other => finish(cx, get, other, mark, output),
            }
        }
        gone => {
            bury(cx.engine, key, &gone);
            missed(cx, get, key, &gone, output);
            Answered::Whole
        }
    }
}

/// Takes away what was found dead, so that it is counted once.
fn bury<E: Engine, R>(engine: &mut E, key: HashedKey<'_>, gone: &Lookup<R>) {
    if matches!(gone, Lookup::Expired | Lookup::Flushed) {
        // Removing needs no memory.
        let _ = engine.update(key, &mut None, |found| match found {
            Lookup::Hit(_) => (Change::Keep, ()),
            _ => (Change::Remove, ()),
        });
    }
}

/// What a look-up makes of an item, and shows of it.
struct Seen {
    /// The item's attributes afterwards.
    attributes: Attributes,
    won: bool,
    win_taken: bool,
}

impl Seen {
    fn of<L: Lease>(get: &Get<'_>, item: &Item<'_, L>, now: Seconds) -> Self {
        let before = item.attributes;
        let mut attributes = before;
        if let Some(touch) = get.touch {
            attributes.expiry = resolve(touch, now);
        }
        let Shape::Meta(flags) = &get.shape else {
            return Self { attributes, won: false, win_taken: false };
        };
        let seen_by_recache = match get.touch {
            Some(_) if !flags.precedes(b'R', b'T') => attributes.expiry,
            _ => before.expiry,
        };
        let recaches = get.recache.is_some_and(|within| ends_within(seen_by_recache, within, now));
        let won = !before.won && (before.stale || recaches);
        attributes.won |= won;
        Self { attributes, won, win_taken: before.won }
    }

    fn hit<'k, L: Lease>(
        &self,
        get: &Get<'_>,
        key: &'k [u8],
        item: &Item<'_, L>,
        traces: Traces,
        now: Seconds,
    ) -> Hit<'k> {
        Hit {
            key,
            binary_key: item.attributes.binary_key,
            client_flags: item.attributes.client_flags,
            cas: item.cas,
            value_len: item.value.len(),
            ttl: Ttl {
                before: item.attributes.expiry.left(now),
                touched: self.attributes.expiry.left(now),
                vivified: None,
            },
            idle_secs: now.0.saturating_sub(traces.accessed.0),
            hit_before: traces.fetched,
            won: self.won,
            stale: item.attributes.stale,
            win_taken: self.win_taken,
            withheld: get.compare == Some(item.cas),
        }
    }
}

/// `mg R`: fewer than `within` seconds are left. Never for what lives for ever.
fn ends_within(expiry: Expiry, within: i32, now: Seconds) -> bool {
    match (expiry.left(now), u32::try_from(within)) {
        (Some(left), Ok(within)) => left < within,
        _ => false,
    }
}

/// Writes the answer to a hit.
#[inline]
fn show<L: Lease>(
    get: &Get<'_>,
    hit: &Hit<'_>,
    value: &Value<'_, L>,
    output: &mut Vec<u8>,
) -> Shown<L> {
    let mark = output.len();
    if !reply::hit_head(get, hit, output) {
        return Shown::Whole;
    }
    show_value(get, value, mark, output)
}

/// Writes the rest of an answer that began at `mark`.
#[inline]
fn show_value<L: Lease>(
    get: &Get<'_>,
    value: &Value<'_, L>,
    mark: usize,
    output: &mut Vec<u8>,
) -> Shown<L> {
    match value {
        Value::Whole(bytes) => {
            output.extend_from_slice(bytes);
            reply::hit_tail(get, output);
            Shown::Whole
        }
        Value::Large(lease) => Shown::Large(lease.clone()),
        Value::Busy { .. } => {
            output.truncate(mark);
            Shown::Refused
        }
    }
}

/// Sees to the rest of an answer that began at `mark`.
fn finish<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    get: &Get<'_>,
    shown: Shown<E::Lease>,
    mark: usize,
    output: &mut Vec<u8>,
) -> Answered<E::Lease> {
    match shown {
        Shown::Whole | Shown::Changes(_) => Answered::Whole,
        Shown::Large(lease) => {
            let mut tail = Vec::new();
            reply::hit_tail(get, &mut tail);
            Answered::Large(Sending::new(lease, tail))
        }
        Shown::Refused => {
            cx.counters.thread.response_obj_oom.add(1);
            output.truncate(mark);
            reply::get_refused(get, output);
            Answered::Refused
        }
    }
}

/// Answers a look-up that changes what it finds. `traces` are those of before, if this is not the
/// first look.
fn change<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    get: &Get<'_>,
    key: HashedKey<'_>,
    traces: Option<Traces>,
    output: &mut Vec<u8>,
) -> Answered<E::Lease> {
    let (now, mark) = (cx.now, output.len());
    let classes = &cx.settings.classes;
    let class_of = |len, flags| classes.class_of(classes.footprint(key.bytes.len(), len, flags));
    let mut class = class_of(0, 0);
    let updated = cx.engine.update(key, &mut None, |found| {
        output.truncate(mark);
        match found {
            Lookup::Hit(item) => {
                class = class_of(item.value.len(), item.attributes.client_flags);
                let seen = Seen::of(get, item, now);
                let traces = traces.unwrap_or_else(|| Traces::of(item));
                let hit = seen.hit(get, key.bytes, item, traces, now);
                let shown = show(get, &hit, &item.value, output);
                (amend(get, item, &seen), Lookup::Hit(Some(shown)))
            }
            _ if get.vivify.is_some() => (create(get, now), Lookup::Hit(None)),
            gone => (Change::Keep, gone.map(|_| None)),
        }
    });
    let Ok(updated) = updated else {
        output.truncate(mark);
        cx.counters.thread.store_no_memory.add(1);
        reply::get_created_refused(get, output);
        return Answered::Refused;
    };
    match updated.result {
        Lookup::Hit(Some(shown)) => {
            count(cx.counters, get, Some(class));
            return finish(cx, get, shown, mark, output);
        }
        Lookup::Hit(None) => {
            count(cx.counters, get, Some(class));
            show_created(get, key.bytes, updated.cas, now, output);
        }
        gone => missed(cx, get, key, &gone, output),
    }
    Answered::Whole
}

fn amend<L>(get: &Get<'_>, item: &Item<'_, L>, seen: &Seen) -> Change<'static> {
    let access = if get.untracked { Access::Untracked } else { Access::Tracked };
    if seen.attributes != item.attributes {
        Change::Amend { attributes: seen.attributes, cas: NewCas::Same, access }
    } else if get.untracked {
        Change::Keep
    } else {
        Change::Touch
    }
}

/// The expiry of an item that `mg N` creates: of `N` and `T` the later one counts.
fn created_expiry(get: &Get<'_>, now: Seconds) -> Expiry {
    let vivify = get.vivify.unwrap_or_default();
    let last = match (&get.shape, get.touch) {
        (Shape::Meta(flags), Some(touch)) if flags.precedes(b'N', b'T') => touch,
        _ => vivify,
    };
    resolve(last, now)
}

/// An empty item whose creator has won the right to fill it.
fn create(get: &Get<'_>, now: Seconds) -> Change<'static> {
    let expiry = created_expiry(get, now);
    let binary_key = get.key.base64;
    let attributes = Attributes { expiry, won: true, binary_key, ..Attributes::default() };
    let cas = get.new_cas.map_or(NewCas::Fresh, NewCas::Exactly);
    Change::Put { attributes, cas, value: NewValue::Bytes(&[]), fetched: !get.untracked }
}

fn show_created(get: &Get<'_>, key: &[u8], cas: u64, now: Seconds, output: &mut Vec<u8>) {
    let left =
        |exptime: Option<Exptime>| exptime.and_then(|exptime| resolve(exptime, now).left(now));
    let ttl = Ttl { before: None, touched: left(get.touch), vivified: Some(left(get.vivify)) };
    let hit = Hit {
        key,
        binary_key: get.key.base64,
        client_flags: 0,
        cas,
        value_len: 0,
        ttl,
        idle_secs: 0,
        hit_before: false,
        won: true,
        stale: false,
        win_taken: false,
        withheld: get.compare == Some(cas),
    };
    if reply::hit_head(get, &hit, output) {
        reply::hit_tail(get, output);
    }
}

fn missed<E: Engine, H: Host, R>(
    cx: &mut Context<'_, E, H>,
    get: &Get<'_>,
    key: HashedKey<'_>,
    why: &Lookup<R>,
    output: &mut Vec<u8>,
) {
    match why {
        Lookup::Expired => cx.counters.thread.get_expired.add(1),
        Lookup::Flushed => cx.counters.thread.get_flushed.add(1),
        Lookup::Hit(_) | Lookup::Miss | Lookup::Pending => (),
    }
    count(cx.counters, get, None);
    reply::miss(get, key.bytes, output);
}

/// Counts a look-up: a hit in its item's class, or a miss.
#[inline]
fn count(counters: &Counters, get: &Get<'_>, hit_in: Option<usize>) {
    let class = hit_in.and_then(|class| counters.classes.get(class));
    let thread = &counters.thread;
    // `mg` with T that finds nothing counts as a get, as it does in memcached.
    let touches = get.touch.is_some() && (class.is_some() || !matches!(get.shape, Shape::Meta(_)));
    if touches {
        thread.cmd_touch.add(1);
        class.map_or(&thread.touch_misses, |class| &class.touch_hits).add(1);
    } else {
        class.map_or(&thread.get_misses, |class| &class.get_hits).add(1);
    }
}

/// `me`.
pub(crate) fn describe<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    debug: &Debug<'_>,
    key: HashedKey<'_>,
    output: &mut Vec<u8>,
) {
    cx.counters.thread.cmd_meta.add(1);
    let (now, classes) = (cx.now, &cx.settings.classes);
    let found = cx.engine.get(key, Access::Untracked, |item| {
        let attributes = &item.attributes;
        let len = item.value.len();
        let size = classes.footprint(key.bytes.len(), len, attributes.client_flags);
        let described = Described {
            key: key.bytes,
            binary_key: attributes.binary_key,
            ttl: attributes.expiry.left(now),
            idle_secs: now.0.saturating_sub(item.accessed.0),
            cas: item.cas,
            fetched: item.fetched,
            class: u8::try_from(classes.class_of(size) + 1).unwrap_or(u8::MAX),
            size,
        };
        reply::described(debug, Some(&described), output);
    });
    if !matches!(found, Lookup::Hit(())) {
        reply::described(debug, None, output);
    }
}

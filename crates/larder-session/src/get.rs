//! Look-ups: `get`, `gat`, `touch`, `mg`, `me`, and their binary kin.

use crate::session::{Context, Sending};
use crate::time::resolve;
use crate::{Counters, Host};
use larder_protocol::reply::{self, Described, Hit};
use larder_protocol::{Debug, Get, Shape};
use larder_store::{
    Access, Attributes, Change, Engine, Expiry, HashedKey, Item, Lease, Lookup, NewCas, NewValue,
    Seconds, Value,
};

/// What became of the answer to a hit.
enum Shown<L> {
    /// It is written.
    Whole,
    /// It is written up to a value that is sent piece by piece.
    Large(L),
    /// There is no memory to send it with.
    Refused,
    /// Nothing is written: the item has to change first.
    Changes,
}

/// Answers a look-up. What is returned is still to be sent.
#[inline]
pub(crate) fn get<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    get: &Get<'_>,
    key: HashedKey<'_>,
    output: &mut Vec<u8>,
) -> Option<Sending<E::Lease>> {
    if get.touch.is_some() || get.vivify.is_some() || get.recache.is_some() {
        return change(cx, get, key, output);
    }
    let access = if get.untracked { Access::Untracked } else { Access::Tracked };
    let (now, classes) = (cx.now, &cx.settings.classes);
    let meta = matches!(get.shape, Shape::Meta(_));
    let mut class = 0;
    let found = cx.engine.get(key, access, |item| {
        if meta && (item.attributes.stale || item.attributes.won) {
            return Shown::Changes;
        }
        let flags = item.attributes.client_flags;
        class = classes.class_of(classes.footprint(key.bytes.len(), item.value.len(), flags));
        let seen = Seen::of(get, item, now);
        show(get, &seen.hit(get, key.bytes, item, now), &item.value, output)
    });
    match found {
        Lookup::Hit(Shown::Changes) => return change(cx, get, key, output),
        Lookup::Hit(shown) => {
            count(cx.counters, get, Some(class));
            return finish(cx, get, shown, output);
        }
        _ => missed(cx, get, key, &found, output),
    }
    None
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
        let seen_by_recache =
            if flags.precedes(b'R', b'T') { before.expiry } else { attributes.expiry };
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
        now: Seconds,
    ) -> Hit<'k> {
        Hit {
            key,
            binary_key: item.attributes.binary_key,
            client_flags: item.attributes.client_flags,
            cas: item.cas,
            value_len: item.value.len(),
            ttl_before: item.attributes.expiry.left(now),
            ttl_after: self.attributes.expiry.left(now),
            idle_secs: now.0.saturating_sub(item.accessed.0),
            hit_before: item.fetched,
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

fn finish<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    get: &Get<'_>,
    shown: Shown<E::Lease>,
    output: &mut Vec<u8>,
) -> Option<Sending<E::Lease>> {
    match shown {
        Shown::Whole | Shown::Changes => None,
        Shown::Refused => {
            reply::get_refused(get, output);
            None
        }
        Shown::Large(lease) => {
            let mut tail = Vec::new();
            reply::hit_tail(get, &mut tail);
            Sending::new(lease, tail, cx.host).or_else(|| {
                // The head is written already: the answer can't be taken back, but it can be ended.
                cx.counters.thread.response_obj_oom.add(1);
                None
            })
        }
    }
}

/// Answers a look-up that changes what it finds.
fn change<E: Engine, H: Host>(
    cx: &mut Context<'_, E, H>,
    get: &Get<'_>,
    key: HashedKey<'_>,
    output: &mut Vec<u8>,
) -> Option<Sending<E::Lease>> {
    let (now, mark) = (cx.now, output.len());
    let classes = &cx.settings.classes;
    let mut class = 0;
    let updated = cx.engine.update(key, &mut None, |found| {
        output.truncate(mark);
        match found {
            Lookup::Hit(item) => {
                let flags = item.attributes.client_flags;
                let footprint = classes.footprint(key.bytes.len(), item.value.len(), flags);
                class = classes.class_of(footprint);
                let seen = Seen::of(get, item, now);
                let shown = show(get, &seen.hit(get, key.bytes, item, now), &item.value, output);
                (amend(get, item, &seen), Lookup::Hit(Some(shown)))
            }
            gone => match get.vivify {
                Some(_) => (create(get, now), Lookup::Hit(None)),
                None => (Change::Keep, gone.map(|_| None)),
            },
        }
    });
    match updated {
        Ok(updated) => match updated.result {
            Lookup::Hit(Some(shown)) => {
                count(cx.counters, get, Some(class));
                return finish(cx, get, shown, output);
            }
            Lookup::Hit(None) => {
                count(
                    cx.counters,
                    get,
                    Some(classes.class_of(classes.footprint(key.bytes.len(), 0, 0))),
                );
                show_created(get, key.bytes, updated.cas, now, output);
            }
            missed_by => missed(cx, get, key, &missed_by, output),
        },
        Err(_) => {
            output.truncate(mark);
            cx.counters.thread.store_no_memory.add(1);
            reply::get_created_refused(get, output);
        }
    }
    None
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
    let hit = Hit {
        key,
        binary_key: get.key.base64,
        client_flags: 0,
        cas,
        value_len: 0,
        ttl_before: None,
        ttl_after: created_expiry(get, now).left(now),
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
    match (get.touch.is_some(), class) {
        (true, class) => {
            thread.cmd_touch.add(1);
            class.map_or(&thread.touch_misses, |class| &class.touch_hits).add(1);
        }
        (false, class) => class.map_or(&thread.get_misses, |class| &class.get_hits).add(1),
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

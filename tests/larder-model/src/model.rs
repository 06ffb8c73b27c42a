//! The model: the semantics of each command on a `HashMap`, written for clarity rather than speed.

use crate::item::{Item, expiry, left};
use crate::meta_get;
use larder_protocol::reply::{
    self, AdminRefusal, ArithmeticReply, DeleteReply, Hit, ItemInfo, ShownItem, StatsRefusal,
    StoreReply, Ttl,
};
use larder_protocol::{
    Arithmetic, Debug, Delete, DropTag, Exptime, Get, KEY_LEN_MAX, Key, ReplyFormat, Request,
    Store, StoreMode,
};
use std::collections::{HashMap, HashSet};

/// The configuration of the server that the model imitates.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The version in the reply to `version`.
    pub version: String,
    /// Maximum size of an item in bytes (option `-I`).
    pub item_size_max: usize,
    /// Maximum item size of each slab class in bytes. `me` reports the class of an item.
    pub classes: Vec<usize>,
}

/// A cache that never evicts.
#[derive(Clone, Debug)]
pub struct Model {
    settings: Settings,
    items: HashMap<Vec<u8>, Item>,
    cas: u64,
    /// The tags that requests have named so far.
    tags: HashSet<Vec<u8>>,
    /// Time of a delayed flush, in Unix seconds. At this time, the flush removes all items that
    /// were stored earlier.
    flush_at: Option<u32>,
}

/// Number of bytes per item in addition to key, flags and value: memcached's header, CAS,
/// terminator and CRLF.
const OVERHEAD: usize = 59;
/// Maximum length, in bytes, of a value that `incr` and `decr` parse as a number.
const NUMBER_LEN_MAX: usize = 512 << 10;

impl Model {
    /// Returns an empty cache.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings, items: HashMap::new(), cas: 0, tags: HashSet::new(), flush_at: None }
    }

    /// Executes `request` at the Unix time `now`, in seconds. Returns the reply, which is empty if
    /// the request suppresses it.
    pub fn answer(&mut self, now: u32, request: &Request<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        self.remove_expired(now);
        match request {
            Request::Get(get) => self.get(now, get, &mut out),
            Request::GetEnd => reply::get_end(&mut out),
            Request::Store(store) => reply::stored(store, self.store(now, store), &mut out),
            Request::Delete(delete) => reply::deleted(delete, self.delete(now, delete), &mut out),
            Request::Arithmetic(count) => reply::counted(count, self.count(now, count), &mut out),
            Request::Debug(debug) => self.describe(now, debug, &mut out),
            Request::DropTag(drop) => reply::tag_dropped(drop, self.drop_tag(drop), &mut out),
            Request::Noop(format) => reply::noop(format, &mut out),
            Request::FlushAll { at, format } => {
                self.flush(now, *at);
                reply::ok(format, &mut out);
            }
            Request::Version(format) => reply::version(format, &self.settings.version, &mut out),
            Request::Verbosity { format, .. } => reply::ok(format, &mut out),
            Request::Stats { topic: b"reset", format } => reply::stats_reset(format, &mut out),
            // The model has no statistics. Comparisons with other servers omit requests for
            // statistics.
            Request::Stats { format, .. } => {
                reply::stats_refused(format, StatsRefusal::UnknownPage, &mut out);
            }
            // The model also has no administrative commands.
            Request::Admin { format, .. } => {
                reply::admin_refused(format, &AdminRefusal::Unsupported, &mut out);
            }
            // The model has no users.
            Request::Login(login) => reply::not_admitted(&login.format, &mut out),
            Request::Quit(format) => reply::quit(format, &mut out),
            Request::Fault(fault) => reply::fault(fault, &mut out),
        }
        out
    }

    /// Removes the items that expired, or were flushed, at or before `now`.
    fn remove_expired(&mut self, now: u32) {
        if let Some(at) = self.flush_at.take_if(|at| *at <= now) {
            self.items.retain(|_, item| item.stored >= at);
        }
        self.items.retain(|_, item| item.expires.is_none_or(|at| at > now));
    }

    fn flush(&mut self, now: u32, delay: Exptime) {
        match expiry(now, delay) {
            Some(at) if at > now => self.flush_at = Some(at),
            _ => {
                self.flush_at = None;
                self.items.clear();
            }
        }
    }

    fn drop_tag(&mut self, drop: &DropTag<'_>) -> bool {
        let tag = decoded(drop.tag);
        self.items.retain(|_, item| !item.tags.contains(&tag));
        self.tags.contains(&tag)
    }

    /// Returns the tags that a request names, and adds them to `self.tags`.
    fn tags_of(&mut self, format: &ReplyFormat<'_>) -> Vec<Vec<u8>> {
        let tags = format
            .meta()
            .map_or_else(Vec::new, |flags| flags.tags().map(<[u8]>::to_vec).collect::<Vec<_>>());
        self.tags.extend(tags.iter().cloned());
        tags
    }

    fn fresh_cas(&mut self) -> u64 {
        self.cas += 1;
        self.cas
    }

    fn get(&mut self, now: u32, get: &Get<'_>, out: &mut Vec<u8>) {
        let key = decoded(get.key);
        let tags = self.tags_of(&get.format);
        let created = !self.items.contains_key(&key) && get.vivify.is_some();
        if created {
            let cas = get.new_cas.unwrap_or_else(|| self.fresh_cas());
            let binary_key = get.key.base64;
            let item =
                Item { cas, binary_key, tags, accessed: now, stored: now, ..Item::default() };
            self.items.insert(key.clone(), item);
        }
        let Some(item) = self.items.get_mut(&key) else { return reply::miss(get, &key, out) };
        if let ReplyFormat::Meta(flags) = &get.format {
            meta_get::answer(get, flags, &key, item, created, now, out);
        } else {
            if let Some(touch) = get.touch {
                item.expires = expiry(now, touch);
            }
            if reply::hit_head(get, &hit(&key, item), out) {
                out.extend(&item.value);
                reply::hit_tail(get, out);
            }
        }
        if !get.untracked {
            item.fetched = true;
            item.accessed = now;
        }
    }

    fn store(&mut self, now: u32, store: &Store<'_>) -> StoreReply {
        self.tags_of(&store.format);
        let key = decoded(store.key);
        if self.size(&key, store.client_flags, store.value_len) > self.settings.item_size_max {
            if drops_old_value(store) {
                self.items.remove(&key);
            }
            return StoreReply::TooLarge;
        }
        if !store.terminated {
            return StoreReply::BadChunk;
        }
        let old = self.items.get(&key).cloned();
        match store.mode {
            StoreMode::Append | StoreMode::Prepend => self.concatenate(now, store, key, old),
            StoreMode::Add if old.is_some() => {
                self.items.entry(key).and_modify(|item| item.accessed = now);
                StoreReply::NotStored
            }
            StoreMode::Add => self.put(now, store, key, Item::default()),
            StoreMode::Set | StoreMode::Replace => self.overwrite(now, store, key, old),
        }
    }

    fn overwrite(
        &mut self,
        now: u32,
        store: &Store<'_>,
        key: Vec<u8>,
        old: Option<Item>,
    ) -> StoreReply {
        match (store.compare, old) {
            (Some(_), None) => StoreReply::NotFound,
            (None, None) if store.mode == StoreMode::Replace => StoreReply::NotStored,
            (Some(cas), Some(old)) if cas != old.cas || cas == 0 => {
                if !store.invalidate || cas >= old.cas || cas == 0 {
                    return StoreReply::Exists;
                }
                let Item { expires, won, .. } = old;
                let outcome = self.put(now, store, key.clone(), Item::default());
                self.items.entry(key).and_modify(|item| {
                    (item.stale, item.expires, item.won) = (true, expires, won);
                });
                outcome
            }
            _ => self.put(now, store, key, Item::default()),
        }
    }

    /// Stores an item with the value and the properties of the request. The fields `stale`, `won`
    /// and `fetched` are taken from `item`.
    fn put(&mut self, now: u32, store: &Store<'_>, key: Vec<u8>, item: Item) -> StoreReply {
        let cas = store.new_cas.unwrap_or_else(|| self.fresh_cas());
        let item = Item {
            tags: self.tags_of(&store.format),
            value: store.value.to_vec(),
            client_flags: store.client_flags,
            expires: expiry(now, store.expiry),
            cas,
            binary_key: store.key.base64,
            accessed: now,
            stored: now,
            ..item
        };
        self.items.insert(key, item);
        StoreReply::Stored { cas, len: store.value_len }
    }

    fn concatenate(
        &mut self,
        now: u32,
        store: &Store<'_>,
        key: Vec<u8>,
        old: Option<Item>,
    ) -> StoreReply {
        let Some(old) = old else {
            return match store.vivify {
                Some(expiry) => self.put(now, &Store { expiry, ..*store }, key, Item::default()),
                None => StoreReply::NotStored,
            };
        };
        if store.compare.is_some_and(|cas| cas != old.cas) {
            return StoreReply::Exists;
        }
        let value = match store.mode {
            StoreMode::Append => [&old.value, store.value].concat(),
            _ => [store.value, &old.value].concat(),
        };
        let len = value.len();
        if self.size(&key, old.client_flags, len) > self.settings.item_size_max {
            return StoreReply::NotStored;
        }
        let cas = store.new_cas.unwrap_or_else(|| self.fresh_cas());
        let Item { client_flags, expires, binary_key, tags, .. } = old;
        let kept = Item { client_flags, expires, binary_key, tags, ..Item::default() };
        let item = Item { value, cas, accessed: now, stored: now, ..kept };
        self.items.insert(key, item);
        StoreReply::Stored { cas, len }
    }

    fn delete(&mut self, now: u32, delete: &Delete<'_>) -> DeleteReply {
        let key = decoded(delete.key);
        let Some(mut item) = self.items.remove(&key) else { return DeleteReply::NotFound };
        if delete.compare.is_some_and(|cas| cas != item.cas || cas == 0) {
            self.items.insert(key, item);
            return DeleteReply::Exists;
        }
        if !delete.value_only && !delete.invalidate {
            return DeleteReply::Deleted { cas: 0 };
        }
        if delete.value_only {
            item = Item {
                client_flags: delete.client_flags.unwrap_or(0),
                cas: item.cas,
                binary_key: item.binary_key,
                tags: item.tags,
                accessed: now,
                stored: now,
                ..Item::default()
            };
        }
        if delete.invalidate {
            (item.stale, item.won) = (true, false);
            item.cas = self.fresh_cas();
        }
        item.cas = delete.new_cas.unwrap_or(item.cas);
        if let Some(touch) = delete.touch {
            item.expires = expiry(now, touch);
        }
        let cas = item.cas;
        self.items.insert(key, item);
        DeleteReply::Deleted { cas }
    }

    fn count(&mut self, now: u32, count: &Arithmetic<'_>) -> ArithmeticReply {
        let key = decoded(count.key);
        let tags = self.tags_of(&count.format);
        let Some(old) = self.items.get(&key).cloned() else {
            return self.create_number(now, count, key, tags);
        };
        if old.value.is_empty() {
            return ArithmeticReply::NonNumeric;
        }
        if count.compare.is_some_and(|cas| cas != old.cas) {
            return ArithmeticReply::Exists;
        }
        let Some(number) = number(&old.value) else { return ArithmeticReply::NonNumeric };
        let value = match count.down {
            true => number.saturating_sub(count.delta),
            false => number.wrapping_add(count.delta),
        };
        let before = left(&old, now);
        let digits = value.to_string().into_bytes();
        let mut item = if digits.len() <= old.value.len() {
            old
        } else {
            let Item { client_flags, expires, binary_key, tags, .. } = old;
            let kept = Item { client_flags, expires, binary_key, tags, ..Item::default() };
            Item { accessed: now, stored: now, ..kept }
        };
        let width = item.value.len().max(digits.len());
        item.value = digits;
        item.value.resize(width, b' ');
        item.cas = count.new_cas.unwrap_or_else(|| self.fresh_cas());
        if let Some(touch) = count.touch {
            item.expires = expiry(now, touch);
        }
        let cas = item.cas;
        let ttl = Ttl { before, touched: left(&item, now), vivified: None };
        self.items.insert(key, item);
        ArithmeticReply::Number { value, cas, ttl }
    }

    fn create_number(
        &mut self,
        now: u32,
        count: &Arithmetic<'_>,
        key: Vec<u8>,
        tags: Vec<Vec<u8>>,
    ) -> ArithmeticReply {
        let Some(vivify) = count.vivify else { return ArithmeticReply::NotFound };
        // Flags take effect in the order of the request. The last of `N` and `T` determines the
        // expiry.
        let expires = match (&count.format, count.touch) {
            (ReplyFormat::Meta(flags), Some(touch)) if flags.precedes(b'N', b'T') => touch,
            _ => vivify,
        };
        let cas = count.new_cas.unwrap_or_else(|| self.fresh_cas());
        let item = Item {
            value: count.initial.to_string().into_bytes(),
            expires: expiry(now, expires),
            cas,
            binary_key: count.key.base64,
            tags,
            accessed: now,
            stored: now,
            ..Item::default()
        };
        let left_at =
            |exptime| left(&Item { expires: expiry(now, exptime), ..Item::default() }, now);
        let touched = count.touch.and_then(left_at);
        let ttl = Ttl { before: None, touched, vivified: Some(left_at(vivify)) };
        self.items.insert(key, item);
        ArithmeticReply::Number { value: count.initial, cas, ttl }
    }

    fn describe(&self, now: u32, debug: &Debug<'_>, out: &mut Vec<u8>) {
        let key = decoded(debug.key);
        let described = self.items.get(&key).map(|item| {
            let size = self.size(&key, item.client_flags, item.value.len());
            let classes = &self.settings.classes;
            let class = classes.iter().position(|bound| size <= *bound).unwrap_or(classes.len());
            ItemInfo {
                key: &key,
                binary_key: item.binary_key,
                ttl: left(item, now),
                idle_secs: now - item.accessed,
                cas: item.cas,
                fetched: item.fetched,
                class: u8::try_from(class + 1).unwrap_or(u8::MAX),
                size,
            }
        });
        reply::item_info(debug, described.as_ref(), out);
    }

    #[expect(clippy::unused_self, reason = "one place knows an item's size")]
    fn size(&self, key: &[u8], client_flags: u32, value_len: usize) -> usize {
        OVERHEAD + key.len() + if client_flags == 0 { 0 } else { 4 } + value_len
    }
}

/// Returns whether a store with a value that is too large removes the old item. In memcached, only
/// some commands remove it.
fn drops_old_value(store: &Store<'_>) -> bool {
    match &store.format {
        ReplyFormat::Classic(_) => store.mode == StoreMode::Set && store.compare.is_none(),
        ReplyFormat::Meta(_) => true,
        ReplyFormat::Binary(head) => matches!(head.opcode, 0x01 | 0x11),
    }
}

/// Parses a value as a number. Like `strtoull`, the function stops at a NUL. Unlike `strtoull`, it
/// rejects negative numbers.
fn number(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > NUMBER_LEN_MAX {
        return None;
    }
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let start = value.iter().position(|byte| !is_space(byte))?;
    let text = &value[start..];
    let text = text.strip_prefix(b"+").unwrap_or(text);
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let ends = text.get(digits).is_none_or(|byte| *byte == 0 || is_space(byte));
    let number = std::str::from_utf8(&text[..digits]).ok()?.parse().ok()?;
    ends.then_some(number)
}

fn decoded(key: Key<'_>) -> Vec<u8> {
    key.decode(&mut [0; KEY_LEN_MAX]).to_vec()
}

/// Returns the properties of an item for classic and binary replies.
fn hit<'k>(key: &'k [u8], item: &Item) -> Hit<'k> {
    Hit {
        key,
        binary_key: item.binary_key,
        item: ShownItem {
            client_flags: item.client_flags,
            cas: item.cas,
            value_len: item.value.len(),
            ..ShownItem::default()
        },
        won: false,
        stale: false,
        win_taken: false,
        withheld: false,
    }
}

//! What watchers and per-prefix counts are told of requests. Nobody pays for it while nobody
//! observes: whether anybody does is asked once a turn.

use crate::Host;
use crate::session::{Context, Flow, Session};
use crate::time::resolve;
use crate::{delete, store};
use larder_protocol::reply::{Deleted, Stored};
use larder_protocol::{Arithmetic, Delete, Exptime, Request, Shape, Store, StoreMode, Streams};
use larder_store::{Access, Engine, Expiry, HashedKey, Lookup, SizeClasses};

/// Something that happened to an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'e> {
    /// It was looked for.
    Fetched {
        /// Its key.
        key: &'e [u8],
        /// What was found: memcached's word.
        status: &'static str,
        /// memcached's slab class, 0 where nothing was found.
        class: usize,
        /// Bytes of its value.
        size: usize,
    },
    /// It was to be stored.
    Stored {
        /// Its key.
        key: &'e [u8],
        /// What became of it: memcached's word.
        status: &'static str,
        /// How: memcached's word.
        command: &'static str,
        /// Seconds that it has left; 0 is for ever, too.
        ttl: u32,
        /// memcached's slab class.
        class: usize,
        /// Bytes of its value.
        size: usize,
    },
    /// It was removed.
    Deleted {
        /// Its key.
        key: &'e [u8],
        /// `delete` or `md`.
        command: &'static str,
        /// memcached's slab class.
        class: usize,
        /// Bytes of its value.
        size: usize,
    },
}

/// A request as counts by prefix see it: of the classic and binary dialects alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixEvent {
    /// `get`, `gat`; whether it was found.
    Get(bool),
    /// A store, whatever became of it.
    Set,
    /// A removal, whatever became of it.
    Delete,
}

/// An item as it is between two steps of a request.
#[derive(Clone, Copy)]
struct Glance {
    status: &'static str,
    class: usize,
    size: usize,
    ttl: u32,
}

impl Glance {
    fn found(&self) -> bool {
        self.status == "found"
    }
}

fn glance<E: Engine, H: Host>(cx: &mut Context<'_, E, H>, key: HashedKey<'_>) -> Glance {
    let (now, classes) = (cx.now, &cx.settings.classes);
    let nothing = |status| Glance { status, class: 0, size: 0, ttl: 0 };
    let seen = cx.engine.get(key, Access::Untracked, |item| {
        let (size, attributes) = (item.value.len(), &item.attributes);
        let class = class_number(classes, key.bytes.len(), size, attributes.client_flags);
        let ttl = attributes.expiry.left(now).unwrap_or(0);
        Glance { status: "found", class, size, ttl }
    });
    match seen {
        Lookup::Hit(glance) => glance,
        Lookup::Expired => nothing("expired"),
        Lookup::Flushed => nothing("flushed"),
        Lookup::Miss | Lookup::Pending => nothing("not_found"),
    }
}

fn class_number(classes: &SizeClasses, key_len: usize, value_len: usize, flags: u32) -> usize {
    classes.class_of(classes.footprint(key_len, value_len, flags)) + 1
}

impl<E: Engine> Session<E> {
    /// Answers a request and tells of it.
    #[cold]
    pub(crate) fn execute_observed<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        request: &Request<'_>,
        key: HashedKey<'_>,
        output: &mut Vec<u8>,
    ) -> Flow {
        let before = if key.bytes.is_empty() { None } else { Some(glance(cx, key)) };
        let (Some(before), false) = (before, matches!(request, Request::Fault(_))) else {
            return self.perform(cx, request, key, output);
        };
        let Glance { status, class, size, .. } = before;
        self.tell(cx, Streams::FETCHERS, &Event::Fetched { key: key.bytes, status, class, size });
        self.count_prefix(cx, request, key.bytes, &before);
        // The look may have taken away what was dead: it is still this request that found it.
        let dead = self.dead_found(cx);
        let flow = match request {
            Request::Store(store) => {
                let outcome = store::store(cx, store, key, &mut None, output);
                self.tell_stored(cx, store, key, outcome);
                Flow::GoOn
            }
            Request::Delete(delete) => {
                let outcome = delete::delete(cx, delete, key, output);
                self.tell_deleted(cx, delete, key, outcome, &before);
                Flow::GoOn
            }
            _ => self.perform(cx, request, key, output),
        };
        if matches!(request, Request::Get(_)) && self.dead_found(cx) == dead {
            match status {
                "expired" => cx.counters.thread.get_expired.add(1),
                "flushed" => cx.counters.thread.get_flushed.add(1),
                _ => (),
            }
        }
        if !before.found() && vivifies(request) {
            self.tell_created(cx, key);
        }
        flow
    }

    fn dead_found<H: Host>(&self, cx: &Context<'_, E, H>) -> u64 {
        cx.counters.thread.get_expired.get() + cx.counters.thread.get_flushed.get()
    }

    fn tell<H: Host>(&self, cx: &Context<'_, E, H>, stream: Streams, event: &Event<'_>) {
        if self.observed.has(stream) {
            cx.host.note(self.client, stream, event);
        }
    }

    fn count_prefix<H: Host>(
        &self,
        cx: &Context<'_, E, H>,
        request: &Request<'_>,
        key: &[u8],
        before: &Glance,
    ) {
        let event = match request {
            Request::Get(get) if get.value && !is_meta(&get.shape) => {
                PrefixEvent::Get(before.found())
            }
            Request::Store(store) if !is_meta(&store.shape) => PrefixEvent::Set,
            Request::Delete(delete) if !is_meta(&delete.shape) => PrefixEvent::Delete,
            _ => return,
        };
        if self.observed.has(Streams::PREFIXES) {
            cx.host.count_prefix(key, event);
        }
    }

    /// Tells what became of a store.
    pub(crate) fn tell_stored<H: Host>(
        &self,
        cx: &mut Context<'_, E, H>,
        store: &Store<'_>,
        key: HashedKey<'_>,
        outcome: Stored,
    ) {
        if !self.observed.has(Streams::MUTATIONS) {
            return;
        }
        let adds = matches!(store.mode, StoreMode::Append | StoreMode::Prepend);
        let (status, size) = match outcome {
            Stored::Stored { len, .. } => ("stored", len),
            Stored::NotStored => ("not_stored", store.value_len),
            Stored::Exists => ("exists", store.value_len),
            Stored::NotFound => ("not_found", store.value_len),
            Stored::TooLarge => ("too_large", store.value_len),
            Stored::OutOfMemory => ("no_memory", store.value_len),
            // It never came to be an item.
            Stored::BadChunk => return,
        };
        let ttl = if adds { glance(cx, key).ttl } else { left(store.expiry, cx) };
        let classes = &cx.settings.classes;
        let class = class_number(classes, key.bytes.len(), size, store.client_flags);
        let command = match (store.mode, store.compare) {
            (StoreMode::Append, _) => "append",
            (StoreMode::Prepend, _) => "prepend",
            (_, Some(_)) => "cas",
            (StoreMode::Add, _) => "add",
            (StoreMode::Replace, _) => "replace",
            (StoreMode::Set, _) => "set",
        };
        let event = Event::Stored { key: key.bytes, status, command, ttl, class, size };
        self.tell(cx, Streams::MUTATIONS, &event);
    }

    /// Tells of an item that a look-up or a count has made.
    fn tell_created<H: Host>(&self, cx: &mut Context<'_, E, H>, key: HashedKey<'_>) {
        let Glance { class, size, ttl, .. } = glance(cx, key);
        if class > 0 {
            let (key, status, command) = (key.bytes, "stored", "add");
            let event = Event::Stored { key, status, command, ttl, class, size };
            self.tell(cx, Streams::MUTATIONS, &event);
        }
    }

    fn tell_deleted<H: Host>(
        &self,
        cx: &Context<'_, E, H>,
        delete: &Delete<'_>,
        key: HashedKey<'_>,
        outcome: Deleted,
        before: &Glance,
    ) {
        if !matches!(outcome, Deleted::Deleted { .. }) || delete.invalidate || delete.value_only {
            return;
        }
        let command = if is_meta(&delete.shape) { "md" } else { "delete" };
        let Glance { class, size, .. } = *before;
        let event = Event::Deleted { key: key.bytes, command, class, size };
        self.tell(cx, Streams::DELETIONS, &event);
    }
}

fn is_meta(shape: &Shape<'_>) -> bool {
    matches!(shape, Shape::Meta(_))
}

fn vivifies(request: &Request<'_>) -> bool {
    match request {
        Request::Get(get) => get.vivify.is_some(),
        Request::Arithmetic(Arithmetic { vivify, .. }) => vivify.is_some(),
        _ => false,
    }
}

fn left<E: Engine, H: Host>(exptime: Exptime, cx: &Context<'_, E, H>) -> u32 {
    match resolve(exptime, cx.now) {
        Expiry::Never => 0,
        at => at.left(cx.now).unwrap_or(0),
    }
}

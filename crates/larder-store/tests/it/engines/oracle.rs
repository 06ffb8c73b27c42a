//! The oracle: a simple model of a cache, with which the engines are compared.

use super::common::{OVERHEAD, START, Seen};
use larder_store::{Access, Attributes, Lookup, NewCas, Now, Seconds};
use std::collections::{HashMap, HashSet};

/// Returns the bytes of a key. The lengths include the minimum, the maximum, and lengths around 256.
pub(crate) fn name(key: u8) -> Vec<u8> {
    let len = [1, 1, 250, 255, 256, 257, 700, 1024][usize::from(key % 8)];
    vec![key; len]
}

/// A map with a clock. Expired and flushed items stay until they are replaced or removed, so that
/// the oracle can tell the reason for a missing item.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    items: HashMap<u8, Item>,
    pub(crate) now: Now,
    flush_at: Option<Seconds>,
    issued: HashSet<u64>,
    /// The last CAS. It is `None` if CAS values are not consecutive, because there are several
    /// handles or because a client has chosen a CAS.
    last: Option<u64>,
}

#[derive(Clone, Debug)]
struct Item {
    seen: Seen,
    flushed: bool,
}

impl Oracle {
    /// Returns an empty oracle. `counting` is true if fresh CAS values are consecutive.
    pub(crate) fn new(counting: bool) -> Self {
        Self { now: START.into(), last: counting.then_some(0), ..Self::default() }
    }

    fn is_live(&self, item: &Item) -> bool {
        !item.flushed && !item.seen.attributes.expiry.is_past(self.now)
    }

    pub(crate) fn live(&self, key: u8) -> Option<&Seen> {
        self.items.get(&key).filter(|item| self.is_live(item)).map(|item| &item.seen)
    }

    /// Returns the number of live items, and their bytes as memcached counts them.
    pub(crate) fn live_len(&self) -> (usize, usize) {
        let live = self.items.iter().filter(|(_, item)| self.is_live(item));
        let footprint = |item: &Item| {
            let flags = if item.seen.attributes.client_flags == 0 { 0 } else { 4 };
            item.seen.value.len() + flags
        };
        let of_item = |(key, item): (&u8, &Item)| OVERHEAD + name(*key).len() + footprint(item);
        (live.clone().count(), live.map(of_item).sum())
    }

    pub(crate) fn dead_count(&self) -> usize {
        self.items.len() - self.live_len().0
    }

    pub(crate) fn advance(&mut self, secs: u32) {
        self.now.secs.0 += secs;
        self.flush_if_due();
    }

    pub(crate) fn advance_millis(&mut self, millis: u16) {
        let millis = self.now.millis + millis;
        self.now.secs.0 += u32::from(millis / 1000);
        self.now.millis = millis % 1000;
        self.flush_if_due();
    }

    fn flush_if_due(&mut self) {
        if self.flush_at.is_some_and(|at| at <= self.now.secs) {
            self.flush_all();
        }
    }

    pub(crate) fn flush_all(&mut self) {
        self.flush_at = None;
        self.items.values_mut().for_each(|item| item.flushed = true);
    }

    pub(crate) fn flush_later(&mut self, at: Seconds) {
        self.flush_at = Some(at);
    }

    /// Checks the result of an engine for `key`. The engine may have removed an expired or flushed
    /// item already.
    #[track_caller]
    pub(crate) fn check(&self, key: u8, shown: &Lookup<Seen>) {
        match (self.items.get(&key), shown) {
            (Some(item), Lookup::Hit(shown)) => {
                assert!(self.is_live(item), "key {key} is dead but was shown");
                self.check_item(key, &item.seen, shown);
            }
            (Some(item), _) if self.is_live(item) => panic!("key {key} is missing: {shown:?}"),
            (_, Lookup::Miss) => (),
            (Some(item), Lookup::Flushed) => assert!(item.flushed, "key {key} was not flushed"),
            (Some(item), Lookup::Expired) => {
                assert!(item.seen.attributes.expiry.is_past(self.now), "key {key} has time left");
            }
            (found, shown) => panic!("key {key}: {found:?} was shown as {shown:?}"),
        }
    }

    #[track_caller]
    fn check_item(&self, key: u8, kept: &Seen, shown: &Seen) {
        let value_is_right = kept.value == shown.value;
        assert!(value_is_right, "key {key}: {} B for {} B", shown.value.len(), kept.value.len());
        assert_eq!(kept.attributes, shown.attributes, "key {key}");
        assert_eq!(kept.cas, shown.cas, "key {key}");
        assert_eq!(kept.fetched, shown.fetched, "key {key}");
        let off = kept.accessed.0.abs_diff(shown.accessed.0);
        // Access times are exact in the first 250 seconds. Later, an engine may round them.
        let elapsed = self.now.secs.0 - START.0;
        let allowed = if elapsed < 250 { 0 } else { elapsed / 64 };
        assert!(off <= allowed, "key {key}: accessed {off} s off");
    }

    pub(crate) fn note_access(&mut self, key: u8) {
        let now = self.now.secs;
        if self.live(key).is_none() {
            return;
        }
        if let Some(item) = self.items.get_mut(&key) {
            item.seen.fetched = true;
            item.seen.accessed = now;
        }
    }

    pub(crate) fn remove(&mut self, key: u8) {
        self.items.remove(&key);
    }

    pub(crate) fn put(
        &mut self,
        key: u8,
        value: Vec<u8>,
        attributes: Attributes,
        (requested, cas): (NewCas, u64),
        fetched: bool,
    ) {
        self.check_cas(key, requested, cas);
        let seen = Seen { attributes, cas, fetched, accessed: self.now.secs, value };
        self.items.insert(key, Item { seen, flushed: false });
    }

    pub(crate) fn amend(
        &mut self,
        key: u8,
        attributes: Attributes,
        (requested, cas): (NewCas, u64),
        access: Access,
    ) {
        if self.live(key).is_none() {
            assert_eq!(cas, 0, "there was nothing to amend");
            return;
        }
        self.check_cas(key, requested, cas);
        if access == Access::Tracked {
            self.note_access(key);
        }
        if let Some(item) = self.items.get_mut(&key) {
            item.seen.attributes = attributes;
            item.seen.cas = cas;
        }
    }

    /// Checks the CAS of a new or amended item.
    #[track_caller]
    fn check_cas(&mut self, key: u8, requested: NewCas, cas: u64) {
        let old = self.live(key).map_or(0, |item| item.cas);
        match requested {
            NewCas::Same => assert_eq!(cas, old),
            NewCas::Exactly(requested) => {
                assert_eq!(cas, requested);
                self.last = None;
            }
            NewCas::Fresh => {
                assert!(cas > old, "{cas} is not fresh after {old}");
                assert!(self.issued.insert(cas), "{cas} was given before");
                if let Some(last) = &mut self.last {
                    assert_eq!(cas, *last + 1, "CAS values are consecutive");
                    *last = cas;
                }
            }
        }
    }
}

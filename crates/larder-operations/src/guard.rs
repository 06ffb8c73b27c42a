//! Watched items. A transaction changes a watched item only if the item still has the version that
//! it had at the start of the watch.

use larder_store::{Expiry, Item, Lookup};
use std::cell::{Cell, RefCell};

/// A watched key, with the version of its item at the start of the watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// The key: 1 to [`KEY_LEN_MAX`](larder_store::KEY_LEN_MAX) bytes.
    pub key: Box<[u8]>,
    /// The CAS and the expiry of the item; `None` if there was no item.
    pub version: Option<(u64, Expiry)>,
}

/// The watched items of a transaction. An operation with a guard changes a watched item only if the
/// item's CAS and expiry are unchanged since the start of the watch. The transaction's own first
/// change of an item ends the watch of this item.
#[derive(Debug, Default)]
pub struct Guard {
    watched: RefCell<Vec<Watched>>,
    is_violated: Cell<bool>,
    has_changed: Cell<bool>,
}

impl Guard {
    /// Returns a guard for these items.
    #[must_use]
    pub fn new(watched: Vec<Watched>) -> Self {
        Self { watched: RefCell::new(watched), ..Self::default() }
    }

    /// Returns whether the guard has refused an update, because the version of a watched item has
    /// changed since the start of the watch.
    #[must_use]
    pub fn is_violated(&self) -> bool {
        self.is_violated.get()
    }

    /// Returns whether an operation with this guard has changed an item.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.has_changed.get()
    }

    /// Returns whether `is_wanted` returns true for at least one key that is still watched.
    pub fn watches_any(&self, is_wanted: impl Fn(&[u8]) -> bool) -> bool {
        self.watched.borrow().iter().any(|watched| is_wanted(&watched.key))
    }

    /// Returns whether the transaction may change the item under a key.
    pub(crate) fn allows<L>(&self, key: &[u8], item: &Lookup<&Item<'_, L>>) -> bool {
        let found = if let Lookup::Hit(item) = item { Some(version_of(item)) } else { None };
        let watched = self.watched.borrow();
        let noted = watched.iter().find(|watched| *watched.key == *key);
        let allows = noted.is_none_or(|noted| noted.version == found);
        self.is_violated.set(self.is_violated.get() || !allows);
        allows
    }

    /// Records that the transaction has changed the item under a key.
    pub(crate) fn note_change(&self, key: &[u8]) {
        self.watched.borrow_mut().retain(|watched| *watched.key != *key);
        self.has_changed.set(true);
    }

    /// Records that the transaction has removed all items.
    pub(crate) fn note_flush(&self) {
        self.watched.borrow_mut().iter_mut().for_each(|watched| watched.version = None);
        self.has_changed.set(true);
    }

    /// Records that the transaction has invalidated the items of a tag.
    pub(crate) fn note_dropped_tag(&self) {
        self.has_changed.set(true);
    }
}

/// Returns an item's CAS and expiry. Each change of the item changes its CAS or its expiry.
#[must_use]
pub fn version_of<L>(item: &Item<'_, L>) -> (u64, Expiry) {
    (item.cas, item.attributes.expiry)
}

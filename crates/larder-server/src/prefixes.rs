//! Counts by prefix (`stats detail`): what a key has before the first delimiter.

use larder_session::PrefixEvent;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Counts of one prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are memcached's own, from `stats detail dump`")]
pub struct PrefixCounts {
    pub get: u64,
    pub hit: u64,
    pub set: u64,
    pub del: u64,
}

/// Counts by prefix.
#[derive(Debug)]
pub struct Prefixes {
    delimiter: u8,
    counts: Mutex<BTreeMap<Vec<u8>, PrefixCounts>>,
}

/// Prefixes that are counted at most: whoever chooses keys chooses them, too.
const PREFIXES_MAX: usize = 16 << 10;

impl Prefixes {
    /// No counts yet.
    #[must_use]
    pub fn new(delimiter: u8) -> Self {
        Self { delimiter, counts: Mutex::default() }
    }

    /// Counts a request. Keys without a delimiter have no prefix; an empty one counts.
    pub fn count(&self, key: &[u8], event: PrefixEvent) {
        let Some(prefix) = memchr::memchr(self.delimiter, key).and_then(|end| key.get(..end))
        else {
            return;
        };
        let mut all = self.lock();
        if !all.contains_key(prefix) {
            if all.len() == PREFIXES_MAX {
                return;
            }
            all.insert(prefix.to_vec(), PrefixCounts::default());
        }
        let Some(counts) = all.get_mut(prefix) else { return };
        match event {
            PrefixEvent::Get(hit) => {
                counts.get += 1;
                counts.hit += u64::from(hit);
            }
            PrefixEvent::Set => counts.set += 1,
            PrefixEvent::Delete => counts.del += 1,
        }
    }

    /// `stats detail dump`, without its end.
    #[must_use]
    pub fn dump(&self) -> Vec<u8> {
        let mut lines = Vec::new();
        for (prefix, PrefixCounts { get, hit, set, del }) in self.lock().iter() {
            lines.extend_from_slice(b"PREFIX ");
            lines.extend_from_slice(prefix);
            let counts = format!(" get {get} hit {hit} set {set} del {del}\r\n");
            lines.extend_from_slice(counts.as_bytes());
        }
        lines
    }

    pub(crate) fn reset(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, PrefixCounts>> {
        // Numbers: whatever a panic left of them is still numbers.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dumped(prefixes: &Prefixes) -> String {
        String::from_utf8(prefixes.dump()).unwrap()
    }

    #[test]
    fn what_is_before_the_first_delimiter_counts() {
        let prefixes = Prefixes::new(b':');
        prefixes.count(b"a:b:c", PrefixEvent::Get(true));
        prefixes.count(b"a:x", PrefixEvent::Get(false));
        prefixes.count(b"a:", PrefixEvent::Set);
        prefixes.count(b":x", PrefixEvent::Delete);
        prefixes.count(b"plain", PrefixEvent::Set);
        let lines = "PREFIX  get 0 hit 0 set 0 del 1\r\nPREFIX a get 2 hit 1 set 1 del 0\r\n";
        assert_eq!(dumped(&prefixes), lines);
        prefixes.reset();
        assert_eq!(dumped(&prefixes), "");
    }

    #[test]
    fn prefixes_take_bounded_memory() {
        let prefixes = Prefixes::new(b':');
        for i in 0..2 * PREFIXES_MAX {
            prefixes.count(format!("{i}:").as_bytes(), PrefixEvent::Set);
        }
        assert_eq!(dumped(&prefixes).lines().count(), PREFIXES_MAX);
    }
}

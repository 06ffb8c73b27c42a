//! Request counts by prefix (`stats detail`). The prefix of a key is the part before its first
//! delimiter.

use larder_protocol::reply::PrefixCounts;
use larder_session::PrefixEvent;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Request counts by prefix.
#[derive(Debug)]
pub struct Prefixes {
    delimiter: u8,
    counts: Mutex<BTreeMap<Vec<u8>, PrefixCounts>>,
}

/// The maximum number of counted prefixes. Clients choose the keys, so without a limit they could
/// create any number of prefixes.
const PREFIXES_MAX: usize = 16 << 10;

impl Prefixes {
    /// Creates empty counts.
    #[must_use]
    pub fn new(delimiter: u8) -> Self {
        Self { delimiter, counts: Mutex::default() }
    }

    /// Counts a request. Ignores a key without a delimiter. Ignores a new prefix if the maximum
    /// number of prefixes is reached. A key that starts with the delimiter has an empty prefix,
    /// which is counted like any other.
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

    /// Returns the counts of each prefix. The prefixes are in byte order.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<Vec<u8>, PrefixCounts> {
        self.lock().clone()
    }

    pub(crate) fn reset(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, PrefixCounts>> {
        // The counts are plain numbers, so they stay valid if a thread panics while holding the
        // lock.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_first_delimiter() {
        let prefixes = Prefixes::new(b':');
        prefixes.count(b"a:b:c", PrefixEvent::Get(true));
        prefixes.count(b"a:x", PrefixEvent::Get(false));
        prefixes.count(b"a:", PrefixEvent::Set);
        prefixes.count(b":x", PrefixEvent::Delete);
        prefixes.count(b"plain", PrefixEvent::Set);
        let counts = prefixes.counts();
        assert_eq!(counts.keys().collect::<Vec<_>>(), [&b""[..], b"a"]);
        assert_eq!(counts[&b""[..]], PrefixCounts { del: 1, ..PrefixCounts::default() });
        assert_eq!(counts[&b"a"[..]], PrefixCounts { get: 2, hit: 1, set: 1, del: 0 });
        prefixes.reset();
        assert!(prefixes.counts().is_empty());
    }

    #[test]
    fn prefixes_take_bounded_memory() {
        let prefixes = Prefixes::new(b':');
        for i in 0..2 * PREFIXES_MAX {
            prefixes.count(format!("{i}:").as_bytes(), PrefixEvent::Set);
        }
        assert_eq!(prefixes.counts().len(), PREFIXES_MAX);
    }
}

//! The hashes of scripts that clients have loaded.

use larder_protocol::resp::{Script, ScriptHash};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The maximum number of hashes. Without a limit, a client could create any number of hashes for
/// one known script, because each added blank changes the hash.
const HASHES_MAX: usize = 1000;

/// The scripts that clients have loaded, keyed by the hash of the source.
#[derive(Debug, Default)]
pub(crate) struct LoadedScripts(Mutex<HashMap<ScriptHash, Script>>);

impl LoadedScripts {
    /// Returns the script whose source has this hash.
    pub(crate) fn find(&self, hash: &ScriptHash) -> Option<Script> {
        self.lock().get(hash).copied()
    }

    /// Stores a script. If the maximum number of hashes is reached, first removes all other
    /// scripts. Clients then have to load their scripts again.
    pub(crate) fn keep(&self, hash: ScriptHash, script: Script) {
        let mut scripts = self.lock();
        if scripts.len() >= HASHES_MAX {
            scripts.clear();
        }
        scripts.insert(hash, script);
    }

    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ScriptHash, Script>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_hashes_is_bounded() {
        let scripts = LoadedScripts::default();
        for number in 0..10 * HASHES_MAX {
            let mut hash = ScriptHash::default();
            hash[..8].copy_from_slice(&number.to_le_bytes());
            scripts.keep(hash, Script::Increment);
            assert_eq!(scripts.find(&hash), Some(Script::Increment));
        }
        assert!(scripts.lock().len() <= HASHES_MAX);
        scripts.clear();
        assert_eq!(scripts.find(&ScriptHash::default()), None);
    }
}

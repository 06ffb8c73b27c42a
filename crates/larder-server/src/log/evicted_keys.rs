//! A file with the keys of all evicted items, for crash tests. Only builds with the feature
//! `delayed` write it.

use larder_store::Eviction;
use std::env;
use std::fs::{File, OpenOptions};
use std::io::Write;

/// The environment variable that names the file.
const VARIABLE: &str = "EVICTED_KEYS_FILE";

/// The file; `None` if the environment does not name one.
#[derive(Debug)]
pub(crate) struct EvictedKeys(Option<File>);

impl EvictedKeys {
    /// Opens the file that the environment names, for appending.
    ///
    /// # Panics
    /// The file cannot be opened, so the results of the test would be wrong.
    pub(crate) fn from_environment() -> Self {
        let open = |path| OpenOptions::new().create(true).append(true).open(path);
        Self(env::var_os(VARIABLE).map(|path| open(path).expect("cannot open EVICTED_KEYS_FILE")))
    }

    /// Writes the key of an item that will be evicted. The eviction hook calls this function before
    /// the removal, so the file contains the keys of all removed items even if the process is
    /// killed.
    ///
    /// # Panics
    /// The write fails.
    pub(crate) fn note(&self, evicted: &Eviction<'_>) {
        if let Self(Some(file)) = self
            && evicted.flash_bucket.is_none()
        {
            let line = [evicted.key, b"\n"].concat();
            let mut file: &File = file;
            file.write_all(&line).expect("cannot write to EVICTED_KEYS_FILE");
        }
    }
}

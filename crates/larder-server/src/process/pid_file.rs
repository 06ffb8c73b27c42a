//! The PID file (`-P`).

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The maximum number of bytes that are read from an existing file.
const PID_LEN_MAX: u64 = 32;

/// A written PID file. Dropping it removes the file.
#[derive(Debug)]
pub struct PidFile(PathBuf);

impl PidFile {
    /// Writes the file. As in memcached, an existing file with the ID of a running process causes
    /// only a warning and is replaced. If the file cannot be written, logs a warning and returns
    /// `None`.
    #[must_use]
    pub fn write(path: &Path) -> Option<Self> {
        // Refuse a pipe or a device: reading it can block forever, and a regular file must not
        // replace it.
        if path.metadata().is_ok_and(|meta| !meta.is_file()) {
            let path = path.display();
            tracing::warn!(
                "Could not open the pid file {path} for writing: it is not a regular file; give another path \
                 with -P"
            );
            return None;
        }
        if let Some(pid) = running(path) {
            tracing::warn!("The pid file contained the following (running) pid: {pid}");
        }
        match replace(path, &format!("{}\n", std::process::id())) {
            Ok(()) => Some(Self(path.to_owned())),
            Err(error) => {
                tracing::warn!(
                    "Could not open the pid file {} for writing: {error}",
                    path.display()
                );
                None
            }
        }
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::warn!("Could not remove the pid file {}: {error}", self.0.display());
        }
    }
}

/// Replaces a file atomically: a reader sees either the old or the new content.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    fs::write(&temporary, text)?;
    fs::rename(&temporary, path)
}

/// Returns the process ID in a PID file. Returns `None` if the file contains no ID, or the ID of
/// this process or of a process that does not run.
fn running(path: &Path) -> Option<i32> {
    let mut text = String::new();
    fs::File::open(path).ok()?.take(PID_LEN_MAX).read_to_string(&mut text).ok()?;
    let pid: i32 = text.trim().parse().ok()?;
    let other = pid > 0 && pid.unsigned_abs() != std::process::id();
    (other && crate::process::platform::runs(pid)).then_some(pid)
}

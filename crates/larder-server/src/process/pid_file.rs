//! The file that tells others this process's id (`-P`).

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The part of an existing file that is read, in bytes.
const PID_LEN_MAX: u64 = 32;

/// A file that was written, and is removed at the end.
#[derive(Debug)]
pub struct PidFile(PathBuf);

impl PidFile {
    /// Writes it. As in memcached, a running process that the file names only causes a warning, and
    /// so does a file that cannot be written.
    #[must_use]
    pub fn write(path: &Path) -> Option<Self> {
        // Reading a pipe or a device may never end, and it must not be replaced by a file either.
        if path.metadata().is_ok_and(|meta| !meta.is_file()) {
            let path = path.display();
            tracing::warn!("Could not open the pid file {path} for writing: it is no regular file");
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

/// Readers see the old file or the new one, never half of one.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    fs::write(&temporary, text)?;
    fs::rename(&temporary, path)
}

/// The process that a pid file names, if it runs and is not this one.
fn running(path: &Path) -> Option<i32> {
    let mut text = String::new();
    fs::File::open(path).ok()?.take(PID_LEN_MAX).read_to_string(&mut text).ok()?;
    let pid: i32 = text.trim().parse().ok()?;
    let other = pid > 0 && pid.unsigned_abs() != std::process::id();
    (other && crate::process::platform::runs(pid)).then_some(pid)
}

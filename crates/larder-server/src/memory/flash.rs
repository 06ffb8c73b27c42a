//! The files of the flash tier (`-o ext_path`).

use crate::options::Options;
use larder_device::{Device, FileSpec, Files, FilesError, Opening};
use larder_store::FlashConfig;
use nix::unistd::User;
use std::fmt;
use std::sync::Arc;

/// An error while opening the flash tier. The message contains the remedy.
#[derive(Debug)]
pub enum FlashError {
    /// A file is unusable.
    Files(FilesError),
}

impl fmt::Display for FlashError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Files(error) => write!(f, "-o ext_path: {error}"),
        }
    }
}

impl std::error::Error for FlashError {}

/// Opens the files and block devices of `-o ext_path`, and locks them until the cache is dropped.
/// Returns `None` without `-o ext_path`.
///
/// # Errors
/// [`FlashError`]: a file is unusable.
pub fn open(options: &Options) -> Result<Option<FlashConfig>, FlashError> {
    let flash = &options.suboptions.flash;
    if flash.files.is_empty() {
        return Ok(None);
    }
    let spec = |(path, bytes)| FileSpec { path, bytes };
    let named = flash.files.iter().map(|file| (file.path.clone(), file.bytes));
    let specs: Vec<FileSpec> = named.map(spec).collect();
    let page_len = flash.page_len();
    let opening = Opening { owner: later_user(options), ..Opening::default() };
    let files = Files::open(&specs, page_len, &opening).map_err(FlashError::Files)?;
    if !files.is_direct() {
        tracing::warn!(
            "-o ext_path: the file system does not support O_DIRECT, so the page cache uses memory in addition \
             to -m; use a file system with O_DIRECT, or a block device"
        );
    }
    let settings = flash.settings_for(files.len() / page_len);
    Ok(Some(FlashConfig {
        device: Arc::new(files),
        page_len,
        threads: flash.threads,
        depth: flash.depth,
        settings,
    }))
}

/// Returns the ID of the user to which the process will switch (`-u`). Returns `None` if it will
/// not switch: `-u` is not given, the process is not root, or the user does not exist.
fn later_user(options: &Options) -> Option<u32> {
    let name = options.user.as_deref().filter(|_| nix::unistd::geteuid().is_root())?;
    let user = User::from_name(name).ok()??;
    Some(user.uid.as_raw())
}

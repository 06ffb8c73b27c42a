//! Opens files: checks that they may be overwritten and that no other process uses them, and sets
//! their sizes.

use super::header::Page;
use super::spec::{FileSpec, HEADER_LEN};
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const LOCK_INTERVAL: Duration = Duration::from_millis(20);

/// The options for opening files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// The ID of a user that may own the files, in addition to the user of the process: the user to
    /// which a server switches later. This option is ignored unless the process runs as root.
    pub owner: Option<u32>,
    /// The maximum total time to wait until no other process uses the files. A killed process keeps
    /// the files in use until its pending reads and writes have completed.
    pub patience: Duration,
}

impl Default for Opening {
    fn default() -> Self {
        Self { owner: None, patience: Duration::from_secs(10) }
    }
}

/// The reason why a file cannot be used. The message contains the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilesError {
    /// No file was given.
    #[error("no file was given")]
    None,
    /// The server refuses the file, because it may contain other data or because other users can
    /// access it.
    #[error("{}: {what}: give another file, or {remedy}", path.display())]
    NotOwn {
        /// The file.
        path: PathBuf,
        /// The problem.
        what: &'static str,
        /// The remedy.
        remedy: &'static str,
    },
    /// A file was given twice.
    #[error("{}: this file is given twice: give each file once", path.display())]
    Twice {
        /// The second path to the file.
        path: PathBuf,
    },
    /// Another process uses the file, or the file is a mounted block device.
    #[error(
        "{}: another process uses it, or it is mounted, and that has not ended within {} seconds: \
         end it, or give another file",
        path.display(), patience.as_secs_f64()
    )]
    InUse {
        /// The file.
        path: PathBuf,
        /// The time for which this process has waited.
        patience: Duration,
    },
    /// The configured size, or the device, is too small for a page.
    #[error(
        "{}: {bytes} bytes have no room for a page of {page_len} bytes: give it more, or shorter pages",
        path.display()
    )]
    NoPage {
        /// The file.
        path: PathBuf,
        /// The number of bytes that are available for pages.
        bytes: u64,
        /// The length of a page.
        page_len: u64,
    },
    /// A block device is shorter than configured.
    #[error("{}: the device has {actual} bytes, not {bytes}; lower the size in -o ext_path", path.display())]
    TooShort {
        /// The device.
        path: PathBuf,
        /// The configured number of bytes.
        bytes: u64,
        /// The actual number of bytes.
        actual: u64,
    },
    /// The file system is full.
    #[error("{}: not enough space for {bytes} bytes; lower the size in -o ext_path, or free space", path.display())]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// The bytes that the file needs, including its header.
        bytes: u64,
    },
    /// The system refused an operation.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

impl FilesError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |error| Self::Io { path: path.to_owned(), error }
    }

    fn in_use(path: &Path, patience: Duration) -> Self {
        Self::InUse { path: path.to_owned(), patience }
    }
}

/// Opens files and block devices for reading and writing, locks them, and sets the sizes of the
/// files. Returns each file with the total length of its pages in bytes.
pub(super) fn open_all(
    specs: &[FileSpec],
    page_len: u64,
    opening: &Opening,
) -> Result<Vec<(File, u64)>, FilesError> {
    if specs.is_empty() {
        return Err(FilesError::None);
    }
    let begun = Instant::now();
    let mut opened: Vec<(File, Metadata)> = Vec::new();
    for spec in specs {
        let path = &spec.path;
        let pages = spec.bytes / page_len;
        if pages == 0 {
            return Err(FilesError::NoPage { path: path.clone(), bytes: spec.bytes, page_len });
        }
        let (file, metadata) = open_own(path, opening, begun)?;
        if opened.iter().any(|(_, other)| is_same(other, &metadata)) {
            return Err(FilesError::Twice { path: path.clone() });
        }
        lock(path, &file, opening, begun)?;
        opened.push((file, metadata));
    }
    // Change no content and no size before all files are locked.
    let sized = |((file, metadata), spec): ((File, Metadata), _)| {
        check_content(spec, &file)?;
        let len = if metadata.file_type().is_block_device() {
            len_of_device(spec, page_len, &file)?
        } else {
            allocate(spec, page_len, &file)?
        };
        Ok((file, len))
    };
    opened.into_iter().zip(specs).map(sized).collect()
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    if one.file_type().is_block_device() && other.file_type().is_block_device() {
        return one.rdev() == other.rdev();
    }
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Opens a block device, or opens or creates a regular file. Refuses other kinds of files, symbolic
/// links to regular files, files with several hard links, and files that other users may access.
/// The owner must be the user of the process or [`Opening::owner`].
fn open_own(
    path: &Path,
    opening: &Opening,
    begun: Instant,
) -> Result<(File, Metadata), FilesError> {
    let refuse = |what, remedy| Err(FilesError::NotOwn { path: path.to_owned(), what, remedy });
    // `O_NONBLOCK` makes opening a named pipe return without waiting for the other end. The flag is
    // cleared later, because with it a ring would not wait for reads.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let is_device = path.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device());
    let file = if is_device {
        open_device(path, opening, begun)
    } else {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.custom_flags(flags).open(path).map_err(FilesError::io(path))
    };
    let file = match file {
        Err(FilesError::Io { error, .. }) if error.raw_os_error() == Some(libc::ELOOP) => {
            return refuse("it is a symbolic link", "remove it");
        }
        opened => opened?,
    };
    let metadata = file.metadata().map_err(FilesError::io(path))?;
    if metadata.file_type().is_block_device() {
        return Ok((file, metadata));
    }
    if !metadata.is_file() {
        return refuse("it is neither a regular file nor a block device", "remove it");
    }
    // SAFETY: the call has no arguments, and can't fail.
    let own = unsafe { libc::geteuid() };
    let is_later = own == 0 && opening.owner == Some(metadata.uid());
    if metadata.uid() != own && !is_later {
        return refuse("it belongs to another user", "remove it");
    }
    if metadata.mode() & 0o077 != 0 {
        return refuse("other users may read or write it", "remove it (chmod 600 helps, too)");
    }
    if metadata.nlink() > 1 {
        return refuse("it has more than one name", "remove it");
    }
    wait_for_io(&file).map_err(FilesError::io(path))?;
    Ok((file, metadata))
}

/// Opens a block device exclusively. If the device is in use, for example because it is mounted,
/// retries until [`Opening::patience`] has passed since `begun`. Follows symbolic links, because
/// names of devices often are links.
fn open_device(path: &Path, opening: &Opening, begun: Instant) -> Result<File, FilesError> {
    loop {
        let mut options = OpenOptions::new();
        match options.read(true).write(true).custom_flags(libc::O_EXCL).open(path) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                if begun.elapsed() >= opening.patience {
                    return Err(FilesError::in_use(path, opening.patience));
                }
                std::thread::sleep(LOCK_INTERVAL);
            }
            opened => return opened.map_err(FilesError::io(path)),
        }
    }
}

/// Clears `O_NONBLOCK`, so that rings wait for reads.
fn wait_for_io(file: &File) -> io::Result<()> {
    use std::os::fd::AsRawFd;

    // SAFETY: the call takes no pointers, and the descriptor is open.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Locks the file. If another process holds the lock, retries until [`Opening::patience`] has
/// passed since `begun`.
fn lock(path: &Path, file: &File, opening: &Opening, begun: Instant) -> Result<(), FilesError> {
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(FilesError::io(path)(error)),
            Err(TryLockError::WouldBlock) if begun.elapsed() >= opening.patience => {
                return Err(FilesError::in_use(path, opening.patience));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_INTERVAL),
        }
    }
}

/// Refuses a file whose content is not the cache's, because the cache would overwrite it. Accepts
/// only an empty file, and a file that starts with a header of this crate or with a page of zeros.
fn check_content(spec: &FileSpec, file: &File) -> Result<(), FilesError> {
    let path = &spec.path;
    let is_foreign = match Page::read(file.as_fd(), 1) {
        Ok(page) => page.is_foreign(),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            file.metadata().map_err(FilesError::io(path))?.len() > 0
        }
        Err(error) => return Err(FilesError::io(path)(error)),
    };
    if is_foreign {
        let (what, remedy) = ("it contains something else", "remove it (from a device: wipefs)");
        return Err(FilesError::NotOwn { path: path.clone(), what, remedy });
    }
    Ok(())
}

/// Returns the total length of a block device's pages in bytes.
fn len_of_device(spec: &FileSpec, page_len: u64, mut file: &File) -> Result<u64, FilesError> {
    let path = &spec.path;
    let actual = file.seek(SeekFrom::End(0)).map_err(FilesError::io(path))?;
    if actual < spec.bytes {
        return Err(FilesError::TooShort { path: path.clone(), bytes: spec.bytes, actual });
    }
    let bytes = spec.bytes.min(actual.saturating_sub(HEADER_LEN));
    match bytes / page_len {
        0 => Err(FilesError::NoPage { path: path.clone(), bytes, page_len }),
        pages => Ok(pages * page_len),
    }
}

/// Sets the size of a file, and allocates all of its blocks if the file system supports that.
/// Returns the total length of the file's pages in bytes.
fn allocate(spec: &FileSpec, page_len: u64, file: &File) -> Result<u64, FilesError> {
    let len = spec.bytes / page_len * page_len;
    let file_len = HEADER_LEN + len;
    let before = file.metadata().map_err(FilesError::io(&spec.path))?.len();
    let resize = || {
        fill_holes(file, file_len)?;
        file.set_len(file_len)
    };
    resize().map_err(|error| {
        // Return the allocated blocks to the file system.
        let _ = file.set_len(before);
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                FilesError::NoRoom { path: spec.path.clone(), bytes: file_len }
            }
            _ => FilesError::io(&spec.path)(error),
        }
    })?;
    Ok(len)
}

/// Makes the file system allocate all blocks of a file. If the file system does not support that,
/// returns `Ok`, and a later write may fail because the file system is full.
#[cfg(target_os = "linux")]
fn fill_holes(file: &File, len: u64) -> io::Result<()> {
    use std::os::fd::AsRawFd;

    let len = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
    loop {
        // SAFETY: the call takes no pointers, and the descriptor is open.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => (),
            Some(libc::EOPNOTSUPP) => return Ok(()),
            _ => return Err(error),
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn fill_holes(_file: &File, _len: u64) -> io::Result<()> {
    Ok(())
}

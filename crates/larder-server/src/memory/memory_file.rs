//! The files that contain the cache's memory. The memory file (`-e`) survives a restart of the
//! process, and the image (`-o memory_image`) survives a restart of the machine. This module checks
//! the owner of the files, locks them, and restores the clock.

use larder_store::segment::{
    Cache, ColdStartReason, Config, ConfigError, IMAGE_PATH_LEN_MAX, ImageOrigin, Restart,
    image_origin, is_image,
};
use larder_support::clock::{Clock, boot_millis};
use nix::unistd::User;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long the server waits at its start for another process to release the file.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);
/// The interval between two attempts to lock the file.
const LOCK_INTERVAL: Duration = Duration::from_millis(20);
/// If the process panics this soon after its start, the content of the file may be the cause.
const PANIC_SOON: Duration = Duration::from_secs(60);

/// The server's clock, and the result of the restart, if there was one.
#[derive(Clone, Debug)]
pub struct StartState {
    /// The server's clock.
    pub clock: Clock,
    /// The result and the duration of the restart; `None` with neither `-e` nor `-o memory_image`.
    pub restart: Option<(Restart, Duration)>,
}

impl StartState {
    /// Returns the state of a start with neither a memory file nor an image.
    #[must_use]
    pub fn cold() -> Self {
        Self { clock: Clock::start(), restart: None }
    }
}

/// An error while opening a file. The message contains the remedy.
#[derive(Debug)]
pub enum FileError {
    /// A restart file of memcached exists for this path. The field is the path of that file, which
    /// ends in `.meta`.
    Memcacheds(PathBuf),
    /// The file is unsuitable for this reason, for example because other users can access it.
    NotOwn(PathBuf, &'static str),
    /// Another process holds the lock.
    InUse(PathBuf),
    /// A system call failed.
    Io(PathBuf, io::Error),
    /// The cache refuses the file or the configuration.
    Cache(PathBuf, ConfigError),
}

impl FileError {
    /// Returns the exit status for this error, from `sysexits.h`.
    #[must_use]
    pub fn status(&self) -> u8 {
        match self {
            Self::Cache(_, ConfigError::Limit { .. }) => 64,
            _ => 71,
        }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memcacheds(meta) => write!(
                f,
                "{}: memcached created this file, and Larder cannot read it; give another file, or remove it",
                meta.display()
            ),
            Self::NotOwn(path, what) => {
                write!(f, "{}: {what}; give another file, or remove it", path.display())
            }
            Self::InUse(path) => write!(
                f,
                "{}: another process still uses the file after {} seconds; stop that process, or give another \
                 file",
                path.display(),
                LOCK_PATIENCE.as_secs()
            ),
            Self::Io(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Cache(path, error) => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for FileError {}

/// The paths of the memory file and the image, and the user that may own these files.
#[derive(Clone, Copy, Debug)]
pub struct Files<'a> {
    /// The memory file (`-e`).
    pub memory: Option<&'a Path>,
    /// The image (`-o memory_image`).
    pub image: Option<&'a Path>,
    /// The user of `-u`. This user may own the files.
    pub user: Option<&'a str>,
}

/// Opens the cache in the memory file, or in anonymous memory if no memory file is given. If the
/// items are restored, the clock of the earlier process also continues.
///
/// Reads the items from the image if the memory file has no items, or if the image is newer because
/// a server without the memory file has written it. The caller must call [`remove_image`] before it
/// serves clients.
///
/// If the memory file names an image that is not in `files`, removes that image, from which a later
/// start could otherwise restore deleted items.
///
/// # Errors
/// [`FileError`]: a file is unusable.
pub fn open(
    files: Files<'_>,
    config: Config,
    items_max: usize,
) -> Result<(Cache, StartState), FileError> {
    let start = Instant::now();
    let Files { memory, image, user } = files;
    if let (Some(memory), true) = (memory, memory == image) {
        return Err(FileError::NotOwn(
            memory.to_owned(),
            "the memory file cannot also be the image",
        ));
    }
    if let (Some(_), Some(image)) = (memory, image) {
        check_image_path(image)?;
    }
    if let Some(image) = image.filter(|image| image.exists()) {
        check_image(image, user)?;
    }
    watch_panics();
    let region = memory.map(|path| Ok((path, lock_own(path, user)?))).transpose()?;
    let reopen = || {
        let opened = region.as_ref().map(|(path, file)| {
            let same = file.try_clone().map_err(|error| FileError::Io((*path).to_owned(), error));
            open_region(path, same?, config.clone(), items_max)
        });
        opened.transpose()
    };
    let mut opened = reopen()?;
    let is_cold = !matches!(opened, Some((_, Restart::Warm | Restart::Repaired)));
    let image_run = image.map(run_of_this_boot).transpose()?.flatten().unwrap_or(0);
    let last_run = opened.as_ref().map_or(0, |(cache, _)| cache.run());
    let is_stale = !is_cold && image_run > last_run;
    if let (true, Some((path, _)), Some(image)) = (is_stale, &region, image) {
        tracing::warn!(
            "-e {}: the file is older than the image {}, which a server without -e has written; the items are \
             from the image, no action is needed",
            path.display(),
            image.display()
        );
    }
    if let Some((cache, _)) = &opened {
        remove_other_image(cache, image)?;
    }
    let mut from_image = None;
    if let Some(image) = image.filter(|image| (is_cold || is_stale) && image.exists()) {
        // Close the cache in the memory file first, because `read_image` writes into that file.
        let first = opened.take().map(|(_, restart)| restart);
        let read = read_image(image, user, &config, region.as_ref().map(|(_, file)| file))?;
        from_image = match read {
            Ok(loaded) => Some(loaded),
            Err(reason) => {
                // The memory file is now empty, so open it again. If it was stale, report why the
                // image is unusable, and otherwise the result of the first opening.
                let restart = if is_stale { Some(Restart::Cold(Some(reason))) } else { first };
                opened = reopen()?.zip(restart).map(|((cache, _), restart)| (cache, restart));
                None
            }
        };
    }
    let (cache, restart, clock) = match (from_image, opened) {
        (Some((cache, clock)), _) => (cache, Restart::Warm, clock),
        (None, Some((cache, restart))) => {
            let clock = match cache.note() {
                0 => Clock::start(),
                note => Clock::resumed(note),
            };
            (cache, restart, clock)
        }
        (None, None) => {
            let cache = Cache::growable(config.clone(), items_max);
            let named = || image.map(Path::to_owned).unwrap_or_default();
            let cache = cache.map_err(|error| FileError::Cache(named(), error))?;
            (cache, Restart::Cold(None), Clock::start())
        }
    };
    cache.set_note(clock.checkpoint());
    cache.set_run(boot_millis().max(last_run.max(image_run).saturating_add(1)));
    if clock.ahead() != 0 {
        tracing::info!(
            "the system's clock was set since the cache was created, by {} s; items keep their lifetimes",
            -i64::from(clock.ahead())
        );
    }
    let took = start.elapsed();
    if let Some((path, _)) = &region {
        report(path, restart);
    }
    if !matches!(restart, Restart::Cold(_)) {
        let items = cache.gauges().items;
        tracing::info!("restored {items} items in {:.1} ms", took.as_secs_f64() * 1e3);
    }
    let _ = WATCHED.set((cache.clone(), clock.clone()));
    Ok((cache, StartState { clock, restart: Some((restart, took)) }))
}

/// Opens the memory file and locks it. Waits up to [`LOCK_PATIENCE`] for another process to release
/// the lock.
fn lock_own(path: &Path, user: Option<&str>) -> Result<File, FileError> {
    let file = open_own(path, user)?;
    lock(path, &file)?;
    if !is_in_memory(&file) {
        tracing::warn!(
            "-e {}: the file is not on tmpfs, so the system writes the cache's memory to disk; give a file on \
             tmpfs",
            path.display()
        );
    }
    Ok(file)
}

fn open_region(
    path: &Path,
    file: File,
    config: Config,
    items_max: usize,
) -> Result<(Cache, Restart), FileError> {
    let boot = boot_id().map_err(|error| FileError::Io(path.to_owned(), error))?;
    let opened = Cache::in_file(config, items_max, file, boot);
    opened.map_err(|error| FileError::Cache(path.to_owned(), error))
}

fn report(path: &Path, restart: Restart) {
    let path = path.display();
    match restart {
        Restart::Cold(Some(why)) => tracing::warn!(
            "-e {path}: the cache starts empty: {why}; no action is needed, clients fill it again"
        ),
        Restart::Cold(None) => tracing::info!("-e {path}: the cache starts empty"),
        Restart::Repaired => {
            tracing::info!("-e {path}: repaired after the previous process died");
        }
        Restart::Warm => (),
    }
}

/// Refuses a path that is too long for the memory file to record.
fn check_image_path(path: &Path) -> Result<(), FileError> {
    let absolute = std::path::absolute(path);
    let absolute = absolute.map_err(|error| FileError::Io(path.to_owned(), error))?;
    if absolute.as_os_str().len() > IMAGE_PATH_LEN_MAX {
        let reason = "with -e, the path of the image can have at most 248 bytes";
        return Err(FileError::NotOwn(path.to_owned(), reason));
    }
    Ok(())
}

/// Refuses a file that is neither empty nor an image, because the server would overwrite it.
fn check_image(path: &Path, user: Option<&str>) -> Result<(), FileError> {
    let file = open_own(path, user)?;
    match is_image(&mut &file) {
        Ok(true) => Ok(()),
        Ok(false) if file.metadata().is_ok_and(|about| about.len() == 0) => Ok(()),
        Ok(false) => Err(FileError::NotOwn(path.to_owned(), "the file is not a cache image")),
        Err(error) => Err(FileError::Io(path.to_owned(), error)),
    }
}

/// Reads an image into the memory file `region`, or into anonymous memory if `region` is `None`. If
/// the image is unusable, returns the reason as the inner error.
fn read_image(
    path: &Path,
    user: Option<&str>,
    config: &Config,
    region: Option<&File>,
) -> Result<Result<(Cache, Clock), ColdStartReason>, FileError> {
    let io = |error| FileError::Io(path.to_owned(), error);
    let file = open_own(path, user)?;
    let mut image = BufReader::with_capacity(1 << 20, &file);
    let loaded = Cache::from_image(config, region, boot_id().map_err(io)?, &mut image);
    match loaded.map_err(|error| FileError::Cache(path.to_owned(), error))? {
        Ok((cache, checkpoint)) => Ok(Ok((cache, Clock::after_reboot(checkpoint)))),
        Err(why) => {
            tracing::warn!(
                "-o memory_image {}: the image is unusable, and the cache starts without it: {why}; no action \
                 is needed, clients fill it again",
                path.display()
            );
            Ok(Err(why))
        }
    }
}

/// Returns the boot ID and the run number of the process that wrote an image. Returns `None` if
/// there is no image with a valid header.
fn origin_of(path: &Path) -> Result<Option<ImageOrigin>, FileError> {
    match File::open(path) {
        Ok(mut file) => {
            image_origin(&mut file).map_err(|error| FileError::Io(path.to_owned(), error))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FileError::Io(path.to_owned(), error)),
    }
}

/// Returns the run number of the process that wrote an image. Returns `None` if there is no image,
/// or if the machine has rebooted since. Run numbers derive from the uptime of the machine, so
/// numbers of different boots are not comparable.
fn run_of_this_boot(path: &Path) -> Result<Option<u64>, FileError> {
    let Some(origin) = origin_of(path)? else { return Ok(None) };
    let boot = boot_id().map_err(|error| FileError::Io(path.to_owned(), error))?;
    Ok((origin.boot == boot).then_some(origin.run))
}

/// Removes the image that the memory file names. Does nothing if that image is `image`, which the
/// caller removes later, or if the last process that used the memory file did not write that image.
fn remove_other_image(cache: &Cache, image: Option<&Path>) -> Result<(), FileError> {
    let path = cache.image_path();
    let is_same = image.is_some_and(|image| std::path::absolute(image).is_ok_and(|i| i == path));
    if path.as_os_str().is_empty() || is_same {
        return Ok(());
    }
    let origin = match origin_of(&path) {
        Ok(origin) => origin,
        Err(error) => {
            tracing::warn!(
                "cannot remove an image of earlier items: {error}; remove it, or a later start may restore items \
                 that were deleted since"
            );
            return Ok(());
        }
    };
    if origin.is_some_and(|origin| origin.run == cache.run()) {
        remove_image(&path)?;
        tracing::info!("removed the image {}: it would restore deleted items", path.display());
    }
    cache.set_image_path(Path::new(""));
    Ok(())
}

/// Removes the image. Call this before the first change to the cache. Otherwise a later restart
/// could restore items that were deleted after the current start.
///
/// # Errors
/// [`FileError::Io`]: the file may still exist, or its removal may not be durable.
pub fn remove_image(path: &Path) -> Result<(), FileError> {
    let remove = || match std::fs::remove_file(path) {
        Ok(()) => sync_folder_of(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    };
    remove().map_err(|error| FileError::Io(path.to_owned(), error))
}

/// Syncs a file's directory, which makes renaming or removing the file durable.
fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Writes the image for the next start of the server. All engine handles must have been dropped.
///
/// # Errors
/// [`FileError::Io`]: the image is missing, or may not be durable.
pub fn write_image(path: &Path, cache: &Cache, clock: &Clock) -> Result<(), FileError> {
    let start = Instant::now();
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let unfinished = path.with_file_name(format!("{}.unfinished", name.unwrap_or_default()));
    let write = || {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let mut to = BufWriter::with_capacity(1 << 20, options.open(&unfinished)?);
        cache.write_image(clock.reboot_checkpoint(), boot_id()?, &mut to)?;
        to.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        // Record the path before the image exists, so that each later process that uses the memory
        // file without the image removes the image.
        cache.set_image_path(&std::path::absolute(path)?);
        std::fs::rename(&unfinished, path)?;
        sync_folder_of(path)
    };
    // Remove an unfinished image of an earlier process.
    let _ = std::fs::remove_file(&unfinished);
    write().map_err(|error| {
        let _ = std::fs::remove_file(&unfinished);
        FileError::Io(path.to_owned(), error)
    })?;
    tracing::info!(
        "cache image {} written in {:.1} s",
        path.display(),
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

/// The cache whose memory file counts panics soon after a start, and the server's clock.
static WATCHED: OnceLock<(Cache, Clock)> = OnceLock::new();

/// Installs a panic hook. If the process panics within [`PANIC_SOON`] of its start, the hook
/// increments a count in the memory file, once per process. After two such processes, the next
/// process discards the content of the file, because the content may be the cause.
fn watch_panics() {
    static HAS_PANICKED: AtomicBool = AtomicBool::new(false);
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if let Some((cache, clock)) = WATCHED.get()
            && clock.elapsed() < PANIC_SOON
            && !HAS_PANICKED.swap(true, Ordering::Relaxed)
        {
            cache.count_panic();
        }
        previous(info);
    }));
}

/// Starts a thread with two tasks. First, the thread maps the memory pages that are in use, so that
/// requests do not wait for page faults. After `PANIC_SOON`, it resets the count of panics, because
/// the process has survived its start.
pub fn spawn_restart_thread(cache: &Cache) {
    let cache = cache.clone();
    let tasks = move || {
        cache.populate();
        std::thread::park_timeout(PANIC_SOON);
        cache.reset_panics();
    };
    // The server can run without this thread. The system then maps each page at its first access,
    // and the count of panics is not reset.
    let _ = std::thread::Builder::new().name("restart".into()).spawn(tasks);
}

fn open_own(path: &Path, user: Option<&str>) -> Result<File, FileError> {
    let meta = path.with_file_name(format!(
        "{}.meta",
        path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default()
    ));
    if meta.exists() {
        return Err(FileError::Memcacheds(meta));
    }
    let refuse = |reason| Err(FileError::NotOwn(path.to_owned(), reason));
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK);
    let file = match options.open(path) {
        Err(error) if error.raw_os_error() == Some(nix::libc::ELOOP) => {
            return refuse("the path is a symbolic link");
        }
        opened => opened.map_err(|error| FileError::Io(path.to_owned(), error))?,
    };
    let about = file.metadata().map_err(|error| FileError::Io(path.to_owned(), error))?;
    if !about.is_file() {
        return refuse("the path is not a regular file");
    }
    let own = nix::unistd::geteuid();
    let later = user.filter(|_| own.is_root()).and_then(|name| User::from_name(name).ok()?);
    if about.uid() != own.as_raw() && later.is_none_or(|user| user.uid.as_raw() != about.uid()) {
        return refuse("the file belongs to another user");
    }
    if about.mode() & 0o077 != 0 {
        return refuse("other users can read or write the file (chmod 600 helps)");
    }
    if about.nlink() > 1 {
        return refuse("it has more than one name");
    }
    Ok(file)
}

/// Locks the file. Waits up to [`LOCK_PATIENCE`] for another process to release the lock.
fn lock(path: &Path, file: &File) -> Result<(), FileError> {
    let start = Instant::now();
    let mut has_logged = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(std::fs::TryLockError::Error(error)) => {
                return Err(FileError::Io(path.to_owned(), error));
            }
            Err(std::fs::TryLockError::WouldBlock) if start.elapsed() >= LOCK_PATIENCE => {
                return Err(FileError::InUse(path.to_owned()));
            }
            Err(std::fs::TryLockError::WouldBlock) => (),
        }
        if !has_logged {
            tracing::info!("-e {}: waiting for another process to end", path.display());
            has_logged = true;
        }
        std::thread::sleep(LOCK_INTERVAL);
    }
}

/// Returns whether a file is on tmpfs; false outside Linux.
fn is_in_memory(file: &File) -> bool {
    #[cfg(target_os = "linux")]
    return nix::sys::statfs::fstatfs(file)
        .is_ok_and(|about| about.filesystem_type() == nix::sys::statfs::TMPFS_MAGIC);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = file;
        false
    }
}

/// Returns the boot ID of the machine; 0 outside Linux.
fn boot_id() -> io::Result<u128> {
    if !cfg!(target_os = "linux") {
        return Ok(0);
    }
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).map_err(|_| io::ErrorKind::InvalidData.into())
}

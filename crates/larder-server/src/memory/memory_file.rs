//! The files that have the cache's memory: under `-e`, while the machine runs, and the image of `-o
//! memory_image` beyond. Who may use them, and the clock that goes with them.

use larder_store::segment::{Cache, Config, ConfigError, Restart, is_image};
use larder_support::clock::Clock;
use nix::unistd::User;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a start waits for another process to end that uses the file.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);
const LOCK_INTERVAL: Duration = Duration::from_millis(20);
/// A panic within this time from the start may be the fault of what the file contains.
const PANIC_SOON: Duration = Duration::from_secs(60);

/// What a server began with.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The server's clock.
    pub clock: Clock,
    /// How its cache began, and how long that took; `None` without a file.
    pub restart: Option<(Restart, Duration)>,
}

impl Start {
    /// The start of a server whose items end with the process.
    #[must_use]
    pub fn cold() -> Self {
        Self { clock: Clock::start(), restart: None }
    }
}

/// Why the file can't be used. The message says what to do.
#[derive(Debug)]
pub enum FileError {
    /// There is a file of memcached beside it.
    Memcacheds(PathBuf),
    /// It is something else than a file that only this user can read, or has other names.
    NotOwn(PathBuf, &'static str),
    /// Another process uses it.
    InUse(PathBuf),
    /// The system refuses.
    Io(PathBuf, io::Error),
    /// The cache refuses.
    Cache(PathBuf, ConfigError),
}

impl FileError {
    /// The exit status of a server that can't start for it, as in `sysexits.h`.
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
                "{} was left by memcached, whose memory Larder can't read: give another file, or \
                 remove it",
                meta.display()
            ),
            Self::NotOwn(path, what) => {
                write!(f, "{}: {what}: give another file, or remove it", path.display())
            }
            Self::InUse(path) => write!(
                f,
                "{}: another process uses it and has not ended within {} seconds",
                path.display(),
                LOCK_PATIENCE.as_secs()
            ),
            Self::Io(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Cache(path, error) => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for FileError {}

/// The files that options name.
#[derive(Clone, Copy, Debug)]
pub struct Files<'a> {
    /// The cache's memory (`-e`).
    pub memory: Option<&'a Path>,
    /// The image (`-o memory_image`).
    pub image: Option<&'a Path>,
    /// The user that the server becomes (`-u`), who may own them.
    pub user: Option<&'a str>,
}

/// Opens the cache whose memory is in a file or, without one, in memory that ends with the process; and
/// continues its clock. Where no earlier process has left items in the file, they are those of the image,
/// if there is one. [`remove_image`] comes before any client is served.
///
/// # Errors
/// [`FileError`]: a file can't be used.
pub fn open(
    files: Files<'_>,
    config: Config,
    items_max: usize,
) -> Result<(Cache, Start), FileError> {
    let begun = Instant::now();
    let Files { memory, image, user } = files;
    if let (Some(memory), true) = (memory, memory == image) {
        return Err(FileError::NotOwn(memory.to_owned(), "it can't be the image, too"));
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
    let mut from_image = None;
    if let Some(image) = image.filter(|image| is_cold && image.exists()) {
        // The image is read into the file, in which no cache may be open meanwhile.
        let first = opened.take().map(|(_, restart)| restart);
        from_image = read_image(image, user, &config, region.as_ref().map(|(_, file)| file))?;
        if from_image.is_none() {
            opened = reopen()?.zip(first).map(|((cache, _), restart)| (cache, restart));
        }
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
    let took = begun.elapsed();
    if let Some((path, _)) = &region {
        report(path, restart);
    }
    if !matches!(restart, Restart::Cold(_)) {
        let items = cache.gauges().items;
        tracing::info!("{items} items are there again after {:.1} ms", took.as_secs_f64() * 1e3);
    }
    let _ = WATCHED.set((cache.clone(), clock));
    Ok((cache, Start { clock, restart: Some((restart, took)) }))
}

/// Opens a file of this server's own, and waits until no other process uses it.
fn lock_own(path: &Path, user: Option<&str>) -> Result<File, FileError> {
    let file = open_own(path, user)?;
    lock(path, &file)?;
    if !is_in_memory(&file) {
        tracing::warn!(
            "-e {}: this is not on tmpfs, so the system keeps writing the cache's memory to disk",
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
            "-e {path}: the cache starts empty, because what the file contained can't be used: {why}"
        ),
        Restart::Cold(None) => tracing::info!("-e {path}: the cache starts empty"),
        Restart::Repaired => tracing::info!("-e {path}: the process that used it before has died"),
        Restart::Warm => (),
    }
}

/// Refuses an image that is something else: it would be overwritten.
fn check_image(path: &Path, user: Option<&str>) -> Result<(), FileError> {
    let file = open_own(path, user)?;
    match is_image(&mut &file) {
        Ok(true) => Ok(()),
        Ok(false) if file.metadata().is_ok_and(|about| about.len() == 0) => Ok(()),
        Ok(false) => Err(FileError::NotOwn(path.to_owned(), "it is not an image of a cache")),
        Err(error) => Err(FileError::Io(path.to_owned(), error)),
    }
}

/// Reads an image into `region` or into memory that ends with the process; `None` if it can't be used.
fn read_image(
    path: &Path,
    user: Option<&str>,
    config: &Config,
    region: Option<&File>,
) -> Result<Option<(Cache, Clock)>, FileError> {
    let io = |error| FileError::Io(path.to_owned(), error);
    let file = open_own(path, user)?;
    let mut image = BufReader::with_capacity(1 << 20, &file);
    let loaded = Cache::from_image(config, region, boot_id().map_err(io)?, &mut image);
    match loaded.map_err(|error| FileError::Cache(path.to_owned(), error))? {
        Ok((cache, saved)) => Ok(Some((cache, Clock::not_before(Duration::from_micros(saved))))),
        Err(why) => {
            tracing::warn!("{}: this image can't be used: {why}", path.display());
            Ok(None)
        }
    }
}

/// Removes the image before anything is changed in the cache, lest what is deleted later return with it.
///
/// # Errors
/// [`FileError::Io`]: it is there still.
pub fn remove_image(path: &Path) -> Result<(), FileError> {
    let remove = || match std::fs::remove_file(path) {
        Ok(()) => sync_folder_of(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    };
    remove().map_err(|error| FileError::Io(path.to_owned(), error))
}

/// Makes changes of names in the folder of a file durable.
fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Writes the image for the next start of the machine. There are no engine handles any more.
///
/// # Errors
/// [`FileError::Io`]: nothing was written.
pub fn write_image(path: &Path, cache: &Cache, clock: Clock) -> Result<(), FileError> {
    let begun = Instant::now();
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let unfinished = path.with_file_name(format!("{}.unfinished", name.unwrap_or_default()));
    let write = || {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let mut to = BufWriter::with_capacity(1 << 20, options.open(&unfinished)?);
        let saved = u64::try_from(clock.precise().as_micros()).unwrap_or(u64::MAX);
        cache.write_image(saved, &mut to)?;
        to.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        std::fs::rename(&unfinished, path)?;
        sync_folder_of(path)
    };
    // One that an earlier process has left.
    let _ = std::fs::remove_file(&unfinished);
    write().map_err(|error| {
        let _ = std::fs::remove_file(&unfinished);
        FileError::Io(path.to_owned(), error)
    })?;
    tracing::info!("{} was written in {:.1} s", path.display(), begun.elapsed().as_secs_f64());
    Ok(())
}

/// The cache whose panics are counted, and the clock that started with it.
static WATCHED: OnceLock<(Cache, Clock)> = OnceLock::new();

/// Has the first panic counted if it comes soon after the start.
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

/// Has the system map the memory in use, in a thread of its own, and forgets the panics of earlier processes
/// when this one has worked for a while.
pub fn settle(cache: &Cache) {
    let cache = cache.clone();
    let settling = move || {
        cache.populate();
        std::thread::park_timeout(PANIC_SOON);
        cache.forget_panics();
    };
    // Without the thread, memory is mapped page by page.
    let _ = std::thread::Builder::new().name("restart".into()).spawn(settling);
}

fn open_own(path: &Path, user: Option<&str>) -> Result<File, FileError> {
    let meta = path.with_file_name(format!(
        "{}.meta",
        path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default()
    ));
    if meta.exists() {
        return Err(FileError::Memcacheds(meta));
    }
    let refuse = |what| Err(FileError::NotOwn(path.to_owned(), what));
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK);
    let file = match options.open(path) {
        Err(error) if error.raw_os_error() == Some(nix::libc::ELOOP) => {
            return refuse("it is a symbolic link");
        }
        opened => opened.map_err(|error| FileError::Io(path.to_owned(), error))?,
    };
    let about = file.metadata().map_err(|error| FileError::Io(path.to_owned(), error))?;
    if !about.is_file() {
        return refuse("it is not a regular file");
    }
    let own = nix::unistd::geteuid();
    let later = user.filter(|_| own.is_root()).and_then(|name| User::from_name(name).ok()?);
    if about.uid() != own.as_raw() && later.is_none_or(|user| user.uid.as_raw() != about.uid()) {
        return refuse("it belongs to another user");
    }
    if about.mode() & 0o077 != 0 {
        return refuse("other users may read or write it (chmod 600 helps)");
    }
    if about.nlink() > 1 {
        return refuse("it has more than one name");
    }
    Ok(file)
}

/// Waits until no other process uses the file.
fn lock(path: &Path, file: &File) -> Result<(), FileError> {
    let begun = Instant::now();
    let mut said = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(std::fs::TryLockError::Error(error)) => {
                return Err(FileError::Io(path.to_owned(), error));
            }
            Err(std::fs::TryLockError::WouldBlock) if begun.elapsed() >= LOCK_PATIENCE => {
                return Err(FileError::InUse(path.to_owned()));
            }
            Err(std::fs::TryLockError::WouldBlock) => (),
        }
        if !said {
            tracing::info!("-e {}: waiting for another process to end", path.display());
            said = true;
        }
        std::thread::sleep(LOCK_INTERVAL);
    }
}

/// Whether a file is on a file system that keeps its files in memory.
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

/// What tells this start of the machine from others; 0 where the system does not say.
fn boot_id() -> io::Result<u128> {
    if !cfg!(target_os = "linux") {
        return Ok(0);
    }
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).map_err(|_| io::ErrorKind::InvalidData.into())
}

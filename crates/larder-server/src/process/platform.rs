//! Wrappers of operating system calls. The documentation of each function states its behaviour
//! outside Linux if that differs.

use nix::errno::Errno;
use std::io;
use std::os::unix::fs::chown;
use std::path::Path;
use std::time::Duration;

/// Pins the calling thread to one of the cores that it may use. `index` selects the core, modulo
/// the number of these cores. Logs a warning on failure.
#[cfg(target_os = "linux")]
pub fn pin_to_core(index: usize) {
    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    use nix::unistd::Pid;
    let this = Pid::from_raw(0);
    let pinned = sched_getaffinity(this).and_then(|allowed| {
        let cores: Vec<usize> =
            (0..CpuSet::count()).filter(|&core| allowed.is_set(core).unwrap_or(false)).collect();
        let mut one = CpuSet::new();
        if let Some(&core) = cores.get(index % cores.len().max(1)) {
            one.set(core)?;
        }
        sched_setaffinity(this, &one)
    });
    if let Err(error) = pinned {
        tracing::warn!(%error, "--pin: pinning a worker thread to a core failed, so it runs on any core; omit --pin, or allow more cores");
    }
}

/// Only logs a warning, because larderd pins threads only on Linux.
#[cfg(not(target_os = "linux"))]
pub fn pin_to_core(_index: usize) {
    tracing::warn!("--pin: this system cannot pin threads; omit --pin");
}

/// Returns the resident memory of the process, in bytes; 0 outside Linux.
#[must_use]
pub fn resident_bytes() -> u64 {
    let page_len = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    let pages = std::fs::read_to_string("/proc/self/statm").ok().and_then(|statm| {
        let resident = statm.split(' ').nth(1)?;
        resident.parse::<u64>().ok()
    });
    pages.unwrap_or(0) * page_len.map_or(0, i64::cast_unsigned)
}

/// Permanently switches the process to the user `name` and that user's groups. Outside Linux,
/// supplementary groups stay unchanged.
///
/// # Errors
/// [`UserError`]: the user is unknown, or the switch fails.
pub fn become_user(name: &str) -> Result<(), UserError> {
    use nix::unistd::{User, setgid, setuid};
    let user = User::from_name(name).ok().flatten().ok_or(UserError::Unknown)?;
    #[cfg(target_os = "linux")]
    {
        let name = std::ffi::CString::new(name).map_err(|_| UserError::Unknown)?;
        match nix::unistd::initgroups(&name, user.gid) {
            // A user namespace may forbid `setgroups`. memcached then keeps the groups, too.
            Err(Errno::EPERM) => tracing::warn!(
                "keeping the supplementary groups: this container does not allow setting them"
            ),
            result => result.map_err(UserError::Refused)?,
        }
    }
    setgid(user.gid).map_err(UserError::Refused)?;
    setuid(user.uid).map_err(UserError::Refused)
}

/// Changes the owner of a file to a user and its primary group. Does nothing if the user is
/// unknown.
///
/// # Errors
/// The system call fails.
pub fn give_to(name: &str, file: &Path) -> io::Result<()> {
    match nix::unistd::User::from_name(name)? {
        Some(user) => chown(file, Some(user.uid.as_raw()), Some(user.gid.as_raw())),
        None => Ok(()),
    }
}

/// An error while switching the user.
#[derive(Debug)]
pub enum UserError {
    /// The user does not exist.
    Unknown,
    /// The system does not permit the switch.
    Refused(Errno),
}

/// Forks into the background, as a new session without a terminal. Changes the working directory to
/// `/`, unless `keep_directory` is true. Redirects the standard streams to `/dev/null`, unless
/// `keep_streams` is true. The process must have no other threads.
///
/// # Errors
/// The system call fails.
#[cfg(not(target_os = "macos"))]
pub fn daemonize(keep_directory: bool, keep_streams: bool) -> nix::Result<()> {
    nix::unistd::daemon(keep_directory, keep_streams)
}

/// Returns an error, because larderd cannot fork into the background on macOS.
///
/// # Errors
/// Always `ENOTSUP`.
#[cfg(target_os = "macos")]
pub fn daemonize(_keep_directory: bool, _keep_streams: bool) -> nix::Result<()> {
    Err(Errno::ENOTSUP)
}

/// Raises the core file limit to the maximum that the system allows.
///
/// # Errors
/// The system allows no core files.
pub fn allow_core_files() -> nix::Result<()> {
    use nix::sys::resource::{RLIM_INFINITY, Resource::RLIMIT_CORE, getrlimit, setrlimit};
    if setrlimit(RLIMIT_CORE, RLIM_INFINITY, RLIM_INFINITY).is_err() {
        let (_, hard) = getrlimit(RLIMIT_CORE)?;
        setrlimit(RLIMIT_CORE, hard, hard)?;
    }
    match getrlimit(RLIMIT_CORE)? {
        (0, _) => Err(Errno::EPERM),
        _ => Ok(()),
    }
}

/// Enables core files again after a change of the user has disabled them. Does nothing outside
/// Linux.
pub fn stay_dumpable() {
    #[cfg(target_os = "linux")]
    if let Err(error) = nix::sys::prctl::set_dumpable(true) {
        tracing::warn!(%error, "-r: enabling core files after the switch to the user of -u failed; start the server as that user");
    }
}

/// Locks all current and future memory of the process. A page is locked when it is first used.
/// `user_changes` is true if the process will switch to a user without root's rights.
///
/// # Errors
/// See [`LockError`].
#[cfg(target_os = "linux")]
pub fn lock_memory(user_changes: bool) -> Result<(), LockError> {
    use nix::sys::mman::{MlockAllFlags, mlockall};
    use nix::sys::resource::{RLIM_INFINITY, Resource::RLIMIT_MEMLOCK, getrlimit, setrlimit};
    // Raise the limit now, while the process may still be root. The user of -u, to whom the process
    // may switch later, cannot raise the limit.
    let _ = setrlimit(RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    let (limit, _) = getrlimit(RLIMIT_MEMLOCK)?;
    if limit != RLIM_INFINITY && (user_changes || !may_lock_any_memory()) {
        // Do not lock: once the process reached the limit, the system would refuse it memory and
        // threads.
        return Err(LockError::Limit(limit));
    }
    let on_use = MlockAllFlags::from_bits_retain(nix::libc::MCL_ONFAULT);
    Ok(mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE | on_use)?)
}

/// Returns whether the process may exceed the limit of locked memory, because it has
/// `CAP_IPC_LOCK`. In a container, even root may lack this capability.
#[cfg(target_os = "linux")]
fn may_lock_any_memory() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    effective.map_or_else(is_root, |set| set >> CAP_IPC_LOCK & 1 == 1)
}

/// Locks all current and future memory of the process.
///
/// # Errors
/// The system call fails.
#[cfg(not(target_os = "linux"))]
pub fn lock_memory(_user_changes: bool) -> Result<(), LockError> {
    use nix::sys::mman::{MlockAllFlags, mlockall};
    Ok(mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE)?)
}

/// The reason why memory is not locked.
#[derive(Debug)]
pub enum LockError {
    /// The user may lock only this number of bytes.
    Limit(u64),
    /// The system call failed.
    Refused(Errno),
}

impl From<Errno> for LockError {
    fn from(error: Errno) -> Self {
        Self::Refused(error)
    }
}

impl std::fmt::Display for LockError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Limit(bytes) => write!(f, "the user may lock only {bytes} bytes"),
            Self::Refused(error) => error.fmt(f),
        }
    }
}

/// Returns whether a process with this ID runs.
#[must_use]
pub fn runs(pid: i32) -> bool {
    use Errno::EPERM;
    matches!(nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None), Ok(()) | Err(EPERM))
}

/// Returns whether the process runs as root.
#[must_use]
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Returns the CPU time of the process: user, then system.
#[must_use]
pub fn cpu_times() -> [Duration; 2] {
    use nix::sys::resource::{UsageWho, getrusage};
    use nix::sys::time::TimeValLike;
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return [Duration::ZERO; 2] };
    // Times are never negative, so `unsigned_abs` does not change them.
    [usage.user_time(), usage.system_time()]
        .map(|time| Duration::from_micros(time.num_microseconds().unsigned_abs()))
}

/// Returns the memory of the machine in bytes, or `None` if the system does not report it.
#[must_use]
pub fn memory() -> Option<usize> {
    use nix::unistd::{SysconfVar, sysconf};
    let number =
        |name| sysconf(name).ok().flatten().and_then(|number| usize::try_from(number).ok());
    number(SysconfVar::_PHYS_PAGES)?.checked_mul(number(SysconfVar::PAGE_SIZE)?)
}

/// Raises the limit of open files to `connections` plus `spare`. If the system does not allow this,
/// raises the limit as far as possible, but at least to `connections`.
///
/// # Errors
/// The hard limit of open files, if it is less than `connections`.
pub fn raise_file_limit(connections: u64, spare: u64) -> Result<(), u64> {
    use nix::sys::resource::{Resource::RLIMIT_NOFILE, getrlimit, setrlimit};
    // If the system does not report the limit, assume that the limit is high enough.
    let Ok((soft, hard)) = getrlimit(RLIMIT_NOFILE) else { return Ok(()) };
    let wanted = connections.saturating_add(spare);
    // Only root may raise the hard limit.
    if soft >= wanted || setrlimit(RLIMIT_NOFILE, wanted, hard.max(wanted)).is_ok() {
        return Ok(());
    }
    if hard < connections {
        return Err(hard);
    }
    // Raising the soft limit up to the hard limit never fails.
    let _ = setrlimit(RLIMIT_NOFILE, wanted.min(hard), hard);
    Ok(())
}

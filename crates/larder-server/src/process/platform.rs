//! Functions that differ between systems. On systems other than Linux they do nothing, and say so.

use std::io;
use std::os::unix::fs::chown;
use std::path::Path;
use std::time::Duration;

/// Binds the calling thread to core `index`, modulo the number of cores.
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
        tracing::warn!(%error, "--pin: a worker thread cannot be bound to a core, and runs on any");
    }
}

/// Binds the calling thread to core `index`.
#[cfg(not(target_os = "linux"))]
pub fn pin_to_core(_index: usize) {
    tracing::warn!("--pin has no effect on this system");
}

/// Changes the process's user to `user` for good, with its groups.
///
/// # Errors
/// A message; the user is unknown, or the system refuses.
pub fn become_user(name: &str) -> Result<(), UserError> {
    use nix::unistd::{User, setgid, setuid};
    let user = User::from_name(name).ok().flatten().ok_or(UserError::Unknown)?;
    #[cfg(target_os = "linux")]
    {
        let name = std::ffi::CString::new(name).map_err(|_| UserError::Unknown)?;
        nix::unistd::initgroups(&name, user.gid).map_err(UserError::Refused)?;
    }
    setgid(user.gid).map_err(UserError::Refused)?;
    setuid(user.uid).map_err(UserError::Refused)
}

/// Gives a file to a user and that user's first group, so that its mode refers to them. Nothing
/// happens if there is no such user.
///
/// # Errors
/// The system refuses.
pub fn give_to(name: &str, file: &Path) -> io::Result<()> {
    match nix::unistd::User::from_name(name)? {
        Some(user) => chown(file, Some(user.uid.as_raw()), Some(user.gid.as_raw())),
        None => Ok(()),
    }
}

/// Why the process's user cannot be changed.
#[derive(Debug)]
pub enum UserError {
    /// There is no such user.
    Unknown,
    /// The system refuses.
    Refused(nix::errno::Errno),
}

/// Goes to the background: a new session without a terminal, in `/` unless `stay`, its standard
/// streams closed unless `talk`. No other thread may run yet.
///
/// # Errors
/// The system refuses.
#[cfg(not(target_os = "macos"))]
pub fn daemonize(stay: bool, talk: bool) -> nix::Result<()> {
    nix::unistd::daemon(stay, talk)
}

/// Goes to the background; not on this system.
///
/// # Errors
/// Always.
#[cfg(target_os = "macos")]
pub fn daemonize(_stay: bool, _talk: bool) -> nix::Result<()> {
    Err(nix::errno::Errno::ENOTSUP)
}

/// Lets core files be as large as the system allows.
///
/// # Errors
/// It allows none.
pub fn allow_core_files() -> nix::Result<()> {
    use nix::sys::resource::{RLIM_INFINITY, Resource::RLIMIT_CORE, getrlimit, setrlimit};
    if setrlimit(RLIMIT_CORE, RLIM_INFINITY, RLIM_INFINITY).is_err() {
        let (_, hard) = getrlimit(RLIMIT_CORE)?;
        setrlimit(RLIMIT_CORE, hard, hard)?;
    }
    match getrlimit(RLIMIT_CORE)? {
        (0, _) => Err(nix::errno::Errno::EPERM),
        _ => Ok(()),
    }
}

/// Allows core files again to a process that has changed its user, which the system denies it.
pub fn stay_dumpable() {
    #[cfg(target_os = "linux")]
    if let Err(error) = nix::sys::prctl::set_dumpable(true) {
        tracing::warn!(%error, "-r has no effect: the system allows no core files of a process that changed its user");
    }
}

/// Keeps all memory out of swap, what comes later too: each page from its first use.
///
/// # Errors
/// The system refuses: more than it lets this user lock.
#[cfg(target_os = "linux")]
pub fn lock_memory() -> nix::Result<()> {
    use nix::sys::mman::{MlockAllFlags, mlockall};
    use nix::sys::resource::{RLIM_INFINITY, Resource::RLIMIT_MEMLOCK, setrlimit};
    // Root may raise the limit; the user that the process changes to afterwards may not.
    let _ = setrlimit(RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    let on_use = MlockAllFlags::from_bits_retain(nix::libc::MCL_ONFAULT);
    mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE | on_use)
}

/// Keeps all memory out of swap.
///
/// # Errors
/// The system refuses.
#[cfg(not(target_os = "linux"))]
pub fn lock_memory() -> nix::Result<()> {
    use nix::sys::mman::{MlockAllFlags, mlockall};
    mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE)
}

/// Whether a process of this id runs.
#[must_use]
pub fn runs(pid: i32) -> bool {
    use nix::errno::Errno::EPERM;
    matches!(nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None), Ok(()) | Err(EPERM))
}

/// Whether this process may do anything.
#[must_use]
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// User and system time that this process has taken.
#[must_use]
pub fn cpu_times() -> [Duration; 2] {
    use nix::sys::resource::{UsageWho, getrusage};
    use nix::sys::time::TimeValLike;
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return [Duration::ZERO; 2] };
    // Times are never negative.
    [usage.user_time(), usage.system_time()]
        .map(|time| Duration::from_micros(time.num_microseconds().unsigned_abs()))
}

/// Bytes of memory that the machine has, if the system says so.
#[must_use]
pub fn memory() -> Option<usize> {
    use nix::unistd::{SysconfVar, sysconf};
    let number =
        |name| sysconf(name).ok().flatten().and_then(|number| usize::try_from(number).ok());
    number(SysconfVar::_PHYS_PAGES)?.checked_mul(number(SysconfVar::PAGE_SIZE)?)
}

/// Lets the process open as many files as its connections need, and `spare` more as far as the system
/// allows.
///
/// # Errors
/// The number of files that the system allows at most, which is too few for the connections.
pub fn raise_file_limit(connections: u64, spare: u64) -> Result<(), u64> {
    use nix::sys::resource::{Resource::RLIMIT_NOFILE, getrlimit, setrlimit};
    // A system that does not say how many has nothing to raise.
    let Ok((soft, hard)) = getrlimit(RLIMIT_NOFILE) else { return Ok(()) };
    let wanted = connections.saturating_add(spare);
    // Only root may raise the hard limit.
    if soft >= wanted || setrlimit(RLIMIT_NOFILE, wanted, hard.max(wanted)).is_ok() {
        return Ok(());
    }
    if hard < connections {
        return Err(hard);
    }
    // It never fails up to the hard limit.
    let _ = setrlimit(RLIMIT_NOFILE, wanted.min(hard), hard);
    Ok(())
}

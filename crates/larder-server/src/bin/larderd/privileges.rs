//! Changes to the process at startup: background mode, core files, locked memory and user.

use super::failure::{EX_NOUSER, EX_OSERR, Failure, failure};
use larder_server::log::verbosity::log_to_system;
use larder_server::options::Options;
use larder_server::process::platform;

/// Enables core files (`-r`), forks into the background (`-d`), and locks memory (`-k`). Call this
/// after checking options, files and sockets: a daemon without `-v` has no standard error on which
/// to report errors.
pub(crate) fn detach(options: &Options) -> Result<(), Failure> {
    if options.enable_coredumps {
        platform::allow_core_files()
            .map_err(|_| failure(EX_OSERR)(&"failed to ensure corefile creation"))?;
    }
    if options.daemon {
        let (keep_directory, keep_streams) = (options.enable_coredumps, options.verbose > 0);
        platform::daemonize(keep_directory, keep_streams)
            .map_err(|_| failure(EX_OSERR)(&"failed to daemon() in order to daemonize"))?;
        if !keep_streams {
            log_to_system();
        }
    }
    // Lock after the fork, because a child process does not inherit memory locks.
    let user_changes = options.user.as_deref().is_some_and(|name| name != "root");
    if options.lock_memory
        && let Err(error) = platform::lock_memory(user_changes)
    {
        // The message starts with memcached's own message.
        tracing::warn!(
            "warning: -k invalid, mlockall() failed: {error}; remove the lock limit (ulimit -l unlimited), or omit -k"
        );
    }
    Ok(())
}

pub(crate) fn drop_privileges(options: &Options) -> Result<(), Failure> {
    match options.user.as_deref() {
        _ if !platform::is_root() => Ok(()),
        None => {
            tracing::warn!("user: the server runs as root; give -u USER to switch to another user");
            Ok(())
        }
        Some("root") => Ok(()),
        Some(name) => become_user(name, options.enable_coredumps),
    }
}

fn become_user(name: &str, dumpable: bool) -> Result<(), Failure> {
    platform::become_user(name).map_err(|error| match error {
        platform::UserError::Unknown => {
            failure(EX_NOUSER)(&format!("can't find the user {name} to switch to"))
        }
        platform::UserError::Refused(error) => {
            failure(EX_OSERR)(&format!("failed to assume identity of user {name}: {error}"))
        }
    })?;
    if dumpable {
        platform::stay_dumpable();
    }
    Ok(())
}

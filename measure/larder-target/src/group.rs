//! The processes of a started server: its process group, and its descendants that left the group.
//! All of them stop when the server is stopped, and also if this process is killed.
//!
//! The leader of the group is a watchdog: a shell that reads from a pipe. Only this process has the
//! other end of the pipe, so the read returns when this process closes that end or dies. The system
//! does not reuse the group's ID until this process has waited for the watchdog, so signals to the
//! group cannot reach unrelated processes.

use crate::process;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The environment variable that all processes of a server inherit. It identifies processes that
/// have left the process group.
const MARK: &str = "STARTED_BY_LARDER";

/// The script of the watchdog. `$1` is the environment variable with its value, and the other
/// arguments are the server's directories. The loop runs twice, because a process can start another
/// process before it is killed.
const WATCHDOG: &str = r#"
trap '' TERM INT HUP QUIT
read -r _
for round in 1 2; do
    for process in /proc/[0-9]*; do
        if grep -qaF -- "$1" "$process/environ" 2>/dev/null; then
            kill -KILL "${process#/proc/}" 2>/dev/null
        fi
    done
done
shift
rm -rf -- "$@"
kill -KILL 0
"#;

/// The process group of a server under measurement.
#[derive(Debug)]
pub(crate) struct ProcessGroup {
    watchdog: Child,
    mark: String,
}

impl ProcessGroup {
    /// Creates a group that consists of its watchdog. The watchdog removes `folders` if this
    /// process is killed. `id` is unique in this process.
    ///
    /// # Errors
    /// The watchdog cannot be started.
    pub(crate) fn new<'f>(folders: impl Iterator<Item = &'f Path>, id: u32) -> io::Result<Self> {
        // The final dot prevents one mark from being a prefix of another.
        let mark = format!("{}-{id}.", std::process::id());
        let watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "larder-watchdog", &format!("{MARK}={mark}")])
            .args(folders)
            .env_remove(MARK)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Self { watchdog, mark })
    }

    /// Makes a command start in this group, where a terminal's Ctrl-C does not reach it.
    pub(crate) fn add(&self, command: &mut Command) {
        command.process_group(self.id().as_raw()).env(MARK, &self.mark);
    }

    fn id(&self) -> Pid {
        Pid::from_raw(self.watchdog.id().cast_signed())
    }

    /// Returns the running processes of the server, or none if the system does not list processes.
    pub(crate) fn members(&self) -> Vec<i32> {
        let mark = format!("{MARK}={}", self.mark);
        let mut members = process::members(self.id().as_raw(), mark.as_bytes());
        members.retain(|pid| *pid != self.id().as_raw());
        members
    }

    /// Signals each process of the server, but not the watchdog.
    pub(crate) fn signal_members(&self, signal: Signal) {
        for pid in self.members() {
            // The call fails if the process has exited.
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    /// Signals all processes of the server and the watchdog. The watchdog ignores SIGTERM.
    pub(crate) fn signal(&self, signal: Signal) {
        // The call fails if all processes have exited.
        let _ = killpg(self.id(), signal);
        for pid in self.members() {
            if signal == Signal::SIGKILL || !process::is_in_group(pid, self.id().as_raw()) {
                let _ = kill(Pid::from_raw(pid), signal);
            }
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        let _ = self.watchdog.kill();
        let _ = self.watchdog.wait();
    }
}

//! Finds the programs of servers and their versions.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Finds the program of a command. A path is used unchanged. For a name, searches `target/release`,
/// then the directory of `larder` itself unless that is a debug build, then the `PATH`. Returns
/// `None` if there is no such executable file.
#[must_use]
pub fn find(program: &str) -> Option<PathBuf> {
    let executable = |path: &PathBuf| {
        path.metadata().is_ok_and(|of| of.is_file() && of.permissions().mode() & 0o111 != 0)
    };
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(executable);
    }
    let own = std::env::current_exe().ok().and_then(|path| Some(path.parent()?.to_owned()));
    // Excludes programs that were built without optimizations.
    let own = own.filter(|folder| !folder.ends_with("debug"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = [PathBuf::from("target/release")].into_iter().chain(own);
    let folders = folders.chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join(program)).find(executable)
}

/// Returns the version of a program: the first line of its standard output that is not blank, when
/// run with `arguments`. Returns `None` without arguments, if there is no such line, or if the
/// program runs for more than 20 seconds.
#[must_use]
pub fn version(program: &Path, arguments: &[String]) -> Option<String> {
    if arguments.is_empty() {
        return None;
    }
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let mut printed = String::new();
    if wait(&mut child, VERSION_TIMEOUT).is_some() {
        // Reads only after the program's exit. The pipe's buffer has room for the output, so the
        // program does not block.
        let _ = child.stdout.take()?.read_to_string(&mut printed);
    } else {
        let _ = child.kill();
        let _ = child.wait();
    }
    let line = printed.lines().find(|line| !line.trim().is_empty())?;
    Some(without_colours(line).trim().chars().take(100).collect())
}

const VERSION_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

fn without_colours(line: &str) -> String {
    let mut parts = line.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |line, part| line + part.split_once('m').map_or(part, |(_, rest)| rest))
}

fn wait(child: &mut Child, at_most: Duration) -> Option<ExitStatus> {
    let start_time = Instant::now();
    loop {
        match child.try_wait() {
            Ok(None) if start_time.elapsed() < at_most => std::thread::sleep(POLL_INTERVAL),
            ended => return ended.ok().flatten(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found_or_not() {
        assert!(find("sh").unwrap().ends_with("sh"));
        assert!(find("/bin/sh").is_some());
        assert_eq!(find("no-such-server"), None);
        assert_eq!(find("/etc/passwd"), None);
    }

    #[test]
    fn versions() {
        let sh = find("sh").unwrap();
        let says = |script: &str| version(&sh, &["-c".to_owned(), script.to_owned()]);
        assert_eq!(says("echo; printf '\\033[1m it 1.2\\033[0m\\nmore'").unwrap(), "it 1.2");
        assert_eq!(says("exit 1"), None);
        assert_eq!(version(&sh, &[]), None);
    }
}

//! The process of a server: finds its program and version, starts it on its cores, and stops it.

use super::suite::Server;
use larder_target::CoreSet;
use larder_target::launch::free_address;
use larder_target::template::{self, Values};
use larder_target::{Protocol, ServerAddress};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Finds the program of a command: a path, or a name that is searched for in `target/release`, in
/// the directory of `larder` itself and on the `PATH`, in this order.
#[must_use]
pub fn find(program: &str) -> Option<PathBuf> {
    let executable = |path: &PathBuf| {
        path.metadata().is_ok_and(|of| of.is_file() && of.permissions().mode() & 0o111 != 0)
    };
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(executable);
    }
    let own = std::env::current_exe().ok().and_then(|path| Some(path.parent()?.to_owned()));
    // Programs that were built without optimisations are not compared.
    let own = own.filter(|folder| !folder.ends_with("debug"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = [PathBuf::from("target/release")].into_iter().chain(own);
    let folders = folders.chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join(program)).find(executable)
}

/// The version of a program: the first line that it prints when run with `arguments`.
#[must_use]
pub fn version(program: &Path, arguments: &[String]) -> Option<String> {
    if arguments.is_empty() {
        return None;
    }
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let mut printed = String::new();
    if wait(&mut child, START_TIMEOUT).is_some() {
        // The output is short enough to fit the pipe's buffer until it is read here.
        let _ = child.stdout.take()?.read_to_string(&mut printed);
    } else {
        let _ = child.kill();
        let _ = child.wait();
    }
    let line = printed.lines().find(|line| !line.trim().is_empty())?;
    Some(without_colours(line).trim().chars().take(100).collect())
}

fn without_colours(line: &str) -> String {
    let mut parts = line.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |line, part| line + part.split_once('m').map_or(part, |(_, rest)| rest))
}

/// How long a server may take to answer its first request.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a server may take to exit after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A running server. Dropping it stops the server.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// The address that the server listens on.
    pub address: ServerAddress,
    log: PathBuf,
}

impl Running {
    /// Starts a server on `cores` and waits until it answers in `protocol`. Its output is written to
    /// the file `log`.
    ///
    /// # Errors
    /// The server cannot be started or does not answer; the error contains the last line of its log.
    pub fn start(
        server: &Server,
        program: &Path,
        values: Values,
        cores: &CoreSet,
        protocol: Protocol,
        log: PathBuf,
    ) -> Result<Self, String> {
        let address = choose_address(server).map_err(|error| error.to_string())?;
        let values = match &address {
            ServerAddress::Unix(path) => values.with("socket", path.display()),
            ServerAddress::Tcp(address) => values.with("port", address.port()),
        };
        let words = server.command[1..].iter().map(|word| template::expand(word, &values));
        let words = words.collect::<Result<Vec<String>, String>>()?;
        let output = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::null());
        command.stderr(output.try_clone().map_err(|error| error.to_string())?).stdout(output);
        // In a process group of its own, the server does not receive Ctrl-C; this process stops it.
        command.process_group(0);
        let child = spawn_on(cores, &mut command)?;
        let mut running = Self { child, address, log };
        running.wait_until_ready(protocol).map(|()| running)
    }

    /// The server's process ID.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// The exit status and the last line of the log, if the process has ended.
    pub fn exit_report(&mut self) -> Option<String> {
        let status = self.exit_status()?;
        Some(format!("{status}{}", self.last_log_line()))
    }

    fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok()?
    }

    /// Stops the server with SIGTERM, then, after a timeout, with SIGKILL.
    pub fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        if wait(&mut self.child, STOP_TIMEOUT).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if let ServerAddress::Unix(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
    }

    fn signal(&mut self, signal: Signal) {
        // After the process was waited for, its ID may belong to another process.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill(Pid::from_raw(self.pid()), signal);
        }
    }

    fn wait_until_ready(&mut self, protocol: Protocol) -> Result<(), String> {
        let begun = Instant::now();
        while begun.elapsed() < START_TIMEOUT {
            if let Some(report) = self.exit_report() {
                return Err(format!("did not start: {report}"));
            }
            if answers(&self.address, protocol) {
                return Ok(());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Err(format!("does not answer {protocol} on {}{}", self.address, self.last_log_line()))
    }

    fn last_log_line(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let line = text.lines().rev().find(|line| !line.trim().is_empty());
        line.map_or(String::new(), |line| {
            format!("; last log line: {}", line.trim().chars().take(200).collect::<String>())
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Starts a process from a thread that is pinned to `cores`, which the process inherits.
fn spawn_on(cores: &CoreSet, command: &mut Command) -> Result<Child, String> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            cores.pin()?;
            command.spawn().map_err(|error| format!("cannot be started: {error}"))
        });
        thread.join().expect("nothing in it panics")
    })
}

fn wait(child: &mut Child, at_most: Duration) -> Option<ExitStatus> {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(None) if begun.elapsed() < at_most => std::thread::sleep(POLL_INTERVAL),
            ended => return ended.ok().flatten(),
        }
    }
}

/// A free address: the server's fixed port, a free port, or the path of a new unix socket.
fn choose_address(server: &Server) -> std::io::Result<ServerAddress> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    if server.on_unix_socket() {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("larder-{}-{number}.sock", std::process::id());
        return Ok(ServerAddress::Unix(std::env::temp_dir().join(name)));
    }
    free_address(server.port.unwrap_or(0)).map(ServerAddress::Tcp)
}

/// Whether the server answers a request.
fn answers(address: &ServerAddress, protocol: Protocol) -> bool {
    let (request, answer): (&[u8], &[u8]) = match protocol {
        Protocol::Text | Protocol::Meta => (b"version\r\n", b"VERSION"),
        Protocol::Binary => (&BINARY_VERSION, &[0x81]),
        Protocol::Resp => (b"*1\r\n$4\r\nPING\r\n", b"+PONG"),
    };
    let answer = |stream: &mut dyn ReadWrite| {
        let mut got = vec![0; answer.len()];
        stream.write_all(request).and_then(|()| stream.read_exact(&mut got)).is_ok()
            && got == answer
    };
    match address {
        ServerAddress::Tcp(address) => TcpStream::connect(address).is_ok_and(|mut stream| {
            stream.set_read_timeout(Some(READ_TIMEOUT)).is_ok() && answer(&mut stream)
        }),
        ServerAddress::Unix(path) => UnixStream::connect(path).is_ok_and(|mut stream| {
            stream.set_read_timeout(Some(READ_TIMEOUT)).is_ok() && answer(&mut stream)
        }),
    }
}

const READ_TIMEOUT: Duration = Duration::from_secs(2);

trait ReadWrite: Read + Write {}
impl<S: Read + Write> ReadWrite for S {}

/// A `version` request: the magic byte, the opcode, and zeros.
const BINARY_VERSION: [u8; 24] = {
    let mut packet = [0; 24];
    packet[0] = 0x80;
    packet[1] = 0x0b;
    packet
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example;
    use tempfile::tempdir;

    fn start(command: &[&str]) -> Result<Running, String> {
        let server = example::server("it", command);
        let program = find(command[0]).unwrap();
        let folder = tempdir().unwrap();
        let (cores, _) = CoreSet::halves().unwrap();
        let log = folder.path().join("log");
        let values = Values::default().with("threads", 1).with("memory_mb", 64);
        Running::start(&server, &program, values, &cores, Protocol::Text, log)
    }

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

    #[test]
    fn a_server_that_exits_is_reported_with_its_last_log_line() {
        let error = start(&["sh", "-c", "echo no memory for {port}; exit 3"]).unwrap_err();
        assert!(error.contains("exit status: 3; last log line: no memory for "), "{error}");
    }

    #[test]
    fn started_on_its_cores_and_stopped() {
        let mut server = start(&["memcached", "-u", "root", "-U", "0", "-s", "{socket}"]).unwrap();
        let (cores, _) = CoreSet::halves().unwrap();
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid()));
        if let Ok(status) = status {
            let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            assert_eq!(list.unwrap().trim().parse::<CoreSet>().unwrap(), cores);
        }
        let ServerAddress::Unix(path) = server.address.clone() else {
            panic!("{:?}", server.address)
        };
        assert!(path.exists());
        assert_eq!(server.exit_report(), None);
        server.stop();
        assert!(!path.exists());
        assert!(server.exit_report().is_some());
    }
}

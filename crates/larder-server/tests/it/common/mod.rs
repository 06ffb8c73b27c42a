//! Server processes and temporary directories for tests. Dropping them kills the processes and
//! removes the directories.
#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

pub mod pages;
pub mod tls;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The time after which a test reports a hang. It is long, because the machine may be busy. No
/// successful test waits this long.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// A running server: larderd or another program. Dropping it kills the process.
///
/// In its scratch directory, the file `ports` contains the bound ports, and the file `said`
/// contains the standard error.
pub struct Server {
    pub scratch: Scratch,
    pub child: Child,
    port: OnceLock<u16>,
}

impl Server {
    /// Starts larderd with these options on a free port of the loopback, and waits until it serves.
    pub fn larderd(options: &[&str]) -> Self {
        Self::larderd_with(options, &[])
    }

    /// Starts larderd as [`Self::larderd`] does, with these variables in the environment.
    pub fn larderd_with(options: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::start(env!("CARGO_BIN_EXE_larderd"), options, environment)
    }

    /// Starts Debian's memcached as [`Self::larderd`] starts larderd. Returns `None` if memcached
    /// is not installed.
    pub fn memcached(options: &[&str]) -> Option<Self> {
        Self::memcached_with(options, &[])
    }

    /// Starts memcached as [`Self::memcached`] does, with these variables in the environment.
    pub fn memcached_with(options: &[&str], environment: &[(&str, &str)]) -> Option<Self> {
        let found = Command::new("memcached").arg("-V").output().is_ok();
        let options = [&["-u", "root", "-U", "0"], options].concat();
        found.then(|| Self::start("memcached", &options, environment))
    }

    fn start(program: &str, options: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(program);
        command.args(["-l", "127.0.0.1", "-p", "-1"]).args(options).stdin(Stdio::null());
        let mut server =
            Self::spawn(Scratch::new("server"), command.envs(environment.iter().copied()));
        wait_for("port file", || {
            assert_eq!(server.child.try_wait().unwrap(), None, "{options:?}: {}", server.said());
            server.scratch.path("ports").exists()
        });
        server
    }

    /// Starts a command, without waiting until it serves. Redirects its standard error to the file
    /// `said`.
    pub fn spawn(scratch: Scratch, command: &mut Command) -> Self {
        let said = std::fs::File::create(scratch.path("said")).unwrap();
        Self::spawn_saying(scratch, command, said.into())
    }

    /// Starts a command with the given standard error, without waiting until it serves.
    pub fn spawn_saying(scratch: Scratch, command: &mut Command, said: Stdio) -> Self {
        // The server chooses its port and writes the port file. If the test chose the port, another
        // process could bind it first.
        command.env("MEMCACHED_PORT_FILENAME", scratch.path("ports"));
        command.stdout(Stdio::null()).stderr(said);
        Self { scratch, child: command.spawn().unwrap(), port: OnceLock::new() }
    }

    /// Waits until the server has bound its ports. Returns the first port.
    pub fn port(&self) -> u16 {
        *self.port.get_or_init(|| *self.ports().first().unwrap())
    }

    /// Returns all bound ports, in the order of the command line.
    pub fn ports(&self) -> Vec<u16> {
        wait_for("port file", || self.scratch.path("ports").exists());
        let ports = self.scratch.read("ports");
        ports.lines().map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect()
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port())).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Sends `bytes` on a new connection and reads until the server closes it.
    pub fn ask(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        // The server may close the connection before it has read everything.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    }

    /// Sends text on a new connection and reads until the server closes it.
    pub fn ask_text(&self, text: &str) -> String {
        String::from_utf8(self.ask(text.as_bytes())).unwrap()
    }

    /// Returns the standard error so far, if the server writes it to the file `said`.
    pub fn said(&self) -> String {
        self.scratch.read("said")
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Waits until the process exits. Returns its status.
    pub fn ends(&mut self) -> ExitStatus {
        let mut status = None;
        wait_for("end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs larderd until it exits.
pub fn larderd(options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_larderd")).args(options).output().unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Waits until a condition holds. Panics with the message `no {what}` after [`TIMEOUT`].
pub fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_there() {
        assert!(begun.elapsed() < TIMEOUT, "no {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A temporary directory of one test, with a new path for each run.
pub struct Scratch(TempDir);

impl Scratch {
    /// Creates the directory. `name` is part of the path, for debugging.
    pub fn new(name: &str) -> Self {
        // Servers that switch to another user need access to the directory.
        let anybody = std::fs::Permissions::from_mode(0o755);
        let prefix = format!("larderd-{name}-");
        Self(tempfile::Builder::new().prefix(&prefix).permissions(anybody).tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }
}

/// The runtimes, the default one first.
pub const RUNTIMES: [&str; 3] = ["per-core", "tokio-current-thread", "tokio-multi-thread"];

/// Returns the value of a statistic or setting on a page.
pub fn stat<'p>(page: &'p str, name: &str) -> &'p str {
    let found = page.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
    found.unwrap_or_else(|| panic!("no {name} in {page}"))
}

/// Returns the rest of the line that starts with `name` in a process's file `/proc/PID/FILE`.
pub fn of_process(pid: Pid, file: &str, name: &str) -> String {
    let text =
        std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join(file)).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().to_owned()
}

/// Reads once. Retries an interrupted read, because a suspension of the machine interrupts reads of
/// a socket with a timeout.
#[allow(dead_code, reason = "not every test program calls it")]
pub fn read_some(stream: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(bytes) {
            Err(error) if error.kind() == ErrorKind::Interrupted => (),
            done => return done,
        }
    }
}

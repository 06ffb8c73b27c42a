//! A server that a test starts for itself and ends with it.
#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

pub mod tls;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a test waits for what has to come before it calls that a hang. Nothing depends on its
/// length: a machine that is busy with other things needs some of it.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// A running server. Dropping it ends it.
pub struct Server {
    child: Child,
    pub port: u16,
}

impl Server {
    /// larderd with these options, on a free port of the loopback.
    pub fn larderd(options: &[&str]) -> Self {
        Self::larderd_with(options, &[])
    }

    /// The same with these variables in its environment.
    pub fn larderd_with(options: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::start(env!("CARGO_BIN_EXE_larderd"), options, environment)
    }

    /// Debian's memcached; `None` if it is not installed.
    pub fn memcached(options: &[&str]) -> Option<Self> {
        Self::memcached_with(options, &[])
    }

    /// The same with these variables in its environment.
    pub fn memcached_with(options: &[&str], environment: &[(&str, &str)]) -> Option<Self> {
        let found = Command::new("memcached").arg("-V").output().is_ok();
        let options = [&["-u", "root", "-U", "0"], options].concat();
        found.then(|| Self::start("memcached", &options, environment))
    }

    fn start(program: &str, options: &[&str], environment: &[(&str, &str)]) -> Self {
        // Its own port file says where it listens: a port that was free a moment ago may be
        // somebody else's by now.
        let scratch = Scratch::new("server");
        let child = Command::new(program)
            .args(["-l", "127.0.0.1", "-p", "-1"])
            .args(options)
            .envs(environment.iter().copied())
            .env("MEMCACHED_PORT_FILENAME", scratch.path("ports"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut server = Self { child, port: 0 };
        server.port = scratch.port(|| {
            assert_eq!(server.child.try_wait().unwrap(), None, "{program} {options:?} ended");
        });
        server
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Sends `bytes` on a connection of their own and reads until the server closes it.
    pub fn ask(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        // The server may close before it has read it all.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    }
}

impl Server {
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// Waits for the end that was asked for: how it ended.
    pub fn ends(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < TIMEOUT, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs larderd to its end.
pub fn larderd(options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_larderd")).args(options).output().unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Waits for something that has to come.
pub fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_there() {
        assert!(begun.elapsed() < TIMEOUT, "no {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A directory of a test's own, removed with it. Its path is new each time, so that nothing an
/// earlier run left behind is found in it.
pub struct Scratch(TempDir);

impl Scratch {
    /// `name` is part of the path, for those who look for it.
    pub fn new(name: &str) -> Self {
        // Servers that become another user have to reach what is in it.
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

    /// The first port in the file that a server writes here, once it is there; `meanwhile` is done
    /// until then.
    pub fn port(&self, mut meanwhile: impl FnMut()) -> u16 {
        wait_for("port file", || {
            meanwhile();
            self.path("ports").exists()
        });
        let ports = self.read("ports");
        ports.lines().next().unwrap().rsplit(' ').next().unwrap().parse().unwrap()
    }
}

/// The runtimes, the default one first.
pub const RUNTIMES: [&str; 3] = ["per-core", "tokio-current-thread", "tokio-multi-thread"];

/// Runs all tests of this file again for each of Tokio's runtimes, but for those whose names have
/// one of `skipped` in them: each server that they start is told of it by its environment.
pub fn again_under_tokio(skipped: &[&str]) {
    std::thread::scope(|scope| {
        for runtime in &RUNTIMES[1..] {
            scope.spawn(move || run_again(&[("LARDER_RUNTIME", runtime)], skipped));
        }
    });
}

/// The same for each runtime over an engine whose look-ups are answered late at random.
pub fn again_with_delays(skipped: &[&str]) {
    std::thread::scope(|scope| {
        for runtime in RUNTIMES {
            let variables = [("LARDER_RUNTIME", runtime), ("LARDER_ENGINE", "delayed")];
            scope.spawn(move || run_again(&variables, skipped));
        }
    });
}

fn run_again(variables: &[(&str, &str)], skipped: &[&str]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    for name in skipped.iter().chain(&["under_tokio", "with_delays"]) {
        command.args(["--skip", name]);
    }
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "under {variables:?}:\n{said}\n{}", stderr(&output));
    assert!(!said.contains("ok. 0 passed"), "{said}");
}

/// A server that was started in a way of its own, on any free port of the loopback, which it writes
/// to a file; what it says goes to another.
pub struct Started {
    pub scratch: Scratch,
    pub child: Child,
}

impl Started {
    /// larderd with these options and variables.
    pub fn new(name: &str, options: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_larderd"));
        command.args(["-l", "127.0.0.1", "-p", "-1", "-t", "1"]).args(options);
        command.envs(variables.iter().copied()).stdin(Stdio::null());
        Self::spawn(Scratch::new(name), &mut command)
    }

    /// Whatever becomes larderd.
    pub fn spawn(scratch: Scratch, command: &mut Command) -> Self {
        let said = std::fs::File::create(scratch.path("said")).unwrap();
        command.env("MEMCACHED_PORT_FILENAME", scratch.path("ports"));
        let child = command.stdout(Stdio::null()).stderr(said).spawn().unwrap();
        Self { scratch, child }
    }

    /// The port, once it is known.
    pub fn port(&self) -> u16 {
        self.scratch.port(|| ())
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port())).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    /// Sends `bytes` on a connection of their own and reads until the server closes it.
    pub fn ask(&self, bytes: &str) -> String {
        let mut stream = self.connect();
        let _ = stream.write_all(bytes.as_bytes());
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    pub fn said(&self) -> String {
        self.scratch.read("said")
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Waits for its end: how it ended.
    pub fn ends(&mut self) -> ExitStatus {
        let mut status = None;
        wait_for("end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A statistic or a setting out of its page.
pub fn stat<'p>(page: &'p str, name: &str) -> &'p str {
    let found = page.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
    found.unwrap_or_else(|| panic!("no {name} in {page}"))
}

/// What the kernel says of a process, by the name of its line.
pub fn of_process(pid: Pid, file: &str, name: &str) -> String {
    let text =
        std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join(file)).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().to_owned()
}

/// One read. A socket's that may time out is interrupted when the machine stands still meanwhile.
#[allow(dead_code, reason = "not every test program reads by itself")]
pub fn read_some(stream: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(bytes) {
            Err(error) if error.kind() == ErrorKind::Interrupted => (),
            done => return done,
        }
    }
}

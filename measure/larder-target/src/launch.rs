//! Starts a server for a measurement, and stops it with all of its processes.

use crate::group::ProcessGroup;
use crate::template::{self, Values};
use crate::{CoreSet, Protocol, ServerAddress, process};
use larder_protocol::encode::{binary, classic, resp};
use nix::sys::signal::Signal;
use socket2::{Domain, Socket, Type};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Maximum time from the start of a server to its first reply.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time for a server to exit after SIGTERM, and separately after SIGKILL.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum time for a server to exit during a restart. The limit is high, because a server can take
/// long to write its memory to a disk.
const RESTART_TIMEOUT: Duration = Duration::from_secs(120);
/// Interval at which a restart checks whether the server has exited. The interval is short, because
/// a restart can take only milliseconds.
const RESTART_POLL_INTERVAL: Duration = Duration::from_micros(200);
/// The system's in-memory file system.
const SHARED_MEMORY: &str = "/dev/shm";
/// Timeout for the reply to the request that checks whether the server is ready.
const READ_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of attempts to start a server. An attempt fails if another process takes the
/// chosen port first.
const ATTEMPTS: usize = 3;

/// The parameters for starting a server.
#[derive(Clone, Debug)]
pub struct Launch<'l> {
    /// The command. Its placeholders are `{port}` or `{socket}` (a path), `{dir}` (an empty
    /// directory), `{shm}` (an empty directory in shared memory), `{disk}` (an empty directory in
    /// `disk`), and those of `values`. Stopping the server removes the directories.
    pub command: CommandLine<'l>,
    /// The other placeholders of the command, and their values.
    pub values: Values,
    /// The TCP port of a server whose port is fixed; `None` if the command has `{port}` or
    /// `{socket}`.
    pub port: Option<u16>,
    /// The protocol in which the server must answer to count as started.
    pub protocol: Protocol,
    /// The cores of the server; `None` for the cores of the calling thread.
    pub cores: Option<&'l CoreSet>,
    /// A file for the server's output. Without one, the server inherits standard error, and its
    /// standard output is discarded.
    pub log: Option<&'l Path>,
    /// Parent directory of `{disk}`. Without it, `{disk}` is an unknown placeholder.
    pub disk: Option<&'l Path>,
}

/// The command of a server.
#[derive(Clone, Debug)]
pub enum CommandLine<'l> {
    /// A program and its arguments.
    Words {
        /// The program.
        program: &'l Path,
        /// The program's arguments. Unknown placeholders are errors.
        arguments: &'l [String],
    },
    /// A line for a shell. Unknown placeholders remain unchanged, because braces have a meaning in
    /// shells.
    Shell(&'l str),
}

/// Errors when starting a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The command has no placeholder for an address.
    #[error("the command has neither {{port}} nor {{socket}}; add one of them")]
    NoPlaceholder,
    /// The command has an unknown placeholder, or a `{` without `}`.
    #[error("{0}")]
    Template(String),
    /// The address is not free, the log cannot be written, or a directory cannot be created.
    #[error("{what}: {error}")]
    Prepare {
        /// The file, directory or address.
        what: String,
        /// The system's error.
        error: io::Error,
    },
    /// The watchdog or the command could not be started, or the selected cores could not be used.
    #[error("cannot start: {0}")]
    Spawn(String),
    /// The server exited before it answered.
    #[error("did not start: {0}")]
    Exited(String),
    /// The server did not answer in time.
    #[error("does not answer {protocol} on {address}{log}")]
    NoAnswer {
        /// The protocol of the request.
        protocol: Protocol,
        /// The address.
        address: ServerAddress,
        /// The last line of the log, after a short introduction; empty if the log is empty.
        log: String,
    },
}

/// A started server. Dropping it stops the server.
#[derive(Debug)]
pub struct Launched {
    child: Child,
    group: ProcessGroup,
    address: ServerAddress,
    /// ID of the measured process. Measurements include its descendants.
    pid: i32,
    /// The command that started the server.
    command: Command,
    /// The cores of the server.
    cores: Option<CoreSet>,
    folders: Folders,
    log: Option<PathBuf>,
    is_stopped: bool,
}

/// The directories of a server.
#[derive(Clone, Debug)]
struct Folders {
    dir: PathBuf,
    shm: PathBuf,
    disk: Option<PathBuf>,
}

impl Folders {
    fn all(&self) -> impl Iterator<Item = &Path> {
        [Some(&self.dir), Some(&self.shm), self.disk.as_ref()]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
    }

    fn remove(&self) {
        for folder in self.all() {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// The times of a restart.
#[derive(Clone, Copy, Debug)]
pub struct Restarted {
    /// The time just before the signal is sent to the first process.
    pub signalled: Instant,
    /// The time at which all old processes of the server have exited.
    pub ended: Instant,
    /// The time at which the new process starts.
    pub started: Instant,
}

impl Launch<'_> {
    /// Starts the server and waits until it answers.
    ///
    /// # Errors
    /// The command or the address cannot be used, or the server does not start, exits before it
    /// answers, or does not answer within 30 seconds.
    pub fn start(&self) -> Result<Launched, LaunchError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let (address, started) = self.attempt()?;
            let taken = match address {
                ServerAddress::Tcp(address) => free_address(address.port()).is_err(),
                ServerAddress::Unix(_) => false,
            };
            if started.is_ok() || !taken || self.port.is_some() || attempts == ATTEMPTS {
                return started;
            }
        }
    }

    /// Tries once to start the server. Returns the chosen address, and the server or the error.
    /// Returns only an error if the preparation fails.
    fn attempt(&self) -> Result<(ServerAddress, Result<Launched, LaunchError>), LaunchError> {
        let id = next_id();
        let name = format!("larder-{}-{id}", std::process::id());
        let folders = Folders {
            dir: std::env::temp_dir().join(&name),
            shm: Path::new(SHARED_MEMORY).join(&name),
            disk: self.disk.map(|disk| disk.join(&name)),
        };
        let prepare =
            |path: &Path, error| LaunchError::Prepare { what: path.display().to_string(), error };
        let address = self.choose_address(&folders.dir)?;
        let mut command = self.command(&address, &folders)?;
        command.stdin(Stdio::null()).stdout(Stdio::null());
        if let Some(log) = self.log {
            // Appends to the log, because it may contain the output of a failed attempt.
            let output = File::options().create(true).append(true).open(log);
            let output = output.map_err(|error| prepare(log, error))?;
            command.stderr(output.try_clone().map_err(|error| prepare(log, error))?).stdout(output);
        }
        for folder in
            folders.all().filter(|folder| *folder == folders.dir || self.uses(folder, &folders))
        {
            std::fs::create_dir_all(folder).map_err(|error| prepare(folder, error))?;
        }
        let spawned = ProcessGroup::new(folders.all(), id)
            .map_err(|error| error.to_string())
            .and_then(|group| {
                group.add(&mut command);
                Ok((spawn_on(self.cores, &mut command)?, group))
            });
        let (child, group) = spawned.map_err(|error| {
            folders.remove();
            LaunchError::Spawn(error)
        })?;
        let pid = child.id().cast_signed();
        let log = self.log.map(Path::to_owned);
        let mut launched = Launched {
            child,
            group,
            address,
            pid,
            command,
            cores: self.cores.cloned(),
            folders,
            log,
            is_stopped: false,
        };
        let address = launched.address.clone();
        let ready = launched.wait_until_ready(self.protocol);
        Ok((address, ready.map(|()| launched)))
    }

    /// Returns whether the command has a placeholder.
    fn has(&self, placeholder: &str) -> bool {
        match &self.command {
            CommandLine::Words { arguments, .. } => {
                arguments.iter().any(|word| word.contains(placeholder))
            }
            CommandLine::Shell(line) => line.contains(placeholder),
        }
    }

    /// Returns whether the command has the placeholder for `folder`: `{shm}` for the directory in
    /// shared memory, `{disk}` otherwise.
    fn uses(&self, folder: &Path, folders: &Folders) -> bool {
        let placeholder = if folder == folders.shm { "{shm}" } else { "{disk}" };
        self.has(placeholder)
    }

    fn choose_address(&self, folder: &Path) -> Result<ServerAddress, LaunchError> {
        let has = |placeholder: &str| self.has(placeholder);
        if has("{socket}") {
            return Ok(ServerAddress::Unix(folder.join("socket")));
        }
        if !has("{port}") && self.port.is_none() {
            return Err(LaunchError::NoPlaceholder);
        }
        let what = self.port.map_or("a TCP port".to_owned(), |port| format!("TCP port {port}"));
        free_address(self.port.unwrap_or(0))
            .map(ServerAddress::Tcp)
            .map_err(|error| LaunchError::Prepare { what, error })
    }

    fn command(&self, address: &ServerAddress, folders: &Folders) -> Result<Command, LaunchError> {
        let values = self.values.clone().with("dir", folders.dir.display());
        let values = values.with("shm", folders.shm.display());
        let values = match &folders.disk {
            Some(disk) => values.with("disk", disk.display()),
            None => values,
        };
        let values = match address {
            ServerAddress::Unix(path) => values.with("socket", path.display()).with("port", 0),
            ServerAddress::Tcp(address) => values.with("port", address.port()),
        };
        match &self.command {
            CommandLine::Words { program, arguments } => {
                let words = arguments.iter().map(|word| template::expand(word, &values));
                let words = words.collect::<Result<Vec<String>, String>>();
                let mut command = Command::new(program);
                command.args(words.map_err(LaunchError::Template)?);
                Ok(command)
            }
            CommandLine::Shell(line) => {
                let mut command = Command::new("sh");
                command.args(["-c", &format!("exec {}", template::expand_known(line, &values))]);
                Ok(command)
            }
        }
    }
}

impl Launched {
    fn wait_until_ready(&mut self, protocol: Protocol) -> Result<(), LaunchError> {
        let start_time = Instant::now();
        while start_time.elapsed() < START_TIMEOUT {
            if let Some(report) = self.exit_report() {
                return Err(LaunchError::Exited(report));
            }
            if answers(&self.address, protocol) {
                self.choose_pid();
                return Ok(());
            }
            sleep(POLL_INTERVAL);
        }
        let (address, log) = (self.address.clone(), self.last_log_line());
        Err(LaunchError::NoAnswer { protocol, address, log })
    }

    /// Chooses the process to measure. If the listening process descends from the started process,
    /// keeps the started process, so that the costs include all programs of a script. Otherwise,
    /// chooses the listening process.
    fn choose_pid(&mut self) {
        if let Some(owner) = process::find(&self.address)
            && !process::descends(owner, self.pid)
        {
            self.pid = owner;
        }
    }

    /// Returns the address on which the server listens.
    #[must_use]
    pub fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// Returns the ID of the process to measure together with its descendants. If that process has
    /// exited, returns the ID of the listening process.
    #[must_use]
    pub fn pid(&self) -> i32 {
        if process::is_running(self.pid) {
            return self.pid;
        }
        process::find(&self.address).unwrap_or(self.pid)
    }

    /// Returns the exit status and the last line of the log, or `None` while the server runs. A
    /// server still runs if only its first process has exited, as the first process of a daemon
    /// does.
    pub fn exit_report(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        let ended = self.is_stopped || self.group.members().is_empty();
        ended.then(|| format!("{status}{}", self.last_log_line()))
    }

    /// Signals all processes of the server, and waits until they have exited. After `pause`, runs
    /// the command again with the same address and directories. Does not wait for the server to
    /// answer.
    ///
    /// # Errors
    /// The server does not exit in time, or cannot be started.
    pub fn restart(&mut self, signal: Signal, pause: Duration) -> Result<Restarted, String> {
        let signalled = Instant::now();
        self.group.signal_members(signal);
        while self.child.try_wait().map_err(|error| error.to_string())?.is_none()
            || !self.group.members().is_empty()
        {
            if signalled.elapsed() > RESTART_TIMEOUT {
                return Err(format!("did not exit within {RESTART_TIMEOUT:?} after {signal}"));
            }
            sleep(RESTART_POLL_INTERVAL);
        }
        let ended = Instant::now();
        sleep(pause);
        let started = Instant::now();
        self.child = spawn_on(self.cores.as_ref(), &mut self.command)?;
        self.pid = self.child.id().cast_signed();
        Ok(Restarted { signalled, ended, started })
    }

    /// Stops all processes of the server with SIGTERM, and with SIGKILL after a timeout. Removes
    /// its directories.
    pub fn stop(&mut self) {
        if self.is_stopped {
            return;
        }
        self.is_stopped = true;
        self.group.signal(Signal::SIGTERM);
        // A process that SIGSTOP has stopped handles SIGTERM only after it continues.
        self.group.signal(Signal::SIGCONT);
        if !self.wait_for_all(STOP_TIMEOUT) {
            self.group.signal(Signal::SIGKILL);
            let _ = self.child.kill();
            let _ = self.child.wait();
            self.wait_for_all(STOP_TIMEOUT);
        }
        self.folders.remove();
    }

    /// Waits until all processes of the server have exited. Returns false after `at_most`.
    fn wait_for_all(&mut self, at_most: Duration) -> bool {
        let start_time = Instant::now();
        while start_time.elapsed() < at_most {
            if !matches!(self.child.try_wait(), Ok(None)) && self.group.members().is_empty() {
                return true;
            }
            sleep(POLL_INTERVAL);
        }
        false
    }

    fn last_log_line(&self) -> String {
        let Some(log) = &self.log else { return String::new() };
        let bytes = std::fs::read(log).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let line = text.lines().rev().find(|line| !line.trim().is_empty());
        line.map_or(String::new(), |line| {
            format!("; last log line: {}", line.trim().chars().take(200).collect::<String>())
        })
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns a number that is unique in this process.
fn next_id() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Starts a process from a thread that is pinned to `cores`. The process inherits this affinity.
fn spawn_on(cores: Option<&CoreSet>, command: &mut Command) -> Result<Child, String> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            cores.map_or(Ok(()), CoreSet::pin)?;
            command.spawn().map_err(|error| error.to_string())
        });
        thread.join().expect("spawning does not panic")
    })
}

/// Returns a free address on the loopback interface with this port, or with any free port if `port`
/// is 0. Binds the address to check that it is free, but does not listen. A process that another
/// thread forks at the same time would inherit a listening socket, and clients could connect to
/// that socket even after this function has closed it.
///
/// # Errors
/// The port is in use, or no port is free.
pub fn free_address(port: u16) -> io::Result<SocketAddr> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
    socket.local_addr()?.as_socket().ok_or_else(|| ErrorKind::AddrNotAvailable.into())
}

/// Returns whether a server at this address answers a request.
fn answers(address: &ServerAddress, protocol: Protocol) -> bool {
    let mut request = Vec::new();
    let answer: &[u8] = match protocol {
        Protocol::Text | Protocol::Meta => {
            classic::version(&mut request);
            b"VERSION"
        }
        Protocol::Binary => {
            binary::version(binary::Options::default(), &mut request);
            &[0x81]
        }
        Protocol::Resp => {
            resp::command(&[b"PING"], &mut request);
            b"+PONG"
        }
    };
    let answer = |stream: &mut dyn ReadWrite| {
        let mut got = vec![0; answer.len()];
        stream.write_all(&request).and_then(|()| stream.read_exact(&mut got)).is_ok()
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

trait ReadWrite: Read + Write {}
impl<S: Read + Write> ReadWrite for S {}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(line: &str) -> Result<Launched, LaunchError> {
        let log = std::env::temp_dir().join(format!("larder-log-{}", next_id()));
        let started = Launch {
            command: CommandLine::Shell(line),
            values: Values::default().with("memory_mb", 64),
            port: None,
            protocol: Protocol::Text,
            cores: None,
            log: Some(&log),
            disk: None,
        }
        .start();
        let _ = std::fs::remove_file(log);
        started
    }

    #[test]
    fn a_command_that_ends_at_once_is_an_error() {
        let error = shell("sh -c 'echo no memory for {port}; exit 3'").unwrap_err().to_string();
        assert!(error.contains("did not start: exit status: 3; last log line: no memory for "));
    }

    #[test]
    fn a_command_without_a_placeholder_for_the_address_is_refused() {
        let error = shell("memcached -m {memory_mb}").unwrap_err();
        assert!(matches!(error, LaunchError::NoPlaceholder), "{error}");
    }

    #[test]
    fn the_places_of_a_shell_line() {
        let launch = Launch {
            command: CommandLine::Shell("x {port} {dir} {shm} {disk} ${HOME} {a,b}"),
            values: Values::default(),
            port: None,
            protocol: Protocol::Text,
            cores: None,
            log: None,
            disk: None,
        };
        let address = ServerAddress::Tcp("127.0.0.1:1234".parse().unwrap());
        let folders = Folders { dir: "/d".into(), shm: "/s".into(), disk: None };
        let command = launch.command(&address, &folders).unwrap();
        let line = command.get_args().nth(1).unwrap().to_str().unwrap();
        assert_eq!(line, "exec x 1234 /d /s {disk} ${HOME} {a,b}");
    }
}

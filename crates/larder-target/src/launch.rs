//! Starts a server for a measurement and stops it afterwards.

use crate::ServerAddress;
use socket2::{Domain, Socket, Type};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a server may take until it accepts connections.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A start is tried several times, because another process can take the free port first.
const ATTEMPTS: usize = 3;

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The command has no placeholder for an address.
    #[error("the command `{0}` has neither {{port}} nor {{socket}}; add one of them")]
    NoPlaceholder(String),
    /// The system refused to run the command.
    #[error("cannot start `{command}`: {error}")]
    Spawn {
        /// The command.
        command: String,
        /// The system's error.
        error: io::Error,
    },
    /// The server exited or never accepted a connection.
    #[error("`{command}` {what}; run the command by itself to see why")]
    NotListening {
        /// The command, with its placeholders replaced.
        command: String,
        /// What the server did.
        what: String,
    },
}

/// A started server, which is killed when this is dropped.
#[derive(Debug)]
pub struct Launched {
    child: Child,
    address: ServerAddress,
    folder: PathBuf,
}

impl Launched {
    /// Starts a server and waits until it accepts connections. A shell runs the command, in which
    /// the placeholders `{port}` or `{socket}` (a path), `{memory_mb}`, `{memory_bytes}` and `{dir}`
    /// (an empty directory) are replaced. The server inherits standard error.
    ///
    /// # Errors
    /// The server does not start, exits at once, or does not accept connections within 30 seconds.
    pub fn start(template: &str, memory_mb: u64) -> Result<Self, LaunchError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let started = Self::attempt(template, memory_mb);
            if started.is_ok() || attempts == ATTEMPTS {
                return started;
            }
        }
    }

    fn attempt(template: &str, memory_mb: u64) -> Result<Self, LaunchError> {
        let folder = scratch_folder();
        let spawn_error = |error| LaunchError::Spawn { command: template.to_owned(), error };
        std::fs::create_dir_all(&folder).map_err(spawn_error)?;
        let address = choose_address(template, &folder)?;
        let command = expand(template, &address, &folder, memory_mb);
        let child = Command::new("sh")
            .args(["-c", &format!("exec {command}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(spawn_error)?;
        let mut launched = Self { child, address, folder };
        launched.wait_until_listening(&command)?;
        Ok(launched)
    }

    fn wait_until_listening(&mut self, command: &str) -> Result<(), LaunchError> {
        let not_listening =
            |what| Err(LaunchError::NotListening { command: command.to_owned(), what });
        let since = Instant::now();
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return not_listening(format!("exited at once ({status})"));
            }
            if answers(&self.address) {
                return Ok(());
            }
            if since.elapsed() > START_TIMEOUT {
                return not_listening(format!("does not accept connections at {}", self.address));
            }
            sleep(Duration::from_millis(10));
        }
    }

    /// The address that the server listens on.
    #[must_use]
    pub fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// The server's process ID.
    #[must_use]
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap_or(i32::MAX)
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        // Killing loses nothing that is still needed, and fails if the server has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn scratch_folder() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    std::env::temp_dir().join(format!("larder-bench-{process}-{count}"))
}

fn choose_address(template: &str, folder: &Path) -> Result<ServerAddress, LaunchError> {
    if template.contains("{socket}") {
        return Ok(ServerAddress::Unix(folder.join("socket")));
    }
    if !template.contains("{port}") {
        return Err(LaunchError::NoPlaceholder(template.to_owned()));
    }
    free_address(0)
        .map(ServerAddress::Tcp)
        .map_err(|error| LaunchError::Spawn { command: template.to_owned(), error })
}

/// A free address on the loopback interface, with this port or, if `port` is 0, with any. The address
/// is only bound to check that it is free, not listened on: a process that is forked meanwhile would
/// inherit the listening socket, and clients could still connect to it after it is closed here.
///
/// # Errors
/// The port is in use, or no port is free.
pub fn free_address(port: u16) -> io::Result<SocketAddr> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
    socket.local_addr()?.as_socket().ok_or_else(|| ErrorKind::AddrNotAvailable.into())
}

fn expand(template: &str, address: &ServerAddress, folder: &Path, memory_mb: u64) -> String {
    let (port, socket) = match address {
        ServerAddress::Tcp(address) => (address.port().to_string(), String::new()),
        ServerAddress::Unix(path) => (String::from("0"), path.display().to_string()),
    };
    template
        .replace("{port}", &port)
        .replace("{socket}", &socket)
        .replace("{memory_mb}", &memory_mb.to_string())
        .replace("{memory_bytes}", &(memory_mb << 20).to_string())
        .replace("{dir}", &folder.display().to_string())
}

fn answers(address: &ServerAddress) -> bool {
    match address {
        ServerAddress::Tcp(address) => TcpStream::connect(address).is_ok(),
        ServerAddress::Unix(path) => UnixStream::connect(path).is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_ends_at_once_is_an_error() {
        let error = Launched::start("false {port}", 1).unwrap_err();
        assert!(error.to_string().contains("exited at once"), "{error}");
    }

    #[test]
    fn a_command_needs_a_place() {
        let error = Launched::start("memcached -m {memory_mb}", 1).unwrap_err();
        assert!(matches!(error, LaunchError::NoPlaceholder(_)), "{error}");
    }

    #[test]
    fn all_fields_are_filled_in() {
        let address = ServerAddress::Tcp("127.0.0.1:1234".parse().unwrap());
        let all = "{port} {memory_mb} {memory_bytes} {dir}";
        assert_eq!(expand(all, &address, Path::new("/d"), 3), "1234 3 3145728 /d");
    }
}

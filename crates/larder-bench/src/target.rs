//! Whom a measurement is about: a server that runs, or one that is started for it.

use crate::blocking::{Connection, Dialect};
use crate::launch::{LaunchError, Launched};
use crate::server_process;
use crate::settings::ServerAddress;
use clap::Args;
use std::io;
use std::net::ToSocketAddrs;
use std::path::PathBuf;

/// What can be typed about the server.
#[derive(Args, Clone, Debug)]
pub struct ServerArguments {
    /// Start a fresh server for each figure and end it afterwards. {port} or {socket}, {memory_mb}
    /// or {memory_bytes}, and {dir} are filled in. May be given several times
    #[arg(long, value_name = "[NAME=]COMMAND", conflicts_with_all = ["server", "port", "unix_socket", "pid"], help_heading = HEADING)]
    pub command: Vec<String>,
    /// Name or address of a server that runs
    #[arg(short, long, default_value = "localhost", help_heading = HEADING)]
    pub server: String,
    /// Its port; 6379 for RESP unless given
    #[arg(short, long, help_heading = HEADING)]
    pub port: Option<u16>,
    /// Its unix socket, rather than TCP
    #[arg(short = 'S', long, conflicts_with_all = ["server", "port"], help_heading = HEADING)]
    pub unix_socket: Option<PathBuf>,
    /// Its process; found by its socket unless given
    #[arg(long, help_heading = HEADING)]
    pub pid: Option<i32>,
    /// How to speak to it
    #[arg(short = 'P', long, value_enum, default_value_t, help_heading = HEADING)]
    pub protocol: Dialect,
    /// Memory limit in MiB of the servers that are started [default: 64], or of one that runs and
    /// does not say its own
    #[arg(short, long, value_parser = clap::value_parser!(u64).range(1..=1 << 30), help_heading = HEADING)]
    pub memory_mb: Option<u64>,
}

const HEADING: &str = "Server";

/// Memory limit of servers that are started, in MiB.
const MEMORY_MB: u64 = 64;

/// Why there is no server to measure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The server's name leads nowhere.
    #[error("cannot find {0}: give --server an address or a name that resolves")]
    NoAddress(String),
    /// It could not be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// It did not take a connection.
    #[error("cannot connect to {address}: {error}; is the server running?")]
    Connect {
        /// Whom.
        address: ServerAddress,
        /// Why not.
        error: io::Error,
    },
    /// Nobody says how much it may hold.
    #[error("the server does not say its memory limit: give --memory-mb")]
    NoLimit,
}

impl ServerArguments {
    /// Who is to be measured.
    ///
    /// # Errors
    /// The server's name does not resolve.
    pub fn targets(&self) -> Result<Vec<Target>, TargetError> {
        if self.command.is_empty() {
            return Ok(vec![Target::Running { address: self.address()?, pid: self.pid }]);
        }
        Ok(self.command.iter().map(|typed| Target::from_command(typed)).collect())
    }

    fn address(&self) -> Result<ServerAddress, TargetError> {
        if let Some(path) = &self.unix_socket {
            return Ok(ServerAddress::Unix(path.clone()));
        }
        let port = match self.protocol {
            Dialect::Text => 11211,
            Dialect::Resp => 6379,
        };
        let place = (self.server.as_str(), self.port.unwrap_or(port));
        let unknown = || TargetError::NoAddress(self.server.clone());
        let found: Vec<_> = place.to_socket_addrs().map_err(|_| unknown())?.collect();
        // `localhost` may mean both; servers that listen on one only listen on IPv4.
        let address = found.iter().find(|address| address.is_ipv4()).or(found.first());
        address.copied().map(ServerAddress::Tcp).ok_or_else(unknown)
    }
}

/// A server to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Started afresh each time.
    Command {
        /// What to call it.
        name: String,
        /// See [`Launched::start`].
        template: String,
    },
    /// Already there.
    Running {
        /// Where.
        address: ServerAddress,
        /// Its process, if known.
        pid: Option<i32>,
    },
}

impl Target {
    /// From `NAME=COMMAND` or a command, which is called by its program.
    #[must_use]
    pub fn from_command(typed: &str) -> Self {
        let is_name = |name: &str| name.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c));
        if let Some((name, template)) = typed.split_once('=').filter(|(name, _)| is_name(name)) {
            return Self::Command { name: name.to_owned(), template: template.to_owned() };
        }
        let program = typed.split_whitespace().next().unwrap_or_default();
        let name = program.rsplit('/').next().unwrap_or(program).to_owned();
        Self::Command { name, template: typed.to_owned() }
    }

    /// What to call it.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Command { name, .. } => name.clone(),
            Self::Running { address, .. } => address.to_string(),
        }
    }

    /// Whether each measurement finds it empty.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        matches!(self, Self::Command { .. })
    }

    /// Starts it if need be, and connects to it. `memory_mb` is its limit in MiB: 64 unless given
    /// for one that is started, what it says itself for one that runs.
    ///
    /// # Errors
    /// It does not start, cannot be reached, or its limit is unknown.
    pub fn open(
        &self,
        dialect: Dialect,
        memory_mb: Option<u64>,
    ) -> Result<OpenTarget, TargetError> {
        match self {
            Self::Command { template, .. } => {
                let memory_mb = memory_mb.unwrap_or(MEMORY_MB);
                let launched = Launched::start(template, memory_mb)?;
                let address = launched.address().clone();
                let connection = connect(&address, dialect)?;
                let pid = server_process::find(&address).or(Some(launched.pid()));
                let limit_bytes = memory_mb << 20;
                let _launched = Some(launched);
                Ok(OpenTarget { connection, pid, limit_bytes, address, dialect, _launched })
            }
            Self::Running { address, pid } => {
                let mut connection = connect(address, dialect)?;
                let said = connection.limit_bytes().ok().flatten();
                let limit_bytes = said.or(memory_mb.map(|mb| mb << 20));
                let limit_bytes = limit_bytes.ok_or(TargetError::NoLimit)?;
                let pid = pid.or_else(|| server_process::find(address));
                let address = address.clone();
                Ok(OpenTarget { connection, pid, limit_bytes, address, dialect, _launched: None })
            }
        }
    }
}

fn connect(address: &ServerAddress, dialect: Dialect) -> Result<Connection, TargetError> {
    Connection::open(address, dialect)
        .map_err(|error| TargetError::Connect { address: address.clone(), error })
}

/// A server that answers; one that was started ends when this is dropped.
#[derive(Debug)]
pub struct OpenTarget {
    /// To speak to it.
    pub connection: Connection,
    /// Its process, if known.
    pub pid: Option<i32>,
    /// Its memory limit.
    pub limit_bytes: u64,
    address: ServerAddress,
    dialect: Dialect,
    _launched: Option<Launched>,
}

impl OpenTarget {
    /// Opens another connection.
    ///
    /// # Errors
    /// It cannot be reached.
    pub fn connect(&self) -> Result<Connection, TargetError> {
        connect(&self.address, self.dialect)
    }

    /// Its resident memory in bytes, if the system says.
    #[must_use]
    pub fn resident_bytes(&self) -> Option<u64> {
        server_process::usage(self.pid?).map(|usage| usage.rss_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_may_have_a_name() {
        let check = |typed: &str, name: &str, template: &str| {
            let (name, template) = (name.to_owned(), template.to_owned());
            assert_eq!(Target::from_command(typed), Target::Command { name, template });
        };
        check("ours=target/larderd -p {port}", "ours", "target/larderd -p {port}");
        check("target/larderd -p {port}", "larderd", "target/larderd -p {port}");
        check("memcached --port={port}", "memcached", "memcached --port={port}");
    }
}

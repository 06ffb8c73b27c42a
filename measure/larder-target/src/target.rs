//! The server under measurement. Either it already runs, or the measurement starts it.

use crate::ServerAddress;
use crate::blocking::{Connection, Dialect};
use crate::launch::{CommandLine, Launch, LaunchError, Launched};
use crate::process;
use crate::template::Values;
use clap::Args;
use std::io;
use std::net::ToSocketAddrs;
use std::path::PathBuf;

/// The options that select the server.
#[derive(Args, Clone, Debug)]
pub struct ServerArguments {
    /// Command that starts a server; each measurement starts and stops it. Placeholders are {port}
    /// or {socket}, {memory_mb} or {memory_bytes}, and {dir} (an empty directory). Repeat the
    /// option for several servers
    #[arg(long, value_name = "[NAME=]COMMAND", conflicts_with_all = ["server", "port", "unix_socket", "pid"], help_heading = HEADING)]
    pub command: Vec<String>,
    /// Host name or IP address of a server that already runs
    #[arg(short, long, default_value = "localhost", help_heading = HEADING)]
    pub server: String,
    /// TCP port of the server [default: 11211, or 6379 with --protocol resp]
    #[arg(short, long, help_heading = HEADING)]
    pub port: Option<u16>,
    /// Connect to this unix socket instead of TCP
    #[arg(short = 'S', long, conflicts_with_all = ["server", "port"], help_heading = HEADING)]
    pub unix_socket: Option<PathBuf>,
    /// Process ID of the server, for the report of its resident memory [default: the process on
    /// this machine that listens on the address]
    #[arg(long, help_heading = HEADING)]
    pub pid: Option<i32>,
    /// Protocol of the server
    #[arg(short = 'P', long, value_enum, default_value_t, help_heading = HEADING)]
    pub protocol: Dialect,
    /// Memory limit in MiB of servers that --command starts [default: 64], or of a running server
    /// that does not report its limit
    #[arg(short, long, value_parser = clap::value_parser!(u64).range(1..=1 << 30), help_heading = HEADING)]
    pub memory_mb: Option<u64>,
}

const HEADING: &str = "Server";

/// Default memory limit in MiB for servers that `--command` starts.
const MEMORY_MB: u64 = 64;

/// Errors when starting a server, or when finding or connecting to a running server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The server's name does not resolve.
    #[error("the server name `{0}` does not resolve; give --server an IP address or another name")]
    NoAddress(String),
    /// The server could not be started.
    #[error("`{command}` {error}; run the command separately to see why")]
    Launch {
        /// The command.
        command: String,
        /// The cause.
        error: LaunchError,
    },
    /// The server did not accept a connection.
    #[error("cannot connect to {address}: {error}; check that the server runs there")]
    Connect {
        /// The address.
        address: ServerAddress,
        /// The system's error.
        error: io::Error,
    },
    /// The memory limit is unknown.
    #[error("the server does not report its memory limit; set --memory-mb")]
    NoLimit,
}

impl ServerArguments {
    /// Returns the servers to measure: one for each `--command` or, without that option, the
    /// running server.
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
        let host_and_port = (self.server.as_str(), self.port.unwrap_or(port));
        let unknown = || TargetError::NoAddress(self.server.clone());
        let found: Vec<_> = host_and_port.to_socket_addrs().map_err(|_| unknown())?.collect();
        // Prefers IPv4 addresses. `localhost` can resolve to ::1 first, and a server that listens
        // only on IPv4 does not accept connections to ::1.
        let address = found.iter().find(|address| address.is_ipv4()).or(found.first());
        address.copied().map(ServerAddress::Tcp).ok_or_else(unknown)
    }
}

/// A server to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A server that each measurement starts.
    Command {
        /// Name of the server in tables.
        name: String,
        /// The shell command, with placeholders: see [`Launch`].
        template: String,
    },
    /// A server that already runs.
    Running {
        /// The server's address.
        address: ServerAddress,
        /// The server's process ID from `--pid`; `None` without the option.
        pid: Option<i32>,
    },
}

impl Target {
    /// Parses `NAME=COMMAND` or `COMMAND`. The default name is the file name of the command's
    /// program.
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

    /// Returns the name of the server in tables.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Command { name, .. } => name.clone(),
            Self::Running { address, .. } => address.to_string(),
        }
    }

    /// Returns whether each measurement starts a new, empty server.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        matches!(self, Self::Command { .. })
    }

    /// Starts the server if it is a command, and connects to it. `memory_mb` is the memory limit;
    /// its default for a command is 64 MiB. For a running server, the limit that it reports takes
    /// precedence.
    ///
    /// # Errors
    /// The server does not start, cannot be reached, or its limit is unknown.
    pub fn open(
        &self,
        dialect: Dialect,
        memory_mb: Option<u64>,
    ) -> Result<OpenTarget, TargetError> {
        match self {
            Self::Command { template, .. } => {
                let memory_mb = memory_mb.unwrap_or(MEMORY_MB);
                let launched = launch(template, dialect, memory_mb)?;
                let address = launched.address().clone();
                let connection = connect(&address, dialect)?;
                let pid = Some(launched.pid());
                let limit_bytes = memory_mb << 20;
                let _launched = Some(launched);
                Ok(OpenTarget { connection, pid, limit_bytes, address, dialect, _launched })
            }
            Self::Running { address, pid } => {
                let mut connection = connect(address, dialect)?;
                let said = connection.limit_bytes().ok().flatten();
                let limit_bytes = said.or(memory_mb.map(|mb| mb << 20));
                let limit_bytes = limit_bytes.ok_or(TargetError::NoLimit)?;
                let pid = pid.or_else(|| process::find(address));
                let address = address.clone();
                Ok(OpenTarget { connection, pid, limit_bytes, address, dialect, _launched: None })
            }
        }
    }
}

fn launch(template: &str, dialect: Dialect, memory_mb: u64) -> Result<Launched, TargetError> {
    let launch = Launch {
        command: CommandLine::Shell(template),
        values: Values::default().with_memory(memory_mb),
        port: None,
        protocol: dialect.into(),
        cores: None,
        log: None,
        disk: None,
    };
    let failed = |error| TargetError::Launch { command: template.to_owned(), error };
    launch.start().map_err(failed)
}

fn connect(address: &ServerAddress, dialect: Dialect) -> Result<Connection, TargetError> {
    Connection::open(address, dialect)
        .map_err(|error| TargetError::Connect { address: address.clone(), error })
}

/// A server with an open connection. Dropping it stops the server if the measurement started it.
#[derive(Debug)]
pub struct OpenTarget {
    /// The first connection.
    pub connection: Connection,
    /// The server's process ID; `None` if the system does not report the owner of the address.
    pub pid: Option<i32>,
    /// The server's memory limit.
    pub limit_bytes: u64,
    address: ServerAddress,
    dialect: Dialect,
    _launched: Option<Launched>,
}

impl OpenTarget {
    /// Opens another connection to the server.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn connect(&self) -> Result<Connection, TargetError> {
        connect(&self.address, self.dialect)
    }

    /// Returns the server's resident memory in bytes, or `None` if the system does not report it.
    #[must_use]
    pub fn resident_bytes(&self) -> Option<u64> {
        process::usage(self.pid?).map(|usage| usage.rss_bytes)
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

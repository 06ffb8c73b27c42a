//! Servers that tests start and stop.
#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

pub mod broken_server;

use clap::Parser;
use larder_bench::{Arguments, Measured, run};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use socket2::{Domain, Socket, Type};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running server. Dropping it stops the server.
pub struct Server {
    child: Child,
    pub port: u16,
    reserved: Option<Socket>,
}

impl Server {
    pub fn memcached() -> Self {
        Self::memcached_with(&[])
    }

    pub fn memcached_with(options: &[&str]) -> Self {
        let usual = ["memcached", "-u", "root", "-l", "127.0.0.1", "-U", "0", "-t", "1"];
        Self::start(&[&usual, options, &["-p"]].concat())
    }

    /// A memcached on a port that is known to be free.
    pub fn memcached_at(port: u16) -> Self {
        let child = Command::new("memcached")
            .args(["-u", "root", "-l", "127.0.0.1", "-U", "0", "-t", "1", "-p", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("memcached is installed");
        let mut server = Self { child, port, reserved: None };
        assert!(server.answers(), "port {port}");
        server
    }

    pub fn redis() -> Self {
        Self::redis_with(&[])
    }

    pub fn redis_with(options: &[&str]) -> Self {
        let memory_only = ["--save", "", "--appendonly", "no"];
        Self::start(&[&["redis-server"], &memory_only[..], options, &["--port"]].concat())
    }

    /// Starts a command, to which the port is appended as last argument.
    fn start(command: &[&str]) -> Self {
        let (reserved, port) = reserve_port();
        let child = Command::new(command[0])
            .args(&command[1..])
            .arg(port.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}; scripts/test installs it", command[0]));
        let mut server = Self { child, port, reserved: Some(reserved) };
        assert!(server.answers(), "{command:?} does not start");
        server
    }

    fn answers(&mut self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(60) && self.child.try_wait().unwrap().is_none()
        {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).unwrap();
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// Runs `larder bench LINE` against this server.
    pub fn load(&self, line: &str) -> Measured {
        load(&format!("-s 127.0.0.1 -p {} {line}", self.port))
    }
}

/// A port that no other process or thread gets as a free one as long as the socket exists. A server that asks for this
/// port gets it, because it allows others to reuse addresses, as this socket does.
fn reserve_port() -> (Socket, u16) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let port = socket.local_addr().unwrap().as_socket().unwrap().port();
    (socket, port)
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `larder bench LINE`.
pub fn load(line: &str) -> Measured {
    run(&arguments(line).settings().unwrap(), None, &mut |_| ()).unwrap()
}

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
}

/// Parses a command line.
pub fn arguments(line: &str) -> Arguments {
    parse(line).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// Parses a command line, which may be wrong.
pub fn parse(line: &str) -> Result<Arguments, clap::Error> {
    parse_words(&line.split_whitespace().collect::<Vec<_>>())
}

/// Parses the words of a command line, which may be wrong.
pub fn parse_words(words: &[&str]) -> Result<Arguments, clap::Error> {
    Ok(Line::try_parse_from(std::iter::once(&"bench").chain(words))?.arguments)
}

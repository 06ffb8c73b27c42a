//! Servers that tests start and stop.
#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

pub mod broken_server;

use clap::Parser;
use larder_bench::{Arguments, Measured, run};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use socket2::{Domain, Socket, Type};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const MEMCACHED: [&str; 10] =
    ["memcached", "-u", "root", "-l", "127.0.0.1", "-U", "0", "-t", "1", "-p"];

/// A running server. Dropping it stops the server.
pub struct Server {
    child: Child,
    pub port: u16,
    reserved: Option<ReservedPort>,
}

/// While this value exists, the system does not assign its port to other sockets. A server can
/// still listen on the port, because both sockets allow the reuse of addresses. If no server
/// listens, connections to the port fail at once.
pub struct ReservedPort {
    _socket: Socket,
    pub port: u16,
}

impl ReservedPort {
    pub fn new() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        let port = socket.local_addr().unwrap().as_socket().unwrap().port();
        Self { _socket: socket, port }
    }
}

impl Server {
    pub fn memcached() -> Self {
        Self::memcached_with(&[])
    }

    pub fn memcached_with(options: &[&str]) -> Self {
        let (port, usual) = MEMCACHED.split_last().unwrap();
        Self::start(&[usual, options, &[*port]].concat())
    }

    /// Starts memcached on a reserved port.
    pub fn memcached_at(reserved: ReservedPort) -> Self {
        Self::start_at(reserved, &MEMCACHED)
    }

    pub fn redis() -> Self {
        Self::redis_with(&[])
    }

    pub fn redis_with(options: &[&str]) -> Self {
        let memory_only = ["--save", "", "--appendonly", "no"];
        Self::start(&[&["redis-server"], &memory_only[..], options, &["--port"]].concat())
    }

    /// Starts a command with the port as its last argument.
    fn start(command: &[&str]) -> Self {
        Self::start_at(ReservedPort::new(), command)
    }

    fn start_at(reserved: ReservedPort, command: &[&str]) -> Self {
        let port = reserved.port;
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

    /// Stops the server, and returns its port for another server.
    pub fn stop(mut self) -> ReservedPort {
        self.reserved.take().unwrap()
    }

    /// Waits until this memcached has answered `count` gets and sets. A fixed delay is not enough,
    /// because a load starts late on a busy machine.
    pub fn await_requests(&self, count: u64) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut answered = 0;
        while answered < count {
            assert!(Instant::now() < deadline, "{answered} requests, not {count}");
            std::thread::sleep(Duration::from_millis(2));
            stream.write_all(b"stats\r\n").unwrap();
            let stats = lines.by_ref().map(Result::unwrap).take_while(|line| line != "END");
            let counts = stats.filter_map(|line| {
                let of = |name| line.strip_prefix(name)?.parse::<u64>().ok();
                of("STAT cmd_get ").or_else(|| of("STAT cmd_set "))
            });
            answered = counts.sum();
        }
    }

    fn answers(&mut self) -> bool {
        let start_time = Instant::now();
        while start_time.elapsed() < Duration::from_secs(60)
            && self.child.try_wait().unwrap().is_none()
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

/// Parses a command line that may be invalid.
pub fn parse(line: &str) -> Result<Arguments, clap::Error> {
    parse_words(&line.split_whitespace().collect::<Vec<_>>())
}

/// Parses the words of a command line that may be invalid.
pub fn parse_words(words: &[&str]) -> Result<Arguments, clap::Error> {
    Ok(Line::try_parse_from(std::iter::once(&"bench").chain(words))?.arguments)
}

//! A server that a test starts for itself and ends with it.
#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

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
        // Somebody else may take the port before the server does; then another is tried.
        for _ in 0..5 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let child = Command::new(program)
                .args(["-l", "127.0.0.1", "-p", &port.to_string()])
                .args(options)
                .envs(environment.iter().copied())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let mut server = Self { child, port };
            if server.answers() {
                return server;
            }
        }
        panic!("{program} {options:?} does not start");
    }

    fn answers(&mut self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(10) && self.child.try_wait().unwrap().is_none()
        {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
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
            assert!(begun.elapsed() < Duration::from_secs(20), "it does not end");
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

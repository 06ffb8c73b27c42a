//! A scripted server in the test process. In a correct reply, the value of each key is the key
//! itself.
#![allow(dead_code, unreachable_pub, reason = "several test programs include this module")]

pub mod any_client;
pub mod cluster;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The server's reaction to a request.
pub enum Action {
    /// Replies correctly.
    Reply,
    /// Replies correctly after a delay.
    ReplyAfter(Duration),
    /// Sends the start of a reply, and then sends its value byte by byte for this time.
    SendSlowly(Duration),
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Sends these bytes, then carries out another action.
    SendThen(Vec<u8>, Arc<Self>),
    /// Sends nothing.
    Silence,
    /// Closes the connection.
    Close,
    /// Resets the connection.
    Reset,
}

/// A request that the server has read.
pub struct Request {
    /// The number of earlier requests.
    pub number: u64,
    /// The number of earlier requests on the same connection.
    pub on_connection: u64,
    /// A pseudo-random number that is different for each request.
    pub random: u64,
    pub line: String,
    /// The first word of the line.
    pub verb: String,
    /// The keys of a classic lookup. Empty for all other requests.
    pub keys: Vec<String>,
}

impl Request {
    /// Returns the correct reply: `STORED`, or for a classic lookup a hit for each key, with the
    /// key as its value.
    pub fn right(&self) -> Vec<u8> {
        if self.keys.is_empty() {
            return b"STORED\r\n".to_vec();
        }
        let hits = self.keys.iter().map(|key| format!("VALUE {key} 0 {}\r\n{key}\r\n", key.len()));
        (hits.collect::<String>() + "END\r\n").into_bytes()
    }
}

/// A scripted server. It runs until the test process exits.
pub struct FakeServer {
    pub port: u16,
    accepted: Arc<AtomicU64>,
    requests: Arc<AtomicU64>,
    closed: Arc<AtomicU64>,
}

impl FakeServer {
    pub fn start(behave: impl Fn(&Request) -> Action + Send + Sync + 'static) -> Self {
        Self::at(TcpListener::bind("127.0.0.1:0").unwrap(), behave)
    }

    pub fn at(
        listener: TcpListener,
        behave: impl Fn(&Request) -> Action + Send + Sync + 'static,
    ) -> Self {
        let port = listener.local_addr().unwrap().port();
        let fake = Self {
            port,
            accepted: Arc::default(),
            requests: Arc::default(),
            closed: Arc::default(),
        };
        let accepted = Arc::clone(&fake.accepted);
        let (requests, closed) = (Arc::clone(&fake.requests), Arc::clone(&fake.closed));
        let behave = Arc::new(behave);
        thread::spawn(move || {
            for stream in listener.incoming() {
                accepted.fetch_add(1, Ordering::Relaxed);
                let (requests, closed) = (Arc::clone(&requests), Arc::clone(&closed));
                let behave = Arc::clone(&behave);
                thread::spawn(move || {
                    // Ignores errors, because a lost connection only ends its thread.
                    drop(stream.and_then(|stream| serve(&stream, &requests, &*behave)));
                    closed.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        fake
    }

    /// Returns the number of accepted connections.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Returns the number of closed connections.
    pub fn closed(&self) -> u64 {
        self.closed.load(Ordering::Relaxed)
    }

    /// Returns the number of requests read.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

/// Waits until a condition is true. Panics after a minute.
pub fn wait_until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_millis(1));
    }
}

fn serve(
    stream: &TcpStream,
    requests: &AtomicU64,
    behave: &dyn Fn(&Request) -> Action,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut reader, mut line) = (BufReader::new(stream), String::new());
    for on_connection in 0.. {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            break;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let keys = match words[..] {
            ["gat" | "gats", _, ..] => words[2..].iter().map(ToString::to_string).collect(),
            ["get" | "gets", ..] => words[1..].iter().map(ToString::to_string).collect(),
            ["mn"] | ["delete", _] | ["mg", ..] => Vec::new(),
            ["set" | "add", _, _, _, len] | ["cas", _, _, _, len, _] | ["ms", _, len, ..] => {
                reader.read_exact(&mut vec![0; len.parse::<usize>().unwrap() + 2])?;
                Vec::new()
            }
            _ => panic!("{line:?}"),
        };
        let number = requests.fetch_add(1, Ordering::Relaxed);
        let random = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let verb = words[0].to_owned();
        let line = line.clone();
        let request = Request { number, on_connection, random, line, verb, keys };
        if !act(stream, &request, &behave(&request))? {
            break;
        }
    }
    Ok(())
}

/// Carries out an action. Returns whether the connection stays open.
fn act(mut stream: &TcpStream, request: &Request, action: &Action) -> std::io::Result<bool> {
    match action {
        Action::Reply => stream.write_all(&request.right())?,
        Action::ReplyAfter(time) => {
            thread::sleep(*time);
            stream.write_all(&request.right())?;
        }
        Action::SendSlowly(time) => {
            stream.write_all(b"VALUE a 0 1000000\r\n")?;
            let start = Instant::now();
            while start.elapsed() < *time {
                stream.write_all(b"v")?;
                thread::sleep(Duration::from_millis(5));
            }
        }
        Action::Send(bytes) => stream.write_all(bytes)?,
        Action::SendThen(bytes, then) => {
            stream.write_all(bytes)?;
            return act(stream, request, then);
        }
        Action::Silence => (),
        Action::Close => return Ok(false),
        Action::Reset => {
            // Closing with a linger time of 0 sends a reset.
            socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO))?;
            return Ok(false);
        }
    }
    Ok(true)
}

//! A server inside the test that does what it is told: every key has itself as its value.
#![allow(dead_code, unreachable_pub, reason = "it is a module of several tests")]

pub mod any_client;
pub mod cluster;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// What the server does with a request.
pub enum Action {
    /// It answers.
    Right,
    /// It answers after a time.
    Late(Duration),
    /// It sends the beginning of an answer, and more of it for a time.
    Dripping(Duration),
    /// It sends these bytes.
    Send(Vec<u8>),
    /// It sends these bytes, and then does something else.
    SendThen(Vec<u8>, Arc<Self>),
    /// It sends nothing.
    Silence,
    /// It closes the connection.
    Close,
    /// It resets the connection.
    Reset,
}

/// A request.
pub struct Request {
    /// How many came before it.
    pub number: u64,
    /// How many came before it on its connection.
    pub on_connection: u64,
    /// Different for each.
    pub random: u64,
    pub line: String,
    /// The first word of the line.
    pub verb: String,
    /// Those of a look-up.
    pub keys: Vec<String>,
}

impl Request {
    /// The right answer.
    pub fn right(&self) -> Vec<u8> {
        if self.keys.is_empty() {
            return b"STORED\r\n".to_vec();
        }
        let hits = self.keys.iter().map(|key| format!("VALUE {key} 0 {}\r\n{key}\r\n", key.len()));
        (hits.collect::<String>() + "END\r\n").into_bytes()
    }
}

/// The server. It ends with the test's process.
pub struct Fake {
    pub port: u16,
    accepted: Arc<AtomicU64>,
    requests: Arc<AtomicU64>,
    closed: Arc<AtomicU64>,
}

impl Fake {
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
                    // A connection that was lost ends its thread.
                    drop(stream.and_then(|stream| serve(&stream, &requests, &*behave)));
                    closed.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        fake
    }

    /// How many connections were accepted.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// How many connections were closed.
    pub fn closed(&self) -> u64 {
        self.closed.load(Ordering::Relaxed)
    }

    /// How many requests were read.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

/// Waits until something is so.
pub fn wait_until(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(20));
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

/// Whether the connection goes on.
fn act(mut stream: &TcpStream, request: &Request, action: &Action) -> std::io::Result<bool> {
    match action {
        Action::Right => stream.write_all(&request.right())?,
        Action::Late(time) => {
            thread::sleep(*time);
            stream.write_all(&request.right())?;
        }
        Action::Dripping(time) => {
            stream.write_all(b"VALUE a 0 1000000\r\n")?;
            let begun = Instant::now();
            while begun.elapsed() < *time {
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

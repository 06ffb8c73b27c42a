//! A server in the test process with configurable faults.
#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The server's reaction to a request.
pub enum Action {
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Sends these bytes after a delay.
    SendAfter(Duration, Vec<u8>),
    /// Sends nothing.
    Ignore,
    /// Closes the connection.
    Close,
}

/// A request to a [`BrokenServer`].
pub struct Request<'r> {
    /// Number of earlier requests on all connections.
    pub number: u64,
    /// Number of the connection.
    pub connection: u64,
    /// The key of a get; `None` for a set.
    pub get: Option<&'r str>,
    /// The stored values.
    pub items: &'r HashMap<String, Vec<u8>>,
}

impl Request<'_> {
    /// Returns the reply that a correct server would send.
    pub fn right(&self) -> Vec<u8> {
        match self.get {
            None => b"STORED\r\n".to_vec(),
            Some(key) => self.items.get(key).map_or_else(miss, |value| hit(key, value)),
        }
    }
}

pub fn miss() -> Vec<u8> {
    b"END\r\n".to_vec()
}

pub fn hit(key: &str, value: &[u8]) -> Vec<u8> {
    [format!("VALUE {key} 0 {}\r\n", value.len()).as_bytes(), value, b"\r\nEND\r\n"].concat()
}

pub type Behaviour = dyn Fn(&Request<'_>) -> Action + Send + Sync;

/// A server that speaks memcached's text protocol. It supports only the commands of a load whose
/// gets have one key.
pub struct BrokenServer {
    pub port: u16,
    /// Number of accepted connections.
    pub accepted: Arc<AtomicU64>,
    /// Number of received gets and sets.
    pub requests: Arc<AtomicU64>,
}

impl BrokenServer {
    pub fn start(behaviour: impl Fn(&Request<'_>) -> Action + Send + Sync + 'static) -> Self {
        Self::start_with(b"", Arc::new(behaviour))
    }

    /// Sends `banner` on each connection and closes it.
    pub fn refusing(banner: &'static [u8]) -> Self {
        Self::start_with(banner, Arc::new(|_: &Request<'_>| Action::Close))
    }

    fn start_with(banner: &'static [u8], behaviour: Arc<Behaviour>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (accepted, requests) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let server = Self { port, accepted: accepted.clone(), requests: requests.clone() };
        std::thread::spawn(move || {
            let items = Arc::new(Mutex::new(HashMap::new()));
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let connection = accepted.fetch_add(1, Ordering::Relaxed);
                if !banner.is_empty() {
                    let _ = stream.write_all(banner);
                    continue;
                }
                let (items, behaviour) = (items.clone(), behaviour.clone());
                let requests = requests.clone();
                std::thread::spawn(move || {
                    serve(stream, connection, &requests, &items, &*behaviour)
                });
            }
        });
        server
    }
}

fn serve(
    mut stream: TcpStream,
    connection: u64,
    requests: &AtomicU64,
    items: &Mutex<HashMap<String, Vec<u8>>>,
    behaviour: &Behaviour,
) {
    stream.set_nodelay(true).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = Vec::new();
    loop {
        line.clear();
        if !matches!(reader.read_until(b'\n', &mut line), Ok(1..)) {
            return;
        }
        let text = String::from_utf8_lossy(&line).into_owned();
        let words: Vec<&str> = text.split_whitespace().collect();
        let (get, stored) = match words[..] {
            ["get", key] => (Some(key), None),
            ["set", key, _, _, len] => {
                let mut value = vec![0; len.parse::<usize>().unwrap() + 2];
                if reader.read_exact(&mut value).is_err() {
                    return;
                }
                value.truncate(value.len() - 2);
                (None, Some((key.to_owned(), value)))
            }
            // Without a reply to its `stats` or `version` query, the load generator would wait for
            // seconds.
            ["stats" | "version"] => {
                let _ = stream.write_all(b"ERROR\r\n");
                continue;
            }
            // Ignores other lines, such as the bytes of a TLS handshake.
            _ => continue,
        };
        let mut items = items.lock().unwrap();
        items.extend(stored);
        let number = requests.fetch_add(1, Ordering::Relaxed);
        let action = behaviour(&Request { number, connection, get, items: &items });
        drop(items);
        let bytes = match action {
            Action::Send(bytes) => bytes,
            Action::SendAfter(time, bytes) => {
                std::thread::sleep(time);
                bytes
            }
            Action::Ignore => continue,
            Action::Close => return,
        };
        if stream.write_all(&bytes).is_err() {
            return;
        }
    }
}
